// SPDX-License-Identifier: GPL-2.0

//! What must hold: every message as its two programs see it.

use ibmsg_proto::{CallOutcome, Outcome};

/// A broken property. The number is that of the message, or of the channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// A message was queued twice for its program.
    Twice(u32),
    /// A message was queued after a later one of its channel.
    Overtaken(u32),
    /// A message was queued, or taken, though its program was told that it would not be.
    Undead(u32),
    /// A program was told that its message was delivered, or its request, and it was not.
    NeverArrived(u32),
    /// A program was told that the outcome is unknown, though both kernels lived and time was left.
    Uncertain(u32),
    /// A program was told an outcome twice, or two answers.
    ToldTwice(u32),
    /// A message is missing between two that were queued, and its program was told nothing.
    Missing(u32),
    /// A call was executed twice.
    ExecutedTwice(u32),
    /// A request was answered by an answer to another one.
    WrongAnswer(u32),
    /// The queue of a program has more than the window.
    Memory(usize),
    /// A frame arrived for which no receive was posted.
    NotReady,
    /// A kernel takes the other one for broken.
    Protocol(&'static str),
    /// Nothing happens any more, but a message is not delivered, or a call not answered.
    Stuck(u32),
    /// Nothing happens any more, but a program was not told the outcome.
    Untold(u32),
    /// Credits were lost, or invented.
    Credits(usize),
    /// A kernel has a channel that the other one does not have.
    Leak(usize),
    /// It never ends.
    Endless,
}

/// A message.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its channel.
    pub chan: usize,
    /// Whose program sends it.
    pub from: usize,
    /// The request that it answers; for checks only.
    pub answers: Option<u32>,
    /// It is a request.
    pub is_call: bool,
    /// Its length.
    pub len: u32,
    /// It has a limit of time, which is over.
    pub expired: bool,
    /// The outcome that its program was told.
    pub told: Option<Outcome>,
    /// How often it was queued for the receiving program.
    pub queued: u32,
    /// How often the program took it.
    pub taken: u32,
    /// The call was answered.
    pub answered: bool,
    /// What its program was told about the call, without an answer.
    pub call_told: Option<CallOutcome>,
    /// The program that sent it has closed, so it is told nothing any more.
    pub orphan: bool,
    /// The program that sent it has closed, and waits for the outcome.
    pub shut: bool,
}

/// The messages of a run.
#[derive(Default)]
pub struct Log {
    /// All messages that kernels have taken over from programs.
    pub messages: Vec<Message>,
    /// The latest message queued, for each channel and side that sends.
    last: Vec<[Option<u32>; 2]>,
    /// The first violation.
    pub violation: Option<Violation>,
    /// Kernels of the session's channel were lost: by channel.
    pub peer_lost: Vec<bool>,
    /// Programs that have closed, or write and take no more: by channel and side.
    pub closed: Vec<[bool; 2]>,
}

impl Log {
    /// A log for that many channels.
    pub fn new(channels: usize) -> Self {
        Self {
            last: vec![[None; 2]; channels],
            peer_lost: vec![false; channels],
            closed: vec![[false; 2]; channels],
            ..Self::default()
        }
    }

