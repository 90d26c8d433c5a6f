// SPDX-License-Identifier: GPL-2.0

//! Configuration files: valid ones, faulty ones, and the plans that they lead to.

mod tree;

use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;

use ibnbd_host::config::keep::{self, Choice, Others};
use ibnbd_host::config::plan::{self, Step, Wish};
use ibnbd_host::config::{self, Config, Problem};
use ibnbd_host::configfs::Configured;
use ibnbd_host::family::Side;
use ibnbd_host::{Machine, Root};
use proptest::prelude::*;
use rustix::fs::{makedev, mknodat, FileType, Mode, CWD};
use toml_edit::DocumentMut;
use tree::Tree;

const CLIENT: &str = r#"# Disks of the storage servers.
[[session]]
name = "s"   # everybody's
paths = ["10.0.1.2,10.0.1.1", "10.0.2.2,10.0.2.1"]
queue_timeout_s = 600

# The database's.
[[session.disk]]
device = "/dev/nullb0"

[[session.disk]]
device = "disk1"
io_timeout_limit = 0 # for ever

[[session]]
name = "t"
servers = ["storage1"]
paths = ["10.0.2.2,10.0.3.2"]
mp_policy = "min-inflight"

[[session.disk]]
device = "/dev/nullb0"
"#;

const SERVER: &str = r#"
[ibnbd_server]
dev_search_path = "/exports"
[ibtrs_server]
sess_queue_depth = 512
always_invalidate = true
[[export]]
name = "disk1"
device = "/dev/vda"
"#;

fn resolve(name: &str) -> io::Result<Vec<IpAddr>> {
    match name {
        "storage1" => Ok(vec!["10.0.3.1".parse().unwrap()]),
        // The one that the session uses is not always the first.
        "twice" => Ok(["10.0.9.9", "10.0.3.1"].map(|a| a.parse().unwrap()).into()),
        _ => Err(io::Error::new(io::ErrorKind::NotFound, "unknown")),
    }
}

fn good(text: &str) -> Config {
    config::parse("client.toml", text).unwrap()
}

fn wrong(text: &str) -> Vec<Problem> {
    config::parse("x.toml", text).unwrap_err()
}

fn steps(tree: &Tree, config: &Config, prune: bool) -> Vec<String> {
    steps_of(tree, config, prune, None)
}

fn steps_of(tree: &Tree, config: &Config, prune: bool, side: Option<Side>) -> Vec<String> {
    let root = Root::new(tree.base());
    let machine = Machine::read(&root);
    let wish = Wish {
        resolve: &resolve,
        prune,
        side,
        disk: None,
    };
    plan::steps(&root, &machine, config, &wish)
        .iter()
        .map(Step::to_string)
        .collect()
}

#[test]
fn a_machine_that_is_as_its_files_say_needs_nothing() {
    let tree = Tree::new();
    tree.usual_client().server("/exports");
    let mut config = good(CLIENT);
    config.parameters = good(SERVER).parameters;
    assert_eq!(steps(&tree, &config, true), [""; 0]);
}

#[test]
fn an_empty_machine_gets_exports_then_modules_then_disks_then_settings() {
    let tree = Tree::new();
    let mut config = good(CLIENT);
    let server = good(SERVER);
    (config.parameters, config.exports) = (server.parameters, server.exports);
    config.sessions.truncate(1);
    config.sessions[0].disks.truncate(1);
    assert_eq!(
        steps(&tree, &config, false),
        [
            "+ export /dev/vda as /exports/disk1",
            "+ load ibtrs_server sess_queue_depth=512 always_invalidate=Y",
            "+ load ibnbd_server dev_search_path=/exports",
            "+ load ibtrs_client",
            "+ load ibnbd_client",
            "+ map /dev/nullb0 of session s over ip:10.0.1.2,ip:10.0.1.1 ip:10.0.2.2,ip:10.0.2.1",
            "~ set queue_timeout_s of session s from default to 600",
        ]
    );
}

/// A new session tells its server the failover time with the first connection.
#[test]
fn a_failover_time_goes_with_the_mapping() {
    let tree = Tree::new();
    let mut config = good(&CLIENT.replace("queue_timeout_s = 600", "failover_time_ms = 2500"));
    config.sessions.truncate(1);
    config.sessions[0].disks.truncate(1);
    let map = "+ map /dev/nullb0 of session s over ip:10.0.1.2,ip:10.0.1.1 ip:10.0.2.2,ip:10.0.2.1 with failover time 2500 ms";
    let found = steps(&tree, &config, false);
    assert_eq!(found.last().unwrap(), map, "{found:?}");
    // One that is there gets it as any other setting.
    tree.usual_client();
    let found = steps(&tree, &config, false);
    let set = "~ set failover_time_ms of session s from 5000 to 2500";
    assert!(found.iter().any(|step| step == set), "{found:?}");
}

/// The client refuses a failover time that is impossible with the present heartbeats, whether the new
/// values are larger or smaller than those.
#[test]
fn the_failover_time_follows_the_heartbeats() {
    let tree = Tree::new();
    tree.usual_client();
    let heartbeats = [(100, 200, 30_000), (2, 100, 1000), (50, 0, 20_000)];
    for (missed, interval, time) in heartbeats {
        let wanted = format!(
            "failover_time_ms = {time}\nhb_interval_ms = {interval}\nhb_missed_max = {missed}"
        );
        let config = good(&CLIENT.replace("queue_timeout_s = 600", &wanted));
        let found = steps(&tree, &config, false);
        let at = |key: &str| {
            let begin = format!("~ set {key} of session s ");
            found.iter().position(|step| step.starts_with(&begin))
        };
        let time = at("failover_time_ms");
        assert!(time.is_some() && at("hb_missed_max") < time, "{found:?}");
        assert!(at("hb_interval_ms") < time, "{found:?}");
    }
}

