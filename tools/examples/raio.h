/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Files of another machine: the calls of a client, and what ibmsg-raio.c expects.
 *
 * A client opens a channel and publishes its buffers.  Each operation is a call.  The server PUTs what it has read to the
 * client's buffers, and GETs what it is to write from there; the data is in no message.  A PUT comes before the reply that
 * is written after it, so a read takes no more round trips than the call.
 *
 * A channel has one operation at a time.  A program that wants more in flight opens more channels, which also use other
 * paths of the session.
 */
#ifndef RAIO_H
#define RAIO_H

#include "published.h"

enum raio_op {
	RAIO_OPEN	= 1,	/* flags, path; replies with the number of the file */
	RAIO_CLOSE	= 2,	/* file */
	RAIO_PREAD	= 3,	/* file, offset, len, handle, place; replies with the bytes that were read */
	RAIO_PWRITE	= 4,	/* the same, of bytes that were written */
	RAIO_FSYNC	= 5,	/* file */
	RAIO_SIZE	= 6,	/* file; replies with its bytes */
};

/* Flags of RAIO_OPEN. */
#define RAIO_F_WRITE	0x01
#define RAIO_F_CREATE	0x02
#define RAIO_F_TRUNCATE	0x04

/* Of a request.  The reply is a __s64, or the errno of the operation as its status. */
struct raio_request {
	__u32 op;
	__u32 file;
	__u64 offset;		/* in the file */
	__u64 len;
	__u64 handle;		/* of the client's memory */
	__u64 place;		/* in the client's memory */
	__u32 flags;
	__u32 path_len;		/* bytes that follow */
};

#define RAIO_MAX_PATH	4095
/* Number of files that a channel may have open. */
#define RAIO_MAX_FILES	256

/* A connection to a server, with buffers that the server reads and writes. */
struct raio {
	int channel;
	__u64 handle;
	char *memory;
	size_t len;
};

/* Memory is as of new_memory.  0, or -1 and errno. */
static inline int raio_connect(struct raio *raio, const char *session, const char *portal, void *memory, size_t len)
{
	raio->channel = connect_channel(session, portal);
	raio->memory = memory;
	raio->len = len;
	return publish_memory(raio->channel, memory, len, IBMSG_MEM_GET | IBMSG_MEM_PUT, &raio->handle);
}

/* The memory is out of the server's reach afterwards. */
static inline void raio_disconnect(struct raio *raio)
{
	struct ibmsg_unmap unmap = { .size = sizeof(unmap), .handle = raio->handle };

	ioctl(raio->channel, IBMSG_IOC_UNMAP, &unmap);
	close(raio->channel);
}

static inline __s64 raio_ask(struct raio *raio, struct raio_request request, const char *path)
{
	struct {
		struct raio_request request;
		char path[RAIO_MAX_PATH];
	} message = { .request = request };
	__s64 result;
	ssize_t len;

	if (request.path_len > RAIO_MAX_PATH) {
		errno = ENAMETOOLONG;
		return -1;
	}
	if (request.path_len)
		memcpy(message.path, path, request.path_len);
	len = make_call(raio->channel, &message, sizeof(request) + request.path_len, &result, sizeof(result));
	if (len == sizeof(result))
		return result;
	if (len >= 0)
		errno = EPROTO;
	return -1;
}

/* A file below the server's directory: its number, or -1 and errno. */
static inline int raio_open(struct raio *raio, const char *path, __u32 flags)
{
	return (int)raio_ask(raio, (struct raio_request){
		.op = RAIO_OPEN, .flags = flags, .path_len = (__u32)strlen(path),
	}, path);
}

static inline int raio_close(struct raio *raio, int file)
{
	return (int)raio_ask(raio, (struct raio_request){ .op = RAIO_CLOSE, .file = (__u32)file }, NULL);
}

static inline ssize_t raio_transfer(struct raio *raio, __u32 op, int file, void *buf, size_t len, __u64 offset)
{
	size_t place = (size_t)((char *)buf - raio->memory);

	if (place > raio->len || len > raio->len - place) {
		errno = EFAULT;
		return -1;
	}
	return (ssize_t)raio_ask(raio, (struct raio_request){
		.op = op, .file = (__u32)file, .offset = offset, .len = len, .handle = raio->handle, .place = place,
	}, NULL);
}

/* Reads into a part of the published memory.  Fewer bytes: the end of the file. */
static inline ssize_t raio_pread(struct raio *raio, int file, void *buf, size_t len, __u64 offset)
{
	return raio_transfer(raio, RAIO_PREAD, file, buf, len, offset);
}

/* Writes a part of the published memory. */
static inline ssize_t raio_pwrite(struct raio *raio, int file, const void *buf, size_t len, __u64 offset)
{
	return raio_transfer(raio, RAIO_PWRITE, file, (void *)buf, len, offset);
}

/* What was written is on the server's disk. */
static inline int raio_fsync(struct raio *raio, int file)
{
	return (int)raio_ask(raio, (struct raio_request){ .op = RAIO_FSYNC, .file = (__u32)file }, NULL);
}

static inline __s64 raio_size(struct raio *raio, int file)
{
	return raio_ask(raio, (struct raio_request){ .op = RAIO_SIZE, .file = (__u32)file }, NULL);
}

#endif
