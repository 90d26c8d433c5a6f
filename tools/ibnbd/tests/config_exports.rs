// SPDX-License-Identifier: GPL-2.0

//! Exports and hosts of configfs in configuration files: read, planned, saved and applied.

mod configured;
mod tree;

use configured::planned::{good, kept, steps, steps_of, wrong};
use ibnbd_host::config;
use ibnbd_host::configfs::change::{Limits, Rules};
use ibnbd_host::family::Side;
use ibnbd_host::prefix::Prefix;
use tree::ran::{self, run};
use tree::Tree;

const EXPORTS: &str = "/sys/kernel/config/ibnbd/exports";
const HOSTS: &str = "/sys/kernel/config/ibnbd/hosts";

const SERVER: &str = r#"# Who may come.
[[host]]
name = "web1"   # the shop
addresses = ["10.0.1.0/24", "fd00::/64"]
max_paths = 2
max_iops = 5000

[[host]]
name = "web2"

# And to what.
[[export]]
name = "disk1"
device = "/dev/vda"
access = "ro"
realtime = true
from = ["10.0.9.0/24", "10.0.8.1"]
hosts = ["web2", "web1"]

[[export]]
device = "/dev/vdb"
any_host = true
enable = false # for now
"#;

/// A server as the files say.
fn server() -> Tree {
    let tree = Tree::new();
    tree.server("")
        .host("web1")
        .host("web2")
        .export("disk1", "/dev/vda", &["web1", "web2"])
        .export("vdb", "/dev/vdb", &[]);
    let disk1 = format!("{EXPORTS}/disk1");
    tree.files(
        &disk1,
        &[
            ("access_mode", "ro\n"),
            ("allow_realtime", "1\n"),
            ("allow_unauthenticated", "10.0.8.1 10.0.9.0/24\n"),
        ],
    );
    tree.files(
        &format!("{EXPORTS}/vdb"),
        &[("allow_any_host", "1\n"), ("enable", "0\n")],
    );
    tree.files(
        &format!("{HOSTS}/web1"),
        &[
            ("addresses", "10.0.1.0/24 fd00::/64\n"),
            ("max_paths", "2\n"),
            ("max_iops", "5000\n"),
        ],
    );
    tree
}

#[test]
fn exports_and_hosts_are_read() {
    let config = good(SERVER);
    let prefix = |text| Prefix::parse(text).unwrap();
    assert_eq!(
        config.hosts[0].limits,
        Limits {
            addresses: vec![prefix("10.0.1.0/24"), prefix("fd00::/64")],
            max_paths: 2,
            max_iops: 5000,
            ..Limits::default()
        }
    );
    assert_eq!(
        config.exports[0].rules,
        Some(Rules {
            access: "ro".to_owned(),
            realtime: true,
            from: vec![prefix("10.0.9.0/24"), prefix("10.0.8.1")],
            hosts: vec!["web2".to_owned(), "web1".to_owned()],
            ..Rules::default()
        })
    );
    assert_eq!(config.exports[1].name, "vdb");
    assert_eq!(
        config.exports[1].rules,
        Some(Rules {
            any_host: true,
            enable: false,
            ..Rules::default()
        })
    );
    // Any of the keys makes one of configfs; none of them one of a directory.
    for key in [
        "hosts = []",
        "any_host = false",
        "from = []",
        "access = 'rw'",
        "realtime = false",
        "enable = true",
    ] {
        let config = good(&format!("[[export]]\ndevice = '/dev/a'\n{key}\n"));
        assert_eq!(config.exports[0].rules, Some(Rules::default()), "{key}");
    }
    assert_eq!(
        good("[[export]]\ndevice = '/dev/a'\n").exports[0].rules,
        None
    );
}

