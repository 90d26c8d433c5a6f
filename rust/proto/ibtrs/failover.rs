// SPDX-License-Identifier: GPL-2.0

//! Failover decisions of a session when paths come and go (client).
//!
//! A request whose path is lost may still be in the network, or in progress on the server's disk.
//! It must not take effect after what the session does next. So the client gives every attempt to
//! connect a path a number, the *epoch*, and
//!
//! - sends a request again only after the server has confirmed that it accepts nothing more of the
//!   old epoch: a *fence* (`need` of an [`Entry`]). That the old attempt's I/O ends before the new
//!   one's starts is the server's concern ([`crate::chunk_owner`]), as both have one chunk number;
//! - when a request was sent and ended with an error, lets no path take requests before the server
//!   has confirmed that the request's epoch and all earlier ones are closed and their I/O has ended
//!   ([`OfferResult::Fence`]), because the number may belong to another request by then. No attempt
//!   of such an epoch takes requests from then on. So even a fence that arrives late closes no path
//!   in use, such as that of another attempt that sent a fence at the same time.
//!
//! Networks fail often, so a request is sent again as often as necessary. But a server that breaks
//! the protocol in each answer would make that go on without end, so the request ends with EIO when
//! it has failed its path [`MAX_BREAKS`] times.
//!
//! A server that has lost the session begins another *generation* of it: it may have given the
//! numbers of the earlier generation to other devices. A request of an earlier generation ends
//! with ESTALE and is built again.
//!
//! # Context
//!
//! One [`Failover`] for each session, under its lock. A request that is submitted to a connected
//! path and answered causes no call. The driver keeps an [`Entry`] for each tag. After each call
//! that says so it *requeues*: it asks [`Failover::next`] for each request on the requeue list, in
//! any order, and acts on the answer before it releases the lock, or under a second lock that
//! serialises this. A request belongs to one path, or is on the requeue list, or has ended.

use crate::errno::Errno;
use crate::handshake::{RspExt, MAX_EPOCH};

/// How many paths a request may lose because the server broke the protocol ([`Loss::Protocol`])
/// before it fails.
pub const MAX_BREAKS: u8 = 5;

/// Why a path was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// The network, the end of the server or an operator's request; no request in flight caused it.
    Link,
    /// The server broke the protocol, perhaps in its answer to one of the requests in service.
    Protocol,
}

/// The state of a request that may be sent again.
///
/// [`Entry::NEW`] or [`Entry::ADMIN`] when the request is submitted; kept until it has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The epoch that has to be fenced before the request may be sent; 0 for none.
    need: u32,
    /// The greatest epoch that the request was ever sent in; 0 for none.
    last: u32,
    /// The session generation that the request was built in.
    generation: u32,
    /// An admin message, which waits for no path, and is not quiesced with I/O.
    admin: bool,
    /// How often the request was in flight when the server broke the protocol.
    breaks: u8,
}

impl Entry {
    /// An I/O that was not sent, of no particular generation.
    pub const NEW: Self = Self {
        need: 0,
        last: 0,
        generation: 0,
        admin: false,
        breaks: 0,
    };

    /// An admin message that was not sent.
    pub const ADMIN: Self = Self {
        admin: true,
        ..Self::NEW
    };

    /// The epoch that has to be fenced before the request may be sent; 0 for none.
    pub const fn need(&self) -> u32 {
        self.need
    }

    /// Whether a path was lost that had the request.
    #[inline]
    pub const fn was_moved(&self) -> bool {
        self.last != 0
    }

    /// Notes that the request was in flight on a path that is lost and drained. Afterwards the
    /// driver puts it on the requeue list, and requeues.
    pub fn lost(&mut self, path: &Published, loss: Loss) {
        if loss == Loss::Protocol {
            self.breaks = self.breaks.saturating_add(1);
        }
        self.need = if path.ext { path.epoch } else { 0 };
        self.last = self.last.max(path.epoch);
        self.generation = path.generation;
    }

