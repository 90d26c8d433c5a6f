// SPDX-License-Identifier: GPL-2.0

//! The driver's part of a disk's request.
//!
//! Contexts: *any*.

use crate::damage::{
    self,
    Check, //
};
use kernel::prelude::*;
use kx::{
    blk::{
        Request,
        Status, //
    },
    sg::SgList, //
};

/// Most segments of a request.
pub(crate) const MAX_SEGMENTS: u16 = 128;

/// The driver of the disks; [`crate::queue`] has its operations.
pub(crate) struct Queue;

/// The driver's part of a request.
#[pin_data]
pub(crate) struct Pdu {
    /// Counts the request against the fair share of its disk.
    pub(crate) admission: Admission,
    /// The cache generation in which the request was sent.
    pub(crate) generation: u32,
    /// How often the request had timed out when the driver returned it to the block layer.
    pub(crate) timeouts: u32,
    /// What is known about damage on the way.
    pub(crate) check: Check,
    #[pin]
    pub(crate) sg: SgList<{ MAX_SEGMENTS as usize }>,
}

impl Pdu {
    /// Creates the data of a request that is not counted.
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            admission: Admission::default(),
            generation: 0,
            timeouts: 0,
            check: Check::default(),
            sg <- SgList::new(),
        }? Error)
    }
}

/// The time at which a counted request was submitted, in nanoseconds since its
/// [`DiskGroup`](crate::fair_share::DiskGroup) was created; none if the request is not counted.
#[derive(Clone, Copy, Default)]
pub(crate) struct Admission(pub(crate) Option<u64>);

impl Admission {
    /// Takes the admission of `rq`, which is not counted from then on.
    #[inline]
    pub(crate) fn take(rq: &mut Request<Queue>) -> Self {
        core::mem::take(rq.pdu_mut().project().admission)
    }

    /// Returns whether the request is counted.
    #[inline]
    pub(crate) fn is_counted(self) -> bool {
        self.0.is_some()
    }
}

/// Notes that the request leaves the driver. The block layer may dispatch it again with another tag,
/// so it takes along how often it has timed out: the timeout limit is that of all attempts together.
/// Returns whether the request was cancelled; then it has to end.
#[inline]
pub(crate) fn leaves(rq: &mut Request<Queue>) -> bool {
    let times = rq.queue_data().timeouts().ends(rq.tag());
    *rq.pdu_mut().project().timeouts = times.unwrap_or_default();
    times.is_none()
}

/// Notes the end of a request, which the next one follows in its place.
#[inline]
pub(crate) fn ended(rq: &mut Request<Queue>) {
    *rq.pdu_mut().project().timeouts = 0;
    damage::ended(rq);
}

/// Returns a request that was not sent to the block layer, which dispatches it again. If it was
/// cancelled, it ends instead.
pub(crate) fn hand_back(mut rq: Request<Queue>) {
    if !leaves(&mut rq) && !rq.is_abandoned() {
        return rq.requeue();
    }
    ended(&mut rq);
    rq.end(Status::TIMEOUT);
}
