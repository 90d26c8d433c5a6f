// SPDX-License-Identifier: GPL-2.0

//! Writes ports in configfs into files.

use toml_edit::{value, DocumentMut, Table};

use super::keep::{named, replace, tables, text};
use super::keep_others::Others;
use crate::configfs::{self, address, Configured, Port};
use crate::host;
use crate::root::Root;

/// Writes all ports.
pub(super) fn ports(
    root: &Root,
    configured: &Configured,
    document: &mut DocumentMut,
    others: &mut Others,
    prune: bool,
) {
    let Some(list) = tables(document.as_table_mut(), "port") else {
        return;
    };
    let is = |table: &Table, port: &Port| text(table, "name") == Some(&port.name);
    for port in &configured.ports {
        // Without an address it is half made.
        let Some(address) = &port.address else {
            continue;
        };
        let name = &port.name;
        others.keep(
            list,
            ("port", name),
            &|table| is(table, port),
            named(name),
            &|table| {
                keep(root, port, address, table);
            },
        );
    }
    if prune {
        list.retain(|table| configured.ports.iter().any(|port| is(table, port)));
    }
    if list.is_empty() {
        document.remove("port");
    }
}

fn keep(root: &Root, port: &Port, address: &str, table: &mut Table) {
    let there = text(table, "address").unwrap_or_default();
    if !address::is_same(root, there, address) {
        let lasting = address::lasting(root, address);
        replace(table, "address", value(lasting), false);
    }
    if let Some(number) = port.port {
        let usual = host::parameter(root, "ibnbd_server", "port_nr");
        let is_usual = usual.and_then(|text| configfs::usual_number(&text)) == Some(number);
        replace(table, "port", value(i64::from(number)), is_usual);
    }
    if let Some(enable) = port.enable {
        replace(table, "enable", value(enable), enable);
    }
}
