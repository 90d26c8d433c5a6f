// SPDX-License-Identifier: GPL-2.0

//! States of a client's device (protocol 6.5, 7.3).

use ibtrs_proto::Errno;

/// State of a mapped device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DevState {
    /// Being set up.
    Init,
    /// In use.
    Open,
    /// The server is out of reach, or has not answered the new OPEN yet.
    Closed,
    /// Being removed.
    Unmapped,
}

impl DevState {
    /// All states.
    pub const ALL: [DevState; 4] = [
        DevState::Init,
        DevState::Open,
        DevState::Closed,
        DevState::Unmapped,
    ];

    /// What the attribute `state` shows.
    pub const fn as_str(&self) -> &'static str {
        match self {
            DevState::Init => "init",
            DevState::Open => "open",
            DevState::Closed => "closed",
            DevState::Unmapped => "unmapped",
        }
    }

    /// A number for atomics and traces; the inverse of [`DevState::from_u8`].
    pub const fn to_u8(self) -> u8 {
        match self {
            DevState::Init => 0,
            DevState::Open => 1,
            DevState::Closed => 2,
            DevState::Unmapped => 3,
        }
    }

    /// The state of a number from [`DevState::to_u8`].
    pub const fn from_u8(n: u8) -> Option<Self> {
        match n {
            0 => Some(DevState::Init),
            1 => Some(DevState::Open),
            2 => Some(DevState::Closed),
            3 => Some(DevState::Unmapped),
            _ => None,
        }
    }

    /// Whether a user may remap the device now.
    ///
    /// # Errors
    ///
    /// EALREADY when it is open, ENODEV when it goes away, EBUSY when it is being set up.
    pub const fn may_remap(&self) -> Result<(), Errno> {
        match self {
            DevState::Closed => Ok(()),
            DevState::Open => Err(Errno::EALREADY),
            DevState::Unmapped => Err(Errno::ENODEV),
            DevState::Init => Err(Errno::EBUSY),
        }
    }

    /// Whether a user may resize the device now.
    ///
    /// # Errors
    ///
    /// ENOENT unless it is open.
    pub const fn may_resize(&self) -> Result<(), Errno> {
        match self {
            DevState::Open => Ok(()),
            _ => Err(Errno::ENOENT),
        }
    }

    /// Whether a user may unmap the device now, which `users` have opened.
    ///
    /// # Errors
    ///
    /// EALREADY when it goes away already, EBUSY when it is in use and `force` is not given.
    pub const fn may_unmap(&self, users: u32, force: bool) -> Result<(), Errno> {
        match self {
            DevState::Unmapped => Err(Errno::EALREADY),
            _ if users > 0 && !force => Err(Errno::EBUSY),
            _ => Ok(()),
        }
    }
}
