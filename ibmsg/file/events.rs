// SPDX-License-Identifier: GPL-2.0

//! What an operator reads from the device: the last events of portals and channels, a line for each entry.
//!
//! The text is made in portions as there may be many sessions: portals, then each session, of which the last ones that have
//! ended are some.

use core::mem::take;
use kernel::{
    fmt,
    prelude::*,
    str::CString,
    sync::Arc, //
};
use kx::file::IovIterDest;

use crate::{
    history::{
        Entry,
        Of,
        OfChannels,
        OfPortals,
        OfSession, //
    },
    hub::Hub, //
};

/// How far the program has read.
pub(super) enum Events {
    /// Nothing.
    Unread,
    /// It has what comes before this text, of which it has `done` bytes. Then come the events of these sessions, the last
    /// one first.
    Within {
        text: KVVec<u8>,
        done: usize,
        sessions: KVVec<Arc<OfSession>>,
    },
}

impl Events {
    /// Copies the text to a program, as far as it has room. None is left if nothing was copied.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`EFAULT`], [`ENOMEM`]
    pub(super) fn read(&mut self, hub: &Hub, to: &mut IovIterDest<'_>) -> Result<usize> {
        let room = to.len();
        while !to.is_empty() {
            let result = self.copy(to).and_then(|copied| match copied {
                0 => self.proceed(hub),
                _ => Ok(true),
            });
            match result {
                Ok(true) => {}
                Ok(false) => break,
                // What was copied before counts.
                Err(error) if to.len() == room => return Err(error),
                Err(_) => break,
            }
        }
        Ok(room - to.len())
    }

    /// Copies from the text that there is. Returns how much; 0: it has ended.
    fn copy(&mut self, to: &mut IovIterDest<'_>) -> Result<usize> {
        let Self::Within { text, done, .. } = self else {
            return Ok(0);
        };
        let rest = text.get(*done..).unwrap_or(&[]);
        if rest.is_empty() {
            return Ok(0);
        }
        match to.copy_to_iter(rest) {
            0 => Err(EFAULT),
            copied => {
                *done += copied;
                Ok(copied)
            }
        }
    }

    /// Makes the next text. Returns whether there is more.
    fn proceed(&mut self, hub: &Hub) -> Result<bool> {
        match self {
            Self::Unread => {
                // All of them at once: one that ends meanwhile is among them, once.
                let mut sessions = hub.peers.histories()?;
                sessions.push(hub.local_portals.history().clone(), GFP_KERNEL)?;
                let (text, done) = (of_portals(hub)?, 0);
                *self = Self::Within {
                    text,
                    done,
                    sessions,
                };
                Ok(true)
            }
            Self::Within {
                text,
                done,
                sessions,
            } => {
                let Some(session) = sessions.last() else {
                    // Its memory is not needed any more.
                    drop(take(text));
                    return Ok(false);
                };
                *text = of_session(session)?;
                *done = 0;
                drop(sessions.pop());
                Ok(true)
            }
        }
    }
}

fn of_portals(hub: &Hub) -> Result<KVVec<u8>> {
    let mut entries = KVVec::with_capacity(OfPortals::MAX, GFP_KERNEL)?;
    hub.shared.portals.events(&mut entries);
    let mut text = KVVec::new();
    for entry in &entries {
        line(&mut text, entry, None)?;
    }
    Ok(text)
}

fn of_session(session: &OfSession) -> Result<KVVec<u8>> {
    let mut entries = KVVec::with_capacity(OfChannels::MAX, GFP_KERNEL)?;
    session.copy(&mut entries);
    let mut text = KVVec::new();
    for entry in &entries {
        line(&mut text, entry, Some(session.of()))?;
    }
    Ok(text)
}

/// Milliseconds since 1970, in seconds.
struct Time(i64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// Appends a line for an entry of a session, or of portals.
fn line(text: &mut KVVec<u8>, entry: &Entry, of: Option<&Of>) -> Result {
    let (at, since, count) = (Time(entry.at_ms), Time(entry.since_ms), entry.count);
    let event = &entry.event;
    let (portal, what, cause) = (&event.portal, event.what.as_str(), &event.cause);
    let line = match of {
        Some((side, session)) => {
            let channel = event.channel;
            CString::try_from_fmt(fmt!(
                "{at} {since} {count} {side} {session} {portal} {channel} {what} {cause}\n"
            ))?
        }
        None => {
            CString::try_from_fmt(fmt!("{at} {since} {count} - - {portal} - {what} {cause}\n"))?
        }
    };
    text.extend_from_slice(line.to_bytes(), GFP_KERNEL)?;
    Ok(())
}
