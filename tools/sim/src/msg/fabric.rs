// SPDX-License-Identifier: GPL-2.0

//! The fabric: paths are connected, frames are delivered, delayed or lost.
//!
//! A connection delivers its frames in order. A frame that is on its way when its sender is gone
//! arrives nevertheless. A frame that is lost takes the rest of its direction with it, and its sender
//! learns when retransmission ends.

use std::collections::VecDeque;

use ibmsg_proto::link::Link;
use ibmsg_proto::outcome::Cause;

use super::check::Violation;
use super::schedule::{Kind, CLIENT, SERVER};
use super::world::{Ev, World};
use crate::schedule::{Time, MS};

/// An encoded record.
pub type Record = Vec<u8>;

/// A connection attempt: one connection.
#[derive(Debug)]
pub struct Attempt {
    /// Its path.
    pub path: usize,
    /// Each side has its queue pair.
    pub alive: [bool; 2],
    /// The client can use it.
    pub connected: bool,
    /// Credits in frames.
    pub link: [Link; 2],
    /// Frames that wait to be looked at.
    pub arrived: [VecDeque<Vec<u8>>; 2],
    /// Receives that are posted.
    pub posted: [u32; 2],
    /// Records that wait for a frame.
    pub control: [VecDeque<Record>; 2],
    last: [Time; 2],
    broken: [bool; 2],
}

impl Attempt {
    /// No attempt.
    pub fn none() -> Self {
        Self::new(usize::MAX, [8, 8])
    }

    fn new(path: usize, [client, server]: [u32; 2]) -> Self {
        Self {
            path,
            alive: [false; 2],
            connected: false,
            link: [Link::new(client, server), Link::new(server, client)],
            arrived: Default::default(),
            posted: [client, server],
            control: Default::default(),
            last: [0; 2],
            broken: [false; 2],
        }
    }
}

/// What happens to something that is sent.
struct Way {
    arrival: Option<Time>,
    error: Option<Time>,
}

