// SPDX-License-Identifier: GPL-2.0

//! Messages between programs without I/O: wire format and decisions.
//!
//! A *channel* connects two programs on the client and the server of an IBTRS session. Each message is
//! queued for the receiving program exactly once and in order, as long as both kernels live and the
//! channel exists, whatever happens to paths. A message that is not delivered has a truthful
//! [`Outcome`].
//!
//! The wire format is specified in Documentation/protocol.md, "Messages". Everything here is a pure
//! function or a plain value: nothing allocates, sleeps, locks, logs or panics, so every item may be
//! used in any context. The caller serialises the calls for one value.
//!
//! | Module | Contents |
//! |---|---|
//! | [`limits`] | numbers of the protocol |
//! | [`seq`] | serial numbers that wrap around |
//! | [`wire`] | frames and records |
//! | [`window`] | the terms on which one side of a channel receives |
//! | [`channel`] | life of a channel: opened at a portal, moved between connections, closed |
//! | [`send`] | numbers, credits and retention of the messages of a sender |
//! | [`receive`] | arrivals, acknowledgement and credits of a receiver |
//! | [`outcome`] | the outcomes of messages and calls |
//! | [`call`] | requests and their replies |
//! | [`link`] | flow control of a connection, in frames |
//! | [`fair`] | fair queueing of channels on a connection |
//! | [`gather`] | messages that wait for others, to share a frame |
//! | [`memory`] | memory that the peer's program reads and writes |
//! | [`publish`] | logs of portals, and subscriptions to them |
//! | [`refused`] | channels that were refused, by the reason |
//! | [`access`] | the operator's rules and limits |
//! | [`history`] | what has happened to portals and channels |
//!
//! A channel uses one connection at a time. When that is lost, the client's side moves the channel to
//! another one with RESUME, which says what each side has received; the rest is sent again under the
//! same numbers.

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
pub mod call;
pub mod channel;
pub mod fair;
pub mod gather;
pub mod history;
pub mod limits;
pub mod link;
pub mod memory;
pub mod outcome;
pub mod publish;
pub mod receive;
pub mod refused;
pub mod send;
pub mod seq;
pub mod window;
pub mod wire;

pub use outcome::{CallOutcome, Outcome};
pub use seq::Seq;
