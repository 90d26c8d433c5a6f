// SPDX-License-Identifier: GPL-2.0
/*
 * Publish and subscribe: the server publishes, and each channel of the client is a subscriber.  At depth 1, the client
 * sends a message when all of them have an entry, and the server publishes the next one then.  Otherwise, it publishes as
 * fast as they read.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "harness.h"
#include "ibmsg.h"

#define TAG		1
#define READ_ROOM	65536

struct subscribers {
	const struct options *options;
	int fds[MAX_CHANNELS];
	int epoll;
	/* The number of the next entry of each. */
	uint64_t next[MAX_CHANNELS];
	/* Entries of all. */
	uint64_t have;
};

static void take(struct subscribers *all, unsigned int channel, const char *data, size_t length)
{
	for (size_t at = 0; at < length;) {
		const struct ibmsg_msg *msg = (const struct ibmsg_msg *)(data + at);
		bool wants_answer;

		at += IBMSG_ALIGN(sizeof(*msg) + msg->len);
		if (msg->kind == IBMSG_EVENT && msg->event == IBMSG_EV_SUBSCRIBED)
			continue;
		if (msg->kind != IBMSG_PUBLISHED || msg->len != all->options->bytes)
			fail("a message of kind %u, event %u", msg->kind, msg->event);
		if (check(msg + 1, msg->len, &wants_answer) != all->next[channel]++)
			fail("an entry is lost, doubled or late");
		all->have++;
	}
}

/* Reads until there are that many entries of each. */
static void read_until(struct subscribers *all, uint64_t entries)
{
	static _Alignas(8) char data[READ_ROOM];
	uint64_t wanted = entries * all->options->channels;

	while (all->have < wanted) {
		struct epoll_event events[MAX_CHANNELS];
		int found = epoll_wait(all->epoll, events, MAX_CHANNELS, -1);

		if (found < 0)
			die("epoll_wait");
		for (int i = 0; i < found; i++) {
			unsigned int channel = events[i].data.u32;
			ssize_t got = read(all->fds[channel], data, sizeof(data));

			if (got < 0)
				die("read");
			take(all, channel, data, (size_t)got);
		}
	}
}

/* The server may publish the next entry. */
static void go_on(const struct subscribers *all)
{
	struct ibmsg_msg msg = { .kind = IBMSG_MSG };

	if (all->options->depth == 1 && write(all->fds[0], &msg, sizeof(msg)) < 0)
		die("write");
}

static void read_entries(struct subscribers *all, uint64_t from, uint64_t to)
{
	if (all->options->depth > 1) {
		read_until(all, to);
		return;
	}
	for (uint64_t at = from; at < to; at++) {
		go_on(all);
		read_until(all, at + 1);
	}
}

static uint64_t follow(const struct transport *transport, const struct options *options)
{
	static struct subscribers all;
	uint64_t ns;

	all.options = options;
	all.epoll = epoll_create1(EPOLL_CLOEXEC);
	if (all.epoll < 0)
		die("epoll_create1");
	for (unsigned int channel = 0; channel < options->channels; channel++) {
		struct ibmsg_subscribe how = { .size = sizeof(how), .tag = TAG };
		struct epoll_event event = { .events = EPOLLIN, .data.u32 = channel };

		all.fds[channel] = transport->connect(options, channel);
		if (ioctl(all.fds[channel], IBMSG_IOC_SUBSCRIBE, &how))
			die("subscribe");
		if (epoll_ctl(all.epoll, EPOLL_CTL_ADD, all.fds[channel], &event))
			die("epoll_ctl");
	}
	read_entries(&all, 0, WARM_UP);
	ns = now_ns();
	read_entries(&all, WARM_UP, WARM_UP + options->count);
	ns = now_ns() - ns;
	for (unsigned int channel = 0; channel < options->channels; channel++)
		close(all.fds[channel]);
	return ns;
}

static void await_subscribers(int portal, unsigned int count)
{
	struct ibmsg_log log = { .size = sizeof(log), .tag = TAG, .flags = IBMSG_LOG_SET };

	do {
		if (ioctl(portal, IBMSG_IOC_LOG, &log))
			die("log");
		log.flags = 0;
		usleep(1000);
	} while (log.subscribers < count);
}

static void publish(const struct transport *transport, const struct options *options, int portal)
{
	char *entry = allocate(sizeof(struct ibmsg_msg) + options->bytes);
	struct ibmsg_msg *msg = (struct ibmsg_msg *)entry, next;
	int fds[MAX_CHANNELS];

	for (unsigned int channel = 0; channel < options->channels; channel++)
		fds[channel] = transport->accept(options, portal, channel);
	await_subscribers(portal, options->channels);
	*msg = (struct ibmsg_msg) { .kind = IBMSG_MSG, .tag = TAG, .len = options->bytes };
	for (uint64_t at = 0; at < WARM_UP + options->count; at++) {
		if (options->depth == 1 && read(fds[0], &next, sizeof(next)) != sizeof(next))
			die("read");
		fill(msg + 1, at, false, options->bytes);
		if (write(portal, entry, sizeof(*msg) + options->bytes) < 0)
			die("publish");
	}
	/* Until the client closes the channels. */
	for (unsigned int channel = 0; channel < options->channels; channel++)
		if (read(fds[channel], &next, sizeof(next)) < 0)
			die("read");
}

const struct own_load publish_load = { .client = follow, .server = publish };
