// SPDX-License-Identifier: GPL-2.0

//! Implements the interface of a session for its paths.

use super::Session;
use crate::{
    path::{
        attempt::{
            Attempt,
            PathConn, //
        },
        parent::Parent,
        Path, //
    },
    types::Descriptor, //
};
use ibtrs_core::messages::Attached;
use ibtrs_proto::{
    auth::{
        AuthError,
        Session as Kind, //
    },
    failover::{
        Loss,
        Offer,
        OfferResult,
        Published, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kx::{
    io::IoHandle,
    sync::atomic::Relaxed, //
};

impl Parent for Session {
    fn begin_attempt(&self) -> Result<(u32, Option<Arc<Attached>>)> {
        Session::begin_attempt(self)
    }

    fn uuid(&self) -> [u8; 16] {
        self.paths.lock().uuid
    }

    fn take_new_uuid(&self, attempt: &Attempt) -> Option<Error> {
        let mut paths = self.paths.lock();
        if paths.uuid != attempt.session_uuid {
            // Another attempt was refused for the same reason, and has replaced the UUID.
            return Some(EAGAIN);
        }
        // Paths are published under the lock.
        if self.is_connected() {
            return None;
        }
        paths.uuid = kx::random::uuid();
        match core::mem::replace(&mut paths.is_uuid_new, true) {
            false => Some(EAGAIN),
            true => Some(EKEYREJECTED),
        }
    }

    fn kind(&self) -> Kind {
        // If the session is authenticated, so are all published paths; see `offer` and
        // `set_authenticated`.
        let _paths = self.paths.lock();
        if self.is_authenticated() {
            Kind::Authenticated
        } else if self.is_connected() {
            Kind::Plain
        } else {
            Kind::New
        }
    }

    fn set_authenticated(&self) -> Result<(), AuthError> {
        let _paths = self.paths.lock();
        let multipath = self.multipath.read();
        let mut paths = multipath.get().into_iter().flat_map(|all| &all.paths);
        if paths.any(|path| path.attempt.proved.as_ref().is_none()) {
            return Err(AuthError::Mixed);
        }
        self.authenticated.store(true, Relaxed);
        Ok(())
    }

    fn is_connected(&self) -> bool {
        Session::is_connected(self)
    }

    fn is_cut_off(&self) -> bool {
        self.limits.as_ref().is_some() && !self.is_connected()
    }

    fn may_create(&self) -> bool {
        self.failover.lock().logic.may_create()
    }

    fn has_extensions(&self) -> bool {
        Session::has_extensions(self)
    }

    fn offer(self: Arc<Self>, offer: &Offer, conn: &Arc<PathConn>) -> Result<OfferResult> {
        Session::offer(&self, offer, conn)
    }

    fn record(&self, path: &CStr, what: &'static str, cause: &str) {
        self.history.record(fmt!("{path}"), what, fmt!("{cause}"));
    }

    fn ranks_changed(&self) {
        self.swap_and_wait(&mut self.paths.lock(), |_| ());
    }

    fn unpublish(self: Arc<Self>, attempt: &Attempt) {
        Session::unpublish(&self, attempt);
    }

    fn request_moved(&self, path: u32, request: u32, since: Instant<Monotonic>) -> u32 {
        Session::request_moved(self, path, request, since)
    }

    fn requeue_lost(
        self: Arc<Self>,
        path: (&Published, Loss),
        request: Descriptor,
        user_hdr: &[u8],
        io: IoHandle,
    ) -> Option<IoHandle> {
        let waiting = self.failover.lock().put_lost(path, request, user_hdr, io);
        let refused = waiting.err();
        if refused.is_some() {
            Session::moved_request_ended(&self, request.failover);
        }
        refused
    }

    fn requests_moved(self: Arc<Self>, failover: u32) {
        Session::requests_moved(&self, failover);
    }

    fn moved_request_answered(self: Arc<Self>, failover: u32) {
        Session::moved_request_answered(&self, failover);
    }

    fn moved_request_ended(self: Arc<Self>, failover: u32) {
        Session::moved_request_ended(&self, failover);
    }

    fn kick_requeue(self: Arc<Self>) {
        Session::kick_requeue(&self);
    }

    fn fence_done(self: Arc<Self>, epoch: u32) {
        Session::fence_done(&self, epoch);
    }

    fn noticed(self: Arc<Self>, number: u32) {
        Session::noticed(&self, number);
    }

    fn durable(self: Arc<Self>, epoch: u32, number: u32) {
        Session::durable(&self, epoch, number);
    }

    fn downtime_announced(self: Arc<Self>, attempt: &Attempt, seconds: u32) -> bool {
        Session::downtime_announced(&self, attempt, seconds)
    }

    fn forget(&self, path: &Arc<Path>) {
        let mut paths = self.paths.lock();
        let at = paths.list.iter().position(|p| Arc::ptr_eq(p, path));
        let gone = at.and_then(|at| paths.list.remove(at).ok());
        drop(paths);
        drop(gone);
    }
}
