/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Messages between programs: the device /dev/ibmsg.  Documentation/messages.md explains all of this.
 *
 * The device, portals and channels are files.  All structures are the same for programs of 32 and of
 * 64 bits, and have no padding that is not named.  Fields called reserved must be zero.
 */
#ifndef IBMSG_H
#define IBMSG_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* The longest message that read and write move. */
#define IBMSG_MAX_MESSAGE	65536
/* The longest name of a portal and of a session. */
#define IBMSG_MAX_NAME		64
/* The most data that travels with a request for a channel and with its answer. */
#define IBMSG_MAX_DATA		256

/* Where a message begins in a buffer that holds several: at the next multiple of 8. */
#define IBMSG_ALIGN(n)		(((n) + 7UL) & ~7UL)

/*
 * Begins every message, in and out.  The content follows.
 */
struct ibmsg_msg {
	__u8  kind;		/* enum ibmsg_kind */
	__u8  flags;		/* IBMSG_F_* */
	__u16 event;		/* EVENT: enum ibmsg_event; otherwise 0 */
	__u32 len;		/* bytes that follow */
	__u64 id;		/* see the kinds */
	__u64 tag;		/* your own number, which the other program gets */
	__s32 status;		/* an errno, positive; 0: none */
	__u32 timeout_ms;	/* out: how long it may take; 0: as long as the channel says.  In: 0 */
};

enum ibmsg_kind {
	/* A message without an answer. */
	IBMSG_MSG	= 1,
	/* A request.  In: id names the call, for the reply.  Out: id is 0. */
	IBMSG_REQUEST	= 2,
	/*
	 * The answer to a request.  Out: id is that of the request, status an errno of yours, up to 4095,
	 * or 0, and tag is not used.  In: tag is that of the request; with IBMSG_F_KERNEL there is no
	 * answer, and status says what has become of the request.
	 */
	IBMSG_REPLY	= 3,
	/*
	 * In only: what has become of a message that you have written, whose tag this has.  status is 0
	 * once the other side's kernel has queued the message for its program.  With IBMSG_F_BODY, it is
	 * about the body of the message: see struct ibmsg_body.
	 */
	IBMSG_RECEIPT	= 4,
	/* In only: something has happened to the channel. */
	IBMSG_EVENT	= 5,
	/* In only, at a portal: a program asks for a channel.  id is for IBMSG_ACCEPT; struct ibmsg_offer follows. */
	IBMSG_OFFER	= 6,
	/* In only: an entry of a log to which this program has subscribed.  tag names the log, id is the position. */
	IBMSG_PUBLISHED	= 8,
};

/* Flags of a message. */
#define IBMSG_F_RECEIPT		0x01	/* out, MSG and REPLY: a RECEIPT shall tell when it is queued, or why not */
#define IBMSG_F_NOWAIT		0x02	/* out: EAGAIN in place of waiting for room */
#define IBMSG_F_MORE		0x04	/* out: may wait for others, to travel with them; see struct ibmsg_tune */
#define IBMSG_F_BODY		0x08	/* MSG and REQUEST, both ways: begins with struct ibmsg_body.  In, RECEIPT: of a body */
#define IBMSG_F_AUTHENTICATED	0x40	/* in, OFFER: the other machine has proved a key of the session's name */
#define IBMSG_F_KERNEL		0x80	/* in, REPLY: from the kernel, not from the other program */

