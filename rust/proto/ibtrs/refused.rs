// SPDX-License-Identifier: GPL-2.0

//! Why a server refuses a connection, in the words of the client.
//!
//! The client learns the errno only; the server logs which of its rules or limits it was.

use crate::Errno;

macro_rules! declare {
    ($($errno:ident, $words:literal;)+) => {
        /// The errnos with which our server refuses connections.
        pub const ERRNOS: &[Errno] = &[$(Errno::$errno,)+];

        /// Returns what such an errno means, and what to do about it.
        pub const fn words(errno: Errno) -> Option<&'static str> {
            match errno {
                $(Errno::$errno => Some($words),)+
                _ => None,
            }
        }
    };
}

declare! {
    ECONNRESET, "the server's log says why";
    EEXIST, "another path of the session has the same addresses";
    ENXIO, "the server no longer has the session: it takes this path when the loss of the others is noticed";
    ENOSPC, "the server has as many sessions or connections as max_sessions and max_connections allow";
    EACCES, "the server does not admit this address; its log says why";
    EBUSY, "too many paths from this address are incomplete, or have failed to authenticate";
    ENODEV, "the server's RDMA device cannot be used, or is being removed";
    ENOMEM, "the server has no memory for the path: see max_chunk_memory_mib there";
    E2BIG, "the queue is too deep for the server's RDMA device: see sess_queue_depth there";
    ECONNREFUSED, "the server is drained, or is being unloaded";
    EDQUOT, "a limit of the host is reached on the server";
    EKEYREJECTED, "the server authenticates its clients: load the session's key";
    ENOKEY, "the server requires authentication: load the session's key there";
    EPROTONOSUPPORT, "the server takes none of the offered suites: compare auth_suites of both sides";
}
