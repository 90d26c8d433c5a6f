// SPDX-License-Identifier: GPL-2.0
/*
 * ZeroMQ: a pair of sockets over TCP, which a thread of the library serves.
 */
#include <errno.h>
#include <stdio.h>
#include <zmq.h>

#include "socket.h"

/* What was sent is delivered for so long after the socket is closed, in milliseconds. */
#define LINGER	5000

static void *context, *pair;

static void open_pair(void)
{
	int linger = LINGER;

	context = zmq_ctx_new();
	if (!context)
		die("zmq_ctx_new");
	pair = zmq_socket(context, ZMQ_PAIR);
	if (!pair)
		die("zmq_socket");
	if (zmq_setsockopt(pair, ZMQ_LINGER, &linger, sizeof(linger)))
		die("ZMQ_LINGER");
}

static const char *url(const struct options *options)
{
	static char text[64];

	snprintf(text, sizeof(text), "tcp://%s:%u", options->address, options->port);
	return text;
}

static int listen_zeromq(const struct options *options)
{
	open_pair();
	if (zmq_bind(pair, url(options)))
		die("zmq_bind");
	return 0;
}

static int accept_zeromq(const struct options *options, int listener, unsigned int channel)
{
	(void)options;
	(void)channel;
	return listener;
}

static int connect_zeromq(const struct options *options, unsigned int channel)
{
	(void)channel;
	open_pair();
	if (zmq_connect(pair, url(options)))
		die("zmq_connect");
	return 0;
}

static ssize_t receive(int fd, void *data, size_t size)
{
	int got;

	(void)fd;
	/* A signal only says that no more is to be sent. */
	do {
		got = zmq_recv(pair, data, size, 0);
	} while (got < 0 && errno == EINTR);
	if (got > (int)size)
		fail("a message of %d bytes", got);
	return got;
}

static ssize_t send_to(int fd, const void *data, size_t size)
{
	(void)fd;
	return zmq_send(pair, data, size, 0);
}

/* The other side may have gone: then there is nobody to tell. */
static void leave(int fd)
{
	struct header last = { .kind = LAST };

	(void)fd;
	if (zmq_send(pair, &last, sizeof(last), ZMQ_DONTWAIT) < 0 && errno != EAGAIN)
		die("zmq_send");
}

static int close_zeromq(int fd)
{
	(void)fd;
	return zmq_close(pair) || zmq_ctx_term(context);
}

static const struct io io = { .receive = receive, .send = send_to, .close = close_zeromq };

const struct transport zeromq_transport = {
	.framing = &socket_framing, .listen = listen_zeromq, .accept = accept_zeromq, .connect = connect_zeromq,
	.leave = leave, .io = &io,
};
