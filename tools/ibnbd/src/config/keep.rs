// SPDX-License-Identifier: GPL-2.0

//! Writes the state of a machine into files. Comments, blank lines and the order stay.

use ibnbd_proto::checksum::DataChecksum;
use ibtrs_proto::settings::Setting;
use toml_edit::{value, ArrayOfTables, DocumentMut, Item, Table, Value};

use super::{keep_array, keep_exports, keep_ports, plan, Session, PARAMETERS};
use crate::configfs::{address, Configured};
use crate::family::Side;
use crate::folder::{self, Exported};
use crate::host;
use crate::join::joined;
use crate::mapping::{self, Resolve};
use crate::model::{self, Machine};
use crate::root::Root;

pub use super::keep_others::Others;

/// The defaults of the drivers, but for those of [`Setting::ALL`].
const DEFAULTS: [(&str, &str); 6] = [
    ("mp_policy", "min-inflight"),
    ("max_reconnect_attempts", "-1"),
    ("key_id", "default"),
    ("io_timeout_limit", "0"),
    ("io_timeout_ms", "30000"),
    ("identity", "auto"),
];

/// Which disks are written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choice<'a> {
    /// Only that session and device.
    pub only: Option<(&'a str, &'a str)>,
    /// Whether what the machine has not goes from the file.
    pub prune: bool,
    /// The server's port, for a session that is new in the file: the machine does not tell.
    pub port: Option<u16>,
}

/// A setting as it is written: a number where it is one.
fn setting(text: &str) -> Item {
    text.parse::<i64>().map_or_else(|_| value(text), value)
}

/// Writes a setting if it is not what holds without it, or if the file has another one.
fn keep(table: &mut Table, key: &str, now: &str) {
    let default = DEFAULTS.contains(&(key, now))
        || Setting::ALL
            .iter()
            .any(|setting| setting.name == key && setting.default.to_string() == now);
    // An id is a text even if it has digits only.
    let now = if key == "key_id" {
        value(now)
    } else {
        setting(now)
    };
    replace(table, key, now, default);
}

/// Whether two values are the same, however they are written.
fn is_same(one: &Item, other: &Item) -> bool {
    let plain = |item: &Item| {
        (
            item.as_integer(),
            item.as_bool(),
            item.as_str().map(str::to_owned),
        )
    };
    one.is_value() && plain(one) == plain(other)
}

/// Gives a key another value, with the comment behind it; a new one only if that says something.
pub(super) fn replace(table: &mut Table, key: &str, mut now: Item, usual: bool) {
    match table.get_mut(key) {
        Some(there) => {
            if !is_same(there, &now) {
                if let (Some(old), Some(new)) = (there.as_value(), now.as_value_mut()) {
                    *new.decor_mut() = old.decor().clone();
                }
                *there = now;
            }
        }
        None if usual => {}
        None => {
            table.insert(key, now);
        }
    }
}

pub(super) fn tables<'a>(table: &'a mut Table, name: &str) -> Option<&'a mut ArrayOfTables> {
    table
        .entry(name)
        .or_insert(Item::ArrayOfTables(ArrayOfTables::new()))
        .as_array_of_tables_mut()
}

pub(super) fn text<'a>(table: &'a Table, key: &str) -> Option<&'a str> {
    table.get(key)?.as_str()
}

/// A new entry.
pub(super) fn named(name: &str) -> Table {
    let mut table = Table::new();
    table.insert("name", value(name));
    table
}

