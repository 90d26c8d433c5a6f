// SPDX-License-Identifier: GPL-2.0

//! Schedules: everything in a run that the logic does not decide.
//!
//! A seed makes a schedule. A schedule makes a run, always the same one: the fate of a message
//! depends on the seed and on its place in its connection, and not on other events, so a schedule
//! from which something was dropped stays close to the whole.

use ibtrs_proto::backoff::Attempts;
use ibtrs_proto::mp::Policy;

/// Microseconds.
pub type Time = u64;
/// Microseconds in a millisecond.
pub const MS: Time = 1000;

/// Most paths.
pub const PATHS: usize = 3;
/// Most chunks: one for admin messages, and those for I/O.
pub const TAGS: usize = 4;
/// Sectors of the disk.
pub const SECTORS: usize = 2;
/// Maximum number of requests, so that the search for a legal order stays fast.
pub const REQUESTS: usize = 10;

/// Which side has the extensions, and with it which guarantees hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Both: everything is checked.
    Ext,
    /// A client without extensions and our server. Of two attempts by one chunk that are in the
    /// server's hands one is not overtaken by the other, and they are not served at once. What the
    /// network delivers late may still land late.
    OldClient,
    /// Our client and a server that has neither extensions nor [`ibtrs_proto::chunk_owner`]. Each
    /// request completes once, and nothing is stuck.
    OldServer,
}

/// A direction of a path, as bits.
pub const TO_SERVER: u8 = 1;
/// The other one.
pub const TO_CLIENT: u8 = 2;

/// The faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Nothing passes in these directions. Short outages are bridged by retransmission, longer ones
    /// break connections; messages sent before may arrive in the end.
    Cut { path: u8, dirs: u8, time: Time },
    /// Messages take up to this much longer, on each connection independently.
    Delay {
        path: u8,
        dirs: u8,
        time: Time,
        extra: Time,
    },
    /// Some messages are lost for good, and their connections with them.
    Loss { path: u8, dirs: u8, time: Time },
    /// The client sees an error, the server none.
    ClientError { path: u8 },
    /// The server sees an error, the client none.
    ServerError { path: u8 },
    /// The server's RDMA device goes.
    ServerDevice { path: u8 },
    /// Tear-downs of the client take long: requests in flight are given back late.
    SlowClient { path: u8, time: Time, extra: Time },
    /// The server is slow to look at requests, and to drain.
    SlowServer { path: u8, time: Time, extra: Time },
    /// The server stops at once, and is started again after a while.
    Crash { time: Time },
    /// The server's operator disconnects all paths: the session is lost, the boot id stays.
    Forget,
    /// The disk takes its time.
    SlowDisk { time: Time, extra: Time },
    /// A user reconnects a path.
    Reconnect { path: u8 },
    /// A user disconnects a path, and connects it again.
    Disconnect { path: u8, time: Time },
    /// A user removes a path for good.
    Remove { path: u8 },
    /// A submitter is delayed for up to this long between any two steps.
    SlowDriver { time: Time, extra: Time },
    /// A user sets how many attempts to reconnect may be made in a row.
    Limit { most: u16 },
    /// Send queues are full: half of the resent requests have to wait.
    Full { time: Time },
}

impl Kind {
    /// The path that is concerned; `None` for all or none.
    pub const fn path(&self) -> Option<u8> {
        match *self {
            Kind::Cut { path, .. }
            | Kind::Delay { path, .. }
            | Kind::Loss { path, .. }
            | Kind::ClientError { path }
            | Kind::ServerError { path }
            | Kind::ServerDevice { path }
            | Kind::SlowClient { path, .. }
            | Kind::SlowServer { path, .. }
            | Kind::Reconnect { path }
            | Kind::Disconnect { path, .. }
            | Kind::Remove { path } => Some(path),
            Kind::Crash { .. }
            | Kind::Forget
            | Kind::SlowDisk { .. }
            | Kind::SlowDriver { .. }
            | Kind::Limit { .. }
            | Kind::Full { .. } => None,
        }
    }

    /// How long it lasts.
    pub const fn time(&self) -> Time {
        match *self {
            Kind::Cut { time, .. }
            | Kind::Delay { time, .. }
            | Kind::Loss { time, .. }
            | Kind::SlowClient { time, .. }
            | Kind::SlowServer { time, .. }
            | Kind::Crash { time }
            | Kind::SlowDisk { time, .. }
            | Kind::SlowDriver { time, .. }
            | Kind::Full { time }
            | Kind::Disconnect { time, .. } => time,
            _ => 0,
        }
    }
}

/// Something that goes wrong at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// When.
    pub at: Time,
    /// What.
    pub kind: Kind,
}

impl Fault {
    /// When it is over.
    pub const fn end(&self) -> Time {
        self.at + self.kind.time()
    }
}

/// A request of a user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// When.
    pub at: Time,
    /// Which sector.
    pub sector: u8,
    /// A write, of a value that no other request writes.
    pub write: bool,
}

