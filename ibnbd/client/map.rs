// SPDX-License-Identifier: GPL-2.0

//! Maps a disk from the line that a user wrote.

use crate::{
    device::Opened,
    mapping::Mapping,
    registry::{
        NoSession,
        Registry, //
    }, //
};
use ibnbd_proto::map_opts::MapOptions;
use ibtrs_core::convert;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// What could not be done, and why.
struct Failure(&'static str, Error);

/// Turns an error into a failure to do `what`.
fn at(what: &'static str) -> impl FnOnce(Error) -> Failure {
    move |error| Failure(what, error)
}

/// Maps a device. What goes wrong is said in one line of the log, and leaves
/// nothing behind.
///
/// # Context
///
/// May sleep; interruptible while it connects or waits for the server.
///
/// # Errors
///
/// - `EINVAL`, `ENAMETOOLONG`: the line makes no sense, or asks for poll queues where
///   there can be none.
/// - `EEXIST`: the device is mapped on this session; another network namespace has
///   a session of that name.
/// - `ENXIO`: the session does not exist, and no path is given.
/// - Those of connecting; the server's.
pub(crate) fn map(registry: &Arc<Registry>, line: &[u8]) -> Result {
    let opts = MapOptions::parse(line).map_err(|error| {
        kx::pr_err_ratelimited!("map_device: {}\n", convert::Shown(error));
        convert::error(error.errno())
    })?;
    try_map(registry, &opts).map_err(|Failure(what, error)| {
        kx::pr_err_ratelimited!(
            "map_device: {} of session {}: {}: {} ({})\n",
            opts.device_path.as_str(),
            opts.session.as_str(),
            what,
            convert::errno(error).as_str(),
            error.to_errno()
        );
        error
    })
}

fn try_map(registry: &Arc<Registry>, opts: &MapOptions<'_>) -> Result<(), Failure> {
    let nr_poll_queues = opts
        .poll_queues(kernel::cpu::nr_cpu_ids())
        .and_then(|nr| u16::try_from(nr).ok())
        .ok_or(Failure("there are not as many CPUs as poll queues", EINVAL))?;
    let place = registry.place(opts).map_err(|error| match error {
        EEXIST => Failure("the device is mapped", error),
        _ => Failure("no place for a disk", error),
    })?;
    let session = registry.session(opts, nr_poll_queues);
    let session = session.map_err(|reason| match reason {
        NoSession::NoPath => Failure("the session does not exist, and no path is given", ENXIO),
        NoSession::Foreign => Failure(
            "another network namespace has a session of that name",
            EEXIST,
        ),
        NoSession::Polled => Failure("a disk with poll queues has a session of its own", EINVAL),
        NoSession::Failed(error) => Failure("the session cannot be opened", error),
    })?;
    let opened = Opened::open(session, place, opts.device_path, opts.access)
        .map_err(at("the server does not open the device"))?;
    Mapping::create(registry, opened).map_err(at("the disk cannot be made"))
}
