// SPDX-License-Identifier: GPL-2.0

//! Adds paths to the session's multipath, and removes lost ones.

use super::{
    Limits,
    Session, //
};
use crate::{
    path::{
        attempt::{
            auth,
            Attempt,
            PathConn, //
        },
        Path, //
    },
    session::{
        history,
        multipath::Multipath,
        requeue_list::{
            Away,
            RequeueList, //
        }, //
    }, //
};
use ibtrs_proto::{
    auth::AuthError,
    failover::{
        Offer,
        OfferResult, //
    },
    permit::DepthSplit, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::Instant, //
};
use kx::sync::Retired;

/// The path list of a session.
pub(super) struct Paths {
    pub(super) list: KVec<Arc<Path>>,
    spares: Spares,
    /// The session is being closed, so no path may be added.
    pub(super) closing: bool,
    /// Identifies the session to the server, see [`Parent::take_new_uuid`](crate::path::parent::Parent::take_new_uuid).
    pub(super) uuid: [u8; 16],
    /// The UUID is new since the last path was published.
    pub(super) is_uuid_new: bool,
    /// Number of paths that are in sysfs or about to be.
    shown: usize,
}

impl Paths {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            list: KVec::new(),
            spares: Spares::new()?,
            closing: false,
            uuid: kx::random::uuid(),
            is_uuid_new: false,
            shown: 0,
        })
    }

    /// Waits for the readers of former snapshots of the multipath.
    pub(super) fn settle(&mut self) {
        self.spares.clear();
    }
}

/// The unpublished snapshots of the multipath, the most recently published one at the end. They have
/// capacity for all paths, so a change does not allocate.
///
/// A snapshot is reused when it has no readers any more. A change seldom waits for that, as there are as many
/// snapshots as changes while a session is opened and its first paths connect.
struct Spares(KVec<Retired<Multipath>>);

impl Spares {
    const COUNT: usize = 3;

    fn new() -> Result<Self> {
        let mut spares = KVec::with_capacity(Self::COUNT, GFP_KERNEL)?;
        for _ in 0..Self::COUNT {
            spares.push(Retired::unread(Multipath::new()?), GFP_KERNEL)?;
        }
        Ok(Self(spares))
    }

    /// Takes the snapshot that was published longest ago, and waits for its readers.
    fn take(&mut self) -> Option<KBox<Multipath>> {
        let oldest = self.0.remove(0).ok()?;
        oldest.wait().map_err(|oldest| self.give(oldest)).ok()
    }

    fn give(&mut self, spare: Retired<Multipath>) {
        // There is capacity for it, as one was taken before.
        let _ = self.0.push_within_capacity(spare);
    }

    /// Waits for the readers of all snapshots, and removes the paths from them.
    fn clear(&mut self) {
        for _ in 0..self.0.len() {
            if let Some(mut spare) = self.take() {
                spare.paths.clear();
                self.give(Retired::unread(spare));
            }
        }
    }
}

/// Counts a path as shown in sysfs while this exists. The session's directory is removed only after
/// the last one is dropped: a path's directory may be removed by the store function of one of the
/// session's own files, which cannot remove the directory that contains its file.
pub(crate) struct ShownPath(Arc<Session>);

impl ShownPath {
    /// Counts a path as shown.
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
        self.0.env.wait_queue().wake_all();
    }
}

