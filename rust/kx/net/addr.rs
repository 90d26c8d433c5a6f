// SPDX-License-Identifier: GPL-2.0

//! Socket addresses.
//!
//! A [`SockAddr`] has the layout of the C structures. The offsets of its fields are checked against
//! them at compile time.
//!
//! C headers: [`include/linux/socket.h`](srctree/include/linux/socket.h),
//! [`include/rdma/ib.h`](srctree/include/rdma/ib.h)

use core::mem::offset_of;
use ibtrs_bindings::{
    __kernel_sockaddr_storage,
    sockaddr_ib, //
};
use kernel::{
    bindings::{
        self,
        sockaddr_in,
        sockaddr_in6, //
    },
    fmt,
    prelude::*,
    static_assert, //
};

// CAST: Address families fit in 16 bits.
const AF_INET: u16 = bindings::AF_INET as u16;
const AF_INET6: u16 = bindings::AF_INET6 as u16;
const AF_IB: u16 = bindings::AF_IB as u16;

/// Offset of the port, or of the partition key of an InfiniBand address.
const PORT: usize = 2;
static_assert!(offset_of!(sockaddr_in, sin_port) == PORT);
static_assert!(offset_of!(sockaddr_in6, sin6_port) == PORT);
static_assert!(offset_of!(sockaddr_ib, sib_pkey) == PORT);

/// Offset of the host of an IPv4 address.
const V4: usize = 4;
static_assert!(offset_of!(sockaddr_in, sin_addr) == V4);

/// Offset of the host of the other families.
const V6: usize = 8;
static_assert!(offset_of!(sockaddr_in6, sin6_addr) == V6);
static_assert!(offset_of!(sockaddr_ib, sib_addr) == V6);

/// Offset of the interface index of a link-local IPv6 address.
const SCOPE: usize = 24;
static_assert!(offset_of!(sockaddr_in6, sin6_scope_id) == SCOPE);

/// Offsets of the service id of an InfiniBand address, and of its mask.
const SERVICE: usize = 24;
const SERVICE_MASK: usize = 32;
static_assert!(offset_of!(sockaddr_ib, sib_sid) == SERVICE);
static_assert!(offset_of!(sockaddr_ib, sib_sid_mask) == SERVICE_MASK);

/// First service id of the InfiniBand port space (`RDMA_PS_IB`); the low 16 bits are the port.
const SERVICE_IB: u64 = 0x13f_0000;

/// The host part of an address, in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// An IPv4 address.
    V4([u8; 4]),
    /// An IPv6 address, and the index of its interface if it is link-local, otherwise zero.
    V6([u8; 16], u32),
    /// An InfiniBand GID.
    Gid([u8; 16]),
}

/// A socket address of any family. Ports are in host byte order here.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct SockAddr(Bytes);

/// Storage of the size and alignment that C requires.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Bytes([u8; 128]);

static_assert!(size_of::<Bytes>() == size_of::<__kernel_sockaddr_storage>());
static_assert!(align_of::<Bytes>() >= align_of::<__kernel_sockaddr_storage>());

impl SockAddr {
    fn new(family: u16, fields: &[(usize, &[u8])]) -> Self {
        let mut this = Self(Bytes([0; 128]));
        this.put(0, &family.to_ne_bytes());
        for (at, field) in fields {
            this.put(*at, field);
        }
        this
    }

    /// Writes a field; the offsets of all callers are in bounds.
    fn put(&mut self, at: usize, field: &[u8]) {
        let places = self.0 .0.iter_mut().skip(at);
        for (place, byte) in places.zip(field) {
            *place = *byte;
        }
    }

    /// Reads a field; the offsets of all callers are in bounds.
    fn take<const N: usize>(&self, at: usize) -> [u8; N] {
        let rest = self.0 .0.get(at..).unwrap_or_default();
        rest.first_chunk().copied().unwrap_or([0; N])
    }

    /// Creates an IPv4 address; `addr` is in network byte order, `port` in host byte order.
    pub fn v4(addr: [u8; 4], port: u16) -> Self {
        Self::new(AF_INET, &[(PORT, &port.to_be_bytes()), (V4, &addr)])
    }

    /// Creates an IPv6 address; `addr` is in network byte order, `port` in host byte order, and
    /// `scope` is an interface index or zero.
    pub fn v6(addr: [u8; 16], port: u16, scope: u32) -> Self {
        Self::new(
            AF_INET6,
            &[
                (PORT, &port.to_be_bytes()),
                (V6, &addr),
                (SCOPE, &scope.to_ne_bytes()),
            ],
        )
    }

    /// Creates an InfiniBand address from a GID in network byte order, with the service id of
    /// `port` in the InfiniBand port space and the key of the default partition.
    pub fn gid(addr: [u8; 16], port: u16) -> Self {
        let service = SERVICE_IB | u64::from(port);
        Self::new(
            AF_IB,
            &[
                (PORT, &u16::MAX.to_be_bytes()),
                (V6, &addr),
                (SERVICE, &service.to_be_bytes()),
                (SERVICE_MASK, &u64::MAX.to_be_bytes()),
            ],
        )
    }

