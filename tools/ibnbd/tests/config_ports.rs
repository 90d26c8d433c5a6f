// SPDX-License-Identifier: GPL-2.0

//! Ports of configfs in configuration files: read, planned, saved and applied.

mod configured;
mod tree;

use std::fs;

use configured::planned::{good, kept, planned, steps, wrong};
use ibnbd_host::config::plan::Step;
use ibnbd_host::config::Port;
use ibnbd_host::family::Side;
use tree::ran::{self, run};
use tree::Tree;

const PORTS: &str = "/sys/kernel/config/ibnbd/ports";

const SERVER: &str = r#"# The left network.
[[port]]
name = "left"   # eth0
address = "10.0.1.1"

[[port]]
name = "right"
address = "fe80::1%eth1"
port = 1235
enable = false # for now
"#;

/// A server as the files say.
fn server() -> Tree {
    let tree = Tree::new();
    tree.server("")
        .port("left", "ip:10.0.1.1")
        .port("right", "ip:fe80::1%7")
        .file("/sys/class/net/eth1/ifindex", "7\n");
    tree.files(
        &format!("{PORTS}/right"),
        &[("port", "1235\n"), ("enable", "0\n"), ("listening", "0\n")],
    );
    tree
}

#[test]
fn ports_are_read() {
    let expected = |name: &str, address: &str, port, enable| Port {
        name: name.to_owned(),
        address: address.to_owned(),
        port,
        enable,
    };
    assert_eq!(
        good(SERVER).ports,
        [
            expected("left", "10.0.1.1", None, true),
            expected("right", "fe80::1%eth1", Some(1235), false)
        ]
    );
}

#[test]
fn all_that_is_wrong_is_told_with_its_place() {
    let text = r#"[[port]]
name = "a/b"
address = "web1"
port = 0
enable = 1
colour = "blue"
[[port]]
address = "10.0.1.1"
[[port]]
name = "left"
[[port]]
name = "left"
address = "fe80::1"
port = 65536
[[port]]
name = "a b"
address = 5
"#;
    let found = wrong(text);
    let expected = [
        "x.toml:2:8: name: the name of a port has no / and is neither . nor ..",
        "x.toml:3:11: address: \"web1\" is not an address such as 10.0.1.1, fe80::1%eth0 or gid:fe80::1",
        "x.toml:4:8: port: 0 is not 1 to 65535",
        "x.toml:5:10: enable: true or false is wanted",
        "x.toml:6:1: a port has no \"colour\"; it may have name, address, port, enable",
        "x.toml:7:1: a port needs a name",
        "x.toml:9:1: a port needs an address",
        "x.toml:13:11: address: \"fe80::1\" is link-local, and needs its interface: fe80::1%eth0",
        "x.toml:14:8: port: 65536 is not 1 to 65535",
        "x.toml:17:11: address: a text in quotes is wanted",
    ];
    assert_eq!(found, expected);
    let port = |name: &str, more: &str| format!("[[port]]\nname = '{name}'\naddress = {more}\n");
    let both = |one: &str, other: &str, more: &str| port(one, "'::'") + &port(other, more);
    assert_eq!(
        wrong(&both("a", "a", "'10.0.1.1'")),
        ["x.toml:5:8: there is a port \"a\" already"]
    );
    // The kernel would refuse the second one for ever.
    assert_eq!(
        wrong(&both("a", "b", "'ip:0::0'")),
        ["x.toml:6:11: address: port \"a\" has it already, with that number"]
    );
    good(&both("a", "b", "'::'\nport = 1235"));
    good(&both("a", "b", "'::'\nenable = false"));
    assert_eq!(
        wrong("port = 5\n"),
        ["x.toml:1:8: port: it begins with [[port]]"]
    );
}

#[test]
fn a_machine_that_is_as_its_files_say_needs_nothing() {
    let tree = server();
    assert_eq!(steps(&tree, SERVER, true), [""; 0]);
    tree.file(&format!("{PORTS}/right/address"), "ip:fe80::1%eth1\n");
    assert_eq!(steps(&tree, SERVER, true), [""; 0]);
}

