// SPDX-License-Identifier: GPL-2.0

//! Addresses as work requests name them.

use ibtrs_bindings as bindings;

/// A piece of local memory: DMA address, length in bytes, local key.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Sge(pub(crate) bindings::ib_sge);

impl Sge {
    /// Names `length` bytes at the DMA address `addr` under the key `lkey`.
    #[inline]
    pub fn new(addr: u64, length: u32, lkey: u32) -> Self {
        Self(bindings::ib_sge { addr, length, lkey })
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.0.length
    }

    /// Tells whether the element covers no byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.length == 0
    }
}

/// A place in the peer's memory: I/O virtual address and remote key.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Remote {
    /// The address, as the peer announced it.
    pub addr: u64,
    /// The key that the peer registered the memory under.
    pub rkey: u32,
}
