// SPDX-License-Identifier: GPL-2.0

//! The addresses by which peers name registered memory.

use kernel::page::PAGE_SIZE;

/// The I/O virtual addresses for the registrations of a region.
///
/// DMA addresses would reveal the location of the memory to the peer and to any eavesdropper. The
/// numbers used instead are not secret, but reveal nothing.
pub(crate) struct Bases(u64);

impl Bases {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns addresses for another region, derived from these: drawing a random number for each
    /// region would take as long as creating the rest of it. The peer of a domain may compute the
    /// addresses of its other regions from two of them, but it learns them anyway.
    pub(crate) fn split(&mut self) -> Self {
        Self(self.next_bits())
    }

    /// Returns the address for a range that begins at `addr`: with the same offset in the page, and
    /// below 2^63, so that adding a length or an offset never overflows.
    pub(crate) fn next(&mut self, addr: u64) -> u64 {
        const IN_PAGE: u64 = PAGE_SIZE as u64 - 1;
        (self.next_bits() >> 1) & !IN_PAGE | (addr & IN_PAGE)
    }

    /// SplitMix64 takes only a few instructions for each I/O.
    fn next_bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}
