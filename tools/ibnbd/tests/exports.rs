// SPDX-License-Identifier: GPL-2.0

//! Exports and hosts in configfs: read, changed and taken back, by the library and by the command.

mod configured;
mod tree;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use configured::changes::are_all_or_nothing;
use configured::planned::configured;
use ibnbd_host::configfs::change::{self, Change, Limits, Rules};
use ibnbd_host::document::{Exports, Hosts};
use ibnbd_host::prefix::Prefix;
use rustix::fs::{FileType, Mode};
use rustix::process::{kill_process, Pid, Signal};
use tree::ran::{document, good, rows, run, waits, Ran};
use tree::Tree;

const EXPORTS: &str = "/sys/kernel/config/ibnbd/exports";
const HOSTS: &str = "/sys/kernel/config/ibnbd/hosts";

fn prefix(text: &str) -> Prefix {
    Prefix::parse(text).unwrap()
}

/// A server with two exports, two hosts, and a client of one of them.
fn server() -> Tree {
    let tree = Tree::new();
    tree.server("")
        .host("web1")
        .host("web2")
        .export("disk1", "/dev/vda", &["web1"])
        .export("disk2", "/dev/vdb", &[])
        .authenticated("web1", "10.0.1.2", "10.0.1.1", "default")
        .served("web1", "10.0.2.2", "10.0.2.1")
        .opened("vda", "web1", "/disk1");
    tree
}

#[test]
fn exports_and_hosts_are_read() {
    let tree = server();
    // Links may have any name; their target counts.
    tree.link(
        &format!("{EXPORTS}/disk2/allowed_hosts/other"),
        &format!("{HOSTS}/web2"),
    )
    .file(
        &format!("{EXPORTS}/disk2/allow_unauthenticated"),
        "10.0.1.0/24 fe80::/10\n",
    )
    .file(&format!("{HOSTS}/web2/addresses"), "10.0.2.0/24\n")
    .file(&format!("{HOSTS}/web2/max_paths"), "4\n");
    let all = configured(&tree);
    assert_eq!(all.notes, []);
    let [one, two] = all.exports.as_slice() else {
        panic!("{all:?}");
    };
    assert_eq!(
        (one.name.as_str(), one.device_path.as_deref()),
        ("disk1", Some("/dev/vda"))
    );
    assert_eq!(
        (&one.allowed_hosts[..], &one.sessions[..]),
        (&["web1".to_owned()][..], &["web1".to_owned()][..])
    );
    assert_eq!(
        two.allow_unauthenticated.as_deref(),
        Some(&[prefix("10.0.1.0/24"), prefix("fe80::/10")][..])
    );
    assert_eq!(
        (two.allowed_hosts.as_slice(), two.links.as_slice()),
        (&["web2".to_owned()][..], &["other".to_owned()][..])
    );
    let [first, second] = all.hosts.as_slice() else {
        panic!("{all:?}");
    };
    // One of its paths has not authenticated.
    assert_eq!(
        (first.paths, first.exports.as_slice()),
        (1, &["disk1".to_owned()][..])
    );
    assert_eq!(
        (second.max_paths, second.addresses.as_deref()),
        (Some(4), Some(&[prefix("10.0.2.0/24")][..]))
    );
}

fn files_of(tree: &Tree) -> Vec<String> {
    let export = [
        "device_path",
        "access_mode",
        "allow_realtime",
        "allow_any_host",
        "allow_unauthenticated",
        "enable",
    ];
    let mut files: Vec<String> = export
        .iter()
        .map(|f| format!("{EXPORTS}/disk1/{f}"))
        .collect();
    files.extend(
        ibnbd_host::configfs::OF_HOST
            .iter()
            .map(|f| format!("{HOSTS}/web1/{f}")),
    );
    files
        .iter()
        .for_each(|file| assert!(tree.real(file).exists(), "{file}"));
    files
}

/// Each file in turn has bad contents: everything else is read as before.
#[test]
fn damage_stays_where_it_is() {
    for bytes in [&b""[..], b"\x01\x02 0x?!\nx\n", b"\xff\xfe\n"] {
        let tree = server();
        for file in files_of(&tree) {
            let before = tree.text(&file);
            fs::write(tree.real(&file), bytes).unwrap();
            let all = configured(&tree);
            assert_eq!((all.exports.len(), all.hosts.len()), (2, 2), "{file}");
            assert!(
                all.notes.iter().all(|note| note.file == file),
                "{file}: {:?}",
                all.notes
            );
            assert!(
                all.notes.len() == 1 || bytes.is_empty(),
                "{file}: {:?}",
                all.notes
            );
            // The commands go on, too.
            let ran = run(&tree, &["export", "list"]);
            assert_eq!(
                (ran.code, ran.out.lines().count()),
                (0, 3),
                "{file}: {}",
                ran.err
            );
            fs::write(tree.real(&file), before).unwrap();
        }
    }
}

#[test]
fn what_is_missing_is_left_out_without_a_word() {
    let tree = server();
    for file in files_of(&tree) {
        let before = tree.text(&file);
        fs::remove_file(tree.real(&file)).unwrap();
        let all = configured(&tree);
        assert_eq!(
            (all.exports.len(), all.hosts.len(), all.notes.len()),
            (2, 2, 0),
            "{file}"
        );
        fs::write(tree.real(&file), before).unwrap();
    }
    fs::remove_dir_all(tree.real(EXPORTS)).unwrap();
    assert_eq!(configured(&tree).hosts[0].exports, [""; 0]);
}

#[test]
fn files_in_place_of_folders_are_none() {
    let tree = server();
    tree.file(&format!("{EXPORTS}/x"), "")
        .file(&format!("{HOSTS}/x"), "");
    assert_eq!(
        (
            configured(&tree).exports.len(),
            configured(&tree).hosts.len()
        ),
        (2, 2)
    );
}

/// A server's configfs: folders with their files, and links.
#[derive(Clone, PartialEq, Debug, Default)]
struct Kernel {
    folders: BTreeMap<String, BTreeMap<String, String>>,
    links: BTreeMap<String, String>,
}

