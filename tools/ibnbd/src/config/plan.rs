// SPDX-License-Identifier: GPL-2.0

//! The steps that bring a machine to the state that its files describe.

use std::fmt;

use ibnbd_proto::checksum::DataChecksum;
use ibnbd_proto::identity::IdentityCheck;
use ibtrs_proto::addr::PathAddr;
use ibtrs_proto::settings::FAILOVER_TIME_MS;

use super::{plan_exports, plan_ports, Config, Disk, Session};
use crate::configfs::change::Change;
use crate::disk_name::DiskName;
use crate::family::{Family, Side};
use crate::folder;
use crate::host;
use crate::join::joined;
use crate::mapping::{self, Mapping, Resolve};
use crate::model::{self, Machine};
use crate::root::Root;

/// The contents of configfs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of {
    /// An export.
    Export,
    /// A host.
    Host,
    /// A port.
    Port,
}

impl Of {
    /// As it is called.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Export => "export",
            Self::Host => "host",
            Self::Port => "port",
        }
    }
}

/// One step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Loads a module with parameters.
    Load {
        /// The module.
        module: &'static str,
        /// `name=value`.
        parameters: Vec<String>,
    },
    /// Lets clients open a device.
    Export {
        /// The object of the change, see [`Step::what`].
        what: String,
        /// The directory.
        directory: String,
        /// The name in it.
        name: String,
        /// The device.
        device: String,
    },
    /// Takes a device from those that clients may open.
    Unexport {
        /// The directory.
        directory: String,
        /// The name in it.
        name: String,
        /// Whether another device takes its place before the server is loaded.
        early: bool,
    },
    /// Changes an export, a host or a port in configfs.
    Configure {
        /// Which of them.
        of: Of,
        /// The object of the change, see [`Step::what`].
        what: String,
        /// How it is shown.
        line: String,
        /// The system calls.
        changes: Vec<Change>,
        /// Those that take an earlier step back if they fail; they come after the other steps of
        /// the kind.
        back: Vec<Change>,
    },
    /// Removes a host, and its keys and its token with it.
    RemoveHost {
        /// The object of the change, see [`Step::what`].
        what: String,
        /// Its name.
        name: String,
        /// The system calls.
        changes: Vec<Change>,
    },
    /// Removes the keys of a host whose removal was interrupted.
    RemoveKeys {
        /// Its name.
        host: String,
    },
    /// Opens a session without a disk, or has it stay open without one. The device is empty.
    Open(Mapping),
    /// Has a session close with its last disk, or now if it has none.
    Close {
        /// Its name.
        session: String,
    },
    /// Maps a disk.
    Map(Mapping),
    /// Unmaps a disk.
    Unmap {
        /// Its name here.
        disk: String,
    },
    /// Adds a path to a session that is there.
    AddPath {
        /// The session.
        session: String,
        /// The path.
        path: String,
        /// As the files say it.
        words: String,
        /// Whether it is to be on standby.
        standby: bool,
    },
    /// Removes a path of a session.
    RemovePath {
        /// The session.
        session: String,
        /// The path's name.
        path: String,
    },
    /// Changes a setting.
    Set {
        /// The object of the change, see [`Step::what`].
        what: String,
        /// How the thing is called.
        name: String,
        /// Its folder.
        folder: String,
        /// The setting.
        key: String,
        /// The present value; none before the object exists.
        was: Option<String>,
        /// The wanted value.
        value: String,
    },
    /// A change that is impossible while something is in use, or at all.
    Cannot {
        /// The object of the change, see [`Step::what`].
        what: String,
        /// Why it cannot.
        why: String,
    },
}

impl Step {
    /// Whether it is done before the other ones, which are found out once more then.
    pub fn is_first(&self) -> bool {
        matches!(
            self,
            Self::Load { .. }
                | Self::Export { .. }
                | Self::Unexport { early: true, .. }
                | Self::Configure { .. }
                | Self::RemoveHost { .. }
                | Self::RemoveKeys { .. }
                | Self::Open(_)
                | Self::Map(_)
        )
    }
}

