// SPDX-License-Identifier: GPL-2.0

//! Ports in configfs: read, changed, taken back and checked, by the library and by the command.

mod configured;
mod tree;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use configured::changes::are_all_or_nothing;
use configured::planned::configured;
use ibnbd_host::configfs::change::{self, Change};
use ibnbd_host::configfs::{Configured, Port};
use ibnbd_host::document::Ports;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::process::{kill_process, Pid, Signal};
use tree::ran::{document, good, rows, run, waits};
use tree::Tree;

const PORTS: &str = "/sys/kernel/config/ibnbd/ports";

/// A server that listens on one of two ports.
fn server() -> Tree {
    let tree = Tree::new();
    tree.server("")
        .port("left", "ip:10.0.1.1")
        .port("right", "ip:fe80::1%7")
        .file(&format!("{PORTS}/right/port"), "1235\n")
        .file(&format!("{PORTS}/right/enable"), "0\n")
        .file(&format!("{PORTS}/right/listening"), "0\n")
        .file("/sys/class/net/eth1/ifindex", "7\n");
    tree
}

fn setting(tree: &Tree, file: &str) -> String {
    tree.text(&format!("{PORTS}/{file}"))
}

#[test]
fn ports_are_read() {
    let all = configured(&server());
    assert_eq!(all.notes, []);
    let [left, right] = all.ports.as_slice() else {
        panic!("{all:?}");
    };
    assert_eq!(
        left,
        &Port {
            name: "left".to_owned(),
            address: Some("ip:10.0.1.1".to_owned()),
            port: Some(1234),
            enable: Some(true),
            listening: Some(true),
        }
    );
    assert_eq!(right.place(), "ip:fe80::1%7 port 1235");
    assert_eq!((right.enable, right.listening), (Some(false), Some(false)));
}

const FILES: [&str; 4] = ["address", "port", "enable", "listening"];

/// Each file in turn has bad contents: everything else is read as before.
#[test]
fn damage_stays_where_it_is() {
    for bytes in [&b""[..], b"\x01\x02 0x?!\nx\n", b"\xff\xfe\n"] {
        let tree = server();
        for file in FILES.map(|file| format!("{PORTS}/left/{file}")) {
            let before = tree.text(&file);
            fs::write(tree.real(&file), bytes).unwrap();
            let all = configured(&tree);
            assert_eq!(all.ports.len(), 2, "{file}");
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
            // The command goes on, too.
            let ran = run(&tree, &["port", "list"]);
            let lines = ran.out.lines().count();
            assert_eq!((ran.code, lines), (0, 3), "{file}: {}", ran.err);
            fs::write(tree.real(&file), before).unwrap();
        }
    }
}

#[test]
fn what_is_missing_is_left_out_without_a_word() {
    let tree = server();
    for file in FILES.map(|file| format!("{PORTS}/left/{file}")) {
        let before = tree.text(&file);
        fs::remove_file(tree.real(&file)).unwrap();
        let all = configured(&tree);
        assert_eq!((all.ports.len(), all.notes.len()), (2, 0), "{file}");
        fs::write(tree.real(&file), before).unwrap();
    }
    // A file in place of a folder is no port.
    tree.file(&format!("{PORTS}/x"), "");
    assert_eq!(configured(&tree).ports.len(), 2);
}

/// A server's configfs: ports with their files.
#[derive(Clone, PartialEq, Debug, Default)]
struct Kernel(BTreeMap<String, BTreeMap<String, String>>);

impl Kernel {
    fn change(&mut self, change: &Change) -> Result<(), &'static str> {
        match change {
            Change::MakeFolder(folder) => {
                let files = [("address", ""), ("port", "1234"), ("enable", "0")];
                let files = files.map(|(key, text)| (key.to_owned(), text.to_owned()));
                match self.0.insert(folder.clone(), files.into()) {
                    None => Ok(()),
                    Some(_) => Err("EEXIST"),
                }
            }
            Change::RemoveFolder(folder) => self.0.remove(folder).map(drop).ok_or("ENOENT"),
            Change::Write { file, text, .. } => {
                let (folder, key) = file.rsplit_once('/').unwrap();
                let files = self.0.get_mut(folder).ok_or("ENOENT")?;
                match key {
                    "enable" if text == "1" && files["address"].is_empty() => return Err("EINVAL"),
                    "enable" => {}
                    _ if files["enable"] == "1" => return Err("EBUSY"),
                    _ if text.is_empty() => return Err("EINVAL"),
                    _ => {}
                }
                files.insert(key.to_owned(), text.clone());
                Ok(())
            }
            Change::Link { .. } | Change::Unlink { .. } => Err("EPERM"),
        }
    }

    fn with(changes: &[Change]) -> Self {
        let mut kernel = Self::default();
        change::all(changes, |change| kernel.change(change)).unwrap();
        kernel
    }
}

