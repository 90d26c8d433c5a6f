// SPDX-License-Identifier: GPL-2.0

//! Publish and subscribe on a channel: the cursors of the other program's subscriptions, and this program's own.

use core::mem::MaybeUninit;
use ibmsg_proto::{
    publish::{
        Feed,
        FeedStep,
        PublishError,
        PublishTerms,
        Request,
        Subscription, //
    },
    receive::Arrival,
    send::{
        Item,
        Refused, //
    },
    wire::{
        Message,
        Publication,
        PublishKind, //
    }, //
};
use ibtrs_proto::Errno;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::deque::Spare;

use super::{
    arrive::Fault,
    inbox::Incoming,
    out::About,
    Begun,
    Chan,
    Sent, //
};
use crate::{
    publish::{
        Follower,
        Logs, //
    },
    types::{
        Body,
        Event,
        Kind, //
    }, //
};

const FLAGS: kernel::alloc::Flags = GFP_ATOMIC;

/// A subscription of the other program.
struct Following {
    feed: Feed,
    /// Its number among the subscribers of the logs.
    number: u64,
}

/// The subscriptions of the other program to the logs of this end's portal.
pub(crate) struct Serving {
    logs: Arc<Logs>,
    who: Arc<dyn Follower>,
    most: usize,
    list: KVec<Following>,
    /// Which is served next.
    turn: usize,
    /// There may be something to send.
    is_dirty: bool,
    /// Bytes of what had no credits.
    lacks: u32,
}

impl Serving {
    /// No subscriptions.
    pub(crate) const fn new(logs: Arc<Logs>, who: Arc<dyn Follower>) -> Self {
        Self {
            logs,
            who,
            most: 0,
            list: KVec::new(),
            turn: 0,
            is_dirty: false,
            lacks: 0,
        }
    }

    /// There may be something to send, which needs fewer credits than what was to come next.
    fn changed(&mut self) {
        (self.is_dirty, self.lacks) = (true, 0);
    }

    /// What is to be queued next, for which subscription.
    fn next(&mut self) -> Option<(usize, FeedStep, Body)> {
        let count = self.list.len();
        for n in 0..count {
            let at = (self.turn + n) % count;
            let following = self.list.get_mut(at)?;
            match self.logs.step(&mut following.feed) {
                (FeedStep::Idle, _) | (FeedStep::Entry(_), None) => {}
                (step, None) => return Some((at, step, Body::new())),
                (step, Some(body)) => return Some((at, step, Body::shared(&body))),
            }
        }
        None
    }

    /// A subscription is to end. It holds nobody up any more.
    fn end(&mut self, at: usize, why: Option<Errno>) {
        if let Some(following) = self.list.get_mut(at) {
            following.feed.end(why);
            self.logs.moved(&following.feed, following.number);
        }
    }

    /// A step was queued.
    fn queued(&mut self, at: usize, step: FeedStep) {
        let Some(following) = self.list.get_mut(at) else {
            return;
        };
        following.feed.queued(step);
        let (tag, number) = (following.feed.tag(), following.number);
        self.turn = at + 1;
        if following.feed.is_over() {
            let _ = self.list.remove(at);
            self.logs.leave(tag, number);
        } else {
            self.logs.moved(&following.feed, number);
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        for following in &self.list {
            self.logs.leave(following.feed.tag(), following.number);
        }
    }
}

/// What a program asks for.
pub(crate) struct Ask {
    pub(crate) tag: u64,
    pub(crate) what: Publication,
    /// Memory for the message.
    pub(crate) place: Option<KBox<MaybeUninit<Sent>>>,
    pub(crate) body: Body,
    /// Memory for subscriptions, if the channel has had none.
    pub(crate) list: KVec<(u64, Subscription)>,
}

impl Chan {
    /// How many subscriptions the channel may have.
    fn most_subscriptions(&self) -> usize {
        let peer = self.peer.and_then(|peer| peer.publishing());
        usize::from(PublishTerms::agreed(peer, self.terms.window.publishing()))
    }

