// SPDX-License-Identifier: GPL-2.0

//! Changes between two samples.

use std::time::Instant;

use ibnbd_host::model::{Disk, Machine, Path};
use ibnbd_host::value::{human, DiskStat, Traffic};

use crate::context::Context;
use crate::out::{cell, time, Table};

/// A machine at a moment.
pub(super) struct Sample {
    machine: Machine,
    at: Instant,
}

impl Sample {
    pub(super) fn take(context: &Context) -> Self {
        let mut machine = context.machine();
        machine.read_stats(&context.root);
        machine.read_disk_stats(&context.root);
        Self {
            machine,
            at: Instant::now(),
        }
    }
}

/// The numbers of each disk and path in the time between.
pub(super) fn tables(before: &Sample, now: &Sample) -> (Table, Table) {
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
    let mut paths = Table::new([
        "session",
        "path",
        "side",
        "state",
        "read/s",
        "read",
        "write/s",
        "written",
        "in flight",
        "p50 us",
        "p99 us",
        "heartbeat",
    ]);
    let all = |machine: &Machine| -> Vec<Path> {
        machine
            .sessions
            .iter()
            .flat_map(|s| s.paths.clone())
            .collect()
    };
    let olds = all(&before.machine);
    for path in all(&now.machine) {
        let same = |old: &&Path| {
            (&old.session, &old.name, old.side, old.family)
                == (&path.session, &path.name, path.side, path.family)
        };
        paths.row(path_row(&path, olds.iter().find(same), seconds));
    }
    (disks, paths)
}

/// How much a counter grew; after a reset, all that it has.
fn grown(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        count as f64 / seconds
    } else {
        0.0
    }
}

fn each(count: u64, seconds: f64) -> String {
    format!("{:.0}", rate(count, seconds))
}

fn bytes(count: u64, seconds: f64) -> String {
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

fn path_row(path: &Path, old: Option<&Path>, seconds: f64) -> [String; 12] {
    let stats = path.stats.clone().unwrap_or_default();
    let before = old
        .and_then(|old| old.stats.clone())
        .unwrap_or_else(|| stats.clone());
    let (now, then) = (
        stats.traffic.unwrap_or_default(),
        before.traffic.unwrap_or_default(),
    );
    let since = |of: fn(&Traffic) -> u64| grown(of(&now), of(&then));
    let latency = stats
        .latency
        .as_ref()
        .zip(before.latency.as_ref())
        .map(|(now, then)| now.since(then));
    let percentile = |percent| crate::out::percentiles(latency.as_ref(), percent);
    [
        path.session.clone(),
        path.name.clone(),
        path.side.as_str().to_owned(),
        path.state.as_str().to_owned(),
        each(since(|t| t.reads), seconds),
        bytes(since(|t| t.read_bytes), seconds),
        each(since(|t| t.writes), seconds),
        bytes(since(|t| t.write_bytes), seconds),
        cell(&now.in_flight),
        percentile(50),
        percentile(99),
        time(path.latency_ns),
    ]
}
