// SPDX-License-Identifier: GPL-2.0

//! Identity of a disk: is it the same as before?
//!
//! A client knows a disk by the name that it opens. After a restart of the server another disk may
//! have that name, and writes meant for the first would destroy it. So the answer to OPEN carries
//! 64 bits that belong to the disk itself, derived from everything by which the server
//! distinguishes its disks.

use core::ffi::CStr;
use core::fmt;

use ibtrs_proto::Errno;

/// Attributes in sysfs that identify a disk, the best first: the UUIDs of device-mapper and md, the
/// identifiers of NVMe and SCSI, the serial number of virtio, and the file behind a loop device.
pub const ATTRIBUTES: [&CStr; 6] = [
    c"dm/uuid",
    c"md/uuid",
    c"wwid",
    c"device/wwid",
    c"serial",
    c"loop/backing_file",
];

/// The part of an attribute's text that identifies the disk; `None` if the text is empty or has
/// only zeros and separators.
pub fn value(text: &[u8]) -> Option<&[u8]> {
    let text = text.trim_ascii();
    let says = |byte: &u8| !matches!(byte, b'0' | b'-' | b':' | b' ');
    text.iter().any(says).then_some(text)
}

/// 64 bits that identify a disk, or another kind of object: two objects share them only by chance.
/// Zero if nothing is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Identity(u64);

impl Identity {
    /// The identity of a disk without any known attribute.
    pub const UNKNOWN: Self = Self(0);

    /// The identity of a disk, from `names` that identify it together, such as a serial number and
    /// the UUID of a partition; unknown if all names are empty.
    ///
    /// FNV-1a over the names, each preceded by its length. The algorithm never changes.
    pub fn of(names: &[&[u8]]) -> Self {
        if names.iter().all(|name| name.is_empty()) {
            return Self::UNKNOWN;
        }
        let mut hash = Fnv::new();
        for name in names {
            // Lossless: `usize` has 64 bits at most.
            hash.add(&(name.len() as u64).to_le_bytes());
            hash.add(name);
        }
        // Zero means unknown.
        Self(hash.0.max(1))
    }

    /// The number on the wire.
    pub const fn to_wire(self) -> u64 {
        self.0
    }

    /// The identity of a number on the wire.
    pub const fn from_wire(wire: u64) -> Self {
        Self(wire)
    }

    /// Whether the identity is known.
    pub const fn is_known(&self) -> bool {
        self.0 != 0
    }

    /// Whether both may be of one disk: true if one of them is unknown.
    pub const fn may_be(&self, other: Self) -> bool {
        !self.is_known() || !other.is_known() || self.0 == other.0
    }

    /// This identity, or the other if this is unknown.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        if self.is_known() {
            self
        } else {
            other
        }
    }
}

/// The persistent name of a disk in user space: `ibnbd-`, the names of session and device, and the
/// identity, if it is known. The identity alone is not enough: some attributes, such as the serial
/// number of a virtual disk, are unique on one server only, and mistaking one disk for another
/// loses its data.
#[derive(Clone, Copy, Debug)]
pub struct Wwid<'a> {
    /// The identity of the disk.
    pub identity: Identity,
    /// The session's name.
    pub session: &'a str,
    /// The device's name on the server.
    pub device: &'a str,
}

impl fmt::Display for Wwid<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ibnbd-{}", self.session)?;
        for part in self.device.split('/').filter(|part| !part.is_empty()) {
            write!(f, "-{part}")?;
        }
        if self.identity.is_known() {
            write!(f, "-{:016x}", self.identity.to_wire())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({:#018x})", self.0)
    }
}

/// The hash of Fowler, Noll and Vo, variant 1a, 64 bits.
struct Fnv(u64);

impl Fnv {
    const PRIME: u64 = 0x0000_0100_0000_01B3;

    const fn new() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(Self::PRIME);
        }
    }
}

/// What a client does about a disk without an identity that comes back under its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum IdentityCheck {
    /// A disk that is in use is opened again only if it is proven to be the same.
    #[default]
    Auto,
    /// A disk of the same geometry is opened again, as the operator vouches for it. Two identities
    /// that differ are refused all the same.
    None,
}

/// A text that is not the name of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadCheck;

impl BadCheck {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        "identity is not auto or none"
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        Errno::EINVAL
    }
}

impl IdentityCheck {
    /// All checks.
    pub const ALL: [Self; 2] = [Self::Auto, Self::None];

    /// The name of the check.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::None => "none",
        }
    }

    /// Reads a name.
    ///
    /// # Errors
    ///
    /// When no check has this name.
    pub fn parse(name: &str) -> Result<Self, BadCheck> {
        let mut all = Self::ALL.into_iter();
        all.find(|check| check.as_str() == name).ok_or(BadCheck)
    }

    /// Whether a disk has to be proven the same; `in_use` if somebody has it open. Nobody relies on
    /// the contents of a disk that is not open: its pages were dropped with the last opener.
    pub const fn wants_proof(self, in_use: bool) -> bool {
        in_use && matches!(self, Self::Auto)
    }
}

/// The difference between a disk and the one that had its name before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Difference {
    /// The identity differs.
    Identity,
    /// The logical or physical block size differs.
    BlockSize,
    /// The disk is smaller, and at least one of the two identities is unknown.
    Smaller,
    /// Nothing shows that it is the same disk, and the one before is in use.
    Unproven,
}

impl Difference {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Identity => "its identity differs",
            Self::BlockSize => "its block size differs",
            Self::Smaller => "it is smaller",
            Self::Unproven => "it has no identity, and was replaced or the server has booted since",
        }
    }
}
