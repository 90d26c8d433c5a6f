// SPDX-License-Identifier: GPL-2.0

//! The server of IBTRS: accepts sessions and passes their requests to the
//! [`Services`] above, such as the exports of IBNBD.
//!
//! A session ([`session::Session`]) has paths ([`path::Path`]), and a path has
//! connections ([`data::con::Con`]) and chunks of memory, into which its client writes
//! requests. A chunk ([`storage::chunk::Chunk`]) is either idle in its slot or owned by the
//! request in service ([`Request`]), so it never has two users.
//!
//! Each layer uses only those above it in this table, and scripts/layers.py checks that:
//!
//! | Layer | Purpose |
//! |---|---|
//! | [`ends`], [`types`], [`refusal`] | types that belong to none of their users |
//! | [`storage`] | the memory of requests |
//! | [`mod@env`] | the shared state of sessions and paths: settings, queues, memory, accounts of
//! clients |
//! | [`data`] | the data plane: requests, and the connections on which they arrive |
//! | [`path`] | a path and its state: set-up, heartbeats, fences, teardown |
//! | [`sysfs`] | sessions and paths in sysfs |
//! | [`session`] | the paths of a session, the sessions of a server, and the services above |
//! | [`server`] | accepts connections, listens on ports, drains |
//!
//! # Memory that a client can write
//!
//! With `always_invalidate`, which is the default, the layers above never see
//! memory that a client can write to: headers and small writes are copied out
//! of the chunk, the chunk of a large request has its key invalidated first and
//! gets a new one with the answer, and small reads go to memory that was never registered. Without
//! it, only headers are copied. Each path has its own chunks, so even another path of the session
//! has no key for them.
//!
//! # Order between paths
//!
//! Chunk numbers are common to all paths of a session: when a path fails, the client resends the
//! request over another path, with the same number. The server serves it when the first attempt has
//! ended ([`data::chunk_owner`]), and closes the path of that attempt. A client with extensions
//! sends a fence first ([`session::fences`]).
//!
//! # Authentication
//!
//! The path of a client that authenticates changes nothing on the server until the client has
//! proved itself: it is a candidate ([`path::auth`]), in no session's list.
//!
//! # Work queues
//!
//! Work that may wait because the queue of a disk is full, or because the devices of a session are
//! being closed, runs on `Env::slow` and `Env::wakes`, where each path and each session has its own
//! work item, and never on `Env::queue`. No work item waits for I/O to complete: [`path::teardown`]
//! polls.
//!
//! # Memory of paths
//!
//! A path is charged for memory step by step as it comes up ([`env::memory`]): a client that has only
//! requested a connection gets little. The chunks are allocated when the client completes the path,
//! and retained for a while after its end ([`storage::pool`]).
//!
//! A client that supports slots gets them instead of chunks ([`storage::landing`]). The data of its requests
//! is in buffers that all sessions share ([`storage::buffers`]); the server fetches the data of larger writes
//! ([`data::send::fetch`]).
//!
//! # Lock order
//!
//! The locks of the service's configuration, then `Ports::inner`, then `Env::backlog`;
//! `Draining::one`, `Sessions::joining` or `Session::up`, then the locks of the service that
//! [`Service::authorize`], [`Service::session_up`] and [`ServiceSession::join`] take, then
//! `Sessions::list`, `Session::fences`, `Session::paths`, then `Path::shown` or `Path::auth`,
//! `PathIo::cons`, `Unsent::queue`, `Path::fsm`; `Env::backlog`, `Path::auth`;
//! `FailureTable::failures` and `Audit::limiters` are taken last; `Unsent::queue`,
//! `ChunkSlot::inner`, `ChunkOwners::woken`, then the locks of the RDMA crate. `Env::limits`, then
//! `Ledger::accounts` and `Pool::kept`, `Path::groups`, `Holding::line`, and the locks of `Buffers` are
//! taken last, one at a time; those of `Buffers` are never taken under `ChunkSlot::inner`. The locks of
//! the message service may be taken under `Session::messages` and `PathIo::cons`.

#![deny(unsafe_code)]

use kernel::prelude::*;

mod data;
mod ends;
mod env;
mod path;
mod refusal;
mod server;
mod session;
mod storage;
mod sysfs;
mod types;

pub use data::con::{
    upper::ServiceSession,
    Request, //
};
pub use env::audit::ClientLog;
pub use refusal::Refusal;
pub use server::{
    clients::Clients,
    drain::Drain,
    listen,
    ports::{
        PortId,
        PortInfo,
        Ports, //
    },
    Listener, //
};
pub use session::{
    notices::Notices,
    service::{
        Joining,
        Service,
        Services,
        SessionInfo, //
    },
    sources::Sources, //
};
pub use types::{
    Deadline,
    Purpose, //
};

pub use ibtrs_proto::{
    msg::Direction as Dir,
    tag::Tag, //
};

