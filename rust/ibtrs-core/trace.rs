// SPDX-License-Identifier: GPL-2.0

//! Trace events, in tracefs under `events/ibtrs/`.
//!
//! Sessions and paths go by their names, requests by their chunk, attempts to connect by their
//! epoch. States are the numbers that [`client_path::State::to_u8`] and
//! [`server_path::State::to_u8`] give.
//!
//! [`client_path::State::to_u8`]: ibtrs_proto::fsm::client_path::State::to_u8
//! [`server_path::State::to_u8`]: ibtrs_proto::fsm::server_path::State::to_u8
//!
//! Contexts: *any*.

use kernel::prelude::*;

kx::trace_events! {
    /// A path of the client has changed its state.
    pub fn client_path_state = ibtrs_client_path_state(
        session: &'a CStr, path: &'a CStr, from: u8, to: u8,
    );
    /// A request was handed to a path of the client.
    pub fn client_submit = ibtrs_client_submit(
        session: &'a CStr, path: &'a CStr, tag: u16, write: bool, bytes: u32,
    );
    /// A request of the client has ended; `error` is 0 or negative, `ns` the time it took.
    pub fn client_complete = ibtrs_client_complete(
        session: &'a CStr, path: &'a CStr, tag: u16, error: i32, ns: u64,
    );
    /// A request has left the attempt `epoch` of a path, which died.
    pub fn client_failover = ibtrs_client_failover(session: &'a CStr, tag: u16, epoch: u32);
    /// A request waits for a path, and for the fence of the attempt `epoch` unless that is 0.
    pub fn client_park = ibtrs_client_park(session: &'a CStr, tag: u16, epoch: u32);
    /// The client asks for a fence.
    pub fn client_fence = ibtrs_client_fence(
        session: &'a CStr, path: &'a CStr, epoch: u32, drain: bool,
    );
    /// The client was told that a fence holds.
    pub fn client_fence_done = ibtrs_client_fence_done(
        session: &'a CStr, path: &'a CStr, epoch: u32, drain: bool,
    );
    /// A path of the server has changed its state.
    pub fn server_path_state = ibtrs_server_path_state(
        session: &'a CStr, path: &'a CStr, from: u8, to: u8,
    );
    /// The server has got a request.
    pub fn server_request = ibtrs_server_request(
        session: &'a CStr, path: &'a CStr, tag: u16, write: bool, bytes: u32,
    );
    /// The server answers a request; `error` is 0 or negative.
    pub fn server_response = ibtrs_server_response(
        session: &'a CStr, path: &'a CStr, tag: u16, error: i32,
    );
    /// The server was asked for a fence.
    pub fn server_fence = ibtrs_server_fence(
        session: &'a CStr, path: &'a CStr, epoch: u32, drain: bool,
    );
    /// The server says that a fence holds.
    pub fn server_fence_done = ibtrs_server_fence_done(
        session: &'a CStr, path: &'a CStr, epoch: u32, drain: bool,
    );
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibtrs_trace)]
mod tests {
    use super::*;
    use ibtrs_proto::fsm::{
        client_path,
        server_path, //
    };

    const CLIENT: u8 = client_path::State::Connected.to_u8();
    const SERVER: u8 = server_path::State::Connected.to_u8();

    /// While nobody traces, they do not even ask for their arguments.
    #[test]
    fn all_can_be_called() {
        let (session, path) = (c"session", c"path");
        client_path_state(|| (session, path, 0, CLIENT));
        client_submit(|| (session, path, 1, true, 4096));
        client_complete(|| (session, path, 1, -5, 1000));
        client_failover(|| (session, 1, 2));
        client_park(|| (session, 1, 0));
        client_fence(|| (session, path, 2, false));
        client_fence_done(|| (session, path, 2, false));
        server_path_state(|| (session, path, 0, SERVER));
        server_request(|| (session, path, 1, false, 4096));
        server_response(|| (session, path, 1, 0));
        server_fence(|| (session, path, 2, true));
        server_fence_done(|| (session, path, 2, true));
    }
}
