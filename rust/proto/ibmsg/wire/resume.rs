// SPDX-License-Identifier: GPL-2.0

//! RESUME, RESUMED and LIVE: channels move to another connection.

use ibtrs_proto::bytes::{Reader, Writer};

use super::*;
use crate::limits::MAX_ATTEMPTS;

/// Bytes of a channel in RESUME and RESUMED.
pub const ENTRY_LEN: usize = 32;
/// Bytes of an attempt in LIVE.
const EPOCH_LEN: usize = 4;

/// LIVE: channels that are still on a lost attempt end.
const ENDS: u8 = 1;
/// The sender does not know the channel, or will not use it any more.
const GONE: u32 = 1;
/// The receiver's end has arrived at the sender.
const ENDED: u32 = 2;

/// A channel in RESUME or RESUMED.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResumeEntry {
    /// The channel: not 0.
    pub channel: u32,
    /// The number of the move; RESUMED repeats it. The client adds 1 for each move of a channel.
    pub moves: Seq,
    /// RESUMED: the server does not know the channel, or both programs have closed it. The other fields
    /// then have no meaning.
    pub gone: bool,
    /// CLOSE with an end has arrived at the sender of the entry, and so have all messages before it.
    pub ended: bool,
    /// The state of the sender's receiver.
    pub ack: Ack,
}

impl ResumeEntry {
    fn write(&self, w: &mut Writer<'_>) {
        w.u32(self.channel);
        w.u32(self.moves.get());
        w.u32(if self.gone { GONE } else { 0 } | if self.ended { ENDED } else { 0 });
        w.zeros(4);
        self.ack.write(w);
    }

    fn read(head: &Head, r: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut field = || r.u32().ok_or(head.short());
        let (channel, moves, flags, _) = (field()?, field()?, field()?, field()?);
        let ack = Ack::read(head, r)?;
        if channel == 0 {
            return Err(WireError::Channel(channel));
        }
        match flags & !(GONE | ENDED) {
            0 => Ok(Self {
                channel,
                moves: Seq::new(moves),
                gone: flags & GONE != 0,
                ended: flags & ENDED != 0,
                ack,
            }),
            _ => Err(WireError::Flags {
                ty: head.ty,
                // CAST: The lowest byte; the record is refused anyway.
                flags: flags as u8,
            }),
        }
    }
}

/// RESUME or RESUMED: any number of channels.
#[derive(Clone, Copy, Debug)]
pub struct Resume<'a> {
    ty: u8,
    entries: &'a [u8],
}

/// Reserved bytes make no difference.
impl PartialEq for Resume<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.ty == other.ty && self.entries().eq(other.entries())
    }
}

impl Eq for Resume<'_> {}

impl<'a> Resume<'a> {
    /// Writes RESUME for as many of `entries` as fit, and returns its length and their number; `None`
    /// if there is no space for one.
    pub fn encode(
        out: &mut [u8],
        entries: impl Iterator<Item = ResumeEntry>,
    ) -> Option<(usize, usize)> {
        Self::write(TYPE_RESUME, out, entries)
    }

    /// Writes RESUMED, as [`Resume::encode`].
    pub fn encode_answer(
        out: &mut [u8],
        entries: impl Iterator<Item = ResumeEntry>,
    ) -> Option<(usize, usize)> {
        Self::write(TYPE_RESUMED, out, entries)
    }

    fn write(
        ty: u8,
        out: &mut [u8],
        entries: impl Iterator<Item = ResumeEntry>,
    ) -> Option<(usize, usize)> {
        let (head, rest) = out.split_at_mut_checked(RECORD_HDR_LEN)?;
        let mut count = 0usize;
        for (entry, place) in entries.zip(rest.chunks_exact_mut(ENTRY_LEN)) {
            entry.write(&mut Writer::new(place));
            count = count.saturating_add(1);
        }
        if count == 0 {
            return None;
        }
        let len = count
            .saturating_mul(ENTRY_LEN)
            .saturating_add(RECORD_HDR_LEN);
        Head::new(ty, 0, Seq::new(0)).write(&mut Writer::new(head), len);
        Some((len, count))
    }

    pub(crate) fn decode(head: &Head, body: &'a [u8]) -> Result<Self, WireError> {
        head.flags_within(0)?;
        let mut r = Reader::new(body);
        if r.rest().is_empty() {
            return Err(head.short());
        }
        // All entries are checked before the first one is used.
        while !r.rest().is_empty() {
            ResumeEntry::read(head, &mut r)?;
        }
        Ok(Self {
            ty: head.ty,
            entries: body,
        })
    }

    /// The channels.
    pub fn entries(&self) -> Entries<'a> {
        Entries {
            head: Head::new(self.ty, 0, Seq::new(0)),
            rest: Reader::new(self.entries),
        }
    }
}

/// The channels of a [`Resume`].
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    head: Head,
    rest: Reader<'a>,
}

impl Iterator for Entries<'_> {
    type Item = ResumeEntry;

    fn next(&mut self) -> Option<ResumeEntry> {
        ResumeEntry::read(&self.head, &mut self.rest).ok()
    }
}

/// LIVE: the connection attempts that the client has not given up. It has lost all others up to the
/// `newest`. The server takes no more frames from those.
///
/// The client sends it by a connection before it moves channels there, so that nothing that was sent
/// before a move arrives after it. It sends it again, with `ends`, when all channels that it still has
/// are on other attempts: the server has confirmed that, or learns it from a record before this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Live<'a> {
    /// The server ends the channels that are still on a lost attempt.
    pub ends: bool,
    /// The epoch of the latest attempt that the client has begun, whether or not it is in the list.
    pub newest: u32,
    epochs: &'a [u8],
}

impl<'a> Live<'a> {
    /// Writes the record, and returns its length; `None` if it does not fit, or has no attempts or more
    /// than [`MAX_ATTEMPTS`].
    pub fn encode(out: &mut [u8], ends: bool, newest: u32, epochs: &[u32]) -> Option<usize> {
        if epochs.is_empty() || epochs.len() > MAX_ATTEMPTS {
            return None;
        }
        let len = epochs
            .len()
            .saturating_mul(EPOCH_LEN)
            .saturating_add(RECORD_HDR_LEN);
        let mut w = Writer::new(out);
        let mut head = Head::new(TYPE_LIVE, 0, Seq::new(newest));
        head.flags = if ends { ENDS } else { 0 };
        head.write(&mut w, len);
        for epoch in epochs {
            w.u32(*epoch);
        }
        w.finish()
    }

    pub(crate) fn decode(head: &Head, body: &'a [u8]) -> Result<Self, WireError> {
        head.flags_within(ENDS)?;
        let is_whole = body.len().checked_rem(EPOCH_LEN) == Some(0);
        let count = body.len().checked_div(EPOCH_LEN).unwrap_or(0);
        match is_whole && (1..=MAX_ATTEMPTS).contains(&count) {
            true => Ok(Self {
                ends: head.flags & ENDS != 0,
                newest: head.number,
                epochs: body,
            }),
            false => Err(WireError::Attempts(count)),
        }
    }

    /// The epochs of the attempts, 1 to [`MAX_ATTEMPTS`].
    pub fn epochs(&self) -> impl Iterator<Item = u32> + 'a {
        let mut r = Reader::new(self.epochs);
        core::iter::from_fn(move || r.u32())
    }

    /// Whether the client has lost the attempt `epoch`.
    pub fn has_lost(&self, epoch: u32) -> bool {
        epoch <= self.newest && self.epochs().all(|live| epoch != live)
    }
}
