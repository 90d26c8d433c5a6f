// SPDX-License-Identifier: GPL-2.0

//! Disks that are mapped on this machine.

use ibnbd_proto::identity::IdentityCheck;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::reader::Reader;
use super::session::Session;
use crate::family::Family;
use crate::outage::Outage;
use crate::root::Folder;
use crate::value::{self, ChecksumErrors, DiskStat, Latency};

/// A disk. What is none is not known: the file is missing, or cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// As in `/sys/block`.
    pub name: String,
    /// The modules whose client has the disk.
    pub family: Family,
    /// Its device file.
    pub device: String,
    /// The session that it uses.
    pub session: Option<String>,
    /// Its name on the server.
    pub mapping_path: Option<String>,
    /// The same, by the word of the documentation: the name of the export.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub export: Option<String>,
    /// `init`, `open`, `closed` or `unmapped`.
    pub state: Option<String>,
    /// `ro`, `rw` or `migration`.
    pub access_mode: Option<String>,
    /// Whether nobody else can open the server's device.
    pub exclusive: Option<bool>,
    /// Its size in bytes.
    pub size_bytes: Option<u64>,
    /// Queues for I/O that is not polled: connections of each path of its session.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub queues: Option<u64>,
    /// Queues for polled I/O.
    pub poll_queues: Option<u64>,
    /// Timeouts after which a request fails; 0 for no limit.
    pub io_timeout_limit: Option<u64>,
    /// Milliseconds after which a request times out.
    pub io_timeout_ms: Option<u64>,
    /// Requests that have taken longer than `io_timeout_ms`, and have not ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timed_out: Option<u64>,
    /// Whether the server has lost writes that were not flushed.
    pub cache_lost: Option<bool>,
    /// The checksum of its data: `none` or `crc32c`.
    pub data_checksum: Option<String>,
    /// Requests that were damaged on the way, as the checksum has shown.
    pub checksum_errors: Option<ChecksumErrors>,
    /// The name that it always has.
    pub wwid: Option<String>,
    /// What happens if it comes back without identity: `auto` or `none`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub identity: Option<String>,
    /// Paths of its session.
    pub paths: usize,
    /// Those of them that are connected.
    pub paths_connected: usize,
    /// Those of them that requests avoid.
    #[serde(skip_serializing_if = "is_none_drained", default)]
    pub paths_drained: usize,
    /// Seconds until its server expects to be back, if its session has no path because the server was
    /// stopped as planned; 0 if the server is late.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub server_back_in_s: Option<u64>,
    /// Since when its session has no path, and what its requests do.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub outage: Option<Outage>,
    /// The disk's counters, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stat: Option<DiskStat>,
    /// How long its requests took; where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub latency: Option<Latency>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_none_drained(count: &usize) -> bool {
    *count == 0
}

impl Disk {
    /// The folder with its own files.
    pub fn folder(&self) -> String {
        format!("/sys/block/{}/{}", self.name, self.family.disk())
    }

    /// Whether it can be used.
    pub fn is_open(&self) -> bool {
        self.state.as_deref() == Some("open")
    }

    /// Whether its `wwid` tells it from another disk of the same name: there are 16 digits at the
    /// end.
    pub fn has_identity(&self) -> bool {
        let last = self.wwid.as_deref().and_then(|id| id.rsplit('-').next());
        last.is_some_and(|id| id.len() == 16 && id.bytes().all(|b| b.is_ascii_hexdigit()))
    }

    /// Whether nothing distinguishes it from another disk of its name, as far as is known.
    pub fn lacks_identity(&self) -> bool {
        self.wwid.is_some() && !self.has_identity()
    }

    /// Whether its operator has accepted that it may come back as any disk of its name.
    pub fn accepts_any(&self) -> bool {
        self.identity.as_deref() == Some(IdentityCheck::None.as_str())
    }

    pub(super) fn count_paths(&mut self, session: &Session) {
        self.paths = session.paths.len();
        self.paths_connected = session.connected();
        self.paths_drained = session.drained();
        self.server_back_in_s = session
            .server_back_in_s
            .filter(|_| session.is_planned_stop());
        self.outage = session.outage;
    }

