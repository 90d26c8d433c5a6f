// SPDX-License-Identifier: GPL-2.0

//! Sessions and paths in sysfs (`/sys/class/ibtrs-server/`), and their uevents.
//!
//! A directory is dropped before the thing that it shows, in sleepable context: the drop
//! waits for readers and writers of its files, which are quick.

use crate::path::Path;
use ibtrs_core::convert::{
    self,
    Shown, //
};
use kernel::{
    fmt,
    prelude::*,
    str::CString,
    sync::Arc, //
};
use kx::sysfs::{
    Action,
    Buf,
    Device,
    Dir,
    ModuleClass,
    PlainDir, //
};

mod path;
mod stats;

pub(crate) static CLASS: ModuleClass = ModuleClass::new(c"ibtrs-server");

/// The directory of a session.
pub(crate) struct SessionDir {
    // Goes before the device that it is in.
    paths: PlainDir,
    device: Device<&'static ()>,
}

impl SessionDir {
    /// Shows a session.
    ///
    /// # Errors
    ///
    /// `EEXIST` if there is one of that name; `ENOMEM`.
    pub(crate) fn new(name: &CStr) -> Result<Arc<Self>> {
        let class = CLASS.get()?;
        let device = Device::new(&class, fmt!("{name}"), &(), &[])?;
        let paths = PlainDir::plain(&device, fmt!("paths"))?;
        Ok(Arc::new(Self { paths, device }, GFP_KERNEL)?)
    }

    /// Tells user space about a path. That it does not hear of it is no reason to fail.
    fn tell(&self, path: impl fmt::Display, state: &CStr) {
        let told = CString::try_from_fmt(fmt!("IBTRS_PATH={path}"))
            .and_then(|path| self.device.uevent(Action::Change, &[&path, state]));
        if let Err(error) = told {
            let error = convert::errno(error);
            pr_debug!("no event for user space ({})\n", error.as_str());
        }
    }
}

/// The directory of a path.
pub(crate) struct PathDir {
    // Goes before the directory that it is in, and that before the session's.
    _stats: Dir<Arc<Path>>,
    dir: Dir<Arc<Path>>,
    session: Arc<SessionDir>,
}

impl PathDir {
    /// Shows a path that is connected.
    ///
    /// # Errors
    ///
    /// `EEXIST` if a path of these addresses is shown; `ENOMEM`.
    pub(crate) fn new(session: &Arc<SessionDir>, path: &Arc<Path>) -> Result<Self> {
        let dir = Dir::new(
            &session.paths,
            fmt!("{}", path.ends),
            path.clone(),
            &path::FILES,
        )?;
        let stats = Dir::new(&dir, fmt!("stats"), path.clone(), &stats::FILES)?;
        session.tell(path.ends, c"IBTRS_STATE=connected");
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
            .tell(self.dir.data().ends, c"IBTRS_STATE=disconnected");
    }
}

/// Writes what the protocol prints.
fn show(buf: &mut Buf<'_>, what: impl core::fmt::Display) -> Result {
    buf.write(fmt!("{}", Shown(what)))
}
