/* SPDX-License-Identifier: GPL-2.0 */
/*
 * NetIO-next's calls for buffered publish and subscribe, on messages: for programs that are to be moved, and to show
 * how each call is done here.  Only the names are NetIO-next's.  Documentation/messages-porting.md has all of its
 * functions.
 *
 * What differs:
 * - A host names a session, and a port is the name of a portal.  The publisher's own host is not used.
 * - Pages are not sent: `num_pages' times `pagesize' is the size of the log of a tag, and `pagesize' bounds a message.
 *   Entries are sent at once, and share frames while a subscriber has no credits: `watermark' and `timeout_ms' are not
 *   used.
 * - A message is published to all subscribers or, with NETIO_STATUS_AGAIN, to none: NETIO_REENTRY changes nothing.
 */
#ifndef NETIO_SHIM_H
#define NETIO_SHIM_H

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "common.h"

enum netio_status { NETIO_STATUS_OK, NETIO_STATUS_TOO_BIG, NETIO_STATUS_AGAIN, NETIO_STATUS_ERROR };

#define NETIO_REENTRY	1

typedef __u64 netio_tag_t;

struct netio_buffered_socket_attr {
	unsigned int num_pages;
	size_t pagesize;
	size_t watermark;
	unsigned long timeout_ms;
};

/* What the loop watches. */
struct netio_watched {
	void (*ready)(struct netio_watched *watched);
	int fd;
};

struct netio_context {
	int epoll;
	int stop;
};

struct netio_signal {
	void (*cb)(void *data);
	void *data;
};

struct netio_publish_socket {
	struct netio_watched watched;
	struct netio_context *ctx;
	size_t pagesize;
	int is_waiting;			/* a message has found no room */
	struct netio_signal signal_buffer_available;
	void (*cb_connection_established)(struct netio_publish_socket *socket);
	void (*cb_connection_closed)(struct netio_publish_socket *socket);
};

struct netio_subscribe_socket {
	struct netio_watched watched;
	__u64 buffer[(sizeof(struct ibmsg_msg) + IBMSG_MAX_MESSAGE) / sizeof(__u64)];
	void (*cb_connection_closed)(struct netio_subscribe_socket *socket);
	void (*cb_msg_received)(struct netio_subscribe_socket *socket, netio_tag_t tag, void *data, size_t size);
};

/* The kernel finds the subscribers of a tag. */
struct netio_subscription_cache {
	char unused;
};

static inline void netio_subscription_cache_init(struct netio_subscription_cache *cache)
{
	cache->unused = 0;
}

/* --- the loop --- */

static inline void netio_watch(struct netio_context *ctx, struct netio_watched *watched, __u32 events)
{
	struct epoll_event event = { .events = events, .data.ptr = watched };

	if (epoll_ctl(ctx->epoll, EPOLL_CTL_ADD, watched->fd, &event))
		die("epoll");
}

static inline void netio_init(struct netio_context *ctx)
{
	struct epoll_event event = { .events = EPOLLIN };

	ctx->epoll = epoll_create1(EPOLL_CLOEXEC);
	ctx->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (ctx->epoll < 0 || ctx->stop < 0 || epoll_ctl(ctx->epoll, EPOLL_CTL_ADD, ctx->stop, &event))
		die("context");
}

static inline void netio_terminate(struct netio_context *ctx)
{
	__u64 one = 1;

	if (write(ctx->stop, &one, sizeof(one)) < 0)
		die("stop");
}

/* Calls back until netio_terminate. */
static inline void netio_run(struct netio_context *ctx)
{
	struct epoll_event event;

	while (epoll_wait(ctx->epoll, &event, 1, -1) >= 0 || errno == EINTR) {
		struct netio_watched *watched = event.data.ptr;
		__u64 stopped;

		if (watched)
			watched->ready(watched);
		else if (read(ctx->stop, &stopped, sizeof(stopped)) > 0)
			return;
	}
	die("epoll");
}

/* --- the publisher --- */

/* A channel of a subscriber, from which nothing but its end is read. */
struct netio_subscriber {
	struct netio_watched watched;
	struct netio_publish_socket *socket;
};

static inline void netio_subscriber_ready(struct netio_watched *watched)
{
	struct netio_subscriber *subscriber = (struct netio_subscriber *)watched;
	struct netio_publish_socket *socket = subscriber->socket;
	char buffer[sizeof(struct ibmsg_msg) + IBMSG_MAX_DATA];

	if (read(watched->fd, buffer, sizeof(buffer)) > 0)
		return;
	close(watched->fd);
	free(subscriber);
	if (socket->cb_connection_closed)
		socket->cb_connection_closed(socket);
}

static inline void netio_accept_subscribers(struct netio_publish_socket *socket)
{
	int fd;

	while ((fd = accept_channel(socket->watched.fd, 0)) >= 0) {
		struct netio_subscriber *subscriber = calloc(1, sizeof(*subscriber));

		if (!subscriber)
			die("subscriber");
		subscriber->watched.fd = fd;
		subscriber->watched.ready = netio_subscriber_ready;
		subscriber->socket = socket;
		netio_watch(socket->ctx, &subscriber->watched, EPOLLIN);
		if (socket->cb_connection_established)
			socket->cb_connection_established(socket);
	}
}