/// Writes the parameters of the client's module and its sessions into a file that was read without
/// problems. `resolve` finds the paths that lead to the servers that a session has in the file.
pub fn client(
    root: &Root,
    machine: &Machine,
    document: &mut DocumentMut,
    others: &mut Others,
    choice: Choice<'_>,
    resolve: Resolve<'_>,
) {
    if choice.only.is_none() {
        parameters(root, document, others, |module, _| module == "ibtrs_client");
    }
    let Some(list) = tables(document.as_table_mut(), "session") else {
        return;
    };
    let cpus = host::cpus(root);
    for session in machine.ours(Side::Client) {
        if choice.only.is_some_and(|(name, _)| name != session.name) {
            continue;
        }
        let mut new = named(&session.name);
        if let Some(port) = choice.port {
            new.insert("port", value(i64::from(port)));
        }
        let is = |table: &Table| name(root, table) == session.name;
        // Without a path it is half made.
        if session.paths.is_empty() && !list.iter().any(is) {
            continue;
        }
        others.keep(list, ("session", &session.name), &is, new, &|table| {
            keep_session(root, machine, session, table, choice);
            if is_read(machine, session) {
                keep_paths(root, session, table, resolve, choice.prune);
                keep_standby(root, session, table, resolve);
            }
            keep_queues(machine.queues(&session.name), cpus, table);
            if let Some(kept) = session.kept_open.filter(|_| choice.only.is_none()) {
                replace(table, "messages", value(kept), !kept);
            }
        });
    }
    if choice.prune {
        let is_there = |table: &Table| machine.our(Side::Client, &name(root, table)).is_some();
        // Of a session that is not there, the disks stay that are mapped only when asked for.
        for table in list.iter_mut().filter(|table| !is_there(table)) {
            if let Some(disks) = tables(table, "disk") {
                disks.retain(is_manual);
            }
        }
        list.retain(|table| is_there(table) || disks(table).any(is_manual));
    }
    if list.is_empty() {
        document.remove("session");
    }
}

/// The disks of a session in a file.
fn disks(session: &Table) -> impl Iterator<Item = &Table> {
    let list = session.get("disk").and_then(Item::as_array_of_tables);
    list.into_iter().flatten()
}

/// Whether a disk in a file is mapped only when that is asked for. Most of the time it may not be
/// there.
fn is_manual(disk: &Table) -> bool {
    disk.get("auto").and_then(Item::as_bool) == Some(false)
}

/// The name of a session in a file, given or made.
fn name(root: &Root, table: &Table) -> String {
    let strings = |key: &str| -> Vec<String> {
        let array = table.get(key).and_then(Item::as_array);
        array
            .map(|array| {
                array
                    .iter()
                    .filter_map(|v| v.as_str().map(String::from))
                    .collect()
            })
            .unwrap_or_default()
    };
    let disk = |table: &Table| super::Disk {
        device: text(table, "device").unwrap_or_default().to_owned(),
        poll_queues: table
            .get("poll_queues")
            .and_then(Item::as_integer)
            .unwrap_or(0),
        ..super::Disk::default()
    };
    plan::name(
        root,
        &Session {
            name: text(table, "name").map(String::from),
            servers: strings("servers"),
            paths: strings("paths"),
            disks: disks(table).map(disk).collect(),
            ..Session::default()
        },
    )
}

/// Whether the paths of a session are known; without them, there is nothing better than the file.
fn is_read(machine: &Machine, session: &model::Session) -> bool {
    let folder = format!("{}/paths", session.folder());
    let is_in = |note: &model::Note| note.file.starts_with(&folder);
    !session.paths.is_empty() && !machine.notes.iter().any(is_in)
}

/// The texts of an array in a file.
fn of_key<'a>(table: &'a Table, key: &str) -> impl Iterator<Item = &'a str> {
    let array = table.get(key).and_then(Item::as_array);
    array.into_iter().flatten().filter_map(Value::as_str)
}

/// The texts of an array in a file, each with the paths that it may stand for; an error if that is
/// not known of one.
fn meant(
    root: &Root,
    table: &Table,
    key: &str,
    resolve: Resolve<'_>,
) -> Result<Vec<(String, Vec<String>)>, String> {
    of_key(table, key)
        .map(|text| Ok((text.to_owned(), mapping::paths(root, resolve, text)?)))
        .collect()
}

