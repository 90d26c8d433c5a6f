// SPDX-License-Identifier: GPL-2.0

//! `events`: what has happened, without a program that watched.

use clap::Args;
use ibnbd_host::clock;
use ibnbd_host::document::{Events, FORMAT};
use ibnbd_host::find;
use ibnbd_host::history::{self, Change, Kept, Of};
use ibnbd_host::model::Machine;

use super::Done;
use crate::cli::Format;
use crate::context::Context;
use crate::fail::Failure;
use crate::out::{self, cell, Table};

pub(crate) const HELP: &str = "\
The client's module keeps the last 64 changes of each session and its paths, and the last 64 of its disks, or as
many as one page has room for, and repeats none that only says the same of a path again. They are gone when the
session is closed. The module ibmsg keeps those of portals, and of the channels of each session; what happens to
channels of a portal again and again is one line with a count. Those are for root. If there is no room left, what
has happened most often makes room first.

Examples:
  ibnbd events
  ibnbd events s                              only those of the session s
  ibnbd events ibnbd0                         only those of the disk
  ibnbd events orders                         only those of the portal and its channels
  ibnbd events -o json";

#[derive(Args, Debug)]
pub(crate) struct EventsArgs {
    /// Only of that session, or of that disk, or of that portal
    pub(crate) name: Option<String>,
}

/// The session between programs of one machine.
const LOCAL: &str = "local";

/// What a name stands for.
enum Meant {
    All,
    Session(String),
    Disk {
        disk: String,
        session: Option<String>,
    },
    Portal(String),
}

impl Meant {
    fn new(context: &Context, machine: &Machine, name: Option<&str>) -> Result<Self, Failure> {
        let Some(name) = name else {
            return Ok(Self::All);
        };
        let name_of = || name.to_owned();
        let Err(why) = find::session(machine, name, None) else {
            return Ok(Self::Session(name_of()));
        };
        if let Ok(disk) = find::disk(machine, &context.root, name) {
            let (disk, session) = (disk.name.clone(), disk.session.clone());
            return Ok(Self::Disk { disk, session });
        }
        // A session that is over, and a portal that is closed, still have events.
        let found = history::read(&context.root, machine, Of::All);
        let all = || found.kept.iter().map(|kept| &kept.change);
        let is_loaded = machine.messages.is_loaded;
        if name == LOCAL && is_loaded || all().any(|change| change.session.as_deref() == Some(name))
        {
            return Ok(Self::Session(name_of()));
        }
        let mut portals = machine.messages.found.portals();
        let is_bound = portals.any(|open| open.text("portal") == Some(name));
        match is_bound || all().any(|change| change.portal.as_deref() == Some(name)) {
            true => Ok(Self::Portal(name_of())),
            false => {
                let failure = Failure::unclear("session", name, &why);
                Err(match found.unseen {
                    Some(unseen) => failure.todo(format!("try it as root: {}", unseen.why)),
                    None => failure,
                })
            }
        }
    }

    /// Whose changes are read.
    fn of(&self) -> Of<'_> {
        match self {
            Self::Session(name) => Of::Session(name),
            Self::Disk { session, .. } => Of::Disks(session.as_deref()),
            Self::All | Self::Portal(_) => Of::All,
        }
    }

    fn filter(&self, kept: Kept) -> Option<Kept> {
        match self {
            Self::All | Self::Session(_) => Some(kept),
            Self::Disk { disk, .. } => kept.of_disk(disk),
            Self::Portal(name) => {
                Some(kept).filter(|kept| kept.change.portal.as_ref() == Some(name))
            }
        }
    }
}

/// For people: columns for portals and channels only if there are any, or some columns are asked for.
fn for_people(changes: &[Change], is_asked: bool) -> Table {
    let has_messages = is_asked || changes.iter().any(|change| change.portal.is_some());
    let names = [
        "time", "session", "path", "disk", "portal", "channel", "event", "cause",
    ];
    let is_shown = |name: &str| has_messages || !["portal", "channel"].contains(&name);
    let mut table = Table::new(
        names
            .into_iter()
            .filter(|name| is_shown(name))
            .collect::<Vec<_>>(),
    );
    for change in changes {
        let mut cause = cell(&change.cause);
        if let (Some(count), Some(since)) = (change.count, change.since_ms) {
            let why = change.cause.as_deref().map(|cause| format!("{cause} "));
            let since = clock::text(since);
            cause = format!("{}({count} times since {since})", why.unwrap_or_default());
        }
        let cells = [
            clock::text(change.time_ms),
            cell(&change.session),
            cell(&change.path),
            cell(&change.disk),
            cell(&change.portal),
            cell(&change.channel),
            change.event.clone(),
            cause,
        ];
        let shown = names
            .into_iter()
            .zip(cells)
            .filter(|(name, _)| is_shown(name));
        table.row(shown.map(|(_, cell)| cell).collect::<Vec<_>>());
    }
    table
}

/// For programs: always the same columns.
fn for_programs(changes: &[Change]) -> Table {
    let mut table = Table::new([
        "time", "session", "path", "disk", "event", "cause", "portal", "channel", "side", "count",
        "since",
    ]);
    for change in changes {
        table.row([
            clock::utc(change.time_ms),
            cell(&change.session),
            cell(&change.path),
            cell(&change.disk),
            change.event.clone(),
            cell(&change.cause),
            cell(&change.portal),
            cell(&change.channel),
            cell(&change.side),
            cell(&change.count),
            cell(&change.since_ms.map(clock::utc)),
        ]);
    }
    table
}

pub(super) fn events(context: &Context, name: Option<&str>) -> Done {
    let mut machine = context.machine_with_messages();
    let meant = Meant::new(context, &machine, name)?;
    let mut found = history::read(&context.root, &machine, meant.of());
    let kept: Vec<Kept> = (found.kept.into_iter())
        .filter_map(|kept| meant.filter(kept))
        .collect();
    machine.notes.append(&mut found.notes);
    context.warn(&machine.notes);
    if let Some(unseen) = found.unseen {
        note!("{}", unseen.why);
        machine.notes.push(unseen);
    }
    context.explain_nothing(&machine);
    let together: Vec<Change> = kept.iter().map(|kept| kept.change.clone()).collect();
    let each: Vec<Change> = kept.into_iter().flat_map(Kept::each).collect();
    let table = match context.format {
        Format::Table => for_people(&together, !context.columns.is_empty()),
        _ => for_programs(&each),
    };
    let document = Events {
        format: FORMAT,
        events: each,
        notes: machine.notes,
    };
    out::emit(context, &document, vec![table])?;
    Ok(0)
}