    /// Copies a C address.
    ///
    /// # Safety
    ///
    /// `addr` must be valid for reading a whole address storage, every byte of which is
    /// initialised.
    pub unsafe fn from_raw(addr: *const __kernel_sockaddr_storage) -> Self {
        // SAFETY: By this function's contract; the sizes are equal.
        Self(Bytes(unsafe { addr.cast::<[u8; 128]>().read() }))
    }

    /// Returns a pointer for C, which is valid as long as `self` exists and does not move.
    pub fn as_raw(&self) -> *const bindings::sockaddr {
        core::ptr::from_ref(self).cast()
    }

    /// Returns the family, such as `AF_INET`, or zero if there is no address.
    pub fn family(&self) -> u16 {
        u16::from_ne_bytes(self.take(0))
    }

    /// Returns the host, or `None` if [`Host`] has no variant for the family.
    pub fn host(&self) -> Option<Host> {
        match self.family() {
            AF_INET => Some(Host::V4(self.take(V4))),
            AF_INET6 => Some(Host::V6(
                self.take(V6),
                u32::from_ne_bytes(self.take(SCOPE)),
            )),
            AF_IB => Some(Host::Gid(self.take(V6))),
            _ => None,
        }
    }

    /// Returns the port, or zero if the family has no ports. The port of an InfiniBand address is
    /// the low 16 bits of its service id.
    pub fn port(&self) -> u16 {
        match self.family() {
            AF_INET | AF_INET6 => u16::from_be_bytes(self.take(PORT)),
            AF_IB => {
                let [.., high, low] = self.take::<8>(SERVICE);
                u16::from_be_bytes([high, low])
            }
            _ => 0,
        }
    }
}

impl PartialEq for SockAddr {
    fn eq(&self, other: &Self) -> bool {
        self.host() == other.host() && self.port() == other.port()
    }
}

impl Eq for SockAddr {}

impl fmt::Debug for SockAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SockAddr")
            .field(&self.host())
            .field(&self.port())
            .finish()
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_sock_addr)]
mod tests {
    use super::*;

    #[test]
    fn looks_like_in_c() {
        let v4 = SockAddr::v4([10, 0, 0, 1], 0x1234);
        // CAST: `SockAddr` is transparent over storage that is large and aligned enough for any
        // family.
        // SAFETY: As above.
        let c = unsafe { &*v4.as_raw().cast::<sockaddr_in>() };
        assert_eq!(c.sin_family, AF_INET);
        assert_eq!(c.sin_port, 0x1234u16.to_be());
        assert_eq!(c.sin_addr.s_addr.to_ne_bytes(), [10, 0, 0, 1]);
    }

    #[test]
    fn gid_looks_like_in_c() {
        let host = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 2, 0xc9, 3, 0, 0, 0, 1];
        let gid = SockAddr::gid(host, 1234);
        // CAST: As in `looks_like_in_c`.
        // SAFETY: As above.
        let c = unsafe { &*gid.as_raw().cast::<sockaddr_ib>() };
        assert_eq!(c.sib_family, AF_IB);
        assert_eq!(c.sib_pkey, 0xffffu16.to_be());
        assert_eq!(c.sib_flowinfo, 0);
        // SAFETY: Every member of the union is 16 bytes.
        assert_eq!(unsafe { *c.sib_addr.ib_u.uib_addr8 }, host);
        assert_eq!(c.sib_sid, 0x0000_0000_013f_04d2u64.to_be());
        assert_eq!(c.sib_sid_mask, u64::MAX);
        assert_eq!(c.sib_scope_id, 0);
    }

    #[test]
    fn round_trip() {
        let (v4, v6) = (SockAddr::v4([10, 0, 0, 1], 1), SockAddr::v6([7; 16], 2, 3));
        let gid = SockAddr::gid([9; 16], 65535);
        assert_eq!((v4.host(), v4.port()), (Some(Host::V4([10, 0, 0, 1])), 1));
        assert_eq!((v6.host(), v6.port()), (Some(Host::V6([7; 16], 3)), 2));
        assert_eq!((gid.host(), gid.port()), (Some(Host::Gid([9; 16])), 65535));
        for addr in [v4, v6, gid] {
            // SAFETY: The pointer is to a whole address.
            let copy = unsafe { SockAddr::from_raw(addr.as_raw().cast()) };
            assert!(copy == addr);
        }
        assert!(v4 != SockAddr::v4([10, 0, 0, 1], 2));
        assert!(v4 != SockAddr::v4([10, 0, 0, 2], 1));
        assert_eq!(SockAddr::new(0, &[]).host(), None);
    }
}
