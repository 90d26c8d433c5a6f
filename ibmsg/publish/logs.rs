// SPDX-License-Identifier: GPL-2.0

//! The logs of a portal, and who follows them.

use ibmsg_proto::publish::{
    Admission,
    Feed,
    FeedStep,
    Log,
    LogId,
    LogTerms,
    Policy,
    Request, //
};
use ibtrs_proto::Errno;
use kernel::{
    new_spinlock_irq,
    prelude::*,
    rbtree::RBTree,
    sync::{
        Arc,
        SpinLockIrq, //
    }, //
};
use kx::{
    deque::Deque,
    file::{
        Ready,
        WaitQueue, //
    }, //
};

use super::{
    terms,
    Follower, //
};
use crate::{
    limits::Charge,
    types::Body, //
};

/// The most logs in which a program publishes.
const MAX_LOGS: usize = 4096;
/// Entries that are dropped before others get the lock.
const PORTION: usize = 16;
const FLAGS: kernel::alloc::Flags = GFP_ATOMIC;

/// Why an entry was not published.
pub(crate) enum Unpublished {
    /// There is no log. Its terms would be these.
    NoLog(LogTerms),
    /// A subscriber is slow, and the publisher is to wait.
    Wait,
    /// It is longer than the log may be.
    TooLong,
    /// The portal is closed, or the log has no more positions.
    Over,
    /// There is no memory now.
    NoMemory,
}

/// What there is to know about a log.
#[derive(Clone, Copy)]
pub(crate) struct LogInfo {
    pub(crate) log: Log,
    pub(crate) subscribers: u32,
    /// The first entry that a subscriber lacks.
    pub(crate) slowest: Option<u64>,
}

/// The logs of a portal in numbers.
#[derive(Clone, Copy, Default)]
pub(crate) struct LogCounts {
    pub(crate) logs: usize,
    pub(crate) subscriptions: usize,
    /// Entries that were published.
    pub(crate) published: u64,
}

/// A log, and the content of its entries.
struct Entries {
    log: Log,
    bodies: Deque<Arc<Body>>,
    /// The program publishes in it. Without this, it has subscribers only.
    charge: Option<Charge>,
    /// How many subscribers a publisher waits for, as they need the oldest entry.
    waits_for: u32,
}

/// A subscriber.
struct Subscriber {
    /// The first entry that it still needs.
    holds: Option<u64>,
    who: Arc<dyn Follower>,
}

/// Tag, and a number that no other subscriber has.
type Key = (u64, u64);

struct LogsInner {
    logs: RBTree<u64, Entries>,
    subscribers: RBTree<Key, Subscriber>,
    counts: LogCounts,
    /// Logs whose publisher waits.
    blocked: usize,
    /// The terms of logs for which the program has said none.
    terms: LogTerms,
    /// Of the next log.
    id: u64,
    /// Of the next subscriber.
    key: u64,
    is_closed: bool,
}

/// The logs of a portal.
#[pin_data]
pub(crate) struct Logs {
    #[pin]
    inner: SpinLockIrq<LogsInner>,
    /// Tasks of the portal.
    waiters: Arc<WaitQueue>,
}

/// The subscribers of a log.
#[derive(Default)]
struct Survey {
    count: u32,
    /// The first entry that one of them needs.
    slowest: Option<u64>,
    /// How many need the oldest entry.
    behind: u32,
}

impl Survey {
    /// Of the log of a tag, whose oldest entry is at `first`.
    fn new(subscribers: &mut RBTree<Key, Subscriber>, tag: u64, first: u64) -> Self {
        let mut this = Self::default();
        let mut cursor = subscribers.cursor_lower_bound_mut(&(tag, 0));
        while let Some(at) = cursor {
            let ((of, _), subscriber) = at.current();
            if *of != tag {
                break;
            }
            this.count += 1;
            if let Some(holds) = subscriber.holds {
                this.slowest = Some(this.slowest.map_or(holds, |slowest| slowest.min(holds)));
                this.behind += u32::from(holds <= first);
            }
            cursor = at.move_next();
        }
        this
    }
}

