// SPDX-License-Identifier: GPL-2.0
/*
 * A table of keys and values that clients read without the server's program: `kv serve PORTAL' publishes the table,
 * `kv get SESSION PORTAL KEY' copies slots of it by GET, and `kv set SESSION PORTAL KEY VALUE' asks the server to
 * change one.
 *
 * A GET copies a slot while the server may be writing it, in any order of bytes.  So each slot has a checksum, and a
 * client that has got half of a change gets the slot again.
 *
 * For tests: `kv count SESSION PORTAL KEY N' sets a key to N values, one after the other, and `kv watch SESSION PORTAL
 * KEY N' gets it N times and checks that each value is one of those.
 */
#define _DEFAULT_SOURCE
#include <poll.h>

#include "published.h"

#define SLOTS		1024
#define MAX_TEXT	240
#define MAX_CLIENTS	64

struct slot {
	__u64 sum;
	__u32 key_len;		/* 0: empty */
	__u32 value_len;
	char text[MAX_TEXT];	/* the key, and the value behind it */
};

/* The answer to an empty request: the table. */
struct table {
	__u64 handle;
	__u64 slots;
};

static __u64 hash(const void *from, size_t len)
{
	const unsigned char *bytes = from;
	__u64 sum = 14695981039346656037u;

	for (size_t i = 0; i < len; i++)
		sum = (sum ^ bytes[i]) * 1099511628211u;
	return sum;
}

static __u64 sum_of(const struct slot *slot)
{
	return hash(&slot->key_len, sizeof(*slot) - sizeof(slot->sum));
}

static int has_key(const struct slot *slot, const char *key, size_t len)
{
	return slot->key_len == len && !memcmp(slot->text, key, len);
}

/* --- the server --- */

/* 0, or a negative errno. */
static int change(struct slot *slots, const char *text, size_t len)
{
	size_t key_len = strnlen(text, len);
	struct slot new = { .key_len = (__u32)key_len };

	if (!key_len || key_len == len || len - 1 > MAX_TEXT)
		return -EINVAL;
	new.value_len = (__u32)(len - key_len - 1);
	memcpy(new.text, text, key_len);
	memcpy(new.text + key_len, text + key_len + 1, new.value_len);
	new.sum = sum_of(&new);
	for (size_t i = 0; i < SLOTS; i++) {
		struct slot *slot = &slots[(hash(text, key_len) + i) % SLOTS];

		if (!slot->key_len || has_key(slot, text, key_len)) {
			*slot = new;
			return 0;
		}
	}
	return -ENOSPC;
}

static void answer(int channel, struct slot *slots, struct ibmsg_msg *msg)
{
	struct ibmsg_msg reply = { .kind = IBMSG_REPLY, .id = msg->id };
	struct table table = { .slots = SLOTS };

	if (msg->len)
		reply.status = -change(slots, content_of(msg), msg->len);
	else if (publish_memory(channel, slots, SLOTS * sizeof(*slots), IBMSG_MEM_GET, &table.handle))
		reply.status = errno;
	else
		reply.len = sizeof(table);
	/* The client may have gone: its end follows. */
	if (send_message(channel, reply, &table) && errno != EPIPE)
		perror("reply");
}

/* Handles what has come.  0: the channel has ended. */
static int hear(int channel, struct slot *slots)
{
	static __u64 buffer[(sizeof(struct ibmsg_msg) + IBMSG_MAX_MESSAGE) / sizeof(__u64)];
	struct reader reader = { .bytes = (char *)buffer, .size = sizeof(buffer) };

	do {
		struct ibmsg_msg *msg = next_message(channel, &reader);

		if (!msg)
			return 0;
		if (msg->kind == IBMSG_REQUEST)
			answer(channel, slots, msg);
	} while (reader.at < reader.len);
	return 1;
}

static void serve(const char *name)
{
	struct slot *slots = new_memory(SLOTS * sizeof(*slots));
	struct pollfd files[1 + MAX_CLIENTS] = { { .fd = bind_portal((struct ibmsg_bind){ 0 }, name) } };
	nfds_t count = 1;

	for (;;) {
		/* Further clients wait at the portal. */
		files[0].events = count <= MAX_CLIENTS ? POLLIN : 0;
		for (nfds_t i = 1; i < count; i++)
			files[i].events = POLLIN;
		if (poll(files, count, -1) < 0)
			die("poll");
		for (nfds_t i = count; i-- > 1;) {
			if (files[i].revents && !hear(files[i].fd, slots)) {
				/* What is published on a channel ends with it. */
				close(files[i].fd);
				files[i] = files[--count];
			}
		}
		if (files[0].revents & POLLIN)
			files[count++].fd = accept_channel(files[0].fd, 0);
	}
}