impl Kernel {
    fn change(&mut self, change: &Change) -> Result<(), &'static str> {
        let refused = |is: bool| if is { Err("refused") } else { Ok(()) };
        let below = |folder: &str, path: &str| path.starts_with(&format!("{folder}/"));
        match change {
            Change::MakeFolder(folder) => {
                refused(self.folders.contains_key(folder))?;
                self.folders.insert(folder.clone(), BTreeMap::new());
            }
            Change::RemoveFolder(folder) => {
                refused(
                    self.links
                        .iter()
                        .any(|(link, to)| below(folder, link) || to == folder),
                )?;
                self.folders.remove(folder).ok_or("gone")?;
            }
            Change::Write { file, text, .. } => {
                let (folder, key) = file.rsplit_once('/').unwrap();
                let files = self.folders.get_mut(folder).ok_or("gone")?;
                let enabled = files.get("enable").is_some_and(|is| is == "1");
                refused(key == "device_path" && enabled)?;
                files.insert(key.to_owned(), text.clone());
            }
            Change::Link { file, to } => {
                refused(self.links.contains_key(file) || !self.folders.contains_key(to))?;
                self.links.insert(file.clone(), to.clone());
            }
            Change::Unlink { file, .. } => {
                self.links.remove(file).ok_or("gone")?;
            }
        }
        Ok(())
    }
}

fn rules() -> Rules {
    Rules {
        access: "ro".to_owned(),
        realtime: true,
        any_host: true,
        from: vec![prefix("10.0.1.0/24"), prefix("any")],
        hosts: vec!["web1".to_owned(), "web2".to_owned()],
        enable: true,
    }
}

/// The changes of each command, with what the server has before.
fn commands() -> Vec<(Kernel, Vec<Change>)> {
    let mut kernel = Kernel::default();
    for name in ["web1", "web2"] {
        for change in change::add_host(
            name,
            &Limits {
                max_paths: 2,
                ..Limits::default()
            },
        ) {
            kernel.change(&change).unwrap();
        }
    }
    let hosts = kernel.clone();
    for change in change::add_export("disk1", "/dev/vda", &rules()) {
        kernel.change(&change).unwrap();
    }
    let export = ibnbd_host::configfs::Export {
        name: "disk1".to_owned(),
        enable: Some(true),
        allowed_hosts: rules().hosts,
        links: rules().hosts,
        ..Default::default()
    };
    let host = ibnbd_host::configfs::Host {
        name: "web1".to_owned(),
        ..Default::default()
    };
    vec![
        (
            Kernel::default(),
            change::add_host(
                "web1",
                &Limits {
                    addresses: vec![prefix("any")],
                    max_paths: 1,
                    max_connections: 1,
                    max_memory_mib: 1,
                    max_devices: 1,
                    max_iops: 100,
                    max_bandwidth_mib_s: 1,
                },
            ),
        ),
        (hosts, change::add_export("disk1", "/dev/vda", &rules())),
        (kernel.clone(), change::remove_export(&export)),
        (
            kernel.clone(),
            change::remove_host(&host, std::slice::from_ref(&export)),
        ),
        (kernel, change::deny(&export, "web2")),
    ]
}

/// Whichever system call fails, the server has afterwards what it had before.
#[test]
fn changes_are_all_or_nothing() {
    are_all_or_nothing(commands(), Kernel::change);
}

#[test]
fn what_cannot_be_taken_back_is_told() {
    let changes = change::add_export("disk1", "/dev/vda", &Rules::default());
    let failed = change::all(&changes, |change| match change {
        Change::MakeFolder(_) => Ok(()),
        _ => Err("stuck"),
    });
    let folder = format!("{EXPORTS}/disk1");
    assert_eq!(
        failed.unwrap_err().left,
        [(Change::RemoveFolder(folder), "stuck")]
    );
}

/// Nobody gets in before all rules are there, and only what is not usual is written.
#[test]
fn an_export_is_enabled_last() {
    let words = |rules: &Rules| -> Vec<String> {
        change::add_export("disk1", "/dev/vda", rules)
            .iter()
            .map(Change::to_string)
            .collect()
    };
    let folder = format!("mkdir {EXPORTS}/disk1");
    assert_eq!(
        words(&Rules::default()),
        [folder.as_str(), "device_path=/dev/vda", "enable=1"]
    );
    assert_eq!(
        words(&rules())[1..],
        [
            "device_path=/dev/vda",
            "access_mode=ro",
            "allow_realtime=1",
            "allow_any_host=1",
            "allow_unauthenticated=10.0.1.0/24 any",
            "allow host web1",
            "allow host web2",
            "enable=1",
        ]
    );
    assert!(!words(&Rules {
        enable: false,
        ..rules()
    })
    .contains(&"enable=1".to_owned()));
}

#[test]
fn exports_are_listed() {
    let tree = server();
    tree.file(&format!("{EXPORTS}/disk2/allow_any_host"), "1\n")
        .file(
            &format!("{EXPORTS}/disk2/allow_unauthenticated"),
            "10.0.1.0/24\n",
        )
        .file(&format!("{EXPORTS}/disk2/enable"), "0\n");
    let text = good(&tree, &["export", "list"]);
    assert_eq!(
        rows(&text),
        [
            vec!["EXPORT", "DEVICE", "MODE", "ENABLED", "HOSTS", "FROM", "CLIENTS"],
            vec!["disk1", "/dev/vda", "rw", "yes", "web1", "-", "web1"],
            vec!["disk2", "/dev/vdb", "rw", "no", "any", "10.0.1.0/24", "-"],
        ]
    );
    let columns = ["export", "list", "--columns", "export,device", "-o", "csv"];
    assert_eq!(
        good(&tree, &columns),
        "export,device\ndisk1,/dev/vda\ndisk2,/dev/vdb\n"
    );
    let exports: Exports = document(&tree, &["export", "list"]);
    assert_eq!((exports.configfs.len(), exports.directory), (2, None));
}

