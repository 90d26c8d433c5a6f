// SPDX-License-Identifier: GPL-2.0

//! A device that a session has open.

use crate::{
    config::{
        self,
        Terms, //
    },
    export::{
        Exports,
        User, //
    },
    param,
    throttle::HostThrottle, //
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
use io::{
    backlog::Backlog,
    requests::Requests, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    blk::{
        BlockDevice,
        Holder,
        OpenSpec, //
    },
    sync::atomic::{
        Atomic,
        AtomicFlag,
        Relaxed, //
    }, //
};

pub(crate) mod io;

/// The holder of the exclusive claim on devices that clients write to.
static HOLDER: Holder = Holder::new();

/// An open device of a session.
pub(crate) struct Opened {
    // Before `user`: the device is closed before the export can have another writer.
    bdev: BlockDevice,
    /// Requests that wait for the device.
    backlog: Backlog,
    /// Does not change while the device is open.
    logical_block_size: u32,
    access: Access,
    /// The identity when the device was opened. It could change later, with the file behind a loop
    /// device, for example.
    identity: Identity,
    /// The cache generation: changes with each boot of this machine, and when the disk was removed
    /// and re-added.
    cache_run: Identity,
    /// The cache policy when the device was opened. The client's disk is created with it and does
    /// not change, so every answer reports the same; see [`Opened::is_written_through`].
    cache: CachePolicy,
    /// The size last reported to the client, in sectors.
    reported: Atomic<u64>,
    /// The terms of the export, if the device was opened as one.
    terms: Option<Terms>,
    /// Whether the session may not use the device any more; shared with its [`Terms`].
    revoked: Arc<AtomicFlag>,
    /// Whether the requests to the device have checksums.
    checksums: AtomicFlag,
    user: User,
}

impl Opened {
    /// Opens the device with the number `dev`, from [`BlockDevice::find`], for the session `name`
    /// with its `requests`. `terms` are the terms of the export, if the device is opened as one.
    ///
    /// # Context
    ///
    /// May sleep. One task of a session at a time.
    ///
    /// # Errors
    ///
    /// Errors of [`BlockDevice::open`], such as `EBUSY` if `access` claims the device and it has
    /// another user on this machine; `EOPNOTSUPP` for a zoned disk; errors of
    /// [`Exports::enter`].
    pub(crate) fn open(
        exports: &Arc<Exports>,
        name: &CStr,
        requests: &Arc<Requests>,
        dev: u32,
        access: Access,
        terms: Option<Terms>,
    ) -> Result<Self> {
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
        let backlog = Backlog::new(requests, requests.workers(name)?)?;
        let revoked = match &terms {
            Some(terms) => terms.revoked.clone(),
            None => Arc::new(AtomicFlag::new(false), GFP_KERNEL)?,
        };
        let limits = bdev.limits();
        Ok(Self {
            logical_block_size: limits.logical_block_bytes,
            cache: CachePolicy {
                writeback: limits.write_cache,
                fua: limits.fua,
            },
            access,
            identity: identity(&bdev)?,
            cache_run: unflushed::cache_generation(exports.boot(), bdev.diskseq()),
            bdev,
            backlog,
            reported: Atomic::new(0),
            terms,
            revoked,
            checksums: AtomicFlag::new(false),
            user,
        })
    }

    pub(crate) fn bdev(&self) -> &BlockDevice {
        &self.bdev
    }

    pub(crate) fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// Returns whether the realtime I/O priority of requests is honoured.
    #[inline]
    pub(crate) fn allows_realtime(&self) -> bool {
        match &self.terms {
            Some(terms) => config::is_set(&terms.realtime),
            None => param::allow_rt_prio.get(),
        }
    }

    /// Returns whether the session may not use the device any more, because an operator closes it.
    #[inline]
    pub(crate) fn is_revoked(&self) -> bool {
        config::is_set(&self.revoked)
    }

    /// Returns whether the requests to the device have checksums.
    pub(crate) fn has_checksums(&self) -> bool {
        self.checksums.load(Relaxed)
    }

    /// Sets whether the requests to the device have checksums.
    pub(crate) fn set_checksums(&self, checksums: bool) {
        // ORDERING: As in `Session::set_checksums`.
        self.checksums.store(checksums, Relaxed);
    }

    /// Refuses new requests to the device, which is closed next.
    pub(crate) fn revoke(&self) {
        // ORDERING: As in `Closer::start`.
        self.revoked.store(true, Relaxed);
    }

    /// Returns the limits of the host, if there are any for this device.
    #[inline]
    pub(crate) fn throttle(&self) -> Option<&Arc<HostThrottle>> {
        self.terms.as_ref()?.throttle.as_ref()
    }

    /// Returns the use of the export.
    pub(crate) fn user(&self) -> &User {
        &self.user
    }

    /// Returns the identity, which distinguishes this disk from others that may get its name.
    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns the current properties of the device that I/O is checked against.
    pub(crate) fn bounds(&self) -> Device {
        Device {
            nsectors: self.bdev.capacity_sectors(),
            logical_block_size: self.logical_block_size,
            read_only: !self.access.writes() || self.bdev.is_read_only(),
        }
    }

    /// Returns whether writes must be durable before they are answered: the device has a volatile
    /// cache now and had none when the client opened it, so the client sends no flushes.
    #[inline]
    pub(crate) fn is_written_through(&self) -> bool {
        !self.cache.writeback && self.bdev.has_write_cache()
    }

    /// Returns whether the size differs from the one last reported to the client.
    pub(crate) fn has_new_size(&self) -> bool {
        // ORDERING: A stale value costs one superfluous notice.
        self.reported.load(Relaxed) != self.bdev.capacity_sectors()
    }

    /// Returns the current limits for the client, and records the size as reported.
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
            cache: self.cache,
            alignment_offset: limits.alignment_offset_bytes,
            io_min: limits.io_min_bytes,
            io_opt: limits.io_opt_bytes,
            rotational: limits.rotational,
            zeroes_unmap: limits.write_zeroes_unmaps,
            cache_run: self.cache_run,
        }
    }
}

/// Longest value of an attribute in bytes; longer values are truncated.
const MAX_VALUE: usize = 512;

/// Returns the identity that distinguishes a device from others that may get its name.
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
        // An attribute that cannot be read counts as empty.
        let len = bdev.attribute(name, &mut buf).unwrap_or(0);
        if let Some(value) = identity::value(buf.get(..len).unwrap_or_default()) {
            return Ok(part_of(bdev, name.to_bytes(), value));
        }
    }
    Ok(part_of(bdev, &[], &[]))
}

/// Returns the identity of a device, a whole disk or a partition. `id` identifies the disk, or is
/// empty; `kind` is the attribute that `id` comes from, empty for the disk's unique id.
fn part_of(bdev: &BlockDevice, kind: &[u8], id: &[u8]) -> Identity {
    let of = |part: &[u8]| match (kind, part) {
        ([], []) => Identity::of(&[id]),
        ([], part) => Identity::of(&[id, part]),
        (kind, part) => Identity::of(&[kind, id, part]),
    };
    match (bdev.partition(), bdev.partition_uuid()) {
        (0, _) => of(&[]),
        (_, Some(uuid)) => of(uuid),
        // On a known disk, the number identifies the partition.
        (number, None) if !id.is_empty() => of(&[number]),
        _ => Identity::UNKNOWN,
    }
}