impl World<'_> {
    fn way(&mut self, path: usize, from: usize) -> Way {
        let bits = self.chance();
        let mut way = Way {
            arrival: Some(20 + bits % 180),
            error: None,
        };
        for fault in &self.sch.faults {
            if !fault.during(self.now) {
                continue;
            }
            match fault.kind {
                Kind::Cut {
                    path: cut, dirs, ..
                } if usize::from(cut) == path => {
                    let rest = fault.end() - self.now;
                    let broken = rest > self.sch.retry;
                    if broken {
                        way.error = Some(self.sch.retry);
                    }
                    if dirs & (1 << from) != 0 {
                        let kept = bits >> 20 & 1 != 0;
                        let late = rest + (bits >> 24) % (4 * MS);
                        way.arrival = way
                            .arrival
                            .filter(|_| !broken || kept)
                            .map(|at| at.max(late));
                    }
                }
                Kind::Loss { path: lossy, .. }
                    if usize::from(lossy) == path && bits >> 32 & 3 == 0 =>
                {
                    way.arrival = None;
                    way.error = Some(self.sch.retry);
                }
                _ => {}
            }
        }
        way
    }

    /// The client tries to connect a path.
    pub fn connect(&mut self, path: usize) {
        let host = &self.hosts[CLIENT];
        if !host.up || host.attempts[path].is_some() {
            return;
        }
        let client = host.boot;
        let epoch = self.attempts.len() as u32;
        self.attempts.push(Attempt::new(path, self.sch.receives));
        self.attempts[epoch as usize].alive[CLIENT] = true;
        self.hosts[CLIENT].attempts[path] = Some(epoch);
        let way = self.way(path, CLIENT);
        match way.arrival.filter(|_| way.error.is_none()) {
            Some(arrival) => self.after(arrival, Ev::ConnReq { epoch, client }),
            None => self.after(
                self.sch.retry,
                Ev::Down {
                    side: CLIENT,
                    epoch,
                },
            ),
        }
    }

    /// A request to connect is at the server, which begins a session if it does not know this one.
    pub fn conn_req(&mut self, epoch: u32, client: u32) {
        let path = self.attempts[epoch as usize].path;
        if !self.hosts[SERVER].up {
            self.after(
                self.sch.retry,
                Ev::Down {
                    side: CLIENT,
                    epoch,
                },
            );
            return;
        }
        if self.hosts[SERVER].peer.is_some_and(|known| known > client) {
            // Late, from before the client's reboot.
            return;
        }
        // Former attempts of the path are superseded.
        for older in 1..epoch {
            let attempt = &self.attempts[older as usize];
            if attempt.path == path && attempt.alive[SERVER] {
                self.down(SERVER, older);
            }
        }
        if self.hosts[SERVER].peer != Some(client) {
            self.abandon_session(SERVER);
            self.hosts[SERVER].peer = Some(client);
        }
        self.attempts[epoch as usize].alive[SERVER] = true;
        let server = self.hosts[SERVER].boot;
        let way = self.way(path, SERVER);
        match way.arrival.filter(|_| way.error.is_none()) {
            Some(arrival) => self.after(arrival, Ev::ConnRsp { epoch, server }),
            None => {
                self.after(
                    self.sch.retry,
                    Ev::Down {
                        side: CLIENT,
                        epoch,
                    },
                );
                self.after(
                    self.sch.retry,
                    Ev::Down {
                        side: SERVER,
                        epoch,
                    },
                );
            }
        }
    }

    /// The server has accepted.
    pub fn conn_rsp(&mut self, epoch: u32, server: u32) {
        if !self.attempts[epoch as usize].alive[CLIENT] {
            return;
        }
        if self.hosts[CLIENT].peer.is_some_and(|known| known > server) {
            self.down(CLIENT, epoch);
            return;
        }
        if self.hosts[CLIENT].peer != Some(server) {
            self.abandon_session(CLIENT);
            self.hosts[CLIENT].peer = Some(server);
        }
        self.attempts[epoch as usize].connected = true;
        self.hosts[CLIENT].usable.push(epoch);
        self.move_channels();
        for chan in core::mem::take(&mut self.unopened) {
            self.open(chan);
        }
    }

    /// The peer's kernel does not know the session.
    fn abandon_session(&mut self, side: usize) {
        for chan in 0..self.sch.channels.len() {
            if self.hosts[side].ends[chan].is_some() {
                self.log.peer_lost[chan] = true;
                self.end_all(chan, side, Cause::PeerLost);
            }
        }
    }

    /// A side has lost an attempt, or gives it up.
    pub fn down(&mut self, side: usize, epoch: u32) {
        if !self.attempts[epoch as usize].alive[side] {
            return;
        }
        self.kill(side, epoch);
        self.lost(side, epoch);
        if side == CLIENT {
            let path = self.attempts[epoch as usize].path;
            self.hosts[CLIENT].attempts[path] = None;
            let back_off = MS + self.chance() % (10 * MS);
            self.after(back_off, Ev::Connect { path });
            self.move_channels();
        }
    }

    /// The queue pair of a side goes; the other side will notice.
    pub fn kill(&mut self, side: usize, epoch: u32) {
        let attempt = &mut self.attempts[epoch as usize];
        attempt.alive[side] = false;
        attempt.connected &= side != CLIENT;
        if side == CLIENT {
            self.hosts[CLIENT].usable.retain(|usable| *usable != epoch);
        }
        let attempt = &mut self.attempts[epoch as usize];
        attempt.arrived[side].clear();
        attempt.control[side].clear();
        let notice = 50 + self.chance() % (20 * MS);
        self.after(
            notice,
            Ev::Down {
                side: 1 - side,
                epoch,
            },
        );
    }

    /// Sends a frame.
    pub fn send_frame(&mut self, side: usize, epoch: u32, frame: Vec<u8>) {
        let path = self.attempts[epoch as usize].path;
        if self.attempts[epoch as usize].broken[side] {
            return;
        }
        let way = self.way(path, side);
        if let Some(after) = way.error {
            self.after(after, Ev::Down { side, epoch });
        }
        let attempt = &mut self.attempts[epoch as usize];
        let Some(arrival) = way.arrival else {
            attempt.broken[side] = true;
            return;
        };
        let at = (self.now + arrival).max(attempt.last[side] + 1);
        attempt.last[side] = at;
        let to = 1 - side;
        self.after(
            at - self.now,
            Ev::Arrive {
                side: to,
                epoch,
                frame,
            },
        );
    }

    /// A frame is in a receive.
    pub fn arrive(&mut self, side: usize, epoch: u32, frame: Vec<u8>) {
        let attempt = &mut self.attempts[epoch as usize];
        if !attempt.alive[side] {
            self.seen.late += 1;
            self.after(
                self.sch.retry,
                Ev::Down {
                    side: 1 - side,
                    epoch,
                },
            );
            return;
        }
        if attempt.posted[side] == 0 {
            self.log.fail(Violation::NotReady);
            return;
        }
        attempt.posted[side] -= 1;
        attempt.arrived[side].push_back(frame);
        let mut lag = 1;
        for fault in self.faults() {
            if let Kind::Slow {
                side: slow, extra, ..
            } = fault
            {
                if usize::from(slow) == side {
                    lag = extra;
                }
            }
        }
        let lag = 1 + self.chance() % lag;
        self.after(lag, Ev::Process { side, epoch });
    }

    /// A receive is posted again, if there is memory.
    pub fn repost(&mut self, side: usize, epoch: u32) {
        if !self.attempts[epoch as usize].alive[side] {
            return;
        }
        let no_memory = self
            .faults()
            .any(|f| matches!(f, Kind::NoMemory { side: short, .. } if usize::from(short) == side));
        if no_memory {
            self.after(MS, Ev::Repost { side, epoch });
            return;
        }
        let attempt = &mut self.attempts[epoch as usize];
        attempt.posted[side] += 1;
        attempt.link[side].reposted();
        self.hosts[side].dirty = true;
    }
}
