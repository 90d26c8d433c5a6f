// SPDX-License-Identifier: GPL-2.0
/*
 * The outcomes of numbered requests while the network is cut. The client keeps some in flight. When its transport
 * fails, whatever is unanswered is in doubt; it connects again, and goes on with the next number: it sends none twice.
 * The server notes what arrives. SIGTERM ends both: they then print what they know.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "harness.h"

#define NUMBERS		(1ull << 27)
/* Where the client's number of answers can be read meanwhile. */
#define PROGRESS	"/tmp/messages-answers"
/* Seconds for what is in flight when the client is to end. */
#define LAST_WAIT	120
/* Microseconds before another try to connect. */
#define AGAIN		100000

typedef _Atomic uint8_t bits;

static bool put_bit(bits *set, uint64_t number)
{
	uint8_t mask = (uint8_t)(1u << number % 8);

	if (number >= NUMBERS)
		fail("too many messages");
	return atomic_fetch_or(&set[number / 8], mask) & mask;
}

static bool has_bit(const bits *set, uint64_t number)
{
	return set[number / 8] >> number % 8 & 1;
}

/* Prints the ranges of those numbers below `end' that are in the set, or not. */
static void print_ranges(const char *name, const bits *set, uint64_t end, bool are_in)
{
	const char *comma = "";

	printf("\"%s\": [", name);
	for (uint64_t from = 0; from < end; from++) {
		uint64_t to = from;

		while (to < end && has_bit(set, to) == are_in)
			to++;
		if (to == from)
			continue;
		printf("%s[%llu, %llu]", comma, (unsigned long long)from, (unsigned long long)to - 1);
		comma = ", ";
		from = to;
	}
	printf("]");
}

static bits *new_set(void)
{
	bits *set = mmap(NULL, NUMBERS / 8, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (set == MAP_FAILED)
		die("mmap");
	return set;
}

static atomic_int is_to_end, is_over;
/* Where a process goes on when its transport has failed. */
static jmp_buf broken;

static void on_term(int signal)
{
	(void)signal;
	is_to_end = 1;
	alarm(LAST_WAIT);
}

static void on_alarm(int signal)
{
	(void)signal;
	is_over = 1;
}

static void on_signal(int signal, void (*handler)(int), int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };

	sigaction(signal, &action, NULL);
}

