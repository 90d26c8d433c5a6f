// SPDX-License-Identifier: GPL-2.0

//! The last events of portals and channels, for operators who were not there.
//!
//! All portals of the machine have a ring, and each side of a session has two: channels that are refused are more
//! important than those that come and go. All are allocated with their owners, so that no event needs memory, and
//! [`ibmsg_proto::history`] decides what they keep.

use ibmsg_proto::{
    history::{
        self,
        Event,
        What, //
    },
    refused::{
        self,
        Reason, //
    },
};
use ibtrs_proto::{
    history::{
        Alike,
        Ring, //
    },
    Errno, //
};
use kernel::{
    fmt,
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    },
    time::{
        ClockSource,
        RealTime, //
    }, //
};

use crate::{
    limits::KERNEL,
    types::Name, //
};

/// Entries for portals, for the channels of a session, and for those that it was refused.
const PORTALS: usize = 64;
const CHANNELS: usize = 32;
const REFUSALS: usize = 16;

/// Why something has happened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// There is nothing to say.
    None,
    Text(&'static str),
    Error(&'static str, Errno),
    /// A channel was refused with an errno, which has the same words at both ends, for a reason that only this end knows;
    /// empty if there is no more to say.
    Refused(Errno, &'static str),
    /// By a program of a user, or another module.
    User(u32),
}

impl Cause {
    /// Of a channel that was closed in the place of a program.
    pub(crate) const fn closed(errno: Errno) -> Self {
        Self::Error(refused::closed(errno), errno)
    }

    /// Its words without the error number, which a program may choose.
    fn words(&self) -> &'static str {
        match self {
            Self::Refused(errno, "") => Reason::told(*errno).as_str(),
            Self::Text(text) | Self::Error(text, _) | Self::Refused(_, text) => text,
            Self::None | Self::User(_) => "",
        }
    }
}

/// An error number in parentheses, by its name if it has one.
fn write_errno(f: &mut fmt::Formatter<'_>, errno: Errno) -> fmt::Result {
    match errno.as_str() {
        "E?" => write!(f, " (error {})", errno.get()),
        name => write!(f, " ({name})"),
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Text(text) => f.write_str(text),
            Self::Error(text, errno) => {
                f.write_str(text)?;
                write_errno(f, *errno)
            }
            Self::Refused(errno, own) => {
                let words = Reason::told(*errno).as_str();
                f.write_str(words)?;
                if !own.is_empty() && *own != words {
                    write!(f, ": {own}")?;
                }
                write_errno(f, *errno)
            }
            Self::User(KERNEL) => f.write_str("by a module of the kernel"),
            Self::User(uid) => write!(f, "by user {uid}"),
        }
    }
}

/// An entry.
pub(crate) type Entry = history::Entry<Name, Cause>;

/// How a ring is divided into classes, of which each has its share of the places: first by what somebody may do as often
/// as they like, then by the portal.
type Classes = [Alike<Entry>; 2];

/// A user that binds portals again and again leaves the other users' portals.
const PORTALS_BY: Classes = [
    |a, b| a.event.cause == b.event.cause,
    |a, b| a.event.portal == b.event.portal,
];
/// Channels that come and go leave others that have moved.
const CHANNELS_BY: Classes = [
    |a, b| a.event.what == b.event.what,
    |a, b| a.event.portal == b.event.portal,
];
/// A client that guesses names of portals leaves the portals that have refused it.
const REFUSALS_BY: Classes = [
    |a, b| a.event.cause.words() == b.event.cause.words(),
    |a, b| a.event.portal == b.event.portal,
];

