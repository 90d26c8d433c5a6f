/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What sockets of the kernel and those of librdmacm have in common.
 */
#ifndef SOCKET_H
#define SOCKET_H

#include <netinet/in.h>

#include "files.h"

#define PORT	7700

extern const struct framing socket_framing;

struct sockaddr_in address_of(const char *text, unsigned int port);

#endif
