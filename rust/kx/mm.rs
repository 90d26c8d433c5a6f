// SPDX-License-Identifier: GPL-2.0

//! Blocks of pages, and scopes that restrict allocation.

use kernel::page::PAGE_SIZE;

mod block;
mod scope;

pub use block::{
    Node,
    PageBlock,
    PrivateBlock, //
};
pub use scope::{
    in_reclaim,
    NoIo,
    Reserve, //
};

/// Bytes of memory that the kernel manages on this machine.
///
/// # Context
///
/// *any*
pub fn total_bytes() -> u64 {
    // SAFETY: May be called anywhere.
    let pages = unsafe { ibtrs_bindings::kx_totalram_pages() };
    (pages as u64).saturating_mul(PAGE_SIZE as u64)
}
