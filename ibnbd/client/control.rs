// SPDX-License-Identifier: GPL-2.0

//! The files of the class: `/sys/class/ibnbd-client/ctl/`.
//!
//! Contexts: *sysfs*.

use crate::{
    background,
    device::{
        Opened,
        WantedDevice, //
    },
    discovery,
    mapping::{
        Mapping,
        NewDisk, //
    },
    registry::{
        NoSession,
        Registry,
        User,
        Wanted, //
    },
    session::Queues, //
};
use ibnbd_proto::map_opts::{
    MapOptions,
    OpenOptions,
    SessionOptions, //
};
use ibtrs_core::convert;
use ibtrs_proto::{
    auth::KeyId,
    consts::{
        DEFAULT_PORT,
        MAX_PATHS, //
    },
    settings::FAILOVER_TIME_MS, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    module::ModuleRef,
    sysfs::{
        Attr,
        Buf,
        Class,
        Device,
        PlainDir,
        StoreCtx, //
    }, //
};

static FILES: [Attr<Arc<Registry>>; 5] = [
    Attr::rw(c"map_device", show_map_device, store_map_device),
    Attr::rw(c"open_session", show_open_session, store_open_session),
    Attr::rw(c"close_session", show_close_session, store_close_session),
    Attr::ro(c"opened_sessions", show_opened_sessions),
    // Only users who may open exports may list them.
    Attr::new(
        c"discover",
        0o600,
        Some(show_discover),
        Some(store_discover),
    ),
];

/// The device `ctl` with its attributes, and the directories below it.
pub(crate) struct Control {
    registry: Arc<Registry>,
    ctl: Option<Device<Arc<Registry>>>,
}

impl Control {
    /// Creates the class, the device and the directory of links.
    pub(crate) fn new(registry: &Arc<Registry>) -> Result<Self> {
        let class = Class::new(c"ibnbd-client")?;
        let ctl = Device::new(&class, fmt!("ctl"), registry.clone(), &FILES)?;
        let folder = Arc::new(PlainDir::plain(&ctl, fmt!("devices"))?, GFP_KERNEL)?;
        let discovered = PlainDir::plain(&ctl, fmt!("discovered"))?;
        // After all steps that can fail, as the directories must be removed before their parent.
        registry.set_links(Some(folder));
        registry.discoveries().show_in(Some(discovered));
        Ok(Self {
            registry: registry.clone(),
            ctl: Some(ctl),
        })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // The directories are removed before their parent.
        self.registry.set_links(None);
        self.registry.discoveries().show_in(None);
        drop(self.ctl.take());
    }
}

fn show_map_device(_registry: &Registry, buf: &mut Buf<'_>) -> Result {
    buf.line(fmt!(
        "Usage: echo \"sessname=<name> device_path=<path on the server> [path=<[src,]dst>]... \
         [dest_port=<1..65535>] [access_mode=<ro|rw|migration>] [exclusive=<0|1>] \
         [nr_queues=<1..CPUs>] [nr_poll_queues=<-1..CPUs>] [key_id=<key>] \
         [failover_time_ms=<1000..300000>] [data_checksum=<none|crc32c>] [identity=<auto|none>]\" > map_device"
    ))?;
    buf.line(fmt!(""))?;
    buf.line(fmt!("src, dst ::= ip:<IPv4> | ip:<IPv6> | gid:<GID>"))?;
    buf.line(fmt!(
        "path: up to {MAX_PATHS} times; may be left out for a session that exists"
    ))?;
    buf.line(fmt!(
        "defaults: dest_port={DEFAULT_PORT} access_mode=rw exclusive=0 nr_queues={} \
         nr_poll_queues=0 key_id={} failover_time_ms={} data_checksum=none identity=auto",
        kernel::cpu::nr_cpu_ids(),
        KeyId::default().as_str(),
        FAILOVER_TIME_MS.default
    ))
}

fn store_map_device(ctx: StoreCtx<'_, Arc<Registry>>, line: &[u8]) -> Result {
    // Keeps the module loaded while the disk is created.
    let ctx = ctx.keep_module::<crate::LocalModule>()?;
    map(ctx.data(), line)
}

