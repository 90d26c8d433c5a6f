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
    /// Nothing.
    Nothing,
    /// Something; no flush that is under way is known to be for all of it.
    Something,
    /// Something, and the flush of that tag is for all of it.
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
/// - by [`Record::flushed`] after the server has answered it well, before it ends. A flush that
///   fails changes nothing;
/// - by [`Record::lost`] when the server's cache is found to be another one, while nothing is sent.
///   What was sent before and not answered is sent again afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    generation: u32,
    unflushed: Unflushed,
}

/// A write was answered by a server that has lost it since: it is to be sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Late;

const SOMETHING: u32 = 1;
const BEFORE: u32 = 1 << 16;

impl Record {
    /// Of a disk that nothing was written to.
    pub const NEW: Self = Self {
        generation: 0,
        unflushed: Unflushed::Nothing,
    };

    /// As a number for an atomic word; the inverse of [`Record::from_bits`].
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

    /// The value of a number from [`Record::to_bits`].
    pub const fn from_bits(bits: u64) -> Self {
        // The casts keep the bits they are meant to keep.
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

    /// How often the server's cache was found to be another one.
    pub const fn generation(self) -> u32 {
        self.generation
    }

    /// The writes that could be lost.
    pub const fn unflushed(self) -> Unflushed {
        self.unflushed
    }

    const fn with(self, unflushed: Unflushed) -> Self {
        Self {
            generation: self.generation,
            unflushed,
        }
    }

    /// A write that need not be durable, and was sent in `generation`, was answered.
    ///
    /// # Errors
    ///
    /// When the server has lost its cache since.
    pub const fn written(self, generation: u32) -> Result<Self, Late> {
        if generation != self.generation {
            return Err(Late);
        }
        Ok(self.with(Unflushed::Something))
    }

    /// The flush with that tag is about to be sent. It covers all writes that were answered before,
    /// also those that other flushes under way cover.
    #[must_use]
    pub const fn flushing(self, tag: u16) -> Self {
        match self.unflushed {
            Unflushed::Nothing => self,
            Unflushed::Something | Unflushed::Before(_) => self.with(Unflushed::Before(tag)),
        }
    }

    /// The flush of that tag, sent in `generation`, was answered.
    #[must_use]
    pub const fn flushed(self, generation: u32, tag: u16) -> Self {
        match self.unflushed {
            Unflushed::Before(last) if last == tag && generation == self.generation => {
                self.with(Unflushed::Nothing)
            }
            _ => self,
        }
    }

    /// The server's cache has lost what it had.
    #[must_use]
    pub const fn lost(self) -> Self {
        Self {
            generation: self.generation.wrapping_add(1),
            unflushed: Unflushed::Nothing,
        }
    }
}

/// What a device that was opened again says of the cache that it had before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reopened {
    /// It is the same one, as far as is known.
    Same,
    /// Whatever was answered before is durable, be the cache another one or not: the driver calls
    /// [`Record::lost`], and nothing fails.
    Kept,
    /// It is another one: the driver calls [`Record::lost`], and flushes fail if anything was
    /// unflushed.
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
    /// Of a disk whose first OPEN was answered with this [`cache_generation`].
    pub const fn new(generation: Identity) -> Self {
        Self {
            generation,
            durable: false,
        }
    }

    /// The server has said that everything is durable that the device has answered since it was
    /// opened, and that it answers nothing more until it is opened again.
    pub const fn durable(&mut self) {
        self.durable = true;
    }

    /// The device was opened again, and has this [`cache_generation`] now.
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

/// Names the cache generation of a device: the number changes as soon as the contents of the write
/// cache may be lost. It is made of the id of this boot of the machine and of the number that the
/// disk has had since it was found; unknown if the boot has no id.
pub fn cache_generation(boot: &[u8], disk: u64) -> Identity {
    if boot.is_empty() {
        return Identity::UNKNOWN;
    }
    Identity::of(&[boot, &disk.to_le_bytes()])
}
