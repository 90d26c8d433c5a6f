// SPDX-License-Identifier: GPL-2.0

//! The receiving half of a channel: arrivals, acknowledgement, credits.
//!
//! Credits are renewed when the *program* has taken a message. They bound the memory that a channel may
//! use, so a message that has credits is never dropped.

use crate::limits::{cost, ACK_DELAY_US, FIRST};
use crate::seq::Seq;
use crate::window::Window;
use crate::wire::Ack;

/// What to do with a message, a piece of one, or SKIP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// The message is complete: queue it for the program. It counts as queued from now on, so the
    /// caller must do that before it sends anything.
    Queue,
    /// A piece: keep it until the message is complete.
    Piece,
    /// The place of a message that will not come. Drop its pieces, if there are any.
    Skipped,
    /// It was queued before: drop it.
    Duplicate,
    /// The program takes no more messages: drop it.
    Closed,
    /// There was no memory for it, or for one before it: drop it, and its pieces. The peer sends it again
    /// after [`Receiver::ask_again`].
    Dropped,
}

/// What is wrong with an arrival. The receiver fails the path that it came by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArrivalError {
    /// A message is missing before this one, or it comes after the last.
    Gap(Seq),
    /// Longer than the receiver's terms allow.
    TooLong(u32),
    /// More messages than there were credits for.
    MessageCredit(Seq),
    /// More bytes than there were credits for.
    ByteCredit(u32),
    /// A piece that does not follow the one before.
    Piece(u32),
}

impl ArrivalError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Gap(_) => "a message is missing",
            Self::TooLong(_) => "message longer than agreed",
            Self::MessageCredit(_) => "more messages than credits",
            Self::ByteCredit(_) => "more bytes than credits",
            Self::Piece(_) => "piece does not follow the one before",
        }
    }
}

/// When an acknowledgement is to be sent if no frame goes out anyway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// There is nothing that the peer does not know.
    Never,
    /// At this time, in microseconds.
    At(u64),
    /// At once.
    Now,
}

/// The pieces of a message that have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Partial {
    total: u32,
    have: u32,
}

/// What has arrived is dropped, for want of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dropping {
    /// There is no memory yet.
    Waits,
    /// The peer is to be asked.
    Asks,
    /// The peer was asked: what comes in order is what it sends again.
    Asked,
}

/// The receiving half of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receiver {
    window: Window,
    /// All messages before this one are, or were, in the program's queue.
    next: Seq,
    /// All messages before this one were taken by the program.
    taken: Seq,
    /// Messages in the program's queue.
    waiting: u32,
    /// Cost of all messages that have arrived, counted from the beginning.
    bytes: Seq,
    /// Cost of all messages that were taken or skipped.
    freed: Seq,
    partial: Option<Partial>,
    /// What the peer was told last.
    announced: Ack,
    /// The sender waits for an acknowledgement.
    prompt: bool,
    /// Since when there is something that the peer does not know.
    since: Option<u64>,
    /// The program takes no more messages.
    closed: bool,
    dropping: Option<Dropping>,
}

impl Receiver {
    /// A receiver on these terms, whose messages begin with the number `first`: [`FIRST`] on the wire.
    /// The peer learns the terms from OPEN or ACCEPT.
    pub const fn new(window: Window, first: Seq) -> Self {
        let announced = Ack {
            next: first,
            taken: first,
            msg_limit: first.plus(window.messages()),
            byte_limit: FIRST.plus(window.bytes()),
        };
        Self {
            window,
            next: first,
            taken: first,
            waiting: 0,
            bytes: FIRST,
            freed: FIRST,
            partial: None,
            announced,
            prompt: false,
            since: None,
            closed: false,
            dropping: None,
        }
    }

