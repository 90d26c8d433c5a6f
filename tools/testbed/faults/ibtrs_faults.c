// SPDX-License-Identifier: GPL-2.0
/*
 * Makes functions of the kernel fail when our modules call them: the nth call
 * of one function, once or several times, with an error of one's choice.  For
 * test kernels only; nothing of it is installed.
 *
 * The kernel's own fail_function tells callers apart by one range of addresses,
 * counts nothing, and cannot say "the third".  This module knows the text of
 * each module named ibtrs_*, ibnbd_* or ibmsg that is loaded after it.  A call counts
 * if one of the innermost return addresses, as many as the function's depth
 * says, is in there: 1 for calls that our code makes itself, more for those
 * made on its behalf by a layer in between.
 *
 * In debugfs, in the folder ibtrs_faults:
 *
 *   functions  write "<function> <kind> <depth>" to have a function watched,
 *              which takes a breakpoint at its entry; read for one line each:
 *              "<function> <calls> <failed>", since the last write to `arm`.
 *              A function of a module that goes is not watched any more.
 *   arm        write "<function> <n> <errno> <times>" to have the nth call from
 *              now on fail, and those behind it, <times> in all; "- 0 0 0"
 *              disarms all.  Either way all counts begin again.
 *   modules    read for a line for each module of ours, "<module> <first> <end>",
 *              the addresses of its text, for the filters of other injectors
 *
 * Kinds say what a caller gets in place of the call:
 *
 *   errno   -<errno>, as a number or as a pointer
 *   null    0: no memory, nothing mapped, false
 *   alloc   0, but a call with the size 0, which frees, is let through
 *   post    -<errno>, and the first work request as the bad one
 *   flip    the call goes on, with a bit of what it copies to memory flipped: of
 *           functions like soft-RoCE's rxe_mr_copy(), which puts what has arrived
 *           into memory, as a network card would by DMA.  Their caller,
 *           calls count that copy at least <errno> bytes
 *   flipend as flip, but of the bit <errno> % 8 of the byte that lies <errno> / 8
 *           before the end, of copies that have one and are shorter than 512
 *           bytes.  Headers end what they are in
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/atomic.h>
#include <linux/debugfs.h>
#include <linux/error-injection.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/ptrace.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#define MAX_MODULES 8
#define MAX_DEPTH 16

enum kind { KIND_ERRNO, KIND_NULL, KIND_ALLOC, KIND_POST, KIND_FLIP, KIND_FLIPEND };

static const char * const kinds[] = { "errno", "null", "alloc", "post", "flip", "flipend" };

struct watched {
	struct list_head list;
	struct kprobe kp;
	char name[KSYM_NAME_LEN];
	enum kind kind;
	int depth;
	atomic_t calls;
	atomic_t failed;
	/* Calls n to n + times - 1 fail; n is 0 where none does. */
	int n;
	int times;
	int error;
};

/* The text of one module; `base` is 0 where there is none. */
struct text {
	unsigned long base;
	unsigned long size;
	unsigned long init_base;
	unsigned long init_size;
	const struct module *mod;
};

static LIST_HEAD(functions);
static DEFINE_MUTEX(lock);
static struct text texts[MAX_MODULES];
static struct dentry *folder;

static bool within(unsigned long addr, unsigned long base, unsigned long size)
{
	return addr - base < size;
}

static bool is_ours(unsigned long addr)
{
	int i;

	for (i = 0; i < MAX_MODULES; i++) {
		const struct text *text = &texts[i];

		if (within(addr, READ_ONCE(text->base), READ_ONCE(text->size)) ||
		    within(addr, READ_ONCE(text->init_base), READ_ONCE(text->init_size)))
			return true;
	}
	return false;
}

/* The return address in our text that is nearest to the call, or 0. */
static unsigned long caller(struct pt_regs *regs, int depth)
{
	/* At a function's entry its frame is not there yet. */
	unsigned long frame[2] = { regs->bp, 0 }, next, addr;
	const unsigned long *sp = (unsigned long *)kernel_stack_pointer(regs);

	if (copy_from_kernel_nofault(&addr, sp, sizeof(addr)))
		return 0;
	while (!is_ours(addr)) {
		if (--depth <= 0)
			return 0;
		next = frame[0];
		/* Frames are further up on the same stack. */
		if (next <= (unsigned long)sp || !IS_ALIGNED(next, sizeof(long)) ||
		    copy_from_kernel_nofault(frame, (void *)next, sizeof(frame)))
			return 0;
		sp = (unsigned long *)next;
		addr = frame[1];
	}
	return addr;
}

