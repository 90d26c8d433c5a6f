// SPDX-License-Identifier: GPL-2.0

//! Writes exports and hosts in configfs into files.

use toml_edit::{value, DocumentMut, Item, Table, Value};

use super::keep::{called, named, replace, tables, text};
use super::keep_array;
use super::keep_others::Others;
use crate::configfs::{export_folder, Configured, Export, Host, LIMITS};
use crate::folder;
use crate::prefix::{self, Prefix};
use crate::root::Root;

/// Whether an export of a file is one in configfs: it has a key that one in a directory cannot
/// have.
pub(super) fn is_of_configfs(table: &Table) -> bool {
    super::read_exports::OF_CONFIGFS
        .iter()
        .any(|key| table.contains_key(key))
}

/// Whether a file has exports in configfs.
pub(super) fn has_some(document: &DocumentMut) -> bool {
    let list = document.get("export").and_then(Item::as_array_of_tables);
    list.is_some_and(|list| list.iter().any(is_of_configfs))
}

/// Writes all hosts.
pub(super) fn hosts(
    configured: &Configured,
    document: &mut DocumentMut,
    others: &mut Others,
    prune: bool,
) {
    let Some(list) = tables(document.as_table_mut(), "host") else {
        return;
    };
    let is = |table: &Table, host: &Host| text(table, "name") == Some(&host.name);
    for host in &configured.hosts {
        let name = &host.name;
        others.keep(
            list,
            ("host", name),
            &|table| is(table, host),
            named(name),
            &|table| {
                keep_host(host, table);
            },
        );
    }
    if prune {
        list.retain(|table| configured.hosts.iter().any(|host| is(table, host)));
    }
    if list.is_empty() {
        document.remove("host");
    }
}

fn keep_host(host: &Host, table: &mut Table) {
    if let Some(addresses) = &host.addresses {
        prefixes(table, "addresses", addresses);
    }
    for (key, _) in LIMITS {
        if let Some(now) = host.limit(key).and_then(|now| i64::try_from(now).ok()) {
            replace(table, key, value(now), now == 0);
        }
    }
}

/// Writes all exports in configfs. What belongs to a directory goes, as the file could not be read
/// with both.
pub(super) fn exports(
    root: &Root,
    configured: &Configured,
    document: &mut DocumentMut,
    others: &mut Others,
    prune: bool,
) {
    if let Some(server) = document
        .get_mut("ibnbd_server")
        .and_then(Item::as_table_mut)
    {
        server.remove("dev_search_path");
    }
    let Some(list) = tables(document.as_table_mut(), "export") else {
        return;
    };
    let is_there = |table: &Table| configured.export(called(table)).is_some();
    list.retain(|table| is_there(table) || is_of_configfs(table) && !prune);
    for export in &configured.exports {
        // Without a device it is half made.
        let Some(device) = &export.device_path else {
            continue;
        };
        // It would be written without the hosts that could not be read.
        let links = format!("{}/allowed_hosts", export_folder(&export.name));
        if configured.notes.iter().any(|note| note.file == links) {
            continue;
        }
        let name = &export.name;
        let is = |table: &Table| called(table) == name;
        others.keep(list, ("export", name), &is, named(name), &|table| {
            keep_export(root, export, device, table);
        });
    }
    if list.is_empty() {
        document.remove("export");
    }
}

fn keep_export(root: &Root, export: &Export, device: &str, table: &mut Table) {
    table.remove("session");
    let is = text(table, "device").unwrap_or_default();
    if is != device && !folder::is_same(root, is, device) {
        // It may have been called by the last part of the device that it had.
        replace(table, "name", value(export.name.as_str()), false);
        replace(table, "device", value(device), false);
    }
    if let Some(access) = export.access_mode.as_deref() {
        replace(table, "access", value(access), access == "rw");
    }
    for (key, now, usual) in [
        ("realtime", export.allow_realtime, false),
        ("any_host", export.allow_any_host, false),
        ("enable", export.enable, true),
    ] {
        if let Some(now) = now {
            replace(table, key, value(now), now == usual);
        }
    }
    if let Some(from) = &export.allow_unauthenticated {
        prefixes(table, "from", from);
    }
    let (mut there, mut now) = (strings(table, "hosts"), export.allowed_hosts.clone());
    there.sort();
    now.sort();
    // This key distinguishes an export that nobody may open from one in a directory.
    if there != now || !is_of_configfs(table) {
        let stays = |value: &Value| value.as_str().is_some_and(|v| now.iter().any(|n| n == v));
        let new = now.iter().filter(|now| !there.contains(now));
        keep_array::replace(table, "hosts", stays, new.cloned().collect());
    }
}

fn strings(table: &Table, key: &str) -> Vec<String> {
    let array = table.get(key).and_then(Item::as_array);
    let texts = array.into_iter().flatten().filter_map(|v| v.as_str());
    texts.map(String::from).collect()
}

/// Writes prefixes, unless the file has the same ones in any order.
fn prefixes(table: &mut Table, key: &str, now: &[Prefix]) {
    let there = strings(table, key);
    let there = there.iter().filter_map(|text| Prefix::parse(text).ok());
    let there: Vec<Prefix> = there.collect();
    if !prefix::same(&there, now) {
        let parsed = |value: &Value| Prefix::parse(value.as_str()?).ok();
        let stays = |value: &Value| parsed(value).is_some_and(|prefix| now.contains(&prefix));
        let new = now.iter().filter(|now| !there.contains(now));
        keep_array::replace(table, key, stays, new.map(Prefix::to_string).collect());
    }
}
