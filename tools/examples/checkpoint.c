// SPDX-License-Identifier: GPL-2.0
/*
 * Checkpoints on another machine: `checkpoint keep PORTAL FILE' keeps the last one in a file, and `checkpoint work
 * SESSION PORTAL MIB STEPS' computes, and sends a checkpoint after each step.
 *
 * A checkpoint is a request whose body is the state.  Nothing of it is copied on the worker: the keeper GETs one piece
 * after the other and writes it to a new file.  Two answers follow:
 *
 *  - The receipt of the body, as soon as the keeper has released it: the memory may be used again.
 *  - The reply, when the disk has the checkpoint, and FILE is the new one.
 *
 * The worker has two states: each step makes the next one from the last one, while the keeper copies the last one.
 */
#define _DEFAULT_SOURCE
#include <limits.h>

#include "published.h"

#define PIECE	(1u << 20)

/* --- the keeper --- */

/* Copies the body of a message to a file.  0, or a negative errno. */
static int copy_body(int channel, const struct ibmsg_body *body, int file, char *piece)
{
	__u64 at = 0;

	while (at < body->len) {
		size_t len = body->len - at < PIECE ? (size_t)(body->len - at) : PIECE, done = 0;

		if (get_memory(channel, body->handle, body->offset + at, piece, len))
			return -errno;
		while (done < len) {
			ssize_t written = write(file, piece + done, len - done);

			if (written < 0)
				return -errno;
			done += (size_t)written;
		}
		at += len;
	}
	return 0;
}

/* Has the name of a file on the disk, after rename. */
static int sync_folder(const char *path)
{
	const char *slash = strrchr(path, '/');
	char folder[PATH_MAX] = ".";
	int file, result;

	if (slash)
		snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path) + 1, path);
	file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (file < 0)
		return -errno;
	result = fsync(file) ? -errno : 0;
	close(file);
	return result;
}

/* Makes the body of a message the file, or leaves the file as it is.  0, or a negative errno. */
static int keep(int channel, const struct ibmsg_body *body, const char *path, char *piece)
{
	char next[PATH_MAX];
	int file, result;

	if (snprintf(next, sizeof(next), "%s.next", path) >= (int)sizeof(next))
		return -ENAMETOOLONG;
	file = open(next, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	result = file < 0 ? -errno : copy_body(channel, body, file, piece);
	/* The worker may change its memory while this end waits for the disk.  It may also have gone. */
	if (release_body(channel, body->handle) && errno != EPIPE)
		perror("release");
	if (!result && fdatasync(file))
		result = -errno;
	if (file >= 0)
		close(file);
	if (!result && rename(next, path))
		result = -errno;
	return result ? result : sync_folder(path);
}

/* Returns how many checkpoints the worker has sent. */
static unsigned int keep_those_of(int channel, const char *path)
{
	static __u64 buffer[(sizeof(struct ibmsg_msg) + IBMSG_MAX_MESSAGE) / sizeof(__u64)];
	struct reader reader = { .bytes = (char *)buffer, .size = sizeof(buffer) };
	char *piece = new_memory(PIECE);
	struct ibmsg_msg *msg;
	unsigned int count = 0;

	while ((msg = next_message(channel, &reader))) {
		struct ibmsg_msg reply = { .kind = IBMSG_REPLY, .id = msg->id };
		struct ibmsg_body body;
		int result = -EINVAL;

		if (msg->kind != IBMSG_REQUEST)
			continue;
		if (msg->flags & IBMSG_F_BODY) {
			memcpy(&body, content_of(msg), sizeof(body));
			result = keep(channel, &body, path, piece);
		}
		reply.status = -result;
		count += !result;
		/* The worker may have gone: its end follows. */
		if (send_message(channel, reply, NULL) && errno != EPIPE)
			perror("reply");
	}
	munmap(piece, PIECE);
	return count;
}

static void keep_all(const char *name, const char *path)
{
	/* Without this, nobody can send messages with a body. */
	struct ibmsg_bind bind = { .opts.events = IBMSG_WANT_BODIES };
	int portal = bind_portal(bind, name);

	for (;;) {
		int channel = accept_channel(portal, 0);
		unsigned int count = keep_those_of(channel, path);

		close(channel);
		printf("%u checkpoints\n", count);
		fflush(stdout);
	}
}

/* --- the worker --- */

struct worker {
	int channel;
	struct reader reader;
	__u64 *states[2];
	size_t len;
	/* The body of a message, so it must not change. */
	int is_lent[2];
	__u64 kept;
};

/* Waits for a receipt or a reply. */
static void hear(struct worker *worker)
{
	struct ibmsg_msg *msg = next_message(worker->channel, &worker->reader);

	if (!msg)
		die("read");
	if (msg->kind == IBMSG_EVENT) {
		fprintf(stderr, "the channel has ended: %s\n", strerror(msg->status));
		exit(1);
	}
	if (msg->status) {
		errno = msg->status;
		die("the keeper");
	}
	if (msg->kind == IBMSG_RECEIPT && msg->flags & IBMSG_F_BODY)
		worker->is_lent[msg->tag % 2] = 0;
	if (msg->kind == IBMSG_REPLY)
		worker->kept = msg->tag;
}

static void step(const __u64 *last, __u64 *next, size_t len)
{
	for (size_t i = 0; i < len / sizeof(*next); i++)
		next[i] = last[i] + i + 1;
}

static void work(struct worker *worker, __u64 steps)
{
	for (__u64 now = 1; now <= steps; now++) {
		struct ibmsg_msg checkpoint = { .kind = IBMSG_REQUEST, .tag = now };
		__u64 *next = worker->states[now % 2];

		while (worker->is_lent[now % 2])
			hear(worker);
		step(worker->states[(now - 1) % 2], next, worker->len);
		if (send_with_body(worker->channel, checkpoint, next, worker->len))
			die("checkpoint");
		worker->is_lent[now % 2] = 1;
	}
	while (worker->kept < steps || worker->is_lent[0] || worker->is_lent[1])
		hear(worker);
	printf("%llu checkpoints\n", (unsigned long long)worker->kept);
}

int main(int argc, char **argv)
{
	static __u64 buffer[(sizeof(struct ibmsg_msg) + IBMSG_MAX_MESSAGE) / sizeof(__u64)];
	struct worker worker = { .reader = { .bytes = (char *)buffer, .size = sizeof(buffer) } };

	if (argc == 4 && !strcmp(argv[1], "keep"))
		keep_all(argv[2], argv[3]);
	if (argc == 6 && !strcmp(argv[1], "work")) {
		worker.len = strtoul(argv[4], NULL, 10) << 20;
		worker.channel = connect_channel(argv[2], argv[3]);
		for (int i = 0; i < 2; i++)
			worker.states[i] = new_memory(worker.len);
		work(&worker, strtoul(argv[5], NULL, 10));
		return 0;
	}
	fprintf(stderr, "usage: %s keep PORTAL FILE | work SESSION PORTAL MIB STEPS\n", argv[0]);
	return 2;
}