    /// Something is broken.
    pub fn fail(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    /// A message is in the queue of its receiver's program.
    pub fn queued(&mut self, id: u32) {
        let m = &mut self.messages[id as usize];
        m.queued += 1;
        let (twice, undead) = (m.queued > 1, m.told == Some(Outcome::NotDelivered));
        let last = &mut self.last[m.chan][m.from];
        let overtaken = last.is_some_and(|last| last >= id);
        *last = Some(id);
        if twice {
            self.fail(Violation::Twice(id));
        }
        if overtaken {
            self.fail(Violation::Overtaken(id));
        }
        if undead {
            self.fail(Violation::Undead(id));
        }
    }

    /// The program took a message.
    pub fn taken(&mut self, id: u32) {
        let m = &mut self.messages[id as usize];
        m.taken += 1;
        let undead =
            m.told == Some(Outcome::NotDelivered) || m.call_told == Some(CallOutcome::NotDelivered);
        if undead {
            self.fail(Violation::Undead(id));
        }
        if self.messages[id as usize].taken > 1 {
            self.fail(Violation::ExecutedTwice(id));
        }
    }

    /// The program is told the outcome of its message. `early`: at the completion of its SEND.
    pub fn told(&mut self, id: u32, outcome: Outcome) {
        let m = &mut self.messages[id as usize];
        if m.orphan {
            return;
        }
        let twice = m.told.replace(outcome).is_some();
        let m = &self.messages[id as usize];
        let (chan, queued, taken) = (m.chan, m.queued, m.taken);
        // A kernel may forget a channel that both programs have closed.
        let is_excused = m.expired || (m.shut && self.closed[chan][1 - m.from]);
        if twice {
            self.fail(Violation::ToldTwice(id));
        }
        match outcome {
            Outcome::Delivered if queued == 0 => self.fail(Violation::NeverArrived(id)),
            Outcome::NotDelivered if taken > 0 => self.fail(Violation::Undead(id)),
            Outcome::Unknown if !is_excused && !self.peer_lost[chan] => {
                self.fail(Violation::Uncertain(id));
            }
            _ => {}
        }
    }

    /// The program is told that its call has ended without an answer.
    pub fn call_told(&mut self, id: u32, outcome: CallOutcome) {
        let m = &mut self.messages[id as usize];
        if m.orphan {
            return;
        }
        let twice = m.call_told.replace(outcome).is_some() || m.answered;
        let (queued, taken) = (m.queued, m.taken);
        if twice {
            self.fail(Violation::ToldTwice(id));
        }
        match outcome {
            CallOutcome::Unanswered if queued == 0 => self.fail(Violation::NeverArrived(id)),
            CallOutcome::NotDelivered if taken > 0 => self.fail(Violation::Undead(id)),
            _ => {}
        }
    }

    /// The program gets the answer `answer` to its call `id`.
    pub fn answered(&mut self, id: u32, answer: u32) {
        let right = self.messages[answer as usize].answers == Some(id);
        let m = &mut self.messages[id as usize];
        let twice = m.answered || (m.call_told.is_some() && !m.orphan);
        let executed = m.taken > 0;
        m.answered = true;
        if !right || !executed {
            self.fail(Violation::WrongAnswer(id));
        }
        if twice {
            self.fail(Violation::ToldTwice(id));
        }
    }

    /// The program of `from` has closed, and its last message has arrived at a program that takes all.
    pub fn drained(&mut self, chan: usize, from: usize) {
        let missing = self
            .messages
            .iter()
            .position(|m| m.chan == chan && m.from == from && !m.expired && m.queued == 0);
        if let Some(id) = missing {
            self.fail(Violation::Missing(id as u32));
        }
    }

    /// Nothing happens any more. `live`: channels that are open on both sides.
    pub fn finish(&mut self, live: &[bool]) {
        for id in 0..self.messages.len() {
            let (n, m) = (id as u32, self.messages[id].clone());
            let is_live = live[m.chan];
            if is_live {
                let is_done = m.taken == 1
                    || m.expired
                        && m.queued == 0
                        && matches!(m.told, Some(o) if o != Outcome::Delivered);
                let is_told = !m.is_call || m.answered || m.call_told.is_some();
                if !is_done || !is_told {
                    self.fail(Violation::Stuck(n));
                }
            }
            // A later message was queued, and this one was not: its program must know.
            let later = self.last[m.chan][m.from].is_some_and(|last| last > n);
            if later && m.queued == 0 && m.told.is_none() && !m.orphan {
                self.fail(Violation::Missing(n));
            }
            let call_is_over = !m.is_call || m.answered || m.call_told.is_some();
            if !m.orphan && (m.told.is_none() || !call_is_over) {
                self.fail(Violation::Untold(n));
            }
        }
    }
}
