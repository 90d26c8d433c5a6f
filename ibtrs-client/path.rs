// SPDX-License-Identifier: GPL-2.0

//! A path: one pair of addresses, and its state.
//!
//! The operator adds and removes a path. It may be connected many times in its lifetime;
//! [`attempt`] has the state of one connection attempt.
//!
//! | Module | Purpose |
//! |---|---|
//! | [`attempt`] | a connection attempt and its connections; its children connect and authenticate |
//! | [`parent`] | the session, as its paths see it |
//! | [`state`], [`control`] | state changes, and the requests of users for them |
//! | [`probe`] | whether the server answers, after a request has timed out |
//! | [`drain`] | polled connections while they are closed |

use crate::{
    data::{
        link::{
            Link,
            Names, //
        },
        stats::Stats, //
    },
    env::Env,
    text::Text,
    types::{
        PathSpec,
        Proved, //
    }, //
};
use ibtrs_core::convert::Shown;
use ibtrs_proto::{
    auth::{
        KeyId,
        Suite, //
    },
    fsm::client_path::{
        self as fsm,
        Actions,
        Machine,
        State, //
    },
    steps::Steps, //
};
use kernel::{
    new_condvar,
    new_mutex,
    new_spinlock_irq,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        CondVar,
        Mutex,
        SpinLockIrq, //
    }, //
};
use kx::{
    mm::in_reclaim,
    net::addr::SockAddr,
    sync::{
        atomic::{
            Atomic,
            AtomicFlag,
            Relaxed, //
        },
        TakeCell, //
    },
    work::{
        DelayedWork,
        Work, //
    }, //
};
use rdma::{
    cm::ActiveId,
    device::Device, //
};

pub(crate) mod attempt;
mod control;
mod drain;
pub(crate) mod parent;
mod probe;
mod state;

use attempt::{
    Attempt,
    Resources, //
};
use drain::Closing;
use parent::Parent;

/// The state of a path, and the actions and uevents that its changes still require.
struct Fsm {
    machine: Machine,
    /// The path was not started, and has accepted no event.
    is_new: bool,
    /// [`Path::show`] has not returned, so the path may still be added to sysfs.
    being_shown: bool,
    todo: Steps<Actions>,
    /// States not yet reported by a uevent.
    pending_uevents: Steps<State>,
    /// Attempts that have succeeded or failed.
    outcomes: u64,
    /// Attempts since the last outcome that were repeated because of `EAGAIN`, see
    /// [`Fsm::again_in_ms`].
    nr_again: u32,
    /// Resets that are still forgiven.
    resets_left: u32,
    /// The last outcome.
    outcome: Result,
    /// The error of the current attempt, set before the attempt reports its failure.
    failure: Option<Error>,
}

/// The RDMA device that a path uses or last used.
struct Hca {
    name: CString,
    port: u32,
    src: Option<SockAddr>,
    dst: Option<SockAddr>,
}

/// The path's directory in sysfs.
pub(crate) trait PathDir: Send {
    /// Reports a new state of the path by a uevent. One call at a time.
    fn changed(&mut self, path: &Path, state: State);

    /// Reports by a uevent that the operator has drained the path, put it on standby, or undone
    /// either: `variable` says which.
    fn ranked(&self, path: &Path, variable: &CStr);

    /// Reports by a uevent that the path is being removed.
    fn removed(&self, path: &Path);
}

