// SPDX-License-Identifier: GPL-2.0

//! The steps to the exports and hosts in configfs that the files describe.

use super::plan::{Of, Step, Wish};
use super::{Config, Export, Host};
use crate::configfs::change::{self, Change, Rules};
use crate::configfs::{self, Configured};
use crate::folder;
use crate::model::Machine;
use crate::prefix;
use crate::root::Root;

/// All of them: hosts come before the exports that name them, and go after these.
pub(super) fn steps(
    root: &Root,
    machine: &Machine,
    config: &Config,
    wish: &Wish<'_>,
    steps: &mut Vec<Step>,
) {
    let now = Configured::read(root, machine);
    for host in &config.hosts {
        of_host(&now, host, steps);
    }
    for export in &config.exports {
        if let Some(rules) = &export.rules {
            of_export(root, &now, export, rules, steps);
        }
    }
    let pruned = wish.prune && !config.exports.is_empty();
    if pruned {
        prune_exports(&now, config, steps);
    }
    if wish.prune && !config.hosts.is_empty() {
        prune_hosts(&now, config, pruned, steps);
    }
    let names_directory = config.exports.iter().any(|export| export.rules.is_none());
    if names_directory && !pruned && !now.exports.is_empty() {
        let names: Vec<&str> = now.exports.iter().map(|e| e.name.as_str()).collect();
        steps.push(Step::Cannot(format!(
            "exports of the files are in dev_search_path, which is off until these in configfs are removed: {}",
            names.join(" ")
        )));
    }
}

fn step(of: Of, line: String, changes: Vec<Change>) -> Step {
    Step::Configure { of, line, changes }
}

fn of_host(now: &Configured, wanted: &Host, steps: &mut Vec<Step>) {
    let name = &wanted.name;
    let Some(host) = now.host(name) else {
        let settings = wanted.limits.unusual().into_iter();
        let said: String = settings
            .map(|(key, value)| format!(" {key}={value}"))
            .collect();
        let line = format!("+ host {name}{said}");
        steps.push(step(Of::Host, line, change::add_host(name, &wanted.limits)));
        return;
    };
    let folder = configfs::host_folder(name);
    for (key, value) in wanted.limits.settings() {
        set(
            Of::Host,
            name,
            &folder,
            key,
            host.setting(key),
            &value,
            steps,
        );
    }
}

/// A step that sets one setting, unless it is so.
fn set(
    of: Of,
    name: &str,
    folder: &str,
    key: &str,
    was: Option<String>,
    value: &str,
    steps: &mut Vec<Step>,
) {
    if was.as_deref().is_some_and(|was| is_same(key, was, value)) {
        return;
    }
    let before = shown(was.as_deref().unwrap_or("unknown"));
    let line = format!(
        "~ set {key} of {} {name} from {before} to {}",
        of.as_str(),
        shown(value)
    );
    steps.push(step(of, line, vec![change::write(folder, key, value, was)]));
}

fn shown(value: &str) -> &str {
    if value.is_empty() {
        "nothing"
    } else {
        value
    }
}

/// Prefixes may be in any order.
fn is_same(key: &str, was: &str, value: &str) -> bool {
    match key {
        "addresses" | "allow_unauthenticated" => {
            let both = prefix::list(was).zip(prefix::list(value));
            both.is_some_and(|(was, value)| prefix::same(&was, &value))
        }
        _ => was == value,
    }
}

fn of_export(root: &Root, now: &Configured, wanted: &Export, rules: &Rules, steps: &mut Vec<Step>) {
    let (name, device) = (&wanted.name, &wanted.device);
    let Some(export) = now.export(name) else {
        let line = format!("+ export {device} as {name}{}", said(rules));
        steps.push(step(
            Of::Export,
            line,
            change::add_export(name, device, rules),
        ));
        return;
    };
    let folder = configfs::export_folder(name);
    let is = export.device_path.as_deref().unwrap_or_default();
    let set = |key, was, value: &str, steps: &mut Vec<Step>| {
        set(Of::Export, name, &folder, key, was, value, steps);
    };
    if is != device && !folder::is_same(root, is, device) {
        if export.enable == Some(false) {
            set("device_path", export.setting("device_path"), device, steps);
        } else {
            steps.push(Step::Cannot(format!(
                "export {name} is {is} until it is disabled, and not {device}"
            )));
        }
    }
    for (key, value) in rules.settings() {
        set(key, export.setting(key), &value, steps);
    }
    hosts(export, rules, steps);
    let enable = change::flag(rules.enable);
    set("enable", export.setting("enable"), enable, steps);
}

/// Rules in words, other than the usual ones.
fn said(rules: &Rules) -> String {
    let mut text = match rules.access.as_str() {
        "rw" => String::new(),
        access => format!(" {access}"),
    };
    for (word, is) in [("realtime", rules.realtime), ("disabled", !rules.enable)] {
        if is {
            text = format!("{text} {word}");
        }
    }
    if rules.any_host {
        text += " for any host";
    } else if !rules.hosts.is_empty() {
        text += &format!(" for {}", rules.hosts.join(" "));
    }
    if !rules.from.is_empty() {
        text += &format!(" from {}", prefix::text(&rules.from));
    }
    text
}

/// One step for all hosts of an export.
fn hosts(export: &configfs::Export, rules: &Rules, steps: &mut Vec<Step>) {
    let name = &export.name;
    let mut changes: Vec<Change> = Vec::new();
    for host in &rules.hosts {
        if !export.allowed_hosts.contains(host) {
            changes.push(change::allow(name, host));
        }
    }
    for host in &export.allowed_hosts {
        if !rules.hosts.contains(host) {
            changes.extend(change::deny(export, host));
        }
    }
    if !changes.is_empty() {
        let (is, wanted) = (export.allowed_hosts.join(" "), rules.hosts.join(" "));
        let line = format!(
            "~ set hosts of export {name} from {} to {}",
            shown(&is),
            shown(&wanted)
        );
        steps.push(step(Of::Export, line, changes));
    }
}

fn is_wanted(config: &Config, name: &str) -> bool {
    config
        .exports
        .iter()
        .any(|e| e.rules.is_some() && e.name == name)
}

/// Exports that no file names. One that a client has open stays.
fn prune_exports(now: &Configured, config: &Config, steps: &mut Vec<Step>) {
    for export in now.exports.iter().filter(|e| !is_wanted(config, &e.name)) {
        let name = &export.name;
        if export.sessions.is_empty() {
            let line = format!("- export {name}");
            steps.push(step(Of::Export, line, change::remove_export(export)));
        } else {
            let users = export.sessions.join(" ");
            steps.push(Step::Cannot(format!(
                "export {name} stays until it is closed by {users}"
            )));
        }
    }
}

/// Hosts that no file names. One that is connected stays, and one that an export names which stays.
fn prune_hosts(now: &Configured, config: &Config, pruned: bool, steps: &mut Vec<Step>) {
    let goes = |name: &String| {
        let is_free = |e: &configfs::Export| e.sessions.is_empty();
        is_wanted(config, name) || pruned && now.export(name).is_some_and(is_free)
    };
    for host in &now.hosts {
        let name = &host.name;
        if config.hosts.iter().any(|wanted| wanted.name == *name) {
            continue;
        }
        if host.paths > 0 || !host.exports.iter().all(goes) {
            steps.push(Step::Cannot(format!(
                "host {name} stays while it is connected, or while an export names it"
            )));
        } else {
            // The exports do not name it any more by then.
            let line = format!("- host {name}");
            steps.push(step(Of::Host, line, change::remove_host(host, &[])));
        }
    }
}
