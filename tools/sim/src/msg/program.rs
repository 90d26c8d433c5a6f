// SPDX-License-Identifier: GPL-2.0

//! Programs, and what their kernels tell them.

use std::collections::VecDeque;

use ibmsg_proto::call::{Answer, CallId, CalleeSlot, CallerSlot};
use ibmsg_proto::channel::Channel;
use ibmsg_proto::fair::Deficit;
use ibmsg_proto::outcome::Cause;
use ibmsg_proto::send::{Progress, Refused, SendLimits};
use ibmsg_proto::Outcome;

use super::bug::Bug;
use super::check::{Message, Violation};
use super::schedule::{Kind, What, CLIENT};
use super::world::{End, Ev, Sent, World, CALLS};
use crate::schedule::MS;

impl End {
    /// A side of a channel that is being opened.
    pub fn new(ch: Channel) -> Self {
        Self {
            ch,
            queue: VecDeque::new(),
            piece: None,
            acked: Vec::new(),
            inbox: VecDeque::new(),
            calls: core::array::from_fn(|slot| (CallerSlot::new(slot as u16), 0)),
            callee: [CalleeSlot::default(); CALLS],
            deficit: Deficit::default(),
            front: false,
            program: true,
            shut: false,
            reading: false,
            hungry: false,
            last_taken: ch.tx.taken(),
        }
    }
}

