// SPDX-License-Identifier: GPL-2.0

//! `path add`, `remove`, `reconnect`, `disconnect` and `drain`.

use std::thread;
use std::time::Duration;

use ibnbd_host::advice::Task;
use ibnbd_host::family::{Family, Side};
use ibnbd_host::find;
use ibnbd_host::model::{Machine, Path, PathState, Session};
use ibnbd_host::value;

use super::{map, Done};
use crate::act;
use crate::cli::{PathCommand, PathOf};
use crate::context::Context;
use crate::fail::Failure;

pub(super) fn run(context: &Context, command: &PathCommand) -> Done {
    context.need(Side::Client)?;
    match command {
        PathCommand::Add { session, path } => add(context, session, path),
        PathCommand::Remove(of) => write(context, of, "remove_path", "remove", "1"),
        PathCommand::Reconnect(of) => write(context, of, "reconnect", "connect", "1"),
        PathCommand::Disconnect(of) => write(context, of, "disconnect", "disconnect", "1"),
        PathCommand::Drain { of, undo: true } => {
            write(context, of, "drain", "let requests take", "0")
        }
        PathCommand::Drain { of, undo: false } => drain(context, of),
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
pub(super) fn remove(context: &Context, path: &ibnbd_host::Path) -> Result<(), Failure> {
    let what = format!("remove the path {} of session {}", path.name, path.session);
    act::write(
        context,
        Task::Path,
        &what,
        &format!("{}/remove_path", path.folder()),
        "1",
    )
}

/// Interval at which the command checks whether requests are in flight.
const LOOK: Duration = Duration::from_millis(50);

fn drain(context: &Context, of: &PathOf) -> Done {
    write(context, of, "drain", "drain", "1")?;
    let machine = context.machine();
    let session = session(&machine, &of.session)?;
    let path =
        find::path_of(session, &of.path).map_err(|why| Failure::unclear("path", &of.path, &why))?;
    let takes = |other: &&Path| {
        other.name != path.name
            && other.state == PathState::Connected
            && other.drained != Some(true)
    };
    if session.paths.iter().find(takes).is_none() {
        eprintln!("ibnbd: warning: no other path takes requests: they go on by this one");
        return Ok(0);
    }
    let file = format!("{}/stats/rdma", path.folder());
    // A path that goes meanwhile has none.
    let in_flight = || {
        let text = context.root.read(&file).ok()?;
        value::traffic(&text)?.in_flight
    };
    act::patiently("see the last requests of the path end", || {
        while in_flight().is_some_and(|count| count > 0) {
            thread::sleep(LOOK);
        }
    });
    Ok(0)
}

fn write(context: &Context, of: &PathOf, file: &str, verb: &str, text: &str) -> Done {
    let machine = context.machine();
    let session = session(&machine, &of.session)?;
    let path =
        find::path_of(session, &of.path).map_err(|why| Failure::unclear("path", &of.path, &why))?;
    let what = format!("{verb} the path {} of session {}", path.name, session.name);
    act::write(
        context,
        Task::Path,
        &what,
        &format!("{}/{file}", path.folder()),
        text,
    )?;
    Ok(0)
}
