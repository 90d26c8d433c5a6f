// SPDX-License-Identifier: GPL-2.0

//! Exports, hosts and ports of the server in configfs: `/sys/kernel/config/ibnbd`.

pub mod address;
pub mod change;

use ibnbd_proto::throttle;
use ibtrs_proto::name::DevicePath;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::family::{Family, Side};
use crate::folder;
use crate::host;
use crate::model::{Machine, Note, Opened, Reader};
use crate::prefix::{self, Prefix};
use crate::root::Root;
use crate::value;

/// The directory of the module.
pub const FOLDER: &str = "/sys/kernel/config/ibnbd";
/// Where configfs is mounted.
const MOUNT: &str = "/sys/kernel/config";

/// Access modes of an export, the narrowest first.
pub const ACCESS: [&str; 3] = ["ro", "rw", "migration"];
/// Settings of an export.
pub const OF_EXPORT: [&str; 5] = [
    "device_path",
    "access_mode",
    "allow_realtime",
    "allow_any_host",
    "allow_unauthenticated",
];
/// Settings of a host.
pub const OF_HOST: [&str; 7] = [
    "addresses",
    "max_paths",
    "max_connections",
    "max_memory_mib",
    "max_devices",
    "max_iops",
    "max_bandwidth_mib_s",
];
/// Settings of a port.
pub const OF_PORT: [&str; 3] = ["address", "port", "enable"];
/// Those that are numbers, each with its greatest value.
pub const LIMITS: [(&str, u64); 6] = [
    ("max_paths", 65_535),
    ("max_connections", 65_535),
    ("max_memory_mib", 1_048_576),
    ("max_devices", 65_535),
    ("max_iops", throttle::MAX_IOPS as u64),
    ("max_bandwidth_mib_s", throttle::MAX_MIB_S as u64),
];
/// The least `max_iops` other than 0.
const LEAST_IOPS: u64 = throttle::MIN_IOPS as u64;

/// The number of exports, without what is in them.
pub fn count_exports(root: &Root) -> usize {
    let names = root.list_if_any(&format!("{FOLDER}/exports"));
    names.map_or(0, |names| names.len())
}

/// Reads the value of one of [`LIMITS`].
///
/// # Errors
///
/// The fault.
pub fn limit(key: &str, word: &str) -> Result<u64, String> {
    let number: u64 = word.parse().map_err(|_| "it is not a number".to_owned())?;
    check_limit(key, number).map(|()| number)
}

/// Checks the value of one of [`LIMITS`].
///
/// # Errors
///
/// The fault.
pub fn check_limit(key: &str, number: u64) -> Result<(), String> {
    let most = LIMITS.iter().find(|(limit, _)| *limit == key);
    let most = most.map_or(u64::MAX, |(_, most)| *most);
    if number > most {
        return Err(format!("{number} is not 0 to {most}"));
    }
    if key == "max_iops" && (1..LEAST_IOPS).contains(&number) {
        return Err(format!("{number} is neither 0 nor {LEAST_IOPS} or more"));
    }
    Ok(())
}

/// A block device that clients may open by the name of the export.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Export {
    /// The name that clients give.
    pub name: String,
    /// The path of the block device; none before it was set.
    pub device_path: Option<String>,
    /// The widest access mode that clients may open it in: `ro`, `rw` or `migration`.
    pub access_mode: Option<String>,
    /// Whether realtime I/O priorities of clients are kept.
    pub allow_realtime: Option<bool>,
    /// Whether every authenticated session may open it.
    pub allow_any_host: Option<bool>,
    /// Addresses from which sessions without authentication may open it.
    pub allow_unauthenticated: Option<Vec<Prefix>>,
    /// Whether clients may open it at present.
    pub enable: Option<bool>,
    /// Hosts that may open it.
    pub allowed_hosts: Vec<String>,
    /// Sessions that have it open.
    pub sessions: Vec<String>,
    /// Names of the links to hosts, in the order of `allowed_hosts`.
    #[serde(skip)]
    pub links: Vec<String>,
}

