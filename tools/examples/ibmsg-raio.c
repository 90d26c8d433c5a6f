// SPDX-License-Identifier: GPL-2.0
/*
 * A small remote file service: `ibmsg-raio PORTAL DIRECTORY' lets programs of other machines open, read and write the
 * regular files below a directory, and create new ones; with `-r' in front, only read.  raio.h has the calls of clients.
 *
 * Who may connect is decided by the kernel: hosts that have proved a key, and that the portal's rule allows.  A path
 * that leads out of the directory, by `..' or by a link, is refused.
 *
 * There is a process for each channel, so that no client waits for another one's disk.
 */
#define _GNU_SOURCE
#include <linux/openat2.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "raio.h"

/* The most that is copied at a time. */
#define BUFFER	(1u << 20)

struct service {
	int directory;
	int is_read_only;
	int channel;
	char *buffer;
	/* -1: free. */
	int files[RAIO_MAX_FILES];
};

/* The functions below return what the reply says, or a negative errno. */

static __s64 open_file(struct service *service, const struct raio_request *request, const char *path)
{
	static const __u32 known = RAIO_F_WRITE | RAIO_F_CREATE | RAIO_F_TRUNCATE;
	struct open_how how = {
		/* Opening a FIFO would wait. */
		.flags = O_CLOEXEC | O_NOCTTY | O_NONBLOCK | (request->flags & RAIO_F_WRITE ? O_RDWR : O_RDONLY) |
			 (request->flags & RAIO_F_CREATE ? O_CREAT : 0) |
			 (request->flags & RAIO_F_TRUNCATE ? O_TRUNC : 0),
		.mode = request->flags & RAIO_F_CREATE ? 0600 : 0,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
	};
	char name[RAIO_MAX_PATH + 1] = { 0 };
	struct stat stat;
	int number, fd;

	if (request->flags & ~known || request->path_len > RAIO_MAX_PATH || memchr(path, 0, request->path_len))
		return -EINVAL;
	if (service->is_read_only && request->flags)
		return -EROFS;
	for (number = 0; service->files[number] >= 0; number++)
		if (number == RAIO_MAX_FILES - 1)
			return -EMFILE;
	memcpy(name, path, request->path_len);
	fd = (int)syscall(SYS_openat2, service->directory, name, &how, sizeof(how));
	if (fd < 0)
		return -errno;
	if (fstat(fd, &stat) || !S_ISREG(stat.st_mode)) {
		close(fd);
		return -EINVAL;
	}
	service->files[number] = fd;
	return number;
}

static __s64 close_file(struct service *service, const struct raio_request *request)
{
	int fd = service->files[request->file];

	service->files[request->file] = -1;
	return close(fd) ? -errno : 0;
}

/* A part of what is to be read; 0 at the end of the file. */
static __s64 read_part(struct service *service, const struct raio_request *request, __u64 done, size_t len)
{
	int fd = service->files[request->file];
	ssize_t got = pread(fd, service->buffer, len, (off_t)(request->offset + done));

	if (got < 0)
		return -errno;
	if (got && put_memory(service->channel, request->handle, request->place + done, service->buffer, (size_t)got))
		return -errno;
	return got;
}

static __s64 write_part(struct service *service, const struct raio_request *request, __u64 done, size_t len)
{
	int fd = service->files[request->file];
	ssize_t written;

	if (get_memory(service->channel, request->handle, request->place + done, service->buffer, len))
		return -errno;
	written = pwrite(fd, service->buffer, len, (off_t)(request->offset + done));
	return written < 0 ? -errno : written;
}

static __s64 transfer(struct service *service, const struct raio_request *request,
		      __s64 (*part)(struct service *, const struct raio_request *, __u64, size_t))
{
	__u64 done = 0;

	if (request->len > INT64_MAX || request->offset > INT64_MAX - request->len)
		return -EINVAL;
	while (done < request->len) {
		__u64 left = request->len - done;
		__s64 result = part(service, request, done, left < BUFFER ? left : BUFFER);

		if (result < 0)
			return done ? (__s64)done : result;
		if (!result)
			break;
		done += (__u64)result;
	}
	return (__s64)done;
}

static __s64 size_of(int fd)
{
	struct stat stat;

	return fstat(fd, &stat) ? -errno : stat.st_size;
}

static __s64 handle(struct service *service, const struct raio_request *request, size_t len)
{
	if (len < sizeof(*request) || len - sizeof(*request) != request->path_len)
		return -EINVAL;
	if (request->op == RAIO_OPEN)
		return open_file(service, request, (const char *)(request + 1));
	if (request->file >= RAIO_MAX_FILES || service->files[request->file] < 0)
		return -EBADF;
	switch (request->op) {
	case RAIO_CLOSE:
		return close_file(service, request);
	case RAIO_PREAD:
		return transfer(service, request, read_part);
	case RAIO_PWRITE:
		return transfer(service, request, write_part);
	case RAIO_FSYNC:
		return fsync(service->files[request->file]) ? -errno : 0;
	case RAIO_SIZE:
		return size_of(service->files[request->file]);
	default:
		return -EOPNOTSUPP;
	}
}

/* Until the channel ends. */
static void serve_channel(struct service *service)
{
	static __u64 buffer[(sizeof(struct ibmsg_msg) + IBMSG_MAX_MESSAGE) / sizeof(__u64)];
	struct reader reader = { .bytes = (char *)buffer, .size = sizeof(buffer) };
	struct ibmsg_msg *msg;

	service->buffer = new_memory(BUFFER);
	for (int i = 0; i < RAIO_MAX_FILES; i++)
		service->files[i] = -1;
	while ((msg = next_message(service->channel, &reader))) {
		struct ibmsg_msg reply = { .kind = IBMSG_REPLY, .id = msg->id };
		__s64 result;

		if (msg->kind != IBMSG_REQUEST)
			continue;
		result = handle(service, (struct raio_request *)(msg + 1), msg->len);
		if (result < 0)
			reply.status = (__s32)-result;
		else
			reply.len = sizeof(result);
		/* The client may have gone: its end follows. */
		if (send_message(service->channel, reply, &result) && errno != EPIPE)
			die("reply");
	}
}

int main(int argc, char **argv)
{
	struct service service = { .is_read_only = argc == 4 && !strcmp(argv[1], "-r") };
	int portal;

	if (argc != 3 + service.is_read_only) {
		fprintf(stderr, "usage: %s [-r] PORTAL DIRECTORY\n", argv[0]);
		return 2;
	}
	service.directory = open(argv[argc - 1], O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (service.directory < 0)
		die(argv[argc - 1]);
	portal = bind_portal((struct ibmsg_bind){ 0 }, argv[argc - 2]);
	/* Nobody waits for the processes. */
	signal(SIGCHLD, SIG_IGN);
	for (;;) {
		service.channel = accept_channel(portal, 0);
		switch (fork()) {
		case -1:
			perror("fork");
			break;
		case 0:
			/* Otherwise the name would stay bound for as long as a client is there. */
			close(portal);
			serve_channel(&service);
			return 0;
		}
		close(service.channel);
	}
}
