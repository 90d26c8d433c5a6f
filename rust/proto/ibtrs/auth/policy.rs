// SPDX-License-Identifier: GPL-2.0

//! Decides whether a path authenticates, and with which suite.

use super::AuthError;

/// The cryptography of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Suite {
    /// HMAC-SHA256.
    HmacSha256 = 1,
    /// HMAC-SHA256 with a secret from an X25519 key exchange. A key that becomes known later makes
    /// no proof for a path that this suite has authenticated.
    X25519 = 2,
}

impl Suite {
    /// The suite with this number on the wire.
    pub const fn from_wire(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::HmacSha256),
            2 => Some(Self::X25519),
            _ => None,
        }
    }

    /// The suite's number on the wire.
    pub const fn wire(self) -> u8 {
        match self {
            Self::HmacSha256 => 1,
            Self::X25519 => 2,
        }
    }

    /// The suite's name for operators.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HmacSha256 => "hmac",
            Self::X25519 => "x25519",
        }
    }

    const fn bit(self) -> u8 {
        match self {
            Self::HmacSha256 => 1,
            Self::X25519 => 2,
        }
    }
}

/// A set of suites: bit 0 for suite 1, and so on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Suites(u8);

impl Suites {
    /// No suite: the peer does not authenticate.
    pub const NONE: Self = Self(0);
    /// The suites that this version supports.
    pub const ALL: Self = Self(Suite::HmacSha256.bit() | Suite::X25519.bit());

    /// One suite alone.
    pub const fn only(suite: Suite) -> Self {
        Self(suite.bit())
    }

    /// Parses the value of a module parameter; `None` for any other text.
    pub const fn parse(text: &[u8]) -> Option<Self> {
        match text {
            b"any" => Some(Self::ALL),
            b"x25519" => Some(Self::only(Suite::X25519)),
            b"hmac" => Some(Self::only(Suite::HmacSha256)),
            _ => None,
        }
    }

    /// The text of a set, as [`Suites::parse`] accepts it; empty for [`Suites::NONE`].
    pub const fn as_str(self) -> &'static str {
        match self.strongest() {
            _ if self.0 == Self::ALL.0 => "any",
            Some(suite) => suite.as_str(),
            None => "",
        }
    }

    /// Decodes the byte on the wire; unknown suites are dropped.
    pub const fn from_wire(byte: u8) -> Self {
        Self(byte & Self::ALL.0)
    }

    /// The byte for the wire.
    pub const fn wire(self) -> u8 {
        self.0
    }

    /// Whether the set contains `suite`.
    pub const fn has(self, suite: Suite) -> bool {
        self.0 & suite.bit() != 0
    }

    /// The suites that both sets contain.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The strongest suite of the set.
    pub const fn strongest(self) -> Option<Suite> {
        if self.has(Suite::X25519) {
            Some(Suite::X25519)
        } else if self.has(Suite::HmacSha256) {
            Some(Suite::HmacSha256)
        } else {
            None
        }
    }
}

/// The setting of one side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// The side does not authenticate.
    #[default]
    None,
    /// The side authenticates with peers that do. An attacker who can change packets can remove the
    /// offer from a request: only [`Policy::Required`] keeps such an attacker out.
    Optional,
    /// The side refuses peers that do not authenticate.
    Required,
}

/// The operator's setting on one side, from which the policy of each path follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Setting {
    /// [`Policy::Required`] if there is a key, otherwise [`Policy::None`]. A session that began
    /// without authentication goes on without it.
    #[default]
    Auto,
    /// The same policy for every path.
    Fixed(Policy),
}

impl Setting {
    /// Parses the value of a module parameter; `None` for any other text.
    pub const fn parse(text: &[u8]) -> Option<Self> {
        match text {
            b"auto" => Some(Self::Auto),
            b"none" => Some(Self::Fixed(Policy::None)),
            b"optional" => Some(Self::Fixed(Policy::Optional)),
            b"required" => Some(Self::Fixed(Policy::Required)),
            _ => None,
        }
    }

