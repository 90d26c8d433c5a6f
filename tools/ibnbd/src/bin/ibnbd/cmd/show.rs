// SPDX-License-Identifier: GPL-2.0

//! `list`, `show`, `sessions`, `paths`.

use clap::Args;
use ibnbd_host::document::{List, Paths, Sessions, Show, FORMAT};
use ibnbd_host::find::{self, Found};
use ibnbd_host::model::{Disk, Machine, Opened, Path, PathState, Session};
use ibnbd_host::outage::Outage;
use ibnbd_host::planned;
use serde_json::Value;

use super::{groups, Done};
use crate::cli::Format;
use crate::context::Context;
use crate::fail::{Failure, REFUSED};
use crate::out::{self, cell, Table};

pub(crate) const LIST_EXAMPLES: &str = "\
Examples:
  ibnbd list
  ibnbd list --columns disk,state,device
  ibnbd list -o json";

pub(crate) const SHOW_EXAMPLES: &str = "\
Examples:
  ibnbd show ibnbd0
  ibnbd show /dev/disk/by-id/ibnbd-web1-disk1  by a link to the disk
  ibnbd show s                                a session
  ibnbd show s/10.0.1.1                       one of its paths";

pub(crate) const SESSIONS_EXAMPLES: &str = "\
Examples:
  ibnbd sessions
  ibnbd sessions --columns session,state,paths";

pub(crate) const PATHS_EXAMPLES: &str = "\
Examples:
  ibnbd paths
  ibnbd paths s                               only those of the session s";

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// A disk (ibnbd0, a link to it, its name on the server), a session, or SESSION/PATH
    pub(crate) name: String,
}

#[derive(Args, Debug)]
pub(crate) struct PathsArgs {
    /// Only of that session
    pub(crate) session: Option<String>,
}

pub(super) fn list(context: &Context) -> Done {
    let machine = Machine::read_list(&context.root, &|field| is_listed(context, field));
    context.warn(&machine.notes);
    context.explain_nothing(&machine);
    let tables = vec![disks(context, &machine.disks), opened(&machine.opened)];
    let document = List {
        format: FORMAT,
        disks: machine.disks,
        opened: machine.opened,
        notes: machine.notes,
    };
    out::emit(context, &document, tables)?;
    Ok(0)
}

/// Which column shows a field of a disk, or of a device that is open.
const COLUMNS: [(&str, &str); 9] = [
    ("state", "state"),
    // A planned stop is found with the paths.
    ("state", "paths"),
    ("size", "size_bytes"),
    ("mode", "access_mode"),
    ("session", "session"),
    ("paths", "paths"),
    ("export", "mapping_path"),
    ("device", "mapping_path"),
    ("as", "mapping_path"),
];

/// Whether `list` shows a field: documents have all of them.
fn is_listed(context: &Context, field: &str) -> bool {
    if matches!(context.format, Format::Json | Format::Yaml) {
        return true;
    }
    let wanted = |column: &str| {
        let mut names = context.columns.iter();
        context.columns.is_empty() || names.any(|name| name.eq_ignore_ascii_case(column))
    };
    COLUMNS
        .iter()
        .any(|(column, shows)| *shows == field && wanted(column))
}

/// A state, and what a server that was stopped as planned has said; or what requests do without a path.
/// Programs that read CSV get the state alone.
fn state(context: &Context, state: &str, left_s: Option<u64>, outage: Option<Outage>) -> String {
    if context.format != Format::Table {
        return state.to_owned();
    }
    match (left_s, outage) {
        (Some(left), _) => format!("{state}: planned stop, {}", planned::back(left)),
        (None, Some(outage)) => outage.words(),
        (None, None) => state.to_owned(),
    }
}

/// Connected paths of all, and those that requests avoid. Programs that read CSV get the numbers alone.
fn paths_of(context: &Context, (connected, all, drained): (usize, usize, usize)) -> String {
    let counts = format!("{connected}/{all}");
    match drained > 0 && context.format == Format::Table {
        true => format!("{counts}, {drained} drained"),
        false => counts,
    }
}

fn disks(context: &Context, disks: &[Disk]) -> Table {
    let mut table = Table::new([
        "disk", "state", "size", "mode", "session", "paths", "export",
    ])
    .formerly("device", "export");
    for disk in disks {
        table.row([
            disk.name.clone(),
            state(
                context,
                &cell(&disk.state),
                disk.server_back_in_s,
                disk.outage,
            ),
            out::size(disk.size_bytes),
            cell(&disk.access_mode),
            cell(&disk.session),
            paths_of(
                context,
                (disk.paths_connected, disk.paths, disk.paths_drained),
            ),
            cell(&disk.mapping_path),
        ]);
    }
    table
}

fn opened(opened: &[Opened]) -> Table {
    let mut table =
        Table::new(["opened", "size", "mode", "client", "export"]).formerly("as", "export");
    for open in opened {
        table.row([
            open.device.clone(),
            out::size(open.size_bytes),
            cell(&open.access_mode),
            open.session.clone(),
            cell(&open.mapping_path),
        ]);
    }
    table
}

