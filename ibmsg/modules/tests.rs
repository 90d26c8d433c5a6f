// SPDX-License-Identifier: GPL-2.0

//! Tests of portals and channels of modules, over the link of one machine.

use super::*;
use crate::{
    access::Access,
    hub::{
        Handlers,
        Hub, //
    },
    limits::Limits,
    link::Local,
    peers::Peers,
    portal::Portals,
    session::{
        LogLimits,
        Shared,
        Side, //
    },
    types::{
        Body,
        Header,
        Kind,
        Name, //
    }, //
};
use ibmsg_proto::access::Peer;
use ibtrs_core::messages::Role;
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use kx::{
    sync::{
        atomic::{
            Atomic,
            AtomicFlag,
            Full,
            Relaxed, //
        },
        Completion, //
    },
    work::{
        Options,
        Queue, //
    }, //
};

const PORTAL: &[u8] = b"kv";
/// For how long a test waits for anything: an emulated guest on a busy machine is slow.
const LIMIT_MS: u32 = 60_000;

/// Two sides of a session of one machine.
struct World {
    hub: Arc<Hub>,
    link: Arc<Local>,
    sides: [Side; 2],
}

impl World {
    /// `loss`: see [`Local::new`].
    fn new(loss: u32) -> Result<Self> {
        Self::with_handlers(loss, Options::unbound())
    }

    /// `handlers`: the kind of queues for those.
    fn with_handlers(loss: u32, handlers: Options) -> Result<Self> {
        let queue = Queue::new(Options::unbound(), fmt!("ibmsg-test"))?;
        let handlers = Handlers::new(handlers)?;
        let shared = Shared {
            portals: Portals::new()?,
            access: Access::new()?,
            log_limits: LogLimits::new()?,
            limits: Limits::new(1 << 40, 1 << 40)?,
            queue: queue.clone(),
        };
        let name = Name::new(b"local")?;
        let side = |role| Side::new(role, name, Peer::Local, &shared);
        let sides = [side(Role::Client)?, side(Role::Server)?];
        let [client, server] = &sides;
        let uppers = [client.as_upper()?, server.as_upper()?];
        let peers = Peers::new(shared.clone(), name)?;
        let hub = Hub {
            shared,
            local: client.clone(),
            local_portals: server.clone(),
            peers,
            handlers,
            is_ready: AtomicFlag::new(true),
        };
        let hub = Arc::new(hub, GFP_KERNEL)?;
        let link = Local::new(queue, uppers, loss)?;
        Ok(Self { hub, link, sides })
    }

    fn bind(&self, channels: ChannelOptions, service: Arc<dyn Service>) -> Result<Portal> {
        let options = PortalOptions {
            channels,
            ..PortalOptions::default()
        };
        Portal::bind_at(self.hub.clone(), PORTAL, &options, service)
    }

    fn connect(&self, channel: ChannelOptions, receiver: Arc<dyn Receiver>) -> Result<Channel> {
        let options = ConnectOptions {
            channel,
            timeout_ms: LIMIT_MS,
            ..ConnectOptions::default()
        };
        Channel::connect_at(&self.hub, b"local", PORTAL, &options, receiver)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.link.close();
        for side in &self.sides {
            side.close();
        }
        self.hub.peers.close();
        self.hub.shared.queue.flush();
        self.hub.handlers.flush();
    }
}

/// Waits until something holds. Returns whether it does.
fn comes(mut holds: impl FnMut() -> bool) -> bool {
    for _ in 0..LIMIT_MS {
        if holds() {
            return true;
        }
        fsleep(Delta::from_millis(1));
    }
    false
}

fn in_context(context: HandlerContext) -> ChannelOptions {
    ChannelOptions {
        context,
        ..ChannelOptions::default()
    }
}

/// The least that a channel may have.
fn narrow() -> ChannelOptions {
    ChannelOptions {
        recv_msgs: 4,
        send_msgs: 4,
        ..ChannelOptions::default()
    }
}