/// Writes the paths of a session, unless the file has the same ones in any order. Names of servers
/// stay as they are, and stand for the only path to their address. Beside them, paths that the
/// session does not have stay, too, unless `prune` is set.
fn keep_paths(
    root: &Root,
    session: &model::Session,
    table: &mut Table,
    resolve: Resolve<'_>,
    prune: bool,
) {
    let of = |key| meant(root, table, key, resolve);
    let (Ok(servers), Ok(paths)) = (of("servers"), of("paths")) else {
        return;
    };
    let is = |(_, lines): &(String, Vec<String>), path: &model::Path| {
        lines.iter().any(|line| plan::has(path, line))
    };
    let is_only = |path: &model::Path| {
        let same = session.paths.iter().filter(|other| other.dst == path.dst);
        same.count() == 1
    };
    let is_served = |path: &model::Path| is_only(path) && servers.iter().any(|text| is(text, path));
    let keeps_all = !servers.is_empty() && !prune;
    let stays = |value: &Value| {
        let mut texts = paths
            .iter()
            .filter(|(text, _)| value.as_str() == Some(text));
        keeps_all || texts.any(|text| session.paths.iter().any(|path| is(text, path)))
    };
    let is_new = |path: &&model::Path| !is_served(path) && !paths.iter().any(|text| is(text, path));
    let line = |path: &model::Path| {
        let ends = [path.src.as_deref(), path.dst.as_deref()].into_iter();
        let ends = ends.flatten().map(|end| address::lasting(root, end));
        ends.collect::<Vec<_>>().join(",")
    };
    let new: Vec<String> = session.paths.iter().filter(is_new).map(line).collect();
    let there = table.get("paths").and_then(Item::as_array);
    if !new.is_empty() || !there.into_iter().flatten().all(stays) {
        keep_array::replace(table, "paths", stays, new);
    }
}

/// Writes which paths are on standby, in the words that the file has for them. A text that stands for several
/// paths names them all.
fn keep_standby(root: &Root, session: &model::Session, table: &mut Table, resolve: Resolve<'_>) {
    let of = |key| meant(root, table, key, resolve);
    let (Ok(servers), Ok(paths)) = (of("servers"), of("paths")) else {
        return;
    };
    let mut now: Vec<String> = Vec::new();
    for path in session
        .paths
        .iter()
        .filter(|path| path.standby == Some(true))
    {
        let mut texts = paths.iter().chain(&servers);
        let is =
            |(_, lines): &&(String, Vec<String>)| lines.iter().any(|line| plan::has(path, line));
        let text = texts.find(is).map(|(text, _)| text.clone());
        now.extend(text.filter(|text| !now.contains(text)));
    }
    let there: Vec<String> = of_key(table, "standby").map(str::to_owned).collect();
    let new: Vec<String> = now
        .iter()
        .filter(|text| !there.contains(text))
        .cloned()
        .collect();
    let stays = |value: &Value| {
        value
            .as_str()
            .is_some_and(|text| now.iter().any(|name| name == text))
    };
    if !new.is_empty() || there.len() != now.len() {
        keep_array::replace(table, "standby", stays, new);
    }
}

