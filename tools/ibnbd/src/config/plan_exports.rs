// SPDX-License-Identifier: GPL-2.0

//! The steps to the exports and hosts in configfs that the files describe.

use super::plan::{self, cannot, Of, Step, Wish};
use super::{Config, Export, Host};
use crate::configfs::change::{self, Change, Rules};
use crate::configfs::{self, Configured};
use crate::family::Family;
use crate::folder;
use crate::join::left;
use crate::model::{Machine, Opened};
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
    let mut opened = machine.opened.iter();
    let unknown = opened.find(|o| o.family == Family::Ibnbd && o.mapping_path.is_none());
    if pruned {
        prune_exports(&now, unknown, config, steps);
    }
    if wish.prune && !config.hosts.is_empty() {
        prune_hosts(&now, config, pruned && unknown.is_none(), steps);
        prune_keys(root, machine, config, steps);
    }
    let names_directory = config.exports.iter().any(|export| export.rules.is_none());
    if names_directory && !pruned && !now.exports.is_empty() {
        let names: Vec<&str> = now.exports.iter().map(|e| e.name.as_str()).collect();
        let why = format!(
            "exports of the files are in dev_search_path, which is off until these in configfs are removed: {}",
            names.join(" ")
        );
        steps.push(cannot("dev_search_path".to_owned(), why));
    }
}

/// `key` is what it changes of that thing; empty if that is the whole of it.
fn step(of: Of, name: &str, key: &str, line: String, changes: Vec<Change>) -> Step {
    Step::Configure {
        of,
        what: what(of, name, key),
        line,
        changes,
        back: Vec::new(),
    }
}

fn what(of: Of, name: &str, key: &str) -> String {
    format!("{} {name} {key}", of.as_str())
}

fn of_host(now: &Configured, wanted: &Host, steps: &mut Vec<Step>) {
    let name = &wanted.name;
    let Some(host) = now.host(name) else {
        let settings = wanted.limits.unusual().into_iter();
        let said: String = settings
            .map(|(key, value)| format!(" {key}={value}"))
            .collect();
        let line = format!("+ host {name}{said}");
        let changes = change::add_host(name, &wanted.limits);
        steps.push(step(Of::Host, name, "", line, changes));
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
    let changes = vec![change::write(folder, key, value, was)];
    steps.push(step(of, name, key, line, changes));
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
        let changes = change::add_export(name, device, rules);
        steps.push(step(Of::Export, name, "", line, changes));
        return;
    };
    let folder = configfs::export_folder(name);
    let set = |key, was, value: &str, steps: &mut Vec<Step>| {
        set(Of::Export, name, &folder, key, was, value, steps);
    };
    // The device can be changed only afterwards.
    if !rules.enable {
        set("enable", export.setting("enable"), "0", steps);
    }
    let is = export.device_path.as_deref().unwrap_or_default();
    if is != device && !folder::is_same(root, is, device) {
        if export.enable == Some(false) || !rules.enable {
            set("device_path", export.setting("device_path"), device, steps);
        } else {
            let why = format!("export {name} is {is} until it is disabled, and not {device}");
            steps.push(cannot(what(Of::Export, name, "device_path"), why));
        }
    }
    // The kernel closes at once what a client may no longer open. So those who may open it in
    // future come in before others are kept out, and all that while it is open as narrowly as
    // before or afterwards: nobody who goes can open it in a mode that comes.
    let settings = rules.settings();
    let of = |widens: bool, keys: &[&str], steps: &mut Vec<Step>| {
        for (key, value) in settings.iter().filter(|(key, _)| keys.contains(key)) {
            let was = export.setting(key);
            if is_wider(key, was.as_deref(), value) == widens {
                set(key, was, value, steps);
            }
        }
    };
    let (how, who) = (
        ["access_mode", "allow_realtime"],
        ["allow_any_host", "allow_unauthenticated"],
    );
    of(false, &how, steps);
    let (all, wanted) = (allow_more(export, rules, steps), &rules.hosts);
    of(true, &who, steps);
    of(false, &who, steps);
    allow_fewer(export, &all, wanted, steps);
    of(true, &how, steps);
    if rules.enable {
        set("enable", export.setting("enable"), "1", steps);
    }
}

