// SPDX-License-Identifier: GPL-2.0

//! What a program can read from a channel.

use ibmsg_proto::{
    wire::Message,
    Seq, //
};
use ibtrs_proto::Errno;
use kernel::{
    alloc::Flags,
    prelude::*, //
};
use kx::deque::{
    Deque,
    Lack,
    Spare, //
};

use crate::types::{
    Body,
    Event,
    Header,
    Kind,
    F_BODY,
    F_KERNEL,
    HEADER_LEN, //
};

/// A message of the other program.
pub(crate) struct Incoming {
    pub(crate) kind: Kind,
    /// Of publishing.
    pub(crate) event: Option<Event>,
    pub(crate) number: Seq,
    pub(crate) id: u64,
    pub(crate) tag: u64,
    pub(crate) status: u16,
    pub(crate) body: Body,
    /// A reply to a call that has ended without it.
    pub(crate) is_late: bool,
    /// Its content begins with `struct ibmsg_body`.
    pub(crate) has_body: bool,
    /// Where its record is in the frame, and the one after it.
    pub(crate) at: usize,
    pub(crate) next: Option<KBox<Incoming>>,
}

// A page has 32 of them.
const _: () = assert!(size_of::<Incoming>() <= 128);

impl Incoming {
    /// Memory for a message, with a copy of the content of a record, which is at `at` in its frame.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn new(message: &Message<'_>, at: usize, flags: Flags) -> Result<KBox<Self>> {
        let content = message.content;
        // CAST: Lossless.
        let is_whole = message.hdr.total as usize == content.len();
        let incoming = Self {
            kind: Kind::Msg,
            event: None,
            number: message.hdr.number,
            id: 0,
            tag: message.hdr.tag,
            status: 0,
            body: match is_whole {
                true => Body::whole(content, flags)?,
                false => Body::piece(content, flags)?,
            },
            is_late: false,
            has_body: false,
            at,
            next: None,
        };
        Ok(KBox::new(incoming, flags)?)
    }

    fn header(&self) -> Header {
        Header {
            flags: if self.has_body { F_BODY } else { 0 },
            event: self.event,
            len: self.body.len(),
            id: self.id,
            tag: self.tag,
            status: self.status,
            ..Header::new(self.kind)
        }
    }
}

/// A list of messages. Adding to it allocates nothing.
pub(crate) struct Stack(Option<KBox<Incoming>>);

impl Stack {
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    /// Adds a message, which is the first one from now on.
    pub(crate) fn push(&mut self, mut message: KBox<Incoming>) {
        message.next = self.0.take();
        self.0 = Some(message);
    }

    /// Takes the first message.
    pub(crate) fn pop(&mut self) -> Option<KBox<Incoming>> {
        let mut first = self.0.take()?;
        self.0 = first.next.take();
        Some(first)
    }

    /// The first message.
    pub(crate) fn first(&self) -> Option<&Incoming> {
        self.0.as_deref()
    }

    /// Moves all messages to another list, in the opposite order.
    pub(crate) fn move_to(&mut self, other: &mut Self) {
        while let Some(message) = self.pop() {
            other.push(message);
        }
    }
}

impl Drop for Stack {
    /// One by one: the list may be long.
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

/// What has become of a message of the program.
#[derive(Clone, Copy)]
pub(crate) struct Notice {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) tag: u64,
    pub(crate) status: u16,
}

impl Notice {
    /// The kernel's reply to a call.
    pub(crate) fn unanswered(tag: u64, errno: Errno) -> Self {
        Self {
            kind: Kind::Reply,
            flags: F_KERNEL,
            tag,
            status: status(errno),
        }
    }
}

/// An errno for a program.
pub(crate) fn status(errno: Errno) -> u16 {
    u16::try_from(errno.get()).unwrap_or(0)
}

/// Something that a program reads.
pub(crate) enum Taken {
    Message(KBox<Incoming>),
    Notice(Notice),
    Event(Header, Body),
}

impl Taken {
    /// Its header.
    pub(crate) fn header(&self) -> Header {
        match self {
            Self::Message(message) => message.header(),
            Self::Notice(notice) => Header {
                flags: notice.flags,
                tag: notice.tag,
                status: notice.status,
                ..Header::new(notice.kind)
            },
            Self::Event(header, _) => *header,
        }
    }

    /// What follows.
    pub(crate) fn body(&self) -> Option<&Body> {
        match self {
            Self::Message(message) => Some(&message.body),
            Self::Notice(_) => None,
            Self::Event(_, body) => Some(body),
        }
    }
}

/// What there is to read.
pub(crate) enum Take {
    /// This.
    Item(Taken),
    /// Something for which the program's buffer is too small.
    TooLong,
    /// Nothing now.
    Nothing,
    /// Nothing any more.
    End,
}

fn event(event: Event) -> Header {
    Header {
        event: Some(event),
        ..Header::new(Kind::Event)
    }
}

fn with_answer(mut header: Header, answer: &mut Body, room: usize) -> Take {
    // CAST: Lossless.
    if HEADER_LEN + answer.len() as usize > room {
        return Take::TooLong;
    }
    header.len = answer.len();
    Take::Item(Taken::Event(header, core::mem::take(answer)))
}

