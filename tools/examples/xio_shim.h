/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The calls of Accelio that its hello_world is made of, on messages: for programs that are to be moved, and to show
 * how each call is done here.  Only the names are Accelio's.  Documentation/messages-porting.md has all of its functions.
 *
 * What differs:
 * - "rdma://NAME:PORT" names a session and a portal, not an address and a port.
 * - A session has one connection, which is a channel.
 * - The content of a message is copied: a received one lies in memory of the shim until it is released.  A message has
 *   one element of data when it is received, whatever it was sent from.
 * - A context is one thread's, as with Accelio.  Only xio_context_stop_loop may be called by another one.
 */
#ifndef XIO_SHIM_H
#define XIO_SHIM_H

#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "common.h"

#define XIO_IOVLEN		4
#define XIO_INFINITE		(-1)
#define XIO_MAX_CONTENT		(IBMSG_MAX_MESSAGE - sizeof(__u32))

enum xio_session_type { XIO_SESSION_SERVER, XIO_SESSION_CLIENT };
enum xio_sgl_type { XIO_SGL_TYPE_IOV };
enum xio_msg_type { XIO_MSG_TYPE_REQ = 1, XIO_MSG_TYPE_RSP, XIO_MSG_TYPE_ONE_WAY };

enum xio_session_event {
	XIO_SESSION_REJECT_EVENT,
	XIO_SESSION_TEARDOWN_EVENT,
	XIO_SESSION_NEW_CONNECTION_EVENT,
	XIO_SESSION_CONNECTION_ESTABLISHED_EVENT,
	XIO_SESSION_CONNECTION_TEARDOWN_EVENT,
	XIO_SESSION_CONNECTION_CLOSED_EVENT,
	XIO_SESSION_CONNECTION_DISCONNECTED_EVENT,
};

struct xio_iovec {
	void *iov_base;
	size_t iov_len;
};

struct xio_vmsg {
	struct xio_iovec header;
	enum xio_sgl_type sgl_type;
	struct {
		uint32_t nents;
		uint32_t max_nents;
		struct xio_iovec sglist[XIO_IOVLEN];
	} data_iov;
};

struct xio_connection;
struct xio_session;

struct xio_msg {
	struct xio_vmsg in;
	struct xio_vmsg out;
	uint64_t sn;			/* of the channel, in the order of sending */
	struct xio_msg *request;	/* of a response: what it answers */
	void *user_context;
	enum xio_msg_type type;
	/* The shim's own. */
	struct xio_connection *connection;
	struct xio_msg *next;
	__u64 id;
	char *content;
};

struct xio_session_event_data {
	struct xio_connection *conn;
	void *conn_user_context;
	enum xio_session_event event;
	int reason;			/* an errno; 0: as one of the programs wanted */
};

struct xio_new_session_req {
	const void *private_data;
	uint16_t private_data_len;
};

/* Those that are NULL are not called. */
struct xio_session_ops {
	int (*on_session_event)(struct xio_session *session, struct xio_session_event_data *data, void *context);
	int (*on_new_session)(struct xio_session *session, struct xio_new_session_req *req, void *context);
	int (*on_msg)(struct xio_session *session, struct xio_msg *msg, int last_in_rxq, void *context);
	int (*on_msg_send_complete)(struct xio_session *session, struct xio_msg *msg, void *context);
	int (*on_msg_error)(struct xio_session *session, int error, struct xio_msg *msg, void *context);
};

struct xio_context {
	int epoll;
	int stop;
	/* What is read from a channel, until it is handled. */
	__u64 buffer[2 * (sizeof(struct ibmsg_msg) + IBMSG_MAX_MESSAGE) / sizeof(__u64)];
};

/* What the loop watches: a portal or a channel. */
struct xio_watched {
	void (*ready)(struct xio_watched *watched);
	int fd;
};

struct xio_server {
	struct xio_watched watched;
	struct xio_context *ctx;
	struct xio_session_ops *ops;
	void *context;
};

struct xio_connection {
	struct xio_watched watched;
	struct xio_session *session;
	void *context;
	struct xio_msg *queue;		/* messages that wait for room */
	struct xio_msg **end;
	uint64_t sent;
	int is_established;
	int is_over;
};

