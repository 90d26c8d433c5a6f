/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How messages lie in what is read and written, by system calls or by a ring.
 */
#ifndef FILES_H
#define FILES_H

#include "harness.h"

/* Room for two of the longest messages. */
#define READ_ROOM	(2 * (MAX_BYTES + 64))

struct framing {
	/* Bytes before the content. */
	size_t header;
	void (*put)(void *header, enum kind kind, uint64_t id, size_t length);
	/* Hands the whole messages in `data' to end->arrived; returns the bytes that it is done with. */
	size_t (*take)(struct end *end, unsigned int channel, const char *data, size_t length, bool *closed);
	/* Sockets: sent and received. */
	bool is_socket;
	/* Whether a ring makes requests by a command of the file. */
	bool has_calls;
};

/* The file of a channel, of an end of the engine for files. */
int files_fd(struct end *end, unsigned int channel);

#endif
