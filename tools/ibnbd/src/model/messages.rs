// SPDX-License-Identifier: GPL-2.0

//! Portals and channels of programs.

use std::collections::HashMap;
use std::thread::sleep;
use std::time::Duration;

use ibmsg::fdinfo::{self, Found, Open};
use ibmsg::rules::CONFIGFS;
use ibmsg::wire::is_name;
use ibtrs_proto::stats::counter::{message_refusals, Counter};

use super::session::{Path, PathState, Session, SessionState};
use crate::family::{Family, Side};
use crate::host;
use crate::root::Root;

/// The session between programs of one machine.
const LOCAL: &str = "local";

/// What programs of this machine have.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Messages {
    /// The module ibmsg is loaded.
    pub is_loaded: bool,
    /// Portals and channels, as far as this user may see them.
    pub found: Found,
    /// Channels that were refused, of sessions and hosts that have a rule.
    pub refused: Vec<Refused>,
    /// Channels that get nowhere, where they were looked for.
    pub stalled: Vec<(Open, Stall)>,
}

/// Channels over a session that were refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The session.
    pub session: String,
    /// Which end of it this machine is.
    pub side: Side,
    /// How many, by the index of the reason in [`message_refusals::ALL`].
    pub counts: Vec<Option<u64>>,
}

/// The counts of the rules in force. A rule may go meanwhile, and older modules count nothing.
fn refused(root: &Root) -> Vec<Refused> {
    let mut found = Vec::new();
    for (place, side) in [("sessions", Side::Client), ("hosts", Side::Server)] {
        let folder = format!("{CONFIGFS}/{place}");
        for session in root.list_if_any(&folder).unwrap_or_default() {
            let count = |counter: &Counter| {
                let file = format!("{folder}/{session}/{}", counter.name());
                root.read(&file).ok()?.trim().parse().ok()
            };
            let counts = message_refusals::ALL.iter().map(count).collect();
            found.push(Refused {
                session,
                side,
                counts,
            });
        }
    }
    found
}

/// Why the messages of a channel wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stall {
    /// The other machine does not acknowledge what was sent.
    NoAnswer,
    /// It has all that may be sent: its program does not read.
    NotRead,
}

impl Messages {
    /// Looks at all processes, if the module is loaded.
    pub(super) fn read(root: &Root) -> Self {
        let is_loaded = host::is_loaded(root, "ibmsg");
        if !is_loaded {
            return Self::default();
        }
        Self {
            is_loaded,
            found: fdinfo::read(&root.real("/")),
            refused: refused(root),
            stalled: Vec::new(),
        }
    }

    /// Looks for channels whose messages are not acknowledged and stay so for a while.
    pub fn find_stalls(&mut self, root: &Root, pause: Duration) {
        let waits = |open: &&Open| open.number("unacknowledged").is_some_and(|count| count > 0);
        if !self.found.channels().any(|open| waits(&open)) {
            return;
        }
        sleep(pause);
        let later = fdinfo::read(&root.real("/"));
        let is_same = |was: &Open, is: &Open| {
            let name = |open: &Open| (open.number("file"), open.name());
            name(was) == name(is) && was.owners.first() == is.owners.first()
        };
        let stall = |is: Open| {
            let was = self
                .found
                .channels()
                .filter(waits)
                .find(|was| is_same(was, &is))?;
            let has_moved = was.number("queued") != is.number("queued");
            if has_moved || !waits(&&is) {
                return None;
            }
            let has_all = is.number("sent") == is.number("queued");
            Some((
                is,
                if has_all {
                    Stall::NotRead
                } else {
                    Stall::NoAnswer
                },
            ))
        };
        self.stalled = later.all.into_iter().filter_map(stall).collect();
    }

    /// Fills in what sessions of our modules have.
    pub(super) fn count(&self, sessions: &mut [Session]) {
        if !self.is_loaded {
            return;
        }
        let mut by_session: HashMap<_, Vec<&Open>> = HashMap::new();
        for open in self.found.channels() {
            by_session
                .entry(open.text("session"))
                .or_default()
                .push(open);
        }
        for session in sessions.iter_mut().filter(|s| s.family == Family::Ibnbd) {
            let of_name = by_session.get(&Some(session.name.as_str()));
            let is_of_side = |open: &&Open| {
                open.text("side")
                    .is_none_or(|side| side == session.side.as_str())
            };
            let own: Vec<&Open> = (of_name.into_iter().flatten().copied())
                .filter(is_of_side)
                .collect();
            session.messages_blocked_by = obstacle(session, &own).map(str::to_owned);
            session.channels = Some(own.len());
        }
    }
}

/// Whether there are channels, and all wait for a connection. Older modules say no more.
fn all_wait(channels: &[&Open]) -> bool {
    let is_open = |open: &&&Open| open.state() == Some("open");
    let mut open = channels.iter().filter(is_open).peekable();
    open.peek().is_some() && open.all(|open| open.number("connected") == Some(0))
}

/// Why a session, which has these channels, carries no messages.
fn obstacle(session: &Session, channels: &[&Open]) -> Option<&'static str> {
    let has_none = |path: &Path| path.message_connections == Some(0);
    let mut connected = session
        .paths
        .iter()
        .filter(|path| path.state == PathState::Connected);
    if !is_name(&session.name) || session.name == LOCAL {
        Some("its name cannot be that of a session with messages")
    } else if session.paths.iter().any(|path| path.extensions == Some(0)) {
        Some("the other machine takes no message connections")
    } else if session.state == SessionState::Disconnected {
        Some("no path is connected")
    } else if connected.all(has_none) || all_wait(channels) {
        Some("no path has a message connection")
    } else {
        None
    }
}