#[test]
fn all_that_is_wrong_is_told_with_its_place() {
    let many = ["\"10.0.0.1\""; 65].join(", ");
    let text = format!(
        r#"[[host]]
name = "a.b"
addresses = ["10.0.1.0/33", 5, "10.0.1.7/24"]
max_paths = 65536
max_devices = -1
max_iops = 99
colour = "blue"
[[host]]
max_paths = 1
[[host]]
name = "web1"
[[host]]
name = "web1"
addresses = [{many}]
[[export]]
name = "a/b"
device = "/dev/vda"
access = "all"
realtime = 1
hosts = ["web1", "wbe1", "web1"]
from = ["host1"]
[[export]]
device = "/dev/vdb"
any_host = true
session = "s"
[[export]]
name = "plain"
device = "/dev/vdc"
[ibnbd_server]
dev_search_path = "/exports"
"#
    );
    let found = wrong(&text);
    for expected in [
        "x.toml:2:8: name: name contains '/' or '.'",
        "x.toml:3:14: addresses: \"10.0.1.0/33\" is no address, prefix",
        "x.toml:3:29: addresses: a text in quotes is wanted",
        "x.toml:3:32: addresses: \"10.0.1.7/24\" has host bits set: 10.0.1.0/24 is probably meant",
        "x.toml:4:13: max_paths: 65536 is not 0 to 65535",
        "x.toml:5:15: max_devices: -1 is not 0 to 65535",
        "x.toml:6:12: max_iops: 99 is neither 0 nor 100 or more",
        "x.toml:7:1: a host has no \"colour\"",
        "x.toml:8:1: a host needs a name",
        "x.toml:13:8: there is a host \"web1\" already",
        "x.toml:14:782: addresses: there are more than 64",
        "x.toml:16:8: name: \"a/b\" has a /",
        "x.toml:18:10: access: \"all\" is not one of ro, rw, migration",
        "x.toml:19:12: realtime: true or false is wanted",
        "x.toml:20:18: hosts: there is no [[host]] with the name \"wbe1\"",
        "x.toml:20:26: hosts: \"web1\" is there already",
        "x.toml:21:9: from: \"host1\" is no address",
        "x.toml:25:11: session: it belongs to a directory",
        "x.toml:26:1: dev_search_path is off, as other exports",
        "x.toml:30:19: dev_search_path: it is off with exports",
    ] {
        assert!(
            found.iter().any(|f| f.starts_with(expected)),
            "{expected}\n{}",
            found.join("\n")
        );
    }
    assert_eq!(found.len(), 20, "{}", found.join("\n"));
}

/// A host or a directory in one file counts for the others.
#[test]
fn several_files_are_one() {
    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let export = file(
        "b.toml",
        "[[export]]\ndevice = '/dev/a'\nhosts = ['web1']\n",
    );
    assert!(config::read(&[export.clone(), file("c.toml", "[[host]]\nname = 'web1'\n")]).is_ok());
    let plain = file("a.toml", "[[export]]\ndevice = '/dev/b'\n");
    let problems = config::read(&[plain, export]).unwrap_err();
    let places: Vec<_> = problems.iter().map(|p| (p.file.as_str(), p.line)).collect();
    assert_eq!(places, [("a.toml", 1), ("b.toml", 3)]);
}

#[test]
fn a_machine_that_is_as_its_files_say_needs_nothing() {
    let tree = server();
    // A path that has another one's device is as good.
    assert_eq!(steps(&tree, SERVER, true), [""; 0]);
}

#[test]
fn an_empty_machine_gets_the_server_then_hosts_then_exports() {
    let expected = [
        "+ load ibtrs_server",
        "+ load ibnbd_server",
        "+ host web1 addresses=10.0.1.0/24 fd00::/64 max_paths=2 max_iops=5000",
        "+ host web2",
        "+ export /dev/vda as disk1 ro realtime for web2 web1 from 10.0.9.0/24 10.0.8.1",
        "+ export /dev/vdb as vdb disabled for any host",
    ];
    assert_eq!(steps(&Tree::new(), SERVER, false), expected);
    assert_eq!(
        steps_of(&Tree::new(), SERVER, false, Some(Side::Server)),
        expected
    );
    assert_eq!(
        steps_of(&Tree::new(), SERVER, false, Some(Side::Client)),
        [""; 0]
    );
    // Hosts alone need the server, too.
    assert_eq!(
        steps(&Tree::new(), "[[host]]\nname = 'h'\n", false).len(),
        3
    );
}