/// A path of a session.
#[pin_data]
pub struct Path {
    pub(crate) parent: Arc<dyn Parent>,
    pub(crate) env: Arc<Env>,
    names: Arc<Names>,
    pub(crate) spec: PathSpec,
    pub(crate) uuid: [u8; 16],
    #[pin]
    fsm: SpinLockIrq<Fsm>,
    /// Notified when the state, the number of outcomes or `being_shown` changes.
    #[pin]
    changed: CondVar,
    #[pin]
    attempt: Mutex<Option<Arc<Attempt>>>,
    #[pin]
    hca: Mutex<Hca>,
    /// Why the path was last lost or could not be connected, and the epoch of the attempt.
    #[pin]
    last_error: SpinLockIrq<(Text, u32)>,
    /// Epoch of the last published attempt; 0 for none.
    previous: Atomic<u32>,
    nr_attempts: Atomic<u32>,
    /// The server has accepted a connection of the path at least once.
    accepted: AtomicFlag,
    /// The operator has drained the path.
    drained: AtomicFlag,
    /// The path is drained, and reconnects soon for re-authentication.
    drained_for_reauth: AtomicFlag,
    /// The operator has put the path on standby.
    standby: AtomicFlag,
    stats: Arc<Stats>,
    /// As `Session::hook`.
    #[pin]
    hook: Mutex<Option<KBox<dyn PathDir>>>,
    #[pin]
    events: Work<Self, { work::EVENTS }>,
    #[pin]
    connect: Work<Self, { work::CONNECT }>,
    #[pin]
    timer: DelayedWork<Self, { work::TIMER }>,
    #[pin]
    heartbeat_work: DelayedWork<Self, { work::HEARTBEAT }>,
    #[pin]
    pub(crate) probe_timeout: DelayedWork<Self, { work::PROBE_TIMEOUT }>,
    /// Resources of the last attempt, kept to reserve their memory for the next one.
    #[pin]
    kept: Mutex<Option<Resources>>,
    #[pin]
    release: Work<Self, { work::RELEASE }>,
    /// Connections for `drain` to poll.
    pub(crate) closing: TakeCell<Arc<Closing>>,
    #[pin]
    pub(crate) drain: Work<Self, { work::DRAIN }>,
    #[pin]
    uevents: Work<Self, { work::UEVENTS }>,
}

/// Ids of the work items of a path.
pub(crate) mod work {
    pub(crate) const EVENTS: u64 = 0;
    pub(crate) const CONNECT: u64 = 1;
    pub(crate) const TIMER: u64 = 2;
    pub(crate) const HEARTBEAT: u64 = 3;
    pub(crate) const PROBE_TIMEOUT: u64 = 4;
    pub(crate) const DRAIN: u64 = 5;
    pub(crate) const UEVENTS: u64 = 6;
    pub(crate) const RELEASE: u64 = 7;
}

kx::impl_has_work! {
    impl HasWork<Work<Self, { work::EVENTS }>> for Path { self.events }
    impl HasWork<Work<Self, { work::CONNECT }>> for Path { self.connect }
    impl HasWork<DelayedWork<Self, { work::TIMER }>> for Path { self.timer }
    impl HasWork<DelayedWork<Self, { work::HEARTBEAT }>> for Path { self.heartbeat_work }
    impl HasWork<DelayedWork<Self, { work::PROBE_TIMEOUT }>> for Path { self.probe_timeout }
    impl HasWork<Work<Self, { work::DRAIN }>> for Path { self.drain }
    impl HasWork<Work<Self, { work::UEVENTS }>> for Path { self.uevents }
    impl HasWork<Work<Self, { work::RELEASE }>> for Path { self.release }
}

