// SPDX-License-Identifier: GPL-2.0

//! The server's checks before it submits a request.

use ibtrs_proto::msg::Direction;
use ibtrs_proto::Errno;

use crate::msg::{IoFlags, IoHdr, Op};

/// Properties of the device that requests are checked against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    /// Capacity in sectors.
    pub nsectors: u64,
    /// Smallest unit of I/O in bytes, a power of two from 512 on.
    pub logical_block_size: u32,
    /// The client opened it read-only, or it is read-only itself.
    pub read_only: bool,
}

/// Why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoError {
    /// The operation is not one of the transport request's direction.
    Direction,
    /// A request that changes a read-only device.
    ReadOnly,
    /// The length of the data is not the number of bytes in the header.
    Length,
    /// A request that covers no sector.
    Empty,
    /// Data with an operation that has none, or no data with an operation that has some.
    Data,
    /// FUA or PREFLUSH on an operation that is neither write nor flush.
    Flags,
    /// Not a whole number of logical blocks.
    Alignment,
    /// Beyond the end of the device.
    Range,
    /// The checksum does not match header and data.
    Damaged,
    /// A header that matches its checksum contradicts the transport header. No checksum covers that
    /// one, so it is damaged.
    Contradiction,
}

impl IoError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Direction => "operation against the direction of the transport",
            Self::ReadOnly => "device is read-only",
            Self::Length => "data and length of the request differ",
            Self::Empty => "request without length",
            Self::Data => "request with data that it must not have, or without data that it needs",
            Self::Flags => "durability flags at a request that cannot have them",
            Self::Alignment => "request is not a whole number of blocks",
            Self::Range => "request beyond the end of the device",
            Self::Damaged => "request was damaged on the way here: its checksum does not match",
            Self::Contradiction => "request was damaged on the way here: its headers disagree",
        }
    }

    /// The meaning of the error for a header that matches its checksum.
    #[must_use]
    pub const fn of_sealed(self) -> Self {
        match self {
            Self::Direction | Self::Length | Self::Data => Self::Contradiction,
            other => other,
        }
    }

    /// The errno to answer with.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::ReadOnly => Errno::EROFS,
            Self::Range => Errno::EIO,
            Self::Damaged | Self::Contradiction => Errno::EBADMSG,
            _ => Errno::EINVAL,
        }
    }
}

/// A request that has passed the checks and can be submitted.
///
/// # Invariants
///
/// Unless `op` is a flush: `bytes` is not zero, `sector` and `bytes` are whole logical blocks
/// inside the device, and equal the data's length if `op` has data. A flush has neither.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckedIo {
    /// The operation.
    pub op: Op,
    /// First sector.
    pub sector: u64,
    /// Bytes covered on the device.
    pub bytes: u32,
    /// Flags that mean something for `op`.
    pub flags: IoFlags,
    /// Linux I/O priority; the caller ignores it below protocol version 2.
    pub prio: u16,
}

impl CheckedIo {
    /// Sectors covered.
    #[inline]
    pub const fn sectors(&self) -> u32 {
        self.bytes >> 9
    }
}

/// Checks header `hdr` of a request with `data_len` bytes of data, which a write has received and
/// a read returns.
///
/// # Errors
///
/// See [`IoError`]; the caller answers the request with its errno.
#[inline]
pub fn check(
    hdr: &IoHdr,
    direction: Direction,
    data_len: u32,
    dev: &Device,
) -> Result<CheckedIo, IoError> {
    if hdr.op.modifies() && dev.read_only {
        return Err(IoError::ReadOnly);
    }
    if hdr.op == Op::Flush {
        // The direction does not matter: C clients send a flush as a read. Nor does the sector.
        if data_len != 0 {
            return Err(IoError::Data);
        }
        if hdr.bytes != 0 {
            return Err(IoError::Length);
        }
        // INVARIANT: a flush has neither sector nor length.
        return Ok(CheckedIo {
            op: Op::Flush,
            sector: 0,
            bytes: 0,
            flags: IoFlags::NONE,
            prio: hdr.prio,
        });
    }
    if hdr.op.is_transport_write() != (direction == Direction::Write) {
        return Err(IoError::Direction);
    }
    if hdr.bytes == 0 {
        return Err(IoError::Empty);
    }
    if hdr.op.has_data() != (data_len != 0) {
        return Err(IoError::Data);
    }
    if hdr.op.has_data() && data_len != hdr.bytes {
        return Err(IoError::Length);
    }
    let durable = IoFlags::FUA.and(IoFlags::PREFLUSH);
    if hdr.op != Op::Write && hdr.flags.intersects(durable) {
        return Err(IoError::Flags);
    }
    check_range(hdr, dev)?;
    let flags = if hdr.op == Op::WriteZeroes {
        hdr.flags
    } else {
        hdr.flags.without(IoFlags::NOUNMAP)
    };
    // INVARIANT: Established by the checks above and by `check_range`.
    Ok(CheckedIo {
        op: hdr.op,
        sector: hdr.sector,
        bytes: hdr.bytes,
        flags,
        prio: hdr.prio,
    })
}

#[inline]
fn check_range(hdr: &IoHdr, dev: &Device) -> Result<(), IoError> {
    let block = dev.logical_block_size.max(512);
    let block_sectors = u64::from(block >> 9);
    if hdr.bytes.checked_rem(block) != Some(0) || hdr.sector.checked_rem(block_sectors) != Some(0) {
        return Err(IoError::Alignment);
    }
    match hdr.sector.checked_add(u64::from(hdr.bytes >> 9)) {
        Some(end) if end <= dev.nsectors => Ok(()),
        _ => Err(IoError::Range),
    }
}
