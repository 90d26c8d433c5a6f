// SPDX-License-Identifier: GPL-2.0

//! Fills frames.

use ibmsg_proto::wire::{
    FrameWriter,
    Live,
    Reject,
    Resume, //
};

use super::{
    arrive::Answer,
    ConnState,
    Connection,
    LiveDue,
    Role,
    Side,
    State,
    PAUSE_US, //
};
use crate::channel::Served;

/// The most attempts in LIVE.
const MAX_ATTEMPTS: usize = ibmsg_proto::limits::MAX_ATTEMPTS;
/// Frames that are filled before others get the lock.
const BUDGET: u32 = 32;
/// Channels that are looked at before others get the lock.
const PORTION: u32 = 256;

/// What has become of the attempt to send a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    /// It was sent.
    Frame,
    /// There is nothing to send, or no credit for it.
    Nothing,
    /// Not all channels were looked at.
    Unknown,
    /// There is no memory now.
    NoMemory,
}

impl Side {
    /// Sends frames. Returns whether they were all that can be sent.
    pub(super) fn transmit(&self, state: &mut State, now: u64) -> bool {
        let (mut budget, mut looks) = (BUDGET, PORTION);
        loop {
            let mut at = 0;
            while at < state.conns.len() {
                match self.send_frame(state, at, &mut looks, now) {
                    Sent::Frame if budget == 0 => return false,
                    Sent::Unknown => return false,
                    Sent::Frame => {
                        budget -= 1;
                        continue;
                    }
                    Sent::Nothing => {}
                    Sent::NoMemory => self.wake_at(state, now + PAUSE_US, now),
                }
                at += 1;
            }
            match self.may_send_live(state) {
                Ends::May => {}
                Ends::NotYet => return true,
                Ends::Unknown => return false,
            }
        }
    }

    /// Whether LIVE with `ends` is to be sent now: then prepares it.
    fn may_send_live(&self, state: &mut State) -> Ends {
        let Some(due) = state.live_due else {
            return Ends::NotYet;
        };
        // A channel that was not looked at may be on a connection that is lost.
        if self.0.role != Role::Client || state.walk.is_some() {
            return Ends::NotYet;
        }
        let Some(to) = state.home() else {
            return Ends::NotYet;
        };
        // A channel that has moved does not move again before the next walk.
        let mut from = match due.to == Some(to) {
            true => due.from,
            false => 0,
        };
        for _ in 0..PORTION {
            let next = state.next_chan(from);
            let chan = next.and_then(|id| state.chans.get(&id));
            if chan.is_some_and(|chan| chan.proto.blocks_live(to) || chan.is_about_to_move()) {
                state.live_due = Some(LiveDue { from, to: Some(to) });
                return Ends::NotYet;
            }
            let Some(after) = next.and_then(|id| id.checked_add(1)) else {
                if let Some(conn) = state.conns.iter_mut().find(|conn| conn.id == to) {
                    conn.live = Some(true);
                }
                state.live_due = None;
                return Ends::May;
            };
            from = after;
        }
        state.live_due = Some(LiveDue { from, to: Some(to) });
        Ends::Unknown
    }

    fn send_frame(&self, state: &mut State, at: usize, looks: &mut u32, now: u64) -> Sent {
        let Some(conn) = state.conns.get_mut(at) else {
            return Sent::Nothing;
        };
        let owes = conn.flow.owes_credits();
        let is_idle = conn.ready.is_empty()
            && conn.live.is_none()
            && conn.drain.is_none()
            && conn.answers.is_empty()
            && !owes;
        let mut flow = conn.flow;
        let limit = match conn.has_failed || is_idle {
            true => None,
            false => flow.send(),
        };
        let Some(limit) = limit else {
            return Sent::Nothing;
        };
        let Some(mut frame) = conn.spare.take().or_else(|| conn.out.room()) else {
            return Sent::NoMemory;
        };
        let mut records = 0;
        let len = match FrameWriter::new(&mut frame.bytes, limit) {
            Some(mut writer) => {
                self.fill(state, at, &mut writer, &mut records, looks, now);
                writer.finish()
            }
            None => return Sent::NoMemory,
        };
        let Some(conn) = state.conns.get_mut(at) else {
            return Sent::Nothing;
        };
        if records == 0 && !owes {
            conn.spare = Some(frame);
            return match *looks {
                0 => Sent::Unknown,
                _ => Sent::Nothing,
            };
        }
        conn.flow = flow;
        frame.len = len;
        conn.out.send(frame);
        Sent::Frame
    }