impl Step {
    /// The object of the change: always the same words for the same object, whatever the machine has, so that
    /// a later attempt finds what an earlier one has not done.
    pub fn what(&self) -> String {
        match self {
            Self::Load { module, .. } => (*module).to_owned(),
            Self::Export { what, .. }
            | Self::Configure { what, .. }
            | Self::RemoveHost { what, .. }
            | Self::Set { what, .. }
            | Self::Cannot { what, .. } => what.clone(),
            Self::Unexport {
                directory, name, ..
            } => format!("{directory}/{name}"),
            Self::Open(Mapping { session, .. }) | Self::Close { session } => open_words(session),
            Self::Map(m) => disk_words(&m.session, &m.device),
            Self::RemoveKeys { host } => format!("keys of host {host}"),
            Self::Unmap { disk } => disk.clone(),
            Self::AddPath { session, words, .. } => path_words(session, words),
            Self::RemovePath { session, path } => path_words(session, path),
        }
    }
}

impl Step {
    /// The step that takes an earlier one back if this one has failed.
    pub fn back(&self) -> Option<Self> {
        match self {
            Self::Configure { of, what, back, .. } if !back.is_empty() => {
                let words: Vec<String> = back.iter().map(Change::to_string).collect();
                Some(Self::Configure {
                    of: *of,
                    what: what.clone(),
                    line: format!("~ {what} again as before: {}", words.join(" ")),
                    changes: back.clone(),
                    back: Vec::new(),
                })
            }
            _ => None,
        }
    }
}

fn disk_words(session: &str, device: &str) -> String {
    format!("disk {device} of session {session}")
}

fn open_words(session: &str) -> String {
    format!("session {session} without a disk")
}

fn path_words(session: &str, path: &str) -> String {
    format!("path {path} of session {session}")
}

/// A step that cannot be done.
pub(super) fn cannot(what: String, why: String) -> Step {
    Step::Cannot { what, why }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load { module, parameters } => {
                write!(f, "+ load {module}")?;
                parameters
                    .iter()
                    .try_for_each(|parameter| write!(f, " {parameter}"))
            }
            Self::Export {
                directory,
                name,
                device,
                ..
            } => write!(f, "+ export {device} as {directory}/{name}"),
            Self::Unexport {
                directory, name, ..
            } => write!(f, "- remove {directory}/{name}"),
            Self::Configure { line, .. } => f.write_str(line),
            Self::RemoveHost { name, .. } => write!(f, "- host {name} and its keys"),
            Self::RemoveKeys { host } => {
                write!(f, "- keys of host {host}, whose removal was interrupted")
            }
            Self::Close { session } => write!(f, "- close session {session} when it has no disk"),
            Self::Open(m) | Self::Map(m) => {
                let paths = m.paths.join(" ");
                match self {
                    Self::Open(_) => write!(f, "+ open session {} over {paths}", m.session),
                    _ => write!(
                        f,
                        "+ map {} of session {} over {paths}",
                        m.device, m.session
                    ),
                }?;
                let key = m.key_id.as_ref().map(|id| format!("key {id}"));
                let queues = m.queues.map(|n| format!("{n} queues"));
                let time = m
                    .failover_time_ms
                    .map(|ms| format!("failover time {ms} ms"));
                let with: Vec<String> = key.into_iter().chain(queues).chain(time).collect();
                match with.is_empty() {
                    true => Ok(()),
                    false => write!(f, " with {}", with.join(" and ")),
                }
            }
            Self::Unmap { disk } => write!(f, "- unmap {disk}"),
            Self::AddPath {
                session,
                path,
                standby,
                ..
            } => {
                let on = if *standby { ", on standby" } else { "" };
                write!(f, "+ path {path} of session {session}{on}")
            }
            Self::RemovePath { session, path } => write!(f, "- path {path} of session {session}"),
            Self::Set {
                name,
                key,
                was,
                value,
                ..
            } => {
                write!(
                    f,
                    "~ set {key} of {name} from {} to {value}",
                    was.as_deref().unwrap_or("default")
                )
            }
            Self::Cannot { why, .. } => write!(f, "! {why}"),
        }
    }
}

