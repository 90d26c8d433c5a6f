// SPDX-License-Identifier: GPL-2.0

//! Metrics in the text format of Prometheus.

mod messages;
mod server;

use std::fmt::Write;

use crate::family::Side;
use crate::model::{Counters, Disk, Machine, Opened, Path, PathState, Session};
use crate::root::Root;
use crate::value::{Failover, Latency, Operation};

pub use messages::Totals;
pub use server::Server;

/// Reads all that metrics are made of.
pub fn read(root: &Root) -> Machine {
    let mut machine = Machine::read(root);
    machine.read_stats(root);
    machine.read_disk_stats(root);
    machine.read_messages(root);
    machine
}

/// All metrics of a machine whose statistics were read. `totals` adds up what channels carry.
pub fn text(machine: &Machine, server: &Server, totals: &mut Totals) -> String {
    totals.add(&machine.messages);
    let mut out = Out::default();
    of_the_tool(&mut out, machine);
    disks(&mut out, &machine.disks);
    durations_of_disks(&mut out, &machine.disks);
    sessions(&mut out, machine);
    failovers(&mut out, &machine.sessions);
    let paths: Vec<&Path> = machine.sessions.iter().flat_map(|s| &s.paths).collect();
    path_counts(&mut out, &paths);
    durations_of_paths(&mut out, &paths);
    opened(&mut out, &machine.opened);
    server::text(&mut out, machine, server);
    messages::text(&mut out, &machine.messages, totals);
    out.text
}

#[derive(Default)]
struct Out {
    text: String,
}

type Labels<'a> = Vec<(&'static str, &'a str)>;

impl Out {
    /// The head of a metric, and a line for each sample that has a value.
    fn metric<'a, T>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'a>, Option<T>)>,
    ) where
        T: std::fmt::Display,
    {
        let mut head = false;
        for (labels, value) in samples {
            let Some(value) = value else { continue };
            if !head {
                // Writing to a string does not fail.
                let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
                head = true;
            }
            self.sample(name, &labels, value);
        }
    }

    fn sample(&mut self, name: &str, labels: &Labels<'_>, value: impl std::fmt::Display) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(n, v)| format!("{n}=\"{}\"", escaped(v)))
            .collect();
        let labels = match labels.len() {
            0 => String::new(),
            _ => format!("{{{}}}", labels.join(",")),
        };
        let _ = writeln!(self.text, "{name}{labels} {value}");
    }
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

fn of_the_tool(out: &mut Out, machine: &Machine) {
    let version = vec![("version", env!("CARGO_PKG_VERSION"))];
    out.metric(
        "ibnbd_build_info",
        "gauge",
        "The version of the command that has read the metrics.",
        [(version, Some(1))],
    );
    out.metric(
        "ibnbd_unreadable_files",
        "gauge",
        "Files of sysfs whose values are missing here; ibnbd check names them.",
        [(Labels::new(), Some(machine.notes.len()))],
    );
}

fn of_disk(disk: &Disk) -> Labels<'_> {
    vec![("disk", &disk.name)]
}