enum ibmsg_event {
	/* The portal has accepted.  Its private data follows.  Only after IBMSG_CONNECT with IBMSG_NONBLOCK. */
	IBMSG_EV_CONNECTED	= 1,
	/*
	 * The last message of a channel; afterwards, read returns 0.  status is why: 0 if the other program has
	 * closed its end, or this one has, with IBMSG_SHUTDOWN.  tag is how many of your messages the other
	 * program has taken, in the order in which they were written, as far as is known; id, how many were queued
	 * for it.  Messages whose time was over before they were sent do not count.  If the portal has refused,
	 * its private data follows.
	 */
	IBMSG_EV_CLOSED		= 2,
	/* The channel has no connection; messages wait. */
	IBMSG_EV_PATH_LOST	= 3,
	/* The channel has a connection again. */
	IBMSG_EV_PATH_BACK	= 4,
	/*
	 * The server of the session, which is this machine or the other one, is about to be stopped.  Messages that
	 * are written from now on may wait until it is back.  tag is how many seconds that will take; 0: not known.
	 */
	IBMSG_EV_DRAINING	= 5,
	/*
	 * The key by which the two machines of the session know each other is of no use any more.  Messages wait
	 * until a path connects with another key.  status is why: ENOKEY, EKEYEXPIRED or EKEYREVOKED: one of
	 * the machines no longer has it; EKEYREJECTED: they have different ones.
	 */
	IBMSG_EV_KEY_REVOKED	= 6,
	/*
	 * Those of subscriptions stand among the messages, each at its place; tag names the log.  Numbers that follow
	 * are little-endian.
	 *
	 * A subscription begins.  id is the position of the first entry that comes; the id of the log follows, 8 bytes.
	 * If that is not the one that was asked for, the other log is no more.
	 */
	IBMSG_EV_SUBSCRIBED	= 16,
	/* Entries were dropped before they could be sent.  id is the position of the first; how many follows, 8 bytes. */
	IBMSG_EV_LOST		= 17,
	/*
	 * A subscription has ended.  id is the position of the entry that would have been next; status is why: 0: as
	 * this program wanted; ENOBUFS: it was slow, and the publisher does not wait; ESTALE: IBMSG_SUB_EXACT, and the
	 * log does not have that entry any more; ERANGE: it has never had it; ESHUTDOWN: the portal was closed, or
	 * the publisher has closed its end of the channel, and EV_CLOSED follows;
	 * EMSGSIZE: an entry was longer than this program takes.
	 */
	IBMSG_EV_UNSUBSCRIBED	= 18,
};

/*
 * What an IBMSG_OFFER has behind its header.
 */
struct ibmsg_offer {
	__u16 head;		/* bytes before the private data; later versions may have more of them */
	__u16 data_len;		/* bytes of private data */
	__u32 max_message;	/* the longest message that the program takes */
	char  session[IBMSG_MAX_NAME];	/* where it comes from; 0 behind the name */
	/* private data */
};

/*
 * Terms of one end of a channel.  0 is the default.
 */
struct ibmsg_opts {
	__u32 recv_msgs;	/* messages that may wait for this program: up to 65536 */
	__u32 recv_bytes;	/* bytes that may wait for it; each message costs 64 more: up to 2^30 */
	__u32 max_message;	/* the longest message for it: up to IBMSG_MAX_MESSAGE */
	__u32 recv_calls;	/* requests that it may have to answer: up to 4096 */
	__u32 send_msgs;	/* messages of this program that are not acknowledged: up to 4096 */
	__u32 send_bytes;	/* bytes of those; each message costs 64 more */
	__u32 timeout_ms;	/* of messages that name no time; 0: none */
	__u32 events;		/* what this program wants to be told of: IBMSG_WANT_* */
};

#define IBMSG_WANT_PATHS	0x01	/* PATH_LOST and PATH_BACK */
#define IBMSG_WANT_DRAIN	0x02	/* DRAINING */
#define IBMSG_WANT_KEY		0x04	/* KEY_REVOKED */
#define IBMSG_WANT_BODIES	0x08	/* messages with IBMSG_F_BODY; without it, the other program cannot send any */

/*
 * The structures of ioctls begin with their size, so that later versions can have more fields: a kernel
 * takes a shorter one for one whose other fields are 0, and a longer one only if what it does not know is 0
 * (E2BIG otherwise).  Names have 0 behind them, unless they fill their field.
 */