/// The options beside the files.
pub struct Wish<'a> {
    /// Finds addresses.
    pub resolve: Resolve<'a>,
    /// Whether what is not in the files goes.
    pub prune: bool,
    /// The side to which the plan is limited; none for both.
    pub side: Option<Side>,
    /// The only disk to plan for, with its session; none for all disks except those that say
    /// `auto = false`.
    pub disk: Option<&'a DiskName>,
}

impl Wish<'_> {
    fn is_for(&self, side: Side) -> bool {
        let one_disk = self.disk.is_none() || side == Side::Client;
        one_disk && self.side.is_none_or(|only| only == side)
    }

    fn wants(&self, session: &str, disk: &Disk) -> bool {
        match self.disk {
            Some(only) => only.session == session && only.device == disk.device,
            None => !disk.manual,
        }
    }
}

/// All steps, in the order in which they are to be done.
pub fn steps(root: &Root, machine: &Machine, config: &Config, wish: &Wish<'_>) -> Vec<Step> {
    let mut steps = Vec::new();
    // Clients that wait for the server find all devices as soon as it is there.
    let is_wrong = wish.is_for(Side::Server) && exports(root, machine, config, wish, &mut steps);
    modules(root, config, wish, is_wrong, &mut steps);
    // The server listens only where it should by the time that there is something to open.
    if wish.is_for(Side::Server) {
        plan_ports::steps(root, config, wish, &mut steps);
    }
    // Their directory comes with the module. Until then clients that come early open nothing, and
    // ask again.
    if wish.is_for(Side::Server) {
        plan_exports::steps(root, machine, config, wish, &mut steps);
    }
    if wish.is_for(Side::Client) {
        mappings(root, machine, config, wish, &mut steps);
    }
    steps
}

fn mappings(
    root: &Root,
    machine: &Machine,
    config: &Config,
    wish: &Wish<'_>,
    steps: &mut Vec<Step>,
) {
    let mut names = Vec::new();
    for session in &config.sessions {
        let name = name(root, session);
        let wanted = |disk: &&Disk| wish.wants(&name, disk);
        let disks: Vec<&Disk> = session.disks.iter().filter(wanted).collect();
        // A session belongs to the units of its disks if all of them say `auto = false`. A session
        // without disks belongs to the plan.
        let own = session.disks.is_empty() || session.messages;
        if (own && wish.disk.is_none()) || !disks.is_empty() {
            of_session(root, machine, (&name, session), &disks, wish, steps);
        }
        names.push(name);
    }
    // Files without sessions may be those of a server, or be missing.
    if wish.prune && !names.is_empty() {
        prune(machine, config, &names, steps);
    }
}

/// All disks that the files have, each with its name.
pub fn disks<'a>(root: &Root, config: &'a Config) -> Vec<(DiskName, &'a Disk)> {
    let mut all = Vec::new();
    for session in &config.sessions {
        let name = name(root, session);
        all.extend(session.disks.iter().map(|disk| {
            let (session, device) = (name.clone(), disk.device.clone());
            (DiskName { session, device }, disk)
        }));
    }
    all
}

/// The name of a session, given or made.
pub fn name(root: &Root, session: &Session) -> String {
    let polled = session.disks.iter().find(|disk| disk.poll_queues != 0);
    let server = session
        .servers
        .first()
        .map(String::as_str)
        .unwrap_or_default();
    let made = || {
        mapping::session_name(
            &host::name(root),
            server,
            polled.map(|disk| disk.device.as_str()),
        )
    };
    session.name.clone().unwrap_or_else(made)
}

/// The module with which clients find devices.
pub const SERVER: &str = "ibnbd_server";

