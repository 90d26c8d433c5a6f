// SPDX-License-Identifier: GPL-2.0

//! Sessions and paths in sysfs (`/sys/class/ibtrs-client/`), and their uevents.
//!
//! Each directory is created right after the object that it shows, and dropped before that object,
//! both in sleepable context. The drop waits for readers and writers of its files, so none of them
//! may drop the directory of its own file, or wait for anything that follows the drop.
//! [`Session::close`] drops the directory of a session, after it has waited for the directories of
//! the paths. The writer of a path's file may drop the path's directory, but only after that file
//! was removed.

use crate::{
    path::{
        Path,
        PathDir, //
    },
    session::{
        Session,
        SessionDir,
        ShownPath,
        Told, //
    }, //
};
use ibtrs_core::convert::{
    self,
    Shown, //
};
use ibtrs_proto::fsm::client_path::State;
use kernel::{
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
mod session;
mod stats;

pub(crate) static CLASS: ModuleClass = ModuleClass::new(c"ibtrs-client");

/// The directory of a session.
struct Place {
    // Dropped before the device that contains it.
    paths: PlainDir,
    device: Device<Arc<Session>>,
}

impl Place {
    /// Sends a uevent. A failure is only logged: user space can read the state instead.
    fn uevent(&self, action: Action, variables: &[&CStr]) {
        if let Err(error) = self.device.uevent(action, variables) {
            pr_debug!(
                "no event for user space: {}\n",
                convert::errno(error).as_str()
            );
        }
    }
}

/// A session as shown in sysfs.
pub(crate) struct SessionHook {
    place: Arc<Place>,
}

impl SessionHook {
    /// Creates the directory of a session that has no path yet.
    ///
    /// # Errors
    ///
    /// `EEXIST`: a session of this name exists; `ENOMEM`.
    pub(crate) fn create(session: &Arc<Session>) -> Result<KBox<dyn SessionDir>> {
        let class = CLASS.get()?;
        let name = session.name();
        let device = Device::new(&class, fmt!("{name}"), session.clone(), &session::FILES)
            .inspect_err(|error| {
                if *error == EEXIST {
                    pr_err!(
                        "{}: a session with this name already exists, perhaps in another network namespace\n",
                        name
                    );
                }
            })?;
        let paths = PlainDir::plain(&device, fmt!("paths"))?;
        let place = Arc::new(Place { paths, device }, GFP_KERNEL)?;
        Ok(KBox::new(Self { place }, GFP_KERNEL)?)
    }
}

impl SessionDir for SessionHook {
    fn changed(&mut self, connected: bool) {
        match connected {
            true => self
                .place
                .uevent(Action::Online, &[c"IBTRS_SESSION_STATE=connected"]),
            false => self
                .place
                .uevent(Action::Offline, &[c"IBTRS_SESSION_STATE=disconnected"]),
        }
    }

    fn failed_over(&self, told: &Told) {
        let made = || -> Result<_> {
            let took_ms = told.record.took.map(|took| took.total_ns() / 1_000_000);
            let took_ms = took_ms.map(|ms| CString::try_from_fmt(fmt!("IBTRS_FAILOVER_MS={ms}")));
            Ok((
                CString::try_from_fmt(fmt!("IBTRS_FAILOVER_PATH={}", told.path()))?,
                CString::try_from_fmt(fmt!("IBTRS_FAILOVER_CAUSE={}", told.cause()))?,
                CString::try_from_fmt(fmt!("IBTRS_FAILOVER_REQUESTS={}", told.record.moved))?,
                took_ms.transpose()?,
            ))
        };
        match made() {
            Ok((path, cause, requests, Some(took_ms))) => self
                .place
                .uevent(Action::Change, &[&path, &cause, &requests, &took_ms]),
            Ok((path, cause, requests, None)) => self
                .place
                .uevent(Action::Change, &[&path, &cause, &requests]),
            // As for other uevents, user space can read the file instead.
            Err(_) => {}
        }
    }

    fn show_path(&self, path: &Arc<Path>, shown: ShownPath) -> Result<KBox<dyn PathDir>> {
        let place = self.place.clone();
        let dir = Dir::new(
            &place.paths,
            fmt!("{}", path.name()),
            path.clone(),
            &path::FILES,
        )?;
        let stats = Dir::new(&dir, fmt!("stats"), path.clone(), &stats::FILES)?;
        stats.add_files(&stats::COUNTERS)?;
        let made = PathHook {
            _stats: stats,
            dir,
            place,
            is_whole: path.spec().addr.src.is_some(),
            _shown: shown,
        };
        let hook = KBox::new(made, GFP_KERNEL)?;
        hook.uevent(path, "added");
        Ok(hook)
    }
}

/// A path as shown in sysfs.
pub(crate) struct PathHook {
    // Dropped before the directory that contains it, and that one before the session's.
    _stats: Dir<Arc<Path>>,
    dir: Dir<Arc<Path>>,
    place: Arc<Place>,
    /// The directory's name contains both addresses.
    is_whole: bool,
    // Dropped last: the session waits for this, and then holds the last reference to its directory.
    _shown: ShownPath,
}

impl PathHook {
    /// Adds the source address that the kernel chose to the name of the directory.
    fn complete_name(&mut self, path: &Path) {
        let Some(src) = path.src_addr().and_then(|addr| convert::addr(&addr)) else {
            return;
        };
        // Another path may have that name; this one then keeps its own.
        let renamed = self
            .dir
            .rename(fmt!("{}@{}", Shown(src), Shown(path.spec().addr.dst)));
        self.is_whole = renamed.is_ok();
    }

    fn uevent(&self, path: &Path, state: &str) {
        let made = || -> Result<_> {
            Ok((
                CString::try_from_fmt(fmt!("IBTRS_PATH={}", path.name()))?,
                CString::try_from_fmt(fmt!("IBTRS_STATE={state}"))?,
            ))
        };
        if let Ok((path, state)) = made() {
            self.place.uevent(Action::Change, &[&path, &state]);
        }
    }
}

impl PathDir for PathHook {
    fn changed(&mut self, path: &Path, state: State) {
        if state == State::Connected && !self.is_whole {
            self.complete_name(path);
        }
        self.uevent(path, state.as_str());
    }

    fn ranked(&self, path: &Path, variable: &CStr) {
        if let Ok(path) = CString::try_from_fmt(fmt!("IBTRS_PATH={}", path.name())) {
            self.place.uevent(Action::Change, &[&path, variable]);
        }
    }

    fn removed(&self, path: &Path) {
        self.uevent(path, "removed");
    }
}

/// Writes `what` as text. Columns of more CPUs than fit in a page are cut off, as in C.
fn show(buf: &mut Buf<'_>, what: impl core::fmt::Display) -> Result {
    match buf.write(fmt!("{}", Shown(what))) {
        Err(error) if error == ENOSPC => Ok(()),
        result => result,
    }
}
