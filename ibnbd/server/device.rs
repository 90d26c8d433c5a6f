// SPDX-License-Identifier: GPL-2.0

//! A device that a session has open.

use crate::export::{
    Exports,
    User, //
};
use ibnbd_proto::{
    access::AccessMode,
    io_check::Device,
    msg::{
        CachePolicy,
        DeviceLimits, //
    },
};
use kernel::{
    prelude::*,
    str::CStr,
    sync::Arc, //
};
use kx::blk::{
    BlockDevice,
    OpenSpec, //
};

/// An open device of a session.
pub(crate) struct Opened {
    // Closed before the export may have another writer.
    bdev: BlockDevice,
    /// Does not change while the device is open.
    logical_block_size: u32,
    mode: AccessMode,
    _user: User,
}

impl Opened {
    /// Opens the device at `path` below the directory `root`.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// Those of [`BlockDevice::open`]; `EPERM` when others have it open for
    /// writing already.
    pub(crate) fn open(
        exports: &Arc<Exports>,
        root: &CStr,
        path: &CStr,
        mode: AccessMode,
    ) -> Result<Self> {
        let spec = OpenSpec {
            write: mode.writes(),
            holder: None,
        };
        let bdev = BlockDevice::open(root, path, spec)?;
        let user = exports.enter(bdev.dev(), mode)?;
        Ok(Self {
            logical_block_size: bdev.limits().logical_block_bytes,
            bdev,
            mode,
            _user: user,
        })
    }

    pub(crate) fn bdev(&self) -> &BlockDevice {
        &self.bdev
    }

    pub(crate) fn mode(&self) -> AccessMode {
        self.mode
    }

    /// Returns what I/O is checked against.
    pub(crate) fn bounds(&self) -> Device {
        Device {
            nsectors: self.bdev.capacity_sectors(),
            logical_block_size: self.logical_block_size,
            read_only: !self.mode.writes() || self.bdev.is_read_only(),
        }
    }

    /// Returns what the client is told about the device.
    pub(crate) fn limits(&self) -> DeviceLimits {
        let limits = self.bdev.limits();
        DeviceLimits {
            nsectors: self.bdev.capacity_sectors(),
            max_hw_sectors: limits.max_hw_sectors,
            max_write_zeroes_sectors: limits.max_write_zeroes_sectors,
            max_discard_sectors: limits.max_discard_sectors,
            discard_granularity: limits.discard_granularity_bytes,
            discard_alignment: limits.discard_alignment_bytes,
            physical_block_size: limits.physical_block_bytes,
            logical_block_size: limits.logical_block_bytes,
            max_segments: u32::from(limits.max_segments),
            max_secure_erase_sectors: limits.max_secure_erase_sectors,
            cache: CachePolicy {
                writeback: limits.write_cache,
                fua: limits.fua,
            },
        }
    }
}