    // --- the publisher's end ---

    /// The other program may subscribe to the logs of the portal.
    pub(crate) fn serves(&mut self, mut serving: KBox<Serving>) {
        serving.most = self.most_subscriptions();
        self.serving = (serving.most > 0).then_some(serving);
    }

    /// Something was published.
    pub(crate) fn has_news(&mut self) {
        if let Some(serving) = &mut self.serving {
            serving.changed();
        }
    }

    /// Whether there is something for subscribers that can be sent.
    pub(super) fn has_news_to_send(&self) -> bool {
        let serving = self.serving.as_ref();
        serving.is_some_and(|serving| serving.is_dirty && self.can_send(serving.lacks))
    }

    /// Whether a message would be sent at once.
    fn can_send(&self, len: u32) -> bool {
        self.out.position(&self.proto.tx).is_none() && self.proto.tx.has_credit(len)
    }

    /// SUBSCRIBE or UNSUBSCRIBE has arrived.
    pub(super) fn asked(
        &mut self,
        kind: PublishKind,
        message: &Message<'_>,
        now: u64,
    ) -> Result<(), Fault> {
        let header = &message.hdr;
        let what = Publication::decode(kind, message).map_err(|e| Fault::Protocol(e.as_str()))?;
        // Without memory, nothing has changed.
        let mut rx = self.proto.rx;
        if rx.skip(header.number, header.total)? == Arrival::Skipped {
            match self.subscribe_peer(header.tag, &what) {
                Err(Fault::NoMemory) => return self.has_no_memory(header, now),
                result => result?,
            }
            self.inbox.drop_pieces();
        }
        self.proto.rx = rx;
        self.acknowledged(&header.ack)
    }

    fn subscribe_peer(&mut self, tag: u64, what: &Publication) -> Result<(), Fault> {
        let wrong = |e: PublishError| Fault::Protocol(e.as_str());
        let Some(serving) = &mut self.serving else {
            // After the end of this side, nobody serves.
            return match self.is_shut || self.proto.tx.is_stopped() {
                true => Ok(()),
                false => Err(wrong(PublishError::Side)),
            };
        };
        serving.changed();
        let at = serving.list.iter().position(|it| it.feed.tag() == tag);
        match (what, at) {
            (Publication::Subscribe(request), None) if serving.list.len() < serving.most => {
                serving
                    .list
                    .reserve(1, FLAGS | __GFP_NOWARN)
                    .map_err(|_| Fault::NoMemory)?;
                let (feed, number) = serving.logs.subscribe(tag, request, &serving.who)?;
                let _ = serving
                    .list
                    .push_within_capacity(Following { feed, number });
                Ok(())
            }
            (Publication::Subscribe(_), _) => Err(wrong(PublishError::Subscribe(tag))),
            (Publication::Unsubscribe, Some(at)) => {
                serving.end(at, None);
                Ok(())
            }
            // It has met an end.
            (Publication::Unsubscribe, None) => Ok(()),
            _ => Err(wrong(PublishError::Side)),
        }
    }

    /// Queues what comes next for a subscriber, if it can be sent at once. Returns whether it has.
    pub(super) fn serve_subscribers(&mut self, now: u64) -> bool {
        while self.has_news_to_send() {
            let Some(serving) = &mut self.serving else {
                return false;
            };
            let Some((at, step, body)) = serving.next() else {
                (serving.is_dirty, serving.lacks) = (false, 0);
                return false;
            };
            let (what, tag) = match (publication(step), serving.list.get(at)) {
                (Some(what), Some(following)) => (what, following.feed.tag()),
                _ => return false,
            };
            let body = match step {
                FeedStep::Entry(_) => Ok(body),
                _ => Body::copied(what.fields().content(), FLAGS | __GFP_NOWARN),
            };
            let Ok(body) = body else {
                self.wants_memory(now);
                return false;
            };
            if !self.proto.tx.may_be_long(body.len()) {
                if let Some(serving) = &mut self.serving {
                    serving.end(at, Some(Errno::EMSGSIZE));
                }
                continue;
            }
            if !self.can_send(body.len()) {
                if let Some(serving) = &mut self.serving {
                    serving.lacks = body.len();
                }
                return false;
            }
            match self.post_news(tag, &what, body, now) {
                Ok(()) => {
                    if let Some(serving) = &mut self.serving {
                        serving.lacks = 0;
                        serving.queued(at, step);
                    }
                    return true;
                }
                Err(error) => {
                    if error == ENOMEM {
                        self.wants_memory(now);
                    }
                    return false;
                }
            }
        }
        false
    }

