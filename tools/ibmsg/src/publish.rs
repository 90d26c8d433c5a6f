// SPDX-License-Identifier: GPL-2.0

//! Publish and subscribe.
//!
//! A program publishes at its [`Portal`](crate::Portal), under tags; others subscribe on their channels to it. A
//! [`Follower`] knows where its program has stopped reading, so that it can go on there by another channel.
//!
//! ```no_run
//! # fn main() -> ibmsg::Result<()> {
//! let mut follower = ibmsg::publish::Follower::new(7);
//! loop {
//!     let mut channel = ibmsg::Connect::new("s", "news").open()?;
//!     channel.subscribe(follower.tag(), follower.begin(), false)?;
//!     for message in channel.messages() {
//!         let message = message?;
//!         follower.saw(&message);
//!         if let ibmsg::Message::Published { position, body, .. } = message {
//!             println!("{position}: {} bytes", body.len());
//!         }
//!     }
//! }
//! # }
//! ```

use std::fs::File;
use std::io::{self, Write};

use crate::channel::{whole, Message};
use crate::error::{Error, Result};
use crate::sys;
use crate::wire::{Fields, Header, Kind};
use crate::words::Doing;

/// A subscription that cannot begin with what it names is refused.
const EXACT: u32 = 1;
const SET: u32 = 1;
const DEFAULT: u32 = 2;

/// Where a subscription begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    /// With the oldest entry that the log still has.
    First,
    /// With the next one that is published.
    Next,
    /// With this one. What was dropped since is [`Message::Lost`].
    Position(Place),
}

/// An entry of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The log, of [`Message::Subscribed`].
    pub log: u64,
    /// Its position.
    pub position: u64,
}

/// What happens if a log is full, and a subscriber does not have its oldest entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// Publishing waits.
    #[default]
    Wait,
    /// The subscriber loses the entry, and gets [`Message::Lost`].
    Drop,
    /// Its subscription ends with `ENOBUFS`.
    Close,
}

/// The terms of a log. 0 is the default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogTerms {
    /// The most entries that it keeps.
    pub entries: u32,
    /// The most bytes of those.
    pub bytes: u64,
    /// What happens to slow subscribers.
    pub policy: Policy,
}

/// What there is to know about a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogState {
    /// Its terms.
    pub terms: LogTerms,
    /// Its id, as in [`Place::log`].
    pub log: u64,
    /// The position of its oldest entry.
    pub first: u64,
    /// The position that the next entry will have.
    pub next: u64,
    /// The first entry that some subscriber has not been sent; or `next`.
    pub slowest: u64,
    /// Its subscribers.
    pub subscribers: u32,
}

/// Where a program is in a log, whichever channel it subscribes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Follower {
    tag: u64,
    place: Option<Place>,
}

impl Follower {
    /// Nothing was read yet.
    pub const fn new(tag: u64) -> Self {
        Self { tag, place: None }
    }

    /// The tag.
    pub const fn tag(&self) -> u64 {
        self.tag
    }

    /// What to subscribe to next, so that nothing is missing and nothing comes twice. At first, all that the log has.
    pub fn begin(&self) -> Begin {
        self.place.map_or(Begin::First, Begin::Position)
    }

    /// The program has read a message.
    pub fn saw(&mut self, message: &Message) {
        match *message {
            Message::Subscribed { tag, place } if tag == self.tag => self.place = Some(place),
            Message::Published { tag, position, .. } if tag == self.tag => {
                self.goes_on(position.saturating_add(1));
            }
            Message::Lost { tag, first, count } if tag == self.tag => {
                self.goes_on(first.saturating_add(count));
            }
            _ => {}
        }
    }

    fn goes_on(&mut self, position: u64) {
        if let Some(place) = &mut self.place {
            place.position = position;
        }
    }
}

pub(crate) fn subscribe(file: &File, tag: u64, begin: Begin, exact: bool) -> io::Result<()> {
    let (number, log, position) = match begin {
        Begin::First => (0, 0, 0),
        Begin::Next => (1, 0, 0),
        Begin::Position(place) => (2, place.log, place.position),
    };
    let mut fields = Fields::new()
        .u32(if exact { EXACT } else { 0 })
        .u64(tag)
        .u32(number)
        .u32(0)
        .u64(log.to_le())
        .u64(position)
        .finish();
    sys::ioctl(file, sys::SUBSCRIBE, &mut fields).map(drop)
}

pub(crate) fn unsubscribe(file: &File, tag: u64) -> io::Result<()> {
    let mut fields = Fields::new().u32(0).u64(tag).finish();
    sys::ioctl(file, sys::UNSUBSCRIBE, &mut fields).map(drop)
}

