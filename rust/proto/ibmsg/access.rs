// SPDX-License-Identifier: GPL-2.0

//! Who may use portals and sessions, by the operator's rules.

use ibtrs_proto::text::{self, TextError};
use ibtrs_proto::Errno;

use crate::refused::Refused;
use crate::wire::PortalName;

/// An entry of an operator's list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry<T> {
    /// `any`: everyone.
    Any,
    /// One user, group or host.
    One(T),
}

/// Why a list is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListError {
    /// The text is not UTF-8, or has a control character.
    NotText,
    /// A word is neither `any` nor the decimal id of a user or group.
    Id,
    /// A word is neither `any` nor the name of a session that can carry messages.
    Host,
}

impl ListError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::NotText => TextError::NotText.as_str(),
            Self::Id => "neither any nor a numeric id below 4294967295",
            Self::Host => "neither any nor the name of a session that can carry messages",
        }
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        Errno::EINVAL
    }
}

/// The words of a text, separated by blanks, newlines or commas.
fn words(bytes: &[u8]) -> Result<impl Iterator<Item = &str>, ListError> {
    let text = text::line(bytes).map_err(|_| ListError::NotText)?;
    let words = text.split(|c| text::is_blank(c) || c == ',');
    Ok(words.filter(|word| !word.is_empty()))
}

/// The ids of users or groups in a text, as they are outside of all user namespaces.
///
/// # Errors
///
/// [`ListError::NotText`]. The iterator returns [`ListError::Id`] in place of a word that is no id.
pub fn ids(
    bytes: &[u8],
) -> Result<impl Iterator<Item = Result<Entry<u32>, ListError>> + '_, ListError> {
    Ok(words(bytes)?.map(|word| match word {
        "any" => Ok(Entry::Any),
        // The greatest number stands for no id.
        _ => match text::decimal(word.as_bytes(), 0, 0xFFFF_FFFE).map(u32::try_from) {
            Ok(Ok(id)) => Ok(Entry::One(id)),
            _ => Err(ListError::Id),
        },
    }))
}

/// The names of hosts in a text.
///
/// # Errors
///
/// [`ListError::NotText`]. The iterator returns [`ListError::Host`] in place of a word that is no name.
pub fn hosts(
    bytes: &[u8],
) -> Result<impl Iterator<Item = Result<Entry<PortalName<'_>>, ListError>>, ListError> {
    Ok(words(bytes)?.map(|word| match word {
        "any" => Ok(Entry::Any),
        _ => match PortalName::new(word.as_bytes()) {
            Ok(name) => Ok(Entry::One(name)),
            Err(_) => Err(ListError::Host),
        },
    }))
}

/// The machine whose program asks a portal for a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// This machine.
    Local,
    /// A machine that has proved that it has a key of its session's name.
    Authenticated,
    /// A machine that has proved nothing, not even the name of its session.
    Unauthenticated,
}

/// What the operator's rule for a portal says about a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The portal admits the name of the peer's session.
    pub admits_name: bool,
    /// The portal admits peers that have proved nothing.
    pub admits_unauthenticated: bool,
}

/// Why a peer may not use a portal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It has proved nothing, and the portal's program does not ask for such peers.
    Unauthenticated,
    /// It has proved nothing, and the operator does not admit such peers.
    UnauthenticatedByRule,
    /// The operator does not admit its session.
    Host,
}

impl Refusal {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Unauthenticated => {
                "the client has not authenticated, and the portal was bound without IBMSG_UNAUTHENTICATED"
            }
            Self::UnauthenticatedByRule => {
                "the client has not authenticated, and allow_unauthenticated is 0"
            }
            Self::Host => "its session is not in allowed_hosts",
        }
    }

    /// The errno for the peer.
    pub const fn errno(&self) -> Errno {
        Errno::EACCES
    }
}

/// Whether a peer may use a portal. `asks`: the portal's program asks for peers that have proved nothing.
/// Without a rule, the operator leaves it to the program.
///
/// # Errors
///
/// Why not.
pub const fn may_use(peer: Peer, asks: bool, rule: Option<Rule>) -> Result<(), Refusal> {
    match (peer, rule) {
        (Peer::Unauthenticated, _) if !asks => Err(Refusal::Unauthenticated),
        (Peer::Unauthenticated, Some(rule)) if !rule.admits_unauthenticated => {
            Err(Refusal::UnauthenticatedByRule)
        }
        (Peer::Local | Peer::Authenticated, Some(rule)) if !rule.admits_name => Err(Refusal::Host),
        _ => Ok(()),
    }
}

/// The channels of a portal, session or host, the memory that they may take, and that which programs publish on them, with
/// their limits, and the channels that were refused.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Account {
    channels: u32,
    bytes: u64,
    published: u64,
    refused: Refused,
    /// The most channels; 0: any number.
    pub max_channels: u32,
    /// The most bytes; 0: any number.
    pub max_bytes: u64,
    /// The most bytes that are published; 0: any number.
    pub max_published: u64,
}

impl Account {
    /// Creates limits without channels.
    pub const fn new(max_channels: u32, max_bytes: u64) -> Self {
        Self {
            channels: 0,
            bytes: 0,
            published: 0,
            refused: Refused::new(),
            max_channels,
            max_bytes,
            max_published: 0,
        }
    }

    /// Adds a channel whose messages may take `bytes`. Returns whether the limits allow it.
    #[must_use]
    pub const fn add(&mut self, bytes: u64) -> bool {
        let (channels, bytes) = (
            self.channels.saturating_add(1),
            self.bytes.saturating_add(bytes),
        );
        let fits = (self.max_channels == 0 || channels <= self.max_channels)
            && (self.max_bytes == 0 || bytes <= self.max_bytes);
        if fits {
            (self.channels, self.bytes) = (channels, bytes);
        }
        fits
    }

    /// A channel that was added with these `bytes` is gone.
    pub const fn remove(&mut self, bytes: u64) {
        self.channels = self.channels.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Adds memory that a program publishes on one of the channels. Returns whether the limit allows it.
    #[must_use]
    pub const fn publish(&mut self, bytes: u64) -> bool {
        let published = self.published.saturating_add(bytes);
        let fits = self.max_published == 0 || published <= self.max_published;
        if fits {
            self.published = published;
        }
        fits
    }

    /// Memory that was added is taken back.
    pub const fn unpublish(&mut self, bytes: u64) {
        self.published = self.published.saturating_sub(bytes);
    }

    /// Bytes that are published.
    pub const fn published(&self) -> u64 {
        self.published
    }

    /// A channel was refused, for one of [`reasons`](crate::refused::reasons).
    pub fn refuse(&mut self, reason: usize) {
        self.refused.add(reason);
    }

    /// Channels that were refused.
    pub const fn refused(&self) -> &Refused {
        &self.refused
    }

    /// How many channels there are, and the bytes of all of them.
    pub const fn used(&self) -> (u32, u64) {
        (self.channels, self.bytes)
    }
}
