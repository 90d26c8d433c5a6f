// SPDX-License-Identifier: GPL-2.0

//! The addresses that a server can listen on.
//!
//! The connection manager binds an id to the RDMA device that has the address. It treats a loopback
//! address like the unspecified one: a server that listens on `127.0.0.1` would accept connections
//! on all addresses (`cma_any_addr()`). It binds IPv4 addresses in IPv6 only when they are written
//! as IPv4.

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::addr::Addr;
use crate::errno::Errno;

/// Why a server cannot listen on an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListenError {
    /// A loopback address.
    Loopback,
    /// A multicast or broadcast address.
    Group,
    /// An IPv4 address in IPv6.
    Mapped,
    /// A link-local IPv6 address whose scope is not the number of an interface.
    Scope,
}

impl ListenError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Loopback => "no RDMA device has a loopback address",
            Self::Group => "address names no single host",
            Self::Mapped => "an IPv4 address is written as ip:1.2.3.4",
            Self::Scope => "a link-local address needs the number of its interface as its scope",
        }
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        Errno::EINVAL
    }
}

/// Checks that a server can listen on the address, or, if it is unspecified, on all addresses of
/// its family.
///
/// # Errors
///
/// See [`ListenError`].
pub fn check(addr: &Addr) -> Result<(), ListenError> {
    match addr {
        Addr::V4(bytes) => check_v4(Ipv4Addr::from(*bytes)),
        Addr::V6(bytes, scope) => {
            let v6 = Ipv6Addr::from(*bytes);
            check_v6(v6)?;
            let has_scope = scope.is_some_and(|scope| scope.index().is_some_and(|index| index > 0));
            match v6.is_unicast_link_local() && !has_scope {
                true => Err(ListenError::Scope),
                false => Ok(()),
            }
        }
        Addr::Gid(bytes) => check_v6(Ipv6Addr::from(*bytes)),
    }
}

fn check_v4(addr: Ipv4Addr) -> Result<(), ListenError> {
    if addr.is_loopback() {
        Err(ListenError::Loopback)
    } else if addr.is_multicast() || addr.is_broadcast() {
        Err(ListenError::Group)
    } else {
        Ok(())
    }
}

fn check_v6(addr: Ipv6Addr) -> Result<(), ListenError> {
    if addr.is_loopback() {
        Err(ListenError::Loopback)
    } else if addr.is_multicast() {
        Err(ListenError::Group)
    } else if addr.to_ipv4_mapped().is_some() {
        Err(ListenError::Mapped)
    } else {
        Ok(())
    }
}

/// Returns whether the address stands for all addresses of its family.
pub fn is_unspecified(addr: &Addr) -> bool {
    match addr {
        Addr::V4(bytes) => Ipv4Addr::from(*bytes).is_unspecified(),
        Addr::V6(bytes, _) | Addr::Gid(bytes) => Ipv6Addr::from(*bytes).is_unspecified(),
    }
}

/// Returns whether nobody can listen on both addresses at the same port number.
pub fn overlap(one: &Addr, other: &Addr) -> bool {
    let same_family = core::mem::discriminant(one) == core::mem::discriminant(other);
    same_family && (one == other || is_unspecified(one) || is_unspecified(other))
}
