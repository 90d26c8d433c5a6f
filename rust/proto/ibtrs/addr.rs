// SPDX-License-Identifier: GPL-2.0

//! Addresses of paths as users write them: `[src{,|@}]dst`.
//!
//! An address is `ip:` and an IPv4 or IPv6 address, or `gid:` and a GID in the form of an IPv6
//! address. A link-local IPv6 address may have a scope: `ip:fe80::1%eth0`. The port is no part
//! of it.

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};

use crate::errno::Errno;
use crate::text;

/// Longest scope, in bytes: an interface name without its NUL.
const MAX_SCOPE: usize = 15;

/// Why an address is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddrError {
    /// The text is not UTF-8, or has control characters.
    NotText,
    /// An address is empty.
    Empty,
    /// More than a source and a destination.
    TooMany,
    /// Neither `ip:` nor `gid:`.
    Prefix,
    /// Not an IPv4 or IPv6 address after `ip:`.
    Ip,
    /// Not a GID after `gid:`.
    Gid,
    /// A scope that is empty, too long, or at an address that is not link-local.
    Scope,
    /// Source and destination of different kinds.
    Mixed,
    /// The destination is the unspecified address, a multicast group or the broadcast address.
    Destination,
}

impl AddrError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::NotText => "address is not printable text",
            Self::Empty => "address is empty",
            Self::TooMany => "more than one source and one destination address",
            Self::Prefix => "address does not begin with ip: or gid:",
            Self::Ip => "no IPv4 or IPv6 address after ip:",
            Self::Gid => "no GID after gid:",
            Self::Scope => "scope is not an interface, or address is not link-local",
            Self::Mixed => "source and destination addresses of different kinds",
            Self::Destination => "destination address names no single host",
        }
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        Errno::EINVAL
    }
}

/// Scope of a link-local IPv6 address: the name or the number of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Scope {
    // INVARIANT: ASCII, then zeroes.
    name: [u8; MAX_SCOPE],
}

impl Scope {
    fn new(text: &str) -> Option<Self> {
        let ok = |b: u8| b.is_ascii_graphic() && !matches!(b, b'/' | b',' | b'@' | b'%');
        if text.is_empty() || !text.bytes().all(ok) {
            return None;
        }
        let mut name = [0; MAX_SCOPE];
        name.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(Self { name })
    }

    /// The scope of the interface with the number `index`; `None` for 0.
    pub fn from_index(index: u32) -> Option<Self> {
        let mut name = [0; MAX_SCOPE];
        let mut left = index;
        // From the last digit to the first, ten at most.
        let digits = name.get_mut(..(index.checked_ilog10()? as usize).saturating_add(1))?;
        for digit in digits.iter_mut().rev() {
            // CAST: Below ten.
            *digit = b'0' | (left % 10) as u8;
            left /= 10;
        }
        // INVARIANT: Digits, then zeroes.
        Some(Self { name })
    }

    /// The text after the '%'.
    pub fn as_str(&self) -> &str {
        let len = self.name.iter().take_while(|&&b| b != 0).count();
        let text = self.name.get(..len).unwrap_or(&[]);
        // Cannot fail: ASCII by the invariant.
        core::str::from_utf8(text).unwrap_or("")
    }

    /// The interface's number, if the scope is one.
    pub fn index(&self) -> Option<u32> {
        let text = self.as_str();
        if text.bytes().all(|b| b.is_ascii_digit()) {
            text.parse().ok()
        } else {
            None
        }
    }
}

/// One end of a path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Addr {
    /// IPv4, in network order.
    V4([u8; 4]),
    /// IPv6, in network order, with the scope of a link-local one.
    V6([u8; 16], Option<Scope>),
    /// InfiniBand GID, in network order.
    Gid([u8; 16]),
}

impl Addr {
    /// Parses one address.
    ///
    /// # Errors
    ///
    /// See [`AddrError`].
    pub fn parse(text: &str) -> Result<Self, AddrError> {
        if text.is_empty() {
            return Err(AddrError::Empty);
        }
        if let Some(ip) = text.strip_prefix("ip:") {
            return Self::parse_ip(ip);
        }
        match text.strip_prefix("gid:") {
            Some(gid) => match gid.parse::<Ipv6Addr>() {
                Ok(gid) => Ok(Self::Gid(gid.octets())),
                Err(_) => Err(AddrError::Gid),
            },
            None => Err(AddrError::Prefix),
        }
    }

