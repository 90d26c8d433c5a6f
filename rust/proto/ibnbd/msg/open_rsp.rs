// SPDX-License-Identifier: GPL-2.0

//! The answer to OPEN: the properties of the device.

use ibtrs_proto::bytes::message;

use super::*;
use crate::identity::{Difference, Identity};

/// Largest power of two that a block size's 16 bits can hold.
const MAX_BLOCK_SIZE: u32 = 32_768;
/// Smallest block size, one sector.
const MIN_BLOCK_SIZE: u32 = 512;
/// Most sectors whose bytes a signed 64-bit offset can count, 2^54 - 1.
pub const MAX_SECTORS: u64 = (i64::MAX as u64) >> 9;

const CACHE_FUA: u8 = 1;
const CACHE_WRITEBACK: u8 = 2;

/// Whether and how the device caches writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CachePolicy {
    /// The device has a volatile cache: flushes matter.
    pub writeback: bool,
    /// The device can write through its cache.
    pub fua: bool,
}

/// Limits of a block device, in types that hold all values of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceLimits {
    /// Capacity in sectors.
    pub nsectors: u64,
    /// Largest request in sectors.
    pub max_hw_sectors: u32,
    /// Largest write-zeroes in sectors, 0 if not supported.
    pub max_write_zeroes_sectors: u32,
    /// Largest discard in sectors, 0 if not supported.
    pub max_discard_sectors: u32,
    /// Unit of discards in bytes.
    pub discard_granularity: u32,
    /// Offset of the first discard unit in bytes.
    pub discard_alignment: u32,
    /// Block size the device works with internally, in bytes.
    pub physical_block_size: u32,
    /// Smallest unit of I/O in bytes.
    pub logical_block_size: u32,
    /// Most segments of a request.
    pub max_segments: u32,
    /// Largest secure erase in sectors, 0 if not supported.
    pub max_secure_erase_sectors: u32,
    /// Caching of writes.
    pub cache: CachePolicy,
    /// Smallest efficient I/O in bytes.
    pub io_min: u32,
    /// Best I/O size in bytes, 0 if there is none.
    pub io_opt: u32,
    /// Where the first physical block starts, in bytes.
    pub alignment_offset: u32,
    /// The disk rotates: seeks take time.
    pub rotational: bool,
    /// Writing zeroes frees the space, unless the request forbids it.
    pub zeroes_unmap: bool,
    /// The cache generation; see [`crate::unflushed`].
    pub cache_run: Identity,
}

impl DeviceLimits {
    /// The fields that do not fit into the answer to OPEN itself, of a device whose requests have
    /// `checksums` or not.
    pub const fn details(&self, checksums: bool) -> Details {
        Details {
            physical_block_size: self.physical_block_size,
            io_min: self.io_min,
            io_opt: self.io_opt,
            max_secure_erase_sectors: self.max_secure_erase_sectors,
            alignment_offset: self.alignment_offset,
            rotational: self.rotational,
            zeroes_unmap: self.zeroes_unmap,
            checksums,
            cache_run: self.cache_run,
        }
    }
}

/// The answer to OPEN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenRsp {
    /// Id of the device in this session.
    pub device_id: u32,
    /// Capacity in sectors.
    pub nsectors: u64,
    /// Largest request in sectors; for information.
    pub max_hw_sectors: u32,
    /// Largest write-zeroes in sectors, 0 if not supported.
    pub max_write_zeroes_sectors: u32,
    /// Largest discard in sectors, 0 if not supported.
    pub max_discard_sectors: u32,
    /// Unit of discards in bytes.
    pub discard_granularity: u32,
    /// Offset of the first discard unit in bytes.
    pub discard_alignment: u32,
    /// Block size the device works with internally, in bytes, as sent; see
    /// [`OpenRsp::physical_block_size_bytes`].
    pub physical_block_size: u16,
    /// Smallest unit of I/O in bytes: a power of two, 512..=32768.
    pub logical_block_size: u16,
    /// Most segments of a request; for information.
    pub max_segments: u16,
    /// Nonzero if the device supports secure erase.
    pub secure_discard: u16,
    /// Caching of writes.
    pub cache: CachePolicy,
    /// The identity of the disk itself; see [`crate::identity`]. Extension: C servers have
    /// something else there, so it counts only if the session has extensions.
    pub identity: Identity,
    /// The details behind the answer, if the server sends them; see [`Details`].
    pub details: Option<Details>,
}