/// As long as configfs has no export, the directory counts.
#[test]
fn a_directory_is_listed_while_it_counts() {
    let tree = Tree::new();
    tree.server("/e").folder("/e").configfs();
    let list = |tree: &Tree, words: &[&str]| -> Exports {
        document(tree, &[&["export", "list"], words].concat())
    };
    assert_eq!(list(&tree, &[]).directory.as_deref(), Some("/e"));
    assert_eq!(rows(&good(&tree, &["export", "list"]))[0][2], "NUMBER");
    tree.export("disk1", "/dev/vda", &[]);
    assert_eq!(
        (list(&tree, &[]).directory, list(&tree, &[]).configfs.len()),
        (None, 1)
    );
    let both = list(&tree, &["--directory", "/e"]);
    assert_eq!(
        (both.directory.as_deref(), both.configfs.len()),
        (Some("/e"), 0)
    );
    // Nor is one removed from the directory that clients do not see.
    assert_eq!(run(&tree, &["export", "remove", "file"]).code, 3);
}

#[test]
fn hosts_are_listed() {
    let tree = server();
    tree.file(&format!("{HOSTS}/web2/addresses"), "10.0.2.0/24 fd00::1\n");
    let text = good(&tree, &["host", "list"]);
    assert_eq!(
        rows(&text)[1],
        ["web1", "-", "0", "0", "0", "0", "1", "disk1"]
    );
    assert_eq!(
        rows(&text)[2],
        [
            "web2",
            "10.0.2.0/24",
            "fd00::1",
            "0",
            "0",
            "0",
            "0",
            "0",
            "-"
        ]
    );
    let hosts: Hosts = document(&tree, &["host", "list"]);
    assert_eq!(hosts.hosts.len(), 2);
}

#[test]
fn commands_write_to_their_files() {
    let tree = server();
    for (words, file, text) in [
        (
            &["export", "disable", "disk1", "-f"][..],
            "disk1/enable",
            "0\n",
        ),
        (&["export", "enable", "disk1"], "disk1/enable", "1\n"),
        (
            &["export", "set", "disk1", "access_mode=migration"],
            "disk1/access_mode",
            "migration\n",
        ),
        (
            &[
                "export",
                "set",
                "disk1",
                "allow_realtime=1",
                "allow_any_host=1",
            ],
            "disk1/allow_any_host",
            "1\n",
        ),
        (
            &[
                "export",
                "set",
                "disk2",
                "allow_unauthenticated=10.0.1.0/24,fe80::/10",
            ],
            "disk2/allow_unauthenticated",
            "10.0.1.0/24,fe80::/10\n",
        ),
        (
            &["export", "set", "disk2", "allow_unauthenticated="],
            "disk2/allow_unauthenticated",
            "\n",
        ),
        (
            &["export", "set", "disk2", "device_path=/dev/vdc"],
            "disk2/device_path",
            "/dev/vdc\n",
        ),
        (
            &["host", "set", "web1", "addresses=10.0.1.0/24"],
            "../hosts/web1/addresses",
            "10.0.1.0/24\n",
        ),
        (
            &["host", "set", "web1", "max_paths=2", "max_devices=3"],
            "../hosts/web1/max_devices",
            "3\n",
        ),
    ] {
        let file = format!("{EXPORTS}/{file}");
        if text == "\n" || text.contains('.') {
            tree.file(&file, " ");
        }
        assert_eq!(good(&tree, words), "", "{words:?}");
        assert_eq!(tree.text(&file), text, "{words:?}");
    }
}

/// Commands that close an export for those who have it open want `--force`; others do not ask.
#[test]
fn an_export_in_use_is_closed_only_if_the_user_insists() {
    let tree = server();
    let rules = format!("{EXPORTS}/disk1");
    tree.opened("vda", "any1", "disk1")
        .file(&format!("{rules}/allow_any_host"), "1\n")
        .file(&format!("{rules}/allow_unauthenticated"), "10.0.1.0/24\n");
    let state = |tree: &Tree| configured(tree).export("disk1").cloned();
    let before = state(&tree);
    let cannot = |what: &str, who: &str| {
        format!("ibnbd: cannot {what} export disk1: clients have it open: {who}\n  remedy: unmap it there, or take --force: their I/O fails\n")
    };
    for (words, what, who) in [
        (&["disable", "disk1"][..], "disable", "any1 web1"),
        (
            &["set", "disk1", "access_mode=ro"],
            "set access_mode=ro of",
            "any1 web1",
        ),
        // The others are named by the export.
        (
            &["set", "disk1", "allow_any_host=0"],
            "set allow_any_host=0 of",
            "any1",
        ),
        (
            &[
                "set",
                "disk1",
                "allow_realtime=1",
                "allow_unauthenticated=10.0.2.0/24",
            ],
            "set allow_realtime=1 allow_unauthenticated=10.0.2.0/24 of",
            "any1",
        ),
    ] {
        let ran = run(&tree, &[&["export"], words].concat());
        assert_eq!((ran.code, ran.err), (1, cannot(what, who)), "{words:?}");
        assert_eq!(state(&tree), before, "{words:?}");
        good(&tree, &[&["export"], words, &["--force"]].concat());
        assert_ne!(state(&tree), before, "{words:?}");
        tree.file(&format!("{rules}/enable"), "1\n")
            .file(&format!("{rules}/access_mode"), "rw\n")
            .file(&format!("{rules}/allow_any_host"), "1\n")
            .file(&format!("{rules}/allow_realtime"), "0\n")
            .file(&format!("{rules}/allow_unauthenticated"), "10.0.1.0/24\n");
    }
    // A fault of the words is said first.
    assert_eq!(
        run(&tree, &["export", "set", "disk1", "access_mode=ro", "x=1"]).code,
        2
    );
    for words in [
        "set disk1 access_mode=migration",
        "set disk1 allow_realtime=1",
        "set disk1 allow_any_host=1",
        "set disk1 allow_unauthenticated=10.0.0.0/16,fe80::/10",
        "set disk1 allow_unauthenticated=any",
        "disable disk2",
        "set disk2 access_mode=ro",
    ] {
        tree.file(&format!("{rules}/allow_unauthenticated"), "10.0.1.0/24");
        let words: Vec<&str> = words.split(' ').collect();
        good(&tree, &[&["export"], &words[..]].concat());
        tree.file(&format!("{rules}/allow_unauthenticated"), "10.0.1.0/24");
    }
    // Every host may open it, so nobody loses it.
    let ran = run(&tree, &["export", "deny", "disk1", "web1"]);
    assert!(
        ran.code == 0 && ran.err.contains("every host may"),
        "{}",
        ran.err
    );
    good(&tree, &["export", "allow", "disk1", "web1", "web2"]);
    good(
        &tree,
        &["export", "set", "disk1", "allow_any_host=0", "--force"],
    );
    let ran = run(&tree, &["export", "deny", "disk1", "web2", "web1"]);
    assert_eq!((ran.code, ran.err), (1, cannot("keep hosts from", "web1")));
    assert_eq!(links(&tree, "disk1"), ["web1", "web2"]);
    good(&tree, &["export", "deny", "disk1", "web2"]);
    good(&tree, &["export", "deny", "disk1", "web1", "-f"]);
    assert_eq!(links(&tree, "disk1"), [""; 0]);
}

