// SPDX-License-Identifier: GPL-2.0

//! The command line of a simulator: runs schedules by their seeds, or one schedule with all its events printed.

use std::process::ExitCode;
use std::time::Instant;

use crate::simulation::{Simulation, Sum};

const OPTIONS: &str = "[--seed N] [--runs N] [--trace] [--bug NAME]

  --seed N    first seed (default 0)
  --runs N    how many seeds from there (default 1000000)
  --trace     print what happens in the first one, shrunk if it fails
  --bug NAME  with a deliberate mistake";

struct Args<Bug> {
    seed: u64,
    runs: u64,
    trace: bool,
    bug: Option<Bug>,
}

fn args<S: Simulation>() -> Option<Args<S::Bug>> {
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
                let same = |b: &S::Bug| format!("{b:?}").eq_ignore_ascii_case(&name);
                args.bug = Some(S::BUGS.iter().copied().find(same)?);
            }
            _ => return None,
        }
    }
    Some(args)
}

/// The whole program.
pub fn main<S: Simulation>() -> ExitCode {
    let Some(args) = args::<S>() else {
        eprintln!("usage: {} {OPTIONS}", S::PROGRAM);
        return ExitCode::FAILURE;
    };
    if args.trace {
        let small = S::shrink(&S::of_seed(args.seed), args.bug);
        println!("{small:#?}");
        println!("{:?}", S::trace(&small, args.bug));
        return ExitCode::SUCCESS;
    }
    let since = Instant::now();
    let mut sum = S::Sum::default();
    for n in 0..args.runs {
        let seed = args.seed.wrapping_add(n);
        let sch = S::of_seed(seed);
        let outcome = S::run(&sch, args.bug);
        if let Some(violation) = S::violation(&outcome) {
            println!("seed {seed}: {violation:?}");
            let small = S::shrink(&sch, args.bug);
            println!("{small:#?}");
            println!("{:?}", S::run(&small, args.bug));
            return ExitCode::FAILURE;
        }
        sum.add(&outcome);
        if (n + 1) % S::Sum::EVERY == 0 || n + 1 == args.runs {
            sum.print(n + 1, since);
        }
    }
    ExitCode::SUCCESS
}
