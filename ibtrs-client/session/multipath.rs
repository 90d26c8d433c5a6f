// SPDX-License-Identifier: GPL-2.0

//! The connected paths of a session, and the choice of one.
//!
//! Submitters read the paths under RCU. They write no shared cache line, except for the policy:
//! round robin moves a per-CPU cursor, min-inflight counts requests on the path, min-latency writes
//! nothing.

use crate::{
    path::attempt::PathConn,
    types::{
        Descriptor,
        Generation, //
    }, //
};
use ibtrs_proto::{
    consts::MAX_PATHS,
    failover::Phase,
    mp::{
        self,
        Candidate,
        Policy, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    io::IoHandle,
    percpu::RoundRobin,
    sync::atomic::Relaxed, //
};

/// A snapshot of the connected paths of a session.
pub(crate) struct Multipath {
    pub(crate) paths: KVec<Arc<PathConn>>,
    /// The drained paths, which take requests only if no other path does.
    drained: PathSet,
    /// The paths that are drained or on standby, which take requests only if no other path does.
    spared: PathSet,
    /// The generation for which I/O must be built. It also determines whether I/O may be submitted,
    /// or only administrative messages.
    pub(crate) generation: Generation,
}

/// A set of paths, by index.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct PathSet(u128);

impl PathSet {
    const NONE: Self = Self(0);

    /// Returns the union of both sets.
    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn add(&mut self, at: usize) {
        // CAST: `at` is below `MAX_PATHS`, and the assertion below keeps the shift in range.
        self.0 |= 1u128.checked_shl(at as u32).unwrap_or(0);
    }

    fn has(&self, at: usize) -> bool {
        self.0 & 1u128.checked_shl(at as u32).unwrap_or(0) != 0
    }

    /// Returns whether all of these paths are in `other`, which has more.
    fn is_less_than(self, other: Self) -> bool {
        self != other && self.or(other) == other
    }
}

const _: () = assert!(MAX_PATHS <= u128::BITS as usize);

impl Multipath {
    /// Returns a snapshot without paths, with capacity for the maximum number of paths of a
    /// session.
    pub(crate) fn new() -> Result<KBox<Self>> {
        let new = Self {
            paths: KVec::with_capacity(MAX_PATHS, GFP_KERNEL)?,
            drained: PathSet::NONE,
            spared: PathSet::NONE,
            generation: Generation(Phase::NONE),
        };
        Ok(KBox::new(new, GFP_KERNEL)?)
    }

    /// Returns whether the paths are of session generation `generation`, open or not.
    pub(crate) fn is_of(&self, generation: Generation) -> bool {
        self.generation.is_same_session(generation)
    }

    /// Updates the sets of paths that are drained or on standby.
    pub(crate) fn find_spared(&mut self) {
        self.drained = PathSet::NONE;
        self.spared = PathSet::NONE;
        for (at, path) in self.paths.iter().enumerate() {
            let path = &path.attempt.path;
            if path.takes_last() {
                self.drained.add(at);
            }
            if path.takes_last() || path.is_standby() {
                self.spared.add(at);
            }
        }
    }

    /// Sends a request over the path that the policy chooses, or over another one if that path
    /// refuses it. The order of preference is: other paths, paths on standby, the path that the
    /// request avoids, drained paths.
    ///
    /// # Errors
    ///
    /// Returns the I/O with `ENOTCONN` if no path takes it, or with an error of
    /// [`PathIo::submit`](crate::data::submit::PathIo::submit).
    #[inline]
    pub(crate) fn submit(
        &self,
        policy: Policy,
        round_robin: &RoundRobin,
        req: &mut Descriptor,
        user_hdr: &[u8],
        io: IoHandle,
    ) -> Result<&PathConn, (Error, IoHandle)> {
        match &*self.paths {
            // There is no choice.
            [path] => {
                req.counted = false;
                path.io.submit(req, user_hdr, io).map(|()| &**path)
            }
            _ => self.submit_to_one(policy, round_robin, req, user_hdr, io),
        }
    }

    /// As [`Self::submit`], whatever the number of paths.
    #[inline(never)]
    pub(crate) fn submit_to_one(
        &self,
        policy: Policy,
        round_robin: &RoundRobin,
        req: &mut Descriptor,
        user_hdr: &[u8],
        mut io: IoHandle,
    ) -> Result<&PathConn, (Error, IoHandle)> {
        req.counted = policy == Policy::MinInflight;
        let mut tried = PathSet::NONE;
        let avoided = match req.avoid {
            Some(epoch) => self.of_epoch(epoch),
            None => PathSet::NONE,
        };
        let mut left_out = self.spared.or(avoided);
        let turn = match policy {
            Policy::RoundRobin => round_robin.next(),
            Policy::MinInflight | Policy::MinLatency => 0,
        };
        loop {
            let at = self.choose(policy, turn, &tried.or(left_out));
            let Some((at, path)) = at.and_then(|at| Some((at, self.paths.get(at)?))) else {
                let Some(fewer) = self.fewer(left_out, avoided) else {
                    return Err((ENOTCONN, io));
                };
                left_out = fewer;
                continue;
            };
            match path.io.submit(req, user_hdr, io) {
                Ok(()) => return Ok(path),
                Err((ENOTCONN, back)) => {
                    tried.add(at);
                    io = back;
                }
                Err(refused) => return Err(refused),
            }
        }
    }

    /// Returns the next set of paths to exclude, if no path outside `left_out` has accepted a request;
    /// `None` if all have been tried. `avoided` is the path that the request avoids.
    fn fewer(&self, left_out: PathSet, avoided: PathSet) -> Option<PathSet> {
        [self.drained.or(avoided), self.drained, PathSet::NONE]
            .into_iter()
            .find(|set| set.is_less_than(left_out))
    }

    /// Returns the set of the path with this epoch; empty if it is not connected any more.
    #[cold]
    fn of_epoch(&self, epoch: u32) -> PathSet {
        let mut set = PathSet::NONE;
        for (at, path) in self.paths.iter().enumerate() {
            if path.attempt.epoch() == epoch {
                set.add(at);
            }
        }
        set
    }

    /// Handles completions of connection `cid` of each path, if it is polled; returns their number.
    pub(crate) fn poll(&self, cid: u16) -> u32 {
        self.paths.iter().map(|path| path.io.poll(cid)).sum()
    }

    fn choose(&self, policy: Policy, turn: u64, tried: &PathSet) -> Option<usize> {
        let candidates = self.paths.iter().enumerate().map(|(at, path)| Candidate {
            usable: !tried.has(at),
            inflight: match policy {
                // CAST: Never negative, as each decrement follows its increment.
                Policy::MinInflight => path.io.link.inflight.load(Relaxed).max(0) as u32,
                _ => 0,
            },
            latency: match policy {
                Policy::MinLatency => path.io.link.latency_ns(),
                _ => None,
            },
        });
        mp::choose(policy, turn, candidates)
    }
}