/// Loads the modules, but no server with which clients would find the wrong device.
fn modules(root: &Root, config: &Config, wish: &Wish<'_>, is_wrong: bool, steps: &mut Vec<Step>) {
    let of = |module: &'static str| config.parameters.iter().filter(move |(m, ..)| m == module);
    let serves = !config.exports.is_empty()
        || !config.hosts.is_empty()
        || !config.ports.is_empty()
        || of("ibnbd_server")
            .chain(of("ibtrs_server"))
            .next()
            .is_some();
    let has_messages = config.sessions.iter().any(|session| session.messages);
    let maps = !config.sessions.is_empty() || of("ibtrs_client").next().is_some();
    // A module that others need comes first, so that it gets its parameters; and that of messages, as paths that
    // connect before have no message connection.
    for (module, wanted) in [
        (
            "ibmsg",
            has_messages && wish.is_for(Side::Client) && wish.disk.is_none(),
        ),
        ("ibtrs_server", serves && wish.is_for(Side::Server)),
        (SERVER, serves && wish.is_for(Side::Server)),
        ("ibtrs_client", maps && wish.is_for(Side::Client)),
        ("ibnbd_client", maps && wish.is_for(Side::Client)),
    ] {
        if !wanted {
            continue;
        }
        // One that is only being loaded has no files yet: modprobe waits for it.
        if !host::is_live(root, module) {
            if is_wrong && module == SERVER {
                let why = "ibnbd_server is not loaded: clients would find another device";
                steps.push(cannot(module.to_owned(), why.to_owned()));
                continue;
            }
            let parameters = of(module)
                .map(|(_, name, value)| format!("{name}={value}"))
                .collect();
            steps.push(Step::Load { module, parameters });
            continue;
        }
        // It concerns more than one disk.
        if wish.disk.is_some() {
            continue;
        }
        for (_, name, value) in of(module) {
            let is = host::parameter(root, module, name);
            if is.as_ref().is_some_and(|is| !means(value, is)) {
                let is = is.unwrap_or_default();
                let why = format!(
                    "{module}: {name} is {is:?} until the module is loaded again with {value}"
                );
                steps.push(cannot(format!("{name} of {module}"), why));
            }
        }
    }
}

/// Whether the value of a parameter means what the module shows: switches and numbers can be written
/// in several ways.
pub(super) fn means(value: &str, shown: &str) -> bool {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    let switch = |text: &str| match text.to_ascii_lowercase().as_str() {
        "on" => Some(true),
        "off" => Some(false),
        text => match text.as_bytes().first()? {
            b'y' | b't' | b'1' => Some(true),
            b'n' | b'f' | b'0' => Some(false),
            _ => None,
        },
    };
    match shown {
        "Y" | "N" => switch(value) == switch(shown),
        _ => value == shown || number(value).is_some_and(|n| number(shown) == Some(n)),
    }
}

/// The directory of an export: as the server has it, or will have it.
fn directory(root: &Root, config: &Config, session: Option<&str>) -> Option<String> {
    let wanted = config
        .parameters
        .iter()
        .find(|(m, n, _)| m == "ibnbd_server" && n == "dev_search_path");
    let is = host::parameter(root, "ibnbd_server", "dev_search_path").filter(|is| !is.is_empty());
    let path = is.or_else(|| wanted.map(|(.., value)| value.clone()))?;
    match session {
        Some(session) => Some(path.replace(folder::SESSION, session)),
        None => (!path.contains(folder::SESSION)).then_some(path),
    }
}

/// Whether a name in a directory stays another device than the files say.
fn exports(
    root: &Root,
    machine: &Machine,
    config: &Config,
    wish: &Wish<'_>,
    steps: &mut Vec<Step>,
) -> bool {
    let mut is_wrong = false;
    let of_directory: Vec<_> = config
        .exports
        .iter()
        .filter(|e| e.rules.is_none())
        .collect();
    for export in &of_directory {
        let (name, device) = (&export.name, &export.device);
        let what = match &export.session {
            Some(session) => format!("device file {name} of session {session}"),
            None => format!("device file {name}"),
        };
        let Some(directory) = directory(root, config, export.session.as_deref()) else {
            let why = "there is no dev_search_path, or one for each session";
            steps.push(cannot(what, format!("export {name}: {why}")));
            continue;
        };
        if folder::same(root, &directory, device, name) {
            continue;
        }
        let file = format!("{directory}/{name}");
        // Numbers of devices change: a file may stand for another one since the server was stopped.
        if is_replaced(root, &directory, &file) {
            let (directory, name) = (directory.clone(), name.clone());
            steps.push(Step::Unexport {
                directory,
                name,
                early: true,
            });
        } else if root.exists(&file) {
            is_wrong |= folder::is_device(root, &file);
            let why = format!("{directory}/{name} is another device: remove it first");
            steps.push(cannot(what, format!("export {name}: {why}")));
            continue;
        }
        steps.push(Step::Export {
            what,
            directory,
            name: name.clone(),
            device: device.clone(),
        });
    }
    let directory =
        directory(root, config, None).filter(|d| !ibnbd_proto::path::holds_every_device(d));
    if let (true, false, Some(directory)) = (wish.prune, of_directory.is_empty(), directory) {
        for there in folder::list(root, machine, &directory).unwrap_or_default() {
            if !of_directory
                .iter()
                .any(|e| e.session.is_none() && e.name == there.name)
            {
                steps.push(unexport(&directory, there));
            }
        }
    }
    is_wrong
}