impl Session {
    /// Waits until no path of the session, which is being closed, is in sysfs.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn wait_hidden(&self) {
        self.env
            .wait_queue()
            .wait_uninterruptible(|| self.paths.lock().shown == 0);
    }

    /// Calls `f` with the connected paths; `f` must not sleep.
    pub(crate) fn with_multipath<R>(&self, f: impl FnOnce(&Multipath) -> R) -> Option<R> {
        self.multipath.read().get().map(f)
    }

    /// Publishes a snapshot with `change` applied. Submitters that have loaded the former snapshot may
    /// still use it when this returns.
    fn swap(&self, paths: &mut Paths, change: impl FnOnce(&mut KVec<Arc<PathConn>>)) {
        if let Some(next) = self.next_snapshot(paths, change) {
            if let Some(former) = self.multipath.publish(next) {
                paths.spares.give(former);
            }
        }
    }

    /// Publishes a snapshot with `change` applied. When this returns, no submitter uses a path that
    /// `change` removed, and no other part of the session refers to it as connected.
    pub(super) fn swap_and_wait(
        &self,
        paths: &mut Paths,
        change: impl FnOnce(&mut KVec<Arc<PathConn>>),
    ) {
        if let Some(next) = self.next_snapshot(paths, change) {
            if let Some(former) = self.multipath.replace(Some(next)) {
                paths.spares.give(Retired::unread(former));
            }
            paths.spares.clear();
        }
    }

    /// Creates a snapshot with `change` applied.
    fn next_snapshot(
        &self,
        paths: &mut Paths,
        change: impl FnOnce(&mut KVec<Arc<PathConn>>),
    ) -> Option<KBox<Multipath>> {
        // There is always a spare; a check is easier than a proof.
        let mut next = paths.spares.take()?;
        next.paths.clear();
        let multipath = self.multipath.read();
        for path in multipath
            .get()
            .into_iter()
            .flat_map(|multipath| multipath.paths.iter())
        {
            // The list has capacity for all paths.
            let _ = next.paths.push_within_capacity(path.clone());
        }
        drop(multipath);
        change(&mut next.paths);
        next.find_spared();
        next.generation = self.failover.lock().generation();
        Some(next)
    }

    /// Offers the connected path `conn` to the session. With [`OfferResult::Publish`], submitters
    /// may use the path from here on.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn offer(
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
        if conn.attempt.session_uuid != paths.uuid {
            conn.attempt
                .error(fmt!("the session has got a new UUID meanwhile"));
            return Ok(OfferResult::Again);
        }
        // This attempt may have begun before another path authenticated the session.
        if self.is_authenticated() && conn.attempt.proved.as_ref().is_none() {
            return Err(auth::refused(&conn.attempt, AuthError::Mixed));
        }
        let mut failover = self.failover.lock();
        let was_connected = failover.logic.is_connected();
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
        failover.away = None;
        if !was_connected {
            // The server is up again.
            failover.announcement = None;
        }
        self.publish_generation(&failover);
        drop(failover);
        paths.is_uuid_new = false;
        self.limits.populate(Limits {
            queue_depth: depth,
            max_io_bytes: offer.max_io_bytes,
        });
        conn.attempt.published.populate(published);
        conn.attempt.published_at.populate(Instant::now());
        conn.attempt.path.set_previous(offer.epoch);
        self.swap(&mut paths, |paths| {
            // The list has capacity for all paths.
            let _ = paths.push_within_capacity(conn.clone());
        });
        drop(paths);
        self.fenced(offer.previous);
        self.expiry.cancel();
        self.notify.enqueue(self.clone());
        self.env.wait_queue().wake_all();
        self.kick_requeue();
        Ok(result)
    }

    /// Fails all connected paths: the server no longer knows them.
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

    /// Removes a path from the multipath. When this returns, no submitter uses the path.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn unpublish(self: &Arc<Self>, attempt: &Attempt) {
        let Some(published) = attempt.published.copy() else {
            return;
        };
        let mut paths = self.paths.lock();
        self.swap_and_wait(&mut paths, |paths| {
            paths.retain(|path| path.attempt.epoch() != attempt.epoch())
        });
        let mut failover = self.failover.lock();
        let outage = failover.logic.path_lost(&published);
        if let Some(outage) = outage {
            let now = Instant::now();
            failover.outage = Some((outage, now));
            failover.away = Some(Away {
                since_ms: history::now_ms(),
                failing_since_ms: None,
            });
            // The time for which the server wrote back data before it stopped does not count as
            // downtime.
            if let Some(announcement) = &mut failover.announcement {
                announcement.at = now;
            }
        }
        let closing = failover.logic.is_closed();
        drop(failover);
        // Before any request is moved, and in the order in which paths are lost.
        match outage {
            Some(_) => self.failover_is_cut_off(),
            None if closing => {}
            None => self.failover_begins(attempt),
        }
        drop(paths);
        // The requeue resends on another path a fence that this path carried; the fence need not
        // wait until this path is drained.
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

    /// Records that the users have handled an event: quiesced I/O resumes, unless it is quiesced
    /// for another reason.
    pub(crate) fn users_notified(&self) {
        let mut paths = self.paths.lock();
        let mut failover = self.failover.lock();
        failover.logic.returned();
        self.publish_generation(&failover);
        drop(failover);
        self.swap(&mut paths, |_| ());
    }
}
