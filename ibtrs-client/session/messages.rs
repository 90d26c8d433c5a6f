// SPDX-License-Identifier: GPL-2.0

//! The connection of a session to the message service.

use super::Session;
use ibtrs_core::{
    convert,
    messages::{
        self,
        Attached,
        Peer,
        Role, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

impl Session {
    /// See [`Parent::begin_attempt`](crate::path::parent::Parent::begin_attempt).
    pub(crate) fn begin_attempt(&self) -> Result<(u32, Option<Arc<Attached>>)> {
        // Held until the attempt is announced: once the service knows a later attempt, it treats an
        // unknown earlier one as lost.
        let mut known = self.messages.lock();
        let upper = self.attached(&mut known);
        let epoch = self.failover.lock().logic.begin().ok_or(EOVERFLOW)?;
        if let Some(upper) = &upper {
            upper.begins(self.env.message_conn(epoch)?);
        }
        Ok((epoch, upper))
    }

    /// Returns the message service's end of the session, if there is a service. The first call attaches
    /// the session to the service. If the service refuses the session, paths have no message connection.
    fn attached(&self, known: &mut Option<Arc<Attached>>) -> Option<Arc<Attached>> {
        if !messages::has_service() {
            return None;
        }
        if known.is_none() {
            let peer = Peer {
                role: Role::Client,
                name: self.name(),
                uuid: [0; 16],
                is_authenticated: true,
            };
            match messages::attach(&peer) {
                Ok(attached) => *known = Some(attached),
                Err(error) => {
                    kx::pr_warn_ratelimited!(
                        "{}: its paths carry no messages of programs ({})\n",
                        self.name(),
                        convert::errno(error).as_str()
                    );
                }
            }
        }
        known.clone()
    }

    /// Lets the service end the channels of programs on the session, while there are paths.
    ///
    /// # Context
    ///
    /// May sleep, for a time that the service bounds.
    pub(crate) fn finish_messages(&self) {
        let attached = self.messages.lock().clone();
        if let Some(attached) = attached {
            attached.finish();
        }
    }

    /// Detaches the session from the service, after the last path was removed.
    pub(crate) fn end_messages(&self) {
        let attached = self.messages.lock().take();
        drop(attached);
    }
}