/// Does it again after a signal.
pub(crate) fn ask(mut call: impl FnMut() -> io::Result<()>) -> Result<()> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map_err(|e| Error::system(Doing::Write, e)),
        }
    }
}

/// An entry as it is written to a portal.
///
/// # Errors
///
/// `EMSGSIZE`
pub(crate) fn entry(tag: u64, body: &[u8]) -> Result<Vec<u8>> {
    let header = Header {
        tag,
        ..Header::new(Kind::Msg)
    };
    whole(header, body)
}

/// Writes an entry to the file of a portal.
pub(crate) fn publish(mut file: &File, tag: u64, body: &[u8]) -> Result<()> {
    let data = entry(tag, body)?;
    // One write is one entry.
    ask(|| file.write(&data).map(drop))
}

pub(crate) fn set_log(file: &File, tag: Option<u64>, terms: &LogTerms) -> Result<()> {
    let flag = if tag.is_some() { SET } else { DEFAULT };
    log(file, flag, tag.unwrap_or(0), terms).map(drop)
}

pub(crate) fn log_state(file: &File, tag: u64) -> Result<LogState> {
    let fields = log(file, 0, tag, &LogTerms::default())?;
    LogState::of(&fields).ok_or(Error::Format)
}

fn log(file: &File, flag: u32, tag: u64, terms: &LogTerms) -> Result<Vec<u8>> {
    let policy = match terms.policy {
        Policy::Wait => 0,
        Policy::Drop => 1,
        Policy::Close => 2,
    };
    let mut fields = Fields::new()
        .u32(flag)
        .u64(tag)
        .u32(terms.entries)
        .u32(policy)
        .u64(terms.bytes)
        .bytes(&[], 40)
        .finish();
    let done = sys::ioctl(file, sys::LOG, &mut fields);
    done.map_err(|e| Error::system(Doing::Write, e))?;
    Ok(fields)
}

impl LogState {
    fn of(fields: &[u8]) -> Option<Self> {
        let u32_at = |at: usize| Some(u32::from_ne_bytes(*fields.get(at..)?.first_chunk()?));
        let u64_at = |at: usize| Some(u64::from_ne_bytes(*fields.get(at..)?.first_chunk()?));
        let policy = match u32_at(20)? {
            0 => Policy::Wait,
            1 => Policy::Drop,
            2 => Policy::Close,
            _ => return None,
        };
        Some(Self {
            terms: LogTerms {
                entries: u32_at(16)?,
                bytes: u64_at(24)?,
                policy,
            },
            log: u64::from_le(u64_at(32)?),
            first: u64_at(40)?,
            next: u64_at(48)?,
            slowest: u64_at(56)?,
            subscribers: u32_at(64)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_goes_on_where_it_was() {
        let mut follower = Follower::new(7);
        let at = |position| Begin::Position(Place { log: 9, position });
        let published = |tag, position| Message::Published {
            tag,
            position,
            body: Vec::new(),
        };
        follower.saw(&published(7, 3));
        assert_eq!(follower.begin(), Begin::First);
        let place = Place {
            log: 9,
            position: 4,
        };
        follower.saw(&Message::Subscribed { tag: 7, place });
        assert_eq!(follower.begin(), at(4));
        follower.saw(&published(7, 4));
        follower.saw(&published(8, 90));
        assert_eq!(follower.begin(), at(5));
        let lost = |tag| Message::Lost {
            tag,
            first: 5,
            count: 10,
        };
        follower.saw(&lost(8));
        follower.saw(&lost(7));
        follower.saw(&Message::Unsubscribed {
            tag: 7,
            position: 15,
            status: 105,
        });
        assert_eq!((follower.begin(), follower.tag()), (at(15), 7));
    }

    #[test]
    fn the_state_of_a_log() {
        let fields = Fields::new()
            .u32(0)
            .u64(7)
            .u32(4)
            .u32(1)
            .u64(1000)
            .u64(u64::to_le(9))
            .u64(6)
            .u64(10)
            .u64(8)
            .u32(2)
            .u32(0)
            .finish();
        let state = LogState::of(&fields).unwrap();
        let terms = LogTerms {
            entries: 4,
            bytes: 1000,
            policy: Policy::Drop,
        };
        assert_eq!((state.terms, state.log), (terms, 9));
        let places = (state.first, state.next, state.slowest, state.subscribers);
        assert_eq!(places, (6, 10, 8, 2));
        assert_eq!((fields.len(), LogState::of(&fields[..60])), (72, None));
    }
}
