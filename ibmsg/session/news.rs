// SPDX-License-Identifier: GPL-2.0

//! What all programs are told that want to know it: the server is about to be stopped, or the key of the session is of no
//! use any more.
//!
//! [`State::walk`] tells them. The same news of another path, or by another connection, is not told again until
//! there is a new connection. A key that one path could not use is told only when there is no connection: until then
//! others carry messages, and the path may come back with another key.

use ibmsg_proto::wire::Drain;
use ibtrs_proto::Errno;

use super::State;
use crate::channel::Chan;

#[derive(Clone, Copy)]
struct Said {
    drain: Option<Drain>,
    /// Why the key is of no use.
    key: Option<Errno>,
}

impl Said {
    const NOTHING: Self = Self {
        drain: None,
        key: None,
    };
}

/// What is to be told, and what was heard since a connection came.
pub(super) struct News {
    due: Said,
    heard: Said,
}

impl News {
    pub(super) const fn new() -> Self {
        Self {
            due: Said::NOTHING,
            heard: Said::NOTHING,
        }
    }

    /// There is a new connection: what is heard from now on is news.
    pub(super) fn forget(&mut self) {
        self.heard = Said::NOTHING;
        self.due.key = None;
    }

    /// All channels were told. `is_cut_off`: there was no connection.
    pub(super) fn told(&mut self, is_cut_off: bool) {
        self.due.drain = None;
        if is_cut_off {
            self.due.key = None;
        }
    }

    /// Tells the program of a channel.
    pub(super) fn tell(&self, chan: &mut Chan, is_cut_off: bool) {
        if let Some(drain) = self.due.drain {
            chan.draining(drain.seconds);
        }
        if let Some(why) = self.due.key.filter(|_| is_cut_off) {
            chan.key_revoked(why);
        }
    }
}

impl State {
    /// The server is about to be stopped.
    pub(super) fn tell_draining(&mut self, drain: Drain) {
        if self.news.heard.drain.replace(drain) != Some(drain) {
            self.news.due.drain = Some(drain);
            self.walk = Some(0);
        }
    }

    /// The key of the session is of no use any more.
    pub(super) fn tell_key_revoked(&mut self, why: Errno) {
        if self.news.heard.key.replace(why) != Some(why) {
            self.news.due.key = Some(why);
            self.walk = Some(0);
        }
    }
}