/// A whole run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// The seed; the fabric's behaviour follows from it.
    pub seed: u64,
    /// The sides and their protocols.
    pub mode: Mode,
    /// Paths of the session.
    pub paths: u8,
    /// Chunks for I/O.
    pub depth: u8,
    /// How paths are chosen.
    pub policy: Policy,
    /// Between heartbeats.
    pub hb: Time,
    /// Heartbeats that may be missed.
    pub missed: u32,
    /// Retransmission ends after this.
    pub retry: Time,
    /// First delay of the back-off, in milliseconds.
    pub reconnect_ms: u32,
    /// Attempts to reconnect in a row.
    pub limit: Attempts,
    /// Requests fail after so long without a path.
    pub queue_timeout: Time,
    /// The requests of users.
    pub requests: Vec<Request>,
    /// The faults.
    pub faults: Vec<Fault>,
}

/// Random numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// One step of splitmix64.
pub const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

impl Rng {
    /// A stream of numbers.
    pub const fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }

    /// A number from `low` up to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// Requests and most faults begin before this.
const BUSY: Time = 5_000 * MS;

impl Schedule {
    /// The schedule of a seed, with the extensions on both sides three times out of four.
    pub fn of_seed(seed: u64) -> Self {
        let mode = match seed % 8 {
            6 => Mode::OldClient,
            7 => Mode::OldServer,
            _ => Mode::Ext,
        };
        Self::with_mode(seed, mode)
    }

    /// The schedule of a seed in a mode.
    pub fn with_mode(seed: u64, mode: Mode) -> Self {
        let mut r = Rng::new(seed);
        let paths = r.pick(&[1u8, 2, 2, 2, 3, 3]);
        let mut s = Self {
            seed,
            mode,
            paths,
            depth: r.between(1, TAGS as u64 - 1) as u8,
            policy: r.pick(&Policy::ALL),
            hb: r.pick(&[100, 200, 500]) * MS,
            missed: r.pick(&[1, 2, 5]),
            retry: r.pick(&[300, 800, 2000]) * MS,
            reconnect_ms: r.pick(&[20, 100, 500]),
            limit: match r.below(4) {
                0 => Attempts::AtMost(r.pick(&[0, 1, 2, 5])),
                _ => Attempts::Forever,
            },
            queue_timeout: r.pick(&[0, 200, 1000, 60_000, 60_000, 60_000]) * MS,
            requests: Vec::new(),
            faults: Vec::new(),
        };
        let sectors = r.between(1, SECTORS as u64);
        for _ in 0..r.between(3, 8) {
            s.requests.push(Request {
                at: r.between(100 * MS, BUSY),
                sector: r.below(sectors) as u8,
                write: r.below(3) != 0,
            });
        }
        s.requests.sort_by_key(|q| q.at);
        for _ in 0..r.between(2, 11) {
            let fault = fault(&mut r, paths);
            s.faults.push(fault);
        }
        // Trouble comes where the requests are.
        for _ in 0..r.between(0, 3) {
            let near = r.pick(&s.requests).at;
            let mut fault = fault(&mut r, paths);
            fault.at = near + r.below(3 * MS);
            s.faults.push(fault);
        }
        match r.below(5) {
            0 | 1 => s.storm(&mut r, sectors),
            2 => s.slow_attempt(&mut r, sectors),
            3 => s.outage(&mut r, sectors),
            _ => {}
        }
        s.requests.sort_by_key(|q| q.at);
        s.faults.sort_by_key(|f| f.at);
        s
    }

    /// An attempt to connect takes so long that it learns what is true no more when it is done:
    /// meanwhile the server may have been started again, and another path came, took requests
    /// and was lost.
    fn slow_attempt(&mut self, r: &mut Rng, sectors: u64) {
        let path = r.below(self.paths.into()) as u8;
        let begin = r.between(300, 3000) * MS;
        let mut fault = |at, kind| self.faults.push(Fault { at, kind });
        fault(begin, Kind::ClientError { path });
        // Either all of the set-up is slow, or one of its last steps.
        let (after, dirs, time) = match r.below(2) {
            0 => (0, TO_SERVER | TO_CLIENT, r.between(20, 600) * MS),
            _ => (r.below(25 * MS), TO_CLIENT, r.between(1, 20) * MS),
        };
        let extra = r.between(200, 2400) * MS;
        fault(
            begin + after,
            Kind::Delay {
                path,
                dirs,
                time,
                extra,
            },
        );
        let others = (0..self.paths).filter(move |p| *p != path);
        let mut at = begin + r.between(10, 200) * MS;
        let known = match r.below(4) {
            0 => {
                let time = r.between(1, 50) * MS;
                fault(at, Kind::Crash { time });
                false
            }
            1 => {
                fault(at, Kind::Forget);
                false
            }
            _ => true,
        };
        if !known {
            at += 60 * MS;
            for path in others.clone() {
                fault(at, Kind::ClientError { path });
            }
        }
        at += r.between(30, 400) * MS;
        let time = r.between(10, 300) * MS;
        let extra = r.between(100, 3000) * MS;
        fault(at - 10 * MS, Kind::SlowDisk { time, extra });
        for path in others {
            fault(at + r.below(20 * MS), Kind::ClientError { path });
        }
        self.reconnect_ms = r.pick(&[20, 20, 500]);
        self.queue_timeout = r.pick(&[0, 200, 60_000]) * MS;
        let after = r.pick(&[10, 500, 2000]) * MS;
        while self.requests.len() < REQUESTS {
            self.requests.push(Request {
                at: at
                    + r.below(if self.requests.len() % 2 == 0 {
                        10 * MS
                    } else {
                        after
                    }),
                sector: r.below(sectors) as u8,
                write: r.below(4) != 0,
            });
        }
    }

