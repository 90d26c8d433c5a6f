// SPDX-License-Identifier: GPL-2.0
/*
 * A program in the shape of Accelio's hello_world, on xio_shim.h: `xio_hello server PORTAL' answers requests of one
 * client, `xio_hello client SESSION PORTAL COUNT' has some requests in flight until COUNT are answered.
 */
#define _POSIX_C_SOURCE 200809L
#include "xio_shim.h"

#define QUEUE_DEPTH	32
#define PRINT_COUNTER	1000

/* Both programs have these: a ring of messages that are used again and again. */
struct program {
	struct xio_context *ctx;
	struct xio_connection *connection;
	unsigned long count;
	unsigned long answered;
	unsigned long failed;
	unsigned long next;
	struct xio_msg ring[QUEUE_DEPTH];
};

static void print(const struct xio_msg *msg)
{
	printf("message: %.*s - %.*s\n", (int)msg->in.header.iov_len, (char *)msg->in.header.iov_base,
	       (int)msg->in.data_iov.sglist[0].iov_len, (char *)msg->in.data_iov.sglist[0].iov_base);
}

static void prepare(struct xio_msg *msg, const char *header, const char *data)
{
	msg->out.header = (struct xio_iovec){ .iov_base = (void *)header, .iov_len = strlen(header) };
	msg->out.data_iov.nents = 1;
	msg->out.data_iov.sglist[0] = (struct xio_iovec){ .iov_base = (void *)data, .iov_len = strlen(data) };
}

static int on_session_event(struct xio_session *session, struct xio_session_event_data *data, void *context)
{
	struct program *program = context;

	printf("session event: %s. reason: %s\n", xio_session_event_str(data->event),
	       data->reason ? strerror(data->reason) : "Success");
	switch (data->event) {
	case XIO_SESSION_NEW_CONNECTION_EVENT:
		program->connection = data->conn;
		break;
	case XIO_SESSION_CONNECTION_TEARDOWN_EVENT:
		xio_connection_destroy(data->conn);
		break;
	case XIO_SESSION_TEARDOWN_EVENT:
		xio_session_destroy(session);
		xio_context_stop_loop(program->ctx);
		break;
	default:
		break;
	}
	return 0;
}

/* --- the server --- */

static int on_new_session(struct xio_session *session, struct xio_new_session_req *req, void *context)
{
	(void)req;
	(void)context;
	return xio_accept(session, NULL, 0, NULL, 0);
}

static int on_request(struct xio_session *session, struct xio_msg *request, int last_in_rxq, void *context)
{
	struct program *program = context;
	struct xio_msg *response = &program->ring[program->next++ % QUEUE_DEPTH];

	(void)session;
	(void)last_in_rxq;
	if (program->answered++ % PRINT_COUNTER == 0)
		print(request);
	prepare(response, "hello world header response", "hello world data response");
	response->request = request;
	return xio_send_response(response);
}

static int serve(const char *portal)
{
	static struct program program;
	struct xio_session_ops ops = {
		.on_session_event = on_session_event, .on_new_session = on_new_session, .on_msg = on_request,
	};
	char uri[128];
	struct xio_server *server;

	snprintf(uri, sizeof(uri), "rdma://*:%s", portal);
	xio_init();
	program.ctx = xio_context_create(NULL, 0, -1);
	server = xio_bind(program.ctx, &ops, uri, NULL, 0, &program);
	if (!server)
		die(uri);
	xio_context_run_loop(program.ctx, XIO_INFINITE);
	xio_unbind(server);
	xio_context_destroy(program.ctx);
	xio_shutdown();
	printf("%lu requests\n", program.answered);
	return 0;
}

/* --- the client --- */

static int on_response(struct xio_session *session, struct xio_msg *response, int last_in_rxq, void *context)
{
	struct program *program = context;

	(void)session;
	(void)last_in_rxq;
	if (program->answered++ % PRINT_COUNTER == 0)
		print(response);
	xio_release_response(response);
	if (program->answered == program->count && xio_disconnect(program->connection))
		die("disconnect");
	if (program->next >= program->count)
		return 0;
	program->next++;
	return xio_send_request(program->connection, response);
}

static int on_msg_error(struct xio_session *session, int error, struct xio_msg *msg, void *context)
{
	struct program *program = context;

	(void)session;
	(void)error;
	(void)msg;
	program->failed++;
	return 0;
}

static int ask(const char *session, const char *portal, unsigned long count)
{
	static struct program program;
	struct xio_session_ops ops = {
		.on_session_event = on_session_event, .on_msg = on_response, .on_msg_error = on_msg_error,
	};
	char uri[256];
	struct xio_session_params session_params = {
		.type = XIO_SESSION_CLIENT, .ses_ops = &ops, .user_context = &program, .uri = uri,
	};
	struct xio_connection_params connection_params = { 0 };

	snprintf(uri, sizeof(uri), "rdma://%s:%s", session, portal);
	program.count = count;
	xio_init();
	program.ctx = xio_context_create(NULL, 0, -1);
	connection_params.ctx = program.ctx;
	connection_params.session = xio_session_create(&session_params);
	if (!connection_params.session)
		die(uri);
	program.connection = xio_connect(&connection_params);
	if (!program.connection)
		die(uri);
	/* They wait until the connection is established. */
	for (; program.next < QUEUE_DEPTH && program.next < count; program.next++) {
		struct xio_msg *msg = &program.ring[program.next];

		prepare(msg, "hello world header request", "hello world data request");
		if (xio_send_request(program.connection, msg))
			die("request");
	}
	xio_context_run_loop(program.ctx, XIO_INFINITE);
	xio_context_destroy(program.ctx);
	xio_shutdown();
	printf("%lu responses, %lu errors\n", program.answered, program.failed);
	return program.answered != count;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "server"))
		return serve(argv[2]);
	if (argc == 5 && !strcmp(argv[1], "client"))
		return ask(argv[2], argv[3], strtoul(argv[4], NULL, 10));
	fprintf(stderr, "usage: %s server PORTAL | client SESSION PORTAL COUNT\n", argv[0]);
	return 2;
}
