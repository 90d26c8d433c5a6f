// SPDX-License-Identifier: GPL-2.0

//! Prefixes of addresses, as operators write them: `10.0.1.0/24`, `fe80::/10`, `any`.
//!
//! A GID is written and compared as an IPv6 address. An IPv6 address or a GID with an IPv4 address
//! in it (`::ffff:10.0.1.2`) counts as that IPv4 address: a server that listens on IPv6 or on GIDs
//! sees clients that way.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ibtrs_proto::addr::Addr;
use ibtrs_proto::text;
use ibtrs_proto::Errno;

/// Most prefixes of a list; as text, they fit in an attribute of configfs.
pub const MAX_PREFIXES: usize = 64;

/// Why a list of prefixes is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrefixError {
    /// The text is not UTF-8, or has a control character.
    NotText,
    /// A word is neither `any` nor begins with an address.
    Address,
    /// No number follows the slash, or a number larger than the bits of the address.
    Length,
    /// The address has bits set behind the prefix. The operator meant this prefix without them, or
    /// the address alone.
    HostBits(Prefix),
    /// More than [`MAX_PREFIXES`].
    TooMany,
}

impl PrefixError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::NotText => "prefix is not printable text",
            Self::Address => "prefix is neither any nor an IPv4 or IPv6 address",
            Self::Length => "prefix length is not a number, or longer than the address",
            Self::HostBits(_) => {
                "prefix has host bits set: 10.0.1.0/24 is a prefix, 10.0.1.2/24 is not"
            }
            Self::TooMany => "more than 64 prefixes",
        }
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::TooMany => Errno::E2BIG,
            _ => Errno::EINVAL,
        }
    }
}

/// A set of addresses: those that begin with the same bits, or any.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Prefix {
    /// All addresses.
    Any,
    /// IPv4: the first bits, with zeroes behind them, and their number, at most 32.
    V4(u32, u8),
    /// IPv6 and GIDs: the first bits, with zeroes behind them, and their number, at most 128.
    V6(u128, u8),
}

impl Prefix {
    /// Parses one prefix.
    ///
    /// # Errors
    ///
    /// See [`PrefixError`].
    pub fn parse(word: &str) -> Result<Self, PrefixError> {
        if word == "any" {
            return Ok(Self::Any);
        }
        let (addr, bits) = match word.split_once('/') {
            Some((addr, bits)) => (addr, Some(bits)),
            None => (word, None),
        };
        match addr.parse() {
            Ok(IpAddr::V4(v4)) => Self::v4(v4, length(bits, 32)?),
            Ok(IpAddr::V6(v6)) => {
                let bits = length(bits, 128)?;
                match v6.to_ipv4_mapped() {
                    // At least as long as ::ffff:0:0/96, which all IPv4-mapped addresses begin
                    // with.
                    Some(v4) if bits >= 96 => Self::v4(v4, bits.saturating_sub(96)),
                    _ => Self::v6(v6, bits),
                }
            }
            Err(_) => Err(PrefixError::Address),
        }
    }

    fn v4(addr: Ipv4Addr, bits: u8) -> Result<Self, PrefixError> {
        let first = addr.to_bits() & mask(bits, 32) as u32;
        Self::V4(first, bits).unless_host_bits(first != addr.to_bits())
    }

    fn v6(addr: Ipv6Addr, bits: u8) -> Result<Self, PrefixError> {
        let first = addr.to_bits() & mask(bits, 128);
        Self::V6(first, bits).unless_host_bits(first != addr.to_bits())
    }

    const fn unless_host_bits(self, has_some: bool) -> Result<Self, PrefixError> {
        match has_some {
            true => Err(PrefixError::HostBits(self)),
            false => Ok(self),
        }
    }

    /// Whether the set contains the address. The scope of an address does not count.
    pub fn contains(&self, addr: &Addr) -> bool {
        match (self, Plain::of(addr)) {
            (Self::Any, _) => true,
            (Self::V4(first, bits), Plain::V4(addr)) => addr & mask(*bits, 32) as u32 == *first,
            (Self::V6(first, bits), Plain::V6(addr)) => addr & mask(*bits, 128) == *first,
            _ => false,
        }
    }
}

/// An address without its scope.
enum Plain {
    V4(u32),
    V6(u128),
}

impl Plain {
    fn of(addr: &Addr) -> Self {
        match addr {
            Addr::V4(v4) => Self::V4(u32::from_be_bytes(*v4)),
            Addr::V6(bytes, _) | Addr::Gid(bytes) => {
                let v6 = Ipv6Addr::from(*bytes);
                match v6.to_ipv4_mapped() {
                    Some(v4) => Self::V4(v4.to_bits()),
                    None => Self::V6(v6.to_bits()),
                }
            }
        }
    }
}

/// The number of bits behind the slash; all of them if there is none.
fn length(text: Option<&str>, max: u8) -> Result<u8, PrefixError> {
    let Some(text) = text else {
        return Ok(max);
    };
    // `parse` would accept a sign.
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(PrefixError::Length);
    }
    match text.parse() {
        Ok(bits) if bits <= max => Ok(bits),
        _ => Err(PrefixError::Length),
    }
}

/// The first `bits` of the `width` lower bits of a number.
const fn mask(bits: u8, width: u8) -> u128 {
    let all = match 1u128.checked_shl(width as u32) {
        Some(limit) => limit.wrapping_sub(1),
        None => u128::MAX,
    };
    let rest = match all.checked_shr(bits as u32) {
        Some(rest) => rest,
        None => 0,
    };
    all & !rest
}

/// The prefixes of a text, separated by blanks, newlines or commas. None for an empty text.
///
/// # Errors
///
/// [`PrefixError::NotText`]. The iterator returns all other errors, each in place of its
/// prefix: [`PrefixError::TooMany`] for those beyond [`MAX_PREFIXES`].
pub fn list(
    bytes: &[u8],
) -> Result<impl Iterator<Item = Result<Prefix, PrefixError>> + '_, PrefixError> {
    let text = text::line(bytes).map_err(|_| PrefixError::NotText)?;
    let words = text.split(|c| text::is_blank(c) || c == ',');
    let words = words.filter(|word| !word.is_empty());
    Ok(words
        .enumerate()
        .map(|(number, word)| match number < MAX_PREFIXES {
            true => Prefix::parse(word),
            false => Err(PrefixError::TooMany),
        }))
}

/// Whether one of the prefixes contains the address.
pub fn contains(prefixes: &[Prefix], addr: &Addr) -> bool {
    prefixes.iter().any(|prefix| prefix.contains(addr))
}

impl fmt::Display for Prefix {
    /// The form that [`Prefix::parse`] parses, without the length for a single address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Any => f.write_str("any"),
            Self::V4(first, 32) => write!(f, "{}", Ipv4Addr::from_bits(first)),
            Self::V4(first, bits) => write!(f, "{}/{bits}", Ipv4Addr::from_bits(first)),
            Self::V6(first, 128) => write!(f, "{}", Ipv6Addr::from_bits(first)),
            Self::V6(first, bits) => write!(f, "{}/{bits}", Ipv6Addr::from_bits(first)),
        }
    }
}
