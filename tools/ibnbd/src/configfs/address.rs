// SPDX-License-Identifier: GPL-2.0

//! Addresses that ports listen on.

use std::net::Ipv6Addr;

use ibtrs_proto::addr::{Addr, AddrError};
use ibtrs_proto::listen::{self, ListenError};

use crate::host;
use crate::mapping;
use crate::root::Root;

/// Reads an address: `10.0.1.1` or `ip:10.0.1.1`, `fe80::1%eth0`, `gid:fe80::1`, also the
/// unspecified `0.0.0.0` and `::`. Interfaces are not looked up.
///
/// # Errors
///
/// Why the text is none, as it goes on behind the text.
pub fn parse(text: &str) -> Result<Addr, String> {
    let has_kind = text.starts_with("ip:") || text.starts_with("gid:");
    let plain = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    let found = match has_kind {
        true => Addr::parse(text),
        false => Addr::parse(&format!("ip:{}", plain.unwrap_or(text))),
    };
    match found {
        Ok(address) => listens(address),
        Err(AddrError::Scope) => {
            Err("has an interface, which only a link-local address has".to_owned())
        }
        Err(_) => Err("is not an address such as 10.0.1.1, fe80::1%eth0 or gid:fe80::1".to_owned()),
    }
}

/// An address that the server can listen on.
fn listens(address: Addr) -> Result<Addr, String> {
    let why = match (listen::check(&address), &address) {
        (Ok(()), _) => return Ok(address),
        // The name of an interface becomes a number.
        (Err(ListenError::Scope), Addr::V6(_, Some(_))) => return Ok(address),
        (Err(ListenError::Scope), _) => "is link-local, and needs its interface: fe80::1%eth0",
        (Err(ListenError::Loopback), _) => "is a loopback address, which no RDMA device has",
        (Err(ListenError::Mapped), _) => "is an IPv4 address in IPv6: write it as 10.0.1.1",
        (Err(ListenError::Group), _) => "is a multicast or broadcast address",
    };
    Err(why.to_owned())
}

/// An address as the file of a port takes it, where an interface has its number.
///
/// # Errors
///
/// Why the text is none, as it goes on behind the text.
pub fn canonical(root: &Root, text: &str) -> Result<String, String> {
    match parse(text)? {
        Addr::V6(ip, Some(scope)) => {
            let interface = scope.as_str();
            let number = mapping::scope_number(root, interface)
                .map_err(|_| format!("has the interface {interface}, which is not there"))?;
            Ok(format!("ip:{}%{number}", Ipv6Addr::from(ip)))
        }
        address => Ok(address.to_string()),
    }
}

/// Whether two texts are one address, however they are written.
pub fn is_same(root: &Root, one: &str, other: &str) -> bool {
    let address = |text| canonical(root, text).ok();
    one == other || address(one).is_some_and(|one| address(other) == Some(one))
}

/// An address as files have it: interfaces have other numbers after the next boot, and keep their
/// names.
pub fn lasting(root: &Root, text: &str) -> String {
    let name = |scope: &str| host::interface_of(root, scope.parse().ok()?);
    let text = match text.split_once('%') {
        Some((ip, scope)) => format!("{ip}%{}", name(scope).unwrap_or_else(|| scope.to_owned())),
        None => text.to_owned(),
    };
    text.strip_prefix("ip:").map(String::from).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    fn root(tree: &Tree) -> Root {
        tree.file("/sys/class/net/eth0/ifindex", "7\n");
        Root::new(tree.base())
    }

    #[test]
    fn each_way_to_write_an_address_is_the_kernels() {
        let tree = Tree::new();
        let root = root(&tree);
        for (text, expected) in [
            ("10.0.1.1", "ip:10.0.1.1"),
            ("ip:10.0.1.1", "ip:10.0.1.1"),
            ("0.0.0.0", "ip:0.0.0.0"),
            ("::", "ip:::"),
            ("ip:::", "ip:::"),
            ("[fd00::1]", "ip:fd00::1"),
            ("FD00:0::1", "ip:fd00::1"),
            ("fe80::1%eth0", "ip:fe80::1%7"),
            ("ip:fe80::1%9", "ip:fe80::1%9"),
            ("gid:fe80::1", "gid:fe80:0000:0000:0000:0000:0000:0000:0001"),
        ] {
            assert_eq!(canonical(&root, text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_told() {
        let tree = Tree::new();
        let root = root(&tree);
        for (text, why) in [
            ("", "is not an address such as"),
            ("web1", "is not an address such as"),
            ("10.0.1.1:1234", "is not an address such as"),
            ("10.0.1.0/24", "is not an address such as"),
            ("gid:10.0.1.1", "is not an address such as"),
            ("fe80::1", "needs its interface"),
            ("fd00::1%eth0", "only a link-local address has"),
            ("fe80::1%", "only a link-local address has"),
            ("fe80::1%eth9", "has the interface eth9, which is not there"),
        ] {
            let found = canonical(&root, text).unwrap_err();
            assert!(found.contains(why), "{text}: {found}");
        }
        // It may come later.
        assert!(parse("fe80::1%eth9").is_ok());
    }

    #[test]
    fn files_have_names_of_interfaces() {
        let tree = Tree::new();
        let root = root(&tree);
        for (text, expected) in [
            ("ip:fe80::1%7", "fe80::1%eth0"),
            ("ip:fe80::1%9", "fe80::1%9"),
            ("ip:10.0.1.1", "10.0.1.1"),
            ("gid:fe80::1", "gid:fe80::1"),
        ] {
            assert_eq!(lasting(&root, text), expected);
            assert!(is_same(&root, text, expected), "{text}");
        }
        assert!(!is_same(&root, "ip:10.0.1.1", "10.0.1.2"));
        assert!(!is_same(&root, "x", "y") && is_same(&root, "x", "x"));
    }
}
