// SPDX-License-Identifier: GPL-2.0

//! The client of IBTRS: sessions with a server, for block devices and others
//! above.
//!
//! [`Session`] is the interface. Inside, a session has a [`path::Path`], which
//! has connections ([`con::Con`]) and the requests in flight
//! ([`request::Request`]). State changes follow
//! [`ibtrs_proto::fsm::client_path`] and run on the path's ordered work queue;
//! submitters never wait for them.
//!
//! # Lock order
//!
//! `Session::path`, `Path::cons`, `Path::fsm` or `Path::setup` (never both),
//! `Request::inner`, then the locks of the RDMA crate.

#![deny(unsafe_code)]

use kernel::prelude::*;

mod admin;
mod con;
mod connect;
mod path;
mod request;
mod session;

pub use request::MAX_USER_HDR;
pub use session::{
    Dir,
    Life,
    LinkEvents,
    PathSpec,
    Session,
    SessionConfig,
    Submit, //
};

mod param {
    //! The parameters of the module.

    use kx::param::IntParam;

    kx::module_param! {
        /// See [`rdma::cm::CmId::set_ack_timeout`].
        pub(crate) ack_timeout: IntParam = IntParam::new(0, 0..=31),
        "Local ACK timeout: a packet is sent again after 4.096 us * 2^n; for slow software RDMA (default: 0, as the connection manager has it)";
    }
}

module! {
    type: ClientModule,
    name: "ibtrs_client",
    authors: ["The ibtrs authors"],
    description: "Multipath RDMA block transport: client",
    license: "GPL",
}

struct ClientModule;

impl kernel::Module for ClientModule {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self)
    }
}
