// SPDX-License-Identifier: GPL-2.0

//! The IBNBD block device without I/O: wire format and decisions.
//!
//! The wire format is that of RNBD 2.2, specified in Documentation/protocol.md. Everything here is
//! a pure function or a plain value: nothing allocates, sleeps, locks, logs or panics, so every
//! item may be used in any context.
//!
//! | Module | Contents |
//! |---|---|
//! | [`msg`] | messages between client and server |
//! | [`access`] | access modes, and the rules for opening an export |
//! | [`checksum`] | end-to-end checksums of data |
//! | [`dispatch`] | dispatch of a disk's requests: sent, queued or failed |
//! | [`grant`] | the rules for clients: exports that a session may open, addresses of a host |
//! | [`identity`] | whether a disk is the same as before |
//! | [`io_check`] | the server's checks before it submits a request |
//! | [`latency`] | latency histograms of a disk |
//! | [`path`] | device names on the server |
//! | [`map_opts`] | options of mapping and unmapping a device |
//! | [`prefix`] | sets of addresses that operators name |
//! | [`prio`] | I/O priority of a client's request |
//! | [`state`] | states of a client's device |
//! | [`throttle`] | a host's limits of requests and bytes per second |
//! | [`timeouts`] | after how many timeouts a request is cancelled |
//! | [`unflushed`] | unflushed writes, and losses of the server's write cache |
//! | [`window`] | limit of a disk's in-flight requests while other disks are in use |
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
pub mod checksum;
pub mod dispatch;
pub mod grant;
pub mod identity;
pub mod io_check;
pub mod latency;
pub mod map_opts;
pub mod msg;
pub mod path;
pub mod prefix;
pub mod prio;
pub mod state;
pub mod throttle;
pub mod timeouts;
pub mod unflushed;
pub mod window;

pub use access::{Access, AccessMode};