    /// Whether the server has broken the protocol so often that the request is not sent again.
    pub const fn broke_too_often(&self) -> bool {
        self.breaks >= MAX_BREAKS
    }

    /// Notes that `epoch` is fenced. Returns whether the request waited for that.
    pub fn fenced(&mut self, epoch: u32) -> bool {
        let hit = epoch != 0 && self.need == epoch;
        if hit {
            self.need = 0;
        }
        hit
    }
}

/// A path that takes requests; the driver keeps this from [`OfferResult::Publish`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Published {
    /// Epoch of the path.
    pub epoch: u32,
    /// The session generation when the path came up.
    pub generation: u32,
    /// The peer knows the extensions.
    pub ext: bool,
}

/// The properties of the server that a path knows when it is about to come up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Epoch of the path, from [`Failover::begin`].
    pub epoch: u32,
    /// Epoch of the last attempt of the same path that was published; 0 for none.
    pub previous: u32,
    /// The server's identity, the same on all connections of the path.
    pub ext: Option<RspExt>,
    /// The path has asked the server to create the session if it does not know it.
    pub is_first: bool,
    /// Number of chunks of the session.
    pub queue_depth: u16,
    /// Largest I/O, in bytes.
    pub max_io_bytes: u32,
    /// The greatest epoch of this attempt's fences ([`OfferResult::Fence`]) that are answered; 0
    /// for none.
    pub fenced: u32,
}

/// Why a path is refused. It tries again after its back-off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OfferRefusal {
    /// The server is not that of the connected paths, or was restarted.
    OtherServer,
    /// Fewer chunks than the session uses.
    QueueDepth,
    /// Smaller I/O than the session promised to its users.
    MaxIo,
    /// The session is closed.
    Closed,
}

impl OfferRefusal {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::OtherServer => "another server than that of the other paths, or it was restarted",
            Self::QueueDepth => "the server's queue is shorter than the session's",
            Self::MaxIo => "the server's largest I/O is smaller than the session's",
            Self::Closed => "the session is closed",
        }
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::OtherServer => Errno::ESTALE,
            Self::QueueDepth | Self::MaxIo => Errno::EINVAL,
            Self::Closed => Errno::ECONNABORTED,
        }
    }
}

/// The decision about a path that is about to come up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum OfferResult {
    /// The path counts as connected from now on. Call [`Entry::fenced`] with the offer's `previous`
    /// for each request on the requeue list, put the path into the set, see [`Failover::call`], and
    /// requeue. If the path fails before it is in the set, call [`Failover::path_lost`] as if it
    /// failed later.
    Publish(Published),
    /// Send FENCE with this epoch and `drain` on this path, wait for its answer as part of the
    /// setup, and offer the path again with `fenced`.
    Fence(u32),
    /// The attempt's knowledge of the server is out of date. It has failed; another one may begin at once.
    Again,
    /// Another path has come up since this one asked for a session. The server may have created one
    /// beside that of the other path, and cannot tell. The attempt has failed; another one, which does
    /// not ask for a session ([`Failover::may_create`]), may begin at once.
    Join,
    /// The server no longer knows the connected paths, which must get
    /// [`Event::Error`](crate::fsm::client_path::Event::Error). This attempt has failed; another
    /// one may begin at once.
    SessionLost,
    /// The attempt has failed.
    Refuse(OfferRefusal),
}

/// The decision about a request on the requeue list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Next {
    /// Submit the request to a connected path. If all refuse it, it stays on the list.
    Submit,
    /// Leave the request on the list.
    Wait,
    /// Leave the request on the list, and send FENCE with this epoch, without `drain`, on the path
    /// that was named to [`Failover::next`]. If it cannot be posted, that path is lost, and
    /// [`Failover::path_lost`] forgets the fence.
    Fence(u32),
    /// The request has ended: complete it with this error.
    End(Errno),
}

