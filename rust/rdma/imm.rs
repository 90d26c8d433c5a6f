// SPDX-License-Identifier: GPL-2.0

//! Immediates for devices that do not support them.
//!
//! iWARP has no immediates. If both sides agree, each message of a queue pair begins with the four
//! bytes of an immediate, and a write with an immediate becomes a write and then a message. The
//! transport delivers the two in that order.

use crate::{
    dma::DmaBuf,
    pd::Pd,
    sge::Sge, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Length in bytes of the immediate in front of each message. The immediate is big-endian, as on
/// the wire of other transports.
pub const IMM_LEN: u32 = 4;

/// The value in front of a message that has no immediate.
const NONE: u32 = u32::MAX;

/// The immediates of the messages in flight on one send queue.
pub(crate) struct ImmRing {
    buf: Buf,
    places: Places,
}

/// The memory of a ring.
enum Buf {
    Mapped(DmaBuf),
    /// Memory that is mapped for no device, at address 0 in the domain with the number.
    #[cfg(IBTRS_KUNIT)]
    Unmapped(KVec<u8>, u64),
}

impl Buf {
    fn write(&mut self, at: usize, imm: [u8; IMM_LEN as usize]) -> Result {
        match self {
            Self::Mapped(buf) => buf.write(at, &imm),
            #[cfg(IBTRS_KUNIT)]
            Self::Unmapped(bytes, _) => {
                let place = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut());
                *place.ok_or(EINVAL)? = imm;
                Ok(())
            }
        }
    }

    fn sge(&self, at: usize, len: usize) -> Result<Sge> {
        match self {
            Self::Mapped(buf) => buf.sge(at, len),
            #[cfg(IBTRS_KUNIT)]
            Self::Unmapped(_, domain) => Ok(Sge::of_domain(*domain, at as u64, len as u32, 0)),
        }
    }
}

impl ImmRing {
    /// Creates the ring of a send queue of `depth` entries. Each message takes an entry of the
    /// queue, so no more than `depth` messages are ever in flight.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(pd: &Arc<Pd>, depth: u32) -> Result<Self> {
        let count = depth.max(1) as usize;
        let len = count.checked_mul(IMM_LEN as usize).ok_or(EINVAL)?;
        Ok(Self {
            buf: Buf::Mapped(DmaBuf::new(pd, len)?),
            places: Places::new(count),
        })
    }

    /// Creates a ring for tests, in memory that no device reads.
    #[cfg(IBTRS_KUNIT)]
    pub(crate) fn unmapped(domain: u64, depth: u32) -> Result<Self> {
        let count = depth as usize;
        let bytes = KVec::<u8>::zeroed(count * IMM_LEN as usize, GFP_KERNEL)?;
        Ok(Self {
            buf: Buf::Unmapped(bytes, domain),
            places: Places::new(count),
        })
    }

    /// Returns the bytes at place `number`.
    #[cfg(IBTRS_KUNIT)]
    pub(crate) fn at(&self, number: usize) -> Option<u32> {
        let Buf::Unmapped(bytes, _) = &self.buf else {
            return None;
        };
        let at = number * IMM_LEN as usize;
        bytes
            .get(at..)?
            .first_chunk()
            .copied()
            .map(u32::from_be_bytes)
    }

    /// Writes the immediate of the next message, for which the send queue must have an entry, and
    /// returns its scatter element. Other places stay as they are: the device may be reading them.
    pub(crate) fn push(&mut self, imm: Option<u32>) -> Option<Sge> {
        let len = IMM_LEN as usize;
        let at = self.places.take() * len;
        self.buf.write(at, imm.unwrap_or(NONE).to_be_bytes()).ok()?;
        self.buf.sge(at, len).ok()
    }

    /// Returns the position of the next message, for [`ImmRing::rewind`].
    pub(crate) fn position(&self) -> usize {
        self.places.next
    }

    /// Rolls back to `position`. The messages from there on must not have been posted.
    pub(crate) fn rewind(&mut self, position: usize) {
        self.places.next = position;
    }
}

impl Drop for ImmRing {
    fn drop(&mut self) {
        match &mut self.buf {
            // The domain need not keep the memory, as it does with other buffers.
            // SAFETY: Elements of the ring are only in requests of the send queue that has the ring.
            // `QueuePair` drops the send queue after it has destroyed the device's queue pair.
            Buf::Mapped(buf) => unsafe { buf.free() },
            #[cfg(IBTRS_KUNIT)]
            Buf::Unmapped(..) => {}
        }
    }
}

/// Places for immediates, which are used one after the other.
struct Places {
    count: usize,
    next: usize,
}

impl Places {
    /// Creates `count` places, at least one.
    fn new(count: usize) -> Self {
        Self { count, next: 0 }
    }

    fn take(&mut self) -> usize {
        let place = self.next;
        self.next += 1;
        if self.next >= self.count {
            self.next = 0;
        }
        place
    }
}

/// Splits a message into its immediate, if it has one, and the rest.
pub(crate) fn split(message: &[u8]) -> (Option<u32>, &[u8]) {
    match message.split_first_chunk() {
        Some((imm, rest)) => {
            let imm = u32::from_be_bytes(*imm);
            ((imm != NONE).then_some(imm), rest)
        }
        None => (None, message),
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(rdma_imm)]
mod tests {
    use super::*;

    /// A place is reused only after all others, so that a message can be in flight from each.
    #[test]
    fn places_come_in_turn() {
        for count in [1, 2, 3, 47] {
            let mut places = Places::new(count);
            for round in 0..5 * count {
                assert_eq!(places.take(), round % count);
            }
        }
    }

    #[test]
    fn a_message_has_its_immediate_in_front() {
        assert_eq!(split(&[1, 2, 3, 4, 5]), (Some(0x0102_0304), &[5u8][..]));
        assert_eq!(split(&[0, 0, 0, 0]), (Some(0), &[][..]));
        assert_eq!(split(&[0xff, 0xff, 0xff, 0xff, 9]), (None, &[9u8][..]));
        // A peer may send a message that is too short to have one.
        assert_eq!(split(&[1, 2, 3]), (None, &[1u8, 2, 3][..]));
        assert_eq!(split(&[]), (None, &[][..]));
    }
}