/// The step that failed, and the reason.
struct Failure(&'static str, Error);

/// Returns a function that turns an error into a [`Failure`] of step `what`.
fn at(what: &'static str) -> impl FnOnce(Error) -> Failure {
    move |error| Failure(what, error)
}

/// Maps a device. A failure is logged in one line, and everything is undone.
///
/// # Context
///
/// May sleep; interruptible while it connects or waits for the server, and killable after that.
///
/// # Errors
///
/// - `EINVAL`, `ENAMETOOLONG`: the line is malformed, requests queues that the session cannot have,
///   or names a key other than the session's.
/// - `EEXIST`: the device is already mapped on this session, or another network namespace has
///   a session with this name.
/// - `ENXIO`: the session does not exist, and no path is given.
/// - Errors of connecting, and errors that the server returns.
fn map(registry: &Arc<Registry>, line: &[u8]) -> Result {
    let opts = MapOptions::parse(line).map_err(|error| {
        kx::pr_err_ratelimited!("map_device: {}\n", convert::Shown(error));
        convert::error(error.errno())
    })?;
    try_map(registry, &opts).map_err(|Failure(what, error)| {
        kx::pr_err_ratelimited!(
            "map_device: {} of session {}: {}: {} ({})\n",
            opts.device_path.as_str(),
            opts.session.name.as_str(),
            what,
            convert::errno(error).as_str(),
            error.to_errno()
        );
        error
    })
}

fn try_map(registry: &Arc<Registry>, opts: &MapOptions<'_>) -> Result<(), Failure> {
    let wanted = queues(opts)?;
    let place = registry.place(opts).map_err(|error| match error {
        EEXIST => Failure("the device is already mapped", error),
        _ => Failure("cannot reserve a disk number", error),
    })?;
    let session = registry.session(&opts.session, User::Disk(wanted));
    let session = session.map_err(no_session)?;
    let wanted = WantedDevice {
        access: opts.access,
        checksum: opts.data_checksum,
        identity: opts.identity,
    };
    let opened = Opened::open(session, place, opts.device_path, wanted)
        .map_err(at("cannot open the device on the server"))?;
    create(registry, opened).map_err(at("cannot create the disk"))
}

/// Creates the disk of an open device, and reads its partition table. Both steps may block
/// uninterruptibly, so a worker executes them, and this task can be killed.
///
/// # Errors
///
/// `EINTR` if this task is killed before the disk is complete; the disk is then removed. Errors of
/// [`Mapping::create`].
fn create(registry: &Arc<Registry>, opened: Opened) -> Result {
    // Unloading the module must not miss a disk that is being created. The worker may drop the last
    // reference, as unloading flushes its queue.
    let module = ModuleRef::get::<crate::LocalModule>().ok_or(ENODEV)?;
    let for_worker = registry.clone();
    let created = background::attempt_until_killed(registry.jobs(), move |fate| {
        let created = Mapping::create(&for_worker, opened, fate).map(NewDisk::complete);
        drop(module);
        created
    })?;
    // The disk is kept if its user is killed while the partition table is read.
    created.unwrap_or(Ok(()))
}

/// Returns the queues that the options request.
fn queues(opts: &MapOptions<'_>) -> Result<Wanted, Failure> {
    let cpus = kernel::cpu::nr_cpu_ids();
    let polled = number(opts.poll_queues(cpus));
    Ok(Wanted {
        queues: Queues {
            ordinary: ordinary(opts.queues(cpus))?,
            polled: polled.ok_or(Failure("there are more poll queues than CPUs", EINVAL))?,
        },
        any_ordinary: opts.nr_queues.is_none(),
    })
}

fn number(nr: Option<u32>) -> Option<u16> {
    nr.and_then(|nr| u16::try_from(nr).ok())
}

fn ordinary(nr: Option<u32>) -> Result<u16, Failure> {
    number(nr).ok_or(Failure("there are more queues than CPUs", EINVAL))
}

fn show_open_session(_registry: &Registry, buf: &mut Buf<'_>) -> Result {
    buf.line(fmt!(
        "Usage: echo \"sessname=<name> path=<[src,]dst>... [dest_port=<1..65535>] [nr_queues=<1..CPUs>] \
         [key_id=<key>] [failover_time_ms=<1000..300000>]\" > open_session"
    ))
}

fn store_open_session(ctx: StoreCtx<'_, Arc<Registry>>, line: &[u8]) -> Result {
    // Keeps the module loaded while the session is opened.
    let ctx = ctx.keep_module::<crate::LocalModule>()?;
    let opts = OpenOptions::parse(line).map_err(|error| {
        kx::pr_err_ratelimited!("open_session: {}\n", convert::Shown(error));
        convert::error(error.errno())
    })?;
    open_session(ctx.data(), &opts).map_err(|Failure(what, error)| {
        kx::pr_err_ratelimited!(
            "open_session: {}: {}: {} ({})\n",
            opts.session.name.as_str(),
            what,
            convert::errno(error).as_str(),
            error.to_errno()
        );
        error
    })
}

/// Opens a session, or keeps an existing one open, until a write to `close_session`.
fn open_session(registry: &Arc<Registry>, opts: &OpenOptions<'_>) -> Result<(), Failure> {
    let wanted = Wanted {
        queues: Queues {
            ordinary: ordinary(opts.queues(kernel::cpu::nr_cpu_ids()))?,
            polled: 0,
        },
        any_ordinary: opts.nr_queues.is_none(),
    };
    let session = registry.session(&opts.session, User::Disk(wanted));
    let kept = registry.keep(session.map_err(no_session)?);
    kept.map_err(|error| match error {
        EEXIST => Failure("the session is open already", error),
        _ => Failure("cannot keep the session open", error),
    })
}

fn show_close_session(_registry: &Registry, buf: &mut Buf<'_>) -> Result {
    buf.line(fmt!("Usage: echo <name> > close_session"))
}

fn store_close_session(ctx: StoreCtx<'_, Arc<Registry>>, line: &[u8]) -> Result {
    // Keeps the module loaded while the session is closed.
    let ctx = ctx.keep_module::<crate::LocalModule>()?;
    let closed = ctx.data().end_keeping(line.trim_ascii());
    closed.inspect_err(|error| {
        kx::pr_err_ratelimited!(
            "close_session: no session of this name was opened by open_session: {} ({})\n",
            convert::errno(*error).as_str(),
            error.to_errno()
        );
    })
}

/// # Errors
///
/// [`ENOSPC`] if the names do not fit a page.
fn show_opened_sessions(registry: &Registry, buf: &mut Buf<'_>) -> Result {
    registry.for_each_kept(|name| buf.line(fmt!("{name}")))
}

fn no_session(reason: NoSession) -> Failure {
    match reason {
        NoSession::NoPath => Failure("the session does not exist, and no path is given", ENXIO),
        NoSession::Foreign => Failure(
            "another network namespace has a session with this name",
            EEXIST,
        ),
        NoSession::Polled => Failure("a disk with poll queues needs a session of its own", EINVAL),
        NoSession::OtherQueues => Failure(
            "the session has another number of queues: leave nr_queues out, or unmap its disks first",
            EINVAL,
        ),
        NoSession::OtherKey => Failure(
            "the session has another key_id; its file of that name changes it",
            EINVAL,
        ),
        NoSession::OtherFailoverTime => Failure(
            "the session has another failover_time_ms; its file of that name changes it",
            EINVAL,
        ),
        NoSession::OtherServer => Failure(
            "the session exists, and has no path to any of these addresses",
            EEXIST,
        ),
        NoSession::Failed(error) => Failure("the session cannot be opened", error),
    }
}

fn show_discover(_registry: &Registry, buf: &mut Buf<'_>) -> Result {
    buf.line(fmt!(
        "Usage: echo \"sessname=<name> [path=<[src,]dst>]... [dest_port=<1..65535>] [key_id=<key>]\" \
         > discover; the result is in discovered/<name>"
    ))
}

fn store_discover(ctx: StoreCtx<'_, Arc<Registry>>, line: &[u8]) -> Result {
    // Keeps the module loaded during the discovery.
    let ctx = ctx.keep_module::<crate::LocalModule>()?;
    let registry = ctx.data();
    if line.len() > discovery::PAGE_LEN {
        kx::pr_err_ratelimited!(
            "discover: the line has more than {} bytes\n",
            discovery::PAGE_LEN
        );
        return Err(EINVAL);
    }
    let opts = SessionOptions::parse(line).map_err(|error| {
        kx::pr_err_ratelimited!("discover: {}\n", convert::Shown(error));
        convert::error(error.errno())
    })?;
    try_discover(registry, &opts, line).map_err(|Failure(what, error)| {
        kx::pr_err_ratelimited!(
            "discover: session {}: {}: {} ({})\n",
            opts.name.as_str(),
            what,
            convert::errno(error).as_str(),
            error.to_errno()
        );
        error
    })
}

/// Discovers the exports of a server, and shows them. Then closes the session, unless it has disks.
fn try_discover(
    registry: &Arc<Registry>,
    opts: &SessionOptions<'_>,
    line: &[u8],
) -> Result<(), Failure> {
    let session = registry
        .session(opts, User::Discovery)
        .map_err(no_session)?;
    let found = discovery::ask(&session).map_err(|error| match error {
        EOPNOTSUPP => Failure("the server does not list its exports", error),
        EFBIG => Failure(
            "the server lists more exports than there is room for",
            error,
        ),
        ETIMEDOUT => Failure("the server did not list its exports in time", error),
        _ => Failure("cannot list the exports of the server", error),
    })?;
    drop(session);
    let shown = registry.discoveries().show(opts.name, line, found);
    shown.map_err(at("cannot show the exports of the server"))
}
