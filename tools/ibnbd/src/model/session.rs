// SPDX-License-Identifier: GPL-2.0

//! Sessions and their paths.

use ibtrs_proto::addr::{Addr, PathAddr};
use ibtrs_proto::settings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::counters::Counters;
use super::reader::Reader;
use crate::family::{Family, Side};
use crate::outage::Outage;
use crate::value::{self, Failover, Latency, Times, Traffic};

/// How many of its paths a session has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SessionState {
    /// All.
    Connected,
    /// Some.
    Degraded,
    /// None.
    Disconnected,
}

impl SessionState {
    /// As in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Degraded => "degraded",
            Self::Disconnected => "disconnected",
        }
    }
}

/// Whether a path carries requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PathState {
    /// It does.
    Connected,
    /// It does not.
    Disconnected,
    /// The file is missing, or cannot be read.
    Unknown,
}

impl PathState {
    /// As in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Disconnected => "disconnected",
            Self::Unknown => "unknown",
        }
    }
}

/// One client's association with one server, at either end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// The name that the client has given.
    pub name: String,
    /// The modules that have it.
    pub family: Family,
    /// Which end this machine is.
    pub side: Side,
    /// How many of its paths it has.
    pub state: SessionState,
    /// The settings; clients only.
    pub settings: Settings,
    /// Seconds until the server expects to be back, if it was stopped as planned and has said so; 0 if
    /// it is late. Clients only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub server_back_in_s: Option<u64>,
    /// Since when it has no path, and what requests do; clients only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub outage: Option<Outage>,
    /// Milliseconds for which the oldest request has been without an answer; 0 without one. Clients only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub oldest_request_ms: Option<u64>,
    /// The last failover, if there was one; clients only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_failover: Option<Failover>,
    /// Failovers by the time they took; clients only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failover_times: Option<Times>,
    /// Whether it stays open without a disk, as `open_session` was asked for; clients only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kept_open: Option<bool>,
    /// Channels that programs have over it, while the module ibmsg is loaded.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub channels: Option<usize>,
    /// Why it carries no messages now, while the module ibmsg is loaded.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub messages_blocked_by: Option<String>,
    /// Its paths; a server's are all connected.
    pub paths: Vec<Path>,
}

/// Whether documents leave out a setting that a session does not have: never, they have null.
fn never(_value: &Option<i64>) -> bool {
    false
}

macro_rules! declare {
    ($(
        $(#[$more:meta])*
        $name:ident = $field:ident, $min:expr, $max:expr, $default:expr, $besides:ident, $without:literal, $help:literal;
    )+) => {
        /// The settings of a client's session.
        #[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct Settings {
            /// Which path a request takes: `min-inflight`, `round-robin` or `min-latency`.
            pub mp_policy: Option<String>,
            /// Attempts in a row to connect a lost path again; -1 for any number.
            pub max_reconnect_attempts: Option<i64>,
            $(
                #[doc = concat!($help, ".")]
                #[serde(skip_serializing_if = $without)]
                pub $field: Option<i64>,
            )+
            /// The id of the key that its paths use from their next connection on.
            #[serde(skip_serializing_if = "Option::is_none", default)]
            pub key_id: Option<String>,
        }

        impl Settings {
            /// Names and values of those that are known, as they are written to files.
            pub fn entries(&self) -> Vec<(&'static str, String)> {
                let number = |name, value: Option<i64>| value.map(|v| (name, v.to_string()));
                [
                    self.mp_policy.clone().map(|v| ("mp_policy", v)),
                    number("max_reconnect_attempts", self.max_reconnect_attempts),
                    $(number(settings::$name.name, self.$field),)+
                    self.key_id.clone().map(|v| ("key_id", v)),
                ]
                .into_iter()
                .flatten()
                .collect()
            }

            /// Those of the session with that folder.
            fn read(reader: &mut Reader<'_>, folder: &str) -> Self {
                let file = |name: &str| format!("{folder}/{name}");
                Self {
                    mp_policy: reader
                        .get(&file("mp_policy"), value::policy)
                        .or_else(|| reader.get(&file("mpath_policy"), value::policy)),
                    max_reconnect_attempts: reader.get(&file("max_reconnect_attempts"), value::number),
                    $($field: reader.get(&file(settings::$name.name), value::number),)+
                    key_id: reader.get_if_any(&file("key_id")),
                }
            }
        }
    };
}