struct xio_session {
	struct xio_context *ctx;
	struct xio_session_ops *ops;
	void *context;
	struct xio_connection connection;
	__u64 offer;			/* of a server's session that is neither accepted nor rejected */
	struct xio_server *server;
	char name[IBMSG_MAX_NAME + 1];
	char portal[IBMSG_MAX_NAME + 1];
};

struct xio_session_params {
	enum xio_session_type type;
	struct xio_session_ops *ses_ops;
	void *user_context;
	const char *uri;
};

struct xio_connection_params {
	struct xio_session *session;
	struct xio_context *ctx;
	void *conn_user_context;
};

static inline void xio_init(void)
{
}

static inline void xio_shutdown(void)
{
}

static inline const char *xio_session_event_str(enum xio_session_event event)
{
	static const char *const names[] = {
		"session rejected", "session teardown", "new connection", "connection established",
		"connection teardown", "connection closed", "connection disconnected",
	};

	return names[event];
}

/* --- contexts --- */

static inline int xio_watch(struct xio_context *ctx, struct xio_watched *watched)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = watched };

	return epoll_ctl(ctx->epoll, EPOLL_CTL_ADD, watched->fd, &event);
}

static inline struct xio_context *xio_context_create(void *attr, int polling_timeout_us, int cpu_hint)
{
	struct xio_context *ctx = calloc(1, sizeof(*ctx));
	struct epoll_event event = { .events = EPOLLIN };

	(void)attr;
	(void)polling_timeout_us;
	(void)cpu_hint;
	if (!ctx)
		return NULL;
	ctx->epoll = epoll_create1(EPOLL_CLOEXEC);
	ctx->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (ctx->epoll < 0 || ctx->stop < 0 || epoll_ctl(ctx->epoll, EPOLL_CTL_ADD, ctx->stop, &event))
		die("context");
	return ctx;
}

static inline void xio_context_destroy(struct xio_context *ctx)
{
	close(ctx->epoll);
	close(ctx->stop);
	free(ctx);
}

static inline void xio_context_stop_loop(struct xio_context *ctx)
{
	__u64 one = 1;

	if (write(ctx->stop, &one, sizeof(one)) < 0)
		die("stop");
}

/*
 * Calls back until it is stopped, or nothing has happened for that time.  A callback may destroy the object of another
 * event: so there is one event at a time.
 */
static inline int xio_context_run_loop(struct xio_context *ctx, int timeout_ms)
{
	struct epoll_event event;
	int found;

	while ((found = epoll_wait(ctx->epoll, &event, 1, timeout_ms)) > 0) {
		struct xio_watched *watched = event.data.ptr;
		__u64 stopped;

		if (watched)
			watched->ready(watched);
		else if (read(ctx->stop, &stopped, sizeof(stopped)) > 0)
			return 0;
	}
	return found;
}

/* --- messages that are sent --- */

/* 0, or -1 and errno. */
static inline int xio_write(struct xio_msg *msg)
{
	static const __u8 kinds[] = { 0, IBMSG_REQUEST, IBMSG_REPLY, IBMSG_MSG };
	__u32 header_len = (__u32)msg->out.header.iov_len;
	struct ibmsg_msg head = {
		.kind = kinds[msg->type], .len = (__u32)sizeof(header_len) + header_len,
		.tag = (__u64)(uintptr_t)msg, .id = msg->type == XIO_MSG_TYPE_RSP ? msg->request->id : 0,
	};
	struct iovec parts[3 + XIO_IOVLEN] = {
		{ .iov_base = &head, .iov_len = sizeof(head) },
		{ .iov_base = &header_len, .iov_len = sizeof(header_len) },
		{ .iov_base = msg->out.header.iov_base, .iov_len = header_len },
	};

	for (uint32_t i = 0; i < msg->out.data_iov.nents; i++) {
		struct xio_iovec *part = &msg->out.data_iov.sglist[i];

		parts[3 + i] = (struct iovec){ .iov_base = part->iov_base, .iov_len = part->iov_len };
		head.len += (__u32)part->iov_len;
	}
	return writev(msg->connection->watched.fd, parts, 3 + (int)msg->out.data_iov.nents) < 0 ? -1 : 0;
}

static inline void xio_free(struct xio_msg *received)
{
	free(received->content);
	free(received);
}