fn port(enable: bool) -> Port {
    Port {
        name: "left".to_owned(),
        address: Some("ip:10.0.1.1".to_owned()),
        port: Some(1234),
        enable: Some(enable),
        listening: Some(enable),
    }
}

fn settings(settings: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    let settings = settings.iter();
    settings.map(|(k, v)| (*k, (*v).to_owned())).collect()
}

/// The changes of each command, with what the server has before.
fn commands() -> Vec<(Kernel, Vec<Change>)> {
    let enabled = Kernel::with(&change::add_port("left", "ip:10.0.1.1", None));
    let mut disabled = enabled.clone();
    let disable = change::set_port(&port(true), &settings(&[("enable", "0")]));
    disable.iter().for_each(|c| disabled.change(c).unwrap());
    let both = settings(&[("address", "ip:10.0.1.2"), ("port", "1235")]);
    let all = settings(&[("enable", "1"), ("address", "ip:::"), ("port", "1235")]);
    let off = settings(&[("address", "ip:::"), ("enable", "0")]);
    vec![
        (
            Kernel::default(),
            change::add_port("left", "ip:10.0.1.1", Some(1235)),
        ),
        (enabled.clone(), disable),
        (enabled.clone(), change::set_port(&port(true), &both)),
        (enabled.clone(), change::set_port(&port(true), &off)),
        (enabled, change::remove_port("left")),
        (disabled.clone(), change::set_port(&port(false), &both)),
        (disabled.clone(), change::set_port(&port(false), &all)),
        (
            disabled,
            change::set_port(&port(false), &settings(&[("enable", "1")])),
        ),
    ]
}

/// Whichever system call fails, the server has afterwards what it had before.
#[test]
fn changes_are_all_or_nothing() {
    are_all_or_nothing(commands(), Kernel::change);
}

fn words(changes: &[Change]) -> Vec<String> {
    changes.iter().map(Change::to_string).collect()
}

