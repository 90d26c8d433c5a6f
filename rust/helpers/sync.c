// SPDX-License-Identifier: GPL-2.0

#include <linux/build_bug.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>

/*
 * Returns whether the task is inside an RCU read section, as far as the kernel can
 * tell.  A kernel without CONFIG_PREEMPT_RCU and CONFIG_PREEMPT_COUNT cannot tell,
 * and the result is false.
 */
__rust_helper bool rust_helper_kx_in_rcu_section(void)
{
	return rcu_preempt_depth() > 0 ||
	       (!IS_ENABLED(CONFIG_PREEMPT_RCU) && IS_ENABLED(CONFIG_PREEMPT_COUNT) && in_atomic());
}

/*
 * The same as synchronize_rcu() in kernels that never preempt a task in the kernel.  In others it
 * has to wait for preempted tasks, which takes an option that tracing and kprobes select.
 */
__rust_helper void rust_helper_kx_synchronize_tasks(void)
{
	BUILD_BUG_ON_MSG(IS_ENABLED(CONFIG_PREEMPTION) && !IS_ENABLED(CONFIG_TASKS_RCU),
			 "unloading needs CONFIG_TASKS_RCU: enable CONFIG_KPROBES or CONFIG_BPF_SYSCALL");
	synchronize_rcu_tasks();
}