/// The server listens only where it should before there is something to open.
#[test]
fn an_empty_machine_gets_the_server_then_ports_then_exports() {
    let tree = Tree::new();
    tree.file("/sys/class/net/eth1/ifindex", "7\n");
    let text = format!("[[export]]\ndevice = '/dev/vda'\nany_host = true\n{SERVER}");
    assert_eq!(
        steps(&tree, &text, false),
        [
            "+ load ibtrs_server",
            "+ load ibnbd_server",
            "+ port left",
            "+ port right",
            "~ set address of port left from nothing to ip:10.0.1.1, enable from 0 to 1",
            "~ set address of port right from nothing to ip:fe80::1%7, port from 1234 to 1235",
            "+ export /dev/vda as vda for any host",
        ]
    );
    assert_eq!(planned(&tree, SERVER, false, Some(Side::Client)), []);
    assert_eq!(planned(&tree, SERVER, false, Some(Side::Server)).len(), 6);
    // The number of the module that is to be loaded is that of its ports.
    let text = format!("{SERVER}[ibnbd_server]\nport_nr = 1235\n");
    assert_eq!(
        steps(&tree, &text, false).last().unwrap(),
        "~ set address of port right from nothing to ip:fe80::1%7"
    );
}

/// All steps are done before what is found out once more, in their order. A port that fails does
/// not let the server listen on all addresses again: nothing takes its directory back.
#[test]
fn directories_of_ports_are_made_in_steps_of_their_own() {
    use ibnbd_host::configfs::change::Change;
    let tree = Tree::new();
    tree.server("").configfs();
    tree.file("/sys/class/net/eth1/ifindex", "7\n");
    let steps = planned(&tree, SERVER, false, None);
    assert!(steps.iter().all(Step::is_first));
    let words = |step: &Step| match step {
        Step::Configure { changes, .. } => changes.clone(),
        other => panic!("{other}"),
    };
    let made: Vec<Vec<Change>> = steps.iter().map(words).collect();
    let [left, right, of_left, of_right] = made.as_slice() else {
        panic!("{made:?}");
    };
    assert_eq!(left, &[Change::MakeFolder(format!("{PORTS}/left"))]);
    assert_eq!(right, &[Change::MakeFolder(format!("{PORTS}/right"))]);
    let texts = |changes: &[Change]| changes.iter().map(Change::to_string).collect::<Vec<_>>();
    assert_eq!(texts(of_left), ["address=ip:10.0.1.1", "enable=1"]);
    assert_eq!(texts(of_right), ["address=ip:fe80::1%7", "port=1235"]);
}

#[test]
fn differences_are_found() {
    let tree = server();
    tree.files(
        &format!("{PORTS}/left"),
        &[("address", "ip:10.0.1.2\n"), ("port", "1299\n")],
    );
    tree.files(
        &format!("{PORTS}/right"),
        &[("enable", "1\n"), ("port", "x\n")],
    );
    assert_eq!(
        steps(&tree, SERVER, false),
        [
            "~ set enable of port left from 1 to 0",
            "~ set enable of port right from 1 to 0",
            "~ set address of port left from ip:10.0.1.2 to ip:10.0.1.1, port from 1299 to 1234, enable from 0 to 1",
            "~ set port of port right from unknown to 1235",
        ]
    );
    // An interface that comes later: the rest is done.
    fs::remove_file(tree.real("/sys/class/net/eth1/ifindex")).unwrap();
    assert_eq!(
        steps(&tree, SERVER, false)[0],
        "! port right: \"fe80::1%eth1\" has the interface eth1, which is not there"
    );
    // An address is not taken back where the kernel could not: it takes no empty one.
    tree.file(&format!("{PORTS}/left/address"), "\n");
    assert!(steps(&tree, SERVER, false)[1]
        .starts_with("~ set address of port left from nothing to ip:10.0.1.1, port"));
}

