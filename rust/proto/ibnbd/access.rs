// SPDX-License-Identifier: GPL-2.0

//! Access modes, and who may open an export how (protocol 6.2).

use core::fmt;

use ibtrs_proto::Errno;

/// How a client uses a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum AccessMode {
    /// Read only.
    Ro,
    /// Read and write; one writer at a time.
    #[default]
    Rw,
    /// Read and write; two writers while a user moves from one host to another.
    Migration,
}

/// A number or text that is no access mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadAccessMode;

impl BadAccessMode {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        "access mode is not ro, rw or migration"
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        Errno::EINVAL
    }
}

impl AccessMode {
    /// All modes.
    pub const ALL: [AccessMode; 3] = [AccessMode::Ro, AccessMode::Rw, AccessMode::Migration];

    /// The text users read and write.
    pub const fn as_str(&self) -> &'static str {
        match self {
            AccessMode::Ro => "ro",
            AccessMode::Rw => "rw",
            AccessMode::Migration => "migration",
        }
    }

    /// The mode users call `text`.
    ///
    /// # Errors
    ///
    /// For any other text; the case matters.
    pub fn parse(text: &str) -> Result<Self, BadAccessMode> {
        match text {
            "ro" => Ok(AccessMode::Ro),
            "rw" => Ok(AccessMode::Rw),
            "migration" => Ok(AccessMode::Migration),
            _ => Err(BadAccessMode),
        }
    }

    /// The number on the wire.
    pub const fn to_wire(self) -> u8 {
        match self {
            AccessMode::Ro => 0,
            AccessMode::Rw => 1,
            AccessMode::Migration => 2,
        }
    }

    /// Whether the device is opened for writing.
    pub const fn writes(&self) -> bool {
        !matches!(self, AccessMode::Ro)
    }

    /// Whether an export with `writers` may be opened in this mode.
    ///
    /// # Errors
    ///
    /// EPERM when there are as many writers as the mode tolerates.
    pub const fn admit(&self, writers: u32) -> Result<(), Errno> {
        let allowed = match self {
            AccessMode::Ro => true,
            AccessMode::Rw => writers == 0,
            AccessMode::Migration => writers < 2,
        };
        if allowed {
            Ok(())
        } else {
            Err(Errno::EPERM)
        }
    }
}

impl TryFrom<u8> for AccessMode {
    type Error = BadAccessMode;

    fn try_from(wire: u8) -> Result<Self, BadAccessMode> {
        match wire {
            0 => Ok(AccessMode::Ro),
            1 => Ok(AccessMode::Rw),
            2 => Ok(AccessMode::Migration),
            _ => Err(BadAccessMode),
        }
    }
}

impl fmt::Display for AccessMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
