// SPDX-License-Identifier: GPL-2.0

//! What becomes of requests that wait: they are sent by a path that is
//! connected, after a fence if another path had them, or end with an error.
//!
//! The decisions are [`ibtrs_proto::failover`]'s. They are carried out by one
//! work item at a time, which is queued whenever one of them may have changed.

use crate::{
    park::{
        Header,
        Parked, //
    },
    request::Req,
    session::Session,
    set::Set, //
};
use ibtrs_core::convert;
use ibtrs_proto::{
    errno::Errno,
    failover::{
        Call,
        Next,
        MAX_BREAKS, //
    },
    imm::{
        Fence,
        Imm, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::work::WorkItem;

/// When to try again after a send queue was full.
const FULL_PAUSE_MS: u32 = 2;

impl Session {
    /// Looks after the requests that wait, soon.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn pump(self: &Arc<Self>) {
        self.pump.enqueue(self.clone());
    }

    /// As [`Session::pump`], and waits for that.
    pub(crate) fn pump_all(self: &Arc<Self>) {
        self.pump();
        self.pump.flush();
    }

    /// Looks whether requests that wait are still wanted: those that are not
    /// ([`IoHandle::is_wanted`](kx::io::IoHandle::is_wanted)) end with `EIO`. The
    /// same happens to requests that are about to wait later on.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn recheck(self: &Arc<Self>) {
        self.pump_all();
    }

    /// Lets everything that waits, and all that comes, fail.
    pub(crate) fn refuse_all(self: &Arc<Self>) {
        self.park.lock().failover.close();
        self.pump();
    }

    /// The server has answered a fence.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn fence_done(self: &Arc<Self>, epoch: u32) {
        self.park.lock().answered = Some(epoch);
        self.pump();
    }

    /// Nothing of the attempt `epoch` can come to life again.
    pub(crate) fn fenced(&self, epoch: u32) {
        for tag in 0..self.depth_split().queue_depth() {
            let mut park = self.park.lock();
            if park.count() == 0 {
                break;
            }
            if let Some(parked) = park.get_mut(tag) {
                parked.info.entry.fenced(epoch);
            }
        }
    }

    /// Does what is to be done now.
    fn run_pump(self: &Arc<Self>) {
        let answered = self.park.lock().answered.take();
        if let Some(epoch) = answered {
            self.fenced(epoch);
            self.park.lock().failover.fence_done(epoch);
        }
        let mut header = Header::EMPTY;
        let mut full = false;
        for tag in 0..self.depth_split().queue_depth() {
            if self.park.lock().count() == 0 {
                break;
            }
            full |= self.pump_tag(tag, &mut header);
        }
        if full {
            self.sweep_now();
            self.pump_later.enqueue_in(self.clone(), FULL_PAUSE_MS);
        }
    }

    /// Does what is to be done with the request of a tag; tells whether it has to
    /// be tried again.
    fn pump_tag(&self, tag: u16, header: &mut Header) -> bool {
        self.with_set(|set| {
            let via = set.paths.first();
            let mut park = self.park.lock();
            let looked = park.get_mut(tag);
            let Some((entry, wanted)) = looked.map(|p| (p.info.entry, p.io.is_wanted())) else {
                return false;
            };
            if !wanted {
                park.failover.note_abandoned(&entry);
                let parked = park.take(tag, header);
                drop(park);
                if let Some(parked) = parked {
                    parked.io.done(Err(EIO));
                }
                return false;
            }
            match park.failover.next(&entry, via.map(|via| via.attempt.epoch)) {
                Next::Wait => false,
                Next::Submit => {
                    let parked = park.take(tag, header);
                    let ext = park.failover.has_ext();
                    drop(park);
                    let Some(mut parked) = parked else {
                        return false;
                    };
                    if parked.io.is_given_up() {
                        if !ext {
                            // Such a server takes it for something else.
                            parked.io.done(Err(ETIMEDOUT));
                            return false;
                        }
                        parked.hollow(header);
                    }
                    self.submit_again(set, parked, header)
                }
                Next::End(errno) => {
                    let parked = park.take(tag, header);
                    drop(park);
                    if entry.broke_too_often() && errno == Errno::EIO {
                        kx::pr_err_ratelimited!(
                            "{}: a request fails: the server broke the protocol each of the {} times that it was sent\n",
                            self.name(),
                            MAX_BREAKS
                        );
                    }
                    if let Some(parked) = parked {
                        parked.io.done(Err(convert::error(errno)));
                    }
                    false
                }
                Next::Fence(epoch) => {
                    drop(park);
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

    fn submit_again(&self, set: &Set, parked: Parked, header: &Header) -> bool {
        let req = Req {
            info: parked.info,
            user_hdr: header.as_slice(),
            last: true,
            counted: false,
        };
        let sent = set.submit(
            self.settings(),
            &self.round_robin,
            parked.cid,
            req,
            parked.io,
        );
        match sent {
            Ok(_) => false,
            Err((error, io)) if error == EAGAIN || error == ENOTCONN => {
                // In the latter case the set is about to change.
                let back = self.park.lock().put_back(Parked { io, ..parked });
                if let Err(io) = back {
                    io.done(Err(EIO));
                }
                error == EAGAIN
            }
            Err((error, io)) => {
                io.done(Err(error));
                false
            }
        }
    }

    /// Lets requests fail if they have waited for too long.
    fn expire(self: &Arc<Self>) {
        let limit_s = self.settings().queue_timeout_s.get();
        let mut park = self.park.lock();
        let Some((outage, since)) = park.outage else {
            return;
        };
        let waited_ms = u32::try_from(since.elapsed().as_millis()).unwrap_or(u32::MAX);
        let left_ms = (limit_s * 1000).saturating_sub(waited_ms);
        if left_ms > 0 {
            drop(park);
            self.expiry.enqueue_in(self.clone(), left_ms);
            return;
        }
        park.outage = None;
        let over = park.failover.queue_timeout(outage) && !park.failover.is_closed();
        drop(park);
        if over {
            pr_warn!(
                "{}: no path for {} s: requests fail from now on\n",
                self.name(),
                limit_s
            );
            self.pump();
        }
    }

    /// Tells the users of the session what has happened to it.
    fn tell(self: &Arc<Self>) {
        loop {
            let call = self.park.lock().failover.call();
            let Some(call) = call else {
                break;
            };
            self.announce(matches!(call, Call::Up { .. }));
            match call {
                Call::Down => self.link_events.down(),
                Call::Up { session_lost } => self.link_events.up(session_lost),
            }
            self.link_returned();
            self.pump();
        }
    }
}

/// Requests that wait.
impl WorkItem<0> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.run_pump();
    }
}

/// A send queue that was full.
impl WorkItem<1> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.pump();
    }
}

/// The queue timeout.
impl WorkItem<2> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.expire();
    }
}

/// Calls to the users of the session.
impl WorkItem<3> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.tell();
    }
}
