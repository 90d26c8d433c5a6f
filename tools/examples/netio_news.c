// SPDX-License-Identifier: GPL-2.0
/*
 * A program in the shape of NetIO-next's examples, on netio_shim.h: `netio_news publish PORT SUBSCRIBERS COUNT' waits for
 * subscribers to two tags and publishes COUNT numbers under each, `netio_news subscribe HOST PORT COUNT' takes the first
 * COUNT of the first tag and half as many of the second, and checks them.
 */
#define _DEFAULT_SOURCE
#include "netio_shim.h"

#define TAGS	2
#define SIZE	1000

static struct netio_buffered_socket_attr attr = {
	.num_pages = 4, .pagesize = 16384, .watermark = 14000, .timeout_ms = 1,
};

static void fill(__u64 *content, unsigned long number, netio_tag_t tag)
{
	for (size_t i = 0; i < SIZE / sizeof(*content); i++)
		content[i] = number * TAGS + tag;
}

/* --- the publisher --- */

static struct publisher {
	struct netio_context ctx;
	struct netio_publish_socket socket;
	struct netio_subscription_cache caches[TAGS];
	unsigned long count;
	unsigned long next;
	unsigned long again;
	unsigned int subscribers;
	unsigned int expected;
} publisher;

static unsigned int subscribers_of(netio_tag_t tag)
{
	struct ibmsg_log log = { .size = sizeof(log), .tag = tag };

	if (!ioctl(publisher.socket.watched.fd, IBMSG_IOC_LOG, &log))
		return log.subscribers;
	if (errno != ENOENT)
		die("log");
	return 0;
}

/* As many as there is room for; the rest when there is room again. */
static void publish_more(void *data)
{
	(void)data;
	while (publisher.next < TAGS * publisher.count) {
		netio_tag_t tag = publisher.next % TAGS;
		__u64 content[SIZE / sizeof(__u64)];
		int status;

		fill(content, publisher.next / TAGS, tag);
		status = netio_buffered_publish(&publisher.socket, tag, content, sizeof(content), 0,
						&publisher.caches[tag]);
		if (status == NETIO_STATUS_AGAIN) {
			publisher.again++;
			return;
		}
		if (status != NETIO_STATUS_OK)
			die("publish");
		publisher.next++;
	}
}

/* A subscriber that has a channel subscribes soon afterwards. */
static void on_subscriber(struct netio_publish_socket *socket)
{
	(void)socket;
	if (++publisher.subscribers < publisher.expected)
		return;
	for (netio_tag_t tag = 0; tag < TAGS; tag++)
		while (subscribers_of(tag) < publisher.expected)
			usleep(1000);
	publish_more(NULL);
}

static void on_closed(struct netio_publish_socket *socket)
{
	(void)socket;
	if (!--publisher.subscribers)
		netio_terminate(&publisher.ctx);
}

static void publish(unsigned int port, unsigned int subscribers, unsigned long count)
{
	char too_big[1] = { 0 };

	publisher.count = count;
	publisher.expected = subscribers;
	netio_init(&publisher.ctx);
	for (int tag = 0; tag < TAGS; tag++)
		netio_subscription_cache_init(&publisher.caches[tag]);
	netio_publish_socket_init(&publisher.socket, &publisher.ctx, "localhost", port, &attr);
	publisher.socket.cb_connection_established = on_subscriber;
	publisher.socket.cb_connection_closed = on_closed;
	publisher.socket.signal_buffer_available.cb = publish_more;
	if (netio_buffered_publish(&publisher.socket, 0, too_big, attr.pagesize + 1, 0, NULL) != NETIO_STATUS_TOO_BIG)
		die("too big");
	netio_run(&publisher.ctx);
	printf("%lu messages, %s\n", publisher.next, publisher.again ? "waited for room" : "never waited");
}

/* --- a subscriber --- */

static struct subscriber {
	struct netio_context ctx;
	struct netio_subscribe_socket socket;
	unsigned long count;
	unsigned long next[TAGS];
} subscriber;

static void on_message(struct netio_subscribe_socket *socket, netio_tag_t tag, void *data, size_t size)
{
	__u64 content[SIZE / sizeof(__u64)];

	fill(content, subscriber.next[tag]++, tag);
	if (size != sizeof(content) || memcmp(data, content, size)) {
		fprintf(stderr, "tag %llu: not message %lu\n", (unsigned long long)tag, subscriber.next[tag] - 1);
		exit(1);
	}
	/* What is on its way still comes. */
	if (tag == 1 && subscriber.next[1] == subscriber.count / 2 && netio_unsubscribe(socket, tag))
		die("unsubscribe");
	if (tag == 0 && subscriber.next[0] == subscriber.count)
		netio_terminate(&subscriber.ctx);
}

static void subscribe(const char *host, unsigned int port, unsigned long count)
{
	subscriber.count = count;
	netio_init(&subscriber.ctx);
	netio_subscribe_socket_init(&subscriber.socket, &subscriber.ctx, &attr, "localhost", host, port);
	subscriber.socket.cb_msg_received = on_message;
	for (netio_tag_t tag = 0; tag < TAGS; tag++)
		if (netio_subscribe(&subscriber.socket, tag))
			die("subscribe");
	netio_run(&subscriber.ctx);
	printf("%lu and %lu messages\n", subscriber.next[0], subscriber.next[1]);
}

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "publish")) {
		publish((unsigned int)atoi(argv[2]), (unsigned int)atoi(argv[3]), strtoul(argv[4], NULL, 10));
		return 0;
	}
	if (argc == 5 && !strcmp(argv[1], "subscribe")) {
		subscribe(argv[2], (unsigned int)atoi(argv[3]), strtoul(argv[4], NULL, 10));
		return 0;
	}
	fprintf(stderr, "usage: %s publish PORT SUBSCRIBERS COUNT | subscribe HOST PORT COUNT\n", argv[0]);
	return 2;
}
