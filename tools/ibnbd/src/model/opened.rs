// SPDX-License-Identifier: GPL-2.0

//! Devices that clients have open.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::reader::Reader;
use crate::family::{Family, Side};
use crate::value;

/// A device that a session has open.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Opened {
    /// The device's name, as in `/sys/class/block`.
    pub device: String,
    /// The modules whose server has opened it.
    pub family: Family,
    /// The client's session.
    pub session: String,
    /// The name of the folder for both; other than the session while an opening before this is
    /// still being closed.
    pub entry: String,
    /// The name by which the client has opened it.
    pub mapping_path: Option<String>,
    /// The same, by the word of the documentation: the name of the export.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub export: Option<String>,
    /// `ro`, `rw` or `migration`.
    pub access_mode: Option<String>,
    /// Whether it is open for reading only.
    pub read_only: Option<bool>,
    /// The device's size in bytes.
    pub size_bytes: Option<u64>,
}

impl Opened {
    /// The folder with its files.
    pub fn folder(&self) -> String {
        let control = self.family.control(Side::Server);
        format!("{control}/devices/{}/sessions/{}", self.device, self.entry)
    }
}

/// All of a family, with the fields that are wanted.
pub(super) fn some(
    reader: &mut Reader<'_>,
    family: Family,
    wants: &dyn Fn(&str) -> bool,
) -> Vec<Opened> {
    let devices = format!("{}/devices", family.control(Side::Server));
    let mut found = Vec::new();
    for device in reader.list(&devices) {
        let sessions = format!("{devices}/{device}/sessions");
        let entries = reader.list(&sessions);
        if entries.is_empty() {
            continue;
        }
        let size = format!("/sys/class/block/{device}/size");
        let size_bytes = reader.get_if(wants("size_bytes"), &size, value::sectors);
        for entry in entries {
            found.extend(opened(
                reader,
                family,
                &device,
                size_bytes,
                &format!("{sessions}/{entry}"),
                &entry,
                wants,
            ));
        }
    }
    found
}

/// One of them, unless it goes just now.
fn opened(
    reader: &mut Reader<'_>,
    family: Family,
    device: &str,
    size_bytes: Option<u64>,
    folder: &str,
    entry: &str,
    wants: &dyn Fn(&str) -> bool,
) -> Option<Opened> {
    let file = |name: &str| format!("{folder}/{name}");
    let mapping_path = reader.get_if(wants("mapping_path"), &file("mapping_path"), value::word);
    if mapping_path.is_none() && !reader.root.exists(folder) {
        return None;
    }
    // A session's name has no dot.
    let session = entry.split('.').next().unwrap_or(entry);
    Some(Opened {
        device: device.to_owned(),
        family,
        session: session.to_owned(),
        entry: entry.to_owned(),
        export: mapping_path.clone(),
        mapping_path,
        access_mode: reader.get_if(wants("access_mode"), &file("access_mode"), value::word),
        read_only: reader.get_if(wants("read_only"), &file("read_only"), value::flag),
        size_bytes,
    })
}