fn links(tree: &Tree, export: &str) -> Vec<String> {
    let all = configured(tree);
    all.export(export).unwrap().allowed_hosts.clone()
}

#[test]
fn hosts_are_allowed_and_denied() {
    let tree = server();
    good(&tree, &["export", "allow", "disk2", "web1", "web2", "web1"]);
    assert_eq!(links(&tree, "disk2"), ["web1", "web2"]);
    // The whole path is given, as the kernel would begin a short one elsewhere.
    let link = fs::read_link(tree.real(&format!("{EXPORTS}/disk2/allowed_hosts/web2"))).unwrap();
    assert_eq!(link, tree.real(&format!("{HOSTS}/web2")));
    // All lists take commas.
    good(&tree, &["export", "deny", "disk2", "web1,web2"]);
    assert_eq!(links(&tree, "disk2"), [""; 0]);
    good(&tree, &["export", "allow", "disk2", "web1,web2"]);
    assert_eq!(links(&tree, "disk2"), ["web1", "web2"]);
    // A setting that already has the value is no fault.
    good(&tree, &["export", "allow", "disk2", "web2"]);
    good(&tree, &["export", "deny", "disk2", "web1"]);
    assert_eq!(links(&tree, "disk2"), ["web2"]);
    for (words, why) in [
        (
            ["export", "deny", "disk2", "web1"],
            "it does not name the host web1",
        ),
        (
            ["export", "allow", "disk2", "web3"],
            "remedy: ibnbd host add web3",
        ),
        (
            ["export", "allow", "disk3", "web1"],
            "there is no such export",
        ),
    ] {
        let ran = run(&tree, &words);
        assert!(
            ran.code == 3 && ran.err.contains(why),
            "{words:?}: {}",
            ran.err
        );
    }
    assert_eq!(links(&tree, "disk2"), ["web2"]);
    tree.file(&format!("{EXPORTS}/disk2/allow_any_host"), "1\n");
    let ran = run(&tree, &["export", "deny", "disk2", "web2"]);
    assert!(
        ran.code == 0 && ran.err.contains("every host may open disk2"),
        "{}",
        ran.err
    );
}

/// A block device of the kernel's that every machine may have; only root can make it.
fn block_device(tree: &Tree, file: &str, minor: u32) -> bool {
    let (real, mode) = (tree.real(file), Mode::from_raw_mode(0o600));
    fs::create_dir_all(real.parent().unwrap()).unwrap();
    let number = rustix::fs::makedev(7, minor);
    rustix::fs::mknodat(rustix::fs::CWD, &real, FileType::BlockDevice, mode, number).is_ok()
}

#[test]
fn a_device_has_one_export_unless_the_user_insists() {
    let tree = server();
    let add = |device: &str, more: &[&str]| {
        let words = ["export", "add", device, "disk3", "--any-host"];
        run(&tree, &[&words, more].concat())
    };
    let refused = |device: &str| {
        format!("ibnbd: cannot export {device}: the device is exported already, as disk1\n  remedy: let clients open that export, or take --force: they see one disk by two names\n")
    };
    let ran = add("/dev/vda", &[]);
    assert_eq!((ran.code, ran.err), (1, refused("/dev/vda")));
    // With it, only what made-up directories lack is missed.
    let ran = add("/dev/vda", &["--force"]);
    assert!(
        ran.err
            .contains("cannot add export disk3 (device_path=/dev/vda)"),
        "{}",
        ran.err
    );
    // By another path it is the same device.
    if block_device(&tree, "/dev/vda", 0) && block_device(&tree, "/dev/vg/data", 0) {
        let ran = add("/dev/vg/data", &[]);
        assert_eq!((ran.code, ran.err), (1, refused("/dev/vg/data")));
        assert!(block_device(&tree, "/dev/vdc", 1));
        assert!(add("/dev/vdc", &[]).err.contains("(device_path=/dev/vdc)"));
    }
    let out = run(&tree, &["check"]).out;
    assert!(!out.contains("are one device"), "{out}");
    tree.export("disk2", "/dev/vda", &[])
        .export("disk4", "/dev/vda", &[]);
    let out = run(&tree, &["check"]).out;
    let found = "warning: exports disk1 and disk2 disk4 are one device, /dev/vda: a client that one of them refuses may open another, and a client that maps both has one disk by two names\n  remedy: ibnbd export remove disk2 disk4, or disk1\n";
    assert_eq!(out.matches("are one device").count(), 1, "{out}");
    assert!(out.contains(found), "{out}");
}

#[test]
fn a_device_has_one_file_unless_the_user_insists() {
    let tree = Tree::new();
    tree.server("/e")
        .link("/sys/dev/block/7:0", "../../devices/virtual/block/loop0");
    if !block_device(&tree, "/dev/loop0", 0) {
        return;
    }
    let add = |name: &str, more: &[&str]| {
        run(
            &tree,
            &[&["export", "add", "/dev/loop0", name], more].concat(),
        )
    };
    let says = |who: &str, ran: &Ran| {
        let said = format!("warning: {who} may open disk1, as it is in /e; --host HOST makes");
        assert!(ran.code == 0 && ran.err.contains(&said), "{}", ran.err);
    };
    says("everybody who reaches the server", &add("disk1", &[]));
    tree.keyctl().file("/ring", "77\n").file(
        "/proc/keys",
        "0000004d I--Q---     1 perm 3d010000     0     0 logon     ibtrs:default:web1: 32\n",
    );
    // What is so already is no fault.
    says("every client that has a key", &add("/disk1", &[]));
    let ran = add("disk2", &[]);
    assert_eq!(ran.code, 1);
    assert!(
        ran.err.contains("exported already, as disk1\n"),
        "{}",
        ran.err
    );
    assert!(!run(&tree, &["check"]).out.contains("are one device"));
    assert_eq!(add("disk2", &["--force"]).code, 0);
    let out = run(&tree, &["check"]).out;
    assert!(
        out.contains("warning: exports disk1 and disk2 are one device, loop0: "),
        "{out}"
    );
}

