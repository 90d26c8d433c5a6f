// SPDX-License-Identifier: GPL-2.0
/*
 * The loads: a client that keeps some messages in flight on each of its channels, and a server that answers those
 * that want an answer.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "harness.h"

/* What one thread sends. */
struct client {
	const struct engine *engine;
	struct end *end;
	unsigned int channels;
	unsigned int depth;
	uint64_t count;
	uint64_t sent;
	uint64_t answers;
	/* The number of the first message; those before it were for warming up. */
	uint64_t first;
	/* Of each message, whether its answer is still to come. */
	bool *waits;
};

static void send_next(struct client *client, unsigned int channel)
{
	const struct options *options = client->end->options;
	uint64_t at = client->sent++;
	bool wants_answer = options->answered || at == client->count - 1;

	fill(client->engine->room(client->end, channel), client->first + at, wants_answer, options->bytes);
	client->waits[at] = wants_answer;
	client->engine->send(client->end, channel, options->kind, 0, options->bytes);
}

static void take_answer(struct end *end, const struct arrival *arrival)
{
	struct client *client = end->context;
	const struct options *options = end->options;
	bool wants_answer;
	uint64_t number = check(arrival->content, arrival->length, &wants_answer);

	if (number < client->first || number - client->first >= client->sent || !client->waits[number - client->first])
		fail("an answer to message %llu, which waits for none", (unsigned long long)number);
	if (arrival->length != options->bytes || arrival->kind != (options->kind == REQUEST ? REPLY : options->kind))
		fail("an answer of another kind or length");
	client->waits[number - client->first] = false;
	client->answers++;
	if (options->answered && client->sent < client->count)
		send_next(client, arrival->channel);
}

/* Sends `count' messages, and waits until they are answered, or the last one is. */
static void exchange(struct client *client, uint64_t count)
{
	const struct options *options = client->end->options;

	client->first += client->sent;
	client->count = count;
	client->sent = 0;
	client->answers = 0;
	if (!options->answered) {
		/* As fast as the transport takes them. */
		while (client->sent < count)
			send_next(client, (unsigned int)(client->sent % client->channels));
		while (!client->answers && client->engine->wait(client->end))
			;
		if (!client->answers)
			fail("the channel is closed");
		return;
	}
	for (unsigned int depth = 0; depth < client->depth; depth++)
		for (unsigned int channel = 0; channel < client->channels && client->sent < count; channel++)
			send_next(client, channel);
	while (client->answers < count)
		if (!client->engine->wait(client->end))
			fail("the channel is closed");
}

static void prepare(struct client *client, const struct engine *engine, struct end *end)
{
	client->engine = engine;
	client->end = end;
	end->context = client;
	end->arrived = take_answer;
	client->waits = allocate(end->options->count > WARM_UP ? end->options->count : WARM_UP);
}

/* Threads of a client whose requests block. */
struct worker {
	pthread_t thread;
	struct client client;
	struct options options;
	pthread_barrier_t *barrier;
};

static void *work(void *of)
{
	struct worker *worker = of;

	exchange(&worker->client, WARM_UP);
	pthread_barrier_wait(worker->barrier);
	exchange(&worker->client, worker->options.count);
	return NULL;
}

static uint64_t run_threads(const struct engine *engine, struct end *end)
{
	const struct options *options = end->options;
	unsigned int number = options->depth * options->channels;
	struct worker *workers = allocate(number * sizeof(*workers));
	pthread_barrier_t barrier;
	uint64_t began;

	pthread_barrier_init(&barrier, NULL, number + 1);
	for (unsigned int i = 0; i < number; i++) {
		struct worker *worker = &workers[i];
		struct end *own = engine->share(end, i % options->channels);

		worker->options = *options;
		worker->options.count = options->count / number;
		own->options = &worker->options;
		prepare(&worker->client, engine, own);
		worker->client.channels = 1;
		worker->client.depth = 1;
		worker->barrier = &barrier;
		if (pthread_create(&worker->thread, NULL, work, worker))
			fail("no thread");
	}
	pthread_barrier_wait(&barrier);
	began = now_ns();
	for (unsigned int i = 0; i < number; i++)
		pthread_join(workers[i].thread, NULL);
	return now_ns() - began;
}

/* Opens channels, and closes each one. */
static uint64_t open_many(const struct transport *transport, const struct options *options, uint64_t count)
{
	uint64_t began = now_ns();

	for (uint64_t i = 0; i < count; i++)
		close(transport->connect(options, 0));
	return now_ns() - began;
}

static void accept_many(const struct transport *transport, const struct options *options, int listener)
{
	for (uint64_t i = 0; i < WARM_UP + options->count; i++)
		close(transport->accept(options, listener, 0));
}

static uint64_t send_many(const struct backend *backend, const struct options *options)
{
	const struct engine *engine = backend->engine;
	struct client client = { .channels = options->channels, .depth = options->depth };
	int fds[MAX_CHANNELS];
	struct end *end;
	uint64_t ns;

	for (unsigned int channel = 0; channel < options->channels; channel++)
		fds[channel] = backend->transport->connect(options, channel);
	end = engine->open(backend->transport, options, fds, false);
	if (engine->share && options->depth * options->channels > 1) {
		ns = run_threads(engine, end);
	} else {
		prepare(&client, engine, end);
		exchange(&client, WARM_UP);
		ns = now_ns();
		exchange(&client, options->count);
		ns = now_ns() - ns;
	}
	engine->close(end);
	return ns;
}

void run_client(const struct backend *backend, const struct options *options)
{
	uint64_t ns;

	if (!options->count)
		fail("how many messages? --count");
	if (backend->own) {
		ns = backend->own->client(backend->transport, options);
	} else if (options->connects) {
		open_many(backend->transport, options, WARM_UP);
		ns = open_many(backend->transport, options, options->count);
	} else {
		ns = send_many(backend, options);
	}
	printf("{\"messages\": %llu, \"ns\": %llu}\n", (unsigned long long)options->count, (unsigned long long)ns);
}

struct server {
	const struct engine *engine;
	/* The number of the next message on each channel. */
	uint64_t next[MAX_CHANNELS];
};

static void serve(struct end *end, const struct arrival *arrival)
{
	struct server *server = end->context;
	const struct engine *engine = server->engine;
	bool wants_answer;
	uint64_t number = check(arrival->content, arrival->length, &wants_answer);

	/* Requests may be those of several threads, which each have numbers of their own. */
	if (arrival->kind == MESSAGE && number < server->next[arrival->channel])
		fail("message %llu is doubled or late", (unsigned long long)number);
	server->next[arrival->channel] = number + 1;
	if (!wants_answer)
		return;
	fill(engine->room(end, arrival->channel), number, false, arrival->length);
	engine->send(end, arrival->channel, arrival->kind == REQUEST ? REPLY : MESSAGE, arrival->id, arrival->length);
}

void run_server(const struct backend *backend, const struct options *options)
{
	const struct engine *engine = backend->server ? backend->server : backend->engine;
	int fds[MAX_CHANNELS], listener = backend->transport->listen(options);
	struct server server = { .engine = engine };
	struct end *end;

	ready();
	if (backend->own) {
		backend->own->server(backend->transport, options, listener);
		return;
	}
	if (options->connects) {
		accept_many(backend->transport, options, listener);
		return;
	}
	for (unsigned int channel = 0; channel < options->channels; channel++)
		fds[channel] = backend->transport->accept(options, listener, channel);
	end = engine->open(backend->transport, options, fds, true);
	end->context = &server;
	end->arrived = serve;
	while (engine->wait(end))
		;
}
