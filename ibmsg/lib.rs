// SPDX-License-Identifier: GPL-2.0

//! Messages between programs: channels that are files.
//!
//! A program opens `/dev/ibmsg`, binds a portal there or opens a channel to one, and reads and writes
//! messages. Documentation/messages.md is for its author; the protocol is in Documentation/protocol.md,
//! "Messages", and its decisions in [`ibmsg_proto`]. Other modules of the kernel have portals and channels without
//! files; [`modules`] is for their authors.
//!
//! | Module | Purpose |
//! |---|---|
//! | [`types`] | structures of `ibmsg.h`, the content of messages |
//! | [`limits`] | memory of users, limits of portals, sessions and hosts |
//! | [`access`] | the operator's rules |
//! | [`link`] | carries frames; [`link::Local`] inside a machine |
//! | [`history`] | the last events of portals and channels |
//! | [`publish`] | logs of portals |
//! | [`memory`] | memory of programs on a channel |
//! | [`portal`] | names at which channels are accepted |
//! | [`channel`] | one end of a channel |
//! | [`session`] | one side of a session: its channels and connections |
//! | [`peers`] | sessions with other machines |
//! | [`hub`] | what all users need |
//! | [`file`] | what programs have |
//! | [`modules`] | what other modules have: the public interface of this crate |
//! | [`configfs`] | where the operator writes rules |
//!
//! Each may use those above it in this list.
//!
//! # Work queues
//!
//! | Queue | Work |
//! |---|---|
//! | `ibmsg` | times, what is done in portions, memory for messages, memory of programs ([`session`]); clients that do not come back ([`peers`]); frames between programs of this machine ([`link::Local`]) |
//! | `ibmsg-portal-N`, `ibmsg-handlers` | handlers of other modules ([`modules`]) |
//!
//! None has a rescuer (`WQ_MEM_RECLAIM`), although memory reclaim may wait for a disk whose session has messages as well:
//! no path of such a disk waits for a work item that has not begun. What the transport waits for is
//!
//! - references to a message connection, when a path is torn down. Only the work item that maps and registers memory of
//!   programs keeps one while it sleeps, and it takes it when it runs.
//! - work items of a session that ends, or gives way to the next one of its name ([`session::Side::close`]): those that
//!   have not begun are cancelled.
//!
//! Both kinds have a worker by then, and wait for memory at most, without I/O ([`kx::mm::NoIo`]). Nothing of a path
//! waits for a handler. A queue that gets no worker holds up messages: the peer is not told of credits, and memory of
//! programs stays registered. A peer that therefore waits for the return of a key for 30 s breaks the path, as for any
//! peer that is silent; disks go on over the next one.
//!
//! # Lock order
//!
//! `Context::events`, `ChannelFile::reading`, `Host::open`, `Handlers::portals`, `Peers::histories`; `Peers::list`; `Session::state`, under which no other
//! session is locked; then `OfSession::channels`, `Portals::bound`, `Portals::history`, `Portal::offers`, `Access::rules`, `Account::used`, `Limits::used`,
//! `LogLimits::proved`, `LogLimits::others`, `Local::state` and the locks of message connections
//! ([`ibtrs_core::messages`]), one at a time, and of protection domains, and the locks of wait queues and work items. `Local::changing` comes
//! before `Session::state`. All but `events`, `reading`, `open`, `portals`, `histories` and `changing` are spinlocks that may be taken in any
//! context.

#![deny(unsafe_code)]

use ibmsg_proto::access::Peer;
use ibtrs_core::messages::{
    self,
    Role, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    file::Device,
    sync::atomic::{
        AtomicFlag,
        Relaxed, //
    },
    work::{
        Options,
        Queue, //
    }, //
};

mod access;
mod channel;
mod configfs;
mod file;
mod history;
mod hub;
mod limits;
mod link;
mod memory;
mod modules;
mod peers;
mod portal;
mod publish;
mod session;
mod types;

pub use modules::{
    Answer,
    Channel,
    ChannelOptions,
    ChannelRef,
    Closed,
    ConnectOptions,
    HandlerContext,
    Offer,
    Portal,
    PortalOptions,
    Receiver,
    Reply,
    Request,
    SendOptions,
    Service,
    Unsent, //
};
pub use types::Body;

#[allow(unsafe_code)]
mod param {
    //! The parameters of the module; the macro reaches into the loader.

    use kx::param::IntParam;

    kx::module_param! {
        /// For how long a client that has lost all paths may come back to its channels, in seconds.
        pub(crate) reconnect_s: IntParam = IntParam::new(600, 1..=86_400),
        "Seconds for which channels wait for a client that has lost all paths, 1 to 86400 (default: 600)";
    }

