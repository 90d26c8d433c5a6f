// SPDX-License-Identifier: GPL-2.0

//! What hangs on what: disks, sessions and paths of a client; exports, hosts and clients of a server.

use std::collections::{BTreeMap, HashSet};

use ibmsg::fdinfo::Open;
use ibnbd_proto::path::holds_every_device;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::configfs::{self, Configured, Export, Port};
use crate::family::{Family, Side};
use crate::folder::{self, Exported};
use crate::host;
use crate::model::{Disk, Machine, Opened, Path, PathState, Session, SessionState};
use crate::prefix::Prefix;
use crate::root::Root;

/// A pair of addresses of a session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PathNode {
    /// Its addresses, as its folder has them.
    pub name: String,
    /// Whether it carries requests.
    pub state: PathState,
    /// Whether requests take it only if no other path does; clients only.
    pub drained: Option<bool>,
    /// Whether requests take it only while no path is connected that is neither on standby nor drained; clients only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub standby: Option<bool>,
    /// Requests that it carries now.
    pub in_flight: Option<u64>,
    /// The time in which the last heartbeat was answered, in nanoseconds; clients only.
    pub latency_ns: Option<u64>,
    /// The RDMA device here.
    pub hca: Option<String>,
    /// The port of that.
    pub port: Option<u64>,
    /// Why it was lost, or could not be connected, the last time; clients only.
    pub last_error: Option<String>,
}

/// Channels of programs to one portal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChannelsNode {
    /// The portal.
    pub portal: String,
    /// How many there are.
    pub channels: usize,
    /// Those of them whose messages wait for a path.
    pub without_path: usize,
}

/// A portal of a program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PortalNode {
    /// Its name.
    pub name: String,
    /// The program.
    pub program: Option<String>,
    /// Programs that wait for it to accept a channel.
    pub offers: Option<u64>,
}

/// A session with its paths.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionNode {
    /// The name that the client has given.
    pub name: String,
    /// The modules that have it.
    pub family: Family,
    /// How many of its paths it has.
    pub state: SessionState,
    /// Which path a request takes; clients only.
    pub mp_policy: Option<String>,
    /// Seconds until the server expects to be back, if it was stopped as planned; clients only.
    pub server_back_in_s: Option<u64>,
    /// Its paths.
    pub paths: Vec<PathNode>,
    /// Channels of programs that it carries.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub channels: Vec<ChannelsNode>,
}

/// A disk with its session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskNode {
    /// As in `/sys/block`.
    pub name: String,
    /// Its name on the server.
    pub mapping_path: Option<String>,
    /// The same, by the word of the documentation: the name of the export.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub export: Option<String>,
    /// `init`, `open`, `closed` or `unmapped`.
    pub state: Option<String>,
    /// `ro`, `rw` or `migration`.
    pub access_mode: Option<String>,
    /// Its size in bytes.
    pub size_bytes: Option<u64>,
    /// The session that it uses.
    pub session: Option<SessionNode>,
}

/// A client that may open an export, or has it open.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientNode {
    /// The mode in which it has the export open; none if it does not.
    pub access_mode: Option<String>,
    /// Its session; none while that goes.
    pub session: Option<SessionNode>,
    /// The session's name.
    pub name: String,
}

/// Clients that may open an export for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostNode {
    /// A host that the export names; none for clients that it does not name.
    pub name: Option<String>,
    /// Its session if it is connected, or clients that have the export open.
    pub clients: Vec<ClientNode>,
}

/// A device that clients may open.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportNode {
    /// The name that clients give.
    pub name: String,
    /// The block device.
    pub device: Option<String>,
    /// The widest access mode; none of a device in a directory, which may be opened in any.
    pub access_mode: Option<String>,
    /// Whether clients may open it at present.
    pub enable: Option<bool>,
    /// Whether every authenticated session may open it.
    pub allow_any_host: Option<bool>,
    /// Addresses from which sessions without authentication may open it.
    pub allow_unauthenticated: Option<Vec<Prefix>>,
    /// Those who may open it.
    pub hosts: Vec<HostNode>,
}

/// All of a machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Topology {
    /// Disks that are mapped here.
    pub disks: Vec<DiskNode>,
    /// Sessions of clients here that have no disk.
    pub sessions: Vec<SessionNode>,
    /// Addresses on which the server listens; if there are none, all. Each leads to all exports.
    pub ports: Vec<Port>,
    /// Devices that clients may open, or have open.
    pub exports: Vec<ExportNode>,
    /// Clients of this server that have nothing open, and are no host of an export.
    pub clients: Vec<SessionNode>,
    /// Portals of programs.
    pub portals: Vec<PortalNode>,
    /// Channels between programs of this machine.
    pub local: Vec<ChannelsNode>,
}

