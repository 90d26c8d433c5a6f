// SPDX-License-Identifier: GPL-2.0

//! Tests of channels on several connections.

use super::super::spread::MIN_AFTER_US;
use super::*;

/// Channels of the test.
const CHANS: u32 = 6;

/// A world with connections by several paths.
struct Paths {
    world: World,
    wires: KVec<(Conn, Arc<Wire>)>,
    epoch: u32,
}

impl Paths {
    fn new(world: World) -> Result<Self> {
        let mut wires = KVec::new();
        wires.push((world.id, world.wire.clone()), GFP_KERNEL)?;
        let epoch = world.id.epoch;
        Ok(Self {
            world,
            wires,
            epoch,
        })
    }

    /// A path comes.
    fn connect(&mut self) -> Result {
        self.epoch += 1;
        let id = Conn {
            epoch: self.epoch,
            cid: 0,
        };
        let wire = Wire::new()?;
        wire.connect(&self.world.sides, id)?;
        Ok(self.wires.push((id, wire), GFP_KERNEL)?)
    }

    /// The oldest path is lost, with all frames that are on their way.
    fn lose(&mut self) -> Result {
        let (id, _) = self.wires.remove(0).map_err(|_| EINVAL)?;
        for side in &self.world.sides {
            side.lost(id);
        }
        Ok(())
    }

    /// Delivers frames until there are none, those of later connections first.
    fn run(&mut self) -> Result {
        loop {
            self.world.flush();
            let mut is_idle = true;
            for at in (0..self.wires.len()).rev() {
                for to in [0, 1] {
                    let (id, wire) = &self.wires[at];
                    let Some(frame) = wire.lanes.lock()[to].pop_front() else {
                        continue;
                    };
                    is_idle = false;
                    let frame = &frame.bytes[..frame.len];
                    let arrived = self.world.sides[to].arrived(*id, frame, &mut 0);
                    ensure!(arrived == Arrived::Done);
                }
            }
            if is_idle {
                return Ok(());
            }
        }
    }

    /// A connection of the client has been there for long enough.
    fn settle(&mut self, at: usize) -> Result {
        let client = &self.world.sides[0];
        let mut state = client.0.state.lock();
        state.conns.get_mut(at).ok_or(ENOENT)?.spread_at = Some(0);
        drop(state);
        client.timer();
        Ok(())
    }

    /// Channels on the connections of the client, in the order of these.
    fn counts(&self) -> Result<KVec<usize>> {
        let mut counts = KVec::with_capacity(self.wires.len(), GFP_KERNEL)?;
        let state = self.world.sides[0].0.state.lock();
        for conn in &state.conns {
            let chans = state.chans.values();
            let is_on =
                |chan: &&KBox<Chan>| chan.proto.is_on(conn.id) && !chan.proto.peer_has_ended();
            let on = chans.filter(is_on).count();
            ensure!(on == conn.channels);
            counts.push_within_capacity(on)?;
        }
        Ok(counts)
    }

    /// Opens a channel, which the program at the portal accepts.
    fn open(&mut self, portal: &Arc<crate::portal::Portal<Side>>) -> Result<u32> {
        let (name, mut terms) = (Name::new(b"kv")?, terms()?);
        terms.wants.paths = true;
        let client = &self.world.sides[0];
        let (id, _) = client.open(0, &NONE, name, terms, KVec::new(), false)?;
        self.run()?;
        let seen = portal.read(100, Reader::current());
        let offer = portal.remove(seen.ok_or(ENOENT)??.id).ok_or(ENOENT)?;
        ensure!(offer.end().accept(KVec::new(), Calls::slots(4)?, None));
        self.run()?;
        Ok(id)
    }

    /// Each channel sends a message to either side, after which some frames are on their way.
    fn send(&mut self, tag: u64) -> Result {
        for id in 1..=CHANS {
            self.world.chan = id;
            for side in [0, 1] {
                self.world.send(side, Kind::Msg, 0, tag, 1500)?;
            }
        }
        Ok(())
    }

    /// Takes what there is: message `tag` for each program, and the receipt of its own. Returns how often programs
    /// were told that their channel had lost its path, or has one again.
    fn take(&mut self, tag: u64) -> Result<usize> {
        let mut told = 0;
        for id in 1..=CHANS {
            self.world.chan = id;
            for side in [0, 1] {
                let (mut messages, mut receipts) = (0, 0);
                while let Some((header, is_right)) = self.world.take(side) {
                    ensure!(is_right);
                    match (header.kind, header.event) {
                        (Kind::Msg, _) => messages += u32::from(header.tag == tag),
                        (Kind::Receipt, _) => receipts += u32::from(header.status == 0),
                        _ => told += 1,
                    }
                }
                ensure!((messages, receipts) == (1, 1));
            }
        }
        self.run()?;
        Ok(told)
    }
}