    /// All paths fail one soon after the other, perhaps once more as soon as they are back, while
    /// the disk is slow and send queues are full. Requests fail at once, or soon.
    fn outage(&mut self, r: &mut Rng, sectors: u64) {
        let at = r.between(500 * MS, BUSY);
        let mut fault = |at, kind| self.faults.push(Fault { at, kind });
        let time = r.between(100, 1000) * MS;
        let extra = r.between(100, 3000) * MS;
        fault(at - 10 * MS, Kind::SlowDisk { time, extra });
        let time = r.between(10, 500) * MS;
        fault(at, Kind::Full { time });
        let pace = r.between(1, 30) * MS;
        for path in 0..self.paths {
            fault(at + r.below(pace), Kind::ClientError { path });
            if r.below(2) == 0 {
                let again = at + pace + r.below(30 * MS);
                fault(again, Kind::ClientError { path });
            }
        }
        self.reconnect_ms = 20;
        self.queue_timeout = r.pick(&[0, 0, 20]) * MS;
        while self.requests.len() < REQUESTS {
            self.requests.push(Request {
                at: at + r.below(2 * pace + 30 * MS),
                sector: r.below(sectors) as u8,
                write: r.below(4) != 0,
            });
        }
    }

    /// A slow disk, requests close together, and the paths fail one after the other, some twice.
    fn storm(&mut self, r: &mut Rng, sectors: u64) {
        let at = r.between(500 * MS, BUSY);
        let time = r.between(100, 3000) * MS;
        let extra = r.between(1, 3000) * MS;
        let mut fault = |at, kind| self.faults.push(Fault { at, kind });
        fault(at - 10 * MS, Kind::SlowDisk { time, extra });
        if r.below(2) == 0 {
            let time = r.between(10, 1000) * MS;
            fault(at, Kind::Full { time });
        }
        let pace = r.pick(&[2, 20, 200]) * MS;
        for _ in 0..r.between(1, 2 * u64::from(self.paths)) {
            let path = r.below(self.paths.into()) as u8;
            let kind = match r.below(3) {
                0 => Kind::ServerError { path },
                _ => Kind::ClientError { path },
            };
            fault(at + r.below(2 * pace), kind);
        }
        while self.requests.len() < REQUESTS {
            self.requests.push(Request {
                at: at + r.below(3 * pace),
                sector: r.below(sectors) as u8,
                write: r.below(4) != 0,
            });
        }
    }

    /// Whether nothing ever happens to a path.
    pub fn healthy(&self, path: u8) -> bool {
        let harmless = |f: &Fault| match f.kind {
            Kind::Crash { .. } | Kind::Forget => false,
            Kind::SlowDisk { .. } | Kind::SlowDriver { .. } => true,
            Kind::Limit { .. } | Kind::Full { .. } => true,
            _ => f.kind.path() != Some(path),
        };
        self.faults.iter().all(harmless)
    }

    /// When the last fault is over.
    pub fn quiet(&self) -> Time {
        self.faults.iter().map(Fault::end).max().unwrap_or(0)
    }
}

fn fault(r: &mut Rng, paths: u8) -> Fault {
    let path = r.below(paths.into()) as u8;
    let dirs = r.pick(&[TO_SERVER, TO_CLIENT, TO_SERVER | TO_CLIENT]);
    let short = r.between(1, 400) * MS;
    let long = r.between(100, 6000) * MS;
    let time = if r.below(2) == 0 { short } else { long };
    let extra = r.between(1, 3000) * MS;
    let kind = match r.below(25) {
        0..=2 => Kind::Cut { path, dirs, time },
        3..=5 => Kind::Delay {
            path,
            dirs,
            time,
            extra,
        },
        6 => Kind::Loss { path, dirs, time },
        7..=8 => Kind::ClientError { path },
        9 => Kind::ServerError { path },
        10 => Kind::Limit {
            most: r.pick(&[0, 1, 3]),
        },
        11 => Kind::ServerDevice { path },
        12 => Kind::SlowClient { path, time, extra },
        13 => Kind::SlowServer { path, time, extra },
        14 => Kind::Crash { time },
        15 => Kind::Forget,
        16..=17 => Kind::SlowDisk { time, extra },
        18 => Kind::Reconnect { path },
        19 if r.below(4) == 0 => Kind::Remove { path },
        20 => Kind::Full { time },
        21..=23 => Kind::SlowDriver { time, extra },
        _ => Kind::Disconnect { path, time },
    };
    Fault {
        at: r.between(50 * MS, BUSY),
        kind,
    }
}
