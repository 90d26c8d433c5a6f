// SPDX-License-Identifier: GPL-2.0

//! Discovery, an extension: the exports that a session may open, and the portals of the server.
//!
//! The answer is a page of a list in the order of the bytes of names. A client asks for the next page
//! with the last name of this one, whether or not an export still has it.

use ibtrs_proto::addr::Addr;
use ibtrs_proto::bytes::{message, Writer};
use ibtrs_proto::listen;
use ibtrs_proto::name::DevicePath;

use super::*;
use crate::access::AccessMode;

/// Length of DISCOVER, in bytes.
pub const DISCOVER_LEN: usize = 264;
/// Most bytes of the answer to DISCOVER, for which a client has to have room.
pub const DISCOVER_RSP_LEN: usize = 4096;
/// Most portals of an answer.
pub const MAX_PORTALS: usize = 64;

/// Length of what precedes the lists.
const HEAD_LEN: usize = 16;
const PORTAL_LEN: usize = 20;
/// Length of an export without its name.
const EXPORT_LEN: usize = 12;

/// Flag of the answer: there are more exports.
const MORE: u8 = 1;
/// Flag of the answer: the server opens devices that it does not list.
const UNLISTED: u8 = 2;

const FAMILY_V4: u8 = 1;
const FAMILY_V6: u8 = 2;
const FAMILY_GID: u8 = 3;

/// A client's request for a list of the exports that it may open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Discover<'a> {
    /// The name after which the list begins: the last one of the former answer; `None` for the
    /// beginning.
    pub after: Option<DevicePath<'a>>,
}

impl<'a> Discover<'a> {
    /// The 264 bytes of the message.
    pub fn encode(&self) -> [u8; DISCOVER_LEN] {
        message(|w| {
            put_type(w, TYPE_DISCOVER);
            w.zeros(2);
            w.put(self.after.map_or(&[][..], |name| name.as_bytes()));
        })
    }

    /// Reads and checks the message.
    ///
    /// # Errors
    ///
    /// When it is short or of another type, or when the name is unusable.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, MsgError> {
        let mut r = body(bytes, TYPE_DISCOVER)?;
        if bytes.len() < DISCOVER_LEN {
            return Err(MsgError::Short);
        }
        r.skip(2).ok_or(MsgError::Short)?;
        let field = r.take(MAX_DEVICE_NAME).ok_or(MsgError::Short)?;
        let name = until_nul(field)?;
        if name.is_empty() {
            return Ok(Self { after: None });
        }
        let after = DevicePath::new(name).map_err(MsgError::Name)?;
        Ok(Self { after: Some(after) })
    }
}

/// An address and a port number that a server listens on, and that its clients can connect to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Portal {
    addr: Addr,
    port: u16,
}

impl Portal {
    /// A portal; `None` if other machines cannot connect to the address, or not by its bytes alone,
    /// as to a link-local IPv6 address, whose scope each machine numbers by itself.
    pub fn new(addr: Addr, port: u16) -> Option<Self> {
        let is_scoped = matches!(addr, Addr::V6(_, Some(_)));
        let is_one = listen::check(&addr).is_ok() && !listen::is_unspecified(&addr);
        // "This network", 0.0.0.0/8, and what is reserved, 240.0.0.0/4.
        let is_reserved = matches!(addr, Addr::V4([0 | 240..=255, ..]));
        (is_one && !is_reserved && !is_scoped && port > 0).then_some(Self { addr, port })
    }

    /// The address.
    pub const fn addr(&self) -> &Addr {
        &self.addr
    }

    /// The port number.
    pub const fn port(&self) -> u16 {
        self.port
    }

    fn encode(&self) -> [u8; PORTAL_LEN] {
        message(|w| {
            w.u8(match self.addr {
                Addr::V4(_) => FAMILY_V4,
                Addr::V6(..) => FAMILY_V6,
                Addr::Gid(_) => FAMILY_GID,
            });
            w.zeros(1);
            w.u16(self.port);
            match &self.addr {
                Addr::V4(bytes) => w.put(bytes),
                Addr::V6(bytes, _) | Addr::Gid(bytes) => w.put(bytes),
            }
        })
    }

