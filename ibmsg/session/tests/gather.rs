// SPDX-License-Identifier: GPL-2.0

//! Messages that wait for others.

use super::*;
use crate::types::F_MORE;
use ibmsg_proto::gather::{
    MAX_WAIT_US,
    WATERMARK, //
};

/// Writes a message that waits.
fn waits(world: &mut World, tag: u64) -> Result {
    let header = Header {
        len: 3,
        flags: F_MORE,
        tag,
        ..Header::new(Kind::Msg)
    };
    let reserved = world.reserve(0, &header)?;
    let body = Body::copied(b"abc", GFP_KERNEL)?;
    world.sides[0].send(world.chan, reserved, body, KBox::new_uninit(GFP_KERNEL)?)
}

/// Its time is over when its channel is served for another reason, before the timer has run.
pub(super) fn late(queue: &Arc<Queue>) -> Result {
    let (mut world, portal) = opened(queue)?;
    world.sides[0].tune(1, WATERMARK, MAX_WAIT_US)?;
    waits(&mut world, 1)?;
    world.run()?;
    ensure!(world.take(1).is_none());
    let side = world.sides[0].clone();
    let later = now() + u64::from(MAX_WAIT_US);
    side.locked(|state| {
        let chan = state.chans.get_mut(&1)?;
        let on = chan.proto.on()?;
        let conn = state.conns.iter_mut().find(|conn| conn.id == on)?;
        conn.ready.push(on, chan).then_some(())
    })
    .ok_or(EINVAL)?;
    side.locked(|state| side.step(state, later));
    world.run()?;
    ensure!(world.take(1).map(|(header, _)| header.tag) == Some(1));
    // Another one, while the channel moves.
    waits(&mut world, 2)?;
    for side in &world.sides {
        side.lost(world.id);
    }
    world.connect()?;
    world.run()?;
    ensure!(world.take(1).is_none());
    world.sides[0].flush(1);
    world.run()?;
    ensure!(world.take(1).map(|(header, _)| header.tag) == Some(2));
    for side in &world.sides {
        side.release(1);
    }
    world.run()?;
    ensure!((world.len(0), world.len(1)) == (0, 0));
    world.portals.unbind(&portal);
    Ok(())
}
