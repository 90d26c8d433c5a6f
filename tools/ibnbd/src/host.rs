// SPDX-License-Identifier: GPL-2.0

//! Modules, RDMA devices, block devices.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::family::{Family, Side};
use crate::program;
use crate::root::Root;
use crate::value;

/// Our modules, in the order in which they need each other.
pub const MODULES: [&str; 6] = [
    "ibtrs_core",
    "ibmsg",
    "ibtrs_client",
    "ibtrs_server",
    "ibnbd_client",
    "ibnbd_server",
];

/// Whether a module is loaded.
pub fn is_loaded(root: &Root, module: &str) -> bool {
    root.exists(&format!("/sys/module/{module}"))
}

/// Whether a module is loaded, and no longer on the way.
pub fn is_live(root: &Root, module: &str) -> bool {
    let state = root.read(&format!("/sys/module/{module}/initstate"));
    is_loaded(root, module) && !state.is_ok_and(|state| state.trim() == "coming")
}

/// Whether the block client or server is there.
pub fn has(root: &Root, side: Side) -> bool {
    is_loaded(root, Family::Ibnbd.module(side)) || root.exists(Family::Ibnbd.control(side))
}

/// Whether the server was drained, so that no client can come.
pub fn is_drained(root: &Root) -> bool {
    let file = format!("{}/drain", Family::Ibnbd.control(Side::Server));
    root.read(&file).is_ok_and(|text| text.trim() == "1")
}

/// Names and values of a module's parameters.
pub fn parameters(root: &Root, module: &str) -> Vec<(String, String)> {
    let folder = format!("/sys/module/{module}/parameters");
    let names = root.list_if_any(&folder).unwrap_or_default();
    let value = |name: String| {
        let text = root.read(&format!("{folder}/{name}")).ok()?;
        Some((name, value::line(&text)?))
    };
    names.into_iter().filter_map(value).collect()
}

/// One parameter, if the module is loaded and it can be read.
pub fn parameter(root: &Root, module: &str, name: &str) -> Option<String> {
    let text = root
        .read(&format!("/sys/module/{module}/parameters/{name}"))
        .ok()?;
    value::line(&text)
}

/// The number of CPUs that a session has queues for, unless it was given another one: all that the
/// machine may ever have.
pub fn cpus(root: &Root) -> Option<u64> {
    let text = root.read("/sys/devices/system/cpu/possible").ok()?;
    let last = text.trim().rsplit(['-', ',']).next()?;
    last.parse::<u64>().ok()?.checked_add(1)
}

/// The kind of link that carries the packets of an RDMA device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// UDP, over Ethernet.
    Roce,
    /// TCP.
    Iwarp,
    /// InfiniBand itself.
    Infiniband,
}

/// A port of an RDMA device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Port {
    /// The device's name.
    pub device: String,
    /// The port's number.
    pub port: String,
    /// Its state: `ACTIVE`, `DOWN` or others.
    pub state: Option<String>,
    /// The interface of the network below it, for RoCE and iWARP.
    pub interface: Option<String>,
    /// The MTU of that.
    pub mtu: Option<u64>,
    /// The kind of link that carries its packets.
    pub transport: Option<Transport>,
    /// Whether the device is a program of the kernel, whose packets pass the firewall as others do.
    pub is_software: bool,
}

/// All ports of RDMA devices.
pub fn ports(root: &Root) -> Vec<Port> {
    let class = "/sys/class/infiniband";
    let mut found = Vec::new();
    for device in root.list_if_any(class).unwrap_or_default() {
        let ports = format!("{class}/{device}/ports");
        for port in root.list_if_any(&ports).unwrap_or_default() {
            found.push(self::port(root, &device, &ports, port));
        }
    }
    found
}

