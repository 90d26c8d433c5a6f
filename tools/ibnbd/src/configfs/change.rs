// SPDX-License-Identifier: GPL-2.0

//! Changes of exports, hosts and ports as lists of system calls, and how a list that fails is taken
//! back.

use std::fmt;
use std::io;

use super::{export_folder, host_folder, port_folder, Configured, Export, Host, Port};
use crate::advice::Task;
use crate::folder::last_part;
use crate::prefix::{self, Prefix};
use crate::root::Root;

/// One system call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Makes an export, a host or a port.
    MakeFolder(String),
    /// Removes one that has no links.
    RemoveFolder(String),
    /// Writes a value to a file.
    Write {
        /// The file.
        file: String,
        /// The value.
        text: String,
        /// The value before, if it is known.
        was: Option<String>,
    },
    /// Allows a host.
    Link {
        /// The link in `allowed_hosts`.
        file: String,
        /// The folder of the host.
        to: String,
    },
    /// Allows a host no longer.
    Unlink {
        /// The link in `allowed_hosts`.
        file: String,
        /// The folder of the host.
        to: String,
    },
}

impl Change {
    /// Does it.
    ///
    /// # Errors
    ///
    /// The system's, which is the answer of the server's module.
    pub fn carry_out(&self, root: &Root) -> io::Result<()> {
        match self {
            Self::MakeFolder(folder) => root.make_folder(folder),
            Self::RemoveFolder(folder) => root.remove_folder(folder),
            // configfs does not pass a write of no bytes on to the module.
            Self::Write { file, text, .. } => root.write(file, &format!("{text}\n")),
            Self::Link { file, to } => root.link(file, to),
            Self::Unlink { file, .. } => root.unlink(file),
        }
    }

    /// The change that takes this one back.
    fn undone(&self) -> Option<Self> {
        match self.clone() {
            Self::MakeFolder(folder) => Some(Self::RemoveFolder(folder)),
            // It had files and links, which were removed before.
            Self::RemoveFolder(_) => None,
            Self::Write { file, text, was } => was.map(|was| Self::Write {
                file,
                text: was,
                was: Some(text),
            }),
            Self::Link { file, to } => Some(Self::Unlink { file, to }),
            Self::Unlink { file, to } => Some(Self::Link { file, to }),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MakeFolder(folder) => write!(f, "mkdir {folder}"),
            Self::RemoveFolder(folder) => write!(f, "rmdir {folder}"),
            Self::Write { file, text, .. } => write!(f, "{}={text}", last_part(file)),
            Self::Link { to, .. } => write!(f, "allow host {}", last_part(to)),
            Self::Unlink { to, .. } => write!(f, "deny host {}", last_part(to)),
        }
    }
}

/// Changes that ended early.
#[derive(PartialEq, Eq, Debug)]
pub struct Failed<E> {
    /// The change that failed.
    pub change: Change,
    /// Why.
    pub error: E,
    /// Changes before it that could not be taken back, and why.
    pub left: Vec<(Change, E)>,
}

/// Does one change after the other. If one fails, those before it are taken back, the last one
/// first.
///
/// # Errors
///
/// The first error of `act`, which does a change.
pub fn all<E>(
    changes: &[Change],
    mut act: impl FnMut(&Change) -> Result<(), E>,
) -> Result<(), Failed<E>> {
    for (number, change) in changes.iter().enumerate() {
        let Err(error) = act(change) else {
            continue;
        };
        // The folder goes with what was written into it.
        let fresh = matches!(changes.first(), Some(Change::MakeFolder(_)));
        let done = changes.iter().take(number).rev();
        let back = done.filter(|c| !(fresh && matches!(c, Change::Write { .. })));
        let mut left = Vec::new();
        for undone in back.filter_map(Change::undone) {
            if let Err(error) = act(&undone) {
                left.push((undone, error));
            }
        }
        return Err(Failed {
            change: change.clone(),
            error,
            left,
        });
    }
    Ok(())
}

/// The rules of an export: who may open it, and in which modes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rules {
    /// The widest access mode.
    pub access: String,
    /// Whether realtime I/O priorities are kept.
    pub realtime: bool,
    /// Whether every authenticated session may open it.
    pub any_host: bool,
    /// Addresses from which sessions without authentication may open it.
    pub from: Vec<Prefix>,
    /// Hosts that may open it.
    pub hosts: Vec<String>,
    /// Whether clients may open it at present.
    pub enable: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            access: "rw".to_owned(),
            realtime: false,
            any_host: false,
            from: Vec::new(),
            hosts: Vec::new(),
            enable: true,
        }
    }
}