/// A made-up directory has none of the files that the kernel makes, so the first write fails.
#[test]
fn a_half_made_export_or_host_is_taken_back() {
    let tree = server();
    let ran = run(
        &tree,
        &["export", "add", "/dev/vdc", "disk3", "--host", "web1"],
    );
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(
        ran.err
            .starts_with("ibnbd: cannot add export disk3 (device_path=/dev/vdc): "),
        "{}",
        ran.err
    );
    assert!(!tree.real(&format!("{EXPORTS}/disk3")).exists());
    let ran = run(&tree, &["host", "add", "web3", "--max-paths", "2"]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(!tree.real(&format!("{HOSTS}/web3")).exists());
    // One that has nothing to write is made.
    good(&tree, &["host", "add", "web3"]);
    assert!(tree.real(&format!("{HOSTS}/web3")).exists());
    let ran = run(&tree, &["host", "add", "web3"]);
    assert!(
        ran.code == 1 && ran.err.contains("there is a host of that name (EEXIST)"),
        "{}",
        ran.err
    );
}

#[test]
fn settings_are_all_or_nothing() {
    let tree = server();
    let file = tree.real(&format!("{EXPORTS}/disk1/allow_any_host"));
    fs::remove_file(&file).unwrap();
    let ran = run(
        &tree,
        &[
            "export",
            "set",
            "disk1",
            "access_mode=ro",
            "allow_any_host=1",
        ],
    );
    assert_eq!(ran.code, 1);
    assert_eq!(tree.text(&format!("{EXPORTS}/disk1/access_mode")), "rw\n");
}

/// Whether a process has a handler for a signal.
fn takes(process: u32, signal: Signal) -> bool {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let bits = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
    bits & 1 << (signal.as_raw() - 1) != 0
}

/// What `work` returns. It fails the test if that takes too long.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    let result = result.recv_timeout(Duration::from_secs(30));
    result.expect("it failed, or took too long")
}

/// `export set` of two settings, whose first is a pipe: the command waits until somebody reads it.
struct Waiting {
    child: process::Child,
    pipe: PathBuf,
    said: Option<Lines<BufReader<process::ChildStderr>>>,
    tree: Tree,
}

impl Waiting {
    /// The command is started by a shell, after it has done something else.
    fn new(shell: &str, until_it_takes: Signal) -> Self {
        Self::with(shell, until_it_takes, process::Stdio::piped())
    }