/* A message that was written, or cannot be. */
static inline void xio_sent(struct xio_msg *msg, int error)
{
	struct xio_session *session = msg->connection->session;
	struct xio_session_ops *ops = session->ops;

	if (msg->type == XIO_MSG_TYPE_RSP)
		xio_free(msg->request);
	if (error) {
		if (ops->on_msg_error)
			ops->on_msg_error(session, error, msg, session->context);
	} else if (msg->type != XIO_MSG_TYPE_REQ && ops->on_msg_send_complete) {
		ops->on_msg_send_complete(session, msg, session->context);
	}
}

/* Writes what waits, as far as there is room; nothing before the portal has accepted. */
static inline void xio_send_queued(struct xio_connection *connection)
{
	struct xio_msg *msg;

	while (connection->is_established && (msg = connection->queue)) {
		int error = xio_write(msg) ? errno : 0;

		if (error == EAGAIN)
			return;
		connection->queue = msg->next;
		if (!msg->next)
			connection->end = &connection->queue;
		xio_sent(msg, error);
	}
}

static inline int xio_send(struct xio_connection *connection, struct xio_msg *msg, enum xio_msg_type type)
{
	size_t len = msg->out.header.iov_len;

	for (uint32_t i = 0; i < msg->out.data_iov.nents; i++)
		len += msg->out.data_iov.sglist[i].iov_len;
	if (len > XIO_MAX_CONTENT || msg->out.data_iov.nents > XIO_IOVLEN) {
		errno = EMSGSIZE;
		return -1;
	}
	msg->connection = connection;
	msg->type = type;
	msg->sn = ++connection->sent;
	msg->next = NULL;
	*connection->end = msg;
	connection->end = &msg->next;
	/* Others are waiting for room: the loop goes on with them. */
	if (connection->queue == msg)
		xio_send_queued(connection);
	return 0;
}

static inline int xio_send_request(struct xio_connection *connection, struct xio_msg *msg)
{
	return xio_send(connection, msg, XIO_MSG_TYPE_REQ);
}

static inline int xio_send_msg(struct xio_connection *connection, struct xio_msg *msg)
{
	return xio_send(connection, msg, XIO_MSG_TYPE_ONE_WAY);
}

/* The request is released when the response is written. */
static inline int xio_send_response(struct xio_msg *rsp)
{
	return xio_send(rsp->request->connection, rsp, XIO_MSG_TYPE_RSP);
}

/* The response is in memory of its own; the message is the program's. */
static inline int xio_release_response(struct xio_msg *msg)
{
	free(msg->content);
	msg->content = NULL;
	return 0;
}

static inline int xio_release_msg(struct xio_msg *msg)
{
	xio_free(msg);
	return 0;
}

/* --- messages that are received --- */

/* Copies a content into `in'.  0: no memory, or no content of such a program. */
static inline int xio_take(struct xio_msg *msg, const struct ibmsg_msg *head)
{
	__u32 header_len = 0;
	char *content = NULL;

	if (head->len >= sizeof(header_len)) {
		memcpy(&header_len, head + 1, sizeof(header_len));
		content = malloc(head->len);
	}
	if (!content || header_len > head->len - sizeof(header_len)) {
		free(content);
		return 0;
	}
	memcpy(content, (const char *)(head + 1) + sizeof(header_len), head->len - sizeof(header_len));
	msg->content = content;
	msg->in.header = (struct xio_iovec){ .iov_base = content, .iov_len = header_len };
	msg->in.sgl_type = XIO_SGL_TYPE_IOV;
	msg->in.data_iov.nents = 1;
	msg->in.data_iov.sglist[0] = (struct xio_iovec){
		.iov_base = content + header_len, .iov_len = head->len - sizeof(header_len) - header_len,
	};
	return 1;
}

static inline void xio_tell(struct xio_session *session, enum xio_session_event event, int reason)
{
	struct xio_session_event_data data = {
		.conn = event == XIO_SESSION_TEARDOWN_EVENT ? NULL : &session->connection,
		.conn_user_context = session->connection.context, .event = event, .reason = reason,
	};

	if (session->ops->on_session_event)
		session->ops->on_session_event(session, &data, session->context);
}

/* The channel has ended: messages that wait are flushed. */
static inline void xio_ended(struct xio_connection *connection, int reason)
{
	struct xio_session *session = connection->session;
	struct xio_msg *msg;

	connection->is_over = 1;
	while ((msg = connection->queue)) {
		connection->queue = msg->next;
		xio_sent(msg, ECANCELED);
	}
	if (!connection->is_established)
		xio_tell(session, XIO_SESSION_REJECT_EVENT, reason);
	else if (reason)
		xio_tell(session, XIO_SESSION_CONNECTION_DISCONNECTED_EVENT, reason);
	else
		xio_tell(session, XIO_SESSION_CONNECTION_CLOSED_EVENT, reason);
	/* The program destroys the connection now, and afterwards the session. */
	xio_tell(session, XIO_SESSION_CONNECTION_TEARDOWN_EVENT, reason);
}

