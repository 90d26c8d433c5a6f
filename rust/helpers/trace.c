// SPDX-License-Identifier: GPL-2.0
/*
 * Defines and exports the trace events, which Rust code of all modules may use.
 */

#include <linux/export.h>
#include <linux/types.h>

#define CREATE_TRACE_POINTS
#define CREATE_RUST_TRACE_POINTS
#include "trace.h"

#ifdef CONFIG_TRACEPOINTS
#define EXPORT_EVENT(name)			\
	EXPORT_TRACEPOINT_SYMBOL_GPL(name);	\
	EXPORT_SYMBOL_GPL(rust_do_trace_##name)

EXPORT_EVENT(ibtrs_client_path_state);
EXPORT_EVENT(ibtrs_client_submit);
EXPORT_EVENT(ibtrs_client_complete);
EXPORT_EVENT(ibtrs_client_failover);
EXPORT_EVENT(ibtrs_client_requeue);
EXPORT_EVENT(ibtrs_client_fence);
EXPORT_EVENT(ibtrs_client_fence_done);
EXPORT_EVENT(ibtrs_server_path_state);
EXPORT_EVENT(ibtrs_server_request);
EXPORT_EVENT(ibtrs_server_response);
EXPORT_EVENT(ibtrs_server_fence);
EXPORT_EVENT(ibtrs_server_fence_done);
#endif
