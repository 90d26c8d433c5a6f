// SPDX-License-Identifier: GPL-2.0

//! Less of the same trouble.

use crate::schedule::Schedule;
use crate::world::{run, Bug};

/// Drops requests and faults from a schedule as long as it fails with any of the rest.
///
/// Returns the schedule as it is if it does not fail.
pub fn shrink(sch: &Schedule, bug: Option<Bug>) -> Schedule {
    let fails = |s: &Schedule| run(s, bug).violation.is_some();
    let mut best = sch.clone();
    loop {
        let before = best.requests.len() + best.faults.len();
        let mut i = best.faults.len();
        while i > 0 {
            i -= 1;
            let mut less = best.clone();
            less.faults.remove(i);
            if fails(&less) {
                best = less;
            }
        }
        let mut i = best.requests.len();
        while i > 0 {
            i -= 1;
            let mut less = best.clone();
            less.requests.remove(i);
            if fails(&less) {
                best = less;
            }
        }
        if best.requests.len() + best.faults.len() == before {
            return best;
        }
    }
}
