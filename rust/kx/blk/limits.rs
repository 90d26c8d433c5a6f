// SPDX-License-Identifier: GPL-2.0

//! The capabilities of a disk: sizes, limits and features of its queue.
//!
//! Differs from [`kernel::block::mq`], whose builder of disks sets the sizes of blocks and the
//! capacity, and whether the disk rotates.
//!
//! # Examples
//!
//! ```
//! use kx::blk::Limits;
//!
//! let limits = Limits {
//!     logical_block_bytes: 512,
//!     physical_block_bytes: 4096,
//!     max_hw_sectors: 256,
//!     max_segments: 128,
//!     write_cache: true,
//!     fua: true,
//!     ..Limits::default()
//! };
//! # let _ = limits;
//! ```
//!
//! C header: [`include/linux/blkdev.h`](srctree/include/linux/blkdev.h)

use ibtrs_bindings as ours;
use kernel::bindings;

/// Limits and features of a queue. A limit of zero stands for the block layer's default. The
/// exception is a `max_*_sectors` of an operation without data, where zero means that the device
/// does not support the operation. A sector has 512 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Smallest addressable unit, a power of two.
    pub logical_block_bytes: u32,
    /// Smallest unit that is written without a read-modify-write, a power of two.
    pub physical_block_bytes: u32,
    /// Offset of the first such unit.
    pub alignment_offset_bytes: u32,
    /// Smallest efficient I/O.
    pub io_min_bytes: u32,
    /// Best I/O size.
    pub io_opt_bytes: u32,
    /// Largest data transfer.
    pub max_hw_sectors: u32,
    /// Maximum number of segments of a request.
    pub max_segments: u16,
    /// Largest segment; leave zero with a virtual boundary.
    pub max_segment_bytes: u32,
    /// Adjacent segments have a gap only at addresses in which all these bits are zero.
    pub virt_boundary_mask: usize,
    /// Bits that must be zero in addresses and lengths of data from user space.
    pub dma_alignment_mask: u32,
    /// Largest discard.
    pub max_discard_sectors: u32,
    /// Unit of discards.
    pub discard_granularity_bytes: u32,
    /// Offset of the first such unit.
    pub discard_alignment_bytes: u32,
    /// Largest secure erase.
    pub max_secure_erase_sectors: u32,
    /// Largest write of zeroes.
    pub max_write_zeroes_sectors: u32,
    /// Written zeroes take no space, unless they are written without unmapping.
    pub write_zeroes_unmaps: bool,
    /// The device has a volatile write cache and needs flushes.
    pub write_cache: bool,
    /// The device supports forced unit access (FUA); only with a write cache.
    pub fua: bool,
    /// Seeks take time, as on hard disks.
    pub rotational: bool,
    /// Data must not change while it is written.
    pub stable_writes: bool,
}

impl Limits {
    /// Writes the limits to `raw`, and leaves all other fields unchanged.
    pub(crate) fn apply_to(&self, raw: &mut bindings::queue_limits) {
        raw.logical_block_size = self.logical_block_bytes;
        raw.physical_block_size = self.physical_block_bytes;
        raw.alignment_offset = self.alignment_offset_bytes;
        raw.io_min = self.io_min_bytes;
        raw.io_opt = self.io_opt_bytes;
        raw.max_hw_sectors = self.max_hw_sectors;
        raw.max_segments = self.max_segments;
        raw.max_segment_size = self.max_segment_bytes;
        raw.virt_boundary_mask = self.virt_boundary_mask;
        raw.dma_alignment = self.dma_alignment_mask;
        raw.max_hw_discard_sectors = self.max_discard_sectors;
        raw.discard_granularity = self.discard_granularity_bytes;
        raw.discard_alignment = self.discard_alignment_bytes;
        raw.max_secure_erase_sectors = self.max_secure_erase_sectors;
        raw.max_write_zeroes_sectors = self.max_write_zeroes_sectors;
        // All or nothing: the block layer accepts no other limit.
        raw.max_hw_wzeroes_unmap_sectors = if self.write_zeroes_unmaps {
            self.max_write_zeroes_sectors
        } else {
            0
        };
        for (on, feature) in [
            (self.write_cache, ours::BLK_FEAT_WRITE_CACHE),
            (self.fua && self.write_cache, ours::BLK_FEAT_FUA),
            (self.rotational, ours::BLK_FEAT_ROTATIONAL),
            (self.stable_writes, ours::BLK_FEAT_STABLE_WRITES),
        ] {
            if on {
                raw.features |= feature;
            } else {
                raw.features &= !feature;
            }
        }
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_blk_limits)]
mod tests {
    use super::*;

    #[test]
    fn features() {
        let mut raw: bindings::queue_limits = pin_init::zeroed();
        let both = ours::BLK_FEAT_WRITE_CACHE | ours::BLK_FEAT_FUA;
        let mut limits = Limits {
            write_cache: true,
            fua: true,
            ..Limits::default()
        };
        limits.apply_to(&mut raw);
        assert_eq!(raw.features & both, both);
        limits.write_cache = false;
        limits.apply_to(&mut raw);
        assert_eq!(raw.features & both, 0);
        for on in [true, false] {
            limits.stable_writes = on;
            limits.apply_to(&mut raw);
            let is_on = raw.features & ours::BLK_FEAT_STABLE_WRITES != 0;
            assert_eq!(is_on, on);
        }
    }
}
