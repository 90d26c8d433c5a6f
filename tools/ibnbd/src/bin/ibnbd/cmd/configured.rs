// SPDX-License-Identifier: GPL-2.0

//! Functions that the commands for exports, hosts and ports in configfs share.

use ibnbd_host::advice::Task;
use ibnbd_host::configfs::change::{self, Change};
use ibnbd_host::configfs::{self, Configured, Export, Host, Port};
use ibnbd_host::family::Side;
use ibnbd_host::host as system;
use ibnbd_host::join::left;
use ibnbd_host::keyring;
use ibnbd_host::prefix::{self, Prefix};
use ibtrs_proto::name::{DevicePath, SessionName};

use super::args::SetOf;
use super::{host, Done};
use crate::act;
use crate::context::Context;
use crate::fail::{Failure, NOT_FOUND, NO_MODULE, REFUSED};

/// Fails unless the server has its directory in configfs.
pub(super) fn need(context: &Context) -> Result<(), Failure> {
    let root = &context.root;
    if configfs::is_there(root) {
        return Ok(());
    }
    if !system::has(root, Side::Server) {
        let failure = Failure::new(NO_MODULE, "ibnbd_server", "the module is not loaded");
        return Err(failure.todo("modprobe ibnbd_server"));
    }
    let what = configfs::FOLDER;
    if configfs::is_mounted(root) {
        let why = "ibnbd_server has no exports in configfs: it is older than this command";
        return Err(Failure::new(REFUSED, what, why).todo("load the module of this version"));
    }
    let failure = Failure::new(NOT_FOUND, what, "configfs is not mounted");
    Err(failure.todo("mount -t configfs configfs /sys/kernel/config"))
}

/// Fails unless the server has ports there.
pub(super) fn need_ports(context: &Context) -> Result<(), Failure> {
    need(context)?;
    if configfs::has_ports(&context.root) {
        return Ok(());
    }
    let why = "ibnbd_server has no ports in configfs: it is older than this command";
    let failure = Failure::new(REFUSED, configfs::FOLDER, why);
    Err(failure.todo("load the module of this version"))
}

/// Exports, hosts and ports, with a warning for what could not be read.
pub(super) fn read(context: &Context) -> Configured {
    let machine = context.machine();
    context.warn(&machine.notes);
    let configured = Configured::read(&context.root, &machine);
    context.warn(&configured.notes);
    configured
}

/// An export that is there.
pub(super) fn export<'a>(configured: &'a Configured, name: &str) -> Result<&'a Export, Failure> {
    configured.export(name).ok_or_else(|| {
        let failure = Failure::new(
            NOT_FOUND,
            format!("export {name}"),
            "there is no such export",
        );
        failure.todo("see `ibnbd export list`")
    })
}

/// A host that is there.
pub(super) fn host<'a>(configured: &'a Configured, name: &str) -> Result<&'a Host, Failure> {
    configured.host(name).ok_or_else(|| {
        let failure = Failure::new(NOT_FOUND, format!("host {name}"), "there is no such host");
        failure.todo(format!("ibnbd host add {name}"))
    })
}

/// A port that is there.
pub(super) fn port<'a>(configured: &'a Configured, name: &str) -> Result<&'a Port, Failure> {
    configured.port(name).ok_or_else(|| {
        let failure = Failure::new(NOT_FOUND, format!("port {name}"), "there is no such port");
        failure.todo("see `ibnbd port list`")
    })
}

/// Fails unless an export can have the name.
pub(super) fn check_export_name(name: &str) -> Result<(), Failure> {
    let what = || format!("export {name}");
    if !configfs::is_name(name) {
        let why = "the name of an export in configfs has no / and is neither . nor ..";
        return Err(Failure::usage(what(), why).todo("give another name behind the device"));
    }
    match DevicePath::new(name.as_bytes()) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::usage(what(), error.as_str())),
    }
}

/// Fails unless a port can have the name.
pub(super) fn check_port_name(name: &str) -> Result<(), Failure> {
    let what = format!("port {name}");
    match configfs::check_port_name(name) {
        Ok(()) => Ok(()),
        Err(why) => Err(Failure::usage(what, why)),
    }
}

/// Fails unless a host can have the name.
pub(super) fn check_host_name(name: &str) -> Result<(), Failure> {
    match SessionName::new(name.as_bytes()) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::usage(format!("host {name}"), error.as_str())),
    }
}

/// Fails if there are more prefixes than a file takes.
pub(super) fn check_prefixes(prefixes: &[Prefix]) -> Result<(), Failure> {
    if prefixes.len() <= prefix::MOST {
        return Ok(());
    }
    let why = format!("more than {} prefixes", prefix::MOST);
    Err(Failure::usage("addresses", why))
}

/// Names and values of settings that can be set.
pub(super) fn settings<'a>(
    words: &'a SetOf,
    known: &[&str],
) -> Result<Vec<(&'a str, &'a str)>, Failure> {
    let mut found = Vec::new();
    for setting in &words.settings {
        let (key, value) = super::setting(setting, known, "there is no such setting")?;
        check_value(key, value)?;
        found.push((key, value));
    }
    Ok(found)
}