/// What handlers were called with, and whether that was right.
#[pin_data]
struct Log {
    /// A handler runs.
    is_busy: AtomicFlag,
    /// Two handlers ran at a time, or something came out of order.
    is_wrong: AtomicFlag,
    messages: Atomic<u64>,
    requests: Atomic<u64>,
    rooms: Atomic<u32>,
    /// The errno with which the last call or channel has ended; -1 for success, 0 for none.
    reply: Atomic<i32>,
    closed: Atomic<i32>,
    /// Messages are taken when this has happened, if they wait for it.
    waits: bool,
    #[pin]
    may_go_on: Completion,
    #[pin]
    has_begun: Completion,
}

impl Log {
    fn new(waits: bool) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                is_busy: AtomicFlag::new(false),
                is_wrong: AtomicFlag::new(false),
                messages: Atomic::new(0),
                requests: Atomic::new(0),
                rooms: Atomic::new(0),
                reply: Atomic::new(0),
                closed: Atomic::new(0),
                waits,
                may_go_on <- Completion::new(),
                has_begun <- Completion::new(),
            }),
            GFP_KERNEL,
        )
    }

    fn alone(&self, f: impl FnOnce()) {
        if self.is_busy.xchg(true, Full) {
            self.is_wrong.store(true, Relaxed);
        }
        f();
        self.is_busy.store(false, Relaxed);
    }
}

fn number(result: Result) -> i32 {
    result.map_or_else(|error| error.to_errno(), |()| 1)
}

/// Handlers that keep a log.
struct Hears(Arc<Log>, Arc<Completion>);

impl Drop for Hears {
    fn drop(&mut self) {
        self.1.complete_all();
    }
}

impl Receiver for Hears {
    fn message(&self, channel: &ChannelRef, tag: u64, body: Body) {
        self.0.alone(|| {
            self.0.has_begun.complete_all();
            if self.0.waits {
                let _ = self.0.may_go_on.wait_timeout(LIMIT_MS);
            }
            if tag != self.0.messages.fetch_add(1, Relaxed) {
                self.0.is_wrong.store(true, Relaxed);
            }
            if body.len() == 1 {
                channel.close();
            }
        });
    }

    fn request(&self, _channel: &ChannelRef, _request: Request) {
        // It has no answer.
        self.0.alone(|| {
            self.0.requests.fetch_add(1, Relaxed);
        });
    }

    fn reply(&self, _channel: &ChannelRef, _tag: u64, reply: Result<Reply>) {
        let result = reply.and_then(|reply| reply.status);
        self.0.alone(|| self.0.reply.store(number(result), Relaxed));
    }

    fn room(&self, _channel: &ChannelRef) {
        self.0.alone(|| {
            self.0.rooms.fetch_add(1, Relaxed);
        });
    }

    fn closed(&self, _channel: &ChannelRef, closed: Closed) {
        self.0
            .alone(|| self.0.closed.store(number(closed.reason), Relaxed));
    }
}

/// A receiver for a log, and what happens when it is dropped.
fn hears(log: &Arc<Log>) -> Result<(Arc<dyn Receiver>, Arc<Completion>)> {
    let is_gone = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
    let receiver = Arc::new(Hears(log.clone(), is_gone.clone()), GFP_KERNEL)?;
    Ok((receiver, is_gone))
}

/// Accepts one channel, with this receiver.
struct Accepts(kx::sync::TakeCell<Arc<dyn Receiver>>);

impl Service for Accepts {
    fn offered(&self, offer: &Offer<'_>) -> Result<Answer> {
        match offer.is_authenticated() && **offer.session() == *b"local" {
            true => self.0.take().map(Answer::accept).ok_or(EBUSY),
            false => Err(EPERM),
        }
    }
}

fn accepts(receiver: Arc<dyn Receiver>) -> Result<Arc<dyn Service>> {
    let service: Arc<dyn Service> =
        Arc::new(Accepts(kx::sync::TakeCell::new(receiver)), GFP_KERNEL)?;
    Ok(service)
}

/// Answers requests with their content.
struct Echo;

impl Receiver for Echo {
    fn request(&self, channel: &ChannelRef, request: Request) {
        let status = match request.tag % 3 {
            0 => Err(ENOTTY),
            _ => Ok(()),
        };
        if channel.reply(request.id, status, request.body).is_err() {
            channel.close();
        }
    }
}