/// An authenticated session that exports know by its name.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The session's name.
    pub name: String,
    /// Addresses that its paths may come from; empty for any.
    pub addresses: Option<Vec<Prefix>>,
    /// Most paths that it may have; 0 for no limit.
    pub max_paths: Option<u64>,
    /// Most connections that its paths may have; 0 for no limit.
    pub max_connections: Option<u64>,
    /// Most memory of the server that its paths may take, in MiB; 0 for no limit.
    pub max_memory_mib: Option<u64>,
    /// Most devices that it may have open; 0 for the limit of the module.
    pub max_devices: Option<u64>,
    /// Most requests in a second; 0 for no limit.
    pub max_iops: Option<u64>,
    /// Most MiB of reads and writes in a second; 0 for no limit.
    pub max_bandwidth_mib_s: Option<u64>,
    /// Exports that name it.
    pub exports: Vec<String>,
    /// Its authenticated paths that are connected.
    pub paths: usize,
}

/// An address on which the server listens.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// The address, such as `ip:10.0.1.1`; none before it was set.
    pub address: Option<String>,
    /// The port number.
    pub port: Option<u16>,
    /// Whether the server is to listen there.
    pub enable: Option<bool>,
    /// Whether it does: not while the RDMA device of the address is missing.
    pub listening: Option<bool>,
}

/// All exports, hosts and ports in configfs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Configured {
    /// Exports.
    pub exports: Vec<Export>,
    /// Hosts.
    pub hosts: Vec<Host>,
    /// Ports. Without any, the server listens on all addresses.
    pub ports: Vec<Port>,
    /// Files that could not be read.
    pub notes: Vec<Note>,
}

/// Whether the server has the directory.
pub fn is_there(root: &Root) -> bool {
    root.exists(FOLDER)
}

/// Whether the server has ports there: an older module has none.
pub fn has_ports(root: &Root) -> bool {
    root.is_folder(&format!("{FOLDER}/ports"))
}

/// Whether there is an export.
pub fn has_exports(root: &Root) -> bool {
    let exports = root.list_if_any(&format!("{FOLDER}/exports"));
    exports.is_ok_and(|exports| !exports.is_empty())
}

/// Whether configfs is mounted where it belongs.
pub fn is_mounted(root: &Root) -> bool {
    let mounts = root.read("/proc/mounts").unwrap_or_default();
    mounts.lines().any(|line| {
        let mut words = line.split(' ').skip(1);
        words.next() == Some(MOUNT) && words.next() == Some("configfs")
    })
}

/// Whether a directory can have the name, as far as its characters go.
pub fn is_name(name: &str) -> bool {
    !name.contains('/') && !matches!(name, "." | "..")
}

/// Checks the name of a port.
///
/// # Errors
///
/// The fault.
pub fn check_port_name(name: &str) -> Result<(), &'static str> {
    if !is_name(name) {
        return Err("the name of a port has no / and is neither . nor ..");
    }
    let name = DevicePath::new(name.as_bytes());
    name.map(|_| ()).map_err(|error| error.as_str())
}

/// The folder of an export.
pub fn export_folder(name: &str) -> String {
    format!("{FOLDER}/exports/{name}")
}

/// The folder of a host.
pub fn host_folder(name: &str) -> String {
    format!("{FOLDER}/hosts/{name}")
}

/// The folder of a port.
pub fn port_folder(name: &str) -> String {
    format!("{FOLDER}/ports/{name}")
}

/// All ports, without a word of what could not be read.
pub fn ports(root: &Root) -> Vec<Port> {
    all_ports(&mut Reader::new(root))
}

fn all_ports(reader: &mut Reader<'_>) -> Vec<Port> {
    let names = reader.list(&format!("{FOLDER}/ports"));
    let ports = names.into_iter().filter_map(|name| port(reader, name));
    ports.collect()
}

impl Configured {
    /// Reads all of it; `machine` tells what clients have open.
    pub fn read(root: &Root, machine: &Machine) -> Self {
        let mut reader = Reader::new(root);
        let exports: Vec<Export> = reader
            .list(&format!("{FOLDER}/exports"))
            .into_iter()
            .filter_map(|name| export(&mut reader, machine, name))
            .collect();
        let hosts = reader
            .list(&format!("{FOLDER}/hosts"))
            .into_iter()
            .filter_map(|name| host(&mut reader, machine, &exports, name))
            .collect();
        Self {
            exports,
            hosts,
            ports: all_ports(&mut reader),
            notes: reader.notes,
        }
    }

    /// An export by its name.
    pub fn export(&self, name: &str) -> Option<&Export> {
        self.exports.iter().find(|export| export.name == name)
    }

    /// Exports of a block device, by whatever path.
    pub fn of_device(&self, root: &Root, device: &str) -> Vec<&Export> {
        let is_it = |path: &str| path == device || folder::is_same(root, path, device);
        let exports = self.exports.iter();
        exports
            .filter(|export| export.device_path.as_deref().is_some_and(is_it))
            .collect()
    }