/// The decision about a request that no path has taken although [`Next::Submit`] said so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum NotTaken {
    /// Put the request back on the list. The connected paths are about to change, and the driver
    /// requeues then.
    Wait,
    /// Put the request back on the list, and requeue a little later.
    Later,
    /// The request has ended with the error.
    End,
}

/// A call to the users of the session. One at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Call {
    /// `SessionEvents::down`.
    Down,
    /// `SessionEvents::up`.
    Up {
        /// Devices must be reopened. I/O is quiesced until the call returns.
        session_lost: bool,
    },
}

/// A phase of a session generation: one begins when the server has lost the session, the next when
/// the users have opened their devices again. A request that was built in one phase must not be
/// sent in another.
///
/// A driver that builds an I/O reads the phase before anything that changes with the generation,
/// such as the number of a device. The phase is also part of the published paths, so that a
/// submitter reads both at once, and calls [`Phase::check`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Phase(u32);

/// The decision about an I/O that is being submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum PhaseCheck {
    /// A connected path may take the I/O. If none does, it goes on the requeue list.
    Submit,
    /// The I/O goes on the requeue list, see [`Failover::may_requeue`].
    Requeue,
    /// The I/O was built in another phase, and must be built again.
    Stale,
}

impl Phase {
    /// The phase of a session's published paths before any path has connected; it is not open.
    pub const NONE: Self = Self(0);

    /// The phase as a number for an atomic; the inverse of [`Phase::from_bits`].
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// The phase of a number from [`Phase::to_bits`].
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Whether I/O may be sent, and need not wait until devices are reopened.
    pub const fn is_open(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether both are of one session generation.
    pub const fn is_same_generation(self, other: Phase) -> bool {
        self.0 >> 1 == other.0 >> 1
    }

    /// Decides about an I/O that was built in phase `built`, when the published paths are of this
    /// phase.
    pub const fn check(self, built: Phase) -> PhaseCheck {
        if !self.is_open() {
            PhaseCheck::Requeue
        } else if self.0 == built.0 {
            PhaseCheck::Submit
        } else {
            PhaseCheck::Stale
        }
    }
}

/// Identifies an outage, for [`Failover::queue_timeout`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outage(u32);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fence {
    epoch: u32,
    via: u32,
}

/// The server's identity, from the path that came up last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    ext: Option<RspExt>,
    /// Attempts from this one on began after a path had come up with this knowledge.
    since: u32,
}

/// The decisions of one session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failover {
    /// Epoch of the next attempt.
    next_epoch: u32,
    /// Number of paths that are published and not lost.
    connected: u16,
    queue_depth: u16,
    max_io_bytes: u32,
    known: Option<Known>,
    /// The greatest epoch of an abandoned request; 0 for none.
    abandoned: u32,
    /// Attempts up to this one may be closed by a fence at any time.
    stale_epoch: u32,
    fence: Option<Fence>,
    generation: u32,
    /// How often the last path was lost.
    outages: u32,
    /// I/O waits for `up(true)` to return.
    quiesced: bool,
    /// The queue timeout has passed: requests fail at once.
    failing: bool,
    closed: bool,
    /// The last event that the users were notified of, and the number of outages then.
    notified_up: bool,
    notified_outages: u32,
    /// The call that is under way.
    calling: Option<Call>,
}

impl Failover {
    /// A session that was never connected. Its generation is 1: no entry but [`Entry::NEW`] has 0.
    pub const fn new() -> Self {
        Self {
            next_epoch: 1,
            connected: 0,
            queue_depth: 0,
            max_io_bytes: 0,
            known: None,
            abandoned: 0,
            stale_epoch: 0,
            fence: None,
            generation: 1,
            outages: 0,
            quiesced: false,
            failing: false,
            closed: false,
            // The first connect is reported by `Session::open`.
            notified_up: true,
            notified_outages: 0,
            calling: None,
        }
    }

