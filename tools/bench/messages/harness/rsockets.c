// SPDX-License-Identifier: GPL-2.0
/*
 * The sockets of librdmacm: streams over RDMA, by queue pairs of the program itself.
 */
#include <netinet/tcp.h>
#include <rdma/rsocket.h>

#include "socket.h"

static int new_socket(void)
{
	int one = 1, fd = rsocket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0)
		die("rsocket");
	if (rsetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)))
		die("SO_REUSEADDR");
	return fd;
}

static int listen_rsocket(const struct options *options)
{
	struct sockaddr_in address = address_of(options->address, options->port);
	int listener = new_socket();

	if (rbind(listener, (struct sockaddr *)&address, sizeof(address)))
		die("rbind");
	if (rlisten(listener, 1))
		die("rlisten");
	return listener;
}

static int accept_rsocket(const struct options *options, int listener, unsigned int channel)
{
	int fd = raccept(listener, NULL, NULL);

	(void)options;
	(void)channel;
	if (fd < 0)
		die("raccept");
	return fd;
}

static int connect_rsocket(const struct options *options, unsigned int channel)
{
	struct sockaddr_in address = address_of(options->address, options->port);
	int fd = new_socket();

	(void)channel;
	if (rconnect(fd, (struct sockaddr *)&address, sizeof(address)))
		die("rconnect");
	return fd;
}

static ssize_t receive(int fd, void *data, size_t size)
{
	ssize_t got;

	/* A signal only says that no more is to be sent. */
	do {
		got = rrecv(fd, data, size, 0);
	} while (got < 0 && errno == EINTR);
	return got;
}

static ssize_t send_to(int fd, const void *data, size_t size)
{
	return rsend(fd, data, size, 0);
}

static const struct io io = { .receive = receive, .send = send_to, .close = rclose };

const struct transport rsockets_transport = {
	.framing = &socket_framing, .listen = listen_rsocket, .accept = accept_rsocket, .connect = connect_rsocket, .io = &io,
};
