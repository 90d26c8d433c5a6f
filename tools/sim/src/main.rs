// SPDX-License-Identifier: GPL-2.0

//! Runs schedules by their seeds, or one schedule with all its events printed.

use std::process::ExitCode;
use std::time::Instant;

use ibtrs_sim::{run, shrink, trace, Bug, Outcome, Schedule};

const USAGE: &str = "usage: ibtrs_sim [--seed N] [--runs N] [--trace] [--bug NAME]

  --seed N    first seed (default 0)
  --runs N    how many seeds from there (default 1000000)
  --trace     print what happens in the first one, shrunk if it fails
  --bug NAME  with a deliberate mistake";

struct Args {
    seed: u64,
    runs: u64,
    trace: bool,
    bug: Option<Bug>,
}

fn args() -> Option<Args> {
    let mut args = Args {
        seed: 0,
        runs: 1_000_000,
        trace: false,
        bug: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seed" => args.seed = words.next()?.parse().ok()?,
            "--runs" => args.runs = words.next()?.parse().ok()?,
            "--trace" => args.trace = true,
            "--bug" => {
                let name = words.next()?;
                let same = |b: &Bug| format!("{b:?}").eq_ignore_ascii_case(&name);
                args.bug = Some(Bug::ALL.into_iter().find(same)?);
            }
            _ => return None,
        }
    }
    Some(args)
}

/// The counts of all runs together.
#[derive(Default)]
struct Sum {
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

impl Sum {
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

fn main() -> ExitCode {
    let Some(args) = args() else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    if args.trace {
        let small = shrink(&Schedule::of_seed(args.seed), args.bug);
        println!("{small:#?}");
        println!("{:?}", trace(&small, args.bug));
        return ExitCode::SUCCESS;
    }
    let since = Instant::now();
    let mut sum = Sum::default();
    for n in 0..args.runs {
        let seed = args.seed.wrapping_add(n);
        let sch = Schedule::of_seed(seed);
        let outcome = run(&sch, args.bug);
        if let Some(violation) = outcome.violation {
            println!("seed {seed}: {violation:?}");
            let small = shrink(&sch, args.bug);
            println!("{small:#?}");
            println!("{:?}", run(&small, args.bug));
            return ExitCode::FAILURE;
        }
        sum.add(&outcome);
        if (n + 1) % 100_000 == 0 {
            sum.print(n + 1, since);
        }
    }
    sum.print(args.runs, since);
    ExitCode::SUCCESS
}