#[test]
fn a_port_is_disabled_only_for_what_needs_it() {
    let set = |is, pairs: &[(&'static str, &str)]| {
        words(&change::set_port(&port(is), &settings(pairs))).join(" ")
    };
    assert_eq!(set(true, &[("port", "9")]), "enable=0 port=9 enable=1");
    assert_eq!(
        set(true, &[("enable", "1"), ("port", "9")]),
        "enable=0 port=9 enable=1"
    );
    assert_eq!(
        set(true, &[("port", "9"), ("enable", "0")]),
        "enable=0 port=9"
    );
    assert_eq!(set(false, &[("port", "9")]), "port=9");
    assert_eq!(
        set(false, &[("enable", "1"), ("port", "9")]),
        "port=9 enable=1"
    );
    assert_eq!(set(true, &[("enable", "0")]), "enable=0");
    assert_eq!(set(true, &[]), "");
    assert_eq!(
        words(&change::add_port("left", "ip:10.0.1.1", None))[1..],
        ["address=ip:10.0.1.1", "enable=1"]
    );
}

/// The made-up directory of a port has no files, so the command cannot succeed to say it.
#[test]
fn the_first_port_is_told_of() {
    let added = port(true);
    let said = Configured::default().said_of_added(&added).unwrap();
    assert_eq!(said, "from now on the server listens on ip:10.0.1.1 port 1234 only, as there was no other port; paths that are connected stay");
    assert_eq!(configured(&server()).said_of_added(&added), None);
}

#[test]
fn ports_are_listed() {
    let tree = server();
    tree.port("new", "");
    let text = good(&tree, &["port", "list"]);
    assert_eq!(
        rows(&text),
        [
            ["NAME", "ADDRESS", "PORT", "ENABLED", "LISTENING"],
            ["left", "ip:10.0.1.1", "1234", "yes", "yes"],
            ["new", "-", "1234", "yes", "yes"],
            ["right", "ip:fe80::1%7", "1235", "no", "no"],
        ]
    );
    let columns = ["port", "list", "--columns", "name,port", "-o", "csv"];
    assert_eq!(
        good(&tree, &columns),
        "name,port\nleft,1234\nnew,1234\nright,1235\n"
    );
    let ports: Ports = document(&tree, &["port", "list"]);
    assert_eq!(ports.ports, configured(&tree).ports);
}

#[test]
fn commands_write_to_their_files() {
    let tree = server();
    for (words, file, text) in [
        ("left port=1236", "left/port", "1236\n"),
        (
            "left address=ip:10.0.1.3 port=1237",
            "left/address",
            "ip:10.0.1.3\n",
        ),
        ("left address=::", "left/address", "ip:::\n"),
        // The kernel takes numbers of interfaces only.
        (
            "right address=fe80::2%eth1",
            "right/address",
            "ip:fe80::2%7\n",
        ),
        ("left enable=1", "left/enable", "1\n"),
        ("left port=1238 port=1239", "left/port", "1239\n"),
        ("left port=1240 port=1239", "left/port", "1239\n"),
        ("right enable=1", "right/enable", "1\n"),
    ] {
        let words: Vec<&str> = ["port", "set"]
            .into_iter()
            .chain(words.split(' '))
            .collect();
        // A shorter text would leave a part of what was there.
        if file.ends_with("address") {
            tree.file(&format!("{PORTS}/{file}"), " ");
        }
        assert_eq!(good(&tree, &words), "", "{words:?}");
        assert_eq!(setting(&tree, file), text, "{words:?}");
        assert_eq!(setting(&tree, "left/enable"), "1\n", "{words:?}");
    }
}

/// Nothing is written where nothing changes, so that clients can connect all the time.
#[test]
fn what_is_so_already_is_not_written() {
    let tree = server();
    tree.file(&format!("{PORTS}/left/address"), "ip:fe80::1%7\n");
    let stamp = |file: &str| {
        let data = fs::metadata(tree.real(&format!("{PORTS}/left/{file}")));
        data.unwrap().modified().unwrap()
    };
    let before = stamp("enable");
    thread::sleep(Duration::from_millis(20));
    let words = ["port", "set", "left", "address=fe80::1%eth1", "port=1234"];
    assert_eq!(good(&tree, &words), "");
    assert_eq!(stamp("enable"), before);
}

/// A made-up directory has none of the files that the kernel makes, so the first write fails.
#[test]
fn a_half_made_port_is_taken_back() {
    let tree = server();
    let ran = run(&tree, &["port", "add", "third", "10.0.3.1"]);
    let expected = "ibnbd: cannot add port third (address=ip:10.0.3.1): ";
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.starts_with(expected), "{}", ran.err);
    assert!(!tree.real(&format!("{PORTS}/third")).exists());
    let ran = run(&tree, &["port", "add", "left", "10.0.3.1"]);
    let expected = "there is a port of that name (EEXIST)";
    assert!(ran.code == 1 && ran.err.contains(expected), "{}", ran.err);
}

#[test]
fn settings_are_all_or_nothing() {
    let tree = server();
    fs::remove_file(tree.real(&format!("{PORTS}/left/port"))).unwrap();
    let words = ["port", "set", "left", "address=10.0.9.9", "port=1236"];
    let ran = run(&tree, &words);
    assert_eq!(ran.code, 1);
    let expected =
        "ibnbd: cannot set address=10.0.9.9 port=1236 of port left (port=1236): somebody else removes it (ENOENT)";
    assert!(ran.err.starts_with(expected), "{}", ran.err);
    assert_eq!(setting(&tree, "left/address"), "ip:10.0.1.1\n");
    assert_eq!(setting(&tree, "left/enable"), "1\n");
}

/// Whether a process has a handler for SIGINT.
fn takes_ctrl_c(process: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    u64::from_str_radix(caught.unwrap().trim(), 16).unwrap() & 1 << 1 != 0
}

/// Tries something until it succeeds; what never does is a failure, and does not hang.
#[track_caller]
fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + TIME_LIMIT;
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Opens a pipe without waiting for its other end.
fn pipe_end(pipe: &Path, options: &mut fs::OpenOptions) -> io::Result<fs::File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap();
    options.custom_flags(flags).open(pipe)
}

