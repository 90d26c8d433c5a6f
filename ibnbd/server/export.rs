// SPDX-License-Identifier: GPL-2.0

//! Exports: block devices that clients have open, and their access modes.

use dir::ExportDir;
use ibnbd_proto::access::{
    Access,
    Users, //
};
use ibtrs_core::convert;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};
use kx::{
    blk::BlockDevice,
    fs,
    pr_warn_ratelimited,
    sysfs::PlainDir, //
};

mod dir;

/// A block device that at least one client has open.
struct Export {
    /// Device number of the block device.
    dev: u32,
    users: Users,
    /// The export's directory in sysfs.
    dir: Option<ExportDir>,
}

/// All exports.
#[pin_data]
pub(crate) struct Exports {
    /// Id of this boot of the machine; empty if it cannot be read.
    boot: KVec<u8>,
    #[pin]
    inner: Mutex<ExportsInner>,
}

struct ExportsInner {
    list: KVec<Export>,
    /// The sysfs directory of the exports, if there is one.
    folder: Option<Arc<PlainDir>>,
}

impl ExportsInner {
    fn find(&mut self, dev: u32) -> Option<&mut Export> {
        self.list.iter_mut().find(|export| export.dev == dev)
    }
}

impl Exports {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                boot: boot_id()?,
                inner <- new_mutex!(
                    ExportsInner { list: KVec::new(), folder: None },
                    "Exports::inner"
                ),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the id of this boot of the machine; empty if it cannot be read.
    pub(crate) fn boot(&self) -> &[u8] {
        &self.boot
    }

    /// Sets the sysfs directory of exports that are opened later.
    pub(crate) fn set_folder(&self, folder: Option<Arc<PlainDir>>) {
        let old = core::mem::replace(&mut self.inner.lock().folder, folder);
        drop(old);
    }

    /// Adds a user of a device, until the returned value is dropped.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` if this or another user requires exclusive access, and there would be several users;
    /// `EPERM` if the device has the maximum number of writers that the mode allows; `ENOMEM`.
    pub(crate) fn enter(self: &Arc<Self>, bdev: &BlockDevice, access: Access) -> Result<User> {
        let user = self.count(bdev, access)?;
        let unlinked = self
            .inner
            .lock()
            .find(user.dev)
            .and_then(|export| export.dir.as_ref()?.unlinked());
        // Without the lock: this waits for tasks that open the device, and the device may be slow.
        let link = unlinked.and_then(|dir| dir::link(dir, bdev).ok());
        if let Some(link) = link {
            let mut inner = self.inner.lock();
            if let Some(dir) = inner.find(user.dev).and_then(|e| e.dir.as_mut()) {
                dir.set_link(link);
            }
        }
        Ok(user)
    }

    fn count(self: &Arc<Self>, bdev: &BlockDevice, access: Access) -> Result<User> {
        let dev = bdev.dev();
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if inner.find(dev).is_none() {
            let folder = inner.folder.as_ref();
            let dir = folder.and_then(|folder| {
                ExportDir::new(folder, bdev.name())
                    .inspect_err(|error| {
                        let error = convert::errno(*error);
                        pr_warn_ratelimited!(
                            "{}: cannot be shown ({})\n",
                            bdev.name(),
                            error.as_str()
                        );
                    })
                    .ok()
            });
            let export = Export {
                dev,
                users: Users::default(),
                dir,
            };
            inner.list.push(export, GFP_KERNEL)?;
        }
        let export = inner.find(dev).ok_or(EINVAL)?;
        // This does not fail for a new export, so each export in the list has a user.
        export.users.enter(access).map_err(convert::error)?;
        Ok(User {
            exports: self.clone(),
            dev,
            access,
        })
    }
}

/// Reads the id of this boot of the machine; empty if it cannot be read.
///
/// # Errors
///
/// `ENOMEM`.
fn boot_id() -> Result<KVec<u8>> {
    let mut text = [0; 48];
    let len =
        fs::read_once(c"/proc/sys/kernel/random/boot_id", &mut text).unwrap_or_else(|error| {
            pr_warn!(
                "boot_id cannot be read ({}): clients cannot detect a power loss of this machine\n",
                convert::errno(error).as_str()
            );
            0
        });
    let mut id = KVec::new();
    id.extend_from_slice(text.get(..len).unwrap_or_default().trim_ascii(), GFP_KERNEL)?;
    Ok(id)
}

/// A use of an export, which ends when this is dropped.
pub(crate) struct User {
    exports: Arc<Exports>,
    dev: u32,
    access: Access,
}

impl User {
    /// Calls `add` with the directory of the export's sessions, if the export has one.
    ///
    /// # Context
    ///
    /// May sleep. The task that drops the directory that `add` has created must not hold a lock
    /// that its attributes take.
    pub(crate) fn show<D>(&self, add: impl FnOnce(&PlainDir) -> Option<D>) -> Option<D> {
        let mut inner = self.exports.inner.lock();
        add(inner.find(self.dev)?.dir.as_ref()?.sessions())
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut inner = self.exports.inner.lock();
        if let Some(export) = inner.find(self.dev) {
            export.users.leave(self.access);
        }
        // Under the lock, so that the next open finds the name free.
        inner.list.retain(|export| !export.users.is_empty());
    }
}
