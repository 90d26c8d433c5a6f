// SPDX-License-Identifier: GPL-2.0
/*
 * One publisher, very many subscribers: `ticker publish PORTAL SUBSCRIBERS ENTRIES' waits for that many, publishes, and
 * ends when all of them have been sent everything; `ticker follow SESSION PORTAL SUBSCRIBERS' is that many of them, in
 * one thread.
 *
 * An entry is written once, and is in memory once.  With the policy IBMSG_LOG_WAIT, `write' waits when the log is full
 * and the slowest subscriber has not been sent its oldest entry.
 */
#define _POSIX_C_SOURCE 200809L
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include "common.h"

#define TAG		1
#define ENTRY		64
#define LOG_ENTRIES	64

/* Channels that take little memory: a few entries wait for each subscriber. */
static const struct ibmsg_opts terms = {
	.recv_msgs = 16, .recv_bytes = 16384, .max_message = 1024, .recv_calls = 1, .send_msgs = 8, .send_bytes = 8192,
};

static void allow_files(unsigned long count)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		die("files");
	limit.rlim_cur = count + 64;
	if (limit.rlim_max < limit.rlim_cur)
		limit.rlim_max = limit.rlim_cur;
	if (setrlimit(RLIMIT_NOFILE, &limit))
		die("files");
}

/* --- the publisher --- */

static struct ibmsg_log log_of(int portal, struct ibmsg_log log)
{
	log.size = sizeof(log);
	log.tag = TAG;
	if (ioctl(portal, IBMSG_IOC_LOG, &log))
		die("log");
	return log;
}

/* The channels stay open: the publisher has nothing to read from them. */
static void accept_until(int portal, unsigned long subscribers)
{
	while (log_of(portal, (struct ibmsg_log){ 0 }).subscribers < subscribers) {
		struct pollfd file = { .fd = portal, .events = POLLIN };

		/* A program that has its channel subscribes soon, which is not an event of the portal. */
		if (poll(&file, 1, 10) > 0)
			while (accept_channel(portal, 0) >= 0)
				;
	}
}

static void publish(const char *name, unsigned long subscribers, unsigned long entries)
{
	int portal = bind_portal((struct ibmsg_bind){
		.flags = IBMSG_NONBLOCK, .backlog = 4096, .opts = terms,
	}, name);
	struct pollfd room = { .fd = portal, .events = POLLOUT };

	allow_files(subscribers);
	log_of(portal, (struct ibmsg_log){ .flags = IBMSG_LOG_SET, .entries = LOG_ENTRIES, .policy = IBMSG_LOG_WAIT });
	accept_until(portal, subscribers);
	for (unsigned long at = 0; at < entries;) {
		char text[ENTRY] = { 0 };
		struct ibmsg_msg entry = { .kind = IBMSG_MSG, .tag = TAG, .len = sizeof(text) };

		snprintf(text, sizeof(text), "entry %lu", at);
		if (!send_message(portal, entry, text))
			at++;
		else if (errno != EAGAIN || poll(&room, 1, -1) < 0)
			die("publish");
	}
	/* The end of this program is that of the subscriptions: not before all have been sent everything. */
	while (log_of(portal, (struct ibmsg_log){ 0 }).slowest < entries)
		poll(NULL, 0, 10);
	printf("%lu entries for %lu subscribers\n", entries, subscribers);
}

/* --- subscribers --- */

struct subscriber {
	int fd;
	unsigned long next;
};

static void subscribe(struct subscriber *subscriber)
{
	struct ibmsg_subscribe how = { .size = sizeof(how), .tag = TAG, .begin = IBMSG_BEGIN_FIRST };

	if (ioctl(subscriber->fd, IBMSG_IOC_SUBSCRIBE, &how))
		die("subscribe");
}

static void check_entry(struct subscriber *subscriber, struct ibmsg_msg *msg)
{
	char text[ENTRY] = { 0 };

	snprintf(text, sizeof(text), "entry %lu", subscriber->next);
	if (msg->id != subscriber->next || msg->len != sizeof(text) || memcmp(content_of(msg), text, sizeof(text))) {
		fprintf(stderr, "entry %llu in place of %lu\n", (unsigned long long)msg->id, subscriber->next);
		exit(1);
	}
	subscriber->next++;
}

/* Reads what there is.  0: the publisher has ended. */
static int follow(struct subscriber *subscriber)
{
	static __u64 buffer[16384 / sizeof(__u64)];
	struct reader reader = { .bytes = (char *)buffer, .size = sizeof(buffer) };
	struct ibmsg_msg *msg;

	do {
		msg = next_message(subscriber->fd, &reader);
		if (!msg)
			die("the channel has ended");
		if (msg->kind == IBMSG_PUBLISHED) {
			check_entry(subscriber, msg);
		} else if (msg->event == IBMSG_EV_CLOSED && !msg->status) {
			return 0;
		} else if (msg->event == IBMSG_EV_UNSUBSCRIBED && msg->status == ESHUTDOWN) {
			/* The portal was closed before the channel: that follows. */
			continue;
		} else if (msg->event != IBMSG_EV_SUBSCRIBED) {
			fprintf(stderr, "event %u: %s\n", msg->event, strerror(msg->status));
			exit(1);
		}
	} while (reader.at < reader.len);
	return 1;
}

static int connect_small(const char *session, const char *portal)
{
	struct ibmsg_connect connect = { .size = sizeof(connect), .timeout_ms = 60000, .opts = terms };
	int device = open_device(), channel;

	put_name(connect.session, session);
	put_name(connect.portal, portal);
	channel = ioctl(device, IBMSG_IOC_CONNECT, &connect);
	if (channel < 0)
		die(portal);
	close(device);
	return channel;
}

static void follow_all(const char *session, const char *portal, unsigned long count)
{
	struct subscriber *all = calloc(count, sizeof(*all));
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	unsigned long left = count, entries = 0;

	allow_files(count);
	if (!all || epoll < 0)
		die("memory");
	for (unsigned long i = 0; i < count; i++) {
		struct epoll_event event = { .events = EPOLLIN, .data.ptr = &all[i] };

		all[i].fd = connect_small(session, portal);
		subscribe(&all[i]);
		if (epoll_ctl(epoll, EPOLL_CTL_ADD, all[i].fd, &event))
			die("epoll");
	}
	while (left) {
		struct epoll_event events[256];
		int found = epoll_wait(epoll, events, 256, -1);

		for (int i = 0; i < found; i++) {
			struct subscriber *subscriber = events[i].data.ptr;

			if (follow(subscriber))
				continue;
			close(subscriber->fd);
			left--;
			entries += subscriber->next;
		}
	}
	printf("%lu subscribers, %lu entries\n", count, entries);
}

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "publish")) {
		publish(argv[2], strtoul(argv[3], NULL, 10), strtoul(argv[4], NULL, 10));
		return 0;
	}
	if (argc == 5 && !strcmp(argv[1], "follow")) {
		follow_all(argv[2], argv[3], strtoul(argv[4], NULL, 10));
		return 0;
	}
	fprintf(stderr, "usage: %s publish PORTAL SUBSCRIBERS ENTRIES | follow SESSION PORTAL SUBSCRIBERS\n", argv[0]);
	return 2;
}
