// SPDX-License-Identifier: GPL-2.0

//! What must hold: what each program has read, against everything that was published.

use std::collections::BTreeMap;

use ibmsg_proto::publish::{LogId, Policy};

use super::schedule::{MIN_ENTRY, TAGS};

/// A broken property. The numbers are those of the subscriber and the tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// A program has read an entry twice, or one before another one, or misses one.
    Order(usize, usize),
    /// The content of an entry is not what was published.
    Content(usize, usize),
    /// A program was told that entries are lost that the log had when that was said.
    NotLost(usize, usize),
    /// A program has lost entries although the publisher does not allow that.
    Lost(usize, usize),
    /// A subscription begins elsewhere than where its program has stopped reading, though that log lives.
    Begin(usize, usize),
    /// The publisher waits although it does not want to.
    Waits(usize),
    /// A log, or the queue of a channel or a program, is longer than its terms, or entries wait in the queue of a
    /// channel instead of the log.
    Memory,
    /// A kernel takes the other one for broken.
    Protocol(&'static str),
    /// Nothing happens any more, and a subscriber does not have what was published.
    Missing(usize, usize),
    /// Nothing happens any more, and the publisher waits.
    Stuck(usize),
    /// Nothing happens any more, and a subscription that nobody wants has not ended.
    NotEnded(usize, usize),
    /// It never ends.
    Endless,
}

/// Everything that was published in a log.
#[derive(Clone, Debug)]
struct Published {
    /// Differs for all logs, whatever their ids.
    serial: u64,
    tag: usize,
    policy: Policy,
    /// Length of each entry.
    lens: Vec<u32>,
    /// Entries before this one were dropped.
    first: u64,
    is_gone: bool,
}

/// What a program has read under a tag.
#[derive(Clone, Copy, Debug, Default)]
struct Read {
    /// The log, and what comes next.
    place: Option<(LogId, u64)>,
    /// Nothing has come since SUBSCRIBED.
    is_new: bool,
}

/// All that was published, and all that was read.
#[derive(Default)]
pub struct Check {
    logs: BTreeMap<LogId, Vec<Published>>,
    read: BTreeMap<(usize, usize), Read>,
    /// The first violation.
    pub violation: Option<Violation>,
}

/// The content of an entry.
pub fn content(tag: usize, serial: u64, position: u64, len: u32) -> Vec<u8> {
    let mut content = vec![tag as u8; len as usize];
    content[..8].copy_from_slice(&serial.to_le_bytes());
    content[8..MIN_ENTRY as usize].copy_from_slice(&position.to_le_bytes());
    content
}

impl Check {
    /// Something is broken.
    pub fn fail(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    /// A log begins. Returns its serial number, which no other log has.
    pub fn begins(&mut self, id: LogId, tag: usize, policy: Policy) -> u64 {
        let serial = self.logs.values().map(Vec::len).sum::<usize>() as u64;
        self.logs.entry(id).or_default().push(Published {
            serial,
            tag,
            policy,
            lens: Vec::new(),
            first: 0,
            is_gone: false,
        });
        serial
    }

    fn latest(&mut self, id: LogId) -> &mut Published {
        let logs = self.logs.get_mut(&id).expect("a log");
        logs.last_mut().expect("a log")
    }

    /// A log is gone.
    pub fn gone(&mut self, id: LogId) {
        self.latest(id).is_gone = true;
    }

    /// An entry was published.
    pub fn published(&mut self, id: LogId, len: u32) {
        self.latest(id).lens.push(len);
    }

    /// The oldest entry of a log was dropped.
    pub fn dropped(&mut self, id: LogId) {
        self.latest(id).first += 1;
    }

    /// What comes next for a program.
    pub fn place(&self, who: usize, tag: usize) -> Option<(LogId, u64)> {
        self.read.get(&(who, tag)).and_then(|read| read.place)
    }

    /// A program reads SUBSCRIBED.
    pub fn subscribed(&mut self, who: usize, tag: usize, id: LogId, position: u64) {
        let log = self.latest(id);
        let is_right = log.tag == tag && position <= log.lens.len() as u64;
        let former = self.place(who, tag);
        let goes_on = match former {
            None => true,
            Some((former, next)) if former == id => next == position,
            Some((former, _)) => self.latest(former).is_gone,
        };
        if !is_right || !goes_on {
            self.fail(Violation::Begin(who, tag));
        }
        let read = Read {
            place: Some((id, position)),
            is_new: true,
        };
        self.read.insert((who, tag), read);
    }

    /// A program is told that it cannot go on where it has stopped.
    pub fn begins_anew(&mut self, who: usize, tag: usize) {
        self.read.remove(&(who, tag));
    }

    /// Goes on behind some entries. Returns the log, and whether they are the first ones of a subscription.
    fn goes_on(&mut self, who: usize, tag: usize, at: u64, count: u64) -> Option<(LogId, bool)> {
        let read = self.read.entry((who, tag)).or_default();
        let was_new = std::mem::replace(&mut read.is_new, false);
        match &mut read.place {
            Some((id, next)) if *next == at => {
                *next = at + count;
                Some((*id, was_new))
            }
            _ => {
                self.fail(Violation::Order(who, tag));
                None
            }
        }
    }

    /// A program reads an entry.
    pub fn entry(&mut self, who: usize, tag: usize, position: u64, got: &[u8]) {
        let Some((id, _)) = self.goes_on(who, tag, position, 1) else {
            return;
        };
        let log = self.latest(id);
        let len = log.lens.get(position as usize).copied();
        let is_right = len.is_some_and(|len| content(log.tag, log.serial, position, len) == got);
        if !is_right || log.tag != tag {
            self.fail(Violation::Content(who, tag));
        }
    }

    /// A program reads LOST.
    pub fn lost(&mut self, who: usize, tag: usize, first: u64, count: u64) {
        let Some((id, was_new)) = self.goes_on(who, tag, first, count) else {
            return;
        };
        let log = self.latest(id);
        let (dropped, policy) = (log.first, log.policy);
        if first + count > dropped {
            self.fail(Violation::NotLost(who, tag));
        }
        if policy != Policy::Drop && !was_new {
            self.fail(Violation::Lost(who, tag));
        }
    }

    /// A program reads ENDED of a subscription that had begun.
    pub fn ended(&mut self, who: usize, tag: usize, position: u64) {
        if self.place(who, tag).map(|(_, next)| next) != Some(position) {
            self.fail(Violation::Order(who, tag));
        }
    }

    /// Nothing happens any more: a program that has a subscription has everything.
    pub fn has_all(&mut self, who: usize, tag: usize, id: LogId) {
        let published = self.latest(id).lens.len() as u64;
        if self.place(who, tag) != Some((id, published)) {
            self.fail(Violation::Missing(who, tag));
        }
    }

    /// All programs and tags.
    pub fn all(sessions: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..sessions).flat_map(|who| (0..TAGS).map(move |tag| (who, tag)))
    }
}