/// `port set` of an address that is a pipe: the command waits until somebody reads it, and gets
/// Ctrl-C meanwhile.
#[test]
fn ctrl_c_takes_back_what_was_done() {
    let tree = server();
    let pipe = tree.real(&format!("{PORTS}/left/address"));
    fs::remove_file(&pipe).unwrap();
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, mode, 0).unwrap();
    // The caller of the tests may ignore Ctrl-C, as a shell does for jobs in the background.
    let mut child = process::Command::new("env")
        .args(["--default-signal=INT", env!("CARGO_BIN_EXE_ibnbd")])
        .arg("--root")
        .arg(tree.base())
        .args(["port", "set", "left", "address=10.0.9.9"])
        .stderr(process::Stdio::piped())
        .spawn()
        .unwrap();
    let pid = Pid::from_child(&child);
    // Whatever it waits for, it ends, also if the test does early.
    let (ended, end) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        if end.recv_timeout(TIME_LIMIT).is_err() {
            kill_process(pid, Signal::KILL).unwrap();
        }
    });
    // The state before.
    let mut options = fs::File::options();
    let before = until("the address is not read", || {
        pipe_end(&pipe, options.write(true)).ok()
    });
    (&before).write_all(b"ip:10.0.1.1\n").unwrap();
    drop(before);
    until("the command takes no Ctrl-C", || {
        (takes_ctrl_c(child.id()) && waits(child.id())).then_some(())
    });
    kill_process(pid, Signal::INT).unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    // It says that it was interrupted, after an empty line, and then waits for the pipe.
    let mut line = String::new();
    while line.trim().is_empty() {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it says nothing");
    }
    // Opened for both, it has no end between two writers.
    let mut options = fs::File::options();
    let mut pipe = pipe_end(&pipe, options.read(true).write(true)).unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    let code = child.wait().unwrap().code();
    let _ = ended.send(());
    watchdog.join().unwrap();
    assert_eq!(code, Some(130), "{line}{rest}");
    assert!(rest.contains("(enable=1): operation interrupted"), "{rest}");
    let mut written = [0; 100];
    let length = pipe.read(&mut written).unwrap();
    assert_eq!(&written[..length], b"ip:10.0.9.9\nip:10.0.1.1\n");
    assert_eq!(setting(&tree, "left/enable"), "1\n");
}

#[test]
fn words_that_make_no_sense_change_nothing() {
    let tree = server();
    for (words, why) in [
        ("set left colour=1", "there is no such setting"),
        ("set left colour=1", "take one of: address port enable"),
        ("set left port", "it is not SETTING=VALUE"),
        ("set left port=0", "it is not 1 to 65535"),
        ("set left port=65536", "it is not 1 to 65535"),
        ("set left port=1236 enable=yes", "it is neither 0 nor 1"),
        (
            "set left address=",
            "\"\" is not an address such as 10.0.1.1,",
        ),
        (
            "set left address=web1",
            "\"web1\" is not an address such as",
        ),
        ("set left address=fe80::1", "needs its interface"),
        ("set left address=fe80::1%eth9", "which is not there"),
        ("add third web1", "\"web1\" is not an address such as"),
        ("add third 10.0.1.0/24", "is not an address such as"),
        (
            "add third fe80::1",
            "is link-local, and needs its interface",
        ),
        ("add third 10.0.1.1 --port 0", "0 is not in 1..=65535"),
        ("add third", "required"),
        ("add a/b 10.0.1.1", "has no / and is neither . nor .."),
        ("add .. 10.0.1.1", "has no / and is neither . nor .."),
        ("remove", "required"),
    ] {
        let before = configured(&tree);
        let words: Vec<&str> = ["port"].into_iter().chain(words.split(' ')).collect();
        let ran = run(&tree, &words);
        assert!(
            ran.code == 2 && ran.err.contains(why),
            "{words:?}: {} {}",
            ran.code,
            ran.err
        );
        assert_eq!(configured(&tree), before, "{words:?}");
    }
    let ran = run(&tree, &["port", "add", "a b", "10.0.1.1"]);
    assert!(ran.code == 2 && ran.err.contains("a blank"), "{}", ran.err);
    for words in [["port", "remove", "x"], ["port", "set", "x"]] {
        let more = if words[1] == "set" {
            &["port=1"][..]
        } else {
            &[]
        };
        let ran = run(&tree, &[&words, more].concat());
        let expected = "ibnbd: port x: there is no such port\n  remedy: see `ibnbd port list`\n";
        assert_eq!((ran.code, ran.err.as_str()), (3, expected));
    }
}

/// The parameter that says where the server listens without ports.
const PORT_NR: &str = "/sys/module/ibnbd_server/parameters/port_nr";