/* Flags of IBMSG_BIND, IBMSG_CONNECT and IBMSG_ACCEPT.  All new files have O_CLOEXEC. */
#define IBMSG_NONBLOCK		0x01	/* the new file has O_NONBLOCK; CONNECT does not wait */
#define IBMSG_REJECT		0x02	/* ACCEPT: refuses */
#define IBMSG_UNAUTHENTICATED	0x04	/* BIND: takes programs of machines that have not proved a key, too */

/*
 * On /dev/ibmsg: takes the name of a portal, and returns the portal's file.
 */
struct ibmsg_bind {
	__u32 size;
	__u32 flags;		/* IBMSG_NONBLOCK, IBMSG_UNAUTHENTICATED */
	__u32 backlog;		/* offers that may wait; 0: the default */
	__u32 reserved;
	struct ibmsg_opts opts;	/* of the channels that it accepts */
	char  portal[IBMSG_MAX_NAME];
};

/*
 * On /dev/ibmsg: asks a portal for a channel, and returns the channel's file.
 */
struct ibmsg_connect {
	__u32 size;
	__u32 flags;		/* IBMSG_NONBLOCK */
	__u32 timeout_ms;	/* how long to wait for the portal; 0: for ever */
	__s32 status;		/* out, with ECONNREFUSED: why, an errno */
	__u32 data_len;		/* in: private data for the portal; out: private data from it */
	__u32 reserved;
	struct ibmsg_opts opts;
	char  session[IBMSG_MAX_NAME];	/* "local": this machine */
	char  portal[IBMSG_MAX_NAME];
	__u8  data[IBMSG_MAX_DATA];
};

/*
 * On a portal: answers an offer.  Returns the channel's file, or 0 with IBMSG_REJECT.
 */
struct ibmsg_accept {
	__u32 size;
	__u32 flags;		/* IBMSG_NONBLOCK, IBMSG_REJECT */
	__u64 offer;		/* id of the OFFER */
	__u32 reason;		/* IBMSG_REJECT: an errno, 1 to 4095; otherwise 0 */
	__u32 data_len;		/* private data for the program that has asked */
	__u8  data[IBMSG_MAX_DATA];
};

/*
 * On a channel: sends a request, and waits for its reply.  Any number of threads may do so at a time, also while
 * others read: a reply goes to the thread whose request it answers.  An errno is that of the call (see `status' of
 * replies of the kernel); EINTR: a signal came first, and the outcome is unknown; EMSGSIZE: the reply has
 * `reply_len' bytes, for which there was no room, and is lost.
 *
 * The same as a command of io_uring: IORING_OP_URING_CMD with `cmd_op' IBMSG_IOC_CALL and `addr' the address of
 * this structure, which stays where it is until the command is complete, with 0 or a negative errno.
 */
struct ibmsg_call {
	__u32 size;
	__u32 flags;		/* IBMSG_F_NOWAIT: EAGAIN if there is no room for the request */
	__u64 request;		/* address of the request */
	__u64 reply;		/* address of the room for the reply */
	__u32 request_len;
	__u32 reply_len;	/* in: bytes of the room; out: bytes of the reply */
	__u32 timeout_ms;	/* 0: that of the channel's opts */
	__s32 status;		/* out: status of the reply */
	__u64 tag;		/* the program's number */
};

/*
 * On a channel: how messages with IBMSG_F_MORE wait for others, and how tasks wait.  0 is the default.  The ioctl
 * replaces what was set before.
 *
 * Messages with IBMSG_F_MORE wait until `more_bytes' of them, with 64 bytes and padding to 8 each, would be exceeded by
 * the next one; until the first of them has waited for `more_us'; until a message without the flag is written; until
 * IBMSG_IOC_FLUSH or IBMSG_IOC_SHUTDOWN; or until there is no room for a message of the greatest length.  None waits for
 * more than half of its own time.
 */
struct ibmsg_tune {
	__u32 size;
	__u32 more_bytes;	/* 256 to 65536; default: as many as travel together, 8184 */
	__u32 more_us;		/* microseconds, 100 to 1000000; default 1000 */
	__u32 busy_poll_us;	/* for how long read and CALL poll before they sleep, up to 1000000; default: not */
	__u32 reserved[2];
};

