// SPDX-License-Identifier: GPL-2.0

//! Resubmits or fails the requests on the requeue list. A request last sent on a
//! lost path waits until the epoch of that path is fenced.
//!
//! [`ibtrs_proto::failover`] decides; one work item, queued whenever a decision may have changed,
//! executes the decisions.

use crate::{
    session::{
        history,
        multipath::Multipath,
        requeue_list::{
            Header,
            Waiting, //
        },
        Session, //
    },
    types::Descriptor, //
};
use ibtrs_core::convert;
use ibtrs_proto::{
    downtime,
    errno::Errno,
    failover::{
        Call,
        Next,
        NotTaken,
        MAX_BREAKS, //
    },
    imm::{
        Fence,
        Imm, //
    },
    tag::Tag, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::work::WorkItem;

/// Delay before a retry if a send queue was full.
const FULL_PAUSE_MS: u32 = 2;

impl Session {
    /// Queues the work item that resubmits or fails the requests on the requeue list.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn kick_requeue(self: &Arc<Self>) {
        self.requeue_work.enqueue(self.clone());
    }

    /// As [`Session::kick_requeue`], and waits for the work item.
    pub(crate) fn flush_requeue(self: &Arc<Self>) {
        self.kick_requeue();
        self.requeue_work.flush();
    }

    /// Ends with `EIO` the requests on the requeue list that are no longer wanted
    /// ([`IoHandle::is_wanted`](kx::io::IoHandle::is_wanted)). Requests that are added to the list
    /// later end in the same way.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn recheck(self: &Arc<Self>) {
        self.flush_requeue();
    }

    /// Fails all requests on the requeue list, and all later ones.
    pub(crate) fn refuse_all(self: &Arc<Self>) {
        self.failover.lock().logic.close();
        self.kick_requeue();
    }

    /// Records that the server has answered the fence of `epoch`.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn fence_done(self: &Arc<Self>, epoch: u32) {
        let mut failover = self.failover.lock();
        // A closing path may still deliver the answer to a fence that was dropped with the path. Such an
        // answer must not replace the one that requests wait for.
        if !failover.logic.awaits_fence(epoch) {
            return;
        }
        failover.answered = Some(epoch);
        drop(failover);
        self.kick_requeue();
    }

    /// Updates the requests on the list after a fence: the server no longer executes requests of
    /// attempt `epoch`.
    pub(crate) fn fenced(&self, epoch: u32) {
        for tag in Tag::all(self.depth_split().queue_depth()) {
            let mut failover = self.failover.lock();
            if failover.count() == 0 {
                break;
            }
            if let Some(waiting) = failover.get_mut(tag) {
                waiting.request.entry.fenced(epoch);
            }
        }
    }

    /// Handles an answer to a fence, and then each request on the requeue list.
    fn requeue_all(self: &Arc<Self>) {
        let answered = self.failover.lock().answered.take();
        if let Some(epoch) = answered {
            self.fenced(epoch);
            self.failover.lock().logic.fence_done(epoch);
        }
        let mut header = Header::EMPTY;
        let mut full = false;
        for tag in Tag::all(self.depth_split().queue_depth()) {
            if self.failover.lock().count() == 0 {
                break;
            }
            full |= self.requeue_tag(tag, &mut header);
        }
        if full {
            self.poll_all();
            self.requeue_later.enqueue_in(self.clone(), FULL_PAUSE_MS);
        }
    }

    /// Handles the request with tag `tag`; returns whether it must be retried later.
    fn requeue_tag(self: &Arc<Self>, tag: Tag, header: &mut Header) -> bool {
        self.with_multipath(|multipath| {
            let via = multipath.paths.first();
            let mut failover = self.failover.lock();
            let looked = failover.get_mut(tag);
            let looked = looked.map(|p| (p.request.entry, p.io.is_wanted(), p.is_to_end()));
            let Some((entry, wanted, is_to_end)) = looked else {
                return false;
            };
            if !wanted {
                failover.logic.note_abandoned(&entry);
                let waiting = failover.take(tag, header);
                drop(failover);
                self.abandon(waiting, EIO);
                return false;
            }
            match failover.logic.next(&entry, via.map(|via| via.attempt.epoch())) {
                Next::Wait if is_to_end => {
                    let waiting = failover.take(tag, header);
                    drop(failover);
                    match waiting {
                        // If a fence is answered concurrently, the request misses that, and
                        // requests the fence once more.
                        Some(mut waiting) if entry.was_moved() => {
                            waiting.make_noop(header);
                            self.put_back(waiting);
                        }
                        // The server has never received it.
                        waiting => self.abandon(waiting, ETIMEDOUT),
                    }
                    false
                }
                Next::Wait => false,
                Next::Submit => {
                    let waiting = failover.take(tag, header);
                    let ext = failover.logic.has_ext();
                    drop(failover);
                    let Some(mut waiting) = waiting else {
                        return false;
                    };
                    if waiting.io.is_cancelled() {
                        if !ext {
                            // A server without the extensions would execute the message.
                            self.abandon(Some(waiting), ETIMEDOUT);
                            return false;
                        }
                        waiting.make_noop(header);
                    }
                    self.resubmit(multipath, waiting, header)
                }
                Next::End(errno) => {
                    let waiting = failover.take(tag, header);
                    drop(failover);
                    if entry.broke_too_often() && errno == Errno::EIO {
                        kx::pr_err_ratelimited!(
                            "{}: request failed: the server broke the protocol each of the {} times that it was sent\n",
                            self.name(),
                            MAX_BREAKS
                        );
                    }
                    self.abandon(waiting, convert::error(errno));
                    false
                }
                Next::Fence(epoch) => {
                    drop(failover);
                    let fence = Fence {
                        epoch,
                        drain: false,
                    };
                    if let Some(via) = via {
                        if let Err(error) = via.send_imm(Imm::Fence(fence)) {
                            via.attempt.error(fmt!(
                                "cannot send a fence ({})",
                                convert::errno(error).as_str()
                            ));
                        }
                    }
                    false
                }
            }
        })
        .unwrap_or(false)
    }

    fn resubmit(
        self: &Arc<Self>,
        multipath: &Multipath,
        waiting: Waiting,
        header: &Header,
    ) -> bool {
        let mut req = Descriptor {
            last: true,
            counted: false,
            avoid: None,
            ..waiting.request
        };
        let user_hdr = header.as_slice();
        let sent = multipath.submit_to_one(
            self.policy(),
            &self.round_robin,
            &mut req,
            user_hdr,
            waiting.io,
        );
        match sent {
            Ok(_) => false,
            Err((error, io)) => self.not_taken(Waiting { io, ..waiting }, error),
        }
    }

    /// Handles a request that no path has accepted; returns whether it must be retried later.
    fn not_taken(self: &Arc<Self>, waiting: Waiting, error: Error) -> bool {
        let mut failover = self.failover.lock();
        let entry = waiting.request.entry;
        let decision = failover.logic.not_taken(&entry, convert::errno(error));
        if decision == NotTaken::End {
            drop(failover);
            self.abandon(Some(waiting), error);
            return false;
        }
        drop(failover);
        self.put_back(waiting);
        decision == NotTaken::Later
    }

    /// Returns a request to the requeue list.
    fn put_back(self: &Arc<Self>, waiting: Waiting) {
        let back = self.failover.lock().put_back(waiting);
        self.abandon(back.err(), EIO);
    }

    /// Ends a request that was removed from the requeue list, and that no path accepts, with
    /// `error`.
    fn abandon(self: &Arc<Self>, waiting: Option<Waiting>, error: Error) {
        let Some(waiting) = waiting else {
            return;
        };
        if waiting.request.failover != 0 {
            self.moved_request_ended(waiting.request.failover);
        }
        waiting.io.done(Err(error));
    }

    /// Fails requests that have waited for longer than the queue timeout.
    fn expire(self: &Arc<Self>) {
        let limit_s = self.settings().queue_timeout_s.get();
        let mut failover = self.failover.lock();
        let Some((outage, since)) = failover.outage else {
            return;
        };
        let waited_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(0);
        let planned = failover.announcement.map(|planned| planned.now());
        match downtime::left_ms(limit_s, waited_ms, planned) {
            Some(0) => (),
            Some(left_ms) => {
                drop(failover);
                let left_ms = u32::try_from(left_ms).unwrap_or(u32::MAX);
                self.expiry.enqueue_in(self.clone(), left_ms);
                return;
            }
            // A change of the setting calls this again.
            None => return,
        }
        failover.outage = None;
        let over = failover.logic.queue_timeout(outage) && !failover.logic.is_closed();
        if let Some(away) = failover.away.as_mut().filter(|_| over) {
            away.failing_since_ms = Some(history::now_ms());
        }
        drop(failover);
        if over {
            self.record_session("failing", fmt!("no path for {} s", waited_ms / 1000));
            pr_warn!(
                "{}: no path for {} s: requests fail from now on\n",
                self.name(),
                waited_ms / 1000
            );
            self.kick_requeue();
        }
    }

    /// Reports session events to the users of the session.
    fn notify_users(self: &Arc<Self>) {
        loop {
            let call = self.failover.lock().logic.call();
            let Some(call) = call else {
                break;
            };
            let is_up = matches!(call, Call::Up { .. });
            self.queue_uevent(is_up);
            let state = if is_up { "connected" } else { "disconnected" };
            self.record_session(state, fmt!(""));
            match call {
                Call::Down => self.session_events.down(),
                Call::Up { session_lost } => self.session_events.up(session_lost),
            }
            self.users_notified();
            self.kick_requeue();
        }
    }
}

/// Resubmits or fails the requests on the requeue list.
impl WorkItem<{ crate::session::work::REQUEUE }> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.requeue_all();
    }
}

/// Retries after a send queue was full.
impl WorkItem<{ crate::session::work::REQUEUE_LATER }> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.kick_requeue();
    }
}

/// Checks the queue timeout.
impl WorkItem<{ crate::session::work::EXPIRY }> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.expire();
    }
}

/// Calls the users of the session.
impl WorkItem<{ crate::session::work::NOTIFY }> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.notify_users();
    }
}