/// Disabling or removing ports prints what the server does afterwards.
#[test]
fn where_the_server_listens_is_told() {
    const NOWHERE: &str = "ibnbd: warning: the server listens nowhere, as no port is enabled: ibnbd port set NAME enable=1\n";
    let tree = server();
    let ran = run(&tree, &["port", "set", "left", "enable=0"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, NOWHERE));
    assert_eq!(setting(&tree, "left/enable"), "0\n");
    good(&tree, &["port", "set", "left", "enable=1"]);
    // Unlike those of configfs, a made-up directory must be empty.
    let empty = |name: &str| {
        let folder = tree.real(&format!("{PORTS}/{name}"));
        fs::remove_dir_all(&folder).unwrap();
        fs::create_dir(&folder).unwrap();
    };
    empty("left");
    let ran = run(&tree, &["port", "remove", "left"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, NOWHERE));
    empty("right");
    let ran = run(&tree, &["port", "remove", "right"]);
    let everywhere = "ibnbd: warning: from now on the server listens on all addresses at port 1234, as there is no port any more\n";
    assert_eq!((ran.code, ran.err.as_str()), (0, everywhere));
    assert_eq!(configured(&tree).ports, []);
    // Nor can the server be unloaded with one.
    tree.folder(&format!("{PORTS}/x"));
    good(&tree, &["export", "remove", "--all"]);
    assert_eq!(configured(&tree).ports, []);
}

#[test]
fn a_removal_that_fails_is_told() {
    let tree = server();
    let ran = run(&tree, &["port", "remove", "left"]);
    assert!(
        ran.code == 1
            && ran
                .err
                .starts_with("ibnbd: cannot remove port left (rmdir "),
        "{}",
        ran.err
    );
}

#[test]
fn a_server_without_ports_is_told_of() {
    let commands = [
        &["port", "list"][..],
        &["port", "add", "left", "10.0.1.1"],
        &["port", "set", "left", "port=1235"],
        &["port", "remove", "left"],
    ];
    let all = |tree: &Tree, code: i32, expected: &str| {
        for words in commands {
            let ran = run(tree, words);
            assert_eq!((ran.code, ran.err.as_str()), (code, expected), "{words:?}");
        }
    };
    let tree = Tree::new();
    all(
        &tree,
        4,
        "ibnbd: ibnbd_server: the module is not loaded\n  remedy: modprobe ibnbd_server\n",
    );
    tree.server("");
    all(&tree, 3, "ibnbd: /sys/kernel/config/ibnbd: configfs is not mounted\n  remedy: mount -t configfs configfs /sys/kernel/config\n");
    // One that has exports only.
    tree.configfs();
    fs::remove_dir(tree.real(PORTS)).unwrap();
    all(&tree, 1, "ibnbd: /sys/kernel/config/ibnbd: ibnbd_server has no ports in configfs: it is older than this command\n  remedy: load the module of this version\n");
    assert_eq!(
        (configured(&tree).ports, configured(&tree).notes),
        (vec![], vec![])
    );
    good(&tree, &["host", "list"]);
}

fn checked(tree: &Tree) -> String {
    run(tree, &["check"]).out
}

#[test]
fn ports_are_checked() {
    let tree = server();
    let text = checked(&tree);
    let hint = "hint: port right is disabled: the server does not listen on ip:fe80::1%7 port 1235\n  remedy: ibnbd port set right enable=1\n";
    assert!(text.contains(hint), "{text}");
    let missing = "warning: port left is enabled, but the server does not listen on ip:10.0.1.1 port 1234: the RDMA device of the address is missing\n  remedy: bring the device back, see `rdma link`: the server listens again by itself; or: ibnbd port remove left\n";
    assert!(!text.contains("port left"), "{text}");
    tree.file(&format!("{PORTS}/left/listening"), "0\n");
    let text = checked(&tree);
    assert!(text.contains(missing) && text.contains(hint), "{text}");
    assert!(!text.contains("nowhere"), "{text}");
    tree.file(&format!("{PORTS}/left/enable"), "0\n");
    let ran = run(&tree, &["check"]);
    let nowhere = "error: the server listens nowhere: there are ports in /sys/kernel/config/ibnbd, and none is enabled\n  remedy: ibnbd port set left enable=1\n";
    assert!(ran.code == 1 && ran.out.contains(nowhere), "{}", ran.out);
    assert!(!ran.out.contains("port left is"), "{}", ran.out);
    tree.file(&format!("{PORTS}/left/address"), "\n");
    let remedy = "remedy: ibnbd port set left address=ADDRESS enable=1\n";
    assert!(checked(&tree).contains(remedy));
    // An unreadable file is reported, and does not count as a disabled port.
    tree.file(&format!("{PORTS}/left/enable"), "?\n");
    let text = checked(&tree);
    assert!(text.contains("left/enable: not understood") && !text.contains("nowhere"));
    // Without any port the server listens everywhere.
    fs::remove_dir_all(tree.real(PORTS)).unwrap();
    tree.configfs();
    assert!(!checked(&tree).contains("listen"));
    // Unless it listens on ports only.
    tree.file(PORT_NR, "0\n");
    let nowhere = "error: the server listens nowhere: port_nr of ibnbd_server is 0, and there are no ports\n  remedy: ibnbd port add NAME ADDRESS\n";
    assert!(checked(&tree).contains(nowhere));
}

