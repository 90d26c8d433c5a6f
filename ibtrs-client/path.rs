// SPDX-License-Identifier: GPL-2.0

//! A path: one pair of addresses, and its state.
//!
//! A path is made and removed by the operator, and connected again and again
//! meanwhile; see [`crate::attempt`] for what belongs to one connection.

use crate::{
    attempt::Attempt,
    connect,
    session::{
        PathSpec,
        Session, //
    },
    stats::Stats,
    sysfs::PathHook,
    text::Text, //
};
use ibtrs_core::{
    convert::{
        self,
        Shown, //
    },
    steps::Steps,
    trace, //
};
use ibtrs_proto::{
    fsm::client_path::{
        self as fsm,
        Actions,
        Event,
        State, //
    },
    fsm::Verdict, //
};
use kernel::{
    fmt,
    new_condvar,
    new_mutex,
    new_spinlock_irq,
    prelude::*,
    str::CString,
    sync::{
        atomic::{
            Atomic,
            AtomicFlag,
            Relaxed, //
        },
        Arc,
        CondVar,
        Mutex,
        SpinLockIrq, //
    }, //
};
use kx::{
    mm::NoIo,
    net::addr::SockAddr,
    work::{
        DelayedWork,
        Work,
        WorkItem, //
    }, //
};
use rdma::{
    cm::CmId,
    device::Device, //
};

/// How often a server may answer a user's wish to reconnect with a reset: it does
/// as long as it is busy closing the path's former connections.
const RESETS_FORGIVEN: u32 = 3;

/// The state of a path, and what remains to be done about changes of it.
struct Fsm {
    state: State,
    todo: Steps<Actions>,
    /// The number of the attempt whose errors count; 0 for none.
    epoch: u32,
    /// Attempts to reconnect since the last success, or since a user asked.
    made: u32,
    /// The next attempt does not wait.
    hurry: bool,
    /// Attempts that have succeeded or failed.
    outcomes: u64,
    /// What the last of them came to.
    outcome: Result,
    /// Why the present attempt will fail.
    failure: Option<Error>,
}

/// What a path knows of the device that it uses, or used last.
struct Hca {
    name: CString,
    port: u32,
    src: Option<SockAddr>,
    dst: Option<SockAddr>,
}

/// A path of a session.
#[pin_data]
pub struct Path {
    pub(crate) session: Arc<Session>,
    name: CString,
    /// Session and addresses, for the log.
    log: CString,
    pub(crate) spec: PathSpec,
    pub(crate) uuid: [u8; 16],
    #[pin]
    fsm: SpinLockIrq<Fsm>,
    /// The state, or the number of outcomes, has changed.
    #[pin]
    changed: CondVar,
    #[pin]
    attempt: Mutex<Option<Arc<Attempt>>>,
    #[pin]
    hca: Mutex<Hca>,
    #[pin]
    last_error: SpinLockIrq<Text>,
    /// The number of the last attempt that submitters could find.
    previous: Atomic<u32>,
    nr_attempts: Atomic<u32>,
    /// A server has accepted it once.
    accepted: AtomicFlag,
    /// Counters.
    pub(crate) stats: Stats,
    #[pin]
    hook: Mutex<Option<PathHook>>,
    #[pin]
    events: Work<Self, 0>,
    #[pin]
    connect: Work<Self, 1>,
    #[pin]
    timer: DelayedWork<Self, 2>,
    #[pin]
    beat: DelayedWork<Self, 3>,
}

kx::impl_has_work! {
    impl HasWork<Work<Self, 0>> for Path { self.events }
    impl HasWork<Work<Self, 1>> for Path { self.connect }
    impl HasWork<DelayedWork<Self, 2>> for Path { self.timer }
    impl HasWork<DelayedWork<Self, 3>> for Path { self.beat }
}

