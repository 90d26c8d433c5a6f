// SPDX-License-Identifier: GPL-2.0

//! Tests of publish and subscribe.

use ibmsg_proto::{
    publish::{
        From,
        LogTerms,
        Policy,
        PublishTerms,
        Request, //
    },
    wire::{
        FrameWriter,
        Kind as WireKind,
        Message,
        MessageHdr,
        Publication, //
    },
    Seq, //
};

use super::*;
use crate::{
    channel::Ask,
    publish::Unpublished, //
};

const TAG: u64 = 7;

type Portal = Arc<crate::portal::Portal<Side>>;

fn publishing() -> Result<Terms> {
    let mut terms = terms()?;
    terms.window = terms.window.with_publishing(PublishTerms::new(2));
    Ok(terms)
}

/// A world with a channel whose ends publish and subscribe.
fn world(left: u32, queue: &Arc<Queue>) -> Result<(World, Portal)> {
    let mut world = World::new(left, queue)?;
    let (name, uid) = (Name::new(b"kv")?, 0);
    let charge = world.sides[0].0.limits.charge_portal(uid, 0)?;
    let portal = world.portals.bind(name, publishing()?, &OWNER, 4, charge)?;
    world.sides[0].open(uid, &NONE, name, publishing()?, KVec::new(), false)?;
    world.run()?;
    let seen = portal.read(100, Reader::current());
    let offer = portal.remove(seen.ok_or(ENOENT)??.id).ok_or(ENOENT)?;
    offer.end().serves(&portal.logs)?;
    ensure!(offer.end().accept(KVec::new(), Calls::slots(4)?, None));
    world.run()?;
    Ok((world, portal))
}

fn ask(world: &World, tag: u64, what: Publication) -> Result {
    let mut ask = Ask {
        tag,
        what,
        place: Some(KBox::new_uninit(GFP_KERNEL)?),
        body: Body::copied(what.fields().content(), GFP_KERNEL)?,
        list: KVec::with_capacity(2, GFP_KERNEL)?,
    };
    match world.sides[0].ask(1, &mut ask) {
        Err(ENOMEM) => {
            world.sides[0].grow(1)?;
            world.sides[0].ask(1, &mut ask)
        }
        result => result,
    }
}

fn subscribe(from: From) -> Publication {
    Publication::Subscribe(Request { from, exact: false })
}

/// Publishes an entry of `len` bytes. Returns `false` if the publisher is to wait.
fn publish(portal: &Portal, len: usize) -> Result<bool> {
    let body = Body::copied(&KVec::from_elem(TAG as u8, len, GFP_KERNEL)?, GFP_KERNEL)?;
    match portal.logs.publish(TAG, &Arc::new(body, GFP_KERNEL)?) {
        Ok(()) => {
            portal.logs.tell(TAG);
            Ok(true)
        }
        Err(Unpublished::Wait) => Ok(false),
        Err(_) => Err(EINVAL),
    }
}

fn set(world: &World, portal: &Portal, entries: u32, policy: Policy) -> Result {
    let charge = world.sides[0].0.limits.charge_portal(0, 1)?;
    let terms = LogTerms::new(entries, 100_000, policy).ok_or(EINVAL)?;
    portal.logs.set(TAG, terms, charge)
}

