// SPDX-License-Identifier: GPL-2.0

//! Exports in sysfs: `/sys/class/ibnbd-server/ctl/devices/`.
//!
//! Serving clients does not depend on these files: if they cannot be created, a line in the log
//! says so.
//!
//! Contexts: *may sleep*; functions of files: *sysfs*.

use crate::{
    export::Exports,
    session::Session,
    stop, //
};
use ibnbd_proto::access::Access;
use ibtrs_core::convert;
use ibtrs_proto::{
    downtime::{
        Downtime,
        DrainOrder, //
    },
    text::{
        self,
        TextError, //
    }, //
};
use ibtrs_server::Drain;
use kernel::{
    prelude::*,
    str::CString,
    sync::Arc, //
};
use kx::{
    blk::BlockDevice,
    pr_err_ratelimited,
    sync::SetOnce,
    sysfs::{
        Attr,
        Class,
        Device,
        Dir,
        Link,
        PlainDir,
        StoreCtx, //
    }, //
};

/// The device `ctl`, and the directory of exports below it, as long as this lives.
pub(crate) struct Control {
    exports: Arc<Exports>,
    server: Arc<ServerControl>,
    ctl: Option<Device<Arc<ServerControl>>>,
}

/// The operator's control of the server, for the attributes of `ctl`.
pub(crate) struct ServerControl {
    /// Set once the server listens.
    stop: SetOnce<Drain>,
}

impl Control {
    /// Creates the class, the device and the directory of exports.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(exports: &Arc<Exports>) -> Result<Self> {
        let class = Class::new(c"ibnbd-server")?;
        let server = Arc::new(
            ServerControl {
                stop: SetOnce::new(),
            },
            GFP_KERNEL,
        )?;
        let ctl = Device::new(&class, fmt!("ctl"), server.clone(), &CTL_FILES)?;
        let folder = Arc::new(PlainDir::plain(&ctl, fmt!("devices"))?, GFP_KERNEL)?;
        exports.set_folder(Some(folder));
        Ok(Self {
            exports: exports.clone(),
            server,
            ctl: Some(ctl),
        })
    }

    /// Notes that the server listens, so that it can be drained.
    pub(crate) fn listens(&self, drain: Drain) {
        self.server.stop.populate(drain);
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // The directory of exports goes before its parent.
        self.exports.set_folder(None);
        drop(self.ctl.take());
    }
}

/// The directory of an export.
pub(crate) struct ExportDir {
    // In the order of their removal.
    sessions: PlainDir,
    block_dev: Option<Link<Arc<PlainDir>>>,
    dir: Arc<PlainDir>,
}

impl ExportDir {
    /// Creates the directory of the device `name` in `folder`.
    ///
    /// # Errors
    ///
    /// `EEXIST` if `folder` has a directory `name`; `ENOMEM`.
    pub(crate) fn new(folder: &PlainDir, name: &CStr) -> Result<Self> {
        let dir = Arc::new(PlainDir::plain(folder, fmt!("{name}"))?, GFP_KERNEL)?;
        Ok(Self {
            sessions: PlainDir::plain(&*dir, fmt!("sessions"))?,
            block_dev: None,
            dir,
        })
    }

    /// Returns the directory for [`link`], if it has no link yet.
    pub(crate) fn unlinked(&self) -> Option<Arc<PlainDir>> {
        self.block_dev.is_none().then(|| self.dir.clone())
    }

    /// Keeps the link that [`link`] has created.
    pub(crate) fn set_link(&mut self, link: Link<Arc<PlainDir>>) {
        self.block_dev = Some(link);
    }

    /// Creates the directory of a session that has the device open. If the session reopens the
    /// device while it is still being closed, the second directory is `<session>.<id>`, which is no
    /// other's name because names of sessions have no dot.
    ///
    /// # Errors
    ///
    /// `ENAMETOOLONG`; `ENOMEM`.
    pub(crate) fn add(&self, view: &Arc<View>) -> Result<Dir<Arc<View>>> {
        let name = view.session.name();
        match Dir::new(&self.sessions, fmt!("{name}"), view.clone(), &FILES) {
            Err(error) if error == EEXIST => Dir::new(
                &self.sessions,
                fmt!("{name}.{}", view.id),
                view.clone(),
                &FILES,
            ),
            result => result,
        }
    }
}