impl Path {
    /// Creates a path that stays idle until [`Path::start`].
    pub(crate) fn new(parent: Arc<dyn Parent>, env: Arc<Env>, spec: PathSpec) -> Result<Arc<Self>> {
        let (queue, slow) = (env.events_queue(), env.slow_queue());
        let (uevents, nr_queues) = (env.uevent_queue(), env.nr_queues());
        let names = Names {
            path: CString::try_from_fmt(fmt!("{}", Shown(spec.addr)))?,
            log: CString::try_from_fmt(fmt!("{}: {}", env.name(), Shown(spec.addr)))?,
        };
        let fsm = Fsm {
            machine: Machine::new(),
            is_new: true,
            being_shown: true,
            todo: Steps::default(),
            pending_uevents: Steps::default(),
            outcomes: 0,
            nr_again: 0,
            resets_left: 0,
            outcome: Ok(()),
            failure: None,
        };
        let hca = Hca {
            name: CString::try_from_fmt(fmt!(""))?,
            port: 0,
            src: None,
            dst: None,
        };
        let this = Arc::pin_init(
            try_pin_init!(Self {
                names: Arc::new(names, GFP_KERNEL)?,
                parent,
                env,
                spec,
                uuid: kx::random::uuid(),
                fsm <- new_spinlock_irq!(fsm, "Path::fsm"),
                changed <- new_condvar!("Path::changed"),
                attempt <- new_mutex!(None, "Path::attempt"),
                hca <- new_mutex!(hca, "Path::hca"),
                last_error <- new_spinlock_irq!((Text::EMPTY, 0), "Path::last_error"),
                previous: Atomic::new(0),
                nr_attempts: Atomic::new(0),
                accepted: AtomicFlag::new(false),
                drained: AtomicFlag::new(false),
                drained_for_reauth: AtomicFlag::new(false),
                standby: AtomicFlag::new(false),
                stats: Arc::new(Stats::new(nr_queues)?, GFP_KERNEL)?,
                hook <- new_mutex!(None, "Path::hook"),
                events <- kx::new_work!(queue.clone(), "Path::events"),
                connect <- kx::new_work!(slow, "Path::connect"),
                timer <- kx::new_delayed_work!(queue.clone(), "Path::timer"),
                heartbeat_work <- kx::new_delayed_work!(queue.clone(), "Path::heartbeat_work"),
                probe_timeout <- kx::new_delayed_work!(queue.clone(), "Path::probe_timeout"),
                kept <- new_mutex!(None, "Path::kept"),
                release <- kx::new_work!(queue.clone(), "Path::release"),
                closing: TakeCell::empty(),
                drain <- kx::new_work!(queue, "Path::drain"),
                uevents <- kx::new_work!(uevents, "Path::uevents"),
            }? Error),
            GFP_KERNEL,
        )?;
        in_reclaim(|| drop(this.attempt.lock()));
        in_reclaim(|| drop(this.hca.lock()));
        in_reclaim(|| drop(this.kept.lock()));
        attempt::needed_in_reclaim();
        Ok(this)
    }

    /// Lets `make` create the path's directory in sysfs; the operator may remove the path before this
    /// returns.
    pub(crate) fn show(&self, make: impl FnOnce() -> Result<KBox<dyn PathDir>>) -> Result {
        let result = make().map(|hook| *self.hook.lock() = Some(hook));
        self.fsm.lock().being_shown = false;
        self.changed.notify_all();
        result
    }

    /// Begins the first attempt, unless a user or the session has already closed the path.
    pub(crate) fn start(self: &Arc<Self>) {
        let mut fsm = self.fsm.lock();
        if !core::mem::take(&mut fsm.is_new) {
            return;
        }
        let state = fsm.machine.state;
        fsm.pending_uevents.push(state, |_, last| last);
        fsm.todo.push(fsm::initial().actions, Actions::and);
        drop(fsm);
        self.events.enqueue(self.clone());
        self.uevents.enqueue(self.clone());
    }

    /// Returns the name: `src@dst`, or `dst`, as the operator gave it.
    pub fn name(&self) -> &CStr {
        &self.names.path
    }

    /// Returns the names of session and path, for the log.
    pub(crate) fn log(&self) -> &CStr {
        &self.names.log
    }

    /// Returns the state.
    ///
    /// # Context
    ///
    /// Any.
    pub fn state(&self) -> State {
        self.fsm.lock().machine.state
    }

