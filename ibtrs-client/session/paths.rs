// SPDX-License-Identifier: GPL-2.0

//! Adds paths to the session's multipath, and removes lost ones.

use super::{
    Limits,
    Session, //
};
use crate::{
    attempt::{
        Attempt,
        PathConn, //
    },
    auth,
    multipath::Multipath,
    path::Path,
    request::Info,
    requeue_list::RequeueList, //
};
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
    },
    permit::DepthSplit, //
};
use kernel::{
    alloc::flags::GFP_NOWAIT,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    time::Instant, //
};
use kx::io::IoHandle;

/// The paths of a session.
pub(super) struct Paths {
    pub(super) list: KVec<Arc<Path>>,
    /// The set that is not published, and empty.
    pub(super) spare: Option<KBox<Multipath>>,
    /// Capacity of both snapshots, at least the number of paths.
    pub(super) room: usize,
    /// No path is added any more.
    pub(super) closing: bool,
    /// Paths that are in sysfs, or about to be.
    shown: usize,
}

impl Paths {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            list: KVec::new(),
            spare: Some(KBox::new(Multipath::new(), GFP_KERNEL)?),
            room: 0,
            closing: false,
            shown: 0,
        })
    }
}

/// Counts a path as shown in sysfs, as long as it exists. The directory of the session does not go
/// before that: a path's may go in a function of a file of the session, which cannot remove the
/// directory that the file is in.
pub(crate) struct ShownPath(Arc<Session>);

impl ShownPath {
    /// Counts a path.
    ///
    /// # Errors
    ///
    /// `ESHUTDOWN` if the session is being closed.
    pub(crate) fn new(session: &Arc<Session>) -> Result<Self> {
        let mut paths = session.paths.lock();
        if paths.closing {
            return Err(ESHUTDOWN);
        }
        paths.shown += 1;
        Ok(Self(session.clone()))
    }
}

impl Drop for ShownPath {
    fn drop(&mut self) {
        self.0.paths.lock().shown -= 1;
        self.0.wait_queue.wake_all();
    }
}

/// The number of the attempt that has the token, 0 for none.
pub(crate) struct Token(Atomic<u32>);

impl Token {
    pub(super) fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Takes it, unless another attempt has it.
    pub(crate) fn take(&self, epoch: u32) -> bool {
        // ORDERING: Nothing else depends on it.
        self.0.cmpxchg(0, epoch, Relaxed).is_ok()
    }

    /// Gives it back, if the attempt has it.
    pub(crate) fn give(&self, epoch: u32) {
        let _ = self.0.cmpxchg(epoch, 0, Relaxed);
    }
}

