// SPDX-License-Identifier: GPL-2.0

//! The keys of this side's memory that the peer has, on the connection that a channel is on.

use super::range::Handle;

/// What the peer must not do. The receiver fails the path that the record came by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrantError {
    /// It asks for a key that it has.
    Twice,
    /// It has as many keys as the terms allow.
    TooMany,
    /// It returns a key that it does not have.
    NotGranted,
    /// More GETs at once than the terms allow.
    TooManyGets,
}

impl GrantError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Twice => "request for a key that the peer has",
            Self::TooMany => "requests for more keys than agreed",
            Self::NotGranted => "return of a key that the peer does not have",
            Self::TooManyGets => "more GETs at once than agreed",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    handle: Handle,
    piece: u64,
    /// The peer uses it no more, and LOCAL_INV is to be posted, or was.
    ending: bool,
}

/// Places for `N` keys, of which the peer may have [`super::MemoryTerms::keys`]. With more places than that, a key that was
/// returned, and is not invalid yet, does not keep the next one waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Granted<const N: usize> {
    entries: [Option<Entry>; N],
    limit: usize,
}

impl<const N: usize> Granted<N> {
    /// No keys, of which the peer may have up to `limit`.
    pub const fn new(limit: u16) -> Self {
        Self {
            entries: [None; N],
            // Lossless: u16 to usize.
            limit: limit as usize,
        }
    }

    fn find(&self, handle: Handle, piece: u64) -> Option<usize> {
        self.entries.iter().position(
            |e| matches!(e, Some(e) if e.handle == handle && e.piece == piece && !e.ending),
        )
    }

    /// ASK has arrived, and is not refused: returns the place for the key, which the caller registers, if it has no
    /// region for the place yet, and sends.
    ///
    /// A key that was returned is only forgotten when it is invalid, so a peer that asks before that may meet
    /// a full table although it keeps to the terms: `Ok(None)`, the record waits.
    ///
    /// # Errors
    ///
    /// When the peer has the key, or too many.
    pub fn grant(&mut self, handle: Handle, piece: u64) -> Result<Option<usize>, GrantError> {
        if self.find(handle, piece).is_some() {
            return Err(GrantError::Twice);
        }
        if self.live() >= self.limit {
            return Err(GrantError::TooMany);
        }
        let Some(at) = self.entries.iter().position(Option::is_none) else {
            return Ok(None);
        };
        if let Some(place) = self.entries.get_mut(at) {
            *place = Some(Entry {
                handle,
                piece,
                ending: false,
            });
        }
        Ok(Some(at))
    }

    /// RETURN of a piece has arrived: returns the place whose key the caller invalidates, if it does not do so
    /// already. `is_live`: [`super::Export::live`] of the handle; the keys of others are invalidated without being asked.
    ///
    /// # Errors
    ///
    /// When the peer does not have it.
    pub fn returned(
        &mut self,
        handle: Handle,
        piece: u64,
        is_live: bool,
    ) -> Result<Option<usize>, GrantError> {
        match self.find(handle, piece) {
            Some(at) => {
                self.end(at);
                Ok(Some(at))
            }
            None if is_live => Err(GrantError::NotGranted),
            None => Ok(None),
        }
    }

    /// The key at the place is to be invalidated, or never was registered: [`Granted::invalidated`] follows.
    pub fn end(&mut self, at: usize) {
        if let Some(Some(entry)) = self.entries.get_mut(at) {
            entry.ending = true;
        }
    }

    /// The next key of the handle that the caller invalidates: for [`super::export::Unmapping::Invalidate`]. Until it returns
    /// `None`.
    pub fn end_next(&mut self, handle: Handle) -> Option<usize> {
        let at = self
            .entries
            .iter()
            .position(|e| matches!(e, Some(e) if e.handle == handle && !e.ending))?;
        self.end(at);
        Some(at)
    }

    /// The key at the place is invalid: the handle whose [`super::Export::invalidated`] is to be called.
    pub fn invalidated(&mut self, at: usize) -> Option<Handle> {
        let place = self.entries.get_mut(at)?;
        match place {
            Some(entry) if entry.ending => {
                let handle = entry.handle;
                *place = None;
                Some(handle)
            }
            _ => None,
        }
    }

    /// The queue pair of the connection is in error and drained: all keys are invalid. Returns the handle of
    /// one after the other, for [`super::Export::invalidated`], until `None`.
    pub fn fence(&mut self) -> Option<Handle> {
        self.entries
            .iter_mut()
            .find_map(Option::take)
            .map(|e| e.handle)
    }

    /// Keys that the peer may use.
    pub fn live(&self) -> usize {
        self.entries.iter().flatten().filter(|e| !e.ending).count()
    }

    /// Whether the peer has no keys. A channel may leave a connection that works only then.
    pub fn is_empty(&self) -> bool {
        self.entries.iter().all(Option::is_none)
    }
}
