// SPDX-License-Identifier: GPL-2.0

//! The server of IBNBD: exports block devices of this machine to IBTRS
//! sessions.
//!
//! A client's session ([`session::Session`]) opens devices ([`device::Opened`]) and sends I/O for them.
//! The operator exports devices by name in configfs ([`configfs`], [`config`]), or all devices below
//! `dev_search_path`. An I/O request ([`device::io::IoRequest`]) is checked, becomes a bio over the chunk
//! that it arrived in, and is answered when the bio ends.
//!
//! # Lock order
//!
//! The locks of configfs ([`kx::configfs`]), `Context::addresses`, `Sessions::joining` of
//! `ibtrs_server`; `Context::exports`, then `Config::inner`; `Session::open`, then either
//! `Exports::inner` and a disk's open mutex, or `Config::inner` and either `Peer::sources` or
//! `Sessions::list` of `ibtrs_server`, and `Session::paths` of that. A discovery takes
//! `Config::ports`, then `Ports::inner` of `ibtrs_server`, then `Config::inner`, one at a time.
//! `Session::open` is held while a disk is opened. It is therefore not taken under
//! `Sessions::joining`, nor by tasks that hold the locks of configfs, which use work items instead.

#![deny(unsafe_code)]

use ibtrs_server::{
    Purpose,
    Services, //
};
use kernel::{
    prelude::*,
    str::BStr,
    sync::Arc, //
};
use kx::{
    reboot::RebootNotifier,
    work::{
        Options,
        Queue, //
    }, //
};
use stop::{
    BeforeReboot,
    Stop, //
};

mod config;
mod configfs;
mod device;
mod export;
mod peer;
mod session;
mod stop;
mod sysfs;
mod throttle;

#[allow(unsafe_code)]
mod param {
    //! The parameters of the module; the macro uses internals of the module loader.

    use kx::param::{
        BoolParam,
        IntParam,
        StringParam, //
    };

    kx::module_param! {
        /// The port that clients connect to.
        pub(crate) port_nr: IntParam = IntParam::new(1234, 0..=65535),
        "Port to listen on; 0 to listen on the ports in configfs only (default: 1234)";

        /// The directory below which devices are found.
        pub(crate) dev_search_path: StringParam<4000> = StringParam::new(""),
        "Directory below which devices may be opened; %SESSNAME% stands for the client's session (no default)";

        /// Maximum number of devices of a session.
        pub(crate) max_devices: IntParam = IntParam::new(256, 1..=65536),
        "Devices that a session may have open, 1 to 65536 (default: 256)";

        /// Whether clients may use the realtime I/O priority.
        pub(crate) allow_rt_prio: BoolParam = BoolParam::new(false),
        "Take the realtime I/O priority of clients as it is; else it is best effort (default: N)";

        /// Time limit of a planned stop, in seconds.
        pub(crate) stop_timeout_s: IntParam = IntParam::new(30, 1..=600),
        "Seconds that requests and disks have to finish before the server is unloaded or the machine rebooted, 1 to 600 (default: 30)";

        /// The time for which the server expects to be down after a planned stop, in seconds.
        pub(crate) downtime_s: IntParam = IntParam::new(0, 0..=86400),
        "Seconds for which the server expects to be away after a planned stop, which clients are told, 1 to 86400; 0 to tell nothing (default: 0)";
    }
}

module! {
    type: ServerModule,
    name: "ibnbd_server",
    authors: ["The ibtrs authors"],
    description: "Network block device over RDMA: server",
    license: "GPL",
}

struct ServerModule {
    // In the order of teardown. First, operators can no longer configure anything.
    _configfs: kx::configfs::Registration,
    _reboot: RebootNotifier<BeforeReboot>,
    // The planned stop, before the listener closes the remaining sessions.
    _stop: Stop,
    _portals: Portals,
    // Sessions are dropped before the sysfs directories that show them.
    _listener: ibtrs_server::Listener,
    _control: sysfs::Control,
    _works: Works,
    _limits: Works,
}

/// Provides clients with the server's portals while this exists. Dropped before the listener, which
/// holds references to the ports and the configuration.
struct Portals(Arc<config::Config>);

impl Drop for Portals {
    fn drop(&mut self) {
        self.0.set_ports(None);
    }
}

/// A queue for work items of sessions, some of which outlive the session: sending the last answer,
/// removing a device. The queue is empty once this is dropped.
struct Works(Arc<Queue>);

impl Drop for Works {
    fn drop(&mut self) {
        // A work item may drop a session: its reference to the queue must not be the last one.
        self.0.flush();
    }
}

impl kernel::Module for ServerModule {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let search = param::dev_search_path.get();
        if search.is_empty() {
            pr_info!("dev_search_path is not set: clients can open exports in configfs only\n");
        } else {
            check_search_path(search)?;
        }
        let port = u16::try_from(param::port_nr.get())?;
        let exports = export::Exports::new()?;
        let control = sysfs::Control::new(&exports)?;
        let queue = Queue::new(Options::unbound(), fmt!("ibnbd-server"))?;
        let works = Works(queue.clone());
        // The requests of a client that frees its memory may wait for a limit.
        let limits = Queue::new(Options::unbound().mem_reclaim(), fmt!("ibnbd-limits"))?;
        let limit_works = Works(limits.clone());
        let config = config::Config::new(queue.clone())?;
        let service = session::Service::new(exports, config.clone(), queue.clone(), limits);
        let service = Arc::new(service, GFP_KERNEL)?;
        let services = Services::new(Purpose::Blocks, service);
        let listener = ibtrs_server::listen(services, port).inspect_err(|error| {
            let error = ibtrs_core::convert::errno(*error);
            pr_err!("cannot listen on port {} ({})\n", port, error.as_str());
        })?;
        config.set_ports(Some(listener.ports()));
        let portals = Portals(config.clone());
        let reboot = RebootNotifier::new(BeforeReboot(listener.drain()))?;
        control.listens(listener.drain());
        // The last step: directories that operators create keep the module loaded.
        let configfs = configfs::register(config, listener.clients(), listener.ports(), queue)
            .inspect_err(|error| {
                let error = ibtrs_core::convert::errno(*error);
                pr_err!("cannot show exports in configfs ({})\n", error.as_str());
            })?;
        Ok(Self {
            _configfs: configfs,
            _reboot: reboot,
            _stop: Stop(listener.drain()),
            _control: control,
            _works: works,
            _limits: limit_works,
            _portals: portals,
            _listener: listener,
        })
    }
}

/// Checks `dev_search_path`, which is not empty.
fn check_search_path(search: &[u8]) -> Result {
    let shown = BStr::from_bytes(search);
    let path = session::search_path().map_err(|error| {
        pr_err!("dev_search_path={}: {}\n", shown, error.as_str());
        ibtrs_core::convert::error(error.errno())
    })?;
    if ibnbd_proto::path::holds_every_device(path) {
        pr_warn!(
            "dev_search_path={}: any machine that reaches the port may read every disk of this one, and write to those that nothing has claimed; use a directory of the disks to export\n",
            shown
        );
    }
    Ok(())
}
