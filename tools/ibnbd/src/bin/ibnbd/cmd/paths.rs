// SPDX-License-Identifier: GPL-2.0

//! `path add`, `remove`, `reconnect`, `disconnect`, `drain`, `set` and `reauth`.

use std::process;
use std::thread;
use std::time::Duration;

use clap::{Args, Subcommand};
use ibnbd_host::advice::Task;
use ibnbd_host::config::plan;
use ibnbd_host::family::{Family, Side};
use ibnbd_host::find;
use ibnbd_host::model::{Machine, Path, PathState, Session};
use ibnbd_host::value;

use super::{map, Done};
use crate::act;
use crate::context::Context;
use crate::fail::{Failure, REFUSED};
use crate::interrupt::HeldBack;

const ADD_EXAMPLES: &str = "\
Examples:
  ibnbd path add s 10.0.2.1
  ibnbd path add s 10.0.2.2,10.0.2.1          from that address of this machine";

const REMOVE_EXAMPLES: &str = "\
Examples:
  ibnbd path remove s 10.0.2.1
  ibnbd path remove s 10.0.2.1 --force        also if no other path is connected: I/O stops";

const RECONNECT_EXAMPLES: &str = "\
Example:
  ibnbd path reconnect s 10.0.2.1";

const DISCONNECT_EXAMPLES: &str = "\
Examples:
  ibnbd path disconnect s 10.0.2.1
  ibnbd path disconnect s 10.0.2.1 --force    also if no other path is connected: I/O stops";

const DRAIN_EXAMPLES: &str = "\
Examples:
  ibnbd path drain s 10.0.2.1                 before work on the link
  ibnbd path drain s 10.0.2.1 --undo";

const SET_EXAMPLES: &str = "\
Examples:
  ibnbd path set s 10.0.9.1 --standby         requests take it only if no other path is left
  ibnbd path set s 10.0.9.1 --active";

const REAUTH_EXAMPLES: &str = "\
Example:
  ibnbd path reauth s";

#[derive(Subcommand, Debug)]
pub(crate) enum PathCommand {
    /// Adds a path, and waits until it is connected
    #[command(after_help = ADD_EXAMPLES)]
    Add {
        /// A session
        session: String,
        /// Names or addresses
        #[arg(value_name = "[SRC,]DST")]
        path: String,
    },
    /// Removes a path
    #[command(after_help = REMOVE_EXAMPLES)]
    Remove(LastToo),
    /// Connects a path again, and waits until it is
    #[command(after_help = RECONNECT_EXAMPLES)]
    Reconnect(PathOf),
    /// Disconnects a path, until it is reconnected
    #[command(after_help = DISCONNECT_EXAMPLES)]
    Disconnect(LastToo),
    /// Moves the requests of a path to the others, and waits until none is in flight on it
    #[command(after_help = DRAIN_EXAMPLES)]
    Drain {
        #[command(flatten)]
        of: PathOf,
        /// Lets it take requests again
        #[arg(long)]
        undo: bool,
    },
    /// Chooses whether requests take a path beside the others, or only if no other one is left
    #[command(after_help = SET_EXAMPLES)]
    Set {
        #[command(flatten)]
        of: PathOf,
        #[command(flatten)]
        rank: Rank,
    },
    /// Connects all paths of a session again, so that both sides prove their key, while requests
    /// take the other paths
    #[command(after_help = REAUTH_EXAMPLES)]
    Reauth {
        /// A session
        session: String,
    },
}

