// SPDX-License-Identifier: GPL-2.0

//! The structures of `ibmsg.h` as bytes.

/// Bytes of a message's header.
pub const HEADER_LEN: usize = 32;
/// The longest message.
pub const MAX_MESSAGE: usize = 65_536;
/// The longest name.
pub const MAX_NAME: usize = 64;
/// The most private data.
pub const MAX_DATA: usize = 256;

/// New files do not block.
#[cfg(feature = "tokio")]
pub(crate) const NONBLOCK: u32 = 1;
/// An offer is refused.
pub(crate) const REJECT: u32 = 2;
/// A portal takes programs of machines that have not proved a key.
pub(crate) const UNAUTHENTICATED: u32 = 4;
/// The program takes messages with a body.
const WANT_BODIES: u32 = 8;

/// A receipt is wanted.
pub const F_RECEIPT: u8 = 0x01;
/// The message may wait for others that follow.
pub const F_MORE: u8 = 0x04;
/// The message has a body elsewhere; of a receipt: it is that of a body.
pub const F_BODY: u8 = 0x08;
/// The other machine has proved a key.
pub const F_AUTHENTICATED: u8 = 0x40;
/// The kernel has made this reply.
pub const F_KERNEL: u8 = 0x80;

/// `enum ibmsg_kind`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A message without an answer.
    Msg,
    /// A request.
    Request,
    /// An answer.
    Reply,
    /// The outcome of a message.
    Receipt,
    /// Something has happened to the channel.
    Event,
    /// A program asks for a channel.
    Offer,
    /// An entry of a log.
    Published,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Msg,
        Self::Request,
        Self::Reply,
        Self::Receipt,
        Self::Event,
        Self::Offer,
        Self::Published,
    ];

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

    fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }
}

/// `enum ibmsg_event`, as far as this crate wants events.
#[cfg(feature = "tokio")]
pub(crate) const EV_CONNECTED: u16 = 1;
/// The last event of a channel.
pub const EV_CLOSED: u16 = 2;
/// A subscription begins.
pub const EV_SUBSCRIBED: u16 = 16;
/// Entries of a log are lost.
pub const EV_LOST: u16 = 17;
/// A subscription has ended.
pub const EV_UNSUBSCRIBED: u16 = 18;

/// `struct ibmsg_msg`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// `IBMSG_F_*`.
    pub flags: u8,
    /// Of an event: which one.
    pub event: u16,
    /// Bytes that follow.
    pub len: u32,
    /// Of a call or an offer; a position in a log; of `EV_CLOSED`: messages that were queued.
    pub id: u64,
    /// The program's own number; of `EV_CLOSED`: messages that were read.
    pub tag: u64,
    /// An errno, or 0.
    pub status: i32,
    /// How long it may take; 0: as long as it likes.
    pub timeout_ms: u32,
}

impl Header {
    /// A header of this kind with nothing behind it.
    pub const fn new(kind: Kind) -> Self {
        Self {
            kind,
            flags: 0,
            event: 0,
            len: 0,
            id: 0,
            tag: 0,
            status: 0,
            timeout_ms: 0,
        }
    }

    /// The header of an answer to a request, with an errno or 0.
    pub const fn reply(id: u64, errno: i32) -> Self {
        let mut header = Self::new(Kind::Reply);
        (header.id, header.status) = (id, errno);
        header
    }

    /// The bytes.
    pub fn bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = self.kind.number();
        bytes[1] = self.flags;
        bytes[2..4].copy_from_slice(&self.event.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.len.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.id.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.tag.to_ne_bytes());
        bytes[24..28].copy_from_slice(&self.status.to_ne_bytes());
        bytes[28..32].copy_from_slice(&self.timeout_ms.to_ne_bytes());
        bytes
    }

    /// Takes a header and what belongs to it from the beginning of `bytes`, with the padding. `None` if they are not
    /// whole.
    pub fn take<'a>(bytes: &mut &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (head, rest) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let header = Self {
            kind: Kind::of(head[0])?,
            flags: head[1],
            event: u16::from_ne_bytes([head[2], head[3]]),
            len: u32::from_ne_bytes(*head[4..].first_chunk()?),
            id: u64::from_ne_bytes(*head[8..].first_chunk()?),
            tag: u64::from_ne_bytes(*head[16..].first_chunk()?),
            status: i32::from_ne_bytes(*head[24..].first_chunk()?),
            timeout_ms: u32::from_ne_bytes(*head[28..].first_chunk()?),
        };
        let len = usize::try_from(header.len).ok()?;
        let (body, after) = rest.split_at_checked(len)?;
        let padding = len.next_multiple_of(8) - len;
        *bytes = after.get(padding..).unwrap_or(&[]);
        Some((header, body))
    }
}