    /// A host by its name.
    pub fn host(&self, name: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.name == name)
    }

    /// A port by its name.
    pub fn port(&self, name: &str) -> Option<&Port> {
        self.ports.iter().find(|port| port.name == name)
    }

    /// Returns a warning after a port was added to these: the first one ends that the server
    /// listens on all addresses.
    pub fn said_of_added(&self, port: &Port) -> Option<String> {
        self.ports.is_empty().then(|| {
            format!(
                "from now on the server listens on {} only, as there was no other port; paths that are connected stay",
                port.place()
            )
        })
    }

    /// Returns a warning when there is no export any more: clients can open what is in the
    /// server's directory, if it has one.
    pub fn said_of_no_export(root: &Root) -> Option<String> {
        let path = host::parameter(root, "ibnbd_server", "dev_search_path");
        path.filter(|path| !path.is_empty()).map(|path| {
            format!("clients can open devices in {path} from now on, as there is no export in configfs any more")
        })
    }

    /// Whether there are ports, and the server listens on none of them.
    pub fn listens_nowhere(&self) -> bool {
        !self.ports.is_empty() && self.ports.iter().all(|port| port.enable == Some(false))
    }
}

/// The port number of a server that listens on ports only, where a port has none of its own.
const DEFAULT_NUMBER: u16 = ibtrs_proto::consts::DEFAULT_PORT;

/// Whether the server listens on no address without a port.
pub fn listens_on_ports_only(root: &Root) -> bool {
    host::parameter(root, "ibnbd_server", "port_nr").as_deref() == Some("0")
}

/// The port number that a port has if none is written, from the text of `port_nr`.
pub fn usual_number(port_nr: &str) -> Option<u16> {
    match port_nr.parse().ok()? {
        0 => Some(DEFAULT_NUMBER),
        number => Some(number),
    }
}

impl Export {
    /// Whether there is nobody who may open it.
    pub fn is_for_nobody(&self) -> bool {
        self.allowed_hosts.is_empty()
            && self.allow_any_host == Some(false)
            && self
                .allow_unauthenticated
                .as_ref()
                .is_some_and(Vec::is_empty)
    }

    /// Whether a setting with that value allows less than it does now.
    pub fn is_narrowed(&self, key: &str, value: &str) -> bool {
        match key {
            "access_mode" => {
                let width = |mode: &str| ACCESS.iter().position(|known| *known == mode);
                width(value) < self.access_mode.as_deref().and_then(width)
            }
            "allow_any_host" => self.allow_any_host == Some(true) && value == "0",
            "allow_unauthenticated" => {
                let new = prefix::list(value).unwrap_or_default();
                let now = self.allow_unauthenticated.as_deref().unwrap_or_default();
                let is_kept = |prefix| new.iter().any(|other: &Prefix| other.covers(prefix));
                !now.iter().all(is_kept)
            }
            _ => false,
        }
    }

    /// Whether the server may close it for a session when these settings allow less.
    pub fn may_close(&self, session: &str, narrowed: &[&str]) -> bool {
        let is_named = self.allowed_hosts.iter().any(|host| host == session);
        let mut narrowed = narrowed.iter();
        narrowed.any(|key| *key == "access_mode" || !is_named)
    }

    /// The value of a setting, as its file has it.
    pub fn setting(&self, key: &str) -> Option<String> {
        let flag = |value: Option<bool>| value.map(|yes| change::flag(yes).to_owned());
        match key {
            "device_path" => Some(self.device_path.clone().unwrap_or_default()),
            "access_mode" => self.access_mode.clone(),
            "allow_realtime" => flag(self.allow_realtime),
            "allow_any_host" => flag(self.allow_any_host),
            "allow_unauthenticated" => self.allow_unauthenticated.as_deref().map(prefix::text),
            "enable" => flag(self.enable),
            _ => None,
        }
    }
}

impl Host {
    /// The value of a setting, as its file has it.
    pub fn setting(&self, key: &str) -> Option<String> {
        match key {
            "addresses" => self.addresses.as_deref().map(prefix::text),
            limit => self.limit(limit).map(|n| n.to_string()),
        }
    }