/// A machine that is client and server has a unit for each.
#[test]
fn one_side_leaves_the_other_alone() {
    let tree = Tree::new();
    let mut config = good(CLIENT);
    let server = good(SERVER);
    (config.parameters, config.exports) = (server.parameters, server.exports);
    let both = steps(&tree, &config, false);
    let mut parts = steps_of(&tree, &config, false, Some(Side::Server));
    assert_eq!(parts.len(), 3, "{parts:?}");
    parts.extend(steps_of(&tree, &config, false, Some(Side::Client)));
    assert_eq!(parts, both);
    // Nor is anything of the other side pruned.
    let tree = Tree::new();
    tree.usual_client().server("/exports");
    let other = good("[[session]]\nname = \"other\"\npaths = [\"10.0.9.9\"]\n");
    let only = |config, side| steps_of(&tree, config, true, Some(side));
    assert_eq!(only(&other, Side::Server), [""; 0]);
    assert_eq!(only(&other, Side::Client).len(), 3);
    // Files without sessions say nothing about disks.
    assert_eq!(only(&good(""), Side::Client), [""; 0]);
}

#[test]
fn differences_are_found() {
    let tree = Tree::new();
    tree.usual_client()
        .server("/other")
        .disk(4, "u", "stranger");
    let text = CLIENT
        .replace("queue_timeout_s = 600", "queue_timeout_s = 90")
        .replace("10.0.2.1\"", "10.0.2.9\"");
    let text = text.replace("device = \"disk1\"", "device = \"disk1\"\naccess = \"ro\"");
    let mut config = good(&text);
    config.parameters = good(SERVER).parameters;
    let change = [
        "! ibnbd_server: dev_search_path is \"/other\" until the module is loaded again with /exports",
        "! ibnbd1 is mapped as rw until it is unmapped, and not as ro",
        "+ path ip:10.0.2.2,ip:10.0.2.9 of session s",
        "~ set queue_timeout_s of session s from 600 to 90",
    ];
    assert_eq!(steps(&tree, &config, false), change);
    let mut all = steps(&tree, &config, true);
    assert_eq!(all.pop().unwrap(), "- unmap ibnbd4");
    assert!(
        all.contains(&"- path ip:10.0.2.2@ip:10.0.2.1 of session s".to_owned()),
        "{all:?}"
    );
}

#[test]
fn both_sides_may_require_authentication() {
    let config = good("[ibtrs_server]\nauth = \"required\"\nauth_suites = \"x25519\"\n[ibtrs_client]\nauth = \"optional\"\n");
    assert_eq!(
        steps(&Tree::new(), &config, false),
        [
            "+ load ibtrs_server auth=required auth_suites=x25519",
            "+ load ibnbd_server",
            "+ load ibtrs_client auth=optional",
            "+ load ibnbd_client",
        ]
    );
}

/// A session is made with its key, so that its first path can connect; one that is there gets it
/// as a setting.
#[test]
fn a_session_has_the_key_that_its_file_says() {
    let text = "[[session]]\nname = \"s\"\npaths = [\"10.0.1.2,10.0.1.1\"]\nkey_id = \"2026\"\n[[session.disk]]\ndevice = \"new\"\n";
    let config = good(text);
    let tree = Tree::new();
    tree.client();
    assert_eq!(
        steps(&tree, &config, false),
        ["+ map new of session s over ip:10.0.1.2,ip:10.0.1.1 with key 2026"]
    );
    tree.session("s", &[("10.0.1.2", "10.0.1.1", "connected")]);
    let later = [
        "+ map new of session s over ip:10.0.1.2,ip:10.0.1.1",
        "~ set key_id of session s from default to 2026",
    ];
    assert_eq!(steps(&tree, &config, false), later);
    // It is saved as a text, though it has digits only.
    tree.file("/sys/class/ibtrs-client/s/key_id", "2026\n");
    let saved = kept(&tree, "", Choice::default());
    assert_eq!(
        good(&saved).sessions[0].settings,
        config.sessions[0].settings
    );
    assert_eq!(kept(&tree, &saved, Choice::default()), saved);
}

/// The lines of all steps that map a disk.
fn mapped(tree: &Tree, config: &Config) -> Vec<String> {
    let root = Root::new(tree.base());
    let wish = Wish {
        resolve: &resolve,
        prune: false,
        side: None,
        disk: None,
    };
    let all = plan::steps(&root, &Machine::read(&root), config, &wish);
    let lines = all.into_iter().filter_map(|step| match step {
        Step::Map(mapping) => Some(mapping.line().unwrap()),
        _ => None,
    });
    lines.collect()
}