/// Whether a setting lets clients do more than before, as far as that matters to the order.
/// `allow_unauthenticated` is about clients that nothing else lets in, and is replaced at once.
fn is_wider(key: &str, was: Option<&str>, value: &str) -> bool {
    let rank = |mode| configfs::ACCESS.iter().position(|known| *known == mode);
    match key {
        "access_mode" => was.is_some_and(|was| rank(value) > rank(was)),
        _ => value == "1",
    }
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

/// One step for all hosts that an export names in addition; returns those that it names then.
fn allow_more(export: &configfs::Export, rules: &Rules, steps: &mut Vec<Step>) -> Vec<String> {
    let is = &export.allowed_hosts;
    let more = rules.hosts.iter().filter(|host| !is.contains(host));
    let changes: Vec<Change> = more
        .clone()
        .map(|host| change::allow(&export.name, host))
        .collect();
    let all = match is.iter().all(|host| rules.hosts.contains(host)) {
        true => rules.hosts.clone(),
        false => is.iter().chain(more).cloned().collect(),
    };
    if !changes.is_empty() {
        let line = line_of_hosts(export, is, &all);
        steps.push(step(Of::Export, &export.name, "hosts", line, changes));
    }
    all
}

/// One step for all hosts that an export names no longer.
fn allow_fewer(export: &configfs::Export, is: &[String], wanted: &[String], steps: &mut Vec<Step>) {
    let fewer = is.iter().filter(|host| !wanted.contains(host));
    let changes: Vec<Change> = fewer.flat_map(|host| change::deny(export, host)).collect();
    if !changes.is_empty() {
        let line = line_of_hosts(export, is, wanted);
        steps.push(step(Of::Export, &export.name, "hosts", line, changes));
    }
}

fn line_of_hosts(export: &configfs::Export, is: &[String], wanted: &[String]) -> String {
    let (is, wanted) = (is.join(" "), wanted.join(" "));
    let (is, wanted) = (shown(&is), shown(&wanted));
    format!(
        "~ set hosts of export {} from {is} to {wanted}",
        export.name
    )
}

fn is_wanted(config: &Config, name: &str) -> bool {
    config
        .exports
        .iter()
        .any(|e| e.rules.is_some() && e.name == name)
}

/// Exports that no file names. One that a client has open stays, and all of them do if a client has
/// something open by an `unknown` name.
fn prune_exports(
    now: &Configured,
    unknown: Option<&Opened>,
    config: &Config,
    steps: &mut Vec<Step>,
) {
    for export in now.exports.iter().filter(|e| !is_wanted(config, &e.name)) {
        let name = &export.name;
        if let (true, Some(unknown)) = (export.sessions.is_empty(), unknown) {
            let (session, device) = (&unknown.session, &unknown.device);
            let why = format!(
                "export {name} stays, as {session} has {device} open by a name that cannot be read"
            );
            steps.push(cannot(what(Of::Export, name, ""), why));
        } else if export.sessions.is_empty() {
            let line = format!("- export {name}");
            let changes = change::remove_export(export);
            steps.push(step(Of::Export, name, "", line, changes));
        } else {
            let users = export.sessions.join(" ");
            let why = format!("export {name} stays until it is closed by {users}");
            steps.push(cannot(what(Of::Export, name, ""), why));
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
            let why =
                format!("host {name} stays while it is connected, or while an export names it");
            steps.push(cannot(what(Of::Host, name, ""), why));
        } else {
            // The exports do not name it any more by then.
            steps.push(Step::RemoveHost {
                what: what(Of::Host, name, ""),
                name: name.clone(),
                changes: change::remove_host(host, &[]),
            });
        }
    }
}

/// Keys of hosts whose removal was interrupted, and that the files do not name either.
fn prune_keys(root: &Root, machine: &Machine, config: &Config, steps: &mut Vec<Step>) {
    let is_named = |name: &String| {
        let is_session = |own| plan::name(root, own) == *name;
        config.hosts.iter().any(|host| host.name == *name) || config.sessions.iter().any(is_session)
    };
    let mut left = left::hosts(root, machine);
    left.retain(|name| !is_named(name));
    steps.extend(left.into_iter().map(|host| Step::RemoveKeys { host }));
}
