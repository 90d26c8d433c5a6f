// SPDX-License-Identifier: GPL-2.0

//! The header of an I/O request.

use super::*;

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Read sectors.
    Read,
    /// Write sectors.
    Write,
    /// Make earlier writes durable.
    Flush,
    /// Discard sectors, whose contents are no longer needed.
    Discard,
    /// Erase sectors for good.
    SecureErase,
    /// Make sectors read as zeroes.
    WriteZeroes,
}

/// How an operation becomes durable before it is answered, on a disk with a volatile cache that
/// nobody flushes: its user takes the disk for one without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WrittenThrough {
    /// It writes nothing that has to last.
    AsItIs,
    /// With [`IoFlags::FUA`].
    WithFua,
    /// Block layers have no FUA for it, so it is not supported there.
    Never,
}

impl Op {
    /// Returns how the operation becomes durable before it is answered, see [`WrittenThrough`].
    #[inline]
    pub const fn written_through(self) -> WrittenThrough {
        match self {
            Op::Write => WrittenThrough::WithFua,
            Op::WriteZeroes | Op::SecureErase => WrittenThrough::Never,
            Op::Read | Op::Flush | Op::Discard => WrittenThrough::AsItIs,
        }
    }

    /// All operations.
    pub const ALL: [Op; 6] = [
        Op::Read,
        Op::Write,
        Op::Flush,
        Op::Discard,
        Op::SecureErase,
        Op::WriteZeroes,
    ];

    /// The name for logs and traces.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
            Op::SecureErase => "secure erase",
            Op::WriteZeroes => "write zeroes",
        }
    }

    /// The number on the wire.
    #[inline]
    pub const fn to_wire(self) -> u8 {
        match self {
            Op::Read => 0,
            Op::Write => 1,
            Op::Flush => 2,
            Op::Discard => 3,
            Op::SecureErase => 4,
            Op::WriteZeroes => 5,
        }
    }

    /// Whether the request changes the device.
    #[inline]
    pub const fn modifies(&self) -> bool {
        match self {
            Op::Read | Op::Flush => false,
            Op::Write | Op::Discard | Op::SecureErase | Op::WriteZeroes => true,
        }
    }

    /// Whether the request carries data, one way or the other.
    #[inline]
    pub const fn has_data(&self) -> bool {
        matches!(self, Op::Read | Op::Write)
    }

    /// Whether the client sends the request as a transport write; reads and flushes are
    /// transport reads.
    #[inline]
    pub const fn is_transport_write(&self) -> bool {
        self.modifies()
    }
}

impl TryFrom<u8> for Op {
    type Error = MsgError;

    #[inline]
    fn try_from(wire: u8) -> Result<Self, MsgError> {
        match wire {
            0 => Ok(Op::Read),
            1 => Ok(Op::Write),
            2 => Ok(Op::Flush),
            3 => Ok(Op::Discard),
            4 => Ok(Op::SecureErase),
            5 => Ok(Op::WriteZeroes),
            other => Err(MsgError::Op(other)),
        }
    }
}

/// A set of flags of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct IoFlags(u32);

impl IoFlags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// A task waits for the request.
    pub const SYNC: Self = Self(1 << 8);
    /// The data is durable when the request completes.
    pub const FUA: Self = Self(1 << 9);
    /// Earlier writes are made durable first.
    pub const PREFLUSH: Self = Self(1 << 10);
    /// Zeroes are written, not unmapped.
    pub const NOUNMAP: Self = Self(1 << 11);

    /// The header has a checksum; not a flag of its own, see [`IoHdr::checksum`].
    const CHECKSUM: u32 = 1 << 12;
    const KNOWN: u32 = Self::SYNC.0 | Self::FUA.0 | Self::PREFLUSH.0 | Self::NOUNMAP.0;

    /// Both sets together.
    #[inline]
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set without the members of `other`.
    #[inline]
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all members of `other` are in the set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the sets have a member in common.
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// `flag` if `on`, else no flag.
    #[inline]
    #[must_use]
    pub const fn when(flag: Self, on: bool) -> Self {
        if on {
            flag
        } else {
            Self::NONE
        }
    }
}

