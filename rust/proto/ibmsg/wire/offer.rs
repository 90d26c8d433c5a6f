// SPDX-License-Identifier: GPL-2.0

//! OPEN, ACCEPT and REJECT: a program asks a portal for a channel.

use ibtrs_proto::bytes::{Reader, Writer};
use ibtrs_proto::Errno;

use super::*;
use crate::limits::{MAX_PORTAL_NAME, MAX_PRIVATE_DATA};
use crate::memory::terms::MemoryTerms;
use crate::publish::terms::PublishTerms;
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

/// A side that has memory says so, and its terms of it.
const MEMORY: u8 = 1;
/// A side that has publishing.
const PUBLISH: u8 = 2;
/// A side with memory that knows the flag of KEY about RDMA READ.
const READS: u8 = 4;
/// A side with memory that takes messages with a body.
const BODIES: u8 = 8;

/// Seven bytes that a peer without both ignores, and sends as zeroes.
fn write_features(window: &Window, w: &mut Writer<'_>) {
    let (memory, publish) = (window.memory(), window.publishing());
    let flag = |has: bool, flag: u8| if has { flag } else { 0 };
    w.u8(flag(memory.is_some(), MEMORY)
        | flag(publish.is_some(), PUBLISH)
        | flag(memory.is_some_and(|memory| memory.reads()), READS)
        | flag(memory.is_some_and(|memory| memory.bodies()), BODIES));
    w.u16(memory.map_or(0, |memory| memory.keys()));
    w.u16(memory.map_or(0, |memory| memory.pushes()));
    w.u16(publish.map_or(0, |publish| publish.subscriptions()));
}

fn read_features(head: &Head, window: Window, r: &mut Reader<'_>) -> Result<Window, WireError> {
    let features = r.u8().ok_or(head.short())?;
    let mut field = || r.u16().ok_or(head.short());
    let (keys, pushes, subscriptions) = (field()?, field()?, field()?);
    let (memory, publish) = (
        MemoryTerms::new(keys, pushes).map(|terms| {
            let has = |flag| features & flag != 0;
            terms.with_reads(has(READS)).with_bodies(has(BODIES))
        }),
        PublishTerms::new(subscriptions),
    );
    if features & MEMORY != 0 && memory.is_none() {
        return Err(WireError::Window(WindowError::Memory));
    }
    if features & PUBLISH != 0 && publish.is_none() {
        return Err(WireError::Window(WindowError::Publish));
    }
    Ok(window
        .with_memory(memory.filter(|_| features & MEMORY != 0))
        .with_publishing(publish.filter(|_| features & PUBLISH != 0)))
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
        write_features(&self.window, &mut w);
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
        let window = read_features(head, window, &mut r)?;
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
        write_features(&self.window, &mut w);
        w.put(self.data);
        w.finish()
    }

    pub(crate) fn decode(head: &Head, body: &'a [u8]) -> Result<Self, WireError> {
        head.flags_within(0)?;
        let mut r = Reader::new(body);
        let window = read_window(head, &mut r)?;
        let data_len = r.u16().ok_or(head.short())?;
        r.skip(1).ok_or(head.short())?;
        let window = read_features(head, window, &mut r)?;
        Ok(Self {
            channel: head.channel,
            moves: Seq::new(head.number),
            window,
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
