// SPDX-License-Identifier: GPL-2.0
/*
 * Requests in both directions, with nothing but read and write: `hello serve PORTAL NAME` waits for one program,
 * `hello greet SESSION PORTAL NAME` is one.  Each asks the other one for its name, and answers with its own.
 */
#define _POSIX_C_SOURCE 200809L
#include "common.h"

/* Asks for the name of the other program, and answers its request, whichever comes first. */
static void meet(int channel, const char *name)
{
	static const char question[] = "What is your name?";
	static __u64 buffer[(sizeof(struct ibmsg_msg) + IBMSG_MAX_MESSAGE) / sizeof(__u64)];
	struct reader reader = { .bytes = (char *)buffer, .size = sizeof(buffer) };
	struct ibmsg_msg ask = {
		.kind = IBMSG_REQUEST, .len = sizeof(question) - 1, .tag = 1, .timeout_ms = 10000,
	};
	int is_answered = 0, has_answered = 0;

	if (send_message(channel, ask, question))
		die("request");
	while (!is_answered || !has_answered) {
		struct ibmsg_msg reply = { .kind = IBMSG_REPLY, .len = (__u32)strlen(name) };
		struct ibmsg_msg *msg = next_message(channel, &reader);

		if (!msg)
			die("read");
		switch (msg->kind) {
		case IBMSG_REQUEST:
			printf("asked: %.*s\n", (int)msg->len, content_of(msg));
			reply.id = msg->id;
			if (send_message(channel, reply, name))
				die("reply");
			has_answered = 1;
			break;
		case IBMSG_REPLY:
			/* From the kernel: there is no answer, and this is why. */
			if (msg->status) {
				errno = msg->status;
				die("no answer");
			}
			printf("hello, %.*s\n", (int)msg->len, content_of(msg));
			is_answered = 1;
			break;
		default:
			fprintf(stderr, "the other program has closed the channel\n");
			exit(1);
		}
	}
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "serve")) {
		meet(accept_channel(bind_portal((struct ibmsg_bind){ 0 }, argv[2]), 0), argv[3]);
		return 0;
	}
	if (argc == 5 && !strcmp(argv[1], "greet")) {
		meet(connect_channel(argv[2], argv[3]), argv[4]);
		return 0;
	}
	fprintf(stderr, "usage: %s serve PORTAL NAME | greet SESSION PORTAL NAME\n", argv[0]);
	return 2;
}