#[test]
fn differences_are_found() {
    let tree = server();
    tree.files(
        &format!("{EXPORTS}/disk1"),
        &[
            ("device_path", "/dev/other\n"),
            ("access_mode", "migration\n"),
            ("allow_realtime", "0\n"),
            ("allow_any_host", "1\n"),
            ("allow_unauthenticated", "any\n"),
        ],
    );
    tree.files(
        &format!("{EXPORTS}/vdb"),
        &[("device_path", "\n"), ("enable", "x\n")],
    );
    std::fs::remove_file(tree.real(&format!("{EXPORTS}/disk1/allowed_hosts/web1"))).unwrap();
    tree.link(
        &format!("{EXPORTS}/disk1/allowed_hosts/x"),
        &format!("{HOSTS}/x"),
    );
    tree.file(&format!("{HOSTS}/web1/max_paths"), "0\n")
        .file(&format!("{HOSTS}/web1/addresses"), "\n");
    assert_eq!(
        steps(&tree, SERVER, false),
        [
            "~ set addresses of host web1 from nothing to 10.0.1.0/24 fd00::/64",
            "~ set max_paths of host web1 from 0 to 2",
            "! export disk1 is /dev/other until it is disabled, and not /dev/vda",
            "~ set access_mode of export disk1 from migration to ro",
            "~ set hosts of export disk1 from web2 x to web2 x web1",
            "~ set allow_any_host of export disk1 from 1 to 0",
            "~ set allow_unauthenticated of export disk1 from any to 10.0.9.0/24 10.0.8.1",
            "~ set hosts of export disk1 from web2 x web1 to web2 web1",
            "~ set allow_realtime of export disk1 from 0 to 1",
            "~ set enable of export vdb from unknown to 0",
            "~ set device_path of export vdb from nothing to /dev/vdb",
        ]
    );
    tree.file(&format!("{EXPORTS}/vdb/enable"), "0\n");
    assert_eq!(
        steps(&tree, SERVER, false).last().unwrap(),
        "~ set device_path of export vdb from nothing to /dev/vdb"
    );
}

/// The kernel closes what a client may no longer open, at once: one that the files let in as before
/// must not notice.
#[test]
fn those_who_stay_come_in_before_others_go() {
    let export = |rules: &str| {
        let hosts = "[[host]]\nname = 'web1'\n[[host]]\nname = 'web2'\n";
        format!("{hosts}[[export]]\nname = 'd'\ndevice = '/dev/vda'\n{rules}\n")
    };
    let tree = Tree::new();
    tree.server("")
        .host("web1")
        .host("web2")
        .export("d", "/dev/vda", &[]);
    let folder = format!("{EXPORTS}/d");
    tree.files(
        &folder,
        &[("allow_any_host", "1\n"), ("access_mode", "ro\n")],
    );
    // Those who go could not open it in the wider mode, either.
    assert_eq!(
        steps(&tree, &export("hosts = ['web1']"), false),
        [
            "~ set hosts of export d from nothing to web1",
            "~ set allow_any_host of export d from 1 to 0",
            "~ set access_mode of export d from ro to rw",
        ]
    );
    tree.files(
        &folder,
        &[("allow_any_host", "0\n"), ("access_mode", "rw\n")],
    );
    tree.link(
        &format!("{folder}/allowed_hosts/web1"),
        "../../../hosts/web1",
    );
    // Those who come may not open it in the wider mode.
    assert_eq!(
        steps(&tree, &export("any_host = true\naccess = 'ro'"), false),
        [
            "~ set access_mode of export d from rw to ro",
            "~ set allow_any_host of export d from 0 to 1",
            "~ set hosts of export d from web1 to nothing",
        ]
    );
    assert_eq!(
        steps(&tree, &export("hosts = ['web2']"), false),
        [
            "~ set hosts of export d from web1 to web1 web2",
            "~ set hosts of export d from web1 web2 to web2",
        ]
    );
}