impl Topology {
    /// Of a machine whose paths have their counters.
    pub fn of(root: &Root, machine: &Machine, configured: &Configured) -> Self {
        let of_side = |side| machine.sessions.iter().filter(move |s| s.side == side);
        let disks: Vec<DiskNode> = machine.disks.iter().map(|d| disk(machine, d)).collect();
        let has_disk = |session: &&Session| {
            let own =
                |d: &Disk| d.family == session.family && d.session.as_ref() == Some(&session.name);
            machine.disks.iter().any(own)
        };
        let exports = exports(root, machine, configured);
        let shown: HashSet<(Family, &str)> = exports
            .iter()
            .flat_map(|export| &export.hosts)
            .flat_map(|host| &host.clients)
            .filter_map(|client| client.session.as_ref())
            .map(|session| (session.family, session.name.as_str()))
            .collect();
        let clients = of_side(Side::Server)
            .filter(|session| !shown.contains(&(session.family, session.name.as_str())))
            .map(session)
            .collect();
        let mut all = Self {
            portals: portals(machine),
            local: channels(machine, "local", None),
            disks,
            sessions: of_side(Side::Client)
                .filter(|session| !has_disk(session))
                .map(session)
                .collect(),
            ports: configured.ports.clone(),
            clients,
            exports,
        };
        all.add_channels(machine);
        all
    }

    /// Fills in the channels of each session.
    fn add_channels(&mut self, machine: &Machine) {
        let of_clients = self
            .disks
            .iter_mut()
            .filter_map(|disk| disk.session.as_mut());
        for session in of_clients.chain(&mut self.sessions) {
            session.channels = channels(machine, &session.name, Some(Side::Client));
        }
        let hosts = self.exports.iter_mut().flat_map(|export| &mut export.hosts);
        let of_hosts = hosts.flat_map(|host| &mut host.clients);
        let of_hosts = of_hosts.filter_map(|client| client.session.as_mut());
        for session in of_hosts.chain(&mut self.clients) {
            session.channels = channels(machine, &session.name, Some(Side::Server));
        }
    }
}

/// The channels over a session, by their portals.
fn channels(machine: &Machine, session: &str, side: Option<Side>) -> Vec<ChannelsNode> {
    let mut found: BTreeMap<String, ChannelsNode> = BTreeMap::new();
    let is_own = |open: &&Open| {
        let of_side = |own: &str| side.is_none_or(|side| own == side.as_str());
        open.text("session") == Some(session) && open.text("side").is_none_or(of_side)
    };
    for open in machine.messages.found.channels().filter(is_own) {
        let portal = open.text("portal").unwrap_or_default();
        let node = found.entry(portal.to_owned()).or_insert(ChannelsNode {
            portal: portal.to_owned(),
            channels: 0,
            without_path: 0,
        });
        node.channels += 1;
        node.without_path += usize::from(open.number("connected") == Some(0));
    }
    found.into_values().collect()
}

fn portals(machine: &Machine) -> Vec<PortalNode> {
    let portals = machine.messages.found.portals();
    let mut found: Vec<PortalNode> = portals
        .filter_map(|open| {
            Some(PortalNode {
                name: open.text("portal")?.to_owned(),
                program: open.owners.first().map(ToString::to_string),
                offers: open.number("offers"),
            })
        })
        .collect();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

fn disk(machine: &Machine, disk: &Disk) -> DiskNode {
    let name = disk.session.as_deref().unwrap_or_default();
    DiskNode {
        name: disk.name.clone(),
        mapping_path: disk.mapping_path.clone(),
        export: disk.export.clone(),
        state: disk.state.clone(),
        access_mode: disk.access_mode.clone(),
        size_bytes: disk.size_bytes,
        session: machine
            .session(disk.family, Side::Client, name)
            .map(session),
    }
}

fn session(session: &Session) -> SessionNode {
    let planned = session
        .server_back_in_s
        .filter(|_| session.is_planned_stop());
    SessionNode {
        name: session.name.clone(),
        family: session.family,
        state: session.state,
        mp_policy: session.settings.mp_policy.clone(),
        server_back_in_s: planned,
        paths: session.paths.iter().map(path).collect(),
        channels: Vec::new(),
    }
}

fn path(path: &Path) -> PathNode {
    let traffic = path.stats.as_ref().and_then(|stats| stats.traffic);
    PathNode {
        name: path.name.clone(),
        state: path.state,
        drained: path.drained,
        standby: path.standby,
        in_flight: traffic.and_then(|traffic| traffic.in_flight),
        latency_ns: path.latency_ns,
        hca: path.hca.clone(),
        port: path.port,
        last_error: path.last_error.clone(),
    }
}

/// Exports in configfs, or devices in the server's directory; then what clients have open besides,
/// as those of the kernel's own server do.
fn exports(root: &Root, machine: &Machine, configured: &Configured) -> Vec<ExportNode> {
    let mut rest: Vec<&Opened> = machine.opened.iter().collect();
    let mut found = Vec::new();
    for export in &configured.exports {
        let own = take(&mut rest, |open| configfs::is_opened_as(open, &export.name));
        found.push(configured_export(machine, export, &own));
    }
    if configured.exports.is_empty() {
        let list = in_directory(root, machine);
        let of = |exported: &Exported, open: &Opened| {
            open.family == Family::Ibnbd && exported.device.as_ref() == Some(&open.device)
        };
        for exported in &list {
            // A device may have several names there.
            let own: Vec<&Opened> = rest.iter().filter(|o| of(exported, o)).copied().collect();
            let (name, device) = (exported.name.clone(), exported.device.clone());
            found.push(without_rules(machine, name, device, &own));
        }
        rest.retain(|open| !list.iter().any(|exported| of(exported, open)));
    }
    while let Some(first) = rest.first().copied() {
        let is_same = |o: &Opened| (o.family, &o.device) == (first.family, &first.device);
        let own = take(&mut rest, is_same);
        let name = first.mapping_path.clone();
        let name = name.unwrap_or_else(|| first.device.clone());
        found.push(without_rules(
            machine,
            name,
            Some(first.device.clone()),
            &own,
        ));
    }
    found
}

fn take<'a>(rest: &mut Vec<&'a Opened>, is_own: impl Fn(&Opened) -> bool) -> Vec<&'a Opened> {
    let (own, others) = rest.drain(..).partition(|open| is_own(open));
    *rest = others;
    own
}