impl core::fmt::Debug for IoFlags {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        const NAMES: [(IoFlags, &str); 4] = [
            (IoFlags::SYNC, "SYNC"),
            (IoFlags::FUA, "FUA"),
            (IoFlags::PREFLUSH, "PREFLUSH"),
            (IoFlags::NOUNMAP, "NOUNMAP"),
        ];
        let members = NAMES.iter().filter(|(flag, _)| self.contains(*flag));
        f.debug_set()
            .entries(members.map(|(_, name)| name))
            .finish()
    }
}

/// Header of an I/O request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoHdr {
    /// Id from the answer to OPEN.
    pub device_id: u32,
    /// First sector, in units of 512 bytes.
    pub sector: u64,
    /// The operation.
    pub op: Op,
    /// Flags of the operation.
    pub flags: IoFlags,
    /// Bytes the request covers on the device.
    pub bytes: u32,
    /// Linux I/O priority; 0 when the client sent none. Counts from protocol version 2 on.
    pub prio: u16,
    /// The checksum of header and data, see [`checksum`](crate::checksum). Extension: it counts
    /// only if the session has extensions.
    pub checksum: Option<u32>,
}

impl IoHdr {
    /// End of the priority; zeroes or the checksum follow.
    pub(crate) const PRIO_END: usize = 26;

    /// The 32 bytes of the header. C servers ignore the priority of a shorter one.
    #[inline]
    pub fn encode(&self) -> [u8; IO_HDR_LEN] {
        let checksum = match self.checksum {
            Some(_) => IoFlags::CHECKSUM,
            None => 0,
        };
        // Not by a closure, which the compiler does not inline where requests are built in two places.
        let mut bytes = [0; IO_HDR_LEN];
        let mut w = Writer::new(&mut bytes);
        put_type(&mut w, TYPE_IO);
        w.u32(self.device_id);
        w.u64(self.sector);
        w.u32(u32::from(self.op.to_wire()) | self.flags.0 | checksum);
        w.u32(self.bytes);
        w.u16(self.prio);
        w.zeros(2);
        w.u32(self.checksum.unwrap_or(0));
        bytes
    }

    /// Checks that the header has no checksum unless that was `checked`: without checksums in its
    /// session, its flag counts as unknown.
    ///
    /// # Errors
    ///
    /// [`MsgError::Flags`].
    #[inline]
    pub const fn check_flags(&self, checked: bool) -> Result<(), MsgError> {
        match self.checksum {
            Some(_) if !checked => Err(MsgError::Flags(IoFlags::CHECKSUM)),
            _ => Ok(()),
        }
    }

    /// The bytes at the place of the checksum.
    #[inline]
    pub(crate) fn sent_checksum(bytes: &[u8; IO_HDR_LEN]) -> u32 {
        bytes.last_chunk().map_or(0, |sum| u32::from_le_bytes(*sum))
    }

    /// Sets the checksum in an encoded header that has one.
    #[inline]
    pub fn set_checksum(bytes: &mut [u8; IO_HDR_LEN], checksum: u32) {
        if let Some(place) = bytes.last_chunk_mut() {
            *place = checksum.to_le_bytes();
        }
    }

    /// Reads the header. At least 24 bytes are needed; with less than 32 the priority is 0, and
    /// there is no checksum.
    ///
    /// # Errors
    ///
    /// When it is short or of another type, or when operation or flags are unknown: a flag that
    /// is not understood must not be dropped.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Self, MsgError> {
        let mut r = body(bytes, TYPE_IO)?;
        let mut fields = || Some((r.u32()?, r.u64()?, r.u32()?, r.u32()?));
        let (device_id, sector, rw, bytes_nr) = fields().ok_or(MsgError::Short)?;
        let [op, ..] = rw.to_le_bytes();
        let op = Op::try_from(op)?;
        let flags = rw & !0xFF;
        if flags & !(IoFlags::KNOWN | IoFlags::CHECKSUM) != 0 {
            return Err(MsgError::Flags(flags));
        }
        let has_checksum = flags & IoFlags::CHECKSUM != 0;
        let (prio, checksum) = if bytes.len() >= IO_HDR_LEN {
            let mut fields = || Some((r.u16()?, r.skip(2)?, r.u32()?));
            let (prio, (), checksum) = fields().ok_or(MsgError::Short)?;
            (prio, has_checksum.then_some(checksum))
        } else if has_checksum {
            return Err(MsgError::Short);
        } else {
            (0, None)
        };
        Ok(Self {
            device_id,
            sector,
            op,
            flags: IoFlags(flags & IoFlags::KNOWN),
            bytes: bytes_nr,
            prio,
            checksum,
        })
    }
}