fn disks(out: &mut Out, disks: &[Disk]) {
    let all = |value: fn(&Disk) -> Option<f64>| disks.iter().map(move |d| (of_disk(d), value(d)));
    let info = disks.iter().map(|d| {
        let mut labels = of_disk(d);
        labels.push(("session", d.session.as_deref().unwrap_or_default()));
        // It was called a device.
        for name in ["device", "export"] {
            labels.push((name, d.mapping_path.as_deref().unwrap_or_default()));
        }
        labels.push(("mode", d.access_mode.as_deref().unwrap_or_default()));
        (labels, Some(1))
    });
    out.metric("ibnbd_disk_info", "gauge", "What the disk is.", info);
    out.metric(
        "ibnbd_disk_open",
        "gauge",
        "Whether the disk can be used.",
        all(|d| d.state.as_ref().map(|_| f64::from(u8::from(d.is_open())))),
    );
    out.metric(
        "ibnbd_disk_size_bytes",
        "gauge",
        "Size of the disk.",
        all(|d| d.size_bytes.map(|n| n as f64)),
    );
    out.metric(
        "ibnbd_disk_cache_lost",
        "gauge",
        "Whether flushes fail as the server has lost its cache.",
        all(|d| d.cache_lost.map(|lost| f64::from(u8::from(lost)))),
    );
    let damaged = disks.iter().flat_map(|d| {
        let errors = d.checksum_errors;
        [
            ("to_server", errors.map(|e| e.to_server)),
            ("from_server", errors.map(|e| e.from_server)),
        ]
        .map(|(way, value)| (vec![("disk", d.name.as_str()), ("direction", way)], value))
    });
    out.metric(
        "ibnbd_disk_checksum_errors_total",
        "counter",
        "Requests that were damaged on the way, as checksums have shown.",
        damaged,
    );
    out.metric(
        "ibnbd_disk_requests_in_flight",
        "gauge",
        "Requests that have not ended.",
        all(|d| d.stat.map(|s| s.in_flight as f64)),
    );
    out.metric(
        "ibnbd_disk_requests_timed_out",
        "gauge",
        "Requests that have taken longer than io_timeout, and have not ended.",
        all(|d| d.timed_out.map(|n| n as f64)),
    );
    let both = |reads: fn(&Disk) -> Option<f64>, writes: fn(&Disk) -> Option<f64>| {
        disks.iter().flat_map(move |d| {
            [("read", reads(d)), ("write", writes(d))]
                .map(|(op, value)| (vec![("disk", d.name.as_str()), ("operation", op)], value))
        })
    };
    out.metric(
        "ibnbd_disk_requests_total",
        "counter",
        "Requests that ended.",
        both(
            |d| d.stat.map(|s| s.reads as f64),
            |d| d.stat.map(|s| s.writes as f64),
        ),
    );
    out.metric(
        "ibnbd_disk_bytes_total",
        "counter",
        "Bytes that were read and written.",
        both(
            |d| d.stat.map(|s| s.read_bytes as f64),
            |d| d.stat.map(|s| s.write_bytes as f64),
        ),
    );
    out.metric(
        "ibnbd_disk_request_seconds_total",
        "counter",
        "Time that all requests took together.",
        both(
            |d| d.stat.map(|s| seconds(s.read_ms)),
            |d| d.stat.map(|s| seconds(s.write_ms)),
        ),
    );
    out.metric(
        "ibnbd_disk_flushes_total",
        "counter",
        "Flushes that ended.",
        all(|d| d.stat.map(|s| s.flushes as f64)),
    );
}

fn sessions(out: &mut Out, machine: &Machine) {
    let all = |value: fn(&crate::model::Session) -> usize| {
        machine.sessions.iter().map(move |s| {
            (
                vec![("session", s.name.as_str()), ("side", s.side.as_str())],
                Some(value(s)),
            )
        })
    };
    out.metric(
        "ibtrs_session_paths",
        "gauge",
        "Paths of the session.",
        all(|s| s.paths.len()),
    );
    out.metric(
        "ibtrs_session_paths_connected",
        "gauge",
        "Paths that are connected.",
        all(|s| s.connected()),
    );
    stalls(out, machine);
    let planned = machine.sessions.iter().map(|s| {
        let left = s.server_back_in_s.filter(|_| s.is_planned_stop());
        (of_session(s), left)
    });
    out.metric(
        "ibtrs_session_server_back_in_seconds",
        "gauge",
        "Time until the server expects to be back after a planned stop, 0 if it is late; only while it is away.",
        planned,
    );
}

/// Requests that wait, and paths that they avoid.
fn stalls(out: &mut Out, machine: &Machine) {
    let clients = || machine.ours(Side::Client);
    out.metric(
        "ibtrs_session_paths_drained",
        "gauge",
        "Paths that requests take only if no other path does.",
        clients().map(|s| (of_session(s), Some(s.drained()))),
    );
    out.metric(
        "ibtrs_session_oldest_request_seconds",
        "gauge",
        "Time for which the oldest request has been without an answer, 0 without one.",
        clients().map(|s| (of_session(s), s.oldest_request_ms.map(seconds))),
    );
    out.metric(
        "ibtrs_session_outage_start_timestamp_seconds",
        "gauge",
        "When the last path of the session was lost; only while it has none.",
        clients().map(|s| {
            (
                of_session(s),
                s.outage.map(|outage| seconds(outage.since_ms)),
            )
        }),
    );
}

