// SPDX-License-Identifier: GPL-2.0

//! What all simulators have in common: a seed determines a schedule, and a schedule determines a run.

use std::fmt::Debug;
use std::time::Instant;

/// A simulator.
pub trait Simulation {
    /// Everything in a run that the logic does not decide.
    type Schedule: Clone + Debug;
    /// A deliberate mistake.
    type Bug: Copy + Debug + 'static;
    /// A broken property.
    type Violation: Debug + PartialEq;
    /// What has come of a run.
    type Outcome: Debug + PartialEq;
    /// The counts of many runs.
    type Sum: Sum<Self::Outcome>;

    /// The program that runs it.
    const PROGRAM: &'static str;
    /// All mistakes.
    const BUGS: &'static [Self::Bug];

    /// Returns the schedule of a seed.
    fn of_seed(seed: u64) -> Self::Schedule;

    /// Runs a schedule.
    fn run(sch: &Self::Schedule, bug: Option<Self::Bug>) -> Self::Outcome;

    /// Runs a schedule, and prints every event.
    fn trace(sch: &Self::Schedule, bug: Option<Self::Bug>) -> Self::Outcome;

    /// Drops what a schedule that fails can do without. Returns the schedule as it is if it does not fail.
    fn shrink(sch: &Self::Schedule, bug: Option<Self::Bug>) -> Self::Schedule;

    /// Returns the property that is broken.
    fn violation(outcome: &Self::Outcome) -> Option<&Self::Violation>;
}

/// The counts of many runs.
pub trait Sum<Outcome>: Default {
    /// Runs after which they are printed.
    const EVERY: u64;

    /// Adds those of a run.
    fn add(&mut self, outcome: &Outcome);

    /// Prints those of `runs` runs that began at `since`.
    fn print(&self, runs: u64, since: Instant);
}

/// The number of events of many runs.
#[derive(Default)]
pub struct Events(pub(crate) u64);

impl Events {
    pub(crate) fn print(&self, runs: u64, since: Instant) {
        let (seconds, events) = (since.elapsed().as_secs_f64(), self.0);
        let rate = runs as f64 / seconds;
        println!("{runs} schedules in {seconds:.1} s ({rate:.0}/s), {events} events");
    }
}

/// Makes a schedule smaller as long as that finds a smaller one.
pub(crate) fn shrunk<S: Clone>(sch: &S, smaller: impl Fn(&S) -> Option<S>) -> S {
    let mut best = sch.clone();
    while let Some(less) = smaller(&best) {
        best = less;
    }
    best
}

/// The schedules with one thing less in a list.
pub(crate) fn without<'s, S: Clone, T>(
    sch: &'s S,
    list: impl Fn(&mut S) -> &mut Vec<T> + 's,
) -> impl DoubleEndedIterator<Item = S> + 's {
    let count = list(&mut sch.clone()).len();
    (0..count).map(move |at| {
        let mut less = sch.clone();
        list(&mut less).remove(at);
        less
    })
}

/// Implements [`Simulation`] for the functions and types of a module.
macro_rules! simulation {
    ($name:ident, $program:literal, $sum:ty) => {
        impl $crate::simulation::Simulation for $name {
            type Schedule = Schedule;
            type Bug = Bug;
            type Violation = Violation;
            type Outcome = Outcome;
            type Sum = $sum;

            const PROGRAM: &'static str = $program;
            const BUGS: &'static [Bug] = &Bug::ALL;

            fn of_seed(seed: u64) -> Schedule {
                Schedule::of_seed(seed)
            }

            fn run(sch: &Schedule, bug: Option<Bug>) -> Outcome {
                run(sch, bug)
            }

            fn trace(sch: &Schedule, bug: Option<Bug>) -> Outcome {
                trace(sch, bug)
            }

            fn shrink(sch: &Schedule, bug: Option<Bug>) -> Schedule {
                shrink(sch, bug)
            }

            fn violation(outcome: &Outcome) -> Option<&Violation> {
                outcome.violation.as_ref()
            }
        }
    };
}
pub(crate) use simulation;

/// Implements [`Sum`] by [`Events`] for the outcome of a module.
macro_rules! counts_events {
    ($outcome:ty) => {
        impl $crate::simulation::Sum<$outcome> for $crate::simulation::Events {
            const EVERY: u64 = 1_000_000;

            fn add(&mut self, outcome: &$outcome) {
                self.0 += u64::from(outcome.events);
            }

            fn print(&self, runs: u64, since: std::time::Instant) {
                Self::print(self, runs, since);
            }
        }
    };
}
pub(crate) use counts_events;
