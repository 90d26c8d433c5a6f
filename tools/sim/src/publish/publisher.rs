// SPDX-License-Identifier: GPL-2.0

//! The publisher: its program, its kernel, and the cursors of all subscribers.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use ibmsg_proto::publish::{Admission, Feed, FeedStep, Log, LogId, LogTerms, Policy, PublishError};
use ibmsg_proto::wire::Publication;
use ibtrs_proto::Errno;

use super::bug::Bug;
use super::chan::{len, Body, End};
use super::check::{content, Violation};
use super::schedule::{Schedule, SERVER, TAGS};
use super::world::World;

/// The log of a tag.
pub struct Entries {
    pub log: Log,
    serial: u64,
    bodies: VecDeque<Body>,
    /// Entries that the publisher has not been able to publish.
    pub pending: VecDeque<u32>,
}

/// The publisher's kernel and program.
pub struct Publisher {
    pub up: bool,
    pub logs: Vec<Entries>,
    /// A publisher that waits is to try again.
    pub is_awake: bool,
    next_id: u64,
}

/// What the publisher's kernel has of a client.
#[derive(Default)]
pub struct Served {
    pub end: Option<End>,
    pub feeds: Vec<Feed>,
    /// The feed that is served next.
    turn: usize,
    /// Some feed may have something to send.
    pub is_dirty: bool,
    /// Feeds that should have been forgotten, in a mistake.
    dead: Vec<Feed>,
}

impl Publisher {
    pub const fn new() -> Self {
        Self {
            up: true,
            logs: Vec::new(),
            is_awake: false,
            next_id: 0,
        }
    }
}

fn terms(sch: &Schedule, tag: usize) -> LogTerms {
    let terms = sch.logs[tag];
    LogTerms::new(terms.entries, terms.bytes, terms.policy).expect("terms")
}

