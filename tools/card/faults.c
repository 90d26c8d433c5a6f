// SPDX-License-Identifier: GPL-2.0
/* Faults that debugfs asks for. */
#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include "card.h"

static void card_dispatch(struct card *card, enum ib_event_type type)
{
	struct ib_event event = { .device = &card->ibdev, .element.port_num = CARD_PORT, .event = type };

	ib_dispatch_event(&event);
}

static int port_down_get(void *data, u64 *value)
{
	struct card *card = data;

	*value = card->port_down;
	return 0;
}

static int port_down_set(void *data, u64 value)
{
	struct card *card = data;

	if (card->port_down != !!value) {
		WRITE_ONCE(card->port_down, !!value);
		card_dispatch(card, value ? IB_EVENT_PORT_ERR : IB_EVENT_PORT_ACTIVE);
	}
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(port_down_fops, port_down_get, port_down_set, "%llu\n");

static int fatal_set(void *data, u64 value)
{
	card_break_all(data);
	card_dispatch(data, IB_EVENT_DEVICE_FATAL);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(fatal_fops, NULL, fatal_set, "%llu\n");

/* "create_qp 3": the third call from now on fails. */
static ssize_t fail_write(struct file *file, const char __user *text, size_t size, loff_t *offset)
{
	struct card *card = file->private_data;
	char line[32], verb[16];
	u32 n;

	if (size >= sizeof(line))
		return -EINVAL;
	if (copy_from_user(line, text, size))
		return -EFAULT;
	line[size] = 0;
	if (sscanf(line, "%15s %u", verb, &n) != 2)
		return -EINVAL;
	atomic_set(&card->fail_in, 0);
	strscpy(card->fail_verb, verb);
	atomic_set(&card->fail_in, n);
	return size;
}

static const struct file_operations fail_fops = {
	.owner = THIS_MODULE, .open = simple_open, .write = fail_write,
};

bool card_fails(struct card *card, const char *verb)
{
	if (likely(!atomic_read(&card->fail_in)) || strcmp(card->fail_verb, verb))
		return false;
	return !atomic_dec_return(&card->fail_in);
}

bool card_loses_ack(struct card *card)
{
	u32 n = READ_ONCE(card->lose_acks);

	if (likely(!n))
		return false;
	return try_cmpxchg(&card->lose_acks, &n, n - 1);
}

void card_faults_add(struct card *card)
{
	debugfs_create_file("port_down", 0600, card->folder, card, &port_down_fops);
	debugfs_create_file("fatal", 0200, card->folder, card, &fatal_fops);
	debugfs_create_file("fail", 0200, card->folder, card, &fail_fops);
	debugfs_create_u32("lose_acks", 0600, card->folder, &card->lose_acks);
	debugfs_create_u32("hold_us", 0600, card->folder, &card->hold_us);
	debugfs_create_u32("hold_qp", 0600, card->folder, &card->hold_qp);
}
