// SPDX-License-Identifier: GPL-2.0

//! Administrative messages: SESS_INFO, OPEN, CLOSE.

use ibtrs_proto::bytes::{message, Writer};
use ibtrs_proto::name::DevicePath;

use super::*;
use crate::access::{Access, AccessMode};

/// Flag of OPEN: no other client may use the device. C servers ignore the byte.
const EXCLUSIVE: u8 = 1;
/// Flag of OPEN: the server describes a device that is open, and opens nothing.
const ONLY_KNOWN: u8 = 2;
/// Flag of OPEN: each request to the device has a checksum.
const CHECKSUMS: u8 = 4;

/// The client's version; once per session, before the first OPEN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessInfo {
    /// Highest major version the client speaks.
    pub ver: u8,
}

impl SessInfo {
    /// The 36 bytes of the message.
    pub fn encode(&self) -> [u8; SESS_INFO_LEN] {
        message(|w| version(w, TYPE_SESS_INFO, self.ver))
    }

    /// Reads the message.
    ///
    /// # Errors
    ///
    /// When it is short or of another type.
    pub fn decode(bytes: &[u8]) -> Result<Self, MsgError> {
        decode_version(bytes, TYPE_SESS_INFO).map(|ver| Self { ver })
    }

    /// The server's answer: the lower one of both versions.
    pub fn answer(&self) -> SessInfoRsp {
        SessInfoRsp {
            ver: self.ver.min(VERSION_MAJOR),
        }
    }
}

/// The version both sides use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessInfoRsp {
    /// Major version.
    pub ver: u8,
}

impl SessInfoRsp {
    /// The 36 bytes of the message.
    pub fn encode(&self) -> [u8; SESS_INFO_LEN] {
        message(|w| version(w, TYPE_SESS_INFO_RSP, self.ver))
    }

    /// Reads the message; a version above [`VERSION_MAJOR`] is lowered to that.
    ///
    /// # Errors
    ///
    /// When it is short or of another type.
    pub fn decode(bytes: &[u8]) -> Result<Self, MsgError> {
        decode_version(bytes, TYPE_SESS_INFO_RSP).map(|ver| Self {
            ver: ver.min(VERSION_MAJOR),
        })
    }
}

fn version(w: &mut Writer<'_>, kind: u16, ver: u8) {
    put_type(w, kind);
    w.u8(ver);
}

fn decode_version(bytes: &[u8], kind: u16) -> Result<u8, MsgError> {
    let mut r = body(bytes, kind)?;
    if bytes.len() < SESS_INFO_LEN {
        return Err(MsgError::Short);
    }
    r.u8().ok_or(MsgError::Short)
}

/// A client's request to open a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Open<'a> {
    /// The access that the client asks for.
    pub access_mode: AccessMode,
    /// Whether no other client may use the device. Extension: the byte has no defined value from C
    /// clients, so it counts only if the session has extensions; see [`Open::access`].
    pub exclusive: bool,
    /// Name of the device, for the server to interpret.
    pub dev_name: DevicePath<'a>,
    /// Whether the message only asks for the description of a device that the session has open, and
    /// opens nothing. Extension: the byte has no defined value from C clients, so it counts only if
    /// the session has extensions.
    pub only_known: bool,
    /// Whether each request to the device has a checksum; see [`crate::checksum`]. Extension, as
    /// `only_known`; together with that it means nothing.
    pub checksums: bool,
}

impl<'a> Open<'a> {
    /// The 264 bytes of the message.
    pub fn encode(&self) -> [u8; OPEN_LEN] {
        message(|w| {
            put_type(w, TYPE_OPEN);
            w.u8(self.access_mode.to_wire());
            let exclusive = if self.exclusive { EXCLUSIVE } else { 0 };
            let known = if self.only_known { ONLY_KNOWN } else { 0 };
            let checksums = if self.checksums { CHECKSUMS } else { 0 };
            w.u8(exclusive | known | checksums);
            w.put(self.dev_name.as_bytes());
        })
    }

    /// The access that the client asks for, in a session with `extensions` or without.
    pub const fn access(&self, extensions: bool) -> Access {
        Access {
            mode: self.access_mode,
            exclusive: extensions && self.exclusive,
        }
    }

    /// Reads and checks the message.
    ///
    /// # Errors
    ///
    /// When it is short or of another type, or when access mode or name are unusable.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, MsgError> {
        let mut r = body(bytes, TYPE_OPEN)?;
        if bytes.len() < OPEN_LEN {
            return Err(MsgError::Short);
        }
        let mode = r.u8().ok_or(MsgError::Short)?;
        let access_mode = AccessMode::try_from(mode).map_err(|_| MsgError::AccessMode(mode))?;
        let flags = r.u8().ok_or(MsgError::Short)?;
        let field = r.take(MAX_DEVICE_NAME).ok_or(MsgError::Short)?;
        let dev_name = DevicePath::new(until_nul(field)?).map_err(MsgError::Name)?;
        Ok(Self {
            access_mode,
            exclusive: flags & EXCLUSIVE != 0,
            dev_name,
            only_known: flags & ONLY_KNOWN != 0,
            checksums: flags & CHECKSUMS != 0,
        })
    }
}

/// A client's request to close a device. Answered with success even if the id is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Close {
    /// Id from the answer to OPEN.
    pub device_id: u32,
}

impl Close {
    /// The 8 bytes of the message.
    pub fn encode(&self) -> [u8; CLOSE_LEN] {
        message(|w| {
            put_type(w, TYPE_CLOSE);
            w.u32(self.device_id);
        })
    }

    /// Reads the message.
    ///
    /// # Errors
    ///
    /// When it is short or of another type.
    pub fn decode(bytes: &[u8]) -> Result<Self, MsgError> {
        let mut r = body(bytes, TYPE_CLOSE)?;
        let device_id = r.u32().ok_or(MsgError::Short)?;
        Ok(Self { device_id })
    }
}
