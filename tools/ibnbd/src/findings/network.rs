// SPDX-License-Identifier: GPL-2.0

//! Faults of what is between the two ends of a path: sizes of packets, firewalls, ports.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;

use ibtrs_proto::addr::Addr;
use nft_drops::{Drops, Manager, Packet};

use super::{Finding, Severity};
use crate::configfs;
use crate::family::{Family, Side};
use crate::firewall;
use crate::host::{self, Port, Transport};
use crate::model::{Machine, Path, PathState};
use crate::probe::{self, Link, Measured, Reach};
use crate::root::Root;
use crate::value;

/// The bytes that the kernel subtracts from an interface's MTU before it chooses the RDMA MTU.
const RESERVED: u64 = 96;
/// RDMA MTUs, the largest first.
const RDMA_MTUS: [u32; 5] = [4096, 2048, 1024, 512, 256];
/// The headers of the largest of RoCE's packets that we use: UDP, the transport's, the place of an
/// RDMA write, an immediate and the checksum.
const HEADERS: u32 = 8 + 12 + 16 + 4 + 4;

/// What IPv6 asks of every interface.
const IPV6_MTU: u32 = 1280;

/// Why a path is not connected, as far as its last error tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cause {
    /// The other end's connection manager says that nobody listens.
    Refused,
    /// Nothing was heard of the other end.
    Silence,
    /// No way leads to the address.
    NoRoute,
    /// Another one, which the error itself tells.
    Other,
}

impl Cause {
    fn of(error: &str) -> Self {
        let has = |words: &[&str]| words.iter().any(|word| error.contains(word));
        if has(&["ECONNREFUSED"]) {
            Self::Refused
        } else if has(&[
            "address error",
            "route error",
            "about the address",
            "EHOSTUNREACH",
            "ENETUNREACH",
        ]) {
            Self::NoRoute
        } else if has(&["unreachable", "ETIMEDOUT", "does not respond"]) {
            Self::Silence
        } else {
            Self::Other
        }
    }
}

/// The links to measure: those of all paths, each once.
pub fn links(root: &Root, machine: &Machine) -> Vec<Link> {
    let ports = host::ports(root);
    let all = paths(machine).filter_map(|path| link(root, &ports, path));
    let all: BTreeSet<Link> = all.collect();
    all.into_iter().collect()
}

/// Paths of our own modules and of the kernel's, but for those whose server was stopped as planned: that
/// it does not answer is no fault of what is between.
fn paths(machine: &Machine) -> impl Iterator<Item = &Path> {
    let sessions = machine.sessions.iter().filter(|s| !s.is_planned_stop());
    sessions.flat_map(|session| &session.paths)
}

fn link(root: &Root, ports: &[Port], path: &Path) -> Option<Link> {
    let (src, dst) = (
        address(root, path.src.as_deref()?)?,
        address(root, path.dst.as_deref()?)?,
    );
    let (from, to) = match path.side {
        Side::Client => (src, dst),
        Side::Server => (dst, src),
    };
    let port = port_of(ports, path);
    // A server has connected paths only, a client's may have no device yet.
    let is_roce = port.is_none_or(|port| port.transport == Some(Transport::Roce));
    Some(Link {
        from,
        to,
        need: port.and_then(|port| need(root, port, from)),
        ask_roce: is_roce && path.state != PathState::Connected,
    })
}

fn address(root: &Root, text: &str) -> Option<SocketAddr> {
    probe::address(text, &|name| {
        let file = format!("/sys/class/net/{name}/ifindex");
        value::number(&root.read(&file).ok()?)
    })
}

fn port_of<'a>(ports: &'a [Port], path: &Path) -> Option<&'a Port> {
    let number = path.port.map(|number| number.to_string());
    ports.iter().find(|port| {
        Some(&port.device) == path.hca.as_ref()
            && number.as_ref().is_none_or(|number| *number == port.port)
    })
}

/// The interface that has the address: VLANs share the link-local address of what they are on, and
/// the scope tells them apart.
fn interface(root: &Root, port: &Port, from: SocketAddr) -> Option<String> {
    let scope = match from {
        SocketAddr::V6(from) if from.scope_id() != 0 => host::interface_of(root, from.scope_id()),
        _ => None,
    };
    scope
        .or_else(|| host::interface_with(root, port, from.ip()))
        .or_else(|| port.interface.clone())
}

