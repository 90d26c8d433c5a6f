// SPDX-License-Identifier: GPL-2.0
/*
 * Messages by io_uring: one system call submits what is to be sent and read, and waits for a completion.
 */
#include <liburing.h>
#include <string.h>
#include <unistd.h>

#include "files.h"
#include "ibmsg.h"

/* What a completion is of; the number of the slot or of the channel is below. */
enum operation { SEND = 1, READ = 2, CALL = 3 };
#define OPERATION(data)	((enum operation)((data) >> 32))
#define DATA(operation, number)	(((uint64_t)(operation) << 32) | (number))

/* What is being sent, and must stay until it is. */
struct slot {
	char *memory;
	struct ibmsg_call call;
	char *reply;
	unsigned int channel;
};

struct ring {
	struct end end;
	struct io_uring ring;
	const struct framing *framing;
	bool calls;
	/*
	 * A message that is answered has been sent by the time of its answer, and each channel has a slot more than
	 * messages in flight: such messages have no completions. Others come from the list of free slots. A ring may
	 * overtake a write that waits for room, so these are linked, and all are sent before the next ones.
	 */
	bool silent;
	struct slot *slots;
	unsigned int *free;
	unsigned int free_count;
	unsigned int next[MAX_CHANNELS];
	/* The slot that room() has given out. */
	unsigned int current;
	int fds[MAX_CHANNELS];
	unsigned int open;
	char *read[MAX_CHANNELS];
	size_t length[MAX_CHANNELS];
};

static struct io_uring_sqe *prepared(struct ring *ring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->ring);

	if (!sqe) {
		if (io_uring_submit(&ring->ring) < 0)
			fail("the ring takes nothing");
		sqe = io_uring_get_sqe(&ring->ring);
	}
	return sqe;
}

/* `channel' is the number of its registered file. */
static void submit(struct io_uring_sqe *sqe, uint64_t data, unsigned int flags)
{
	sqe->flags |= IOSQE_FIXED_FILE | flags;
	io_uring_sqe_set_data64(sqe, data);
}

static void arm(struct ring *ring, unsigned int channel)
{
	struct io_uring_sqe *sqe = prepared(ring);
	char *to = ring->read[channel] + ring->length[channel];
	size_t room = READ_ROOM - ring->length[channel];

	if (ring->framing->is_socket)
		io_uring_prep_recv(sqe, (int)channel, to, room, 0);
	else
		io_uring_prep_read(sqe, (int)channel, to, (unsigned int)room, (uint64_t)-1);
	submit(sqe, DATA(READ, channel), 0);
}

static void make_slots(struct ring *ring)
{
	const struct options *options = ring->end.options;
	unsigned int number = options->channels * (options->depth + 1);
	size_t size = ring->framing->header + options->bytes;

	ring->slots = allocate(number * sizeof(*ring->slots));
	ring->free = allocate(number * sizeof(*ring->free));
	for (unsigned int i = 0; i < number; i++) {
		ring->slots[i].memory = allocate(size);
		if (ring->calls)
			ring->slots[i].reply = allocate(options->bytes);
		ring->free[i] = i;
	}
	ring->free_count = options->channels * options->depth;
}

static struct end *open_ring(const struct transport *transport, const struct options *options, const int *fds,
			     bool is_server)
{
	struct ring *ring = allocate(sizeof(*ring));
	unsigned int entries = 4 * MAX_CHANNELS;

	while (entries < 2 * options->channels * (options->depth + 1))
		entries *= 2;
	ring->end.options = options;
	ring->framing = transport->framing;
	ring->open = options->channels;
	ring->calls = ring->framing->has_calls && options->kind == REQUEST && !is_server;
	ring->silent = is_server || (options->answered && !ring->calls);
	memcpy(ring->fds, fds, options->channels * sizeof(*fds));
	if (io_uring_queue_init(entries, &ring->ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN) ||
	    io_uring_register_files(&ring->ring, fds, options->channels))
		fail("no ring");
	make_slots(ring);
	for (unsigned int channel = 0; channel < options->channels && !ring->calls; channel++) {
		ring->read[channel] = allocate(READ_ROOM);
		arm(ring, channel);
	}
	return &ring->end;
}

static bool wait_for_ring(struct end *end);

static void wait_for_all(struct ring *ring)
{
	while (ring->free_count < ring->end.options->channels * ring->end.options->depth)
		if (!wait_for_ring(&ring->end))
			fail("the channel is closed");
}

