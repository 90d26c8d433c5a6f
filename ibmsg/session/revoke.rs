// SPDX-License-Identifier: GPL-2.0

//! Ends channels of clients that the operator no longer admits to a portal.

use ibmsg_proto::{
    access::Refusal,
    refused::Reason, //
};
use kernel::prelude::*;

use super::{
    Side,
    State, //
};
use crate::{
    channel::Unread,
    types::Name, //
};

impl Side {
    /// Ends the channels to a portal if this session may not use it any more.
    ///
    /// Each channel is looked at under the lock, after the rule was changed; one that is offered later is checked
    /// when it is offered.
    ///
    /// # Context
    ///
    /// *may sleep*
    pub(crate) fn recheck(&self, portal: &Name) {
        let (mut closed, mut why) = (0, None);
        self.each_chan(|state, id| {
            let refusal = self.check(portal).err()?;
            let is_its = state.chans.get(&id).filter(|chan| chan.portal == *portal);
            let unread = match is_its.is_some() {
                true => self.revoke(state, id, refusal),
                false => None,
            };
            closed += u32::from(unread.is_some());
            why = Some(refusal);
            Some(unread)
        });
        if let Some(why) = why.filter(|_| closed > 0) {
            let (name, why) = (self.name(), why.as_str());
            pr_info!(
                "{}: portal {}: channels closed: {}: {}\n",
                name,
                portal,
                closed,
                why
            );
        }
    }

    fn check(&self, portal: &Name) -> Result<(), Refusal> {
        let session = &*self.0;
        // What the program has said when it bound the portal stays as it is.
        let accounts = session
            .access
            .check_peer(portal, session.peer, &session.name, true)?;
        drop(accounts);
        Ok(())
    }

    /// Ends a channel, or refuses its offer. Returns what its program has not read; none if it has ended before.
    fn revoke(&self, state: &mut State, id: u32, why: Refusal) -> Option<Unread> {
        let chan = state.chans.get_mut(&id)?;
        if chan.end.is_some() {
            return None;
        }
        // It is offered, or was refused before; one whose program has gone is shut.
        if !chan.has_program && !chan.is_shut() {
            if !chan.reject(why.errno(), KVec::new(), why.as_str()) {
                return None;
            }
            chan.count_refusal(Reason::Rule);
            let portal = chan.portal;
            self.withdraw(id, &portal);
            self.done(state, id);
            return Some(Unread::default());
        }
        let unread = chan.revoke(why.errno());
        self.done(state, id);
        Some(unread)
    }
}
