// SPDX-License-Identifier: GPL-2.0

//! Changes between two samples.

use std::time::Instant;

use ibnbd_host::model::{Disk, Machine, Path, Session};
use ibnbd_host::value::{human, DiskStat, Latency, Traffic};

use super::channels;
use crate::context::Context;
use crate::out::{cell, time, Table};

/// A machine at a moment.
pub(super) struct Sample {
    machine: Machine,
    at: Instant,
}

impl Sample {
    pub(super) fn take(context: &Context) -> Self {
        let mut machine = context.machine_with_messages();
        machine.read_stats(&context.root);
        machine.read_disk_stats(&context.root);
        Self {
            machine,
            at: Instant::now(),
        }
    }

    /// The same path at this moment.
    fn path(&self, path: &Path) -> Option<&Path> {
        let mut paths = self.machine.sessions.iter().flat_map(|s| &s.paths);
        paths.find(|old| {
            (&old.session, &old.name, old.side, old.family)
                == (&path.session, &path.name, path.side, path.family)
        })
    }
}

/// Columns that sessions and paths have alike, see [`Growth::cells`].
const GROWTH: [&str; 7] = [
    "read/s",
    "read",
    "write/s",
    "written",
    "in flight",
    "p50 us",
    "p99 us",
];

/// The numbers of each disk, session, channel and path in the time between.
pub(super) fn tables(before: &Sample, now: &Sample) -> [Table; 4] {
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    let mut disks = Table::new([
        "disk",
        "state",
        "read/s",
        "read",
        "write/s",
        "written",
        "in flight",
        "ms/read",
        "ms/write",
        "p50 us",
        "p99 us",
    ]);
    for disk in &now.machine.disks {
        let old = before
            .machine
            .disks
            .iter()
            .find(|old| old.name == disk.name);
        disks.row(disk_row(disk, old, seconds));
    }
    let of_path = ["session", "path", "side", "state"];
    let mut paths = Table::new([&of_path[..], &GROWTH, &["heartbeat"]].concat());
    let of_session = ["session", "side", "state", "paths"];
    let mut sessions = Table::new([of_session.as_slice(), &GROWTH].concat());
    for session in &now.machine.sessions {
        let mut all = Growth::default();
        for path in &session.paths {
            let growth = Growth::of(path, before.path(path));
            paths.row(path_row(path, &growth, seconds));
            all.add(growth);
        }
        sessions.row(session_row(session, &all, seconds));
    }
    let (old, new) = (&before.machine.messages, &now.machine.messages);
    [disks, sessions, channels::table(old, new, seconds), paths]
}

/// The I/O of a path, or of a whole session, between two samples.
#[derive(Default)]
struct Growth {
    traffic: Traffic,
    latency: Option<Latency>,
}

impl Growth {
    fn of(path: &Path, old: Option<&Path>) -> Self {
        let stats = path.stats.clone().unwrap_or_default();
        let before = old
            .and_then(|old| old.stats.clone())
            .unwrap_or_else(|| stats.clone());
        let (now, then) = (
            stats.traffic.unwrap_or_default(),
            before.traffic.unwrap_or_default(),
        );
        let since = |of: fn(&Traffic) -> u64| grown(of(&now), of(&then));
        Self {
            traffic: Traffic {
                reads: since(|t| t.reads),
                read_bytes: since(|t| t.read_bytes),
                writes: since(|t| t.writes),
                write_bytes: since(|t| t.write_bytes),
                in_flight: now.in_flight,
                failovers: None,
            },
            latency: stats
                .latency
                .zip(before.latency)
                .map(|(now, then)| now.since(&then)),
        }
    }

    fn add(&mut self, path: Self) {
        let (all, more) = (&mut self.traffic, path.traffic);
        all.reads = all.reads.saturating_add(more.reads);
        all.read_bytes = all.read_bytes.saturating_add(more.read_bytes);
        all.writes = all.writes.saturating_add(more.writes);
        all.write_bytes = all.write_bytes.saturating_add(more.write_bytes);
        all.in_flight = match (all.in_flight, more.in_flight) {
            (Some(all), Some(more)) => Some(all.saturating_add(more)),
            (all, more) => all.or(more),
        };
        self.latency = match (self.latency.take(), path.latency) {
            (Some(all), Some(more)) => all.plus(&more).or(Some(all)),
            (all, more) => all.or(more),
        };
    }

    /// The cells of [`GROWTH`].
    fn cells(&self, seconds: f64) -> [String; 7] {
        let (traffic, latency) = (&self.traffic, self.latency.as_ref());
        [
            each(traffic.reads, seconds),
            bytes(traffic.read_bytes, seconds),
            each(traffic.writes, seconds),
            bytes(traffic.write_bytes, seconds),
            cell(&traffic.in_flight),
            crate::out::percentiles(latency, 50),
            crate::out::percentiles(latency, 99),
        ]
    }
}

/// How much a counter grew; after a reset, all that it has.
pub(super) fn grown(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        count as f64 / seconds
    } else {
        0.0
    }
}

pub(super) fn each(count: u64, seconds: f64) -> String {
    format!("{:.0}", rate(count, seconds))
}

pub(super) fn bytes(count: u64, seconds: f64) -> String {
    // Never negative, and cut where it is too much.
    format!("{}/s", human(rate(count, seconds) as u64))
}

