// SPDX-License-Identifier: GPL-2.0
/*
 * A call that waits for its answer, by an ioctl: `call serve PORTAL` answers each request with its content in
 * capitals, `call ask PORTAL TEXT` sends one and prints the answer.
 */
#define _POSIX_C_SOURCE 200809L
#include <ctype.h>
#include <stdint.h>

#include "common.h"

/* Until the channel ends: 0, or -1 and errno. */
static int answer_all(int channel)
{
	static __u64 buffer[2 * (sizeof(struct ibmsg_msg) + IBMSG_MAX_MESSAGE) / sizeof(__u64)];
	struct reader reader = { .bytes = (char *)buffer, .size = sizeof(buffer) };
	struct ibmsg_msg *msg;

	while ((msg = next_message(channel, &reader))) {
		char *content = content_of(msg);

		if (msg->kind == IBMSG_REQUEST) {
			struct ibmsg_msg reply = { .kind = IBMSG_REPLY, .len = msg->len, .id = msg->id };

			for (size_t i = 0; i < msg->len; i++)
				content[i] = (char)toupper((unsigned char)content[i]);
			/* The other program may have gone: its end follows. */
			if (send_message(channel, reply, content) && errno != EPIPE)
				return -1;
		}
	}
	return errno ? -1 : 0;
}

static void serve(const char *name)
{
	int portal = bind_portal((struct ibmsg_bind){ 0 }, name);

	for (;;) {
		int channel = accept_channel(portal, 0);

		if (answer_all(channel))
			perror("channel");
		close(channel);
	}
}

static int ask(const char *name, const char *text)
{
	static char reply[IBMSG_MAX_MESSAGE];
	struct ibmsg_call call = {
		.size = sizeof(call), .timeout_ms = 10000,
		.request = (__u64)(uintptr_t)text, .request_len = (__u32)strlen(text),
		.reply = (__u64)(uintptr_t)reply, .reply_len = sizeof(reply),
	};

	/* ECANCELED, ECONNRESET, ETIMEDOUT and ECONNABORTED say what has become of the request. */
	if (ioctl(connect_channel("local", name), IBMSG_IOC_CALL, &call))
		die(name);
	if (call.status) {
		fprintf(stderr, "%s: %s\n", name, strerror(call.status));
		return 1;
	}
	printf("%.*s\n", (int)call.reply_len, reply);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "serve"))
		serve(argv[2]);
	if (argc == 4 && !strcmp(argv[1], "ask") && strlen(argv[3]) <= IBMSG_MAX_MESSAGE)
		return ask(argv[2], argv[3]);
	fprintf(stderr, "usage: %s serve PORTAL | ask PORTAL TEXT\n", argv[0]);
	return 2;
}
