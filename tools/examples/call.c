// SPDX-License-Identifier: GPL-2.0
/*
 * Requests and answers in C: `call serve PORTAL` answers each request with its content in capitals,
 * `call ask PORTAL TEXT` sends one and prints the answer.  Compile with -I ibmsg, the folder of ibmsg.h.
 */
#define _POSIX_C_SOURCE 200809L
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "ibmsg.h"

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static int device(void)
{
	int fd = open("/dev/ibmsg", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		die("/dev/ibmsg");
	return fd;
}

/* A name that fills its field has no 0 behind it; the fields were 0 before. */
static void put_name(char *field, const char *name)
{
	size_t len = strlen(name);

	if (len > IBMSG_MAX_NAME) {
		fprintf(stderr, "%s: the name is too long\n", name);
		exit(2);
	}
	memcpy(field, name, len);
}

/* One write is one message. */
static int send_message(int channel, struct ibmsg_msg *msg, void *content)
{
	struct iovec parts[2] = {
		{ .iov_base = msg, .iov_len = sizeof(*msg) },
		{ .iov_base = content, .iov_len = msg->len },
	};

	return writev(channel, parts, 2) < 0 ? -1 : 0;
}

/* Several messages may fit one read: this one takes as many, and handles them in turn. */
static int answer_all(int channel)
{
	static union {
		struct ibmsg_msg align;
		char bytes[2 * (sizeof(struct ibmsg_msg) + IBMSG_MAX_MESSAGE)];
	} buffer;
	ssize_t len;

	while ((len = read(channel, buffer.bytes, sizeof(buffer.bytes))) > 0) {
		size_t at = 0;

		while (at < (size_t)len) {
			struct ibmsg_msg *msg = (struct ibmsg_msg *)(buffer.bytes + at);
			char *content = buffer.bytes + at + sizeof(*msg);

			at += IBMSG_ALIGN(sizeof(*msg) + msg->len);
			if (msg->kind == IBMSG_REQUEST) {
				struct ibmsg_msg reply = {
					.kind = IBMSG_REPLY, .len = msg->len, .id = msg->id,
				};

				for (size_t i = 0; i < msg->len; i++)
					content[i] = (char)toupper((unsigned char)content[i]);
				/* The other program may have gone: its end follows. */
				if (send_message(channel, &reply, content) && errno != EPIPE)
					return -1;
			}
		}
	}
	return len < 0 ? -1 : 0;
}

static void serve(const char *name)
{
	struct ibmsg_bind bind = { .size = sizeof(bind) };
	int portal;

	put_name(bind.portal, name);
	portal = ioctl(device(), IBMSG_IOC_BIND, &bind);
	if (portal < 0)
		die(name);
	for (;;) {
		struct {
			struct ibmsg_msg msg;
			char offer[sizeof(struct ibmsg_offer) + IBMSG_MAX_DATA];
		} buffer;
		struct ibmsg_accept accept = { .size = sizeof(accept) };
		int channel;

		/* Room for one. */
		if (read(portal, &buffer, sizeof(buffer)) < 0)
			die("read");
		accept.offer = buffer.msg.id;
		channel = ioctl(portal, IBMSG_IOC_ACCEPT, &accept);
		/* ENOENT: the program does not wait any more. */
		if (channel < 0 && errno != ENOENT)
			die("accept");
		if (channel >= 0) {
			if (answer_all(channel))
				perror("channel");
			close(channel);
		}
	}
}

static int ask(const char *name, char *text)
{
	struct ibmsg_connect connect = { .size = sizeof(connect), .timeout_ms = 10000 };
	static char reply[IBMSG_MAX_MESSAGE];
	struct ibmsg_call call = {
		.size = sizeof(call), .timeout_ms = 10000,
		.request = (__u64)(uintptr_t)text, .request_len = (__u32)strlen(text),
		.reply = (__u64)(uintptr_t)reply, .reply_len = sizeof(reply),
	};
	int channel;

	put_name(connect.session, "local");
	put_name(connect.portal, name);
	channel = ioctl(device(), IBMSG_IOC_CONNECT, &connect);
	if (channel < 0) {
		/* The reason of the portal says more. */
		if (errno == ECONNREFUSED)
			errno = connect.status;
		die(name);
	}
	/* ECANCELED, ECONNRESET, ETIMEDOUT and ECONNABORTED say what has become of the request. */
	if (ioctl(channel, IBMSG_IOC_CALL, &call))
		die(name);
	if (call.status) {
		fprintf(stderr, "%s: %s\n", name, strerror(call.status));
		return 1;
	}
	printf("%.*s\n", (int)call.reply_len, reply);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "serve"))
		serve(argv[2]);
	if (argc == 4 && !strcmp(argv[1], "ask") && strlen(argv[3]) <= IBMSG_MAX_MESSAGE)
		return ask(argv[2], argv[3]);
	fprintf(stderr, "usage: %s serve PORTAL | ask PORTAL TEXT\n", argv[0]);
	return 2;
}