    fn with(shell: &str, until_it_takes: Signal, said: process::Stdio) -> Self {
        let tree = server();
        let pipe = tree.real(&format!("{EXPORTS}/disk1/access_mode"));
        fs::remove_file(&pipe).unwrap();
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, mode, 0).unwrap();
        // The caller of the tests may ignore signals, as a shell does for jobs in the background.
        let mut child = process::Command::new("env")
            .args(["--default-signal=HUP,INT,TERM", "sh", "-c"])
            .arg(format!("{shell}; exec \"$0\" \"$@\""))
            .arg(env!("CARGO_BIN_EXE_ibnbd"))
            .arg("--root")
            .arg(tree.base())
            .args(["export", "set", "--force", "disk1"])
            .args(["access_mode=ro", "allow_any_host=1"])
            .stderr(said)
            .spawn()
            .unwrap();
        let said = child.stderr.take().map(|said| BufReader::new(said).lines());
        let found = Self {
            child,
            pipe: pipe.clone(),
            said,
            tree,
        };
        let id = found.child.id();
        in_time(move || {
            // The state before.
            fs::write(&pipe, "rw\n").unwrap();
            while !(takes(id, until_it_takes) && waits(id)) {
                thread::sleep(Duration::from_millis(5));
            }
        });
        found
    }

    /// The command says of a signal that it takes back what was done.
    fn interrupt(&mut self, signal: Signal, name: &str) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let mut said = self.said.take().unwrap();
        let (said, first) = in_time(move || {
            let mut lines = said.by_ref().map(Result::unwrap);
            let first = lines.find(|line| !line.contains("waiting to"));
            (said, first.unwrap())
        });
        self.said = Some(said);
        let expected = format!("ibnbd: interrupted by {name}: waits for the step in progress, then takes back what was done; another {name} ends it at once");
        assert_eq!(first, expected);
    }

    /// Reads that many lines which the command writes to the setting.
    fn written(&self, count: usize) -> Vec<String> {
        let pipe = self.pipe.clone();
        in_time(move || {
            // Opened for both, it has no end between two writers.
            let pipe = fs::File::options().read(true).write(true).open(&pipe);
            let lines = BufReader::new(pipe.unwrap()).lines().take(count);
            lines.map(Result::unwrap).collect()
        })
    }

    /// The rest of what the command says, and its exit code.
    fn end(&mut self) -> (String, Option<i32>) {
        let (rest, status) = self.status();
        (rest, status.code())
    }

    fn status(&mut self) -> (String, process::ExitStatus) {
        let said = self.said.take().unwrap();
        let rest: Vec<String> = in_time(|| said.map(Result::unwrap).collect());
        (rest.join("\n"), self.child.wait().unwrap())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const ENDING: [(Signal, &str, i32); 3] = [
    (Signal::INT, "Ctrl-C", 130),
    (Signal::TERM, "SIGTERM", 143),
    (Signal::HUP, "SIGHUP", 129),
];

#[test]
fn a_signal_takes_back_what_was_done() {
    for (signal, name, code) in ENDING {
        let mut waiting = Waiting::new(":", signal);
        waiting.interrupt(signal, name);
        assert_eq!(waiting.written(2), ["ro", "rw"]);
        let (rest, ended) = waiting.end();
        let why = "(allow_any_host=1): operation interrupted";
        assert!(rest.contains(why), "{name}: {rest}");
        assert_eq!(ended, Some(code), "{name}");
        let other = waiting
            .tree
            .text(&format!("{EXPORTS}/disk1/allow_any_host"));
        assert_eq!(other, "0\n", "{name}");
    }
}

#[test]
fn a_second_signal_ends_the_command_at_once() {
    for (signal, name, code) in ENDING {
        let mut waiting = Waiting::new(":", signal);
        waiting.interrupt(signal, name);
        kill_process(Pid::from_child(&waiting.child), signal).unwrap();
        // By the signal, which a shell shows as that code.
        let signal = waiting.status().1.signal();
        assert_eq!(signal.map(|signal| 128 + signal), Some(code), "{name}");
    }
}

/// A socket for standard error, into which nothing more fits.
fn full() -> (UnixStream, UnixStream) {
    let (mut said, reader) = UnixStream::pair().unwrap();
    said.set_nonblocking(true).unwrap();
    while said.write(b"x").is_ok() {}
    said.set_nonblocking(false).unwrap();
    (said, reader)
}

/// The message about the signal does not prevent the command from taking back its changes.
#[test]
fn a_signal_counts_while_nobody_reads_what_is_said() {
    let (said, mut reader) = full();
    let mut waiting = Waiting::with(":", Signal::TERM, process::Stdio::from(OwnedFd::from(said)));
    kill_process(Pid::from_child(&waiting.child), Signal::TERM).unwrap();
    // By then it says so.
    thread::sleep(Duration::from_millis(500));
    assert_eq!(waiting.written(2), ["ro", "rw"]);
    let mut rest = Vec::new();
    in_time(move || reader.read_to_end(&mut rest).unwrap());
    assert_eq!(waiting.child.wait().unwrap().code(), Some(143));
}

#[test]
fn a_signal_that_nohup_ignores_stays_ignored() {
    let mut waiting = Waiting::new("trap '' HUP", Signal::TERM);
    assert!(!takes(waiting.child.id(), Signal::HUP));
    kill_process(Pid::from_child(&waiting.child), Signal::HUP).unwrap();
    assert_eq!(waiting.written(1), ["ro"]);
    assert_eq!(waiting.end().1, Some(0));
}

#[test]
fn words_that_make_no_sense_change_nothing() {
    let tree = server();
    for (words, why) in [
        (
            &["export", "set", "disk1", "colour=1"][..],
            "there is no such setting",
        ),
        (
            &["export", "set", "disk1", "access_mode"],
            "it is not SETTING=VALUE",
        ),
        (
            &["export", "set", "disk1", "access_mode=RW"],
            "not one of ro, rw, migration",
        ),
        (
            &[
                "export",
                "set",
                "disk1",
                "access_mode=ro",
                "allow_any_host=yes",
            ],
            "neither 0 nor 1",
        ),
        (
            &[
                "export",
                "set",
                "disk1",
                "allow_unauthenticated=10.0.1.0/33",
            ],
            "is no address, prefix",
        ),
        (
            &["host", "set", "web1", "max_paths=-1"],
            "it is not a number",
        ),
        (
            &["host", "set", "web1", "max_connections=65536"],
            "65536 is not 0 to 65535",
        ),
        (
            &["host", "set", "web1", "max_iops=99"],
            "99 is neither 0 nor 100 or more",
        ),
        (
            &["host", "add", "web3", "--max-iops", "99"],
            "99 is neither 0 nor 100 or more",
        ),
        (
            &["host", "add", "web3", "--max-bandwidth-mib-s", "1048577"],
            "1048577 is not 0 to 1048576",
        ),
        (
            &["host", "set", "web1", "addresses=web1"],
            "is no address, prefix",
        ),
        (&["host", "add", "a.b"], "'/' or '.'"),
        (
            &["host", "set", "web1", "addresses=any,10.0.1.7/24"],
            "\"10.0.1.7/24\" has host bits set: 10.0.1.0/24 is probably meant",
        ),
        (
            &["host", "add", "web3", "--address", "10.0.1.0/33"],
            "it is no address",
        ),
        (
            &["host", "add", "web3", "--address", "10.0.0.1/24"],
            "it has host bits set: 10.0.0.0/24 is probably meant",
        ),
        (
            &["host", "add", "web3", "--max-paths", "65536"],
            "65536 is not 0 to 65535",
        ),
        (
            &["export", "add", "/dev/vdc", "a/b", "--any-host"],
            "has no /",
        ),
        (
            &["export", "add", "/dev/vdc", "..", "--any-host"],
            "neither . nor ..",
        ),
        (
            &["export", "add", "/dev/vdc", "a b", "--any-host"],
            "a blank",
        ),
        (
            &["export", "add", "/dev/vdc", "d", "--from", "host1"],
            "it is no address",
        ),
        (
            &["export", "add", "/dev/vdc", "d", "--ro", "--migration"],
            "cannot be used with",
        ),
        (
            &[
                "export",
                "add",
                "/dev/vdc",
                "d",
                "--ro",
                "--directory",
                "/e",
            ],
            "cannot be used with",
        ),
        (
            &["export", "remove", "disk1", "--all"],
            "cannot be used with",
        ),
        (&["export", "remove"], "required"),
    ] {
        let before = configured(&tree);
        let ran = run(&tree, words);
        assert!(
            ran.code == 2 && ran.err.contains(why),
            "{words:?}: {} {}",
            ran.code,
            ran.err
        );
        assert_eq!(configured(&tree), before, "{words:?}");
    }
    let many: Vec<String> = (0..65).map(|n| format!("--address=10.0.0.{n}")).collect();
    let mut words = vec!["host", "add", "web3"];
    words.extend(many.iter().map(String::as_str));
    assert_eq!(run(&tree, &words).code, 2);
}

#[test]
fn what_is_in_use_stays() {
    let tree = server();
    for (words, why) in [
        (
            &["export", "remove", "disk1"][..],
            "clients have it open: web1",
        ),
        (&["host", "remove", "web1"], "exports allow it: disk1"),
    ] {
        let ran = run(&tree, words);
        assert!(
            ran.code == 1 && ran.err.contains(why) && ran.err.contains("--force"),
            "{}",
            ran.err
        );
    }
    good(&tree, &["export", "deny", "disk1", "web1", "--force"]);
    let ran = run(&tree, &["host", "remove", "web1"]);
    assert!(
        ran.code == 1 && ran.err.contains("it is connected"),
        "{}",
        ran.err
    );
    assert_eq!(
        (
            configured(&tree).exports.len(),
            configured(&tree).hosts.len()
        ),
        (2, 2)
    );
    assert_eq!(tree.text(&format!("{EXPORTS}/disk1/enable")), "1\n");
}

/// The made-up directory is not empty and cannot be removed, as one of configfs could be.
#[test]
fn a_removal_that_fails_is_taken_back() {
    let tree = server();
    let ran = run(&tree, &["export", "remove", "disk1", "--force"]);
    assert!(ran.code == 1 && ran.err.contains("(rmdir "), "{}", ran.err);
    assert_eq!(links(&tree, "disk1"), ["web1"]);
    assert_eq!(tree.text(&format!("{EXPORTS}/disk1/enable")), "1\n");
}

/// While all goes, nobody may do more than before.
#[test]
fn all_of_it_goes_from_the_inside_out() {
    let tree = server();
    tree.port("left", "ip:10.0.1.1");
    let steps = change::remove_all(&configured(&tree));
    let steps: Vec<(&str, Vec<String>)> = steps
        .iter()
        .map(|(_, what, changes)| {
            (
                what.as_str(),
                changes.iter().map(Change::to_string).collect(),
            )
        })
        .collect();
    let names: Vec<&str> = steps.iter().map(|(what, _)| *what).collect();
    assert_eq!(
        names,
        [
            "close export disk1",
            "close export disk2",
            "remove host web1",
            "remove host web2",
            "remove export disk1",
            "remove export disk2",
            "remove port left",
        ]
    );
    assert_eq!(steps[0].1, ["enable=0", "deny host web1"]);
    assert_eq!(steps[4].1, [format!("rmdir {EXPORTS}/disk1")]);
}

/// A made-up directory can be removed only if it is empty, and no export then. So it is emptied
/// after the command has read it, while that waits for a file of the host.
#[test]
fn the_last_export_that_goes_brings_the_directory_back() {
    for name in ["d", "--all"] {
        let tree = Tree::new();
        tree.server("/e").host("h").export("d", "/dev/vda", &[]);
        tree.file(&format!("{EXPORTS}/d/enable"), "0\n");
        let pipe = tree.real(&format!("{HOSTS}/h/addresses"));
        fs::remove_file(&pipe).unwrap();
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, mode, 0).unwrap();
        let child = process::Command::new(env!("CARGO_BIN_EXE_ibnbd"))
            .arg("--root")
            .arg(tree.base())
            .args(["export", "remove", name])
            .stderr(process::Stdio::piped())
            .spawn()
            .unwrap();
        let folders = [EXPORTS, HOSTS].map(|folder| tree.real(folder));
        let output = in_time(move || {
            let mut addresses = fs::File::options().write(true).open(&pipe).unwrap();
            for (folder, name) in folders.iter().zip(["d", "h"]) {
                fs::remove_dir_all(folder.join(name)).unwrap();
                fs::create_dir(folder.join(name)).unwrap();
            }
            addresses.write_all(b"\n").unwrap();
            drop(addresses);
            child.wait_with_output().unwrap()
        });
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{said}");
        let expected = "ibnbd: warning: clients can open devices in /e from now on, as there is no export in configfs any more\n";
        assert!(said.ends_with(expected), "{said}");
    }
}

