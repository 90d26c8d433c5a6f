// SPDX-License-Identifier: GPL-2.0

//! The health of a machine in one line.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::configfs;
use crate::family::Side;
use crate::host;
use crate::model::{Machine, Path, Session, SessionState};
use crate::planned;
use crate::root::Root;

/// How things are, as monitoring systems call it.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "UPPERCASE")]
pub enum Level {
    /// All is well.
    Ok,
    /// Something is lost, and nothing fails.
    Warning,
    /// Something fails.
    Critical,
    /// Nothing is known: no module is loaded.
    Unknown,
}

impl Level {
    /// As it is printed.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
            Self::Unknown => "UNKNOWN",
        }
    }

    /// The exit status that stands for it.
    pub const fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Warning => 1,
            Self::Critical => 2,
            Self::Unknown => 3,
        }
    }
}

/// How a machine is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// The worst of all that is.
    pub level: Level,
    /// The faults; empty if there are none.
    pub problems: Vec<String>,
    /// Disks that are mapped, and those of them that are open.
    pub disks: usize,
    /// Disks that are open.
    pub disks_open: usize,
    /// Paths of a client's sessions.
    pub paths: usize,
    /// Those of them that are connected.
    pub paths_connected: usize,
    /// Sessions of clients that use this server.
    pub clients: usize,
    /// Paths of these sessions, while the server's module is loaded.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub client_paths: Option<usize>,
    /// Exports in configfs, if there are any.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exports: Option<usize>,
    /// Message portals of programs, while the module ibmsg is loaded.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub portals: Option<usize>,
    /// Channels of programs, while the module ibmsg is loaded.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub channels: Option<usize>,
}

/// What is said of a session without a path.
fn without_path(session: &Session, text: String) -> String {
    match session.outage {
        Some(outage) => format!("{text} since {}: I/O {}", outage.since(), outage.words()),
        None => text,
    }
}

/// What is said of requests that have had no answer for that time.
pub(crate) fn stalled(ms: u64) -> String {
    let since = clock::text(clock::now_ms().saturating_sub(ms));
    format!(
        "a request has waited for its answer for {} s, since {since}",
        ms / 1000
    )
}

/// What is said of a path over which nothing has come for that time, though a heartbeat asked for it.
pub(crate) fn silent(path: &Path, ms: u64) -> String {
    let since = clock::text(clock::now_ms().saturating_sub(ms));
    format!(
        "path {}: heartbeats overdue for {} s, since {since}",
        path.name,
        ms / 1000
    )
}

impl Health {
    /// Of a machine that was read.
    pub fn of(root: &Root, machine: &Machine) -> Self {
        let ours = || machine.ours(Side::Client);
        let (messages, loaded) = (&machine.messages, machine.messages.is_loaded);
        let disks = || machine.our_disks();
        let mut health = Self {
            level: Level::Ok,
            problems: Vec::new(),
            disks: disks().count(),
            disks_open: disks().filter(|d| d.is_open()).count(),
            paths: ours().map(|s| s.paths.len()).sum(),
            paths_connected: ours().map(|s| s.connected()).sum(),
            clients: machine.ours(Side::Server).count(),
            client_paths: host::has(root, Side::Server)
                .then(|| machine.ours(Side::Server).map(|s| s.paths.len()).sum()),
            exports: Some(configfs::count_exports(root)).filter(|count| *count > 0),
            portals: loaded.then(|| messages.found.portals().count()),
            channels: loaded.then(|| messages.found.channels().count()),
        };
        if !loaded && !Side::ALL.iter().any(|side| host::has(root, *side)) {
            health.add(
                Level::Unknown,
                "neither ibnbd_client nor ibnbd_server is loaded".to_owned(),
            );
        }
        for disk in disks() {
            // What its session says below is the cause.
            if !disk.is_open() && disk.server_back_in_s.is_none() && disk.outage.is_none() {
                let state = disk.state.as_deref().unwrap_or("of unknown state");
                health.add(Level::Critical, format!("{} is {state}", disk.name));
            }
            if disk.cache_lost == Some(true) {
                health.add(
                    Level::Critical,
                    format!("{}: flushes fail, the server has lost its cache", disk.name),
                );
            }
        }
        for disk in disks().filter(|disk| disk.lacks_identity() && !disk.accepts_any()) {
            health.add(Level::Warning, format!("{} has no identity", disk.name));
        }
        for (disk, timed_out) in disks().filter_map(|d| Some((d, d.timed_out.filter(|n| *n > 0)?)))
        {
            let requests = match timed_out {
                1 => "1 request takes".to_owned(),
                many => format!("{many} requests take"),
            };
            let limit = match disk.io_timeout_ms {
                Some(limit) => format!("{limit} ms"),
                None => "io_timeout".to_owned(),
            };
            let text = format!("{}: {requests} longer than {limit}", disk.name);
            health.add(Level::Warning, text);
        }
        if host::is_drained(root) {
            health.add(Level::Warning, "the server is drained".to_owned());
        }
        for session in ours() {
            let (has, all) = (session.connected(), session.paths.len());
            let text = format!("session {}: {has} of {all} paths connected", session.name);
            match session.state {
                SessionState::Connected => {}
                SessionState::Degraded => health.add(Level::Warning, text),
                SessionState::Disconnected => match session.server_back_in_s {
                    Some(left) => {
                        let back = planned::back(left);
                        let text = format!("session {}: planned stop, server {back}", session.name);
                        health.add(Level::Warning, text);
                    }
                    None => health.add(Level::Critical, without_path(session, text)),
                },
            }
        }
        for session in ours() {
            if let Some(ms) = session.stalled_ms() {
                let text = format!("session {}: {}", session.name, stalled(ms));
                health.add(Level::Warning, text);
            }
            if let Some((path, ms)) = session.silent_path() {
                let text = format!("session {}: {}", session.name, silent(path, ms));
                health.add(Level::Warning, text);
            }
            let drained = session.drained();
            if drained > 0 {
                let text = format!(
                    "session {}: {drained} of {} paths drained",
                    session.name,
                    session.paths.len()
                );
                health.add(Level::Warning, text);
            }
        }
        for session in machine.sessions.iter().filter(|s| s.connected() > 0) {
            if let Some((why, channels)) = session.blocked_channels() {
                let text = format!("session {}: {channels} channels wait: {why}", session.name);
                health.add(Level::Warning, text);
            }
        }
        health
    }

    fn add(&mut self, level: Level, problem: String) {
        self.level = self.level.max(level);
        self.problems.push(problem);
    }

    /// The disks and paths of a client, and the clients of a server.
    fn counts(&self) -> String {
        let mut counts = format!(
            "{} of {} disks open, {} of {} paths connected, {} clients",
            self.disks_open, self.disks, self.paths_connected, self.paths, self.clients
        );
        if let Some(paths) = self.client_paths.filter(|_| self.clients > 0) {
            counts += &format!(" over {paths} paths");
        }
        if let Some(exports) = self.exports {
            counts += &format!(", {exports} exports");
        }
        counts
    }

    /// One line.
    pub fn line(&self) -> String {
        let mut counts = self.counts();
        if let Some((portals, channels)) = self.portals.zip(self.channels) {
            counts += &format!(", {portals} portals, {channels} channels");
        }
        match self.problems.as_slice() {
            [] => format!("{}: {counts}", self.level.as_str()),
            problems => format!(
                "{}: {} ({counts})",
                self.level.as_str(),
                problems.join("; ")
            ),
        }
    }
}
