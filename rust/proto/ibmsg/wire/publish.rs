// SPDX-License-Identifier: GPL-2.0

//! What MESSAGE says of publishing: only between kernels that both have it ([`crate::publish`]).
//!
//! All of it has a number of the channel, credits and an acknowledgement as messages of programs have. PUBLISHED is a
//! message; the rest has a content of a fixed length, which is never sent in pieces.

use ibtrs_proto::bytes::{Reader, Writer};
use ibtrs_proto::Errno;

use super::*;
use crate::publish::{From, LogId, Request};

/// The longest content of those with a fixed length.
const MAX_CONTENT: usize = 16;

/// What a message is in publishing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublishKind {
    /// An entry of a log: from the server, as the rest but SUBSCRIBE and UNSUBSCRIBE.
    Published,
    /// The client's program subscribes.
    Subscribe,
    /// It wants no more.
    Unsubscribe,
    /// A subscription begins.
    Subscribed,
    /// Entries were dropped.
    Lost,
    /// A subscription has ended.
    Ended,
}

impl PublishKind {
    pub(crate) const fn to_wire(self) -> u8 {
        match self {
            Self::Published => 3,
            Self::Subscribe => 4,
            Self::Unsubscribe => 5,
            Self::Subscribed => 6,
            Self::Lost => 7,
            Self::Ended => 8,
        }
    }

    pub(crate) const fn from_wire(kind: u8) -> Option<Self> {
        match kind {
            3 => Some(Self::Published),
            4 => Some(Self::Subscribe),
            5 => Some(Self::Unsubscribe),
            6 => Some(Self::Subscribed),
            7 => Some(Self::Lost),
            8 => Some(Self::Ended),
            _ => None,
        }
    }

    /// Bytes of its content; `None`: any number.
    const fn content_len(self) -> Option<u32> {
        match self {
            Self::Published => None,
            Self::Subscribe => Some(16),
            Self::Unsubscribe | Self::Ended => Some(0),
            Self::Subscribed | Self::Lost => Some(8),
        }
    }
}

/// What [`MessageHdr`] and the content say, without the tag. An entry's content is that of the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Publication {
    /// The entry at this position.
    Published(u64),
    /// SUBSCRIBE.
    Subscribe(Request),
    /// UNSUBSCRIBE.
    Unsubscribe,
    /// SUBSCRIBED: the log, and the position of the first entry that comes.
    Subscribed(LogId, u64),
    /// LOST: the position of the first entry, and how many.
    Lost(u64, u64),
    /// ENDED: the position of the entry that would have been next, and the reason, if there is one.
    Ended(u64, Option<Errno>),
}

/// SUBSCRIBE: where to begin.
const FIRST: u8 = 0;
const NEXT: u8 = 1;
const POSITION: u8 = 2;

/// The fields of MESSAGE for a [`Publication`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PublicationFields {
    /// [`MessageHdr::kind`].
    pub kind: PublishKind,
    /// [`MessageHdr::id`].
    pub id: u64,
    /// [`MessageHdr::status`].
    pub status: u16,
    content: [u8; MAX_CONTENT],
}

impl PublicationFields {
    /// The content, which is [`MessageHdr::total`] bytes long. Of PUBLISHED, that is the entry's.
    pub fn content(&self) -> &[u8] {
        // Lossless: u32 to usize.
        let len = self.kind.content_len().unwrap_or(0) as usize;
        self.content.get(..len).unwrap_or(&[])
    }
}

impl Publication {
    /// What to put into MESSAGE.
    pub fn fields(&self) -> PublicationFields {
        let mut content = [0; MAX_CONTENT];
        let mut w = Writer::new(&mut content);
        let (kind, id, status) = match *self {
            Self::Published(position) => (PublishKind::Published, position, 0),
            Self::Subscribe(request) => {
                let (log, begin, position) = match request.from {
                    From::First => (0, FIRST, 0),
                    From::Next => (0, NEXT, 0),
                    From::Position(log, position) => (log.get(), POSITION, position),
                };
                w.u64(log);
                w.u8(begin);
                w.u8(u8::from(request.exact));
                (PublishKind::Subscribe, position, 0)
            }
            Self::Unsubscribe => (PublishKind::Unsubscribe, 0, 0),
            Self::Subscribed(log, position) => {
                w.u64(log.get());
                (PublishKind::Subscribed, position, 0)
            }
            Self::Lost(first, count) => {
                w.u64(count);
                (PublishKind::Lost, first, 0)
            }
            Self::Ended(position, why) => {
                let status = why.map_or(0, |why| u16::try_from(why.get()).unwrap_or(0));
                (PublishKind::Ended, position, status)
            }
        };
        PublicationFields {
            kind,
            id,
            status,
            content,
        }
    }

    /// Reads a message of this kind.
    ///
    /// # Errors
    ///
    /// When the content is not that of the kind.
    pub fn decode(kind: PublishKind, message: &Message<'_>) -> Result<Self, WireError> {
        let (hdr, wrong) = (&message.hdr, WireError::Publication(kind.to_wire()));
        let mut r = Reader::new(message.content);
        Ok(match kind {
            PublishKind::Published => Self::Published(hdr.id),
            PublishKind::Subscribe => {
                let log = LogId::new(r.u64().ok_or(wrong)?);
                let [begin, exact] = r.array().ok_or(wrong)?;
                let from = match (begin, log) {
                    (FIRST, None) => From::First,
                    (NEXT, None) => From::Next,
                    (POSITION, Some(log)) => From::Position(log, hdr.id),
                    _ => return Err(wrong),
                };
                match exact {
                    0 | 1 => Self::Subscribe(Request {
                        from,
                        exact: exact == 1,
                    }),
                    _ => return Err(wrong),
                }
            }
            PublishKind::Unsubscribe => Self::Unsubscribe,
            PublishKind::Subscribed => {
                let log = LogId::new(r.u64().ok_or(wrong)?).ok_or(wrong)?;
                Self::Subscribed(log, hdr.id)
            }
            PublishKind::Lost => Self::Lost(hdr.id, r.u64().ok_or(wrong)?),
            PublishKind::Ended => match hdr.status {
                0 => Self::Ended(hdr.id, None),
                why => Self::Ended(hdr.id, Some(Errno::from_peer(why))),
            },
        })
    }

    /// Whether the header of a message fits its kind: all but an entry has a content of a certain length, in one
    /// piece.
    pub(crate) fn fits(kind: PublishKind, hdr: &MessageHdr, len: usize) -> bool {
        let is_whole = |all: u32| hdr.total == all && u32::try_from(len) == Ok(all);
        kind.content_len().is_none_or(is_whole)
    }
}
