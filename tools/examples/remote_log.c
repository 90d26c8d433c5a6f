// SPDX-License-Identifier: GPL-2.0
/*
 * A log on another machine: `remote_log keep PORTAL FILE' appends what writers send, one writer after the other, and
 * `remote_log write SESSION PORTAL' sends its standard input.
 *
 * The keeper publishes a ring.  The writer puts its data there, and then sends a request with the position that it has
 * got to: what is put is in place when the keeper reads a message that was written afterwards.  The keeper appends it
 * to the file, and replies when the disk has it.  Meanwhile, the writer puts the next batches.
 */
#define _DEFAULT_SOURCE
#include "published.h"

#define BATCH	(64u << 10)
#define BATCHES	4u
#define RING	(BATCH * BATCHES)

/* --- the keeper --- */

/* Appends the ring's bytes between two positions, and waits for the disk.  0, or a negative errno. */
static int append(int file, const char *ring, __u64 from, __u64 to)
{
	if (to < from || to - from > RING)
		return -ERANGE;
	while (from < to) {
		size_t at = from % RING, len = RING - at;
		ssize_t written;

		if (len > to - from)
			len = to - from;
		written = write(file, ring + at, len);
		if (written < 0)
			return -errno;
		from += (__u64)written;
	}
	return fdatasync(file) ? -errno : 0;
}

/* Returns how many bytes the writer has committed. */
static __u64 keep(int channel, int file, char *ring)
{
	static __u64 buffer[(sizeof(struct ibmsg_msg) + IBMSG_MAX_MESSAGE) / sizeof(__u64)];
	struct reader reader = { .bytes = (char *)buffer, .size = sizeof(buffer) };
	struct ibmsg_msg handle = { .kind = IBMSG_MSG }, *msg;
	__u64 position = 0;

	if (publish_memory(channel, ring, RING, IBMSG_MEM_PUT, &handle.tag) || send_message(channel, handle, NULL)) {
		perror("ring");
		return 0;
	}
	while ((msg = next_message(channel, &reader))) {
		struct ibmsg_msg reply = { .kind = IBMSG_REPLY, .id = msg->id };

		if (msg->kind != IBMSG_REQUEST)
			continue;
		reply.status = -append(file, ring, position, msg->tag);
		if (!reply.status)
			position = msg->tag;
		/* The writer may have gone: its end follows. */
		if (send_message(channel, reply, NULL) && errno != EPIPE)
			perror("reply");
	}
	return position;
}

static void keep_all(const char *name, const char *path)
{
	int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	int portal = bind_portal((struct ibmsg_bind){ 0 }, name);
	char *ring = new_memory(RING);

	if (file < 0)
		die(path);
	for (;;) {
		int channel = accept_channel(portal, 0);
		__u64 bytes = keep(channel, file, ring);

		/* The ring is out of reach when its channel is closed: it is published again for the next writer. */
		close(channel);
		printf("%llu bytes\n", (unsigned long long)bytes);
		fflush(stdout);
	}
}

/* --- the writer --- */

static size_t read_all(int file, char *bytes, size_t len)
{
	size_t have = 0;

	while (have < len) {
		ssize_t got = read(file, bytes + have, len - have);

		if (got < 0)
			die("read");
		if (!got)
			break;
		have += (size_t)got;
	}
	return have;
}

/* The next message, which must be of that kind. */
static struct ibmsg_msg *expect(int channel, struct reader *reader, __u8 kind)
{
	struct ibmsg_msg *msg = next_message(channel, reader);

	if (!msg)
		die("read");
	if (msg->kind != kind || msg->status) {
		errno = msg->status;
		die("the keeper");
	}
	return msg;
}

static void write_log(int channel)
{
	static __u64 buffer[(sizeof(struct ibmsg_msg) + IBMSG_MAX_MESSAGE) / sizeof(__u64)];
	struct reader reader = { .bytes = (char *)buffer, .size = sizeof(buffer) };
	__u64 handle = expect(channel, &reader, IBMSG_MSG)->tag;
	char *batch = new_memory(BATCH);
	__u64 position = 0;
	unsigned int waiting = 0;

	for (;;) {
		size_t len = read_all(0, batch, BATCH);
		struct ibmsg_msg commit = { .kind = IBMSG_REQUEST };

		if (!len)
			break;
		/* The place of the oldest batch is free when it is on the disk.  Batches begin at multiples of BATCH. */
		if (waiting == BATCHES) {
			expect(channel, &reader, IBMSG_REPLY);
			waiting--;
		}
		if (put_memory(channel, handle, position % RING, batch, len))
			die("put");
		position += len;
		commit.tag = position;
		if (send_message(channel, commit, NULL))
			die("write");
		waiting++;
	}
	while (waiting--)
		expect(channel, &reader, IBMSG_REPLY);
	printf("%llu bytes\n", (unsigned long long)position);
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "keep"))
		keep_all(argv[2], argv[3]);
	if (argc == 4 && !strcmp(argv[1], "write")) {
		write_log(connect_channel(argv[2], argv[3]));
		return 0;
	}
	fprintf(stderr, "usage: %s keep PORTAL FILE | write SESSION PORTAL\n", argv[0]);
	return 2;
}
