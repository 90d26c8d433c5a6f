/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Channels that are files, and have their messages read and written, by system calls or by a ring.
 */
#ifndef FILES_H
#define FILES_H

#include "harness.h"

/* Room for two of the longest messages. */
#define READ_ROOM	(2 * (MAX_BYTES + 64))

/* How messages lie in what is read and written. */
struct framing {
	/* Bytes before the content. */
	size_t header;
	void (*put)(void *header, enum kind kind, uint64_t id, size_t length);
	/* Hands the whole messages in `data' to end->arrived; returns the bytes that it is done with. */
	size_t (*take)(struct end *end, unsigned int channel, const char *data, size_t length, bool *closed);
	/* Sockets: sent and received, where a ring has other operations for that. */
	bool is_socket;
};

/* One file for each channel. */
struct end *files_end(const struct options *options, const struct framing *framing, const int *fds);
void *files_room(struct end *end, unsigned int channel);
void files_send(struct end *end, unsigned int channel, enum kind kind, uint64_t id, size_t length);
bool files_wait(struct end *end);
void files_close(struct end *end);
int files_fd(struct end *end, unsigned int channel);

/* With a ring; on a client's side, `calls' are requests that are commands of the files. */
struct end *ring_end(const struct options *options, const struct framing *framing, const int *fds, bool is_server,
		     bool calls);
void *ring_room(struct end *end, unsigned int channel);
void ring_send(struct end *end, unsigned int channel, enum kind kind, uint64_t id, size_t length);
bool ring_wait(struct end *end);
void ring_close(struct end *end);

#endif
