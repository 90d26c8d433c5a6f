// SPDX-License-Identifier: GPL-2.0

//! Each error of the command has its entry in Documentation/troubleshooting.md, in the same words.

mod tree;

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

use ibnbd_host::advice::{self, Task, LINES, TABLE};
use ibtrs_proto::Errno;
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

/// A route that is missing and an export that is disabled have one number.
#[test]
fn a_line_tells_errors_of_one_number_apart() {
    let line =
        |text: &str| format!("ibnbd_client: map_device: disk1 of session s: {text}: ENODEV (-19)");
    let (route, export) = (
        line("the session cannot be opened"),
        line("cannot open the device on the server"),
    );
    let why = |lines: &[&String]| {
        let lines: Vec<String> = lines.iter().copied().cloned().collect();
        advice::find(Task::Map, Errno::ENODEV.get(), &lines).0
    };
    let no_device = "no RDMA device leads to the address (ENODEV)";
    assert_eq!(why(&[&route]), no_device);
    assert_eq!(
        why(&[&export]),
        "the export is disabled on the server (ENODEV)"
    );
    // Another mapping may have failed just before.
    assert_eq!(why(&[&export, &route]), no_device);
    // Not everybody may read the log.
    let either = "no RDMA device leads to the address, or the export is disabled (ENODEV)";
    assert_eq!(why(&[]), either);
}

/// The server refuses to open a disk again as it refuses to map it.
#[test]
fn remap_has_the_words_of_map() {
    let find = |task, errno: Errno| advice::find(task, errno.get(), &[]);
    for errno in [Errno::EACCES, Errno::EPERM, Errno::ENOTBLK] {
        assert_eq!(find(Task::Remap, errno), find(Task::Map, errno));
    }
    assert_eq!(
        find(Task::Remap, Errno::ENODEV).0,
        "the export is disabled on the server, or the disk is being unmapped here (ENODEV)"
    );
}

/// What a silent server or a key that differs may be due to.
#[test]
fn remedies_name_all_that_may_help() {
    for task in [Task::Map, Task::Discover, Task::Path] {
        for (errno, words) in [
            (Errno::ETIMEDOUT, "ibnbd_server is loaded there"),
            (
                Errno::EKEYREJECTED,
                "the session's name (--session) must be that of a host of the server",
            ),
        ] {
            let remedy = advice::find(task, errno.get(), &[]).1.unwrap();
            assert!(remedy.contains(words), "{task:?}: {remedy}");
        }
    }
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

/// The output of a command: the reason, the exit status, the remedy.
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
    // The task has no colon here that is followed by a blank.
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
        "map disk1.invalid 10.0.1.1",
        "map 10.0.1.1 disk1 --session a.b",
        "set s speed",
        "set s speed=1",
        "resize ibnbd0 large",
        "resize ibnbd0 100",
        "path remove t 10.0.3.1",
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
        "export add /dev/vda disk2",
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
    let one = Tree::new();
    one.file(
        "/etc/ibtrs/client.toml",
        "[[session]]\nname = 's'\nservers = ['10.0.1.1']\n[[session.disk]]\ndevice = 'disk1'\n",
    );
    all.push(said(&one, "apply --disk s/x"));
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

/// The arguments of a call, from behind its parenthesis on.
fn arguments(text: &str) -> Vec<&str> {
    let (mut depth, mut from, mut found) = (0u32, 0, Vec::new());
    let (mut quoted, mut escaped) = (false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => {
                found.push(text[from..at].trim());
                found.retain(|argument| !argument.is_empty());
                return found;
            }
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    panic!("no end: {text}");
}

/// The fixed parts of each literal in code: `{}` and line ends are between them.
fn literals(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(start) = rest.find('"') {
        let text = &rest[start + 1..];
        let mut escaped = false;
        let end = text.char_indices().find(|(_, c)| {
            let ends = *c == '"' && !escaped;
            escaped = *c == '\\' && !escaped;
            ends
        });
        let end = end.unwrap().0;
        let mut parts = vec![String::new()];
        let mut chars = text[..end].chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '{' => {
                    chars.find(|c| *c == '}');
                    parts.push(String::new());
                }
                '\\' => match chars.next() {
                    Some('n') => parts.push(String::new()),
                    // The literal goes on in the next line.
                    Some('\n') => while chars.next_if(|c| c.is_whitespace()).is_some() {},
                    Some(c) => parts.last_mut().unwrap().push(c),
                    None => {}
                },
                c => parts.last_mut().unwrap().push(c),
            }
        }
        found.push(parts);
        rest = &text[end + 1..];
    }
    found
}

/// The text after each place where the words stand.
fn behind<'a>(source: &'a str, words: &str) -> Vec<&'a str> {
    let at = source.match_indices(words);
    at.map(|(at, _)| &source[at + words.len()..]).collect()
}

