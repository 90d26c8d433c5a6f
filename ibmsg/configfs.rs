// SPDX-License-Identifier: GPL-2.0

//! The operator's rules in configfs: `/sys/kernel/config/ibmsg/`.
//!
//! | Directory | Rules for | Module |
//! |---|---|---|
//! | `portals/PORTAL` | who may bind it, and which hosts may use it | [`portals`] |
//! | `sessions/SESSION` | who may open channels over a session of this machine | [`sessions`] |
//! | `hosts/SESSION` | sessions of other machines with this one: limits alone | [`hosts`] |
//!
//! A directory keeps the name of its rule. Each change takes effect at once.
//!
//! Contexts: *may sleep*, with the locks of configfs ([`kx::configfs`]).

mod hosts;
mod lists;
mod portals;
mod sessions;

use ibmsg_proto::access::ListError;
use ibtrs_core::convert;
use ibtrs_proto::{
    text::{
        self,
        TextError, //
    },
    Errno, //
};
use kernel::{
    new_mutex,
    prelude::*,
    str::BStr,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use kx::{
    configfs::{
        Buf,
        Folder,
        Registration,
        Subsystem,
        Tree, //
    },
    pr_err_ratelimited, //
};

use crate::{
    access::{
        Access,
        Kind,
        List,
        Users, //
    },
    limits::Account,
    peers::Peers,
    session::Side,
    types::Name, //
};

/// The most channels that can be a limit: as many as a session may have.
const MAX_CHANNELS: u32 = 65_536;
/// The most memory that can be a limit: 1 TiB.
const MAX_MEMORY_MIB: u32 = 1 << 20;
const MIB_SHIFT: u32 = 20;

/// What all directories share.
#[pin_data]
struct Context {
    access: Arc<Access>,
    peers: Arc<Peers>,
    /// The side of the session `local` that has portals.
    local: Side,
    /// Held while a rule for a portal is changed and channels are checked: after two writes at a time, the
    /// channels that are left match the rule that is left.
    #[pin]
    portals: Mutex<()>,
}

/// A rule that has a directory.
struct Entry {
    context: Arc<Context>,
    kind: Kind,
    name: Name,
    account: Arc<Account>,
}

impl Entry {
    /// Makes the rule of a directory that is being made.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] for a name that no portal or session has; [`ENOMEM`].
    fn new(context: &Arc<Context>, kind: Kind, name: &CStr) -> Result<Self> {
        let name = Name::new(name.to_bytes()).inspect_err(|_| {
            pr_err_ratelimited!(
                "{}: no name of a portal, or of a session that can carry messages (EINVAL)\n",
                name
            );
        })?;
        let account = context.access.add(kind, name)?;
        Ok(Self {
            context: context.clone(),
            kind,
            name,
            account,
        })
    }

    /// The directory is removed.
    fn remove(&self) {
        self.context.access.remove(self.kind, &self.name);
    }

    /// Logs why a write to `file` is refused, and returns the error.
    fn refuse(&self, file: &str, input: &[u8], why: &str, errno: Errno) -> Error {
        let input = BStr::from_bytes(text::line(input).map_or(&[][..], str::as_bytes));
        let folder = match self.kind {
            Kind::Portal => "portals",
            Kind::Session => "sessions",
            Kind::Host => "hosts",
        };
        let (name, errno_name) = (&self.name, errno.as_str());
        pr_err_ratelimited!(
            "{}/{}: {}: \"{}\": {} ({})\n",
            folder,
            name,
            file,
            input,
            why,
            errno_name
        );
        convert::error(errno)
    }

    fn refuse_list(&self, file: &str, input: &[u8], error: Result<ListError, Error>) -> Error {
        match error {
            Ok(error) => self.refuse(file, input, error.as_str(), error.errno()),
            Err(error) => error,
        }
    }

    fn number(&self, file: &str, input: &[u8], max: u32) -> Result<u32> {
        let number = text::decimal(input, 0, max.into());
        let number = number.and_then(|n| u32::try_from(n).map_err(|_| TextError::Range));
        number.map_err(|error| self.refuse(file, input, error.as_str(), error.errno()))
    }

    fn store_max_channels(&self, input: &[u8]) -> Result {
        let number = self.number("max_channels", input, MAX_CHANNELS)?;
        self.account.change(|account| account.max_channels = number);
        Ok(())
    }

    fn store_max_memory(&self, input: &[u8]) -> Result {
        let mib = self.number("max_memory_mib", input, MAX_MEMORY_MIB)?;
        self.account
            .change(|account| account.max_bytes = u64::from(mib) << MIB_SHIFT);
        Ok(())
    }

    fn store_max_published(&self, input: &[u8]) -> Result {
        let mib = self.number("max_published_mib", input, MAX_MEMORY_MIB)?;
        self.account
            .change(|account| account.max_published = u64::from(mib) << MIB_SHIFT);
        Ok(())
    }

    fn users(&self) -> Result<Users> {
        let Self {
            context,
            kind,
            name,
            ..
        } = self;
        context
            .access
            .with_users(*kind, name, |users| users.clone())
    }

    /// Puts a list of users or groups in the place that `list` picks.
    fn store_users(
        &self,
        file: &str,
        input: &[u8],
        list: impl FnOnce(&mut Users) -> &mut Arc<List<u32>>,
    ) -> Result {
        let Self {
            context,
            kind,
            name,
            ..
        } = self;
        let new = lists::ids(input).map_err(|e| self.refuse_list(file, input, e))?;
        let former = context
            .access
            .with_users(*kind, name, |users| core::mem::replace(list(users), new));
        former.map(drop)
    }

    fn show_used(&self, buf: &mut Buf<'_>, pick: impl Fn((u32, u64)) -> u64) -> Result {
        buf.line(fmt!("{}", pick(self.account.get().used())))
    }
}

/// The files of every directory with limits; `$entry` is its [`Entry`]. Users of this import `limits_and_counters`, too.
macro_rules! limits {
    ($this:ty, $entry:ident $(, $file:expr)*) => {
        ibtrs_proto::message_refusal_counters!(
            limits_and_counters { $this, $entry, [$($file),*] }
        )
    };
}
use limits;

/// The same, with the counters that are declared.
macro_rules! limits_and_counters {
    (
        { $this:ty, $entry:ident, [$($file:expr),*] }
        $($counter:ident = $name:literal, $unit:ident, $since:literal, $help:literal;)+
    ) => {
        &[
            $($file,)*
            $(kx::configfs::Attr::ro(
                $name,
                |this: &$this, buf: &mut kx::configfs::Buf<'_>| {
                    let account = this.$entry.account.get();
                    let count = account.refused().get(ibmsg_proto::refused::reasons::$counter);
                    buf.line(fmt!("{}", count))
                },
            ),)+
            kx::configfs::Attr::rw(
                c"max_channels",
                |this: &$this, buf: &mut kx::configfs::Buf<'_>| {
                    buf.line(fmt!("{}", this.$entry.account.get().max_channels))
                },
                |this: &$this, input: &[u8]| this.$entry.store_max_channels(input),
            ),
            kx::configfs::Attr::rw(
                c"max_memory_mib",
                |this: &$this, buf: &mut kx::configfs::Buf<'_>| {
                    buf.line(fmt!("{}", this.$entry.account.get().max_bytes >> super::MIB_SHIFT))
                },
                |this: &$this, input: &[u8]| this.$entry.store_max_memory(input),
            ),
            kx::configfs::Attr::rw(
                c"max_published_mib",
                |this: &$this, buf: &mut kx::configfs::Buf<'_>| {
                    let max = this.$entry.account.get().max_published;
                    buf.line(fmt!("{}", max >> super::MIB_SHIFT))
                },
                |this: &$this, input: &[u8]| this.$entry.store_max_published(input),
            ),
            kx::configfs::Attr::ro(
                c"published_bytes",
                |this: &$this, buf: &mut kx::configfs::Buf<'_>| {
                    buf.line(fmt!("{}", this.$entry.account.get().published()))
                },
            ),
            kx::configfs::Attr::ro(
                c"channels",
                |this: &$this, buf: &mut kx::configfs::Buf<'_>| {
                    this.$entry.show_used(buf, |(channels, _)| channels.into())
                },
            ),
            kx::configfs::Attr::ro(
                c"memory_bytes",
                |this: &$this, buf: &mut kx::configfs::Buf<'_>| {
                    this.$entry.show_used(buf, |(_, bytes)| bytes)
                },
            ),
        ]
    };
}
use limits_and_counters;

