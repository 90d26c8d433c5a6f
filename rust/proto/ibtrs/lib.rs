// SPDX-License-Identifier: GPL-2.0

//! The IBTRS transport without I/O: wire format and decisions.
//!
//! The wire format is that of RTRS 2.0. Everything here is a pure function or a plain value:
//! nothing allocates, sleeps, locks, logs or panics, so every item may be used in any context.
//! The same sources are compiled by Kbuild into the kernel and by cargo on the host.
//!
//! | module | what it holds |
//! |---|---|
//! | [`consts`] | numbers of the protocol |
//! | [`errno`] | Linux error numbers and how they travel |
//! | [`imm`] | the 32-bit immediate |
//! | [`handshake`] | private data of the connection manager |
//! | `auth` | proof of a shared key; on the host only, until the drivers use it |
//! | [`msg`] | messages after the handshake, request headers |
//! | [`layout`] | where a request stands in its chunk |
//! | [`limits`] | what a server may be configured to |
//! | [`join`] | which path of the server a connection belongs to |
//! | [`quota`] | how much a server lets itself in for |
//! | [`name`], [`addr`], [`opts`], [`text`] | what users write |
//! | [`fsm`] | path state machines of client and server |
//! | [`mp`] | which path a request takes |
//! | [`failover`] | what a client does when paths come and go |
//! | [`owner`], [`serving`] | which path of a server's session has a chunk in service, and how requests get there |
//! | [`keys`] | when the peer can no longer use the key of a request |
//! | [`hb`], [`backoff`], [`permit`] | heartbeat, reconnect delays, shares of the queue |
//! | [`quota`], [`setup`] | what a server lets itself in for, and how long a set-up may take |
//! | [`settings`] | numbers that an operator sets |
//! | [`stats`] | what the files of statistics say |
//!
//! All multi-byte fields are little-endian on the wire unless an item says otherwise.
//! "protocol" in the documentation means Documentation/protocol.

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

pub mod addr;
// The modules do not carry what no driver uses.
#[cfg(not(CONFIG_RUST))]
pub mod auth;
pub mod backoff;
pub mod bytes;
pub mod chunk_owner;
pub mod consts;
pub mod errno;
pub mod failover;
pub mod fsm;
pub mod handshake;
pub mod hb;
pub mod imm;
pub mod join;
pub mod keys;
pub mod layout;
pub mod limits;
pub mod mp;
pub mod msg;
pub mod name;
pub mod opts;
pub mod permit;
pub mod quota;
pub mod serving;
pub mod settings;
pub mod setup;
pub mod stats;
pub mod text;

pub use errno::Errno;
