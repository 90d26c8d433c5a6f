// SPDX-License-Identifier: GPL-2.0

//! The sending half of a channel: numbers, credits, retention.
//!
//! The caller keeps the messages in one queue, each with its [`Item`]: first those that were sent and
//! not yet acknowledged, in the order of their numbers, then those that have no number yet. A message
//! stays in the queue until the peer's kernel has acknowledged it: the completion of a SEND says
//! nothing about delivery. After a move, sending begins again at the front of the queue.

use crate::limits::{cost, FIRST, MAX_WINDOW_BYTES, MAX_WINDOW_MESSAGES};
use crate::outcome::{Cause, Outcome};
use crate::seq::Seq;
use crate::window::Window;
use crate::wire::Ack;

/// What one message needs beside its content. It is not `Clone`: [`Sender::release`] takes it back, once.
#[derive(PartialEq, Eq, Debug)]
pub struct Item {
    /// `None` until it is sent for the first time.
    number: Option<Seq>,
    len: u32,
    expired: bool,
}

impl Item {
    /// The number; `None` for a message that was never sent.
    pub const fn number(&self) -> Option<Seq> {
        self.number
    }

    /// Bytes of the message.
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Takes the item out of a message that stays in memory for a while. What is left is no item to release.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let left = Self {
            number: None,
            len: 0,
            expired: true,
        };
        core::mem::replace(self, left)
    }

    /// Whether [`Sender::expire`] has ended it: its program has been told its outcome.
    pub const fn is_expired(&self) -> bool {
        self.expired
    }
}

/// The sender's own limits for messages that are not acknowledged yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendLimits {
    /// Messages.
    pub messages: u32,
    /// Bytes, [`cost`] of each message. One message may always wait, however long.
    pub bytes: u32,
}

/// Why a message was not taken into the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The peer does not take messages of that length.
    TooLong,
    /// The queue is at its limit.
    Full,
    /// The peer's program takes no more messages.
    Closed,
}

/// What to send next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The message, under this number.
    Message(Seq),
    /// SKIP in place of the message. The peer has not got the message: this is certain now.
    Skip(Seq),
    /// Nothing: the peer's credits in messages are used up.
    NoMessageCredit,
    /// Nothing: the peer's credits in bytes do not suffice.
    NoByteCredit,
    /// Nothing: the channel is on no connection, or the peer takes no more messages.
    NotNow,
    /// Nothing: another message comes first. A caller that keeps the order never sees this.
    OutOfOrder,
}

/// What is wrong with an acknowledgement. The receiver fails the path that it came by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AckError {
    /// It acknowledges a message that was not sent.
    Unsent(Seq),
    /// It gives more credits in messages than the largest window has.
    MessageCredits(Seq),
    /// It gives more credits in bytes than the largest window has.
    ByteCredits(Seq),
    /// A peer that resumes has forgotten what it had acknowledged.
    Forgot(Seq),
}

impl AckError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Unsent(_) => "acknowledgement of a message that was not sent",
            Self::MessageCredits(_) => "credits for more messages than the largest window has",
            Self::ByteCredits(_) => "credits for more bytes than the largest window has",
            Self::Forgot(_) => "a channel is resumed before what was acknowledged",
        }
    }
}

/// How far a message has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The peer's kernel has not acknowledged it.
    Pending,
    /// It is in the queue of the peer's program.
    Queued,
    /// The peer's program has taken it.
    Taken,
}

/// The sending half of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sender {
    limits: SendLimits,
    held_messages: u32,
    held_bytes: u32,
    max_message: u32,
    /// The number of the first message.
    first: Seq,
    /// All messages before this one are in the peer's queue.
    acked: Seq,
    /// All messages before this one were taken by the peer's program.
    taken: Seq,
    /// The next message to send on the present connection.
    cursor: Seq,
    /// The number of the next message that has none.
    high: Seq,
    msg_limit: Seq,
    /// Cost of all messages that have numbers, counted from the beginning.
    bytes: Seq,
    byte_limit: Seq,
    /// On a connection, with the peer's position known.
    connected: bool,
    /// The peer takes no more messages.
    stopped: bool,
}

impl Sender {
    /// A sender without credits, whose messages begin with the number `first`: [`FIRST`] on the wire.
    pub const fn new(limits: SendLimits, first: Seq) -> Self {
        Self {
            limits,
            held_messages: 0,
            held_bytes: 0,
            max_message: 0,
            first,
            acked: first,
            taken: first,
            cursor: first,
            high: first,
            msg_limit: first,
            bytes: FIRST,
            byte_limit: FIRST,
            connected: false,
            stopped: false,
        }
    }

    /// The peer's terms are known, and the channel is on a connection.
    pub fn open(&mut self, window: &Window) {
        self.max_message = window.max_message();
        self.msg_limit = self.acked.plus(window.messages());
        self.byte_limit = self.bytes.plus(window.bytes());
        self.connected = true;
    }