/// Whether the file of another device gives way, as no client can have that one open.
fn is_replaced(root: &Root, directory: &str, file: &str) -> bool {
    let is_ours = !ibnbd_proto::path::holds_every_device(directory);
    is_ours && !host::is_live(root, SERVER) && folder::is_device_file(root, file)
}

/// A device that a client has open stays: it would miss it only after its next connection.
fn unexport(directory: &str, there: folder::Exported) -> Step {
    let name = there.name;
    if there.sessions.is_empty() {
        let directory = directory.to_owned();
        return Step::Unexport {
            directory,
            name,
            early: false,
        };
    }
    let users = there.sessions.join(" ");
    let why = format!("the device of {directory}/{name}, which no file names, is open, by {users}");
    cannot(format!("{directory}/{name}"), why)
}

/// The words of the files for a path, and the paths that they may stand for: names may have several
/// addresses. The first one is to be made if there is none.
type Ends<'a> = (&'a str, Vec<String>);

/// Whether a server needs no path of its own, as another one leads to it: a path to any of its
/// addresses, or the path of another server to its first one.
fn is_covered(session: &Session, found: &[Ends<'_>], server: &[String]) -> bool {
    let address = |line: &String| PathAddr::parse(line).ok().map(|ends| ends.dst);
    found.iter().any(|(text, lines)| {
        let is_path = session.paths.iter().any(|path| path == text);
        let number = if is_path { server.len() } else { 1 };
        let to = lines.first().and_then(address);
        server.iter().take(number).any(|line| address(line) == to)
    })
}

fn of_session(
    root: &Root,
    machine: &Machine,
    (name, session): (&str, &Session),
    disks: &[&Disk],
    wish: &Wish<'_>,
    steps: &mut Vec<Step>,
) {
    let there = machine.our(Side::Client, name);
    let mut found: Vec<Ends<'_>> = Vec::new();
    let mut all_found = true;
    for text in session.paths.iter().chain(&session.servers) {
        match mapping::paths(root, wish.resolve, text) {
            Ok(lines) if !session.paths.contains(text) && is_covered(session, &found, &lines) => {}
            Ok(lines) => found.push((text, lines)),
            Err(why) => {
                all_found = false;
                let what = path_words(name, text);
                steps.push(cannot(what, format!("session {name}: {why}")));
            }
        }
    }
    let first = |(_, lines): &Ends<'_>| lines.first().cloned();
    let paths: Vec<String> = found.iter().filter_map(first).collect();
    let is_kept = there.is_some_and(|there| there.kept_open == Some(true));
    if session.messages && wish.disk.is_none() && !is_kept {
        steps.push(match super::messages_name(name) {
            Ok(()) => Step::Open(way(root, machine, name, session, &paths)),
            Err(why) => cannot(open_words(name), format!("session {name}: {why}")),
        });
    }
    for disk in disks {
        of_disk(root, machine, name, session, disk, &paths, steps);
    }
    if let Some(there) = there {
        // A path may lead to the server whose address was not found.
        let standby = session.standby.as_deref();
        of_paths(there, &found, standby, wish.prune && all_found, steps);
    }
    of_queues(machine, name, session, steps);
    let folder = format!("{}/{name}", Family::Ibnbd.sessions(Side::Client));
    let entries = there.map(|s| s.settings.entries()).unwrap_or_default();
    // A session that is to be made has these from the first connection on.
    let at_once = [KEY_ID, FAILOVER_TIME_MS.name];
    let later = |(key, _): &&(String, String)| there.is_some() || !at_once.contains(&key.as_str());
    let mut settings: Vec<_> = session.settings.iter().filter(later).collect();
    settings.sort_by_key(|(key, _)| order(key));
    for (key, value) in settings {
        let was = entries
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.clone());
        let name = format!("session {name}");
        set(&name, &name, &folder, key, was, value, steps);
    }
}