impl World<'_> {
    /// The own limits of a sender.
    pub fn send_limits(&self, side: usize, chan: usize) -> SendLimits {
        SendLimits {
            messages: self.sch.channels[chan].terms[side].send_messages,
            bytes: 1000,
        }
    }

    /// The channel is open: the program begins.
    pub fn program_starts(&mut self, chan: usize, side: usize) {
        let boot = self.hosts[side].boot;
        let sch = self.sch;
        for (op, what) in sch.channels[chan].ops[side].iter().enumerate() {
            self.after(
                what.at,
                Ev::Op {
                    chan,
                    side,
                    op,
                    boot,
                },
            );
        }
    }

    /// The end of a channel, if its program is the one that it was.
    fn program(&mut self, chan: usize, side: usize, boot: u32) -> Option<&mut End> {
        if self.hosts[side].boot != boot || !self.hosts[side].up {
            return None;
        }
        self.end(side, chan).filter(|end| end.program)
    }

    /// A program does something.
    pub fn op(&mut self, chan: usize, side: usize, op: usize, boot: u32) {
        let todo = self.sch.channels[chan].ops[side][op];
        let Some(end) = self.program(chan, side, boot) else {
            return;
        };
        let is_call = match todo.what {
            What::Close => return self.close_program(chan, side),
            What::Shut => return self.shut_program(chan, side),
            _ if end.shut => return,
            What::Send => false,
            What::Call => true,
        };
        let slot = end.calls.iter().position(|(slot, _)| slot.is_free());
        let item = match (is_call, slot) {
            (true, None) => Err(Refused::Full),
            _ => end.ch.tx.queue(todo.len),
        };
        let item = match item {
            Ok(item) => item,
            Err(Refused::Full) => {
                return self.after(
                    2 * MS,
                    Ev::Op {
                        chan,
                        side,
                        op,
                        boot,
                    },
                );
            }
            Err(_) => return,
        };
        let id = self.log.messages.len() as u32;
        let mut call = 0;
        let end = self.hosts[side].ends[chan]
            .as_deref_mut()
            .expect("just used");
        if let Some(slot) = slot.filter(|_| is_call) {
            end.calls[slot].1 = id;
            call = end.calls[slot].0.call().map_or(0, CallId::to_wire);
        }
        end.queue.push_back(Sent {
            item,
            id,
            call,
            reply: false,
            sent: false,
        });
        self.log
            .messages
            .push(new_message(chan, side, None, is_call, todo.len));
        self.hosts[side].dirty = true;
        if let Some(timeout) = todo.timeout {
            self.after(
                timeout,
                Ev::Expire {
                    chan,
                    side,
                    boot,
                    id,
                },
            );
        }
    }

    /// The program closes its end, or dies.
    pub fn close_program(&mut self, chan: usize, side: usize) {
        self.log.closed[chan][side] = true;
        for m in self
            .log
            .messages
            .iter_mut()
            .filter(|m| m.chan == chan && m.from == side)
        {
            m.orphan = true;
        }
        let Some(end) = self.end(side, chan) else {
            return;
        };
        end.program = false;
        end.inbox.clear();
        end.ch.close(0);
        if end.ch.is_over() {
            self.hosts[side].ends[chan] = None;
        }
        self.hosts[side].dirty = true;
    }

    /// The program writes no more and takes no more.
    fn shut_program(&mut self, chan: usize, side: usize) {
        self.log.closed[chan][side] = true;
        for m in self
            .log
            .messages
            .iter_mut()
            .filter(|m| m.chan == chan && m.from == side)
        {
            m.shut = true;
        }
        let Some(end) = self.hosts[side].ends[chan].as_deref_mut() else {
            return;
        };
        end.shut = true;
        for waiting in core::mem::take(&mut end.inbox) {
            let slot = CallId::from_wire(waiting.call).slot();
            let call = end.calls.get_mut(usize::from(slot));
            // An answer that the program does not want.
            if let Some((slot, call)) = call.filter(|_| waiting.reply) {
                let id = CallId::from_wire(waiting.call);
                if slot.reply(id) == Ok(Answer::Program) {
                    self.log.messages[*call as usize].answered = true;
                }
            }
        }
        end.ch.close(0);
        if end.ch.is_over() {
            self.end_calls(chan, side, |_| true, Outcome::Delivered);
            self.hosts[side].ends[chan] = None;
        }
        self.hosts[side].dirty = true;
    }

    /// The peer's kernel has answered the end of this side: it has all messages, unless its program takes
    /// no more.
    pub fn all_arrived(&mut self, chan: usize, side: usize) {
        let Some(end) = self.hosts[side].ends[chan].as_deref_mut() else {
            return;
        };
        if !end.program {
            return;
        }
        end.piece = None;
        let is_stopped = end.ch.tx.is_stopped();
        for sent in core::mem::take(&mut end.queue) {
            if !is_stopped && !sent.item.is_expired() {
                self.log.told(sent.id, Outcome::Delivered);
            }
        }
        self.end_calls(chan, side, |_| true, Outcome::Delivered);
    }

    /// The client's program does not wait any longer for the portal.
    pub fn withdraw(&mut self, chan: usize, boot: u32) {
        let Some(end) = self.program(chan, CLIENT, boot) else {
            return;
        };
        if !end.ch.is_open() && !end.ch.peer_has_ended() {
            self.close_program(chan, CLIENT);
        }
    }

    /// The program is to read.
    pub fn wake_reader(&mut self, chan: usize, side: usize) {
        let think = self.sch.channels[chan].terms[side].think;
        let boot = self.hosts[side].boot;
        let Some(end) = self.end(side, chan) else {
            return;
        };
        if !end.reading {
            end.reading = true;
            let delay = 1 + self.chance() % think;
            self.after(delay, Ev::Read { chan, side, boot });
        }
    }

    /// The program takes the first message of its queue.
    pub fn read(&mut self, chan: usize, side: usize, boot: u32) {
        let early = self.has(Bug::EarlyCredits);
        let no_reader = self
            .faults()
            .any(|f| matches!(f, Kind::NoReader { side: idle, .. } if usize::from(idle) == side));
        if no_reader {
            return self.after(5 * MS, Ev::Read { chan, side, boot });
        }
        let Some(end) = self.program(chan, side, boot) else {
            return;
        };
        end.reading = false;
        let Some(waiting) = end.inbox.pop_front() else {
            return;
        };
        let front = end.inbox.front().map(|w| w.number);
        let id = CallId::from_wire(waiting.call);
        let is_more = front.is_some();
        let mut reply = None;
        if waiting.reply {
            let Some((slot, call)) = end.calls.get_mut(usize::from(id.slot())) else {
                return;
            };
            reply = Some(slot.reply(id).map(|answer| (answer, *call)));
        }
        let len = self.log.messages[waiting.id as usize].len;
        let end = self.hosts[side].ends[chan]
            .as_deref_mut()
            .expect("just used");
        if !early {
            end.ch.rx.took(len, front);
        }
        self.log.taken(waiting.id);
        match reply {
            None if waiting.call != 0 => {
                let think = 1 + self.chance() % self.sch.channels[chan].terms[side].think;
                let (request, id, again) = (waiting.id, waiting.call, false);
                self.after(
                    think,
                    Ev::Answer {
                        chan,
                        side,
                        boot,
                        request,
                        id,
                        again,
                    },
                );
            }
            None | Some(Ok((Answer::Late, _))) => {}
            Some(Ok((Answer::Program, call))) => self.log.answered(call, waiting.id),
            Some(Err(e)) => self.log.fail(Violation::Protocol(e.as_str())),
        }
        self.hosts[side].dirty = true;
        if is_more {
            self.wake_reader(chan, side);
        } else {
            self.end_if_read(chan, side);
        }
    }

    /// A program whose peer has closed closes as well when it has taken everything.
    fn end_if_read(&mut self, chan: usize, side: usize) {
        let Some(end) = self.end(side, chan) else {
            return;
        };
        if end.ch.peer_has_ended() && end.inbox.is_empty() && end.program {
            self.end_calls(chan, side, |_| true, Outcome::Delivered);
            self.close_program(chan, side);
        }
    }

    /// The program answers a request.
    pub fn answer(
        &mut self,
        chan: usize,
        side: usize,
        boot: u32,
        request: u32,
        id: u64,
        again: bool,
    ) {
        let twice = self.has(Bug::AnswerTwice) && !again;
        let Some(end) = self.program(chan, side, boot) else {
            return;
        };
        if end.shut {
            return;
        }
        let len = request % 100;
        let item = match end.ch.tx.queue(len) {
            Ok(item) => item,
            Err(Refused::Full) => {
                return self.after(
                    2 * MS,
                    Ev::Answer {
                        chan,
                        side,
                        boot,
                        request,
                        id,
                        again,
                    },
                );
            }
            Err(_) => return,
        };
        let call = CallId::from_wire(id);
        let slot = end.callee.get_mut(usize::from(call.slot()));
        if !slot.is_some_and(|slot| slot.reply(call)) && !again {
            return self.log.fail(Violation::WrongAnswer(request));
        }
        let reply = self.log.messages.len() as u32;
        let end = self.hosts[side].ends[chan]
            .as_deref_mut()
            .expect("just used");
        end.queue.push_back(Sent {
            item,
            id: reply,
            call: id,
            reply: true,
            sent: false,
        });
        self.log
            .messages
            .push(new_message(chan, side, Some(request), false, len));
        self.hosts[side].dirty = true;
        if twice {
            self.after(
                MS,
                Ev::Answer {
                    chan,
                    side,
                    boot,
                    request,
                    id,
                    again: true,
                },
            );
        }
    }

    /// The time of a message is over.
    pub fn expire(&mut self, chan: usize, side: usize, boot: u32, id: u32) {
        let (no_skip, hasty) = (
            self.has(Bug::ExpireWithoutSkip),
            self.has(Bug::SkipAfterSend),
        );
        if self.program(chan, side, boot).is_none() {
            return;
        }
        self.log.messages[id as usize].expired = true;
        let Some(end) = self.hosts[side].ends[chan].as_deref_mut() else {
            return;
        };
        let Some(at) = end.queue.iter().position(|sent| sent.id == id) else {
            // Acknowledged, but perhaps not answered.
            self.end_calls(chan, side, |message| message == id, Outcome::Delivered);
            return;
        };
        let sent = &mut end.queue[at];
        let is_pending = end.ch.tx.progress(&sent.item) == Progress::Pending;
        let Some(mut outcome) = end.ch.tx.expire(&mut sent.item) else {
            return;
        };
        if hasty && is_pending {
            outcome = Outcome::NotDelivered;
        }
        if sent.item.number().is_none() || no_skip {
            if let Some(sent) = end.queue.remove(at) {
                end.ch.tx.release(sent.item);
            }
        }
        self.log.told(id, outcome);
        self.end_calls(chan, side, |message| message == id, outcome);
        self.hosts[side].dirty = true;
    }

    /// The calls of these messages end without an answer.
    fn end_calls(
        &mut self,
        chan: usize,
        side: usize,
        which: impl Fn(u32) -> bool,
        request: Outcome,
    ) {
        let Some(end) = self.hosts[side].ends[chan].as_deref_mut() else {
            return;
        };
        for (slot, message) in end.calls.iter_mut().filter(|(_, message)| which(*message)) {
            if let Some(outcome) = slot.abandon(request) {
                self.log.call_told(*message, outcome);
            }
        }
    }

    /// The messages in the queue of a sender end.
    fn end_messages(&mut self, chan: usize, side: usize, cause: Cause) {
        let Some(end) = self.hosts[side].ends[chan].as_deref_mut() else {
            return;
        };
        end.piece = None;
        for mut sent in core::mem::take(&mut end.queue) {
            if let Some(outcome) = end.ch.tx.end(&mut sent.item, cause) {
                self.log.told(sent.id, outcome);
                if sent.call != 0 && !sent.reply {
                    let slots = end
                        .calls
                        .iter_mut()
                        .filter(|(_, message)| *message == sent.id);
                    for (slot, message) in slots {
                        if let Some(outcome) = slot.abandon(outcome) {
                            self.log.call_told(*message, outcome);
                        }
                    }
                }
            }
            end.ch.tx.release(sent.item);
        }
    }

    /// The peer's program takes no more messages; with `ends`, its last one has arrived.
    pub fn peer_closed(&mut self, chan: usize, side: usize, ends: bool) {
        let Some(end) = self.end(side, chan) else {
            return;
        };
        if !end.program {
            end.queue.clear();
            end.piece = None;
            if end.ch.is_over() {
                self.hosts[side].ends[chan] = None;
            }
            return;
        }
        let (is_over, was_shut) = (end.ch.is_over(), end.shut);
        if is_over && !was_shut {
            // It was withdrawn before it was accepted.
            self.hosts[side].ends[chan] = None;
            return;
        }
        self.end_messages(chan, side, Cause::Closed);
        if let Some(end) = self.end(side, chan) {
            let taken = end.ch.tx.taken();
            let gone: Vec<u32> = end
                .acked
                .iter()
                .filter(|(n, ..)| !n.is_before(taken))
                .map(|a| a.1)
                .collect();
            self.end_calls(
                chan,
                side,
                |message| gone.contains(&message),
                Outcome::NotDelivered,
            );
        }
        if is_over {
            self.end_calls(chan, side, |_| true, Outcome::Delivered);
            self.hosts[side].ends[chan] = None;
        } else if ends {
            if !self.log.peer_lost[chan] {
                self.log.drained(chan, 1 - side);
            }
            self.end_if_read(chan, side);
        }
    }

    /// A channel has ended without a word of the peer.
    pub fn end_all(&mut self, chan: usize, side: usize, cause: Cause) {
        if let Some(end) = self.end(side, chan) {
            end.ch.abandon();
        }
        if self.end(side, chan).is_some_and(|end| end.program) {
            self.end_messages(chan, side, cause);
            self.end_calls(chan, side, |_| true, Outcome::Delivered);
            self.close_program(chan, side);
        }
        self.hosts[side].ends[chan] = None;
    }

    /// With [`Bug::CallAgain`]: requests that were not acknowledged are made again.
    pub fn call_again(&mut self, chan: usize) {
        let Some(end) = self.hosts[CLIENT].ends[chan].as_deref_mut() else {
            return;
        };
        let requests: Vec<_> = end
            .queue
            .iter()
            .filter(|sent| sent.item.number().is_some() && sent.call != 0 && !sent.reply)
            .map(|sent| (sent.item.len(), sent.id, sent.call))
            .collect();
        for (len, id, call) in requests {
            if let Ok(item) = end.ch.tx.queue(len) {
                end.queue.push_back(Sent {
                    item,
                    id,
                    call,
                    reply: false,
                    sent: false,
                });
            }
        }
    }
}

fn new_message(chan: usize, from: usize, answers: Option<u32>, is_call: bool, len: u32) -> Message {
    Message {
        chan,
        from,
        answers,
        is_call,
        len,
        expired: false,
        told: None,
        queued: 0,
        taken: 0,
        answered: false,
        call_told: None,
        orphan: false,
        shut: false,
    }
}