    fn parse_ip(ip: &str) -> Result<Self, AddrError> {
        if let Ok(v4) = ip.parse::<Ipv4Addr>() {
            return Ok(Self::V4(v4.octets()));
        }
        let (ip, scope) = match ip.split_once('%') {
            Some((ip, scope)) => (ip, Some(Scope::new(scope).ok_or(AddrError::Scope)?)),
            None => (ip, None),
        };
        let v6 = ip.parse::<Ipv6Addr>().map_err(|_| AddrError::Ip)?;
        if scope.is_some() && !v6.is_unicast_link_local() {
            return Err(AddrError::Scope);
        }
        Ok(Self::V6(v6.octets(), scope))
    }

    /// The same address, with an IPv4 address mapped into IPv6 as plain IPv4.
    ///
    /// A server that listens on IPv6 sees its IPv4 peers that way.
    #[must_use]
    pub fn unmapped(self) -> Self {
        match self {
            Self::V6(v6, _) => match Ipv6Addr::from(v6).to_ipv4_mapped() {
                Some(v4) => Self::V4(v4.octets()),
                None => self,
            },
            other => other,
        }
    }

    /// The GID of the address on a RoCE device, which every device there makes in the same way
    /// (`rdma_ip2gid` of the kernel).
    pub fn roce_gid(&self) -> [u8; 16] {
        match self {
            Self::V4(v4) => Ipv4Addr::from(*v4).to_ipv6_mapped().octets(),
            Self::V6(v6, _) => *v6,
            Self::Gid(gid) => *gid,
        }
    }

    fn same_kind(&self, other: &Self) -> bool {
        core::mem::discriminant(self) == core::mem::discriminant(other)
    }

    fn names_one_host(&self) -> bool {
        match self {
            Self::V4(a) => {
                let a = Ipv4Addr::from(*a);
                !a.is_unspecified() && !a.is_multicast() && !a.is_broadcast()
            }
            Self::V6(a, _) | Self::Gid(a) => {
                let a = Ipv6Addr::from(*a);
                !a.is_unspecified() && !a.is_multicast()
            }
        }
    }
}

impl fmt::Display for Addr {
    /// The form sysfs shows: `ip:1.2.3.4`, `ip:fe80::1%eth0`, `gid:` and eight full groups.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(a) => write!(f, "ip:{}", Ipv4Addr::from(*a)),
            Self::V6(a, None) => write!(f, "ip:{}", Ipv6Addr::from(*a)),
            Self::V6(a, Some(s)) => write!(f, "ip:{}%{}", Ipv6Addr::from(*a), s.as_str()),
            Self::Gid(a) => {
                f.write_str("gid")?;
                for group in Ipv6Addr::from(*a).segments() {
                    write!(f, ":{group:04x}")?;
                }
                Ok(())
            }
        }
    }
}

/// The two ends of a path, as the client names them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PathAddr {
    /// The client's end; the routing table chooses if it is not given.
    pub src: Option<Addr>,
    /// The server's end.
    pub dst: Addr,
}

impl PathAddr {
    /// Parses `[src{,|@}]dst`.
    ///
    /// # Errors
    ///
    /// See [`AddrError`].
    pub fn parse(text: &str) -> Result<Self, AddrError> {
        const SEPARATORS: [char; 2] = [',', '@'];
        let (src, dst) = match text.split_once(SEPARATORS) {
            Some((src, dst)) => (Some(src), dst),
            None => (None, text),
        };
        if dst.contains(SEPARATORS) {
            return Err(AddrError::TooMany);
        }
        let src = src.map(Addr::parse).transpose()?;
        let dst = Addr::parse(dst)?;
        if src.is_some_and(|s| !s.same_kind(&dst)) {
            return Err(AddrError::Mixed);
        }
        if !dst.names_one_host() {
            return Err(AddrError::Destination);
        }
        Ok(Self { src, dst })
    }

    /// Parses what an operator wrote to an attribute: blanks around the address are allowed.
    ///
    /// # Errors
    ///
    /// See [`AddrError`].
    pub fn parse_line(bytes: &[u8]) -> Result<Self, AddrError> {
        Self::parse(text::line(bytes).map_err(|_| AddrError::NotText)?)
    }
}

impl fmt::Display for PathAddr {
    /// `src@dst`, or only `dst`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(src) = &self.src {
            write!(f, "{src}@")?;
        }
        write!(f, "{}", self.dst)
    }
}
