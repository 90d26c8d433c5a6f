// SPDX-License-Identifier: GPL-2.0

//! The directories of hosts: sessions of other machines with this one.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::configfs::{
    Attr,
    Directory,
    Folder,
    Tree, //
};

use super::{
    folder,
    limits,
    limits_and_counters,
    Context,
    Entry, //
};
use crate::access::Kind;

/// The directory `hosts`.
pub(super) struct HostDirs(pub(super) Arc<Context>);

impl Directory for HostDirs {
    type Module = crate::LocalModule;

    fn make(&self, name: &CStr, tree: &Tree) -> Result<Folder> {
        folder(tree, &self.0, Kind::Host, name, |entry| HostDir { entry })
    }
}

/// The directory of a host.
struct HostDir {
    entry: Entry,
}

impl Directory for HostDir {
    type Module = crate::LocalModule;

    const FILES: &'static [Attr<Self>] = limits!(Self, entry);

    fn removed(&self) {
        self.entry.remove();
    }
}
