// SPDX-License-Identifier: GPL-2.0

//! The client of IBNBD: disks whose data is on a server.
//!
//! A write to `map_device` creates a [`mapping::Mapping`], which has a disk and
//! uses a [`session::Session`]; a write to the disk's `unmap_device` removes it.
//! All disks of a session share its tags, and a tag is the number of the
//! server's chunk, so a request needs no other permit: see [`queue`].
//!
//! | Module | Purpose |
//! |---|---|
//! | [`control`] | files of the class, mapping of disks |
//! | [`discovery`] | lists of the exports that a session may open |
//! | [`registry`] | all sessions and mappings |
//! | [`session`] | the parts of a session that its disks share |
//! | [`admin`] | administrative messages to the server |
//! | [`events`] | session events |
//! | [`device`] | a device that is open on the server |
//! | [`background`] | work that continues after its user has stopped waiting |
//! | [`mapping`] | a mapped disk, and its files |
//! | [`request`], [`queue`], [`dispatch`] | the disk's requests, and their dispatch |
//! | [`paused`] | requests that pause before they are sent again |
//! | [`by_tag`] | one value for each tag |
//! | [`timeouts`] | request timeouts |
//! | [`write_cache`] | unflushed writes and losses of the server's write cache |
//! | [`fair_share`] | fair shares of a session that several disks use |
//! | [`latencies`] | latency histograms of a disk |
//! | [`damage`] | checksums of a disk's data, and the handling of damage |
//! | [`limits`] | the disk's properties |
//! | [`unclosed`] | devices that the server may have open for no disk |
//!
//! When the module is unloaded, the remaining disks are unmapped by force; a disk that is open
//! keeps the module loaded.
//!
//! # Lock order
//!
//! The open mutex of a disk comes first: the last close takes `EventHandler::inner`. Then come
//! `Device::asking`, `EventHandler::inner`, and `Device::inner` or `Unclosed::list`.
//! `Registry::inner` is held only briefly, and nothing is locked under it. `Registry::kept`,
//! `Mapping::parts` and `Discoveries::inner` are taken alone.
//!
//! No task waits for a disk while it holds a lock that is needed to bring the session back: these
//! are `Device::asking`, `Device::inner`, `EventHandler::inner` and `Unclosed::list`. Allocations
//! under them happen inside a [`NoIo`](kx::mm::NoIo) scope or do not wait, and no uevent is sent
//! under them: see [`device`]. [`in_reclaim`](kx::mm::in_reclaim) tells lockdep about them.

#![deny(unsafe_code)]

use kernel::{
    prelude::*,
    sync::Arc, //
};

mod admin;
mod background;
mod by_tag;
mod control;
mod damage;
mod device;
mod discovery;
mod dispatch;
mod events;
mod fair_share;
mod latencies;
mod limits;
mod mapping;
mod paused;
mod queue;
mod registry;
mod request;
mod session;
mod timeouts;
mod unclosed;
mod write_cache;

module! {
    type: ClientModule,
    name: "ibnbd_client",
    authors: ["The ibtrs authors"],
    description: "Network block device over multipath RDMA: client",
    license: "GPL",
}

struct ClientModule {
    registry: Arc<registry::Registry>,
    control: Option<control::Control>,
}

impl kernel::Module for ClientModule {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let registry = registry::Registry::new()?;
        let control = control::Control::new(&registry)?;
        Ok(Self {
            registry,
            control: Some(control),
        })
    }
}

impl Drop for ClientModule {
    fn drop(&mut self) {
        // No mapping is being created or removed, as that would keep the module loaded. Unmapping
        // removes the links before their directory is removed.
        self.registry.unmap_all();
        self.registry.end_keeping_all();
        drop(self.control.take());
        // Disks that are still mapped hold references to the registry.
        self.registry.jobs().flush();
        // The registry is dropped last, and waits for the last disk.
    }
}
