// SPDX-License-Identifier: GPL-2.0

//! Takes records that have arrived for a channel.

use ibmsg_proto::{
    call::CallError,
    channel::{
        Again,
        ChannelError,
        Conn,
        PeerCloses,
        Resumed,
        Resumes, //
    },
    history::What,
    outcome::Cause,
    receive::{
        Arrival,
        ArrivalError, //
    },
    refused::Reason,
    send::AckError,
    wire::{
        Accept,
        Ack,
        AckRecord,
        Close,
        Kind as WireKind,
        Live,
        Message,
        MessageHdr,
        Open,
        PublishKind,
        ResumeEntry,
        Skip, //
    },
    Seq, //
};
use ibtrs_proto::Errno;
use kernel::prelude::*;
use kx::file::Ready;

use super::{
    inbox::{
        self,
        Incoming, //
    },
    Begun,
    Chan,
    Owed, //
};
use crate::{
    history,
    types::{
        Body,
        Kind, //
    }, //
};

/// Why a record was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// There is no memory for an answer now. Nothing has changed.
    NoMemory,
    /// The peer must not send that.
    Protocol(&'static str),
}

impl From<ChannelError> for Fault {
    fn from(e: ChannelError) -> Self {
        Self::Protocol(e.as_str())
    }
}

impl From<ArrivalError> for Fault {
    fn from(e: ArrivalError) -> Self {
        Self::Protocol(e.as_str())
    }
}

impl From<AckError> for Fault {
    fn from(e: AckError) -> Self {
        Self::Protocol(e.as_str())
    }
}

impl From<CallError> for Fault {
    fn from(e: CallError) -> Self {
        Self::Protocol(e.as_str())
    }
}

/// For allocations, the only ones that fail where records are taken.
impl From<Error> for Fault {
    fn from(_: Error) -> Self {
        Self::NoMemory
    }
}

impl Chan {
    /// MESSAGE has arrived. `incoming` has its content, if there was memory for that.
    pub(crate) fn message(
        &mut self,
        message: &Message<'_>,
        incoming: Option<KBox<Incoming>>,
        now: u64,
    ) -> Result<(), Fault> {
        self.proto.check_open()?;
        let header = &message.hdr;
        if message.is_too_short() {
            return Err(Fault::Protocol("piece of a message too short"));
        }
        if let WireKind::Publish(kind @ (PublishKind::Subscribe | PublishKind::Unsubscribe)) =
            header.kind
        {
            return self.asked(kind, message, now);
        }
        if header.body {
            match self.takes_bodies() {
                // It is this channel that waits, not the connection.
                Err(Fault::NoMemory) => return self.has_no_memory(header, now),
                result => result?,
            }
        }
        let incoming = incoming.filter(|incoming| self.inbox.reserve(&incoming.body).is_ok());
        let Some(mut incoming) = incoming else {
            return self.has_no_memory(header, now);
        };
        // CAST: A frame is shorter.
        let len = message.content.len() as u32;
        let arrival = self.proto.rx.message(
            header.number,
            header.total,
            header.offset,
            len,
            header.prompt,
        )?;
        self.acknowledged(&header.ack)?;
        match arrival {
            Arrival::Piece => self.inbox.keep(core::mem::take(&mut incoming.body)),
            Arrival::Queue => {
                self.inbox.keep(core::mem::take(&mut incoming.body));
                incoming.body = self.inbox.complete();
                self.queue(message, incoming, now)?;
            }
            Arrival::Skipped | Arrival::Duplicate | Arrival::Closed | Arrival::Dropped => {}
        }
        Ok(())
    }

    /// There is no memory for a message that has arrived, or for a piece of it.
    pub(super) fn has_no_memory(&mut self, header: &MessageHdr, now: u64) -> Result<(), Fault> {
        let rx = &mut self.proto.rx;
        let arrival = rx.no_memory(header.number, header.total, header.offset)?;
        self.acknowledged(&header.ack)?;
        if arrival == Arrival::Dropped {
            self.starves(now);
        }
        Ok(())
    }