    /// Adds records as long as there are some and they fit, and `looks` at channels is not 0.
    fn fill(
        &self,
        state: &mut State,
        at: usize,
        writer: &mut FrameWriter<'_>,
        records: &mut u32,
        looks: &mut u32,
        now: u64,
    ) {
        if !Self::put_live(state, at, writer, records)
            || !Self::put_drain(state, at, writer, records)
            || !Self::put_answers(state, at, writer, records)
        {
            return;
        }
        // What a channel has left of its turn goes on in the next frame.
        while let Some((conn, id, served)) = state.serve_first(at, looks, |conn, chan| {
            chan.serve(conn, writer, records, now)
        }) {
            match served {
                Served::Full => return,
                Served::Turn => {
                    state.pop_ready(at);
                    state.unlist(id, conn);
                    state.list_ready(id);
                }
                Served::All => {
                    state.pop_ready(at);
                    // It still counts as listed: what is left waits for credits, which arrive.
                    self.attend(state, id, now);
                    state.unlist(id, conn);
                }
            }
        }
    }

    /// Adds LIVE. Returns whether it fits.
    fn put_live(
        state: &mut State,
        at: usize,
        writer: &mut FrameWriter<'_>,
        records: &mut u32,
    ) -> bool {
        let mut epochs = [0; MAX_ATTEMPTS];
        let mut len = 0;
        let conns = state.conns.iter().map(|conn| conn.id.epoch);
        let all = Iterator::chain(conns, state.begun.iter().copied());
        for (place, epoch) in epochs.iter_mut().zip(all) {
            *place = epoch;
            len += 1;
        }
        let newest = state.newest;
        let Some(conn) = state.conns.get_mut(at) else {
            return false;
        };
        let Some(ends) = conn.live else {
            return true;
        };
        let epochs = epochs.get(..len).unwrap_or(&[]);
        let is_put = writer
            .record(|out| Live::encode(out, ends, newest, epochs))
            .is_some();
        if is_put {
            conn.live = None;
            *records += 1;
        }
        is_put
    }

    /// Adds DRAIN. Returns whether it fits.
    fn put_drain(
        state: &mut State,
        at: usize,
        writer: &mut FrameWriter<'_>,
        records: &mut u32,
    ) -> bool {
        let Some(conn) = state.conns.get_mut(at) else {
            return false;
        };
        let Some(drain) = conn.drain else {
            return true;
        };
        let is_put = writer.record(|out| drain.encode(out)).is_some();
        if is_put {
            conn.drain = None;
            *records += 1;
        }
        is_put
    }

    /// Adds the answers for channels that do not exist. Returns whether all fit.
    fn put_answers(
        state: &mut State,
        at: usize,
        writer: &mut FrameWriter<'_>,
        records: &mut u32,
    ) -> bool {
        let Some(conn) = state.conns.get_mut(at) else {
            return false;
        };
        while let Some(first) = conn.answers.front() {
            let answers = &conn.answers;
            let mut count = 1;
            let put = match first {
                Answer::Resumed(_) => {
                    let entries = answers.iter().map_while(|answer| match answer {
                        Answer::Resumed(entry) => Some(*entry),
                        Answer::Refused(..) => None,
                    });
                    writer.record(|out| {
                        let (len, entries) = Resume::encode_answer(out, entries)?;
                        count = entries;
                        Some(len)
                    })
                }
                Answer::Refused(channel, moves, reason) => {
                    let reject = Reject {
                        channel: *channel,
                        moves: *moves,
                        reason: *reason,
                        data: &[],
                    };
                    writer.record(|out| reject.encode(out))
                }
            };
            if put.is_none() {
                return false;
            }
            *records += 1;
            for _ in 0..count {
                let _ = conn.answers.pop_front();
            }
        }
        true
    }
}

/// Whether LIVE with `ends` may be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    May,
    NotYet,
    /// Not all channels were looked at.
    Unknown,
}

impl ConnState {
    /// A channel moves here: LIVE comes before it, as what was sent before a move must not arrive after it.
    pub(super) fn announce(&mut self) {
        if !self.is_announced {
            self.is_announced = true;
            self.live = Some(false);
        }
    }

    /// Gives the connection up, as after a breach of the protocol.
    pub(super) fn fail(&mut self, why: &'static str) {
        self.end_by(|out| out.fail(why));
    }

    /// Gives the connection up, which is not the peer's fault.
    pub(super) fn give_up(&mut self, why: &'static str) {
        self.end_by(|out| out.give_up(why));
    }

    fn end_by(&mut self, end: impl FnOnce(&dyn Connection)) {
        if !core::mem::replace(&mut self.has_failed, true) {
            end(&*self.out);
        }
    }
}
