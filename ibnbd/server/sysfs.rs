// SPDX-License-Identifier: GPL-2.0

//! Exports in sysfs: `/sys/class/ibnbd-server/ctl/devices/`.
//!
//! Serving clients does not depend on these files: if they cannot be created, this is logged.
//!
//! Contexts: *may sleep*; functions of files: *sysfs*.

use crate::{
    export::Exports,
    stop, //
};
use ibtrs_core::convert;
use ibtrs_proto::{
    downtime::{
        Downtime,
        DrainOrder, //
    },
    text::TextError, //
};
use ibtrs_server::Drain;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    pr_err_ratelimited,
    sync::SetOnce,
    sysfs::{
        Attr,
        Class,
        Device,
        PlainDir,
        StoreCtx, //
    }, //
};

/// The device `ctl`, and the directory of exports below it, until this is dropped.
pub(crate) struct Control {
    exports: Arc<Exports>,
    server: Arc<ServerControl>,
    ctl: Option<Device<Arc<ServerControl>>>,
}

/// The operator's control of the server, for the attributes of `ctl`.
pub(crate) struct ServerControl {
    /// Set once the server listens.
    stop: SetOnce<Drain>,
}

impl Control {
    /// Creates the class, the device and the directory of exports.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(exports: &Arc<Exports>) -> Result<Self> {
        let class = Class::new(c"ibnbd-server")?;
        let server = Arc::new(
            ServerControl {
                stop: SetOnce::new(),
            },
            GFP_KERNEL,
        )?;
        let ctl = Device::new(&class, fmt!("ctl"), server.clone(), &CTL_FILES)?;
        let folder = Arc::new(PlainDir::plain(&ctl, fmt!("devices"))?, GFP_KERNEL)?;
        exports.set_folder(Some(folder));
        Ok(Self {
            exports: exports.clone(),
            server,
            ctl: Some(ctl),
        })
    }

    /// Records that the server listens, so that it can be drained.
    pub(crate) fn listens(&self, drain: Drain) {
        self.server.stop.populate(drain);
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // The directory of exports is removed before its parent.
        self.exports.set_folder(None);
        drop(self.ctl.take());
    }
}

/// Attributes in `ctl/`.
static CTL_FILES: [Attr<Arc<ServerControl>>; 1] = [Attr::rw(
    c"drain",
    |server: &ServerControl, buf| {
        let drained = server.stop.as_ref().is_some_and(Drain::is_drained);
        buf.line(fmt!("{}", u8::from(drained)))
    },
    store_drain,
)];

/// Drains the server, or lets it accept sessions again.
fn store_drain(ctx: StoreCtx<'_, Arc<ServerControl>>, input: &[u8]) -> Result {
    let order = DrainOrder::parse(input).map_err(refused)?;
    let drain = ctx.data().stop.as_ref().ok_or(EAGAIN)?;
    let downtime = match order {
        DrainOrder::Undo => {
            pr_info!("drain ended: the server accepts sessions again\n");
            drain.resume();
            return Ok(());
        }
        DrainOrder::Drain => stop::usual_downtime(),
        DrainOrder::Away(downtime) => downtime,
    };
    match downtime {
        Some(downtime) => pr_info!(
            "draining: the server refuses sessions until 0 is written to drain; clients are told that it is away for {} s\n",
            downtime.seconds()
        ),
        None => pr_info!("draining: the server refuses sessions until 0 is written to drain\n"),
    }
    stop::stop(drain, "draining", downtime)
}

/// Logs why an order is refused; returns the error.
fn refused(error: TextError) -> Error {
    pr_err_ratelimited!(
        "drain: {}: 0, 1, or downtime=SECONDS, at most {}\n",
        error.as_str(),
        Downtime::MAX_S
    );
    convert::error(error.errno())
}