fn configured_export(machine: &Machine, export: &Export, open: &[&Opened]) -> ExportNode {
    let mut hosts: Vec<HostNode> = export
        .allowed_hosts
        .iter()
        .map(|host| HostNode {
            name: Some(host.clone()),
            clients: host_clients(machine, open, host),
        })
        .collect();
    let others = open
        .iter()
        .filter(|o| !export.allowed_hosts.contains(&o.session));
    let clients: Vec<ClientNode> = others.map(|open| client(machine, open)).collect();
    let has_rule = export.allow_any_host == Some(true)
        || export
            .allow_unauthenticated
            .as_ref()
            .is_some_and(|p| !p.is_empty());
    if has_rule || !clients.is_empty() {
        hosts.push(HostNode {
            name: None,
            clients,
        });
    }
    ExportNode {
        name: export.name.clone(),
        device: export.device_path.clone(),
        access_mode: export.access_mode.clone(),
        enable: export.enable,
        allow_any_host: export.allow_any_host,
        allow_unauthenticated: export.allow_unauthenticated.clone(),
        hosts,
    }
}

/// The session of a host: it has the export open, or it is connected at least.
fn host_clients(machine: &Machine, open: &[&Opened], host: &str) -> Vec<ClientNode> {
    let own: Vec<&&Opened> = open.iter().filter(|open| open.session == host).collect();
    if !own.is_empty() {
        return own.into_iter().map(|open| client(machine, open)).collect();
    }
    let session = machine.our(Side::Server, host).map(session);
    let client = session.map(|session| ClientNode {
        access_mode: None,
        name: host.to_owned(),
        session: Some(session),
    });
    client.into_iter().collect()
}

fn client(machine: &Machine, open: &Opened) -> ClientNode {
    ClientNode {
        access_mode: open.access_mode.clone(),
        session: machine
            .session(open.family, Side::Server, &open.session)
            .map(session),
        name: open.session.clone(),
    }
}

/// The devices in the directory of the server, if it is one for all clients and has nothing else.
fn in_directory(root: &Root, machine: &Machine) -> Vec<Exported> {
    let path = host::parameter(root, "ibnbd_server", "dev_search_path").unwrap_or_default();
    if path.is_empty() || path.contains(folder::SESSION) || holds_every_device(&path) {
        return Vec::new();
    }
    folder::list(root, machine, &path).unwrap_or_default()
}

/// A device that is open to every client, with those that have it open.
fn without_rules(
    machine: &Machine,
    name: String,
    device: Option<String>,
    open: &[&Opened],
) -> ExportNode {
    let clients: Vec<ClientNode> = open.iter().map(|open| client(machine, open)).collect();
    let hosts = match clients.is_empty() {
        true => Vec::new(),
        false => vec![HostNode {
            name: None,
            clients,
        }],
    };
    ExportNode {
        name,
        device,
        access_mode: None,
        enable: None,
        allow_any_host: None,
        allow_unauthenticated: None,
        hosts,
    }
}