    /// A message arrives, or a piece of it: `len` bytes at `offset` of `total`. `prompt`: its sender
    /// waits for the acknowledgement.
    ///
    /// # Errors
    ///
    /// When it is not the message that comes next, or has no credits. Nothing has changed then.
    pub fn message(
        &mut self,
        number: Seq,
        total: u32,
        offset: u32,
        len: u32,
        prompt: bool,
    ) -> Result<Arrival, ArrivalError> {
        if let Some(arrival) = self.arrival(number, total)? {
            return Ok(arrival);
        }
        if self.is_former(offset) {
            return Ok(Arrival::Dropped);
        }
        self.dropping = None;
        let have = match self.partial {
            None => 0,
            Some(partial) if partial.total == total => partial.have,
            Some(_) => return Err(ArrivalError::Piece(offset)),
        };
        let end = offset.checked_add(len);
        let end = end.filter(|end| offset == have && *end <= total);
        let end = end.ok_or(ArrivalError::Piece(offset))?;
        if end < total {
            self.partial = Some(Partial { total, have: end });
            return Ok(Arrival::Piece);
        }
        self.partial = None;
        self.prompt |= prompt;
        self.next = self.next.plus(1);
        self.bytes = self.bytes.plus(cost(total));
        self.waiting = self.waiting.saturating_add(1);
        Ok(Arrival::Queue)
    }

    /// A message arrives, or a piece of it, for which there is no memory.
    ///
    /// # Errors
    ///
    /// As [`Receiver::message`].
    pub fn no_memory(
        &mut self,
        number: Seq,
        total: u32,
        offset: u32,
    ) -> Result<Arrival, ArrivalError> {
        if let Some(arrival) = self.arrival(number, total)? {
            return Ok(arrival);
        }
        if !self.is_former(offset) {
            self.partial = None;
            self.dropping = Some(Dropping::Waits);
        }
        Ok(Arrival::Dropped)
    }

    /// Whether a piece of the message that comes next was sent before the peer was asked to send again.
    fn is_former(&self, offset: u32) -> bool {
        match self.dropping {
            None => false,
            Some(Dropping::Asked) => offset != 0,
            Some(Dropping::Waits | Dropping::Asks) => true,
        }
    }

    /// Whether messages are dropped that the peer will send again, and so its end as well.
    pub const fn is_dropping(&self) -> bool {
        self.dropping.is_some()
    }

    /// There is memory: the peer is to send again what was dropped, if anything was.
    pub fn ask_again(&mut self) {
        if self.dropping == Some(Dropping::Waits) {
            self.dropping = Some(Dropping::Asks);
        }
    }

    /// SKIP arrives, for a message of `total` bytes.
    ///
    /// # Errors
    ///
    /// As [`Receiver::message`].
    pub fn skip(&mut self, number: Seq, total: u32) -> Result<Arrival, ArrivalError> {
        if let Some(arrival) = self.arrival(number, total)? {
            return Ok(arrival);
        }
        (self.partial, self.dropping) = (None, None);
        self.next = self.next.plus(1);
        self.bytes = self.bytes.plus(cost(total));
        self.freed = self.freed.plus(cost(total));
        if self.waiting == 0 {
            self.taken = self.next;
        }
        Ok(Arrival::Skipped)
    }

    /// NOTE arrives: it takes the place of a message for the program, which has no content.
    /// [`Arrival::Skipped`]: it is the one that comes next, and counts.
    ///
    /// # Errors
    ///
    /// As [`Receiver::message`].
    pub fn note(&mut self, number: Seq) -> Result<Arrival, ArrivalError> {
        let arrival = self.skip(number, 0)?;
        // The sender waits for it: a PUT is done when this is acknowledged.
        self.prompt |= arrival == Arrival::Skipped;
        Ok(arrival)
    }

    /// What a message and SKIP have in common; `None` for one that comes next.
    fn arrival(&self, number: Seq, total: u32) -> Result<Option<Arrival>, ArrivalError> {
        if self.closed {
            return Ok(Some(Arrival::Closed));
        }
        match number.since(self.next) {
            ..0 => return Ok(Some(Arrival::Duplicate)),
            0 => {}
            1.. if self.is_dropping() => return Ok(Some(Arrival::Dropped)),
            1.. => return Err(ArrivalError::Gap(number)),
        }
        if total > self.window.max_message() {
            return Err(ArrivalError::TooLong(total));
        }
        if !number.is_before(self.announced.msg_limit) {
            return Err(ArrivalError::MessageCredit(number));
        }
        let bytes = self.bytes.plus(cost(total));
        match self.announced.byte_limit.is_before(bytes) {
            true => Err(ArrivalError::ByteCredit(total)),
            false => Ok(None),
        }
    }

