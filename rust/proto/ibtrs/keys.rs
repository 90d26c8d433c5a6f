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

/// A peer invalidated a key that it had no business with: give the path up.
///
/// The key may be that of another request, which is therefore not to be trusted either.
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
    /// Nothing was invalidated.
    pub const NONE: Self = Self(None);

    const SOME: u64 = 1 << 32;

    /// As a number for an atomic word; the inverse of [`Revoked::from_bits`].
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
        // The cast keeps the 32 bits of the key.
        Self(if bits & Self::SOME != 0 {
            Some(bits as u32)
        } else {
            None
        })
    }

    /// The peer invalidated `key`.
    ///
    /// # Errors
    ///
    /// When no answer has followed the last one.
    pub const fn add(self, key: u32) -> Result<Self, Bogus> {
        match self.0 {
            None => Ok(Self(Some(key))),
            Some(_) => Err(Bogus { key }),
        }
    }

    /// The invalidations since a request was made: by message `at` of the connection, on which
    /// `before` messages had arrived until then.
    ///
    /// Keys are few and come again. A server could invalidate the dead key that a later request
    /// will have, and keep the answer until the key is valid.
    ///
    /// # Errors
    ///
    /// When the key was invalidated before the request was made: it was not the request's.
    #[inline]
    pub const fn since(self, at: u64, before: u64) -> Result<Self, Bogus> {
        match self.0 {
            Some(key) if at <= before => Err(Bogus { key }),
            _ => Ok(self),
        }
    }
}

/// The use that can still be made of a request's key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// None: the request gave no key away, or the key is invalid.
    Dead,
    /// The peer.
    Live,
    /// Perhaps the peer: a local invalidation is under way. Its completion is this request's, which
    /// keeps its slot until then, even if the peer invalidates the key first.
    Dying,
}

/// The consequence for a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Step {
    /// The state from now on.
    pub next: Key,
    /// Post a local invalidation, which reports to the request.
    pub invalidate: bool,
}

impl Key {
    const fn stay(self) -> Step {
        Step {
            next: self,
            invalidate: false,
        }
    }

    /// The peer shall not use the key any more.
    pub const fn revoke(self) -> Step {
        match self {
            Self::Live => Step {
                next: Self::Dying,
                invalidate: true,
            },
            Self::Dead | Self::Dying => self.stay(),
        }
    }

    /// The request was answered. `key` is the key of its region, `revoked` the invalidations by the
    /// peer on that connection since its last answer there.
    ///
    /// # Errors
    ///
    /// When the peer invalidated something else.
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

    /// The local invalidation is complete.
    pub const fn invalidated(self) -> Self {
        match self {
            Self::Dying | Self::Dead => Self::Dead,
            // Nothing was posted for it.
            Self::Live => Self::Live,
        }
    }

    /// Whether the key is unusable and no completion is on its way to the request.
    #[inline]
    pub const fn is_dead(self) -> bool {
        matches!(self, Self::Dead)
    }
}