/// All reasons of failures that a source file has.
fn reasons(source: &str, whole: bool) -> Vec<Vec<String>> {
    let code = source.split("#[cfg(test)]\nmod tests").next().unwrap();
    let mut found = Vec::new();
    for call in ["Failure::new(", "Failure::usage(", "wrong("] {
        for text in behind(code, call) {
            let arguments = arguments(text);
            let Some(why) = arguments.last() else {
                continue;
            };
            // Texts from elsewhere are checked there, or belong to the system.
            let foreign = ["why", "unknown", "error.to_string()", "e.to_string()"];
            let passed = foreign.contains(why) || *why == "error.as_str()" || call == "wrong(";
            let own = literals(why);
            assert!(passed || !own.is_empty(), "{why}");
            found.extend(own);
        }
    }
    if whole {
        for text in behind(code, "let why = ") {
            found.extend(literals(text.split(';').next().unwrap()));
        }
    }
    for call in ["Err(", "ok_or_else(|| ", "ok_or(", "map_err(|_| "] {
        for text in behind(code, call) {
            let text = text.trim_start();
            let starts = ["\"", "format!(", "io::Error::new("];
            if starts.iter().any(|start| text.starts_with(start)) {
                let arguments = arguments(text.split_once('(').map_or("", |(_, below)| below));
                let why = if text.starts_with('"') {
                    text.split_inclusive('"').take(2).collect()
                } else {
                    arguments.join(",")
                };
                found.extend(literals(&why));
            }
        }
    }
    found.retain(|parts| parts.concat().chars().filter(|c| c.is_alphabetic()).count() > 3);
    found
}

/// A new error needs its entry. What a file of the configuration has wrong is said with its line
/// and column, and has none.
#[test]
fn each_reason_has_its_entry() {
    let page = PAGE.split("## Findings of ibnbd check").next().unwrap();
    let entries: Vec<String> = page
        .lines()
        .filter(|line| line.starts_with('|'))
        .map(|line| line.replace('`', ""))
        .collect();
    let source = tree::of_package("src");
    let mut folders = vec![source.clone()];
    let (mut number, mut missing) = (0, Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(&source).unwrap().to_str().unwrap();
            if path.is_dir() && name != "config" {
                folders.push(path);
            } else if name.ends_with(".rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                for parts in reasons(&text, name.starts_with("bin")) {
                    number += 1;
                    let has = |line: &&String| parts.iter().all(|part| line.contains(part.trim()));
                    if !entries.iter().any(|line| has(&line)) {
                        missing.push(format!("{name}: {}", parts.join("...")));
                    }
                }
            }
        }
    }
    assert!(number > 60, "{number}");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn reasons_are_found_in_sources() {
    let source = r#"
        let why = "it is \"so\"";
        return Err(Failure::new(REFUSED, format!("a {b}"), why));
        Failure::usage(what, format!("{n} of them, and \
            more"))
        .ok_or_else(|| format!("{plain}: no address"))?;
        Err(io::Error::new(io::ErrorKind::Other, "it stays, as it is"))
        Err("only this".to_owned())
    "#;
    let found: Vec<String> = reasons(source, true).iter().map(|p| p.join("_")).collect();
    let expected = [
        "_ of them, and more",
        "it is \"so\"",
        "only this",
        "it stays, as it is",
        "_: no address",
    ];
    for text in expected {
        assert!(found.iter().any(|one| one == text), "{text}: {found:?}");
    }
    assert_eq!(found.len(), expected.len(), "{found:?}");
}

/// The words of a finding by which the page has it: up to a colon, and long enough to be its own.
fn words(parts: &[String]) -> Option<&str> {
    let mut long = parts
        .iter()
        .map(|part| part.trim_matches([' ', ':', ',', ';']));
    let found = long.find(|part| part.chars().filter(|c| c.is_alphabetic()).count() > 8)?;
    Some(found.split(": ").next().unwrap_or(found))
}

#[test]
fn each_finding_has_its_entry() {
    let page = PAGE.split("## Findings of ibnbd check").nth(1).unwrap();
    let page = page.split("## When nothing happens").next().unwrap();
    let rows: Vec<String> = page
        .lines()
        .filter(|line| line.starts_with('|'))
        .map(|line| line.replace('`', ""))
        .collect();
    let source = tree::of_package("src/findings");
    let mut files = vec![source.with_extension("rs")];
    files.extend(
        std::fs::read_dir(source)
            .unwrap()
            .map(|entry| entry.unwrap().path()),
    );
    let (mut number, mut missing) = (0, Vec::new());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let mut all = Vec::new();
        for text in behind(code, "let what = ")
            .into_iter()
            .chain(behind(code, "let what =\n"))
        {
            all.extend(
                literals(text.split(";\n").next().unwrap())
                    .into_iter()
                    .take(1),
            );
        }
        for text in behind(code, "Finding::new(") {
            let arguments = arguments(text);
            all.extend(
                arguments
                    .get(1)
                    .map(|what| literals(what))
                    .into_iter()
                    .flatten(),
            );
        }
        for parts in &all {
            let Some(words) = words(parts) else { continue };
            number += 1;
            if !rows.iter().any(|row| row.contains(words)) {
                missing.push(format!("{}: {words}", file.display()));
            }
        }
    }
    assert!(number > 35, "{number}");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}
