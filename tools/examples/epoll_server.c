// SPDX-License-Identifier: GPL-2.0
/*
 * One thread that serves any number of channels, with edge-triggered epoll: `epoll_server PORTAL` answers each request
 * with its content backwards.
 *
 * A channel whose answer has no room is left alone until it has: what was read stays in the channel's buffer, and
 * nothing more is read.  So a client that does not take its answers runs out of credits, and holds up nobody else.
 */
#define _POSIX_C_SOURCE 200809L
#include <sys/epoll.h>

#include "common.h"

#define MAX_MESSAGE	4096

struct channel {
	int fd;
	struct reader reader;
	/* The request that was read last, and has no answer yet. */
	struct ibmsg_msg *request;
	__u64 buffer[4 * (sizeof(struct ibmsg_msg) + MAX_MESSAGE) / sizeof(__u64)];
};

static void reverse(char *bytes, size_t len)
{
	for (size_t i = 0; i < len / 2; i++) {
		char byte = bytes[i];

		bytes[i] = bytes[len - 1 - i];
		bytes[len - 1 - i] = byte;
	}
}

/* Reports events of a file once, with `data'; returns whether it could. */
static int watch(int epoll, int fd, __u32 events, void *data)
{
	struct epoll_event event = { .events = events | EPOLLET, .data.ptr = data };

	return !epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

/* Accepts what has come: an edge is reported once for all of it. */
static void accept_all(int epoll, int portal)
{
	int fd;

	while ((fd = accept_channel(portal, IBMSG_NONBLOCK)) >= 0) {
		struct channel *channel = calloc(1, sizeof(*channel));

		if (channel) {
			channel->fd = fd;
			channel->reader.bytes = (char *)channel->buffer;
			channel->reader.size = sizeof(channel->buffer);
		}
		if (!channel || !watch(epoll, fd, EPOLLIN | EPOLLOUT, channel)) {
			perror("channel");
			close(fd);
			free(channel);
		}
	}
}

/* Does what can be done now.  Returns 0 at the end of the channel. */
static int serve(struct channel *channel)
{
	for (;;) {
		if (channel->request) {
			struct ibmsg_msg reply = {
				.kind = IBMSG_REPLY, .len = channel->request->len, .id = channel->request->id,
			};

			/* EPIPE: the other program has gone, and what it has sent before follows. */
			if (send_message(channel->fd, reply, content_of(channel->request)) && errno != EPIPE)
				return errno == EAGAIN;
		}
		channel->request = next_message(channel->fd, &channel->reader);
		if (!channel->request)
			return errno == EAGAIN;
		if (channel->request->kind == IBMSG_REQUEST)
			reverse(content_of(channel->request), channel->request->len);
		else
			channel->request = NULL;
	}
}

int main(int argc, char **argv)
{
	struct ibmsg_bind bind = {
		.flags = IBMSG_NONBLOCK,
		.opts = {
			.max_message = MAX_MESSAGE, .recv_calls = 1024, .recv_bytes = 1 << 16, .send_bytes = 1 << 16,
		},
	};
	int epoll = epoll_create1(EPOLL_CLOEXEC), portal;

	if (argc != 2) {
		fprintf(stderr, "usage: %s PORTAL\n", argv[0]);
		return 2;
	}
	portal = bind_portal(bind, argv[1]);
	if (epoll < 0 || !watch(epoll, portal, EPOLLIN, NULL))
		die("epoll");
	for (;;) {
		struct epoll_event events[64];
		int count = epoll_wait(epoll, events, 64, -1);

		for (int i = 0; i < count; i++) {
			struct channel *channel = events[i].data.ptr;

			if (!channel) {
				accept_all(epoll, portal);
			} else if (!serve(channel)) {
				close(channel->fd);
				free(channel);
			}
		}
	}
}
