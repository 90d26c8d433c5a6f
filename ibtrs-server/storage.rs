// SPDX-License-Identifier: GPL-2.0

//! The memory of requests: where requests arrive, and where their data is. Independent of connections
//! and paths; the owner of a buffer is a [`buffers::Holder`].
//!
//! | Module | Purpose |
//! |---|---|
//! | [`source`] | memory that a device sends from and writes to |
//! | [`answer_buf`] | memory for the answers that are messages |
//! | [`pool`] | memory of lost paths |
//! | [`buffers`] | buffers for the data of requests in service, and the share of each session |
//! | [`landing`] | a chunk, or a slot with its buffers |
//! | [`chunk`] | a chunk or slot with all else that its request needs, and the state of its number |

pub(crate) mod answer_buf;
pub(crate) mod buffers;
pub(crate) mod chunk;
pub(crate) mod landing;
pub(crate) mod pool;
pub(crate) mod source;