static inline void xio_handle_event(struct xio_connection *connection, const struct ibmsg_msg *head)
{
	if (head->event == IBMSG_EV_CONNECTED) {
		connection->is_established = 1;
		xio_tell(connection->session, XIO_SESSION_CONNECTION_ESTABLISHED_EVENT, 0);
	} else if (head->event == IBMSG_EV_CLOSED) {
		xio_ended(connection, head->status);
	}
}

static inline void xio_handle_reply(struct xio_session *session, const struct ibmsg_msg *head, int is_last)
{
	struct xio_msg *msg = (struct xio_msg *)(uintptr_t)head->tag;

	if (head->flags & IBMSG_F_KERNEL || head->status) {
		if (session->ops->on_msg_error)
			session->ops->on_msg_error(session, head->status, msg, session->context);
		return;
	}
	if (!xio_take(msg, head))
		die("response");
	session->ops->on_msg(session, msg, is_last, session->context);
}

static inline void xio_handle_request(struct xio_connection *connection, const struct ibmsg_msg *head, int is_last)
{
	struct xio_session *session = connection->session;
	struct xio_msg *msg = calloc(1, sizeof(*msg));

	if (!msg || !xio_take(msg, head))
		die("request");
	msg->connection = connection;
	msg->type = head->kind == IBMSG_REQUEST ? XIO_MSG_TYPE_REQ : XIO_MSG_TYPE_ONE_WAY;
	msg->id = head->id;
	session->ops->on_msg(session, msg, is_last, session->context);
}

static inline void xio_connection_ready(struct xio_watched *watched)
{
	struct xio_connection *connection = (struct xio_connection *)watched;
	struct xio_context *ctx = connection->session->ctx;
	struct reader reader = { .bytes = (char *)ctx->buffer, .size = sizeof(ctx->buffer) };

	while (1) {
		struct ibmsg_msg *head = next_message(watched->fd, &reader);

		if (!head)
			break;
		if (head->kind == IBMSG_EVENT && head->event == IBMSG_EV_CLOSED) {
			/* Nothing follows, and the program may destroy all of it. */
			xio_handle_event(connection, head);
			return;
		}
		if (head->kind == IBMSG_EVENT)
			xio_handle_event(connection, head);
		else if (head->kind == IBMSG_REPLY)
			xio_handle_reply(connection->session, head, reader.at == reader.len);
		else
			xio_handle_request(connection, head, reader.at == reader.len);
	}
	if (errno != EAGAIN)
		die("read");
	/* A reply makes room for a request, which poll does not tell. */
	xio_send_queued(connection);
}

/* --- connections --- */

/* "rdma://NAME:PORT": 0, or -1 and errno. */
static inline int xio_parse(const char *uri, char *name, char *portal)
{
	if (sscanf(uri, "%*[a-z]://%64[^:/]:%64[^/]", name, portal) == 2)
		return 0;
	errno = EINVAL;
	return -1;
}

static inline struct xio_session *xio_new_session(struct xio_context *ctx, struct xio_session_ops *ops, void *context)
{
	struct xio_session *session = calloc(1, sizeof(*session));

	if (session) {
		session->ctx = ctx;
		session->ops = ops;
		session->context = context;
		session->connection.session = session;
		session->connection.end = &session->connection.queue;
		session->connection.watched.ready = xio_connection_ready;
		session->connection.watched.fd = -1;
	}
	return session;
}

static inline struct xio_session *xio_session_create(struct xio_session_params *params)
{
	struct xio_session *session = xio_new_session(NULL, params->ses_ops, params->user_context);

	if (session && xio_parse(params->uri, session->name, session->portal)) {
		free(session);
		return NULL;
	}
	return session;
}

static inline int xio_session_destroy(struct xio_session *session)
{
	free(session);
	return 0;
}

