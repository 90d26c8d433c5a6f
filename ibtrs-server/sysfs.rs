// SPDX-License-Identifier: GPL-2.0

//! Sessions and paths in sysfs (`/sys/class/ibtrs-server/`), and their uevents.
//!
//! A directory is dropped before the object that it shows, in sleepable context: the drop
//! waits for readers and writers of its files, which are quick.
//!
//! Context of the functions of files: *sysfs*.

use crate::{
    data::stats::Stats, //
    path::Path,
};
use ibtrs_core::convert::{
    self,
    Shown, //
};
use ibtrs_proto::{
    auth::{
        KeyId,
        Suite, //
    },
    handshake::EXT_VERSION,
    stats::counter::server_path,
    text, //
};
use kernel::{
    fmt,
    prelude::*,
    str::CString,
    sync::Arc, //
};
use kx::sysfs::{
    Action,
    Attr,
    Buf,
    Device,
    Dir,
    ModuleClass,
    PlainDir,
    StoreCtx, //
};

pub(crate) static CLASS: ModuleClass = ModuleClass::new(c"ibtrs-server");

/// The directory of a session.
pub(crate) struct SessionDir {
    // Dropped before the device that contains it.
    paths: PlainDir,
    device: Device<&'static ()>,
}

impl SessionDir {
    /// Creates the directory of a session.
    ///
    /// # Errors
    ///
    /// `EEXIST`: a session of this name is shown; `ENOMEM`.
    pub(crate) fn new(name: &CStr) -> Result<Arc<Self>> {
        let class = CLASS.get()?;
        let device = Device::new(&class, fmt!("{name}"), &(), &[])?;
        let paths = PlainDir::plain(&device, fmt!("paths"))?;
        Ok(Arc::new(Self { paths, device }, GFP_KERNEL)?)
    }

    /// Sends a uevent about a path. A failure is only logged: user space can read the state
    /// instead.
    fn send_uevent(&self, path: impl fmt::Display, state: &CStr) {
        let sent = CString::try_from_fmt(fmt!("IBTRS_PATH={path}"))
            .and_then(|path| self.device.uevent(Action::Change, &[&path, state]));
        if let Err(error) = sent {
            let error = convert::errno(error);
            pr_debug!("no event for user space ({})\n", error.as_str());
        }
    }
}

/// The directory of a path.
pub(crate) struct PathDir {
    // Dropped before the directory that contains it, and that one before the session's.
    _stats: Dir<Arc<Path>>,
    dir: Dir<Arc<Path>>,
    session: Arc<SessionDir>,
}

impl PathDir {
    /// Creates the directory of a path that is connected.
    ///
    /// # Errors
    ///
    /// `EEXIST`: a path with these addresses is shown; `ENOMEM`.
    pub(crate) fn new(session: &Arc<SessionDir>, path: &Arc<Path>) -> Result<Self> {
        let dir = Dir::new(
            &session.paths,
            fmt!("{}", path.io.ends),
            path.clone(),
            &PATH_FILES,
        )?;
        let stats = Dir::new(&dir, fmt!("stats"), path.clone(), &STATS_FILES)?;
        stats.add_files(&COUNTERS)?;
        session.send_uevent(path.io.ends, c"IBTRS_STATE=connected");
        Ok(Self {
            _stats: stats,
            dir,
            session: session.clone(),
        })
    }
}

impl Drop for PathDir {
    fn drop(&mut self) {
        self.session
            .send_uevent(self.dir.data().io.ends, c"IBTRS_STATE=disconnected");
    }
}

/// Writes `what` as text.
fn show(buf: &mut Buf<'_>, what: impl core::fmt::Display) -> Result {
    buf.write(fmt!("{}", Shown(what)))
}

/// The files of a path: `/sys/class/ibtrs-server/<session>/paths/<client@server>/`.
static PATH_FILES: [Attr<Arc<Path>>; 9] = [
    Attr::rw(
        c"disconnect",
        |_path: &Path, buf| buf.line(fmt!("Usage: echo 1 > disconnect")),
        store_disconnect,
    ),
    Attr::ro(c"hca_name", |path: &Path, buf| {
        buf.line(fmt!("{}", path.hca_name()))
    }),
    // An empty line if the client is not authenticated.
    Attr::ro(c"key_id", |path: &Path, buf| {
        let id = path.key_id();
        buf.line(fmt!("{}", id.as_ref().map_or("", KeyId::as_str)))
    }),
    // An empty line if the client is not authenticated.
    Attr::ro(c"suite", |path: &Path, buf| {
        buf.line(fmt!("{}", path.suite().map_or("", Suite::as_str)))
    }),
    Attr::ro(c"extensions", |path: &Path, buf| {
        let known = path.io.epoch.is_some();
        buf.line(fmt!("{}", if known { EXT_VERSION } else { 0 }))
    }),
    Attr::ro(c"message_connections", |path: &Path, buf| {
        buf.line(fmt!("{}", path.message_connections()))
    }),
    Attr::ro(c"hca_port", |path: &Path, buf| {
        buf.line(fmt!("{}", path.hca_port()))
    }),
    Attr::ro(c"src_addr", |path: &Path, buf| {
        show(buf, path.io.ends.src)?;
        buf.line(fmt!(""))
    }),
    Attr::ro(c"dst_addr", |path: &Path, buf| {
        show(buf, path.io.ends.dst)?;
        buf.line(fmt!(""))
    }),
];

/// Begins to close the path, which removes the directory.
fn store_disconnect(path: StoreCtx<'_, Arc<Path>>, input: &[u8]) -> Result {
    text::one(input).map_err(|error| convert::error(error.errno()))?;
    match path.data().disconnect() {
        // The path is being closed already.
        Err(error) if error == EALREADY => Ok(()),
        result => result,
    }
}

/// The statistics of a path, in `stats/` of its directory. Writing "0" or "1" to one of the files
/// resets it.
static STATS_FILES: [Attr<Arc<Path>>; 3] = [
    Attr::rw(
        c"reset_all",
        |_path: &Path, buf| buf.line(fmt!("echo 1 to reset all statistics")),
        |path, input| reset(path, input, Stats::reset),
    ),
    Attr::rw(
        c"rdma",
        |path: &Path, buf| show(buf, path.io.stats.rdma()),
        |path, input| reset(path, input, |stats| stats.flow.reset()),
    ),
    Attr::rw(
        c"wc_completion",
        |path: &Path, buf| show(buf, path.io.stats.batches.wc_completion().server()),
        |path, input| reset(path, input, |stats| stats.batches.reset()),
    ),
];

macro_rules! counter_files {
    ($($name:ident = $file:literal, $unit:ident, $since:literal, $help:literal;)+) => {
        /// The files of the counters that are declared in [`server_path`].
        static COUNTERS: [Attr<Arc<Path>>; server_path::ALL.len()] = [$(Attr::rw(
            $file,
            |path: &Path, buf| buf.line(fmt!("{}", path.io.stats.declared.sum(server_path::$name))),
            |path, input| {
                reset(path, input, |stats| {
                    stats.declared.reset_some(server_path::$name..server_path::$name + 1)
                })
            },
        ),)+];
    };
}

ibtrs_proto::server_path_counters!(counter_files);

fn reset(path: StoreCtx<'_, Arc<Path>>, input: &[u8], what: fn(&Stats)) -> Result {
    text::reset(input).map_err(|error| convert::error(error.errno()))?;
    what(&path.io.stats);
    Ok(())
}