/// The size of the largest packets that RDMA sends from an address; none where IP has no say.
fn need(root: &Root, port: &Port, from: SocketAddr) -> Option<u32> {
    if port.transport != Some(Transport::Roce) {
        return None;
    }
    let mtu = host::mtu(root, &interface(root, port, from)?)?;
    let ip = if from.is_ipv4() { 20 } else { 40 };
    rdma_mtu(mtu).map(|mtu| mtu + HEADERS + ip)
}

/// The RDMA MTU that the kernel chooses for connections over an interface.
fn rdma_mtu(mtu: u64) -> Option<u32> {
    let fits = |rdma: &&u32| u64::from(**rdma) + RESERVED <= mtu;
    RDMA_MTUS.iter().find(fits).copied()
}

/// Faults of links, and the reasons why paths are not connected.
pub(super) fn all(root: &Root, machine: &Machine, measured: &[Measured]) -> Vec<Finding> {
    let ports = host::ports(root);
    let of = |path: &Path| {
        let link = link(root, &ports, path)?;
        measured.iter().find(|found| found.link == link)
    };
    let mut found = Vec::new();
    for path in paths(machine) {
        let measured = of(path);
        if let Some(measured) = measured {
            let interface = port_of(&ports, path)
                .and_then(|port| self::interface(root, port, measured.link.from));
            found.extend(of_reach(path, measured, interface.as_deref()));
        }
        let is_ours = path.family == Family::Ibnbd && path.side == Side::Client;
        if is_ours && path.state == PathState::Disconnected {
            found.push(not_connected(path, measured));
        }
    }
    found.extend(of_firewall(root, machine, &ports));
    found
}

fn of_reach(path: &Path, measured: &Measured, interface: Option<&str>) -> Option<Finding> {
    let name = format!("session {}: path {}", path.session, path.name);
    let to = measured.link.to.ip();
    let need = measured.link.need?;
    match &measured.reach {
        Reach::Passes => None,
        Reach::Stops(largest) => {
            let largest_is = largest.map_or_else(
                || "none of the smaller ones that were tried does".to_owned(),
                |size| format!("those of {size} do"),
            );
            let what = format!("{name}: packets of {need} bytes, as RDMA sends them, do not reach {to}, {largest_is}: the path connects, but large requests are lost");
            let device = interface.unwrap_or("INTERFACE");
            let again = match path.side {
                Side::Client => format!("ibnbd path reconnect {} {}", path.session, path.name),
                Side::Server => "reconnect the path on the client".to_owned(),
            };
            let size = largest.map_or("SIZE".to_owned(), |size| size.to_string());
            // The client's end proposes the size for both directions.
            let (severity, what) = match path.side {
                Side::Client => (Severity::Error, what),
                Side::Server => (
                    Severity::Hint,
                    format!("{what}, if the client's interface has the same MTU"),
                ),
            };
            let remedy = match largest {
                Some(size) if to.is_ipv6() && *size < IPV6_MTU => format!(
                    "an MTU of at least {IPV6_MTU} on what is between them, as IPv6 needs, then: {again}"
                ),
                _ => format!("ip link set {device} mtu {size}, at both ends, then: {again}; or a larger MTU on what is between them"),
            };
            Some(Finding::new(severity, what, remedy))
        }
        // Of one that is not connected there is another finding.
        _ if path.state != PathState::Connected => None,
        Reach::Silent => {
            let what = format!("{name}: it is not known whether packets of {need} bytes, as RDMA sends them, reach {to}: nothing answers UDP, and a firewall may drop ICMP");
            let remedy = format!(
                "let ICMP destination unreachable pass, or try: ping -M do -s {} {to}",
                need.saturating_sub(if to.is_ipv4() { 28 } else { 48 })
            );
            Some(Finding::new(Severity::Hint, what, remedy))
        }
        Reach::Unsent(why) => {
            let what = format!(
                "{name}: it is not known whether packets of {need} bytes, as RDMA sends them, reach {to}: {why}"
            );
            let remedy = format!(
                "if the session belongs to another network namespace, run it there; if a firewall rejects UDP, try: ping -M do -s {} {to}",
                need.saturating_sub(if to.is_ipv4() { 28 } else { 48 })
            );
            Some(Finding::new(Severity::Hint, what, remedy))
        }
    }
}