fn of_session(session: &Session) -> Labels<'_> {
    vec![("session", &session.name), ("side", session.side.as_str())]
}

fn failovers(out: &mut Out, sessions: &[Session]) {
    let last = |value: fn(&Failover) -> Option<u64>| {
        sessions.iter().map(move |s| {
            let value = s.last_failover.as_ref().and_then(value);
            (of_session(s), value.map(seconds))
        })
    };
    out.metric(
        "ibtrs_session_last_failover_timestamp_seconds",
        "gauge",
        "When the loss of a path was last noticed while another one was connected.",
        last(|failover| Some(failover.time_ms)),
    );
    out.metric(
        "ibtrs_session_last_failover_seconds",
        "gauge",
        "Time from the submission of the oldest moved request to the first answer over another path.",
        last(|failover| failover.total_ms),
    );
    let requests = sessions.iter().map(|s| {
        let last = s.last_failover.as_ref();
        (of_session(s), last.map(|failover| failover.requests))
    });
    out.metric(
        "ibtrs_session_last_failover_requests",
        "gauge",
        "Requests that were moved to other paths.",
        requests,
    );
    let name = "ibtrs_session_failover_duration_seconds";
    let known: Vec<_> = sessions
        .iter()
        .filter_map(|s| Some((of_session(s), s.failover_times.as_ref()?)))
        .collect();
    if known.is_empty() {
        return;
    }
    let help = "Failovers by the time until the first answer over another path.";
    let _ = writeln!(out.text, "# HELP {name} {help}\n# TYPE {name} histogram");
    for (labels, times) in known {
        let rows = times
            .rows
            .iter()
            .map(|row| (row.below_ms.map(seconds), row.count));
        buckets(out, name, &labels, rows);
    }
}

/// The samples of a histogram; `rows` have the limit in seconds, which the last one lacks.
fn buckets(
    out: &mut Out,
    name: &str,
    labels: &Labels<'_>,
    rows: impl Iterator<Item = (Option<f64>, u64)>,
) {
    let mut seen = 0u64;
    for (limit, count) in rows {
        seen = seen.saturating_add(count);
        let limit = limit.map_or_else(|| "+Inf".to_owned(), |limit| limit.to_string());
        let mut bucket = labels.clone();
        bucket.push(("le", &limit));
        out.sample(&format!("{name}_bucket"), &bucket, seen);
    }
    out.sample(&format!("{name}_count"), labels, seen);
}

fn of_path(path: &Path) -> Labels<'_> {
    vec![
        ("session", &path.session),
        ("path", &path.name),
        ("side", path.side.as_str()),
    ]
}

