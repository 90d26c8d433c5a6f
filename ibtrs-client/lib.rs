// SPDX-License-Identifier: GPL-2.0

//! The client of IBTRS: sessions with a server, for block devices and other users above.
//!
//! [`Session`] is the interface. A session has [`Path`]s, which live as long as
//! the operator wants them. The RDMA resources of a path belong to one connection
//! attempt ([`path::attempt::Attempt`]): connections ([`data::con::Con`]) and the requests in
//! flight ([`data::slot::ReqSlot`]). State changes follow
//! [`ibtrs_proto::fsm::client_path`] and run in work items; submitters never wait
//! for them.
//!
//! Each layer uses only those above it in this table, and scripts/layers.py checks that:
//!
//! | Layer | Purpose |
//! |---|---|
//! | [`types`], [`text`], [`wait_queue`] | types that belong to none of their users |
//! | [`mod@env`] | the state that a session shares with its paths: names, network, settings, queues
//! |
//! | [`data`] | the data plane: requests in flight and the connections that they use |
//! | [`path`] | a path, its state, and its connection attempts |
//! | [`session`] | the paths of a session, the choice of one, failover; requests and messages |
//! | [`sysfs`] | sessions and paths in sysfs |
//! | [`open`] | opens a session |
//!
//! # Work queues
//!
//! Each session has four, all safe for memory reclaim, each running many work items concurrently
//! (but each item only once at a time): for requeueing, which never sleeps for long; for state
//! changes, which sleep until connections are torn down; for connecting and the calls of
//! [`SessionEvents`], which may take long; and for uevents, which no other work item waits for. A
//! work item on one of the first three may wait for one on the next, never the other way round.
//!
//! The queues belong to the session and not to the module, because forward progress depends on
//! that: when memory is short, a queue runs on its rescuer alone, one work item at a time. On a
//! shared queue, an attempt to connect to a dead server would occupy the rescuer until the attempt
//! times out. Another session, whose server is alive and whose disks reclaim may be waiting for,
//! would have to wait that long. Only requeueing could share a rescuer, because it never sleeps.
//!
//! # Lock order
//!
//! `Session::hook` or `Path::hook`, `Session::paths`, `Path::attempt`,
//! `Attempt::cons`, then one of `Path::fsm` and `Attempt::setup` (never both);
//! `Env::key_id`; `Reauth::state`;
//! `ReqSlot::inner`, `Session::failover`; then the locks of the RDMA crate. Nothing is taken under
//! `Path::kept`, `FailoverRecord::state` or `History::rings`; under `OldestRequest::known`, only `ReqSlot::inner`;
//! under `Session::messages`, only locks of the message service.

#![deny(unsafe_code)]

use kernel::prelude::*;

mod data;
mod env;
mod open;
mod path;
mod session;
mod sysfs;
mod text;
mod types;
mod wait_queue;

pub use env::{
    Number,
    Settings, //
};
pub use ibtrs_proto::tag::Tag;
pub use path::Path;
pub use session::{
    Session,
    SessionConfig,
    SessionEvents, //
};
pub use text::Text;

pub use types::{
    Descriptor,
    Dir,
    Generation,
    PathSpec,
    MAX_USER_HDR, //
};

mod param {
    //! The parameters of the module.

    use ibtrs_core::auth::{
        AuthParam,
        SuitesParam, //
    };
    use kx::param::{
        BoolParam,
        IntParam, //
    };

    kx::module_param! {
        /// Authentication policy; see [`AuthParam`].
        pub(crate) auth: AuthParam = AuthParam::new(),
        "Authentication with servers by keys of the keyring .ibtrs: none, optional, required, or auto, which is required for a session with a key (default: auto)";

        /// Suites with which the client authenticates; see [`SuitesParam`].
        pub(crate) auth_suites: SuitesParam = SuitesParam::new(),
        "Suites of authentication that the client offers: x25519, whose paths stay safe when the key becomes known later, hmac, or any of them (default: any)";

        /// See [`rdma::cm::ActiveId::set_ack_timeout`].
        pub(crate) ack_timeout: IntParam = IntParam::new(0, 0..=31),
        "Local ACK timeout: a packet is sent again after 4.096 us * 2^n; for slow software RDMA (default: 0, as the connection manager has it)";

        /// See [`crate::data::io_buffer`].
        pub(crate) small_io_bytes: IntParam = IntParam::new(4096, 0..=16384),
        "Data of up to this many bytes (of writes 4096 at most) is copied through memory that stays registered; 0 for none (default: 4096)";

        /// Use slots over soft-RoCE as well; see [`rdma::device::Device::reads_survive_loss`].
        pub(crate) slots_over_rxe: BoolParam = BoolParam::new(false),
        "Take slots over soft-RoCE as well, whose RDMA reads go wrong if packets are lost: for tests (default: N)";
    }
}

module! {
    type: ClientModule,
    name: "ibtrs_client",
    authors: ["The ibtrs authors"],
    description: "Multipath RDMA block transport: client",
    license: "GPL",
}

struct ClientModule {
    _sysfs: kx::sysfs::Registration,
}

impl kernel::Module for ClientModule {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self {
            _sysfs: sysfs::CLASS.register()?,
        })
    }
}