/// A path that is not connected: the reason, and the next step.
fn not_connected(path: &Path, measured: Option<&Measured>) -> Finding {
    let name = &path.name;
    let last = path.last_error.as_deref();
    let why = last.map(|why| format!(": {why}")).unwrap_or_default();
    let what = format!(
        "session {}: path {name} is not connected{why}",
        path.session
    );
    let exact = last.and_then(crate::advice::of_line).map(String::from);
    let remedy = exact
        .or_else(|| remedy(Cause::of(last?), path, measured))
        .unwrap_or_else(|| format!("ibnbd path reconnect {} {name}", path.session));
    Finding::new(Severity::Warning, what, remedy)
}

fn remedy(cause: Cause, path: &Path, measured: Option<&Measured>) -> Option<String> {
    let again = format!("ibnbd path reconnect {} {}", path.session, path.name);
    let to = path.dst.as_deref().unwrap_or("the server");
    let to = to.strip_prefix("ip:").unwrap_or(to);
    match cause {
        Cause::Refused => Some(format!("nobody listens on the port of {to}: load ibnbd_server there, check its port_nr, and `ibnbd port list` there")),
        Cause::NoRoute => Some(format!("there is no route to {to}: check cables, routes and addresses at both ends (ip route get {to}), then: {again}")),
        Cause::Silence => {
            let measured = measured?;
            if measured.roce_is_closed {
                return Some(format!("{to} has no RoCE, or its firewall rejects it: UDP port 4791 is closed there; load the driver of the RDMA device there, or: rdma link add rxe0 type rxe netdev INTERFACE"));
            }
            let is_soft = path.hca.as_deref().is_some_and(|hca| hca.starts_with("rxe"));
            match measured.reach {
                Reach::Passes if is_soft => Some(soft_roce(path, to, &again)),
                Reach::Passes => Some(format!("{to} is up, but its RDMA is silent: let UDP port 4791 (RoCE) or the server's TCP port (iWARP) pass in both directions, then: {again}; `ibnbd check` there sees its own rules")),
                Reach::Silent => Some(format!("nothing answers at {to}: check that the server is up, and cables, switches and firewalls between, then: {again}")),
                // That is a finding of its own.
                Reach::Stops(_) | Reach::Unsent(_) => None,
            }
        }
        Cause::Other => None,
    }
}

/// Soft-RoCE that does not answer, though packets reach the other end.
fn soft_roce(path: &Path, to: &str, again: &str) -> String {
    let hca = path.hca.as_deref().unwrap_or("rxe0");
    format!("{to} is up, but its RDMA is silent: after a pulled cable or a change of addresses soft-RoCE may have lost its address; create the device again at both ends: rdma link del {hca}, rdma link add {hca} type rxe netdev INTERFACE, then: {again}; else let UDP port 4791 pass in both directions")
}

fn of_firewall(root: &Root, machine: &Machine, ports: &[Port]) -> Vec<Finding> {
    let listening = Listening::read(root);
    let packets = packets(&listening, ports);
    if packets.is_empty() {
        return Vec::new();
    }
    let rules = match firewall::rules(root) {
        Ok(rules) => rules,
        Err(error) if error.kind() == io::ErrorKind::TimedOut => return vec![not_read(&packets)],
        Err(_) => return Vec::new(),
    };
    let is_v6 = |address: Option<&str>| address.is_some_and(|text| text.matches(':').count() > 1);
    let (v6, v4): (Vec<&Path>, Vec<&Path>) =
        paths(machine).partition(|path| is_v6(path.dst.as_deref()));
    let mut found = Vec::new();
    for packet in packets {
        let drops = nft_drops::drops(&rules, packet);
        // Paths come to the server at its ports only.
        let of_ports = listening.kinds(packet);
        let (v4, v6) = match packet.protocol {
            "tcp" if !of_ports.is_empty() => (of_ports.v4, of_ports.v6),
            _ => (of_ports.v4 || !v4.is_empty(), of_ports.v6 || !v6.is_empty()),
        };
        let counts = |drops: &&Drops| match drops.family.as_str() {
            "ip6" => v6,
            "ip" => v4 || !v6,
            _ => true,
        };
        // The server's port is the destination of what comes in only, while RoCE has one port for
        // both.
        let counts =
            |drops: &&Drops| counts(drops) && (packet.protocol == "udp" || drops.hook == "input");
        found.extend(
            drops
                .iter()
                .filter(counts)
                .map(|drops| dropped(drops, packet)),
        );
    }
    found
}