/// A session is made with its number of queues, which cannot change while it has disks.
#[test]
fn a_session_has_the_queues_that_its_file_says() {
    let text = "[[session]]\nname = \"s\"\npaths = [\"10.0.1.2,10.0.1.1\"]\nqueues = 2\nkey_id = \"k\"\n[[session.disk]]\ndevice = \"new\"\n";
    let config = good(text);
    let tree = Tree::new();
    tree.client();
    assert_eq!(
        steps(&tree, &config, false),
        ["+ map new of session s over ip:10.0.1.2,ip:10.0.1.1 with key k and 2 queues"]
    );
    assert_eq!(
        mapped(&tree, &config),
        ["sessname=s device_path=new path=ip:10.0.1.2,ip:10.0.1.1 nr_queues=2 key_id=k"]
    );
    // One that is there keeps its number, and says so.
    tree.session("s", &[("10.0.1.2", "10.0.1.1", "connected")])
        .file("/sys/class/ibtrs-client/s/key_id", "k\n")
        .disk(0, "s", "old");
    let later = [
        "+ map new of session s over ip:10.0.1.2,ip:10.0.1.1",
        "! session s has 4 queues until its last disk is unmapped, and not 2",
    ];
    assert_eq!(steps(&tree, &config, false), later);
    assert!(!mapped(&tree, &config)[0].contains("nr_queues"));
    let two = "/sys/block/ibnbd0/ibnbd/nr_queues";
    tree.file(two, "2\n");
    assert_eq!(steps(&tree, &config, false), later[..1]);
    // A file without a number takes any.
    assert_eq!(
        steps(&tree, &good(&text.replace("queues = 2\n", "")), false),
        later[..1]
    );

    // What is saved has the number, if it is not that of the CPUs or was written before.
    let saved = kept(&tree, "", Choice::default());
    assert_eq!(good(&saved).sessions[0].queues, Some(2));
    assert_eq!(kept(&tree, &saved, Choice::default()), saved);
    tree.file(two, "4\n");
    assert!(!kept(&tree, "", Choice::default()).contains("queues"));
    assert!(kept(&tree, &saved, Choice::default()).contains("queues = 4\n"));
    for (cpus, is_kept) in [("0-1,4-7", true), ("0", false), ("x", false)] {
        tree.file("/sys/devices/system/cpu/possible", format!("{cpus}\n"));
        let text = kept(&tree, "", Choice::default());
        assert_eq!(text.contains("queues = 4\n"), is_kept, "{cpus}: {text}");
    }
    for bad in ["0", "-1", "4097", "\"all\""] {
        let problems = wrong(&text.replace("queues = 2", &format!("queues = {bad}")));
        assert!(problems[0].what.starts_with("queues: "), "{problems:?}");
    }
}

#[test]
fn a_name_that_nobody_knows_keeps_nothing_else_from_being_done() {
    let tree = Tree::new();
    tree.client();
    let text = "[[session]]\nname = \"s\"\nservers = [\"gone\", \"storage1\"]\n[[session.disk]]\ndevice = \"d\"\n";
    assert_eq!(
        steps(&tree, &good(text), false),
        [
            "! session s: gone: no address is known for it: unknown",
            "+ map d of session s over ip:10.0.3.1",
        ]
    );
}

#[test]
fn all_that_is_wrong_is_told_with_its_place() {
    let text = r#"colour = "blue"
[[session]]
name = "a.b"
servers = ["10.0.1.1,10.0.1.2", 5, "0.0.0.0"]
port = 70000
mp_policy = "fastest"
[[session.disk]]
device = "a b"
access = "RW"
[[session.disk]]
devise = "x"
[[session]]
hb_interval_ms = 1
"ü" = 1
key_id = "a:b"
[[export]]
device = "relative"
name = "../x"
[ibnbd_server]
port = 1
dev_search_path = "/a b"
[[session]]
name = "u"
servers = ["10.0.1.1"]
reauth_interval_s = 9
"#;
    let found: Vec<String> = wrong(text).iter().map(Problem::to_string).collect();
    for expected in [
        "x.toml:1:1: a file has no \"colour\"",
        "x.toml:3:8: name: name contains '/' or '.'",
        "x.toml:4:12: servers: \"10.0.1.1,10.0.1.2\" is not a single address",
        "x.toml:4:33: servers: a text in quotes is wanted",
        "x.toml:4:36: servers: 0.0.0.0: destination address names no single host",
        "x.toml:5:8: port: 70000 is not 1 to 65535",
        "x.toml:6:13: mp_policy: \"fastest\" is not one of",
        "x.toml:8:10: device: name contains a blank",
        "x.toml:9:10: access: \"RW\" is not one of",
        "x.toml:10:1: a disk needs a device",
        "x.toml:11:1: a disk has no \"devise\"",
        "x.toml:12:1: a session needs a name, or servers",
        "x.toml:12:1: a session needs servers or paths",
        "x.toml:13:18: hb_interval_ms: 1 is neither 0 nor 100 or more",
        "x.toml:15:10: key_id: a key id is 1 to 32 letters",
        "x.toml:17:10: device: \"relative\" does not begin with /",
        "x.toml:18:8: name: \"../x\" is not a place below a folder",
        "x.toml:20:1: ibnbd_server has no \"port\"",
        "x.toml:21:19: dev_search_path: it is empty, or has blanks",
        "x.toml:25:21: reauth_interval_s: 9 is neither 0 nor 10 or more",
    ] {
        assert!(
            found.iter().any(|f| f.starts_with(expected)),
            "{expected}\n{}",
            found.join("\n")
        );
    }
    let lines: Vec<usize> = wrong(text).iter().map(|p| p.line).collect();
    assert!(lines.is_sorted());
}

