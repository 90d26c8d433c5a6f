/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Trace events.  Their arguments are numbers and strings.  The events copy the strings,
 * so Rust code may pass borrowed ones.
 */

#undef TRACE_SYSTEM
#undef TRACE_INCLUDE_FILE
#undef TRACE_INCLUDE_PATH
#define TRACE_SYSTEM ibtrs
#define TRACE_INCLUDE_FILE trace
#define TRACE_INCLUDE_PATH .

#if !defined(IBTRS_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define IBTRS_TRACE_H

#include <linux/tracepoint.h>

/* The numbers are those of State::to_u8 of the state machines in rust/proto/ibtrs/fsm. */
#define ibtrs_show_client_state(state)			\
	__print_symbolic(state,				\
		{ 0, "connecting" },			\
		{ 1, "connecting_err" },		\
		{ 2, "connected" },			\
		{ 3, "reconnecting" },			\
		{ 4, "closing" },			\
		{ 5, "closed" },			\
		{ 6, "dead" })

#define ibtrs_show_server_state(state)			\
	__print_symbolic(state,				\
		{ 0, "connecting" },			\
		{ 1, "connected" },			\
		{ 2, "closing" },			\
		{ 3, "closed" })

DECLARE_EVENT_CLASS(ibtrs_path_state,
	TP_PROTO(const char *session, const char *path, u8 from, u8 to),
	TP_ARGS(session, path, from, to),
	TP_STRUCT__entry(
		__string(session, session)
		__string(path, path)
		__field(u8, from)
		__field(u8, to)
	),
	TP_fast_assign(
		__assign_str(session);
		__assign_str(path);
		__entry->from = from;
		__entry->to = to;
	),
	TP_printk("session=%s path=%s from=%s to=%s",
		__get_str(session), __get_str(path),
		ibtrs_show_client_state(__entry->from),
		ibtrs_show_client_state(__entry->to))
);

DEFINE_EVENT(ibtrs_path_state, ibtrs_client_path_state,
	TP_PROTO(const char *session, const char *path, u8 from, u8 to),
	TP_ARGS(session, path, from, to));

DEFINE_EVENT_PRINT(ibtrs_path_state, ibtrs_server_path_state,
	TP_PROTO(const char *session, const char *path, u8 from, u8 to),
	TP_ARGS(session, path, from, to),
	TP_printk("session=%s path=%s from=%s to=%s",
		__get_str(session), __get_str(path),
		ibtrs_show_server_state(__entry->from),
		ibtrs_show_server_state(__entry->to)));

DECLARE_EVENT_CLASS(ibtrs_request,
	TP_PROTO(const char *session, const char *path, u16 tag, bool write, u32 bytes),
	TP_ARGS(session, path, tag, write, bytes),
	TP_STRUCT__entry(
		__string(session, session)
		__string(path, path)
		__field(u16, tag)
		__field(bool, write)
		__field(u32, bytes)
	),
	TP_fast_assign(
		__assign_str(session);
		__assign_str(path);
		__entry->tag = tag;
		__entry->write = write;
		__entry->bytes = bytes;
	),
	TP_printk("session=%s path=%s tag=%u %s bytes=%u",
		__get_str(session), __get_str(path), __entry->tag,
		__entry->write ? "write" : "read", __entry->bytes)
);

/* The client has submitted a request on a path. */
DEFINE_EVENT(ibtrs_request, ibtrs_client_submit,
	TP_PROTO(const char *session, const char *path, u16 tag, bool write, u32 bytes),
	TP_ARGS(session, path, tag, write, bytes));

/* The server has received a request. */
DEFINE_EVENT(ibtrs_request, ibtrs_server_request,
	TP_PROTO(const char *session, const char *path, u16 tag, bool write, u32 bytes),
	TP_ARGS(session, path, tag, write, bytes));

/*
 * A request of the client has ended.  @queue_ns and @disk_ns are what the server says of
 * its share of @ns, or -1 if it says nothing.
 */