    /// The value of one of its [`LIMITS`].
    pub fn limit(&self, key: &str) -> Option<u64> {
        match key {
            "max_paths" => self.max_paths,
            "max_connections" => self.max_connections,
            "max_memory_mib" => self.max_memory_mib,
            "max_devices" => self.max_devices,
            "max_iops" => self.max_iops,
            "max_bandwidth_mib_s" => self.max_bandwidth_mib_s,
            _ => None,
        }
    }
}

impl Port {
    /// The value of a setting, as its file has it; none of an address that is not set, as the file
    /// takes no empty one.
    pub fn setting(&self, key: &str) -> Option<String> {
        match key {
            "address" => self.address.clone(),
            "port" => self.port.map(|number| number.to_string()),
            "enable" => self.enable.map(|yes| change::flag(yes).to_owned()),
            _ => None,
        }
    }

    /// The address and the port number in words.
    pub fn place(&self) -> String {
        let address = self.address.as_deref().unwrap_or("no address");
        match self.port {
            Some(number) => format!("{address} port {number}"),
            None => address.to_owned(),
        }
    }
}

/// An export, unless it goes just now.
fn export(reader: &mut Reader<'_>, machine: &Machine, name: String) -> Option<Export> {
    let folder = export_folder(&name);
    // A file in place of a directory is no export.
    if !reader.root.is_folder(&folder) {
        return None;
    }
    let file = |key: &str| format!("{folder}/{key}");
    let links = reader.list(&file("allowed_hosts"));
    let target = |link: &String| {
        let host = reader
            .root
            .link_name(&format!("{folder}/allowed_hosts/{link}"));
        host.unwrap_or_else(|| link.clone())
    };
    Some(Export {
        allowed_hosts: links.iter().map(target).collect(),
        links,
        device_path: reader.get_if_any(&file("device_path")),
        access_mode: reader.get(&file("access_mode"), access_mode),
        allow_realtime: reader.get(&file("allow_realtime"), value::flag),
        allow_any_host: reader.get(&file("allow_any_host"), value::flag),
        allow_unauthenticated: reader.get(&file("allow_unauthenticated"), prefix::list),
        enable: reader.get(&file("enable"), value::flag),
        sessions: users(machine, &name),
        name,
    })
}

fn access_mode(text: &str) -> Option<String> {
    value::word(text).filter(|word| ACCESS.contains(&word.as_str()))
}

/// Sessions that have opened a device by that name.
fn users(machine: &Machine, name: &str) -> Vec<String> {
    let opened = machine.opened.iter().filter(|o| is_opened_as(o, name));
    opened.map(|opened| opened.session.clone()).collect()
}

/// Whether a client has opened a device by the name of that export. A slash at its beginning does
/// not count.
pub(crate) fn is_opened_as(opened: &Opened, name: &str) -> bool {
    let by_name = |path: &str| path.strip_prefix('/').unwrap_or(path) == name;
    opened.family == Family::Ibnbd && opened.mapping_path.as_deref().is_some_and(by_name)
}

/// A port, unless it goes just now.
fn port(reader: &mut Reader<'_>, name: String) -> Option<Port> {
    let folder = port_folder(&name);
    if !reader.root.is_folder(&folder) {
        return None;
    }
    let file = |key: &str| format!("{folder}/{key}");
    Some(Port {
        address: reader.get_if_any(&file("address")),
        port: reader.get(&file("port"), value::number),
        enable: reader.get(&file("enable"), value::flag),
        listening: reader.get(&file("listening"), value::flag),
        name,
    })
}

/// A host, unless it goes just now.
fn host(
    reader: &mut Reader<'_>,
    machine: &Machine,
    exports: &[Export],
    name: String,
) -> Option<Host> {
    let folder = host_folder(&name);
    if !reader.root.is_folder(&folder) {
        return None;
    }
    let file = |key: &str| format!("{folder}/{key}");
    let naming = exports.iter().filter(|e| e.allowed_hosts.contains(&name));
    let own = machine.our(Side::Server, &name);
    let paths = own.into_iter().flat_map(|session| &session.paths);
    let mut limit = |key| reader.get(&file(key), value::number);
    Some(Host {
        max_paths: limit("max_paths"),
        max_connections: limit("max_connections"),
        max_memory_mib: limit("max_memory_mib"),
        max_devices: limit("max_devices"),
        max_iops: limit("max_iops"),
        max_bandwidth_mib_s: limit("max_bandwidth_mib_s"),
        addresses: reader.get(&file("addresses"), prefix::list),
        exports: naming.map(|export| export.name.clone()).collect(),
        paths: paths.filter(|path| path.key_id.is_some()).count(),
        name,
    })
}