impl Rules {
    /// Names and values of the settings that they stand for, other than the device.
    pub fn settings(&self) -> [(&'static str, String); 4] {
        [
            ("access_mode", self.access.clone()),
            ("allow_realtime", flag(self.realtime).to_owned()),
            ("allow_any_host", flag(self.any_host).to_owned()),
            ("allow_unauthenticated", prefix::text(&self.from)),
        ]
    }

    /// Those that are not what the kernel takes by itself.
    pub fn unusual(&self) -> Vec<(&'static str, String)> {
        differing(self.settings(), &Self::default().settings())
    }

    /// Whether there is nobody who may open it.
    pub fn is_for_nobody(&self) -> bool {
        self.hosts.is_empty() && !self.any_host && self.from.is_empty()
    }
}

/// Limits of a host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Addresses that its paths may come from; empty for any.
    pub addresses: Vec<Prefix>,
    /// Most paths; 0 for no limit.
    pub max_paths: u64,
    /// Most connections; 0 for no limit.
    pub max_connections: u64,
    /// Most memory of the server, in MiB; 0 for no limit.
    pub max_memory_mib: u64,
    /// Most devices; 0 for the limit of the module.
    pub max_devices: u64,
    /// Most requests in a second; 0 for no limit.
    pub max_iops: u64,
    /// Most MiB in a second; 0 for no limit.
    pub max_bandwidth_mib_s: u64,
}

impl Limits {
    /// Names and values of the settings that they stand for.
    pub fn settings(&self) -> [(&'static str, String); 7] {
        [
            ("addresses", prefix::text(&self.addresses)),
            ("max_paths", self.max_paths.to_string()),
            ("max_connections", self.max_connections.to_string()),
            ("max_memory_mib", self.max_memory_mib.to_string()),
            ("max_devices", self.max_devices.to_string()),
            ("max_iops", self.max_iops.to_string()),
            ("max_bandwidth_mib_s", self.max_bandwidth_mib_s.to_string()),
        ]
    }

    /// Those that are not what the kernel takes by itself.
    pub fn unusual(&self) -> Vec<(&'static str, String)> {
        differing(self.settings(), &Self::default().settings())
    }
}

fn differing<S: PartialEq, const N: usize>(settings: [S; N], usual: &[S; N]) -> Vec<S> {
    let differs = |setting: &S| !usual.contains(setting);
    settings.into_iter().filter(differs).collect()
}

/// A flag, as the files take it.
pub const fn flag(yes: bool) -> &'static str {
    if yes {
        "1"
    } else {
        "0"
    }
}

/// Writes a value to a file of an export, a host or a port.
pub fn write(folder: &str, key: &str, text: &str, was: Option<String>) -> Change {
    Change::Write {
        file: format!("{folder}/{key}"),
        text: text.to_owned(),
        was,
    }
}

fn link_file(export: &str, link: &str) -> String {
    format!("{}/allowed_hosts/{link}", export_folder(export))
}

/// Lets a host open an export.
pub fn allow(export: &str, host: &str) -> Change {
    Change::Link {
        file: link_file(export, host),
        to: host_folder(host),
    }
}

/// Takes all links away that let a host open an export; none if there is none.
pub fn deny(export: &Export, host: &str) -> Vec<Change> {
    let links = export.links.iter().zip(&export.allowed_hosts);
    links
        .filter(|(_, allowed)| *allowed == host)
        .map(|(link, _)| Change::Unlink {
            file: link_file(&export.name, link),
            to: host_folder(host),
        })
        .collect()
}

/// Makes an export. Nobody can open it before all of its rules are there.
pub fn add_export(name: &str, device: &str, rules: &Rules) -> Vec<Change> {
    let folder = export_folder(name);
    let mut changes = vec![Change::MakeFolder(folder.clone())];
    changes.push(write(&folder, "device_path", device, None));
    for (key, value) in rules.unusual() {
        changes.push(write(&folder, key, &value, None));
    }
    changes.extend(rules.hosts.iter().map(|host| allow(name, host)));
    if rules.enable {
        changes.push(write(&folder, "enable", "1", None));
    }
    changes
}

