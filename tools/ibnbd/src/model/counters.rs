// SPDX-License-Identifier: GPL-2.0

//! Counters that have a file of their own. The driver declares them, and all of them are here.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ibtrs_proto::stats::counter::{client_path, server_path, Counter, Unit};
use schemars::{json_schema, JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{json, Map, Value};

use super::reader::Reader;
use crate::family::{Family, Side};
use crate::value;

/// The counters of a path that have files of their own, by the names of these.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// The counters that paths of a family have at that end of them.
    const fn of(family: Family, side: Side) -> &'static [Counter] {
        match (family, side) {
            (Family::Ibnbd, Side::Client) => client_path::ALL,
            (Family::Ibnbd, Side::Server) => server_path::ALL,
            (Family::Rnbd, _) => &[],
        }
    }

    /// All that there are. A name that both ends have means the same at both.
    pub fn declared() -> impl Iterator<Item = &'static Counter> {
        let is_new = |counter: &&Counter| client_path::ALL.iter().all(|c| c.file != counter.file);
        let of_server = server_path::ALL.iter().filter(is_new);
        client_path::ALL.iter().chain(of_server)
    }

    /// The value of one; none if the driver that runs does not have it.
    pub fn get(&self, counter: &Counter) -> Option<u64> {
        self.0.get(counter.name()).copied()
    }

    /// The value of one as tables show it.
    pub fn cell(&self, counter: &Counter) -> String {
        match (self.get(counter), counter.unit) {
            (Some(value), Unit::Bytes) => value::human(value),
            (Some(value), Unit::Count) => value.to_string(),
            (None, _) => String::new(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn read(
        reader: &mut Reader<'_>,
        family: Family,
        side: Side,
        file: impl Fn(&str) -> String,
    ) -> Self {
        let mut found = BTreeMap::new();
        for counter in Self::of(family, side) {
            if let Some(value) = reader.get(&file(counter.name()), value::number) {
                found.insert(counter.name().to_owned(), value);
            }
        }
        Self(found)
    }
}

impl JsonSchema for Counters {
    fn schema_name() -> Cow<'static, str> {
        "Counters".into()
    }

    fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
        let field = |counter: &Counter| {
            let schema = json!({
                "description": format!("{}.", counter.help),
                "type": "integer",
                "format": "uint64",
                "minimum": 0,
            });
            (counter.name().to_owned(), schema)
        };
        let fields: Map<String, Value> = Self::declared().map(field).collect();
        json_schema!({
            "description": "Counters of a path that have files of their own, by the names of these.",
            "type": "object",
            "properties": fields,
        })
    }
}
