// SPDX-License-Identifier: GPL-2.0

//! Disks, sessions, paths and opened devices of a machine.

mod counters;
mod disk;
mod messages;
mod opened;
mod reader;
mod session;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use counters::Counters;
pub use disk::Disk;
pub use messages::{Messages, Refused, Stall};
pub use opened::Opened;
pub use reader::Note;
pub(crate) use reader::{not_understood, Reader};
pub use session::{Path, PathState, PathStats, Reconnects, Session, SessionState, Settings};

use crate::family::{Family, Side};
use crate::root::Root;

/// All that there is, of both families and both sides.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Disks that are mapped here.
    pub disks: Vec<Disk>,
    /// Sessions of clients and servers.
    pub sessions: Vec<Session>,
    /// Devices that clients have open here.
    pub opened: Vec<Opened>,
    /// Portals and channels of programs, where they were asked for.
    #[serde(skip)]
    pub messages: Messages,
    /// Files that could not be read.
    pub notes: Vec<Note>,
}

impl Machine {
    /// Reads all but what paths have counted.
    pub fn read(root: &Root) -> Self {
        let mut reader = Reader::new(root);
        let mut disks = disk::some(&mut reader, &|_| true);
        let mut sessions = Vec::new();
        let mut opened = Vec::new();
        for family in Family::ALL {
            for side in Side::ALL {
                sessions.append(&mut session::all(&mut reader, family, side));
            }
            opened.append(&mut opened::some(&mut reader, family, &|_| true));
        }
        count_paths_of(&mut disks, &sessions);
        Self {
            disks,
            sessions,
            opened,
            messages: Messages::default(),
            notes: reader.notes,
        }
    }

    /// Reads disks and opened devices, with those fields of [`Disk`] and [`Opened`] that `wants`
    /// names, and nothing of sessions but the states of the disks' paths.
    pub fn read_list(root: &Root, wants: &dyn Fn(&str) -> bool) -> Self {
        let mut reader = Reader::new(root);
        let mut disks = disk::some(&mut reader, wants);
        if wants("paths") {
            count_paths(&mut reader, &mut disks);
        }
        let mut opened = Vec::new();
        for family in Family::ALL {
            opened.append(&mut opened::some(&mut reader, family, wants));
        }
        Self {
            disks,
            sessions: Vec::new(),
            opened,
            messages: Messages::default(),
            notes: reader.notes,
        }
    }

    /// Reads what each path has counted.
    pub fn read_stats(&mut self, root: &Root) {
        let mut reader = Reader::new(root);
        for path in self.sessions.iter_mut().flat_map(|s| &mut s.paths) {
            path.read_stats(&mut reader);
        }
        self.notes.append(&mut reader.notes);
    }

    /// Reads what each disk has done.
    pub fn read_disk_stats(&mut self, root: &Root) {
        let mut reader = Reader::new(root);
        for disk in &mut self.disks {
            disk.read_stat(&mut reader);
        }
        self.notes.append(&mut reader.notes);
    }

    /// Reads which portals and channels programs have.
    pub fn read_messages(&mut self, root: &Root) {
        self.messages = Messages::read(root);
        self.messages.count(&mut self.sessions);
    }

    /// Sessions of our modules at one end.
    pub fn ours(&self, side: Side) -> impl Iterator<Item = &Session> {
        let is_ours = move |s: &&Session| s.side == side && s.family == Family::Ibnbd;
        self.sessions.iter().filter(is_ours)
    }

    /// The one of that name.
    pub fn our(&self, side: Side, name: &str) -> Option<&Session> {
        self.session(Family::Ibnbd, side, name)
    }

    /// The session of that name, of either family.
    pub fn session(&self, family: Family, side: Side, name: &str) -> Option<&Session> {
        let is_it = |s: &&Session| s.family == family && s.side == side && s.name == name;
        self.sessions.iter().find(is_it)
    }

    /// Disks of our modules.
    pub fn our_disks(&self) -> impl DoubleEndedIterator<Item = &Disk> {
        self.disks.iter().filter(|d| d.family == Family::Ibnbd)
    }

    /// The one that is that device of a session.
    pub fn our_disk(&self, session: &str, device: &str) -> Option<&Disk> {
        self.our_disks().find(|disk| {
            disk.session.as_deref() == Some(session) && disk.mapping_path.as_deref() == Some(device)
        })
    }

    /// The queues of a session of our client that are not polled, as its disks have them.
    pub fn queues(&self, session: &str) -> Option<u64> {
        let mut own = self
            .our_disks()
            .filter(|disk| disk.session.as_deref() == Some(session));
        own.find_map(|disk| disk.queues)
    }

    /// Whether there is nothing at all.
    pub fn is_empty(&self) -> bool {
        self.disks.is_empty() && self.sessions.is_empty() && self.opened.is_empty()
    }
}

/// Takes them from the sessions, which have been read.
fn count_paths_of(disks: &mut [Disk], sessions: &[Session]) {
    let clients = sessions.iter().filter(|s| s.side == Side::Client);
    let by_name: HashMap<_, _> = clients.map(|s| ((s.family, s.name.as_str()), s)).collect();
    for disk in disks {
        let name = disk.session.as_deref().map(|name| (disk.family, name));
        if let Some(session) = name.and_then(|name| by_name.get(&name).copied()) {
            disk.count_paths(session);
        }
    }
}

/// Counts those of each session once.
fn count_paths(reader: &mut Reader<'_>, disks: &mut [Disk]) {
    let mut counted = HashMap::new();
    for disk in disks {
        let Some(session) = &disk.session else {
            continue;
        };
        let counts = counted
            .entry((disk.family, session.clone()))
            .or_insert_with(|| session::brief(reader, disk.family, session));
        (disk.paths, disk.paths_connected) = (counts.paths, counts.connected);
        disk.paths_drained = counts.drained;
        disk.server_back_in_s = counts.server_back_in_s;
        disk.outage = counts.outage;
    }
}