#[test]
fn what_is_no_toml_is_told_with_its_place() {
    for (text, line) in [
        ("a = ", 1),
        ("[[session]]\nname = 's\n", 2),
        ("x = 1\nx = 2\n", 2),
        ("[a\n", 1),
    ] {
        let found = wrong(text);
        assert_eq!(found.len(), 1, "{text}");
        assert_eq!(found[0].line, line, "{text}: {}", found[0]);
    }
}

#[test]
fn things_are_named_once() {
    for text in [
        "[[session]]\nname='s'\nservers=['a']\n[[session]]\nname='s'\nservers=['a']\n",
        "[[session]]\nname='s'\nservers=['a']\n[[session.disk]]\ndevice='d'\n[[session.disk]]\ndevice='d'\n",
        "[[export]]\ndevice='/dev/a'\n[[export]]\nname='a'\ndevice='/dev/b'\n",
    ] {
        assert!(wrong(text)[0].what.contains("already"), "{text}");
    }
}

#[test]
fn several_files_are_one() {
    let files = [
        ("a.toml".to_owned(), CLIENT.to_owned()),
        ("b.toml".to_owned(), SERVER.to_owned()),
    ];
    let all = config::read(&files).unwrap();
    assert_eq!(
        (all.sessions.len(), all.exports.len(), all.parameters.len()),
        (2, 1, 3)
    );
    let twice = [files[0].clone(), ("c.toml".to_owned(), CLIENT.to_owned())];
    assert!(config::read(&twice)
        .unwrap_err()
        .iter()
        .all(|p| p.file == "c.toml"));
}

#[test]
fn files_are_found_where_they_belong() {
    let tree = Tree::new();
    tree.file("/etc/ibtrs/client.toml", "")
        .file("/etc/ibtrs/conf.d/2.toml", "")
        .file("/etc/ibtrs/conf.d/10.toml", "");
    tree.file("/etc/ibtrs/conf.d/old.toml.bak", "")
        .file("/etc/ibtrs/other.toml", "");
    let files = config::files(&Root::new(tree.base()), config::FOLDER).unwrap();
    let names: Vec<_> = files
        .iter()
        .map(|(name, _)| name.rsplit('/').next().unwrap())
        .collect();
    assert_eq!(names, ["client.toml", "2.toml", "10.toml"]);
    assert!(config::files(&Root::new(tree.base()), "/nowhere")
        .unwrap()
        .is_empty());
}

fn kept(tree: &Tree, text: &str, choice: Choice<'_>) -> String {
    let root = Root::new(tree.base());
    let mut document: DocumentMut = text.parse().unwrap();
    let mut others = Others::default();
    keep::client(
        &root,
        &Machine::read(&root),
        &mut document,
        &mut others,
        choice,
        &resolve,
    );
    document.to_string()
}

#[test]
fn what_is_so_already_is_not_touched() {
    let tree = Tree::new();
    tree.usual_client();
    assert_eq!(
        kept(
            &tree,
            CLIENT,
            Choice {
                prune: true,
                ..Choice::default()
            }
        ),
        CLIENT
    );
}

