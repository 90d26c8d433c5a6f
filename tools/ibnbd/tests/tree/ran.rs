// SPDX-License-Identifier: GPL-2.0

//! The command, run on a tree.

use std::fmt::Debug;

use assert_cmd::Command;
use serde::de::DeserializeOwned;

use super::Tree;

pub fn ibnbd(tree: &Tree, words: &[&str]) -> Command {
    let mut command = Command::cargo_bin("ibnbd").unwrap();
    command.arg("--root").arg(tree.base()).args(words);
    command
}

/// The result of a command.
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn of(command: &mut Command) -> Self {
        let output = command.output().unwrap();
        Self {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Its output, if it has no fault.
    #[track_caller]
    pub fn good(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (0, ""));
        self.out
    }
}

pub fn run(tree: &Tree, words: &[&str]) -> Ran {
    Ran::of(&mut ibnbd(tree, words))
}

#[track_caller]
pub fn good(tree: &Tree, words: &[&str]) -> String {
    run(tree, words).good()
}

/// Whether a command waits for a pipe in the middle of a change: it has threads for signals and for
/// its progress by then, and sleeps.
pub fn waits(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.count() > 2 && stat.contains(") S ")
}

/// Lines of a table as words.
pub fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines()
        .map(|line| line.split_whitespace().collect())
        .collect()
}

/// The document that a command prints, which is the same in either format.
pub fn document<T: DeserializeOwned + PartialEq + Debug>(tree: &Tree, words: &[&str]) -> T {
    let with = |format| run(tree, &[words, &["-o", format]].concat()).out;
    // Fields that are not in the schema are refused.
    let json: T = serde_json::from_str(&with("json")).unwrap();
    let yaml: T = serde_yaml_ng::from_str(&with("yaml")).unwrap();
    assert_eq!(json, yaml);
    json
}
