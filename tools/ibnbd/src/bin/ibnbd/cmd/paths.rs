// SPDX-License-Identifier: GPL-2.0

//! `path add`, `remove`, `reconnect` and `disconnect`.

use ibnbd_host::advice::Task;
use ibnbd_host::family::{Family, Side};
use ibnbd_host::find;
use ibnbd_host::model::{Machine, Session};

use super::{map, Done};
use crate::act;
use crate::cli::{PathCommand, PathOf};
use crate::context::Context;
use crate::fail::Failure;

pub(super) fn run(context: &Context, command: &PathCommand) -> Done {
    context.need(Side::Client)?;
    match command {
        PathCommand::Add { session, path } => add(context, session, path),
        PathCommand::Remove(of) => write(context, of, "remove_path", "remove"),
        PathCommand::Reconnect(of) => write(context, of, "reconnect", "connect"),
        PathCommand::Disconnect(of) => write(context, of, "disconnect", "disconnect"),
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

fn write(context: &Context, of: &PathOf, file: &str, verb: &str) -> Done {
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
        "1",
    )?;
    Ok(0)
}