impl Session {
    /// Waits until no path is in sysfs; the session is being closed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn wait_hidden(&self) {
        self.wait_queue
            .wait_uninterruptible(|| self.paths.lock().shown == 0);
    }

    /// Returns the number of an attempt that begins.
    pub(crate) fn next_epoch(&self) -> Result<u32> {
        self.failover.lock().logic.begin().ok_or(EOVERFLOW)
    }

    /// Returns whether users of the session wait for a path. An attempt may then take memory that
    /// is kept in reserve, as reclaim may depend on their writes.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.limits.as_ref().is_some() && !self.is_connected()
    }

    /// Calls `f` with the connected paths; `f` must not sleep.
    pub(crate) fn with_multipath<R>(&self, f: impl FnOnce(&Multipath) -> R) -> Option<R> {
        self.multipath.read().get().map(f)
    }

    /// Publishes a snapshot that `change` was applied to; when this returns, no
    /// submitter uses a path that it removed.
    fn swap(&self, paths: &mut Paths, change: impl FnOnce(&mut KVec<Arc<PathConn>>)) {
        // It is always there, but checking is easier than proving that.
        let Some(mut next) = paths.spare.take() else {
            return;
        };
        next.paths.clear();
        let multipath = self.multipath.read();
        for path in multipath
            .get()
            .into_iter()
            .flat_map(|multipath| multipath.paths.iter())
        {
            // There is room, see `make_room`.
            let _ = next.paths.push_within_capacity(path.clone());
        }
        drop(multipath);
        change(&mut next.paths);
        next.find_drained();
        next.generation = self.failover.lock().generation();
        paths.spare = self.multipath.replace(Some(next));
        if let Some(old) = &mut paths.spare {
            old.paths.clear();
        }
    }

    /// Offers a path that is about to come up; if it is taken, submitters find it
    /// from now on.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn offer(
        self: &Arc<Self>,
        offer: &Offer,
        conn: &Arc<PathConn>,
    ) -> Result<OfferResult> {
        let depth = offer.queue_depth;
        if DepthSplit::of_session(depth).reserved() == 0 {
            conn.attempt
                .error(fmt!("the server's queue depth {} is too short", depth));
            return Err(EINVAL);
        }
        let mut list = match self.limits.as_ref() {
            None => Some(RequeueList::new(depth)?),
            Some(_) => None,
        };
        let mut paths = self.paths.lock();
        // It may have begun before the session was authenticated.
        if self.is_authenticated() && conn.attempt.key_id.as_ref().is_none() {
            return Err(auth::refused(&conn.attempt, AuthError::Mixed));
        }
        let mut failover = self.failover.lock();
        let result = failover.logic.offer(offer);
        let OfferResult::Publish(published) = result else {
            drop(failover);
            if let OfferResult::SessionLost = result {
                self.fail_all();
            }
            return Ok(result);
        };
        if let Some(list) = &mut list {
            failover.set_list(list);
        }
        failover.outage = None;
        self.publish_generation(&failover);
        drop(failover);
        self.limits.populate(Limits {
            queue_depth: depth,
            max_io_bytes: offer.max_io_bytes,
        });
        conn.attempt.published.populate(published);
        conn.attempt.path.set_previous(offer.epoch);
        self.swap(&mut paths, |paths| {
            // There is room.
            let _ = paths.push_within_capacity(conn.clone());
        });
        drop(paths);
        self.fenced(offer.previous);
        self.expiry.cancel();
        self.notify.enqueue(self.clone());
        self.wait_queue.wake_all();
        self.kick_requeue();
        Ok(result)
    }

    /// Returns what authentication has to know of the session, for a path that begins.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn kind(&self) -> Kind {
        // A path that is published is authenticated, or the session never was, see `offer`.
        let _paths = self.paths.lock();
        if self.is_authenticated() {
            Kind::Authenticated
        } else if self.is_connected() {
            Kind::Plain
        } else {
            Kind::New
        }
    }

    /// A path is authenticated: all further ones have to be.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// A path without authentication is connected.
    pub(crate) fn set_authenticated(&self) -> Result<(), AuthError> {
        let _paths = self.paths.lock();
        let multipath = self.multipath.read();
        let mut paths = multipath.get().into_iter().flat_map(|all| &all.paths);
        if paths.any(|path| path.attempt.key_id.as_ref().is_none()) {
            return Err(AuthError::Mixed);
        }
        self.authenticated.store(true, Relaxed);
        Ok(())
    }

    /// Reserves capacity for one more path in both snapshots, so that later changes allocate
    /// nothing.
    ///
    /// # Errors
    ///
    /// `ENOMEM`. It does not wait for memory, as other paths connect under the lock of the path
    /// list.
    pub(super) fn make_room(&self, paths: &mut Paths) -> Result {
        let count = paths.list.len() + 1;
        if count <= paths.room {
            return Ok(());
        }
        let room = count.next_power_of_two();
        for _ in 0..2 {
            if let Some(spare) = &mut paths.spare {
                // It is empty.
                spare.paths.reserve(room, GFP_NOWAIT)?;
            }
            self.swap(paths, |_| ());
        }
        paths.room = room;
        Ok(())
    }

    /// A path was drained, or is so no longer.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn drained_changed(&self) {
        self.swap(&mut self.paths.lock(), |_| ());
    }

    /// The server no longer knows the connected paths.
    fn fail_all(&self) {
        let multipath = self.multipath.read();
        for path in multipath
            .get()
            .into_iter()
            .flat_map(|multipath| multipath.paths.iter())
        {
            path.attempt
                .error(fmt!("the server no longer knows this path"));
        }
    }

    /// Hides a path; no submitter is in it any more when this returns.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn unpublish(self: &Arc<Self>, attempt: &Attempt) {
        let Some(published) = attempt.published.copy() else {
            return;
        };
        let mut paths = self.paths.lock();
        self.swap(&mut paths, |paths| {
            paths.retain(|path| path.attempt.epoch != attempt.epoch)
        });
        let mut failover = self.failover.lock();
        let outage = failover.logic.path_lost(&published);
        if let Some(outage) = outage {
            failover.outage = Some((outage, Instant::now()));
        }
        let closing = failover.logic.is_closed();
        drop(failover);
        drop(paths);
        // A fence that this path carried goes by another one; nothing waits for that until this
        // one is drained.
        self.kick_requeue();
        if outage.is_none() {
            return;
        }
        if !closing {
            kx::pr_warn_ratelimited!("{}: no path to the server is left\n", self.name());
        }
        self.expiry.modify(self.clone(), 0);
        self.notify.enqueue(self.clone());
    }

    /// The users have handled an event: quiesced I/O resumes unless there is another reason to
    /// wait.
    pub(crate) fn users_notified(&self) {
        let mut paths = self.paths.lock();
        let mut failover = self.failover.lock();
        failover.logic.returned();
        self.publish_generation(&failover);
        drop(failover);
        self.swap(&mut paths, |_| ());
    }

    /// Puts a request aside that a lost path leaves behind; returns it if that is not possible.
    pub(crate) fn requeue_lost(
        &self,
        path: (&Published, Loss),
        info: Info,
        user_hdr: &[u8],
        io: IoHandle,
    ) -> Option<IoHandle> {
        let waiting = self.failover.lock().put_lost(path, info, user_hdr, io);
        waiting.err()
    }
}