/// The side of a session, in words, and the name of the session.
pub(crate) type Of = (&'static str, Name);

/// A ring.
struct Entries {
    ring: Ring<KVVec<Option<Entry>>>,
    by: &'static Classes,
}

impl Entries {
    fn new(places: usize, by: &'static Classes) -> Result<Self> {
        let ring = Ring::new(KVVec::from_elem(None, places, GFP_KERNEL)?);
        Ok(Self { ring, by })
    }

    fn record(&mut self, what: What, portal: Name, channel: u32, cause: Cause) {
        let event = Event {
            what,
            portal,
            channel,
            cause,
        };
        let now_ms = RealTime::ktime_get() / 1_000_000;
        history::record(&mut self.ring, event, now_ms, self.by);
    }

    fn is_empty(&self) -> bool {
        self.ring.latest().next().is_none()
    }
}

/// Copies entries, as far as there is room.
fn copy<'a>(entries: impl Iterator<Item = &'a Entry>, to: &mut KVVec<Entry>) {
    for entry in entries {
        let _ = to.push_within_capacity(*entry);
    }
}

/// The events of portals.
pub(crate) struct OfPortals(Entries);

impl OfPortals {
    /// The most entries.
    pub(crate) const MAX: usize = PORTALS;

    /// No events.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Entries::new(PORTALS, &PORTALS_BY)?))
    }

    /// A portal was bound, or closed.
    ///
    /// # Context
    ///
    /// *any*
    pub(crate) fn record(&mut self, what: What, portal: Name, uid: u32) {
        self.0.record(what, portal, 0, Cause::User(uid));
    }

    /// Copies the entries, as far as there is room.
    pub(crate) fn copy(&self, to: &mut KVVec<Entry>) {
        copy(self.0.ring.latest(), to);
    }
}

/// The events of a session, which they outlive for a while: the session owns tables and work items, and is freed.
#[pin_data]
pub(crate) struct OfSession {
    of: Of,
    is_authenticated: bool,
    #[pin]
    channels: SpinLockIrq<OfChannels>,
}

impl OfSession {
    /// No events.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn new(of: Of, is_authenticated: bool) -> Result<Arc<Self>> {
        let channels = OfChannels::new()?;
        Arc::pin_init(
            pin_init!(Self {
                of,
                is_authenticated,
                channels <- new_spinlock_irq!(channels, "OfSession::channels"),
            }),
            GFP_KERNEL,
        )
    }

    /// Of which side, and of which session.
    pub(crate) fn of(&self) -> &Of {
        &self.of
    }

    /// Whether the other machine has proved that it has a key.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// Something has happened to a channel.
    ///
    /// # Context
    ///
    /// *any*
    pub(crate) fn record(&self, what: What, portal: Name, channel: u32, cause: Cause) {
        self.channels.lock().record(what, portal, channel, cause);
    }

    /// Whether there was no event.
    pub(crate) fn is_empty(&self) -> bool {
        self.channels.lock().is_empty()
    }

    /// Copies the entries, as far as there is room: channels first, then refusals, the latest first.
    pub(crate) fn copy(&self, to: &mut KVVec<Entry>) {
        self.channels.lock().copy(to);
    }
}

/// The events of the channels of a session.
pub(crate) struct OfChannels {
    channels: Entries,
    refusals: Entries,
}

impl OfChannels {
    /// The most entries.
    pub(crate) const MAX: usize = CHANNELS + REFUSALS;

    /// No events.
    fn new() -> Result<Self> {
        Ok(Self {
            channels: Entries::new(CHANNELS, &CHANNELS_BY)?,
            refusals: Entries::new(REFUSALS, &REFUSALS_BY)?,
        })
    }

    fn record(&mut self, what: What, portal: Name, channel: u32, cause: Cause) {
        let entries = match what {
            What::Refused => &mut self.refusals,
            _ => &mut self.channels,
        };
        entries.record(what, portal, channel, cause);
    }

    fn is_empty(&self) -> bool {
        self.channels.is_empty() && self.refusals.is_empty()
    }

    fn copy(&self, to: &mut KVVec<Entry>) {
        let (channels, refusals) = (&self.channels.ring, &self.refusals.ring);
        copy(Iterator::chain(channels.latest(), refusals.latest()), to);
    }
}
