// SPDX-License-Identifier: GPL-2.0

//! `events`: what has happened, without a program that watched.

use clap::Args;
use ibnbd_host::clock;
use ibnbd_host::document::{Events, FORMAT};
use ibnbd_host::find;
use ibnbd_host::history;

use super::Done;
use crate::cli::Format;
use crate::context::Context;
use crate::fail::Failure;
use crate::out::{self, cell, Table};

pub(crate) const HELP: &str = "\
The client's module keeps the last 64 changes of each session, or as many as one page has room for, and
repeats none that only says the same of a path again. They are gone when the session is closed.

Examples:
  ibnbd events
  ibnbd events s                              only those of the session s
  ibnbd events -o json";

#[derive(Args, Debug)]
pub(crate) struct EventsArgs {
    /// Only of that session
    pub(crate) session: Option<String>,
}

pub(super) fn events(context: &Context, session: Option<&str>) -> Done {
    let mut machine = context.machine();
    if let Some(name) = session {
        find::session(&machine, name, None)
            .map_err(|why| Failure::unclear("session", name, &why))?;
    }
    let (changes, mut notes) = history::read(&context.root, &machine, session);
    machine.notes.append(&mut notes);
    context.warn(&machine.notes);
    context.explain_nothing(&machine);
    let mut table = Table::new(["time", "session", "path", "event", "cause"]);
    for change in &changes {
        let time = match context.format {
            Format::Table => clock::text(change.time_ms),
            _ => clock::utc(change.time_ms),
        };
        table.row([
            time,
            change.session.clone(),
            cell(&change.path),
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