/// `struct ibmsg_opts`: the terms of one end of a channel. 0 is the default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Terms {
    /// Messages that may wait for this program.
    pub recv_msgs: u32,
    /// Bytes that may wait for it; each message costs 64 more.
    pub recv_bytes: u32,
    /// The longest message for it.
    pub max_message: u32,
    /// Requests that it may have to answer.
    pub recv_calls: u32,
    /// Messages of this program that the other kernel has not acknowledged.
    pub send_msgs: u32,
    /// Bytes of those; each message costs 64 more.
    pub send_bytes: u32,
    /// Of messages that name no time.
    pub timeout_ms: u32,
    /// This program takes messages with a [body](crate::body); others cannot be sent any. A kernel module that is older
    /// than bodies fails with `EINVAL`.
    pub bodies: bool,
}

/// Builds a structure field by field.
pub(crate) struct Fields(Vec<u8>);

impl Fields {
    /// The size comes first.
    pub(crate) fn new() -> Self {
        Self(vec![0; 4])
    }

    pub(crate) fn u32(mut self, field: u32) -> Self {
        self.0.extend(field.to_ne_bytes());
        self
    }

    pub(crate) fn u64(mut self, field: u64) -> Self {
        self.0.extend(field.to_ne_bytes());
        self
    }

    pub(crate) fn terms(self, terms: &Terms) -> Self {
        [
            terms.recv_msgs,
            terms.recv_bytes,
            terms.max_message,
            terms.recv_calls,
            terms.send_msgs,
            terms.send_bytes,
            terms.timeout_ms,
            if terms.bodies { WANT_BODIES } else { 0 },
        ]
        .into_iter()
        .fold(self, Self::u32)
    }

    /// A field of `len` bytes, of which `bytes` are the first.
    pub(crate) fn bytes(mut self, bytes: &[u8], len: usize) -> Self {
        let end = self.0.len() + len;
        self.0.extend(bytes.iter().take(len));
        self.0.resize(end, 0);
        self
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        let size = (self.0.len() as u32).to_ne_bytes();
        self.0[..4].copy_from_slice(&size);
        self.0
    }
}

/// Whether a name is one that a portal may have.
pub fn is_name(name: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_:@+.".contains(&byte);
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(is_known)
        && !name.starts_with(['-', '.'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers() {
        let header = Header {
            kind: Kind::Reply,
            flags: F_KERNEL,
            event: 3,
            len: 5,
            id: 1 << 40,
            tag: 7,
            status: -1,
            timeout_ms: 9,
        };
        let mut bytes = header.bytes().to_vec();
        bytes.extend(b"hello\0\0\0");
        bytes.extend(Header::new(Kind::Event).bytes());
        let mut rest = &bytes[..];
        assert_eq!(Header::take(&mut rest), Some((header, &b"hello"[..])));
        assert_eq!(
            Header::take(&mut rest),
            Some((Header::new(Kind::Event), &[][..]))
        );
        assert!(rest.is_empty() && Header::take(&mut rest).is_none());
        // Cut off anywhere; the last one has no padding.
        for len in 0..37 {
            assert_eq!(Header::take(&mut &bytes[..len]), None);
        }
        assert!(Header::take(&mut &bytes[..37]).is_some());
        for kind in [0, 7, 9, 255] {
            bytes[0] = kind;
            assert_eq!(Header::take(&mut &bytes[..]), None);
        }
    }

    #[test]
    fn names() {
        for name in ["a", "kv", "a-_:@+.9", &"x".repeat(64)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "-a", ".a", "a b", "a/b", "\u{e4}", &"x".repeat(65)] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn structures_say_their_size() {
        let bytes = Fields::new()
            .u32(1)
            .u64(2)
            .terms(&Terms::default())
            .bytes(b"ab", 4)
            .bytes(b"abcdef", 3)
            .finish();
        assert_eq!(bytes.len(), 4 + 4 + 8 + 32 + 4 + 3);
        assert_eq!(bytes[..4], 55u32.to_ne_bytes());
        assert_eq!(bytes[48..], *b"ab\0\0abc");
    }
}
