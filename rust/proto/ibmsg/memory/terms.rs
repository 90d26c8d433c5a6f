// SPDX-License-Identifier: GPL-2.0

//! What a side says about its memory when a channel is opened.

/// The most keys, and the most pushes, of [`MemoryTerms`].
pub const MAX_KEYS: u16 = 1024;

/// Memory on a channel: what a side serves. OPEN and ACCEPT carry it; the peer has none if they do not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryTerms {
    keys: u16,
    pushes: u16,
    reads: bool,
    bodies: bool,
}

impl MemoryTerms {
    /// Terms of `keys` keys of this side that the peer may have at once, and of `pushes` records GET that may be
    /// unanswered. `None` if either is 0 or more than [`MAX_KEYS`].
    pub const fn new(keys: u16, pushes: u16) -> Option<Self> {
        match (keys, pushes) {
            (0, _) | (_, 0) => None,
            _ if keys > MAX_KEYS || pushes > MAX_KEYS => None,
            _ => Some(Self {
                keys,
                pushes,
                reads: false,
                bodies: false,
            }),
        }
    }

    /// The same terms of a side that knows what KEY says about RDMA READ, or does not.
    pub const fn with_reads(self, reads: bool) -> Self {
        Self { reads, ..self }
    }

    /// Whether the side knows what KEY says about RDMA READ ([`super::Key::readable`]).
    pub const fn reads(&self) -> bool {
        self.reads
    }

    /// The same terms of a side that takes messages with a body, or does not.
    pub const fn with_bodies(self, bodies: bool) -> Self {
        Self { bodies, ..self }
    }

    /// Whether the side takes messages with a [body](super::BodyRef).
    pub const fn bodies(&self) -> bool {
        self.bodies
    }

    /// Keys: 1 to [`MAX_KEYS`].
    pub const fn keys(&self) -> u16 {
        self.keys
    }

    /// Records GET: 1 to [`MAX_KEYS`].
    pub const fn pushes(&self) -> u16 {
        self.pushes
    }
}