impl World<'_> {
    /// A portal is bound: all its logs are new.
    pub fn bind(&mut self) {
        for entries in std::mem::take(&mut self.publisher.logs) {
            self.check.gone(entries.log.id());
        }
        if self.is(Bug::SameId) {
            self.publisher.next_id = 0;
        }
        for tag in 0..TAGS {
            self.publisher.next_id += 1;
            let id = LogId::new(self.publisher.next_id).expect("not 0");
            let serial = self.check.begins(id, tag, self.sch.logs[tag].policy);
            self.publisher.logs.push(Entries {
                log: Log::new(id, terms(self.sch, tag)),
                serial,
                bodies: VecDeque::new(),
                pending: VecDeque::new(),
            });
        }
    }

    /// The publisher closes its portal, and binds another one.
    pub fn rebind(&mut self) {
        if !self.publisher.up {
            return;
        }
        let forgets = self.is(Bug::NoEndOnClose);
        for session in &mut self.sessions {
            for feed in session.server.feeds.iter_mut().filter(|_| !forgets) {
                feed.end(Some(Errno::ESHUTDOWN));
            }
            session.server.is_dirty = true;
        }
        self.seen.restarts += 1;
        self.bind();
    }

    /// The publisher publishes.
    pub fn publish(&mut self, tag: usize, len: u32) {
        if self.publisher.up {
            self.publisher.logs[tag].pending.push_back(len);
            self.publisher.is_awake = true;
        }
    }

    /// The cursors that hold the log of a tag.
    fn slowest(&self, tag: usize) -> Option<u64> {
        let id = self.publisher.logs[tag].log.id();
        if self.is(Bug::NobodyIsSlow) {
            return None;
        }
        let mut slowest: Option<u64> = None;
        for session in &self.sessions {
            let server = &session.server;
            let is_adrift = server
                .end
                .as_ref()
                .is_some_and(|end| end.ch.conn().is_none());
            if is_adrift && self.is(Bug::AdriftIsNotSlow) {
                continue;
            }
            for feed in server.feeds.iter().chain(&server.dead) {
                let holds = feed.holds().filter(|_| feed.log() == id);
                if let Some(at) = holds {
                    slowest = Some(slowest.map_or(at, |slowest| slowest.min(at)));
                }
            }
        }
        slowest
    }

    /// The publisher tries to publish what it could not publish before.
    pub fn publish_pending(&mut self) -> bool {
        if !std::mem::take(&mut self.publisher.is_awake) {
            return false;
        }
        let mut has_any = false;
        for tag in 0..TAGS {
            while let Some(len) = self.publisher.logs[tag].pending.front().copied() {
                if !self.publish_one(tag, len) {
                    self.seen.waits += 1;
                    break;
                }
                self.publisher.logs[tag].pending.pop_front();
                has_any = true;
            }
        }
        has_any
    }

    fn publish_one(&mut self, tag: usize, len: u32) -> bool {
        let slowest = self.slowest(tag);
        let (early, always) = (self.is(Bug::EarlyRelease), self.is(Bug::AlwaysWait));
        let entries = &mut self.publisher.logs[tag];
        let id = entries.log.id();
        loop {
            let admission = entries.log.admission(len, slowest);
            let is_needed = slowest.is_some_and(|slowest| slowest <= entries.log.first());
            match admission {
                Admission::Append => break,
                Admission::Evict if always && is_needed => return self.waits(tag),
                Admission::Evict => {
                    let body = entries.bodies.pop_front().expect("an entry");
                    entries.log.evicted(body.borrow().len() as u32);
                    if early {
                        body.borrow_mut().fill(0xFF);
                    }
                    self.check.dropped(id);
                    self.seen.dropped += 1;
                }
                Admission::Wait => return self.waits(tag),
                Admission::TooLong | Admission::Exhausted => unreachable!("short entries"),
            }
        }
        let position = entries.log.append(len);
        let body = content(tag, entries.serial, position, len);
        entries.bodies.push_back(Rc::new(RefCell::new(body)));
        self.check.published(id, len);
        for session in &mut self.sessions {
            session.server.is_dirty |= session.server.feeds.iter().any(|f| f.log() == id);
        }
        true
    }

    fn waits(&mut self, tag: usize) -> bool {
        if self.sch.logs[tag].policy != Policy::Wait {
            self.check.fail(Violation::Waits(tag));
        }
        false
    }

    /// SUBSCRIBE or UNSUBSCRIBE has arrived.
    pub fn asked(&mut self, who: usize, tag: u64, what: &Publication) -> Result<(), &'static str> {
        let log = self.publisher.logs[tag as usize].log;
        let strict = self.is(Bug::StrictUnsubscribe);
        let server = &mut self.sessions[who].server;
        let most = server.end.as_ref().map_or(0, |end| end.most);
        let at = server.feeds.iter().position(|feed| feed.tag() == tag);
        server.is_dirty = true;
        match (what, at) {
            (Publication::Subscribe(_), Some(_)) => {
                return Err(PublishError::Subscribe(tag).as_str())
            }
            (Publication::Subscribe(request), None) if server.feeds.len() < most => {
                server.feeds.push(Feed::new(tag, request, &log));
            }
            (Publication::Unsubscribe, Some(at)) => server.feeds[at].end(None),
            (Publication::Unsubscribe, None) if !strict => {}
            _ => return Err(PublishError::NoSubscription(tag).as_str()),
        }
        // A subscription that ends holds the log no more.
        self.left();
        Ok(())
    }

    /// A subscriber has gone, or its subscription.
    fn left(&mut self) {
        self.publisher.is_awake |= !self.is(Bug::NoWakeOnLeave);
    }

    /// Puts what subscribers lack into the queue of their channel, as far as there are credits.
    pub fn serve_feeds(&mut self, who: usize) -> bool {
        if !std::mem::take(&mut self.sessions[who].server.is_dirty) {
            return false;
        }
        let mut has_any = false;
        while self.serve_feed(who) {
            has_any = true;
            self.send_all(who, SERVER);
        }
        has_any
    }

    /// The log of a feed; none if its portal is closed.
    fn log_of(&self, feed: &Feed) -> Option<&Entries> {
        let entries = &self.publisher.logs[feed.tag() as usize];
        Some(entries).filter(|entries| entries.log.id() == feed.log())
    }

    /// What a feed has to send.
    fn step(&self, feed: &Feed) -> (FeedStep, Option<Body>) {
        let closed = Log::new(feed.log(), terms(self.sch, feed.tag() as usize));
        let entries = self.log_of(feed);
        let log = entries.map_or(closed, |entries| entries.log);
        let mut step = feed.step(&log);
        match &mut step {
            FeedStep::Lost(first, count) if self.is(Bug::LostToHead) => {
                *count = log.next() - *first;
            }
            FeedStep::Ended(at, _) if self.is(Bug::EndAtHead) => *at = log.next(),
            _ => {}
        }
        let body = match (step, entries) {
            (FeedStep::Entry(at), Some(entries)) => {
                let at = (at - log.first()) as usize;
                entries.bodies.get(at).cloned()
            }
            _ => None,
        };
        (step, body)
    }

    fn serve_feed(&mut self, who: usize) -> bool {
        let server = &self.sessions[who].server;
        let Some(end) = server.end.as_ref().filter(|end| end.ch.conn().is_some()) else {
            return false;
        };
        let count = server.feeds.len();
        let turns = (0..count).map(|n| (server.turn + n) % count);
        let found = turns
            .map(|at| (at, self.step(&server.feeds[at])))
            .find(|(_, (step, _))| *step != FeedStep::Idle);
        let Some((at, (step, body))) = found else {
            return false;
        };
        let what = match step {
            FeedStep::Subscribed(log, position) => Publication::Subscribed(log, position),
            FeedStep::Lost(first, count) => Publication::Lost(first, count),
            FeedStep::Entry(position) => Publication::Published(position),
            FeedStep::Ended(position, why) => Publication::Ended(position, why),
            FeedStep::Idle => return false,
        };
        if !end.ch.tx.has_credit(len(&what, body.as_ref())) {
            self.seen.slow += 1;
            if !self.is(Bug::NoCredits) {
                return false;
            }
        }
        self.queue(who, at, step, what, body)
    }

    fn queue(
        &mut self,
        who: usize,
        at: usize,
        step: FeedStep,
        what: Publication,
        body: Option<Body>,
    ) -> bool {
        let silent = self.is(Bug::SilentLoss) && matches!(step, FeedStep::Lost(..));
        let again = self.is(Bug::PublishAgain) && self.somebody_lacks(who, at, step);
        let wakes = !self.is(Bug::NoWake);
        let server = &mut self.sessions[who].server;
        let (feed, end) = (&mut server.feeds[at], server.end.as_mut().expect("an end"));
        if !silent && end.push(feed.tag(), what, body).is_err() {
            return false;
        }
        if !again {
            feed.queued(step);
        }
        server.turn = at + 1;
        match step {
            FeedStep::Entry(_) => self.seen.entries += 1,
            FeedStep::Lost(..) => self.seen.lost += 1,
            FeedStep::Ended(_, Some(why)) => {
                self.seen.closed += u32::from(why == Errno::ENOBUFS);
                self.seen.refused += u32::from(why == Errno::ESTALE);
            }
            _ => {}
        }
        if server.feeds[at].is_over() {
            server.feeds.remove(at);
            self.left();
        }
        self.publisher.is_awake |= wakes;
        true
    }

    /// Whether another subscriber, whose channel has no credits, lacks an entry that one gets.
    fn somebody_lacks(&self, who: usize, at: usize, step: FeedStep) -> bool {
        let FeedStep::Entry(position) = step else {
            return false;
        };
        let tag = self.sessions[who].server.feeds[at].tag();
        self.sessions.iter().enumerate().any(|(other, session)| {
            let server = &session.server;
            let lacks = |feed: &Feed| feed.tag() == tag && feed.holds() == Some(position);
            let end = server.end.as_ref();
            let is_full = end.is_some_and(|end| !end.ch.tx.has_credit(16));
            other != who && is_full && server.feeds.iter().any(lacks)
        })
    }

    /// The server's end has lost its connection.
    pub fn lost_connection(&mut self, who: usize) {
        if self.is(Bug::ForgetOnMove) {
            self.sessions[who].server.feeds.clear();
            self.left();
        }
    }

    /// The channel is on another connection.
    pub fn moved(&mut self, who: usize) {
        let (repeats, serves) = (self.is(Bug::RepeatOnMove), !self.is(Bug::NoServeOnMove));
        let server = &mut self.sessions[who].server;
        server.is_dirty |= serves;
        let end = server.end.as_mut().expect("an end");
        if repeats {
            let sent: Vec<_> = end.queue.iter().map(|out| (out.tag, out.what)).collect();
            for feed in &mut server.feeds {
                let of = |(tag, what): &(u64, Publication)| match what {
                    Publication::Published(at) if *tag == feed.tag() => Some(*at),
                    _ => None,
                };
                if let Some(at) = sent.iter().filter_map(of).min() {
                    feed.queued(FeedStep::Lost(at, 0));
                }
            }
        }
    }

    /// The server ends the channel of a client.
    pub fn forget(&mut self, who: usize) {
        let keeps = self.is(Bug::KeepDeadFeeds);
        let server = &mut self.sessions[who].server;
        server.end = None;
        let feeds = std::mem::take(&mut server.feeds);
        if keeps {
            server.dead.extend(feeds);
        }
        self.left();
    }
}
