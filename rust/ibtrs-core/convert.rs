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

/// Converts an errno of the protocol; `EIO` if the kernel has no such error.
#[inline]
pub fn error(errno: Errno) -> Error {
    match errno.to_kernel() {
        ret if (-4095..0).contains(&ret) => Error::from_errno(ret),
        _ => EIO,
    }
}

/// Converts an error of the kernel; `EIO` if the protocol has no such errno.
#[inline]
pub fn errno(error: Error) -> Errno {
    Errno::from_kernel(error.to_errno()).unwrap_or(Errno::EIO)
}

/// Returns the socket address of `addr` with the port `port`; for a GID, the port selects the
/// service id.
///
/// # Errors
///
/// `EINVAL` for a scope that is an interface name rather than its index.
pub fn sock_addr(addr: &Addr, port: u16) -> Result<SockAddr> {
    Ok(match addr {
        Addr::V4(bytes) => SockAddr::v4(*bytes, port),
        Addr::V6(bytes, None) => SockAddr::v6(*bytes, port, 0),
        Addr::V6(bytes, Some(scope)) => SockAddr::v6(*bytes, port, scope.index().ok_or(EINVAL)?),
        Addr::Gid(bytes) => SockAddr::gid(*bytes, port),
    })
}

/// Converts a socket address; an IPv4-mapped IPv6 address becomes plain IPv4. Returns `None` for
/// other address families.
pub fn addr(addr: &SockAddr) -> Option<Addr> {
    Some(match addr.host()? {
        Host::V4(bytes) => Addr::V4(bytes),
        Host::V6(bytes, scope) => Addr::V6(bytes, Scope::from_index(scope)).unmapped(),
        Host::Gid(bytes) => Addr::Gid(bytes),
    })
}

/// Adapter that lets the kernel's formatting macros print a type of the protocol.
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

    /// Converts an address to a socket address and back, as for the addresses that sysfs shows.
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
        // Socket addresses have an interface's index; names are not resolved here.
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