/// Of an export that is to be disabled, the device can be another one after that.
#[test]
fn an_export_is_disabled_before_it_gets_another_device() {
    let tree = Tree::new();
    tree.server("").export("d", "/dev/vda", &[]);
    let text = "[[export]]\nname = 'd'\ndevice = '/dev/vdb'\nenable = false\n";
    let expected = [
        "~ set enable of export d from 1 to 0",
        "~ set device_path of export d from /dev/vda to /dev/vdb",
    ];
    assert_eq!(steps(&tree, text, false), expected);
    let expected = "! export d is /dev/vda until it is disabled, and not /dev/vdb";
    assert_eq!(
        steps(&tree, &text.replace("false", "true"), false),
        [expected]
    );
}

#[test]
fn what_no_file_names_goes_unless_it_is_in_use() {
    let tree = server();
    tree.host("busy")
        .host("named")
        .host("gone")
        .export("open", "/dev/vdd", &["named"])
        .export("other", "/dev/vde", &["gone"])
        .authenticated("busy", "10.0.1.2", "10.0.1.1", "default")
        .opened("vdd", "s", "open");
    assert_eq!(steps(&tree, SERVER, false), [""; 0]);
    assert_eq!(
        steps(&tree, SERVER, true),
        [
            "! export open stays until it is closed by s",
            "- export other",
            "! host busy stays while it is connected, or while an export names it",
            "- host gone and its keys",
            "! host named stays while it is connected, or while an export names it",
        ]
    );
    // A device that is open under an unknown name may be any export.
    let name = "/sys/class/ibnbd-server/ctl/devices/vdd/sessions/s/mapping_path";
    std::fs::remove_file(tree.real(name)).unwrap();
    tree.folder(name);
    let busy = "stays while it is connected, or while an export names it";
    assert_eq!(
        steps(&tree, SERVER, true),
        [
            "! export open stays, as s has vdd open by a name that cannot be read",
            "! export other stays, as s has vdd open by a name that cannot be read",
            &format!("! host busy {busy}"),
            &format!("! host gone {busy}"),
            &format!("! host named {busy}"),
        ]
    );
    tree.file("/etc/ibtrs/server.toml", SERVER);
    let ran = run(&tree, &["apply", "--prune"]);
    let expected = format!("ibnbd: warning: {name}: ");
    assert!(ran.err.starts_with(&expected), "{}", ran.err);
    // Files without exports take none away, as before.
    assert_eq!(steps(&tree, "", true), [""; 0]);
}

#[test]
fn exports_in_configfs_keep_those_in_a_directory_from_working() {
    let tree = Tree::new();
    tree.server("/e")
        .folder("/e")
        .export("disk9", "/dev/vdz", &[]);
    let text = "[[export]]\ndevice = '/dev/a'\n[ibnbd_server]\ndev_search_path = '/e'\n";
    assert_eq!(
        steps(&tree, text, false),
        [
            "+ export /dev/a as /e/a",
            "! exports of the files are in dev_search_path, which is off until these in configfs are removed: disk9",
        ]
    );
    assert_eq!(
        steps(&tree, text, true),
        ["+ export /dev/a as /e/a", "- export disk9"]
    );
}

#[test]
fn what_is_so_already_is_not_touched() {
    assert_eq!(kept(&server(), SERVER, true), SERVER);
}

#[test]
fn what_is_written_is_what_is() {
    let tree = server();
    tree.export("nobody", "/dev/vdf", &[])
        .export("half", "", &[]);
    let text = kept(&tree, "# mine\n", false);
    assert!(text.contains("# mine"), "{text}");
    let config = good(&text);
    let names: Vec<&str> = config.exports.iter().map(|e| e.name.as_str()).collect();
    assert_eq!(names, ["disk1", "nobody", "vdb"]);
    // It is one of configfs, though nobody may open it.
    assert_eq!(config.exports[1].rules, Some(Rules::default()));
    assert_eq!(steps(&tree, &text, false), [""; 0]);
    assert_eq!(kept(&tree, &text, true), text);
}