/// A port may have the address of one that goes: that one goes first, and the directory is there by
/// then.
#[test]
fn what_no_file_names_goes() {
    let tree = server();
    let text = SERVER.replace("\"left\"", "\"eth0\"");
    assert_eq!(
        steps(&tree, &text, true),
        [
            "+ port eth0",
            "- port left",
            "~ set address of port eth0 from nothing to ip:10.0.1.1, enable from 0 to 1",
        ]
    );
    // Without that, nothing can be done for it.
    assert_eq!(
        steps(&tree, &text, false),
        [
            "+ port eth0",
            "! port eth0: port left, which no file names, has that address and number: `ibnbd port remove left`, or take --prune",
        ]
    );
    tree.file(&format!("{PORTS}/left/enable"), "0\n");
    assert!(steps(&tree, &text, false)[1].starts_with("~ set address of port eth0"));
    tree.file(&format!("{PORTS}/left/enable"), "1\n");
    // Files without ports take none away: the server would listen on all addresses.
    assert_eq!(steps(&tree, "", true), [""; 0]);
}

const SWAPPED: &str = r#"[[port]]
name = "left"
address = "10.0.2.1"
[[port]]
name = "right"
address = "10.0.1.1"
"#;

fn both() -> Tree {
    let tree = Tree::new();
    tree.server("")
        .port("left", "ip:10.0.1.1")
        .port("right", "ip:10.0.2.1");
    tree
}

/// None of them could be enabled while the other one has its new address.
#[test]
fn ports_can_swap_their_addresses() {
    let tree = both();
    let expected = [
        "~ set enable of port left from 1 to 0",
        "~ set enable of port right from 1 to 0",
        "~ set address of port left from ip:10.0.1.1 to ip:10.0.2.1, enable from 0 to 1",
        "~ set address of port right from ip:10.0.2.1 to ip:10.0.1.1, enable from 0 to 1",
    ];
    assert_eq!(steps(&tree, SWAPPED, false), expected);
    tree.file("/etc/ibtrs/server.toml", SWAPPED);
    ran::good(&tree, &["apply"]);
    assert_eq!(steps(&tree, SWAPPED, false), [""; 0]);
    // A single one does not stay disabled while others have their turn.
    tree.file(&format!("{PORTS}/left/address"), "ip:10.0.1.9\n");
    assert_eq!(
        steps(&tree, SWAPPED, false),
        ["~ set address of port left from ip:10.0.1.9 to ip:10.0.2.1"]
    );
}

#[test]
fn a_port_that_cannot_be_enabled_listens_as_before() {
    let tree = both();
    let text = SWAPPED
        .replace("10.0.1.1", "10.0.3.1")
        .replace("10.0.2.1", "10.0.4.1");
    tree.file("/etc/ibtrs/server.toml", text + "port = 1235\n");
    let port = tree.real(&format!("{PORTS}/right/port"));
    fs::remove_file(&port).unwrap();
    fs::create_dir(&port).unwrap();
    let ran = run(&tree, &["apply"]);
    assert_eq!(ran.code, 1);
    let expected = "ibnbd: ~ port right settings again as before: enable=1\n";
    assert!(ran.err.contains(expected), "{}", ran.err);
    let setting = |name: &str| tree.text(&format!("{PORTS}/{name}"));
    assert_eq!(setting("left/address"), "ip:10.0.4.1\n");
    assert_eq!(setting("right/address"), "ip:10.0.2.1\n");
    assert_eq!(
        (setting("left/enable"), setting("right/enable")),
        ("1\n".into(), "1\n".into())
    );
}

#[test]
fn what_is_so_already_is_not_touched() {
    assert_eq!(kept(&server(), SERVER, true), SERVER);
}

#[test]
fn what_is_written_is_what_is() {
    let tree = server();
    tree.port("half", "")
        .port("ib", "gid:fe80:0000:0000:0000:0000:0000:0000:0001");
    let text = kept(&tree, "# mine\n", false);
    assert!(text.contains("# mine"), "{text}");
    assert!(text.contains("address = \"fe80::1%eth1\"\n"), "{text}");
    let ports = good(&text).ports;
    let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
    assert_eq!(names, ["ib", "left", "right"]);
    assert_eq!(ports[1..], good(SERVER).ports);
    assert_eq!(steps(&tree, &text, false), [""; 0]);
    assert_eq!(kept(&tree, &text, true), text);
}