/// Removes an export, which closes its device for all clients.
pub fn remove_export(export: &Export) -> Vec<Change> {
    let folder = export_folder(&export.name);
    let mut changes = Vec::new();
    if export.enable != Some(false) {
        // All clients at once, instead of one host after the other.
        changes.push(write(&folder, "enable", "0", export.setting("enable")));
    }
    let links = export.links.iter().zip(&export.allowed_hosts);
    changes.extend(links.map(|(link, host)| Change::Unlink {
        file: link_file(&export.name, link),
        to: host_folder(host),
    }));
    changes.push(Change::RemoveFolder(folder));
    changes
}

/// Takes all away: lists of changes, each with its task and its name.
///
/// Nobody may do more in between than before. So all exports are closed first, and go only after
/// the hosts: without any export, clients open what is in the directory, and without its host a
/// session has no limits. Ports come last: until then, the server listens only where it should.
pub fn remove_all(all: &Configured) -> Vec<(Task, String, Vec<Change>)> {
    let part = |close: bool| {
        all.exports.iter().filter_map(move |export| {
            let mut changes = remove_export(export);
            let last = changes.pop().into_iter().collect();
            let (word, changes) = match close {
                true => ("close", changes),
                false => ("remove", last),
            };
            let what = format!("{word} export {}", export.name);
            (!changes.is_empty()).then_some((Task::Export, what, changes))
        })
    };
    let hosts = all.hosts.iter().map(|host| {
        let what = format!("remove host {}", host.name);
        (Task::Host, what, remove_host(host, &[]))
    });
    let ports = all.ports.iter().map(|port| {
        let what = format!("remove port {}", port.name);
        (Task::Port, what, remove_port(&port.name))
    });
    part(true)
        .chain(hosts)
        .chain(part(false))
        .chain(ports)
        .collect()
}

/// Makes a host.
pub fn add_host(name: &str, limits: &Limits) -> Vec<Change> {
    let folder = host_folder(name);
    let mut changes = vec![Change::MakeFolder(folder.clone())];
    for (key, value) in limits.unusual() {
        changes.push(write(&folder, key, &value, None));
    }
    changes
}

/// Removes a host, after all exports have denied it.
pub fn remove_host(host: &Host, exports: &[Export]) -> Vec<Change> {
    let mut changes: Vec<Change> = exports.iter().flat_map(|e| deny(e, &host.name)).collect();
    changes.push(Change::RemoveFolder(host_folder(&host.name)));
    changes
}

/// Makes a port, and listens on it. The folder comes first, so that the server stops to listen on
/// all addresses before one of them may be in its way.
pub fn add_port(name: &str, address: &str, number: Option<u16>) -> Vec<Change> {
    let folder = port_folder(name);
    let mut changes = vec![Change::MakeFolder(folder.clone())];
    changes.push(write(&folder, "address", address, None));
    if let Some(number) = number {
        changes.push(write(&folder, "port", &number.to_string(), None));
    }
    changes.push(write(&folder, "enable", "1", None));
    changes
}

/// Sets settings of a port. Address and port number can only be changed while it is disabled, so
/// the server does not listen there in between.
pub fn set_port(port: &Port, settings: &[(&str, String)]) -> Vec<Change> {
    let folder = port_folder(&port.name);
    let asked = settings.iter().rfind(|(key, _)| *key == "enable");
    let others = settings.iter().filter(|(key, _)| *key != "enable");
    let mut changes: Vec<Change> = others
        .map(|(key, value)| write(&folder, key, value, port.setting(key)))
        .collect();
    let is_enabled = port.enable == Some(true);
    if changes.is_empty() {
        let asked = asked.map(|(key, value)| write(&folder, key, value, port.setting(key)));
        return asked.into_iter().collect();
    }
    let enable = |yes| write(&folder, "enable", flag(yes), Some(flag(!yes).to_owned()));
    if is_enabled {
        changes.insert(0, enable(false));
    }
    if asked.map_or(is_enabled, |(_, value)| value == "1") {
        changes.push(enable(true));
    }
    changes
}

/// Removes a port, on which the server listens no more. Paths that are connected stay.
pub fn remove_port(name: &str) -> Vec<Change> {
    vec![Change::RemoveFolder(port_folder(name))]
}
