// SPDX-License-Identifier: GPL-2.0

//! The driver's part of a disk's request.
//!
//! Contexts: *any*.

use ibnbd_proto::checksum::Resends;
use kx::blk::{
    Request,
    Status, //
};

/// Maximum number of segments of a request.
pub(crate) const MAX_SEGMENTS: u16 = 128;

/// The driver of the disks; [`crate::queue`] has its operations.
pub(crate) struct IbnbdMq;

/// The driver's part of a request.
#[derive(Default)]
pub(crate) struct Pdu {
    /// Counts the request against the fair share of its disk.
    pub(crate) admission: Admission,
    /// The cache generation in which the request was sent.
    pub(crate) generation: u32,
    /// Number of times that the request had timed out when the driver returned it to the block
    /// layer.
    pub(crate) timeouts: u32,
    /// Detects damage in transit.
    pub(crate) check: Check,
}

/// The part of a request that detects damage, see [`crate::damage`].
#[derive(Default)]
pub(crate) struct Check {
    /// The CRC of the header. The CRC of the answer's data continues it.
    pub(crate) crc: u32,
    /// The checksum in the answer.
    pub(crate) received: Option<u32>,
    /// The path of the answer, if the answer has a checksum or reports damage.
    pub(crate) path: Option<u32>,
    /// The path that has damaged the request last.
    pub(crate) avoid: Option<u32>,
    pub(crate) resends: Resends,
}

impl Check {
    /// Records the checksum in the answer, and the answer's path.
    pub(crate) fn note(&mut self, received: Option<u32>, path: u32) {
        self.received = received;
        self.path = Some(path);
    }

    /// Resets the damage of a request that ends.
    #[inline]
    fn reset(&mut self) {
        self.avoid = None;
        self.resends = Resends::NONE;
    }
}

/// The time at which a counted request was submitted, in nanoseconds since its
/// [`DiskGroup`](crate::fair_share::DiskGroup) was created; none if the request is not counted.
#[derive(Clone, Copy, Default)]
pub(crate) struct Admission(pub(crate) Option<u64>);

impl Admission {
    /// Takes the admission of `rq`, which is then no longer counted.
    #[inline]
    pub(crate) fn take(rq: &mut Request<IbnbdMq>) -> Self {
        core::mem::take(&mut rq.pdu_mut().admission)
    }
}

/// Stops the timer of a request that leaves the driver. Returns whether the request was cancelled and
/// must end now.
///
/// The request keeps the number of its timeouts, because the timeout limit covers all attempts.
#[inline]
pub(crate) fn stop_timer(rq: &mut Request<IbnbdMq>) -> bool {
    let times = rq.queue_data().timeouts().ends(rq.shared());
    rq.pdu_mut().timeouts = times.unwrap_or_default();
    times.is_none()
}

/// Resets the data of a request that ends, for the next one.
#[inline]
pub(crate) fn reset(rq: &mut Request<IbnbdMq>) {
    let pdu = rq.pdu_mut();
    pdu.timeouts = 0;
    pdu.check.reset();
}

/// Returns an unsent request to the block layer, which dispatches it again. A cancelled request
/// ends instead.
pub(crate) fn hand_back(mut rq: Request<IbnbdMq>) {
    if !stop_timer(&mut rq) && !rq.is_abandoned() {
        return rq.requeue();
    }
    reset(&mut rq);
    rq.end(Status::TIMEOUT);
}
