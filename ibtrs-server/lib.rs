// SPDX-License-Identifier: GPL-2.0

//! The server of IBTRS: takes sessions in and hands their requests to a
//! [`Service`] above, such as the exports of IBNBD.
//!
//! A session has chunks of memory, which its client writes requests into, and
//! paths ([`path::Path`]), which have connections ([`con::Con`]). The body of a
//! chunk ([`body::Body`]) is either idle in its slot, or owned by the request
//! that is in service ([`Op`]), so that a chunk cannot be in two hands.
//!
//! # Who can write what
//!
//! With `always_invalidate`, which is the default, the layers above never see
//! memory that a client can write to: headers and small writes are copied out
//! of the chunk, the chunk of a large request has its key invalidated first and
//! gets a new one with the answer, and small reads go to memory that was never
//! registered. Without, only headers are copied.
//!
//! # Lock order
//!
//! `Server::sessions`, `Session::paths`, `Path::cons`, `Path::fsm`;
//! `Con::parked`, `BodySlot::idle`, then the locks of the RDMA crate.

#![deny(unsafe_code)]

use kernel::prelude::*;

mod admit;
mod body;
mod con;
mod info;
mod op;
mod path;
mod respond;
mod server;
mod session;

pub use op::Op;
pub use server::{
    listen,
    Listener,
    Service,
    ServiceSession,
    SessionInfo, //
};

pub use ibtrs_proto::msg::Direction as Dir;

kx::module_param! {
    /// Bytes of a chunk, headers included.
    max_chunk_size: kx::param::IntParam = kx::param::IntParam::new(131072, 8192..=1048576),
    "Bytes of a chunk, a power of two from 8192 to 1048576; all chunks of a session together at most 2^28 (default: 131072)";

    /// Chunks of a session.
    sess_queue_depth: kx::param::IntParam = kx::param::IntParam::new(512, 2..=65535),
    "Chunks of a session (default: 512)";

    /// Keep clients from writing to memory in use.
    always_invalidate: kx::param::BoolParam = kx::param::BoolParam::new(true),
    "Keep clients from changing requests in service (default: Y)";
}

module! {
    type: ServerModule,
    name: "ibtrs_server",
    authors: ["The ibtrs authors"],
    description: "Multipath RDMA block transport: server",
    license: "GPL",
}

struct ServerModule;

impl kernel::Module for ServerModule {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        server::Config::from_params()?;
        Ok(Self)
    }
}
