// SPDX-License-Identifier: GPL-2.0

//! What is counted in runs of sessions.

use std::time::Instant;

use crate::simulation::Sum;
use crate::world::Outcome;

/// The counts of all runs together.
#[derive(Default)]
pub struct Counts {
    time: u64,
    events: u64,
    failed: u64,
    retries: u64,
    waited: u64,
    fences: u64,
    older: u64,
    session_lost: u64,
    connects: u64,
    failures: u64,
    exhausted: u64,
    stale: u64,
}

impl Sum<Outcome> for Counts {
    const EVERY: u64 = 100_000;

    fn add(&mut self, o: &Outcome) {
        self.time += o.time;
        self.events += u64::from(o.events);
        self.failed += u64::from(o.failed);
        self.retries += u64::from(o.retries);
        self.waited += u64::from(o.waited);
        self.fences += u64::from(o.fences);
        self.older += u64::from(o.older);
        self.session_lost += u64::from(o.session_lost);
        self.connects += u64::from(o.connects);
        self.failures += u64::from(o.failures);
        self.exhausted += u64::from(o.exhausted);
        self.stale += u64::from(o.stale);
    }

    fn print(&self, runs: u64, since: Instant) {
        println!(
            "{runs} schedules in {:.1} s: {} h simulated, {} events, {} requests failed, \
             {} sent again, {} waited in the server, {} fences, {} of abandoned requests, \
             {} times opened again, {} attempts succeeded, {} failed, {} paths ran out of them, \
             {} requests built again",
            since.elapsed().as_secs_f64(),
            self.time / 3_600_000_000,
            self.events,
            self.failed,
            self.retries,
            self.waited,
            self.fences,
            self.older,
            self.session_lost,
            self.connects,
            self.failures,
            self.exhausted,
            self.stale,
        );
    }
}
