// SPDX-License-Identifier: GPL-2.0

//! Faults of messages between programs.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use ibmsg::fdinfo::{Open, Owner};
use ibmsg::rules::{self, Change, Of, Place, Rules, State, CONFIGFS, FILE};

use super::{Finding, Severity};
use crate::family::{Family, Side};
use crate::model::{Machine, Path, PathState, Session, Stall};
use crate::program;
use crate::root::Root;

/// How long `getent` may take.
const LIMIT: Duration = Duration::from_secs(5);
/// As many changes and channels are named.
const NAMED: usize = 3;

pub(super) fn all(root: &Root, machine: &Machine) -> Vec<Finding> {
    let messages = &machine.messages;
    let (wanted, mut found) = of_file(root);
    let wanted = wanted.unwrap_or_default();
    if !messages.is_loaded {
        if root.exists(FILE) {
            let what = format!("{FILE} has rules, and the module ibmsg is not loaded");
            let remedy = "systemctl enable --now ibmsg-rules, or: modprobe ibmsg";
            found.push(Finding::new(Severity::Warning, what, remedy));
        }
        return found;
    }
    found.extend(
        messages
            .stalled
            .iter()
            .map(|(open, stall)| stalled(open, *stall)),
    );
    found.extend(messages.found.portals().filter_map(full));
    let named: BTreeSet<&str> = wanted
        .folders()
        .filter(|(place, ..)| *place != Place::Portals)
        .map(|(_, name, _)| name)
        .collect();
    let ours = machine
        .sessions
        .iter()
        .filter(|s| s.family == Family::Ibnbd);
    for session in ours {
        let is_named = named.contains(&*session.name);
        if is_named || session.channels.is_some_and(|count| count > 0) {
            found.extend(blocked(session));
            found.extend(without(session));
        }
    }
    found
}

fn programs(open: &Open) -> String {
    let owners = open.owners.iter().take(NAMED);
    let names: Vec<String> = owners.map(Owner::to_string).collect();
    match names.is_empty() {
        true => "no program".to_owned(),
        false => names.join(", "),
    }
}

fn stalled(open: &Open, stall: Stall) -> Finding {
    let text = |name| open.text(name).unwrap_or("?");
    let what = format!(
        "channel {} to portal {} of {}: {} messages wait",
        open.name().unwrap_or_default(),
        text("portal"),
        programs(open),
        text("unacknowledged"),
    );
    let (why, remedy) = match (open.number("connected"), stall) {
        (Some(0), _) => (
            "the channel has no path",
            "check the paths of the session: ibnbd paths; it goes on by itself".to_owned(),
        ),
        (_, Stall::NotRead) => (
            "the program at the other end reads none, or too few",
            format!(
                "see on the other machine what that program does: ibmsg channels --portal {}",
                text("portal")
            ),
        ),
        (_, Stall::NoAnswer) => (
            "the other machine does not acknowledge them",
            "check the paths of the session: ibnbd paths".to_owned(),
        ),
    };
    Finding::new(Severity::Warning, format!("{what}: {why}"), remedy)
}

/// A portal at which no further program can ask for a channel.
fn full(open: &Open) -> Option<Finding> {
    let (offers, backlog) = (open.number("offers")?, open.number("backlog")?);
    (offers >= backlog).then(|| {
        let what = format!(
            "portal {}: {offers} offers wait, and no more can: {} does not answer them",
            open.name().unwrap_or_default(),
            programs(open)
        );
        let remedy = "see what the program does, or bind the portal with a larger backlog";
        Finding::new(Severity::Warning, what, remedy)
    })
}

/// A session that carries no messages. Without any path, it is among the faults of
/// sessions.
fn blocked(session: &Session) -> Option<Finding> {
    let why = session.messages_blocked_by.as_deref()?;
    (session.connected() > 0).then(|| {
        let what = format!("session {} carries no messages: {why}", session.name);
        let remedy = format!(
            "load ibmsg on both machines, then for each path: ibnbd path reconnect {} PATH",
            session.name
        );
        Finding::new(Severity::Warning, what, remedy)
    })
}

/// Paths to which no channel can move, while others carry messages.
fn without(session: &Session) -> Vec<Finding> {
    let connected = |path: &&Path| path.state == PathState::Connected;
    let paths = session.paths.iter().filter(connected);
    let carries = |path: &Path| path.message_connections.is_some_and(|count| count > 0);
    if !paths.clone().any(carries) {
        return Vec::new();
    }
    let found = paths.filter(|path| path.message_connections == Some(0));
    let finding = |path: &Path| {
        let (name, path) = (&session.name, &path.name);
        let what = format!("session {name}: path {path} carries no messages, and others do");
        let remedy = format!("ibnbd path reconnect {name} {path}, which connects it with messages");
        Finding::new(Severity::Warning, what, remedy)
    };
    match session.side {
        // The client connects them.
        Side::Client => found.map(finding).collect(),
        Side::Server => Vec::new(),
    }
}

/// The rules of the file, and its faults.
fn of_file(root: &Root) -> (Option<State>, Vec<Finding>) {
    let in_force = Rules::below(&root.real(CONFIGFS));
    let present = in_force.exist().then(|| in_force.read());
    let fault = |what: String, remedy: &str| {
        let what = format!("{FILE}: {what}");
        vec![Finding::new(Severity::Error, what, remedy)]
    };
    let text = match root.read(FILE) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let has_rules =
                present.is_some_and(|present| present.is_ok_and(|p| p != State::default()));
            let what = format!(
                "there are rules for messages, and no {FILE}: they are gone after a reboot"
            );
            let remedy = format!("ibmsg rules show > {FILE}");
            let hint = has_rules.then(|| Finding::new(Severity::Hint, what, remedy));
            return (None, hint.into_iter().collect());
        }
        Err(error) => return (None, fault(error.to_string(), "run it as root")),
    };
    let wanted = match rules::parse(&text, &|of, name| number(root, of, name)) {
        Ok(wanted) => wanted,
        Err(why) => {
            return (
                None,
                fault(one_line(&why), "mend it, then: ibmsg rules apply"),
            )
        }
    };
    let found = match present {
        Some(Ok(present)) => differs(&wanted.changes_from(&present)),
        Some(Err((path, error))) => fault(
            format!("cannot be compared: {}: {error}", path.display()),
            "run it as root",
        ),
        None => Vec::new(),
    };
    (Some(wanted), found)
}

fn differs(changes: &[Change]) -> Vec<Finding> {
    if changes.is_empty() {
        return Vec::new();
    }
    let mut names: Vec<String> = changes
        .iter()
        .take(NAMED)
        .map(ToString::to_string)
        .collect();
    let more = changes.len().saturating_sub(NAMED);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    let what = format!("{FILE} is not in force: {}", names.join("; "));
    vec![Finding::new(Severity::Warning, what, "ibmsg rules apply")]
}

/// The first and the last line of an error: where, and why.
fn one_line(text: &str) -> String {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    match lines.next_back() {
        Some(last) => format!("{first}: {last}"),
        None => first.to_owned(),
    }
}

fn number(root: &Root, of: Of, name: &str) -> Result<u32, String> {
    let getent = |database: &str, name: &str| {
        let mut getent = program::command(root, "getent");
        getent.args([database, name]);
        program::output(getent, LIMIT)
    };
    rules::number_by(&getent, of, name)
}