static uint64_t *new_progress(void)
{
	int fd = open(PROGRESS, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	uint64_t *answers;

	if (fd < 0 || ftruncate(fd, sizeof(*answers)))
		die(PROGRESS);
	answers = mmap(NULL, sizeof(*answers), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (answers == MAP_FAILED)
		die(PROGRESS);
	close(fd);
	return answers;
}

struct client {
	const struct engine *engine;
	const struct options *options;
	/* Those that have been answered, and those that were in flight when the transport failed. */
	bits *answered;
	bits *in_doubt;
	uint64_t next;
	/* The first one of this connection. */
	uint64_t first;
	unsigned int in_flight;
	unsigned int errors;
	int last_error;
	uint64_t *answers;
	uint64_t last_answer;
	uint64_t longest;
};

static void request(struct client *client, struct end *end)
{
	fill(client->engine->room(end, 0), client->next++, true, client->options->bytes);
	client->in_flight++;
	client->engine->send(end, 0, REQUEST, 0, client->options->bytes);
}

static void answered(struct end *end, const struct arrival *arrival)
{
	struct client *client = end->context;
	bool wants_answer;
	uint64_t number = check(arrival->content, arrival->length, &wants_answer), now = now_ns();

	if (number < client->first || number >= client->next)
		fail("an answer to message %llu, which is not of this connection", (unsigned long long)number);
	if (put_bit(client->answered, number))
		fail("a second answer to message %llu", (unsigned long long)number);
	client->in_flight--;
	++*client->answers;
	if (client->last_answer && now - client->last_answer > client->longest)
		client->longest = now - client->last_answer;
	client->last_answer = now;
	if (client->options->count && client->next >= client->options->count)
		is_to_end = 1;
	if (!is_to_end)
		request(client, end);
}

static void converse(struct client *client, const struct transport *transport, int *fd)
{
	struct end *end;

	*fd = transport->connect(client->options, 0);
	end = client->engine->open(transport, client->options, fd, false);
	end->context = client;
	end->arrived = answered;
	for (unsigned int i = 0; i < client->options->depth && !is_to_end; i++)
		request(client, end);
	while (client->in_flight)
		if (!client->engine->wait(end)) {
			errno = ECONNRESET;
			die("the connection has ended");
		}
	client->engine->close(end);
}

static void has_failed(struct client *client, int error)
{
	client->in_flight = 0;
	if (is_over)
		return;
	client->errors++;
	client->last_error = error;
	for (uint64_t number = client->first; number < client->next; number++)
		if (!has_bit(client->answered, number))
			put_bit(client->in_doubt, number);
}

void truth_client(const struct backend *backend, const struct options *options)
{
	static struct client client;
	static int fd;
	int error;

	client = (struct client) { .engine = backend->engine, .options = options };
	client.answered = new_set();
	client.in_doubt = new_set();
	client.answers = new_progress();
	on_signal(SIGTERM, on_term, SA_RESTART);
	on_signal(SIGALRM, on_alarm, 0);
	while (!is_to_end) {
		fd = -1;
		client.first = client.next;
		when_broken = &broken;
		error = setjmp(broken);
		if (!error) {
			converse(&client, backend->transport, &fd);
			continue;
		}
		has_failed(&client, error);
		if (fd >= 0)
			close(fd);
		usleep(AGAIN);
	}
	printf("{\"sent\": %llu, \"answers\": %llu, \"errors\": %u, \"error\": \"%s\", \"longest_ms\": %llu, ",
	       (unsigned long long)client.next, (unsigned long long)*client.answers, client.errors,
	       client.errors ? strerror(client.last_error) : "", (unsigned long long)client.longest / 1000000);
	print_ranges("unanswered", client.answered, client.next, false);
	printf(", ");
	print_ranges("in_doubt", client.in_doubt, client.next, true);
	printf("}\n");
}

/* Of all connections, each of which has a process. */
struct notes {
	_Atomic uint64_t received;
	_Atomic uint64_t doubled;
	_Atomic uint64_t out_of_order;
	/* On a connection that the client has given up: a message of a later one was there before. */
	_Atomic uint64_t after_error;
	_Atomic uint64_t highest;
	_Atomic uint64_t connection;
};

static struct {
	const struct engine *engine;
	struct notes *notes;
	bits *seen;
	uint64_t connection;
} server;

static void note(struct end *end, const struct arrival *arrival)
{
	struct notes *notes = server.notes;
	bool wants_answer;
	uint64_t number = check(arrival->content, arrival->length, &wants_answer);
	uint64_t newest = notes->connection, highest = notes->highest;

	notes->received++;
	if (put_bit(server.seen, number))
		notes->doubled++;
	while (newest < server.connection &&
	       !atomic_compare_exchange_weak(&notes->connection, &newest, server.connection))
		;
	if (newest > server.connection)
		notes->after_error++;
	/* One more than the highest number. */
	while (highest < number + 1 && !atomic_compare_exchange_weak(&notes->highest, &highest, number + 1))
		;
	if (highest > number + 1)
		notes->out_of_order++;
	fill(server.engine->room(end, 0), number, false, arrival->length);
	server.engine->send(end, 0, REPLY, arrival->id, arrival->length);
}

static void serve(const struct transport *transport, const struct options *options, int fd, bool is_all)
{
	struct end *end;

	when_broken = &broken;
	if (setjmp(broken) && !is_all)
		return;
	end = server.engine->open(transport, options, &fd, true);
	end->arrived = note;
	while (server.engine->wait(end) || is_all)
		;
}

static void on_end(int signal)
{
	(void)signal;
	is_to_end = 1;
}

static void print_notes(void)
{
	struct notes *notes = server.notes;

	printf("{\"highest\": %llu, \"received\": %llu, \"doubled\": %llu, \"out_of_order\": %llu, \"after_error\": %llu, ",
	       (unsigned long long)notes->highest, (unsigned long long)notes->received,
	       (unsigned long long)notes->doubled,
	       (unsigned long long)notes->out_of_order, (unsigned long long)notes->after_error);
	print_ranges("missing", server.seen, notes->highest, false);
	printf("}\n");
}

/*
 * Of a library, whose threads and devices a process loses when it forks: the one that serves also listens, and takes one
 * connection after the other.
 */
static void serve_by_library(const struct transport *transport, const struct options *options)
{
	int listener = transport->listen(options);

	ready();
	for (;;) {
		int fd = transport->accept(options, listener, 0);

		server.connection++;
		serve(transport, options, fd, false);
	}
}

void truth_server(const struct backend *backend, const struct options *options)
{
	int listener = backend->transport->io ? 0 : backend->transport->listen(options);

	server.engine = backend->server ? backend->server : backend->engine;
	server.seen = new_set();
	server.notes = mmap(NULL, sizeof(*server.notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (server.notes == MAP_FAILED)
		die("mmap");
	on_signal(SIGTERM, on_end, 0);
	on_signal(SIGCHLD, SIG_IGN, 0);
	if (backend->transport->io) {
		if (!fork()) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			serve_by_library(backend->transport, options);
		}
		while (!is_to_end)
			pause();
		print_notes();
		return;
	}
	ready();
	/* One that has given up before it was accepted is no error. */
	setjmp(broken);
	when_broken = &broken;
	while (!is_to_end) {
		int fd = backend->transport->accept(options, listener, 0);

		server.connection++;
		fflush(stdout);
		if (!fork()) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			serve(backend->transport, options, fd, listener < 0);
			_exit(0);
		}
		/* All that come are on the same file. */
		while (listener < 0 && !is_to_end)
			pause();
		close(fd);
	}
	print_notes();
}
