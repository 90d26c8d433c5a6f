// SPDX-License-Identifier: GPL-2.0

//! Handles, ranges, rights and pieces.

use ibtrs_proto::Errno;

/// Bits of a handle for the slot; the generation is above them.
const SLOT_BITS: u32 = 16;
/// The greatest generation; 1 follows.
pub(crate) const MAX_GENERATION: u64 = u64::MAX >> SLOT_BITS;
/// Bytes of a piece: what one region covers. Pieces begin at multiples of it, so that all of a range but the
/// first and the last are whole.
pub const PIECE: u32 = 1 << 21;
const PIECE_SHIFT: u32 = PIECE.trailing_zeros();
/// Bytes of one RDMA READ or WRITE, and of a push: wherever these begin in a page, they have no more pages than a piece.
pub const MAX_WORK: u32 = 1 << 20;

/// Names published memory: slot | generation << 16. The generation is never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(u64);

impl Handle {
    pub(crate) const fn new(slot: u16, generation: u64) -> Self {
        // Lossless: u16 to u64.
        Self(generation << SLOT_BITS | slot as u64)
    }

    /// The handle on the wire, and in a message; `None` for a number that no kernel makes.
    pub const fn from_wire(bits: u64) -> Option<Self> {
        match bits >> SLOT_BITS {
            0 => None,
            _ => Some(Self(bits)),
        }
    }

    /// The number on the wire.
    pub const fn to_wire(self) -> u64 {
        self.0
    }

    /// The slot in the owner's table.
    pub const fn slot(self) -> u16 {
        let [a, b, ..] = self.0.to_le_bytes();
        u16::from_le_bytes([a, b])
    }

    pub(crate) const fn generation(self) -> u64 {
        self.0 >> SLOT_BITS
    }
}

/// What the peer may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rights {
    /// GET.
    pub read: bool,
    /// PUT.
    pub write: bool,
}

impl Rights {
    pub(crate) const fn to_wire(self) -> u8 {
        (self.read as u8) | (self.write as u8) << 1
    }

    pub(crate) const fn from_wire(bits: u8) -> Option<Self> {
        match bits {
            0..=3 => Some(Self {
                read: bits & 1 != 0,
                write: bits & 2 != 0,
            }),
            _ => None,
        }
    }

    /// Whether these include `wanted`.
    pub const fn allow(self, wanted: Self) -> bool {
        (self.read || !wanted.read) && (self.write || !wanted.write)
    }
}

/// Why an operation on memory was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The handle is revoked, or was never given to this channel.
    Stale,
    /// The owner does not allow it.
    Access,
    /// Outside of the range.
    Range,
    /// A limit of the owner's kernel, or its memory.
    Resources,
    /// A device does not see memory of programs as it is, but copies of it.
    Device,
}

impl Refusal {
    /// The errno for the program.
    pub const fn errno(self) -> Errno {
        match self {
            Self::Stale => Errno::ESTALE,
            Self::Access => Errno::EACCES,
            Self::Range => Errno::ERANGE,
            Self::Resources => Errno::ENOBUFS,
            Self::Device => Errno::EOPNOTSUPP,
        }
    }

    pub(crate) const fn from_errno(errno: Errno) -> Self {
        match errno {
            Errno::ESTALE => Self::Stale,
            Errno::EACCES => Self::Access,
            Errno::ERANGE => Self::Range,
            Errno::EOPNOTSUPP => Self::Device,
            _ => Self::Resources,
        }
    }
}

/// Offsets of memory: not empty, and they do not wrap around.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    start: u64,
    len: u64,
}

impl Range {
    /// `len` bytes from `start` on; `None` if that is nothing, or too much to count.
    pub const fn new(start: u64, len: u64) -> Option<Self> {
        match (start.checked_add(len), len) {
            (None, _) | (_, 0) => None,
            _ => Some(Self { start, len }),
        }
    }

    /// The first offset.
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// Bytes: at least 1.
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// The offset behind the last one.
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// Whether all of `other` is in this range.
    pub const fn contains(&self, other: &Self) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    /// The part of the range that is in the piece; `None` if there is none.
    pub fn piece(&self, piece: u64) -> Option<Self> {
        let first = piece.checked_mul(u64::from(PIECE))?.max(self.start);
        let next = piece
            .checked_add(1)?
            .saturating_mul(u64::from(PIECE))
            .min(self.end());
        Self::new(first, next.checked_sub(first)?)
    }

    /// The next part that one work request moves, `at` bytes from the beginning, and its piece; `None`
    /// behind the end.
    pub fn work(&self, at: u64) -> Option<(u64, Self)> {
        let first = self.start.checked_add(at)?;
        let piece = first >> PIECE_SHIFT;
        let rest = Self::new(first, self.end().checked_sub(first)?)?;
        let part = rest.piece(piece)?;
        let len = part.len.min(u64::from(MAX_WORK));
        Some((piece, Self { start: first, len }))
    }
}

/// The key of a piece, for one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// The key.
    pub rkey: u32,
    /// The address of the piece's first byte in the range.
    pub addr: u64,
    /// The whole range of the handle.
    pub range: Range,
    /// The rights of the handle.
    pub rights: Rights,
    /// RDMA READ may be used: the owner's device answers it without fail. Otherwise a GET is a push.
    pub readable: bool,
}

impl Key {
    /// The address of an offset of the piece.
    ///
    /// # Errors
    ///
    /// Why an operation on `op`, which needs `rights`, is refused; or [`Refusal::Range`] for an offset that is
    /// not in the piece.
    pub fn address(
        &self,
        piece: u64,
        op: &Range,
        part: &Range,
        rights: Rights,
    ) -> Result<u64, Refusal> {
        if !self.rights.allow(rights) {
            return Err(Refusal::Access);
        }
        if !self.range.contains(op) {
            return Err(Refusal::Range);
        }
        let covered = self.range.piece(piece).filter(|c| c.contains(part));
        let covered = covered.ok_or(Refusal::Range)?;
        let skip = part.start.checked_sub(covered.start);
        skip.and_then(|skip| self.addr.checked_add(skip))
            .ok_or(Refusal::Range)
    }
}