    /// Returns the epoch of a new attempt; `None` if all epochs are used up.
    pub fn begin(&mut self) -> Option<u32> {
        let epoch = self.next_epoch;
        if epoch > MAX_EPOCH {
            return None;
        }
        self.next_epoch = epoch.saturating_add(1);
        Some(epoch)
    }

    /// Whether a path is connected, so that admin messages and I/O may be submitted at all.
    pub const fn is_connected(&self) -> bool {
        self.connected != 0
    }

    /// Whether I/O waits until the users have reopened their devices.
    pub const fn is_quiesced(&self) -> bool {
        self.quiesced
    }

    /// Whether the server that was connected last knows the extensions.
    pub const fn has_ext(&self) -> bool {
        match &self.known {
            Some(known) => known.ext.is_some(),
            None => false,
        }
    }

    /// Whether the session generation is still that in which this path came up.
    pub const fn is_current(&self, path: &Published) -> bool {
        path.generation == self.generation
    }

    /// The present phase of the session generation.
    pub const fn phase(&self) -> Phase {
        Phase(
            self.generation
                .wrapping_mul(2)
                .wrapping_add(!self.quiesced as u32),
        )
    }

    /// Whether an I/O that was built in phase `built`, and that no path has taken, may go on the
    /// requeue list.
    ///
    /// # Errors
    ///
    /// - ENOTCONN: the session is closed.
    /// - ETIMEDOUT: the queue timeout has passed.
    /// - ESTALE: the I/O must be built again.
    pub fn may_requeue(&self, built: Phase) -> Result<(), Errno> {
        if self.closed {
            return Err(Errno::ENOTCONN);
        }
        if self.failing {
            return Err(Errno::ETIMEDOUT);
        }
        // While I/O is quiesced, the generation that it was built for is not known: `unsent` takes
        // care of that.
        if self.phase().check(built) == PhaseCheck::Stale {
            return Err(Errno::ESTALE);
        }
        Ok(())
    }

    /// Decides about a path whose connections are all established. The driver asks right before it
    /// puts the path into the set of connected paths, under the lock that protects the set.
    pub fn offer(&mut self, offer: &Offer) -> OfferResult {
        if self.closed {
            return OfferResult::Refuse(OfferRefusal::Closed);
        }
        if let Some(no) = self.misfit(offer) {
            return OfferResult::Refuse(no);
        }
        if self.connected != 0 && !self.has_ext() && offer.ext.is_none() && offer.is_first {
            return OfferResult::Join;
        }
        let session_lost = match self.known {
            None => false,
            Some(known) => {
                let same = known.ext == offer.ext;
                // An attempt that learnt the identity before another one came up may have an older
                // one.
                if !same && offer.epoch < known.since {
                    return OfferResult::Again;
                }
                if !same && self.connected != 0 {
                    return others_are_wrong(known.ext, offer.ext);
                }
                if !same {
                    // The server has nothing left of the earlier generation, or it cannot be
                    // fenced.
                    self.abandoned = 0;
                }
                self.connected == 0 && (!same || offer.ext.is_none() || self.quiesced)
            }
        };
        if offer.ext.is_some() {
            if let Some(result) = self.check_abandoned(offer) {
                return result;
            }
        }
        OfferResult::Publish(self.publish(offer, session_lost))
    }

    /// Whether a path that the server has accepted before may ask it to create the session again.
    ///
    /// While other paths are connected, only if the answer tells which session it is for. A server
    /// without extensions that was restarted refuses the path otherwise, until the client has noticed
    /// that the others are lost; if it created a session, I/O would go to devices that nobody has
    /// opened there, or to others that have got their numbers.
    pub fn may_create(&self) -> bool {
        self.connected == 0 || self.has_ext()
    }