#[test]
fn what_is_written_is_what_is() {
    let tree = Tree::new();
    tree.usual_client()
        .file("/sys/class/ibtrs-client/s/queue_timeout_s", "300\n")
        .file("/sys/class/ibtrs-client/s/reauth_interval_s", "86400\n");
    tree.file("/sys/block/ibnbd1/ibnbd/access_mode", "ro\n")
        .file("/sys/block/ibnbd1/ibnbd/exclusive", "1\n")
        .file("/sys/block/ibnbd1/ibnbd/data_checksum", "crc32c\n");
    tree.file("/sys/block/ibnbd10/ibnbd/nr_poll_queues", "2\n");
    let text = kept(&tree, "", Choice::default());
    let config = good(&text);
    assert_eq!(
        config.sessions[0].settings,
        [("queue_timeout_s", "300"), ("reauth_interval_s", "86400")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
    assert_eq!(
        config.sessions[0].paths,
        ["10.0.1.2,10.0.1.1", "10.0.2.2,10.0.2.1"]
    );
    assert_eq!(config.sessions[0].disks[1].access.as_deref(), Some("ro"));
    assert!(config.sessions[0].disks[1].exclusive);
    let checksums = |disk: &config::Disk| disk.data_checksum.clone();
    let of_both = config.sessions[0].disks.iter().map(checksums);
    assert!(of_both.eq([None, Some("crc32c".to_owned())]));
    assert_eq!(config.sessions[1].disks[0].poll_queues, 2);
    // And the machine is as it says.
    assert_eq!(steps(&tree, &config, true), [""; 0]);
}

#[test]
fn a_disk_has_its_checksum_until_it_is_unmapped() {
    let tree = Tree::new();
    tree.usual_client();
    let of = |device: &str, checksum: &str| {
        let disk = format!("device = \"{device}\"\ndata_checksum = \"{checksum}\"\n");
        good(&CLIENT.replace("device = \"disk1\"\n", &disk))
    };
    assert_eq!(steps(&tree, &of("disk1", "none"), false), [""; 0]);
    let refused = steps(&tree, &of("disk1", "crc32c"), false);
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(
        refused[0].contains("is mapped with data_checksum none until it is unmapped"),
        "{refused:?}"
    );
    let mapped = |checksum: &str| mapped(&tree, &of("new", checksum)).pop();
    let with = mapped("crc32c").unwrap();
    assert!(with.ends_with(" data_checksum=crc32c"), "{with}");
    let without = mapped("none").unwrap();
    assert!(!without.contains("data_checksum"), "{without}");
    let problems = wrong(&CLIENT.replace("io_timeout_limit = 0", "data_checksum = \"md5\""));
    assert_eq!(problems.len(), 1, "{problems:?}");
}

#[test]
fn comments_and_order_stay_where_something_changes() {
    let tree = Tree::new();
    tree.usual_client()
        .file("/sys/class/ibtrs-client/s/queue_timeout_s", "300\n")
        .disk(2, "s", "new");
    tree.file("/sys/block/ibnbd1/ibnbd/io_timeout_limit", "3\n");
    let text = kept(&tree, CLIENT, Choice::default());
    let expected = CLIENT.replace("queue_timeout_s = 600", "queue_timeout_s = 300");
    let expected = expected.replace(
        "io_timeout_limit = 0 # for ever\n",
        "io_timeout_limit = 3 # for ever\n\n[[session.disk]]\ndevice = \"new\"\n",
    );
    assert_eq!(text, expected);
}

#[test]
fn what_is_gone_stays_in_the_file_unless_it_is_pruned() {
    let tree = Tree::new();
    tree.client();
    tree.session(
        "s",
        &[
            ("10.0.1.2", "10.0.1.1", "connected"),
            ("10.0.2.2", "10.0.2.1", "connected"),
        ],
    );
    tree.disk(0, "s", "/dev/nullb0");
    assert_eq!(kept(&tree, CLIENT, Choice::default()), CLIENT);
    let pruned = good(&kept(
        &tree,
        CLIENT,
        Choice {
            prune: true,
            ..Choice::default()
        },
    ));
    assert_eq!(
        (pruned.sessions.len(), pruned.sessions[0].disks.len()),
        (1, 1)
    );
}

#[test]
fn one_disk_is_written_and_forgotten() {
    let tree = Tree::new();
    tree.usual_client();
    let root = Root::new(tree.base());
    let choice = Choice {
        only: Some(("s", "disk1")),
        prune: false,
        port: Some(4321),
    };
    let text = kept(&tree, "# mine\n", choice);
    let config = good(&text);
    assert!(text.contains("# mine"), "{text}");
    assert_eq!(
        (config.sessions.len(), config.sessions[0].disks.len()),
        (1, 1)
    );
    assert_eq!(config.sessions[0].port, Some(4321));
    let mut document: DocumentMut = text.parse().unwrap();
    assert!(!keep::forget(&root, &mut document, "s", "other"));
    assert!(keep::forget(&root, &mut document, "s", "disk1"));
    assert!(good(&document.to_string()).sessions.is_empty());
}

#[test]
fn a_server_keeps_its_parameters_and_exports() {
    let tree = Tree::new();
    tree.server("/exports")
        .file("/sys/module/ibnbd_server/parameters/port_nr", "4321\n");
    tree.link("/dev/disk/by-id/wwn-0x5", "../../sda");
    let root = Root::new(tree.base());
    let exported = |name: &str, device: &str| ibnbd_host::folder::Exported {
        name: name.to_owned(),
        device: Some(device.to_owned()),
        major: 8,
        minor: 0,
        size_bytes: None,
        sessions: Vec::new(),
    };
    let mut document: DocumentMut =
        "# mine\n[[export]]\nname = \"b\"\ndevice = \"/dev/x\" # by hand\n"
            .parse()
            .unwrap();
    keep::server(
        &root,
        &[exported("a", "sda"), exported("b", "sdb")],
        &Configured::default(),
        &mut document,
        &mut Others::default(),
        false,
    );
    let text = document.to_string();
    // What the name stands for now, and not what it stood for when the file was written.
    assert!(
        text.contains("# mine") && text.contains("\"/dev/sdb\" # by hand"),
        "{text}"
    );
    let config = good(&text);
    let parameters: Vec<_> = config
        .parameters
        .iter()
        .map(|(_, n, v)| format!("{n}={v}"))
        .collect();
    assert_eq!(parameters, ["port_nr=4321", "dev_search_path=/exports"]);
    assert_eq!(config.exports[1].device, "/dev/disk/by-id/wwn-0x5");
}

/// A block device of the kernel's that every machine may have; only root can make it.
fn block_device(tree: &Tree, file: &str, minor: u32) -> bool {
    let (real, mode) = (tree.real(file), Mode::from_raw_mode(0o600));
    std::fs::create_dir_all(real.parent().unwrap()).unwrap();
    mknodat(CWD, &real, FileType::BlockDevice, mode, makedev(7, minor)).is_ok()
}

#[test]
fn a_device_stays_as_the_file_calls_it_if_it_is_that_one() {
    let tree = Tree::new();
    tree.server("/exports");
    if !block_device(&tree, "/dev/loop0", 0) || !block_device(&tree, "/dev/vg/data", 0) {
        return;
    }
    let exported = |device: &str| ibnbd_host::folder::Exported {
        name: "disk1".to_owned(),
        device: Some(device.to_owned()),
        major: 7,
        minor: 0,
        size_bytes: None,
        sessions: Vec::new(),
    };
    let file = "[[export]]\nname = \"disk1\"\ndevice = \"/dev/vg/data\"\n";
    let kept = |device: &str| {
        let mut document: DocumentMut = file.parse().unwrap();
        keep::server(
            &Root::new(tree.base()),
            &[exported(device)],
            &Configured::default(),
            &mut document,
            &mut Others::default(),
            false,
        );
        document.to_string()
    };
    assert!(kept("loop0").starts_with(file), "{}", kept("loop0"));
    let other = file.replace("/dev/vg/data", "/dev/loop1");
    assert!(kept("loop1").starts_with(&other), "{}", kept("loop1"));
}

/// The numbers of volumes may have changed while the server was not loaded.
#[test]
fn a_device_file_of_another_device_gives_way_before_the_server_is_loaded() {
    let tree = Tree::new();
    let files = [("/exports/disk1", 0), ("/dev/vda", 1), ("/dev/disk1", 0)];
    if !files
        .iter()
        .all(|(file, minor)| block_device(&tree, file, *minor))
    {
        return;
    }
    let config = good(SERVER);
    let of = |config: &Config| steps_of(&tree, config, false, Some(Side::Server));
    let found = of(&config);
    assert_eq!(
        found[..2],
        [
            "- remove /exports/disk1",
            "+ export /dev/vda as /exports/disk1"
        ]
    );
    assert!(found[3].starts_with("+ load ibnbd_server"), "{found:?}");
    // Neither a link that somebody has made goes, nor a device of the machine.
    let refused = |directory: &str| {
        let found = of(&good(&SERVER.replace("/exports", directory)));
        let why = format!("! export disk1: {directory}/disk1 is another device: remove it first");
        assert_eq!(found[0], why);
        let last = "! ibnbd_server is not loaded: clients would find another device";
        assert_eq!(found[2..], [last]);
    };
    tree.link("/links/disk1", "../exports/disk1");
    refused("/links");
    refused("/dev");
    // A client may have the device open.
    tree.server("/exports");
    let found = of(&config);
    assert!(
        found[0].starts_with("! export disk1: /exports/disk1 is another device"),
        "{found:?}"
    );
}

#[test]
fn a_device_file_is_replaced_by_that_of_the_right_device() {
    let tree = Tree::new();
    if !block_device(&tree, "/exports/disk1", 0) || !block_device(&tree, "/dev/vda", 1) {
        return;
    }
    tree.file("/etc/ibtrs/server.toml", SERVER);
    // Modules are loaded on a machine only.
    assert_eq!(tree::ran::run(&tree, &["apply"]).code, 1);
    let meta = std::fs::metadata(tree.real("/exports/disk1")).unwrap();
    assert_eq!(meta.rdev(), makedev(7, 1));
}

#[test]
fn a_device_file_that_a_client_has_open_is_not_pruned() {
    let tree = Tree::new();
    tree.server("/exports")
        .link("/sys/dev/block/7:0", "../../devices/virtual/block/loop0")
        .folder("/sys/devices/virtual/block/loop0")
        .opened("loop0", "s", "old");
    if !block_device(&tree, "/exports/old", 0) || !block_device(&tree, "/exports/idle", 1) {
        return;
    }
    let mut config = good(SERVER);
    config.parameters.clear();
    config.exports[0].name = "disk1".to_owned();
    let mut found = steps(&tree, &config, true);
    found.retain(|step| !step.starts_with('+'));
    found.sort();
    assert_eq!(
        found,
        [
            "! the device of /exports/old, which no file names, is open, by s",
            "- remove /exports/idle"
        ]
    );
}

#[test]
fn a_parameter_may_be_written_in_several_ways() {
    let tree = Tree::new();
    tree.server("/exports")
        .file(
            "/sys/module/ibtrs_server/parameters/always_invalidate",
            "Y\n",
        )
        .file(
            "/sys/module/ibtrs_server/parameters/sess_queue_depth",
            "512\n",
        );
    let left = |parameters: &str| {
        let text = format!("[ibtrs_server]\n{parameters}");
        steps(&tree, &good(&text), false).len()
    };
    assert_eq!(
        left("always_invalidate = 1\nsess_queue_depth = \"0x200\"\n"),
        0
    );
    assert_eq!(
        left("always_invalidate = \"on\"\nsess_queue_depth = 512\n"),
        0
    );
    assert_eq!(
        left("always_invalidate = \"off\"\nsess_queue_depth = 513\n"),
        2
    );
}

/// A server that has no address at the moment may be the one that a path leads to.
#[test]
fn no_path_is_pruned_while_a_server_is_unknown() {
    let tree = Tree::new();
    tree.usual_client();
    let removed = |servers: &str| {
        let config = good(&CLIENT.replace("[\"storage1\"]", servers));
        let mut found = steps(&tree, &config, true);
        found.retain(|step| !step.contains("cannot"));
        found
    };
    assert_eq!(
        removed("[\"10.0.9.9\"]"),
        [
            "+ path ip:10.0.9.9 of session t",
            "- path ip:10.0.1.2@ip:10.0.3.1 of session t"
        ]
    );
    let found = removed("[\"nobody\"]");
    assert!(
        found.len() == 1 && found[0].starts_with("! session t: nobody"),
        "{found:?}"
    );
}

#[test]
fn paths_of_the_files_are_on_standby() {
    let tree = Tree::new();
    tree.usual_client();
    let ends = "name = \"t\"\nservers = [\"storage1\"]\npaths = [\"10.0.2.2,10.0.3.2\"";
    let planned = |more: &str| {
        let text = format!("[[session]]\n{ends}{more}\n");
        steps(&tree, &good(&text), false)
    };
    // Files that say nothing leave it as it is.
    assert_eq!(planned("]"), [""; 0]);
    assert_eq!(planned("]\nstandby = []"), [""; 0]);
    let set = "~ set standby of path 10.0.2.2,10.0.3.2 of session t from 0 to 1";
    assert_eq!(planned("]\nstandby = [\"10.0.2.2,10.0.3.2\"]"), [set]);
    let file = "/sys/class/ibtrs-client/t/paths/ip:10.0.2.2@ip:10.0.3.2/standby";
    tree.file(file, "1\n");
    assert_eq!(planned("]\nstandby = [\"10.0.2.2,10.0.3.2\"]"), [""; 0]);
    assert_eq!(planned("]"), [""; 0]);
    let set = "~ set standby of path 10.0.2.2,10.0.3.2 of session t from 1 to 0";
    assert_eq!(planned("]\nstandby = []"), [set]);
    // One that is to be added, and a server.
    tree.file(file, "0\n");
    assert_eq!(
        planned(", \"10.0.9.1\"]\nstandby = [\"10.0.9.1\", \"storage1\"]"),
        [
            "+ path ip:10.0.9.1 of session t, on standby",
            "~ set standby of path storage1 of session t from 0 to 1"
        ]
    );
    let text = format!("[[session]]\n{ends}]\nstandby = [\"10.0.7.1\", 3]\n");
    let problems = config::parse("f", &text).unwrap_err();
    let said: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].contains("is not one of servers or paths")
            || said[1].contains("is not one of servers or paths")
    );
}

