// SPDX-License-Identifier: GPL-2.0

//! The statistics of a path: `/sys/class/ibtrs-server/<session>/paths/<client@server>/stats/`.
//!
//! Writing "0" or "1" to one of the files lets what it shows begin at zero again.
//!
//! Contexts: *sysfs*.

use super::show;
use crate::{
    path::Path,
    stats::Stats, //
};
use ibtrs_core::convert;
use ibtrs_proto::text;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::sysfs::{
    Attr,
    StoreCtx, //
};

/// The files.
pub(super) static FILES: [Attr<Arc<Path>>; 3] = [
    Attr::rw(
        c"reset_all",
        |_path: &Path, buf| buf.line(fmt!("echo 1 to reset all statistics")),
        |path, input| reset(path, input, Stats::reset),
    ),
    Attr::rw(
        c"rdma",
        |path: &Path, buf| show(buf, path.stats().rdma()),
        |path, input| reset(path, input, |stats| stats.flow.reset()),
    ),
    Attr::rw(
        c"wc_completion",
        |path: &Path, buf| show(buf, path.stats().batches.wc_completion().server()),
        |path, input| reset(path, input, |stats| stats.batches.reset()),
    ),
];

fn reset(path: StoreCtx<'_, Arc<Path>>, input: &[u8], what: fn(&Stats)) -> Result {
    text::reset(input).map_err(|error| convert::error(error.errno()))?;
    what(path.stats());
    Ok(())
}
