// SPDX-License-Identifier: GPL-2.0

//! The directories of portals.

use ibtrs_proto::text;
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
    limits_and_counters,
    lists,
    users_and_limits,
    Context,
    Entry, //
};
use crate::{
    access::{
        Kind,
        PortalRule, //
    },
    types::Name, //
};

/// The directory `portals`.
pub(super) struct PortalDirs(pub(super) Arc<Context>);

impl Directory for PortalDirs {
    type Module = crate::LocalModule;

    fn make(&self, name: &CStr, tree: &Tree) -> Result<Folder> {
        let context = &self.0;
        let _one = context.portals.lock();
        let made = folder(tree, context, Kind::Portal, name, |entry| PortalDir {
            entry,
        })?;
        // The rule does not admit clients that have proved nothing.
        let name = Name::new(name.to_bytes())?;
        let checked = context.recheck(&name);
        checked.inspect_err(|_| context.access.remove(Kind::Portal, &name))?;
        Ok(made)
    }
}

impl Context {
    /// Ends the channels of clients that may not use a portal any more.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]: channels of other machines are left.
    fn recheck(&self, portal: &Name) -> Result {
        self.local.recheck(portal);
        self.peers.recheck(portal)
    }
}

/// The directory of a portal.
struct PortalDir {
    entry: Entry,
}

impl PortalDir {
    fn with<R>(&self, f: impl FnOnce(&mut PortalRule) -> R) -> Result<R> {
        let Entry { context, name, .. } = &self.entry;
        context.access.with_portal(name, f)
    }

    /// Changes which clients may use the portal: `swap` puts a value into the rule, and returns the former one.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]: the rule is as before.
    fn change<T>(&self, value: T, swap: impl Fn(&mut PortalRule, T) -> T) -> Result {
        let Entry { context, name, .. } = &self.entry;
        let _one = context.portals.lock();
        let former = self.with(|rule| swap(rule, value))?;
        let Err(error) = context.recheck(name) else {
            return Ok(());
        };
        let refused = self.with(|rule| swap(rule, former))?;
        drop(refused);
        Err(error)
    }

    fn store_hosts(&self, input: &[u8]) -> Result {
        let file = "allowed_hosts";
        let list = lists::hosts(input).map_err(|e| self.entry.refuse_list(file, input, e))?;
        self.change(list, |rule, list| core::mem::replace(&mut rule.hosts, list))
    }

    fn store_unauthenticated(&self, input: &[u8]) -> Result {
        let file = "allow_unauthenticated";
        let on = text::decimal(input, 0, 1);
        let on = on.map_err(|error| {
            self.entry
                .refuse(file, input, error.as_str(), error.errno())
        })?;
        self.change(on == 1, |rule, on| {
            core::mem::replace(&mut rule.admits_unauthenticated, on)
        })
    }
}

impl Directory for PortalDir {
    type Module = crate::LocalModule;

    const FILES: &'static [Attr<Self>] = users_and_limits!(
        Self,
        entry,
        Attr::rw(
            c"allowed_hosts",
            |this: &Self, buf: &mut Buf<'_>| {
                lists::show(buf, &*this.with(|rule| rule.hosts.clone())?)
            },
            Self::store_hosts,
        ),
        Attr::rw(
            c"allow_unauthenticated",
            |this: &Self, buf: &mut Buf<'_>| {
                let on = this.with(|rule| rule.admits_unauthenticated)?;
                buf.line(fmt!("{}", u8::from(on)))
            },
            Self::store_unauthenticated,
        )
    );

    fn removed(&self) {
        let _one = self.entry.context.portals.lock();
        // Nobody is admitted less without a rule.
        self.entry.remove();
    }
}
