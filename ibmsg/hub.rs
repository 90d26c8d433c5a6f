// SPDX-License-Identifier: GPL-2.0

//! What all users need: programs, which have files, and other modules.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    sync::{
        atomic::AtomicFlag,
        RcuPtr, //
    },
    work::Queue, //
};

use crate::{
    peers::Peers,
    session::{
        Shared,
        Side, //
    },
    types::Name, //
};

/// Where channels are opened and portals are bound.
pub(crate) struct Hub {
    pub(crate) shared: Shared,
    /// The side that opens channels to portals of this machine.
    pub(crate) local: Side,
    pub(crate) peers: Arc<Peers>,
    /// For the handlers of other modules, which may sleep.
    pub(crate) handlers: Arc<Queue>,
    /// The module is loaded.
    pub(crate) is_ready: AtomicFlag,
}

impl Hub {
    /// The side of a session that opens channels.
    ///
    /// # Errors
    ///
    /// [`ENODEV`]
    pub(crate) fn client(&self, session: &Name) -> Result<Side> {
        match *session == self.local.name() {
            true => Ok(self.local.clone()),
            false => self.peers.client(session).ok_or(ENODEV),
        }
    }
}

/// The hub, while the module is loaded.
static HUB: RcuPtr<Arc<Hub>> = RcuPtr::null();

/// The hub is known to other modules until this is dropped. By then none is left that uses it.
pub(crate) struct Registration(());

/// Makes the hub known to other modules.
///
/// # Context
///
/// *may sleep*
pub(crate) fn register(hub: KBox<Arc<Hub>>) -> Registration {
    drop(HUB.replace(Some(hub)));
    Registration(())
}

impl Drop for Registration {
    fn drop(&mut self) {
        drop(HUB.replace(None));
    }
}

/// The hub, for another module.
///
/// # Errors
///
/// [`ENODEV`]: the module is not loaded completely, which no module that uses its symbols sees.
pub(crate) fn get() -> Result<Arc<Hub>> {
    HUB.read().get().cloned().ok_or(ENODEV)
}