/// Which of the addresses of a name comes first may change with each request.
#[test]
fn a_path_to_any_address_of_a_name_will_do() {
    let tree = Tree::new();
    tree.usual_client();
    let both = "servers = [\"storage1\"]\npaths = [\"10.0.2.2,10.0.3.2\"]\n";
    for ends in [
        both.replace("storage1", "twice"),
        "paths = [\"10.0.1.2,twice\", \"10.0.2.2,10.0.3.2\"]\n".to_owned(),
        "servers = [\"twice\"]\npaths = [\"10.0.1.2,10.0.3.1\", \"10.0.3.2\"]\n".to_owned(),
    ] {
        let config = good(&CLIENT.replace(both, &ends));
        assert_eq!(steps(&tree, &config, true), [""; 0], "{ends}");
    }
}

#[test]
fn a_path_may_be_written_in_several_ways() {
    let tree = Tree::new();
    tree.client()
        .session("s", &[("fe80::2%7", "fe80::1%7", "connected")])
        .file("/sys/class/net/eth0/ifindex", "7\n");
    let gid = |last: u8| format!("gid:fe80:0000:0000:0000:0000:0000:0000:000{last}");
    let folder = format!("/sys/class/ibtrs-client/s/paths/{}@{}", gid(4), gid(3));
    for (file, text) in [("src_addr", gid(4)), ("dst_addr", gid(3))] {
        tree.file(&format!("{folder}/{file}"), text + "\n");
    }
    tree.file(&format!("{folder}/state"), "connected\n");
    for paths in [
        "\"fe80::2%7,fe80::1%7\", \"gid:fe80::4,gid:fe80::3\"",
        "\"FE80::1%eth0\", \"gid:FE80:0::3\"",
        "\"ip:fe80::1%eth0\", \"gid:fe80::4@gid:fe80::3\"",
    ] {
        let config = good(&format!("[[session]]\nname = \"s\"\npaths = [{paths}]\n"));
        assert_eq!(steps(&tree, &config, true), [""; 0], "{paths}");
    }
}

