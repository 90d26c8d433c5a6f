/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The calls of the RFC for zero-copy rsockets, on messages: riomap, riounmap, riowrite (the RFC's put) and rioget, beside
 * rsend and rrecv.  Only the names are those of rsockets.  Documentation/messages-porting.md has all of them.
 *
 * What differs:
 * - A listening socket has a name, and a client names a session and that name.
 * - rsend sends a message: rrecv returns one of them, and not a part of a stream.
 * - riomap tells the other program of the memory in a message of the shim, which its rrecv takes.  So memory that was
 *   mapped before an rsend can be used after the rrecv.
 * - riowrite and rioget return when the data is there, also on a non-blocking socket.  The RFC's ioq, for completions of
 *   many sockets, is a ring of io_uring: IBMSG_IOC_PUT and IBMSG_IOC_GET are commands of it.
 */
#ifndef RSOCKET_SHIM_H
#define RSOCKET_SHIM_H

#include <sys/types.h>

#include "published.h"

#define RS_MAPS		16

/* What a mapping is to the other program. */
struct rs_map {
	__u64 offset;
	__u64 len;		/* 0: no more */
	__u64 handle;
};

struct rsocket {
	int fd;
	struct rs_map ours[RS_MAPS];
	struct rs_map theirs[RS_MAPS];
	__u64 buffer[(sizeof(struct ibmsg_msg) + IBMSG_MAX_MESSAGE) / sizeof(__u64)];
	struct reader reader;
};

/* Tags of messages: the program's, and the shim's. */
#define RS_DATA		0
#define RS_MAP		1

static inline struct rsocket *rs_of(int fd)
{
	struct rsocket *rs = calloc(1, sizeof(*rs));

	if (!rs)
		die("socket");
	rs->fd = fd;
	rs->reader.bytes = (char *)rs->buffer;
	rs->reader.size = sizeof(rs->buffer);
	return rs;
}

static inline struct rsocket *rlisten(const char *name)
{
	return rs_of(bind_portal((struct ibmsg_bind){ 0 }, name));
}

static inline struct rsocket *raccept(struct rsocket *listener)
{
	return rs_of(accept_channel(listener->fd, 0));
}

static inline struct rsocket *rconnect(const char *session, const char *name)
{
	return rs_of(connect_channel(session, name));
}

/* Memory that is mapped is out of reach afterwards. */
static inline void rclose(struct rsocket *rs)
{
	close(rs->fd);
	free(rs);
}

static inline ssize_t rsend(struct rsocket *rs, const void *data, size_t len)
{
	struct ibmsg_msg msg = { .kind = IBMSG_MSG, .tag = RS_DATA, .len = (__u32)len };

	if (len > IBMSG_MAX_MESSAGE) {
		errno = EMSGSIZE;
		return -1;
	}
	return send_message(rs->fd, msg, data) ? -1 : (ssize_t)len;
}

/* The map with an offset, or a free one for the length 0.  NULL: there is none. */
static inline struct rs_map *rs_find(struct rs_map *maps, __u64 offset, __u64 len)
{
	for (int i = 0; i < RS_MAPS; i++) {
		struct rs_map *map = &maps[i];

		if (len ? offset >= map->offset && len <= map->len && offset - map->offset <= map->len - len :
		    !map->len)
			return map;
	}
	errno = len ? ENXIO : ENOBUFS;
	return NULL;
}

/* The other program has mapped memory, or has taken it back. */
static inline void rs_heed(struct rsocket *rs, const struct rs_map *told)
{
	struct rs_map *map;

	if (told->len) {
		map = rs_find(rs->theirs, 0, 0);
		if (map)
			*map = *told;
		return;
	}
	for (int i = 0; i < RS_MAPS; i++)
		if (rs->theirs[i].handle == told->handle)
			rs->theirs[i].len = 0;
}

/* 0: the other program has closed its end. */
static inline ssize_t rrecv(struct rsocket *rs, void *data, size_t room)
{
	struct ibmsg_msg *msg;

	while ((msg = next_message(rs->fd, &rs->reader))) {
		if (msg->kind == IBMSG_MSG && msg->tag == RS_MAP && msg->len == sizeof(struct rs_map)) {
			rs_heed(rs, (struct rs_map *)(msg + 1));
		} else if (msg->kind == IBMSG_MSG) {
			size_t len = msg->len < room ? msg->len : room;

			memcpy(data, content_of(msg), len);
			return (ssize_t)len;
		} else if (msg->kind == IBMSG_EVENT && msg->event == IBMSG_EV_CLOSED) {
			errno = msg->status;
			return msg->status ? -1 : 0;
		}
	}
	return errno ? -1 : 0;
}

static inline int rs_tell(struct rsocket *rs, const struct rs_map *map)
{
	struct ibmsg_msg msg = { .kind = IBMSG_MSG, .tag = RS_MAP, .len = sizeof(*map) };

	return send_message(rs->fd, msg, map);
}

/*
 * Lets the other program write (PROT_WRITE) and get (PROT_READ) memory at an offset, which has the same place in a page.
 * Returns the offset, or -1 and errno.
 */
static inline off_t riomap(struct rsocket *rs, void *addr, size_t len, int prot, int flags, off_t offset)
{
	struct ibmsg_map args = {
		.size = sizeof(args), .addr = (__u64)(uintptr_t)addr, .len = len, .offset = (__u64)offset,
		.flags = (prot & PROT_WRITE ? IBMSG_MEM_PUT : 0) | (prot & PROT_READ ? IBMSG_MEM_GET : 0),
	};
	struct rs_map *map = rs_find(rs->ours, 0, 0);

	(void)flags;
	if (!map || ioctl(rs->fd, IBMSG_IOC_MAP, &args))
		return -1;
	*map = (struct rs_map){ .offset = args.offset, .len = len, .handle = args.handle };
	return rs_tell(rs, map) ? -1 : offset;
}

/* Of a whole mapping.  Returns when the other program cannot reach it any more. */
static inline int riounmap(struct rsocket *rs, off_t offset, size_t len)
{
	struct rs_map *map = rs_find(rs->ours, (__u64)offset, len);
	struct ibmsg_unmap args = { .size = sizeof(args) };

	if (!map || map->len != len) {
		errno = EINVAL;
		return -1;
	}
	args.handle = map->handle;
	map->len = 0;
	return ioctl(rs->fd, IBMSG_IOC_UNMAP, &args) || rs_tell(rs, map) ? -1 : 0;
}

static inline ssize_t rs_copy(struct rsocket *rs, unsigned long how, const void *buf, size_t count, off_t offset)
{
	struct rs_map *map = rs_find(rs->theirs, (__u64)offset, count);

	if (!map || copy_memory(rs->fd, how, map->handle, (__u64)offset, buf, count))
		return -1;
	return (ssize_t)count;
}

/* What is sent afterwards is received when this is in place. */
static inline ssize_t riowrite(struct rsocket *rs, const void *buf, size_t count, off_t offset, int flags)
{
	(void)flags;
	return rs_copy(rs, IBMSG_IOC_PUT, buf, count, offset);
}

static inline ssize_t rioget(struct rsocket *rs, void *buf, size_t count, off_t offset, int flags)
{
	(void)flags;
	return rs_copy(rs, IBMSG_IOC_GET, buf, count, offset);
}

#endif