fn port(root: &Root, device: &str, ports: &str, port: String) -> Port {
    let word = |file: String| root.read(&file).ok().and_then(|text| value::word(&text));
    // "4: ACTIVE"
    let state = word(format!("{ports}/{port}/state"));
    let state = state.map(|s| s.rsplit(' ').next().unwrap_or_default().to_owned());
    let interface = word(format!("{ports}/{port}/gid_attrs/ndevs/0"))
        .or_else(|| word(format!("/sys/class/infiniband/{device}/parent")));
    let mtu = interface.as_deref().and_then(|name| mtu(root, name));
    let device_folder = format!("/sys/class/infiniband/{device}");
    let kind = word(format!("{device_folder}/node_type"));
    let layer = word(format!("{ports}/{port}/link_layer"));
    // "1: CA", "4: RNIC"
    let transport = match (kind.as_deref(), layer.as_deref()) {
        (Some(kind), _) if kind.ends_with("RNIC") => Some(Transport::Iwarp),
        (_, Some("Ethernet")) => Some(Transport::Roce),
        (_, Some("InfiniBand")) => Some(Transport::Infiniband),
        _ => None,
    };
    Port {
        transport,
        // That of soft-RoCE has such a file, and that of software iWARP its name as a rule.
        is_software: root.exists(&format!("{device_folder}/parent")) || device.starts_with("siw"),
        device: device.to_owned(),
        port,
        state,
        interface,
        mtu,
    }
}

/// The MTU of an interface.
pub fn mtu(root: &Root, interface: &str) -> Option<u64> {
    let text = root.read(&format!("/sys/class/net/{interface}/mtu")).ok()?;
    value::number(&text)
}

/// The interface with that number.
pub fn interface_of(root: &Root, number: u32) -> Option<String> {
    let names = root.list_if_any("/sys/class/net").ok()?;
    names.into_iter().find(|name| {
        let text = root.read(&format!("/sys/class/net/{name}/ifindex")).ok();
        text.and_then(|text| value::number(&text)) == Some(u64::from(number))
    })
}

/// The interface on which a port of an RDMA device has an address: a device can have several, for
/// VLANs as an example.
pub fn interface_with(root: &Root, port: &Port, address: IpAddr) -> Option<String> {
    let folder = format!("/sys/class/infiniband/{}/ports/{}", port.device, port.port);
    let gid = match address {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let has = |index: &String| {
        let text = root.read(&format!("{folder}/gids/{index}")).ok();
        text.and_then(|text| text.trim().parse::<Ipv6Addr>().ok()) == Some(gid)
    };
    let indices = root.list_if_any(&format!("{folder}/gids")).ok()?;
    let index = indices.iter().find(|index| has(index))?;
    value::word(
        &root
            .read(&format!("{folder}/gid_attrs/ndevs/{index}"))
            .ok()?,
    )
}

/// The addresses of all RDMA ports; IPv4 as in a GID.
pub fn addresses(root: &Root) -> BTreeSet<Ipv6Addr> {
    let ports = ports(root);
    ports.iter().flat_map(|port| gids(root, port)).collect()
}

/// The GIDs of a port, which over Ethernet are the addresses of its interface.
pub fn gids(root: &Root, port: &Port) -> Vec<Ipv6Addr> {
    let folder = format!(
        "/sys/class/infiniband/{}/ports/{}/gids",
        port.device, port.port
    );
    let names = root.list_if_any(&folder).unwrap_or_default();
    let gid = |name: &String| {
        root.read(&format!("{folder}/{name}"))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    names.iter().filter_map(gid).collect()
}

/// The block device with that number: its name, as in `/sys/class/block`.
pub fn block_name(root: &Root, major: u32, minor: u32) -> Option<String> {
    root.link_name(&format!("/sys/dev/block/{major}:{minor}"))
}

/// The size of a block device in bytes.
pub fn block_size(root: &Root, name: &str) -> Option<u64> {
    value::sectors(&root.read(&format!("/sys/class/block/{name}/size")).ok()?)
}

/// The state of our services, as `systemctl` has it; none without systemd.
pub fn services(root: &Root) -> Option<String> {
    const UNITS: [&str; 6] = [
        "ibnbd-server",
        "ibnbd-client",
        "ibnbd-metrics",
        "ibnbd@*.service",
        "ibmsg-rules",
        "ibmsg@*.service",
    ];
    const FIELDS: &str = "Id,LoadState,UnitFileState,ActiveState,SubState,Result,StatusText";
    let mut systemctl = program::command(root, "systemctl");
    systemctl.args(["show", "--property", FIELDS]).args(UNITS);
    let text = program::output(systemctl, Duration::from_secs(5)).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// The machine's name, without its domain.
pub fn name(root: &Root) -> String {
    let text = root.read("/proc/sys/kernel/hostname").unwrap_or_default();
    let full = value::word(&text).unwrap_or_else(|| "client".to_owned());
    full.split('.').next().unwrap_or(&full).to_owned()
}

/// The release of the running kernel.
pub fn release(root: &Root) -> Option<String> {
    value::word(&root.read("/proc/sys/kernel/osrelease").ok()?)
}
