// SPDX-License-Identifier: GPL-2.0

//! The commands. Each returns its exit code.

pub(crate) mod apply;
pub(crate) mod args;
pub(crate) mod change;
mod configured;
pub(crate) mod discover;
pub(crate) mod events;
pub(crate) mod export;
mod groups;
pub(crate) mod host;
pub(crate) mod join;
pub(crate) mod key;
mod listen;
pub(crate) mod map;
mod map_joined;
pub(crate) mod metrics;
mod modules;
pub(crate) mod observe;
pub(crate) mod paths;
pub(crate) mod port;
pub(crate) mod print;
pub(crate) mod save;
pub(crate) mod serve;
pub(crate) mod show;
pub(crate) mod stats;
mod token;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod tree;
pub(crate) mod unmap;
pub(crate) mod watch;

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
        Command::Show(words) => show::show(context, &words.name),
        Command::Sessions => show::sessions(context),
        Command::Paths(words) => show::paths(context, words.session.as_deref()),
        Command::Tree => tree::tree(context),
        Command::Stats(words) => stats::stats(context, &words),
        Command::Join(words) => join::join(context, &words),
        Command::Map(map) => map::map(context, &map),
        Command::Discover(server) => discover::run(context, &server),
        Command::Unmap(unmap) => unmap::unmap(context, &unmap),
        Command::Remap(words) => map::remap(context, &words.disk),
        Command::Resize(words) => map::resize(context, &words.disk, &words.size),
        Command::Path(command) => paths::run(context, &command),
        Command::Policy(words) => change::policy(context, &words.session, words.policy.as_deref()),
        Command::Set(words) => change::set(context, &words.name, &words.settings),
        Command::Export(command) => export::run(context, &command),
        Command::Host(command) => host::run(context, &command),
        Command::Port(command) => port::run(context, &command),
        Command::Key(command) => key::run(context, &command),
        Command::Clients => serve::clients(context),
        Command::Disconnect(words) => {
            serve::disconnect(context, &words.session, words.path.as_deref())
        }
        Command::Close(words) => serve::close(context, &words.device, words.session.as_deref()),
        Command::Drain(words) => serve::drain(context, words.undo, words.downtime),
        Command::Status => observe::status(context),
        Command::Check => observe::check(context),
        Command::Report(words) => observe::report(context, words.file.as_deref()),
        Command::Metrics(words) => metrics::metrics(context, &words),
        Command::Trace(words) => trace::trace(context, &words),
        Command::Top(words) => top::top(context, &words),
        Command::Apply(words) => apply::apply(context, &words),
        Command::Save(words) => save::save(context, &words),
        Command::Events(words) => events::events(context, words.name.as_deref()),
        Command::Watch(words) => watch::watch(context, words.count),
        Command::Completions(words) => print::completions(context, words.shell),
        Command::Manpages(words) => print::manpages(&words.folder),
    }
}