#[test]
fn without_configfs_the_remedy_is_said() {
    let words = ["export", "add", "/dev/vdc", "d", "--any-host"];
    let tree = Tree::new();
    let ran = run(&tree, &words);
    assert!(
        ran.code == 4 && ran.err.contains("remedy: modprobe ibnbd_server\n"),
        "{}",
        ran.err
    );
    for words in [&["export", "list"][..], &["export", "add", "/dev/vdc"]] {
        assert_eq!(run(&tree, words).code, 4, "{words:?}");
    }
    // There may be exports, which cannot be seen.
    tree.server("");
    for words in [&["export", "list"][..], &["export", "remove", "d"]] {
        let ran = run(&tree, words);
        assert!(ran.err.contains("remedy: mount -t configfs"), "{}", ran.err);
    }
    tree.server("/e");
    for words in [
        &words[..],
        &["host", "list"],
        &["export", "allow", "d", "h"],
        &["export", "enable", "d"],
    ] {
        let ran = run(&tree, words);
        assert!(
            ran.code == 3 && ran.err.contains("remedy: mount -t configfs"),
            "{words:?}: {}",
            ran.err
        );
    }
    tree.file(
        "/proc/mounts",
        "configfs /sys/kernel/config configfs rw 0 0\n",
    );
    let ran = run(&tree, &words);
    assert!(
        ran.code == 1 && ran.err.contains("older than this command"),
        "{}",
        ran.err
    );
    // There is nothing to remove.
    good(&tree, &["export", "remove", "--all"]);
}

/// Which of them `export add` makes: what it says of a device that is none.
#[test]
fn an_export_is_made_where_exports_are() {
    let in_configfs = |tree: &Tree, words: &[&str]| {
        tree.file("/e/file", "x");
        let ran = run(tree, &[&["export", "add"], words].concat());
        assert_eq!(ran.code, 1, "{}", ran.err);
        let is = ran
            .err
            .contains("cannot add export d (device_path=/e/file)");
        assert!(
            is || ran.err.contains("is not a block device"),
            "{}",
            ran.err
        );
        is
    };
    let tree = Tree::new();
    tree.server("/x").configfs();
    assert!(!in_configfs(&tree, &["/e/file", "d"]));
    assert!(in_configfs(&tree, &["/e/file", "d", "--any-host"]));
    assert!(in_configfs(&tree, &["d", "/e/file", "--ro"]));
    tree.host("web1");
    assert!(!in_configfs(&tree, &["/e/file", "d"]));
    tree.export("disk1", "/dev/vda", &[]);
    assert!(in_configfs(&tree, &["/e/file", "d"]));
    assert!(!in_configfs(&tree, &["/e/file", "d", "--directory", "/x"]));
    let tree = Tree::new();
    tree.server("").configfs();
    assert!(in_configfs(&tree, &["/e/file", "d"]));
}