#[derive(Args, Debug)]
pub(crate) struct PathOf {
    /// A session
    pub(crate) session: String,
    /// One of its paths: both addresses, or one that no other path has
    pub(crate) path: String,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct Rank {
    /// Only while no path is connected that is neither on standby nor drained, as for a slow link
    #[arg(long)]
    pub(crate) standby: bool,
    /// Beside the others, as the policy of the session says
    #[arg(long)]
    pub(crate) active: bool,
}

#[derive(Args, Debug)]
pub(crate) struct LastToo {
    #[command(flatten)]
    pub(crate) of: PathOf,
    /// Also if no other path of the session is connected, so that its I/O stops
    #[arg(short, long)]
    pub(crate) force: bool,
}

pub(super) fn run(context: &Context, command: &PathCommand) -> Done {
    context.need(Side::Client)?;
    match command {
        PathCommand::Add { session, path } => add(context, session, path),
        PathCommand::Remove(words) => stop(context, words, "remove_path", "remove"),
        PathCommand::Reconnect(of) => write(context, of, "reconnect", "connect", "1"),
        PathCommand::Disconnect(words) => stop(context, words, "disconnect", "disconnect"),
        PathCommand::Drain { of, undo: true } => {
            write(context, of, "drain", "let requests take", "0")
        }
        PathCommand::Drain { of, undo: false } => drain(context, of),
        PathCommand::Set { of, rank } => set_rank(context, of, rank.standby),
        PathCommand::Reauth { session } => reauth(context, session),
    }
}

/// A session of our client.
pub(super) fn session<'a>(machine: &'a Machine, name: &str) -> Result<&'a Session, Failure> {
    let found = find::session(machine, name, Some(Side::Client));
    let session = found.map_err(|why| Failure::unclear("session", name, &why))?;
    if session.family == Family::Ibnbd {
        return Ok(session);
    }
    let why = "it belongs to the kernel's own rtrs_client, which this command only looks at";
    Err(Failure::usage(format!("session {name}"), why))
}

fn add(context: &Context, name: &str, path: &str) -> Done {
    let machine = context.machine();
    let session = session(&machine, name)?;
    let line = map::path(context, path)?;
    add_line(context, session, &line)?;
    Ok(0)
}

pub(super) fn add_line(context: &Context, session: &Session, line: &str) -> Result<(), Failure> {
    let what = format!("add the path {line} to session {}", session.name);
    act::write(
        context,
        Task::Path,
        &what,
        &format!("{}/add_path", session.folder()),
        line,
    )
}

/// Removes a path.
pub(super) fn remove(context: &Context, path: &Path) -> Result<(), Failure> {
    set(context, path, "remove_path", "remove", "1")
}

/// Removes or disconnects a path, but the last one only if the user insists: I/O stops without it.
fn stop(context: &Context, words: &LastToo, file: &str, verb: &str) -> Done {
    let machine = context.machine();
    let (session, path) = path_of(context, &machine, &words.of)?;
    if !words.force && is_last(session, path) {
        let (name, ends) = (&session.name, &path.name);
        let why = format!("no other path is connected: {}", without_paths(session));
        let back = match file {
            "remove_path" => "add",
            _ => "reconnect",
        };
        let what = format!("cannot {verb} the path {ends} of session {name}");
        let todo = format!(
            "connect another path first, or take --force; `ibnbd path {back} {name} {ends}` brings it back"
        );
        return Err(Failure::new(REFUSED, what, why).todo(todo));
    }
    set(context, path, file, verb, "1")?;
    Ok(0)
}

/// Whether nothing would be left that carries requests, or could do so by itself.
fn is_last(session: &Session, path: &Path) -> bool {
    let mut others = session.paths.iter().filter(|other| other.name != path.name);
    let is_only = others.clone().next().is_none();
    let has_connected = others.any(|other| other.state == PathState::Connected);
    is_only || path.state == PathState::Connected && !has_connected
}

/// What happens to the I/O of a session that has no path.
fn without_paths(session: &Session) -> String {
    match session.settings.queue_timeout_s {
        Some(0) => "I/O fails without it".to_owned(),
        Some(-1) => "I/O waits until a path is connected".to_owned(),
        Some(limit) => format!("I/O waits for a path, and fails after {limit} s"),
        None => "I/O waits for a path, or fails".to_owned(),
    }
}

/// Interval at which the command checks whether requests are in flight.
const LOOK: Duration = Duration::from_millis(50);

fn drain(context: &Context, of: &PathOf) -> Done {
    let machine = context.machine();
    let (session, path) = path_of(context, &machine, of)?;
    set(context, path, "drain", "drain", "1")?;
    if !others_take_requests(session, path) {
        note!("warning: no other path takes requests: they go on by this one");
        return Ok(0);
    }
    wait_until_idle(context, path, || false);
    Ok(0)
}

fn others_take_requests(session: &Session, path: &Path) -> bool {
    session.paths.iter().any(|other| {
        other.name != path.name
            && other.state == PathState::Connected
            && other.drained != Some(true)
    })
}