/* Of f(object, address, what to copy, length, direction): 0 is to the object. */
static int flip(struct watched *w, struct pt_regs *regs)
{
	unsigned int length = regs->cx, error = READ_ONCE(w->error), least = error;
	unsigned int at = length / 2, bit = 0;
	int call, n;

	if (w->kind == KIND_FLIPEND) {
		if (length >= 512)
			return 0;
		least = error / 8;
		at = length - least;
		bit = error % 8;
	}
	if (!length || !least || length < least || (u32)regs->r8)
		return 0;
	call = atomic_inc_return(&w->calls);
	n = READ_ONCE(w->n);
	if (!n || call < n || call >= n + READ_ONCE(w->times))
		return 0;
	((u8 *)regs->dx)[at] ^= 1 << bit;
	atomic_inc(&w->failed);
	return 0;
}

static int entered(struct kprobe *kp, struct pt_regs *regs)
{
	struct watched *w = container_of(kp, struct watched, kp);
	unsigned long addr;
	int call, n;

	if (w->kind == KIND_FLIP || w->kind == KIND_FLIPEND)
		return flip(w, regs);
	if (w->kind == KIND_ALLOC && !regs->si)
		return 0;
	addr = caller(regs, w->depth);
	if (!addr)
		return 0;
	call = atomic_inc_return(&w->calls);
	n = READ_ONCE(w->n);
	if (!n || call < n || call >= n + READ_ONCE(w->times))
		return 0;
	if (atomic_inc_return(&w->failed) <= 3)
		pr_info("%s fails, called from %pS\n", w->name, (void *)addr);
	switch (w->kind) {
	case KIND_POST:
		/* The bad request is what the third argument points to. */
		*(unsigned long *)regs->dx = regs->si;
		fallthrough;
	case KIND_ERRNO:
		regs_set_return_value(regs, -(long)READ_ONCE(w->error));
		break;
	default:
		regs_set_return_value(regs, 0);
	}
	/* To the caller, as if the function had returned: nothing of it has run. */
	regs->ip = *(unsigned long *)regs->sp;
	regs->sp += sizeof(long);
	return 1;
}
NOKPROBE_SYMBOL(flip);
NOKPROBE_SYMBOL(entered);

/* With one a breakpoint is not made a jump, which could not skip the function. */
static void passed(struct kprobe *kp, struct pt_regs *regs, unsigned long flags)
{
}

static void forget(struct watched *w)
{
	unregister_kprobe(&w->kp);
	list_del(&w->list);
	kfree(w);
}

static struct watched *find(const char *name)
{
	struct watched *w;

	list_for_each_entry(w, &functions, list)
		if (!strcmp(w->name, name))
			return w;
	return NULL;
}

static int watch(const char *name, const char *kind, int depth)
{
	int which = match_string(kinds, ARRAY_SIZE(kinds), kind), ret;
	struct watched *w;

	if (which < 0 || depth < 1 || depth > MAX_DEPTH)
		return -EINVAL;
	if (find(name))
		return -EEXIST;
	w = kzalloc_obj(*w);
	if (!w)
		return -ENOMEM;
	strscpy(w->name, name, sizeof(w->name));
	w->kind = which;
	w->depth = depth;
	w->kp.symbol_name = w->name;
	w->kp.pre_handler = entered;
	w->kp.post_handler = passed;
	ret = register_kprobe(&w->kp);
	if (ret) {
		kfree(w);
		return ret;
	}
	list_add_tail(&w->list, &functions);
	return 0;
}

/* Copies one line; the caller frees it. */
static char *line_from(const char __user *from, size_t count)
{
	char *line;

	if (count > KSYM_NAME_LEN + 64)
		return ERR_PTR(-EINVAL);
	line = memdup_user_nul(from, count);
	return line;
}

static ssize_t functions_write(struct file *file, const char __user *from, size_t count, loff_t *pos)
{
	char name[KSYM_NAME_LEN], kind[8], *line = line_from(from, count);
	int depth, ret = -EINVAL;

	if (IS_ERR(line))
		return PTR_ERR(line);
	BUILD_BUG_ON(KSYM_NAME_LEN <= 127);
	if (sscanf(line, "%127s %7s %d", name, kind, &depth) == 3) {
		mutex_lock(&lock);
		ret = watch(name, kind, depth);
		mutex_unlock(&lock);
	}
	kfree(line);
	return ret ?: count;
}

