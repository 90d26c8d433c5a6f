// SPDX-License-Identifier: GPL-2.0

//! Calls the handlers of a channel.
//!
//! Only the holder of the channel's ticket takes what there is, and has the [`Callee`]. It puts that back before the
//! ticket goes back to the channel, or is dropped, so that the owner, who waits for the latter, has the last reference
//! to the receiver.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    sync::atomic::{
        Full,
        Relaxed, //
    },
    work::WorkItem, //
};

use super::{
    error,
    receiver::{
        Closed,
        Reply,
        Request, //
    },
    Callee,
    ChannelInner, //
    ChannelRef,
    HandlerContext,
};
use crate::{
    channel::{
        Delivery,
        Listener,
        Taken,
        Ticket, //
    },
    types::{
        Body,
        Event,
        Header,
        Kind,
        F_KERNEL, //
    }, //
};

/// Handlers that run before others of the CPU get their turn.
const BATCH: u32 = 32;

/// The listener of a channel.
struct InnerListener(Arc<ChannelInner>);

/// The listener of a channel.
///
/// # Errors
///
/// [`ENOMEM`]
pub(super) fn listener(inner: &Arc<ChannelInner>) -> Result<Arc<dyn Listener>> {
    let listener: Arc<dyn Listener> = Arc::new(InnerListener(inner.clone()), GFP_KERNEL)?;
    Ok(listener)
}

impl Listener for InnerListener {
    fn ready(&self, ticket: KBox<Ticket>, arrives: bool) {
        match arrives && self.0.context == HandlerContext::Arrival {
            true => ChannelInner::deliver(&self.0, ticket),
            false => ChannelInner::later(&self.0, ticket),
        }
    }

    fn over(&self) {
        self.0.is_silent.complete_all();
    }
}

impl WorkItem for ChannelInner {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if let Some(ticket) = this.waiting.take() {
            Self::deliver(&this, ticket);
        }
    }
}

impl ChannelInner {
    /// Has the work item deliver what there is.
    fn later(this: &Arc<Self>, ticket: KBox<Ticket>) {
        // There is one ticket, and so a place for it.
        let _ = this.waiting.put(ticket);
        // ORDERING: Pairs with `Held::leave`: either this sees the flag, or that takes the ticket.
        match this.is_left.cmpxchg(false, false, Full) {
            Ok(_) => {
                this.work.enqueue(this.clone());
            }
            Err(_) => drop(this.waiting.take()),
        }
    }

    /// Calls handlers until the channel has nothing more, or others are to get their turn.
    fn deliver(this: &Arc<Self>, ticket: KBox<Ticket>) {
        let channel = ChannelRef(this.clone());
        let (mut ticket, mut done) = (Some(ticket), None);
        for _ in 0..BATCH {
            let Some(delivery) = this.end.next(done.take(), &mut ticket) else {
                return;
            };
            let Some(callee) = this.callee.take() else {
                return;
            };
            done = callee.handle(this, &channel, delivery);
            let _ = this.callee.put(callee);
        }
        if let Some(done) = done {
            this.end.took(done);
        }
        if let Some(ticket) = ticket {
            Self::later(this, ticket);
        }
    }
}

impl Callee {
    /// Calls the handler. Returns what counts as taken now.
    fn handle(
        &self,
        inner: &ChannelInner,
        channel: &ChannelRef,
        delivery: Delivery,
    ) -> Option<Taken> {
        let receiver = &*self.receiver;
        match delivery {
            Delivery::Room => {
                receiver.room(channel);
                None
            }
            Delivery::Item(Taken::Message(mut message)) => {
                // The credits that come back are those of the length that it had.
                let body = core::mem::take(&mut message.body);
                match message.kind {
                    Kind::Request => receiver.request(
                        channel,
                        Request {
                            id: message.id,
                            tag: message.tag,
                            body,
                        },
                    ),
                    Kind::Reply => {
                        let status = error(message.status);
                        receiver.reply(channel, message.tag, Ok(Reply { status, body }));
                    }
                    _ => receiver.message(channel, message.tag, body),
                }
                Some(Taken::Message(message))
            }
            Delivery::Item(Taken::Notice(notice)) => {
                let outcome = error(notice.status);
                match notice.kind {
                    Kind::Reply if notice.flags & F_KERNEL != 0 => {
                        let reply = outcome.map(|()| Reply {
                            status: Ok(()),
                            body: Body::new(),
                        });
                        receiver.reply(channel, notice.tag, reply);
                    }
                    _ => receiver.outcome(channel, notice.tag, outcome),
                }
                Some(Taken::Notice(notice))
            }
            Delivery::Item(Taken::Event(header, body)) => {
                self.event(inner, channel, &header);
                Some(Taken::Event(header, body))
            }
        }
    }

    fn event(&self, inner: &ChannelInner, channel: &ChannelRef, header: &Header) {
        match header.event {
            Some(Event::Closed) => {
                let closed = Closed {
                    reason: error(header.status),
                    taken: header.tag,
                    queued: header.id,
                };
                self.receiver.closed(channel, closed);
                // ORDERING: The owner looks at it in a work item, which the call below queues.
                inner.has_ended.store(true, Relaxed);
                if let Some(owner) = &self.owner {
                    owner.ended();
                }
            }
            Some(Event::PathLost) => self.receiver.path(channel, false),
            Some(Event::PathBack) => self.receiver.path(channel, true),
            Some(Event::Draining) => {
                let seconds = u32::try_from(header.tag).unwrap_or(0);
                self.receiver.draining(channel, seconds);
            }
            Some(Event::KeyRevoked) => {
                let why = error(header.status).err().unwrap_or(ENOKEY);
                self.receiver.key_revoked(channel, why);
            }
            // The owner has waited for the first one, and modules have no subscriptions.
            Some(Event::Connected | Event::Subscribed | Event::Lost | Event::Unsubscribed)
            | None => {}
        }
    }
}