    /// Reads a portal; `None` if it has a family that this version does not know.
    fn decode(r: &mut Reader<'_>) -> Result<Option<Self>, MsgError> {
        let family = r.u8().ok_or(MsgError::Short)?;
        r.skip(1).ok_or(MsgError::Short)?;
        let port = r.u16().ok_or(MsgError::Short)?;
        let bytes = r.array::<16>().ok_or(MsgError::Short)?;
        let [a, b, c, d, ..] = bytes;
        let addr = match family {
            FAMILY_V4 => Addr::V4([a, b, c, d]),
            FAMILY_V6 => Addr::V6(bytes, None),
            FAMILY_GID => Addr::Gid(bytes),
            _ => return Ok(None),
        };
        Self::new(addr, port).map(Some).ok_or(MsgError::Portal)
    }
}

/// An export that a session may open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed<'a> {
    /// The name to open it by.
    pub name: DevicePath<'a>,
    /// The widest mode that the session may use.
    pub access_mode: AccessMode,
    /// The size in sectors, when the server last looked; 0 if it is not known.
    pub nsectors: u64,
    /// Bytes of a block; 0 if it is not known.
    pub logical_block_size: u16,
}

impl<'a> Listed<'a> {
    /// An export of a device with `nsectors` sectors and blocks of `logical_block_size` bytes. Sizes
    /// that no client takes are said to be unknown: OPEN says why such a device cannot be used, and
    /// the other exports of the list can.
    pub fn new(
        name: DevicePath<'a>,
        access_mode: AccessMode,
        nsectors: u64,
        logical_block_size: u32,
    ) -> Self {
        let is_size = open_rsp::is_block_size(logical_block_size) && nsectors <= MAX_SECTORS;
        let block = u16::try_from(logical_block_size).ok();
        let (nsectors, logical_block_size) = match block.filter(|_| is_size) {
            Some(block) => (nsectors, block),
            None => (0, 0),
        };
        Self {
            name,
            access_mode,
            nsectors,
            logical_block_size,
        }
    }

    fn put(&self, w: &mut Writer<'_>) {
        let name = self.name.as_bytes();
        // CAST: A name has 254 bytes at most.
        w.u8(name.len() as u8);
        w.u8(self.access_mode.to_wire());
        w.u16(self.logical_block_size);
        w.u64(self.nsectors);
        w.put(name);
    }

    /// Reads an export; only its name if it has an access mode that this version does not know.
    fn decode(r: &mut Reader<'a>) -> Result<(DevicePath<'a>, Option<Self>), MsgError> {
        let len = r.u8().ok_or(MsgError::Short)?;
        let mode = r.u8().ok_or(MsgError::Short)?;
        let logical_block_size = r.u16().ok_or(MsgError::Short)?;
        let nsectors = r.u64().ok_or(MsgError::Short)?;
        let name = r.take(len.into()).ok_or(MsgError::Short)?;
        if logical_block_size != 0 && !open_rsp::is_block_size(logical_block_size.into()) {
            return Err(MsgError::BlockSize(logical_block_size.into()));
        }
        if nsectors > MAX_SECTORS {
            return Err(MsgError::Capacity(nsectors));
        }
        let name = DevicePath::new(name).map_err(MsgError::Name)?;
        let listed = AccessMode::try_from(mode).ok().map(|access_mode| Self {
            name,
            access_mode,
            nsectors,
            logical_block_size,
        });
        Ok((name, listed))
    }
}

/// An answer to DISCOVER while a server makes it: first the portals, then the exports.
#[derive(Debug)]
pub struct DiscoverPage<'a> {
    head: &'a mut [u8],
    rest: &'a mut [u8],
    len: usize,
    portals: u8,
    exports: u16,
}

impl<'a> DiscoverPage<'a> {
    /// An answer without entries, in the first [`DISCOVER_RSP_LEN`] bytes of `buf`; `None` if there
    /// are fewer.
    pub fn new(buf: &'a mut [u8]) -> Option<Self> {
        let buf = buf.get_mut(..DISCOVER_RSP_LEN)?;
        let (head, rest) = buf.split_at_mut_checked(HEAD_LEN)?;
        Some(Self {
            head,
            rest,
            len: HEAD_LEN,
            portals: 0,
            exports: 0,
        })
    }

    /// Adds a portal, unless there are exports already or [`MAX_PORTALS`]; returns whether it did.
    pub fn add_portal(&mut self, portal: &Portal) -> bool {
        if usize::from(self.portals) >= MAX_PORTALS || self.exports > 0 {
            return false;
        }
        let added = self.add(|w| w.put(&portal.encode()));
        self.portals = self.portals.saturating_add(u8::from(added));
        added
    }

