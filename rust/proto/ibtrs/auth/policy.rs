// SPDX-License-Identifier: GPL-2.0

//! Whether a path authenticates, and how.

use super::AuthError;

/// Length of the nonce in an acceptance, in bytes.
pub const ACCEPT_NONCE_LEN: usize = 12;

/// The cryptography of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Suite {
    /// HMAC-SHA256 alone.
    Hmac = 1,
    /// HMAC-SHA256, and X25519 for path keys that do not depend on the shared key alone.
    X25519 = 2,
}

impl Suite {
    /// The suite of that number on the wire.
    pub const fn from_wire(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Hmac),
            2 => Some(Self::X25519),
            _ => None,
        }
    }

    /// Its number on the wire.
    pub const fn wire(self) -> u8 {
        match self {
            Self::Hmac => 1,
            Self::X25519 => 2,
        }
    }

    const fn bit(self) -> u8 {
        match self {
            Self::Hmac => 1,
            Self::X25519 => 2,
        }
    }
}

/// A set of suites: one bit each on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Suites(u8);

impl Suites {
    /// No suite: the peer does not authenticate.
    pub const NONE: Self = Self(0);
    /// All that there are here.
    pub const ALL: Self = Self::NONE.with(Suite::Hmac).with(Suite::X25519);

    /// The set and `suite`.
    #[must_use]
    pub const fn with(self, suite: Suite) -> Self {
        Self(self.0 | suite.bit())
    }

    /// Reads a byte of the wire; suites that are not known here are left out.
    pub const fn from_wire(byte: u8) -> Self {
        Self(byte & Self::ALL.0)
    }

    /// The byte for the wire.
    pub const fn wire(self) -> u8 {
        self.0
    }

    /// Whether `suite` is in the set.
    pub const fn has(self, suite: Suite) -> bool {
        self.0 & suite.bit() != 0
    }

    /// The strongest suite that is in both sets.
    pub fn strongest(self, other: Self) -> Option<Suite> {
        let both = Self(self.0 & other.0);
        [Suite::X25519, Suite::Hmac]
            .into_iter()
            .find(|&suite| both.has(suite))
    }
}

/// What one end asks of the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// It does not authenticate, whatever the peer offers.
    #[default]
    None,
    /// It authenticates with those that do. Those on the wire between can take the offer out of
    /// a request: only [`Policy::Required`] keeps anybody out.
    Optional,
    /// It talks to nobody else.
    Required,
}

impl Policy {
    /// What the request of a client offers that has these suites, and a key if `has_key`.
    ///
    /// # Errors
    ///
    /// [`AuthError::NoKey`] if it must authenticate and has no key.
    pub const fn offer(self, suites: Suites, has_key: bool) -> Result<Suites, AuthError> {
        match (self, has_key) {
            (Self::None, _) | (Self::Optional, false) => Ok(Suites::NONE),
            (Self::Required, false) => Err(AuthError::NoKey),
            (Self::Optional | Self::Required, true) => Ok(suites),
        }
    }

    /// What a server that has these suites, and keys if `has_key`, chooses of what a request
    /// offers; nothing for a client that goes on without.
    ///
    /// # Errors
    ///
    /// [`AuthError::Required`] or [`AuthError::NoKey`]: the request is to be rejected.
    pub fn choose(
        self,
        offered: Suites,
        suites: Suites,
        has_key: bool,
    ) -> Result<Option<Suite>, AuthError> {
        let common = suites.strongest(offered);
        match (self, common) {
            (Self::None, _) | (Self::Optional, None) => Ok(None),
            (Self::Required, None) => Err(AuthError::Required),
            (Self::Optional, Some(_)) if !has_key => Ok(None),
            (Self::Required, Some(_)) if !has_key => Err(AuthError::NoKey),
            (Self::Optional | Self::Required, Some(suite)) => Ok(Some(suite)),
        }
    }

    /// What a client does whose request offered `offered` and was accepted with suite number
    /// `chosen`, zero if with none: the suite to authenticate with, nothing to go on without.
    ///
    /// # Errors
    ///
    /// [`AuthError::Required`] if the server does not authenticate and must, [`AuthError::Suite`]
    /// for a suite that was not offered.
    pub fn accepted(self, offered: Suites, chosen: u8) -> Result<Option<Suite>, AuthError> {
        match (Suite::from_wire(chosen), chosen) {
            (Some(suite), _) if offered.has(suite) => Ok(Some(suite)),
            (None, 0) if self == Self::Required => Err(AuthError::Required),
            (None, 0) => Ok(None),
            _ => Err(AuthError::Suite(chosen)),
        }
    }
}
