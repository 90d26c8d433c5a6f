// SPDX-License-Identifier: GPL-2.0

//! Configuration files of servers, and the steps that they lead to on a tree.

use std::io;
use std::net::IpAddr;

use ibnbd_host::config::plan::{self, Step, Wish};
use ibnbd_host::config::{self, keep, Config, Problem};
use ibnbd_host::configfs::Configured;
use ibnbd_host::family::Side;
use ibnbd_host::{Machine, Root};
use toml_edit::DocumentMut;

use crate::tree::Tree;

pub fn good(text: &str) -> Config {
    config::parse("server.toml", text).unwrap()
}

pub fn wrong(text: &str) -> Vec<String> {
    let problems = config::parse("x.toml", text).unwrap_err();
    problems.iter().map(Problem::to_string).collect()
}

fn nobody(_: &str) -> io::Result<Vec<IpAddr>> {
    Err(io::ErrorKind::NotFound.into())
}

pub fn planned(tree: &Tree, text: &str, prune: bool, side: Option<Side>) -> Vec<Step> {
    let root = Root::new(tree.base());
    let wish = Wish {
        resolve: &nobody,
        prune,
        side,
        disk: None,
    };
    plan::steps(&root, &Machine::read(&root), &good(text), &wish)
}

pub fn steps_of(tree: &Tree, text: &str, prune: bool, side: Option<Side>) -> Vec<String> {
    let steps = planned(tree, text, prune, side);
    steps.iter().map(Step::to_string).collect()
}

pub fn steps(tree: &Tree, text: &str, prune: bool) -> Vec<String> {
    steps_of(tree, text, prune, None)
}

pub fn configured(tree: &Tree) -> Configured {
    let root = Root::new(tree.base());
    Configured::read(&root, &Machine::read(&root))
}

/// Returns a file with what the tree has of exports, hosts and ports.
pub fn kept(tree: &Tree, text: &str, prune: bool) -> String {
    let root = Root::new(tree.base());
    let configured = configured(tree);
    let mut document: DocumentMut = text.parse().unwrap();
    let mut others = keep::Others::default();
    keep::server(&root, &[], &configured, &mut document, &mut others, prune);
    document.to_string()
}