/// Makes the next call when it hears the reply to the last one.
#[pin_data]
struct Caller {
    replies: Atomic<u64>,
    is_wrong: AtomicFlag,
    #[pin]
    is_done: Completion,
}

impl Caller {
    /// Content that goes with a tag.
    fn content(tag: u64) -> Result<Body> {
        // CAST: Small, and the lowest byte.
        let content = KVec::from_elem(tag as u8, (tag * 97 % 9000) as usize, GFP_ATOMIC)?;
        Body::try_from(content).map_err(|_| EMSGSIZE)
    }

    fn call(channel: &ChannelRef, tag: u64) -> Result {
        Ok(channel.call(Self::content(tag)?, tag, 0)?)
    }

    fn is_right(tag: u64, reply: Result<Reply>) -> bool {
        let (Ok(reply), Ok(sent)) = (reply, Self::content(tag)) else {
            return false;
        };
        let all = |body: &Body| {
            let bytes = body.slices().flatten();
            bytes.filter(|byte| **byte == tag as u8).count()
        };
        (tag % 3 == 0) == (reply.status == Err(ENOTTY))
            && reply.body.len() == sent.len()
            && all(&reply.body) == all(&sent)
    }
}

impl Receiver for Caller {
    fn reply(&self, channel: &ChannelRef, tag: u64, reply: Result<Reply>) {
        let is_right = Self::is_right(tag, reply) && self.replies.fetch_add(1, Relaxed) == tag;
        let next = match is_right {
            true if tag == 199 => Err(ENODATA),
            true => Self::call(channel, tag + 1),
            false => Err(EBADMSG),
        };
        if let Err(error) = next {
            self.is_wrong.store(error != ENODATA, Relaxed);
            self.is_done.complete_all();
        }
    }
}

/// Calls that are made and answered by handlers. Returns whether all were right.
fn calls(context: HandlerContext, loss: u32) -> Result<bool> {
    let world = World::new(loss)?;
    let options = in_context(context);
    let portal = world.bind(options, accepts(Arc::new(Echo, GFP_KERNEL)?)?)?;
    let caller = Arc::pin_init(
        pin_init!(Caller {
            replies: Atomic::new(0),
            is_wrong: AtomicFlag::new(false),
            is_done <- Completion::new(),
        }),
        GFP_KERNEL,
    )?;
    let channel = world.connect(options, caller.clone())?;
    Caller::call(&channel, 0)?;
    caller.is_done.wait_timeout(LIMIT_MS)?;
    drop((portal, channel));
    Ok(!caller.is_wrong.load(Relaxed))
}

/// Sends a message with a tag.
fn send(channel: &ChannelRef, tag: u64, content: &[u8]) -> Result {
    let options = SendOptions {
        tag,
        ..SendOptions::default()
    };
    Ok(channel.send(Body::copied(content, GFP_ATOMIC)?, options)?)
}

