// SPDX-License-Identifier: GPL-2.0

//! Blocks of pages, and scopes that restrict allocation.

mod block;
mod no_io;

pub use block::{
    Node,
    PageBlock,
    PrivateBlock, //
};
pub use no_io::NoIo;
