// SPDX-License-Identifier: GPL-2.0

//! Each error of the command has its entry in Documentation/troubleshooting.md, in the same words.

mod tree;

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

use ibnbd_host::advice::{self, Task, LINES, TABLE};
use tree::Tree;

const PAGE: &str = include_str!("../../../Documentation/troubleshooting.md");

/// The rows of the table below a heading, without its head.
fn rows(heading: &str) -> Vec<&'static str> {
    let below = PAGE.lines().skip_while(|line| *line != heading);
    below
        .skip_while(|line| !line.starts_with("| ---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .collect()
}

fn heading(task: Task) -> &'static str {
    match task {
        Task::Map => "### ibnbd map",
        Task::Discover => "### ibnbd discover",
        Task::Unmap => "### ibnbd unmap",
        Task::Remap => "### ibnbd remap",
        Task::Resize => "### ibnbd resize",
        Task::Path => "### ibnbd path",
        Task::Set => "### ibnbd set, ibnbd policy",
        Task::Close => "### ibnbd close",
        Task::Drain => "### ibnbd drain",
        Task::Export => "### ibnbd export",
        Task::Host => "### ibnbd host",
        Task::Port => "### ibnbd port",
        Task::Other => panic!("nothing has advice for it"),
    }
}

#[test]
fn each_error_with_advice_has_its_entry() {
    for task in TABLE.iter().map(|advice| advice.task) {
        let table: Vec<String> = TABLE
            .iter()
            .filter(|advice| advice.task == task)
            .map(|a| format!("| {} (`{}`) | {} |", a.why, a.errno.as_str(), a.todo))
            .collect();
        assert_eq!(rows(heading(task)), table);
    }
}

#[test]
fn each_line_with_advice_has_its_entry() {
    let table = LINES.map(|(line, todo)| format!("| `{line}` | {todo} |"));
    assert_eq!(rows("### Authentication"), table);
}

#[test]
fn the_last_line_with_advice_counts() {
    let line =
        |text: &str| format!("ibtrs_client: s: ip:10.0.1.2@ip:10.0.1.1: {text} (EKEYREJECTED)");
    let mut lines = vec![line(LINES[0].0), line(LINES[1].0), line("something else")];
    assert_eq!(advice::of_lines(&lines), Some(LINES[1].1));
    lines.drain(..2);
    assert_eq!(advice::of_lines(&lines), None);
}

/// A machine where all of the commands below fail.
fn machine() -> Tree {
    let tree = Tree::new();
    tree.usual_client()
        .mainline()
        .server("/e")
        .served("u", "10.0.1.3", "10.0.1.1")
        .opened("sda", "u", "a")
        .file("/e/file", "x")
        .keyctl()
        .file(
            "/etc/ibtrs/client.toml",
            "[[session]]\nname = 'a.b'\nport = 0\n",
        );
    tree
}

/// What a command says: the reason, the exit status, the remedy.
fn said(tree: &Tree, words: &str) -> (String, i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_ibnbd"))
        .arg("--root")
        .arg(tree.base())
        .args(words.split(' '))
        .env_remove("CREDENTIALS_DIRECTORY")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let mut lines = text.lines();
    let first = lines.next().unwrap().strip_prefix("ibnbd: ").unwrap();
    // What it was about has no colon here that is followed by a blank.
    let why = first.split_once(": ").unwrap().1.to_owned();
    let remedy = lines.find_map(|line| line.strip_prefix("  remedy: "));
    let remedy = remedy.unwrap_or_default().to_owned();
    (why, output.status.code().unwrap(), remedy)
}

/// As after `2>&1 | head`, or when the service manager's end is gone.
#[test]
fn the_exit_status_is_the_same_when_nobody_reads() {
    let tree = machine();
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    let status = Command::new(env!("CARGO_BIN_EXE_ibnbd"))
        .arg("--root")
        .arg(tree.base())
        .args(["show", "nothing"])
        .stderr(OwnedFd::from(ours))
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(3));
}

/// They have no number from the kernel. Each entry has the reason, the exit status, and at least
/// the remedy that the command knows.
#[test]
fn other_errors_have_their_entries() {
    let tree = machine();
    let bare = Tree::new();
    let empty = Tree::new();
    empty.file("/ring", "").file("/proc/keys", "").keyctl();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("metrics --listen {}", taken.local_addr().unwrap());
    let mut all = vec![
        said(&bare, "map 10.0.1.1 disk1"),
        said(&bare, "export add /dev/x"),
        said(&bare, "drain"),
    ];
    let old = Tree::new();
    old.client();
    let discover = "discover 10.0.1.1 --session s";
    all.push(said(&old, discover));
    old.file("/sys/class/ibnbd-client/ctl/discover", "");
    all.push(said(&old, discover));
    let words = [
        "show nothing",
        "show /dev/nullb0",
        "list --columns colour",
        "unmap rnbd0",
        "map 10.0.1.1 disk1 --session a.b",
        "set s speed",
        "set s speed=1",
        "resize ibnbd0 large",
        "resize ibnbd0 100",
        "stats sda",
        "top",
        "apply",
        "export add /dev/x --directory /dev",
        "export add /e/file disk1",
        "export add /e/file ../disk1",
        "export remove file",
        &listen,
        "key list",
        "key load s",
        "key load s --credential ../key",
        "key load s --credential key",
    ];
    all.extend(words.iter().map(|words| said(&tree, words)));
    let configured = Tree::new();
    configured
        .server("")
        .host("web1")
        .export("disk1", "/dev/vda", &["web1"])
        .opened("vda", "web1", "disk1");
    let words = [
        "export remove disk2",
        "export allow disk1 web2",
        "export deny disk1 web2",
        "export remove disk1",
        "export add /dev/vdb a/b",
        "export set disk1 colour=1",
        "export set disk1 allow_unauthenticated=10.0.0.1/24",
        "host remove web1",
    ];
    all.extend(words.iter().map(|words| said(&configured, words)));
    all.push(said(&tree, "host list"));
    all.push(said(&bare, "host list"));
    let words = [
        "port remove left",
        "port add left web1",
        "port add left fe80::1",
        "port set right port=0",
    ];
    configured.port("right", "ip:10.0.1.1");
    all.extend(words.iter().map(|words| said(&configured, words)));
    all.push(said(&bare, "key list"));
    all.push(said(&empty, "key remove s"));
    let rows: Vec<Vec<&str>> = rows("### Any command")
        .iter()
        .map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    for (row, (why, code, remedy)) in rows.iter().zip(&all) {
        assert_eq!((row[0], row[1]), (why.as_str(), code.to_string().as_str()));
        assert!(!row[2].is_empty(), "{why}");
        let plain = row[2].replace('`', "");
        assert!(plain.contains(&remedy.replace('`', "")), "{why}: {remedy}");
    }
    assert_eq!(rows.len(), all.len());
}