    /// Queues a message for the program.
    fn queue(
        &mut self,
        message: &Message<'_>,
        mut incoming: KBox<Incoming>,
        now: u64,
    ) -> Result<(), Fault> {
        let header = &message.hdr;
        incoming.tag = header.tag;
        if header.body {
            self.body_arrived(&incoming.body)?;
            incoming.has_body = true;
        }
        match header.kind {
            WireKind::OneWay => {}
            WireKind::Request => {
                self.calls.request(header.id, now)?;
                incoming.kind = Kind::Request;
                incoming.id = header.id;
            }
            WireKind::Publish(kind) => self.takes_news(kind, message, &mut incoming)?,
            WireKind::Reply => {
                incoming.kind = Kind::Reply;
                incoming.status = header.status;
                match self.calls.reply(header.id, incoming, now)? {
                    Some(reply) => incoming = reply,
                    None => return Ok(()),
                }
                // A slot for another call is free.
                self.has_freed = true;
                if !incoming.is_late {
                    self.inbox.owes_less();
                }
            }
        }
        self.inbox.push(incoming);
        self.drop_late();
        self.wake.wake(Ready::IN);
        Ok(())
    }

    /// SKIP has arrived.
    pub(crate) fn skip(&mut self, skip: &Skip) -> Result<(), Fault> {
        self.proto.check_open()?;
        // Pieces that are kept are of a message that comes after one that was skipped before.
        if self.proto.rx.skip(skip.number, skip.total)? == Arrival::Skipped {
            self.inbox.drop_pieces();
        }
        self.acknowledged(&skip.ack)
    }

    /// ACK has arrived.
    pub(crate) fn ack(&mut self, record: &AckRecord) -> Result<(), Fault> {
        if self.proto.peer_has_ended() {
            return Ok(());
        }
        self.proto.check_open()?;
        if self.proto.acknowledged(record)? {
            // From the first piece.
            self.out.lost();
        }
        self.pop_acknowledged();
        Ok(())
    }

    pub(super) fn acknowledged(&mut self, ack: &Ack) -> Result<(), Fault> {
        self.proto.tx.acknowledged(ack)?;
        self.pop_acknowledged();
        Ok(())
    }

    /// ACCEPT has arrived by `conn`.
    pub(crate) fn accepted(&mut self, conn: Conn, accept: &Accept<'_>) -> Result<(), Fault> {
        let is_new = self.peer.is_none();
        let opens = self.proto.accepted(conn, accept.moves, &accept.window)?;
        if self.proto.takes_from(conn) && is_new {
            self.peer = Some(accept.window);
            self.memory_is_agreed();
        }
        if opens {
            self.happens(What::Opened, history::Cause::None);
            self.begun = Begun::Open;
            self.answer = Body::within(core::mem::take(&mut self.place), accept.data);
            if self.tells_connected {
                self.inbox.connected();
            }
            (self.wants_room, self.is_blocked) = (false, false);
            self.wake.wake(Ready::IN | Ready::OUT | Ready::PRI);
        }
        Ok(())
    }

    /// REJECT or REDIRECT has arrived by `conn`.
    pub(crate) fn refused(
        &mut self,
        conn: Conn,
        moves: Seq,
        reason: Errno,
        data: &[u8],
    ) -> Result<(), Fault> {
        if self.proto.rejected(conn, moves)? {
            self.count_refusal(Reason::told(reason));
            self.ends_for(What::Refused, history::Cause::Refused(reason, ""));
            self.begun = Begun::Refused(reason);
            self.answer = Body::within(core::mem::take(&mut self.place), data);
            self.owes_closed = true;
            self.ends(inbox::status(reason));
        }
        Ok(())
    }

