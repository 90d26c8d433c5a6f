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

/// Returns the kernel's error for an errno of the protocol.
#[inline]
pub fn error(errno: Errno) -> Error {
    match errno.to_kernel() {
        ret if (-4095..0).contains(&ret) => Error::from_errno(ret),
        _ => EIO,
    }
}

/// Returns the protocol's errno for an error of the kernel.
#[inline]
pub fn errno(error: Error) -> Errno {
    Errno::from_kernel(error.to_errno()).unwrap_or(Errno::EIO)
}

/// Returns the socket address of `addr` with the port `port`; for a GID, that is the
/// service id of that number.
///
/// # Errors
///
/// `EINVAL` for a scope that is not the number of an interface.
pub fn sock_addr(addr: &Addr, port: u16) -> Result<SockAddr> {
    Ok(match addr {
        Addr::V4(bytes) => SockAddr::v4(*bytes, port),
        Addr::V6(bytes, None) => SockAddr::v6(*bytes, port, 0),
        Addr::V6(bytes, Some(scope)) => SockAddr::v6(*bytes, port, scope.index().ok_or(EINVAL)?),
        Addr::Gid(bytes) => SockAddr::gid(*bytes, port),
    })
}

/// Returns the protocol's address for a socket address, an IPv4 address in IPv6 as plain IPv4; none
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

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibtrs_convert)]
mod tests {
    use super::*;
    use ibtrs_proto::addr::PathAddr;

    /// There and back, as sysfs shows what a connection has.
    fn round(text: &str) -> Result<Addr> {
        let parsed = PathAddr::parse(text).map_err(|_| EINVAL)?;
        addr(&sock_addr(&parsed.dst, 1234)?).ok_or(EAFNOSUPPORT)
    }

    #[test]
    fn addresses_round_trip() {
        for text in [
            "ip:10.0.0.1",
            "ip:fd00::1",
            "ip:fe80::1%3",
            "gid:fe80::202:c903:0:1",
        ] {
            assert_eq!(round(text), Addr::parse(text).map_err(|_| EINVAL));
        }
        // An interface is known by its number.
        assert_eq!(round("ip:fe80::1%eth0"), Err(EINVAL));
    }

    #[test]
    fn a_gid_has_a_service() {
        let both = PathAddr::parse("gid:fe80::1,gid:fe80::2");
        let Ok(PathAddr {
            src: Some(src),
            dst,
        }) = both
        else {
            assert!(false);
            return;
        };
        let ends = sock_addr(&src, 0).and_then(|src| Ok((src, sock_addr(&dst, 1234)?)));
        let Ok((src, dst)) = ends else {
            assert!(false);
            return;
        };
        assert_eq!((src.port(), dst.port()), (0, 1234));
        assert!(src.host() != dst.host());
        assert_eq!(src.family(), dst.family());
    }
}