/// A session keeps its queues as long as it has disks.
fn of_queues(machine: &Machine, name: &str, session: &Session, steps: &mut Vec<Step>) {
    let (Some(wanted), Some(is)) = (session.queues, machine.queues(name)) else {
        return;
    };
    if is != u64::from(wanted) {
        let why = format!(
            "session {name} has {is} queues until its last disk is unmapped, and not {wanted}"
        );
        steps.push(cannot(format!("queues of session {name}"), why));
    }
}

/// The sort key for settings of a session: the client refuses a failover time that is impossible with
/// its present heartbeats, so the failover time comes last.
pub fn order(key: &str) -> impl Ord {
    key == FAILOVER_TIME_MS.name
}

const KEY_ID: &str = "key_id";

/// The check of a disk without identity is an option of its mapping as well.
const IDENTITY: &str = "identity";

fn setting(session: &Session, name: &str) -> Option<String> {
    let found = session.settings.iter().find(|(key, _)| key == name);
    found.map(|(_, value)| value.clone())
}

/// A step that sets one setting, unless it is so. `of` is what has it in the words of the files.
fn set(
    of: &str,
    name: &str,
    folder: &str,
    key: &str,
    was: Option<String>,
    value: &str,
    steps: &mut Vec<Step>,
) {
    if was.as_deref() != Some(value) {
        let what = format!("{key} of {of}");
        let (name, folder, key, value) = (
            name.to_owned(),
            folder.to_owned(),
            key.to_owned(),
            value.to_owned(),
        );
        steps.push(Step::Set {
            what,
            name,
            folder,
            key,
            was,
            value,
        });
    }
}

/// How a session is opened.
fn way(root: &Root, machine: &Machine, name: &str, session: &Session, paths: &[String]) -> Mapping {
    let is_new = machine.our(Side::Client, name).is_none();
    Mapping {
        session: name.to_owned(),
        paths: paths.to_vec(),
        port: session.port.filter(|port| *port != 1234),
        queues: session.queues.filter(|_| is_new),
        key_id: setting(session, KEY_ID)
            .or_else(|| joined::key_id(root, name))
            .filter(|_| is_new),
        failover_time_ms: setting(session, FAILOVER_TIME_MS.name)
            .and_then(|ms| ms.parse().ok())
            .filter(|_| is_new),
        ..Mapping::default()
    }
}

fn of_disk(
    root: &Root,
    machine: &Machine,
    name: &str,
    session: &Session,
    disk: &Disk,
    paths: &[String],
    steps: &mut Vec<Step>,
) {
    let of = disk_words(name, &disk.device);
    let Some(there) = machine.our_disk(name, &disk.device) else {
        steps.push(Step::Map(Mapping {
            device: disk.device.clone(),
            access: disk.access.clone().filter(|access| access != "rw"),
            exclusive: disk.exclusive,
            poll_queues: disk.poll_queues,
            data_checksum: disk
                .data_checksum
                .clone()
                .filter(|checksum| checksum != DataChecksum::None.as_str()),
            identity: wanted_check(disk).filter(|check| check != IdentityCheck::Auto.as_str()),
            ..way(root, machine, name, session, paths)
        }));
        let called = format!("{} of session {name}", disk.device);
        disk.settings
            .iter()
            .filter(|(key, _)| key != IDENTITY)
            .for_each(|(key, value)| set(&of, &called, "", key, None, value, steps));
        return;
    };
    let access = disk.access.as_deref().unwrap_or("rw");
    if there.access_mode.as_deref().is_some_and(|is| is != access)
        || there.exclusive.is_some_and(|is| is != disk.exclusive)
    {
        let is = there.access_mode.as_deref().unwrap_or_default();
        let more = |exclusive| if exclusive { " exclusive" } else { "" };
        let (is_more, more) = (more(there.exclusive == Some(true)), more(disk.exclusive));
        let why = format!(
            "{} is mapped as {is}{is_more} until it is unmapped, and not as {access}{more}",
            there.name
        );
        // It can be mapped again once it was unmapped.
        steps.push(cannot(of.clone(), why));
    }
    let none = DataChecksum::None.as_str();
    let checksum = disk.data_checksum.as_deref().unwrap_or(none);
    let is = there.data_checksum.as_deref().unwrap_or(none);
    if is != checksum {
        let why = format!(
            "{} is mapped with data_checksum {is} until it is unmapped, and not with {checksum}",
            there.name
        );
        steps.push(cannot(of.clone(), why));
    }
    for (key, value) in &disk.settings {
        let number = |n: Option<u64>| n.map(|n| n.to_string());
        let was = match key.as_str() {
            "io_timeout_ms" => number(there.io_timeout_ms),
            IDENTITY => there.identity.clone(),
            _ => number(there.io_timeout_limit),
        };
        set(&of, &there.name, &there.folder(), key, was, value, steps);
    }
}

