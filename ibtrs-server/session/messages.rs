// SPDX-License-Identifier: GPL-2.0

//! The connection of a session to the message service.

use super::Session;
use crate::types::Deadline;
use ibtrs_core::messages::{
    self,
    Attached,
    Peer,
    Role, //
};
use ibtrs_proto::downtime::Downtime;
use kernel::{
    prelude::*,
    sync::Arc, //
};

impl Session {
    /// Returns the message service's end of the session, which must have its name.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// Errors of [`messages::attach`].
    pub(crate) fn messages(&self) -> Result<Arc<Attached>> {
        let mut known = self.messages.lock();
        if let Some(attached) = &*known {
            return Ok(attached.clone());
        }
        let attached = messages::attach(&Peer {
            role: Role::Server,
            name: self.io.name(),
            uuid: self.io.uuid,
            is_authenticated: self.authenticated,
        })?;
        *known = Some(attached.clone());
        Ok(attached)
    }

    /// Notifies programs that the server is about to be stopped.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn announce_drain(&self, downtime: Option<Downtime>) {
        let attached = self.messages.lock().clone();
        if let Some(attached) = attached {
            attached.draining(downtime.map_or(0, |downtime| downtime.seconds()));
        }
    }

    /// See [`Parent::key_revoked`](crate::path::parent::Parent::key_revoked).
    pub(crate) fn key_revoked(&self, why: Error) {
        let attached = self.messages.lock().clone();
        if let Some(attached) = attached {
            attached.key_revoked(why);
        }
    }

    /// Waits until the client has received the messages that programs of this machine have written,
    /// at most until `limit`.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn drain_messages(&self, limit: Deadline) {
        let attached = self.messages.lock().clone();
        if let Some(attached) = attached {
            attached.drain(limit.left_ms());
        }
    }

    /// Ends the session for the message service, as its last path has ended.
    pub(crate) fn end_messages(&self) {
        let attached = self.messages.lock().take();
        drop(attached);
    }
}
