// SPDX-License-Identifier: GPL-2.0

//! The addresses of a server, as a client is told them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use ibtrs_proto::addr::Addr;

use super::handshake::Place;
use super::token::MOST_ADDRESSES;
use crate::configfs::{self, Port};
use crate::host::{self, Transport};
use crate::program;
use crate::root::Root;

/// Where clients find the server: the ports in configfs on which it listens, or without any port all
/// addresses of its RDMA devices. All have one port number, as all paths of a session go to one.
/// None if there is no address.
pub fn place(root: &Root, ports: &[Port]) -> Option<Place> {
    let listens = |port: &&Port| port.enable == Some(true) && port.listening != Some(false);
    let port = match ports.is_empty() {
        true => without_ports(root)?,
        false => ports.iter().find(listens)?.port?,
    };
    let is_at = |other: &&Port| other.port == Some(port);
    let named = ports.iter().filter(listens).filter(is_at);
    let mut addresses: Vec<String> = named
        .filter_map(|port| port.address.as_deref())
        .flat_map(|text| expanded(root, text))
        .collect();
    if ports.is_empty() {
        addresses = texts(root, |_| true);
    }
    addresses.truncate(MOST_ADDRESSES);
    (!addresses.is_empty()).then_some(Place { addresses, port })
}

/// The port number of a server without ports in configfs; none if it listens on ports only.
fn without_ports(root: &Root) -> Option<u16> {
    let number = host::parameter(root, "ibnbd_server", "port_nr");
    let number = number.as_deref().and_then(configfs::usual_number);
    number.filter(|_| !configfs::listens_on_ports_only(root))
}

/// The addresses that `wants` takes, as clients are told them.
fn texts(root: &Root, wants: fn(&IpAddr) -> bool) -> Vec<String> {
    let all = all(root, wants).into_iter();
    all.map(|address| format!("ip:{address}")).collect()
}

/// The addresses that the address of a port stands for. A link-local one is none for others, as its
/// interface is one of this machine.
fn expanded(root: &Root, port: &str) -> Vec<String> {
    match Addr::parse(port) {
        Ok(Addr::V4(bytes)) if bytes == [0; 4] => texts(root, IpAddr::is_ipv4),
        Ok(Addr::V6(bytes, _)) if bytes == [0; 16] => texts(root, IpAddr::is_ipv6),
        Ok(Addr::V6(_, Some(_))) | Err(_) => Vec::new(),
        Ok(address) => vec![address.to_string()],
    }
}

/// The addresses of these that TCP takes.
pub fn for_tcp(place: &Place) -> Vec<IpAddr> {
    let plain = |text: &String| text.strip_prefix("ip:")?.parse().ok();
    place.addresses.iter().filter_map(plain).collect()
}

/// All addresses of RDMA devices that other machines can reach.
fn all(root: &Root, wants: fn(&IpAddr) -> bool) -> BTreeSet<IpAddr> {
    let ports = host::ports(root).into_iter();
    let ports = ports.filter(|port| port.state.as_deref() != Some("DOWN"));
    ports.flat_map(|port| of_port(root, &port, wants)).collect()
}

/// The IPv4 addresses of a port if it has any, else those of IPv6: two paths over one link would
/// carry no more than one.
fn of_port(root: &Root, port: &host::Port, wants: fn(&IpAddr) -> bool) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = match port.transport {
        // A GID is an address of the interface.
        Some(Transport::Roce) => host::gids(root, port).into_iter().map(plain).collect(),
        _ => of_interfaces(root, port),
    };
    found.retain(|address| is_for_others(address) && wants(address));
    if found.iter().any(IpAddr::is_ipv4) {
        found.retain(IpAddr::is_ipv4);
    }
    found
}

fn plain(gid: Ipv6Addr) -> IpAddr {
    gid.to_ipv4_mapped().map_or(gid.into(), IpAddr::from)
}

