// SPDX-License-Identifier: GPL-2.0

//! The life of a channel: opened at a portal, moved between connections, closed.
//!
//! The client opens channels, and moves them. Both sides may close them. A channel takes records only
//! from the connection that it is on, so what arrives late by a former one changes nothing.
//!
//! | | client | server |
//! |---|---|---|
//! | opening | [`Channel::opening`], OPEN; [`Channel::accepted`] or [`Channel::rejected`] | [`Channel::offered`]; [`Channel::accept`] or [`Channel::reject`] |
//! | connection lost | [`Channel::lost`] | the same |
//! | moving | [`Channel::move_to`], OPEN or RESUME; [`Channel::resumed`]; LIVE before that, and after it unless [`Channel::blocks_live`] | [`Channel::open_again`], [`Channel::resume`], [`Channel::left_behind`] |
//! | relocating | [`Channel::relocate`], RESUME; [`Channel::resumed`] | [`Channel::resume`] |
//! | closing | [`Channel::close`], [`Channel::close_due`], [`Channel::peer_closes`], [`Channel::closed`] | the same |
//! | session lost | [`Channel::abandon`] | the same |

use crate::outcome::Cause;
use crate::receive::{ArrivalError, Receiver};
use crate::send::{AckError, SendLimits, Sender};
use crate::seq::Seq;
use crate::window::Window;
use crate::wire::{Ack, AckRecord, Close, Live, ResumeEntry};

/// A message connection of a session. Its epoch is that of the connection attempt, and never used
/// again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Conn {
    /// The connection attempt.
    pub epoch: u32,
    /// The connection's number in it.
    pub cid: u16,
}

/// The connection that a channel is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    On(Conn),
    /// The client has sent OPEN or RESUME, and has no answer.
    Moving(Conn),
    /// The connection is lost.
    Adrift(Conn),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Of the client: not accepted yet.
    Opening,
    /// Of the server: the portal's program has not decided yet.
    Offered,
    Open,
    /// Of the server: refused, but the client may not know that yet.
    Rejected,
    Over,
}

/// The own program has closed its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Closing {
    reason: u16,
    /// CLOSE was sent on the present connection.
    told: bool,
    /// CLOSE with an end was sent on the present connection.
    ended: bool,
    /// It was sent on this one or a former one.
    has_ended: bool,
    /// The peer's end has arrived before CLOSE was sent: the peer does not know the final state.
    overtaken: bool,
}

/// What the peer must not do. The receiver fails the path that the record came by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChannelError {
    /// An impossible acknowledgement.
    Ack(AckError),
    /// An impossible message, or an end before all messages.
    Arrival(ArrivalError),
    /// A record that has no meaning in the present phase of the channel.
    Phase,
}

impl ChannelError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Ack(e) => e.as_str(),
            Self::Arrival(e) => e.as_str(),
            Self::Phase => "record for a channel in another phase",
        }
    }
}

impl From<AckError> for ChannelError {
    fn from(e: AckError) -> Self {
        Self::Ack(e)
    }
}

impl From<ArrivalError> for ChannelError {
    fn from(e: ArrivalError) -> Self {
        Self::Arrival(e)
    }
}

/// What the client sends to move a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Move {
    /// OPEN again, with this number of the move.
    Open(Seq),
    /// An entry of RESUME.
    Resume(ResumeEntry),
}

/// What the server does with OPEN for a channel that it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Again {
    /// The record is older than the latest move: nothing.
    Stale,
    /// The channel has moved; its program has yet to decide.
    Wait,
    /// Send ACCEPT again, then the messages from the beginning.
    Accept,
    /// Send REJECT or REDIRECT again.
    Reject,
}

/// What RESUMED says about a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resumed {
    /// It answers an earlier move: nothing.
    Stale,
    /// The channel goes on: send what the server does not have.
    Live,
    /// The server has everything, with the end of this side: as [`Channel::closed`].
    Ended,
    /// The server knows that its end has arrived: it has no more to say, and nor has this side.
    Known,
    /// The server no longer has the channel, which has ended.
    Gone,
}