/// What a file says about a disk without identity.
fn wanted_check(disk: &Disk) -> Option<String> {
    let found = disk.settings.iter().find(|(key, _)| key == IDENTITY);
    found.map(|(_, value)| value.clone())
}

/// Whether a path that is there has the ends of one that is wanted.
pub fn has(path: &model::Path, wanted: &str) -> bool {
    PathAddr::parse(wanted).is_ok_and(|ends| path.is_at(&ends))
}

/// Whether a session has a path to one of the addresses of an end.
fn is_there(there: &model::Session, lines: &[String]) -> bool {
    let mut paths = there.paths.iter();
    paths.any(|path| lines.iter().any(|line| has(path, line)))
}

fn of_paths(
    there: &model::Session,
    wanted: &[Ends<'_>],
    standby: Option<&[String]>,
    prune: bool,
    steps: &mut Vec<Step>,
) {
    let session = &there.name;
    for (words, lines) in wanted {
        let is_standby = standby.map(|names| names.iter().any(|name| name == words));
        if let Some(path) = lines.first().filter(|_| !is_there(there, lines)) {
            steps.push(Step::AddPath {
                session: session.clone(),
                path: path.clone(),
                words: (*words).to_owned(),
                standby: is_standby == Some(true),
            });
        }
        let Some(is_standby) = is_standby else {
            continue;
        };
        let mut paths = there.paths.iter();
        if let Some(path) = paths.find(|path| lines.iter().any(|line| has(path, line))) {
            let flag = |on: bool| u8::from(on).to_string();
            let of = path_words(session, words);
            let (was, value) = (path.standby.map(flag), flag(is_standby));
            set(&of, &of, &path.folder(), "standby", was, &value, steps);
        }
    }
    if prune && !wanted.is_empty() {
        for path in &there.paths {
            let mut lines = wanted.iter().flat_map(|(_, lines)| lines);
            if !lines.any(|line| has(path, line)) {
                steps.push(Step::RemovePath {
                    session: session.clone(),
                    path: path.name.clone(),
                });
            }
        }
    }
}

/// Disks that no file names, and sessions that are to be open with disks only.
fn prune(machine: &Machine, config: &Config, names: &[String], steps: &mut Vec<Step>) {
    for disk in machine.our_disks() {
        let wanted = names.iter().zip(&config.sessions).any(|(name, session)| {
            disk.session.as_ref() == Some(name)
                && session
                    .disks
                    .iter()
                    .any(|d| Some(&d.device) == disk.mapping_path.as_ref())
        });
        if !wanted {
            steps.push(Step::Unmap {
                disk: disk.name.clone(),
            });
        }
    }
    for session in machine.ours(Side::Client) {
        let mut all = names.iter().zip(&config.sessions);
        let wanted = all.any(|(name, wanted)| *name == session.name && wanted.messages);
        if session.kept_open == Some(true) && !wanted {
            steps.push(Step::Close {
                session: session.name.clone(),
            });
        }
    }
}
