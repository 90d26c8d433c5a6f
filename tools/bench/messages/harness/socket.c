// SPDX-License-Identifier: GPL-2.0
/*
 * Sockets: TCP, by system calls and by a ring, SMC and RDS. Each message has eight bytes before it, also where it is a
 * datagram of RDS, which has no other end of a connection than a message that says so.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "files.h"

#define PORT	7700

#ifndef IPPROTO_SMC
#define IPPROTO_SMC	256
#endif

/* The kind of the last message of RDS. */
#define LAST	0

struct header {
	uint32_t length;
	uint32_t kind;
};

static void put(void *header, enum kind kind, uint64_t id, size_t length)
{
	(void)id;
	*(struct header *)header = (struct header) { .length = (uint32_t)length, .kind = kind };
}

static size_t take(struct end *end, unsigned int channel, const char *data, size_t length, bool *closed)
{
	size_t at = 0;

	while (length - at >= sizeof(struct header)) {
		const struct header *header = (const struct header *)(data + at);

		if (header->length > MAX_BYTES)
			fail("a message of %u bytes", header->length);
		if (length - at < sizeof(*header) + header->length)
			break;
		if (header->kind == LAST) {
			*closed = true;
			return length;
		}
		end->arrived(end, &(struct arrival) {
			.channel = channel, .kind = header->kind, .content = header + 1, .length = header->length,
		});
		at += sizeof(*header) + header->length;
	}
	if (*closed && at < length)
		fail("the connection has ended in a message");
	return at;
}

static const struct framing framing = {
	.header = sizeof(struct header), .put = put, .take = take, .is_socket = true,
};

static struct sockaddr_in address_of(const char *text, unsigned int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };

	if (!text || inet_pton(AF_INET, text, &address.sin_addr) != 1)
		fail("%s is no address", text);
	return address;
}

static int new_socket(int protocol)
{
	int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, protocol);

	if (fd < 0)
		die("socket");
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)))
		die("SO_REUSEADDR");
	return fd;
}

/* Each message is sent at once. */
static int without_delay(int fd)
{
	int one = 1;

	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
		die("TCP_NODELAY");
	return fd;
}

static void connect_all(const struct options *options, int protocol, int *fds)
{
	struct sockaddr_in address = address_of(options->address, PORT);

	for (unsigned int channel = 0; channel < options->channels; channel++) {
		fds[channel] = new_socket(protocol);
		if (connect(fds[channel], (struct sockaddr *)&address, sizeof(address)))
			die("connect");
		without_delay(fds[channel]);
	}
}

static void accept_all(const struct options *options, int protocol, int *fds)
{
	struct sockaddr_in address = address_of(options->address, PORT);
	int listener = new_socket(protocol);

	if (bind(listener, (struct sockaddr *)&address, sizeof(address)))
		die("bind");
	if (listen(listener, MAX_CHANNELS))
		die("listen");
	ready();
	for (unsigned int channel = 0; channel < options->channels; channel++) {
		fds[channel] = accept(listener, NULL, NULL);
		if (fds[channel] < 0)
			die("accept");
		without_delay(fds[channel]);
	}
	close(listener);
}

static struct end *serve_streams(const struct options *options, int protocol)
{
	int fds[MAX_CHANNELS];

	accept_all(options, protocol, fds);
	return files_end(options, &framing, fds);
}

static struct end *connect_streams(const struct options *options, int protocol)
{
	int fds[MAX_CHANNELS];

	connect_all(options, protocol, fds);
	return files_end(options, &framing, fds);
}

static struct end *serve_tcp(const struct options *options)
{
	return serve_streams(options, IPPROTO_TCP);
}

static struct end *connect_tcp(const struct options *options)
{
	return connect_streams(options, IPPROTO_TCP);
}

static struct end *serve_smc(const struct options *options)
{
	return serve_streams(options, IPPROTO_SMC);
}

static struct end *connect_smc(const struct options *options)
{
	return connect_streams(options, IPPROTO_SMC);
}

/* Each channel has a port of its own on either side, and neither side waits for the other. */
static struct end *rds(const struct options *options, const char *own, const char *peer)
{
	int fds[MAX_CHANNELS];

	for (unsigned int channel = 0; channel < options->channels; channel++) {
		struct sockaddr_in from = address_of(own, PORT + channel), to = address_of(peer, PORT + channel);

		fds[channel] = socket(AF_RDS, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		if (fds[channel] < 0)
			die("socket");
		if (bind(fds[channel], (struct sockaddr *)&from, sizeof(from)))
			die("bind");
		if (connect(fds[channel], (struct sockaddr *)&to, sizeof(to)))
			die("connect");
	}
	return files_end(options, &framing, fds);
}

static struct end *serve_rds(const struct options *options)
{
	struct end *end = rds(options, options->address, options->peer);

	ready();
	return end;
}

static struct end *connect_rds(const struct options *options)
{
	return rds(options, options->peer, options->address);
}

/* Closing a socket drops what is not acknowledged. */
static void close_rds(struct end *end)
{
	for (unsigned int channel = 0; channel < end->options->channels; channel++) {
		struct header last = { .kind = LAST };

		if (send(files_fd(end, channel), &last, sizeof(last), 0) < 0)
			die("send");
	}
	usleep(300000);
	files_close(end);
}

static struct end *serve_ring(const struct options *options)
{
	int fds[MAX_CHANNELS];

	accept_all(options, IPPROTO_TCP, fds);
	return ring_end(options, &framing, fds, true, false);
}

static struct end *connect_ring(const struct options *options)
{
	int fds[MAX_CHANNELS];

	connect_all(options, IPPROTO_TCP, fds);
	return ring_end(options, &framing, fds, false, false);
}

const struct backend tcp_backend = {
	.name = "tcp", .serve = serve_tcp, .connect = connect_tcp, .room = files_room, .send = files_send,
	.wait = files_wait, .close = files_close,
};

const struct backend tcp_ring_backend = {
	.name = "tcp-ring", .serve = serve_ring, .connect = connect_ring, .room = ring_room, .send = ring_send,
	.wait = ring_wait, .close = ring_close,
};

const struct backend smc_backend = {
	.name = "smc", .serve = serve_smc, .connect = connect_smc, .room = files_room, .send = files_send,
	.wait = files_wait, .close = files_close,
};

const struct backend rds_backend = {
	.name = "rds", .serve = serve_rds, .connect = connect_rds, .room = files_room, .send = files_send,
	.wait = files_wait, .close = close_rds,
};