/// Puts a path on standby, or makes it active.
fn set_rank(context: &Context, of: &PathOf, standby: bool) -> Done {
    let machine = context.machine();
    let (session, path) = path_of(context, &machine, of)?;
    set_standby(context, path, standby)?;
    let others = |other: &&Path| other.name != path.name;
    if standby && (session.paths.iter().filter(others)).all(|other| other.standby == Some(true)) {
        note!("warning: all paths of the session are on standby now: none is preferred");
    }
    Ok(0)
}

fn set_standby(context: &Context, path: &Path, on: bool) -> Result<(), Failure> {
    let verb = if on { "put on standby" } else { "make active" };
    set(context, path, "standby", verb, if on { "1" } else { "0" })
}

/// Puts a path on standby that was just added, by the words with which it was.
pub(super) fn set_standby_of_line(
    context: &Context,
    session: &str,
    line: &str,
) -> Result<(), Failure> {
    let machine = context.machine();
    let found = self::session(&machine, session)?;
    match found.paths.iter().find(|path| plan::has(path, line)) {
        Some(path) => set_standby(context, path, true),
        None => Err(Failure::new(
            REFUSED,
            format!("cannot put the path {line} of session {session} on standby"),
            "it has gone meanwhile",
        )),
    }
}

fn wait_until_idle(context: &Context, path: &Path, is_over: impl Fn() -> bool) {
    let file = format!("{}/stats/rdma", path.folder());
    // A path that goes meanwhile has none.
    let in_flight = || {
        let text = context.root.read(&file).ok()?;
        value::traffic(&text)?.in_flight
    };
    act::with_progress("see the last requests of the path end", || {
        while !is_over() && in_flight().is_some_and(|count| count > 0) {
            thread::sleep(LOOK);
        }
    });
}

/// Paths that are not connected are left to themselves: they prove the key when they come back.
fn reauth(context: &Context, name: &str) -> Done {
    let machine = context.machine();
    let connected = |path: &&Path| path.state == PathState::Connected;
    let paths: Vec<_> = session(&machine, name)?
        .paths
        .iter()
        .filter(connected)
        .collect();
    if paths.is_empty() {
        let why = "none of its paths is connected";
        let what = format!("authenticate the session {name} again");
        return Err(Failure::new(REFUSED, format!("cannot {what}"), why));
    }
    for path in paths {
        // One that was lost since is no other path.
        let now = context.machine();
        let session = session(&now, name)?;
        match session.paths.iter().find(|other| other.name == path.name) {
            Some(path) => reconnect(context, session, path)?,
            None => continue,
        }
    }
    Ok(0)
}

/// Connects a path again while no request is in flight on it, as far as there are other paths.
fn reconnect(context: &Context, session: &Session, path: &Path) -> Result<(), Failure> {
    let connect = || set(context, path, "reconnect", "connect", "1");
    if path.drained == Some(true) || !others_take_requests(session, path) {
        return connect();
    }
    // A drained path would stay so.
    let held_back = HeldBack::new();
    let mut result = set(context, path, "drain", "drain", "1");
    if result.is_ok() {
        wait_until_idle(context, path, || held_back.came().is_some());
        let connected = match held_back.came() {
            Some(_) => Ok(()),
            None => connect(),
        };
        result = set(context, path, "drain", "let requests take", "0").and(connected);
    }
    let Some(code) = held_back.end() else {
        return result;
    };
    if let Err(failure) = result {
        failure.print();
    }
    process::exit(code.into())
}

fn path_of<'a>(
    context: &Context,
    machine: &'a Machine,
    of: &PathOf,
) -> Result<(&'a Session, &'a Path), Failure> {
    let session = session(machine, &of.session)?;
    let path = find::path_of(session, &context.root, &of.path)
        .map_err(|why| Failure::unclear("path", &of.path, &why))?;
    Ok((session, path))
}

fn write(context: &Context, of: &PathOf, file: &str, verb: &str, text: &str) -> Done {
    let machine = context.machine();
    let (_, path) = path_of(context, &machine, of)?;
    set(context, path, file, verb, text)?;
    Ok(0)
}

/// Writes to a file of a path; `verb` says what that does to it.
fn set(context: &Context, path: &Path, file: &str, verb: &str, text: &str) -> Result<(), Failure> {
    let what = format!("{verb} the path {} of session {}", path.name, path.session);
    let file = format!("{}/{file}", path.folder());
    act::write(context, Task::Path, &what, &file, text)
}