#[test]
fn comments_and_order_stay_where_something_changes() {
    let tree = server();
    tree.files(
        &format!("{PORTS}/right"),
        &[("enable", "1\n"), ("port", "1236\n")],
    );
    tree.file(&format!("{PORTS}/left/address"), "ip:fe80::9%7\n");
    let expected = SERVER
        .replace("port = 1235", "port = 1236")
        .replace("enable = false", "enable = true")
        .replace("10.0.1.1", "fe80::9%eth1");
    assert_eq!(kept(&tree, SERVER, false), expected);
}

#[test]
fn what_is_gone_stays_in_the_file_unless_it_is_pruned() {
    let tree = Tree::new();
    tree.server("").configfs();
    assert_eq!(kept(&tree, SERVER, false), SERVER);
    assert_eq!(good(&kept(&tree, SERVER, true)).ports, []);
    assert_eq!(kept(&tree, "", false), "");
}

#[test]
fn apply_changes_what_differs() {
    let tree = server();
    tree.file("/etc/ibtrs/server.toml", SERVER);
    assert_eq!(ran::good(&tree, &["apply"]), "");
    tree.file(&format!("{PORTS}/left/enable"), "0\n");
    assert_eq!(
        ran::good(&tree, &["apply"]),
        "~ set enable of port left from 0 to 1\n"
    );
    assert_eq!(ran::good(&tree, &["apply"]), "");
    // A failure is reported and taken back, with the other settings.
    tree.file(&format!("{PORTS}/left/address"), "ip:10.0.1.2\n");
    fs::remove_file(tree.real(&format!("{PORTS}/left/port"))).unwrap();
    let ran = run(&tree, &["apply"]);
    let expected = "ibnbd: cannot apply \"~ set address of port left from ip:10.0.1.2 to ip:10.0.1.1, port from unknown to 1234\" (port=1234): somebody else removes it (ENOENT)";
    assert!(ran.code == 1 && ran.err.contains(expected), "{}", ran.err);
    assert_eq!(tree.text(&format!("{PORTS}/left/address")), "ip:10.0.1.2\n");
    assert_eq!(tree.text(&format!("{PORTS}/left/enable")), "1\n");
}

/// A made-up directory has no files, as a port cannot be enabled whose RDMA device is missing.
#[test]
fn a_port_that_cannot_be_enabled_keeps_the_server_from_all_addresses() {
    let tree = Tree::new();
    tree.server("").configfs().file(
        "/etc/ibtrs/server.toml",
        &SERVER[..SERVER.find("\n\n").unwrap()],
    );
    let ran = run(&tree, &["apply"]);
    assert_eq!(ran.code, 1);
    assert!(tree.real(&format!("{PORTS}/left")).is_dir(), "{}", ran.err);
    // The next attempt goes on from there.
    tree.files(
        &format!("{PORTS}/left"),
        &[("address", "\n"), ("port", "1234\n"), ("enable", "0\n")],
    );
    assert_eq!(
        ran::good(&tree, &["apply"]),
        "~ set address of port left from nothing to ip:10.0.1.1, enable from 0 to 1\n"
    );
    assert_eq!(ran::good(&tree, &["apply", "--prune"]), "");
}

#[test]
fn a_server_that_has_no_ports_is_told_of() {
    let tree = Tree::new();
    tree.server("").configfs();
    fs::remove_dir(tree.real(PORTS)).unwrap();
    tree.file("/etc/ibtrs/server.toml", SERVER);
    let ran = run(&tree, &["apply"]);
    let expected = "ibnbd: /sys/kernel/config/ibnbd: ibnbd_server has no ports in configfs: it is older than this command\n  remedy: load the module of this version\n";
    assert!(ran.code == 1 && ran.err.contains(expected), "{}", ran.err);
}

#[test]
fn what_is_saved_can_be_applied() {
    let tree = server();
    ran::good(&tree, &["save"]);
    assert_eq!(ran::good(&tree, &["apply", "--dry-run", "--prune"]), "");
    assert_eq!(good(&tree.text("/etc/ibtrs/server.toml")).ports.len(), 2);
}
