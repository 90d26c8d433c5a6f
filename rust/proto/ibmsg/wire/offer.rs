// SPDX-License-Identifier: GPL-2.0

//! OPEN, ACCEPT and REJECT: a program asks a portal for a channel.

use ibtrs_proto::bytes::{Reader, Writer};
use ibtrs_proto::Errno;

use super::*;
use crate::limits::{MAX_PORTAL_NAME, MAX_PRIVATE_DATA};
use crate::memory::terms::MemoryTerms;
use crate::window::{Window, WindowError};

/// Bytes of OPEN before the name.
const OPEN_LEN: usize = 40;
/// Bytes of ACCEPT before the private data.
const ACCEPT_LEN: usize = 40;
/// Bytes of REJECT before the private data.
const REJECT_LEN: usize = 24;
/// Bytes of the longest OPEN.
pub const MAX_OPEN_LEN: usize = OPEN_LEN + MAX_PORTAL_NAME + MAX_PRIVATE_DATA;

/// The name of a portal: 1 to [`MAX_PORTAL_NAME`] ASCII letters and digits and `-_:@+.`, beginning with
/// neither `-` nor `.`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortalName<'a>(&'a str);

impl<'a> PortalName<'a> {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// [`WireError::PortalName`].
    pub fn new(name: &'a [u8]) -> Result<Self, WireError> {
        let is_allowed = |b: &u8| b.is_ascii_alphanumeric() || b"-_:@+.".contains(b);
        let begins = !matches!(name.first(), None | Some(b'-' | b'.'));
        let fits = name.len() <= MAX_PORTAL_NAME;
        match core::str::from_utf8(name) {
            Ok(text) if begins && fits && name.iter().all(is_allowed) => Ok(Self(text)),
            _ => Err(WireError::PortalName),
        }
    }

    /// The name.
    pub const fn as_str(&self) -> &'a str {
        self.0
    }
}

fn write_window(window: &Window, w: &mut Writer<'_>) {
    w.u32(window.messages());
    w.u32(window.bytes());
    w.u32(window.max_message());
    w.u16(window.calls());
}

fn read_window(head: &Head, r: &mut Reader<'_>) -> Result<Window, WireError> {
    let mut field = || r.u32().ok_or(head.short());
    let (messages, bytes, max_message) = (field()?, field()?, field()?);
    let calls = r.u16().ok_or(head.short())?;
    Window::new(messages, bytes, max_message, calls).map_err(WireError::Window)
}

/// The terms of memory follow: a side that has it.
const MEMORY: u8 = 1;

/// Seven bytes that a peer without memory ignores, and sends as zeroes.
fn write_memory(window: &Window, w: &mut Writer<'_>) {
    match window.memory() {
        Some(memory) => {
            w.u8(MEMORY);
            w.u16(memory.keys());
            w.u16(memory.pushes());
            w.zeros(2);
        }
        None => w.zeros(7),
    }
}

fn read_memory(head: &Head, r: &mut Reader<'_>) -> Result<Option<MemoryTerms>, WireError> {
    let features = r.u8().ok_or(head.short())?;
    let keys = r.u16().ok_or(head.short())?;
    let pushes = r.u16().ok_or(head.short())?;
    r.skip(2).ok_or(head.short())?;
    if features & MEMORY == 0 {
        return Ok(None);
    }
    let terms = MemoryTerms::new(keys, pushes);
    terms
        .map(Some)
        .ok_or(WireError::Window(WindowError::Memory))
}

/// The length of private data for the wire; `None` if it is too long.
fn private_len(data: &[u8]) -> Option<u16> {
    let len = u16::try_from(data.len()).ok()?;
    (data.len() <= MAX_PRIVATE_DATA).then_some(len)
}

/// Takes private data of `len` bytes, which must be all there is.
fn private<'a>(head: &Head, r: &mut Reader<'a>, len: u16) -> Result<&'a [u8], WireError> {
    if usize::from(len) > MAX_PRIVATE_DATA {
        return Err(WireError::PrivateData(len));
    }
    let data = r.take(usize::from(len)).ok_or(head.short())?;
    exact(head, r.rest())?;
    Ok(data)
}

/// OPEN: the client asks for a channel. It chooses a number that it has never used in this session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Open<'a> {
    /// The number of the channel: not 0.
    pub channel: u32,
    /// The number of the move, 0 at first; larger if the client sends it again on another connection.
    pub moves: Seq,
    /// The terms on which the client receives.
    pub window: Window,
    /// The portal.
    pub portal: PortalName<'a>,
    /// For the program at the portal.
    pub data: &'a [u8],
}