pub(super) fn sessions(context: &Context) -> Done {
    let machine = context.machine_with_messages();
    context.warn(&machine.notes);
    context.explain_nothing(&machine);
    let mut table = Table::new([
        "session", "side", "state", "paths", "policy", "channels", "used",
    ]);
    for session in &machine.sessions {
        let disks = machine
            .disks
            .iter()
            .filter(|d| d.session.as_ref() == Some(&session.name))
            .map(|d| &d.name);
        let opened = machine
            .opened
            .iter()
            .filter(|o| o.session == session.name)
            .map(|o| &o.device);
        let used: Vec<&str> = match session.side {
            ibnbd_host::family::Side::Client => disks.map(String::as_str).collect(),
            ibnbd_host::family::Side::Server => opened.map(String::as_str).collect(),
        };
        table.row([
            session.name.clone(),
            session.side.as_str().to_owned(),
            state(
                context,
                session.state.as_str(),
                session
                    .server_back_in_s
                    .filter(|_| session.is_planned_stop()),
                session.outage,
            ),
            paths_of(
                context,
                (session.connected(), session.paths.len(), session.drained()),
            ),
            cell(&session.settings.mp_policy),
            cell(&session.channels),
            used.join(" "),
        ]);
    }
    let document = Sessions {
        format: FORMAT,
        sessions: machine.sessions,
        notes: machine.notes,
    };
    out::emit(context, &document, vec![table])?;
    Ok(0)
}

pub(super) fn paths(context: &Context, session: Option<&str>) -> Done {
    let mut machine = context.machine();
    if let Some(name) = session {
        find::session(&machine, name, None)
            .map_err(|why| Failure::unclear("session", name, &why))?;
        machine.sessions.retain(|s| s.name == name);
    }
    context.warn(&machine.notes);
    context.explain_nothing(&machine);
    let paths: Vec<Path> = machine.sessions.into_iter().flat_map(|s| s.paths).collect();
    let mut table = Table::new([
        "session",
        "path",
        "side",
        "state",
        "rdma",
        "key",
        "heartbeat",
        "error",
    ]);
    for path in &paths {
        table.row(path_row(path));
    }
    let document = Paths {
        format: FORMAT,
        paths,
        notes: machine.notes,
    };
    out::emit(context, &document, vec![table])?;
    Ok(0)
}

fn path_row(path: &Path) -> [String; 8] {
    let rdma = match (&path.hca, path.port) {
        (Some(hca), Some(port)) => format!("{hca}/{port}"),
        (hca, _) => cell(hca),
    };
    [
        path.session.clone(),
        path.name.clone(),
        path.side.as_str().to_owned(),
        path_state(path),
        rdma,
        cell(&path.key_id),
        out::time(path.latency_ns),
        // That of a path which is connected is history: `ibnbd events` has it, with its time.
        cell(
            &path
                .last_error
                .as_ref()
                .filter(|_| path.state != PathState::Connected),
        ),
    ]
}

/// The state, and whether requests avoid the path.
fn path_state(path: &Path) -> String {
    let mut state = path.state.as_str().to_owned();
    if path.drained == Some(true) {
        state += ", drained";
    }
    if path.standby == Some(true) {
        state += ", standby";
    }
    state
}

pub(super) fn show(context: &Context, name: &str) -> Done {
    let mut machine = context.machine_with_messages();
    context.warn(&machine.notes);
    machine.read_stats(&context.root);
    machine.read_disk_stats(&context.root);
    let found = find::anything(&machine, &context.root, name)
        .map_err(|why| Failure::unclear("show", name, &why))?;
    let mut document = Show {
        format: FORMAT,
        disk: None,
        session: None,
        path: None,
        opened: None,
        notes: Vec::new(),
    };
    match found {
        Found::Disk(disk) => document.disk = Some(disk.clone()),
        Found::Session(session) => document.session = Some(without_stats(session)),
        Found::Path(path) => document.path = Some(path.clone()),
        Found::Opened(opened) => document.opened = Some(opened.clone()),
    }
    if matches!(context.format, Format::Json | Format::Yaml) {
        out::emit(context, &document, Vec::new())?;
        return Ok(0);
    }
    let mut table = Table::new(["name", "value"]);
    let value = serde_json::to_value(&document)
        .map_err(|e| Failure::new(REFUSED, "show", e.to_string()))?;
    let parts = ["disk", "session", "path", "opened"].into_iter();
    if context.format == Format::Table && context.columns.is_empty() {
        let objects = parts.filter_map(|part| value.get(part)?.as_object());
        let text: String = objects.map(groups::text).collect();
        context.print(&text)?;
        return Ok(0);
    }
    for part in parts {
        flatten(&mut table, "", value.get(part).unwrap_or(&Value::Null));
    }
    out::emit(context, &document, vec![table])?;
    Ok(0)
}

fn without_stats(session: &Session) -> Session {
    let mut session = session.clone();
    for path in &mut session.paths {
        path.stats = None;
    }
    session
}

/// Each value with its way to it: `stat.reads`, `paths.0.state`.
fn flatten(table: &mut Table, name: &str, value: &Value) {
    let below = |part: &str| {
        if name.is_empty() {
            part.to_owned()
        } else {
            format!("{name}.{part}")
        }
    };
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(part, value)| flatten(table, &below(part), value)),
        Value::Array(values) => {
            for (number, value) in values.iter().enumerate() {
                flatten(table, &below(&number.to_string()), value);
            }
        }
        Value::Null if name.is_empty() => {}
        Value::Null => table.row([name.to_owned(), String::new()]),
        Value::String(text) => table.row([name.to_owned(), text.clone()]),
        other => table.row([name.to_owned(), other.to_string()]),
    }
}