static inline struct xio_connection *xio_connect(struct xio_connection_params *params)
{
	struct xio_session *session = params->session;
	struct ibmsg_connect connect = { .size = sizeof(connect), .flags = IBMSG_NONBLOCK };
	int device = open_device(), fd;

	put_name(connect.session, session->name);
	put_name(connect.portal, session->portal);
	fd = ioctl(device, IBMSG_IOC_CONNECT, &connect);
	close(device);
	if (fd < 0)
		return NULL;
	session->ctx = params->ctx;
	session->connection.context = params->conn_user_context;
	session->connection.watched.fd = fd;
	if (xio_watch(session->ctx, &session->connection.watched))
		die("epoll");
	return &session->connection;
}

/* The other program reads what was sent; CONNECTION_CLOSED follows here when it is queued there. */
static inline int xio_disconnect(struct xio_connection *connection)
{
	return ioctl(connection->watched.fd, IBMSG_IOC_SHUTDOWN, 0);
}

static inline void xio_connection_destroy(struct xio_connection *connection)
{
	close(connection->watched.fd);
	connection->watched.fd = -1;
	xio_tell(connection->session, XIO_SESSION_TEARDOWN_EVENT, 0);
}

/* --- servers --- */

static inline int xio_answer(struct xio_session *session, struct ibmsg_accept accept, const void *data, size_t len)
{
	if (len > sizeof(accept.data)) {
		errno = EMSGSIZE;
		return -1;
	}
	accept.size = sizeof(accept);
	accept.offer = session->offer;
	accept.data_len = (__u32)len;
	if (len)
		memcpy(accept.data, data, len);
	return ioctl(session->server->watched.fd, IBMSG_IOC_ACCEPT, &accept);
}

/* Sessions are not passed on: `portals' must be NULL. */
static inline int xio_accept(struct xio_session *session, const char **portals, size_t count, const void *data,
			     size_t len)
{
	struct xio_connection *connection = &session->connection;

	if (portals || count) {
		errno = EOPNOTSUPP;
		return -1;
	}
	connection->watched.fd = xio_answer(session, (struct ibmsg_accept){ .flags = IBMSG_NONBLOCK }, data, len);
	if (connection->watched.fd < 0)
		return -1;
	connection->is_established = 1;
	xio_tell(session, XIO_SESSION_NEW_CONNECTION_EVENT, 0);
	return xio_watch(session->ctx, &connection->watched);
}

/* The session ends with the callback. */
static inline int xio_reject(struct xio_session *session, int reason, const void *data, size_t len)
{
	return xio_answer(session, (struct ibmsg_accept){ .flags = IBMSG_REJECT, .reason = (__u32)reason },
			  data, len);
}

static inline void xio_server_ready(struct xio_watched *watched)
{
	struct xio_server *server = (struct xio_server *)watched;
	struct {
		struct ibmsg_msg msg;
		struct ibmsg_offer offer;
		char data[IBMSG_MAX_DATA];
	} buffer;

	while (read(watched->fd, &buffer, sizeof(buffer)) > 0) {
		struct xio_session *session = xio_new_session(server->ctx, server->ops, server->context);
		struct xio_new_session_req req = {
			.private_data = (char *)&buffer.offer + buffer.offer.head,
			.private_data_len = buffer.offer.data_len,
		};

		if (!session)
			die("session");
		session->server = server;
		session->offer = buffer.msg.id;
		/* Which accepts or rejects.  The client may have gone before. */
		server->ops->on_new_session(session, &req, server->context);
		if (session->connection.watched.fd < 0)
			free(session);
	}
	if (errno != EAGAIN)
		die("portal");
}

static inline struct xio_server *xio_bind(struct xio_context *ctx, struct xio_session_ops *ops, const char *uri,
					  uint16_t *src_port, uint32_t flags, void *context)
{
	struct xio_server *server = calloc(1, sizeof(*server));
	char host[IBMSG_MAX_NAME + 1], portal[IBMSG_MAX_NAME + 1];

	(void)src_port;
	(void)flags;
	if (!server || xio_parse(uri, host, portal)) {
		free(server);
		return NULL;
	}
	server->ctx = ctx;
	server->ops = ops;
	server->context = context;
	server->watched.ready = xio_server_ready;
	server->watched.fd = bind_portal((struct ibmsg_bind){ .flags = IBMSG_NONBLOCK }, portal);
	if (xio_watch(ctx, &server->watched))
		die("epoll");
	return server;
}

static inline int xio_unbind(struct xio_server *server)
{
	close(server->watched.fd);
	free(server);
	return 0;
}

#endif