    /// CLOSE has arrived by `conn`.
    pub(crate) fn peer_closes(&mut self, conn: Conn, close: &Close) -> Result<(), Fault> {
        let had_ended = self.proto.peer_has_ended();
        let closes = self.proto.peer_closes(conn, close)?;
        if closes == PeerCloses::Ends {
            self.owes_closed = true;
        }
        if closes == PeerCloses::Stale || had_ended {
            return Ok(());
        }
        self.note_peer_closed(close.reason);
        self.peer_reason = close.reason;
        self.end_messages(Cause::Closed);
        if closes == PeerCloses::Ends {
            self.end_calls(None, Cause::Closed);
            self.ends(close.reason);
        }
        self.wake.wake(Ready::OUT);
        Ok(())
    }

    /// CLOSED has arrived by `conn`.
    pub(crate) fn closed(&mut self, conn: Conn) -> Result<(), Fault> {
        let was_over = self.proto.is_over();
        self.proto.closed(conn)?;
        if self.proto.is_over() && !was_over {
            self.end_was_taken();
        }
        Ok(())
    }

    /// OPEN has arrived by `conn` for this channel, which exists.
    pub(crate) fn open_again(&mut self, conn: Conn, open: &Open<'_>) -> Result<(), Fault> {
        match self.proto.open_again(conn, open.moves)? {
            Again::Stale => return Ok(()),
            Again::Wait => {}
            Again::Accept => {
                self.restart();
                self.owed = Owed::Accept;
                self.is_back();
            }
            Again::Reject => self.owed = Owed::Reject,
        }
        Ok(())
    }

    /// What was under way by the former connection begins again.
    fn restart(&mut self) {
        self.peer_is_fenced();
        self.out.lost();
        self.inbox.drop_pieces();
        self.is_front = false;
        self.comes_again();
        self.owes_closed = false;
    }

    /// An entry of RESUME has arrived by `conn`. `is_relocated`: the client has not lost the connection that the
    /// channel was on. Returns an answer that is not the channel's.
    pub(crate) fn resume(
        &mut self,
        conn: Conn,
        entry: &ResumeEntry,
        is_relocated: bool,
    ) -> Result<Option<ResumeEntry>, Fault> {
        let (answer, has_ended) = match self.proto.resume(conn, entry)? {
            Resumes::Stale => return Ok(None),
            Resumes::Another(answer) => return Ok(Some(answer)),
            Resumes::Answer(answer) => (answer, false),
            Resumes::Ended(answer) => (answer, true),
        };
        if !is_relocated {
            // Perhaps its connection was not found lost before.
            self.is_gone();
        }
        self.restart();
        self.owed = Owed::Resumed(answer);
        self.pop_acknowledged();
        self.is_back();
        if has_ended {
            self.end_was_taken();
        } else if self.proto.is_over() {
            self.ends(0);
        }
        Ok(None)
    }

    /// An entry of RESUMED has arrived by `conn`.
    pub(crate) fn resumed(&mut self, conn: Conn, entry: &ResumeEntry) -> Result<(), Fault> {
        match self.proto.resumed(conn, entry)? {
            Resumed::Stale | Resumed::Known => {}
            Resumed::Live => {
                self.restart();
                self.pop_acknowledged();
                self.is_back();
            }
            Resumed::Ended => self.end_was_taken(),
            Resumed::Gone if self.is_shut => {
                self.end_messages(self.proto.cause());
                self.end_calls(None, Cause::Closed);
                self.ends(0);
            }
            Resumed::Gone => self.abandon(Cause::PeerLost),
        }
        Ok(())
    }

    /// The peer's kernel has the end of this side, and everything before it.
    fn end_was_taken(&mut self) {
        self.all_arrived();
        self.end_calls(None, Cause::Closed);
        self.ends(0);
    }

    /// LIVE has arrived.
    pub(crate) fn live(&mut self, live: &Live<'_>) {
        if self.proto.left_behind(live) {
            let cause = self.proto.cause();
            self.abandon(cause);
        }
    }
}
