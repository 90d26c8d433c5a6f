// SPDX-License-Identifier: GPL-2.0

//! Reads `[[port]]`.

use std::collections::BTreeSet;

use ibtrs_proto::addr::Addr;
use toml_edit::Table;

use super::fields::{Fields, Source};
use super::Port;
use crate::configfs::{self, address};

/// The contents of all files so far.
#[derive(Default)]
pub(super) struct Ports {
    names: BTreeSet<String>,
    /// Addresses and numbers of those that are enabled, with their names.
    places: Vec<(Addr, Option<u16>, String)>,
}

impl Ports {
    pub(super) fn port(&mut self, source: &mut Source<'_>, table: &Table) -> Option<Port> {
        let mut fields = Fields::of(table);
        let name = fields.text(source, "name");
        let address = fields.text(source, "address");
        let port = fields.number(source, "port", 1..=65535);
        let enable = fields.flag(source, "enable").unwrap_or(true);
        fields.end(source, "a port");
        for (key, what) in [
            ("name", "a port needs a name"),
            ("address", "a port needs an address"),
        ] {
            if !table.contains_key(key) {
                source.problem(table.span(), what);
            }
        }
        let (name, address) = (name?, address?);
        if let Err(why) = configfs::check_port_name(&name.value) {
            source.problem(name.span, format!("name: {why}"));
        } else if !self.names.insert(name.value.clone()) {
            let what = format!("there is a port {:?} already", name.value);
            source.problem(name.span, what);
        }
        let port = port.and_then(|port| u16::try_from(port.value).ok());
        // An interface may come later.
        match address::parse(&address.value) {
            Err(why) => source.problem(address.span, format!("address: {:?} {why}", address.value)),
            Ok(_) if !enable => {}
            Ok(found) => {
                let mut places = self.places.iter();
                if let Some((.., other)) = places.find(|(a, n, _)| (*a, *n) == (found, port)) {
                    let what = format!("address: port {other:?} has it already, with that number");
                    source.problem(address.span, what);
                }
                self.places.push((found, port, name.value.clone()));
            }
        }
        Some(Port {
            name: name.value,
            address: address.value,
            port,
            enable,
        })
    }
}
