// SPDX-License-Identifier: GPL-2.0

//! Takes the messages of the program.

use core::mem::MaybeUninit;
use ibmsg_proto::send::Refused;
use kernel::prelude::*;

use super::{
    out::{
        About,
        Reserved,
        Sent, //
    },
    Begun,
    Caller,
    Chan, //
};
use crate::types::{
    Body,
    Header,
    Kind,
    F_BODY,
    F_MORE,
    F_RECEIPT, //
};

/// Messages of a channel that wait for others; with more, they are sent at once.
const GATHERED: usize = 32;

impl Chan {
    /// Reserves a place for a message before its content is copied. `caller` gets the reply if the message is a
    /// request.
    ///
    /// # Errors
    ///
    /// - [`EAGAIN`] if there is no room, or the channel is not open yet,
    /// - [`EMSGSIZE`] if the peer does not take messages of that length,
    /// - [`EOPNOTSUPP`] for a request if it does not answer any, and for a body if it does not take any,
    /// - [`ENOENT`] for a reply to no request,
    /// - [`EPIPE`] if nothing can be written any more,
    /// - [`ENOMEM`] if there is no memory before [`Chan::extend`].
    pub(crate) fn reserve(
        &mut self,
        header: &Header,
        caller: Caller,
        now: u64,
    ) -> Result<Reserved> {
        let reserved = self.try_reserve(header, caller, now);
        if matches!(reserved, Err(EAGAIN)) {
            self.is_blocked = true;
            // The room that is lacking may be that of messages that wait for this one.
            self.gather.release();
        }
        reserved
    }

    fn try_reserve(&mut self, header: &Header, caller: Caller, now: u64) -> Result<Reserved> {
        if self.takes_no_more() {
            return Err(EPIPE);
        }
        if self.begun != Begun::Open {
            return Err(EAGAIN);
        }
        if header.flags & F_BODY != 0 {
            self.may_lend()?;
        }
        if header.kind == Kind::Reply && !self.calls.is_unanswered(header.id) {
            return Err(ENOENT);
        }
        let timeout_ms = match (header.timeout_ms, header.kind) {
            // A call that was executed has an answer.
            (_, Kind::Reply) => 0,
            // Nobody is told of a note.
            _ if matches!(caller, Caller::Nobody) => 0,
            (0, _) => self.terms.timeout_ms,
            (timeout_ms, _) => timeout_ms,
        };
        let deadline = (timeout_ms != 0).then(|| now + u64::from(timeout_ms) * 1000);
        let is_request = header.kind == Kind::Request;
        let may_tell = match is_request {
            true => matches!(caller, Caller::Reader),
            false => header.flags & F_RECEIPT != 0 || deadline.is_some(),
        };
        // The program is told of each body, whatever it asks for.
        let owes = may_tell || header.flags & F_BODY != 0;
        if owes && self.has_many_notices() {
            return Err(EAGAIN);
        }
        let item = self
            .proto
            .tx
            .queue(header.len)
            .map_err(|refused| match refused {
                Refused::TooLong => EMSGSIZE,
                Refused::Full => EAGAIN,
                Refused::Closed => EPIPE,
            })?;
        let mut reserved = Reserved {
            item,
            about: About {
                kind: header.kind,
                publish: None,
                flags: header.flags,
                tag: header.tag,
                id: header.id,
                may_tell: false,
            },
            status: header.status,
            since: now,
            deadline,
        };
        match self.prepare(&mut reserved, caller, may_tell) {
            Ok(()) => Ok(reserved),
            Err(e) => {
                self.proto.tx.release(reserved.item);
                Err(e)
            }
        }
    }

    /// Makes room for a message and for what its program may be told, and makes its call.
    fn prepare(&mut self, reserved: &mut Reserved, caller: Caller, may_tell: bool) -> Result {
        self.out.reserve()?;
        // The receipt of a body is another one.
        let has_body = reserved.about.flags & F_BODY != 0;
        let owed = usize::from(may_tell) + usize::from(has_body);
        if let Err(e) = self.inbox.owes_more(owed) {
            self.out.unreserve();
            return Err(e);
        }
        if reserved.about.kind == Kind::Request {
            let most = self.most_calls();
            let (tag, times) = (reserved.about.tag, (reserved.since, reserved.deadline));
            match self.calls.make(most, tag, times, caller) {
                Ok(id) => reserved.about.id = id,
                Err(e) => {
                    self.owes_no_more(may_tell);
                    self.owes_no_more(has_body);
                    self.out.unreserve();
                    return Err(e);
                }
            }
        }
        reserved.about.may_tell = may_tell;
        Ok(())
    }