    kx::module_param! {
        /// For how long a planned stop waits for what programs have written, in seconds.
        pub(crate) stop_timeout_s: IntParam = IntParam::new(5, 0..=600),
        "Seconds for which the close of a session, or a drain of the server, waits for messages that are on their way, 0 to 600 (default: 5)";
    }

    kx::module_param! {
        /// The most memory that the channels of a user may take, in MiB.
        pub(crate) user_mib: IntParam = IntParam::new(1024, 1..=1_048_576),
        "MiB that messages of a user may take, 1 to 1048576 (default: 1024)";

        /// The most memory that all channels may take, in MiB; 0: [`super::default_total`].
        pub(crate) total_mib: IntParam = IntParam::new(0, 0..=16_777_216),
        "MiB that messages of all users may take, up to 16777216; 0: an eighth of the memory, at most 4096 (default: 0)";

        /// For tests: the local link is lost again and again.
        pub(crate) lose_link: IntParam = IntParam::new(0, 0..=1_000_000),
        "For tests: frames after which the link between programs of this machine is lost for 10 ms; 0: never (default: 0)";
    }
}

module! {
    type: Module,
    name: "ibmsg",
    authors: ["The ibtrs authors"],
    description: "Messages between programs over multipath RDMA",
    license: "GPL",
}

/// The name of the session with this machine.
const LOCAL: &[u8] = b"local";

/// The most bytes that all channels may take by default.
fn default_total() -> u64 {
    (kx::mm::total_bytes() / 8).min(4096 << 20)
}

struct Module {
    // In the order of teardown. No module that uses this one is loaded any more, and all files are closed, or the
    // module would not be unloaded.
    _hub: hub::Registration,
    // Nobody can open the device any more.
    _device: Pin<KBox<Device<file::Context>>>,
    _configfs: kx::configfs::Registration,
    _service: messages::Registration,
    _sessions: Sessions,
}

/// The sessions, which end when this is dropped.
struct Sessions {
    link: Arc<link::Local>,
    sides: [session::Side; 2],
    peers: Arc<peers::Peers>,
    queue: Arc<Queue>,
    handlers: Arc<hub::Handlers>,
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.peers.close();
        self.link.close();
        for side in &self.sides {
            side.close();
        }
        self.queue.flush();
        self.handlers.flush();
    }
}

impl kernel::Module for Module {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let mib = |param: &kx::param::IntParam| u64::from(param.get()) << 20;
        let total = match mib(&param::total_mib) {
            0 => default_total(),
            total => total,
        };
        let limits = limits::Limits::new(mib(&param::user_mib), total)?;
        let portals = portal::Portals::new()?;
        let access = access::Access::new()?;
        let queue = Queue::new(Options::unbound(), fmt!("ibmsg"))?;
        let handlers = hub::Handlers::new(Options::unbound())?;
        let name = types::Name::new(LOCAL)?;
        let shared = session::Shared {
            portals,
            access,
            log_limits: session::LogLimits::new()?,
            limits,
            queue: queue.clone(),
        };
        let side = |role| session::Side::new(role, name, Peer::Local, &shared);
        let sides = [side(Role::Client)?, side(Role::Server)?];
        let [client, server] = &sides;
        let uppers = [client.as_upper()?, server.as_upper()?];
        let (local, access) = (server.clone(), shared.access.clone());
        let peers = peers::Peers::new(shared.clone(), name)?;
        let hub = hub::Hub {
            shared,
            local: client.clone(),
            local_portals: server.clone(),
            peers: peers.clone(),
            handlers: handlers.clone(),
            is_ready: AtomicFlag::new(false),
        };
        // Nothing may fail between these two: the link and its sides refer to each other until `Sessions` is dropped.
        let link = link::Local::new(queue.clone(), uppers, param::lose_link.get())?;
        let sessions = Sessions {
            link,
            sides,
            peers: peers.clone(),
            queue,
            handlers,
        };
        let service = peers::Peers::as_service(&peers)?;
        let hub = Arc::new(hub, GFP_KERNEL)?;
        let known = KBox::new(hub.clone(), GFP_KERNEL)?;
        // Any program may open it; the rules say who may bind and connect.
        let device = KBox::pin_init(Device::new(c"ibmsg", 0o666, hub.clone()), GFP_KERNEL)?;
        // The last step that can fail: directories that operators create keep the module loaded, and so do open
        // files, which would be left if this step failed. So nobody can open the device before.
        let configfs = configfs::register(access, peers, local)?;
        hub.is_ready.store(true, Relaxed);
        Ok(Self {
            _hub: hub::register(known),
            _device: device,
            _configfs: configfs,
            // Last: sessions of IBTRS refer to the module from here on.
            _service: messages::register(service),
            _sessions: sessions,
        })
    }
}