#[test]
fn comments_and_order_stay_where_something_changes() {
    let tree = server();
    tree.files(
        &format!("{EXPORTS}/vdb"),
        &[("enable", "1\n"), ("device_path", "/dev/vdx\n")],
    );
    tree.file(&format!("{HOSTS}/web1/max_paths"), "3\n");
    let expected = SERVER
        .replace("max_paths = 2", "max_paths = 3")
        .replace("enable = false", "enable = true")
        .replace("device = \"/dev/vdb\"", "device = \"/dev/vdx\"");
    let text = kept(&tree, SERVER, false);
    assert_eq!(text.replace("name = \"vdb\"\n", ""), expected);
    assert_eq!(good(&text).exports[1].name, "vdb");
}

#[test]
fn what_is_gone_stays_in_the_file_unless_it_is_pruned() {
    let tree = Tree::new();
    tree.server("/e").folder("/e").configfs();
    // The directory would not go with the exports that stay.
    assert_eq!(kept(&tree, SERVER, false), SERVER);
    let pruned = good(&kept(&tree, SERVER, true));
    assert_eq!(
        (
            pruned.hosts.len(),
            pruned.exports.len(),
            pruned.parameters.len()
        ),
        (0, 0, 1)
    );
}

/// Files of a server whose operator has changed over to configfs by hand.
#[test]
fn files_change_over_with_the_server() {
    let tree = server();
    tree.file(
        "/sys/module/ibnbd_server/parameters/dev_search_path",
        "/e\n",
    );
    let old = "# mine\n[ibnbd_server]\ndev_search_path = \"/e\"\nmax_devices = 256\n[[export]]\nname = \"vdb\"\ndevice = \"/dev/vdb\" # same\n[[export]]\ndevice = \"/dev/vdc\"\n";
    let text = kept(&tree, old, false);
    assert!(
        text.starts_with("# mine") && text.contains("# same"),
        "{text}"
    );
    let config = good(&text);
    let names: Vec<&str> = config.exports.iter().map(|e| e.name.as_str()).collect();
    assert_eq!((names, config.parameters.len()), (vec!["vdb", "disk1"], 1));
    assert_eq!(steps(&tree, &text, true), [""; 0]);
}

#[test]
fn apply_changes_what_differs() {
    let tree = server();
    tree.file("/etc/ibtrs/server.toml", SERVER);
    assert_eq!(ran::good(&tree, &["apply"]), "");
    tree.file(&format!("{EXPORTS}/disk1/allow_realtime"), "0\n");
    std::fs::remove_file(tree.real(&format!("{EXPORTS}/disk1/allowed_hosts/web2"))).unwrap();
    assert_eq!(
        ran::good(&tree, &["apply"]),
        "~ set hosts of export disk1 from web1 to web2 web1\n~ set allow_realtime of export disk1 from 0 to 1\n"
    );
    assert_eq!(ran::good(&tree, &["apply"]), "");
    // An export that fails is reported, and does not exist.
    let more = format!("{SERVER}[[export]]\ndevice = '/dev/vdc'\nany_host = true\n");
    tree.file("/etc/ibtrs/server.toml", more);
    let ran = run(&tree, &["apply"]);
    assert!(
        ran.code == 1
            && ran.err.contains(
                "cannot apply \"+ export /dev/vdc as vdc for any host\" (device_path=/dev/vdc)"
            ),
        "{}",
        ran.err
    );
    assert!(!tree.real(&format!("{EXPORTS}/vdc")).exists());
}

#[test]
fn what_is_saved_can_be_applied() {
    let tree = server();
    ran::good(&tree, &["save"]);
    let planned = ran::good(&tree, &["apply", "--dry-run", "--prune"]);
    assert_eq!(planned, "");
    assert_eq!(good(&tree.text("/etc/ibtrs/server.toml")).hosts.len(), 2);
}