impl Path {
    /// Makes a path that does nothing before [`Path::start`].
    pub(crate) fn new(session: Arc<Session>, spec: PathSpec) -> Result<Arc<Self>> {
        let (queue, slow) = (session.events_queue(), session.slow_queue());
        let fsm = Fsm {
            state: fsm::initial().next,
            todo: Steps::default(),
            epoch: 0,
            made: 0,
            hurry: false,
            outcomes: 0,
            outcome: Ok(()),
            failure: None,
        };
        let hca = Hca {
            name: CString::try_from_fmt(fmt!(""))?,
            port: 0,
            src: None,
            dst: None,
        };
        Arc::pin_init(
            try_pin_init!(Self {
                name: CString::try_from_fmt(fmt!("{}", Shown(spec.addr)))?,
                log: CString::try_from_fmt(fmt!("{}: {}", session.name(), Shown(spec.addr)))?,
                session,
                spec,
                uuid: kx::uuid::generate(),
                fsm <- new_spinlock_irq!(fsm, "Path::fsm"),
                changed <- new_condvar!("Path::changed"),
                attempt <- new_mutex!(None, "Path::attempt"),
                hca <- new_mutex!(hca, "Path::hca"),
                last_error <- new_spinlock_irq!(Text::EMPTY, "Path::last_error"),
                previous: Atomic::new(0),
                nr_attempts: Atomic::new(0),
                accepted: AtomicFlag::new(false),
                stats: Stats::new()?,
                hook <- new_mutex!(None, "Path::hook"),
                events <- kx::new_work!(queue.clone(), "Path::events"),
                connect <- kx::new_work!(slow, "Path::connect"),
                timer <- kx::new_delayed_work!(queue.clone(), "Path::timer"),
                beat <- kx::new_delayed_work!(queue, "Path::beat"),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Shows the path to the operator.
    pub(crate) fn show(self: &Arc<Self>) -> Result {
        let hook = match &*self.session.hook.lock() {
            Some(session) => session.show_path(self)?,
            None => return Err(ESHUTDOWN),
        };
        *self.hook.lock() = Some(hook);
        Ok(())
    }

    /// Begins the first attempt.
    pub(crate) fn start(self: &Arc<Self>) {
        self.fsm
            .lock()
            .todo
            .push(fsm::initial().actions, Actions::and);
        self.events.enqueue(self.clone());
    }

    /// Returns the name: `src@dst`, or `dst`, as the operator gave it.
    pub fn name(&self) -> &CStr {
        &self.name
    }

    /// Returns the session.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Returns session and path, for the log.
    pub(crate) fn log(&self) -> &CStr {
        &self.log
    }

    /// Returns the state.
    ///
    /// # Context
    ///
    /// Any.
    pub fn state(&self) -> State {
        self.fsm.lock().state
    }

    /// Calls `f` with the name of the RDMA device, which is empty before the
    /// first connection, and the number of its port. The last ones are kept
    /// while the path is down.
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

    /// Returns the last round trip of a heartbeat in nanoseconds, if the path
    /// is connected and it was measured.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn latency_ns(&self) -> Option<u64> {
        self.attempt.lock().as_ref()?.latency_ns()
    }

    /// Returns the requests in flight that the policy counts.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn inflight(&self) -> i32 {
        let attempt = self.attempt.lock();
        attempt.as_ref().map_or(0, |a| a.inflight.load(Relaxed))
    }

    /// Returns why the path was lost, or could not be connected, the last time.
    ///
    /// # Context
    ///
    /// Any.
    pub fn last_error(&self) -> Text {
        *self.last_error.lock()
    }

    /// Returns the counters.
    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }

    pub(crate) fn previous(&self) -> u32 {
        self.previous.load(Relaxed)
    }

    /// Submitters can find the attempt of that number.
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

    /// Notes the device that the path is bound to.
    pub(crate) fn bound(&self, dev: &Device, id: &CmId) {
        let mut hca = self.hca.lock();
        if *hca.name != *dev.name() {
            // Without memory the old name stays, which is shown only.
            if let Ok(name) = CString::try_from_fmt(fmt!("{}", dev.name())) {
                hca.name = name;
            }
        }
        hca.port = id.port_num();
        hca.src = Some(id.local_addr());
        hca.dst = Some(id.peer_addr());
    }

    /// Lets the next attempt begin at once.
    pub(crate) fn set_hurry(&self) {
        self.fsm.lock().hurry = true;
    }

    /// Says what the attempt of that number comes to.
    pub(crate) fn set_failure(&self, epoch: u32, error: Error) {
        let mut fsm = self.fsm.lock();
        if fsm.epoch == epoch {
            fsm.failure = Some(error);
        }
    }

    /// Tells whether another attempt to reconnect may be made.
    pub(crate) fn may_retry(&self) -> bool {
        let made = self.fsm.lock().made;
        self.session.settings().max_reconnect_attempts().allow(made)
    }

    /// Lets the state machine make a step.
    ///
    /// # Context
    ///
    /// Any.
    fn event(self: &Arc<Self>, event: Event) -> Verdict {
        self.step(event, None).0
    }

    /// As [`Path::event`], if the attempt of that number is the present one;
    /// tells whether the event was taken.
    pub(crate) fn attempt_event(self: &Arc<Self>, epoch: u32, event: Event) -> bool {
        self.step(event, Some(epoch)).0.accepted()
    }

    /// Also gives the number of outcomes before the step.
    fn step(self: &Arc<Self>, event: Event, epoch: Option<u32>) -> (Verdict, u64) {
        let mut fsm = self.fsm.lock();
        let outcomes = fsm.outcomes;
        if epoch.is_some_and(|epoch| epoch != fsm.epoch) {
            return (Verdict::Ignored, outcomes);
        }
        let from = fsm.state;
        let step = fsm::step(from, event);
        let moved = from != step.next;
        fsm.state = step.next;
        if step.verdict.accepted() {
            let outcome = match event {
                Event::Established => Some(Ok(())),
                Event::ConnectFailed { .. } => Some(Err(fsm.failure.unwrap_or(ECONNRESET))),
                _ => None,
            };
            if let Some(outcome) = outcome {
                fsm.outcomes += 1;
                fsm.outcome = outcome;
            }
            if matches!(event, Event::ReconnectDue) {
                fsm.made = fsm.made.saturating_add(1);
            }
        }
        if step.actions.contains(Actions::RESET_ATTEMPTS) {
            fsm.made = 0;
        }
        let work = moved || !step.actions.is_empty();
        if !step.actions.is_empty() {
            fsm.todo.push(step.actions, Actions::and);
        }
        drop(fsm);
        if moved {
            let (from, to) = (trace::client_state(from), trace::client_state(step.next));
            trace::client_path_state(|| (self.session.name(), self.name(), from, to));
        }
        if work {
            self.events.enqueue(self.clone());
            self.changed.notify_all();
            self.session.news().post();
        }
        (step.verdict, outcomes)
    }

    /// Something broke in the attempt of that number, which `what` says: the
    /// path is given up, to be connected again.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn error(self: &Arc<Self>, epoch: u32, what: fmt::Arguments<'_>) {
        let retry = self.may_retry();
        if !self.attempt_event(epoch, Event::Error { retry }) {
            return;
        }
        let text = Text::new(what);
        *self.last_error.lock() = text;
        kx::pr_warn_ratelimited!("{}: {}\n", self.log(), text.as_str());
    }