    /// Takes a message of `len` bytes into the queue. The caller puts it at the end.
    ///
    /// # Errors
    ///
    /// When the message is too long for the peer, the queue is full, or the peer takes no more.
    pub fn queue(&mut self, len: u32) -> Result<Item, Refused> {
        if self.stopped {
            return Err(Refused::Closed);
        }
        if len > self.max_message {
            return Err(Refused::TooLong);
        }
        let bytes = self.held_bytes.saturating_add(cost(len));
        let fits = self.held_messages < self.limits.messages && bytes <= self.limits.bytes;
        if self.held_messages > 0 && !fits {
            return Err(Refused::Full);
        }
        self.held_messages = self.held_messages.saturating_add(1);
        self.held_bytes = bytes;
        Ok(Item {
            number: None,
            len,
            expired: false,
        })
    }

    /// Whether a message of the greatest length would be taken. The answer to `poll`.
    pub const fn is_writable(&self) -> bool {
        let bytes = self.held_bytes.saturating_add(cost(self.max_message));
        let fits = self.held_messages < self.limits.messages && bytes <= self.limits.bytes;
        self.stopped || self.held_messages == 0 || fits
    }

    /// Releases a message that has left the queue.
    pub fn release(&mut self, item: Item) {
        self.held_messages = self.held_messages.saturating_sub(1);
        self.held_bytes = self.held_bytes.saturating_sub(cost(item.len));
    }

    /// The number of the message that is to be sent next.
    pub const fn cursor(&self) -> Seq {
        self.cursor
    }

    /// Whether all messages with numbers have been sent on the present connection.
    pub const fn is_caught_up(&self) -> bool {
        self.cursor.since(self.high) == 0
    }

    /// The number after the last message that has one.
    pub const fn high(&self) -> Seq {
        self.high
    }

    /// Decides about the message at the [`Sender::cursor`]: the first one without a number if that is
    /// past all others. With `Message` and `Skip`, the caller sends that now.
    pub fn next(&mut self, item: &mut Item) -> Next {
        if !self.connected || self.stopped {
            return Next::NotNow;
        }
        let number = match item.number {
            Some(number) if number == self.cursor => number,
            None if self.cursor == self.high => {
                let bytes = self.bytes.plus(cost(item.len));
                if !self.high.is_before(self.msg_limit) {
                    return Next::NoMessageCredit;
                }
                if self.byte_limit.is_before(bytes) {
                    return Next::NoByteCredit;
                }
                self.bytes = bytes;
                let number = self.high;
                self.high = number.plus(1);
                item.number = Some(number);
                number
            }
            _ => return Next::OutOfOrder,
        };
        self.cursor = number.plus(1);
        match item.expired {
            false => Next::Message(number),
            true => Next::Skip(number),
        }
    }

    /// Whether the peer takes messages of `len` bytes.
    pub const fn may_be_long(&self, len: u32) -> bool {
        len <= self.max_message
    }

    /// Whether a message of `len` bytes would be taken and sent at once, if none waits before it: what has another place
    /// to wait than the queue is not put there before.
    pub fn has_credit(&self, len: u32) -> bool {
        let bytes = self.bytes.plus(cost(len));
        let has_both = self.high.is_before(self.msg_limit) && !self.byte_limit.is_before(bytes);
        let held = self.held_bytes.saturating_add(cost(len));
        let fits = self.held_messages < self.limits.messages && held <= self.limits.bytes;
        let has_room = self.held_messages == 0 || fits;
        self.connected && !self.stopped && self.is_caught_up() && has_both && has_room
    }

    /// Takes an acknowledgement. Returns whether it says anything new. Messages whose
    /// [`Sender::progress`] is no longer pending may leave the queue.
    ///
    /// # Errors
    ///
    /// When it contradicts what was sent. Nothing has changed then.
    pub fn acknowledged(&mut self, ack: &Ack) -> Result<bool, AckError> {
        // How far the places may be ahead; what is behind is old.
        let sent = self.high.since(self.acked);
        if ack.next.since(self.acked) > sent {
            return Err(AckError::Unsent(ack.next));
        }
        if ack.taken.since(self.high) > 0 {
            return Err(AckError::Unsent(ack.taken));
        }
        if ack.msg_limit.is_beyond(self.high, MAX_WINDOW_MESSAGES) {
            return Err(AckError::MessageCredits(ack.msg_limit));
        }
        if ack.byte_limit.is_beyond(self.bytes, MAX_WINDOW_BYTES) {
            return Err(AckError::ByteCredits(ack.byte_limit));
        }
        let before = *self;
        self.acked = self.acked.later(ack.next);
        self.taken = self.taken.later(ack.taken);
        self.msg_limit = self.msg_limit.later(ack.msg_limit);
        self.byte_limit = self.byte_limit.later(ack.byte_limit);
        if self.cursor.is_before(self.acked) {
            self.cursor = self.acked;
        }
        Ok(*self != before)
    }

    /// Takes the acknowledgement of a peer that has dropped what came after `next`. Returns whether sending
    /// begins again there.
    ///
    /// # Errors
    ///
    /// As [`Sender::acknowledged`].
    pub fn again(&mut self, ack: &Ack) -> Result<bool, AckError> {
        self.acknowledged(ack)?;
        let is_asked = self.connected && ack.next == self.acked;
        if is_asked {
            self.cursor = self.acked;
        }
        Ok(is_asked)
    }