impl LogsInner {
    /// An id that no other log has had.
    fn new_id(&mut self) -> LogId {
        loop {
            self.id = self.id.wrapping_add(1);
            if let Some(id) = LogId::new(self.id) {
                return id;
            }
        }
    }

    /// The log of a tag. If there is none, it is made.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    fn make(&mut self, tag: u64, terms: LogTerms) -> Result<&mut Entries> {
        if self.logs.get(&tag).is_none() {
            let id = self.new_id();
            let entries = Entries {
                log: Log::new(id, terms),
                bodies: Deque::new(),
                charge: None,
                waits_for: 0,
            };
            self.logs
                .try_create_and_insert(tag, entries, FLAGS | __GFP_NOWARN)?;
        }
        self.logs.get_mut(&tag).ok_or(ENOMEM)
    }

    /// The first subscriber from a key on.
    fn follower(&self, from: &Key) -> Option<(Key, Arc<dyn Follower>)> {
        let cursor = self.subscribers.cursor_lower_bound(from)?;
        let (key, subscriber) = cursor.current();
        Some((*key, subscriber.who.clone()))
    }

    /// A publisher may go on. Returns whether one has waited.
    fn unblock(&mut self, tag: u64) -> bool {
        let entries = self.logs.get_mut(&tag);
        let was_blocked =
            entries.is_some_and(|entries| core::mem::take(&mut entries.waits_for) > 0);
        self.blocked -= usize::from(was_blocked);
        was_blocked
    }
}