    /// The text of the setting, as [`Setting::parse`] accepts it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Fixed(Policy::None) => "none",
            Self::Fixed(Policy::Optional) => "optional",
            Self::Fixed(Policy::Required) => "required",
        }
    }

    /// The policy for a path of `session`; `has_key` says whether the side has a key.
    pub const fn policy(self, session: Session, has_key: bool) -> Policy {
        match (self, session) {
            (Self::Fixed(policy), _) => policy,
            (Self::Auto, Session::Plain) => Policy::None,
            (Self::Auto, Session::Authenticated) => Policy::Required,
            (Self::Auto, Session::New) if has_key => Policy::Required,
            (Self::Auto, Session::New) => Policy::None,
        }
    }
}

/// The session of a path, as the deciding side knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Session {
    /// The path is the first. On the client: no path of the session is connected, and none was
    /// ever authenticated.
    New,
    /// The session has paths, none of them authenticated.
    Plain,
    /// An authenticated path began the session, which stays authenticated until it is closed.
    Authenticated,
}

impl Policy {
    /// The policy for a path of `session`.
    const fn within(self, session: Session) -> Result<Self, AuthError> {
        match (session, self) {
            (Session::New, _) => Ok(self),
            (Session::Authenticated, _) => Ok(Self::Required),
            (Session::Plain, Self::Required) => Err(AuthError::Mixed),
            (Session::Plain, Self::None | Self::Optional) => Ok(Self::None),
        }
    }

    /// The suites that a client offers, of those that its operator allows; `has_key` says whether
    /// it has a key.
    ///
    /// # Errors
    ///
    /// [`AuthError::NoKey`] or [`AuthError::Mixed`]: the client must not connect.
    pub fn offer(
        self,
        session: Session,
        allowed: Suites,
        has_key: bool,
    ) -> Result<Suites, AuthError> {
        match (self.within(session)?, has_key) {
            (Self::None, _) | (Self::Optional, false) => Ok(Suites::NONE),
            (Self::Required, false) => Err(AuthError::NoKey),
            (Self::Optional | Self::Required, true) => Ok(allowed),
        }
    }

    /// The suite that a server chooses: the strongest of those that a request offers and its
    /// operator allows; `None` to go on without authentication. `has_keys` says whether the server
    /// has keys.
    ///
    /// # Errors
    ///
    /// [`AuthError::Required`], [`AuthError::NoKey`], [`AuthError::NoSuite`] or
    /// [`AuthError::Mixed`]: the server rejects the request. A client that could authenticate, but
    /// not as the operator wants, does not get in without authentication either.
    pub fn choose(
        self,
        session: Session,
        offered: Suites,
        allowed: Suites,
        has_keys: bool,
    ) -> Result<Option<Suite>, AuthError> {
        match (self.within(session)?, offered.strongest()) {
            (Self::None, _) | (Self::Optional, None) => Ok(None),
            (Self::Required, None) => Err(AuthError::Required),
            (Self::Optional, Some(_)) if !has_keys => Ok(None),
            (Self::Required, Some(_)) if !has_keys => Err(AuthError::NoKey),
            (Self::Optional | Self::Required, Some(_)) => match offered.and(allowed).strongest() {
                None => Err(AuthError::NoSuite),
                chosen => Ok(chosen),
            },
        }
    }

    /// The suite with which a client goes on after it offered `offered` and the server chose number
    /// `chosen`; `None` to go on without authentication.
    ///
    /// # Errors
    ///
    /// [`AuthError::Required`] for a server that must authenticate but does not,
    /// [`AuthError::Suite`] for a suite that was not offered.
    pub fn accepted(
        self,
        session: Session,
        offered: Suites,
        chosen: u8,
    ) -> Result<Option<Suite>, AuthError> {
        match Suite::from_wire(chosen) {
            Some(suite) if offered.has(suite) => Ok(Some(suite)),
            None if chosen == 0 => match self.within(session)? {
                Self::Required => Err(AuthError::Required),
                Self::None | Self::Optional => Ok(None),
            },
            _ => Err(AuthError::Suite(chosen)),
        }
    }
}
