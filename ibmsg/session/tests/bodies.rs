// SPDX-License-Identifier: GPL-2.0

//! Tests of messages with a body that a peer sends, as it should and as it should not. Bodies that are sent need a program:
//! scenarios have those.

use ibmsg_proto::{
    limits::FIRST,
    memory::{
        BodyRef,
        Handle,
        Range,
        MAX_BODIES, //
    },
    wire::{
        FrameWriter,
        Kind as WireKind,
        MemoryRecord,
        Message,
        MessageHdr,
        NoteKind,
        Record,
        Records, //
    },
    Seq, //
};

use super::*;
use crate::types::F_BODY;

type Portal = Arc<crate::portal::Portal<Side>>;

/// A world with a channel, whose server's program takes bodies, or does not.
fn world(queue: &Arc<Queue>, takes_bodies: bool) -> Result<(World, Portal)> {
    let (world, portal) = without_place(queue, takes_bodies)?;
    prepare_bodies(&world)?;
    Ok((world, portal))
}

/// As [`crate::file`] does when a program accepts the channel that side `of` has.
fn prepare_bodies_of(world: &World, of: usize) -> Result {
    let wake = world.sides[of].with(1, |chan| chan.waiters().clone());
    let end = listening::End {
        side: world.sides[1].clone(),
        id: 1,
        wake: wake.ok_or(ENOENT)?,
    };
    end.prepare_bodies()
}

fn prepare_bodies(world: &World) -> Result {
    prepare_bodies_of(world, 1)
}

/// The same without a place for them.
fn without_place(queue: &Arc<Queue>, takes_bodies: bool) -> Result<(World, Portal)> {
    let mut world = World::new(0, queue)?;
    let (name, uid) = (Name::new(b"kv")?, 0);
    let charge = world.sides[0].0.limits.charge_portal(uid, 0)?;
    let mut terms = terms()?;
    // As many as there may be, and more.
    terms.window = Window::new(100, 20_000, 10_000, 4).map_err(|_| EINVAL)?;
    terms.wants.bodies = takes_bodies;
    let portal = world.portals.bind(name, terms, &OWNER, 4, charge)?;
    world.sides[0].open(uid, &NONE, name, terms, KVec::new(), false)?;
    world.run()?;
    let seen = portal.read(100, Reader::current());
    let offer = portal.remove(seen.ok_or(ENOENT)??.id).ok_or(ENOENT)?;
    ensure!(offer.end().accept(KVec::new(), Calls::slots(4)?, None));
    world.run()?;
    Ok((world, portal))
}

fn end(mut world: World, portal: &Portal) -> Result {
    world.portals.unbind(portal);
    for side in [0, 1] {
        world.sides[side].release(1);
    }
    world.wire = Wire::new()?;
    Ok(())
}

fn handle(number: u64) -> Result<Handle> {
    Handle::from_wire((number + 1) << 16).ok_or(EINVAL)
}

fn body(number: u64) -> Result<[u8; ibmsg_proto::memory::BODY_LEN]> {
    let body = BodyRef {
        handle: handle(number)?,
        range: Range::new(5, 100).ok_or(EINVAL)?,
    };
    Ok(body.bytes())
}

/// A message with a body arrives that the client has not sent. Returns whether the server accepts it.
fn arrives(world: &World, nth: u32, content: &[u8]) -> Result<bool> {
    arrive(world, nth, [content])
}

/// The same for several messages in one frame, of which `nth` is the first.
fn arrive<C: AsRef<[u8]>>(
    world: &World,
    mut nth: u32,
    contents: impl IntoIterator<Item = C>,
) -> Result<bool> {
    let ack = world.sides[0].with(1, |chan| chan.proto.rx.ack());
    let mut bytes = KVec::from_elem(0, 4096, GFP_KERNEL)?;
    let mut frame = FrameWriter::new(&mut bytes, Seq::new(8)).ok_or(EINVAL)?;
    for content in contents {
        let content = content.as_ref();
        let hdr = MessageHdr {
            channel: 1,
            number: FIRST.plus(nth),
            kind: WireKind::OneWay,
            prompt: false,
            body: true,
            ack: ack.ok_or(ENOENT)?,
            // CAST: Small.
            total: content.len() as u32,
            offset: 0,
            id: 0,
            tag: u64::from(nth),
            status: 0,
        };
        let message = Message { hdr, content };
        frame.record(|out| message.encode(out)).ok_or(EINVAL)?;
        nth += 1;
    }
    let len = frame.finish();
    let mut done = 0;
    let arrived = world.sides[1].arrived(world.id, &bytes[..len], &mut done);
    ensure!(arrived == Arrived::Done);
    let state = world.sides[1].0.state.lock();
    let has_any = state.conns.iter().any(|conn| !conn.has_failed);
    Ok(has_any)
}

