// SPDX-License-Identifier: GPL-2.0
/*
 * Stream sockets: TCP, by system calls and by a ring. Each message has eight bytes before it.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "files.h"

#define PORT	7700

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

static struct sockaddr_in address_of(const struct options *options)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };

	if (inet_pton(AF_INET, options->address, &address.sin_addr) != 1)
		fail("%s is no address", options->address);
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
	struct sockaddr_in address = address_of(options);

	for (unsigned int channel = 0; channel < options->channels; channel++) {
		fds[channel] = new_socket(protocol);
		if (connect(fds[channel], (struct sockaddr *)&address, sizeof(address)))
			die("connect");
		without_delay(fds[channel]);
	}
}

static void accept_all(const struct options *options, int protocol, int *fds)
{
	struct sockaddr_in address = address_of(options);
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

static struct end *serve_tcp(const struct options *options)
{
	int fds[MAX_CHANNELS];

	accept_all(options, IPPROTO_TCP, fds);
	return files_end(options, &framing, fds);
}

static struct end *connect_tcp(const struct options *options)
{
	int fds[MAX_CHANNELS];

	connect_all(options, IPPROTO_TCP, fds);
	return files_end(options, &framing, fds);
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
