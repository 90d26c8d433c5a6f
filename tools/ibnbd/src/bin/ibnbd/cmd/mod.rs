// SPDX-License-Identifier: GPL-2.0

//! The commands. Each returns its exit code.

mod apply;
mod change;
mod configured;
mod discover;
mod export;
mod host;
mod key;
mod map;
mod metrics;
mod observe;
mod paths;
mod port;
mod print;
mod save;
mod serve;
mod show;
mod stats;
mod top;
mod trace;
mod unmap;
mod watch;

use crate::cli::Command;
use crate::context::Context;
use crate::fail::Failure;

/// An exit code, or a failure.
pub(crate) type Done = Result<u8, Failure>;

/// Name and value of a setting; `unknown` says that it is not among those that can be set.
fn setting<'a>(
    text: &'a str,
    known: &[&str],
    unknown: &str,
) -> Result<(&'a str, &'a str), Failure> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| Failure::usage(text, "it is not SETTING=VALUE"))?;
    if known.contains(&key) {
        return Ok((key, value));
    }
    let failure = Failure::usage(format!("set {key}"), unknown);
    Err(failure.todo(format!("take one of: {}", known.join(" "))))
}

pub(crate) fn run(context: &Context, command: Command) -> Done {
    match command {
        Command::List => show::list(context),
        Command::Show { name } => show::show(context, &name),
        Command::Sessions => show::sessions(context),
        Command::Paths { session } => show::paths(context, session.as_deref()),
        Command::Stats { name, reset } => stats::stats(context, name.as_deref(), reset),
        Command::Map(map) => map::map(context, &map),
        Command::Discover(server) => discover::run(context, &server),
        Command::Unmap(unmap) => unmap::unmap(context, &unmap),
        Command::Remap { disk } => map::remap(context, &disk),
        Command::Resize { disk, size } => map::resize(context, &disk, &size),
        Command::Path(command) => paths::run(context, &command),
        Command::Policy { session, policy } => change::policy(context, &session, policy.as_deref()),
        Command::Set { name, settings } => change::set(context, &name, &settings),
        Command::Export(command) => export::run(context, &command),
        Command::Host(command) => host::run(context, &command),
        Command::Port(command) => port::run(context, &command),
        Command::Key(command) => key::run(context, &command),
        Command::Clients => serve::clients(context),
        Command::Disconnect { session, path } => {
            serve::disconnect(context, &session, path.as_deref())
        }
        Command::Close { device, session } => serve::close(context, &device, session.as_deref()),
        Command::Drain { undo, downtime } => serve::drain(context, undo, downtime),
        Command::Status => observe::status(context),
        Command::Check => observe::check(context),
        Command::Report { file } => observe::report(context, file.as_deref()),
        Command::Metrics(words) => metrics::metrics(context, &words),
        Command::Trace(words) => trace::trace(context, &words),
        Command::Top(words) => top::top(context, &words),
        Command::Apply(words) => apply::apply(context, &words),
        Command::Save(words) => save::save(context, &words),
        Command::Watch { count } => watch::watch(context, count),
        Command::Completions { shell } => print::completions(context, shell),
        Command::Manpages { folder } => print::manpages(&folder),
    }
}
