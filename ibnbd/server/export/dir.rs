// SPDX-License-Identifier: GPL-2.0

//! The directory of an export in sysfs: `/sys/class/ibnbd-server/ctl/devices/<device>/`.
//!
//! Contexts: *may sleep*.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    blk::BlockDevice,
    sysfs::{
        Link,
        PlainDir, //
    }, //
};

/// The directory of an export.
pub(crate) struct ExportDir {
    // In the order of their removal.
    sessions: PlainDir,
    block_dev: Option<Link<Arc<PlainDir>>>,
    dir: Arc<PlainDir>,
}

impl ExportDir {
    /// Creates the directory of the device `name` in `folder`.
    ///
    /// # Errors
    ///
    /// `EEXIST` if `folder` has a directory `name`; `ENOMEM`.
    pub(crate) fn new(folder: &PlainDir, name: &CStr) -> Result<Self> {
        let dir = Arc::new(PlainDir::plain(folder, fmt!("{name}"))?, GFP_KERNEL)?;
        Ok(Self {
            sessions: PlainDir::plain(&*dir, fmt!("sessions"))?,
            block_dev: None,
            dir,
        })
    }

    /// Returns the directory for [`link`], if it has no link yet.
    pub(crate) fn unlinked(&self) -> Option<Arc<PlainDir>> {
        self.block_dev.is_none().then(|| self.dir.clone())
    }

    /// Keeps the link that [`link`] has created.
    pub(crate) fn set_link(&mut self, link: Link<Arc<PlainDir>>) {
        self.block_dev = Some(link);
    }

    /// Returns the directory of the sessions that have the device open.
    pub(crate) fn sessions(&self) -> &PlainDir {
        &self.sessions
    }
}

/// Creates the link to the device in its export's directory.
///
/// # Context
///
/// May sleep while another task opens the device.
///
/// # Errors
///
/// `EEXIST` if the link exists; `ENODEV` if the device was removed; `ENOMEM`.
pub(crate) fn link(dir: Arc<PlainDir>, bdev: &BlockDevice) -> Result<Link<Arc<PlainDir>>> {
    Link::new(dir, bdev, fmt!("block_dev"))
}
