// SPDX-License-Identifier: GPL-2.0
/*
 * Our channels: read and write, the blocking CALL, and a ring.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "files.h"
#include "ibmsg.h"

#define PORTAL	"bench"

static const uint8_t kind_of[] = { [MESSAGE] = IBMSG_MSG, [REQUEST] = IBMSG_REQUEST, [REPLY] = IBMSG_REPLY };

static void put(void *header, enum kind kind, uint64_t id, size_t length)
{
	struct ibmsg_msg *msg = header;

	*msg = (struct ibmsg_msg) { .kind = kind_of[kind], .len = (uint32_t)length, .id = id };
}

static enum kind kind_in(const struct ibmsg_msg *msg)
{
	if (msg->flags & IBMSG_F_KERNEL || msg->status)
		fail("a request has failed: %s", strerror(msg->status));
	switch (msg->kind) {
	case IBMSG_REQUEST:
		return REQUEST;
	case IBMSG_REPLY:
		return REPLY;
	case IBMSG_MSG:
		return MESSAGE;
	default:
		fail("a message of kind %u", msg->kind);
	}
}

static size_t take(struct end *end, unsigned int channel, const char *data, size_t length, bool *closed)
{
	for (size_t at = 0; at < length;) {
		const struct ibmsg_msg *msg = (const struct ibmsg_msg *)(data + at);

		at += IBMSG_ALIGN(sizeof(*msg) + msg->len);
		if (msg->kind == IBMSG_EVENT && msg->event == IBMSG_EV_CLOSED) {
			if (msg->status)
				fail("the channel has ended: %s", strerror(msg->status));
			*closed = true;
			continue;
		}
		end->arrived(end, &(struct arrival) {
			.channel = channel, .kind = kind_in(msg), .id = msg->id, .content = msg + 1, .length = msg->len,
		});
	}
	return length;
}

static const struct framing framing = { .header = sizeof(struct ibmsg_msg), .put = put, .take = take };

static int device(void)
{
	int fd = open("/dev/ibmsg", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		die("/dev/ibmsg");
	return fd;
}

static void connect_all(const struct options *options, int *fds)
{
	int context = device();

	for (unsigned int channel = 0; channel < options->channels; channel++) {
		struct ibmsg_connect connect = { .size = sizeof(connect), .timeout_ms = 60000, .portal = PORTAL };

		if (strlen(options->address) > sizeof(connect.session))
			fail("%s: the name is too long", options->address);
		memcpy(connect.session, options->address, strlen(options->address));
		fds[channel] = ioctl(context, IBMSG_IOC_CONNECT, &connect);
		if (fds[channel] < 0)
			die("connect");
	}
	close(context);
}

static void accept_all(const struct options *options, int *fds)
{
	struct ibmsg_bind bind = { .size = sizeof(bind), .flags = IBMSG_UNAUTHENTICATED, .portal = PORTAL };
	int portal = ioctl(device(), IBMSG_IOC_BIND, &bind);

	if (portal < 0)
		die("bind");
	ready();
	for (unsigned int channel = 0; channel < options->channels; channel++) {
		struct {
			struct ibmsg_msg msg;
			char offer[sizeof(struct ibmsg_offer) + IBMSG_MAX_DATA];
		} offer;
		struct ibmsg_accept accept = { .size = sizeof(accept) };

		if (read(portal, &offer, sizeof(offer)) < 0)
			die("read");
		accept.offer = offer.msg.id;
		fds[channel] = ioctl(portal, IBMSG_IOC_ACCEPT, &accept);
		if (fds[channel] < 0)
			die("accept");
	}
	close(portal);
}

static struct end *serve_files(const struct options *options)
{
	int fds[MAX_CHANNELS];

	accept_all(options, fds);
	return files_end(options, &framing, fds);
}

static struct end *connect_files(const struct options *options)
{
	int fds[MAX_CHANNELS];

	connect_all(options, fds);
	return files_end(options, &framing, fds);
}

static struct end *serve_ring(const struct options *options)
{
	int fds[MAX_CHANNELS];

	accept_all(options, fds);
	return ring_end(options, &framing, fds, true, true);
}

static struct end *connect_ring(const struct options *options)
{
	int fds[MAX_CHANNELS];

	connect_all(options, fds);
	return ring_end(options, &framing, fds, false, true);
}

/* A client's thread that calls: one request at a time. */
struct caller {
	struct end end;
	struct end *files;
	unsigned int channel;
	char *request;
	char *reply;
	bool waits;
	struct arrival arrival;
};

static struct end *caller(const struct options *options, struct end *files, unsigned int channel)
{
	struct caller *caller = allocate(sizeof(*caller));

	caller->end.options = options;
	caller->files = files;
	caller->channel = channel;
	caller->request = allocate(MAX_BYTES);
	caller->reply = allocate(MAX_BYTES);
	return &caller->end;
}

static struct end *connect_caller(const struct options *options)
{
	if (options->kind != REQUEST)
		fail("this back end has requests only");
	return caller(options, connect_files(options), 0);
}

static struct end *share_caller(struct end *end, unsigned int channel)
{
	return caller(end->options, ((struct caller *)end)->files, channel);
}

static void *caller_room(struct end *end, unsigned int channel)
{
	(void)channel;
	return ((struct caller *)end)->request;
}

static void call(struct end *end, unsigned int channel, enum kind kind, uint64_t id, size_t length)
{
	struct caller *caller = (struct caller *)end;
	struct ibmsg_call call = {
		.size = sizeof(call), .request = (uintptr_t)caller->request, .request_len = (uint32_t)length,
		.reply = (uintptr_t)caller->reply, .reply_len = MAX_BYTES,
	};

	(void)kind;
	(void)id;
	if (ioctl(files_fd(caller->files, caller->channel), IBMSG_IOC_CALL, &call))
		die("call");
	if (call.status)
		fail("a request has failed: %s", strerror(call.status));
	caller->arrival = (struct arrival) {
		.channel = channel, .kind = REPLY, .content = caller->reply, .length = call.reply_len,
	};
	caller->waits = true;
}

static bool wait_for_call(struct end *end)
{
	struct caller *caller = (struct caller *)end;

	while (caller->waits) {
		caller->waits = false;
		end->arrived(end, &caller->arrival);
	}
	return true;
}

static void close_caller(struct end *end)
{
	files_close(((struct caller *)end)->files);
}

const struct backend ibmsg_backend = {
	.name = "ibmsg", .serve = serve_files, .connect = connect_files, .room = files_room, .send = files_send,
	.wait = files_wait, .close = files_close,
};

const struct backend ibmsg_call_backend = {
	.name = "ibmsg-call", .blocks = true, .server = &ibmsg_backend, .connect = connect_caller, .share = share_caller,
	.room = caller_room, .send = call, .wait = wait_for_call, .close = close_caller,
};

const struct backend ibmsg_ring_backend = {
	.name = "ibmsg-ring", .serve = serve_ring, .connect = connect_ring, .room = ring_room, .send = ring_send,
	.wait = ring_wait, .close = ring_close,
};
