// SPDX-License-Identifier: GPL-2.0

//! The IBTRS transport without I/O: wire format and decisions.
//!
//! The wire format is that of RTRS 2.0. Everything here is a pure function or a plain value:
//! nothing allocates, sleeps, locks, logs or panics, so every item may be used in any context.
//! The same sources are compiled by Kbuild into the kernel and by cargo on the host.
//!
//! | Module | Contents |
//! |---|---|
//! | [`consts`] | numbers of the protocol |
//! | [`errno`] | Linux error numbers and their encodings on the wire |
//! | [`imm`], [`imm_check`] | the 32-bit immediate; which ones a side accepts |
//! | [`bytes`] | little-endian fields in byte slices |
//! | [`handshake`] | private data of the connection manager |
//! | [`auth`] | mutual authentication by a shared key |
//! | [`audit`] | limits for the lines in the server's log |
//! | [`msg`] | messages after the handshake, request headers |
//! | [`layout`] | layout of a request in its chunk |
//! | [`pieces`] | memory in pieces |
//! | [`limits`] | limits of the server's configuration |
//! | [`join`], [`listen`] | the path of an incoming connection; addresses to listen on |
//! | [`origin`] | the origin of a connection request, by which the server keeps accounts |
//! | [`quota`] | the server's limits on memory and connections |
//! | [`setup`] | time limit for setting up a path |
//! | [`name`], [`addr`], [`opts`], [`text`] | parsers of names, addresses, options and values |
//! | [`fsm`] | path state machines of client and server |
//! | [`steps`] | actions of state machines, queued for a work item |
//! | [`mp`] | path selection |
//! | [`reauth`] | the path that authenticates again next |
//! | [`failover`] | requests of the client when paths come and go |
//! | [`tag`] | the number of a request |
//! | [`chunk_owner`] | the path that has a chunk in service |
//! | [`serving`] | how requests get into service, in the order that [`chunk_owner`] prescribes |
//! | [`slots`], [`buffers`] | small places for requests; memory for data in service |
//! | [`capsule`] | requests that are messages |
//! | [`keys`] | invalidation of a request's key |
//! | [`hb`], [`backoff`] | heartbeat, reconnect delays |
//! | [`history`] | the last changes of something, in a bounded ring |
//! | [`failover_time`] | times that follow from the failover time of a session |
//! | [`downtime`] | how long a server expects to be away after a planned stop |
//! | [`permit`] | split of the queue depth between I/O and administrative messages |
//! | [`refused`] | why a server refuses a connection, in the words of the client |
//! | [`settings`] | settings of a session |
//! | [`stats`] | statistics and their texts |
//!
//! All multi-byte fields are little-endian on the wire unless an item says otherwise.
//! Wire formats are specified in Documentation/protocol.md.

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
pub mod audit;
pub mod auth;
pub mod backoff;
pub mod buffers;
pub mod bytes;
pub mod capsule;
pub mod chunk_owner;
pub mod consts;
pub mod downtime;
pub mod errno;
pub mod failover;
pub mod failover_time;
pub mod fsm;
pub mod handshake;
pub mod hb;
pub mod history;
pub mod imm;
pub mod imm_check;
pub mod join;
pub mod keys;
pub mod layout;
pub mod limits;
pub mod listen;
pub mod mp;
pub mod msg;
pub mod name;
pub mod opts;
pub mod origin;
pub mod permit;
pub mod pieces;
pub mod quota;
pub mod reauth;
pub mod refused;
pub mod serving;
pub mod settings;
pub mod setup;
pub mod slots;
pub mod stats;
pub mod steps;
pub mod tag;
pub mod text;

pub use errno::Errno;
