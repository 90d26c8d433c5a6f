// SPDX-License-Identifier: GPL-2.0
/*
 * Our channels, and requests by the blocking CALL.
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

/* More messages follow, but after one that wants an answer. */
static void put_more(void *header, enum kind kind, uint64_t id, size_t length)
{
	struct ibmsg_msg *msg = header;

	put(header, kind, id, length);
	if (!asks(msg + 1))
		msg->flags = IBMSG_F_MORE;
}

static enum kind kind_in(const struct ibmsg_msg *msg)
{
	errno = msg->status;
	if (msg->flags & IBMSG_F_KERNEL || msg->status)
		die("a request has failed");
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
			errno = msg->status;
			if (msg->status)
				die("the channel has ended");
			*closed = true;
			continue;
		}
		end->arrived(end, &(struct arrival) {
			.channel = channel, .kind = kind_in(msg), .id = msg->id, .content = msg + 1, .length = msg->len,
		});
	}
	return length;
}

static const struct framing framing = {
	.header = sizeof(struct ibmsg_msg), .put = put, .take = take, .has_calls = true,
};

static const struct framing more_framing = {
	.header = sizeof(struct ibmsg_msg), .put = put_more, .take = take, .has_calls = true,
};

static int device(void)
{
	int fd = open("/dev/ibmsg", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		die("/dev/ibmsg");
	return fd;
}

/* Many subscribers take less memory each. */
static struct ibmsg_opts terms(const struct options *options)
{
	if (!options->publishes)
		return (struct ibmsg_opts){ 0 };
	return (struct ibmsg_opts){ .recv_msgs = 128, .recv_bytes = 32768, .send_msgs = 128, .send_bytes = 32768,
				    .max_message = 16384, .recv_calls = 1 };
}

static int open_channel(const struct options *options, unsigned int channel)
{
	struct ibmsg_connect connect = {
		.size = sizeof(connect), .timeout_ms = 60000, .portal = PORTAL, .opts = terms(options),
	};
	int context = device(), fd;

	(void)channel;
	if (strlen(options->address) > sizeof(connect.session))
		fail("%s: the name is too long", options->address);
	memcpy(connect.session, options->address, strlen(options->address));
	fd = ioctl(context, IBMSG_IOC_CONNECT, &connect);
	if (fd < 0)
		die("connect");
	close(context);
	return fd;
}

static int bind_portal(const struct options *options)
{
	struct ibmsg_bind bind = {
		.size = sizeof(bind), .flags = IBMSG_UNAUTHENTICATED, .portal = PORTAL, .opts = terms(options),
	};
	int context = device(), portal = ioctl(context, IBMSG_IOC_BIND, &bind);

	if (portal < 0)
		die("bind");
	close(context);
	return portal;
}

static int accept_channel(const struct options *options, int portal, unsigned int channel)
{
	struct {
		struct ibmsg_msg msg;
		char offer[sizeof(struct ibmsg_offer) + IBMSG_MAX_DATA];
	} offer;
	struct ibmsg_accept accept = { .size = sizeof(accept) };
	int fd;

	(void)options;
	(void)channel;
	if (read(portal, &offer, sizeof(offer)) < 0)
		die("read");
	accept.offer = offer.msg.id;
	fd = ioctl(portal, IBMSG_IOC_ACCEPT, &accept);
	if (fd < 0)
		die("accept");
	return fd;
}

/* For how long a task polls before it sleeps: longer than a round trip. */
#define POLL_US	1000

static int polling(int fd)
{
	struct ibmsg_tune tune = { .size = sizeof(tune), .busy_poll_us = POLL_US };

	if (ioctl(fd, IBMSG_IOC_TUNE, &tune))
		die("tune");
	return fd;
}

static int open_polling(const struct options *options, unsigned int channel)
{
	return polling(open_channel(options, channel));
}

static int accept_polling(const struct options *options, int portal, unsigned int channel)
{
	return polling(accept_channel(options, portal, channel));
}

const struct transport ibmsg_transport = {
	.framing = &framing, .listen = bind_portal, .accept = accept_channel, .connect = open_channel,
};

const struct transport polling_transport = {
	.framing = &framing, .listen = bind_portal, .accept = accept_polling, .connect = open_polling,
};

const struct transport more_transport = {
	.framing = &more_framing, .listen = bind_portal, .accept = accept_channel, .connect = open_channel,
};

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

static struct end *open_caller(const struct transport *transport, const struct options *options, const int *fds,
			       bool is_server)
{
	if (options->kind != REQUEST)
		fail("this back end has requests only");
	return caller(options, files_engine.open(transport, options, fds, is_server), 0);
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
	files_engine.close(((struct caller *)end)->files);
}

const struct engine call_engine = {
	.open = open_caller, .room = caller_room, .send = call, .wait = wait_for_call, .close = close_caller,
	.share = share_caller,
};
