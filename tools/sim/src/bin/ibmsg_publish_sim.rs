// SPDX-License-Identifier: GPL-2.0

//! Runs schedules of publish and subscribe by their seeds, or one schedule with all its events printed.

use std::process::ExitCode;

fn main() -> ExitCode {
    ibtrs_sim::cli::main::<ibtrs_sim::publish::Publish>()
}
