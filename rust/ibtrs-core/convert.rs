// SPDX-License-Identifier: GPL-2.0

//! Conversions between the protocol's types and the kernel's.

use ibtrs_proto::{
    addr::{
        Addr,
        Scope, //
    },
    errno::Errno, //
};
use kernel::{
    error::code::*,
    prelude::*, //
};
use kx::net::addr::{
    Host,
    SockAddr, //
};

/// Gives the kernel's error for an errno of the protocol.
#[inline]
pub fn error(errno: Errno) -> Error {
    match errno.to_kernel() {
        ret if (-4095..0).contains(&ret) => Error::from_errno(ret),
        _ => EIO,
    }
}

/// Gives the protocol's errno for an error of the kernel.
#[inline]
pub fn errno(error: Error) -> Errno {
    Errno::from_kernel(error.to_errno()).unwrap_or(Errno::EIO)
}

/// Gives the socket address of `addr` with the port `port`.
///
/// # Errors
///
/// `EINVAL` for a scope that is not the number of an interface, `EOPNOTSUPP` for
/// a GID.
pub fn sock_addr(addr: &Addr, port: u16) -> Result<SockAddr> {
    Ok(match addr {
        Addr::V4(bytes) => SockAddr::v4(*bytes, port),
        Addr::V6(bytes, None) => SockAddr::v6(*bytes, port, 0),
        Addr::V6(bytes, Some(scope)) => SockAddr::v6(*bytes, port, scope.index().ok_or(EINVAL)?),
        // Connections are made in the port space of IP so far.
        Addr::Gid(_) => return Err(EOPNOTSUPP),
    })
}

/// Gives the protocol's address for a socket address, an IPv4 address in IPv6 as plain IPv4; none
/// for another family.
pub fn addr(addr: &SockAddr) -> Option<Addr> {
    Some(match addr.host()? {
        Host::V4(bytes) => Addr::V4(bytes),
        Host::V6(bytes, scope) => Addr::V6(bytes, Scope::from_index(scope)).unmapped(),
        Host::Gid(bytes) => Addr::Gid(bytes),
    })
}

/// Lets the kernel print what the protocol can.
pub struct Shown<T>(pub T);

impl<T: core::fmt::Display> kernel::fmt::Display for Shown<T> {
    fn fmt(&self, f: &mut kernel::fmt::Formatter<'_>) -> kernel::fmt::Result {
        core::fmt::Display::fmt(&self.0, f)
    }
}
