// SPDX-License-Identifier: GPL-2.0

//! Access modes, exclusive use, and the rules for opening an export.

use core::fmt;

use ibtrs_proto::Errno;

/// The way in which a client uses a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum AccessMode {
    /// Read only.
    Ro,
    /// Read and write; one writer at a time.
    #[default]
    Rw,
    /// Read and write; two writers, while a workload moves from one client to another.
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

    /// The text in options and attributes.
    pub const fn as_str(&self) -> &'static str {
        match self {
            AccessMode::Ro => "ro",
            AccessMode::Rw => "rw",
            AccessMode::Migration => "migration",
        }
    }

    /// The mode that `text` names.
    ///
    /// # Errors
    ///
    /// [`BadAccessMode`] for any other text; case matters.
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
    /// EPERM if there are as many writers as the mode tolerates.
    const fn check_writers(&self, writers: u32) -> Result<(), Errno> {
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

/// The kind of access that a client asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Access {
    /// The way in which the client uses the device.
    pub mode: AccessMode,
    /// No other client may use the device, in any mode.
    pub exclusive: bool,
}

impl Access {
    /// Whether the device is opened for writing.
    pub const fn writes(&self) -> bool {
        self.mode.writes()
    }

    /// Whether the server claims the device exclusively on its own machine.
    pub const fn claims(&self) -> bool {
        self.writes() || self.exclusive
    }

    /// The text for logs.
    pub const fn as_str(&self) -> &'static str {
        match (self.mode, self.exclusive) {
            (mode, false) => mode.as_str(),
            (AccessMode::Ro, true) => "ro, exclusive",
            (AccessMode::Rw, true) => "rw, exclusive",
            (AccessMode::Migration, true) => "migration, exclusive",
        }
    }
}

/// The current users of an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Users {
    all: u32,
    writers: u32,
    /// The only user tolerates no other.
    exclusive: bool,
}

impl Users {
    /// Whether there are no users.
    pub const fn is_empty(&self) -> bool {
        self.all == 0
    }

    /// Adds a user.
    ///
    /// # Errors
    ///
    /// EBUSY if a user tolerates no other, or if this one does not and there are others; EPERM if
    /// there are as many writers as the mode tolerates.
    pub fn enter(&mut self, access: Access) -> Result<(), Errno> {
        if self.exclusive || access.exclusive && !self.is_empty() {
            return Err(Errno::EBUSY);
        }
        access.mode.check_writers(self.writers)?;
        self.all = self.all.saturating_add(1);
        self.writers = self.writers.saturating_add(u32::from(access.writes()));
        self.exclusive = access.exclusive;
        Ok(())
    }

    /// Removes a user that was added with the same `access`.
    pub fn leave(&mut self, access: Access) {
        self.all = self.all.saturating_sub(1);
        self.writers = self.writers.saturating_sub(u32::from(access.writes()));
        // An exclusive user was the only one.
        self.exclusive = false;
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
