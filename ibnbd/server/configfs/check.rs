// SPDX-License-Identifier: GPL-2.0

//! The check of a device before its export is enabled.

use super::stop_timeout_ms;
use crate::config::Size;
use kernel::{
    prelude::*,
    str::CString,
    sync::Arc, //
};
use kx::{
    blk::{
        BlockDevice,
        OpenSpec, //
    },
    mm::NoIo,
    sync::{
        Completion,
        SetOnce, //
    },
    work::Queue, //
};

/// Checks whether a path leads to a block device that can be exported.
#[pin_data]
pub(super) struct Check {
    pub(super) path: CString,
    result: SetOnce<Result<Size>>,
    #[pin]
    over: Completion,
}

impl Check {
    pub(super) fn new(path: CString) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                path,
                result: SetOnce::new(),
                over <- Completion::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// Opens the device on `queue`, and waits for its size. The limit of the wait is needed
    /// because the disk may hang, and `rmdir` of the export waits for this task with the lock of
    /// `exports`.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT` if the device is not open after `stop_timeout_s`; `EOPNOTSUPP` if it is zoned;
    /// `ENOMEM`; errors of opening it.
    pub(super) fn run(self: &Arc<Self>, queue: &Queue) -> Result<Size> {
        let this = self.clone();
        queue.spawn(GFP_KERNEL, move || {
            let _no_io = NoIo::enter();
            this.result.populate(this.open());
            this.over.complete_all();
        })?;
        self.over.wait_timeout(stop_timeout_ms())?;
        self.result.copy().unwrap_or(Err(EIO))
    }

    fn open(&self) -> Result<Size> {
        let spec = OpenSpec {
            write: false,
            holder: None,
        };
        let device = BlockDevice::open(BlockDevice::find(c"/", &self.path)?, spec)?;
        match device.is_zoned() {
            true => Err(EOPNOTSUPP),
            false => Ok(Size {
                nsectors: device.capacity_sectors(),
                logical_block_size: device.limits().logical_block_bytes,
            }),
        }
    }
}