/// Channels go where there are fewest, when a path comes and when it is lost.
pub(super) fn spread(queue: &Arc<Queue>) -> Result {
    let (world, portal) = opened(queue)?;
    let mut paths = Paths::new(world)?;
    for id in 2..=CHANS {
        ensure!(paths.open(&portal)? == id);
    }
    ensure!(*paths.counts()? == [6]);
    paths.world.sides[0].0.state.lock().spread_after = 0;
    paths.settle(0)?;
    // While frames are on their way in both directions.
    paths.send(1)?;
    paths.connect()?;
    ensure!(*paths.counts()? == [3, 3]);
    paths.run()?;
    // No program has heard of it.
    ensure!(paths.take(1)? == 0 && *paths.counts()? == [3, 3]);
    // New channels go to either, and to where others have gone.
    for _ in 0..2 {
        let last = paths.open(&portal)?;
        ensure!(*paths.counts()? == [4, 3] || *paths.counts()? == [3, 4]);
        paths.world.sides[0].release(last);
        paths.world.sides[1].release(last);
        paths.run()?;
        ensure!(*paths.counts()? == [3, 3]);
    }
    paths.send(2)?;
    paths.lose()?;
    paths.run()?;
    ensure!(*paths.counts()? == [6]);
    // The clients of the three channels there have asked for it: once away, once back.
    ensure!(paths.take(2)? == 6);
    // It comes back, and is lost while channels are moving there.
    paths.world.sides[0].0.state.lock().spread_after = 0;
    paths.send(3)?;
    paths.connect()?;
    paths.wires.swap(0, 1);
    paths.lose()?;
    ensure!(*paths.counts()? == [6]);
    paths.run()?;
    ensure!(paths.take(3)? > 0);
    for id in 1..=CHANS {
        for side in &paths.world.sides {
            side.release(id);
        }
    }
    paths.run()?;
    ensure!((paths.world.len(0), paths.world.len(1)) == (0, 0));
    ensure!(*paths.counts()? == [0]);
    while !paths.wires.is_empty() {
        paths.lose()?;
    }
    paths.world.portals.unbind(&portal);
    Ok(())
}

/// A new connection gets channels from others when it has been there for a while, which is longer if the last one was
/// lost soon.
pub(super) fn settles(queue: &Arc<Queue>) -> Result {
    let (world, portal) = opened(queue)?;
    let mut paths = Paths::new(world)?;
    for id in 2..=CHANS {
        ensure!(paths.open(&portal)? == id);
    }
    paths.settle(0)?;
    paths.connect()?;
    // New channels go to those that have proved themselves.
    ensure!(paths.open(&portal)? == CHANS + 1);
    ensure!(*paths.counts()? == [7, 0]);
    // A connection that is lost before is none that had failed.
    paths.wires.swap(0, 1);
    paths.lose()?;
    ensure!(paths.world.sides[0].0.state.lock().spread_after == MIN_AFTER_US);
    paths.connect()?;
    paths.settle(1)?;
    ensure!(*paths.counts()? == [4, 3]);
    paths.run()?;
    paths.wires.swap(0, 1);
    paths.lose()?;
    ensure!(paths.world.sides[0].0.state.lock().spread_after == 2 * MIN_AFTER_US);
    ensure!(*paths.counts()? == [7]);
    paths.run()?;
    // A channel that has ended counts no more, though its program has not closed the file.
    paths.world.sides[1].release(1);
    paths.run()?;
    ensure!(*paths.counts()? == [6]);
    for id in 1..=CHANS + 1 {
        for side in &paths.world.sides {
            side.release(id);
        }
    }
    paths.run()?;
    paths.lose()?;
    paths.world.portals.unbind(&portal);
    Ok(())
}

/// A list has many entries of channels that have moved away while the peer took nothing.
pub(super) fn left_behind(queue: &Arc<Queue>) -> Result {
    let (mut world, portal) = opened(queue)?;
    for round in 0..70 {
        let mut state = world.sides[0].0.state.lock();
        let mut most = 0;
        // The list ends up with another number of entries each time.
        for _ in 0..1000 + round {
            let chan = state.chans.get_mut(&1).ok_or(ENOENT)?;
            // As if it had been on another connection, and were back.
            chan.ready_on = None;
            state.list_ready(1);
            let conn = state.conns.first().ok_or(ENOENT)?;
            most = most.max(conn.ready.len());
            ensure!(state
                .chans
                .get(&1)
                .is_some_and(|chan| chan.ready_on.is_some()));
        }
        ensure!((2..100).contains(&most));
        drop(state);
        // It takes several turns.
        world.send(0, Kind::Msg, 0, round, 10_000)?;
        world.run()?;
        ensure!(world
            .take(1)
            .is_some_and(|(header, is_right)| header.tag == round && is_right));
        world.run()?;
        ensure!(world
            .take(0)
            .is_some_and(|(header, _)| header.kind == Kind::Receipt));
        ensure!(world.sides[0].0.state.lock().conns[0].ready.is_empty());
    }
    world.sides[0].release(1);
    world.sides[1].release(1);
    world.run()?;
    world.portals.unbind(&portal);
    Ok(())
}
