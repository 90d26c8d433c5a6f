// SPDX-License-Identifier: GPL-2.0
/*
 * Messages by read and write. A single channel is read until there is something; several wait in epoll.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "files.h"

struct files {
	struct end end;
	const struct transport *transport;
	const struct framing *framing;
	int fds[MAX_CHANNELS];
	unsigned int open;
	int epoll;
	/* What has been read of each channel and not taken yet. */
	char *read[MAX_CHANNELS];
	size_t length[MAX_CHANNELS];
	char *room;
};

static void watch(struct files *files)
{
	files->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (files->epoll < 0)
		die("epoll_create1");
	for (unsigned int channel = 0; channel < files->open; channel++) {
		struct epoll_event event = { .events = EPOLLIN, .data.u32 = channel };

		if (epoll_ctl(files->epoll, EPOLL_CTL_ADD, files->fds[channel], &event))
			die("epoll_ctl");
	}
}

static struct end *open_files(const struct transport *transport, const struct options *options, const int *fds,
			      bool is_server)
{
	struct files *files = allocate(sizeof(*files));

	(void)is_server;
	files->end.options = options;
	files->transport = transport;
	files->framing = transport->framing;
	files->open = options->channels;
	memcpy(files->fds, fds, options->channels * sizeof(*fds));
	for (unsigned int channel = 0; channel < options->channels; channel++)
		files->read[channel] = allocate(READ_ROOM);
	files->room = allocate(files->framing->header + MAX_BYTES);
	if (transport->io && options->channels > 1)
		fail("this transport has one channel only");
	if (options->channels > 1)
		watch(files);
	return &files->end;
}

int files_fd(struct end *end, unsigned int channel)
{
	return ((struct files *)end)->fds[channel];
}

static void *room_of_files(struct end *end, unsigned int channel)
{
	struct files *files = (struct files *)end;

	(void)channel;
	return files->room + files->framing->header;
}

/* SMC takes a part if there is no room for all. RDS takes no flags, and write() has some for it. */
static void send_all(const struct io *io, int fd, const char *data, size_t size)
{
	while (size) {
		ssize_t sent = io ? io->send(fd, data, size) : send(fd, data, size, 0);

		if (sent < 0)
			die("send");
		data += sent;
		size -= (size_t)sent;
	}
}

static void write_one(int fd, const char *data, size_t size)
{
	ssize_t written = write(fd, data, size);

	if (written < 0)
		die("write");
	if ((size_t)written != size)
		fail("%zd bytes of %zu were written", written, size);
}

static void send_by_file(struct end *end, unsigned int channel, enum kind kind, uint64_t id, size_t length)
{
	struct files *files = (struct files *)end;
	size_t size = files->framing->header + length;

	files->framing->put(files->room, kind, id, length);
	if (files->framing->is_socket)
		send_all(files->transport->io, files->fds[channel], files->room, size);
	else
		write_one(files->fds[channel], files->room, size);
}

static void closed(struct files *files, unsigned int channel)
{
	files->open--;
	if (files->end.options->channels > 1 &&
	    epoll_ctl(files->epoll, EPOLL_CTL_DEL, files->fds[channel], NULL))
		die("epoll_ctl");
}

static void read_from(struct files *files, unsigned int channel)
{
	char *data = files->read[channel];
	size_t *length = &files->length[channel], used;
	const struct io *io = files->transport->io;
	int fd = files->fds[channel];
	size_t room = READ_ROOM - *length;
	ssize_t got = io ? io->receive(fd, data + *length, room) : read(fd, data + *length, room);
	bool is_closed = !got;

	if (got < 0)
		die("read");
	*length += (size_t)got;
	used = files->framing->take(&files->end, channel, data, *length, &is_closed);
	*length -= used;
	if (*length)
		memmove(data, data + used, *length);
	if (is_closed)
		closed(files, channel);
}

static bool wait_for_files(struct end *end)
{
	struct files *files = (struct files *)end;
	struct epoll_event events[MAX_CHANNELS];
	int found;

	if (end->options->channels == 1) {
		read_from(files, 0);
		return files->open;
	}
	found = epoll_wait(files->epoll, events, MAX_CHANNELS, -1);
	if (found < 0)
		die("epoll_wait");
	for (int i = 0; i < found; i++)
		read_from(files, events[i].data.u32);
	return files->open;
}

static void close_files(struct end *end)
{
	struct files *files = (struct files *)end;

	for (unsigned int channel = 0; channel < end->options->channels; channel++) {
		if (files->transport->leave)
			files->transport->leave(files->fds[channel]);
		if (files->transport->io)
			files->transport->io->close(files->fds[channel]);
		else
			close(files->fds[channel]);
	}
}

const struct engine files_engine = {
	.open = open_files, .room = room_of_files, .send = send_by_file, .wait = wait_for_files, .close = close_files,
};