const KEYS: &str = "\
00000015 I--Q---     1 perm 3d010000     0     0 logon     ibtrs:default:web1: 32
00000016 I--Q---     1 expd 3d010000     0     0 logon     ibtrs:default:web2: 32
00000017 I--Q---     1   5m 3d010000     0     0 logon     ibtrs:default:web3: 32
00000018 I--Q---     1 perm 3d010000     0     0 logon     ibtrs:default:s: 32
";

fn checked(tree: &Tree) -> String {
    run(tree, &["check"]).out
}

#[test]
fn exports_hosts_and_keys_are_checked() {
    let tree = server();
    let quiet = checked(&tree);
    for word in [
        "export disk1",
        "dev_search_path",
        "host web",
        "key is loaded",
    ] {
        assert!(!quiet.contains(word), "{quiet}");
    }
    tree.client()
        .session("s", &[("10.0.1.2", "10.0.1.1", "connected")]);
    tree.file(
        "/sys/module/ibnbd_server/parameters/dev_search_path",
        "/dev\n",
    )
    .file(
        &format!("{EXPORTS}/disk1/allow_unauthenticated"),
        "10.0.0.0/8 ::/0 any\n",
    )
    .file(&format!("{EXPORTS}/disk1/enable"), "0\n")
    .file(&format!("{HOSTS}/web2/max_paths"), "?\n");
    tree.file("/ring", "21 22 23 24\n")
        .file("/proc/keys", KEYS)
        .keyctl();
    let text = checked(&tree);
    for expected in [
        "warning: export disk1: any machine that reaches the port may open it without a key, as it is for ::/0 any\n  remedy: ibnbd export set disk1 allow_unauthenticated=",
        "hint: export disk1 is disabled: clients cannot open it\n  remedy: ibnbd export enable disk1\n",
        "warning: export disk2 names no host and no address: nobody may open it\n  remedy: ibnbd export allow disk2 HOST\n",
        "warning: host web2 has no key that is loaded and valid: it cannot connect as that\n  remedy: ibnbd key load web2\n",
        "hint: a key is loaded for session web3, which is no host: it may open no export\n  remedy: ibnbd host add web3, or: ibnbd key remove web3\n",
        "hint: dev_search_path=/dev is off: with exports in /sys/kernel/config/ibnbd clients open nothing below it\n  remedy: load ibnbd_server without dev_search_path\n",
        "max_paths: not understood: \"?\"",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    // Keys of the machine's own sessions are for no host, and the directory does not count.
    for other in ["session s,", "host web1", "every disk of this one"] {
        assert!(!text.contains(other), "{other}\n{text}");
    }
    // Where every session with a key may come, hosts need not be there.
    tree.file(&format!("{EXPORTS}/disk2/allow_any_host"), "1\n");
    let text = checked(&tree);
    assert!(!text.contains("web3") && !text.contains("disk2"), "{text}");
}

/// They are refused before the server looks at an export.
#[test]
fn exports_for_clients_that_the_server_refuses_are_told() {
    const REFUSED: &str =
        "allow_unauthenticated lets nobody in, as the server refuses clients without a key: ";
    let tree = server();
    tree.file(&format!("{EXPORTS}/disk1/allow_unauthenticated"), "any\n");
    let auth = |auth: &str| {
        tree.file(
            "/sys/module/ibtrs_server/parameters/auth",
            format!("{auth}\n"),
        );
        checked(&tree)
    };
    for word in ["none", "optional", "auto"] {
        let text = auth(word);
        assert!(!text.contains(REFUSED), "{text}");
        assert!(text.contains("disk1: any machine that reaches the port may"));
    }
    let text = auth("required");
    let expected = format!(
        "warning: export disk1: {REFUSED}ibtrs_server has auth=required\n  remedy: load ibtrs_server with auth=optional, or: ibnbd export set disk1 allow_unauthenticated=\n"
    );
    assert!(text.contains(&expected), "{text}");
    // Then it is not for any machine, and there is no word of exports for authenticated clients
    // only.
    assert!(!text.contains("any machine") && !text.contains(&format!("disk2: {REFUSED}")));
    // Keys count only if they are loaded.
    tree.file("/ring", "\n").file("/proc/keys", KEYS).keyctl();
    assert!(!auth("auto").contains(REFUSED));
    tree.file("/ring", "21\n");
    let text = auth("auto");
    let expected = format!("disk1: {REFUSED}ibtrs_server has auth=auto, and a key is loaded\n");
    assert!(text.contains(&expected), "{text}");
    assert!(!auth("optional").contains(REFUSED));
}

#[test]
fn a_server_without_exports_is_an_error() {
    let tree = Tree::new();
    tree.server("").configfs();
    let text = checked(&tree);
    assert!(
        text.contains(
            "error: nothing is exported: there is no export, and dev_search_path is not set"
        ),
        "{text}"
    );
    tree.server("/nowhere");
    assert!(checked(&tree).contains("dev_search_path=/nowhere cannot be read"));
    // Without configfs, exports cannot be seen. A module without exports has none.
    let tree = Tree::new();
    let unseen = "unless there are exports that cannot be seen\n  remedy: mount -t configfs";
    assert!(checked(tree.server("")).contains(unseen));
    tree.file(
        "/proc/mounts",
        "configfs /sys/kernel/config configfs rw 0 0\n",
    );
    assert!(checked(&tree).contains("dev_search_path is not set: clients can open nothing\n"));
}

#[test]
fn a_report_has_exports_and_hosts() {
    let tree = server();
    let text = good(&tree, &["report"]);
    assert!(
        text.contains("\nexports:\n{") && text.contains("\"max_devices\": 0"),
        "{text}"
    );
}

#[test]
fn keys_of_paths_are_shown() {
    let tree = server();
    let text = good(&tree, &["paths", "web1"]);
    let rows = rows(&text);
    assert_eq!(rows[0][5], "KEY");
    assert_eq!((rows[1][5], rows[2][5]), ("default", "-"));
    let shown = good(&tree, &["show", "web1/10.0.1.2"]);
    for row in [["key_id", "default"], ["suite", "x25519"]] {
        assert!(
            shown.lines().any(|line| line.split_whitespace().eq(row)),
            "{shown}"
        );
    }
    let shown = good(&tree, &["show", "web1/10.0.2.2"]);
    assert!(!shown.contains("key_id") && !shown.contains("suite"));
}