static ssize_t arm_write(struct file *file, const char __user *from, size_t count, loff_t *pos)
{
	char name[KSYM_NAME_LEN], *line = line_from(from, count);
	struct watched *w, *target;
	int n, error, times, ret = -EINVAL;

	if (IS_ERR(line))
		return PTR_ERR(line);
	if (sscanf(line, "%127s %d %d %d", name, &n, &error, &times) != 4 || n < 0 || error < 0 ||
	    error > MAX_ERRNO || times < 0)
		goto out;
	mutex_lock(&lock);
	target = find(name);
	ret = target || !n ? 0 : -ENOENT;
	list_for_each_entry(w, &functions, list) {
		WRITE_ONCE(w->n, 0);
		atomic_set(&w->calls, 0);
		atomic_set(&w->failed, 0);
	}
	if (target && n) {
		target->error = error;
		target->times = times;
		smp_wmb(); /* a reader that sees it armed also sees its arguments */
		WRITE_ONCE(target->n, n);
	}
	mutex_unlock(&lock);
out:
	kfree(line);
	return ret ?: count;
}

static int functions_show(struct seq_file *seq, void *unused)
{
	struct watched *w;

	mutex_lock(&lock);
	list_for_each_entry(w, &functions, list)
		seq_printf(seq, "%s %d %d\n", w->name, atomic_read(&w->calls), atomic_read(&w->failed));
	mutex_unlock(&lock);
	return 0;
}

static int modules_show(struct seq_file *seq, void *unused)
{
	int i;

	mutex_lock(&lock);
	for (i = 0; i < MAX_MODULES; i++)
		if (texts[i].mod)
			seq_printf(seq, "%s 0x%lx 0x%lx\n", texts[i].mod->name, texts[i].base,
				   texts[i].base + texts[i].size);
	mutex_unlock(&lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(modules);

static int functions_open(struct inode *inode, struct file *file)
{
	return single_open(file, functions_show, NULL);
}

static const struct file_operations functions_fops = {
	.owner = THIS_MODULE,
	.open = functions_open,
	.read = seq_read,
	.write = functions_write,
	.llseek = seq_lseek,
	.release = single_release,
};

static const struct file_operations arm_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = arm_write,
	.llseek = noop_llseek,
};

static bool is_module_of_ours(const struct module *mod)
{
	return str_has_prefix(mod->name, "ibnbd_") || !strcmp(mod->name, "ibmsg") ||
	       (str_has_prefix(mod->name, "ibtrs_") && mod != THIS_MODULE);
}

static void note(struct text *text, const struct module *mod, bool with_init)
{
	WRITE_ONCE(text->size, 0);
	WRITE_ONCE(text->init_size, 0);
	text->mod = mod;
	if (!mod)
		return;
	WRITE_ONCE(text->base, (unsigned long)mod->mem[MOD_TEXT].base);
	WRITE_ONCE(text->size, mod->mem[MOD_TEXT].size);
	if (with_init) {
		WRITE_ONCE(text->init_base, (unsigned long)mod->mem[MOD_INIT_TEXT].base);
		WRITE_ONCE(text->init_size, mod->mem[MOD_INIT_TEXT].size);
	}
}

static int module_changes(struct notifier_block *nb, unsigned long state, void *data)
{
	const struct module *mod = data;
	int i;

	if (!is_module_of_ours(mod))
		return NOTIFY_DONE;
	mutex_lock(&lock);
	for (i = 0; i < MAX_MODULES; i++)
		if (texts[i].mod == mod)
			break;
	if (i == MAX_MODULES && state == MODULE_STATE_COMING)
		for (i = 0; i < MAX_MODULES; i++)
			if (!texts[i].mod)
				break;
	if (i < MAX_MODULES)
		note(&texts[i], state == MODULE_STATE_GOING ? NULL : mod, state == MODULE_STATE_COMING);
	mutex_unlock(&lock);
	return NOTIFY_DONE;
}

static struct notifier_block notifier = { .notifier_call = module_changes };

static int __init faults_init(void)
{
	int ret = register_module_notifier(&notifier);

	if (ret)
		return ret;
	folder = debugfs_create_dir(KBUILD_MODNAME, NULL);
	debugfs_create_file("functions", 0600, folder, NULL, &functions_fops);
	debugfs_create_file("arm", 0200, folder, NULL, &arm_fops);
	debugfs_create_file("modules", 0400, folder, NULL, &modules_fops);
	return 0;
}

static void __exit faults_exit(void)
{
	struct watched *w, *next;

	debugfs_remove_recursive(folder);
	unregister_module_notifier(&notifier);
	list_for_each_entry_safe(w, next, &functions, list)
		forget(w);
}

module_init(faults_init);
module_exit(faults_exit);
MODULE_DESCRIPTION("Makes functions fail that ibtrs and ibnbd call, for tests");
MODULE_LICENSE("GPL");