ibtrs_proto::session_settings!(declare);

/// A pair of addresses over which a session runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Path {
    /// The session's name.
    pub session: String,
    /// The name of its folder: the addresses.
    pub name: String,
    /// The modules that have it.
    pub family: Family,
    /// Which end this machine is.
    pub side: Side,
    /// Whether it carries requests.
    pub state: PathState,
    /// The client's address.
    pub src: Option<String>,
    /// The server's address.
    pub dst: Option<String>,
    /// The RDMA device here.
    pub hca: Option<String>,
    /// The port of that.
    pub port: Option<u64>,
    /// The time in which the last heartbeat was answered, in nanoseconds; clients only.
    pub latency_ns: Option<u64>,
    /// Milliseconds since a heartbeat that has had no answer for a whole interval, 0 without one; clients only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub heartbeat_overdue_ms: Option<u64>,
    /// Why it was lost, or could not be connected, the last time.
    pub last_error: Option<String>,
    /// The id of the key that both ends have proved to have; none without authentication.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub key_id: Option<String>,
    /// The suite by which they have proved that: x25519 or hmac.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub suite: Option<String>,
    /// The number of the extensions of the protocol that both ends know, 0 for none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub extensions: Option<u64>,
    /// The number of its message connections; 0 if it carries no messages.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message_connections: Option<u64>,
    /// Whether requests take it only if no other path does; clients only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub drained: Option<bool>,
    /// Whether requests take it only while no path is connected that is neither on standby nor drained; clients only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub standby: Option<bool>,
    /// The path's counters, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stats: Option<PathStats>,
}

/// The counters of a path. That side or family does not have those that are none.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PathStats {
    /// Requests and bytes.
    pub traffic: Option<Traffic>,
    /// Attempts to connect it again.
    pub reconnects: Option<Reconnects>,
    /// Requests by the time they took.
    pub latency: Option<Latency>,
    /// Those that have files of their own.
    #[serde(skip_serializing_if = "Counters::is_empty", default)]
    pub counters: Counters,
}

/// Attempts to connect a path again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reconnects {
    /// Those that succeeded.
    pub successful: u64,
    /// Those that did not.
    pub failed: u64,
}

impl Session {
    /// The folder with its files.
    pub fn folder(&self) -> String {
        format!("{}/{}", self.family.sessions(self.side), self.name)
    }

    /// Whether it has no path because its server was stopped as planned, and is expected back.
    pub fn is_planned_stop(&self) -> bool {
        self.state == SessionState::Disconnected && self.server_back_in_s.is_some()
    }

    /// Why its channels wait, and their number, if there are any and they do.
    pub fn blocked_channels(&self) -> Option<(&str, usize)> {
        let channels = self.channels.filter(|count| *count > 0)?;
        Some((self.messages_blocked_by.as_deref()?, channels))
    }

    /// The path whose server has been silent for longest, and for how many milliseconds, if that is longer than a
    /// busy machine takes.
    pub fn silent_path(&self) -> Option<(&Path, u64)> {
        const LONG_MS: u64 = 2_000;
        let silent = |path: &'_ Path| path.heartbeat_overdue_ms.filter(|ms| *ms > LONG_MS);
        let silent = self
            .paths
            .iter()
            .filter_map(|path| Some((path, silent(path)?)));
        silent.max_by_key(|(_, ms)| *ms)
    }

    /// Milliseconds for which the oldest request has had no answer, if that is longer than any disk should take.
    pub fn stalled_ms(&self) -> Option<u64> {
        const LONG_MS: u64 = 5_000;
        self.oldest_request_ms.filter(|ms| *ms > LONG_MS)
    }

    /// Paths that requests avoid.
    pub fn drained(&self) -> usize {
        let drained = |path: &&Path| path.drained == Some(true);
        self.paths.iter().filter(drained).count()
    }

    /// Paths that are connected.
    pub fn connected(&self) -> usize {
        let connected = |path: &&Path| path.state == PathState::Connected;
        self.paths.iter().filter(connected).count()
    }
}

fn address(end: &Option<String>) -> Option<Addr> {
    Addr::parse(end.as_deref()?).ok()
}

