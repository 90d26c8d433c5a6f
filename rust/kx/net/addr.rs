// SPDX-License-Identifier: GPL-2.0

//! Socket addresses.

use ibtrs_bindings::__kernel_sockaddr_storage;
use kernel::{
    bindings,
    prelude::*, //
};

/// `AF_INET`
const AF_INET: u16 = 2;
/// `AF_INET6`
const AF_INET6: u16 = 10;
/// `AF_IB`
const AF_IB: u16 = 27;

/// A socket address of any family.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct SockAddr(Bytes);

/// As large and as aligned as C wants it.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Bytes([u8; 128]);

kernel::static_assert!(size_of::<Bytes>() == size_of::<__kernel_sockaddr_storage>());
kernel::static_assert!(align_of::<Bytes>() >= align_of::<__kernel_sockaddr_storage>());

impl SockAddr {
    fn new(family: u16, fields: &[(usize, &[u8])]) -> Self {
        let mut bytes = [0; 128];
        bytes[..2].copy_from_slice(&family.to_ne_bytes());
        for (at, field) in fields {
            if let Some(place) = bytes.get_mut(*at..*at + field.len()) {
                place.copy_from_slice(field);
            }
        }
        Self(Bytes(bytes))
    }

    /// An IPv4 address in network order.
    pub fn v4(addr: [u8; 4], port: u16) -> Self {
        Self::new(AF_INET, &[(2, &port.to_be_bytes()), (4, &addr)])
    }

    /// An IPv6 address in network order; `scope` is an interface number, or zero.
    pub fn v6(addr: [u8; 16], port: u16, scope: u32) -> Self {
        Self::new(
            AF_INET6,
            &[
                (2, &port.to_be_bytes()),
                (8, &addr),
                (24, &scope.to_ne_bytes()),
            ],
        )
    }

    /// An InfiniBand GID in network order, with the service id of `port` in the
    /// TCP port space.
    pub fn gid(addr: [u8; 16], port: u16) -> Self {
        let sid = 0x0000_0000_0106_0000u64 | u64::from(port);
        Self::new(
            AF_IB,
            &[
                (2, &0xffffu16.to_be_bytes()),
                (8, &addr),
                (24, &sid.to_be_bytes()),
                (32, &u64::MAX.to_be_bytes()),
            ],
        )
    }

    /// Copies a C address.
    ///
    /// # Safety
    ///
    /// `addr` must point to a valid address storage.
    pub unsafe fn from_raw(addr: *const __kernel_sockaddr_storage) -> Self {
        // SAFETY: By this function's contract; the sizes are equal.
        Self(Bytes(unsafe { addr.cast::<[u8; 128]>().read() }))
    }

    /// Returns a pointer for C, valid as long as `self`.
    pub fn as_raw(&self) -> *const bindings::sockaddr {
        core::ptr::from_ref(self).cast()
    }
}