/*
 * On a channel that this program has opened: subscribes to what the program at the portal publishes under a tag.
 * EV_SUBSCRIBED follows, or EV_UNSUBSCRIBED with the reason.  EEXIST: the channel has such a subscription; ENOSPC: it
 * has 64; EOPNOTSUPP: nothing can be published at the portal; EAGAIN, EPIPE: as for write.
 */
struct ibmsg_subscribe {
	__u32 size;
	__u32 flags;		/* IBMSG_SUB_* */
	__u64 tag;
	__u32 begin;		/* enum ibmsg_begin */
	__u32 reserved;
	__u64 log;		/* POSITION: as it followed EV_SUBSCRIBED; otherwise 0 */
	__u64 position;		/* POSITION: otherwise 0 */
};

enum ibmsg_begin {
	IBMSG_BEGIN_FIRST	= 0,	/* with the oldest entry that the log has */
	IBMSG_BEGIN_NEXT	= 1,	/* with the next entry that is published */
	IBMSG_BEGIN_POSITION	= 2,	/* with this entry; EV_LOST tells what the log has dropped since */
};

#define IBMSG_SUB_EXACT		0x01	/* POSITION: not at all, if that entry was dropped, or its log is no more */
#define IBMSG_SUB_NOWAIT	0x02	/* EAGAIN in place of waiting for room */

/*
 * On the same: this program wants no more.  Entries come until EV_UNSUBSCRIBED, which says where to go on.  ENOENT:
 * there is no such subscription; EALREADY: it is ending.
 */
struct ibmsg_unsubscribe {
	__u32 size;
	__u32 flags;		/* IBMSG_SUB_NOWAIT */
	__u64 tag;
};

/*
 * On a portal: the log of a tag.  A message that is written to the portal is published under its tag; the log is made
 * by the first one, or by this.  The log keeps the latest entries, whether or not anybody has subscribed.
 */
struct ibmsg_log {
	__u32 size;
	__u32 flags;		/* IBMSG_LOG_*; without SET and DEFAULT, nothing changes; ENOENT: there is no such log */
	__u64 tag;
	__u32 entries;		/* the most that it keeps, up to 2^20; 0: 256 */
	__u32 policy;		/* enum ibmsg_policy */
	__u64 bytes;		/* the most that it keeps of content, up to 2^30; 0: 256 KiB */
	/* out, except for DEFAULT: */
	__u64 log;		/* its id, as in EV_SUBSCRIBED */
	__u64 first;		/* position of the oldest entry */
	__u64 next;		/* position of the entry that will be published next */
	__u64 slowest;		/* position of the first entry that a subscriber has not been sent; or next */
	__u32 subscribers;
	__u32 reserved;
};

#define IBMSG_LOG_SET		0x01	/* sets the terms, and makes the log if it is not there */
#define IBMSG_LOG_DEFAULT	0x02	/* sets the terms of logs that are made later; tag is 0 */

/* What happens if the log is full, and a subscriber has not been sent its oldest entry. */
enum ibmsg_policy {
	IBMSG_LOG_WAIT	= 0,	/* write waits, or fails with EAGAIN */
	IBMSG_LOG_DROP	= 1,	/* the entry is dropped, and the subscriber gets EV_LOST */
	IBMSG_LOG_CLOSE	= 2,	/* the entry is dropped, and the subscription ends with ENOBUFS */
};

/*
 * On a channel: publishes memory of this program, which stays pinned until IBMSG_IOC_UNMAP, the end of the channel, or
 * the end of the program's address space (exit, execve), whichever comes first.  The other program may get from it and put
 * to it at offsets, with the handle, which this program sends it in a message.  The memory is anonymous or shared, and
 * counts against RLIMIT_MEMLOCK.
 */
