// SPDX-License-Identifier: GPL-2.0

//! The header of messages: `struct ibmsg_msg`.

use ibmsg_proto::memory::BODY_LEN;
use kernel::prelude::*;

use super::Bytes;

/// Bytes of the header.
pub(crate) const HEADER_LEN: usize = 32;

/// A receipt is wanted.
pub(crate) const F_RECEIPT: u8 = 0x01;
/// The call does not wait for room.
pub(crate) const F_NOWAIT: u8 = 0x02;
/// The message may wait for others, to share their frame.
pub(crate) const F_MORE: u8 = 0x04;
/// The content begins with `struct ibmsg_body`. Of a receipt: it is that of the body.
pub(crate) const F_BODY: u8 = 0x08;
/// The kernel has made this reply.
pub(crate) const F_KERNEL: u8 = 0x80;
/// Of an offer: the other machine has proved that it has a key of the session's name.
pub(crate) const F_AUTHENTICATED: u8 = 0x40;

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Msg,
    Request,
    Reply,
    Receipt,
    Event,
    Offer,
    Published,
}

impl Kind {
    const fn number(self) -> u8 {
        match self {
            Self::Msg => 1,
            Self::Request => 2,
            Self::Reply => 3,
            Self::Receipt => 4,
            Self::Event => 5,
            Self::Offer => 6,
            Self::Published => 8,
        }
    }
}

/// What has happened to a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Connected,
    Closed,
    PathLost,
    PathBack,
    Draining,
    KeyRevoked,
    Subscribed,
    Lost,
    Unsubscribed,
}

impl Event {
    const fn number(self) -> u16 {
        match self {
            Self::Connected => 1,
            Self::Closed => 2,
            Self::PathLost => 3,
            Self::PathBack => 4,
            Self::Draining => 5,
            Self::KeyRevoked => 6,
            Self::Subscribed => 16,
            Self::Lost => 17,
            Self::Unsubscribed => 18,
        }
    }
}

/// The header of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) event: Option<Event>,
    pub(crate) len: u32,
    pub(crate) id: u64,
    pub(crate) tag: u64,
    pub(crate) status: u16,
    pub(crate) timeout_ms: u32,
}

impl Header {
    /// A header of this kind, of a message without content.
    pub(crate) const fn new(kind: Kind) -> Self {
        Self {
            kind,
            flags: 0,
            event: None,
            len: 0,
            id: 0,
            tag: 0,
            status: 0,
            timeout_ms: 0,
        }
    }

    /// The header that a program has written, with `len` bytes behind it.
    ///
    /// # Errors
    ///
    /// [`EINVAL`]
    pub(crate) fn written(bytes: &[u8; HEADER_LEN], len: usize) -> Result<Self> {
        let mut fields = Bytes(bytes);
        let (kind, event) = (fields.u16()?, fields.u16()?);
        let [kind, flags] = kind.to_ne_bytes();
        let said = fields.u32()?;
        let (id, tag) = (fields.u64()?, fields.u64()?);
        let (status, timeout_ms) = (fields.u32()?, fields.u32()?);
        let kind = match kind {
            1 => Kind::Msg,
            2 => Kind::Request,
            3 => Kind::Reply,
            _ => return Err(EINVAL),
        };
        let known = match kind {
            // A reply tells more.
            Kind::Request => F_NOWAIT | F_MORE | F_BODY,
            Kind::Reply => F_NOWAIT | F_RECEIPT | F_MORE,
            _ => F_NOWAIT | F_RECEIPT | F_MORE | F_BODY,
        };
        let is_reply = kind == Kind::Reply;
        // A reply has no time: there is none that could take its place.
        let is_plain = match is_reply {
            true => timeout_ms == 0,
            false => id == 0 && status == 0,
        };
        if flags & F_BODY != 0 && len < BODY_LEN {
            return Err(EINVAL);
        }
        // CAST: Lossless.
        if flags & !known != 0 || event != 0 || said as usize != len || !is_plain || status > 4095 {
            return Err(EINVAL);
        }
        Ok(Self {
            kind,
            flags,
            event: None,
            len: said,
            id,
            tag: if is_reply { 0 } else { tag },
            // Lossless: see above.
            status: status as u16,
            timeout_ms,
        })
    }

    /// The header for a program.
    pub(crate) fn bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let event = self.event.map_or(0, Event::number);
        let mut at = 0;
        let mut put = |field: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + field.len()) {
                place.copy_from_slice(field);
            }
            at += field.len();
        };
        put(&[self.kind.number(), self.flags]);
        put(&event.to_ne_bytes());
        put(&self.len.to_ne_bytes());
        put(&self.id.to_ne_bytes());
        put(&self.tag.to_ne_bytes());
        put(&u32::from(self.status).to_ne_bytes());
        put(&self.timeout_ms.to_ne_bytes());
        bytes
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibmsg_header)]
mod tests {
    use super::*;

    fn written(change: impl FnOnce(&mut [u8; HEADER_LEN])) -> Result<Header> {
        let mut bytes = Header {
            len: 5,
            tag: 7,
            ..Header::new(Kind::Msg)
        }
        .bytes();
        change(&mut bytes);
        Header::written(&bytes, 5)
    }

    #[test]
    fn is_checked() {
        let header = written(|_| {}).map(|header| (header.kind, header.len, header.tag));
        assert_eq!(header, Ok((Kind::Msg, 5, 7)));
        // Kinds, flags, event, length, id and status.
        for (at, value) in [
            (0, 0),
            (0, 4),
            (0, 5),
            (0, 6),
            (0, 255),
            (1, 8),
            (1, 0x80),
            (2, 1),
            (4, 4),
            (4, 6),
            (8, 1),
            (24, 1),
        ] {
            assert_eq!(written(|bytes| bytes[at] = value).err(), Some(EINVAL));
        }
        // A request has no receipt; a reply has an id and a status up to 4095.
        assert!(written(|bytes| bytes[1] = F_RECEIPT | F_NOWAIT | F_MORE).is_ok());
        assert!(written(|bytes| (bytes[0], bytes[1]) = (2, F_RECEIPT)).is_err());
        assert!(written(|bytes| (bytes[0], bytes[1]) = (2, F_NOWAIT | F_MORE)).is_ok());
        assert!(written(|bytes| (bytes[0], bytes[8], bytes[25]) = (3, 9, 0x0f)).is_ok());
        assert!(written(|bytes| (bytes[0], bytes[25]) = (3, 0x10)).is_err());
        assert!(written(|bytes| (bytes[0], bytes[27]) = (3, 0x80)).is_err());
        assert!(written(|bytes| (bytes[0], bytes[28]) = (3, 1)).is_err());
        assert!(written(|bytes| (bytes[0], bytes[28]) = (2, 1)).is_ok());
    }

    #[test]
    fn may_have_a_body() {
        let written = |kind, len| {
            let header = Header {
                flags: F_BODY,
                // CAST: A small number.
                len: len as u32,
                ..Header::new(kind)
            };
            Header::written(&header.bytes(), len).map(|header| header.flags)
        };
        for kind in [Kind::Msg, Kind::Request] {
            assert_eq!(written(kind, BODY_LEN), Ok(F_BODY));
            assert_eq!(written(kind, BODY_LEN - 1), Err(EINVAL));
        }
        assert_eq!(written(Kind::Reply, BODY_LEN), Err(EINVAL));
    }
}
