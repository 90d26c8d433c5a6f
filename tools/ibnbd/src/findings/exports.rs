// SPDX-License-Identifier: GPL-2.0

//! Faults of exports and hosts in configfs.

use std::collections::BTreeSet;

use super::{Finding, Severity};
use crate::configfs::{self, Configured, Export};
use crate::family::Side;
use crate::host;
use crate::keyring::{self, LoadedKey};
use crate::model::Machine;
use crate::prefix::{self, Prefix};
use crate::root::Root;

pub(super) fn all(root: &Root, machine: &Machine, configured: &Configured) -> Vec<Finding> {
    let is_used = !configured.exports.is_empty() || !configured.hosts.is_empty();
    // Without root or without keyctl nothing is known of keys.
    let keys = is_used.then(|| keyring::keys(root).ok()).flatten();
    let refusal = refusal(root, keys.as_deref().unwrap_or_default());
    let exports = configured.exports.iter();
    let mut found: Vec<Finding> = exports.flat_map(|e| of_export(e, refusal)).collect();
    found.extend(shared(root, configured));
    if let Some(keys) = keys {
        found.extend(of_keys(machine, configured, &keys));
    }
    found.extend(configured.notes.iter().map(super::of_note));
    found
}

/// Devices that have several exports.
fn shared(root: &Root, configured: &Configured) -> Vec<Finding> {
    let mut found = Vec::new();
    for export in &configured.exports {
        let Some(device) = &export.device_path else {
            continue;
        };
        let names: Vec<&str> = configured
            .of_device(root, device)
            .iter()
            .map(|export| export.name.as_str())
            .collect();
        // One finding for all of them.
        if names.len() > 1 && names.first() == Some(&export.name.as_str()) {
            found.push(one_device(device, &names));
        }
    }
    found
}

/// A device that clients may open by several names.
pub(super) fn one_device(device: &str, names: &[&str]) -> Finding {
    let (first, others) = names.split_first().map_or(("", names), |(a, b)| (*a, b));
    let others = others.join(" ");
    let what = format!("exports {first} and {others} are one device, {device}: a client that one of them refuses may open another, and a client that maps both has one disk by two names");
    let remedy = format!("ibnbd export remove {others}, or {first}");
    Finding::new(Severity::Warning, what, remedy)
}

/// The parameter of the server, where exports make it of no use.
pub(super) fn off(path: &str) -> Finding {
    let what = format!(
        "dev_search_path={path} is off: with exports in {} clients open nothing below it",
        configfs::FOLDER
    );
    let remedy = "load ibnbd_server without dev_search_path";
    Finding::new(Severity::Hint, what, remedy)
}

/// Why the server refuses clients without a key before they name an export, as far as is known.
fn refusal(root: &Root, keys: &[LoadedKey]) -> Option<&'static str> {
    match host::parameter(root, "ibtrs_server", "auth")?.as_str() {
        "required" => Some("ibtrs_server has auth=required"),
        "auto" if !keys.is_empty() => Some("ibtrs_server has auth=auto, and a key is loaded"),
        _ => None,
    }
}

fn of_export(export: &Export, refusal: Option<&str>) -> Vec<Finding> {
    let name = &export.name;
    let mut found = Vec::new();
    let mut add = |severity, what: String, remedy| found.push(Finding::new(severity, what, remedy));
    let prefixes = export.allow_unauthenticated.as_deref().unwrap_or_default();
    let open: Vec<Prefix> = prefixes
        .iter()
        .copied()
        .filter(Prefix::is_everything)
        .collect();
    if let Some(why) = refusal.filter(|_| !prefixes.is_empty()) {
        let what = format!("export {name}: allow_unauthenticated lets nobody in, as the server refuses clients without a key: {why}");
        let remedy = format!(
            "load ibtrs_server with auth=optional, or: ibnbd export set {name} allow_unauthenticated="
        );
        add(Severity::Warning, what, remedy);
    } else if !open.is_empty() {
        add(
            Severity::Warning,
            format!("export {name}: any machine that reaches the port may open it without a key, as it is for {}", prefix::text(&open)),
            format!("ibnbd export set {name} allow_unauthenticated=PREFIX,..., or nothing behind the ="),
        );
    }
    if export.enable == Some(false) {
        let what = format!("export {name} is disabled: clients cannot open it");
        add(Severity::Hint, what, format!("ibnbd export enable {name}"));
    }
    if export.is_for_nobody() {
        let what = format!("export {name} names no host and no address: nobody may open it");
        add(
            Severity::Warning,
            what,
            format!("ibnbd export allow {name} HOST"),
        );
    }
    found
}

fn of_keys(machine: &Machine, configured: &Configured, keys: &[LoadedKey]) -> Vec<Finding> {
    let usable = keys
        .iter()
        .filter(|key| !matches!(key.expires.as_str(), "expired" | "revoked"));
    let sessions: BTreeSet<&str> = usable.map(|key| key.session.as_str()).collect();
    let mut found = Vec::new();
    for host in &configured.hosts {
        let name = &host.name;
        if !sessions.contains(name.as_str()) {
            let what = format!(
                "host {name} has no key that is loaded and valid: it cannot connect as that"
            );
            found.push(Finding::new(
                Severity::Warning,
                what,
                format!("ibnbd key load {name}"),
            ));
        }
    }
    // Where all authenticated sessions may come, no host has to be there.
    if configured
        .exports
        .iter()
        .any(|export| export.allow_any_host == Some(true))
    {
        return found;
    }
    // Keys of a machine that is a client as well are for its own sessions, too.
    let is_of_client = |name| machine.our(Side::Client, name).is_some();
    for name in sessions {
        if configured.host(name).is_none() && !is_of_client(name) {
            let what = format!(
                "a key is loaded for session {name}, which is no host: it may open no export"
            );
            let remedy = format!("ibnbd host add {name}, or: ibnbd key remove {name}");
            found.push(Finding::new(Severity::Hint, what, remedy));
        }
    }
    found
}
