// SPDX-License-Identifier: GPL-2.0

//! Faults of a server.

use ibnbd_proto::path::holds_every_device;

use super::{Finding, Severity};
use crate::family::{Family, Side};
use crate::folder;
use crate::host;
use crate::model::Machine;
use crate::root::Root;

pub(super) fn all(root: &Root, machine: &Machine) -> Vec<Finding> {
    if !host::has(root, Side::Server) {
        return Vec::new();
    }
    let mut found = match host::parameter(root, "ibnbd_server", "dev_search_path") {
        Some(path) => of_folder(root, machine, &path),
        None => Vec::new(),
    };
    let drain = format!("{}/drain", Family::Ibnbd.control(Side::Server));
    if root.read(&drain).is_ok_and(|text| text.trim() == "1") {
        let what = "the server is drained: no client can come";
        found.push(Finding::new(Severity::Warning, what, "ibnbd drain --undo"));
    }
    if host::parameter(root, "ibtrs_server", "always_invalidate").as_deref() == Some("N") {
        let what = "always_invalidate=N: a client can change what it writes while that is written";
        let remedy = "load ibtrs_server without it, unless all clients are trusted";
        found.push(Finding::new(Severity::Hint, what, remedy));
    }
    found
}

fn of_folder(root: &Root, machine: &Machine, path: &str) -> Vec<Finding> {
    let remedy = "load ibnbd_server with dev_search_path=DIRECTORY, one with nothing else in it";
    if path.is_empty() {
        let what = "dev_search_path is not set: clients can open nothing";
        return vec![Finding::new(Severity::Error, what, remedy)];
    }
    if holds_every_device(path) {
        let what = format!(
            "dev_search_path={path}: any machine that reaches the port may read every disk of this one"
        );
        return vec![Finding::new(Severity::Warning, what, remedy)];
    }
    if path.contains(folder::SESSION) {
        return Vec::new();
    }
    match folder::list(root, machine, path) {
        Err(error) => {
            let what = format!("dev_search_path={path} cannot be read: {error}");
            vec![Finding::new(
                Severity::Error,
                what,
                "ibnbd export add DEVICE",
            )]
        }
        Ok(list) if list.is_empty() => {
            let what = format!("nothing is exported: {path} has no device files");
            vec![Finding::new(
                Severity::Warning,
                what,
                "ibnbd export add DEVICE",
            )]
        }
        Ok(list) => list
            .iter()
            .filter(|e| e.device.is_none())
            .map(|e| stale(e, path))
            .collect(),
    }
}

fn stale(export: &folder::Exported, path: &str) -> Finding {
    let what = format!(
        "{path}/{} has the number {}:{}, which no device has",
        export.name, export.major, export.minor
    );
    Finding::new(
        Severity::Warning,
        what,
        format!("ibnbd export remove {}, and add it again", export.name),
    )
}