/// Sends messages with these tags; waits for room when there is none.
fn send_all(channel: &ChannelRef, log: &Log, tags: core::ops::Range<u64>) -> Result {
    for tag in tags {
        loop {
            let rooms = log.rooms.load(Relaxed);
            match send(channel, tag, b"abc") {
                Err(EAGAIN) if comes(|| log.rooms.load(Relaxed) != rooms) => {}
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
    }
    Ok(())
}

/// Sends two messages for each that arrives.
struct Doubles;

impl Receiver for Doubles {
    fn message(&self, channel: &ChannelRef, _tag: u64, _body: Body) {
        for tag in 0..2 {
            let _ = send(channel, tag, b"abc");
        }
    }
}

/// Replies as if there were no memory, until that succeeds.
struct Starved;

impl Receiver for Starved {
    fn request(&self, channel: &ChannelRef, request: Request) {
        let header = Header {
            id: request.id,
            ..Header::new(Kind::Reply)
        };
        let mut reply = || channel.end().post_starved(&header, Body::new()).is_ok();
        if !comes(&mut reply) {
            channel.close();
        }
    }
}

/// Accepts each channel with [`Doubles`].
struct Doubling;

impl Service for Doubling {
    fn offered(&self, _offer: &Offer<'_>) -> Result<Answer> {
        Ok(Answer::accept(Arc::new(Doubles, GFP_KERNEL)?))
    }
}

/// Drops something in another task. Returns what happens then.
fn drop_elsewhere<T: Send + 'static>(queue: &Queue, what: T) -> Result<Arc<Completion>> {
    let is_dropped = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
    let has_begun = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
    let (done, begins) = (is_dropped.clone(), has_begun.clone());
    queue.spawn(GFP_KERNEL, move || {
        begins.complete_all();
        drop(what);
        done.complete_all();
    })?;
    // A worker of a busy machine may take its time to begin.
    has_begun.wait_timeout(LIMIT_MS)?;
    Ok(is_dropped)
}

/// While a handler of `log` waits, something is being dropped that has its receiver. Returns what is wrong.
fn dropped_late(
    log: &Log,
    is_dropped: &Completion,
    is_gone: &Completion,
) -> Result<(), &'static str> {
    fsleep(Delta::from_millis(100));
    let is_early = is_dropped.is_done() || is_gone.is_done();
    log.may_go_on.complete_all();
    match (
        is_dropped.wait_timeout(LIMIT_MS),
        log.messages.load(Relaxed),
    ) {
        _ if is_early => Err("the handler was not waited for"),
        (Err(_), _) => Err("it is not dropped"),
        _ if !is_gone.is_done() => Err("the receiver is not dropped"),
        (_, 1) => Ok(()),
        _ => Err("another message was delivered"),
    }
}

#[kernel::macros::kunit_tests(ibmsg_modules)]
mod suite {
    use super::*;

    #[test]
    fn handlers_call_and_reply() -> Result {
        for context in [HandlerContext::WorkItem, HandlerContext::Arrival] {
            assert!(calls(context, 0)?);
        }
        Ok(())
    }

    #[test]
    fn handlers_call_and_reply_while_the_link_is_lost() -> Result {
        assert!(calls(HandlerContext::Arrival, 50)?);
        Ok(())
    }

    #[test]
    fn a_call_needs_no_larger_table() -> Result {
        let world = World::new(0)?;
        let (log, own) = (Log::new(true)?, Log::new(false)?);
        let options = ChannelOptions {
            recv_calls: 100,
            send_msgs: 300,
            ..ChannelOptions::default()
        };
        let portal = world.bind(options, accepts(hears(&log)?.0)?)?;
        let channel = world.connect(options, hears(&own)?.0)?;
        let room = || channel.end().room_for_calls();
        let before = room();
        assert!(before >= 100);
        for tag in 0..100 {
            channel.call(Body::new(), tag, 0)?;
        }
        let refused = channel.call(Body::new(), 100, 0).map_err(Error::from);
        assert_eq!(refused, Err(EAGAIN));
        assert_eq!(room(), before);
        log.may_go_on.complete_all();
        drop((portal, channel));
        Ok(())
    }

    #[test]
    fn a_sender_is_notified_of_room() -> Result {
        for context in [HandlerContext::WorkItem, HandlerContext::Arrival] {
            let world = World::new(0)?;
            let (log, own) = (Log::new(true)?, Log::new(false)?);
            let portal = world.bind(narrow(), accepts(hears(&log)?.0)?)?;
            let options = ChannelOptions {
                context,
                ..narrow()
            };
            let channel = world.connect(options, hears(&own)?.0)?;
            // As many as both ends have room for: the handler has the first one.
            send_all(&channel, &own, 0..8)?;
            let rooms = own.rooms.load(Relaxed);
            assert_eq!(send(&channel, 8, b"abc"), Err(EAGAIN));
            fsleep(Delta::from_millis(20));
            assert_eq!(send(&channel, 8, b"abc"), Err(EAGAIN));
            assert_eq!(
                (own.rooms.load(Relaxed), log.messages.load(Relaxed)),
                (rooms, 0)
            );
            log.may_go_on.complete_all();
            assert!(comes(|| own.rooms.load(Relaxed) > rooms));
            send_all(&channel, &own, 8..300)?;
            assert!(comes(|| log.messages.load(Relaxed) == 300));
            assert!(!log.is_wrong.load(Relaxed) && !own.is_wrong.load(Relaxed));
            drop((portal, channel));
        }
        Ok(())
    }

