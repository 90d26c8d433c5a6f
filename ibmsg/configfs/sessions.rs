// SPDX-License-Identifier: GPL-2.0

//! The directories of sessions of this machine, over which its programs open channels.

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
    limits_and_counters,
    users_and_limits,
    Context,
    Entry, //
};
use crate::access::Kind;

/// The directory `sessions`.
pub(super) struct SessionDirs(pub(super) Arc<Context>);

impl Directory for SessionDirs {
    type Module = crate::LocalModule;

    fn make(&self, name: &CStr, tree: &Tree) -> Result<Folder> {
        folder(tree, &self.0, Kind::Session, name, |entry| SessionDir {
            entry,
        })
    }
}

/// The directory of a session.
struct SessionDir {
    entry: Entry,
}

impl Directory for SessionDir {
    type Module = crate::LocalModule;

    const FILES: &'static [Attr<Self>] = users_and_limits!(Self, entry);

    fn removed(&self) {
        self.entry.remove();
    }
}
