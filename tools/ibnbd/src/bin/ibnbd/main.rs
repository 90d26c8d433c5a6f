// SPDX-License-Identifier: GPL-2.0

//! `ibnbd`: maps, exports and watches network block devices over RDMA.

#![forbid(unsafe_code)]
#![warn(rust_2018_idioms, unreachable_pub)]
// They panic when nobody reads: see `note!`, and `Context::say`.
#![warn(clippy::print_stderr, clippy::print_stdout)]

#[macro_use]
mod note;

mod act;
mod cli;
mod cmd;
mod complete;
mod context;
mod fail;
mod interrupt;
mod notify;
mod out;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    complete::answer();
    let cli = cli::Cli::parse();
    let context = context::Context::new(&cli.global);
    match cmd::run(&context, cli.command) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.print();
            ExitCode::from(failure.code)
        }
    }
}
