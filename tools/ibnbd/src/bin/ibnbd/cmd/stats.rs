// SPDX-License-Identifier: GPL-2.0

//! `stats`.

use clap::Args;
use ibnbd_host::advice::Task;
use ibnbd_host::document::{Stats, FORMAT};
use ibnbd_host::find::{self, Found};
use ibnbd_host::model::{Counters, Disk, Machine, Path};
use ibnbd_host::value::human;
use ibnbd_host::Family;
use ibtrs_proto::stats::counter::Counter;

use super::Done;
use crate::act;
use crate::context::Context;
use crate::fail::{even_unread, Failure, USAGE};
use crate::out::{self, Table};

pub(crate) const EXAMPLES: &str = "\
Examples:
  ibnbd stats
  ibnbd stats ibnbd0 --reset                  and its percentiles start again
  ibnbd stats s --columns path,reads,writes";

#[derive(Args, Debug)]
pub(crate) struct StatsArgs {
    /// Only that disk, session or path
    pub(crate) name: Option<String>,
    /// Lets counts of paths, and percentiles of disks, begin at zero, once they were shown
    #[arg(long)]
    pub(crate) reset: bool,
}

pub(super) fn stats(context: &Context, words: &StatsArgs) -> Done {
    let mut machine = context.machine();
    machine.read_stats(&context.root);
    machine.read_disk_stats(&context.root);
    context.warn(&machine.notes);
    context.explain_nothing(&machine);
    let (disks, paths) = chosen(context, &machine, words.name.as_deref())?;
    let tables = vec![of_disks(&disks), of_paths(&paths)];
    let document = Stats {
        format: FORMAT,
        disks,
        paths,
        notes: machine.notes,
    };
    even_unread(out::emit(context, &document, tables))?;
    if words.reset {
        reset_disks(context, &document.disks)?;
        reset_paths(context, &document.paths)?;
    }
    Ok(0)
}

/// The selection: all, or the parts of one object.
fn chosen(
    context: &Context,
    machine: &Machine,
    name: Option<&str>,
) -> Result<(Vec<Disk>, Vec<Path>), Failure> {
    let Some(name) = name else {
        let paths = machine
            .sessions
            .iter()
            .flat_map(|s| s.paths.clone())
            .collect();
        return Ok((machine.disks.clone(), paths));
    };
    let found = find::anything(machine, &context.root, name);
    match found.map_err(|why| Failure::unclear("stats", name, &why))? {
        Found::Disk(disk) => Ok((vec![disk.clone()], Vec::new())),
        Found::Session(session) => Ok((Vec::new(), session.paths.clone())),
        Found::Path(path) => Ok((Vec::new(), vec![path.clone()])),
        Found::Opened(opened) => {
            let why = "a device that a client has open has no statistics of its own";
            Err(Failure::new(USAGE, format!("stats {}", opened.device), why)
                .todo("see those of the client's session"))
        }
    }
}

fn of_disks(disks: &[Disk]) -> Table {
    let mut table = Table::new([
        "disk",
        "reads",
        "read",
        "writes",
        "written",
        "flushes",
        "in flight",
        "timed out",
        "ms/read",
        "ms/write",
        "p50 us",
        "p99 us",
    ]);
    for disk in disks {
        let Some(stat) = disk.stat else { continue };
        table.row([
            disk.name.clone(),
            stat.reads.to_string(),
            human(stat.read_bytes),
            stat.writes.to_string(),
            human(stat.write_bytes),
            stat.flushes.to_string(),
            stat.in_flight.to_string(),
            out::cell(&disk.timed_out),
            average(stat.read_ms, stat.reads),
            average(stat.write_ms, stat.writes),
            out::percentiles(disk.latency.as_ref(), 50),
            out::percentiles(disk.latency.as_ref(), 99),
        ]);
    }
    table
}

fn average(all: u64, number: u64) -> String {
    match number {
        0 => String::new(),
        _ => format!("{:.3}", all as f64 / number as f64),
    }
}

fn of_paths(paths: &[Path]) -> Table {
    // Those that any of the paths has.
    let any = |counter: &&Counter| {
        let mut stats = paths.iter().filter_map(|path| path.stats.as_ref());
        stats.any(|stats| stats.counters.get(counter).is_some())
    };
    let counters: Vec<&Counter> = Counters::declared().filter(any).collect();
    let mut columns = vec![
        "session",
        "path",
        "side",
        "reads",
        "read",
        "writes",
        "written",
        "in flight",
        "failovers",
        "reconnects",
        "p50 us",
        "p99 us",
    ];
    columns.extend(counters.iter().map(|counter| counter.name()));
    let mut table = Table::new(columns);
    for path in paths {
        let Some(stats) = &path.stats else { continue };
        let traffic = stats.traffic.unwrap_or_default();
        let latency = |percent| out::percentiles(stats.latency.as_ref(), percent);
        let reconnects = stats
            .reconnects
            .map(|r| format!("{}+{}", r.successful, r.failed));
        let mut row = vec![
            path.session.clone(),
            path.name.clone(),
            path.side.as_str().to_owned(),
            traffic.reads.to_string(),
            human(traffic.read_bytes),
            traffic.writes.to_string(),
            human(traffic.write_bytes),
            out::cell(&traffic.in_flight),
            out::cell(&traffic.failovers),
            reconnects.unwrap_or_default(),
            latency(50),
            latency(99),
        ];
        row.extend(counters.iter().map(|counter| stats.counters.cell(counter)));
        table.row(row);
    }
    table
}

/// The block layer's counters cannot be reset, and stay.
fn reset_disks(context: &Context, disks: &[Disk]) -> Result<(), Failure> {
    for disk in disks.iter().filter(|d| d.family == Family::Ibnbd) {
        let what = format!("reset the histogram of {}", disk.name);
        let file = format!("{}/latency_us", disk.folder());
        act::write(context, Task::Other, &what, &file, "0")?;
    }
    Ok(())
}

fn reset_paths(context: &Context, paths: &[Path]) -> Result<(), Failure> {
    for path in paths.iter().filter(|p| p.family == Family::Ibnbd) {
        let what = format!("reset the statistics of {}", path.name);
        let file = format!("{}/stats/reset_all", path.folder());
        act::write(context, Task::Other, &what, &file, "1")?;
    }
    Ok(())
}
