// SPDX-License-Identifier: GPL-2.0

//! `ibmsg`: passes messages between programs, over multipath RDMA.

#![forbid(unsafe_code)]
#![warn(rust_2018_idioms, unreachable_pub)]
// They panic when nobody reads.
#![warn(clippy::print_stderr, clippy::print_stdout)]

mod cli;
mod listen;
mod out;
mod portals;
mod publish;
mod rules;
mod seen;
mod send;
mod serve;
mod stat;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use cli::{Cli, Command};
use out::{Failure, Out, REFUSED};

fn run(cli: Cli) -> Result<(), Failure> {
    let out = Out { json: cli.json };
    match cli.command {
        Command::Listen(listen) => listen::run(out, &listen),
        Command::Serve(serve) => serve::run(out, &serve),
        Command::Send(send) => send::send(out, &send),
        Command::Call(call) => send::call(out, &call),
        Command::Publish(command) => publish::publish(out, &command),
        Command::Subscribe(command) => publish::subscribe(out, &command),
        Command::Portals => portals::portals(out),
        Command::Channels(command) => portals::channels(out, &command),
        Command::Show(command) => portals::show(out, &command),
        Command::Stat(command) => stat::run(out, &command),
        Command::Rules(command) => rules::run(out, &command),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "ibmsg", &mut text);
            out.bytes(&text)
        }
        Command::Manpages { folder } => {
            let made = std::fs::create_dir_all(&folder)
                .and_then(|()| clap_mangen::generate_to(Cli::command(), &folder));
            made.map_err(|e| Failure::new(REFUSED, folder.display(), e))
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let json = cli.json;
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print(json);
            ExitCode::from(failure.code)
        }
    }
}