impl Logs {
    /// No logs.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn new(waiters: Arc<WaitQueue>) -> Result<Arc<Self>> {
        let inner = LogsInner {
            logs: RBTree::new(),
            subscribers: RBTree::new(),
            counts: LogCounts::default(),
            blocked: 0,
            terms: terms(0, 0, 0)?,
            id: kx::random::next_u64(),
            key: 0,
            is_closed: false,
        };
        Arc::pin_init(
            pin_init!(Self {
                inner <- new_spinlock_irq!(inner, "Logs::inner"),
                waiters,
            }),
            GFP_KERNEL,
        )
    }

    // --- the publisher ---

    /// Sets the terms of logs for which the program says none. Those that there are keep theirs.
    pub(crate) fn set_default(&self, terms: LogTerms) {
        self.inner.lock().terms = terms;
    }

    /// Sets the terms of a log in which the program publishes, and makes it if it is not there. `charge` is for those
    /// terms.
    ///
    /// # Context
    ///
    /// *may sleep*, for what is dropped.
    ///
    /// # Errors
    ///
    /// [`ENOSPC`] if there are too many, [`ENOMEM`].
    pub(crate) fn set(&self, tag: u64, terms: LogTerms, charge: Charge) -> Result {
        let mut inner = self.inner.lock();
        let is_new = inner
            .logs
            .get(&tag)
            .is_none_or(|entries| entries.charge.is_none());
        if is_new && inner.counts.logs >= MAX_LOGS {
            return Err(ENOSPC);
        }
        let entries = inner.make(tag, terms)?;
        entries.log.set_terms(terms);
        let former = entries.charge.replace(charge);
        inner.counts.logs += usize::from(is_new);
        let wakes = inner.unblock(tag);
        drop(inner);
        drop(former);
        if wakes {
            self.waiters.wake(Ready::OUT);
        }
        Ok(())
    }

    /// Publishes an entry.
    ///
    /// # Context
    ///
    /// *may sleep*, or a task that is about to.
    pub(crate) fn publish(&self, tag: u64, body: &Arc<Body>) -> Result<(), Unpublished> {
        while !self.append(tag, body)? {}
        Ok(())
    }

    /// Returns `false` if more entries are to be dropped first.
    fn append(&self, tag: u64, body: &Arc<Body>) -> Result<bool, Unpublished> {
        // Dropped when the lock is not held.
        let mut gone = [const { None }; PORTION];
        let mut inner = self.inner.lock();
        if inner.is_closed {
            return Err(Unpublished::Over);
        }
        let log = inner.logs.get(&tag).filter(|log| log.charge.is_some());
        let Some(log) = log.map(|entries| entries.log) else {
            return Err(Unpublished::NoLog(inner.terms));
        };
        let waits = log.terms().policy() == Policy::Wait;
        let is_full = log.admission(body.len(), None) != Admission::Append;
        let LogsInner {
            logs, subscribers, ..
        } = &mut *inner;
        let survey = match waits && is_full {
            true => Survey::new(subscribers, tag, log.first()),
            false => Survey::default(),
        };
        let slowest = survey.slowest;
        let Some(entries) = logs.get_mut(&tag) else {
            return Err(Unpublished::NoLog(*log.terms()));
        };
        let mut places = gone.iter_mut();
        let result = loop {
            match entries.log.admission(body.len(), slowest) {
                Admission::Append => break entries.append(body),
                Admission::Evict => match (places.next(), entries.bodies.pop_front()) {
                    (Some(place), Some(body)) => {
                        entries.log.evicted(body.len());
                        *place = Some(body);
                    }
                    (None, Some(body)) => {
                        // It is still the oldest one.
                        let _ = entries.bodies.push_front(body);
                        break Ok(false);
                    }
                    (_, None) => break Err(Unpublished::Over),
                },
                Admission::Wait => break Err(Unpublished::Wait),
                Admission::TooLong => break Err(Unpublished::TooLong),
                Admission::Exhausted => break Err(Unpublished::Over),
            }
        };
        match result {
            Ok(true) => inner.counts.published += 1,
            Err(Unpublished::Wait) => {
                // The oldest entry may be a later one by now.
                let survey = Survey::new(subscribers, tag, entries.log.first());
                let was = core::mem::replace(&mut entries.waits_for, survey.behind.max(1));
                inner.blocked += usize::from(was == 0);
            }
            _ => {}
        }
        drop(inner);
        drop(gone);
        result
    }

    /// Whether no publisher has to wait, as far as is known.
    pub(crate) fn is_writable(&self) -> bool {
        self.inner.lock().blocked == 0
    }

    /// Notifies the subscribers of a tag.
    ///
    /// # Context
    ///
    /// *any*. The caller holds no locks.
    pub(crate) fn tell(&self, tag: u64) {
        self.serve_from((tag, 0), |of| of == tag);
    }

    /// Notifies the subscribers from a key on, as long as their tags are wanted.
    fn serve_from(&self, first: Key, is_wanted: impl Fn(u64) -> bool) {
        let mut from = first;
        loop {
            let next = self.inner.lock().follower(&from);
            let Some(((tag, number), who)) = next.filter(|((tag, _), _)| is_wanted(*tag)) else {
                return;
            };
            who.serve();
            from = (tag, number + 1);
        }
    }

    /// What there is to know about the log of a tag.
    pub(crate) fn info(&self, tag: u64) -> Option<LogInfo> {
        let mut inner = self.inner.lock();
        let log = inner.logs.get(&tag)?.log;
        let survey = Survey::new(&mut inner.subscribers, tag, log.first());
        Some(LogInfo {
            log,
            subscribers: survey.count,
            slowest: survey.slowest,
        })
    }

    /// The logs in numbers.
    pub(crate) fn counts(&self) -> LogCounts {
        self.inner.lock().counts
    }

    /// The portal is closed: all subscriptions end.
    ///
    /// # Context
    ///
    /// *may sleep*
    pub(crate) fn close(&self) {
        let mut inner = self.inner.lock();
        inner.is_closed = true;
        inner.blocked = 0;
        let logs = core::mem::replace(&mut inner.logs, RBTree::new());
        drop(inner);
        drop(logs);
        self.serve_from((0, 0), |_| true);
    }

    // --- subscribers ---

    /// A subscriber comes. Returns its cursor and its number.
    ///
    /// # Context
    ///
    /// *any*, with the lock of a session held.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn subscribe(
        &self,
        tag: u64,
        request: &Request,
        who: &Arc<dyn Follower>,
    ) -> Result<(Feed, u64)> {
        let mut inner = self.inner.lock();
        inner.key += 1;
        let number = inner.key;
        if inner.is_closed {
            let id = inner.new_id();
            return Ok((Feed::refusal(tag, request, id, Errno::ESHUTDOWN), number));
        }
        let terms = inner.terms;
        let feed = Feed::new(tag, request, &inner.make(tag, terms)?.log);
        let subscriber = Subscriber {
            holds: feed.holds(),
            who: who.clone(),
        };
        let inserted = inner.subscribers.try_create_and_insert(
            (tag, number),
            subscriber,
            FLAGS | __GFP_NOWARN,
        );
        if let Err(e) = inserted {
            let unused = inner.forget_unused(tag);
            drop(inner);
            drop(unused);
            return Err(e);
        }
        inner.counts.subscriptions += 1;
        Ok((feed, number))
    }

    /// What is to be queued next for a subscriber, and the content of an entry.
    pub(crate) fn step(&self, feed: &mut Feed) -> (FeedStep, Option<Arc<Body>>) {
        let inner = self.inner.lock();
        let entries = inner.logs.get(&feed.tag());
        let Some(entries) = entries.filter(|entries| entries.log.id() == feed.log()) else {
            feed.end(Some(Errno::ESHUTDOWN));
            let none = Log::new(feed.log(), inner.terms);
            return (feed.step(&none), None);
        };
        let step = feed.step(&entries.log);
        let body = match step {
            FeedStep::Entry(at) => usize::try_from(at.saturating_sub(entries.log.first()))
                .ok()
                .and_then(|at| entries.bodies.get(at))
                .cloned(),
            _ => None,
        };
        (step, body)
    }

    /// The cursor of a subscriber has moved, or its subscription ends.
    pub(crate) fn moved(&self, feed: &Feed, number: u64) {
        let mut inner = self.inner.lock();
        let Some(subscriber) = inner.subscribers.get_mut(&(feed.tag(), number)) else {
            return;
        };
        let was = core::mem::replace(&mut subscriber.holds, feed.holds());
        let wakes = inner.has_waited_for(feed.tag(), was, feed.holds());
        drop(inner);
        if wakes {
            self.waiters.wake(Ready::OUT);
        }
    }

    /// A subscriber goes.
    pub(crate) fn leave(&self, tag: u64, number: u64) {
        let mut inner = self.inner.lock();
        let gone = inner.subscribers.remove_node(&(tag, number));
        inner.counts.subscriptions -= usize::from(gone.is_some());
        let unused = inner.forget_unused(tag);
        let wakes = inner.unblock(tag);
        drop(inner);
        drop((gone, unused));
        if wakes {
            self.waiters.wake(Ready::OUT);
        }
    }
}