static inline void netio_publish_ready(struct netio_watched *watched)
{
	struct netio_publish_socket *socket = (struct netio_publish_socket *)watched;
	struct netio_signal *signal = &socket->signal_buffer_available;

	netio_accept_subscribers(socket);
	if (socket->is_waiting && signal->cb) {
		/* It may find no room once more. */
		socket->is_waiting = 0;
		signal->cb(signal->data);
	}
}

static inline void netio_publish_socket_init(struct netio_publish_socket *socket, struct netio_context *ctx,
					     const char *hostname, unsigned int port,
					     struct netio_buffered_socket_attr *attr)
{
	struct ibmsg_log log = {
		.size = sizeof(log), .flags = IBMSG_LOG_DEFAULT, .policy = IBMSG_LOG_WAIT,
		.bytes = (__u64)attr->num_pages * attr->pagesize,
	};
	char portal[32];

	(void)hostname;
	snprintf(portal, sizeof(portal), "netio-%u", port);
	memset(socket, 0, sizeof(*socket));
	socket->ctx = ctx;
	socket->pagesize = attr->pagesize;
	socket->watched.ready = netio_publish_ready;
	socket->watched.fd = bind_portal((struct ibmsg_bind){ .flags = IBMSG_NONBLOCK }, portal);
	if (ioctl(socket->watched.fd, IBMSG_IOC_LOG, &log))
		die("log");
	netio_watch(ctx, &socket->watched, EPOLLIN | EPOLLOUT | EPOLLET);
}

/* NETIO_STATUS_AGAIN: signal_buffer_available is fired when there is room. */
static inline int netio_buffered_publish(struct netio_publish_socket *socket, netio_tag_t tag, void *data, size_t len,
					 int flags, struct netio_subscription_cache *cache)
{
	struct ibmsg_msg entry = { .kind = IBMSG_MSG, .tag = tag, .len = (__u32)len };

	(void)flags;
	(void)cache;
	if (len > socket->pagesize || len > IBMSG_MAX_MESSAGE)
		return NETIO_STATUS_TOO_BIG;
	if (!send_message(socket->watched.fd, entry, data))
		return NETIO_STATUS_OK;
	socket->is_waiting = errno == EAGAIN;
	return socket->is_waiting ? NETIO_STATUS_AGAIN : NETIO_STATUS_ERROR;
}

/* Nothing waits for other messages. */
static inline void netio_buffered_publish_flush(struct netio_publish_socket *socket, netio_tag_t tag,
						struct netio_subscription_cache *cache)
{
	(void)socket;
	(void)tag;
	(void)cache;
}

/* --- subscribers --- */

static inline void netio_subscribe_ready(struct netio_watched *watched)
{
	struct netio_subscribe_socket *socket = (struct netio_subscribe_socket *)watched;
	struct reader reader = { .bytes = (char *)socket->buffer, .size = sizeof(socket->buffer) };

	do {
		struct ibmsg_msg *msg = next_message(watched->fd, &reader);

		if (!msg)
			die("read");
		if (msg->kind == IBMSG_PUBLISHED) {
			socket->cb_msg_received(socket, msg->tag, content_of(msg), msg->len);
		} else if (msg->kind == IBMSG_EVENT && msg->event == IBMSG_EV_CLOSED) {
			close(watched->fd);
			if (socket->cb_connection_closed)
				socket->cb_connection_closed(socket);
			return;
		}
	} while (reader.at < reader.len);
}

static inline void netio_subscribe_socket_init(struct netio_subscribe_socket *socket, struct netio_context *ctx,
					       struct netio_buffered_socket_attr *attr, const char *hostname,
					       const char *remote_host, unsigned int remote_port)
{
	char portal[32];

	(void)attr;
	(void)hostname;
	snprintf(portal, sizeof(portal), "netio-%u", remote_port);
	memset(socket, 0, sizeof(*socket));
	socket->watched.ready = netio_subscribe_ready;
	socket->watched.fd = connect_channel(remote_host, portal);
	netio_watch(ctx, &socket->watched, EPOLLIN);
}

/* From the next message on that is published under this tag. */
static inline int netio_subscribe(struct netio_subscribe_socket *socket, netio_tag_t tag)
{
	struct ibmsg_subscribe how = { .size = sizeof(how), .tag = tag, .begin = IBMSG_BEGIN_NEXT };

	return ioctl(socket->watched.fd, IBMSG_IOC_SUBSCRIBE, &how) ? NETIO_STATUS_ERROR : NETIO_STATUS_OK;
}

static inline int netio_unsubscribe(struct netio_subscribe_socket *socket, netio_tag_t tag)
{
	struct ibmsg_unsubscribe how = { .size = sizeof(how), .tag = tag };

	return ioctl(socket->watched.fd, IBMSG_IOC_UNSUBSCRIBE, &how) ? NETIO_STATUS_ERROR : NETIO_STATUS_OK;
}

#endif
