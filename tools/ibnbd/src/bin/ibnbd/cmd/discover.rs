// SPDX-License-Identifier: GPL-2.0

//! `discover`, and the paths of `map --all-paths`.

use std::thread;
use std::time::Duration;

use ibnbd_host::advice::Task;
use ibnbd_host::discovery::{self, Found, Portal};
use ibnbd_host::document::{Discovered, FORMAT};
use ibnbd_host::family::Side;
use ibnbd_host::host;
use ibnbd_host::mapping::Mapping;
use ibnbd_host::model::Session;
use ibnbd_host::root::is_gone;

use super::args::Server;
use super::{map, map_joined, modules, paths, Done};
use crate::act;
use crate::cli::Format;
use crate::context::Context;
use crate::fail::{Failure, REFUSED};
use crate::out::{self, cell, Table};

pub(crate) const HELP: &str = "\
The server lists what the session may open now, so the session has to be the one that is to map, with
its key. It ends when the server has answered, unless it has disks. Addresses are those of the ports
that the server's operator has made.

Examples:
  ibnbd discover                              of the servers that this machine has joined
  ibnbd discover 10.0.1.1 --session web1
  ibnbd discover 10.0.1.1 --session web1 -o json";

/// How often the command asks again because another one of the same session has got between.
const MOST_TRIES: u32 = 10;

pub(super) fn run(context: &Context, words: &Server) -> Done {
    let sessions = match words.servers().is_empty() && words.paths.is_empty() {
        true => map_joined::servers(context, words)?,
        false => vec![map::session(context, words, None)?],
    };
    modules::ready(context, Side::Client)?;
    let alone = sessions.len() == 1;
    if !alone && context.format != Format::Table {
        let failure = Failure::usage(
            "discover",
            "each of several servers has a document of its own",
        );
        return Err(failure.todo("name one by --session"));
    }
    for session in sessions {
        match ask(context, &session) {
            Ok(found) => {
                if !alone && context.format == Format::Table {
                    context.say(&format!("{}:", session.session))?;
                }
                show(context, &session.session, found)?;
            }
            Err(failure) if alone => return Err(failure),
            Err(failure) => failure.print(),
        }
    }
    Ok(0)
}

/// Shows what a server lets a session open.
pub(super) fn show(context: &Context, session: &str, found: Found) -> Result<(), Failure> {
    context.warn(&found.notes);
    if context.format == Format::Table {
        explain(&found);
    }
    let mut exports = Table::new(["export", "size", "block", "mode"]);
    for export in &found.exports {
        exports.row([
            export.name.clone(),
            out::size(export.size_bytes),
            cell(&export.block_size),
            export.access_mode.clone(),
        ]);
    }
    let mut portals = Table::new(["portal", "port"]);
    for portal in &found.portals {
        portals.row([portal.address.clone(), portal.port.to_string()]);
    }
    let document = Discovered {
        format: FORMAT,
        session: session.to_owned(),
        exports: found.exports,
        portals: found.portals,
        unlisted: found.unlisted,
        notes: found.notes,
    };
    out::emit(context, &document, vec![exports, portals])
}

fn explain(found: &Found) {
    if found.unlisted {
        note!("the server has no exports in configfs, and does not list the devices in its dev_search_path");
    } else if found.exports.is_empty() {
        note!("the server has no export that this session may open; `ibnbd export list` there shows all of them");
    }
}

/// Asks the server of a session for its exports and addresses.
pub(super) fn ask(context: &Context, session: &Mapping) -> Result<Found, Failure> {
    let line = discovery::line(session).map_err(|why| Failure::usage("discover", why))?;
    context.need(Side::Client)?;
    let what = format!("list the exports for session {}", session.session);
    if !context.root.exists(discovery::FILE) {
        let why = "ibnbd_client cannot ask servers for exports: it is older than this command";
        let failure = Failure::new(REFUSED, format!("cannot {what}"), why);
        return Err(failure.todo("load the module of this version"));
    }
    for _ in 0..MOST_TRIES {
        act::write(context, Task::Discover, &what, discovery::FILE, &line)?;
        match discovery::read(&context.root, &session.session, &line) {
            Ok(Some(found)) => return Ok(found),
            // The result of another command has taken its place.
            Ok(None) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(Failure::system(format!("cannot {what}"), &error)),
        }
        thread::sleep(Duration::from_millis(20));
    }
    let why = "other commands ask for the same session all the time";
    Err(Failure::new(REFUSED, format!("cannot {what}"), why).todo("try it again"))
}

/// How long the addition of further paths may take, but for the last one that it begins.
const ADD_TIME: Duration = Duration::from_secs(60);

/// Adds a path to each portal that the session has none to, and names those that cannot be reached.
/// Failures of these paths do not matter to the disk, which is already mapped.
pub(super) fn add_paths(context: &Context, wanted: &Mapping, found: &Found) {
    let machine = context.machine();
    let session = match paths::session(&machine, &wanted.session) {
        Ok(session) => session,
        Err(failure) => return note!("warning: no further paths: {}", failure.why),
    };
    let port = found.port.or(wanted.port).unwrap_or(1234);
    let further = further(context, session, port, &found.portals);
    if found.portals.is_empty() {
        note!("the server names no further addresses, as its operator has made no ports: `ibnbd port add` there, or give them here");
    }
    let left = discovery::add_within(ADD_TIME, &further, |address| {
        match paths::add_line(context, session, address) {
            Ok(()) => note!("added a path to {address}"),
            Err(failure) => note!("warning: no path to {address}: {}", failure.why),
        }
    });
    if left > 0 {
        note!(
            "warning: {left} of the addresses were not tried, as the others took {} s; \
             add paths to them with `ibnbd path add`",
            ADD_TIME.as_secs()
        );
    }
}

/// The addresses to which a session with that port needs a path.
fn further(context: &Context, session: &Session, port: u16, portals: &[Portal]) -> Vec<String> {
    let mut own = None;
    let mut addresses: Vec<String> = Vec::new();
    for portal in portals {
        let address = &portal.address;
        let has_it = |path: &ibnbd_host::Path| path.dst.as_ref() == Some(address);
        if session.paths.iter().any(has_it) || addresses.contains(address) {
            continue;
        }
        if portal.port != port {
            note!(
                "warning: no path to {address}: its port is {}, and all paths of a session go to one port",
                portal.port
            );
            continue;
        }
        let own = own.get_or_insert_with(|| host::addresses(&context.root));
        if portal.gid().is_none_or(|gid| own.contains(&gid)) {
            note!("warning: no path to {address}: it is an address of this machine");
            continue;
        }
        addresses.push(address.clone());
    }
    addresses
}