    #[test]
    fn a_sender_is_notified_of_memory() -> Result {
        for context in [HandlerContext::WorkItem, HandlerContext::Arrival] {
            let world = World::new(0)?;
            let (log, own) = (Log::new(false)?, Log::new(false)?);
            let portal = world.bind(in_context(context), accepts(hears(&log)?.0)?)?;
            let channel = world.connect(in_context(context), hears(&own)?.0)?;
            let body = Body::copied(b"abc", GFP_KERNEL)?;
            let header = Header {
                len: body.len(),
                ..Header::new(Kind::Msg)
            };
            let Err((error, body)) = channel.end().post_starved(&header, body) else {
                return Err(EINVAL);
            };
            assert_eq!(error, ENOMEM);
            assert!(comes(|| own.rooms.load(Relaxed) == 1));
            assert!(channel.send(body, SendOptions::default()).is_ok());
            assert!(comes(|| log.messages.load(Relaxed) == 1));
            assert_eq!(own.rooms.load(Relaxed), 1);
            drop((portal, channel));
        }
        Ok(())
    }

    #[test]
    fn a_reply_needs_no_memory() -> Result {
        let world = World::new(0)?;
        let own = Log::new(false)?;
        let service = accepts(Arc::new(Starved, GFP_KERNEL)?)?;
        let portal = world.bind(ChannelOptions::default(), service)?;
        let channel = world.connect(ChannelOptions::default(), hears(&own)?.0)?;
        // The second one is answered by memory that was allocated after the first one.
        for _ in 0..2 {
            own.reply.store(0, Relaxed);
            channel.call(Body::new(), 0, 0)?;
            assert!(comes(|| own.reply.load(Relaxed) == 1));
            fsleep(Delta::from_millis(100));
        }
        drop((portal, channel));
        Ok(())
    }

    #[test]
    fn a_long_batch_is_delivered_in_order() -> Result {
        for context in [HandlerContext::WorkItem, HandlerContext::Arrival] {
            let world = World::new(0)?;
            // Where they may wait, most of them do so behind the first one.
            let log = Log::new(context == HandlerContext::WorkItem)?;
            let own = Log::new(false)?;
            let portal = world.bind(in_context(context), accepts(hears(&log)?.0)?)?;
            let channel = world.connect(in_context(context), hears(&own)?.0)?;
            send_all(&channel, &own, 0..400)?;
            log.may_go_on.complete_all();
            assert!(comes(|| log.messages.load(Relaxed) == 400));
            drop(portal);
            assert!(comes(|| own.closed.load(Relaxed) == 1));
            assert!(!log.is_wrong.load(Relaxed));
        }
        Ok(())
    }

    #[test]
    fn messages_wait_for_others() -> Result {
        let more = |tag| SendOptions {
            tag,
            more: true,
            ..SendOptions::default()
        };
        let body = || Body::copied(b"abc", GFP_KERNEL);
        for loss in [0, 20] {
            let world = World::new(loss)?;
            let (log, own) = (Log::new(false)?, Log::new(false)?);
            let portal = world.bind(ChannelOptions::default(), accepts(hears(&log)?.0)?)?;
            let channel = world.connect(ChannelOptions::default(), hears(&own)?.0)?;
            // Their time is over, or they are flushed.
            channel.send(body()?, more(0))?;
            assert!(comes(|| log.messages.load(Relaxed) == 1));
            channel.send(body()?, more(1))?;
            channel.flush();
            assert!(comes(|| log.messages.load(Relaxed) == 2));
            for tag in 2..200 {
                channel.send(body()?, more(tag))?;
            }
            send_all(&channel, &own, 200..201)?;
            assert!(comes(|| log.messages.load(Relaxed) == 201));
            // This one is sent as the channel is closed.
            channel.send(body()?, more(201))?;
            drop(channel);
            assert!(comes(|| log.messages.load(Relaxed) == 202));
            assert!(!log.is_wrong.load(Relaxed));
            drop(portal);
        }
        Ok(())
    }