/// The life of a subscription: returns how many frames it took.
fn life(left: u32, queue: &Arc<Queue>) -> Result<u32> {
    let (mut world, portal) = world(left, queue)?;
    set(&world, &portal, 4, Policy::Wait)?;
    for len in [0, 3000] {
        ensure!(publish(&portal, len)?);
    }
    ask(&world, TAG, subscribe(From::First))?;
    ensure!(ask(&world, TAG, subscribe(From::First)) == Err(EEXIST));
    world.run()?;
    // The window has four messages; the log keeps four more.
    let mut published = 2;
    while publish(&portal, 100)? {
        published += 1;
        world.run()?;
    }
    ensure!(published == 7 && !portal.logs.is_writable());
    let (begin, _) = world.take(0).ok_or(ENOENT)?;
    ensure!(begin.event == Some(Event::Subscribed) && (begin.tag, begin.id) == (TAG, 0));
    world.run()?;
    ensure!(portal.logs.is_writable() && publish(&portal, 100)?);
    for position in 0..8 {
        world.run()?;
        let (entry, is_right) = world.take(0).ok_or(ENOENT)?;
        ensure!(is_right && entry.kind == Kind::Published && entry.id == position);
    }
    // It loses entries, and is told.
    set(&world, &portal, 2, Policy::Drop)?;
    for _ in 0..10 {
        ensure!(publish(&portal, 10)?);
        world.run()?;
    }
    let (mut next, mut lost) = (8, 0);
    while let Some((header, is_right)) = world.take(0) {
        ensure!(header.id == next);
        match header.event {
            None => {
                ensure!(is_right && header.kind == Kind::Published);
                next += 1;
            }
            Some(event) => {
                ensure!(event == Event::Lost && header.len == 8);
                // Two are left in the log.
                lost = 16 - next;
                next = 16;
            }
        }
        world.run()?;
    }
    ensure!((next, lost) == (18, 4));
    ask(&world, TAG, Publication::Unsubscribe)?;
    world.run()?;
    let (ended, _) = world.take(0).ok_or(ENOENT)?;
    ensure!(ended.event == Some(Event::Unsubscribed) && (ended.id, ended.status) == (18, 0));
    // On from there; the portal is closed, and then the channel.
    let log = portal.logs.info(TAG).ok_or(ENOENT)?.log;
    ask(&world, TAG, subscribe(From::Position(log.id(), next)))?;
    world.run()?;
    ensure!(portal
        .logs
        .info(TAG)
        .is_some_and(|info| info.subscribers == 1));
    world.portals.unbind(&portal);
    let mut last = None;
    world.run()?;
    while let Some((header, _)) = world.take(0) {
        last = Some((header.event, header.status));
        world.run()?;
    }
    let shut_down = u16::try_from(Errno::ESHUTDOWN.get()).map_err(|_| EINVAL)?;
    ensure!(last == Some((Some(Event::Unsubscribed), shut_down)));
    for side in [0, 1] {
        world.sides[side].release(1);
    }
    world.run()?;
    ensure!((world.len(0), world.len(1)) == (0, 0));
    Ok(u32::MAX - world.left)
}

/// A link that is lost after any frame changes nothing.
pub(super) fn lives(queue: &Arc<Queue>) -> Result {
    let frames = life(0, queue)?;
    ensure!(frames > 30);
    for left in 1..=frames {
        life(left, queue).inspect_err(|_| pr_err!("the link was lost after frame {}\n", left))?;
    }
    Ok(())
}

/// The publisher's program exits, whatever of it goes first, while the subscriber does not read: both subscriptions end
/// with an event, where they are, before the channel does.
pub(super) fn exits(queue: &Arc<Queue>) -> Result {
    for is_portal_first in [false, true] {
        let (mut world, portal) = world(0, queue)?;
        set(&world, &portal, 8, Policy::Wait)?;
        for tag in [TAG, 1] {
            ask(&world, tag, subscribe(From::First))?;
        }
        world.run()?;
        // More than there are credits for.
        for _ in 0..8 {
            ensure!(publish(&portal, 10)?);
        }
        world.run()?;
        if is_portal_first {
            world.portals.unbind(&portal);
        }
        world.sides[1].release(1);
        world.run()?;
        if !is_portal_first {
            world.portals.unbind(&portal);
        }
        let (mut next, mut ended, mut closed) = (0, [None; 2], false);
        while let Some((header, is_right)) = world.take(0) {
            ensure!(!closed);
            match header.event {
                None => {
                    ensure!(is_right && (header.tag, header.id) == (TAG, next));
                    next += 1;
                }
                Some(Event::Subscribed) => {}
                Some(Event::Unsubscribed) => {
                    let place = &mut ended[usize::from(header.tag == TAG)];
                    ensure!(place.replace((header.id, header.status)).is_none());
                }
                event => {
                    ensure!(event == Some(Event::Closed) && header.status == 0);
                    closed = true;
                }
            }
            world.run()?;
        }
        let why = u16::try_from(Errno::ESHUTDOWN.get()).map_err(|_| EINVAL)?;
        ensure!(closed && next > 0 && next < 8);
        ensure!(ended == [Some((0, why)), Some((next, why))]);
        world.sides[0].release(1);
        world.run()?;
        ensure!((world.len(0), world.len(1)) == (0, 0));
    }
    Ok(())
}

