// SPDX-License-Identifier: GPL-2.0

//! The rules for clients: which exports a session may open, and from which addresses a host may
//! connect.

use ibtrs_proto::addr::Addr;
use ibtrs_proto::Errno;

use crate::access::{Access, AccessMode};
use crate::prefix::{self, Prefix};

/// The name of the export that a client means by `name`: a leading slash does not count.
pub fn export_name(name: &str) -> &str {
    name.strip_prefix('/').unwrap_or(name)
}

/// The rules of an export: the sessions that may open it, and in which modes.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// The widest mode that is allowed.
    pub mode: AccessMode,
    /// Every authenticated session may open it.
    pub any_host: bool,
    /// Unauthenticated sessions may open it if all their paths come from these addresses.
    pub unauthenticated: &'a [Prefix],
    /// The export can be opened at all.
    pub enabled: bool,
}

/// The client that asks for an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Client {
    /// An authenticated session; `allowed` if its host is one that the export names.
    Authenticated {
        /// The server's operator has configured the host.
        known: bool,
        /// The export names the host.
        allowed: bool,
    },
    /// An unauthenticated session.
    Unauthenticated,
}

/// Why a session may open an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grant {
    /// The export names the session's host.
    Host,
    /// The export allows every authenticated session.
    AnyHost,
    /// The export allows the addresses of all paths of the session without authentication.
    Addresses,
}

impl Grant {
    /// The reason, for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Host => "its host is in allowed_hosts",
            Self::AnyHost => "allow_any_host is set",
            Self::Addresses => "its paths come from allow_unauthenticated",
        }
    }
}

/// Why a session may not open an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrantRefusal {
    /// No export has the name, and the session is that of a host.
    Unknown,
    /// No export has the name. The session is not that of a host, so it is not told.
    Hidden,
    /// The operator has configured no host of the session's name.
    NoHost,
    /// The export does not name the session's host.
    Host,
    /// The session is not authenticated, which the export requires of every session.
    Authentication,
    /// The session is not authenticated, and the export does not allow the address of one of its
    /// paths.
    Address,
    /// The export is not enabled.
    Disabled,
    /// The access is wider than the mode of the export.
    Mode,
    /// The session has as many devices as its host may have.
    Devices,
}

impl GrantRefusal {
    /// The reason, for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Unknown => "there is no such export",
            Self::Hidden => "there is no such export, but only hosts are told that",
            Self::NoHost => "its host is not in hosts, and allow_any_host is not set",
            Self::Host => "its host is not in allowed_hosts",
            Self::Authentication => {
                "it is not authenticated: load a key on both sides, or set allow_unauthenticated"
            }
            Self::Address => {
                "it is not authenticated, and not all its paths come from allow_unauthenticated"
            }
            Self::Disabled => "it is not enabled",
            Self::Mode => "access_mode does not allow this",
            Self::Devices => "the host has max_devices devices open",
        }
    }

    /// The errno to answer with.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::Unknown => Errno::ENOENT,
            Self::Disabled => Errno::ENODEV,
            Self::Devices => Errno::ENOSPC,
            _ => Errno::EACCES,
        }
    }
}

/// The refusal of an export that does not exist. A session that is not that of a host gets the
/// error of an export that it may not open, so that it does not learn which names exist.
pub const fn unknown(is_host: bool) -> GrantRefusal {
    match is_host {
        true => GrantRefusal::Unknown,
        false => GrantRefusal::Hidden,
    }
}

/// Decides whether a client may open an export. `all_come_from` says whether the client's session
/// has a path, and all its paths come from addresses with one of these prefixes.
///
/// # Errors
///
/// The reason of the refusal.
pub fn decide(
    rules: &Rules<'_>,
    client: Client,
    all_come_from: impl FnOnce(&[Prefix]) -> bool,
    access: Access,
) -> Result<Grant, GrantRefusal> {
    let grant = match client {
        Client::Authenticated { allowed: true, .. } => Grant::Host,
        Client::Authenticated { .. } if rules.any_host => Grant::AnyHost,
        Client::Authenticated { known: true, .. } => return Err(GrantRefusal::Host),
        Client::Authenticated { .. } => return Err(GrantRefusal::NoHost),
        Client::Unauthenticated if rules.unauthenticated.is_empty() => {
            return Err(GrantRefusal::Authentication)
        }
        Client::Unauthenticated if all_come_from(rules.unauthenticated) => Grant::Addresses,
        Client::Unauthenticated => return Err(GrantRefusal::Address),
    };
    if !rules.enabled {
        return Err(GrantRefusal::Disabled);
    }
    match permits(rules.mode, access) {
        true => Ok(grant),
        false => Err(GrantRefusal::Mode),
    }
}

/// Whether `widest` includes an access. An exclusive reader keeps others away, as a writer does.
const fn permits(widest: AccessMode, access: Access) -> bool {
    match (widest, access.mode) {
        (AccessMode::Migration, _) | (AccessMode::Rw, AccessMode::Ro | AccessMode::Rw) => true,
        (AccessMode::Ro, AccessMode::Ro) => !access.exclusive,
        _ => false,
    }
}

/// Why a path of a host is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathRefusal {
    /// The path comes from an address that the host may not come from.
    Address,
    /// The host has as many paths as it may have.
    Paths,
    /// The host would have more connections than it may have.
    Connections,
    /// The host's paths would take more memory than they may take.
    Memory,
}

impl PathRefusal {
    /// The reason, for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Address => "the host may not connect from this address: see its addresses",
            Self::Paths => "the host already has max_paths paths",
            Self::Connections => "the host would have more than max_connections connections",
            Self::Memory => "the paths of the host would take more than max_memory_mib",
        }
    }

    /// The errno to answer with.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::Address => Errno::EACCES,
            Self::Paths | Self::Connections | Self::Memory => Errno::EDQUOT,
        }
    }
}

/// The server's resources that the paths of a host use.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PathUse {
    /// Number of paths.
    pub paths: u32,
    /// Number of connections of all paths.
    pub connections: u32,
    /// Memory that all paths may use, in bytes.
    pub memory: u64,
}

/// Decides whether a path from `source` may join the paths of its host, which use `used` together
/// with it. Without `addresses` it may come from anywhere; a limit of 0 is none.
///
/// Paths that are being closed do not count, so that all of a host's paths may be lost and
/// connected again at once. They keep their memory, `closing` bytes, until their requests have
/// ended, which a client can make last; so with them the host may take twice the limit, no more.
///
/// # Errors
///
/// The reason of the refusal.
pub fn authorize(
    addresses: &[Prefix],
    limits: &PathUse,
    source: &Addr,
    used: &PathUse,
    closing: u64,
) -> Result<(), PathRefusal> {
    if !may_come_from(addresses, source) {
        return Err(PathRefusal::Address);
    }
    if limits.paths > 0 && used.paths > limits.paths {
        return Err(PathRefusal::Paths);
    }
    if limits.connections > 0 && used.connections > limits.connections {
        return Err(PathRefusal::Connections);
    }
    let twice = limits.memory.saturating_mul(2);
    let is_above = used.memory > limits.memory || used.memory.saturating_add(closing) > twice;
    if limits.memory > 0 && is_above {
        return Err(PathRefusal::Memory);
    }
    Ok(())
}

/// Whether a host with these `addresses` may come from `source`.
pub fn may_come_from(addresses: &[Prefix], source: &Addr) -> bool {
    addresses.is_empty() || prefix::contains(addresses, source)
}