    #[test]
    fn dropping_a_channel_needs_no_worker() -> Result {
        // One handler has the only worker of each queue.
        let world = World::with_handlers(0, Options::ordered())?;
        let portal = world.bind(ChannelOptions::default(), Arc::new(Doubling, GFP_KERNEL)?)?;
        let (log, other) = (Log::new(true)?, Log::new(false)?);
        let channel = world.connect(ChannelOptions::default(), hears(&log)?.0)?;
        let (receiver, is_gone) = hears(&other)?;
        let second = world.connect(ChannelOptions::default(), receiver)?;
        // The portal's handlers answer, as they have another queue.
        send(&channel, 0, b"abc")?;
        log.has_begun.wait_timeout(LIMIT_MS)?;
        send(&second, 0, b"abc")?;
        assert!(comes(|| second.end().is_due()));
        let is_dropped = drop_elsewhere(&world.hub.shared.queue, second)?;
        assert_eq!(is_dropped.wait_timeout(LIMIT_MS), Ok(()));
        assert!(is_gone.is_done() && other.messages.load(Relaxed) == 0);
        log.may_go_on.complete_all();
        drop((channel, portal));
        Ok(())
    }

    #[test]
    fn dropping_a_portal_waits_for_handlers() -> Result {
        let world = World::new(0)?;
        let (log, own) = (Log::new(true)?, Log::new(false)?);
        let (receiver, is_gone) = hears(&log)?;
        let portal = world.bind(ChannelOptions::default(), accepts(receiver)?)?;
        let channel = world.connect(ChannelOptions::default(), hears(&own)?.0)?;
        send_all(&channel, &own, 0..2)?;
        channel.call(Body::new(), 0, 0)?;
        log.has_begun.wait_timeout(LIMIT_MS)?;
        let is_dropped = drop_elsewhere(&world.hub.shared.queue, portal)?;
        assert_eq!(dropped_late(&log, &is_dropped, &is_gone), Ok(()));
        // The other end hears of it, and that its request was not taken.
        assert!(comes(|| own.closed.load(Relaxed) == 1));
        assert_eq!(own.reply.load(Relaxed), ECANCELED.to_errno());
        assert_eq!(send(&channel, 2, b"abc"), Err(EPIPE));
        Ok(())
    }

    #[test]
    fn dropping_a_channel_waits_for_its_handler() -> Result {
        let world = World::new(0)?;
        let log = Log::new(true)?;
        let (receiver, is_gone) = hears(&log)?;
        let service = accepts(Arc::new(Doubles, GFP_KERNEL)?)?;
        let portal = world.bind(ChannelOptions::default(), service)?;
        let channel = world.connect(ChannelOptions::default(), receiver)?;
        let other = ChannelRef::clone(&channel);
        send(&channel, 0, b"abc")?;
        log.has_begun.wait_timeout(LIMIT_MS)?;
        let is_dropped = drop_elsewhere(&world.hub.shared.queue, channel)?;
        assert_eq!(dropped_late(&log, &is_dropped, &is_gone), Ok(()));
        assert_eq!(send(&other, 1, b"abc"), Err(EPIPE));
        assert_eq!(log.closed.load(Relaxed), 0);
        drop(portal);
        Ok(())
    }

    #[test]
    fn a_handler_closes_its_channel() -> Result {
        for context in [HandlerContext::WorkItem, HandlerContext::Arrival] {
            let world = World::new(0)?;
            let (log, own) = (Log::new(false)?, Log::new(false)?);
            let (receiver, is_gone) = hears(&log)?;
            let portal = world.bind(in_context(context), accepts(receiver)?)?;
            let channel = world.connect(in_context(context), hears(&own)?.0)?;
            // A message of one byte closes the channel.
            send(&channel, 0, b"a")?;
            assert!(comes(|| own.closed.load(Relaxed) == 1));
            // The portal drops what it has of the channel.
            assert_eq!(is_gone.wait_timeout(LIMIT_MS), Ok(()));
            assert_eq!(log.closed.load(Relaxed), 1);
            drop(channel);
            assert!(comes(|| world.sides.iter().all(|side| !side.is_used())));
            drop(portal);
        }
        Ok(())
    }

