// SPDX-License-Identifier: GPL-2.0

//! Notifies another module of what its channel has for it.
//!
//! A program polls or waits. The channel of another module has a [`Listener`] in place of that, and one [`Ticket`]. The
//! holder of the ticket takes messages from the channel and calls handlers, so that this happens on one CPU at a time
//! and in order. A channel that has nothing for its module keeps the ticket. When something comes, the ticket is taken
//! out under the lock of the session, and passed to the listener after the lock is dropped ([`Tickets`]).

use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Is notified when a channel has something for its module.
pub(crate) trait Listener: Send + Sync {
    /// The channel has something. `arrives`: it has just arrived in a frame, and the caller may run handlers.
    ///
    /// # Context
    ///
    /// *any*. The caller holds no lock.
    fn ready(&self, ticket: KBox<Ticket>, arrives: bool);

    /// The ticket was dropped: there will be no other notification, and no handler runs.
    ///
    /// # Context
    ///
    /// *any*
    fn over(&self);
}

/// The right to take what a channel has for its listener.
pub(crate) struct Ticket {
    listener: Arc<dyn Listener>,
    /// The next one in a list.
    next: Option<KBox<Ticket>>,
}

impl Ticket {
    /// The ticket of a channel.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn new(listener: Arc<dyn Listener>) -> Result<KBox<Self>> {
        let next = None;
        Ok(KBox::new(Self { listener, next }, GFP_KERNEL)?)
    }

    fn ready(this: KBox<Self>, arrives: bool) {
        let listener = this.listener.clone();
        listener.ready(this, arrives);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.listener.over();
    }
}

/// Tickets of channels that have something. Adding one allocates nothing. Dropping this notifies the listeners.
pub(crate) struct Tickets(Option<KBox<Ticket>>);

impl Tickets {
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    /// Adds a ticket.
    pub(crate) fn push(&mut self, mut ticket: KBox<Ticket>) {
        ticket.next = self.0.take();
        self.0 = Some(ticket);
    }

    fn pop(&mut self) -> Option<KBox<Ticket>> {
        let mut first = self.0.take()?;
        self.0 = first.next.take();
        Some(first)
    }

    fn ready(&mut self, arrives: bool) {
        while let Some(ticket) = self.pop() {
            Ticket::ready(ticket, arrives);
        }
    }

    /// Takes all tickets out, for [`Tickets::arrived`].
    pub(crate) fn take(&mut self) -> Self {
        Self(self.0.take())
    }

    /// Notifies the listeners of what has just arrived.
    ///
    /// # Context
    ///
    /// *any*. The caller holds no lock.
    pub(crate) fn arrived(mut self) {
        self.ready(true);
    }
}

impl Drop for Tickets {
    fn drop(&mut self) {
        self.ready(false);
    }
}
