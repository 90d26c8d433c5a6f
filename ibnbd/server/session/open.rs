// SPDX-License-Identifier: GPL-2.0

//! The devices that a session has open.

use super::{
    view::View,
    Session, //
};
use crate::{
    config::Granted,
    device::Opened, //
};
use ibnbd_proto::grant;
use ibtrs_proto::{
    addr::Addr,
    name::DevicePath, //
};
use kernel::{
    alloc::kvec::InsertError,
    fmt,
    prelude::*,
    str::CString,
    sync::Arc, //
};
use kx::{
    sync::{
        atomic::Full,
        PercpuArc,
        PercpuOwner, //
    },
    sysfs::Dir, //
};

/// A device that a session has open.
pub(crate) struct OpenDevice {
    pub(crate) id: u32,
    /// Device number of the block device, which no other device gets while it is open.
    pub(crate) dev: u32,
    /// The name by which the client opened the device.
    pub(crate) name: CString,
    /// The address that the device was opened from.
    pub(crate) source: Addr,
    /// The device's directory in sysfs; dropped before the directory that contains it.
    pub(crate) _dir: Option<Dir<Arc<View>>>,
    pub(crate) device: PercpuOwner<Opened>,
    /// The grant, if the device was opened as an export; dropped after the device.
    pub(crate) granted: Option<Granted>,
}

impl OpenDevice {
    /// Returns the device's name in the log.
    pub(super) fn called(&self) -> Called<'_> {
        Called {
            name: self.name.to_str().unwrap_or(""),
            export: self.granted.is_some(),
        }
    }
}

/// A device's name in the log.
pub(crate) struct Called<'a> {
    /// The name by which the client opened the device.
    pub(crate) name: &'a str,
    /// Whether `name` is that of an export.
    pub(crate) export: bool,
}

impl fmt::Display for Called<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.export {
            true => f.write_fmt(fmt!("export {}", grant::export_name(self.name))),
            false => f.write_fmt(fmt!("device {}", self.name)),
        }
    }
}

/// A device that was withdrawn from its session. Drop closes it; until then it counts as one of
/// the session's devices.
///
/// # Context
///
/// Drop may sleep until the device's I/O has ended. Its caller must not hold the lock of the
/// session's devices, which the attributes of the device take.
pub(crate) struct Closing {
    device: Option<OpenDevice>,
    session: Arc<Session>,
}

impl Closing {
    /// Takes a device that was [withdrawn](Session::withdraw).
    pub(crate) fn new(session: &Arc<Session>, device: OpenDevice) -> Self {
        Self {
            device: Some(device),
            session: session.clone(),
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        drop(self.device.take());
        // ORDERING: Publishes the end of the device's I/O for `is_closing`.
        self.session.closing.fetch_sub(1, Full);
    }
}

/// The devices that a session has open.
pub(crate) struct OpenDevices {
    /// Sorted by id.
    pub(super) list: KVec<OpenDevice>,
    /// The next id to try. An id is reused only after four billion others, and each session
    /// starts at a random one, so that a late request does not hit another device.
    next_id: u32,
    /// The next table to publish. It has capacity for at least all devices but one, so that a
    /// device can be withdrawn without an allocation.
    spare: Option<KBox<Table>>,
}

impl OpenDevices {
    pub(super) fn new() -> Self {
        Self {
            list: KVec::new(),
            next_id: kx::random::next_u32(),
            spare: None,
        }
    }

    /// Finds the device that the client opened as `name`.
    pub(crate) fn by_name(&self, name: DevicePath<'_>) -> Option<&OpenDevice> {
        let mut list = self.list.iter();
        list.find(|device| device.name.to_bytes() == name.as_bytes())
    }

    /// Returns whether the block device with the number `dev` is open, under any name.
    pub(crate) fn has_device(&self, dev: u32) -> bool {
        self.list.iter().any(|device| device.dev == dev)
    }

    /// Returns how many devices there are.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns an id that no device has.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is none.
    pub(crate) fn new_id(&mut self) -> Result<u32> {
        for _ in 0..=self.list.len() {
            let id = self.next_id;
            self.next_id = id.wrapping_add(1);
            if self.place(id).is_err() {
                return Ok(id);
            }
        }
        Err(ENOSPC)
    }

    /// Returns the index of the device `id` in the list, or in `Err` the index to insert it at.
    fn place(&self, id: u32) -> Result<usize, usize> {
        self.list.binary_search_by_key(&id, |device| device.id)
    }

    /// Reserves memory for one more device, in the list and in the table.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn reserve(&mut self) -> Result {
        self.list.reserve(1, GFP_KERNEL)?;
        let count = self.list.len() + 1;
        if self
            .spare
            .as_ref()
            .is_none_or(|spare| spare.capacity() < count)
        {
            let table = KVec::with_capacity(count, GFP_KERNEL)?;
            self.spare = Some(KBox::new(table, GFP_KERNEL)?);
        }
        Ok(())
    }

    /// Returns the spare table, filled with the devices; `None` if there are none.
    pub(super) fn table(&mut self) -> Option<KBox<Table>> {
        if self.list.is_empty() {
            return None;
        }
        let mut table = self.spare.take()?;
        for device in &self.list {
            // There is capacity: see `spare` and `reserve`.
            let pushed = table.push_within_capacity((device.id, device.device.get()));
            let _ = kernel::warn_on!(pushed.is_err());
        }
        Some(table)
    }

    /// Stores a replaced table as the spare one.
    pub(super) fn take_back(&mut self, table: Option<KBox<Table>>) {
        if let Some(mut table) = table {
            // It has capacity for all former devices, which are all but one if one was added.
            table.clear();
            self.spare = Some(table);
        }
    }

    /// Inserts a device, for which space must be [reserved](Self::reserve); without that, returns
    /// the device.
    #[expect(clippy::result_large_err)]
    pub(crate) fn insert(&mut self, device: OpenDevice) -> Result<(), OpenDevice> {
        let at = match self.place(device.id) {
            Ok(_) => return Err(device),
            Err(at) => at,
        };
        self.list
            .insert_within_capacity(at, device)
            .map_err(|error| match error {
                InsertError::IndexOutOfBounds(device) | InsertError::OutOfCapacity(device) => {
                    device
                }
            })
    }

    /// Removes the device `id` from the list, and returns it.
    pub(crate) fn take(&mut self, id: u32) -> Option<OpenDevice> {
        let at = self.place(id).ok()?;
        self.list.remove(at).ok()
    }
}

/// The devices that are open for I/O, sorted by id.
pub(super) type Table = KVec<(u32, PercpuArc<Opened>)>;
