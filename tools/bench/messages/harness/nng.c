// SPDX-License-Identifier: GPL-2.0
/*
 * NNG: a pair of sockets over TCP, which threads of the library serve.
 */
#include <errno.h>
#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>
#include <stdio.h>
#include <unistd.h>

#include "socket.h"

static nng_socket pair;

static void check_nng(int error, const char *what)
{
	if (!error)
		return;
	errno = error & NNG_ESYSERR ? error & ~NNG_ESYSERR : EIO;
	fprintf(stderr, "%s\n", nng_strerror(error));
	die(what);
}

static const char *url(const struct options *options)
{
	static char text[64];

	snprintf(text, sizeof(text), "tcp://%s:%u", options->address, options->port);
	return text;
}

static int listen_nng(const struct options *options)
{
	check_nng(nng_pair0_open(&pair), "nng_pair0_open");
	check_nng(nng_listen(pair, url(options), NULL, 0), "nng_listen");
	return 0;
}

static int accept_nng(const struct options *options, int listener, unsigned int channel)
{
	(void)options;
	(void)channel;
	return listener;
}

static int connect_nng(const struct options *options, unsigned int channel)
{
	(void)channel;
	check_nng(nng_pair0_open(&pair), "nng_pair0_open");
	check_nng(nng_dial(pair, url(options), NULL, 0), "nng_dial");
	return 0;
}

static ssize_t receive(int fd, void *data, size_t size)
{
	size_t got = size;

	(void)fd;
	check_nng(nng_recv(pair, data, &got, 0), "nng_recv");
	return (ssize_t)got;
}

static ssize_t send_to(int fd, const void *data, size_t size)
{
	(void)fd;
	/* It is copied. */
	check_nng(nng_send(pair, (void *)data, size, 0), "nng_send");
	return (ssize_t)size;
}

/* Closing a socket drops what was not sent. The other side may have gone: then there is nobody to tell. */
static void leave(int fd)
{
	struct header last = { .kind = LAST };
	int error = nng_send(pair, &last, sizeof(last), NNG_FLAG_NONBLOCK);

	(void)fd;
	if (error && error != NNG_EAGAIN)
		check_nng(error, "nng_send");
	usleep(300000);
}

static int close_nng(int fd)
{
	(void)fd;
	check_nng(nng_close(pair), "nng_close");
	return 0;
}

static const struct io io = { .receive = receive, .send = send_to, .close = close_nng };

const struct transport nng_transport = {
	.framing = &socket_framing, .listen = listen_nng, .accept = accept_nng, .connect = connect_nng, .leave = leave,
	.io = &io,
};