    /// Does what a step asked for.
    fn perform(self: &Arc<Self>, actions: Actions) {
        let has = |action| actions.contains(action);
        if has(Actions::ABORT_CONNECT) {
            if let Some(attempt) = &*self.attempt.lock() {
                attempt.abort();
            }
        }
        if has(Actions::CANCEL_RECONNECT) {
            self.timer.cancel();
        }
        if has(Actions::STOP_AND_DESTROY) {
            self.tear_down();
        }
        if has(Actions::NOTIFY_UP) {
            self.stats.connected();
        }
        if has(Actions::COUNT_FAILURE) {
            self.stats.connect_failed();
        }
        if has(Actions::SCHEDULE_RECONNECT) {
            self.timer
                .enqueue_in(self.clone(), self.reconnect_delay_ms());
        }
        if has(Actions::RECONNECT_NOW) {
            self.event(Event::ReconnectDue);
        }
        if has(Actions::START_CONNECT) {
            if let Err(error) = self.begin() {
                self.set_failure(0, error);
                let retry = self.may_retry();
                self.attempt_event(0, Event::ConnectFailed { retry });
            }
        }
        if has(Actions::START_HEARTBEAT) {
            let interval = self.session.settings().hb_interval_ms.get();
            self.beat.enqueue_in(self.clone(), interval);
        }
    }