    /// The program has taken the first message of its queue, of `len` bytes. `front` is the number of
    /// the one that is first now; `None` if the queue is empty.
    pub fn took(&mut self, len: u32, front: Option<Seq>) {
        if self.closed {
            return;
        }
        self.freed = self.freed.plus(cost(len));
        self.waiting = match front {
            None => 0,
            Some(_) => self.waiting.saturating_sub(1),
        };
        self.taken = self.taken.later(front.unwrap_or(self.next));
    }

    /// The connection is lost: pieces that have arrived count no more, and the peer sends again what it is
    /// not told to have arrived.
    pub fn lost(&mut self) {
        (self.partial, self.dropping) = (None, None);
    }

    /// The program will read what is in its queue although it gets nothing more: all of that counts as taken. To
    /// be called before [`Receiver::close`].
    pub fn take_all(&mut self) {
        if !self.closed {
            self.taken = self.next;
            self.waiting = 0;
        }
    }

    /// The program takes no more messages: what is in its queue is dropped, and what comes is not
    /// queued any more. [`Receiver::ack`] is final.
    pub fn close(&mut self) {
        self.closed = true;
        (self.partial, self.dropping) = (None, None);
        self.waiting = 0;
    }

    /// The peer has sent its last message, before the number `end`.
    ///
    /// # Errors
    ///
    /// When messages are missing.
    pub fn ended(&self, end: Seq) -> Result<(), ArrivalError> {
        let is_complete = end == self.next && self.partial.is_none();
        match self.closed || is_complete {
            true => Ok(()),
            false => Err(ArrivalError::Gap(end)),
        }
    }

    /// What the peer may know now.
    pub const fn ack(&self) -> Ack {
        Ack {
            next: self.next,
            taken: self.taken,
            msg_limit: self.taken.plus(self.window.messages()),
            byte_limit: self.freed.plus(self.window.bytes()),
        }
    }

    /// The acknowledgement for a record that is sent now.
    pub fn announce(&mut self) -> Ack {
        let ack = self.ack();
        self.announced = ack;
        self.prompt = false;
        self.since = None;
        ack
    }

    /// The acknowledgement for ACK, and whether it asks for messages again.
    pub fn announce_alone(&mut self) -> (Ack, bool) {
        let asks = self.dropping == Some(Dropping::Asks);
        if asks {
            self.dropping = Some(Dropping::Asked);
        }
        (self.announce(), asks)
    }

    /// When to send an acknowledgement alone: at once if a quarter of the window is unknown to the peer
    /// or the sender waits; otherwise [`ACK_DELAY_US`] after the first change. To be called after each
    /// change, with the present time in microseconds.
    pub fn due(&mut self, now: u64) -> Due {
        if self.dropping == Some(Dropping::Asks) {
            return Due::Now;
        }
        let ack = self.ack();
        if ack == self.announced {
            return Due::Never;
        }
        let at = self.since.get_or_insert(now).saturating_add(ACK_DELAY_US);
        let told = self.announced;
        let messages = quarter(self.window.messages());
        let bytes = quarter(self.window.bytes());
        let is_much = ack.next.since(told.next) >= messages
            || ack.msg_limit.since(told.msg_limit) >= messages
            || ack.byte_limit.since(told.byte_limit) >= bytes;
        match self.prompt || is_much || at <= now {
            true => Due::Now,
            false => Due::At(at),
        }
    }

    /// The number of the message that comes next.
    pub const fn next(&self) -> Seq {
        self.next
    }

    /// The terms.
    pub const fn window(&self) -> &Window {
        &self.window
    }
}

/// A quarter of a window, at least 1.
const fn quarter(window: u32) -> i32 {
    match window / 4 {
        0 => 1,
        // CAST: A quarter fits.
        quarter => quarter as i32,
    }
}
