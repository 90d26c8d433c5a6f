// SPDX-License-Identifier: GPL-2.0

//! The files of the class: `/sys/class/ibnbd-client/ctl/`.
//!
//! Contexts: *sysfs*.

use crate::{
    map,
    registry::Registry, //
};
use ibtrs_proto::consts::{
    DEFAULT_PORT,
    MAX_PATHS, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    sysfs::{
        Attr,
        Buf,
        Class,
        Device,
        PlainDir,
        StoreCtx, //
    }, //
};

static FILES: [Attr<Arc<Registry>>; 1] = [Attr::rw(
    c"map_device",
    show_map_device,
    store_map_device, //
)];

/// The device `ctl` with its files, and the folder of links below it.
pub(crate) struct Control {
    registry: Arc<Registry>,
    ctl: Option<Device<Arc<Registry>>>,
}

impl Control {
    /// Shows the files.
    pub(crate) fn new(registry: &Arc<Registry>) -> Result<Self> {
        let class = Class::new(c"ibnbd-client")?;
        let ctl = Device::new(&class, fmt!("ctl"), registry.clone(), &FILES)?;
        let folder = Arc::new(PlainDir::plain(&ctl, fmt!("devices"))?, GFP_KERNEL)?;
        registry.set_links(Some(folder));
        Ok(Self {
            registry: registry.clone(),
            ctl: Some(ctl),
        })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // The folder goes before what it is in.
        self.registry.set_links(None);
        drop(self.ctl.take());
    }
}

fn show_map_device(_registry: &Registry, buf: &mut Buf<'_>) -> Result {
    buf.line(fmt!(
        "Usage: echo \"sessname=<name> device_path=<path on the server> [path=<[src,]dst>]... \
         [dest_port=<1..65535>] [access_mode=<ro|rw|migration>] [exclusive=<0|1>] \
         [nr_poll_queues=<-1..CPUs>]\" > map_device"
    ))?;
    buf.line(fmt!(""))?;
    buf.line(fmt!("src, dst ::= ip:<IPv4> | ip:<IPv6> | gid:<GID>"))?;
    buf.line(fmt!(
        "path: up to {MAX_PATHS} times; may be left out for a session that exists"
    ))?;
    buf.line(fmt!(
        "defaults: dest_port={DEFAULT_PORT} access_mode=rw exclusive=0 nr_poll_queues=0"
    ))
}

fn store_map_device(mut ctx: StoreCtx<'_, Arc<Registry>>, line: &[u8]) -> Result {
    // The module is not unloaded under a disk that is being made.
    ctx.keep_module::<crate::LocalModule>()?;
    map::map(ctx.data(), line)
}
