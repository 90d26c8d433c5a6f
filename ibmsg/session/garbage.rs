// SPDX-License-Identifier: GPL-2.0

//! What nobody needs any more. It is dropped when the lock of the session is not held, and so are the tickets of
//! channels that have something for other modules.

use kernel::prelude::*;

use super::ConnState;
use crate::channel::{
    Chan,
    Sent,
    Stack,
    Tickets, //
};

/// Lists of such things; adding to them allocates nothing.
pub(super) struct Garbage {
    /// The first message of each list, which is that of a channel.
    sent: Option<KBox<Sent>>,
    /// Messages that have arrived for nobody.
    pub(super) unwanted: Stack,
    chans: Option<KBox<Chan>>,
    conns: Option<KBox<ConnState>>,
    /// Of channels that have something for other modules.
    pub(super) tickets: Tickets,
}

impl Garbage {
    pub(super) const fn new() -> Self {
        Self {
            sent: None,
            unwanted: Stack::new(),
            chans: None,
            conns: None,
            tickets: Tickets::new(),
        }
    }

    /// Adds a list of messages.
    pub(super) fn add_sent(&mut self, mut first: KBox<Sent>) {
        first.others = self.sent.take();
        self.sent = Some(first);
    }

    /// Adds a channel.
    pub(super) fn add_chan(&mut self, mut chan: KBox<Chan>) {
        chan.next = self.chans.take();
        self.chans = Some(chan);
    }

    /// Adds a connection. It may be the last reference to something of the link.
    pub(super) fn add_conn(&mut self, mut conn: KBox<ConnState>) {
        conn.next = self.conns.take();
        self.conns = Some(conn);
    }
}

impl Default for Garbage {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Garbage {
    /// One by one: the lists are long.
    fn drop(&mut self) {
        while let Some(mut first) = self.sent.take() {
            self.sent = first.others.take();
            let mut next = first.next.take();
            while let Some(mut sent) = next {
                next = sent.next.take();
            }
        }
        while let Some(mut chan) = self.chans.take() {
            self.chans = chan.next.take();
        }
        while let Some(mut conn) = self.conns.take() {
            self.conns = conn.next.take();
        }
    }
}
