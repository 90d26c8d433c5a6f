// SPDX-License-Identifier: GPL-2.0
/*
 * Sends messages over one transport or another, and counts the time: see explain(), and Documentation/performance.md.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "harness.h"

static const struct backend backends[] = {
	{ "ibmsg", &ibmsg_transport, &files_engine, NULL, NULL },
	{ "ibmsg-more", &more_transport, &files_engine, NULL, NULL },
	{ "ibmsg-polling", &polling_transport, &files_engine, NULL, NULL },
	{ "ibmsg-call", &ibmsg_transport, &call_engine, &files_engine, NULL },
	{ "ibmsg-ring", &ibmsg_transport, &ring_engine, NULL, NULL },
	{ "ibmsg-memory", &ibmsg_transport, NULL, NULL, &memory_load },
	{ "ibmsg-publish", &ibmsg_transport, NULL, NULL, &publish_load },
	{ "tcp", &tcp_transport, &files_engine, NULL, NULL },
	{ "tcp-ring", &tcp_transport, &ring_engine, NULL, NULL },
	{ "smc", &smc_transport, &files_engine, NULL, NULL },
	{ "rds", &rds_transport, &files_engine, NULL, NULL },
	{ "rsockets", &rsockets_transport, &files_engine, NULL, NULL },
	{ "zeromq", &zeromq_transport, &files_engine, NULL, NULL },
	{ "nng", &nng_transport, &files_engine, NULL, NULL },
};

jmp_buf *when_broken;

void fail(const char *what, ...)
{
	va_list arguments;

	va_start(arguments, what);
	vfprintf(stderr, what, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

void die(const char *what)
{
	if (when_broken)
		longjmp(*when_broken, errno ? errno : EIO);
	fail("%s: %s", what, strerror(errno));
}

/* Full of zeros, and on pages that nothing else is on. */
void *allocate(size_t size)
{
	size_t whole = (size + 4095) & ~4095ul;
	void *memory = aligned_alloc(4096, whole);

	if (!memory)
		fail("no memory");
	return memset(memory, 0, whole);
}

void ready(void)
{
	puts("ready");
	fflush(stdout);
}

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static _Noreturn void explain(void)
{
	fputs("usage: messages server|client|truth-server|truth-client BACKEND [OPTION...] ADDRESS\n"
	      "  --channels N  --depth N  --bytes N  --count N\n"
	      "  --load round|calls|oneway   messages that are answered, requests, messages that are not\n"
	      "  --load connects             nothing but channels, one after the other\n"
	      "  --load get|put              memory of the server, --depth at a time\n"
	      "  --load publish              to --channels subscribers, the next when all have one, or with --depth 2 as fast as they read\n"
	      "  --peer ADDRESS              the client's, for rds\n"
	      "  --port N                    the server's, of sockets\n"
	      "back ends:", stderr);
	for (size_t i = 0; i < sizeof(backends) / sizeof(*backends); i++)
		fprintf(stderr, " %s", backends[i].name);
	fputc('\n', stderr);
	exit(2);
}

static const struct backend *find_backend(const char *name)
{
	for (size_t i = 0; i < sizeof(backends) / sizeof(*backends); i++)
		if (!strcmp(backends[i].name, name))
			return &backends[i];
	explain();
}

static uint64_t number(const char *text, uint64_t least, uint64_t most)
{
	char *rest;
	uint64_t value = strtoull(text, &rest, 10);

	if (rest == text || *rest || value < least || value > most)
		explain();
	return value;
}

static void set_load(struct options *options, const char *name)
{
	options->kind = strcmp(name, "calls") ? MESSAGE : REQUEST;
	options->answered = strcmp(name, "oneway");
	options->connects = !strcmp(name, "connects");
	options->gets = !strcmp(name, "get");
	options->puts = !strcmp(name, "put");
	options->publishes = !strcmp(name, "publish");
	if (options->kind == MESSAGE && options->answered && !options->connects && !options->gets && !options->puts &&
	    !options->publishes && strcmp(name, "round"))
		explain();
}

static void parse(struct options *options, int argc, char **argv)
{
	static const struct option names[] = {
		{ "channels", required_argument, NULL, 'c' },
		{ "depth", required_argument, NULL, 'd' },
		{ "bytes", required_argument, NULL, 'b' },
		{ "count", required_argument, NULL, 'n' },
		{ "load", required_argument, NULL, 'l' },
		{ "peer", required_argument, NULL, 'p' },
		{ "port", required_argument, NULL, 'o' },
		{},
	};
	int found;

	while ((found = getopt_long(argc, argv, "", names, NULL)) != -1) {
		switch (found) {
		case 'c':
			options->channels = (unsigned int)number(optarg, 1, MAX_CHANNELS);
			break;
		case 'd':
			options->depth = (unsigned int)number(optarg, 1, MAX_DEPTH);
			break;
		case 'b':
			options->bytes = (unsigned int)number(optarg, sizeof(uint64_t), MAX_COPY);
			break;
		case 'n':
			options->count = number(optarg, 1, 1ull << 32);
			break;
		case 'l':
			set_load(options, optarg);
			break;
		case 'p':
			options->peer = optarg;
			break;
		case 'o':
			options->port = (unsigned int)number(optarg, 1, UINT16_MAX - MAX_CHANNELS);
			break;
		default:
			explain();
		}
	}
	if (optind != argc - 1 || (options->bytes > MAX_BYTES && !options->gets && !options->puts))
		explain();
	options->address = argv[optind];
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(const struct backend *backend, const struct options *options);
	} roles[] = {
		{ "server", run_server }, { "client", run_client },
		{ "truth-server", truth_server }, { "truth-client", truth_client },
	};
	struct options options = {
		.channels = 1, .depth = 1, .bytes = 64, .port = 7700, .kind = MESSAGE, .answered = true,
	};
	const struct backend *backend;

	if (argc < 3)
		explain();
	backend = find_backend(argv[2]);
	parse(&options, argc - 2, argv + 2);
	if ((options.gets || options.puts) != (backend->own == &memory_load) ||
	    options.publishes != (backend->own == &publish_load))
		explain();
	signal(SIGPIPE, SIG_IGN);
	content_init();
	for (size_t i = 0; i < sizeof(roles) / sizeof(*roles); i++) {
		if (!strcmp(argv[1], roles[i].name)) {
			roles[i].run(backend, &options);
			return 0;
		}
	}
	explain();
}