/// Kinds of addresses.
#[derive(Clone, Copy, Default)]
struct Kinds {
    v4: bool,
    v6: bool,
}

impl Kinds {
    const fn is_empty(self) -> bool {
        !self.v4 && !self.v6
    }
}

/// Where the server of this machine listens.
enum Listening {
    /// On all addresses, at the port number of the module; none without a server.
    Everywhere(Option<u16>),
    /// On the ports in configfs that are enabled: their IP addresses and numbers. InfiniBand's
    /// packets do not pass a firewall.
    On(Vec<(Addr, u16)>),
}

impl Listening {
    fn read(root: &Root) -> Self {
        let all = configfs::ports(root);
        if all.is_empty() {
            let number = host::parameter(root, "ibnbd_server", "port_nr");
            let number = number.and_then(|number| number.parse().ok());
            return Self::Everywhere(number.filter(|number| *number > 0));
        }
        let enabled = all.iter().filter(|port| port.enable == Some(true));
        let place = |port: &configfs::Port| {
            let address = configfs::address::parse(port.address.as_deref()?).ok()?;
            let is_ip = !matches!(address, Addr::Gid(_));
            Some((address, port.port?)).filter(|_| is_ip)
        };
        Self::On(enabled.filter_map(place).collect())
    }

    /// The port numbers, each once.
    fn numbers(&self) -> BTreeSet<u16> {
        match self {
            Self::Everywhere(number) => number.iter().copied().collect(),
            Self::On(places) => places.iter().map(|(_, number)| *number).collect(),
        }
    }

    /// The kinds of the addresses of ports to which a packet may go; none while there are no ports.
    fn kinds(&self, packet: Packet) -> Kinds {
        let Self::On(places) = self else {
            return Kinds::default();
        };
        let goes_there = |number: &u16| packet.protocol == "udp" || packet.port == *number;
        let places = places.iter().filter(|(_, number)| goes_there(number));
        places.fold(Kinds::default(), |kinds, (address, _)| match address {
            Addr::V4(_) => Kinds { v4: true, ..kinds },
            _ => Kinds { v6: true, ..kinds },
        })
    }
}

/// The packets that have to pass: those of hardware do not go through the rules of the kernel.
fn packets(listening: &Listening, ports: &[Port]) -> Vec<Packet> {
    let has = |transport| {
        let mut software = ports.iter().filter(|port| port.is_software);
        software.any(|port| port.transport == Some(transport))
    };
    let mut all = Vec::new();
    if has(Transport::Roce) {
        all.push(Packet {
            protocol: "udp",
            port: probe::ROCE_PORT,
        });
    }
    if has(Transport::Iwarp) {
        let protocol = "tcp";
        let numbers = listening.numbers().into_iter();
        all.extend(numbers.map(|port| Packet { protocol, port }));
    }
    all
}

fn not_read(packets: &[Packet]) -> Finding {
    let ports = packets
        .iter()
        .map(|Packet { protocol, port }| format!("{protocol} port {port}"));
    let ports: Vec<String> = ports.collect();
    let what = format!(
        "it is not known whether the firewall drops {}: nft did not answer within {} s",
        ports.join(" or "),
        firewall::LIMIT.as_secs()
    );
    Finding::new(Severity::Hint, what, "try: nft -j list ruleset")
}

