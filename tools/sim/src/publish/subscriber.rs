// SPDX-License-Identifier: GPL-2.0

//! A subscriber: its kernel, which checks what arrives, and its program, which reads it and goes on where it has
//! stopped reading.

use std::collections::BTreeMap;

use ibmsg_proto::publish::{Begins, From, LogId, PublishError, Request, Subscription};
use ibmsg_proto::wire::Publication;
use ibtrs_proto::Errno;

use super::bug::Bug;
use super::chan::{End, In};
use super::schedule::{CLIENT, SERVER, TAGS};
use super::world::{Ev, World};
use crate::schedule::Time;

/// What a program wants of a tag.
#[derive(Clone, Copy, Debug)]
struct Wish {
    wants: bool,
    from: From,
    exact: bool,
    /// It has a subscription on its channel, or asks for one.
    has: bool,
    /// It has read SUBSCRIBED.
    has_begun: bool,
    /// UNSUBSCRIBE was sent.
    leaves: bool,
    /// Where it goes on.
    place: Option<(LogId, u64)>,
}

/// A kernel with a program that subscribes.
pub struct Client {
    pub up: bool,
    pub end: Option<End>,
    /// The server no longer has the channel; the program may read what has arrived.
    is_gone: bool,
    /// What the kernel knows of the channel's subscriptions.
    subs: BTreeMap<u64, Subscription>,
    wishes: [Wish; TAGS],
    wakes_at: Time,
    is_reading: bool,
}

impl Client {
    pub fn new() -> Self {
        let wish = Wish {
            wants: false,
            from: From::First,
            exact: false,
            has: false,
            has_begun: false,
            leaves: false,
            place: None,
        };
        Self {
            up: true,
            end: None,
            is_gone: false,
            subs: BTreeMap::new(),
            wishes: [wish; TAGS],
            wakes_at: 0,
            is_reading: false,
        }
    }

    /// Whether a program wants a tag, and whether its channel has a subscription to it.
    pub fn wants(&self, tag: usize) -> (bool, bool) {
        (self.wishes[tag].wants, self.wishes[tag].has)
    }
}