fn keep_session(
    root: &Root,
    machine: &Machine,
    session: &model::Session,
    table: &mut Table,
    choice: Choice<'_>,
) {
    for (key, now) in session.settings.entries() {
        // The id of the key with which the server was joined is in a file of its own.
        let is_joined = || joined::key_id(root, &session.name).as_deref() == Some(&*now);
        if key == "key_id" && !table.contains_key(key) && is_joined() {
            continue;
        }
        // Without its key the session would not connect again.
        if choice.only.is_none() || key == "key_id" {
            keep(table, key, &now);
        }
    }
    let Some(list) = tables(table, "disk") else {
        return;
    };
    let own = |disk: &&model::Disk| disk.session.as_ref() == Some(&session.name);
    for disk in machine.our_disks().filter(own) {
        let Some(device) = disk.mapping_path.as_deref() else {
            continue;
        };
        if choice.only.is_some_and(|(_, only)| only != device) {
            continue;
        }
        let at = list
            .iter()
            .position(|table| text(table, "device") == Some(device));
        let at = at.unwrap_or_else(|| {
            let mut table = Table::new();
            table.insert("device", value(device));
            list.push(table);
            list.len().saturating_sub(1)
        });
        if let Some(table) = list.get_mut(at) {
            keep_disk(disk, table);
        }
    }
    if choice.prune {
        list.retain(|table| {
            let device = text(table, "device");
            let is_there =
                device.is_some_and(|device| machine.our_disk(&session.name, device).is_some());
            is_there || is_manual(table)
        });
    }
    if list.is_empty() {
        table.remove("disk");
    }
}

/// Writes the number of queues if it is not the usual one, or if the file has one: without it the
/// session would have another one the next time.
fn keep_queues(queues: Option<u64>, cpus: Option<u64>, table: &mut Table) {
    let Some(queues) = queues else { return };
    if let Ok(now) = i64::try_from(queues) {
        let usual = cpus.is_none_or(|cpus| queues >= cpus);
        replace(table, "queues", value(now), usual);
    }
}

fn keep_disk(disk: &model::Disk, table: &mut Table) {
    if let Some(access) = disk.access_mode.as_deref() {
        replace(table, "access", value(access), access == "rw");
    }
    if let Some(exclusive) = disk.exclusive {
        replace(table, "exclusive", value(exclusive), !exclusive);
    }
    if let Some(queues) = disk.poll_queues.and_then(|n| i64::try_from(n).ok()) {
        // As many as there are CPUs stays as it was written.
        let all = table.get("poll_queues").and_then(Item::as_integer) == Some(-1);
        if !all {
            replace(table, "poll_queues", value(queues), queues == 0);
        }
    }
    if let Some(checksum) = disk.data_checksum.as_deref() {
        let none = checksum == DataChecksum::None.as_str();
        replace(table, "data_checksum", value(checksum), none);
    }
    if let Some(limit) = disk.io_timeout_limit {
        keep(table, "io_timeout_limit", &limit.to_string());
    }
    if let Some(ms) = disk.io_timeout_ms {
        keep(table, "io_timeout_ms", &ms.to_string());
    }
    if let Some(check) = disk.identity.as_deref() {
        keep(table, "identity", check);
    }
}

/// Takes a disk out of a file, and its session with the last one. Whether it was there.
pub fn forget(root: &Root, document: &mut DocumentMut, session: &str, device: &str) -> bool {
    let Some(list) = tables(document.as_table_mut(), "session") else {
        return false;
    };
    let mut found = false;
    for table in list.iter_mut().filter(|table| name(root, table) == session) {
        if let Some(disks) = tables(table, "disk") {
            let before = disks.len();
            disks.retain(|disk| text(disk, "device") != Some(device));
            found |= disks.len() != before;
        }
    }
    let used = |table: &Table| disks(table).next().is_some();
    list.retain(|table| !(found && name(root, table) == session) || used(table));
    if list.is_empty() {
        document.remove("session");
    }
    found
}

/// Writes the parameters of the server's modules, and what it exports.
pub fn server(
    root: &Root,
    exports: &[Exported],
    configured: &Configured,
    document: &mut DocumentMut,
    others: &mut Others,
    prune: bool,
) {
    // Files have exports in configfs or in a directory, not both.
    let keeps_some =
        keep_exports::has_some(document) && !prune || others.any(keep_exports::has_some);
    let in_configfs = !configured.exports.is_empty() || keeps_some;
    let is_on = |module: &str, name: &str| {
        module.ends_with("_server") && !(name == "dev_search_path" && in_configfs)
    };
    parameters(root, document, others, is_on);
    keep_ports::ports(root, configured, document, others, prune);
    keep_exports::hosts(configured, document, others, prune);
    if in_configfs {
        keep_exports::exports(root, configured, document, others, prune);
    } else {
        of_directory(root, exports, document, others, prune);
    }
}