impl Path {
    /// Whether it has these ends, however they are written. Without a source, any will do.
    pub fn is_at(&self, ends: &PathAddr) -> bool {
        let is = |end: &Option<String>, wanted| address(end) == Some(wanted);
        is(&self.dst, ends.dst) && ends.src.is_none_or(|src| is(&self.src, src))
    }

    /// Whether one of its ends is that address.
    pub fn has_end(&self, wanted: &Addr) -> bool {
        let mut ends = [&self.src, &self.dst].into_iter().filter_map(address);
        ends.any(|end| end == *wanted)
    }

    /// The folder with its files.
    pub fn folder(&self) -> String {
        format!(
            "{}/{}/paths/{}",
            self.family.sessions(self.side),
            self.session,
            self.name
        )
    }

    pub(super) fn read_stats(&mut self, reader: &mut Reader<'_>) {
        let file = |name: &str| format!("{}/stats/{name}", self.folder());
        let client = self.side == Side::Client;
        let ours = self.family == Family::Ibnbd;
        self.stats = Some(PathStats {
            traffic: reader.get(&file("rdma"), value::traffic),
            reconnects: client
                .then(|| reader.get(&file("reconnects"), value::pair))
                .flatten()
                .map(|(successful, failed)| Reconnects { successful, failed }),
            latency: (client && ours)
                .then(|| reader.get(&file("rdma_lat_us"), value::latency))
                .flatten(),
            counters: Counters::read(reader, self.family, self.side, file),
        });
    }
}

pub(super) fn all(reader: &mut Reader<'_>, family: Family, side: Side) -> Vec<Session> {
    let class = family.sessions(side);
    let names = reader.list(class);
    let found = names.into_iter().filter(|name| name != "ctl");
    let mut all: Vec<Session> = found
        .filter_map(|name| session(reader, family, side, name))
        .collect();
    if side == Side::Client && family == Family::Ibnbd && !all.is_empty() {
        let kept = kept(reader);
        for session in &mut all {
            session.kept_open = kept.as_ref().map(|names| names.contains(&session.name));
        }
    }
    all
}

/// A session, unless it goes just now.
fn session(reader: &mut Reader<'_>, family: Family, side: Side, name: String) -> Option<Session> {
    let folder = format!("{}/{name}", family.sessions(side));
    let names = reader.list(&format!("{folder}/paths"));
    if names.is_empty() && !reader.root.exists(&folder) {
        return None;
    }
    let paths: Vec<Path> = names
        .into_iter()
        .filter_map(|path| self::path(reader, family, side, &name, path))
        .collect();
    let settings = match side {
        Side::Client => Settings::read(reader, &folder),
        Side::Server => Settings::default(),
    };
    let mut session = Session {
        name,
        family,
        side,
        state: SessionState::Connected,
        settings,
        server_back_in_s: None,
        outage: None,
        oldest_request_ms: None,
        last_failover: None,
        failover_times: None,
        kept_open: None,
        channels: None,
        messages_blocked_by: None,
        paths,
    };
    if side == Side::Client && family == Family::Ibnbd {
        let file = |name: &str| format!("{folder}/{name}");
        session.server_back_in_s = back_in_s(reader, &folder);
        // With a path it is empty.
        session.outage = (session.connected() == 0)
            .then(|| outage(reader, &folder))
            .flatten();
        session.oldest_request_ms = reader.get(&file("oldest_request_ms"), value::number);
        session.last_failover = reader
            .get(&file("last_failover"), value::failover)
            .flatten();
        session.failover_times = reader.get(&file("failover_times_ms"), value::times);
    }
    session.state = match session.connected() {
        0 => SessionState::Disconnected,
        n if n < session.paths.len() => SessionState::Degraded,
        _ => SessionState::Connected,
    };
    Some(session)
}

/// The sessions of our client that stay open without a disk.
fn kept(reader: &Reader<'_>) -> Option<Vec<String>> {
    let file = format!("{}/opened_sessions", Family::Ibnbd.control(Side::Client));
    // With more names than fit a page it cannot be read, and nothing depends on it.
    let text = reader.root.read(&file).ok()?;
    Some(text.lines().map(str::to_owned).collect())
}

/// Seconds until the server of the session in `folder` expects to be back, if it has said so.
fn back_in_s(reader: &mut Reader<'_>, folder: &str) -> Option<u64> {
    let file = format!("{folder}/server_back_in_s");
    reader.get(&file, value::optional).flatten()
}