impl World<'_> {
    /// A program wants a tag.
    pub fn wants(&mut self, who: usize, tag: usize, next: bool, exact: bool) {
        let wish = &mut self.sessions[who].client.wishes[tag];
        wish.wants = true;
        wish.exact = exact;
        wish.from = if next { From::Next } else { From::First };
        self.ask(who);
    }

    /// It wants no more.
    pub fn wants_no_more(&mut self, who: usize, tag: usize) {
        self.sessions[who].client.wishes[tag].wants = false;
        self.ask(who);
    }

    /// A program reads nothing until then.
    pub fn sleep(&mut self, who: usize, time: Time) {
        let client = &mut self.sessions[who].client;
        client.wakes_at = client.wakes_at.max(self.now + time);
    }

    /// The program sends what it has to ask for.
    fn ask(&mut self, who: usize) {
        let hasty = self.is(Bug::HastySubscribe);
        let client = &mut self.sessions[who].client;
        let Some(end) = client.end.as_mut().filter(|_| !client.is_gone) else {
            return;
        };
        for tag in 0..TAGS {
            let wish = &mut client.wishes[tag];
            let may_ask = !wish.has || (hasty && wish.leaves);
            if wish.wants && may_ask {
                let from = match wish.place {
                    Some((log, next)) => From::Position(log, next),
                    None => wish.from,
                };
                let request = Request {
                    from,
                    exact: wish.exact,
                };
                let what = Publication::Subscribe(request);
                if end.push(tag as u64, what, None).is_ok() {
                    (wish.has, wish.has_begun, wish.leaves) = (true, false, false);
                    client.subs.insert(tag as u64, Subscription::new(request));
                    self.seen.renewed += u32::from(wish.place.is_some());
                }
            } else if wish.has && !wish.wants && !wish.leaves {
                let sub = client.subs.get_mut(&(tag as u64));
                if end.push(tag as u64, Publication::Unsubscribe, None).is_ok() {
                    wish.leaves = true;
                    if let Some(sub) = sub {
                        assert!(sub.leave(), "it has not left before");
                    }
                }
            }
        }
    }

    /// The program tries to send what it could not send before.
    pub fn ask_again(&mut self, who: usize) {
        self.ask(who);
    }

    /// The client opens a channel by an attempt. The server forgets the one before.
    pub fn open(&mut self, who: usize, epoch: u32) {
        if self.sessions[who].server.end.is_some() {
            self.forget(who);
        }
        self.channels += 1;
        let [client, server] = End::pair(self.sch, self.channels, epoch);
        let session = &mut self.sessions[who];
        session.client.end = Some(client);
        session.client.is_gone = false;
        session.client.subs.clear();
        for wish in &mut session.client.wishes {
            (wish.has, wish.leaves) = (false, false);
        }
        session.server.end = Some(server);
        session.server.is_dirty = true;
        self.ask(who);
        self.send_all(who, CLIENT);
    }

    /// The server no longer has the channel. The program reads what has arrived, and opens another one.
    pub fn channel_is_gone(&mut self, who: usize) {
        let late = self.is(Bug::RenewArrived);
        let client = &mut self.sessions[who].client;
        client.is_gone = true;
        if late {
            // The kernel goes on, and drops what was not read.
            for (tag, sub) in &client.subs {
                if let From::Position(log, next) = sub.renewal().from {
                    client.wishes[*tag as usize].place = Some((log, next));
                }
            }
            if let Some(end) = &mut client.end {
                end.inbox.clear();
            }
        }
        self.after(1, Ev::Read(who));
    }

    /// The kernel has a message for the program.
    pub fn arrived(
        &mut self,
        who: usize,
        tag: u64,
        what: &Publication,
    ) -> Result<(), &'static str> {
        let client = &mut self.sessions[who].client;
        let sub = client.subs.get_mut(&tag);
        let sub = sub.ok_or(PublishError::NoSubscription(tag).as_str())?;
        let checked = match *what {
            Publication::Subscribed(log, position) => sub.subscribed(log, position).map(|begins| {
                self.seen.other_log += u32::from(begins == Begins::OtherLog);
            }),
            Publication::Published(position) => sub.published(position),
            Publication::Lost(first, count) => sub.lost(first, count),
            Publication::Ended(position, why) => sub.ended(position, why),
            Publication::Subscribe(_) | Publication::Unsubscribe => Err(PublishError::Side),
        };
        checked.map_err(|e| e.as_str())?;
        if matches!(what, Publication::Ended(..)) {
            client.subs.remove(&tag);
        }
        if !client.is_reading {
            client.is_reading = true;
            let lag = 1 + self.chance(100);
            self.after(lag, Ev::Read(who));
        }
        Ok(())
    }

    /// The program reads a message.
    pub fn read(&mut self, who: usize) {
        let now = self.now;
        let client = &mut self.sessions[who].client;
        client.is_reading = false;
        let Some(end) = client.end.as_mut() else {
            return;
        };
        if client.wakes_at > now {
            client.is_reading = true;
            let lag = client.wakes_at - now;
            return self.after(lag, Ev::Read(who));
        }
        let Some(message) = end.inbox.pop_front() else {
            if client.is_gone {
                client.end = None;
                self.move_channel(who);
            }
            return;
        };
        let front = end.inbox.front().map(|message| message.number);
        end.ch.rx.took(message.content.len() as u32, front);
        let more = front.is_some() || client.is_gone;
        client.is_reading = more;
        if more {
            let lag = 1 + self.chance(40);
            self.after(lag, Ev::Read(who));
        }
        self.takes(who, &message);
        self.ask(who);
    }

    /// The program has a message.
    fn takes(&mut self, who: usize, message: &In) {
        let last = u64::from(self.is(Bug::RenewLast));
        let tag = message.tag as usize;
        let wish = &mut self.sessions[who].client.wishes[tag];
        match message.what {
            Publication::Subscribed(log, position) => {
                wish.place = Some((log, position));
                wish.has_begun = true;
                self.check.subscribed(who, tag, log, position);
            }
            Publication::Published(position) => {
                if let Some((_, next)) = &mut wish.place {
                    *next = position + 1 - last;
                }
                self.check.entry(who, tag, position, &message.content);
            }
            Publication::Lost(first, count) => {
                if let Some((_, next)) = &mut wish.place {
                    *next = first + count;
                }
                self.check.lost(who, tag, first, count);
            }
            Publication::Ended(position, why) => {
                (wish.has, wish.leaves) = (false, false);
                let had_begun = std::mem::replace(&mut wish.has_begun, false);
                if why == Some(Errno::ESTALE) {
                    // What it has missed nobody knows.
                    (wish.place, wish.exact) = (None, false);
                    self.check.begins_anew(who, tag);
                } else if had_begun {
                    self.check.ended(who, tag, position);
                }
            }
            Publication::Subscribe(_) | Publication::Unsubscribe => {}
        }
    }

    /// A subscriber's kernel stops.
    pub fn stop_client(&mut self, who: usize, time: Time) {
        let session = &mut self.sessions[who];
        let client = &mut session.client;
        if !client.up {
            return;
        }
        client.up = false;
        client.end = None;
        client.is_gone = false;
        client.subs.clear();
        for wish in &mut client.wishes {
            (wish.has, wish.has_begun, wish.leaves) = (false, false, false);
        }
        for epoch in 1..self.sessions[who].attempts.len() {
            self.sessions[who].attempts[epoch].up[CLIENT] = false;
            let notice = 50 + self.chance(8000);
            self.after(notice, Ev::Down(who, SERVER, epoch as u32));
        }
        self.after(time, Ev::ClientUp(who));
    }
}