fn dropped(drops: &Drops, packet: Packet) -> Finding {
    let Packet { protocol, port } = packet;
    let Drops {
        family,
        table,
        chain,
        hook,
        manager,
    } = drops;
    let what = format!("the firewall drops {protocol} port {port}, which RDMA uses: chain {chain} of table {family} {table} ({hook})");
    let remedy = match (manager, hook.as_str()) {
        (Some(Manager::Firewalld), "input") => format!(
            "firewall-cmd --permanent --add-port={port}/{protocol}, then: firewall-cmd --reload"
        ),
        (Some(Manager::Ufw), "input") => format!("ufw allow {port}/{protocol}"),
        (Some(Manager::Ufw), _) => format!("ufw allow out {port}/{protocol}"),
        _ => format!("nft insert rule {family} {table} {chain} {protocol} dport {port} accept, and the same in the file that the rules come from"),
    };
    Finding::new(Severity::Warning, what, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_opened_by_the_program_that_has_made_the_rules() {
        for (manager, hook, remedy) in [
            (
                Some(Manager::Firewalld),
                "input",
                "firewall-cmd --permanent --add-port=4791/udp",
            ),
            (Some(Manager::Ufw), "input", "ufw allow 4791/udp"),
            (Some(Manager::Ufw), "output", "ufw allow out 4791/udp"),
            (
                None,
                "input",
                "nft insert rule ip t c udp dport 4791 accept",
            ),
        ] {
            let drops = Drops {
                family: "ip".to_owned(),
                table: "t".to_owned(),
                chain: "c".to_owned(),
                hook: hook.to_owned(),
                manager,
            };
            let packet = Packet {
                protocol: "udp",
                port: 4791,
            };
            let found = dropped(&drops, packet);
            assert!(found.remedy.starts_with(remedy), "{found:?}");
        }
    }

    #[test]
    fn the_rdma_mtu_is_the_kernels() {
        for (mtu, rdma) in [
            (9000, Some(4096)),
            (4192, Some(4096)),
            (4191, Some(2048)),
            (2144, Some(2048)),
            (1500, Some(1024)),
            (1280, Some(1024)),
            (1119, Some(512)),
            (352, Some(256)),
            (351, None),
        ] {
            assert_eq!(rdma_mtu(mtu), rdma, "{mtu}");
        }
    }

    #[test]
    fn causes_are_told_apart() {
        for (error, cause) in [
            (
                "connection 0 was refused: reason 8, ECONNREFUSED",
                Cause::Refused,
            ),
            ("connection 0: unreachable", Cause::Silence),
            ("no heartbeat from the server (ETIMEDOUT)", Cause::Silence),
            ("connection 0: address error", Cause::NoRoute),
            ("connection 1: no answer about the address", Cause::NoRoute),
            ("cannot connect: EHOSTUNREACH", Cause::NoRoute),
            (
                "connection 0 was refused: reason 28, ECONNRESET",
                Cause::Other,
            ),
        ] {
            assert_eq!(Cause::of(error), cause, "{error}");
        }
    }

    use crate::tree::Tree;

    fn measured(link: Link, reach: Reach, roce_is_closed: bool) -> Measured {
        Measured {
            link,
            reach,
            roce_is_closed,
        }
    }

    /// A client with a path over soft-RoCE on `eth0`, and one over its VLAN 5.
    fn tree() -> Tree {
        let tree = Tree::new();
        tree.client().session(
            "s",
            &[
                ("10.0.1.2", "10.0.1.1", "connected"),
                ("10.0.2.2", "10.0.2.1", "disconnected"),
            ],
        );
        tree.files(
            "/sys/class/infiniband/rxe0",
            &[("node_type", "1: CA\n"), ("parent", "eth0\n")],
        );
        tree.files(
            "/sys/class/infiniband/rxe0/ports/1",
            &[
                ("state", "4: ACTIVE\n"),
                ("link_layer", "Ethernet\n"),
                ("gids/0", "fe80:0000:0000:0000:5054:00ff:fe00:0102\n"),
                ("gids/1", "0000:0000:0000:0000:0000:ffff:0a00:0102\n"),
                ("gids/2", "0000:0000:0000:0000:0000:ffff:0a00:0202\n"),
                ("gids/3", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
                ("gid_attrs/ndevs/0", "eth0\n"),
                ("gid_attrs/ndevs/1", "eth0\n"),
                ("gid_attrs/ndevs/2", "eth0.5\n"),
            ],
        );
        tree.file("/sys/class/net/eth0/mtu", "9000\n")
            .file("/sys/class/net/eth0.5/mtu", "1500\n");
        tree
    }

    fn findings(tree: &Tree, measured: &[Measured]) -> Vec<Finding> {
        let root = Root::new(tree.base());
        all(&root, &Machine::read(&root), measured)
    }

    fn links_of(tree: &Tree) -> Vec<Link> {
        let root = Root::new(tree.base());
        links(&root, &Machine::read(&root))
    }

    #[test]
    fn each_link_is_measured_once_with_what_its_interface_sends() {
        let tree = tree();
        let paths = [("10.0.1.2", "10.0.1.1", "connected")];
        tree.session("t", &paths)
            .served("u", "10.0.1.1", "10.0.1.2");
        let found: Vec<_> = links_of(&tree)
            .iter()
            .map(|link| (link.to.to_string(), link.need, link.ask_roce))
            .collect();
        let expected = [
            ("10.0.1.1:0".to_owned(), Some(4160), false),
            ("10.0.2.1:0".to_owned(), Some(1088), true),
        ];
        assert_eq!(found, expected);
        // Others have no limit that IP knows of.
        tree.file(
            "/sys/class/infiniband/rxe0/ports/1/link_layer",
            "InfiniBand\n",
        );
        let found = links_of(&tree);
        assert!(found.iter().all(|l| l.need.is_none() && !l.ask_roce));
    }

    #[test]
    fn packets_that_do_not_pass_are_an_error() {
        let tree = tree();
        let links = links_of(&tree);
        let with = |reach| findings(&tree, &[measured(links[0], reach, false)]).remove(0);
        let found = with(Reach::Stops(Some(1500)));
        assert_eq!(found.severity, Severity::Error);
        assert_eq!(found.what, "session s: path ip:10.0.1.2@ip:10.0.1.1: packets of 4160 bytes, as RDMA sends them, do not reach 10.0.1.1, those of 1500 do: the path connects, but large requests are lost");
        assert_eq!(found.remedy, "ip link set eth0 mtu 1500, at both ends, then: ibnbd path reconnect s ip:10.0.1.2@ip:10.0.1.1; or a larger MTU on what is between them");
        let found = with(Reach::Stops(None));
        assert!(found.remedy.starts_with("ip link set eth0 mtu SIZE"));
        let found = with(Reach::Silent);
        assert_eq!(found.severity, Severity::Hint);
        assert!(found.remedy.ends_with("ping -M do -s 4132 10.0.1.1"));
        let found = with(Reach::Unsent("no way".to_owned()));
        assert!(found.severity == Severity::Hint && found.what.ends_with(": no way"));
        // Of the path that is not connected.
        assert!(with(Reach::Passes).what.contains("is not connected"));
    }

    #[test]
    fn the_next_step_for_a_path_depends_on_why_it_is_not_connected() {
        let tree = tree();
        let link = links_of(&tree)[1];
        let file = "/sys/class/ibtrs-client/s/paths/ip:10.0.2.2@ip:10.0.2.1/last_error";
        for (error, reach, closed, remedy) in [
            (
                "connection 0 was refused: reason 8, ECONNREFUSED",
                Reach::Passes,
                false,
                "nobody listens on the port of 10.0.2.1",
            ),
            (
                "connection 0: address error",
                Reach::Silent,
                false,
                "there is no route to 10.0.2.1",
            ),
            (
                "connection 0: unreachable",
                Reach::Passes,
                false,
                "10.0.2.1 is up, but its RDMA is silent: after a pulled cable or a change of addresses soft-RoCE may have lost its address; create the device again at both ends: rdma link del rxe0, rdma link add rxe0 type rxe netdev INTERFACE",
            ),
            (
                "connection 0: unreachable",
                Reach::Passes,
                true,
                "10.0.2.1 has no RoCE, or its firewall rejects it",
            ),
            (
                "no heartbeat from the server (ETIMEDOUT)",
                Reach::Silent,
                false,
                "nothing answers at 10.0.2.1",
            ),
            (
                "no heartbeat from the server (ETIMEDOUT)",
                Reach::Unsent(String::new()),
                false,
                "ibnbd path reconnect s ip:10.0.2.2@ip:10.0.2.1",
            ),
            (
                "the server no longer knows this path",
                Reach::Passes,
                false,
                "ibnbd path reconnect s ip:10.0.2.2@ip:10.0.2.1",
            ),
        ] {
            tree.file(file, format!("{error}\n"));
            let found = findings(&tree, &[measured(link, reach, closed)]);
            assert_eq!(found.len(), 1, "{error}: {found:?}");
            assert!(found[0].remedy.starts_with(remedy), "{error}: {found:?}");
            assert!(found[0].what.ends_with(error) && found[0].severity == Severity::Warning);
        }
        // Nothing was measured.
        assert!(findings(&tree, &[])[0].remedy.contains("path reconnect"));
    }
}
