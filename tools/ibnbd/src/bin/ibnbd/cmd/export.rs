// SPDX-License-Identifier: GPL-2.0

//! `export`: in configfs, or in a directory of device files.

use clap::{ArgGroup, Args, Subcommand};
use ibnbd_host::advice::Task;
use ibnbd_host::configfs::change::{self, Change, Limits, Rules};
use ibnbd_host::configfs::{self, Configured, Export};
use ibnbd_host::document::{Exports, FORMAT};
use ibnbd_host::family::Side;
use ibnbd_host::folder::{self, Exported};
use ibnbd_host::prefix::{self, Prefix};
use ibnbd_host::{host, keyring};
use ibnbd_proto::path::holds_every_device;

use super::args::{prefix, SetOf};
use super::{configured, modules, Done};
use crate::context::Context;
use crate::fail::{Failure, NOT_FOUND, NO_MODULE, REFUSED};
use crate::out::{self, cell, Table};

const ADD_HELP: &str = "\
--host names who may open it: `ibnbd host add HOST --token` gives a host its key. Without --host,
--any-host and --from nobody may, until `ibnbd export allow`.

Only where ibnbd_server has a dev_search_path, and no exports in configfs, an export without options
is a device file in that directory, which every client may open that the server accepts.

Examples:
  ibnbd export add /dev/vg/data disk1 --host web1         for the host web1
  ibnbd export add /dev/vg/data disk1 --host web1,web2 --ro
  ibnbd export add /dev/vg/data disk1 --from 10.0.1.0/24  for clients without keys";

const SET_HELP: &str = "\
Settings: access_mode (ro, rw, migration), allow_realtime and allow_any_host (0, 1),
allow_unauthenticated (prefixes, or nothing), device_path (of a disabled export).

Examples:
  ibnbd export set disk1 access_mode=ro allow_unauthenticated=10.0.1.0/24,fe80::/10
  ibnbd export set disk1 access_mode=ro --force     also if clients write: their I/O fails";

const LIST_EXAMPLES: &str = "\
Examples:
  ibnbd export list
  ibnbd export list --directory /dev/ibnbd-exports";

const REMOVE_EXAMPLES: &str = "\
Examples:
  ibnbd export remove disk1
  ibnbd export remove disk1 --force           also if clients use it: their I/O fails
  ibnbd export remove --all                   before ibnbd_server is unloaded
  ibnbd export remove --all --keys            no host is to come back";

const ALLOW_EXAMPLES: &str = "\
Example:
  ibnbd export allow disk1 web1 web2";

const DENY_EXAMPLES: &str = "\
Examples:
  ibnbd export deny disk1 web2
  ibnbd export deny disk1 web2 --force        also if web2 has it open: its I/O fails";

const ENABLE_EXAMPLES: &str = "\
Example:
  ibnbd export enable disk1";

const DISABLE_EXAMPLES: &str = "\
Examples:
  ibnbd export disable disk1
  ibnbd export disable disk1 --force          also if clients have it open: their I/O fails";

#[derive(Subcommand, Debug)]
pub(crate) enum ExportCommand {
    /// Lists the devices that clients may open
    #[command(after_help = LIST_EXAMPLES)]
    List(Directory),
    /// Lets clients open a device
    #[command(after_help = ADD_HELP)]
    Add(AddExport),
    /// Takes a device from those that clients may open
    #[command(after_help = REMOVE_EXAMPLES)]
    Remove {
        /// The name that clients give
        #[arg(required_unless_present = "all")]
        name: Option<String>,
        /// Also if clients have it open; from then on their I/O to an export in configfs fails
        #[arg(short, long)]
        force: bool,
        /// All exports, hosts and ports in configfs, without which ibnbd_server can be unloaded
        #[arg(long, conflicts_with_all = ["name", "force", "directory", "session"])]
        all: bool,
        /// With --all: also the hosts' keys, which they could still connect with, and need after the next start
        #[arg(long, requires = "all")]
        keys: bool,
        #[command(flatten)]
        directory: Directory,
    },
    /// Lets hosts open an export
    #[command(after_help = ALLOW_EXAMPLES)]
    Allow(HostsOf),
    /// Lets hosts open an export no longer, and closes it for them
    #[command(after_help = DENY_EXAMPLES)]
    Deny {
        #[command(flatten)]
        of: HostsOf,
        /// Also if they have it open; from then on their I/O to it fails
        #[arg(short, long)]
        force: bool,
    },
    /// Lets clients open an export that was disabled
    #[command(after_help = ENABLE_EXAMPLES)]
    Enable {
        /// An export
        name: String,
    },
    /// Closes an export for all clients, until it is enabled
    #[command(after_help = DISABLE_EXAMPLES)]
    Disable {
        /// An export
        name: String,
        /// Also if clients have it open; from then on their I/O to it fails
        #[arg(short, long)]
        force: bool,
    },
    /// Changes settings of an export
    #[command(after_help = SET_HELP)]
    Set {
        #[command(flatten)]
        of: SetOf,
        /// Also if that closes it for clients that have it open; from then on their I/O to it fails
        #[arg(short, long)]
        force: bool,
    },
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("mode"))]
pub(crate) struct AddExport {
    /// A block device, or a link to one; it may also come behind the name
    pub(crate) device: String,
    /// The name that clients give; that of the device without it
    pub(crate) name: Option<String>,
    /// Also if another export has the device
    #[arg(short, long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) rules: ExportRules,
    #[command(flatten)]
    pub(crate) directory: Directory,
}

