// SPDX-License-Identifier: GPL-2.0

//! Limits on memory and connections, for each client and in total (server).
//!
//! Every machine that reaches the port can ask for connections, and before a path is complete the
//! server cannot distinguish clients from strangers. So the memory of a path grows as the client
//! proves its presence: a little when it begins, the queues of each connection as that arrives, the
//! chunks when the client completes the path. Until then the number of paths that one address may
//! begin is limited, and their memory is limited to half of the whole; all strangers together may
//! take three quarters. However many paths strangers begin, the last eighth is for *known* clients:
//! a session that has a connected path, whose UUID a stranger does not know, and an address that
//! has a connected path or had one lately. A stranger that completes a path is known from then on.
//!
//! A path that would exceed the limits even if it were the only one is refused when it begins, with
//! a reason of its own, because waiting for memory would not help its client. Every other path can
//! be completed when no other paths exist.

use crate::errno::Errno;

/// How long an address that had a connected path is known, in milliseconds.
pub const KNOWN_MS: u64 = 600_000;

/// The memory that all paths have taken, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Taken {
    /// All paths.
    pub all: u64,
    /// Incomplete paths.
    pub begun: u64,
}

/// The server's knowledge of the address that asks for a connection.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Number of its incomplete paths.
    pub attempts: u32,
    /// Memory that these have taken, in bytes.
    pub begun: u64,
    /// The address, or the session, is known.
    pub known: bool,
}

/// The memory that a path takes until it is complete, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    /// All connections of the path.
    pub connections: u64,
    /// The chunks, which it takes when it is completed.
    pub chunks: u64,
}

impl Needs {
    /// Memory of the complete path.
    pub const fn total(&self) -> u64 {
        self.connections.saturating_add(self.chunks)
    }
}

/// The limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota {
    /// Bytes that all paths may take.
    pub bytes: u64,
    /// Most incomplete paths of one address.
    pub attempts: u32,
}

/// Why a path, or one of its connections, is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuotaRefusal {
    /// The path is larger than any may be.
    TooLarge,
    /// The address has begun too many paths.
    Attempts,
    /// Other paths leave too little memory.
    Memory,
    /// The address has taken too much memory for incomplete paths.
    Begun,
    /// All addresses together have taken too much memory for incomplete paths.
    AllBegun,
}

impl QuotaRefusal {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::TooLarge => {
                "one path of this size is more than max_chunk_memory_mib allows: raise it"
            }
            Self::Attempts => "the address is connecting max_attempts_per_address paths already",
            Self::Memory => "other paths leave too little of max_chunk_memory_mib",
            Self::Begun => {
                "incomplete paths of this address already use half of max_chunk_memory_mib"
            }
            Self::AllBegun => "incomplete paths already use most of max_chunk_memory_mib",
        }
    }

    /// The errno to refuse with.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::Attempts => Errno::EBUSY,
            _ => Errno::ENOMEM,
        }
    }
}

impl Quota {
    /// Whether an address may begin a path with these needs.
    ///
    /// # Errors
    ///
    /// [`QuotaRefusal::TooLarge`], [`QuotaRefusal::Attempts`].
    pub fn begin(&self, from: &Standing, needs: &Needs) -> Result<(), QuotaRefusal> {
        if needs.connections > self.begun_by_one() || needs.total() > self.all_of(from) {
            return Err(QuotaRefusal::TooLarge);
        }
        if from.attempts >= self.attempts {
            return Err(QuotaRefusal::Attempts);
        }
        Ok(())
    }

    /// Bytes that the incomplete paths of one address may take.
    const fn begun_by_one(&self) -> u64 {
        self.bytes / 2
    }

    /// Bytes that all paths may take together with one of this address.
    const fn all_of(&self, from: &Standing) -> u64 {
        let reserve = if from.known { 0 } else { self.bytes / 8 };
        // No underflow: an eighth is less than the whole.
        self.bytes.saturating_sub(reserve)
    }

    /// Whether a path may take `bytes` for a connection. The path will take `later` more bytes
    /// until it is complete: if they are not available, it is refused now, while the client can be
    /// told.
    ///
    /// # Errors
    ///
    /// [`QuotaRefusal::Memory`], [`QuotaRefusal::Begun`], [`QuotaRefusal::AllBegun`].
    pub fn connect(
        &self,
        taken: &Taken,
        from: &Standing,
        bytes: u64,
        later: u64,
    ) -> Result<(), QuotaRefusal> {
        self.complete(taken, from, bytes.saturating_add(later))?;
        if from.begun.saturating_add(bytes) > self.begun_by_one() {
            return Err(QuotaRefusal::Begun);
        }
        // No overflow: a quarter is less than the whole.
        let most = self.bytes.saturating_sub(self.bytes / 4);
        if !from.known && taken.begun.saturating_add(bytes) > most {
            return Err(QuotaRefusal::AllBegun);
        }
        Ok(())
    }

    /// Whether a path whose client completes it may take `bytes`.
    ///
    /// # Errors
    ///
    /// [`QuotaRefusal::Memory`].
    pub fn complete(&self, taken: &Taken, from: &Standing, bytes: u64) -> Result<(), QuotaRefusal> {
        if taken.all.saturating_add(bytes) > self.all_of(from) {
            return Err(QuotaRefusal::Memory);
        }
        Ok(())
    }
}

/// Whether a client may begin one more session when there are `count` of at most `max`. The last
/// eighth is for known clients, so that strangers who begin sessions and never complete them do
/// not keep returning clients out.
pub const fn has_room_for_session(count: usize, max: usize, known: bool) -> bool {
    let reserve = if known { 0 } else { max / 8 };
    // No underflow: an eighth is less than the whole.
    count < max.saturating_sub(reserve)
}

/// Whether an address whose last connected path ended `ago_ms` milliseconds ago is still known.
pub const fn is_known(ago_ms: u64) -> bool {
    ago_ms < KNOWN_MS
}
