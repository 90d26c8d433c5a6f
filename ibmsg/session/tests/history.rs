// SPDX-License-Identifier: GPL-2.0

//! Tests of the events of portals and channels.

use super::*;
use crate::history::{
    Cause,
    Entry,
    OfChannels,
    OfPortals, //
};
use ibmsg_proto::history::What;
use kernel::str::CString;

/// What has happened, how often, and why: channels first, then refusals, the latest first.
fn events(side: &Side) -> Result<KVVec<(What, u32, Cause)>> {
    let mut entries = KVVec::with_capacity(OfChannels::MAX, GFP_KERNEL)?;
    side.history().copy(&mut entries);
    let mut events = KVVec::new();
    for entry in &entries {
        let told = (entry.event.what, entry.count, entry.event.cause);
        events.push(told, GFP_KERNEL)?;
    }
    Ok(events)
}

/// A program asks for a channel to a portal, and goes when it has an answer.
fn ask(world: &mut World, portal: Name) -> Result {
    let (id, _) = world.sides[0].open(0, &NONE, portal, terms()?, KVec::new(), false)?;
    world.run()?;
    world.sides[0].release(id);
    world.run()
}

const OPENER: Cause = Cause::Text("by the program that has opened it");
const PORTAL: Cause = Cause::Text("by the portal's program");
const GIVEN_UP: Cause = Cause::Text("given up before the portal has answered");

/// A channel is opened, loses its connection, and is closed by one end.
pub(super) fn life(queue: &Arc<Queue>, closer: usize) -> Result {
    let (mut world, portal) = opened(queue)?;
    for side in [0, 1] {
        world.sides[side].lost(world.id);
    }
    world.connect()?;
    world.run()?;
    world.sides[closer].release(1);
    world.run()?;
    world.sides[1 - closer].release(1);
    world.run()?;
    ensure!((world.len(0), world.len(1)) == (0, 0));
    let why = [OPENER, PORTAL][closer];
    let expected = [
        (What::Closed, 1, why),
        (What::Moved, 1, Cause::None),
        (What::Opened, 1, Cause::None),
    ];
    for side in &world.sides {
        ensure!(events(side)?[..] == expected);
    }
    world.portals.unbind(&portal);
    Ok(())
}

/// Channels come, go and are refused as fast as a client can, and refusals are not pushed out.
pub(super) fn flood(queue: &Arc<Queue>) -> Result {
    let (mut world, portal) = opened(queue)?;
    ask(&mut world, Name::new(b"nowhere")?)?;
    for _ in 0..200 {
        ask(&mut world, portal.name)?;
        ensure!(portal.remove_any().is_none());
    }
    // The portal refuses.
    let (id, _) = world.sides[0].open(0, &NONE, portal.name, terms()?, KVec::new(), false)?;
    world.run()?;
    let offer = portal.remove_any().ok_or(ENOENT)?;
    ensure!(offer.end().reject(EPERM, KVec::new()));
    world.run()?;
    world.sides[0].release(id);
    world.run()?;
    let refusals = [
        (
            What::Refused,
            1,
            Cause::Refused(Errno::EPERM, "by the portal's program"),
        ),
        (What::Refused, 1, Cause::Refused(Errno::ENOENT, "")),
    ];
    let found = events(&world.sides[1])?;
    let channels = [
        (What::Closed, 200, GIVEN_UP),
        (What::Opened, 1, Cause::None),
    ];
    ensure!(found[..2] == channels && found[2..] == refusals);
    let found = events(&world.sides[0])?;
    ensure!(found[..2] == channels && found.len() == 4);
    let errors = [Errno::EPERM, Errno::ENOENT].map(|errno| Cause::Refused(errno, ""));
    ensure!(found[2].2 == errors[0] && found[3].2 == errors[1]);
    // Both ends say the same.
    let said = |cause: &Cause| CString::try_from_fmt(fmt!("{}", *cause));
    for (own, other) in refusals.iter().zip(errors) {
        ensure!(said(&own.2)?.to_bytes() == said(&other)?.to_bytes());
    }
    // A program may choose the errno of a rule; its own end knows better.
    let cause = Cause::Refused(Errno::EACCES, "by the portal's program");
    let words = b"the client is not allowed: by the portal's program (EACCES)";
    ensure!(said(&cause)?.to_bytes() == words);
    // Of a session that ends, too.
    world.sides[1].close();
    let lost = Cause::Error("the other machine no longer has it", Errno::ECONNABORTED);
    ensure!(events(&world.sides[1])?[0] == (What::Closed, 1, lost));
    world.portals.unbind(&portal);
    Ok(())
}

/// Portals come and go.
pub(super) fn portals(queue: &Arc<Queue>) -> Result {
    let world = World::new(0, queue)?;
    let names = [Name::new(b"once")?, Name::new(b"busy")?];
    for (name, times) in names.into_iter().zip([1, 300]) {
        for _ in 0..times {
            let charge = world.sides[0].0.limits.charge_portal(0, 0)?;
            let portal = world.portals.bind(name, terms()?, &OWNER, 4, charge)?;
            world.portals.unbind(&portal);
        }
    }
    let mut entries = KVVec::with_capacity(OfPortals::MAX, GFP_KERNEL)?;
    world.portals.events(&mut entries);
    let expected = [
        (What::Unbound, names[1], 300),
        (What::Bound, names[1], 300),
        (What::Unbound, names[0], 1),
        (What::Bound, names[0], 1),
    ];
    let found = || {
        entries
            .iter()
            .map(|entry| (entry.event.what, entry.event.portal, entry.count))
    };
    ensure!(found().eq(expected));
    let is_by_root = |entry: &Entry| entry.event.cause == Cause::User(0);
    ensure!(entries.iter().all(is_by_root));
    Ok(())
}
