/* SPDX-License-Identifier: GPL-2.0 */
/*
 * One load, many transports: the loops, the content and its checks are the same for all; a back end opens
 * channels, sends messages, and waits for those that arrive.
 */
#ifndef HARNESS_H
#define HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_BYTES	65536
#define MAX_CHANNELS	64
#define MAX_DEPTH	256

enum kind {
	/* A message; its answer, if it has one, is another. */
	MESSAGE = 1,
	/* A request, and the reply to it. */
	REQUEST = 2,
	REPLY = 3,
};

struct options {
	/* The server's IPv4 address, or the session's name. */
	const char *address;
	/* The client's address, for transports without connections. */
	const char *peer;
	unsigned int channels;
	/* Messages in flight on each channel. */
	unsigned int depth;
	unsigned int bytes;
	uint64_t count;
	/* What is sent, and whether each message is answered. */
	enum kind kind;
	bool answered;
};

struct arrival {
	unsigned int channel;
	enum kind kind;
	/* Names the request in the reply. */
	uint64_t id;
	const void *content;
	size_t length;
};

/* The channels of a process. A back end has its own state behind it. */
struct end {
	const struct options *options;
	/* Takes each message, in `wait'. */
	void (*arrived)(struct end *end, const struct arrival *arrival);
	void *context;
};

struct backend {
	const char *name;
	/* Whether a request blocks its thread until the reply is there. */
	bool blocks;
	/* The other side, if it is not the same back end. */
	const struct backend *server;
	/* The server's side prints "ready" (see ready()) before it waits for its channels. */
	struct end *(*serve)(const struct options *options);
	struct end *(*connect)(const struct options *options);
	/* For a thread of its own: one of the channels, which is its channel 0. Only of those that block. */
	struct end *(*share)(struct end *end, unsigned int channel);
	/* Where the content of the next message goes. */
	void *(*room)(struct end *end, unsigned int channel);
	/* Sends what is there. A reply has the id of its request. */
	void (*send)(struct end *end, unsigned int channel, enum kind kind, uint64_t id, size_t length);
	/* Waits for at least one message, or for the completion of one that was sent; false: all channels are closed. */
	bool (*wait)(struct end *end);
	/* Closes the channels. All that was sent has arrived by then. */
	void (*close)(struct end *end);
};

extern const struct backend ibmsg_backend, ibmsg_call_backend, ibmsg_ring_backend;
extern const struct backend tcp_backend, tcp_ring_backend, smc_backend, rds_backend;

/* Content: a number, whether it wants an answer, and bytes that depend on the number. */
void content_init(void);
void fill(void *room, uint64_t number, bool wants_answer, size_t length);
/* Ends the program if it is not what was filled in; returns the number. */
uint64_t check(const void *content, size_t length, bool *wants_answer);

void run_client(const struct backend *backend, const struct options *options);
void run_server(const struct backend *backend, const struct options *options);

/* Ends the program. */
_Noreturn void fail(const char *what, ...);
/* The same, with the reason of errno. */
_Noreturn void die(const char *what);
void *allocate(size_t size);
void ready(void);
uint64_t now_ns(void);

#endif