    /// Queues a message of publishing.
    fn post_news(&mut self, tag: u64, what: &Publication, body: Body, now: u64) -> Result {
        let flags = FLAGS | __GFP_NOWARN;
        if let Some(lack) = self.out.lack() {
            self.out.extend(&mut Spare::new(lack, flags)?);
        }
        let place = KBox::new_uninit(flags)?;
        let item = self.queue_item(body.len())?;
        self.post(item, tag, what, body, place, now)
    }

    fn queue_item(&mut self, len: u32) -> Result<Item> {
        self.out.reserve()?;
        self.proto.tx.queue(len).map_err(|refused| {
            self.out.unreserve();
            match refused {
                Refused::TooLong => EMSGSIZE,
                Refused::Full => EAGAIN,
                Refused::Closed => EPIPE,
            }
        })
    }

    /// Puts a message of publishing into its place.
    fn post(
        &mut self,
        item: Item,
        tag: u64,
        what: &Publication,
        body: Body,
        place: KBox<MaybeUninit<Sent>>,
        now: u64,
    ) -> Result {
        let fields = what.fields();
        let batch = self.gather.add(item.len(), false, now, None);
        let sent = Sent {
            item,
            about: About {
                kind: Kind::Msg,
                publish: Some(fields.kind),
                flags: 0,
                tag,
                id: fields.id,
                may_tell: false,
            },
            batch,
            status: fields.status,
            deadline: None,
            body,
            put: None,
            release: None,
            next: None,
            others: None,
        };
        // There is a place in the queue.
        match self.out.push(KBox::write(place, sent)) {
            Ok(()) => Ok(()),
            Err(mut sent) => {
                self.proto.tx.release(sent.item.take());
                Err(ENOMEM)
            }
        }
    }

    // --- the subscriber's end ---