/// Sets settings of an export or a host: all of them, or none.
pub(super) fn set(
    context: &Context,
    task: Task,
    words: &SetOf,
    known: &[&str],
    folder: &str,
    now: impl Fn(&str) -> Option<String>,
) -> Done {
    let settings = settings(words, known)?;
    let changes: Vec<Change> = settings
        .into_iter()
        .map(|(key, value)| change::write(folder, key, value, now(key)))
        .collect();
    let what = format!("set {} of {}", words.settings.join(" "), words.name);
    act::changes(context, task, &what, &changes)?;
    Ok(0)
}

fn check_value(key: &str, value: &str) -> Result<(), Failure> {
    let wrong = |why: String| Err(Failure::usage(format!("set {key}={value}"), why));
    match key {
        "allow_unauthenticated" | "addresses" => {
            let bad = prefix::words(value).find_map(|w| Prefix::parse(w).err().map(|why| (w, why)));
            match bad {
                Some((word, why)) => wrong(format!("{word:?} {why}")),
                None => check_prefixes(&prefix::list(value).unwrap_or_default()),
            }
        }
        "access_mode" if !configfs::ACCESS.contains(&value) => {
            wrong(format!("it is not one of {}", configfs::ACCESS.join(", ")))
        }
        "allow_realtime" | "allow_any_host" if !["0", "1"].contains(&value) => {
            wrong("it is neither 0 nor 1".to_owned())
        }
        key if configfs::LIMITS.iter().any(|(limit, _)| *limit == key) => {
            configfs::limit(key, value).map_or_else(wrong, |_| Ok(()))
        }
        _ => Ok(()),
    }
}

/// Takes all exports, hosts and ports away. A service does so at each stop, so it leaves the keys alone that the
/// next start needs, unless the operator wants them to go.
pub(super) fn remove_all(context: &Context, with_keys: bool) -> Done {
    let had_exports = configfs::has_exports(&context.root);
    let configured = read(context);
    let remove = || {
        for (task, what, changes) in change::remove_all(&configured) {
            act::changes(context, task, &what, &changes)?;
        }
        warn_of_no_export(context, had_exports);
        Ok(())
    };
    let names = configured.hosts.iter().map(|host| host.name.as_str());
    if with_keys {
        let names: Vec<&str> = names.collect();
        let removed = host::remove_with_keys(context, &names, remove);
        let left = left::hosts(&context.root, &context.machine());
        let completed = left.iter().map(|name| host::complete(context, name));
        return completed.fold(removed, Result::and).map(|()| 0);
    }
    remove()?;
    let withdrawn = names.map(|name| host::withdraw(context, name));
    let result = withdrawn.fold(Ok(()), Result::and);
    tell_of_keys(context, &configured.hosts);
    result.map(|()| 0)
}

/// Tells who can still connect, as keys without a host are still accepted.
fn tell_of_keys(context: &Context, hosts: &[Host]) {
    let loaded = keyring::keys(&context.root).unwrap_or_default();
    let names = hosts.iter().map(|host| host.name.as_str());
    let names: Vec<&str> = names
        .filter(|name| host::has_keys(context, name, &loaded))
        .collect();
    if !names.is_empty() {
        note!(
            "the keys of {} stay, for the next start: ibnbd key remove HOST removes one, and `export remove --all \
             --keys` those of all hosts",
            names.join(" ")
        );
    }
}

/// Tells that the server's directory counts again, if the last export in configfs has gone.
pub(super) fn warn_of_no_export(context: &Context, had_exports: bool) {
    if had_exports && !configfs::has_exports(&context.root) {
        if let Some(warning) = Configured::said_of_no_export(&context.root) {
            note!("warning: {warning}");
        }
    }
}

/// Removes an export.
pub(super) fn remove_export(context: &Context, export: &Export) -> Result<(), Failure> {
    let what = format!("remove export {}", export.name);
    act::changes(context, Task::Export, &what, &change::remove_export(export))?;
    warn_of_no_export(context, true);
    Ok(())
}

/// Removes a host, and the links of these exports to it.
pub(super) fn remove_host(
    context: &Context,
    host: &Host,
    exports: &[Export],
) -> Result<(), Failure> {
    let what = format!("remove host {}", host.name);
    let changes = change::remove_host(host, exports);
    act::changes(context, Task::Host, &what, &changes)
}

/// Removes a port.
pub(super) fn remove_port(context: &Context, name: &str) -> Result<(), Failure> {
    let what = format!("remove port {name}");
    act::changes(context, Task::Port, &what, &change::remove_port(name))
}

/// Does changes of an export.
pub(super) fn change_export(
    context: &Context,
    name: &str,
    what: &str,
    changes: &[Change],
) -> Result<(), Failure> {
    act::changes(
        context,
        Task::Export,
        &format!("{what} export {name}"),
        changes,
    )
}
