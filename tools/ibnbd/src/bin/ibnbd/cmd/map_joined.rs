// SPDX-License-Identifier: GPL-2.0

//! `map NAME` and `map --all`: disks of the servers that this machine has joined.

use ibnbd_host::discovery::{Found, Offered};
use ibnbd_host::family::Side;
use ibnbd_host::join::joined::{self, Joined};
use ibnbd_host::mapping::{self, Mapping};
use ibnbd_host::model::Machine;

use super::args::Server;
use super::map::Map;
use super::{discover, map, modules, save, Done};
use crate::context::Context;
use crate::fail::{even_unread, Failure, CONFIGURATION, NOT_FOUND, USAGE};

/// The sessions with servers that were joined, or with the one that is named.
pub(super) fn servers(context: &Context, words: &Server) -> Result<Vec<Mapping>, Failure> {
    let all = joined::all(&context.root)
        .map_err(|error| Failure::new(CONFIGURATION, joined::FILE, error.to_string()))?;
    let is_meant = |server: &&Joined| {
        let name = words.session.as_deref();
        name.is_none_or(|name| name == server.session)
    };
    let mut found: Vec<Mapping> = all.iter().filter(is_meant).map(Joined::mapping).collect();
    let machine = context.machine();
    for wanted in &mut found {
        // A session that is there has its own key, with which it goes on.
        if machine.our(Side::Client, &wanted.session).is_some() {
            wanted.key_id = None;
        }
    }
    if found.is_empty() {
        let why = match all.is_empty() {
            true => "this machine has joined no server".to_owned(),
            false => {
                let names: Vec<&str> = all.iter().map(|server| server.session.as_str()).collect();
                format!(
                    "this machine has joined servers as {} only",
                    names.join(", ")
                )
            }
        };
        let failure = Failure::new(USAGE, "no server is given", why);
        return Err(
            failure.todo("name its address: ibnbd map SERVER EXPORT; or join it: ibnbd join TOKEN")
        );
    }
    Ok(found)
}

/// A server that has answered.
struct Answer {
    session: Mapping,
    found: Found,
}

/// Asks all servers; those that do not answer are named, and it fails if none does.
fn ask(context: &Context, words: &Server) -> Result<Vec<Answer>, Failure> {
    let sessions = servers(context, words)?;
    modules::ready(context, Side::Client)?;
    let mut answers = Vec::new();
    let mut failed = None;
    for session in sessions {
        match discover::ask(context, &session) {
            Ok(found) => answers.push(Answer { session, found }),
            Err(failure) => {
                if let Some(before) = failed.replace(failure) {
                    before.print();
                }
            }
        }
    }
    match failed {
        Some(failure) if answers.is_empty() => Err(failure),
        Some(failure) => {
            failure.print();
            Ok(answers)
        }
        None => Ok(answers),
    }
}

/// Maps the disk of a name.
pub(super) fn one(context: &Context, words: &Map, name: &str) -> Done {
    if mapping::is_address(name) {
        let failure = Failure::usage(
            format!("map {name}"),
            "it is not said what to map of the server",
        );
        return Err(failure.todo(format!("ibnbd map {name} EXPORT")));
    }
    let answers = ask(context, &words.server)?;
    let has_it = |answer: &&Answer| {
        answer
            .found
            .exports
            .iter()
            .any(|export| export.name == name)
    };
    let with_it: Vec<&Answer> = answers.iter().filter(has_it).collect();
    let what = format!("cannot map {name}");
    match with_it.as_slice() {
        [answer] => map_one(context, words, answer, name, None),
        [] => {
            let why = "no server that was joined lets this machine open it";
            let failure = Failure::new(NOT_FOUND, what, why);
            Err(failure.todo(format!(
                "see `ibnbd discover`; on the server: ibnbd export allow {name} HOST"
            )))
        }
        several => {
            let names: Vec<&str> = several
                .iter()
                .map(|answer| answer.session.session.as_str())
                .collect();
            let failure = Failure::new(
                NOT_FOUND,
                what,
                format!("several servers have it: {}", names.join(", ")),
            );
            Err(failure.todo("name the session: --session"))
        }
    }
}

/// Maps all that servers let this machine open, and is not mapped.
pub(super) fn all(context: &Context, words: &Map) -> Done {
    let answers = ask(context, &words.server)?;
    let mut code = 0;
    let mut any = false;
    for answer in &answers {
        let machine = context.machine();
        for export in &answer.found.exports {
            any = true;
            if is_mapped(&machine, answer, export) {
                continue;
            }
            // It would not be opened in a wider one.
            let read_only = (export.access_mode == "ro").then_some("ro");
            if let Err(failure) = map_one(context, words, answer, &export.name, read_only) {
                failure.print();
                code = failure.code;
            }
        }
    }
    if !any {
        note!("no server that was joined has an export that this machine may open; see `ibnbd discover`");
    }
    Ok(code)
}

fn is_mapped(machine: &Machine, answer: &Answer, export: &Offered) -> bool {
    machine
        .our_disk(&answer.session.session, &export.name)
        .is_some()
}

fn map_one(
    context: &Context,
    words: &Map,
    answer: &Answer,
    name: &str,
    access: Option<&str>,
) -> Done {
    let mut wanted = map::with_options(words, name, answer.session.clone());
    if let Some(id) = words.server.key_id {
        wanted.key_id = Some(id.as_str().to_owned());
    }
    if let Some(access) = access {
        wanted.access = Some(access.to_owned());
    }
    let line = wanted.line().map_err(|why| Failure::usage("map", why))?;
    let first = context
        .machine()
        .our(Side::Client, &wanted.session)
        .is_none();
    let disk = map::map_line(context, &wanted, &line)?;
    even_unread(context.say(&disk))?;
    if first && !answer.found.portals.is_empty() {
        discover::add_paths(context, &wanted, &answer.found);
    }
    if words.persist {
        save::persist(context, &wanted.session, name, wanted.port)?;
    }
    if first && wanted.paths.len() > 1 {
        map::wait_for_paths(context, &wanted.session);
    }
    Ok(0)
}
