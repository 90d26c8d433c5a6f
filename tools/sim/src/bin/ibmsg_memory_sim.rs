// SPDX-License-Identifier: GPL-2.0

//! Runs schedules of memory by their seeds, or one schedule with all its events printed.

use std::process::ExitCode;
use std::time::Instant;

use ibtrs_sim::mem::{run, shrink, trace, Bug, Schedule};

const USAGE: &str = "usage: ibmsg_memory_sim [--seed N] [--runs N] [--trace] [--bug NAME]

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
    let mut events = 0;
    for n in 0..args.runs {
        let seed = args.seed.wrapping_add(n);
        let sch = Schedule::of_seed(seed);
        let outcome = run(&sch, args.bug);
        events += u64::from(outcome.events);
        if let Some(violation) = outcome.violation {
            println!("seed {seed}: {violation:?}");
            let small = shrink(&sch, args.bug);
            println!("{small:#?}");
            println!("{:?}", run(&small, args.bug));
            return ExitCode::FAILURE;
        }
        if (n + 1) % 1_000_000 == 0 || n + 1 == args.runs {
            let seconds = since.elapsed().as_secs_f64();
            let rate = (n + 1) as f64 / seconds;
            println!(
                "{} schedules in {seconds:.1} s ({rate:.0}/s), {events} events",
                n + 1
            );
        }
    }
    ExitCode::SUCCESS
}
