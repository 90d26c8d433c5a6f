// SPDX-License-Identifier: GPL-2.0

//! Memory from which the data of answers, and long messages, are sent.
//!
//! The memory is in pieces, each of which takes a scatter element. More elements in a work request,
//! or more work requests for an answer, would take more memory for the send queue of each
//! connection. Memory in many pieces is therefore sent from a region, which presents it as one
//! contiguous range with one element.
//!
//! This is not the client's region. The client cannot write with its key, and it stays registered
//! as long as the path exists: a device may send the data again after the client has received it,
//! if the acknowledgement was lost, although the client's key is invalid by then.

use crate::types::MAX_SGES;
use kernel::{
    alloc::flags::GFP_NOWAIT,
    prelude::*,
    sync::Arc, //
};
use kx::mm::Pieces;
use rdma::{
    dma::{
        Direction,
        DmaPieces,
        DmaRoom,
        Sink, //
    },
    mr::{
        Access,
        Mr, //
    },
    pd::Pd,
    qp::Handler,
    sendq::Chain,
    sge::{
        Remote,
        Sge, //
    }, //
};

/// Maximum number of pieces that the data of an answer is sent from, without a region. The longest
/// answers have four work requests in all: the data, the registration of the chunk, and either one
/// message that invalidates the client's key (`inv_answers`), or two for that and the answer.
pub(crate) const fn data_pieces(inv_answers: bool) -> usize {
    let writes = if inv_answers { 2 } else { 1 };
    writes * MAX_SGES as usize
}

/// Maximum number of pieces of a message, which is one work request. With iWARP, the immediate
/// takes an element.
pub(crate) const MESSAGE_PIECES: usize = MAX_SGES as usize - 1;

/// Memory that is mapped for a device.
pub(crate) struct Source {
    dma: DmaPieces,
    /// From more pieces than these, data is sent from a region.
    most_pieces: usize,
    /// Covers the memory, if it has more pieces.
    region: Option<Mr>,
}

impl Source {
    /// Maps memory whose data is sent from a region of the caller, if it is in more than
    /// `most_pieces`.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(
        pd: &Arc<Pd>,
        pieces: Arc<Pieces>,
        dir: Direction,
        most_pieces: usize,
    ) -> Result<Self> {
        Ok(Self {
            dma: DmaPieces::new(pd, pieces, dir)?,
            most_pieces,
            region: None,
        })
    }

    /// As [`Source::new`], for memory that is sent without a region, and without an allocation: the
    /// mapping uses `room`.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// Returns `room` if the device has no mapping space.
    pub(crate) fn new_in(
        pd: &Arc<Pd>,
        pieces: Arc<Pieces>,
        dir: Direction,
        room: DmaRoom,
    ) -> Result<Self, DmaRoom> {
        Ok(Self {
            dma: DmaPieces::new_in(pd, pieces, dir, room)?,
            most_pieces: usize::MAX,
            region: None,
        })
    }

    /// Ends the mapping of memory without a region; returns the space for the next mapping.
    ///
    /// # Errors
    ///
    /// Returns the memory if the device may still write to it, see [`DmaPieces::unmap`].
    pub(crate) fn unmap(self) -> Result<DmaRoom, Self> {
        self.dma.unmap().map_err(|dma| Self { dma, ..self })
    }

    /// As [`Source::new`], but with its own region, if one is needed. The region is still to be
    /// [registered](Self::register).
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, errors of the device's driver.
    pub(crate) fn complete(
        pd: &Arc<Pd>,
        pieces: Arc<Pieces>,
        dir: Direction,
        most_pieces: usize,
    ) -> Result<Self> {
        let mut this = Self::new(pd, pieces, dir, most_pieces)?;
        if this.needs_region(this.dma.pieces().len()) {
            this.region = Some(Mr::of_pieces(&mut this.dma)?);
        }
        Ok(this)
    }

    /// Maps `pieces` for the same queue pairs, to send from them without a region.
    ///
    /// `None` if they are in too many pieces for that, or if there is no memory.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn another(&self, pieces: Arc<Pieces>) -> Option<Self> {
        if pieces.blocks().len() > self.most_pieces {
            return None;
        }
        let room = DmaRoom::new(&pieces, GFP_NOWAIT).ok()?;
        Self::new_in(self.dma.pd(), pieces, Direction::ToDevice, room).ok()
    }

    /// Registers the region of this memory, if it has one.
    pub(crate) fn register<H: Handler>(&self, chain: &mut Chain<'_, H>) {
        if let Some(region) = &self.region {
            chain.reg_mr(region, Access::Local);
        }
    }

    /// Returns whether the memory is mapped for queue pairs in `pd`.
    pub(crate) fn is_of(&self, pd: &Arc<Pd>) -> bool {
        Arc::ptr_eq(self.dma.pd(), pd)
    }

    /// Returns the memory.
    #[inline]
    pub(crate) fn pieces(&self) -> &Arc<Pieces> {
        self.dma.pieces()
    }

    /// Returns the mapping of the memory.
    pub(crate) fn dma(&self) -> &DmaPieces {
        &self.dma
    }

    /// Creates a region for the client that covers all of the memory. It is still to be registered.
    pub(crate) fn cover(&mut self) -> Result<Mr> {
        Mr::of_pieces(&mut self.dma)
    }

    /// Returns the region of this memory.
    pub(crate) fn region(&self) -> Option<&Mr> {
        self.region.as_ref()
    }

    fn needs_region(&self, len: usize) -> bool {
        self.pieces().count_of(len) > self.most_pieces
    }

    /// Returns the scatter element of the first `len` bytes, if one covers them: that of their piece,
    /// or that of `region`, if they need it. The data must have been made visible to the device.
    pub(crate) fn sge(&self, len: u32, region: Option<&Mr>) -> Option<Sge> {
        let of_region = || {
            let region = region.filter(|_| self.needs_region(len as usize))?;
            region.sge(len).ok()
        };
        self.dma.sge(0, len).or_else(of_region)
    }

    /// Returns the scatter elements of the first `len` bytes: one as [`Self::sge`] does, or one for
    /// each piece.
    pub(crate) fn sges<'a>(
        &'a self,
        len: u32,
        region: Option<&Mr>,
    ) -> Sges<impl Iterator<Item = Sge> + 'a> {
        match self.sge(len, region) {
            Some(sge) => Sges::One(Some(sge)),
            None => Sges::Pieces(self.dma.sges(len as usize)),
        }
    }

    /// Returns the number of work requests of [`Self::writes`].
    pub(crate) fn count_writes(&self, len: u32) -> u32 {
        // CAST: A request has no more pieces than pages.
        let pieces = self.pieces().count_of(len as usize) as u32;
        pieces.div_ceil(MAX_SGES)
    }

    /// Returns the work requests that send the first `len` bytes, for which [`Self::sge`] has no
    /// single element.
    pub(crate) fn writes(&self, len: u32) -> Parts<impl Iterator<Item = Sge> + '_> {
        Parts::new(self.dma.sges(len as usize), len)
    }

    /// Returns the work requests that fetch the first `len` bytes from a client.
    pub(crate) fn reads(&mut self, len: u32) -> Parts<impl Iterator<Item = Sink<'_>>> {
        Parts::new(self.dma.sinks(len as usize), len)
    }
}