    fn reconnect_delay_ms(&self) -> u32 {
        let mut fsm = self.fsm.lock();
        let (made, hurry) = (fsm.made, fsm.hurry);
        fsm.hurry = false;
        drop(fsm);
        if hurry {
            return 0;
        }
        let backoff = self.session.settings().backoff();
        backoff.delay_ms(made, kx::random::next_u32())
    }

    /// Begins an attempt.
    fn begin(self: &Arc<Self>) -> Result {
        let epoch = self.session.next_epoch()?;
        let attempt = Attempt::new(self.clone(), epoch)?;
        self.nr_attempts.fetch_add(1, Relaxed);
        *self.attempt.lock() = Some(attempt);
        let mut fsm = self.fsm.lock();
        fsm.epoch = epoch;
        fsm.failure = None;
        drop(fsm);
        self.connect.enqueue(self.clone());
        Ok(())
    }

    /// Lets no new request in, ends the connections, and leaves the requests that
    /// were in flight to the session.
    fn tear_down(&self) {
        let Some(attempt) = self.attempt.lock().clone() else {
            return;
        };
        attempt.wait_ended();
        // What it reports from now on is what is done to it.
        self.fsm.lock().epoch = 0;
        self.beat.cancel();
        self.session.unpublish(&attempt);
        attempt.tear_down();
        self.session.pump();
        let gone = self.attempt.lock().take();
        drop(gone);
    }

    /// Waits until `ready` gives something about the state.
    fn wait<R>(&self, mut ready: impl FnMut(&Fsm) -> Option<R>) -> Result<R> {
        let mut fsm = self.fsm.lock();
        loop {
            if let Some(value) = ready(&fsm) {
                return Ok(value);
            }
            if self.changed.wait_interruptible(&mut fsm) {
                return Err(EINTR);
            }
        }
    }

    /// What the attempts since the first `outcomes` came to, if there was one.
    pub(crate) fn outcome_since(&self, outcomes: u64) -> Option<Result> {
        let fsm = self.fsm.lock();
        (fsm.outcomes != outcomes).then_some(fsm.outcome)
    }

    /// Waits for the outcome of an attempt after the first `outcomes`.
    ///
    /// # Errors
    ///
    /// `EINTR`; `ECONNABORTED` when the path is closed instead; why the attempt
    /// failed.
    pub(crate) fn wait_outcome(&self, outcomes: u64) -> Result {
        self.wait(|fsm| {
            if fsm.outcomes != outcomes {
                return Some(fsm.outcome);
            }
            matches!(fsm.state, State::Closing | State::Closed | State::Dead)
                .then_some(Err(ECONNABORTED))
        })?
    }

    /// Waits until the path is torn down for good.
    fn wait_closed(&self) -> Result {
        self.wait(|fsm| matches!(fsm.state, State::Closed | State::Dead).then_some(()))
    }

    fn is_closing(&self) -> bool {
        matches!(self.state(), State::Closing | State::Closed | State::Dead)
    }

    /// Connects the path anew at once, whether it is connected or not, and
    /// waits for that.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// - `EBUSY`: it is connecting, or being closed.
    /// - `ENODEV`: it was removed.
    /// - `EINTR`: a signal came; the attempt goes on.
    /// - Why the attempt failed; others follow as the settings say.
    pub fn reconnect(self: &Arc<Self>) -> Result {
        let (verdict, mut outcomes) = self.step(Event::UserReconnect, None);
        verdict.result().map_err(convert::error)?;
        for _ in 0..RESETS_FORGIVEN {
            match self.wait_outcome(outcomes) {
                Err(error) if error == ECONNRESET && !self.is_closing() => outcomes += 1,
                result => return result,
            }
        }
        self.wait_outcome(outcomes)
    }

