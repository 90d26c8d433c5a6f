// SPDX-License-Identifier: GPL-2.0

//! A device that a session has open.

use crate::export::{
    Exports,
    User, //
};
use ibnbd_proto::{
    access::Access,
    identity::{
        self,
        Identity, //
    },
    io_check::Device,
    msg::{
        CachePolicy,
        DeviceLimits, //
    },
    unflushed,
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
};
use kx::blk::{
    BlockDevice,
    Holder,
    OpenSpec, //
};

/// The holder of the exclusive claim on devices that clients write to.
static HOLDER: Holder = Holder::new();

/// An open device of a session.
pub(crate) struct Opened {
    // Closed before the export may have another writer.
    bdev: BlockDevice,
    /// Does not change while the device is open.
    logical_block_size: u32,
    access: Access,
    /// As it was when the device was opened: some of it may change, such as the name of
    /// the file behind a loop device.
    identity: Identity,
    /// The generation changes when this machine is booted, and when the disk was away.
    cache_run: Identity,
    /// The size that the client was told last, in sectors.
    reported: Atomic<u64>,
    user: User,
}

impl Opened {
    /// Opens the device with the number `dev`, from [`BlockDevice::find`].
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// Those of [`BlockDevice::open`], `EBUSY` among them if someone else on this
    /// machine uses the device that is to be written to or had for oneself; `EOPNOTSUPP` for a zoned
    /// disk; `EPERM` when other clients have it open for writing already.
    pub(crate) fn open(exports: &Arc<Exports>, dev: u32, access: Access) -> Result<Self> {
        let spec = OpenSpec {
            write: access.writes(),
            // One holder for all devices that clients write to: a second claim by the server
            // succeeds, one by any other user of the machine fails.
            holder: access.claims().then_some(&HOLDER),
        };
        let bdev = BlockDevice::open(dev, spec)?;
        if bdev.is_zoned() {
            return Err(EOPNOTSUPP);
        }
        let user = exports.enter(&bdev, access)?;
        Ok(Self {
            logical_block_size: bdev.limits().logical_block_bytes,
            access,
            identity: identity(&bdev)?,
            cache_run: unflushed::cache_generation(exports.boot(), bdev.diskseq()),
            bdev,
            reported: Atomic::new(0),
            user,
        })
    }

    pub(crate) fn bdev(&self) -> &BlockDevice {
        &self.bdev
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// Returns its part in the export.
    pub(crate) fn user(&self) -> &User {
        &self.user
    }

    /// Returns what tells this disk from any other that may get its name.
    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns what I/O is checked against.
    pub(crate) fn bounds(&self) -> Device {
        Device {
            nsectors: self.bdev.capacity_sectors(),
            logical_block_size: self.logical_block_size,
            read_only: !self.access.writes() || self.bdev.is_read_only(),
        }
    }

    /// Returns whether the size is another one than the client was told.
    pub(crate) fn has_new_size(&self) -> bool {
        // ORDERING: A reader of an old value sends the client one notice too many.
        self.reported.load(Relaxed) != self.bdev.capacity_sectors()
    }

    /// Returns what the client is told about the device, now.
    pub(crate) fn tell_limits(&self) -> DeviceLimits {
        let limits = self.bdev.limits();
        let nsectors = self.bdev.capacity_sectors();
        // ORDERING: As in `has_new_size`.
        self.reported.store(nsectors, Relaxed);
        DeviceLimits {
            nsectors,
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
            alignment_offset: limits.alignment_offset_bytes,
            io_min: limits.io_min_bytes,
            io_opt: limits.io_opt_bytes,
            rotational: limits.rotational,
            zeroes_unmap: limits.write_zeroes_unmaps,
            cache_run: self.cache_run,
        }
    }
}

/// Longest value of an attribute that counts; what follows is left out.
const MAX_VALUE: usize = 512;

/// Returns what tells a device from any other that may get its name.
///
/// # Errors
///
/// `ENOMEM`.
fn identity(bdev: &BlockDevice) -> Result<Identity> {
    let id = bdev.unique_id();
    if let Some(id) = &id {
        return Ok(part_of(bdev, &[], id.as_bytes()));
    }
    let mut buf = KVec::from_elem(0u8, MAX_VALUE, GFP_KERNEL)?;
    for name in identity::ATTRIBUTES {
        // One that cannot be read says nothing.
        let len = bdev.attribute(name, &mut buf).unwrap_or(0);
        if let Some(value) = identity::value(buf.get(..len).unwrap_or_default()) {
            return Ok(part_of(bdev, name.to_bytes(), value));
        }
    }
    Ok(part_of(bdev, &[], &[]))
}

/// Returns the identity of a device on a disk with this name, if the name is not empty; `kind` is
/// the kind of the name.
fn part_of(bdev: &BlockDevice, kind: &[u8], id: &[u8]) -> Identity {
    let of = |part: &[u8]| match (kind, part) {
        ([], []) => Identity::of(&[id]),
        ([], part) => Identity::of(&[id, part]),
        (kind, part) => Identity::of(&[kind, id, part]),
    };
    match (bdev.partition(), bdev.partition_uuid()) {
        (0, _) => of(&[]),
        (_, Some(uuid)) => of(uuid),
        // The partition's number tells it from the others of a known disk.
        (number, None) if !id.is_empty() => of(&[number]),
        _ => Identity::UNKNOWN,
    }
}