    /// Calls `f` with the name and port number of the RDMA device. The name is empty before the
    /// first connection; while the path is down, both are of the last connection.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn with_hca<R>(&self, f: impl FnOnce(&CStr, u32) -> R) -> R {
        let hca = self.hca.lock();
        f(&hca.name, hca.port)
    }

    /// Returns the local address of the last connection, if there was one.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn src_addr(&self) -> Option<SockAddr> {
        self.hca.lock().src
    }

    /// Returns the server's address of the last connection, if there was one.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn dst_addr(&self) -> Option<SockAddr> {
        self.hca.lock().dst
    }

    /// Returns the addresses that the operator gave.
    pub fn spec(&self) -> &PathSpec {
        &self.spec
    }

    /// Returns the last round trip of a heartbeat in nanoseconds, if the path is connected and a
    /// heartbeat was answered.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn latency_ns(&self) -> Option<u64> {
        self.attempt.lock().as_ref()?.link.latency_ns()
    }

    /// Returns for how many milliseconds a heartbeat has been overdue; 0 if none is, or if the path is
    /// not connected.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn heartbeat_overdue_ms(&self) -> u64 {
        if self.state() != State::Connected {
            return 0;
        }
        let attempt = self.attempt.lock();
        let attempt = attempt.as_ref();
        attempt.map_or(0, |attempt| attempt.link.heartbeat.overdue_ms())
    }

    /// Returns the id of the key with which both sides have proved themselves, if the path is
    /// connected and authenticated.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn key_id(&self) -> Option<KeyId> {
        Some(self.proved()?.key_id)
    }

    /// Returns the suite by which both sides have proved themselves, under the same condition.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn suite(&self) -> Option<Suite> {
        Some(self.proved()?.suite)
    }

    fn proved(&self) -> Option<Proved> {
        let attempt = self.attempt.lock();
        let connected = attempt.as_ref().filter(|a| a.published.as_ref().is_some());
        connected?.proved.copy()
    }

    /// Returns how many message connections the path has now that programs can use: 0 or 1.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn message_connections(&self) -> u32 {
        if self.state() != State::Connected {
            return 0;
        }
        let attempt = self.attempt.lock();
        let attempt = attempt.as_ref();
        u32::from(attempt.is_some_and(|attempt| attempt.carries_messages.load(Relaxed)))
    }

    /// Returns the number of requests in flight that the path selection policy counts.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn inflight(&self) -> i32 {
        let attempt = self.attempt.lock();
        attempt
            .as_ref()
            .map_or(0, |a| a.link.inflight.load(Relaxed))
    }

    /// Returns the current attempt, if there is one.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn attempt(&self) -> Option<Arc<Attempt>> {
        self.attempt.lock().clone()
    }

    /// Returns why the path was last lost or could not be connected.
    ///
    /// # Context
    ///
    /// Any.
    pub fn last_error(&self) -> Text {
        self.last_error.lock().0
    }

    /// Returns why attempt `epoch` of the path ends.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn cause(&self, epoch: u32) -> Text {
        let (text, of) = *self.last_error.lock();
        match of == epoch {
            true => text,
            // The attempt has not ended by an error.
            false => Text::new(fmt!("disconnected by the client")),
        }
    }

    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Creates the link of attempt `epoch`.
    pub(crate) fn new_link(&self, epoch: u32) -> Result<Arc<Link>> {
        let (names, stats) = (self.names.clone(), self.stats.clone());
        Link::new(self.env.clone(), names, stats, epoch)
    }

    pub(crate) fn previous(&self) -> u32 {
        self.previous.load(Relaxed)
    }

    /// Records attempt `epoch` as the last published one.
    pub(crate) fn set_previous(&self, epoch: u32) {
        self.previous.store(epoch, Relaxed);
    }

    pub(crate) fn nr_attempts(&self) -> u32 {
        self.nr_attempts.load(Relaxed)
    }

    pub(crate) fn was_accepted(&self) -> bool {
        self.accepted.load(Relaxed)
    }

    pub(crate) fn set_accepted(&self) {
        self.accepted.store(true, Relaxed);
    }

    /// Records the device and the addresses of the path's connection `id`.
    pub(crate) fn bound(&self, dev: &Device, id: &ActiveId) {
        let mut hca = self.hca.lock();
        if *hca.name != *dev.name() {
            // If the allocation fails, the old name remains; it is only shown to operators.
            if let Ok(name) = CString::try_from_fmt(fmt!("{}", dev.name())) {
                hca.name = name;
            }
        }
        hca.port = id.port_num();
        (hca.src, hca.dst) = match id.addrs() {
            Some(addrs) => (Some(addrs.local), Some(addrs.peer)),
            None => (None, None),
        };
    }
}
