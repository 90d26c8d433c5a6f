// SPDX-License-Identifier: GPL-2.0

//! The fabric: delivers, delays or loses messages.
//!
//! A connection delivers its messages in order; connections overtake each other. A message that is
//! on its way when its sender is gone arrives nevertheless. A message that is lost takes the rest
//! of its connection with it, and the sender learns when retransmission ends. Messages of the
//! connection manager arrive in any order, or not at all.

use crate::schedule::{mix, Kind, Time, MS, TO_CLIENT, TO_SERVER};
use crate::world::{Ev, World};

/// Connections of a path: the service connection and two for I/O.
pub const CONS: usize = 3;
/// In place of a connection: the connection manager.
pub const CM: u8 = CONS as u8;

/// Who.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The one that asks.
    Client,
    /// The one that answers.
    Server,
}

/// A read, a write, or the opening of the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Io {
    /// The chunk.
    pub tag: u8,
    /// Which request it is, for the checks: not on the wire. [`Io::OPEN`] for an admin message.
    pub req: u16,
    /// Which sector.
    pub sector: u8,
    /// A write.
    pub write: bool,
    /// Number under which the disk was opened.
    pub device: u32,
}

impl Io {
    /// In place of a request: opens the disk.
    pub const OPEN: u16 = u16::MAX;
}

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Msg {
    /// A connection of an attempt asks to be accepted.
    ConnReq { cid: u8, first: bool },
    /// The connection is accepted or refused; with the boot id and the session generation if the
    /// client knows the extensions.
    ConnRsp {
        cid: u8,
        ok: bool,
        boot: u32,
        gen: u32,
    },
    /// INFO_REQ.
    InfoReq,
    /// INFO_RSP.
    InfoRsp,
    /// A request.
    Io(Io),
    /// Its answer: what was read, or the number of the opened disk. `arrival` says which attempt
    /// it answers, for the checks.
    IoRsp { io: Io, value: u32, arrival: u32 },
    /// An immediate without a request.
    Imm(u32),
    /// Disconnected.
    Dreq,
}

/// Both directions of an attempt's connections.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Which path.
    pub path: u8,
    /// Queue pairs are there: of the client, of the server.
    pub alive: [bool; 2],
    last: [[Time; CONS]; 2],
    broken: [[bool; CONS]; 2],
    count: [u32; 2],
}

impl Link {
    /// The link of an attempt of `path`: the client's side is there.
    pub const fn new(path: u8) -> Self {
        Self {
            path,
            alive: [true, false],
            last: [[0; CONS]; 2],
            broken: [[false; CONS]; 2],
            count: [0; 2],
        }
    }
}

/// Whether the time is within a fault.
const fn during(at: Time, time: Time, now: Time) -> bool {
    at <= now && now < at + time
}

impl World<'_> {
    /// Random bits that depend on nothing but the seed and what they are for.
    pub fn chance(&self, what: u64, which: u64) -> u64 {
        mix(self.sch.seed ^ mix(what << 32 ^ which))
    }

    /// Sends a message from `side` by a connection of `attempt`, or by its connection manager.
    pub fn send(&mut self, side: Side, attempt: u32, cid: u8, msg: Msg) {
        let dir = side as usize;
        let link = &mut self.links[attempt as usize];
        link.count[dir] += 1;
        let (path, count) = (link.path, link.count[dir]);
        let con = usize::from(cid);
        if cid != CM && link.broken[dir][con] {
            return;
        }
        let bits = self.chance(dir as u64 + 1, u64::from(attempt) << 24 | u64::from(count));
        let way = self.way(path, side, bits, cid == CM);
        if let Some(after) = way.error {
            let ev = Ev::QpError { side, attempt };
            self.at(self.now + after, ev);
        }
        let Some(arrival) = way.arrival else {
            if cid != CM {
                self.links[attempt as usize].broken[dir][con] = true;
            }
            return;
        };
        let mut arrival = arrival;
        if cid != CM {
            let last = &mut self.links[attempt as usize].last[dir][con];
            arrival = arrival.max(*last + 1);
            *last = arrival;
        }
        let to = match side {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        };
        self.at(
            arrival,
            Ev::Deliver {
                to,
                attempt,
                cid,
                msg,
            },
        );
    }

    fn way(&self, path: u8, side: Side, bits: u64, cm: bool) -> Way {
        let there = match side {
            Side::Client => TO_SERVER,
            Side::Server => TO_CLIENT,
        };
        let mut way = Way {
            arrival: Some(self.now + 20 + bits % 400),
            error: None,
        };
        let retry = self.sch.retry;
        for f in &self.sch.faults {
            if f.at > self.now {
                break;
            }
            match f.kind {
                Kind::Cut {
                    path: p,
                    dirs,
                    time,
                } if p == path && during(f.at, time, self.now) => {
                    let end = f.at + time;
                    // Without acknowledgements it looks the same as if nothing arrived.
                    let broken = end - self.now > retry;
                    if broken {
                        way.error = Some(retry);
                    }
                    if dirs & there != 0 {
                        // Sent again until the cut ends, or kept somewhere, or gone.
                        let kept = bits >> 20 & 1 != 0;
                        let late = end + bits % 4000;
                        let arrives = !broken || kept && !cm;
                        way.arrival = way.arrival.filter(|_| arrives).map(|t| t.max(late));
                    }
                }
                Kind::Delay {
                    path: p,
                    dirs,
                    time,
                    extra,
                } if p == path && dirs & there != 0 && during(f.at, time, self.now) => {
                    way.arrival = way.arrival.map(|t| t + (bits >> 8) % extra);
                }
                Kind::Loss {
                    path: p,
                    dirs,
                    time,
                } if p == path
                    && dirs & there != 0
                    && during(f.at, time, self.now)
                    && (bits >> 32) % 4 == 0 =>
                {
                    way.arrival = None;
                    way.error = Some(retry);
                }
                _ => {}
            }
        }
        if cm {
            way.error = None;
        }
        way
    }

    /// How long something takes on a side of a path.
    pub fn lag(&self, side: Side, path: u8, bits: u64) -> Time {
        let mut lag = bits % (2 * MS);
        for f in &self.sch.faults {
            let extra = match (f.kind, side) {
                (
                    Kind::SlowClient {
                        path: p,
                        time,
                        extra,
                    },
                    Side::Client,
                )
                | (
                    Kind::SlowServer {
                        path: p,
                        time,
                        extra,
                    },
                    Side::Server,
                ) if p == path && during(f.at, time, self.now) => extra,
                _ => continue,
            };
            lag += (bits >> 16) % extra;
        }
        lag
    }

    /// A message whose receiver was gone: its sender will notice, if it still exists.
    pub fn nobody(&mut self, to: Side, attempt: u32, cid: u8) {
        if cid == CM {
            return;
        }
        let side = match to {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        };
        if self.links[attempt as usize].alive[side as usize] {
            self.at(self.now + self.sch.retry, Ev::QpError { side, attempt });
        }
    }
}

struct Way {
    /// When it arrives; `None` for never.
    arrival: Option<Time>,
    /// When the sender learns that it was not acknowledged, from now on.
    error: Option<Time>,
}