/// Subscribers that go hold nobody up.
pub(super) fn leaves(queue: &Arc<Queue>) -> Result {
    for how in 0..3 {
        let (mut world, portal) = world(0, queue)?;
        set(&world, &portal, 1, Policy::Wait)?;
        ask(&world, TAG, subscribe(From::Next))?;
        world.run()?;
        while publish(&portal, 10)? {
            world.run()?;
        }
        match how {
            0 => world.sides[0].release(1),
            1 => world.sides[1].release(1),
            _ => world.sides[1].close(),
        }
        world.run()?;
        ensure!(portal.logs.is_writable() && publish(&portal, 10)?);
        ensure!(portal
            .logs
            .info(TAG)
            .is_some_and(|info| info.subscribers == 0));
        for side in [0, 1] {
            world.sides[side].release(1);
        }
        world.run()?;
        world.portals.unbind(&portal);
    }
    Ok(())
}

/// What no peer should send fails the connection, and nothing else.
pub(super) fn refuses(queue: &Arc<Queue>) -> Result {
    let any = subscribe(From::First);
    let entry = Publication::Published(5);
    // To which side, and what.
    let cases: [(usize, &[(u64, Publication)]); 5] = [
        // More than was agreed; twice the same.
        (1, &[(1, any), (2, any), (3, any)]),
        (1, &[(1, any), (1, any)]),
        // From the wrong side.
        (0, &[(1, any)]),
        (1, &[(1, entry)]),
        // Without a subscription.
        (0, &[(1, entry)]),
    ];
    for (side, messages) in cases {
        let (mut world, portal) = world(0, queue)?;
        let (last, before) = messages.split_last().ok_or(EINVAL)?;
        let mut number = ibmsg_proto::limits::FIRST;
        for (tag, what) in before {
            inject(&world, side, number, *tag, what)?;
            ensure!(has_connection(&world, side));
            number = number.plus(1);
        }
        inject(&world, side, number, last.0, &last.1)?;
        ensure!(!has_connection(&world, side));
        world.portals.unbind(&portal);
        for side in [0, 1] {
            world.sides[side].release(1);
        }
        world.wire = Wire::new()?;
    }
    Ok(())
}

fn has_connection(world: &World, side: usize) -> bool {
    let state = world.sides[side].0.state.lock();
    let has_any = state.conns.iter().any(|conn| !conn.has_failed);
    has_any
}

/// A frame arrives that the other side has not sent.
fn inject(world: &World, side: usize, number: Seq, tag: u64, what: &Publication) -> Result {
    let fields = what.fields();
    let content = match what {
        Publication::Published(_) => b"x",
        _ => fields.content(),
    };
    let ack = world.sides[1 - side].with(1, |chan| chan.proto.rx.ack());
    let hdr = MessageHdr {
        channel: 1,
        number,
        kind: WireKind::Publish(fields.kind),
        prompt: false,
        body: false,
        ack: ack.ok_or(ENOENT)?,
        // CAST: Small.
        total: content.len() as u32,
        offset: 0,
        id: fields.id,
        tag,
        status: fields.status,
    };
    let mut bytes = [0; 256];
    let mut frame = FrameWriter::new(&mut bytes, Seq::new(8)).ok_or(EINVAL)?;
    let message = Message { hdr, content };
    frame.record(|out| message.encode(out)).ok_or(EINVAL)?;
    let len = frame.finish();
    let mut done = 0;
    let arrived = world.sides[side].arrived(world.id, &bytes[..len], &mut done);
    ensure!(arrived == Arrived::Done);
    Ok(())
}