    /// A notice that might have come does not.
    fn owes_no_more(&mut self, was_owed: bool) {
        if was_owed {
            self.inbox.owes_less();
        }
    }

    /// Gives up a place.
    pub(crate) fn cancel(&mut self, reserved: Reserved) {
        self.out.unreserve();
        self.give_up(reserved);
    }

    fn give_up(&mut self, reserved: Reserved) {
        let about = reserved.about;
        if about.kind == Kind::Request {
            self.calls.unmake(about.id);
        }
        self.owes_no_more(about.may_tell);
        self.owes_no_more(about.flags & F_BODY != 0);
        self.proto.tx.release(reserved.item);
        self.has_freed = true;
        self.tell_writable();
    }

    /// Queues a message in its place, for which the caller has memory.
    ///
    /// # Errors
    ///
    /// [`EPIPE`] and [`ENOENT`] as for [`Chan::reserve`]; [`ECANCELED`] for a request whose answer nobody wants; for a
    /// body, as [`Memory::may_lend`](crate::memory::Memory::may_lend), and [`EINVAL`].
    pub(crate) fn commit(
        &mut self,
        reserved: Reserved,
        body: Body,
        place: KBox<MaybeUninit<Sent>>,
    ) -> Result {
        if self.takes_no_more() {
            self.cancel(reserved);
            return Err(EPIPE);
        }
        let about = reserved.about;
        let lent = match about.flags & F_BODY {
            0 => None,
            _ => match self.body_to_lend(&body) {
                Ok(lent) => Some(lent),
                Err(e) => {
                    self.cancel(reserved);
                    return Err(e);
                }
            },
        };
        if about.kind == Kind::Reply && !self.calls.answer(about.id, reserved.since) {
            self.cancel(reserved);
            return Err(ENOENT);
        }
        // A command may have been cancelled meanwhile.
        if about.kind == Kind::Request && !self.calls.written(about.id) {
            self.cancel(reserved);
            return Err(ECANCELED);
        }
        let more = about.flags & F_MORE != 0;
        let batch = self
            .gather
            .add(reserved.item.len(), more, reserved.since, reserved.deadline);
        let sent = Sent {
            item: reserved.item,
            about,
            batch,
            status: reserved.status,
            deadline: reserved.deadline,
            body,
            put: None,
            release: None,
            next: None,
            others: None,
        };
        self.expires_at(reserved.deadline);
        // There is a place in the queue.
        if let Err(sent) = self.out.push(KBox::write(place, sent)) {
            let sent = KBox::into_inner(sent);
            self.give_up(Reserved {
                item: sent.item,
                about,
                status: sent.status,
                since: reserved.since,
                deadline: sent.deadline,
            });
            return Err(ENOMEM);
        }
        if let Some(lent) = lent {
            self.lend(&lent, about.tag);
        }
        if !self.is_writable() {
            // The next one might wait for room.
            self.gather.release();
        }
        Ok(())
    }

    /// Sends the messages that wait for others.
    pub(crate) fn flush(&mut self) {
        self.gather.release();
    }

    /// Whether all messages were sent but for those that wait for others.
    pub(crate) fn holds_the_rest(&self) -> bool {
        self.gather.until().is_some() && self.next_message().is_none()
    }

    /// Whether a message that was just written may wait for others, to share their frame.
    ///
    /// A request or a reply may if there are others on their way, as a program that has several in flight is about to
    /// write more: after an answer that it has read, or for a request that it has. One that is alone goes at once. So do
    /// messages of one way, which fill frames when the peer's credits are used up; a wake-up for each of them would cost
    /// more than the frames that it saves.
    pub(crate) fn gathers(&self, kind: Kind) -> bool {
        let on_their_way = self.proto.tx.high().since(self.proto.tx.acked());
        let on_their_way = usize::try_from(on_their_way).unwrap_or(0);
        let unsent = self.out.len().saturating_sub(on_their_way);
        matches!(kind, Kind::Request | Kind::Reply) && on_their_way > 0 && unsent < GATHERED
    }
}
