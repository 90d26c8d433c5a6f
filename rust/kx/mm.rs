// SPDX-License-Identifier: GPL-2.0

//! Blocks of pages, and scopes that restrict allocation.

mod block;
mod no_io;
mod reclaim;
mod reserve;
mod total;

pub use block::{
    Node,
    PageBlock,
    PrivateBlock, //
};
pub use no_io::NoIo;
pub use reclaim::in_reclaim;
pub use reserve::Reserve;
pub use total::total_bytes;