fn is_for_others(address: &IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(is_link_local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// The addresses of the interfaces of an RDMA device, whose GIDs are none.
fn of_interfaces(root: &Root, port: &host::Port) -> Vec<IpAddr> {
    let folder = format!("/sys/class/infiniband/{}/device/net", port.device);
    let mut interfaces: BTreeSet<String> = port.interface.iter().cloned().collect();
    interfaces.extend(root.list_if_any(&folder).unwrap_or_default());
    let addresses = |interface: &String| {
        let mut ip = program::command(root, "ip");
        ip.args(["-oneline", "address", "show", "dev", interface]);
        let printed = program::output(ip, Duration::from_secs(5)).unwrap_or_default();
        of_lines(&String::from_utf8_lossy(&printed))
    };
    interfaces.iter().flat_map(addresses).collect()
}

/// The addresses in what `ip -oneline address` prints: `2: eth0    inet 10.0.1.1/24 ...`.
fn of_lines(printed: &str) -> Vec<IpAddr> {
    let address = |line: &str| {
        let mut words = line.split_whitespace();
        words.find(|word| matches!(*word, "inet" | "inet6"))?;
        let (address, _) = words.next()?.split_once('/')?;
        address.parse().ok()
    };
    printed.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    /// A server with soft-RoCE on two interfaces.
    fn server() -> (Tree, Root) {
        let tree = Tree::new();
        tree.server("");
        for (device, gids) in [
            (
                "rxe0",
                [
                    "fe80:0000:0000:0000:5054:00ff:fe12:3456",
                    "0000:0000:0000:0000:0000:ffff:0a00:0101",
                ],
            ),
            (
                "rxe1",
                [
                    "0000:0000:0000:0000:0000:ffff:0a00:0201",
                    "fd00:0000:0000:0000:0000:0000:0000:0001",
                ],
            ),
        ] {
            let folder = format!("/sys/class/infiniband/{device}");
            tree.file(&format!("{folder}/node_type"), "1: CA\n")
                .file(&format!("{folder}/ports/1/link_layer"), "Ethernet\n")
                .file(&format!("{folder}/ports/1/state"), "4: ACTIVE\n")
                .file(
                    &format!("{folder}/ports/1/gids/0"),
                    format!("{}\n", gids[0]),
                )
                .file(
                    &format!("{folder}/ports/1/gids/1"),
                    format!("{}\n", gids[1]),
                );
        }
        let root = Root::new(tree.base());
        (tree, root)
    }

    fn found(root: &Root) -> Option<(Vec<String>, u16)> {
        place(root, &configfs::ports(root)).map(|place| (place.addresses, place.port))
    }

    #[test]
    fn without_ports_it_is_each_address_that_others_reach() {
        let (tree, root) = server();
        let (addresses, port) = found(&root).unwrap();
        // Of two families on one link, one.
        assert_eq!(addresses, ["ip:10.0.1.1", "ip:10.0.2.1"]);
        assert_eq!(port, 1234);
        let place = Place { addresses, port };
        assert_eq!(for_tcp(&place).len(), 2);
        tree.file("/sys/class/infiniband/rxe1/ports/1/state", "1: DOWN\n");
        assert_eq!(found(&root).unwrap().0, ["ip:10.0.1.1"]);
        tree.file("/sys/module/ibnbd_server/parameters/port_nr", "0\n");
        assert_eq!(found(&root), None);
    }

    #[test]
    fn with_ports_it_is_where_it_listens() {
        let (tree, root) = server();
        tree.port("left", "ip:10.0.1.1")
            .port("gone", "ip:10.0.7.1")
            .port("ib", "gid:fe80:0000:0000:0000:0000:0000:0000:0002")
            .port("local", "ip:fe80::1%2")
            .port("other", "ip:10.0.9.1");
        let file = |port: &str, file: &str| format!("/sys/kernel/config/ibnbd/ports/{port}/{file}");
        tree.file(&file("gone", "listening"), "0\n")
            .file(&file("other", "port"), "1235\n");
        let (addresses, _) = found(&root).unwrap();
        assert_eq!(addresses.len(), 2);
        assert!(addresses.contains(&"ip:10.0.1.1".to_owned()));
        let place = Place { addresses, port: 1 };
        assert_eq!(for_tcp(&place), ["10.0.1.1".parse::<IpAddr>().unwrap()]);
        for port in ["left", "ib", "local", "other"] {
            tree.file(&file(port, "enable"), "0\n");
        }
        assert_eq!(found(&root), None);
    }

    #[test]
    fn a_port_for_all_addresses_stands_for_each() {
        let (tree, root) = server();
        tree.port("all", "ip:0.0.0.0");
        assert_eq!(found(&root).unwrap().0, ["ip:10.0.1.1", "ip:10.0.2.1"]);
        tree.port("all", "ip:::");
        assert_eq!(found(&root).unwrap().0, ["ip:fd00::1"]);
    }

    #[test]
    fn lines_of_ip_are_read() {
        let printed = "\
2: eth0    inet 10.0.1.1/24 brd 10.0.1.255 scope global eth0\\       valid_lft forever
2: eth0    inet6 fd00::1/64 scope global \\       valid_lft forever preferred_lft forever
3: eth1
4: eth2    inet nonsense
";
        let expected: [IpAddr; 2] = ["10.0.1.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        assert_eq!(of_lines(printed), expected);
    }
}