/// Each of them makes an export in configfs, and none in a directory.
#[derive(Args, Debug)]
pub(crate) struct ExportRules {
    /// Clients may open it in the mode ro only
    #[arg(long, group = "mode", conflicts_with_all = ["directory", "session"])]
    pub(crate) ro: bool,
    /// Clients may open it in the mode migration as well, to hand the disk over
    #[arg(long, group = "mode", conflicts_with_all = ["directory", "session"])]
    pub(crate) migration: bool,
    /// Realtime I/O priorities of clients are kept
    #[arg(long, conflicts_with_all = ["directory", "session"])]
    pub(crate) realtime: bool,
    /// Every session with a key may open it
    #[arg(long, conflicts_with_all = ["directory", "session"])]
    pub(crate) any_host: bool,
    /// Hosts that may open it, which are made if they are not there
    #[arg(long = "host", value_name = "HOST,...", value_delimiter = ',', conflicts_with_all = ["directory", "session"])]
    pub(crate) hosts: Vec<String>,
    /// Addresses from which sessions without a key may open it
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',', value_parser = prefix, conflicts_with_all = ["directory", "session"])]
    pub(crate) from: Vec<Prefix>,
}

#[derive(Args, Debug)]
pub(crate) struct HostsOf {
    /// An export
    pub(crate) name: String,
    /// Hosts
    #[arg(required = true, value_name = "HOST", value_delimiter = ',')]
    pub(crate) hosts: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Directory {
    /// The directory of devices, if not that of ibnbd_server
    #[arg(long)]
    pub(crate) directory: Option<String>,
    /// The session, where each one has a directory of its own
    #[arg(long)]
    pub(crate) session: Option<String>,
}

pub(super) fn run(context: &Context, command: &ExportCommand) -> Done {
    match command {
        ExportCommand::List(directory) => list(context, directory),
        ExportCommand::Add(words) => add(context, words),
        ExportCommand::Remove {
            all: true, keys, ..
        } => configured::remove_all(context, *keys),
        ExportCommand::Remove {
            name,
            force,
            directory,
            ..
        } => remove(
            context,
            name.as_deref().unwrap_or_default(),
            *force,
            directory,
        ),
        ExportCommand::Allow(words) => allow(context, words),
        ExportCommand::Deny { of, force } => deny(context, of, *force),
        ExportCommand::Enable { name } => enable(context, name),
        ExportCommand::Disable { name, force } => disable(context, name, *force),
        ExportCommand::Set { of, force } => set(context, of, *force),
    }
}

fn directory(context: &Context, directory: &Directory) -> Result<String, Failure> {
    if let Some(given) = &directory.directory {
        return Ok(given.clone());
    }
    let root = &context.root;
    let path = host::parameter(root, "ibnbd_server", "dev_search_path");
    // There may be exports in configfs, which cannot be seen.
    let has_none = path.as_ref().is_some_and(String::is_empty);
    if has_none && !is_given(directory) && !configfs::is_mounted(root) {
        configured::need(context)?;
    }
    let code = if path.is_some() { NOT_FOUND } else { NO_MODULE };
    folder::of_server(root, directory.session.as_deref())
        .map_err(|why| Failure::new(code, "export", why))
}

/// Whether a directory is meant, and not configfs.
fn is_given(of: &Directory) -> bool {
    of.directory.is_some() || of.session.is_some()
}

/// Whether clients open devices by exports in configfs. It is so without `dev_search_path`, too, if
/// the server has configfs.
fn is_configured(context: &Context, configured: &Configured) -> bool {
    let has_directory = || {
        let path = host::parameter(&context.root, "ibnbd_server", "dev_search_path");
        path.is_none_or(|path| !path.is_empty())
    };
    !configured.exports.is_empty() || configfs::is_there(&context.root) && !has_directory()
}

fn list(context: &Context, of: &Directory) -> Done {
    let machine = context.machine();
    context.warn(&machine.notes);
    let configured = match is_given(of) {
        true => Configured::default(),
        false => Configured::read(&context.root, &machine),
    };
    context.warn(&configured.notes);
    // While there are exports in configfs, clients can open nothing in the directory.
    let directory = match !is_given(of) && is_configured(context, &configured) {
        true => None,
        false => Some(directory(context, of)?),
    };
    let exports = match &directory {
        None => Vec::new(),
        Some(directory) => folder::list(&context.root, &machine, directory)
            .map_err(|error| Failure::system(format!("export list {directory}"), &error))?,
    };
    let tables = vec![of_configfs(&configured.exports), of_directory(&exports)];
    let tables = tables.into_iter().skip(usize::from(directory.is_some()));
    let mut notes = machine.notes;
    notes.extend(configured.notes);
    let document = Exports {
        format: FORMAT,
        configfs: configured.exports,
        directory,
        exports,
        notes,
    };
    out::emit(context, &document, tables.collect())?;
    Ok(0)
}

fn of_configfs(exports: &[Export]) -> Table {
    let mut table = Table::new([
        "export", "device", "mode", "enabled", "hosts", "from", "clients",
    ]);
    for export in exports {
        table.row([
            export.name.clone(),
            cell(&export.device_path),
            cell(&export.access_mode),
            export.enable.map(yes).unwrap_or_default(),
            hosts(export),
            from(export),
            export.sessions.join(" "),
        ]);
    }
    table
}

fn yes(flag: bool) -> String {
    if flag { "yes" } else { "no" }.to_owned()
}

fn hosts(export: &Export) -> String {
    match export.allow_any_host {
        Some(true) => "any".to_owned(),
        _ => export.allowed_hosts.join(" "),
    }
}

fn from(export: &Export) -> String {
    let prefixes = export.allow_unauthenticated.as_deref();
    prefixes.map(prefix::text).unwrap_or_default()
}

fn of_directory(exports: &[Exported]) -> Table {
    let mut table = Table::new(["export", "device", "number", "size", "clients"]);
    for export in exports {
        table.row([
            export.name.clone(),
            cell(&export.device),
            format!("{}:{}", export.major, export.minor),
            out::size(export.size_bytes),
            export.sessions.join(" "),
        ]);
    }
    table
}

fn add(context: &Context, words: &AddExport) -> Done {
    let (device, name) = device_and_name(words);
    if !is_given(&words.directory) {
        if context.root.is_machine() {
            modules::ready(context, Side::Server)?;
        }
        let configured = configured::read(context);
        if words.rules.is_given() || is_configured(context, &configured) {
            return add_configured(context, &configured, device, name, words);
        }
    }
    let directory = directory(context, &words.directory)?;
    if holds_every_device(&directory) {
        let why = "that directory has all devices of the machine already";
        return Err(
            Failure::usage(format!("export add to {directory}"), why).todo(
                "load ibnbd_server with dev_search_path=DIRECTORY, one with nothing else in it",
            ),
        );
    }
    let name = &folder::plain(Some(&directory), name);
    let others = folder::other_names(&context.root, &context.machine(), &directory, device, name);
    need_unexported(device, others, words.force)?;
    export(context, &directory, device, name)?;
    warn_of_everybody(context, name, &directory);
    Ok(0)
}

/// Tells who may open what is in a directory of device files.
fn warn_of_everybody(context: &Context, name: &str, directory: &str) {
    let has_keys = keyring::keys(&context.root).is_ok_and(|keys| !keys.is_empty());
    let who = match has_keys {
        true => "every client that has a key",
        false => "everybody who reaches the server",
    };
    note!("warning: {who} may open {name}, as it is in {directory}; --host HOST makes an export for one client");
}

/// Fails if the user does not insist, and a device has exports already.
fn need_unexported(device: &str, others: Vec<String>, force: bool) -> Result<(), Failure> {
    if others.is_empty() || force {
        return Ok(());
    }
    let why = format!("the device is exported already, as {}", others.join(" "));
    let failure = Failure::new(REFUSED, format!("cannot export {device}"), why);
    Err(failure
        .todo("let clients open that export, or take --force: they see one disk by two names"))
}

/// The device is the one that begins with a slash, as the name of an export does not.
fn device_and_name(words: &AddExport) -> (&str, &str) {
    let device = words.device.as_str();
    match words.name.as_deref() {
        Some(name) if name.starts_with('/') && !device.starts_with('/') => (name, device),
        Some(name) => (device, name),
        None => (device, folder::last_part(device)),
    }
}

impl ExportRules {
    fn is_given(&self) -> bool {
        self.ro
            || self.migration
            || self.realtime
            || self.any_host
            || !self.hosts.is_empty()
            || !self.from.is_empty()
    }

