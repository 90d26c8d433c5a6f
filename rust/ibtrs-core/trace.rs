// SPDX-License-Identifier: GPL-2.0

//! Trace events, in tracefs under `events/ibtrs/`.
//!
//! Sessions and paths go by their names, requests by their chunk, attempts to connect by their
//! epoch. States are the numbers that [`client_state`] and [`server_state`] give.
//!
//! Contexts: *any*.

use ibtrs_proto::fsm::{
    client_path,
    server_path, //
};
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

/// The number of a state in the events of the client.
pub const fn client_state(state: client_path::State) -> u8 {
    match state {
        client_path::State::Connecting => 0,
        client_path::State::ConnectingErr => 1,
        client_path::State::Connected => 2,
        client_path::State::Reconnecting => 3,
        client_path::State::Closing => 4,
        client_path::State::Closed => 5,
        client_path::State::Dead => 6,
    }
}

/// The number of a state in the events of the server.
pub const fn server_state(state: server_path::State) -> u8 {
    match state {
        server_path::State::Connecting => 0,
        server_path::State::Connected => 1,
        server_path::State::Closing => 2,
        server_path::State::Closed => 3,
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibtrs_trace)]
mod tests {
    use super::*;

    const CLIENT: u8 = client_state(client_path::State::Connected);
    const SERVER: u8 = server_state(server_path::State::Connected);

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
