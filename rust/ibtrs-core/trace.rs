// SPDX-License-Identifier: GPL-2.0

//! Trace events, in tracefs under `events/ibtrs/`.
//!
//! Sessions and paths are identified by their names, requests by their chunk, connection attempts
//! by their epoch. States are the numbers that [`client_path::State::to_u8`] and
//! [`server_path::State::to_u8`] return.
//!
//! [`client_path::State::to_u8`]: ibtrs_proto::fsm::client_path::State::to_u8
//! [`server_path::State::to_u8`]: ibtrs_proto::fsm::server_path::State::to_u8
//!
//! Contexts: *any*.

use ibtrs_proto::msg::ServerTimes;
use kernel::prelude::*;

kx::trace_events! {
    /// A path of the client has changed its state.
    pub fn client_path_state = ibtrs_client_path_state(
        session: &'a CStr, path: &'a CStr, from: u8, to: u8,
    );
    /// The client has posted a request on a path.
    pub fn client_submit = ibtrs_client_submit(
        session: &'a CStr, path: &'a CStr, tag: u16, write: bool, bytes: u32,
    );
    /// A request of the client has ended; `error` is 0 or a negative errno, `ns` its duration,
    /// `queue_ns` and `disk_ns` are the [`shares`] of the server.
    pub fn client_complete = ibtrs_client_complete(
        session: &'a CStr, path: &'a CStr, tag: u16, error: i32, ns: u64,
        queue_ns: i64, disk_ns: i64,
    );
    /// A request is removed from the connection attempt `epoch`, which has failed.
    pub fn client_failover = ibtrs_client_failover(session: &'a CStr, tag: u16, epoch: u32);
    /// A request is put on the requeue list; if `epoch` is not 0, it also waits for a fence up to
    /// that connection attempt.
    pub fn client_requeue = ibtrs_client_requeue(session: &'a CStr, tag: u16, epoch: u32);
    /// The client requests a fence.
    pub fn client_fence = ibtrs_client_fence(
        session: &'a CStr, path: &'a CStr, epoch: u32, drain: bool,
    );
    /// The client has received the answer to a fence.
    pub fn client_fence_done = ibtrs_client_fence_done(
        session: &'a CStr, path: &'a CStr, epoch: u32, drain: bool,
    );
    /// A path of the server has changed its state.
    pub fn server_path_state = ibtrs_server_path_state(
        session: &'a CStr, path: &'a CStr, from: u8, to: u8,
    );
    /// The server has received a request.
    pub fn server_request = ibtrs_server_request(
        session: &'a CStr, path: &'a CStr, tag: u16, write: bool, bytes: u32,
    );
    /// The server answers a request; `error` is 0 or a negative errno.
    pub fn server_response = ibtrs_server_response(
        session: &'a CStr, path: &'a CStr, tag: u16, error: i32,
    );
    /// The server has received a fence.
    pub fn server_fence = ibtrs_server_fence(
        session: &'a CStr, path: &'a CStr, epoch: u32, drain: bool,
    );
    /// The server answers a fence, which is complete.
    pub fn server_fence_done = ibtrs_server_fence_done(
        session: &'a CStr, path: &'a CStr, epoch: u32, drain: bool,
    );
}

/// Returns whether [`client_complete`] is traced.
#[inline(always)]
pub fn traces_client_complete() -> bool {
    kx::is_traced!(ibtrs_client_complete)
}

/// Returns the server's times for [`client_complete`]: the server queue and the disk, in
/// nanoseconds; -1 if they are not known.
pub fn shares(times: Option<ServerTimes>) -> (i64, i64) {
    let share = |ns| i64::try_from(ns).unwrap_or(i64::MAX);
    times.map_or((-1, -1), |times| {
        (share(times.queue_ns), share(times.disk_ns))
    })
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibtrs_trace)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use ibtrs_proto::fsm::{
        client_path,
        server_path, //
    };
    use kx::trace::Traced;

    const CLIENT: u8 = client_path::State::Connected.to_u8();
    const SERVER: u8 = server_path::State::Connected.to_u8();

    /// Calls all events; returns how often each evaluated its arguments.
    fn call_all() -> [u8; 12] {
        let (session, path) = (c"session", c"path");
        let asked = Cell::new([0; 12]);
        let ask = |event: usize| {
            let mut counts = asked.get();
            counts[event] += 1;
            asked.set(counts);
        };
        macro_rules! call {
            ($($number:literal: $event:ident($($arg:expr),*);)*) => {$(
                $event(|| {
                    ask($number);
                    ($($arg),*)
                });
            )*};
        }
        call! {
            0: client_path_state(session, path, 0, CLIENT);
            1: client_submit(session, path, 1, true, 4096);
            2: client_complete(session, path, 1, -5, 1000, -1, -1);
            3: client_failover(session, 1, 2);
            4: client_requeue(session, 1, 0);
            5: client_fence(session, path, 2, false);
            6: client_fence_done(session, path, 2, false);
            7: server_path_state(session, path, 0, SERVER);
            8: server_request(session, path, 1, false, 4096);
            9: server_response(session, path, 1, 0);
            10: server_fence(session, path, 2, true);
            11: server_fence_done(session, path, 2, true);
        }
        asked.get()
    }

    #[test]
    fn arguments_are_asked_for_while_somebody_traces() -> Result {
        assert_eq!((call_all(), traces_client_complete()), ([0; 12], false));
        let traced = Traced::new(c"ibtrs")?;
        assert_eq!((call_all(), traces_client_complete()), ([1; 12], true));
        drop(traced);
        assert_eq!((call_all(), traces_client_complete()), ([0; 12], false));
        Ok(())
    }

    #[test]
    fn shares_that_nobody_tells_are_negative() {
        assert_eq!(shares(None), (-1, -1));
        let times = ServerTimes {
            queue_ns: 0,
            disk_ns: 2,
        };
        assert_eq!(shares(Some(times)), (0, 2));
        let most = ServerTimes::decode(u32::MAX);
        assert!(shares(Some(most)).0 > 0);
    }
}