fn release_body(world: &World, handle: Handle) -> Result {
    let reserve = |side: &Side| {
        let header = Header::new(Kind::Msg);
        side.reserve_message(1, &header, Caller::Nobody)
    };
    let reserved = match reserve(&world.sides[1]) {
        Err(ENOMEM) => {
            world.sides[1].grow(1)?;
            reserve(&world.sides[1])?
        }
        reserved => reserved?,
    };
    let place = KBox::new_uninit(GFP_KERNEL)?;
    world.sides[1].release_body(1, reserved, handle, place)
}

/// How many notes RELEASE wait for the client.
fn releases(world: &World) -> usize {
    let mut lanes = world.wire.lanes.lock();
    let mut count = 0;
    while let Some(frame) = lanes[0].pop_front() {
        let Ok((_, records)) = Records::parse(&frame.bytes[..frame.len]) else {
            continue;
        };
        let is_release = |record: &core::result::Result<Record<'_>, _>| match record {
            Ok(Record::Memory(MemoryRecord::Note(note))) => note.kind == NoteKind::Release,
            _ => false,
        };
        count += records.with_memory().filter(is_release).count();
    }
    count
}

/// Bodies are taken, and released once each.
pub(super) fn taken(queue: &Arc<Queue>) -> Result {
    let (world, portal) = world(queue, true)?;
    for nth in 0..3 {
        ensure!(arrives(&world, nth, &body(u64::from(nth))?)?);
        let taken = world.sides[1].take(1, None, 1 << 20);
        let Take::Item(taken) = taken else {
            return Err(EINVAL);
        };
        let header = taken.header();
        ensure!(header.flags == F_BODY && header.tag == u64::from(nth));
        world.sides[1].took(1, taken);
        ensure!(world.sides[1].holds(1, handle(u64::from(nth))?));
    }
    releases(&world);
    ensure!(release_body(&world, handle(1)?).is_ok());
    ensure!(release_body(&world, handle(1)?) == Err(ESTALE));
    ensure!(release_body(&world, handle(7)?) == Err(ESTALE));
    world.flush();
    ensure!(releases(&world) == 1 && world.sides[1].holds(1, handle(2)?));
    // The place of one that was released is free.
    ensure!(arrives(&world, 3, &body(1)?)?);
    end(world, &portal)
}

/// A channel that has no memory for a body waits for it; its connection does not.
pub(super) fn dropped(queue: &Arc<Queue>) -> Result {
    let (world, portal) = without_place(queue, true)?;
    ensure!(arrives(&world, 0, &body(0)?)?);
    ensure!(!world.sides[1].holds(1, handle(0)?));
    prepare_bodies(&world)?;
    // The client is to send it again, as when there is memory for messages.
    let asked = world.sides[1].change(1, |chan| chan.proto.rx.ask_again());
    ensure!(asked.is_some());
    ensure!(arrives(&world, 0, &body(0)?)?);
    ensure!(world.sides[1].holds(1, handle(0)?));
    end(world, &portal)
}

/// The place is made for the channel that was offered, not for another one that has its number by then: that has terms of
/// its own.
pub(super) fn renumbered(queue: &Arc<Queue>) -> Result {
    let (world, portal) = without_place(queue, true)?;
    let lacks = || {
        let lacks = |chan: &mut Chan| chan.lacks_place_of_bodies().is_some();
        world.sides[1].with(1, lacks) == Some(true)
    };
    prepare_bodies_of(&world, 0)?;
    ensure!(lacks());
    prepare_bodies(&world)?;
    ensure!(!lacks());
    end(world, &portal)
}

/// What a peer must not send ends the connection.
pub(super) fn refused(queue: &Arc<Queue>) -> Result {
    let refuses = |takes_bodies, contents: &[&[u8]]| {
        let (world, portal) = world(queue, takes_bodies)?;
        let (last, first) = contents.split_last().ok_or(EINVAL)?;
        let mut nth = 0;
        for content in first {
            ensure!(arrives(&world, nth, content)?);
            nth += 1;
        }
        ensure!(!arrives(&world, nth, last)?);
        end(world, &portal)
    };
    let good = body(0)?;
    let mut impossible = good;
    impossible[16..].fill(0xff);
    // To a program that takes none, a short one, no handle, a range that wraps around, one that comes twice.
    refuses(false, &[&good])?;
    refuses(true, &[&good[1..]])?;
    refuses(true, &[&[0; ibmsg_proto::memory::BODY_LEN]])?;
    refuses(true, &[&impossible])?;
    refuses(true, &[&good, &body(1)?, &good])?;
    // More than there may be.
    let (world, portal) = world(queue, true)?;
    // Frames have credits of their own, of which there are fewer.
    const EACH: usize = 16;
    for first in (0..MAX_BODIES).step_by(EACH) {
        let mut bodies = KVec::with_capacity(EACH, GFP_KERNEL)?;
        for number in first..first + EACH {
            bodies.push(body(number as u64)?, GFP_KERNEL)?;
        }
        // CAST: A small number.
        ensure!(arrive(&world, first as u32, &bodies)?);
    }
    ensure!(!arrives(&world, MAX_BODIES as u32, &body(99)?)?);
    end(world, &portal)
}
