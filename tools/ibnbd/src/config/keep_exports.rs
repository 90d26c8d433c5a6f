// SPDX-License-Identifier: GPL-2.0

//! Writes exports and hosts in configfs into files.

use toml_edit::{value, Array, DocumentMut, Item, Table};

use super::keep::{called, replace, tables, text};
use crate::configfs::{Configured, Export, Host, LIMITS};
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
pub(super) fn hosts(configured: &Configured, document: &mut DocumentMut, prune: bool) {
    let Some(list) = tables(document.as_table_mut(), "host") else {
        return;
    };
    let is = |table: &Table, host: &Host| text(table, "name") == Some(&host.name);
    for host in &configured.hosts {
        let at = list.iter().position(|table| is(table, host));
        let at = at.unwrap_or_else(|| {
            let mut table = Table::new();
            table.insert("name", value(host.name.as_str()));
            list.push(table);
            list.len().saturating_sub(1)
        });
        if let Some(table) = list.get_mut(at) {
            keep_host(host, table);
        }
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
        let at = list.iter().position(|table| called(table) == export.name);
        let at = at.unwrap_or_else(|| {
            let mut table = Table::new();
            table.insert("name", value(export.name.as_str()));
            table.insert("device", value(device.as_str()));
            list.push(table);
            list.len().saturating_sub(1)
        });
        if let Some(table) = list.get_mut(at) {
            keep_export(root, export, device, table);
        }
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
    // An export that nobody may open is told by this key from one in a directory.
    if there != now || !is_of_configfs(table) {
        let array: Array = now.iter().collect();
        replace(table, "hosts", value(array), false);
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
    if !prefix::same(&there.collect::<Vec<_>>(), now) {
        let array: Array = now.iter().map(Prefix::to_string).collect();
        replace(table, key, value(array), false);
    }
}