    /// How far a message has come.
    pub fn progress(&self, item: &Item) -> Progress {
        match item.number {
            Some(number) if number.is_before(self.taken) => Progress::Taken,
            Some(number) if number.is_before(self.acked) => Progress::Queued,
            _ => Progress::Pending,
        }
    }

    /// The connection is lost: until [`Sender::resumed`], nobody knows which messages have arrived.
    pub fn lost(&mut self) {
        self.connected = false;
    }

    /// The peer has told what it has received by the former connections, and takes nothing more from
    /// them. Sending goes on behind that.
    ///
    /// # Errors
    ///
    /// As [`Sender::acknowledged`], or when the peer has forgotten what it had acknowledged.
    pub fn resumed(&mut self, ack: &Ack) -> Result<(), AckError> {
        if ack.next.is_before(self.acked) {
            return Err(AckError::Forgot(ack.next));
        }
        self.acknowledged(ack)?;
        self.cursor = self.acked;
        self.connected = true;
        Ok(())
    }

    /// The peer has received nothing at all: sending begins with the first message.
    ///
    /// # Errors
    ///
    /// When the peer had acknowledged something.
    pub fn restart(&mut self) -> Result<(), AckError> {
        match self.acked == self.first {
            true => {
                self.cursor = self.first;
                self.connected = true;
                Ok(())
            }
            false => Err(AckError::Forgot(self.first)),
        }
    }

    /// The peer's program takes no more messages; `ack` is final. [`Sender::end`] has the outcome of
    /// every message.
    ///
    /// # Errors
    ///
    /// As [`Sender::acknowledged`].
    pub fn stopped(&mut self, ack: &Ack) -> Result<(), AckError> {
        self.acknowledged(ack)?;
        self.stopped = true;
        Ok(())
    }

    /// The time of a message is over. Returns its outcome for the program; `None` if it was told
    /// before.
    ///
    /// A message without a number leaves the queue then; the caller releases it. Another one stays, and
    /// if it has to be sent again, SKIP takes its place. `NotDelivered` is certain: the message was
    /// never sent, or the peer has said since the move that it has not got it, and it was not sent again.
    pub fn expire(&self, item: &mut Item) -> Option<Outcome> {
        if core::mem::replace(&mut item.expired, true) {
            return None;
        }
        Some(match (self.progress(item), item.number) {
            (Progress::Queued | Progress::Taken, _) => Outcome::Delivered,
            (Progress::Pending, None) => Outcome::NotDelivered,
            (Progress::Pending, Some(number)) => {
                match self.connected && !number.is_before(self.cursor) {
                    true => Outcome::NotDelivered,
                    false => Outcome::Unknown,
                }
            }
        })
    }

    /// The outcome of a message of a channel that has ended; `None` if its program was told before.
    pub fn end(&self, item: &mut Item, cause: Cause) -> Option<Outcome> {
        match cause {
            Cause::Timeout => self.expire(item),
            Cause::PeerLost if item.number.is_some() => {
                let was_told = core::mem::replace(&mut item.expired, true);
                let outcome = match self.progress(item) {
                    Progress::Pending => Outcome::Unknown,
                    Progress::Queued | Progress::Taken => Outcome::Delivered,
                };
                (!was_told).then_some(outcome)
            }
            // The last acknowledgement is final: what is behind it was not delivered, and what was
            // queued and not taken is gone with the queue.
            Cause::Closed | Cause::PeerLost => {
                let was_told = core::mem::replace(&mut item.expired, true);
                let outcome = match self.progress(item) {
                    Progress::Taken => Outcome::Delivered,
                    Progress::Pending | Progress::Queued => Outcome::NotDelivered,
                };
                (!was_told).then_some(outcome)
            }
        }
    }

    /// Whether the peer's kernel has a message with this outcome, or may get it. What is queued there is `NotDelivered` when
    /// the peer's program closes its end without having taken it; until then, that program may look at it.
    pub fn may_have(&self, item: &Item, outcome: Outcome) -> bool {
        outcome != Outcome::NotDelivered || self.progress(item) != Progress::Pending
    }

    /// All messages before this one were taken by the peer's program.
    pub const fn taken(&self) -> Seq {
        self.taken
    }

    /// All messages before this one are, or were, in the queue of the peer's program.
    pub const fn acked(&self) -> Seq {
        self.acked
    }

    /// Messages from this one on have no credits.
    pub const fn msg_limit(&self) -> Seq {
        self.msg_limit
    }

    /// The cost of all messages may not exceed this.
    pub const fn byte_limit(&self) -> Seq {
        self.byte_limit
    }

    /// The cost of all messages that have numbers.
    pub const fn bytes(&self) -> Seq {
        self.bytes
    }

    /// Whether the peer's program takes no more messages.
    pub const fn is_stopped(&self) -> bool {
        self.stopped
    }
}
