// SPDX-License-Identifier: GPL-2.0

//! Faults of a server.

use std::collections::BTreeMap;

use ibnbd_proto::path::holds_every_device;

use super::{exports, ports, Finding, Severity};
use crate::configfs::{self, Configured};
use crate::family::{Family, Side};
use crate::folder;
use crate::host;
use crate::model::{Machine, Session};
use crate::root::Root;

pub(super) fn all(root: &Root, machine: &Machine) -> Vec<Finding> {
    if !host::has(root, Side::Server) {
        return Vec::new();
    }
    let configured = Configured::read(root, machine);
    let path = host::parameter(root, "ibnbd_server", "dev_search_path");
    let mut found = exports::all(root, machine, &configured);
    found.extend(ports::all(root, &configured));
    match path {
        // With exports in configfs the directory does not count.
        Some(path) if configured.exports.is_empty() => {
            found.extend(of_folder(root, machine, &path));
        }
        Some(path) if !path.is_empty() => found.push(exports::off(&path)),
        _ => {}
    }
    let sessions = machine.sessions.iter();
    found.extend(sessions.filter_map(without_extensions));
    if host::is_drained(root) {
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

fn without_extensions(session: &Session) -> Option<Finding> {
    let is_ours = session.side == Side::Server && session.family == Family::Ibnbd;
    let mut paths = session.paths.iter();
    (is_ours && paths.any(|path| path.extensions == Some(0))).then(|| {
        let what = format!("session {}: its client does not have our extensions: it is not told of planned stops, and a write over a path that it has lost may still reach the disk after later ones", session.name);
        let remedy = "replace rnbd_client with ibnbd_client there, or load the version that runs here";
        Finding::new(Severity::Hint, what, remedy)
    })
}

fn of_folder(root: &Root, machine: &Machine, path: &str) -> Vec<Finding> {
    let remedy = "load ibnbd_server with dev_search_path=DIRECTORY, one with nothing else in it";
    if path.is_empty() && configfs::is_there(root) {
        let what = "nothing is exported: there is no export, and dev_search_path is not set";
        let remedy = "ibnbd export add DEVICE --host HOST";
        return vec![Finding::new(Severity::Error, what, remedy)];
    }
    if path.is_empty() && !configfs::is_mounted(root) {
        let what = "dev_search_path is not set, and configfs is not mounted: clients can open nothing, unless there are exports that cannot be seen";
        let remedy = "mount -t configfs configfs /sys/kernel/config";
        return vec![Finding::new(Severity::Error, what, remedy)];
    }
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
        Ok(list) => {
            let stale = list.iter().filter(|e| e.device.is_none());
            let mut found: Vec<Finding> = stale.map(|e| self::stale(e, path)).collect();
            found.extend(shared(&list));
            found
        }
    }
}

/// Devices that have several files.
fn shared(list: &[folder::Exported]) -> Vec<Finding> {
    let mut names: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for exported in list {
        if let Some(device) = &exported.device {
            names.entry(device).or_default().push(&exported.name);
        }
    }
    let shared = names.iter().filter(|(_, names)| names.len() > 1);
    shared
        .map(|(device, names)| exports::one_device(device, names))
        .collect()
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
