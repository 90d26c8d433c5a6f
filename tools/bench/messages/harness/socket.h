/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What sockets of the kernel and of libraries have in common.
 */
#ifndef SOCKET_H
#define SOCKET_H

#include <netinet/in.h>

#include "files.h"

/* Before each message. */
struct header {
	uint32_t length;
	uint32_t kind;
};

/* The kind of the last message, where the end of a connection is not seen. */
#define LAST	0

extern const struct framing socket_framing;

struct sockaddr_in address_of(const char *text, unsigned int port);

#endif