/// A scatter element of a work request.
pub(crate) trait Element: Copy {
    /// Returns its length in bytes.
    fn bytes(&self) -> u32;
}

impl Element for Sge {
    #[inline]
    fn bytes(&self) -> u32 {
        self.len()
    }
}

impl Element for Sink<'_> {
    #[inline]
    fn bytes(&self) -> u32 {
        self.len()
    }
}

/// A work request that sends or fetches a part of the data.
pub(crate) struct Part<E> {
    /// Where the part begins, in bytes from the beginning of the data.
    offset: u64,
    pub(crate) is_last: bool,
    sges: [Option<E>; MAX_SGES as usize],
}

impl<E: Element> Part<E> {
    /// Returns where the part is in the memory of a client that begins at `base`. The client's range
    /// does not wrap, see [`SgDesc::fits`](ibtrs_proto::msg::SgDesc::fits).
    pub(crate) fn place_in(&self, base: Remote) -> Remote {
        Remote {
            addr: base.addr.wrapping_add(self.offset),
            ..base
        }
    }

    /// Returns the scatter elements of the part.
    pub(crate) fn sges(&self) -> impl Iterator<Item = E> + '_ {
        self.sges.iter().flatten().copied()
    }
}

/// Iterator of [`Source::writes`] and [`Source::reads`].
pub(crate) struct Parts<I> {
    sges: I,
    /// Where the next part begins.
    offset: u64,
    /// Bytes from there on.
    left: u64,
}

impl<I> Parts<I> {
    fn new(sges: I, len: u32) -> Self {
        Self {
            sges,
            offset: 0,
            left: len.into(),
        }
    }
}

impl<E: Element, I: Iterator<Item = E>> Iterator for Parts<I> {
    type Item = Part<E>;

    #[inline]
    fn next(&mut self) -> Option<Part<E>> {
        let sges = [Some(self.sges.next()?), self.sges.next(), self.sges.next()];
        let lengths = sges.iter().flatten().map(|sge| u64::from(sge.bytes()));
        let bytes = lengths.sum();
        let offset = self.offset;
        self.offset += bytes;
        self.left = self.left.saturating_sub(bytes);
        Some(Part {
            offset,
            is_last: self.left == 0,
            sges,
        })
    }
}

/// Iterator of [`Source::sges`].
pub(crate) enum Sges<I> {
    One(Option<Sge>),
    Pieces(I),
}

impl<I: Iterator<Item = Sge>> Iterator for Sges<I> {
    type Item = Sge;

    #[inline]
    fn next(&mut self) -> Option<Sge> {
        match self {
            Self::One(sge) => sge.take(),
            Self::Pieces(sges) => sges.next(),
        }
    }
}