/// Since when the session in `folder` has no path.
fn outage(reader: &mut Reader<'_>, folder: &str) -> Option<Outage> {
    let file = format!("{folder}/outage");
    reader.get(&file, Outage::parse).flatten()
}

/// What a list shows of a session of a client.
#[derive(Clone, Copy)]
pub(super) struct Brief {
    pub(super) paths: usize,
    pub(super) connected: usize,
    pub(super) drained: usize,
    pub(super) server_back_in_s: Option<u64>,
    pub(super) outage: Option<Outage>,
}

/// Counts the paths of a session of a client, and those of them that are connected or drained; few files are
/// read of each. Without any, it may be that the server was stopped as planned.
pub(super) fn brief(reader: &mut Reader<'_>, family: Family, session: &str) -> Brief {
    let own = format!("{}/{session}", family.sessions(Side::Client));
    let folder = format!("{own}/paths");
    let mut counts = (0, 0, 0);
    for path in reader.list(&folder) {
        let state = reader.get(&format!("{folder}/{path}/state"), value::word);
        // One that goes just now has none.
        if state.is_some() || reader.root.exists(&format!("{folder}/{path}")) {
            counts.0 += 1;
            counts.1 += usize::from(state.as_deref() == Some("connected"));
            let drain = (family == Family::Ibnbd)
                .then(|| reader.get_if_any(&format!("{folder}/{path}/drain")))
                .flatten();
            counts.2 += usize::from(drain.as_deref() == Some("1"));
        }
    }
    let (paths, connected, drained) = counts;
    let may_be_stopped = connected == 0 && family == Family::Ibnbd;
    Brief {
        paths,
        connected,
        drained,
        server_back_in_s: may_be_stopped.then(|| back_in_s(reader, &own)).flatten(),
        outage: may_be_stopped.then(|| outage(reader, &own)).flatten(),
    }
}

/// A path, unless it goes just now.
fn path(
    reader: &mut Reader<'_>,
    family: Family,
    side: Side,
    session: &str,
    name: String,
) -> Option<Path> {
    let folder = format!("{}/{session}/paths/{name}", family.sessions(side));
    let file = |name: &str| format!("{folder}/{name}");
    let src = reader.get_if_any(&file("src_addr"));
    let dst = reader.get_if_any(&file("dst_addr"));
    if dst.is_none() && !reader.root.exists(&folder) {
        return None;
    }
    let client = side == Side::Client;
    let state = match client.then(|| reader.get(&file("state"), value::word)) {
        // A server shows connected ones only.
        None => PathState::Connected,
        Some(Some(state)) if state == "connected" => PathState::Connected,
        Some(Some(_)) => PathState::Disconnected,
        Some(None) => PathState::Unknown,
    };
    let latency = client.then(|| reader.get(&file("cur_latency"), value::nanoseconds));
    let flag = |reader: &mut Reader<'_>, name: &str| {
        (client && family == Family::Ibnbd)
            .then(|| reader.get_if_any(&file(name)))
            .flatten()
            .map(|text| text == "1")
    };
    Some(Path {
        session: session.to_owned(),
        family,
        side,
        state,
        src,
        dst,
        hca: reader.get_if_any(&file("hca_name")),
        port: reader.get(&file("hca_port"), value::number),
        latency_ns: latency.flatten().flatten(),
        heartbeat_overdue_ms: reader.get_if(
            client && family == Family::Ibnbd,
            &file("heartbeat_overdue_ms"),
            value::number,
        ),
        last_error: client
            .then(|| reader.get_if_any(&file("last_error")))
            .flatten(),
        key_id: (family == Family::Ibnbd)
            .then(|| reader.get_if_any(&file("key_id")))
            .flatten(),
        suite: (family == Family::Ibnbd)
            .then(|| reader.get_if_any(&file("suite")))
            .flatten(),
        extensions: (family == Family::Ibnbd)
            .then(|| reader.get(&file("extensions"), value::optional))
            .flatten()
            .flatten(),
        message_connections: (family == Family::Ibnbd)
            .then(|| reader.get_if_any(&file("message_connections")))
            .flatten()
            .and_then(|text| value::number(&text)),
        drained: flag(reader, "drain"),
        standby: flag(reader, "standby"),
        name,
        stats: None,
    })
}