#[test]
fn a_client_keeps_its_parameters() {
    let tree = Tree::new();
    let folder = "/sys/module/ibtrs_client/parameters";
    tree.usual_client().files(
        folder,
        &[
            ("auth", "required\n"),
            ("small_io_bytes", "8192\n"),
            ("auth_suites", "any\n"),
        ],
    );
    let text = kept(&tree, CLIENT, Choice::default());
    let own = "[ibtrs_client]\nauth = \"required\"\nsmall_io_bytes = 8192\n";
    assert!(
        text.contains(own) && !text.contains("auth_suites"),
        "{text}"
    );
    assert_eq!(steps(&tree, &good(&text), true), [""; 0]);
    assert_eq!(kept(&tree, &text, Choice::default()), text);
    // A file that has one gets its value.
    tree.file(&format!("{folder}/auth"), "auto\n");
    let changed = text.replace("required", "auto");
    assert_eq!(kept(&tree, &text, Choice::default()), changed);
    let choice = Choice {
        only: Some(("s", "disk1")),
        ..Choice::default()
    };
    assert!(!kept(&tree, "", choice).contains("ibtrs_client"));
}

/// They have other numbers after the next boot.
#[test]
fn paths_are_written_with_the_names_of_interfaces() {
    let tree = Tree::new();
    tree.client()
        .session("s", &[("fe80::2%7", "fe80::1%7", "connected")])
        .file("/sys/class/net/eth0/ifindex", "7\n");
    let text = kept(&tree, "", Choice::default());
    assert_eq!(good(&text).sessions[0].paths, ["fe80::2%eth0,fe80::1%eth0"]);
    assert_eq!(steps(&tree, &good(&text), true), [""; 0]);
    assert_eq!(kept(&tree, &text, Choice::default()), text);
}

