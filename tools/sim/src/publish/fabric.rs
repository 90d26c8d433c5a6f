// SPDX-License-Identifier: GPL-2.0

//! The fabric: connections deliver frames in order, late, or not at all.

use ibmsg_proto::channel::Move;
use ibmsg_proto::wire::{FrameWriter, Resume, ResumeEntry};
use ibmsg_proto::Seq;

use super::chan::conn;
use super::schedule::{Kind, CLIENT, SERVER};
use super::world::{Ev, World};
use crate::schedule::{Time, MS};

/// A connection attempt: one connection.
#[derive(Debug)]
pub struct Attempt {
    /// Its path.
    pub path: usize,
    /// Each side can use it.
    pub up: [bool; 2],
    last: [Time; 2],
    broken: [bool; 2],
}

impl Attempt {
    /// An attempt that is not complete.
    pub fn new(path: usize) -> Self {
        Self {
            path,
            up: [true, false],
            last: [0; 2],
            broken: [false; 2],
        }
    }

    /// No attempt has the number 0.
    pub fn none() -> Self {
        let mut none = Self::new(usize::MAX);
        none.up = [false; 2];
        none
    }
}

impl World<'_> {
    /// The client begins an attempt.
    pub fn connect(&mut self, who: usize, path: usize) {
        let session = &mut self.sessions[who];
        let busy = |a: &Attempt| a.path == path && a.up[CLIENT];
        if !session.client.up || session.attempts.iter().any(busy) {
            return;
        }
        let epoch = session.attempts.len() as u32;
        session.attempts.push(Attempt::new(path));
        let is_cut = [CLIENT, SERVER].map(|side| self.cut(who, path, side).is_some());
        if is_cut == [false; 2] && self.publisher.up {
            let lag = 50 + self.chance(300);
            self.after(lag, Ev::Accepted(who, epoch));
        } else {
            let lag = self.sch.retry;
            self.after(lag, Ev::Down(who, CLIENT, epoch));
        }
    }

    /// An attempt is complete.
    pub fn accepted(&mut self, who: usize, epoch: u32) {
        let attempt = &mut self.sessions[who].attempts[epoch as usize];
        if !attempt.up[CLIENT] {
            return;
        }
        if !self.publisher.up {
            return self.after(50, Ev::Down(who, CLIENT, epoch));
        }
        attempt.up[SERVER] = true;
        self.move_channel(who);
    }

    /// How long a direction of a path is held back.
    fn cut(&self, who: usize, path: usize, from: usize) -> Option<Time> {
        let all = self.sch.faults.iter().filter(|f| f.at <= self.now);
        all.filter_map(|f| match f.kind {
            Kind::Cut {
                session,
                path: p,
                dir,
                time,
            } if (usize::from(session), usize::from(p), usize::from(dir)) == (who, path, from)
                && self.now < f.at + time =>
            {
                Some(f.at + time - self.now)
            }
            _ => None,
        })
        .max()
    }

    /// Sends a record.
    pub fn frame(
        &mut self,
        who: usize,
        side: usize,
        epoch: u32,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) {
        let mut buf = [0; 256];
        let mut frame = FrameWriter::new(&mut buf, Seq::new(0)).expect("room");
        frame.record(write).expect("a short record");
        let len = frame.finish();
        self.transmit(who, side, epoch, buf[..len].to_vec());
    }

    fn transmit(&mut self, who: usize, side: usize, epoch: u32, frame: Vec<u8>) {
        let attempt = &self.sessions[who].attempts[epoch as usize];
        if attempt.broken[side] || !attempt.up[side] {
            return;
        }
        let path = attempt.path;
        let mut lag = 5 + self.chance(60);
        if self.chance(8) == 0 {
            lag += self.chance(self.sch.lag);
        }
        if let Some(rest) = self.cut(who, path, side) {
            // What was sent into a cut may be lost, or arrive when it ends, or later.
            if rest > self.sch.retry {
                self.after(self.sch.retry, Ev::Down(who, side, epoch));
            }
            if self.chance(3) == 0 {
                self.sessions[who].attempts[epoch as usize].broken[side] = true;
                self.after(self.sch.retry, Ev::Down(who, side, epoch));
                return;
            }
            lag = rest + self.chance(4 * MS);
        }
        let attempt = &mut self.sessions[who].attempts[epoch as usize];
        let at = (self.now + lag).max(attempt.last[side] + 1);
        attempt.last[side] = at;
        self.after(at - self.now, Ev::Arrive(who, 1 - side, epoch, frame));
    }

    /// A frame is at a side.
    pub fn arrive(&mut self, who: usize, side: usize, epoch: u32, frame: &[u8]) {
        if self.sessions[who].attempts[epoch as usize].up[side] {
            self.handle(who, side, epoch, frame);
        } else {
            self.after(self.sch.retry, Ev::Down(who, 1 - side, epoch));
        }
    }

    /// A side fails an attempt, and the other one notices.
    pub fn fail(&mut self, who: usize, side: usize, epoch: u32) {
        let attempt = &mut self.sessions[who].attempts[epoch as usize];
        if !std::mem::replace(&mut attempt.up[side], false) {
            return;
        }
        let path = attempt.path;
        let notice = 50 + self.chance(8 * MS);
        self.after(notice, Ev::Down(who, 1 - side, epoch));
        if let Some(end) = self.end(who, side) {
            end.ch.lost(conn(epoch));
        }
        match side {
            CLIENT => {
                let back_off = 500 + self.chance(4 * MS);
                self.after(back_off, Ev::Connect(who, path));
                self.move_channel(who);
            }
            _ => self.lost_connection(who),
        }
    }

    /// The client moves its channel to an attempt that it can use, or opens one.
    pub fn move_channel(&mut self, who: usize) {
        let attempts = &self.sessions[who].attempts;
        let Some(epoch) = attempts.iter().rposition(|a| a.up == [true; 2]) else {
            return;
        };
        let epoch = epoch as u32;
        let Some(end) = self.end(who, CLIENT) else {
            return self.open(who, epoch);
        };
        match end.ch.move_to(conn(epoch)) {
            Some(Move::Resume(entry)) => self.send_resume(who, epoch, entry),
            Some(Move::Open(_)) => unreachable!("channels are opened at once"),
            None => {}
        }
    }

    fn send_resume(&mut self, who: usize, epoch: u32, entry: ResumeEntry) {
        self.seen.moves += 1;
        self.frame(who, CLIENT, epoch, |out| {
            Some(Resume::encode(out, [entry].into_iter())?.0)
        });
    }

    /// The client moves a channel although its connection works.
    pub fn relocate(&mut self, who: usize) {
        let session = &mut self.sessions[who];
        let Some(end) = session.client.end.as_mut() else {
            return;
        };
        let on = end.ch.on();
        let usable = |epoch: &u32| {
            session.attempts[*epoch as usize].up == [true; 2] && on != Some(conn(*epoch))
        };
        let to = (1..session.attempts.len() as u32).find(usable);
        if let Some((to, entry)) = to.and_then(|to| Some((to, end.ch.relocate(conn(to))?))) {
            self.send_resume(who, to, entry);
        }
    }
}
