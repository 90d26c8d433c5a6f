// SPDX-License-Identifier: GPL-2.0

//! REDIRECT: the program at a portal names other addresses.

use ibtrs_proto::bytes::{message, Reader, Writer};

use super::*;
use crate::limits::MAX_ADDRESSES;

/// Bytes of an address.
pub const ADDRESS_LEN: usize = 20;
/// Bytes of REDIRECT before the addresses.
const REDIRECT_LEN: usize = 24;

const FAMILY_V4: u8 = 1;
const FAMILY_V6: u8 = 2;
const FAMILY_GID: u8 = 3;

/// An address and a port number, as in DISCOVER_RSP. The port is not 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Address {
    /// IPv4.
    V4([u8; 4], u16),
    /// IPv6.
    V6([u8; 16], u16),
    /// InfiniBand.
    Gid([u8; 16], u16),
}

impl Address {
    fn encode(&self) -> [u8; ADDRESS_LEN] {
        message(|w| {
            let (family, port) = match self {
                Self::V4(_, port) => (FAMILY_V4, port),
                Self::V6(_, port) => (FAMILY_V6, port),
                Self::Gid(_, port) => (FAMILY_GID, port),
            };
            w.u8(family);
            w.u8(0);
            w.u16(*port);
            match self {
                Self::V4(addr, _) => w.put(addr),
                Self::V6(addr, _) | Self::Gid(addr, _) => w.put(addr),
            }
        })
    }

    fn read(head: &Head, r: &mut Reader<'_>) -> Result<Self, WireError> {
        let [family, _] = r.array().ok_or(head.short())?;
        let port = r.u16().ok_or(head.short())?;
        let addr: [u8; 16] = r.array().ok_or(head.short())?;
        let [a, b, c, d, rest @ ..] = addr;
        match family {
            _ if port == 0 => Err(WireError::Address),
            // Neither 0.0.0.0/8, nor multicast and the reserved addresses behind it.
            FAMILY_V4 if rest == [0; 12] && a != 0 && a < 224 => Ok(Self::V4([a, b, c, d], port)),
            FAMILY_V6 if addr != [0; 16] && a != 0xFF => Ok(Self::V6(addr, port)),
            FAMILY_GID if addr != [0; 16] && a != 0xFF => Ok(Self::Gid(addr, port)),
            _ => Err(WireError::Address),
        }
    }
}

/// REDIRECT: the client is to ask at one of these addresses, for the same portal.
#[derive(Clone, Copy, Debug)]
pub struct Redirect<'a> {
    /// The channel.
    pub channel: u32,
    /// The number of the move, from OPEN.
    pub moves: Seq,
    addresses: &'a [u8],
}

/// Reserved bytes make no difference.
impl PartialEq for Redirect<'_> {
    fn eq(&self, other: &Self) -> bool {
        let same = (self.channel, self.moves) == (other.channel, other.moves);
        same && self.addresses().eq(other.addresses())
    }
}

impl Eq for Redirect<'_> {}

impl<'a> Redirect<'a> {
    /// Writes the record, and returns its length; `None` if it does not fit, or has no addresses or
    /// too many.
    pub fn encode(
        out: &mut [u8],
        channel: u32,
        moves: Seq,
        addresses: &[Address],
    ) -> Option<usize> {
        if addresses.is_empty() || addresses.len() > MAX_ADDRESSES {
            return None;
        }
        let len = REDIRECT_LEN.saturating_add(addresses.len().saturating_mul(ADDRESS_LEN));
        let mut w = Writer::new(out);
        Head::new(TYPE_REDIRECT, channel, moves).write(&mut w, len);
        w.u16(u16::try_from(addresses.len()).ok()?);
        w.zeros(6);
        for address in addresses {
            w.put(&address.encode());
        }
        w.finish()
    }

    pub(crate) fn decode(head: &Head, body: &'a [u8]) -> Result<Self, WireError> {
        head.flags_within(0)?;
        let mut r = Reader::new(body);
        let count = r.u16().ok_or(head.short())?;
        r.skip(6).ok_or(head.short())?;
        if count == 0 || usize::from(count) > MAX_ADDRESSES {
            return Err(WireError::Addresses(count));
        }
        let addresses = r.rest();
        for _ in 0..count {
            Address::read(head, &mut r)?;
        }
        exact(head, r.rest())?;
        Ok(Self {
            channel: head.channel,
            moves: Seq::new(head.number),
            addresses,
        })
    }

    /// The addresses, 1 to [`MAX_ADDRESSES`].
    pub fn addresses(&self) -> impl Iterator<Item = Address> + 'a {
        let head = Head::new(TYPE_REDIRECT, self.channel, self.moves);
        let mut r = Reader::new(self.addresses);
        core::iter::from_fn(move || Address::read(&head, &mut r).ok())
    }
}