impl OpenRsp {
    /// The answer for a device with `limits`, of unknown identity, and without details.
    ///
    /// A value that exceeds its 16 bits is never truncated, which would make 65536 a 0:
    /// `max_segments` and `secure_discard` become at most 65535, and the physical block size, a
    /// hint, at most 32768.
    ///
    /// # Errors
    ///
    /// When the logical block size is not a power of two of 512..=32768, or the capacity is more
    /// than 2^63 - 1 bytes: the device cannot be exported.
    pub fn new(device_id: u32, limits: &DeviceLimits) -> Result<Self, MsgError> {
        let logical = limits.logical_block_size;
        if !is_block_size(logical) {
            return Err(MsgError::BlockSize(logical));
        }
        if limits.nsectors > MAX_SECTORS {
            return Err(MsgError::Capacity(limits.nsectors));
        }
        let physical = limits.physical_block_size.clamp(logical, MAX_BLOCK_SIZE);
        Ok(Self {
            device_id,
            nsectors: limits.nsectors,
            max_hw_sectors: limits.max_hw_sectors,
            max_write_zeroes_sectors: limits.max_write_zeroes_sectors,
            max_discard_sectors: limits.max_discard_sectors,
            discard_granularity: limits.discard_granularity,
            discard_alignment: limits.discard_alignment,
            physical_block_size: saturate(physical),
            logical_block_size: saturate(logical),
            max_segments: saturate(limits.max_segments),
            secure_discard: saturate(limits.max_secure_erase_sectors),
            cache: limits.cache,
            identity: Identity::UNKNOWN,
            details: None,
        })
    }

    /// The 56 bytes of the message; the details are encoded by themselves.
    pub fn encode(&self) -> [u8; OPEN_RSP_LEN] {
        let fua = if self.cache.fua { CACHE_FUA } else { 0 };
        let writeback = if self.cache.writeback {
            CACHE_WRITEBACK
        } else {
            0
        };
        message(|w| {
            put_type(w, TYPE_OPEN_RSP);
            w.u32(self.device_id);
            w.u64(self.nsectors);
            w.u32(self.max_hw_sectors);
            w.u32(self.max_write_zeroes_sectors);
            w.u32(self.max_discard_sectors);
            w.u32(self.discard_granularity);
            w.u32(self.discard_alignment);
            w.u16(self.physical_block_size);
            w.u16(self.logical_block_size);
            w.u16(self.max_segments);
            w.u16(self.secure_discard);
            w.zeros(1);
            w.u8(fua | writeback);
            w.u64(self.identity.to_wire());
        })
    }

    /// Reads and checks the message, without details.
    ///
    /// # Errors
    ///
    /// When it is short or of another type, or names a capacity or a logical block size that no
    /// disk can have.
    pub fn decode(bytes: &[u8]) -> Result<Self, MsgError> {
        let r = body(bytes, TYPE_OPEN_RSP)?;
        let rsp = match bytes.len() {
            OPEN_RSP_LEN.. => Self::fields(r).ok_or(MsgError::Short)?,
            _ => return Err(MsgError::Short),
        };
        let logical = u32::from(rsp.logical_block_size);
        if !is_block_size(logical) {
            return Err(MsgError::BlockSize(logical));
        }
        if rsp.nsectors > MAX_SECTORS {
            return Err(MsgError::Capacity(rsp.nsectors));
        }
        Ok(rsp)
    }