    /// Closes the path until a user wants it again, and waits for that.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// - `ENODEV`: it was removed.
    /// - `EINTR`: a signal came; it is closed nevertheless.
    pub fn disconnect(self: &Arc<Self>) -> Result {
        match self.ask(Event::UserDisconnect) {
            Err(error) if error != EALREADY => Err(error),
            _ => self.wait_closed(),
        }
    }

    /// Closes the path, and takes it out of the session. Before it goes `unlink`
    /// is called, which may refuse.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// - `ENODEV`: it was removed.
    /// - `EINTR`: a signal came; it is closed, but still there.
    /// - Those of `unlink`.
    pub fn remove(self: &Arc<Self>, unlink: impl FnOnce() -> Result) -> Result {
        while self.state() != State::Closed {
            match self.ask(Event::UserDisconnect) {
                // Perhaps somebody else is closing it.
                Ok(()) | Err(EALREADY) => self.wait_closed()?,
                Err(error) => return Err(error),
            }
        }
        unlink()?;
        // Somebody may have connected it again.
        self.ask(Event::UserRemove)?;
        if self.state() != State::Dead {
            self.close();
            return Ok(());
        }
        self.forget();
        Ok(())
    }

    /// Closes the path and removes it, no matter what.
    pub(crate) fn close(self: &Arc<Self>) {
        while self.state() != State::Dead {
            let _ = self.ask(Event::UserRemove);
            let mut fsm = self.fsm.lock();
            while !matches!(fsm.state, State::Closed | State::Dead) {
                self.changed.wait(&mut fsm);
            }
        }
        self.forget();
    }

    /// Begins to close the path.
    pub(crate) fn begin_close(self: &Arc<Self>) {
        let _ = self.ask(Event::UserDisconnect);
    }

    /// Takes a dead path out of the session.
    fn forget(self: &Arc<Self>) {
        let hook = self.hook.lock().take();
        if let Some(hook) = hook {
            hook.removed(self);
        }
        self.session.forget(self);
        self.timer.cancel_sync();
        self.beat.cancel_sync();
        self.connect.flush();
        self.events.flush();
    }

    fn ask(self: &Arc<Self>, event: Event) -> Result {
        self.event(event).result().map_err(convert::error)
    }

    /// A limit of the attempts was set: it holds for a path that waits, too.
    pub(crate) fn attempts_limited(self: &Arc<Self>) {
        if !self.may_retry() {
            self.event(Event::GiveUp);
        }
    }

    /// Tells the operator of a new state.
    fn announce(&self) {
        let state = self.state();
        let mut hook = self.hook.lock();
        if let Some(hook) = &mut *hook {
            hook.changed(self, state);
        }
    }

    /// The time between heartbeats was set.
    pub(crate) fn heartbeat_changed(self: &Arc<Self>) {
        if self.state() == State::Connected {
            let interval = self.session.settings().hb_interval_ms.get();
            self.beat.modify(self.clone(), interval);
        }
    }
}

/// State changes.
impl WorkItem<0> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _scope = NoIo::enter();
        loop {
            let todo = this.fsm.lock().todo.take();
            if todo.is_empty() {
                break;
            }
            for actions in todo.iter() {
                this.perform(actions);
            }
        }
        if this.state() == State::Closing {
            this.event(Event::CloseDone);
        }
        this.announce();
    }
}

/// Connecting.
impl WorkItem<1> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _scope = NoIo::enter();
        let attempt = this.attempt.lock().clone();
        if let Some(attempt) = attempt {
            connect::run(&attempt);
        }
    }
}

/// The delay before an attempt is over.
impl WorkItem<2> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.event(Event::ReconnectDue);
    }
}

/// Heartbeats.
impl WorkItem<3> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let attempt = this.attempt.lock().clone();
        let Some(attempt) = attempt else {
            return;
        };
        match attempt.beat() {
            Ok(()) => {
                if this.state() == State::Connected {
                    let interval = this.session.settings().hb_interval_ms.get();
                    this.beat.enqueue_in(this.clone(), interval);
                }
            }
            Err(error) => attempt.error(fmt!(
                "no heartbeat from the server ({})",
                convert::errno(error).as_str()
            )),
        }
    }
}
