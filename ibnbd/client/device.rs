// SPDX-License-Identifier: GPL-2.0

//! Devices that the server has opened for us.

use crate::registry::SessionRef;
use ibnbd_proto::{
    msg::OpenRsp,
    AccessMode, //
};
use ibtrs_proto::name::DevicePath;
use kernel::prelude::*;

/// A device that the server has open. It is closed there on drop, which may
/// sleep, and then the session is left.
pub(crate) struct Device {
    session: SessionRef,
    rsp: OpenRsp,
}

impl Device {
    /// Has the server open a device.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// Those of [`Session::open_device`](crate::session::Session::open_device).
    pub(crate) fn open(
        session: SessionRef,
        name: DevicePath<'_>,
        mode: AccessMode,
    ) -> Result<Self> {
        let rsp = session.open_device(name, mode)?;
        Ok(Self { session, rsp })
    }

    /// Returns the session.
    pub(crate) fn session(&self) -> &SessionRef {
        &self.session
    }

    /// Returns what the server said of the device.
    pub(crate) fn rsp(&self) -> &OpenRsp {
        &self.rsp
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.session.close_device(self.rsp.device_id);
    }
}
