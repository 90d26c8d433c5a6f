// SPDX-License-Identifier: GPL-2.0
/* Misuses: counted by kind, logged with the work request, and shown in debugfs. */
#include <linux/debugfs.h>
#include <linux/seq_file.h>
#include "card.h"

static const char * const names[] = {
	"unmapped",
	"past_end",
	"direction",
	"not_synced",
	"not_returned",
	"bad_lkey",
	"bad_rkey",
	"wrong_pd",
	"no_right",
	"out_of_bounds",
	"mr_not_free",
	"mr_key",
	"page_list_busy",
	"too_many_sges",
	"too_long",
	"sq_full",
	"rq_full",
	"cq_full",
	"wrong_state",
	"bad_opcode",
	"no_receive",
	"receive_too_short",
	"mr_busy",
	"too_many_reads",
	"bad_unmap",
};

static struct dentry *root;

/* Counts and logs a misuse. True if it breaks the queue pair. */
bool card_misuse(struct card *card, struct card_qp *qp, enum card_report what, u64 wr_id, u64 address, u32 length)
{
	bool first = atomic64_inc_return(&card->reports[what]) == 1;
	bool breaks = !(READ_ONCE(card_lenient) & BIT(what));

	/* What is tolerated may happen for each message. */
	if (first || breaks)
		pr_warn_ratelimited("rdma_card: %s: %s: queue pair %u, work request %#llx, address %#llx, length %u\n",
				    dev_name(&card->ibdev.dev), names[what], qp ? qp->qpn : 0, wr_id, address,
				    length);
	return breaks;
}

static_assert(ARRAY_SIZE(names) == CARD_REPORTS);

static int reports_show(struct seq_file *file, void *data)
{
	struct card *card = file->private;

	for (u32 i = 0; i < CARD_REPORTS; i++)
		seq_printf(file, "%s %lld\n", names[i], atomic64_read(&card->reports[i]));
	return 0;
}

static ssize_t reports_write(struct file *file, const char __user *text, size_t size, loff_t *offset)
{
	struct card *card = ((struct seq_file *)file->private_data)->private;

	for (u32 i = 0; i < CARD_REPORTS; i++)
		atomic64_set(&card->reports[i], 0);
	return size;
}
DEFINE_SHOW_STORE_ATTRIBUTE(reports);

static int counts_show(struct seq_file *file, void *data)
{
	struct card *card = file->private;

	seq_printf(file, "sends %lld\nreads %lld\nreceives %lld\ninterrupts %lld\nmappings %llu\nmemory %lld\n",
		   atomic64_read(&card->sends), atomic64_read(&card->reads), atomic64_read(&card->receives),
		   atomic64_read(&card->interrupts), READ_ONCE(card->tracker.count), atomic64_read(&card->memory));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(counts);

void card_debugfs_init(void)
{
	root = debugfs_create_dir("rdma_card", NULL);
}

void card_debugfs_exit(void)
{
	debugfs_remove(root);
}

void card_debugfs_add(struct card *card)
{
	card->folder = debugfs_create_dir(dev_name(&card->ibdev.dev), root);
	debugfs_create_file("reports", 0644, card->folder, card, &reports_fops);
	debugfs_create_file("counts", 0444, card->folder, card, &counts_fops);
	card_faults_add(card);
}
