// SPDX-License-Identifier: GPL-2.0

//! The directories of sessions of this machine, over which its programs open channels.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::configfs::{
    Attr,
    Buf,
    Directory,
    Folder,
    Tree, //
};

use super::{
    folder,
    limits,
    lists,
    Context,
    Entry, //
};
use crate::access::{
    Kind,
    Users, //
};

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

impl SessionDir {
    fn users(&self) -> Result<Users> {
        let Entry { context, name, .. } = &self.entry;
        context.access.with_session(name, |rule| rule.users.clone())
    }

    fn change<R>(&self, change: impl FnOnce(&mut Users) -> R) -> Result {
        let Entry { context, name, .. } = &self.entry;
        let former = context
            .access
            .with_session(name, |rule| change(&mut rule.users))?;
        drop(former);
        Ok(())
    }

    fn store_uids(&self, input: &[u8]) -> Result {
        let file = "allowed_uids";
        let list = lists::ids(input).map_err(|e| self.entry.refuse_list(file, input, e))?;
        self.change(|users| core::mem::replace(&mut users.uids, list))
    }

    fn store_gids(&self, input: &[u8]) -> Result {
        let file = "allowed_gids";
        let list = lists::ids(input).map_err(|e| self.entry.refuse_list(file, input, e))?;
        self.change(|users| core::mem::replace(&mut users.gids, list))
    }
}

impl Directory for SessionDir {
    type Module = crate::LocalModule;

    const FILES: &'static [Attr<Self>] = limits!(
        Self,
        entry,
        Attr::rw(
            c"allowed_uids",
            |this: &Self, buf: &mut Buf<'_>| lists::show(buf, &this.users()?.uids),
            Self::store_uids,
        ),
        Attr::rw(
            c"allowed_gids",
            |this: &Self, buf: &mut Buf<'_>| lists::show(buf, &this.users()?.gids),
            Self::store_gids,
        )
    );

    fn removed(&self) {
        self.entry.remove();
    }
}
