// SPDX-License-Identifier: GPL-2.0

//! Bodies: a message travels without its body, which its receiver gets from the memory of the sender.
//!
//! The content of the message begins with a [`BodyRef`], which says where that is. The sender's kernel keeps a [`Loan`] for
//! each body until its program has the receipt and the receiver has released it: until then, the handle's slot is not
//! used again. The receiver's kernel has it in [`Held`] from the arrival of the message until its program releases it.
//!
//! | step | sender | receiver |
//! |---|---|---|
//! | the message is written | [`super::Export::lend`], [`Loan::new`] | |
//! | it arrives | | [`Held::arrived`] |
//! | its time is over, or nobody takes it | [`Loan::ends`]; [`Loan::not_sent`] once that is certain | |
//! | the program releases it | | [`Held::release`], then NOTE RELEASE in the queue |
//! | RELEASE arrives | [`Loan::released`], and the memory is unmapped, gently | |
//! | the memory is out of reach | [`Loan::freed`], then [`Loan::receipt`] | |
//! | the peer has sent its last record | [`Loan::over`] | |
//!
//! RELEASE has a number as messages have, so it arrives exactly once, whatever happens to paths.

use ibtrs_proto::bytes::{Reader, Writer};
use ibtrs_proto::Errno;

use super::range::{Handle, Range};
use crate::wire::WireError;

/// Bytes of a [`BodyRef`], with which the content of its message begins.
pub const BODY_LEN: usize = 24;
/// The most bodies that a side may have lent on a channel: sent, and not released.
pub const MAX_BODIES: usize = 64;

/// Where the body of a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BodyRef {
    /// The sender's memory.
    pub handle: Handle,
    /// Its offsets there.
    pub range: Range,
}

impl BodyRef {
    /// Takes it from the beginning of a message.
    ///
    /// # Errors
    ///
    /// When there is none: a handle that no kernel makes, or an impossible range.
    pub fn read(content: &[u8; BODY_LEN]) -> Result<Self, WireError> {
        let mut r = Reader::new(content);
        let mut field = || r.u64().unwrap_or(0);
        let (bits, offset, len) = (field(), field(), field());
        Ok(Self {
            handle: Handle::from_wire(bits).ok_or(WireError::Handle(bits))?,
            range: Range::new(offset, len).ok_or(WireError::Memory)?,
        })
    }

    /// The bytes at the beginning of the message.
    pub fn bytes(&self) -> [u8; BODY_LEN] {
        ibtrs_proto::bytes::message(|w: &mut Writer<'_>| {
            w.u64(self.handle.to_wire());
            w.u64(self.range.start());
            w.u64(self.range.len());
        })
    }
}

/// What the peer must not do. The receiver fails the path that the record came by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyError {
    /// It releases a body that it does not have, or releases one twice.
    Unknown,
    /// It sends a body that it has sent before.
    Twice,
    /// It has more than [`MAX_BODIES`].
    TooMany,
}

impl BodyError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Unknown => "release of a body that the peer does not have",
            Self::Twice => "body of a message that is that of another one",
            Self::TooMany => "more bodies at once than the protocol allows",
        }
    }
}

/// Why a body has ended, for the program that has lent it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyEnd {
    /// The peer's program has released it.
    Released,
    /// Its message was not delivered, or perhaps not: the errno of that.
    Message(Errno),
    /// Its owner has taken it back: by UNMAP, by closing its end of the channel, or by its death.
    TakenBack,
    /// The channel has ended after the message was delivered, and before the peer's program has released it.
    Closed,
}

impl BodyEnd {
    /// The errno for the program; `None` for success.
    pub const fn errno(self) -> Option<Errno> {
        match self {
            Self::Released => None,
            Self::Message(errno) => Some(errno),
            Self::TakenBack => Some(Errno::ESTALE),
            Self::Closed => Some(Errno::ECONNRESET),
        }
    }
}

/// What the program that has lent a body is to be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receipt {
    /// The tag of its message.
    pub tag: u64,
    /// Why it has ended.
    pub end: BodyEnd,
}

/// A body that a side has lent.
///
/// The receipt comes when the memory is out of reach and it is known why. A body whose owner has taken it back, or whose
/// message is late, keeps its place until the peer has released it too, so the peer never has more than there are places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loan {
    tag: u64,
    /// The peer may have it, and release it.
    is_out: bool,
    end: Option<BodyEnd>,
    /// Nothing reaches the memory any more.
    is_free: bool,
    is_told: bool,
}

impl Loan {
    /// The body of a message with this tag, which is queued.
    pub const fn new(tag: u64) -> Self {
        Self {
            tag,
            is_out: true,
            end: None,
            is_free: false,
            is_told: false,
        }
    }

    /// It is known why the body ends; the first reason counts. The caller unmaps its memory.
    pub fn ends(&mut self, end: BodyEnd) {
        self.end.get_or_insert(end);
    }

    /// The peer does not have the body, and never will: its message was not sent, or SKIP has taken its place.
    pub fn not_sent(&mut self) {
        self.is_out = false;
    }

    /// The peer has released the body. The caller unmaps its memory, gently.
    ///
    /// # Errors
    ///
    /// When the peer does not have it.
    pub fn released(&mut self) -> Result<(), BodyError> {
        if !self.is_out {
            return Err(BodyError::Unknown);
        }
        self.is_out = false;
        self.ends(BodyEnd::Released);
        Ok(())
    }

    /// The peer has sent its last record: it releases nothing more.
    pub fn over(&mut self) {
        self.is_out = false;
        self.ends(BodyEnd::Closed);
    }

    /// The memory is unmapped.
    pub fn freed(&mut self) {
        self.is_free = true;
    }

    /// The receipt, if it is due. It counts as told from now on.
    pub fn receipt(&mut self) -> Option<Receipt> {
        let end = self.end.filter(|_| self.is_free && !self.is_told)?;
        self.is_told = true;
        Some(Receipt { tag: self.tag, end })
    }

    /// Whether the program has no receipt yet.
    pub const fn owes_receipt(&self) -> bool {
        !self.is_told
    }

    /// Whether the program has its receipt, and the peer has released it.
    pub const fn is_done(&self) -> bool {
        self.is_told && !self.is_out
    }
}

/// The bodies of the peer that a side holds, at most `N`: their messages have arrived, and its program has not released
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held<const N: usize> {
    /// As on the wire; 0 is no handle.
    handles: [u64; N],
}

impl<const N: usize> Held<N> {
    const NONE: u64 = 0;

    /// None.
    pub const fn new() -> Self {
        Self {
            handles: [Self::NONE; N],
        }
    }

    fn place(&mut self, bits: u64) -> Option<&mut u64> {
        self.handles.iter_mut().find(|place| **place == bits)
    }

    /// A message with this body was queued for the program.
    ///
    /// # Errors
    ///
    /// When the peer has broken the rules.
    pub fn arrived(&mut self, handle: Handle) -> Result<(), BodyError> {
        if self.holds(handle) {
            return Err(BodyError::Twice);
        }
        *self.place(Self::NONE).ok_or(BodyError::TooMany)? = handle.to_wire();
        Ok(())
    }

    /// Whether the program holds this one.
    pub fn holds(&self, handle: Handle) -> bool {
        self.handles.contains(&handle.to_wire())
    }

    /// The program releases a body. Returns whether it had that; RELEASE is queued then.
    pub fn release(&mut self, handle: Handle) -> bool {
        let place = self.place(handle.to_wire());
        place.is_some_and(|place| core::mem::take(place) != Self::NONE)
    }
}

impl<const N: usize> Default for Held<N> {
    fn default() -> Self {
        Self::new()
    }
}