/// The value of a parameter in a file, as a module is given it.
pub(super) fn parameter(item: &Item) -> String {
    match (item.as_str(), item.as_bool()) {
        (Some(text), _) => text.to_owned(),
        (_, Some(yes)) => if yes { "Y" } else { "N" }.to_owned(),
        _ => item.as_integer().map(|n| n.to_string()).unwrap_or_default(),
    }
}

/// Writes the parameters of modules for which `is_on` says so.
fn parameters(
    root: &Root,
    document: &mut DocumentMut,
    others: &mut Others,
    is_on: impl Fn(&str, &str) -> bool,
) {
    for (module, name, usual) in PARAMETERS {
        let Some(now) = host::parameter(root, module, name).filter(|_| is_on(module, name)) else {
            continue;
        };
        if others.have_parameter(module, name, &now) {
            continue;
        }
        let item = match now.as_str() {
            "Y" => value(true),
            "N" => value(false),
            _ => setting(&now),
        };
        let there = document.get(module).and_then(|item| item.get(name));
        let is_so = |there: &Item| plan::means(&parameter(there), &now);
        if there.map_or(now == usual, is_so) {
            continue;
        }
        let table = document.entry(module).or_insert(Item::Table(Table::new()));
        if let Some(table) = table.as_table_mut() {
            replace(table, name, item, false);
        }
    }
}

/// The name of an export in a file.
pub(super) fn called(table: &Table) -> &str {
    let device = text(table, "device").unwrap_or_default();
    text(table, "name").unwrap_or_else(|| folder::last_part(device))
}

fn of_directory(
    root: &Root,
    exports: &[Exported],
    document: &mut DocumentMut,
    others: &mut Others,
    prune: bool,
) {
    let Some(list) = tables(document.as_table_mut(), "export") else {
        return;
    };
    for export in exports {
        let Some(device) = &export.device else {
            continue;
        };
        let is = |table: &Table| called(table) == export.name;
        let mut new = named(&export.name);
        new.insert("device", value(lasting_name(root, device)));
        others.keep(list, ("export", &export.name), &is, new, &|table| {
            keep_device(root, &export.name, device, table);
        });
    }
    if prune {
        list.retain(|table| {
            let of_directory = !keep_exports::is_of_configfs(table);
            table.contains_key("session")
                || of_directory && exports.iter().any(|e| e.name == called(table))
        });
    }
    if list.is_empty() {
        document.remove("export");
    }
}

/// The device of a file in a directory stays as the configuration calls it, as long as it is that one.
fn keep_device(root: &Root, name: &str, device: &str, table: &mut Table) {
    let is = text(table, "device").unwrap_or_default();
    let (file, lasting) = (device_file(device), lasting_name(root, device));
    if is != file && is != lasting && !folder::is_same(root, is, &file) {
        // It may have been called by the last part of the device that it had.
        replace(table, "name", value(name), false);
        replace(table, "device", value(lasting), false);
    }
}

/// A name of a block device that is the same after the next boot, if it has one.
pub(super) fn lasting_name(root: &Root, device: &str) -> String {
    let folder = "/dev/disk/by-id";
    let names = root.list_if_any(folder).unwrap_or_default();
    let same = names
        .iter()
        .find(|name| root.link_name(&format!("{folder}/{name}")).as_deref() == Some(device));
    match same {
        Some(name) => format!("{folder}/{name}"),
        None => device_file(device),
    }
}

/// The file of a block device that the kernel calls so.
fn device_file(device: &str) -> String {
    format!("/dev/{}", device.replace('!', "/"))
}