    /// Adds an export, if there is room for it; returns whether it did.
    pub fn add_export(&mut self, export: &Listed<'_>) -> bool {
        // The length first: a writer that is full has written a part.
        let len = EXPORT_LEN.saturating_add(export.name.as_bytes().len());
        let added = len <= self.rest.len() && self.add(|w| export.put(w));
        self.exports = self.exports.saturating_add(u16::from(added));
        added
    }

    fn add(&mut self, put: impl FnOnce(&mut Writer<'_>)) -> bool {
        let rest = core::mem::take(&mut self.rest);
        let mut w = Writer::new(&mut *rest);
        put(&mut w);
        let written = w.finish();
        let (_, left) = rest
            .split_at_mut_checked(written.unwrap_or(0))
            .unwrap_or_default();
        self.rest = left;
        self.len = self.len.saturating_add(written.unwrap_or(0));
        written.is_some()
    }

    /// The number of exports so far.
    pub const fn exports(&self) -> u16 {
        self.exports
    }

    /// Completes the answer, and returns its length. `more` says that exports follow the last one;
    /// `unlisted` that the server opens devices that it does not list.
    pub fn finish(self, more: bool, unlisted: bool) -> usize {
        let mut w = Writer::new(self.head);
        put_type(&mut w, TYPE_DISCOVER_RSP);
        w.u16(self.exports);
        w.u8(self.portals);
        let more = if more { MORE } else { 0 };
        let unlisted = if unlisted { UNLISTED } else { 0 };
        w.u8(more | unlisted);
        w.zeros(8);
        self.len
    }
}

/// The answer to DISCOVER, all of whose entries are valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiscoverRsp<'a> {
    /// There are more exports, which another DISCOVER returns.
    pub more: bool,
    /// The server opens devices that it does not list.
    pub unlisted: bool,
    /// The last name, after which the next DISCOVER asks.
    pub last: Option<DevicePath<'a>>,
    portals: u8,
    exports: u16,
    body: &'a [u8],
}

impl<'a> DiscoverRsp<'a> {
    /// Reads and checks the answer to a DISCOVER with the name `after`.
    ///
    /// # Errors
    ///
    /// When it is short or of another type; when an entry is malformed; when the names, of which
    /// `after` is the first, do not increase; when more exports follow and there are none here. The
    /// last two would let a list go on for ever.
    pub fn decode(bytes: &'a [u8], after: Option<DevicePath<'_>>) -> Result<Self, MsgError> {
        let mut r = body(bytes, TYPE_DISCOVER_RSP)?;
        let exports = r.u16().ok_or(MsgError::Short)?;
        let portals = r.u8().ok_or(MsgError::Short)?;
        let flags = r.u8().ok_or(MsgError::Short)?;
        r.skip(8).ok_or(MsgError::Short)?;
        let mut this = Self {
            last: None,
            more: flags & MORE != 0,
            unlisted: flags & UNLISTED != 0,
            portals,
            exports,
            body: r.rest(),
        };
        if usize::from(portals) > MAX_PORTALS {
            return Err(MsgError::Portal);
        }
        if this.more && exports == 0 {
            return Err(MsgError::Endless);
        }
        for _ in 0..portals {
            Portal::decode(&mut r)?;
        }
        for _ in 0..exports {
            let (name, _) = Listed::decode(&mut r)?;
            let former = this.last.or(after);
            if former.is_some_and(|former| former.as_bytes() >= name.as_bytes()) {
                return Err(MsgError::Order);
            }
            this.last = Some(name);
        }
        Ok(this)
    }

    /// The portals, without those of unknown families.
    pub fn portals(&self) -> impl Iterator<Item = Portal> + 'a {
        let mut r = Reader::new(self.body);
        // `decode` has checked each.
        let found = (0..self.portals).map_while(move |_| Portal::decode(&mut r).ok());
        found.flatten()
    }

    /// The exports, without those of unknown access modes.
    pub fn exports(&self) -> impl Iterator<Item = Listed<'a>> + 'a {
        let mut r = Reader::new(self.body);
        let portals = PORTAL_LEN.saturating_mul(self.portals.into());
        // `decode` has checked these as well.
        let found = r.skip(portals);
        let count = found.map_or(0, |()| self.exports);
        let found = (0..count).map_while(move |_| Listed::decode(&mut r).ok());
        found.filter_map(|(_, listed)| listed)
    }
}