    /// Decides how to deal with abandoned requests before a path takes requests.
    fn check_abandoned(&mut self, offer: &Offer) -> Option<OfferResult> {
        // With a path connected, it is too late to fence them.
        let abandoned = if self.connected == 0 {
            self.abandoned
        } else {
            0
        };
        if offer.epoch <= self.stale_epoch.max(abandoned) {
            return Some(OfferResult::Again);
        }
        if abandoned <= offer.fenced {
            return None;
        }
        self.stale_epoch = self.stale_epoch.max(abandoned);
        Some(OfferResult::Fence(abandoned))
    }

    fn misfit(&self, offer: &Offer) -> Option<OfferRefusal> {
        if offer.queue_depth < self.queue_depth {
            return Some(OfferRefusal::QueueDepth);
        }
        if offer.max_io_bytes < self.max_io_bytes {
            return Some(OfferRefusal::MaxIo);
        }
        None
    }

    fn publish(&mut self, offer: &Offer, session_lost: bool) -> Published {
        if self.known.is_none() {
            self.queue_depth = offer.queue_depth;
            self.max_io_bytes = offer.max_io_bytes;
        }
        self.known = Some(Known {
            ext: offer.ext,
            since: self.next_epoch,
        });
        if self.connected == 0 {
            self.abandoned = 0;
        }
        self.failing = false;
        self.connected = self.connected.saturating_add(1);
        if session_lost {
            self.quiesced = true;
            self.generation = next_generation(self.generation);
        }
        Published {
            epoch: offer.epoch,
            generation: self.generation,
            ext: offer.ext.is_some(),
        }
    }

    /// Notes that a published path takes no more requests, as it was removed from the set. Its
    /// requests follow with [`Entry::lost`] when its QPs are drained. Requeue afterwards.
    ///
    /// If it was the last path, returns the outage for [`Failover::queue_timeout`]: the queue
    /// timeout starts now (a timeout of 0 passes at once).
    pub fn path_lost(&mut self, path: &Published) -> Option<Outage> {
        if self.fence.is_some_and(|f| f.via == path.epoch) {
            self.fence = None;
        }
        self.connected = self.connected.saturating_sub(1);
        if self.connected != 0 {
            return None;
        }
        self.fence = None;
        self.outages = self.outages.wrapping_add(1);
        Some(Outage(self.outages))
    }

    /// Notes that the queue timeout of `outage` has passed. Returns whether requests fail now, so
    /// that the driver must requeue.
    pub fn queue_timeout(&mut self, outage: Outage) -> bool {
        if self.connected == 0 && outage.0 == self.outages {
            self.failing = true;
        }
        self.failing
    }

    /// Closes the session. Requeue afterwards: everything on the requeue list ends.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Whether the session is closed: only requests of lost paths still go on the requeue list.
    pub const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns whether the answer to a fence of `epoch` is outstanding. Any other answer is to be
    /// ignored: the fence was forgotten with its path, and is sent again if a request needs it.
    pub fn awaits_fence(&self, epoch: u32) -> bool {
        self.fence.is_some_and(|fence| fence.epoch == epoch)
    }

    /// Notes that the server has answered the fence of `epoch`. Afterwards call [`Entry::fenced`]
    /// for each request on the requeue list, then requeue.
    pub fn fence_done(&mut self, epoch: u32) {
        if self.awaits_fence(epoch) {
            self.fence = None;
        }
    }

    /// The entry for a request that goes on the requeue list because no path has taken it; an entry
    /// that already has a generation is unchanged.
    pub fn unsent(&self, entry: Entry) -> Entry {
        if entry.generation != 0 {
            return entry;
        }
        Entry {
            // While devices are reopened, the generation that it was built for is not known.
            generation: if self.quiesced && !entry.admin {
                previous_generation(self.generation)
            } else {
                self.generation
            },
            ..entry
        }
    }