struct ibmsg_map {
	__u32 size;
	__u32 flags;		/* what the other program may do: IBMSG_MEM_* */
	__u64 addr;		/* where the memory begins */
	__u64 len;		/* bytes */
	__u64 offset;		/* of the first byte, as the program likes; it has the same place in a page as addr */
	__u64 handle;		/* out */
};

#define IBMSG_MEM_GET		0x01
#define IBMSG_MEM_PUT		0x02
#define IBMSG_MEM_BODY		0x04	/* alone: the memory becomes the body of a message, struct ibmsg_body */

/*
 * On a channel: takes a handle back.  Returns when the memory cannot be reached any more; operations of the other program
 * that are under way end first.  It also waits for memory that is being taken back already.  ESTALE: it is out of reach.
 */
struct ibmsg_unmap {
	__u32 size;
	__u32 flags;		/* IBMSG_F_NOWAIT: EBUSY if that takes longer; it goes on then */
	__u64 handle;
};

/*
 * With IBMSG_F_BODY, the content of a message begins with this: the body of the message stays in the memory of the program
 * that sends it, and the other program gets what it wants of it, by IBMSG_IOC_GET, until it releases the body, by
 * IBMSG_IOC_RELEASE.
 *
 * The program that sends it publishes the body with IBMSG_MEM_BODY, as that of one message; EOPNOTSUPP: the other program
 * takes no messages with a body (IBMSG_WANT_BODIES).  The fields are those of struct ibmsg_map.  write fails with ESTALE if
 * the handle is not valid, with EACCES if it is not that of a body, or of another message, with ERANGE if the other fields
 * are not the same.
 *
 * A RECEIPT with IBMSG_F_BODY follows once the memory cannot be reached any more, so that it may be changed and unmapped.
 * status is 0 if the other program has released it; ECANCELED, ETIMEDOUT, ECONNABORTED: the message was not delivered, or
 * perhaps not, as in its own receipt; ESTALE: IBMSG_IOC_UNMAP, IBMSG_IOC_SHUTDOWN, or the program that has published it has
 * ended; ECONNRESET: the channel has ended, or the operator has closed it, before the other program has released the
 * body.  A program that does not read its receipts cannot send more bodies: EAGAIN, or write waits.
 */
struct ibmsg_body {
	__u64 handle;
	__u64 offset;		/* where it begins */
	__u64 len;		/* bytes */
};

/*
 * On a channel: this program needs the body of a message no more.  ESTALE: it has no such body; EAGAIN: no room to tell the
 * other kernel, and IBMSG_F_NOWAIT or O_NONBLOCK; EPIPE: the channel is closed, and with it all bodies.
 */
struct ibmsg_release {
	__u32 size;
	__u32 flags;		/* IBMSG_F_NOWAIT */
	__u64 handle;
};

/*
 * On a channel: IBMSG_IOC_PUT copies memory of this program to that of the other one, IBMSG_IOC_GET the other way.  They
 * return when all of it is there.  The other program finds what was put in place when it takes a message that was written
 * afterwards.  Both are commands of io_uring as well: IORING_OP_URING_CMD with `cmd_op' IBMSG_IOC_PUT or IBMSG_IOC_GET and
 * `addr' the address of this structure, which is read when the command is issued.
 */
struct ibmsg_copy {
	__u32 size;
	__u32 flags;		/* PUT: IBMSG_F_NOWAIT: EAGAIN if there is no room in the queue of messages */
	__u64 handle;		/* of the other program */
	__u64 offset;		/* where to begin in its memory */
	__u64 addr;		/* where to begin in this program's */
	__u64 len;		/* bytes, at least 1 */
	__u32 timeout_ms;	/* 0: that of the channel's opts */
	__u32 reserved;
};

/*
 * On any of the files: what it is.
 */