kx::module_param! {
    /// Bytes of a chunk, headers included.
    max_chunk_size: kx::param::IntParam = kx::param::IntParam::new(135168, 8192..=1052672),
    "Bytes of a chunk, 4096 of them for headers: a multiple of 4096 from 8192 to 1052672; depth and chunk, each rounded up to a power of two, at most 2^28 together (default: 135168)";

    /// Chunks of a path.
    sess_queue_depth: kx::param::IntParam = kx::param::IntParam::new(512, 2..=65535),
    "Requests of a session in flight, and chunks of each of its paths (default: 512)";

    /// Keep clients from writing to memory in use.
    always_invalidate: kx::param::BoolParam = kx::param::BoolParam::new(true),
    "Keep clients from changing requests in service (default: Y)";

    /// Invalidate the keys of mainline's clients for them.
    remote_invalidation: kx::param::BoolParam = kx::param::BoolParam::new(true),
    "Invalidate the keys of the mainline kernel's clients for them; N is faster, and needs Linux 6.12 or newer on all of them (default: Y)";

    /// Let clients send capsules.
    capsules: kx::param::BoolParam = kx::param::BoolParam::new(true),
    "Let clients that know them send requests in capsules, with the data of writes of up to 4096 bytes (default: Y)";

    /// Give slots in place of chunks to clients that take them.
    slots: kx::param::BoolParam = kx::param::BoolParam::new(true),
    "Give clients that know them slots of 8 KiB (with capsules: 4 KiB) in place of chunks, and fetch the data of their larger writes (default: Y)";

    /// Give slots over soft-RoCE as well; see [`rdma::device::Device::reads_survive_loss`].
    slots_over_rxe: kx::param::BoolParam = kx::param::BoolParam::new(false),
    "Give slots over soft-RoCE as well, whose RDMA reads go wrong if packets are lost: for tests (default: N)";

    /// Memory limit of the buffers for data in service.
    max_buffer_memory_mib: kx::param::IntParam = kx::param::IntParam::new(0, 0..=u32::MAX),
    "MiB of memory for the data of requests in service of clients with slots; 0 is what paths leave of max_chunk_memory_mib, at most half of it (default: 0)";

    /// Maximum number of sessions at one time.
    max_sessions: kx::param::IntParam = kx::param::IntParam::new(1024, 1..=65536),
    "Sessions at one time, 1 to 65536 (default: 1024)";

    /// Authentication policy; see [`ibtrs_core::auth::AuthParam`].
    auth: ibtrs_core::auth::AuthParam = ibtrs_core::auth::AuthParam::new(),
    "Authentication of clients by keys of the keyring .ibtrs: none, optional, required, or auto, which is required once a key is loaded (default: auto)";

    /// Suites with which clients may authenticate; see [`ibtrs_core::auth::SuitesParam`].
    auth_suites: ibtrs_core::auth::SuitesParam = ibtrs_core::auth::SuitesParam::new(),
    "Suites of authentication that the server takes: x25519, whose paths stay safe when the key becomes known later, hmac, or any of them (default: any)";

    /// Maximum number of connections of a path.
    max_connections: kx::param::IntParam = kx::param::IntParam::new(1024, 2..=4096),
    "Connections of a path, one more than its session has queues and poll queues, 2 to 4096 (default: 1024)";

    /// Maximum number of paths of one address that are being connected.
    max_attempts_per_address: kx::param::IntParam = kx::param::IntParam::new(64, 1..=65536),
    "Paths of one address that are being connected, 1 to 65536 (default: 64)";

    /// Time for a path to be connected.
    setup_timeout_ms: kx::param::IntParam = kx::param::IntParam::new(120000, 1000..=3600000),
    "Milliseconds from the first connection of a path until it is complete, 1000 to 3600000 (default: 120000)";

    /// Memory limit of all paths together.
    max_chunk_memory_mib: kx::param::IntParam = kx::param::IntParam::new(0, 0..=u32::MAX),
    "MiB of memory for the chunks and queues of all paths together; 0 is half of the machine's memory (default: 0)";

    /// Time between heartbeats.
    hb_interval_ms: kx::param::IntParam = kx::param::IntParam::new(0, 0..=60000),
    "Milliseconds between heartbeats, 100 to 60000; 0: they follow the failover time of the client, or are 5000 towards a client that tells none (default: 0)";

    /// Silent heartbeat intervals that are tolerated.
    hb_missed_max: kx::param::IntParam = kx::param::IntParam::new(5, 1..=100),
    "Silent heartbeat intervals that the server tolerates, 1 to 100 (default: 5)";
}

module! {
    type: ServerModule,
    name: "ibtrs_server",
    authors: ["The ibtrs authors"],
    description: "Multipath RDMA block transport: server",
    license: "GPL",
}

struct ServerModule {
    _sysfs: kx::sysfs::Registration,
}

impl kernel::Module for ServerModule {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        env::config::Config::from_params()?;
        Ok(Self {
            _sysfs: sysfs::CLASS.register()?,
        })
    }
}
