// SPDX-License-Identifier: GPL-2.0
/*
 * GET and PUT: threads of the client copy memory that the server has published, each a part of its own, as often as is
 * asked for.  The content is checked when the clock has stopped.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "harness.h"
#include "ibmsg.h"

struct copier {
	pthread_t thread;
	pthread_barrier_t *barrier;
	int fd;
	unsigned long how;
	uint64_t count;
	struct ibmsg_copy copy;
};

static void make_pattern(unsigned char *bytes, size_t length, unsigned int part)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = (unsigned char)(i * 7 + i / 251 + part + 1);
}

static void copy_once(const struct copier *copier, unsigned long how)
{
	struct ibmsg_copy copy = copier->copy;

	if (ioctl(copier->fd, how, &copy))
		die("copy");
}

static void *copy_many(void *of)
{
	struct copier *copier = of;
	/* Large ones take long, and two of them do. */
	uint64_t warm_up = WARM_UP * 4096 / (copier->copy.len + 4096) + 2;

	for (uint64_t i = 0; i < warm_up; i++)
		copy_once(copier, copier->how);
	pthread_barrier_wait(copier->barrier);
	for (uint64_t i = 0; i < copier->count; i++)
		copy_once(copier, copier->how);
	return NULL;
}

/* What was put is got from where it was put. */
static void check_copy(const struct copier *copier, unsigned int part)
{
	unsigned char *expected = allocate(copier->copy.len);
	unsigned char *bytes = (unsigned char *)(uintptr_t)copier->copy.addr;

	make_pattern(expected, copier->copy.len, part);
	if (copier->how == IBMSG_IOC_PUT) {
		memset(bytes, 0, copier->copy.len);
		copy_once(copier, IBMSG_IOC_GET);
	}
	if (memcmp(bytes, expected, copier->copy.len))
		fail("part %u is not what was copied", part);
}

/* The handle of the server's memory, which it sends first. */
static uint64_t handle_of(int fd)
{
	struct ibmsg_msg msg;

	if (read(fd, &msg, sizeof(msg)) != sizeof(msg) || msg.kind != IBMSG_MSG)
		die("handle");
	return msg.tag;
}

static uint64_t run_copiers(struct copier *copiers, unsigned int number, pthread_barrier_t *barrier)
{
	uint64_t began;

	for (unsigned int i = 0; i < number; i++)
		if (pthread_create(&copiers[i].thread, NULL, copy_many, &copiers[i]))
			fail("no thread");
	pthread_barrier_wait(barrier);
	began = now_ns();
	for (unsigned int i = 0; i < number; i++)
		pthread_join(copiers[i].thread, NULL);
	return now_ns() - began;
}

static uint64_t copy_memory(const struct transport *transport, const struct options *options)
{
	struct copier *copiers = allocate(options->depth * sizeof(*copiers));
	int fd = transport->connect(options, 0);
	uint64_t handle = handle_of(fd), ns;
	pthread_barrier_t barrier;

	pthread_barrier_init(&barrier, NULL, options->depth + 1);
	for (unsigned int i = 0; i < options->depth; i++) {
		unsigned char *bytes = allocate(options->bytes);

		if (options->puts)
			make_pattern(bytes, options->bytes, i);
		copiers[i] = (struct copier) {
			.barrier = &barrier, .fd = fd, .how = options->puts ? IBMSG_IOC_PUT : IBMSG_IOC_GET,
			.count = options->count / options->depth,
			.copy = {
				.size = sizeof(struct ibmsg_copy), .handle = handle, .len = options->bytes,
				.offset = (uint64_t)i * options->bytes, .addr = (uintptr_t)bytes,
			},
		};
	}
	ns = run_copiers(copiers, options->depth, &barrier);
	for (unsigned int i = 0; i < options->depth; i++)
		check_copy(&copiers[i], i);
	close(fd);
	return ns;
}

static void publish_memory(const struct transport *transport, const struct options *options, int listener)
{
	size_t length = (size_t)options->depth * options->bytes;
	unsigned char *memory = allocate(length);
	struct ibmsg_map map = {
		.size = sizeof(map), .flags = IBMSG_MEM_GET | IBMSG_MEM_PUT, .addr = (uintptr_t)memory, .len = length,
	};
	struct ibmsg_msg msg = { .kind = IBMSG_MSG };
	int fd = transport->accept(options, listener, 0);

	if (options->gets)
		for (unsigned int i = 0; i < options->depth; i++)
			make_pattern(memory + (size_t)i * options->bytes, options->bytes, i);
	if (ioctl(fd, IBMSG_IOC_MAP, &map))
		die("map");
	msg.tag = map.handle;
	if (write(fd, &msg, sizeof(msg)) < 0)
		die("write");
	/* Until the client closes the channel. */
	if (read(fd, &msg, sizeof(msg)) < 0)
		die("read");
}

const struct own_load memory_load = { .client = copy_memory, .server = publish_memory };