TRACE_EVENT(ibtrs_client_complete,
	TP_PROTO(const char *session, const char *path, u16 tag, int error, u64 ns,
		 s64 queue_ns, s64 disk_ns),
	TP_ARGS(session, path, tag, error, ns, queue_ns, disk_ns),
	TP_STRUCT__entry(
		__string(session, session)
		__string(path, path)
		__field(u16, tag)
		__field(int, error)
		__field(u64, ns)
		__field(s64, queue_ns)
		__field(s64, disk_ns)
	),
	TP_fast_assign(
		__assign_str(session);
		__assign_str(path);
		__entry->tag = tag;
		__entry->error = error;
		__entry->ns = ns;
		__entry->queue_ns = queue_ns;
		__entry->disk_ns = disk_ns;
	),
	TP_printk("session=%s path=%s tag=%u error=%d ns=%llu queue_ns=%lld disk_ns=%lld",
		__get_str(session), __get_str(path), __entry->tag,
		__entry->error, __entry->ns, __entry->queue_ns, __entry->disk_ns)
);

/* The server answers a request. */
TRACE_EVENT(ibtrs_server_response,
	TP_PROTO(const char *session, const char *path, u16 tag, int error),
	TP_ARGS(session, path, tag, error),
	TP_STRUCT__entry(
		__string(session, session)
		__string(path, path)
		__field(u16, tag)
		__field(int, error)
	),
	TP_fast_assign(
		__assign_str(session);
		__assign_str(path);
		__entry->tag = tag;
		__entry->error = error;
	),
	TP_printk("session=%s path=%s tag=%u error=%d",
		__get_str(session), __get_str(path), __entry->tag, __entry->error)
);

DECLARE_EVENT_CLASS(ibtrs_requeue,
	TP_PROTO(const char *session, u16 tag, u32 epoch),
	TP_ARGS(session, tag, epoch),
	TP_STRUCT__entry(
		__string(session, session)
		__field(u16, tag)
		__field(u32, epoch)
	),
	TP_fast_assign(
		__assign_str(session);
		__entry->tag = tag;
		__entry->epoch = epoch;
	),
	TP_printk("session=%s tag=%u epoch=%u",
		__get_str(session), __entry->tag, __entry->epoch)
);

/* A request has left its path, as the connection attempt @epoch of the path has failed. */
DEFINE_EVENT(ibtrs_requeue, ibtrs_client_failover,
	TP_PROTO(const char *session, u16 tag, u32 epoch),
	TP_ARGS(session, tag, epoch));

/* A request waits for a path and, if @epoch is not 0, for the fence of that epoch. */
DEFINE_EVENT(ibtrs_requeue, ibtrs_client_requeue,
	TP_PROTO(const char *session, u16 tag, u32 epoch),
	TP_ARGS(session, tag, epoch));

DECLARE_EVENT_CLASS(ibtrs_fence,
	TP_PROTO(const char *session, const char *path, u32 epoch, bool drain),
	TP_ARGS(session, path, epoch, drain),
	TP_STRUCT__entry(
		__string(session, session)
		__string(path, path)
		__field(u32, epoch)
		__field(bool, drain)
	),
	TP_fast_assign(
		__assign_str(session);
		__assign_str(path);
		__entry->epoch = epoch;
		__entry->drain = drain;
	),
	TP_printk("session=%s path=%s epoch=%u drain=%d",
		__get_str(session), __get_str(path), __entry->epoch, __entry->drain)
);

/* The client has sent the fence of @epoch to the server, over this path. */
DEFINE_EVENT(ibtrs_fence, ibtrs_client_fence,
	TP_PROTO(const char *session, const char *path, u32 epoch, bool drain),
	TP_ARGS(session, path, epoch, drain));

/* The server's answer to a fence has arrived. */
DEFINE_EVENT(ibtrs_fence, ibtrs_client_fence_done,
	TP_PROTO(const char *session, const char *path, u32 epoch, bool drain),
	TP_ARGS(session, path, epoch, drain));

/* The server has received a fence, over this path. */
DEFINE_EVENT(ibtrs_fence, ibtrs_server_fence,
	TP_PROTO(const char *session, const char *path, u32 epoch, bool drain),
	TP_ARGS(session, path, epoch, drain));

/* The server answers a fence. */
DEFINE_EVENT(ibtrs_fence, ibtrs_server_fence_done,
	TP_PROTO(const char *session, const char *path, u32 epoch, bool drain),
	TP_ARGS(session, path, epoch, drain));

#endif /* IBTRS_TRACE_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
