// SPDX-License-Identifier: GPL-2.0

//! The IBNBD block device without I/O: wire format and decisions.
//!
//! The wire format is that of RNBD 2.2 (protocol 1.11). Everything here is a pure function or a
//! plain value: nothing allocates, sleeps, locks, logs or panics, so every item may be used in
//! any context.
//!
//! | module | what it holds |
//! |---|---|
//! | [`msg`] | messages between client and server |
//! | [`access`] | access modes and who may open how |
//! | [`identity`] | whether a disk is the same as before |
//! | [`io_check`] | what the server checks before it submits |
//! | [`latency`] | how long the requests of a disk take |
//! | [`path`] | which device a name stands for on the server |
//! | [`map_opts`] | what users write to map and unmap |
//! | [`prio`] | which I/O priority a client's request gets |
//! | [`state`] | states of a client's device |
//! | [`window`] | how many requests of a disk are under way at once |
//!
//! Sectors are 512 bytes everywhere.

#![cfg_attr(not(CONFIG_RUST), no_std)]
#![forbid(unsafe_code)]
#![warn(missing_docs, rust_2018_idioms, unreachable_pub)]
#![warn(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

pub mod access;
pub mod dispatch;
pub mod identity;
pub mod io_check;
pub mod latency;
pub mod map_opts;
pub mod msg;
pub mod path;
pub mod prio;
pub mod state;
pub mod unflushed;
pub mod window;

pub use access::{Access, AccessMode};
