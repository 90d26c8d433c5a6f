// SPDX-License-Identifier: GPL-2.0

//! Invalidation of a request's key, after which the peer can no longer use it
//! (Documentation/protocol.md, "Keys").
//!
//! As long as the key of a read is valid, the server can write to the memory of the read. So the
//! read ends only when the client's own device vouches that the key is invalid: by the completion
//! of a local invalidation, or by a received SEND WITH INV, whose completion names the key. The
//! server's own word proves nothing: the server may lie.
//!
//! [`Revoked`] belongs to a connection and holds the keys that the peer invalidated there, [`Key`]
//! belongs to a request.

/// A peer invalidated a key that it had no right to invalidate: the path fails.
///
/// The key may be that of another request, which cannot be trusted either.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bogus {
    /// The key that was invalidated.
    pub key: u32,
}

/// The key that the peer invalidated on a connection since its last answer there.
///
/// Servers post the invalidation and the answer as one chain, and completions keep that order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Revoked(Option<u32>);

impl Revoked {
    /// No key was invalidated.
    pub const NONE: Self = Self(None);

    const SOME: u64 = 1 << 32;

    /// The value as a number for an atomic word; the inverse of [`Revoked::from_bits`].
    #[inline]
    pub const fn to_bits(self) -> u64 {
        match self.0 {
            // Lossless: u32 to u64.
            Some(key) => Self::SOME | key as u64,
            None => 0,
        }
    }

    /// The value of a number from [`Revoked::to_bits`].
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        // CAST: Keeps the 32 bits of the key.
        Self(if bits & Self::SOME != 0 {
            Some(bits as u32)
        } else {
            None
        })
    }

    /// Notes that the peer has invalidated `key`.
    ///
    /// # Errors
    ///
    /// [`Bogus`] if no answer has followed the last invalidation.
    pub const fn add(self, key: u32) -> Result<Self, Bogus> {
        match self.0 {
            None => Ok(Self(Some(key))),
            Some(_) => Err(Bogus { key }),
        }
    }

    /// Returns the invalidations, if they came after a request was built. Message `at` of the
    /// connection has invalidated the key; `before` messages had arrived when the request was
    /// built.
    ///
    /// Keys are few and are reused. A server could invalidate the dead key that a later request
    /// will have, and withhold the answer until the key is valid.
    ///
    /// # Errors
    ///
    /// [`Bogus`] if the key was invalidated before the request was built: it was not the request's.
    #[inline]
    pub const fn since(self, at: u64, before: u64) -> Result<Self, Bogus> {
        match self.0 {
            Some(key) if at <= before => Err(Bogus { key }),
            _ => Ok(self),
        }
    }
}

/// The sides that can still use the key of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// Nobody: the request gave no key away, or the key is invalid.
    Dead,
    /// The peer.
    Live,
    /// Perhaps the peer: a local invalidation is under way. Its completion belongs to this request,
    /// which keeps its slot until then, even if the peer invalidates the key first.
    Dying,
}

/// The next state of a key, and what to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Step {
    /// The state from now on.
    pub next: Key,
    /// Post a local invalidation, whose completion belongs to the request.
    pub invalidate: bool,
}

impl Key {
    const fn stay(self) -> Step {
        Step {
            next: self,
            invalidate: false,
        }
    }

    /// Takes the key away from the peer.
    pub const fn revoke(self) -> Step {
        match self {
            Self::Live => Step {
                next: Self::Dying,
                invalidate: true,
            },
            Self::Dead | Self::Dying => self.stay(),
        }
    }

    /// Handles the answer to the request. `key` is the key of its region, `revoked` the
    /// invalidations by the peer on that connection since its last answer there.
    ///
    /// # Errors
    ///
    /// [`Bogus`] if the peer invalidated another key.
    #[inline]
    pub const fn answered(self, key: u32, revoked: Revoked) -> Result<Step, Bogus> {
        match (self, revoked.0) {
            (_, None) => Ok(self.revoke()),
            (Self::Live, Some(dead)) if dead == key => Ok(Self::Dead.stay()),
            // Both sides invalidated the key, or there was none; both are harmless.
            (_, Some(dead)) if dead == key => Ok(self.stay()),
            (_, Some(dead)) => Err(Bogus { key: dead }),
        }
    }

    /// Handles the completion of the local invalidation.
    pub const fn invalidated(self) -> Self {
        match self {
            Self::Dying | Self::Dead => Self::Dead,
            // No invalidation was posted for the key.
            Self::Live => Self::Live,
        }
    }

    /// Whether the key is unusable and no completion is on its way to the request.
    #[inline]
    pub const fn is_dead(self) -> bool {
        matches!(self, Self::Dead)
    }
}
