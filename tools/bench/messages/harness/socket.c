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
#include "socket.h"

#ifndef IPPROTO_SMC
#define IPPROTO_SMC	256
#endif

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

const struct framing socket_framing = {
	.header = sizeof(struct header), .put = put, .take = take, .is_socket = true,
};

struct sockaddr_in address_of(const char *text, unsigned int port)
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

static int connect_stream(const struct options *options, int protocol)
{
	struct sockaddr_in address = address_of(options->address, options->port);
	int fd = new_socket(protocol);

	if (connect(fd, (struct sockaddr *)&address, sizeof(address)))
		die("connect");
	return without_delay(fd);
}

static int listen_for_streams(const struct options *options, int protocol)
{
	struct sockaddr_in address = address_of(options->address, options->port);
	int listener = new_socket(protocol);

	if (bind(listener, (struct sockaddr *)&address, sizeof(address)))
		die("bind");
	if (listen(listener, MAX_CHANNELS))
		die("listen");
	return listener;
}

static int accept_stream(const struct options *options, int listener, unsigned int channel)
{
	int fd = accept(listener, NULL, NULL);

	(void)options;
	(void)channel;
	if (fd < 0)
		die("accept");
	return without_delay(fd);
}

static int connect_tcp(const struct options *options, unsigned int channel)
{
	(void)channel;
	return connect_stream(options, IPPROTO_TCP);
}

static int listen_tcp(const struct options *options)
{
	return listen_for_streams(options, IPPROTO_TCP);
}

static int connect_smc(const struct options *options, unsigned int channel)
{
	(void)channel;
	return connect_stream(options, IPPROTO_SMC);
}

static int listen_smc(const struct options *options)
{
	return listen_for_streams(options, IPPROTO_SMC);
}

/* Each channel has a port of its own on either side, and neither side waits for the other. */
static int rds(const char *own, const char *peer, unsigned int port)
{
	struct sockaddr_in from = address_of(own, port), to = address_of(peer, port);
	int fd = socket(AF_RDS, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (fd < 0)
		die("socket");
	if (bind(fd, (struct sockaddr *)&from, sizeof(from)))
		die("bind");
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)))
		die("connect");
	return fd;
}

static int rds_fds[MAX_CHANNELS];

static int listen_rds(const struct options *options)
{
	for (unsigned int channel = 0; channel < options->channels; channel++)
		rds_fds[channel] = rds(options->address, options->peer, options->port + channel);
	return -1;
}

static int accept_rds(const struct options *options, int listener, unsigned int channel)
{
	(void)options;
	(void)listener;
	return rds_fds[channel];
}

static int connect_rds(const struct options *options, unsigned int channel)
{
	return rds(options->peer, options->address, options->port + channel);
}

/* Closing a socket drops what is not acknowledged. */
static void leave_rds(int fd)
{
	struct header last = { .kind = LAST };

	if (send(fd, &last, sizeof(last), 0) < 0)
		die("send");
	usleep(300000);
}

const struct transport tcp_transport = {
	.framing = &socket_framing, .listen = listen_tcp, .accept = accept_stream, .connect = connect_tcp,
};

const struct transport smc_transport = {
	.framing = &socket_framing, .listen = listen_smc, .accept = accept_stream, .connect = connect_smc,
};

const struct transport rds_transport = {
	.framing = &socket_framing, .listen = listen_rds, .accept = accept_rds, .connect = connect_rds, .leave = leave_rds,
};
