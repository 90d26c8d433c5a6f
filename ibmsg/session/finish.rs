// SPDX-License-Identifier: GPL-2.0

//! Closes channels in the place of programs.

use ibtrs_proto::Errno;
use kernel::prelude::*;

use super::{
    Side,
    State, //
};
use crate::channel::Unread;

impl Side {
    /// Closes this end of a channel, whose programs learn `why`, or refuses its offer. Returns what the program has
    /// not read; `None` if the channel has ended before.
    pub(super) fn close_one(&self, state: &mut State, id: u32, why: Errno) -> Option<Unread> {
        let chan = state.chans.get_mut(&id)?;
        let unread = match chan.has_program {
            true if chan.end.is_none() => Some(chan.close_for(why)),
            true => None,
            false => chan.reject(why, KVec::new()).then(Unread::default),
        };
        if unread.is_some() {
            let (portal, is_offered) = (chan.portal, !chan.has_program);
            if is_offered {
                self.withdraw(id, &portal);
            }
            self.done(state, id);
        }
        unread
    }
}