    fn rules(&self) -> Rules {
        let access = match (self.ro, self.migration) {
            (true, _) => "ro",
            (_, true) => "migration",
            _ => "rw",
        };
        let mut hosts = self.hosts.clone();
        hosts.sort();
        hosts.dedup();
        Rules {
            access: access.to_owned(),
            realtime: self.realtime,
            any_host: self.any_host,
            from: self.from.clone(),
            hosts,
            enable: true,
        }
    }
}

fn add_configured(
    context: &Context,
    configured: &Configured,
    device: &str,
    name: &str,
    words: &AddExport,
) -> Done {
    configured::need(context)?;
    configured::check_export_name(name)?;
    configured::check_prefixes(&words.rules.from)?;
    let rules = words.rules.rules();
    let new = new_hosts(context, configured, &rules)?;
    // Of its own name, the kernel says that it is there.
    let others = configured.of_device(&context.root, device).into_iter();
    let others = others
        .map(|export| export.name.clone())
        .filter(|other| other != name)
        .collect();
    need_unexported(device, others, words.force)?;
    let mut changes: Vec<Change> = (new.iter())
        .flat_map(|host| change::add_host(host, &Limits::default()))
        .collect();
    changes.extend(change::add_export(name, device, &rules));
    configured::change_export(context, name, "add", &changes)?;
    for host in new {
        note!(
            "made the host {host}, which comes in once it has a key: ibnbd host add {host} --token"
        );
    }
    if rules.is_for_nobody() {
        note!("nobody may open {name} yet: ibnbd export allow {name} HOST");
    }
    if configured.exports.is_empty() {
        warn_of_directory(context);
    }
    Ok(0)
}

/// The hosts of an export that are not there. A session that is connected under that name without a
/// key would lose its paths: that is not what an export is made for.
fn new_hosts<'a>(
    context: &Context,
    configured: &Configured,
    rules: &'a Rules,
) -> Result<Vec<&'a String>, Failure> {
    let is_new = |host: &&String| configured.host(host).is_none();
    let new: Vec<&String> = rules.hosts.iter().filter(is_new).collect();
    let machine = context.machine();
    for host in &new {
        configured::check_host_name(host)?;
        let session = machine.our(Side::Server, host);
        if session.is_some_and(|session| !session.paths.is_empty()) {
            configured::host(configured, host)?;
        }
    }
    Ok(new)
}