fn path_counts(out: &mut Out, paths: &[&Path]) {
    let all = |value: fn(&Path) -> Option<f64>| paths.iter().map(move |p| (of_path(p), value(p)));
    let both = |reads: fn(&Path) -> Option<u64>, writes: fn(&Path) -> Option<u64>| {
        paths.iter().flat_map(move |p| {
            [("read", reads(p)), ("write", writes(p))].map(|(op, value)| {
                let mut labels = of_path(p);
                labels.push(("operation", op));
                (labels, value)
            })
        })
    };
    out.metric(
        "ibtrs_path_connected",
        "gauge",
        "Whether the path carries requests.",
        all(|p| match p.state {
            PathState::Connected => Some(1.0),
            PathState::Disconnected => Some(0.0),
            PathState::Unknown => None,
        }),
    );
    out.metric(
        "ibtrs_path_heartbeat_seconds",
        "gauge",
        "Time in which the last heartbeat was answered.",
        all(|p| p.latency_ns.map(|ns| ns as f64 / 1e9)),
    );
    out.metric(
        "ibtrs_path_heartbeat_overdue_seconds",
        "gauge",
        "Time since a heartbeat that has had no answer for a whole interval, 0 without one.",
        all(|p| p.heartbeat_overdue_ms.map(seconds)),
    );
    out.metric(
        "ibtrs_path_requests_in_flight",
        "gauge",
        "Requests that have not ended.",
        all(|p| traffic(p).and_then(|t| t.in_flight).map(|n| n as f64)),
    );
    out.metric(
        "ibtrs_path_requests_total",
        "counter",
        "Requests that the path was given.",
        both(
            |p| traffic(p).map(|t| t.reads),
            |p| traffic(p).map(|t| t.writes),
        ),
    );
    out.metric(
        "ibtrs_path_bytes_total",
        "counter",
        "Bytes of the requests that the path was given.",
        both(
            |p| traffic(p).map(|t| t.read_bytes),
            |p| traffic(p).map(|t| t.write_bytes),
        ),
    );
    out.metric(
        "ibtrs_path_failovers_total",
        "counter",
        "Requests that left the path for another one.",
        all(|p| traffic(p).and_then(|t| t.failovers).map(|n| n as f64)),
    );
    let attempts = paths.iter().flat_map(|p| {
        let counts = p.stats.as_ref().and_then(|s| s.reconnects);
        [
            ("success", counts.map(|c| c.successful)),
            ("failure", counts.map(|c| c.failed)),
        ]
        .map(|(result, value)| {
            let mut labels = of_path(p);
            labels.push(("result", result));
            (labels, value)
        })
    });
    out.metric(
        "ibtrs_path_reconnects_total",
        "counter",
        "Attempts to connect the path again.",
        attempts,
    );
    for counter in Counters::declared() {
        let value = |path: &Path| path.stats.as_ref()?.counters.get(counter);
        out.metric(
            &format!("ibtrs_path_{}_total", counter.name()),
            "counter",
            &format!("{}.", counter.help),
            paths.iter().map(|path| (of_path(path), value(path))),
        );
    }
}

fn traffic(path: &Path) -> Option<crate::value::Traffic> {
    path.stats.as_ref()?.traffic
}

/// The driver counts what took less than a limit, so what took exactly as long is in the next
/// bucket; there is no sum, as it keeps none.
fn durations<'a>(
    out: &mut Out,
    name: &str,
    help: &str,
    known: impl Iterator<Item = (Labels<'a>, &'a Latency)>,
) {
    let mut known = known.peekable();
    if known.peek().is_none() {
        return;
    }
    let _ = writeln!(out.text, "# HELP {name} {help}\n# TYPE {name} histogram");
    for (labels, latency) in known {
        for operation in Operation::ALL {
            histogram(out, name, &labels, latency, operation);
        }
    }
}

fn durations_of_disks(out: &mut Out, disks: &[Disk]) {
    durations(
        out,
        "ibnbd_disk_request_duration_seconds",
        "Time from when the block layer was given a request to its end.",
        disks
            .iter()
            .filter_map(|disk| Some((of_disk(disk), disk.latency.as_ref()?))),
    );
}

fn durations_of_paths(out: &mut Out, paths: &[&Path]) {
    let clients = paths.iter().filter(|path| path.side == Side::Client);
    durations(
        out,
        "ibtrs_path_request_duration_seconds",
        "Time from when a request was handed to the path to its end.",
        clients.filter_map(|path| Some((of_path(path), path.stats.as_ref()?.latency.as_ref()?))),
    );
}

/// One operation of a disk or path; nothing if that is not counted.
fn histogram(
    out: &mut Out,
    name: &str,
    labels: &Labels<'_>,
    latency: &Latency,
    operation: Operation,
) {
    let mut labels = labels.clone();
    labels.push(("operation", operation.as_str()));
    let rows = latency.rows.iter();
    let counts = rows.map(|row| {
        let limit = row.below_us.map(|us| us as f64 / 1e6);
        row.of(operation).map(|count| (limit, count))
    });
    if let Some(rows) = counts.collect::<Option<Vec<_>>>() {
        buckets(out, name, &labels, rows.into_iter());
    }
}

fn opened(out: &mut Out, opened: &[Opened]) {
    let info = opened.iter().map(|o| {
        let mode = o.access_mode.as_deref().unwrap_or_default();
        (
            vec![
                ("device", o.device.as_str()),
                ("session", o.session.as_str()),
                ("mode", mode),
            ],
            Some(1),
        )
    });
    out.metric(
        "ibnbd_opened_info",
        "gauge",
        "A device that a client has open.",
        info,
    );
}