/// Creates the link to the device in its export's directory.
///
/// # Context
///
/// May sleep while another task opens the device.
///
/// # Errors
///
/// `EEXIST` if the link exists; `ENODEV` if the device is gone; `ENOMEM`.
pub(crate) fn link(dir: Arc<PlainDir>, bdev: &BlockDevice) -> Result<Link<Arc<PlainDir>>> {
    Link::new(dir, bdev, fmt!("block_dev"))
}

/// A device of a session, for its attributes.
pub(crate) struct View {
    pub(crate) session: Arc<Session>,
    /// The id of the device in the session.
    pub(crate) id: u32,
    /// The name by which the client opened the device.
    pub(crate) name: CString,
    pub(crate) access: Access,
}

/// Attributes in `ctl/`.
static CTL_FILES: [Attr<Arc<ServerControl>>; 1] = [Attr::rw(
    c"drain",
    |server: &ServerControl, buf| {
        let drained = server.stop.as_ref().is_some_and(Drain::is_drained);
        buf.line(fmt!("{}", u8::from(drained)))
    },
    store_drain,
)];

/// Drains the server, or lets it accept sessions again.
fn store_drain(ctx: StoreCtx<'_, Arc<ServerControl>>, input: &[u8]) -> Result {
    let order = DrainOrder::parse(input).map_err(refused)?;
    let drain = ctx.data().stop.as_ref().ok_or(EAGAIN)?;
    let downtime = match order {
        DrainOrder::Undo => {
            pr_info!("drain ended: the server accepts sessions again\n");
            drain.resume();
            return Ok(());
        }
        DrainOrder::Drain => stop::usual_downtime(),
        DrainOrder::Away(downtime) => downtime,
    };
    match downtime {
        Some(downtime) => pr_info!(
            "draining: the server refuses sessions until 0 is written to drain; clients are told that it is away for {} s\n",
            downtime.seconds()
        ),
        None => pr_info!("draining: the server refuses sessions until 0 is written to drain\n"),
    }
    stop::stop(drain, "draining", downtime)
}

/// Logs what is wrong with an order; returns the error.
fn refused(error: TextError) -> Error {
    pr_err_ratelimited!(
        "drain: {}: 0, 1, or downtime=SECONDS, at most {}\n",
        error.as_str(),
        Downtime::MAX_S
    );
    convert::error(error.errno())
}

/// Attributes in `.../devices/<device>/sessions/<session>/`.
static FILES: [Attr<Arc<View>>; 4] = [
    Attr::ro(c"read_only", |view: &View, buf| {
        buf.line(fmt!("{}", u8::from(!view.access.writes())))
    }),
    Attr::ro(c"access_mode", |view: &View, buf| {
        buf.line(fmt!("{}", view.access.mode.as_str()))
    }),
    Attr::ro(c"mapping_path", |view: &View, buf| {
        buf.bytes(view.name.to_bytes())?;
        buf.bytes(b"\n")
    }),
    Attr::rw(
        c"force_close",
        |_view: &View, buf| buf.line(fmt!("Usage: echo 1 > force_close")),
        store_force_close,
    ),
];

/// Closes the device, which removes the directory of this attribute.
fn store_force_close(ctx: StoreCtx<'_, Arc<View>>, input: &[u8]) -> Result {
    // Keeps the module loaded until this returns: `remove_self` removes the file that called it.
    let ctx = ctx.keep_module::<crate::LocalModule>()?;
    text::one(input).map_err(|error| convert::error(error.errno()))?;
    let view = ctx.data().clone();
    // At once: an OPEN of another device may hold the lock below for as long as its disk hangs.
    if let Some(device) = view.session.device(view.id) {
        device.revoke();
    }
    let Some(device) = view.session.withdraw(view.id) else {
        // Another task is closing the device.
        return Err(ENODEV);
    };
    // Only the task that has withdrawn the device drops its directory.
    let _ = ctx.remove_self();
    let why = "an operator wrote to force_close";
    view.session.close_for_operator(device, why);
    Ok(())
}