fn disk_row(disk: &Disk, old: Option<&Disk>, seconds: f64) -> [String; 11] {
    let now = disk.stat.unwrap_or_default();
    let latency = disk
        .latency
        .as_ref()
        .zip(old.and_then(|old| old.latency.as_ref()))
        .map(|(now, then)| now.since(then));
    let percentile = |percent| crate::out::percentiles(latency.as_ref(), percent);
    let old = old.and_then(|old| old.stat).unwrap_or(now);
    let since = |of: fn(&DiskStat) -> u64| grown(of(&now), of(&old));
    let average = |ms: u64, count: u64| {
        if count == 0 {
            String::new()
        } else {
            format!("{:.3}", ms as f64 / count as f64)
        }
    };
    let (reads, writes) = (since(|s| s.reads), since(|s| s.writes));
    [
        disk.name.clone(),
        cell(&disk.state),
        each(reads, seconds),
        bytes(since(|s| s.read_bytes), seconds),
        each(writes, seconds),
        bytes(since(|s| s.write_bytes), seconds),
        now.in_flight.to_string(),
        average(since(|s| s.read_ms), reads),
        average(since(|s| s.write_ms), writes),
        percentile(50),
        percentile(99),
    ]
}

fn session_row(session: &Session, all: &Growth, seconds: f64) -> Vec<String> {
    let own = [
        session.name.clone(),
        session.side.as_str().to_owned(),
        session.state.as_str().to_owned(),
        format!("{}/{}", session.connected(), session.paths.len()),
    ];
    [own.as_slice(), &all.cells(seconds)].concat()
}

fn path_row(path: &Path, growth: &Growth, seconds: f64) -> Vec<String> {
    let own = [
        path.session.clone(),
        path.name.clone(),
        path.side.as_str().to_owned(),
        path.state.as_str().to_owned(),
    ];
    let heartbeat = [time(path.latency_ns)];
    [own.as_slice(), &growth.cells(seconds), &heartbeat].concat()
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use ibnbd_host::model::Messages;
    use serde_json::{json, Value};

    use super::*;

    /// A path; the histogram has two rows, of reads and writes.
    fn path(number: u64, reads: u64, rows: [[u64; 2]; 2], longest: [u64; 2]) -> Value {
        json!({
            "session": "s",
            "name": format!("ip:10.0.{number}.2@ip:10.0.{number}.1"),
            "family": "ibnbd",
            "side": "client",
            "state": "connected",
            "stats": {
                "traffic": {
                    "reads": reads,
                    "read_bytes": reads * 4096,
                    "writes": reads / 2,
                    "write_bytes": reads * 1024,
                    "in_flight": 3,
                },
                "latency": {
                    "rows": [
                        { "below_us": 8, "reads": rows[0][0], "writes": rows[0][1] },
                        { "reads": rows[1][0], "writes": rows[1][1] },
                    ],
                    "longest_read_us": longest[0],
                    "longest_write_us": longest[1],
                },
            },
        })
    }

    fn sample(at: Instant, paths: &[Value], messages: Messages) -> Sample {
        let session = json!({
            "name": "s",
            "family": "ibnbd",
            "side": "client",
            "state": "connected",
            "settings": {},
            "paths": paths,
        });
        let machine = Machine {
            sessions: vec![serde_json::from_value(session).unwrap()],
            messages,
            ..Machine::default()
        };
        Sample { machine, at }
    }

    /// Two samples that are two seconds apart: a path was added in between.
    pub(in super::super) fn samples() -> (Sample, Sample) {
        let start = Instant::now();
        let before = [
            path(1, 100, [[5, 0], [0, 0]], [7, 0]),
            path(2, 900, [[9, 0], [0, 0]], [7, 0]),
        ];
        let now = [
            path(1, 300, [[6, 0], [0, 1]], [7, 90]),
            // Its counts were reset.
            path(2, 40, [[0, 0], [3, 0]], [500, 0]),
            path(3, 7, [[7, 0], [0, 0]], [7, 0]),
        ];
        let later = start + Duration::from_secs(2);
        let (old, new) = channels::tests::samples();
        (sample(start, &before, old), sample(later, &now, new))
    }

    #[test]
    fn sessions_are_the_sum_of_their_paths() {
        let (before, now) = samples();
        let [disks, sessions, _, paths] = tables(&before, &now);
        assert!(disks.is_empty());
        let rates = |row: &[String], from: usize| row[from..from + 7].join(" ");
        let paths: Vec<String> = paths.rows().iter().map(|row| rates(row, 4)).collect();
        assert_eq!(
            paths,
            [
                "100 400.0 KiB/s 50 100.0 KiB/s 3 8/90 8/90",
                "20 80.0 KiB/s 10 20.0 KiB/s 3 500/- 500/-",
                "0 0 B/s 0 0 B/s 3  ",
            ]
        );
        let row = &sessions.rows()[0];
        assert_eq!(row[..4], ["s", "client", "connected", "3/3"]);
        // Reads: one below 8 us, three of up to 500 us.
        assert_eq!(
            rates(row, 4),
            "120 480.0 KiB/s 60 120.0 KiB/s 9 500/90 500/90"
        );
    }
}