impl LogsInner {
    /// A subscriber that needed the entry `was` needs `now`. Returns whether a publisher has waited for it last.
    fn has_waited_for(&mut self, tag: u64, was: Option<u64>, now: Option<u64>) -> bool {
        let Some(entries) = self.logs.get_mut(&tag) else {
            return false;
        };
        let first = entries.log.first();
        let needs = |holds: Option<u64>| holds.is_some_and(|holds| holds <= first);
        if !needs(was) || needs(now) || entries.waits_for == 0 {
            return false;
        }
        entries.waits_for -= 1;
        let is_last = entries.waits_for == 0;
        self.blocked -= usize::from(is_last);
        is_last
    }

    /// Removes a log in which nobody publishes, and that nobody follows.
    fn forget_unused(&mut self, tag: u64) -> Option<Entries> {
        let entries = self.logs.get(&tag)?;
        let is_unused = entries.charge.is_none() && entries.log.is_unused();
        let first = self.follower(&(tag, 0));
        let is_followed = first.is_some_and(|((of, _), _)| of == tag);
        match is_unused && !is_followed {
            true => self.logs.remove(&tag),
            false => None,
        }
    }
}

impl Entries {
    /// Adds an entry, for which there is room.
    fn append(&mut self, body: &Arc<Body>) -> Result<bool, Unpublished> {
        let reserved = self.bodies.reserve(1, FLAGS | __GFP_NOWARN);
        reserved.map_err(|_| Unpublished::NoMemory)?;
        let _ = self.bodies.push_back(body.clone());
        self.log.append(body.len());
        Ok(true)
    }
}