static void *room_of_ring(struct end *end, unsigned int channel)
{
	struct ring *ring = (struct ring *)end;
	unsigned int depth = end->options->depth;

	if (ring->silent) {
		ring->current = channel * (depth + 1) + ring->next[channel]++ % (depth + 1);
	} else {
		if (!ring->free_count)
			wait_for_all(ring);
		ring->current = ring->free[--ring->free_count];
	}
	return ring->slots[ring->current].memory + ring->framing->header;
}

static void send_call(struct ring *ring, unsigned int channel, size_t length)
{
	struct slot *slot = &ring->slots[ring->current];
	struct io_uring_sqe *sqe = prepared(ring);

	slot->channel = channel;
	slot->call = (struct ibmsg_call) {
		.size = sizeof(slot->call),
		.request = (uintptr_t)slot->memory + ring->framing->header,
		.request_len = (uint32_t)length,
		.reply = (uintptr_t)slot->reply,
		.reply_len = ring->end.options->bytes,
	};
	io_uring_prep_rw(IORING_OP_URING_CMD, sqe, (int)channel, &slot->call, 0, 0);
	sqe->cmd_op = IBMSG_IOC_CALL;
	submit(sqe, DATA(CALL, ring->current), 0);
}

static void send_by_ring(struct end *end, unsigned int channel, enum kind kind, uint64_t id, size_t length)
{
	struct ring *ring = (struct ring *)end;
	char *memory = ring->slots[ring->current].memory;
	size_t size = ring->framing->header + length;
	struct io_uring_sqe *sqe;

	if (ring->calls) {
		send_call(ring, channel, length);
		return;
	}
	ring->framing->put(memory, kind, id, length);
	sqe = prepared(ring);
	if (ring->framing->is_socket)
		io_uring_prep_send(sqe, (int)channel, memory, size, MSG_WAITALL | MSG_NOSIGNAL);
	else
		io_uring_prep_write(sqe, (int)channel, memory, (unsigned int)size, (uint64_t)-1);
	submit(sqe, DATA(SEND, ring->current), ring->silent ? IOSQE_CQE_SKIP_SUCCESS : IOSQE_IO_LINK);
}

static void has_read(struct ring *ring, unsigned int channel, int result)
{
	char *data = ring->read[channel];
	size_t *length = &ring->length[channel], used;
	bool is_closed = !result;

	if (result < 0)
		fail("read: %s", strerror(-result));
	*length += (size_t)result;
	used = ring->framing->take(&ring->end, channel, data, *length, &is_closed);
	*length -= used;
	if (*length)
		memmove(data, data + used, *length);
	if (is_closed)
		ring->open--;
	else
		arm(ring, channel);
}

static void has_called(struct ring *ring, unsigned int number)
{
	struct slot *slot = &ring->slots[number];
	struct arrival arrival = {
		.channel = slot->channel, .kind = REPLY, .content = slot->reply, .length = slot->call.reply_len,
	};

	ring->free[ring->free_count++] = number;
	/* The next call may use this slot: its content was checked by then. */
	ring->end.arrived(&ring->end, &arrival);
}

static void completed(struct ring *ring, uint64_t data, int result)
{
	unsigned int number = (unsigned int)data;

	switch (OPERATION(data)) {
	case READ:
		has_read(ring, number, result);
		break;
	case CALL:
		if (result)
			fail("call: %s", strerror(-result));
		has_called(ring, number);
		break;
	case SEND:
		if (result < 0)
			fail("write: %s", strerror(-result));
		if (!ring->silent)
			ring->free[ring->free_count++] = number;
		break;
	}
}

static bool wait_for_ring(struct end *end)
{
	struct ring *ring = (struct ring *)end;
	struct io_uring_cqe *cqe;
	unsigned int head, seen = 0;

	if (io_uring_submit_and_wait(&ring->ring, 1) < 0)
		fail("the ring waits for nothing");
	io_uring_for_each_cqe(&ring->ring, head, cqe) {
		seen++;
		completed(ring, cqe->user_data, cqe->res);
	}
	io_uring_cq_advance(&ring->ring, seen);
	return ring->open;
}

static void close_ring(struct end *end)
{
	struct ring *ring = (struct ring *)end;

	io_uring_queue_exit(&ring->ring);
	for (unsigned int channel = 0; channel < end->options->channels; channel++)
		close(ring->fds[channel]);
}

const struct engine ring_engine = {
	.open = open_ring, .room = room_of_ring, .send = send_by_ring, .wait = wait_for_ring, .close = close_ring,
};
