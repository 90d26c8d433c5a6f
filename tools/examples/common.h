/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What all examples in C need: they bind portals and open channels, and end if that fails.  Compile with -I ibmsg, the
 * folder of ibmsg.h.
 */
#ifndef COMMON_H
#define COMMON_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "ibmsg.h"

static inline void die(const char *what)
{
	perror(what);
	exit(1);
}

static inline int open_device(void)
{
	int fd = open("/dev/ibmsg", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		die("/dev/ibmsg");
	return fd;
}

/* A name that fills its field has no 0 behind it; the field was 0 before. */
static inline void put_name(char *field, const char *name)
{
	size_t len = strlen(name);

	if (len > IBMSG_MAX_NAME) {
		fprintf(stderr, "%s: the name is too long\n", name);
		exit(2);
	}
	memcpy(field, name, len);
}

/* Binds a portal; `bind' has the flags and the terms. */
static inline int bind_portal(struct ibmsg_bind bind, const char *name)
{
	int device = open_device(), portal;

	bind.size = sizeof(bind);
	put_name(bind.portal, name);
	portal = ioctl(device, IBMSG_IOC_BIND, &bind);
	if (portal < 0)
		die(name);
	close(device);
	return portal;
}

/*
 * Accepts the next channel of a portal, and waits for it if the portal has no O_NONBLOCK.  -1: none, and errno is
 * EAGAIN.
 */
static inline int accept_channel(int portal, __u32 flags)
{
	struct {
		struct ibmsg_msg msg;
		char offer[sizeof(struct ibmsg_offer) + IBMSG_MAX_DATA];
	} buffer;

	for (;;) {
		struct ibmsg_accept accept = { .size = sizeof(accept), .flags = flags };
		int channel;

		/* There is room for one offer. */
		if (read(portal, &buffer, sizeof(buffer)) < 0) {
			if (errno == EAGAIN)
				return -1;
			die("read");
		}
		accept.offer = buffer.msg.id;
		channel = ioctl(portal, IBMSG_IOC_ACCEPT, &accept);
		if (channel >= 0)
			return channel;
		/* ENOENT: the program does not wait any more. */
		if (errno != ENOENT)
			die("accept");
	}
}

/* Opens a channel, and waits up to 10 s for the portal. */
static inline int connect_channel(const char *session, const char *portal)
{
	struct ibmsg_connect connect = { .size = sizeof(connect), .timeout_ms = 10000 };
	int device = open_device(), channel;

	put_name(connect.session, session);
	put_name(connect.portal, portal);
	channel = ioctl(device, IBMSG_IOC_CONNECT, &connect);
	if (channel < 0) {
		/* The reason of the portal says more. */
		if (errno == ECONNREFUSED)
			errno = connect.status;
		die(portal);
	}
	close(device);
	return channel;
}

/*
 * What was read from a channel, and is still to be handled: several messages may fit one read.  `bytes' has room for
 * the longest message.
 */
struct reader {
	char *bytes;
	size_t size;
	size_t at;
	size_t len;
};

/* The next message.  NULL and errno, which is 0 at the end of the channel. */
static inline struct ibmsg_msg *next_message(int channel, struct reader *reader)
{
	struct ibmsg_msg *msg;

	if (reader->at >= reader->len) {
		ssize_t len = read(channel, reader->bytes, reader->size);

		if (len <= 0) {
			errno = len ? errno : 0;
			return NULL;
		}
		reader->at = 0;
		reader->len = (size_t)len;
	}
	msg = (struct ibmsg_msg *)(reader->bytes + reader->at);
	reader->at += IBMSG_ALIGN(sizeof(*msg) + msg->len);
	return msg;
}

static inline char *content_of(struct ibmsg_msg *msg)
{
	return (char *)(msg + 1);
}

/* One write is one message.  0, or -1 and errno. */
static inline int send_message(int channel, struct ibmsg_msg msg, const void *content)
{
	struct iovec parts[2] = {
		{ .iov_base = &msg, .iov_len = sizeof(msg) },
		{ .iov_base = (void *)content, .iov_len = msg.len },
	};

	return writev(channel, parts, 2) < 0 ? -1 : 0;
}

#endif
