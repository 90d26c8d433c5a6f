/* SPDX-License-Identifier: GPL-2.0 */
/*
 * One load, many transports: the loops, the content and its checks are the same for all; a back end opens
 * channels, sends messages, and waits for those that arrive.
 */
#ifndef HARNESS_H
#define HARNESS_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define MAX_BYTES	65536
/* Of a GET or a PUT. */
#define MAX_COPY	(1u << 20)
#define MAX_CHANNELS	64
#define MAX_DEPTH	256
/* Before the clock starts. */
#define WARM_UP		64

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
	/* Of sockets; RDS takes the next ones, too, one for each channel. */
	unsigned int port;
	unsigned int channels;
	/* Messages in flight on each channel. */
	unsigned int depth;
	unsigned int bytes;
	uint64_t count;
	/* What is sent, and whether each message is answered. */
	enum kind kind;
	bool answered;
	/* Channels are opened and closed, and nothing is sent. */
	bool connects;
	/* Memory is copied to the server, or from it. */
	bool puts;
	bool gets;
	/* The server publishes, and the client subscribes on all channels. */
	bool publishes;
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

/* What stands for read, write and close where a channel is no file of the kernel. */
struct io {
	ssize_t (*receive)(int fd, void *data, size_t size);
	ssize_t (*send)(int fd, const void *data, size_t size);
	int (*close)(int fd);
};

/* A transport: how its channels are opened, one after the other, and what is read and written. */
struct transport {
	const struct framing *framing;
	/* Returns a file for `accept'; from then on clients may connect. */
	int (*listen)(const struct options *options);
	int (*accept)(const struct options *options, int listener, unsigned int channel);
	int (*connect)(const struct options *options, unsigned int channel);
	/* Tells the other side, which does not see that the file is closed; NULL: it does. */
	void (*leave)(int fd);
	/* NULL: files. Only one channel is possible otherwise, as epoll is for files. */
	const struct io *io;
};

/* A way to use the channels of a transport. */
struct engine {
	struct end *(*open)(const struct transport *transport, const struct options *options, const int *fds,
			    bool is_server);
	/* Where the content of the next message goes. */
	void *(*room)(struct end *end, unsigned int channel);
	/* Sends what is there. A reply has the id of its request. */
	void (*send)(struct end *end, unsigned int channel, enum kind kind, uint64_t id, size_t length);
	/* Waits for at least one message, or for the completion of one that was sent; false: all channels are closed. */
	bool (*wait)(struct end *end);
	/* Closes the channels. All that was sent has arrived by then. */
	void (*close)(struct end *end);
	/*
	 * Only of those whose requests block their thread: for another thread, one of the channels, which is its
	 * channel 0.
	 */
	struct end *(*share)(struct end *end, unsigned int channel);
};

/* A load that is not one of messages. */
struct own_load {
	/* Returns the nanoseconds that it took. */
	uint64_t (*client)(const struct transport *transport, const struct options *options);
	void (*server)(const struct transport *transport, const struct options *options, int listener);
};

struct backend {
	const char *name;
	const struct transport *transport;
	const struct engine *engine;
	/* Of the server, if it is another one. */
	const struct engine *server;
	/* In place of an engine. */
	const struct own_load *own;
};

extern const struct engine files_engine, ring_engine, call_engine;
extern const struct own_load memory_load, publish_load;
extern const struct transport ibmsg_transport, polling_transport, more_transport, tcp_transport, smc_transport;
extern const struct transport rds_transport, rsockets_transport, zeromq_transport, nng_transport;


/* Content: a number, whether it wants an answer, and bytes that depend on the number. */
void content_init(void);
void fill(void *room, uint64_t number, bool wants_answer, size_t length);
/* Whether it wants an answer. */
bool asks(const void *content);
/* Ends the program if it is not what was filled in; returns the number. */
uint64_t check(const void *content, size_t length, bool *wants_answer);

void run_client(const struct backend *backend, const struct options *options);
void run_server(const struct backend *backend, const struct options *options);
/* For the truth table: the outcomes of messages. */
void truth_client(const struct backend *backend, const struct options *options);
void truth_server(const struct backend *backend, const struct options *options);

/* Ends the program. */
_Noreturn void fail(const char *what, ...);
/* The transport has failed, with the reason in errno: ends the program as well, unless that is what is looked for. */
_Noreturn void die(const char *what);
extern jmp_buf *when_broken;
void *allocate(size_t size);
void ready(void);
uint64_t now_ns(void);

#endif