/// What the server does with an entry of RESUME for a channel that it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resumes {
    /// The entry is older than the latest move, and needs no answer.
    Stale,
    /// Perhaps it is of another channel to which the client wants to give the same number, as it has
    /// forgotten this one. Answer with this entry, by the connection of the question; nothing has changed.
    Another(ResumeEntry),
    /// Answer with this entry of RESUMED. The channel goes on, or is over.
    Answer(ResumeEntry),
    /// The same. The client has everything, with the end of this side: as [`Channel::closed`].
    Ended(ResumeEntry),
}

/// What a side does when the peer has closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerCloses {
    /// The record came by another connection than the channel's: nothing.
    Stale,
    /// The program's messages have ended ([`Sender::end`] with [`Cause::Closed`]); messages of the peer
    /// are still to come.
    Stops,
    /// The same, and the peer's last message has arrived. Send CLOSED.
    Ends,
}

/// A channel on one side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Channel {
    id: u32,
    place: Place,
    phase: Phase,
    /// Number of moves, by the client's count.
    moves: Seq,
    closing: Option<Closing>,
    /// The peer's last message has arrived.
    peer_ended: bool,
    /// The sending half.
    pub tx: Sender,
    /// The receiving half.
    pub rx: Receiver,
}

impl Channel {
    const fn new(id: u32, place: Place, phase: Phase, tx: Sender, rx: Receiver) -> Self {
        Self {
            id,
            place,
            phase,
            moves: Seq::new(0),
            closing: None,
            peer_ended: false,
            tx,
            rx,
        }
    }

    /// The client opens a channel, which has the number `id`, not used for as long as possible, and receives
    /// on the terms `window`. It sends OPEN on `conn`, with the number of the move 0. `first` is
    /// [`crate::limits::FIRST`] on the wire.
    pub const fn opening(
        id: u32,
        conn: Conn,
        window: Window,
        limits: SendLimits,
        first: Seq,
    ) -> Self {
        let (tx, rx) = (Sender::new(limits, first), Receiver::new(window, first));
        Self::new(id, Place::Moving(conn), Phase::Opening, tx, rx)
    }

    /// The server has received OPEN for a channel that it does not have, with the client's terms
    /// `peer` and the number of the move `moves`.
    #[allow(clippy::too_many_arguments)]
    pub fn offered(
        id: u32,
        conn: Conn,
        moves: Seq,
        peer: &Window,
        window: Window,
        limits: SendLimits,
        first: Seq,
    ) -> Self {
        let (tx, rx) = (Sender::new(limits, first), Receiver::new(window, first));
        let mut channel = Self::new(id, Place::On(conn), Phase::Offered, tx, rx);
        channel.moves = moves;
        channel.tx.open(peer);
        channel
    }

    /// The number.
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// The number of the latest move, for ACCEPT, REJECT and REDIRECT.
    pub const fn moves(&self) -> Seq {
        self.moves
    }

    /// Whether a record for the channel, other than RESUMED, that arrives by `conn` counts. Others are dropped.
    /// The server sends such records right after RESUMED; what comes before is left from a time in which the
    /// channel was on the same connection.
    #[inline]
    pub fn takes_from(&self, conn: Conn) -> bool {
        match self.place {
            Place::On(on) => on == conn,
            Place::Moving(to) => to == conn && !matches!(self.phase, Phase::Open),
            Place::Adrift(_) => false,
        }
    }

    /// Whether the channel is on the connection `conn`, or moves there: it sends by no other.
    #[inline]
    pub fn is_on(&self, conn: Conn) -> bool {
        self.on() == Some(conn)
    }

    /// The connection that the channel is on, or moves to; `None` if it has lost the last one.
    pub const fn on(&self) -> Option<Conn> {
        match self.place {
            Place::On(conn) | Place::Moving(conn) => Some(conn),
            Place::Adrift(_) => None,
        }
    }

    /// The connection to send messages and acknowledgements on; `None` while there is none, or before
    /// the peer has answered, and after its end.
    #[inline]
    pub fn conn(&self) -> Option<Conn> {
        match (self.place, self.phase) {
            (Place::On(conn), Phase::Open) if !self.peer_ended => Some(conn),
            _ => None,
        }
    }

