/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the examples need that use memory of the other program: memory is published, and copied from and to.
 */
#ifndef PUBLISHED_H
#define PUBLISHED_H

#include <stdint.h>
#include <sys/mman.h>

#include "common.h"

/* Zeroes that begin with a page, and that child processes share. */
static inline void *new_memory(size_t len)
{
	void *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		die("memory");
	return memory;
}

/* Lets the other program of a channel use memory, whose first byte has the offset 0 there.  -1, and errno. */
static inline int publish_memory(int channel, void *memory, size_t len, __u32 rights, __u64 *handle)
{
	struct ibmsg_map map = {
		.size = sizeof(map), .flags = rights, .addr = (__u64)(uintptr_t)memory, .len = len,
	};

	if (ioctl(channel, IBMSG_IOC_MAP, &map))
		return -1;
	*handle = map.handle;
	return 0;
}

static inline int copy_memory(int channel, unsigned long how, __u64 handle, __u64 offset, const void *memory,
			      size_t len)
{
	struct ibmsg_copy copy = {
		.size = sizeof(copy), .handle = handle, .offset = offset, .addr = (__u64)(uintptr_t)memory,
		.len = len,
	};

	return ioctl(channel, how, &copy);
}

/* Copies to memory that the other program has published.  -1, and errno. */
static inline int put_memory(int channel, __u64 handle, __u64 offset, const void *from, size_t len)
{
	return copy_memory(channel, IBMSG_IOC_PUT, handle, offset, from, len);
}

/* Copies from it. */
static inline int get_memory(int channel, __u64 handle, __u64 offset, void *to, size_t len)
{
	return copy_memory(channel, IBMSG_IOC_GET, handle, offset, to, len);
}

/*
 * Sends a message whose body is memory, and has no other content.  The memory must not change until the receipt with
 * IBMSG_F_BODY.  -1, and errno.
 */
static inline int send_with_body(int channel, struct ibmsg_msg msg, void *memory, size_t len)
{
	struct ibmsg_body body = { .len = len };
	struct ibmsg_unmap unmap = { .size = sizeof(unmap) };
	int error;

	if (publish_memory(channel, memory, len, IBMSG_MEM_BODY, &body.handle))
		return -1;
	msg.flags |= IBMSG_F_BODY;
	msg.len = sizeof(body);
	if (!send_message(channel, msg, &body))
		return 0;
	error = errno;
	unmap.handle = body.handle;
	ioctl(channel, IBMSG_IOC_UNMAP, &unmap);
	errno = error;
	return -1;
}

/* This program needs the body of a message no more.  -1, and errno. */
static inline int release_body(int channel, __u64 handle)
{
	struct ibmsg_release release = { .size = sizeof(release), .handle = handle };

	return ioctl(channel, IBMSG_IOC_RELEASE, &release);
}

/* A call: the length of the reply, or -1 and errno, which may be the one that the other program has replied with. */
static inline ssize_t make_call(int channel, const void *request, size_t request_len, void *reply, size_t reply_len)
{
	struct ibmsg_call call = {
		.size = sizeof(call),
		.request = (__u64)(uintptr_t)request, .request_len = (__u32)request_len,
		.reply = (__u64)(uintptr_t)reply, .reply_len = (__u32)reply_len,
	};

	if (ioctl(channel, IBMSG_IOC_CALL, &call))
		return -1;
	if (call.status) {
		errno = call.status;
		return -1;
	}
	return (ssize_t)call.reply_len;
}

#endif