/// The same, for a directory with users and groups as well.
macro_rules! users_and_limits {
    ($this:ty, $entry:ident $(, $file:expr)*) => {
        $crate::configfs::limits!(
            $this,
            $entry,
            kx::configfs::Attr::rw(
                c"allowed_uids",
                |this: &$this, buf: &mut kx::configfs::Buf<'_>| {
                    $crate::configfs::lists::show(buf, &*this.$entry.users()?.uids)
                },
                |this: &$this, input: &[u8]| {
                    this.$entry
                        .store_users("allowed_uids", input, |users| &mut users.uids)
                },
            ),
            kx::configfs::Attr::rw(
                c"allowed_gids",
                |this: &$this, buf: &mut kx::configfs::Buf<'_>| {
                    $crate::configfs::lists::show(buf, &*this.$entry.users()?.gids)
                },
                |this: &$this, input: &[u8]| {
                    this.$entry
                        .store_users("allowed_gids", input, |users| &mut users.gids)
                },
            )
            $(, $file)*
        )
    };
}
use users_and_limits;

/// Registers the directories with configfs. Nothing that can fail may follow in the module's `init`, see
/// [`Subsystem::register`].
///
/// # Errors
///
/// [`EEXIST`] if configfs has another `ibmsg`; [`ENOMEM`].
pub(crate) fn register(
    access: Arc<Access>,
    peers: Arc<Peers>,
    local: Side,
) -> Result<Registration> {
    let context = Arc::pin_init(
        pin_init!(Context {
            access,
            peers,
            local,
            portals <- new_mutex!((), "configfs::Context::portals"),
        }),
        GFP_KERNEL,
    )?;
    let mut top = Subsystem::new::<crate::LocalModule>(c"ibmsg")?;
    let portals = Folder::new(top.tree(), portals::PortalDirs(context.clone()))?;
    top.add(c"portals", portals)?;
    let sessions = Folder::new(top.tree(), sessions::SessionDirs(context.clone()))?;
    top.add(c"sessions", sessions)?;
    let hosts = Folder::new(top.tree(), hosts::HostDirs(context))?;
    top.add(c"hosts", hosts)?;
    top.register()
}

/// Makes the directory of a rule, or takes the rule back.
fn folder<D: kx::configfs::Directory>(
    tree: &Tree,
    context: &Arc<Context>,
    kind: Kind,
    name: &CStr,
    dir: impl FnOnce(Entry) -> D,
) -> Result<Folder> {
    let entry = Entry::new(context, kind, name)?;
    let name = entry.name;
    Folder::new(tree, dir(entry)).inspect_err(|_| context.access.remove(kind, &name))
}
