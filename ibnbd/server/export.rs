// SPDX-License-Identifier: GPL-2.0

//! Exports: block devices that clients have open, and how many may write.

use ibnbd_proto::access::AccessMode;
use ibtrs_core::convert;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

/// A block device that at least one client has open.
struct Export {
    /// Its number in this kernel.
    dev: u32,
    users: u32,
    writers: u32,
}

/// All exports.
#[pin_data]
pub(crate) struct Exports {
    #[pin]
    list: Mutex<KVec<Export>>,
}

impl Exports {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                list <- new_mutex!(KVec::new(), "Exports::list"),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Takes in one more user of the device `dev`.
    ///
    /// # Errors
    ///
    /// `EPERM` when there are as many writers as the mode tolerates; `ENOMEM`.
    pub(crate) fn enter(self: &Arc<Self>, dev: u32, mode: AccessMode) -> Result<User> {
        let mut list = self.list.lock();
        let at = match list.iter().position(|export| export.dev == dev) {
            Some(at) => at,
            None => {
                let export = Export {
                    dev,
                    users: 0,
                    writers: 0,
                };
                list.push(export, GFP_KERNEL)?;
                list.len() - 1
            }
        };
        let export = list.get_mut(at).ok_or(EINVAL)?;
        // A new export tolerates any mode.
        mode.admit(export.writers).map_err(convert::error)?;
        export.users += 1;
        export.writers += u32::from(mode.writes());
        Ok(User {
            exports: self.clone(),
            dev,
            writes: mode.writes(),
        })
    }
}

/// A user of an export, who leaves it when this is dropped.
pub(crate) struct User {
    exports: Arc<Exports>,
    dev: u32,
    writes: bool,
}

impl Drop for User {
    fn drop(&mut self) {
        let mut list = self.exports.list.lock();
        for export in list.iter_mut().filter(|export| export.dev == self.dev) {
            export.users -= 1;
            export.writers -= u32::from(self.writes);
        }
        list.retain(|export| export.users > 0);
    }
}
