// SPDX-License-Identifier: GPL-2.0

//! Memory for the answers that are messages.

use ibtrs_proto::{
    msg::MORE_ANSWERS_LEN,
    tag::Tag, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};
use kx::mm::Pieces;
use rdma::{
    dma::{
        Direction,
        DmaPieces, //
    },
    pd::Pd,
    sge::Sge, //
};

/// Space for the longest answer, in bytes.
const ROOM: usize = MORE_ANSWERS_LEN.next_power_of_two();

// Every answer is therefore in one piece.
const _: () = assert!(PAGE_SIZE % ROOM == 0);

/// Memory for the answers to all tags of a path. Clients cannot write to it.
pub(crate) struct AnswerBufs(DmaPieces);

impl AnswerBufs {
    /// Allocates and maps memory for `count` answers.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(pd: &Arc<Pd>, count: usize) -> Result<Arc<Self>> {
        let pieces = Arc::new(Pieces::new(count * ROOM, pd.device().node())?, GFP_KERNEL)?;
        let dma = DmaPieces::new(pd, pieces, Direction::ToDevice)?;
        Ok(Arc::new(Self(dma), GFP_KERNEL)?)
    }
}

/// Memory for the answer to one tag.
pub(crate) struct AnswerBuf {
    all: Arc<AnswerBufs>,
    tag: Tag,
}

impl AnswerBuf {
    /// Creates the memory for the requests with `tag`, which is a part of `all`.
    pub(crate) fn new(all: &Arc<AnswerBufs>, tag: Tag) -> Self {
        Self {
            all: all.clone(),
            tag,
        }
    }

    /// Returns the tag.
    #[inline]
    pub(crate) fn tag(&self) -> Tag {
        self.tag
    }

    /// Writes the answer that `encode` creates, and returns its scatter element; `None` if the
    /// answer is empty. `encode` returns the length of the answer.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the answer of `encode` is too long.
    #[inline]
    pub(crate) fn write(
        &self,
        encode: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Result<Option<Sge>> {
        let mut bytes = [0; ROOM];
        let len = encode(&mut bytes).ok_or(EINVAL)?;
        if len == 0 {
            return Ok(None);
        }
        let (dma, at) = (&self.all.0, usize::from(self.tag) * ROOM);
        dma.pieces().copy_in(at, bytes.get(..len).ok_or(EINVAL)?)?;
        dma.sync_for_device(at, len)?;
        dma.sge(at, u32::try_from(len)?).ok_or(EINVAL).map(Some)
    }
}
