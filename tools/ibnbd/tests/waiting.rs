// SPDX-License-Identifier: GPL-2.0

//! Commands that wait for the kernel: they say so after a second, and Ctrl-C ends them. A pipe in
//! place of a file of sysfs plays the kernel.

mod tree;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{mknodat, FileType, Mode, CWD};
use rustix::process::{kill_process, Pid, Signal};
use tree::Tree;

/// A command that waits until its pipe is read.
struct Waiting {
    child: Child,
    said: BufReader<std::process::ChildStderr>,
    pipe: PathBuf,
    started: Instant,
}

impl Waiting {
    fn new(tree: &Tree, file: &str, words: &str) -> Self {
        let pipe = tree.real(file);
        fs::remove_file(&pipe).unwrap();
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, &pipe, FileType::Fifo, mode, 0).unwrap();
        // The caller of the tests may ignore Ctrl-C, as a shell does for jobs in the background.
        let mut command = Command::new("timeout");
        command.args(["--foreground", "60", "env", "--default-signal=INT"]);
        command.arg(env!("CARGO_BIN_EXE_ibnbd"));
        let command = command.arg("--root").arg(tree.base());
        let mut child = command
            .args(words.split(' '))
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stderr.take().unwrap());
        Self {
            child,
            said,
            pipe,
            started: Instant::now(),
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line
    }

    /// The output of the command, and its exit status.
    fn read(mut self) -> (String, Option<i32>, String) {
        let mut text = String::new();
        let mut pipe = File::open(&self.pipe).unwrap();
        pipe.read_to_string(&mut text).unwrap();
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).unwrap();
        (text, self.child.wait().unwrap().code(), rest)
    }
}

/// Each with its file, what it waits to do, and what it writes.
const COMMANDS: [(&str, &str, &str, &str); 5] = [
    (
        "unmap ibnbd0",
        "/sys/block/ibnbd0/ibnbd/unmap_device",
        "unmap ibnbd0",
        "normal",
    ),
    (
        "remap ibnbd0",
        "/sys/block/ibnbd0/ibnbd/remap_device",
        "open ibnbd0 again",
        "1",
    ),
    (
        "path add s 10.0.9.1",
        "/sys/class/ibtrs-client/s/add_path",
        "add the path ip:10.0.9.1 to session s",
        "ip:10.0.9.1",
    ),
    (
        "path reconnect t 10.0.3.2",
        "/sys/class/ibtrs-client/t/paths/ip:10.0.2.2@ip:10.0.3.2/reconnect",
        "connect the path ip:10.0.2.2@ip:10.0.3.2 of session t",
        "1",
    ),
    (
        "drain",
        "/sys/class/ibnbd-server/ctl/drain",
        "drain the server",
        "1",
    ),
];

fn machine() -> Tree {
    let tree = Tree::new();
    tree.usual_client().server("/exports");
    tree
}

#[test]
fn they_say_what_they_wait_for_and_go_on() {
    let tree = machine();
    let all = COMMANDS.map(|(words, file, _, _)| Waiting::new(&tree, file, words));
    for (mut waiting, (words, _, what, written)) in all.into_iter().zip(COMMANDS) {
        let line = waiting.line();
        assert_eq!(line, format!("ibnbd: waiting to {what}\n"), "{words}");
        // Not before: most things are done by then.
        assert!(waiting.started.elapsed() >= Duration::from_secs(1));
        let (text, code, rest) = waiting.read();
        assert_eq!(
            (text.as_str(), code, rest.as_str()),
            (written, Some(0), ""),
            "{words}"
        );
    }
}

#[test]
fn ctrl_c_ends_them() {
    let tree = machine();
    let all = COMMANDS.map(|(words, file, _, _)| Waiting::new(&tree, file, words));
    for (mut waiting, (words, ..)) in all.into_iter().zip(COMMANDS) {
        waiting.line();
        // Of `timeout` it is a child, which replaces itself twice.
        let id = waiting.child.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        let child = children.trim().parse().unwrap();
        kill_process(Pid::from_raw(child).unwrap(), Signal::INT).unwrap();
        // `timeout` ends by the same signal.
        let status = waiting.child.wait().unwrap();
        assert_eq!(status.signal(), Some(2), "{words}: {status}");
    }
}
