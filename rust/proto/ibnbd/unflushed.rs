// SPDX-License-Identifier: GPL-2.0

//! Unflushed writes: answered writes that a power failure of the server may lose.
//!
//! A disk with a volatile cache answers writes before they are durable, and a flush makes all
//! writes durable that were answered before it. A local machine that loses its power loses the
//! cache together with all tasks that wait for a flush. Here the client outlives the server: a
//! flush that succeeded after the power failure would vouch for lost writes. So the client
//! remembers whether unflushed writes exist, and the server reports the [`cache_generation`].

use crate::identity::Identity;

/// Writes that were answered and are not known to be durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unflushed {
    /// There are none.
    Nothing,
    /// There are some; no flush in flight is known to cover them all.
    Something,
    /// There are some, and the flush with this tag covers them all.
    Before(u16),
}

/// A client's record of the writes of a disk.
///
/// # What the driver keeps
///
/// One value for each disk, in an atomic `u64` ([`Record::to_bits`]), and for each request the
/// [`Record::generation`] when it was sent. The value changes
///
/// - by [`Record::written`] after the server has answered a write, before that ends;
/// - by [`Record::flushing`] before a flush is sent;
/// - by [`Record::flushed`] after the server has answered a flush with success, before that ends;
///   a flush that fails changes nothing;
/// - by [`Record::lost`] when the client learns of another cache generation, while nothing is sent.
///   Requests that were sent before and are not answered are sent again afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    generation: u32,
    unflushed: Unflushed,
}

/// The server's write cache was lost after a write was sent: the write has to be sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Late;

const SOMETHING: u32 = 1;
const BEFORE: u32 = 1 << 16;

impl Record {
    /// The record of a disk without writes.
    pub const NEW: Self = Self {
        generation: 0,
        unflushed: Unflushed::Nothing,
    };

    /// The record as a number for an atomic word; the inverse of [`Record::from_bits`].
    pub const fn to_bits(self) -> u64 {
        let unflushed = match self.unflushed {
            Unflushed::Nothing => 0,
            Unflushed::Something => SOMETHING,
            // Lossless: u16 to u32.
            Unflushed::Before(tag) => BEFORE | tag as u32,
        };
        // Lossless: u32 to u64.
        (self.generation as u64) << 32 | unflushed as u64
    }

    /// The record of a number from [`Record::to_bits`].
    pub const fn from_bits(bits: u64) -> Self {
        // CAST: Each cast selects the bits that `to_bits` put there.
        let unflushed = match bits as u32 {
            0 => Unflushed::Nothing,
            SOMETHING => Unflushed::Something,
            before => Unflushed::Before(before as u16),
        };
        Self {
            generation: (bits >> 32) as u32,
            unflushed,
        }
    }

    /// How often [`Record::lost`] was called, modulo 2^32.
    pub const fn generation(self) -> u32 {
        self.generation
    }

    /// The unflushed writes.
    pub const fn unflushed(self) -> Unflushed {
        self.unflushed
    }

    const fn with(self, unflushed: Unflushed) -> Self {
        Self {
            generation: self.generation,
            unflushed,
        }
    }

    /// The record after the answer to a write that was sent in `generation` and need not be
    /// durable.
    ///
    /// # Errors
    ///
    /// [`Late`] if [`Record::lost`] was called since the write was sent.
    pub const fn written(self, generation: u32) -> Result<Self, Late> {
        if generation != self.generation {
            return Err(Late);
        }
        Ok(self.with(Unflushed::Something))
    }

    /// The record before the flush with `tag` is sent. The flush covers all writes that were
    /// answered before, also those that other flushes in flight cover.
    #[must_use]
    pub const fn flushing(self, tag: u16) -> Self {
        match self.unflushed {
            Unflushed::Nothing => self,
            Unflushed::Something | Unflushed::Before(_) => self.with(Unflushed::Before(tag)),
        }
    }

    /// The record after the flush with `tag`, sent in `generation`, has succeeded.
    #[must_use]
    pub const fn flushed(self, generation: u32, tag: u16) -> Self {
        match self.unflushed {
            Unflushed::Before(last) if last == tag && generation == self.generation => {
                self.with(Unflushed::Nothing)
            }
            _ => self,
        }
    }

    /// The record after a change of the cache generation.
    #[must_use]
    pub const fn lost(self) -> Self {
        Self {
            generation: self.generation.wrapping_add(1),
            unflushed: Unflushed::Nothing,
        }
    }
}

/// The state of the contents of the write cache when a device is reopened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reopened {
    /// The cache generation is the same, as far as is known.
    Same,
    /// All answered writes are durable, whatever the cache generation: the driver calls
    /// [`Record::lost`], and nothing fails.
    Kept,
    /// The cache generation is another one: the driver calls [`Record::lost`], and flushes fail if
    /// there were unflushed writes.
    Lost,
}

/// History of a disk's write cache, from one OPEN of the client to the next.
///
/// In a planned stop, a server accepts no more requests of a session, waits for those in service,
/// flushes the disk, and then reports that everything it has answered is durable
/// ([`CacheHistory::durable`]). As it serves nothing afterwards, the report also covers answers
/// that arrive after it, on other connections.
///
/// # What the driver keeps
///
/// One value for each disk, under a lock. The server's report counts only if it arrived
/// in the session generation in which the device was opened last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheHistory {
    generation: Identity,
    durable: bool,
}

impl CacheHistory {
    /// The history of a disk whose first OPEN was answered with this [`cache_generation`].
    pub const fn new(generation: Identity) -> Self {
        Self {
            generation,
            durable: false,
        }
    }

    /// Notes the report of the server that everything that the device has answered since it was
    /// opened is durable, and that the device answers nothing more until it is reopened.
    pub const fn durable(&mut self) {
        self.durable = true;
    }

    /// Notes that the device was reopened, with this [`cache_generation`].
    #[must_use]
    pub const fn reopened(&mut self, generation: Identity) -> Reopened {
        let result = if self.durable {
            Reopened::Kept
        } else if generation.may_be(self.generation) {
            Reopened::Same
        } else {
            Reopened::Lost
        };
        *self = Self::new(generation.or(self.generation));
        result
    }
}

/// The cache generation of a device, which changes whenever the contents of the write cache may be
/// lost. It is derived from the id of this boot of the machine and from the sequence number that
/// the disk got when it was found (`diskseq`); unknown if `boot` is empty.
pub fn cache_generation(boot: &[u8], disk: u64) -> Identity {
    if boot.is_empty() {
        return Identity::UNKNOWN;
    }
    Identity::of(&[boot, &disk.to_le_bytes()])
}
