// SPDX-License-Identifier: GPL-2.0

//! The statistics of a path: `/sys/class/ibtrs-client/<session>/paths/<src@dst>/stats/`.
//!
//! Writing "0" or "1" to a file resets its counters.
//!
//! Contexts: *sysfs*.

use super::show;
use crate::{
    data::stats::Stats,
    path::Path,
    types::Dir, //
};
use ibtrs_core::convert;
use ibtrs_proto::{
    stats::{
        counter::client_path,
        latency::Histogram,
        table::{
            CpuMigration,
            MigrationLine,
            MigrationRow,
            SgEntries, //
        }, //
    },
    text, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::sysfs::{
    Attr,
    StoreCtx, //
};

type Ctx<'a> = StoreCtx<'a, Arc<Path>>;

pub(super) static FILES: [Attr<Arc<Path>>; 10] = [
    Attr::rw(
        c"reset_all",
        |_path: &Path, buf| buf.line(fmt!("echo 1 to reset all statistics")),
        |path, input| reset(path, input, Stats::reset),
    ),
    Attr::rw(
        c"sg_entries",
        |path: &Path, buf| show(buf, SgEntries(&path.stats().sg_entries())),
        |path, input| reset(path, input, Stats::reset_sg_entries),
    ),
    Attr::rw(
        c"cpu_migration",
        |path: &Path, buf| show(buf, CpuMigration(&path.stats().migrations())),
        |path, input| reset(path, input, Stats::reset_migrations),
    ),
    Attr::rw(
        c"cpu_migration_from",
        |path: &Path, buf| {
            let migrations = path.stats().migrations();
            show(buf, MigrationLine(&migrations, MigrationRow::From))
        },
        |path, input| reset(path, input, Stats::reset_migrations),
    ),
    Attr::rw(
        c"cpu_migration_to",
        |path: &Path, buf| {
            let migrations = path.stats().migrations();
            show(buf, MigrationLine(&migrations, MigrationRow::To))
        },
        |path, input| reset(path, input, Stats::reset_migrations),
    ),
    Attr::rw(
        c"reconnects",
        |path: &Path, buf| show(buf, path.stats().reconnects()),
        |path, input| reset(path, input, Stats::reset_reconnects),
    ),
    Attr::rw(
        c"rdma_lat",
        |path: &Path, buf| show_latencies(path, |histogram| show(buf, histogram.in_ms())),
        |path, input| reset(path, input, Stats::reset_latencies),
    ),
    Attr::rw(
        c"rdma_lat_us",
        |path: &Path, buf| show_latencies(path, |histogram| show(buf, histogram.in_us())),
        |path, input| reset(path, input, Stats::reset_latencies),
    ),
    Attr::rw(
        c"wc_completion",
        |path: &Path, buf| show(buf, path.stats().batches.wc_completion().client()),
        |path, input| reset(path, input, |stats| stats.batches.reset()),
    ),
    Attr::rw(
        c"rdma",
        |path: &Path, buf| show(buf, path.stats().rdma()),
        |path, input| reset(path, input, Stats::reset_rdma),
    ),
];

macro_rules! counter_files {
    ($($name:ident = $file:literal, $unit:ident, $since:literal, $help:literal;)+) => {
        /// The files of the counters that are declared in [`client_path`].
        pub(super) static COUNTERS: [Attr<Arc<Path>>; client_path::ALL.len()] = [$(Attr::rw(
            $file,
            |path: &Path, buf| buf.line(fmt!("{}", path.stats().declared.sum(client_path::$name))),
            |path, input| {
                reset(path, input, |stats| {
                    stats.declared.reset_some(client_path::$name..client_path::$name + 1)
                })
            },
        ),)+];
    };
}

ibtrs_proto::client_path_counters!(counter_files);

fn reset(path: Ctx<'_>, input: &[u8], what: fn(&Stats)) -> Result {
    text::reset(input).map_err(|error| convert::error(error.errno()))?;
    what(path.stats());
    Ok(())
}

fn show_latencies(path: &Path, show: impl FnOnce(Histogram<'_>) -> Result) -> Result {
    let reads = path.stats().latencies(Dir::Read)?;
    let writes = path.stats().latencies(Dir::Write)?;
    show(Histogram {
        reads: &reads,
        writes: &writes,
    })
}