    pub(super) fn read_stat(&mut self, reader: &mut Reader<'_>) {
        self.stat = reader.get(&format!("/sys/block/{}/stat", self.name), value::disk_stat);
        let latency = format!("{}/latency_us", self.folder());
        self.latency = (self.family == Family::Ibnbd)
            .then(|| reader.get(&latency, value::latency))
            .flatten();
    }
}

/// All disks, with the fields that are wanted.
pub(super) fn some(reader: &mut Reader<'_>, wants: &dyn Fn(&str) -> bool) -> Vec<Disk> {
    let names = reader.list("/sys/block");
    let ours = names.iter().filter_map(|name| {
        let of = |family: &Family| {
            let number = name.strip_prefix(family.disk())?;
            let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
            digits.then_some(*family)
        };
        Some((name, Family::ALL.iter().find_map(of)?))
    });
    let ours: Vec<_> = ours.collect();
    ours.into_iter()
        .filter_map(|(name, family)| disk(reader, name, family, wants))
        .collect()
}

/// A disk, unless it goes just now, or has not got its files yet.
fn disk(
    reader: &mut Reader<'_>,
    name: &str,
    family: Family,
    wants: &dyn Fn(&str) -> bool,
) -> Option<Disk> {
    let block = reader.open_folder(&["/sys/block/", name].concat())?;
    let mut files = Files {
        reader,
        block,
        family,
        wants,
    };
    let state = files.own("state", value::word);
    if state.is_none() && !files.has_own() {
        return None;
    }
    let mapping_path = files.own("mapping_path", value::word);
    Some(Disk {
        state,
        session: files.own("session", value::word),
        export: mapping_path.clone(),
        mapping_path,
        access_mode: files.own("access_mode", value::word),
        wwid: files.own("wwid", value::word),
        identity: files.own("identity", value::word),
        data_checksum: files.own("data_checksum", value::word),
        checksum_errors: files.own("checksum_errors", value::checksum_errors),
        exclusive: files.own("exclusive", value::flag),
        size_bytes: files.get("size_bytes", "size", value::sectors),
        queues: files.own_named("queues", "nr_queues", value::number),
        poll_queues: files.own_named("poll_queues", "nr_poll_queues", value::number),
        io_timeout_limit: files.own("io_timeout_limit", value::number),
        io_timeout_ms: files.get("io_timeout_ms", "queue/io_timeout", value::number),
        timed_out: files.own("timed_out", value::number),
        cache_lost: files.own("cache_lost", value::flag),
        name: name.to_owned(),
        device: format!("/dev/{name}"),
        family,
        paths: 0,
        paths_connected: 0,
        paths_drained: 0,
        server_back_in_s: None,
        outage: None,
        stat: None,
        latency: None,
    })
}

/// The files of a disk, of which those are opened that hold a field that is wanted.
struct Files<'a, 'r> {
    reader: &'a mut Reader<'r>,
    block: Folder,
    family: Family,
    wants: &'a dyn Fn(&str) -> bool,
}

impl Files<'_, '_> {
    /// Whether the client's files are there.
    fn has_own(&self) -> bool {
        let own = self.block.file(self.family.disk());
        self.reader.root.exists(&own)
    }

    /// A field from the client's file of that name.
    fn own<T>(&mut self, field: &str, parse: fn(&str) -> Option<T>) -> Option<T> {
        self.own_named(field, field, parse)
    }

    fn own_named<T>(&mut self, field: &str, file: &str, parse: fn(&str) -> Option<T>) -> Option<T> {
        let file = [self.family.disk(), "/", file].concat();
        self.get(field, &file, parse)
    }

    fn get<T>(&mut self, field: &str, file: &str, parse: fn(&str) -> Option<T>) -> Option<T> {
        // Its paths are those of its session.
        let wanted = (self.wants)(field) || (field == "session" && (self.wants)("paths"));
        wanted
            .then(|| self.reader.get_in(&self.block, file, parse))
            .flatten()
    }
}