struct ibmsg_info {
	__u32 size;
	__u32 kind;		/* enum ibmsg_file */
	__u32 state;		/* enum ibmsg_state; of a portal: offers that wait */
	__u32 channel;		/* number of the channel in its session */
	struct ibmsg_opts opts;	/* the terms in force */
	__u32 peer_max_message;	/* the longest message that may be written */
	__u32 peer_recv_msgs;	/* messages that may wait for the other program */
	__u32 next_len;		/* bytes that the next read needs at least; 0: nothing to read */
	__u32 recv_queued;	/* messages of the other program that wait for this one */
	__u32 send_queued;	/* messages of this program that the other side has not acknowledged */
	__u32 moves;		/* how often the channel has lost its connection and has got another one */
	__u64 sent_msgs;	/* messages that were sent, each once; IBMSG_IOC_PUT and IBMSG_IOC_RELEASE count as such */
	__u64 sent_bytes;	/* their content */
	__u64 queued_msgs;	/* those of them that were queued for the other program */
	__u64 taken_msgs;	/* those that it has taken, as far as is known */
	__u64 recv_msgs;	/* messages that this program has taken */
	__u64 recv_bytes;	/* their content */
	char  session[IBMSG_MAX_NAME];
	char  portal[IBMSG_MAX_NAME];
};

enum ibmsg_file {
	IBMSG_FILE_CONTEXT	= 1,
	IBMSG_FILE_PORTAL	= 2,
	IBMSG_FILE_CHANNEL	= 3,
};

enum ibmsg_state {
	IBMSG_ST_CONNECTING	= 1,	/* the portal has not answered */
	IBMSG_ST_OPEN		= 2,
	IBMSG_ST_CLOSING	= 3,	/* one of the programs has closed its end */
	IBMSG_ST_CLOSED		= 4,	/* nothing more will arrive */
};

#define IBMSG_IOC		0xB9
#define IBMSG_IOC_BIND		_IO(IBMSG_IOC, 0)	/* struct ibmsg_bind */
#define IBMSG_IOC_CONNECT	_IO(IBMSG_IOC, 1)	/* struct ibmsg_connect */
#define IBMSG_IOC_ACCEPT	_IO(IBMSG_IOC, 2)	/* struct ibmsg_accept */
#define IBMSG_IOC_INFO		_IO(IBMSG_IOC, 3)	/* struct ibmsg_info */
/*
 * On a channel, no argument (a third one is ignored): this program takes and writes no more messages.  Those that it
 * has written are still sent; EV_CLOSED tells when all of them are queued.  Closing the file does the same, and tells
 * nobody.
 */
#define IBMSG_IOC_SHUTDOWN	_IO(IBMSG_IOC, 4)
#define IBMSG_IOC_CALL		_IO(IBMSG_IOC, 5)	/* struct ibmsg_call */
/* On a channel, no argument (a third one is ignored): sends what waits for other messages, IBMSG_F_MORE. */
#define IBMSG_IOC_FLUSH		_IO(IBMSG_IOC, 6)
#define IBMSG_IOC_TUNE		_IO(IBMSG_IOC, 7)	/* struct ibmsg_tune */
#define IBMSG_IOC_MAP		_IO(IBMSG_IOC, 8)	/* struct ibmsg_map */
#define IBMSG_IOC_UNMAP		_IO(IBMSG_IOC, 9)	/* struct ibmsg_unmap */
#define IBMSG_IOC_PUT		_IO(IBMSG_IOC, 10)	/* struct ibmsg_copy */
#define IBMSG_IOC_GET		_IO(IBMSG_IOC, 11)	/* struct ibmsg_copy */
#define IBMSG_IOC_RELEASE	_IO(IBMSG_IOC, 12)	/* struct ibmsg_release */
#define IBMSG_IOC_SUBSCRIBE	_IO(IBMSG_IOC, 16)	/* struct ibmsg_subscribe */
#define IBMSG_IOC_UNSUBSCRIBE	_IO(IBMSG_IOC, 17)	/* struct ibmsg_unsubscribe */
#define IBMSG_IOC_LOG		_IO(IBMSG_IOC, 18)	/* struct ibmsg_log */

#endif
