// SPDX-License-Identifier: GPL-2.0

//! Scatter/gather entries of work requests.

use crate::pd::Pd;
use ibtrs_bindings as bindings;

/// A scatter element, which names local memory: DMA address, length in bytes, local key.
///
/// It is valid in the protection domain that the memory is mapped or registered in; queue pairs of
/// other domains refuse it. It does not keep the memory, but the domain does.
#[derive(Clone, Copy)]
pub struct Sge {
    raw: bindings::ib_sge,
    /// The number of the domain.
    domain: u64,
}

impl Sge {
    /// Creates an element of `length` bytes at the DMA address `addr` in `pd`, with the key `lkey`.
    #[inline]
    pub(crate) fn new(pd: &Pd, addr: u64, length: u32, lkey: u32) -> Self {
        Self::of_domain(pd.id(), addr, length, lkey)
    }

    /// As [`Sge::new`], for the domain with the number `domain`.
    #[inline]
    pub(crate) fn of_domain(domain: u64, addr: u64, length: u32, lkey: u32) -> Self {
        Self {
            raw: bindings::ib_sge { addr, length, lkey },
            domain,
        }
    }

    /// Returns the C struct, if the element is for the domain with the number `domain`.
    #[inline]
    pub(crate) fn for_domain(&self, domain: u64) -> Option<bindings::ib_sge> {
        (self.domain == domain).then_some(self.raw)
    }

    /// Returns the C struct, without a check of the domain.
    #[inline]
    pub(crate) fn raw(&self) -> bindings::ib_sge {
        self.raw
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.raw.length
    }

    /// Returns whether the element covers no byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.raw.length == 0
    }
}

/// A place in the peer's memory: I/O virtual address and remote key, both in host byte order.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Remote {
    /// The I/O virtual address that the peer has sent.
    pub addr: u64,
    /// The key with which the peer has registered the memory.
    pub rkey: u32,
}