impl<'a> Open<'a> {
    /// Writes the record, and returns its length; `None` if it does not fit, or has too much private
    /// data.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let name = self.portal.as_str().as_bytes();
        let data_len = private_len(self.data)?;
        let len = OPEN_LEN
            .saturating_add(name.len())
            .saturating_add(self.data.len());
        let mut w = Writer::new(out);
        Head::new(TYPE_OPEN, self.channel, self.moves).write(&mut w, len);
        write_window(&self.window, &mut w);
        w.u16(data_len);
        w.u8(u8::try_from(name.len()).ok()?);
        write_memory(&self.window, &mut w);
        w.put(name);
        w.put(self.data);
        w.finish()
    }

    pub(crate) fn decode(head: &Head, body: &'a [u8]) -> Result<Self, WireError> {
        head.flags_within(0)?;
        let mut r = Reader::new(body);
        let window = read_window(head, &mut r)?;
        let data_len = r.u16().ok_or(head.short())?;
        let name_len = r.u8().ok_or(head.short())?;
        let memory = read_memory(head, &mut r)?;
        let window = window.with_memory(memory);
        let name = r.take(usize::from(name_len)).ok_or(head.short())?;
        Ok(Self {
            channel: head.channel,
            moves: Seq::new(head.number),
            window,
            portal: PortalName::new(name)?,
            data: private(head, &mut r, data_len)?,
        })
    }
}

/// ACCEPT: the program at the portal has accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accept<'a> {
    /// The channel.
    pub channel: u32,
    /// The number of the move, from OPEN.
    pub moves: Seq,
    /// The terms on which the server receives.
    pub window: Window,
    /// For the program that asked.
    pub data: &'a [u8],
}

impl<'a> Accept<'a> {
    /// Writes the record, and returns its length; `None` if it does not fit, or has too much private
    /// data.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let data_len = private_len(self.data)?;
        let mut w = Writer::new(out);
        let len = ACCEPT_LEN.saturating_add(self.data.len());
        Head::new(TYPE_ACCEPT, self.channel, self.moves).write(&mut w, len);
        write_window(&self.window, &mut w);
        w.u16(data_len);
        w.zeros(1);
        write_memory(&self.window, &mut w);
        w.put(self.data);
        w.finish()
    }

    pub(crate) fn decode(head: &Head, body: &'a [u8]) -> Result<Self, WireError> {
        head.flags_within(0)?;
        let mut r = Reader::new(body);
        let window = read_window(head, &mut r)?;
        let data_len = r.u16().ok_or(head.short())?;
        r.skip(1).ok_or(head.short())?;
        let memory = read_memory(head, &mut r)?;
        Ok(Self {
            channel: head.channel,
            moves: Seq::new(head.number),
            window: window.with_memory(memory),
            data: private(head, &mut r, data_len)?,
        })
    }
}

/// REJECT: the server refuses, or the program at the portal does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reject<'a> {
    /// The channel.
    pub channel: u32,
    /// The number of the move, from OPEN.
    pub moves: Seq,
    /// Why.
    pub reason: Errno,
    /// For the program that asked.
    pub data: &'a [u8],
}

impl<'a> Reject<'a> {
    /// Writes the record, and returns its length; `None` if it does not fit, or has too much private
    /// data. A reason that user space does not have is sent as EIO.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let data_len = private_len(self.data)?;
        let number = u16::try_from(self.reason.get()).unwrap_or(0);
        // Lossless: not negative, and small.
        let reason = Errno::from_peer(number).get() as u16;
        let mut w = Writer::new(out);
        let len = REJECT_LEN.saturating_add(self.data.len());
        Head::new(TYPE_REJECT, self.channel, self.moves).write(&mut w, len);
        w.u16(reason);
        w.u16(data_len);
        w.zeros(4);
        w.put(self.data);
        w.finish()
    }

    pub(crate) fn decode(head: &Head, body: &'a [u8]) -> Result<Self, WireError> {
        head.flags_within(0)?;
        let mut r = Reader::new(body);
        let reason = match r.u16().ok_or(head.short())? {
            0 => return Err(WireError::Reason),
            number => Errno::from_peer(number),
        };
        let data_len = r.u16().ok_or(head.short())?;
        r.skip(4).ok_or(head.short())?;
        Ok(Self {
            channel: head.channel,
            moves: Seq::new(head.number),
            reason,
            data: private(head, &mut r, data_len)?,
        })
    }
}