/* --- clients --- */

static void set(int channel, const char *key, const char *value)
{
	char text[MAX_TEXT + 2];
	int len = snprintf(text, sizeof(text), "%s%c%s", key, 0, value);

	if ((size_t)len >= sizeof(text))
		errno = EMSGSIZE;
	else if (!make_call(channel, text, (size_t)len, NULL, 0))
		return;
	die(key);
}

static struct table open_table(int channel)
{
	struct table table;

	if (make_call(channel, NULL, 0, &table, sizeof(table)) != sizeof(table) || !table.slots)
		die("table");
	return table;
}

/* The slot of a key; its value is not there if it is empty.  Counts how often it was got again. */
static void get(int channel, const struct table *table, const char *key, struct slot *slot, unsigned int *again)
{
	size_t len = strlen(key);

	for (__u64 i = 0; i < table->slots; i++) {
		__u64 at = (hash(key, len) + i) % table->slots;

		while (1) {
			if (get_memory(channel, table->handle, at * sizeof(*slot), slot, sizeof(*slot)))
				die(key);
			if (!slot->key_len || slot->sum == sum_of(slot))
				break;
			++*again;
		}
		if ((__u64)slot->key_len + slot->value_len > MAX_TEXT) {
			errno = EPROTO;
			die(key);
		}
		if (!slot->key_len || has_key(slot, key, len))
			return;
	}
	slot->key_len = 0;
}

static int print_value(int channel, const char *key)
{
	struct table table = open_table(channel);
	unsigned int again = 0;
	struct slot slot;

	get(channel, &table, key, &slot, &again);
	if (!slot.key_len) {
		fprintf(stderr, "%s: no such key\n", key);
		return 1;
	}
	printf("%.*s\n", (int)slot.value_len, slot.text + slot.key_len);
	return 0;
}

/* The same word, as often as there is room, so that half of it is none. */
static void value_of(long number, char *value, size_t size)
{
	size_t len = 0;

	while (len + 16 < size)
		len += (size_t)snprintf(value + len, size - len, "%ld,", number);
}

static void set_many(int channel, const char *key, long count)
{
	char value[MAX_TEXT / 2];

	for (long i = 0; i < count; i++) {
		value_of(i, value, sizeof(value));
		set(channel, key, value);
	}
	printf("%ld values\n", count);
}

static int watch(int channel, const char *key, long count)
{
	struct table table = open_table(channel);
	unsigned int again = 0, changes = 0;
	long last = -1;

	for (long i = 0; i < count; i++) {
		char expected[MAX_TEXT / 2];
		struct slot slot;
		long now;

		get(channel, &table, key, &slot, &again);
		if (!slot.key_len)
			continue;
		now = atol(slot.text + slot.key_len);
		value_of(now, expected, sizeof(expected));
		if (now < last || slot.value_len != strlen(expected) ||
		    memcmp(slot.text + slot.key_len, expected, slot.value_len)) {
			fprintf(stderr, "not a value: %.*s\n", (int)slot.value_len, slot.text + slot.key_len);
			return 1;
		}
		changes += now != last;
		last = now;
	}
	printf("%ld gets, %u values, %u again\n", count, changes, again);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "serve"))
		serve(argv[2]);
	if (argc == 5 && !strcmp(argv[1], "get"))
		return print_value(connect_channel(argv[2], argv[3]), argv[4]);
	if (argc == 6 && !strcmp(argv[1], "watch"))
		return watch(connect_channel(argv[2], argv[3]), argv[4], atol(argv[5]));
	if (argc == 6 && !strcmp(argv[1], "set")) {
		set(connect_channel(argv[2], argv[3]), argv[4], argv[5]);
		return 0;
	}
	if (argc == 6 && !strcmp(argv[1], "count")) {
		set_many(connect_channel(argv[2], argv[3]), argv[4], atol(argv[5]));
		return 0;
	}
	fprintf(stderr, "usage: %s serve PORTAL | get SESSION PORTAL KEY | set SESSION PORTAL KEY VALUE\n", argv[0]);
	return 2;
}