/// The first export in configfs ends what the operator may have set up before.
fn warn_of_directory(context: &Context) {
    let path = host::parameter(&context.root, "ibnbd_server", "dev_search_path");
    if let Some(path) = path.filter(|path| !path.is_empty()) {
        note!(
            "warning: clients can no longer open devices in {path}, as there are exports in configfs now"
        );
    }
}

/// Makes a device's file, unless it is there.
pub(super) fn export(
    context: &Context,
    directory: &str,
    device: &str,
    name: &str,
) -> Result<(), Failure> {
    if folder::is_below(name) && folder::same(&context.root, directory, device, name) {
        return Ok(());
    }
    folder::add(&context.root, directory, device, name).map_err(|error| {
        Failure::system(
            format!("cannot export {device} as {directory}/{name}"),
            &error,
        )
    })
}

fn remove(context: &Context, name: &str, force: bool, of: &Directory) -> Done {
    if !is_given(of) {
        let configured = configured::read(context);
        if is_configured(context, &configured) {
            return remove_configured(context, configured::export(&configured, name)?, force);
        }
    }
    let directory = directory(context, of)?;
    let name = folder::plain(Some(&directory), name);
    let file = format!("{directory}/{name}");
    let what = format!("cannot remove {file}");
    let users = folder::users(&context.root, &context.machine(), &file);
    if !users.is_empty() && !force {
        let why = format!("the device is open, by {}", users.join(" "));
        return Err(Failure::new(REFUSED, what, why)
            .todo("unmap it there, or take --force and `ibnbd close`: those who have it open go on without"));
    }
    folder::remove(&context.root, &directory, &name)
        .map_err(|error| Failure::system(what, &error))?;
    Ok(0)
}