    fn fields(mut r: Reader<'_>) -> Option<Self> {
        let mut rsp = Self {
            device_id: r.u32()?,
            nsectors: r.u64()?,
            max_hw_sectors: r.u32()?,
            max_write_zeroes_sectors: r.u32()?,
            max_discard_sectors: r.u32()?,
            discard_granularity: r.u32()?,
            discard_alignment: r.u32()?,
            physical_block_size: r.u16()?,
            logical_block_size: r.u16()?,
            max_segments: r.u16()?,
            secure_discard: r.u16()?,
            cache: CachePolicy::default(),
            identity: Identity::UNKNOWN,
            details: None,
        };
        r.skip(1)?;
        let cache = r.u8()?;
        rsp.cache.fua = cache & CACHE_FUA != 0;
        rsp.cache.writeback = cache & CACHE_WRITEBACK != 0;
        rsp.identity = Identity::from_wire(r.u64()?);
        Some(rsp)
    }

    /// The physical block size to use, in bytes.
    ///
    /// The answer has 16 bits for it, to which C servers truncate it; the details have 32. A value
    /// that is no power of two, or less than the logical block size, counts as the latter.
    pub fn physical_block_size_bytes(&self) -> u32 {
        let physical = match &self.details {
            Some(details) => details.physical_block_size,
            None => u32::from(self.physical_block_size),
        };
        if physical.is_power_of_two() {
            physical.max(u32::from(self.logical_block_size))
        } else {
            u32::from(self.logical_block_size)
        }
    }

    /// Checks whether this describes the same disk as `before`, as far as a client can tell;
    /// `proof` if that has to be proven, see [`OpenRsp::is_proven`].
    ///
    /// A device that is reopened by its name is used again only if it is.
    ///
    /// # Errors
    ///
    /// The first difference.
    pub fn same_disk(&self, before: &Self, proof: bool) -> Result<(), Difference> {
        if !self.identity.may_be(before.identity) {
            return Err(Difference::Identity);
        }
        let sizes = |rsp: &Self| (rsp.logical_block_size, rsp.physical_block_size_bytes());
        if sizes(self) != sizes(before) {
            return Err(Difference::BlockSize);
        }
        // A disk that is known by its identity may become smaller.
        let known = self.identity.is_known() && before.identity.is_known();
        if self.nsectors < before.nsectors && !known {
            return Err(Difference::Smaller);
        }
        if proof && !known && !self.is_proven(before) {
            return Err(Difference::Unproven);
        }
        Ok(())
    }

    /// The identity of the disk from now on. One from `before` stays known only if this is surely the same
    /// disk: otherwise a disk without identity would later be taken for the earlier one.
    pub fn identity_after(&self, before: &Self) -> Identity {
        match self.same_disk(before, true) {
            Ok(()) => self.identity.or(before.identity),
            Err(_) => self.identity,
        }
    }

    /// Whether the server vouches for a disk without identity: with an unchanged cache generation, it
    /// has not booted since, and still has the same instance of the disk. A server that never
    /// vouched for anything, such as mainline's, is believed: it also loses the session with its
    /// last path, and tells nothing by which the client could distinguish that from a restart.
    fn is_proven(&self, before: &Self) -> bool {
        let (now, was) = (self.cache_run(), before.cache_run());
        if was.is_known() {
            return now == was;
        }
        !before.identity.is_known()
    }

    /// Whether the server expects a checksum in each request to the device, and returns those of
    /// data.
    pub fn has_checksums(&self) -> bool {
        self.details.is_some_and(|details| details.checksums)
    }

    /// The cache generation, if the server sends it.
    pub fn cache_run(&self) -> Identity {
        self.details
            .map_or(Identity::UNKNOWN, |details| details.cache_run)
    }
}

pub(super) const fn is_block_size(n: u32) -> bool {
    n.is_power_of_two() && n >= MIN_BLOCK_SIZE && n <= MAX_BLOCK_SIZE
}

fn saturate(n: u32) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}