    #[test]
    fn calls_without_an_answer() -> Result {
        let world = World::new(0)?;
        let (log, own) = (Log::new(false)?, Log::new(false)?);
        let options = in_context(HandlerContext::Arrival);
        let portal = world.bind(options, accepts(hears(&log)?.0)?)?;
        let channel = world.connect(options, hears(&own)?.0)?;
        // No frame arrives when a time is over.
        channel.call(Body::new(), 0, 20)?;
        assert!(comes(|| own.reply.load(Relaxed) == ETIMEDOUT.to_errno()));
        channel.call(Body::new(), 0, 0)?;
        assert!(comes(|| log.requests.load(Relaxed) == 2));
        drop(portal);
        assert!(comes(|| own.closed.load(Relaxed) == 1));
        assert_eq!(own.reply.load(Relaxed), ECONNRESET.to_errno());
        Ok(())
    }

    #[test]
    fn a_session_ends() -> Result {
        let world = World::new(0)?;
        let (log, own) = (Log::new(false)?, Log::new(false)?);
        let portal = world.bind(ChannelOptions::default(), accepts(hears(&log)?.0)?)?;
        let channel = world.connect(ChannelOptions::default(), hears(&own)?.0)?;
        for side in &world.sides {
            side.close();
        }
        let aborted = ECONNABORTED.to_errno();
        assert!(comes(|| own.closed.load(Relaxed) == aborted));
        assert!(comes(|| log.closed.load(Relaxed) == aborted));
        assert_eq!(send(&channel, 0, b"abc"), Err(EPIPE));
        drop((channel, portal));
        Ok(())
    }

    #[test]
    fn a_portal_has_no_more_channels_than_its_module_allows() -> Result {
        let world = World::new(0)?;
        let log = Log::new(false)?;
        let options = PortalOptions {
            max_channels: 1,
            ..PortalOptions::default()
        };
        let service = Arc::new(Doubling, GFP_KERNEL)?;
        let portal = Portal::bind_at(world.hub.clone(), PORTAL, &options, service)?;
        let connect = || world.connect(ChannelOptions::default(), hears(&log)?.0);
        let first = connect()?;
        assert_eq!(connect().err(), Some(EDQUOT));
        drop(first);
        // The other end goes when it knows.
        let mut second = Err(EDQUOT);
        assert!(comes(|| {
            second = connect();
            second.as_ref().err() != Some(&EDQUOT)
        }));
        assert!(second.is_ok());
        drop((second, portal));
        Ok(())
    }

    #[test]
    fn names_and_refusals() -> Result {
        let world = World::new(0)?;
        let (log, own) = (Log::new(false)?, Log::new(false)?);
        let connect = |session: &[u8], portal: &[u8], data: &[u8]| {
            let options = ConnectOptions {
                data,
                timeout_ms: LIMIT_MS,
                ..ConnectOptions::default()
            };
            let receiver = hears(&own)?.0;
            let channel = Channel::connect_at(&world.hub, session, portal, &options, receiver);
            channel.map(drop)
        };
        assert_eq!(connect(b"local", PORTAL, b""), Err(ENOENT));
        let (receiver, is_gone) = hears(&log)?;
        let portal = world.bind(ChannelOptions::default(), accepts(receiver)?)?;
        assert_eq!(connect(b"remote", PORTAL, b""), Err(ENODEV));
        assert_eq!(connect(b"local", b"-", b""), Err(EINVAL));
        assert_eq!(connect(b"local", PORTAL, &[0; 257]), Err(EINVAL));
        assert_eq!(connect(b"local", PORTAL, &[0; 256]), Ok(()));
        // The service accepts one.
        assert_eq!(connect(b"local", PORTAL, b""), Err(EBUSY));
        assert_eq!(is_gone.wait_timeout(LIMIT_MS), Ok(()));
        let second = world.bind(ChannelOptions::default(), accepts(hears(&log)?.0)?);
        assert_eq!(second.err(), Some(EADDRINUSE));
        drop(portal);
        assert_eq!(connect(b"local", PORTAL, b""), Err(ENOENT));
        let options = ChannelOptions {
            max_message: 65_537,
            ..ChannelOptions::default()
        };
        let second = world.bind(options, accepts(hears(&log)?.0)?);
        assert_eq!(second.err(), Some(EINVAL));
        Ok(())
    }
}
