// SPDX-License-Identifier: GPL-2.0

//! Fills frames.

use ibmsg_proto::wire::{
    FrameWriter,
    Live,
    Resume,
    RECORD_HDR_LEN, //
};
use kernel::prelude::*;

use super::{
    ConnState,
    Role,
    Side,
    State,
    PAUSE_US, //
};
use crate::channel::Served;

/// The most attempts in LIVE.
const MAX_ATTEMPTS: usize = ibmsg_proto::limits::MAX_ATTEMPTS;

/// What has become of the attempt to send a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    /// It was sent.
    Frame,
    /// There is nothing to send, or no credit for it.
    Nothing,
    /// There is no memory now.
    NoMemory,
}

impl Side {
    /// Sends all frames that can be sent.
    pub(super) fn transmit(&self, state: &mut State, now: u64) {
        loop {
            let mut at = 0;
            while at < state.conns.len() {
                match self.send_frame(state, at, now) {
                    Sent::Frame => continue,
                    Sent::Nothing => {}
                    Sent::NoMemory => self.wake_at(state, now + PAUSE_US, now),
                }
                at += 1;
            }
            if !self.may_send_live(state) {
                break;
            }
        }
    }

    /// Whether LIVE with `ends` is to be sent now: then prepares it.
    fn may_send_live(&self, state: &mut State) -> bool {
        if self.0.role != Role::Client || !state.live_due {
            return false;
        }
        let State { conns, chans, .. } = state;
        let free = conns.iter_mut().find(|conn| {
            let mut chans = chans.values();
            !chans.any(|chan| chan.proto.blocks_live(conn.id) || chan.is_about_to_move())
        });
        match free {
            Some(conn) => {
                conn.live = Some(true);
                state.live_due = false;
                true
            }
            None => false,
        }
    }

    fn send_frame(&self, state: &mut State, at: usize, now: u64) -> Sent {
        let unknown = state.unknown.len();
        let Some(conn) = state.conns.get_mut(at) else {
            return Sent::Nothing;
        };
        let owes = conn.flow.owes_credits();
        let is_idle = conn.ready.is_empty() && conn.live.is_none() && unknown == 0 && !owes;
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
                self.fill(state, at, &mut writer, &mut records, now);
                writer.finish()
            }
            None => return Sent::NoMemory,
        };
        let Some(conn) = state.conns.get_mut(at) else {
            return Sent::Nothing;
        };
        if records == 0 && !owes {
            conn.spare = Some(frame);
            return Sent::Nothing;
        }
        conn.flow = flow;
        frame.len = len;
        conn.out.send(frame);
        Sent::Frame
    }

    /// Adds records as long as there are some and they fit.
    fn fill(
        &self,
        state: &mut State,
        at: usize,
        writer: &mut FrameWriter<'_>,
        records: &mut u32,
        now: u64,
    ) {
        if !Self::put_live(state, at, writer, records)
            || !Self::put_unknown(state, at, writer, records)
        {
            return;
        }
        // What a channel has left of its turn goes on in the next frame.
        while let Some(id) = Self::first_ready(state, at) {
            let State { conns, chans, .. } = &mut *state;
            let Some(conn) = conns.get_mut(at) else {
                return;
            };
            let Some(chan) = chans.get_mut(&id) else {
                let _ = conn.ready.pop_front();
                continue;
            };
            match chan.serve(conn.id, writer, records, now) {
                Served::Full => return,
                Served::Turn => {
                    let _ = conn.ready.pop_front();
                    // It has just made room.
                    let _ = conn.ready.push_back(id);
                }
                Served::All => {
                    let _ = conn.ready.pop_front();
                    // What is left waits for credits, which arrive. If it has moved, it is in no list yet.
                    chan.is_ready = chan.proto.takes_from(conn.id);
                    let stays = chan.is_ready;
                    self.attend(state, id, now);
                    if let Some(chan) = state.chans.get_mut(&id).filter(|_| stays) {
                        chan.is_ready = false;
                    }
                }
            }
        }
    }

    fn first_ready(state: &State, at: usize) -> Option<u32> {
        state.conns.get(at)?.ready.front().copied()
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
        for (place, conn) in epochs.iter_mut().zip(&state.conns) {
            *place = conn.id.epoch;
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

    /// Adds the answers for channels that do not exist. Returns whether all fit.
    fn put_unknown(
        state: &mut State,
        at: usize,
        writer: &mut FrameWriter<'_>,
        records: &mut u32,
    ) -> bool {
        let Some(id) = state.conns.get(at).map(|conn| conn.id) else {
            return false;
        };
        if state.unknown.is_empty() {
            return true;
        }
        let ours = state
            .unknown
            .iter()
            .filter(|(conn, _)| *conn == id)
            .map(|(_, entry)| *entry);
        let mut count = 0;
        if ours.clone().next().is_some() && writer.room() > RECORD_HDR_LEN {
            let put = writer.record(|out| {
                let (len, entries) = Resume::encode_answer(out, ours.clone())?;
                count = entries;
                Some(len)
            });
            *records += u32::from(put.is_some());
        }
        state.unknown.retain(|(conn, _)| {
            let goes = *conn == id && count > 0;
            count -= usize::from(goes);
            !goes
        });
        !state.unknown.iter().any(|(conn, _)| *conn == id)
    }
}

impl ConnState {
    /// Gives the connection up.
    pub(super) fn fail(&mut self, why: &'static str) {
        if !self.has_failed {
            self.has_failed = true;
            pr_warn!("connection {} is given up: {}\n", self.id.epoch, why);
            self.out.fail();
        }
    }
}
