// SPDX-License-Identifier: GPL-2.0

//! What all users need.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::sync::atomic::AtomicFlag;

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