/// The event of the end.
pub(crate) fn closed(reason: u16, taken: u64, queued: u64, answer: &mut Body, room: usize) -> Take {
    let header = Header {
        id: queued,
        tag: taken,
        status: reason,
        ..event(Event::Closed)
    };
    with_answer(header, answer, room)
}

/// The event of the end of a subscription that the publisher has left without a word.
pub(crate) fn unsubscribed(tag: u64, position: u64, why: Option<Errno>, room: usize) -> Take {
    if room < HEADER_LEN {
        return Take::TooLong;
    }
    let header = Header {
        id: position,
        tag,
        status: why.map_or(0, status),
        ..event(Event::Unsubscribed)
    };
    Take::Item(Taken::Event(header, Body::new()))
}

/// What a program can read, and has not read.
///
/// # Invariants
///
/// There is room for a notice for each that is owed, and for one that is put back.
pub(crate) struct Inbox {
    messages: Deque<KBox<Incoming>>,
    /// The message before those, which is being copied to the program: its number and length.
    copying: Option<(Seq, u32)>,
    notices: Deque<Notice>,
    /// Notices that may come.
    owed: usize,
    /// Pieces of a message that is not complete.
    partial: Option<Body>,
    is_connected: bool,
    is_lost: bool,
    is_back: bool,
    /// Seconds for which the server will be away, of which the program has not read yet.
    draining: Option<u32>,
    /// Why the key of the session is of no use, of which the program has not read yet.
    key_revoked: Option<u16>,
    is_closed: bool,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            messages: Deque::new(),
            copying: None,
            notices: Deque::new(),
            owed: 0,
            partial: None,
            is_connected: false,
            is_lost: false,
            is_back: false,
            draining: None,
            key_revoked: None,
            is_closed: false,
        }
    }

    /// Takes no more messages. Returns those that there are.
    pub(crate) fn close(&mut self) -> (Deque<KBox<Incoming>>, Option<Body>) {
        self.is_closed = true;
        (core::mem::take(&mut self.messages), self.partial.take())
    }

    /// What is missing for another message, and for another notice.
    pub(crate) fn lack(&self) -> (Option<Lack>, Option<Lack>) {
        // One more for what is put back, and two for a message that has a body.
        let notices = self.notices.lack(self.owed + 3);
        (self.messages.lack(2), notices)
    }

    /// Takes memory for messages and notices.
    pub(crate) fn extend(
        &mut self,
        messages: &mut Spare<KBox<Incoming>>,
        notices: &mut Spare<Notice>,
    ) {
        self.messages.extend(messages);
        self.notices.extend(notices);
    }

    /// The connection is lost.
    pub(crate) fn lost(&mut self) {
        self.partial = None;
    }

    /// Makes room for a message, and for a piece of one.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn reserve(&mut self, piece: &Body) -> Result {
        // A whole message in the place of a piece is an error that is found out later.
        if let Some(partial) = self.partial.as_mut().filter(|_| !piece.is_short()) {
            partial.reserve(piece, GFP_ATOMIC | __GFP_NOWARN)?;
        }
        self.messages.reserve(2, GFP_ATOMIC | __GFP_NOWARN)
    }

    /// Keeps a piece, for which there is room.
    pub(crate) fn keep(&mut self, piece: Body) {
        match &mut self.partial {
            Some(partial) if !piece.is_short() => partial.add(piece),
            _ => self.partial = Some(piece),
        }
    }

    /// The message that was kept in pieces.
    pub(crate) fn complete(&mut self) -> Body {
        self.partial.take().unwrap_or_default()
    }

    /// Drops the pieces.
    pub(crate) fn drop_pieces(&mut self) {
        self.partial = None;
    }

    /// Queues a message, for which there is room.
    pub(crate) fn push(&mut self, message: KBox<Incoming>) {
        if !self.is_closed {
            let _ = self.messages.push_back(message);
        }
    }

    /// The number of the first message that the program does not have.
    pub(crate) fn front(&self) -> Option<Seq> {
        let front = self.messages.front().map(|message| message.number);
        self.copying.map(|(number, _)| number).or(front)
    }

    /// Whether the first message is late.
    pub(crate) fn has_late(&self) -> bool {
        self.messages.front().is_some_and(|message| message.is_late)
    }

    /// Takes the first message if it is late.
    pub(crate) fn pop_late(&mut self) -> Option<KBox<Incoming>> {
        self.has_late().then(|| self.messages.pop_front()).flatten()
    }

    /// Makes room for some more notices that may come, at most two.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`] if there is none before [`Inbox::extend`].
    pub(crate) fn owes_more(&mut self, count: usize) -> Result {
        if count > 0 && self.notices.lack(self.owed + count + 1).is_some() {
            return Err(ENOMEM);
        }
        self.owed += count;
        Ok(())
    }

    /// A notice that might have come has come, or will not come.
    pub(crate) fn owes_less(&mut self) {
        self.owed = self.owed.saturating_sub(1);
    }

    /// Queues a notice that was owed.
    pub(crate) fn tell(&mut self, notice: Notice) {
        let _ = self.notices.push_back(notice);
    }

    /// Notices that wait, or may come.
    pub(crate) fn notices(&self) -> usize {
        self.notices.len() + self.owed
    }

    /// The program wants to know that the channel is open.
    pub(crate) fn connected(&mut self) {
        self.is_connected = true;
    }

    /// The channel has lost its connection.
    pub(crate) fn path_lost(&mut self) {
        // If the program has not read that it was back, it never was.
        match self.is_back {
            true => self.is_back = false,
            false => self.is_lost = true,
        }
    }

    /// The channel has a connection again.
    pub(crate) fn path_back(&mut self) {
        self.is_back = true;
    }

    /// The server is about to be stopped. The program reads of the latest announcement.
    pub(crate) fn draining(&mut self, seconds: u32) {
        self.draining = Some(seconds);
    }

    /// The key of the session is of no use any more. The program reads of the latest reason.
    pub(crate) fn key_revoked(&mut self, why: Errno) {
        self.key_revoked = Some(status(why));
    }

    /// Whether there is something else than messages.
    pub(crate) fn has_notice(&self) -> bool {
        self.is_connected
            || self.is_lost
            || self.is_back
            || self.draining.is_some()
            || self.key_revoked.is_some()
            || !self.notices.is_empty()
    }

    /// Whether there is a message.
    pub(crate) fn has_message(&self) -> bool {
        !self.messages.is_empty()
    }

    /// Messages that wait.
    pub(crate) fn messages(&self) -> usize {
        self.messages.len()
    }

    /// Bytes that the next read needs, with an answer of so many bytes; none if there is nothing.
    pub(crate) fn next_len(&self, answer: usize) -> Option<usize> {
        if self.is_connected {
            return Some(HEADER_LEN + answer);
        }
        if self.has_notice() {
            return Some(HEADER_LEN);
        }
        let message = self.messages.front()?;
        // CAST: Lossless.
        Some(HEADER_LEN + message.body.len() as usize)
    }

    /// The next thing, if the program has room for it.
    pub(crate) fn take(&mut self, room: usize, answer: &mut Body) -> Take {
        // CAST: Lossless.
        match self.next_len(answer.len() as usize) {
            None => return Take::Nothing,
            Some(len) if len > room => return Take::TooLong,
            Some(_) => {}
        }
        if core::mem::take(&mut self.is_connected) {
            return with_answer(event(Event::Connected), answer, room);
        }
        if let Some(notice) = self.notices.pop_front() {
            return Take::Item(Taken::Notice(notice));
        }
        if let Some(seconds) = self.draining.take() {
            let header = Header {
                tag: u64::from(seconds),
                ..event(Event::Draining)
            };
            return Take::Item(Taken::Event(header, Body::new()));
        }
        if let Some(status) = self.key_revoked.take() {
            let header = Header {
                status,
                ..event(Event::KeyRevoked)
            };
            return Take::Item(Taken::Event(header, Body::new()));
        }
        if core::mem::take(&mut self.is_lost) {
            return Take::Item(Taken::Event(event(Event::PathLost), Body::new()));
        }
        if core::mem::take(&mut self.is_back) {
            return Take::Item(Taken::Event(event(Event::PathBack), Body::new()));
        }
        match self.messages.pop_front() {
            Some(message) => {
                self.copying = Some((message.number, message.body.len()));
                Take::Item(Taken::Message(message))
            }
            None => Take::Nothing,
        }
    }

    /// The program has the message that was taken. Returns its length, unless that was returned before.
    pub(crate) fn copied(&mut self) -> Option<u32> {
        self.copying.take().map(|(_, len)| len)
    }

    /// Gives up memory that is not needed now.
    pub(crate) fn shrink(&mut self) {
        self.messages.shrink();
    }

    /// Puts something back that the program could not take.
    pub(crate) fn put_back(&mut self, taken: Taken, answer: &mut Body) {
        match taken {
            Taken::Message(message) => {
                self.copying = None;
                if !self.is_closed {
                    let _ = self.messages.push_front(message);
                }
            }
            Taken::Notice(notice) => {
                let _ = self.notices.push_front(notice);
            }
            Taken::Event(header, body) => match header.event {
                Some(Event::Connected) => {
                    self.is_connected = true;
                    *answer = body;
                }
                Some(Event::Closed) => *answer = body,
                Some(Event::PathLost) => self.is_lost = true,
                Some(Event::PathBack) => self.is_back = true,
                // A later one counts.
                Some(Event::Draining) if self.draining.is_none() => {
                    self.draining = u32::try_from(header.tag).ok();
                }
                Some(Event::KeyRevoked) if self.key_revoked.is_none() => {
                    self.key_revoked = Some(header.status);
                }
                Some(Event::Draining | Event::KeyRevoked) => {}
                // Those are among the messages, or come again as long as the channel has the subscription.
                Some(Event::Subscribed | Event::Lost | Event::Unsubscribed) | None => {}
            },
        }
    }
}