    /// This program subscribes, or wants no more. `ask` has the memory for that.
    ///
    /// # Errors
    ///
    /// - [`EAGAIN`] if there is no room, or the channel is not open yet,
    /// - [`EPIPE`] if nothing can be written any more,
    /// - [`EOPNOTSUPP`] if the other end publishes nothing,
    /// - [`EEXIST`], [`ENOENT`] if there is a subscription, or none,
    /// - [`EALREADY`] if it is ending,
    /// - [`ENOSPC`] if there are too many,
    /// - [`ENOMEM`] if there is no memory before [`Chan::extend`].
    pub(crate) fn ask(&mut self, ask: &mut Ask, now: u64) -> Result {
        if self.takes_no_more() {
            return Err(EPIPE);
        }
        if self.begun != Begun::Open {
            self.is_blocked = true;
            return Err(EAGAIN);
        }
        let most = self.most_subscriptions();
        let at = self
            .subscriptions
            .iter()
            .position(|(tag, _)| *tag == ask.tag);
        match (&ask.what, at) {
            _ if most == 0 || !self.is_opener => return Err(EOPNOTSUPP),
            (Publication::Subscribe(_), Some(_)) => return Err(EEXIST),
            (Publication::Subscribe(_), None) if self.subscriptions.len() >= most => {
                return Err(ENOSPC)
            }
            (Publication::Unsubscribe, None) => return Err(ENOENT),
            (Publication::Unsubscribe, Some(at)) => {
                let it = self.subscriptions.get(at);
                if it.is_some_and(|(_, it)| it.is_leaving()) {
                    return Err(EALREADY);
                }
            }
            _ => {}
        }
        let item = self.queue_item(ask.body.len()).inspect_err(|e| {
            self.is_blocked |= *e == EAGAIN;
        })?;
        let Some(place) = ask.place.take() else {
            self.out.unreserve();
            self.proto.tx.release(item);
            return Err(ENOMEM);
        };
        let body = core::mem::take(&mut ask.body);
        self.post(item, ask.tag, &ask.what, body, place, now)?;
        match (&ask.what, at) {
            (Publication::Subscribe(request), _) => {
                self.subscribed(ask.tag, *request, &mut ask.list)
            }
            (_, Some(at)) => {
                if let Some((_, it)) = self.subscriptions.get_mut(at) {
                    let _ = it.leave();
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn subscribed(&mut self, tag: u64, request: Request, list: &mut KVec<(u64, Subscription)>) {
        if self.subscriptions.capacity() < list.capacity() {
            for it in self.subscriptions.drain_all() {
                let _ = list.push_within_capacity(it);
            }
            core::mem::swap(&mut self.subscriptions, list);
        }
        let it = (tag, Subscription::new(request));
        let _ = self.subscriptions.push_within_capacity(it);
    }

    /// The end of a subscription of which the program is to be told next, with its tag: the publisher's program has closed its
    /// end, or has died, and its kernel had no credits, or no time, to say so for each subscription before. This needs no
    /// memory, and comes behind all messages. After another end of the channel, subscriptions go on by another one.
    pub(super) fn cut_off(&self) -> Option<(u64, u64, Option<Errno>)> {
        let end = self.end?;
        if end.is_told || end.reason != 0 || self.is_shut {
            return None;
        }
        let (tag, it) = self.subscriptions.first()?;
        let (position, why) = it.cut_off();
        Some((*tag, position, why))
    }

    /// Makes what the other end has sent of publishing a message for the program.
    pub(super) fn takes_news(
        &mut self,
        kind: PublishKind,
        message: &Message<'_>,
        incoming: &mut Incoming,
    ) -> Result<(), Fault> {
        let wrong = |e: PublishError| Fault::Protocol(e.as_str());
        // An entry came in pieces, perhaps; what of it counts is in the header.
        let what = match kind {
            PublishKind::Published => Publication::Published(message.hdr.id),
            _ => Publication::decode(kind, message).map_err(|e| Fault::Protocol(e.as_str()))?,
        };
        let tag = message.hdr.tag;
        let at = self.subscriptions.iter().position(|(of, _)| *of == tag);
        let Some(at) = at else {
            return Err(wrong(PublishError::NoSubscription(tag)));
        };
        let Some((_, it)) = self.subscriptions.get_mut(at) else {
            return Ok(());
        };
        let event = match what {
            Publication::Published(position) => {
                it.published(position).map_err(wrong)?;
                None
            }
            Publication::Subscribed(log, position) => {
                it.subscribed(log, position).map_err(wrong)?;
                Some(Event::Subscribed)
            }
            Publication::Lost(first, count) => {
                it.lost(first, count).map_err(wrong)?;
                Some(Event::Lost)
            }
            Publication::Ended(position, why) => {
                it.ended(position, why).map_err(wrong)?;
                let _ = self.subscriptions.remove(at);
                Some(Event::Unsubscribed)
            }
            Publication::Subscribe(_) | Publication::Unsubscribe => {
                return Err(wrong(PublishError::Side));
            }
        };
        incoming.kind = match event {
            None => Kind::Published,
            Some(_) => Kind::Event,
        };
        incoming.event = event;
        incoming.id = message.hdr.id;
        incoming.status = message.hdr.status;
        Ok(())
    }
}

/// What to send for a step.
fn publication(step: FeedStep) -> Option<Publication> {
    Some(match step {
        FeedStep::Subscribed(log, position) => Publication::Subscribed(log, position),
        FeedStep::Lost(first, count) => Publication::Lost(first, count),
        FeedStep::Entry(position) => Publication::Published(position),
        FeedStep::Ended(position, why) => Publication::Ended(position, why),
        FeedStep::Idle => return None,
    })
}