    /// Whether the client has no answer of the portal yet.
    pub const fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Opening)
    }

    /// Whether the channel is accepted, and nobody has closed it.
    pub const fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open) && self.closing.is_none() && !self.peer_ended
    }

    /// Whether the channel was accepted, and something of it may still have to arrive at the other side, or
    /// come from there, whether or not its programs have gone.
    pub const fn is_established(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Whether the peer is done with the channel, so that it can be forgotten.
    pub const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Whether the peer's last message has arrived.
    pub const fn peer_has_ended(&self) -> bool {
        self.peer_ended
    }

    /// Whether MESSAGE, SKIP and ACK have a meaning.
    ///
    /// # Errors
    ///
    /// [`ChannelError::Phase`] before the channel is accepted and after the peer's end.
    pub const fn check_open(&self) -> Result<(), ChannelError> {
        match (self.phase, self.peer_ended) {
            (Phase::Open, false) => Ok(()),
            // The client has closed before it was accepted.
            (Phase::Opening, false) if self.closing.is_some() => Ok(()),
            _ => Err(ChannelError::Phase),
        }
    }

    /// ACK has arrived. Returns whether the peer wants messages again: then sending goes on at
    /// [`Sender::cursor`], with the first piece.
    ///
    /// # Errors
    ///
    /// As [`Sender::acknowledged`].
    pub fn acknowledged(&mut self, record: &AckRecord) -> Result<bool, ChannelError> {
        if !record.again {
            self.tx.acknowledged(&record.ack)?;
            return Ok(false);
        }
        let is_asked = self.tx.again(&record.ack)?;
        if let Some(closing) = self.closing.as_mut().filter(|_| is_asked) {
            // The end has no meaning without the messages before it.
            closing.ended = false;
        }
        Ok(is_asked)
    }

    /// ACCEPT has arrived by `conn`, with the server's terms. Returns whether the channel is open from
    /// now on.
    ///
    /// # Errors
    ///
    /// When the channel is over.
    pub fn accepted(
        &mut self,
        conn: Conn,
        moves: Seq,
        window: &Window,
    ) -> Result<bool, ChannelError> {
        // A record that is repeated changes nothing.
        if !self.takes_from(conn) || moves != self.moves || self.phase == Phase::Open {
            return Ok(false);
        }
        if self.phase != Phase::Opening {
            return Err(ChannelError::Phase);
        }
        self.phase = Phase::Open;
        self.place = Place::On(conn);
        self.tx.open(window);
        Ok(self.closing.is_none())
    }

    /// REJECT or REDIRECT has arrived by `conn`. Returns whether it counts: then send CLOSED; the
    /// channel is over.
    ///
    /// # Errors
    ///
    /// When the channel is open.
    pub fn rejected(&mut self, conn: Conn, moves: Seq) -> Result<bool, ChannelError> {
        if !self.takes_from(conn) || moves != self.moves {
            return Ok(false);
        }
        if self.phase != Phase::Opening {
            return Err(ChannelError::Phase);
        }
        self.phase = Phase::Over;
        Ok(true)
    }

    /// The program at the portal accepts: send ACCEPT, if [`Channel::conn`] has a connection. Returns
    /// `false` if the client has withdrawn.
    #[must_use]
    pub fn accept(&mut self) -> bool {
        let is_offered = self.phase == Phase::Offered;
        if is_offered {
            self.phase = Phase::Open;
        }
        is_offered
    }

    /// The program at the portal refuses, or has gone: send REJECT or REDIRECT, if
    /// [`Channel::answers_on`] has a connection, and keep it until the channel is over. Returns `false`
    /// if the client has withdrawn.
    #[must_use]
    pub fn reject(&mut self) -> bool {
        let is_offered = self.phase == Phase::Offered;
        if is_offered {
            self.phase = Phase::Rejected;
        }
        is_offered
    }

    /// The connection for ACCEPT, REJECT and CLOSE.
    pub const fn answers_on(&self) -> Option<Conn> {
        match self.place {
            Place::On(conn) => Some(conn),
            Place::Moving(_) | Place::Adrift(_) => None,
        }
    }

    /// The connection `conn` is lost. Returns whether the channel was on it.
    pub fn lost(&mut self, conn: Conn) -> bool {
        if !self.is_on(conn) {
            return false;
        }
        self.leave(conn);
        true
    }

    fn leave(&mut self, conn: Conn) {
        self.place = Place::Adrift(conn);
        self.tx.lost();
        self.rx.lost();
        if let Some(closing) = &mut self.closing {
            // A peer that has sent its end learns by RESUME or RESUMED that it has arrived.
            (closing.told, closing.ended, closing.overtaken) = (false, false, false);
        }
    }

    /// The client moves the channel to `conn`: returns what it sends there; `None` if the channel has
    /// not lost its connection, or the server need not know it any more.
    pub fn move_to(&mut self, conn: Conn) -> Option<Move> {
        if !matches!(self.place, Place::Adrift(_)) || self.is_over() {
            return None;
        }
        self.place = Place::Moving(conn);
        self.moves = self.moves.plus(1);
        Some(match (self.phase, self.closing) {
            (Phase::Opening, None) => Move::Open(self.moves),
            _ => Move::Resume(self.entry()),
        })
    }

    /// The client moves the channel to `conn` although its connection works: returns the entry of RESUME that it
    /// sends there. `None` unless the channel [is open](Channel::is_open) on another connection: a channel that is
    /// being opened stays, as a late OPEN would be taken for a new channel, and one that is being closed has little
    /// left to send.
    pub fn relocate(&mut self, conn: Conn) -> Option<ResumeEntry> {
        let Place::On(on) = self.place else {
            return None;
        };
        if on == conn || !self.is_open() {
            return None;
        }
        self.leave(on);
        self.place = Place::Moving(conn);
        self.moves = self.moves.plus(1);
        Some(self.entry())
    }

    /// Whether the client may not send LIVE with `ends` by `conn` because of this channel: the server may not know
    /// yet that it has left a lost connection, as the record that says so is on its way elsewhere, or
    /// was not sent.
    pub fn blocks_live(&self, conn: Conn) -> bool {
        !self.is_over()
            && match self.place {
                Place::On(_) => false,
                Place::Moving(to) => to != conn && self.moves != Seq::new(0),
                Place::Adrift(_) => true,
            }
    }

    fn entry(&mut self) -> ResumeEntry {
        ResumeEntry {
            channel: self.id,
            moves: self.moves,
            gone: false,
            ended: self.peer_ended,
            ack: self.rx.announce(),
        }
    }

    /// The peer says that the end of this side has arrived.
    fn end_arrived(&mut self, ack: &Ack) -> Result<(), ChannelError> {
        self.tx.acknowledged(ack)?;
        let has_ended = self.closing.is_some_and(|closing| closing.has_ended);
        if !has_ended || self.tx.acked() != self.tx.high() {
            return Err(ChannelError::Phase);
        }
        self.phase = Phase::Over;
        Ok(())
    }

    /// The server has received OPEN by `conn` for this channel, which it has.
    ///
    /// # Errors
    ///
    /// When the client was told that the channel is open.
    pub fn open_again(&mut self, conn: Conn, moves: Seq) -> Result<Again, ChannelError> {
        if moves.since(self.moves) <= 0 {
            return Ok(Again::Stale);
        }
        let again = match self.phase {
            Phase::Offered => Again::Wait,
            Phase::Open if !self.peer_ended => Again::Accept,
            Phase::Rejected => Again::Reject,
            Phase::Open | Phase::Opening | Phase::Over => return Err(ChannelError::Phase),
        };
        self.rebind(conn, moves);
        self.tx.restart()?;
        Ok(again)
    }

    fn rebind(&mut self, conn: Conn, moves: Seq) {
        self.leave(conn);
        self.place = Place::On(conn);
        self.moves = moves;
    }

    /// The server has received an entry of RESUME by `conn` for this channel. For a channel that it does not
    /// have, it sends [`Channel::unknown`].
    ///
    /// # Errors
    ///
    /// When the client's position is impossible.
    pub fn resume(&mut self, conn: Conn, entry: &ResumeEntry) -> Result<Resumes, ChannelError> {
        match entry.moves.since(self.moves) {
            1.. => {}
            0 if self.peer_ended => return Ok(Resumes::Another(self.entry())),
            ..=-1 if self.peer_ended => return Ok(Resumes::Another(Self::unknown(entry))),
            _ => return Ok(Resumes::Stale),
        }
        match self.phase {
            Phase::Opening | Phase::Over => return Err(ChannelError::Phase),
            // The client has closed, so it needs no refusal.
            Phase::Rejected => self.phase = Phase::Over,
            Phase::Offered | Phase::Open => {}
        }
        self.rebind(conn, entry.moves);
        if self.is_over() {
            return Ok(Resumes::Answer(Self::unknown(entry)));
        }
        if entry.ended {
            self.end_arrived(&entry.ack)?;
            return Ok(Resumes::Ended(Self::unknown(entry)));
        }
        if !self.peer_ended {
            self.tx.resumed(&entry.ack)?;
        }
        Ok(Resumes::Answer(self.entry()))
    }

    /// The server's entry of RESUMED for a channel that it does not have.
    pub const fn unknown(entry: &ResumeEntry) -> ResumeEntry {
        ResumeEntry {
            gone: true,
            ended: false,
            ..*entry
        }
    }

    /// The client has received an entry of RESUMED by `conn`.
    ///
    /// # Errors
    ///
    /// When the server's position is impossible.
    pub fn resumed(&mut self, conn: Conn, entry: &ResumeEntry) -> Result<Resumed, ChannelError> {
        if self.place != Place::Moving(conn) || entry.moves != self.moves {
            return Ok(Resumed::Stale);
        }
        // The server has a channel of this number that the client has forgotten.
        let is_another = entry.ended && self.phase == Phase::Opening;
        if entry.gone || is_another {
            self.phase = Phase::Over;
            return Ok(match self.peer_ended {
                true => Resumed::Known,
                false => Resumed::Gone,
            });
        }
        if entry.ended {
            self.end_arrived(&entry.ack)?;
            return Ok(Resumed::Ended);
        }
        match self.phase {
            // It must know that its end has arrived.
            Phase::Open if self.peer_ended => return Err(ChannelError::Phase),
            Phase::Open => self.tx.resumed(&entry.ack)?,
            // Closed before it was accepted: there is nothing to send but CLOSE.
            Phase::Opening if self.closing.is_some() => {}
            _ => return Err(ChannelError::Phase),
        }
        self.place = Place::On(conn);
        Ok(Resumed::Live)
    }

    /// The server has received LIVE. Returns whether the channel was left on an attempt that the client
    /// has lost: the client no longer has the channel, so it is over, and the outcomes of messages are
    /// those of [`Channel::cause`].
    pub fn left_behind(&mut self, live: &Live<'_>) -> bool {
        let (Place::On(conn) | Place::Moving(conn) | Place::Adrift(conn)) = self.place;
        let is_left = live.ends && !self.is_over() && live.has_lost(conn.epoch);
        if is_left && self.peer_ended {
            // Nothing is lost: the program may still take what has arrived.
            return false;
        }
        if is_left {
            self.abandon();
        }
        is_left
    }

    /// The peer's kernel no longer has the session: the channel is over, and the outcomes of messages
    /// are those of [`Cause::PeerLost`].
    pub fn abandon(&mut self) {
        self.phase = Phase::Over;
        self.tx.lost();
    }

    /// The own program closes its end, or has died, with an errno for the peer (0: none). What it has
    /// written before is still sent; what it has not taken is dropped. A server whose program has not
    /// accepted calls [`Channel::reject`] instead.
    ///
    /// Of an end that was closed before, only a reason that is not 0 counts: messages that were written may not
    /// be sent any more.
    pub fn close(&mut self, reason: u16) {
        if let Some(closing) = &mut self.closing {
            if reason != 0 {
                closing.reason = reason;
            }
            return;
        }
        self.rx.close();
        self.closing = Some(Closing {
            reason,
            told: false,
            ended: false,
            has_ended: false,
            overtaken: false,
        });
        if self.peer_ended {
            self.phase = Phase::Over;
        }
    }

    /// Whether CLOSE is to be sent although the channel is over: the peer's end came first, and CLOSED alone
    /// would say that everything was delivered. The channel is not forgotten before.
    pub fn owes_close(&self) -> bool {
        let is_overtaken = self.closing.is_some_and(|closing| closing.overtaken);
        is_overtaken && matches!(self.place, Place::On(_))
    }

    /// The CLOSE that is to be sent now, if any; before CLOSED, if both are. `is_queue_empty`: all messages have numbers. It follows
    /// the messages that were sent before.
    pub fn close_due(&mut self, is_queue_empty: bool) -> Option<Close> {
        let can_send = matches!(
            (self.place, self.phase),
            (Place::On(_), Phase::Open | Phase::Opening) | (Place::Moving(_), Phase::Opening)
        );
        let can_send = can_send || self.owes_close();
        let closing = self.closing.as_mut().filter(|_| can_send)?;
        closing.overtaken = false;
        // A peer that takes nothing more needs no messages.
        let is_all = self.tx.is_stopped() || (is_queue_empty && self.tx.is_caught_up());
        let is_end = is_all && !closing.ended;
        if closing.told && !is_end {
            return None;
        }
        closing.told = true;
        closing.ended |= is_end;
        closing.has_ended |= is_end;
        Some(Close {
            channel: self.id,
            end: is_end.then_some(self.tx.high()),
            ack: self.rx.announce(),
            reason: closing.reason,
        })
    }

    /// CLOSE has arrived by `conn`.
    ///
    /// # Errors
    ///
    /// When messages are missing before the end, or the acknowledgement is impossible.
    pub fn peer_closes(&mut self, conn: Conn, close: &Close) -> Result<PeerCloses, ChannelError> {
        if !self.takes_from(conn) {
            return Ok(PeerCloses::Stale);
        }
        match self.phase {
            Phase::Open if !self.peer_ended => {}
            // Repeated, or of another channel to which the client wanted to give the same number.
            Phase::Open | Phase::Over => {
                return Ok(match close.end {
                    Some(_) => PeerCloses::Ends,
                    None => PeerCloses::Stale,
                })
            }
            // The client has withdrawn. It sends the end at once, as it has sent nothing.
            Phase::Offered | Phase::Rejected if close.end.is_some() => {
                self.phase = Phase::Over;
                return Ok(PeerCloses::Ends);
            }
            // It was accepted and closed before it had noticed that the client had closed.
            Phase::Opening if self.closing.is_some() && close.end.is_some() => {
                self.phase = Phase::Over;
                return Ok(PeerCloses::Ends);
            }
            Phase::Opening if self.closing.is_some() => return Ok(PeerCloses::Stale),
            _ => return Err(ChannelError::Phase),
        }
        // It comes again with the messages that were dropped.
        let end = close.end.filter(|_| !self.rx.is_dropping());
        if let Some(end) = end {
            self.rx.ended(end)?;
        }
        self.tx.stopped(&close.ack)?;
        if end.is_none() {
            return Ok(PeerCloses::Stops);
        }
        self.peer_ended = true;
        if let Some(closing) = &mut self.closing {
            closing.overtaken = !closing.told;
            self.phase = Phase::Over;
        }
        Ok(PeerCloses::Ends)
    }

    /// CLOSED has arrived by `conn`. The channel is over if it answers the end or the refusal.
    ///
    /// # Errors
    ///
    /// When there was nothing to answer.
    pub fn closed(&mut self, conn: Conn) -> Result<(), ChannelError> {
        if !self.takes_from(conn) {
            return Ok(());
        }
        let has_ended = self.closing.is_some_and(|closing| closing.ended);
        match has_ended || self.phase == Phase::Rejected {
            true => {
                self.phase = Phase::Over;
                Ok(())
            }
            // It answers the refusal of another channel with the same number.
            false if self.peer_ended || self.is_over() => Ok(()),
            false => Err(ChannelError::Phase),
        }
    }

    /// Why messages end with a channel that is over.
    pub const fn cause(&self) -> Cause {
        match self.tx.is_stopped() {
            true => Cause::Closed,
            false => Cause::PeerLost,
        }
    }
}
