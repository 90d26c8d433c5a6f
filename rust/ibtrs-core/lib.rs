// SPDX-License-Identifier: GPL-2.0

//! Code that the client and the server of IBTRS share at run time.
//!
//! - [`Client`], which registers with the RDMA core and receives every RDMA device.
//! - [`auth`], the keyring and other code for authentication.
//! - [`heartbeat::PathHeartbeat`], the heartbeat of a path.
//! - [`trace`], the trace events.
//! - [`imm::send_imm`], which sends a message that consists of an immediate only.
//! - [`message::Message`], a message that waits to be handled.
//! - [`messages`], the connections for messages between programs.
//! - [`convert`], conversions between types of the protocol and of the kernel.
//! - [`stats`], statistics of paths on both sides.
//! - [`tag`], the tags of slots.
//!
//! The module also contains the crates below it: `kx`, `rdma`, `ibtrs_proto` and `ibnbd_proto`.

#![deny(unsafe_code)]

use kernel::prelude::*;
use rdma::device::Client;

pub mod auth;
pub mod convert;
pub mod heartbeat;
pub mod imm;
pub mod message;
pub mod messages;
pub mod stats;
pub mod tag;
pub mod trace;

module! {
    type: Core,
    name: "ibtrs_core",
    authors: ["The ibtrs authors"],
    description: "Multipath RDMA block transport: the part that client and server share",
    license: "GPL",
}

#[pin_data]
struct Core {
    #[pin]
    _client: Client,
    _keyring: auth::Registration,
    _queue_destroyer: kx::work::QueueDestroyer,
    // Dropped last, as `LastTails` requires.
    _tails: kx::module::LastTails,
}

impl kernel::InPlaceModule for Core {
    fn init(_module: &'static ThisModule) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            _client <- Client::new(c"ibtrs"),
            _keyring: auth::Registration::new()?,
            _queue_destroyer: kx::work::QueueDestroyer::start()?,
            _tails: kx::module::LastTails::new(),
        }? Error)
    }
}