#[test]
fn paths_beside_those_of_servers_are_written() {
    let tree = Tree::new();
    tree.usual_client();
    let both = "servers = [\"storage1\"]\npaths = [\"10.0.2.2,10.0.3.2\"]\n";
    let only = CLIENT.replace(both, "servers = [\"storage1\"]\n");
    let text = kept(&tree, &only, Choice::default());
    let of_t = |text: &str| good(text).sessions[1].clone();
    assert_eq!(of_t(&text).servers, ["storage1"]);
    assert_eq!(of_t(&text).paths, of_t(CLIENT).paths);
    assert_eq!(steps(&tree, &good(&text), true), [""; 0]);
    let twice = CLIENT.replace("storage1", "twice");
    assert_eq!(kept(&tree, &twice, Choice::default()), twice);
    // One that is not there at the moment stays, until it is pruned.
    let more = CLIENT.replace(
        "[\"10.0.2.2,10.0.3.2\"]",
        "[\"10.0.2.2,10.0.3.2\", \"10.0.5.1\"]",
    );
    assert_eq!(kept(&tree, &more, Choice::default()), more);
    let prune = Choice {
        prune: true,
        ..Choice::default()
    };
    assert_eq!(kept(&tree, &more, prune), CLIENT);
    // Which of them are the servers' cannot be told.
    let unknown = only.replace("storage1", "nobody");
    assert_eq!(kept(&tree, &unknown, Choice::default()), unknown);
}

proptest! {
    #[test]
    fn no_text_does_harm(text in "\\PC*|([a-z]{1,9} ?= ?[0-9a-z\"'.\\[\\]]{0,9}\n|\\[\\[?(session|export|host|port|disk|session.disk)\\]?\\]\n){0,9}") {
        if let Err(problems) = config::parse("x", &text) {
            prop_assert!(!problems.is_empty());
            for problem in problems {
                prop_assert!(problem.line >= 1 && problem.line <= text.lines().count().max(1) + 1);
                prop_assert!(problem.column >= 1);
            }
        }
    }
}

/// No limit is a number in the files of the driver and in ours.
#[test]
fn requests_may_wait_without_limit() {
    let tree = Tree::new();
    tree.usual_client();
    let unlimited = CLIENT.replace("queue_timeout_s = 600", "queue_timeout_s = -1");
    assert_eq!(
        steps(&tree, &good(&unlimited), false),
        ["~ set queue_timeout_s of session s from 600 to -1"]
    );
    tree.file("/sys/class/ibtrs-client/s/queue_timeout_s", "-1\n");
    assert_eq!(kept(&tree, CLIENT, Choice::default()), unlimited);
    for bad in ["-2", "86401", "4294967295"] {
        let text = CLIENT.replace("queue_timeout_s = 600", &format!("queue_timeout_s = {bad}"));
        let expected = format!("queue_timeout_s: {bad} is not -1 to 86400");
        assert_eq!(wrong(&text)[0].what, expected);
    }
}

/// The check of a disk without identity is given with its mapping, and can be changed later.
#[test]
fn a_disk_without_identity_is_vouched_for() {
    let tree = Tree::new();
    tree.usual_client();
    let text = CLIENT.replace("io_timeout_limit = 0 # for ever", "identity = \"none\"");
    let config = good(&text);
    assert_eq!(
        steps(&tree, &config, false),
        ["~ set identity of ibnbd1 from auto to none"]
    );
    let empty = Tree::new();
    let root = Root::new(empty.base());
    let wish = Wish {
        resolve: &resolve,
        prune: false,
        side: Some(Side::Client),
        disk: None,
    };
    let steps = plan::steps(&root, &Machine::read(&root), &config, &wish);
    let lines: Vec<_> = steps
        .iter()
        .filter_map(|step| match step {
            Step::Map(mapping) => Some(mapping.line().unwrap()),
            _ => None,
        })
        .collect();
    let vouched: Vec<_> = lines
        .iter()
        .filter(|l| l.ends_with(" identity=none"))
        .collect();
    assert_eq!(vouched.len(), 1, "{lines:?}");
    assert!(vouched[0].contains(" device_path=disk1 "), "{lines:?}");
    tree.file("/sys/block/ibnbd1/ibnbd/identity", "none\n");
    assert_eq!(kept(&tree, &text, Choice::default()), text);
    let problems = wrong(&text.replace("\"none\"", "\"any\""));
    assert!(problems[0]
        .what
        .starts_with("identity: \"any\" is not one of auto, none"));
}

/// The manual page of the files has each key that they may have.
#[test]
fn the_manual_page_has_each_key() {
    let page = include_str!("../man/ibtrs.toml.5");
    let words: Vec<&str> = page.split([' ', ',', '"', '\n', '.', '[', ']']).collect();
    let text = "\
[[session]]
name = \"s\"
paths = [\"10.0.1.1\"]
x = 1
[[session.disk]]
device = \"d\"
x = 1
[[host]]
name = \"h\"
x = 1
[[port]]
name = \"p\"
address = \"10.0.1.1\"
x = 1
[[export]]
device = \"/dev/x\"
hosts = []
x = 1
";
    let problems = wrong(text);
    assert_eq!(problems.len(), 5, "{problems:?}");
    for problem in problems {
        let (_, keys) = problem.what.split_once("it may have ").unwrap();
        for key in keys.split(", ") {
            assert!(words.contains(&key), "{key}: {problem}");
        }
    }
}
