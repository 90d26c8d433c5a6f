// SPDX-License-Identifier: GPL-2.0

//! `events`: what has happened, without a program that watched.

use clap::Args;
use ibnbd_host::clock;
use ibnbd_host::document::{Events, FORMAT};
use ibnbd_host::find;
use ibnbd_host::history;
use ibnbd_host::model::Machine;

use super::Done;
use crate::cli::Format;
use crate::context::Context;
use crate::fail::Failure;
use crate::out::{self, cell, Table};

pub(crate) const HELP: &str = "\
The client's module keeps the last 64 changes of each session, its paths and its disks, or as many as one page
has room for, and repeats none that only says the same of a path again. They are gone when the session is
closed.

Examples:
  ibnbd events
  ibnbd events s                              only those of the session s
  ibnbd events ibnbd0                         only those of the disk
  ibnbd events -o json";

#[derive(Args, Debug)]
pub(crate) struct EventsArgs {
    /// Only of that session, or of that disk
    pub(crate) name: Option<String>,
}

/// What a name stands for: a session, or a disk of one.
fn meant(
    context: &Context,
    machine: &Machine,
    name: &str,
) -> Result<(Option<String>, Option<String>), Failure> {
    let Err(why) = find::session(machine, name, None) else {
        return Ok((Some(name.to_owned()), None));
    };
    match find::disk(machine, &context.root, name) {
        Ok(disk) => Ok((disk.session.clone(), Some(disk.name.clone()))),
        Err(_) => Err(Failure::unclear("session", name, &why)),
    }
}

pub(super) fn events(context: &Context, name: Option<&str>) -> Done {
    let mut machine = context.machine();
    let meant = name
        .map(|name| meant(context, &machine, name))
        .transpose()?;
    let (session, disk) = meant.unwrap_or_default();
    let (mut changes, mut notes) = history::read(&context.root, &machine, session.as_deref());
    if disk.is_some() {
        changes.retain(|change| change.disk == disk);
    }
    machine.notes.append(&mut notes);
    context.warn(&machine.notes);
    context.explain_nothing(&machine);
    let mut table = Table::new(["time", "session", "path", "disk", "event", "cause"]);
    for change in &changes {
        let time = match context.format {
            Format::Table => clock::text(change.time_ms),
            _ => clock::utc(change.time_ms),
        };
        table.row([
            time,
            change.session.clone(),
            cell(&change.path),
            cell(&change.disk),
            change.event.clone(),
            cell(&change.cause),
        ]);
    }
    let document = Events {
        format: FORMAT,
        events: changes,
        notes: machine.notes,
    };
    out::emit(context, &document, vec![table])?;
    Ok(0)
}