#[test]
fn a_server_that_listens_on_ports_only() {
    let tree = server();
    tree.file(PORT_NR, "0\n");
    for name in ["left", "right"] {
        let folder = tree.real(&format!("{PORTS}/{name}"));
        fs::remove_dir_all(&folder).unwrap();
        fs::create_dir(&folder).unwrap();
    }
    good(&tree, &["port", "remove", "left"]);
    let ran = run(&tree, &["port", "remove", "right"]);
    let nowhere = "ibnbd: warning: the server listens nowhere, as there is no port any more and its port_nr is 0: ibnbd port add NAME ADDRESS\n";
    assert_eq!((ran.code, ran.err.as_str()), (0, nowhere));
}

/// A chain of each family that drops all.
fn firewall(tree: &Tree) {
    let chain = |family: &str| {
        format!(
            r#"{{"chain": {{"family": "{family}", "table": "{family}filter", "name": "input", "type": "filter", "hook": "input", "prio": 0, "policy": "drop"}}}}"#
        )
    };
    tree.program("/usr/sbin/nft").file(
        "/rules.json",
        format!(r#"{{"nftables": [{}, {}]}}"#, chain("ip"), chain("ip6")),
    );
    tree.files(
        "/sys/class/infiniband/siw0",
        &[
            ("node_type", "4: RNIC\n"),
            ("parent", "eth0\n"),
            ("ports/1/state", "4: ACTIVE\n"),
            ("ports/1/link_layer", "Ethernet\n"),
        ],
    );
}

/// Protocol, port and table of each rule that `check` complains of.
fn dropped(tree: &Tree) -> Vec<String> {
    let text = checked(tree);
    let lines = text.lines().filter(|line| line.contains("firewall drops"));
    let mut found: Vec<String> = lines
        .map(|line| {
            let words: Vec<&str> = line.split([' ', ',']).collect();
            let behind = |word| words[words.iter().position(|w| *w == word).unwrap() + 1];
            let protocol = words[words.iter().position(|w| *w == "port").unwrap() - 1];
            format!("{protocol} {} {}", behind("port"), behind("table"))
        })
        .collect();
    found.sort();
    found
}

#[test]
fn the_firewall_has_to_pass_what_comes_to_the_ports() {
    let tree = Tree::new();
    tree.server("").configfs();
    firewall(&tree);
    assert_eq!(dropped(&tree), ["tcp 1234 ip"]);
    let port = |name: &str, address: &str, number: &str| {
        tree.port(name, address)
            .file(&format!("{PORTS}/{name}/port"), format!("{number}\n"));
    };
    port("a", "ip:10.0.1.1", "1235");
    assert_eq!(dropped(&tree), ["tcp 1235 ip"]);
    // A path that came when the server listened elsewhere.
    tree.served("s", "fd00::2", "fd00::9");
    assert_eq!(dropped(&tree), ["tcp 1235 ip"]);
    port("b", "ip:fd00::1", "1236");
    port("c", "ip:10.0.2.1", "1235");
    port("d", "ip:::", "1235");
    // InfiniBand's packets do not pass it.
    port("e", "gid:fe80::1", "1237");
    assert_eq!(
        dropped(&tree),
        ["tcp 1235 ip", "tcp 1235 ip6", "tcp 1236 ip6"]
    );
    // Nobody comes to a port that is disabled.
    for name in ["a", "c", "d"] {
        tree.file(&format!("{PORTS}/{name}/enable"), "0\n");
    }
    assert_eq!(dropped(&tree), ["tcp 1236 ip6"]);
    tree.file("/sys/class/infiniband/siw0/node_type", "1: CA\n");
    assert_eq!(dropped(&tree), ["udp 4791 ip6"]);
}

#[test]
fn a_report_has_ports() {
    let text = good(&server(), &["report"]);
    assert!(text.contains("\"address\": \"ip:10.0.1.1\""), "{text}");
}