/// Fails if the user does not insist, and sessions have an export open that is to be taken from them.
fn need_unused<'a>(
    what: &str,
    export: &Export,
    sessions: impl Iterator<Item = &'a String>,
    force: bool,
) -> Result<(), Failure> {
    let sessions: Vec<&str> = sessions.map(String::as_str).collect();
    if sessions.is_empty() || force {
        return Ok(());
    }
    let why = format!("clients have it open: {}", sessions.join(" "));
    let failure = Failure::new(
        REFUSED,
        format!("cannot {what} export {}", export.name),
        why,
    );
    Err(failure.todo("unmap it there, or take --force: their I/O fails"))
}

fn remove_configured(context: &Context, export: &Export, force: bool) -> Done {
    need_unused("remove", export, export.sessions.iter(), force)?;
    configured::remove_export(context, export)?;
    Ok(0)
}

fn allow(context: &Context, words: &HostsOf) -> Done {
    configured::need(context)?;
    let configured = configured::read(context);
    let export = configured::export(&configured, &words.name)?;
    let mut changes = Vec::new();
    for name in &words.hosts {
        let host = configured::host(&configured, name)?;
        let change = change::allow(&export.name, &host.name);
        if !export.allowed_hosts.contains(name) && !changes.contains(&change) {
            changes.push(change);
        }
    }
    configured::change_export(context, &export.name, "let hosts open", &changes)?;
    Ok(0)
}

fn deny(context: &Context, words: &HostsOf, force: bool) -> Done {
    configured::need(context)?;
    let configured = configured::read(context);
    let export = configured::export(&configured, &words.name)?;
    let mut changes = Vec::new();
    for host in &words.hosts {
        let own = change::deny(export, host);
        if own.is_empty() {
            let what = format!("export {}", export.name);
            let failure =
                Failure::new(NOT_FOUND, what, format!("it does not name the host {host}"));
            return Err(failure.todo("see `ibnbd export list`"));
        }
        if !own.iter().any(|change| changes.contains(change)) {
            changes.extend(own);
        }
    }
    // Where every host may open it, it stays open for these.
    let stays = export.allow_any_host == Some(true);
    let is_denied = |session: &&String| !stays && words.hosts.contains(session);
    let closed = export.sessions.iter().filter(is_denied);
    need_unused("keep hosts from", export, closed, force)?;
    configured::change_export(context, &export.name, "keep hosts from", &changes)?;
    if export.allow_any_host == Some(true) {
        let name = &export.name;
        note!("warning: every host may open {name}: ibnbd export set {name} allow_any_host=0");
    }
    Ok(0)
}

fn enable(context: &Context, name: &str) -> Done {
    configured::need(context)?;
    let configured = configured::read(context);
    set_enable(context, configured::export(&configured, name)?, true)
}

fn disable(context: &Context, name: &str, force: bool) -> Done {
    configured::need(context)?;
    let configured = configured::read(context);
    let export = configured::export(&configured, name)?;
    need_unused("disable", export, export.sessions.iter(), force)?;
    set_enable(context, export, false)
}

fn set_enable(context: &Context, export: &Export, enable: bool) -> Done {
    let folder = configfs::export_folder(&export.name);
    let text = change::flag(enable);
    let changes = [change::write(
        &folder,
        "enable",
        text,
        export.setting("enable"),
    )];
    let what = if enable { "enable" } else { "disable" };
    configured::change_export(context, &export.name, what, &changes)?;
    Ok(0)
}

fn set(context: &Context, words: &SetOf, force: bool) -> Done {
    configured::need(context)?;
    let configured = configured::read(context);
    let export = configured::export(&configured, &words.name)?;
    let settings = configured::settings(words, &configfs::OF_EXPORT)?;
    let narrower: Vec<&str> = settings
        .iter()
        .filter(|(key, value)| export.is_narrowed(key, value))
        .map(|(key, _)| *key)
        .collect();
    let closed = export
        .sessions
        .iter()
        .filter(|session| export.may_close(session, &narrower));
    need_unused(
        &format!("set {} of", words.settings.join(" ")),
        export,
        closed,
        force,
    )?;
    let folder = configfs::export_folder(&export.name);
    let now = |key: &str| export.setting(key);
    configured::set(
        context,
        Task::Export,
        words,
        &configfs::OF_EXPORT,
        &folder,
        now,
    )
}