    /// Decides about a request on the requeue list. `via` is the epoch of a connected path that can
    /// carry a fence.
    pub fn next(&mut self, entry: &Entry, via: Option<u32>) -> Next {
        if let Some(errno) = self.hopeless(entry) {
            self.note_abandoned(entry);
            return Next::End(errno);
        }
        if self.quiesced && !entry.admin {
            return Next::Wait;
        }
        if entry.generation != self.generation {
            return Next::End(Errno::ESTALE);
        }
        if self.connected == 0 {
            return Next::Wait;
        }
        if entry.need == 0 && entry.broke_too_often() {
            // The server accepts no message of it any more. An honest server might still execute
            // it, but this one is not honest.
            self.note_abandoned(entry);
            return Next::End(Errno::EIO);
        }
        if entry.need == 0 {
            return Next::Submit;
        }
        match (self.fence, via) {
            (None, Some(via)) => {
                self.fence = Some(Fence {
                    epoch: entry.need,
                    via,
                });
                Next::Fence(entry.need)
            }
            _ => Next::Wait,
        }
    }

    /// Decides about a request from the requeue list that was to be submitted, and that the paths have
    /// refused with `errno`.
    pub fn not_taken(&mut self, entry: &Entry, errno: Errno) -> NotTaken {
        match errno {
            Errno::ENOTCONN => NotTaken::Wait,
            Errno::EAGAIN | Errno::ENOMEM => NotTaken::Later,
            _ => {
                // It may have been sent before. The fence for that makes the server accept no message
                // of it any more, but does not wait for its I/O.
                self.note_abandoned(entry);
                NotTaken::End
            }
        }
    }

    /// Notes that a request on the requeue list is abandoned: it ends with an error, and the server
    /// may still execute it as long as a path is connected. The caller ensures that this does no
    /// harm.
    pub fn note_abandoned(&mut self, entry: &Entry) {
        self.abandoned = self.abandoned.max(entry.last);
    }

    /// The error of a request that has nothing left to wait for.
    const fn hopeless(&self, entry: &Entry) -> Option<Errno> {
        if self.closed || entry.admin && self.connected == 0 {
            Some(Errno::ECONNABORTED)
        } else if self.failing {
            Some(Errno::ETIMEDOUT)
        } else {
            None
        }
    }

    /// Returns the next call to the users of the session, if one is due. The driver asks after
    /// [`Failover::path_lost`], [`OfferResult::Publish`] and [`Failover::returned`].
    pub fn call(&mut self) -> Option<Call> {
        if self.calling.is_some() || self.closed {
            return None;
        }
        if self.notified_up && self.notified_outages != self.outages {
            self.notified_up = false;
            self.calling = Some(Call::Down);
        } else if !self.notified_up && self.connected != 0 {
            self.notified_outages = self.outages;
            self.calling = Some(Call::Up {
                session_lost: self.quiesced,
            });
        }
        self.calling
    }

    /// Notes that the call has returned. Requeue afterwards: I/O may have waited for that.
    pub fn returned(&mut self) {
        if let Some(Call::Up { .. }) = self.calling.take() {
            self.notified_up = true;
            // Otherwise the last path was lost meanwhile, and devices must be reopened once more.
            if self.notified_outages == self.outages {
                self.quiesced = false;
            }
        }
    }
}

impl Default for Failover {
    fn default() -> Self {
        Self::new()
    }
}

/// Decides about a server that differs from that of the connected paths.
fn others_are_wrong(theirs: Option<RspExt>, mine: Option<RspExt>) -> OfferResult {
    match (theirs, mine) {
        (Some(theirs), Some(mine)) if theirs.server_run == mine.server_run => {
            OfferResult::SessionLost
        }
        _ => OfferResult::Refuse(OfferRefusal::OtherServer),
    }
}

/// The generation after `generation`; skips 0, which stands for none.
const fn next_generation(generation: u32) -> u32 {
    match generation.wrapping_add(1) {
        0 => 1,
        next => next,
    }
}

/// The generation before `generation`; skips 0, which stands for none.
const fn previous_generation(generation: u32) -> u32 {
    match generation.wrapping_sub(1) {
        0 => u32::MAX,
        last => last,
    }
}
