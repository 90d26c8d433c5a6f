// SPDX-License-Identifier: GPL-2.0

//! The server of IBNBD: lets the sessions of IBTRS use block devices of this
//! machine.
//!
//! A client's session ([`session::Session`]) opens devices ([`device::Opened`])
//! below `dev_search_path` and sends I/O for them. An I/O ([`io::IoOp`]) is
//! checked, becomes a bio of the chunk that it came in, and is answered when
//! the bio ends.
//!
//! # Lock order
//!
//! `Session::open`, then `Exports::inner`, then a disk's open mutex.

#![deny(unsafe_code)]

use kernel::{
    prelude::*,
    str::BStr,
    sync::Arc, //
};

mod admin;
mod device;
mod export;
mod io;
mod session;
mod sysfs;
mod watch;

#[allow(unsafe_code)]
mod param {
    //! The parameters of the module; the macro reaches into the loader.

    use kx::param::{
        IntParam,
        StringParam, //
    };

    kx::module_param! {
        /// Where clients connect to.
        pub(crate) port_nr: IntParam = IntParam::new(1234, 1..=65535),
        "Port to listen on (default: 1234)";

        /// The directory that devices are below.
        pub(crate) dev_search_path: StringParam<4000> = StringParam::new(""),
        "Directory below which devices may be opened; %SESSNAME% stands for the client's session (no default)";
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
    // Sessions go before what they are shown in.
    _listener: ibtrs_server::Listener,
    _control: sysfs::Control,
}

impl kernel::Module for ServerModule {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let search = param::dev_search_path.get();
        if search.is_empty() {
            pr_warn!("dev_search_path is not set: no device can be opened; load the module with dev_search_path=/dev, say, or \"/\" for all\n");
        } else if let Err(error) = session::search_path() {
            pr_err!(
                "dev_search_path={}: {}\n",
                BStr::from_bytes(search),
                error.as_str()
            );
            return Err(ibtrs_core::convert::error(error.errno()));
        }
        let port = u16::try_from(param::port_nr.get())?;
        let exports = export::Exports::new()?;
        let control = sysfs::Control::new(&exports)?;
        let service = Arc::new(session::Service::new(exports)?, GFP_KERNEL)?;
        Ok(Self {
            _control: control,
            _listener: ibtrs_server::listen(service, port).inspect_err(|error| {
                pr_err!("cannot listen on port {}: {:?}\n", port, error);
            })?,
        })
    }
}
