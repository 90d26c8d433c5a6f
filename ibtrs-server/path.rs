// SPDX-License-Identifier: GPL-2.0

//! A path: a pair of addresses, the connections between them, and the state.

use crate::{
    data::con::{
        Con,
        Control,
        PathIo,
        Resources,
        SessionIo, //
    },
    ends::Ends,
    env::memory::Charge,
    path::{
        auth::Proof,
        fence::Inbox,
        parent::Parent, //
    },
    refusal::Refusal,
    storage::{
        buffers::Holder,
        landing::Group, //
    },
    types::{
        Place,
        Purpose,
        Terms, //
    }, //
};
use ibtrs_core::{
    convert,
    imm::send_imm,
    message::Message,
    trace, //
};
use ibtrs_proto::{
    audit::Trust,
    auth::ServerAuth,
    chunk_owner::PathId,
    consts::{
        HB_INTERVAL_MS,
        INFO_REQ_LEN, //
    },
    failover_time::Plan,
    fsm::server_path::{
        self as fsm,
        Action,
        Actions,
        Event,
        State, //
    },
    handshake::ConnReq,
    imm::{
        Fence,
        Imm, //
    },
    join::{
        Attempt,
        Known, //
    },
    setup,
    steps::{
        self,
        Steps, //
    },
    tag::Tag, //
};
use kernel::{
    fmt,
    new_mutex,
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        Mutex,
        SpinLockIrq, //
    },
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kx::{
    sync::atomic::{
        AtomicFlag,
        Relaxed, //
    },
    work::{
        DelayedWork,
        Work,
        WorkItem, //
    }, //
};
use rdma::{
    cm::IncomingId,
    device::{
        Name,
        RemovalGuard,
        RemovalHandler, //
    },
    pd::Pd,
    qp::Qp, //
};

mod auth;
mod chunks;
mod fence;
mod info;
mod messages;
pub(crate) mod parent;
mod rounds;
mod teardown;

/// Time between two checks of the key of a connected path. The kernel has no notification for
/// removed or expired keys.
const KEY_CHECK_MS: u32 = 500;

struct Fsm {
    state: State,
    todo: Steps<Actions>,
    /// AUTH1 and its time of arrival, until it is handled.
    auth1: Option<(Proof, Instant<Monotonic>)>,
    /// The INFO request, until it is handled.
    info: Option<Info>,
    /// The INFO request has arrived: the client has completed its part.
    informed: bool,
    /// AUTH1 has arrived and is not answered yet, so the client waits.
    proving: bool,
}

/// The INFO request, which completes the setup.
pub(crate) type Info = Message<INFO_REQ_LEN>;

/// A path of a session.
#[pin_data]
pub(crate) struct Path {
    pub(crate) io: Arc<PathIo>,
    pub(crate) parent: Arc<dyn Parent>,
    pub(crate) uuid: [u8; 16],
    /// The client supports notices.
    pub(crate) notices: bool,
    /// The client supports reports that writes are durable.
    pub(crate) durable: bool,
    /// The client supports announcements of a downtime.
    pub(crate) downtime: bool,
    /// The memory of the slots.
    #[pin]
    pub(crate) groups: Mutex<KVVec<Arc<Group>>>,
    /// Whether and how the client has proved itself.
    #[pin]
    pub(crate) auth: Mutex<ServerAuth>,
    /// The client has proved itself.
    authenticated: AtomicFlag,
    /// Programs can use its message connection.
    carries_messages: AtomicFlag,
    hca_port: u32,
    pub(crate) cid_num: u16,
    /// The completion vector of connections 0 and 1; each further one has the next.
    first_vector: u32,
    /// The path's directory in sysfs, while it is connected.
    #[pin]
    shown: Mutex<Option<KBox<dyn Send>>>,
    #[pin]
    fsm: SpinLockIrq<Fsm>,
    hb_interval_ms: u32,
    /// Immediates are sent in messages, as over iWARP, where a message that arrives before the client
    /// has posted its receives terminates the connection.
    imm_in_messages: bool,
    #[pin]
    pub(crate) inbox: Inbox,
    #[pin]
    events: Work<Self, { work::EVENTS }>,
    #[pin]
    pub(crate) heartbeat_work: DelayedWork<Self, { work::HEARTBEAT }>,
    #[pin]
    pub(crate) key_check: DelayedWork<Self, { work::KEY_CHECK }>,
    #[pin]
    pub(crate) zombie: DelayedWork<Self, { work::ZOMBIE }>,
    #[pin]
    pub(crate) fences: DelayedWork<Self, { work::FENCES }>,
    #[pin]
    pub(crate) teardown: DelayedWork<Self, { work::TEARDOWN }>,
    #[pin]
    pub(crate) idle_work: DelayedWork<Self, { work::IDLE }>,
    made: Instant<Monotonic>,
    // Dropped last: released after the chunks and the connections.
    pub(crate) charge: Charge,
}

/// The first connection of a path, which its client has requested.
pub(crate) struct First<'a> {
    pub(crate) id: &'a IncomingId,
    pub(crate) ends: Ends,
    pub(crate) request: &'a ConnReq,
    pub(crate) terms: Terms,
}

/// Ids of the work items of a path.
pub(crate) mod work {
    pub(crate) const EVENTS: u64 = 0;
    pub(crate) const HEARTBEAT: u64 = 1;
    pub(crate) const ZOMBIE: u64 = 2;
    pub(crate) const FENCES: u64 = 3;
    pub(crate) const TEARDOWN: u64 = 4;
    pub(crate) const KEY_CHECK: u64 = 5;
    pub(crate) const IDLE: u64 = 6;
}

kx::impl_has_work! {
    impl HasWork<Work<Self, { work::EVENTS }>> for Path { self.events }
    impl HasWork<DelayedWork<Self, { work::HEARTBEAT }>> for Path { self.heartbeat_work }
    impl HasWork<DelayedWork<Self, { work::KEY_CHECK }>> for Path { self.key_check }
    impl HasWork<DelayedWork<Self, { work::ZOMBIE }>> for Path { self.zombie }
    impl HasWork<DelayedWork<Self, { work::FENCES }>> for Path { self.fences }
    impl HasWork<DelayedWork<Self, { work::TEARDOWN }>> for Path { self.teardown }
    impl HasWork<DelayedWork<Self, { work::IDLE }>> for Path { self.idle_work }
}

/// The interface for sysfs.
impl Path {
    /// Returns the name of the RDMA device.
    pub(crate) fn hca_name(&self) -> Name {
        self.io.pd.device().name()
    }

    /// Returns the number of the device's port.
    pub(crate) fn hca_port(&self) -> u32 {
        self.hca_port
    }

    /// Returns how many message connections the path has that programs can use: 0 or 1.
    pub(crate) fn message_connections(&self) -> u32 {
        u32::from(self.carries_messages.load(Relaxed))
    }

    /// Begins to close the path. Its client may reconnect it.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `EALREADY`: the path is being closed.
    pub(crate) fn disconnect(self: &Arc<Self>) -> Result {
        if !self.event(Event::UserDisconnect) {
            return Err(EALREADY);
        }
        pr_info!("{}: disconnected by a user\n", **self);
        Ok(())
    }
}

impl Path {
    /// Creates a path of `session` for its first connection; `known` says whether its client is known.
    ///
    /// # Context
    ///
    /// May sleep. Called for one path of a session at a time.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is being removed; `ENOMEM`; errors of [`Charge::begin`] and of the
    /// device's driver.
    pub(crate) fn new(
        parent: Arc<dyn Parent>,
        session: &Arc<SessionIo>,
        id: PathId,
        first: &First<'_>,
        auth: ServerAuth,
        known: bool,
    ) -> Result<Arc<Self>, Refusal> {
        let config = &session.env.config;
        let needs = config.path_needs(first.terms, first.request.cid_num);
        let charge = Charge::begin(&session.env, first.ends.origin(first.id), known, &needs)?;
        let path = Self::allocate(parent, session, id, first, auth, charge);
        path.map_err(|error| Refusal::new(error, "the path cannot be created"))
    }

    fn allocate(
        parent: Arc<dyn Parent>,
        session: &Arc<SessionIo>,
        id: PathId,
        first: &First<'_>,
        auth: ServerAuth,
        charge: Charge,
    ) -> Result<Arc<Self>> {
        let (env, request) = (&session.env, first.request);
        let pd = Pd::new(&first.id.device()?)?;
        let first_vector = pd
            .device()
            .next_vectors(u32::from(request.cid_num).saturating_sub(1));
        let failover_time_ms = request.ext.map_or(0, |ext| ext.failover_time_ms);
        let plan = Plan::of_server(
            failover_time_ms,
            env.config.hb_interval_ms,
            env.config.hb_missed_max,
        );
        let (queue, setup, slow) = (&env.queue, &env.setup, &env.slow);
        let missed_max = plan.hb_missed_max;
        let path = Arc::pin_init(
            try_pin_init!(Self {
                io: PathIo::new(session, id, first.ends, request, first.terms, pd, missed_max)?,
                parent,
                uuid: request.path_uuid,
                notices: request.ext.is_some_and(|ext| ext.notices),
                durable: request.ext.is_some_and(|ext| ext.durable),
                downtime: request.ext.is_some_and(|ext| ext.downtime),
                groups <- new_mutex!(KVVec::new(), "Path::groups"),
                auth <- new_mutex!(auth, "Path::auth"),
                authenticated: AtomicFlag::new(false),
                carries_messages: AtomicFlag::new(false),
                hca_port: first.id.port_num(),
                cid_num: request.cid_num,
                first_vector,
                shown <- new_mutex!(None, "Path::shown"),
                fsm <- new_spinlock_irq!(
                    Fsm {
                        state: fsm::INITIAL,
                        todo: Steps::default(),
                        auth1: None,
                        info: None,
                        informed: false,
                        proving: false,
                    },
                    "Path::fsm"
                ),
                hb_interval_ms: plan.hb_interval_ms,
                imm_in_messages: request.ext.is_some_and(|ext| ext.send_imm),
                inbox <- Inbox::new(),
                events <- kx::new_work!(setup.clone(), "Path::events"),
                heartbeat_work <- kx::new_delayed_work!(env.urgent.clone(), "Path::heartbeat_work"),
                key_check <- kx::new_delayed_work!(queue.clone(), "Path::key_check"),
                zombie <- kx::new_delayed_work!(queue.clone(), "Path::zombie"),
                fences <- kx::new_delayed_work!(env.urgent.clone(), "Path::fences"),
                teardown <- kx::new_delayed_work!(slow.clone(), "Path::teardown"),
                idle_work <- kx::new_delayed_work!(queue.clone(), "Path::idle_work"),
                made: Instant::now(),
                charge,
            }? Error),
            GFP_KERNEL,
        )?;
        let removal = path
            .io
            .pd
            .device()
            .on_removal(Arc::new(Removal(path.clone()), GFP_KERNEL)?)?;
        path.keep_registered(removal)?;
        Ok(path)
    }

    /// Keeps the handler of the device's removal registered until the teardown.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device has been removed since the handler was registered, and the path is torn
    /// down.
    fn keep_registered(&self, removal: RemovalGuard) -> Result {
        let mut cons = self.io.cons.lock();
        if cons.is_taken {
            // It would never be dropped, and would form a reference cycle with the path.
            drop(cons);
            drop(removal);
            return Err(ENODEV);
        }
        cons.removal = Some(removal);
        Ok(())
    }

    /// Returns the completion vector of connection `cid`. The first connection for requests shares
    /// that of the service connection, which has little to do.
    pub(crate) fn vector(&self, cid: u16) -> u32 {
        self.first_vector + u32::from(cid.saturating_sub(1))
    }

    /// Returns the properties of the path on which the decision about a connection request depends;
    /// `same_uuid` says whether the request belongs to the path's session.
    pub(crate) fn known(&self, place: &Place, same_uuid: bool) -> Known {
        let cons = self.io.cons.lock();
        let has_cid = match place.cid == self.cid_num {
            true => cons.messages.is_some(),
            false => !matches!(cons.qps.get(usize::from(place.cid)), Some(None)),
        };
        Known {
            same_uuid,
            same_addrs: self.io.ends == place.ends,
            state: self.state(),
            attempt: self.attempt(),
            has_cid,
        }
    }

    /// Returns the client's connection attempt to which the path belongs.
    pub(crate) fn attempt(&self) -> Attempt {
        Attempt {
            cid_num: self.cid_num,
            epoch: self.io.epoch,
        }
    }

    /// Adds a connection whose request arrived at `came`, and extends the setup timer for further
    /// ones, but to no more than `setup_timeout_ms` of the client's time in total.
    ///
    /// # Errors
    ///
    /// `ECONNRESET`: the path is being torn down.
    pub(crate) fn add_con(
        self: &Arc<Self>,
        cid: u16,
        qp: Qp<Con>,
        came: Instant<Monotonic>,
    ) -> Result {
        let mut cons = self.io.cons.lock();
        match cons.qps.get_mut(usize::from(cid)) {
            Some(place @ None) => *place = Some(qp),
            _ => return Err(ECONNRESET),
        }
        self.wait_for_client(&mut cons, came);
        Ok(())
    }

    /// Restarts the setup timer for the client's next step. The client took its last step at
    /// `came`; the time since then was the server's.
    pub(crate) fn wait_for_client(
        self: &Arc<Self>,
        cons: &mut Resources,
        came: Instant<Monotonic>,
    ) {
        // The first request arrived before the path was created, and counts as arrived at that
        // moment.
        let age_ms = |at: Instant<_>| u64::try_from((at - self.made).as_millis()).unwrap_or(0);
        cons.clock.accepted(age_ms(came), age_ms(Instant::now()));
        let limit_ms = self.io.session.env.config.setup_timeout_ms;
        self.zombie
            .modify(self.clone(), cons.clock.left_ms(limit_ms));
    }

    /// Records that the client has proved itself.
    pub(crate) fn set_authenticated(&self) {
        // ORDERING: The flag orders no other access.
        self.authenticated.store(true, Relaxed);
    }

    /// Returns whether the client has proved itself.
    pub(crate) fn is_authenticated(&self) -> bool {
        // ORDERING: The flag orders no other access.
        self.authenticated.load(Relaxed)
    }

    /// Returns whether to log a line that the client has caused.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn may_log(&self) -> bool {
        let trust = match self.is_authenticated() {
            true => Trust::Authenticated,
            false => Trust::Connected,
        };
        self.io.session.env.audit.may_log(trust, &self.io.ends.src)
    }

    /// Returns whether the path is closing or closed.
    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.state(), State::Closing | State::Closed)
    }

    pub(crate) fn state(&self) -> State {
        self.fsm.lock().state
    }

    /// Returns whether the client accepts notices over this path, once it has [posted
    /// receives](PathIo::recvs_posted).
    pub(crate) fn takes_notices(&self) -> bool {
        self.notices && self.io.takes_requests()
    }

    /// Keeps the directory of the path, which is connected, in sysfs.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn is_shown_in(&self, dir: KBox<dyn Send>) {
        *self.shown.lock() = Some(dir);
        if self.may_log() {
            pr_info!("{}: path connected\n", *self);
        }
    }

    pub(crate) fn is_shown(&self) -> bool {
        self.shown.lock().is_some()
    }

    /// Removes the directory of the path, which is being closed, from sysfs. Another path with the
    /// same addresses is shown only after this.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn hide(&self) {
        // Under the lock, so that the directory is removed by the time the path counts as not
        // shown.
        let mut shown = self.shown.lock();
        if let Some(dir) = shown.take() {
            drop(dir);
            if self.may_log() {
                pr_info!("{}: path closed\n", *self);
            }
        }
    }

    /// Steps the state machine; returns whether it accepted the event.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn event(self: &Arc<Self>, event: Event) -> bool {
        let mut fsm = self.fsm.lock();
        let from = fsm.state;
        let step = fsm::step(from, event);
        fsm.state = step.next;
        self.io.set_connected(step.next == State::Connected);
        let work = !step.actions.is_empty();
        if work {
            fsm.todo.push(step.actions, Actions::and);
        }
        drop(fsm);
        if from != step.next {
            let (from, to) = (from.to_u8(), step.next.to_u8());
            trace::server_path_state(|| (self.io.session.name(), &self.io.name, from, to));
        }
        if work {
            self.events.enqueue(self.clone());
        }
        step.reply.accepted()
    }

    /// Closes the path because of an error; `what` is the reason for the log.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn error(self: &Arc<Self>, what: kernel::fmt::Arguments<'_>) {
        if self.event(Event::Error) && self.may_log() {
            pr_err!("{}: {}\n", **self, what);
        }
    }

    /// Closes the path because of `error`; logs `what` and the name of the error.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn failed(self: &Arc<Self>, what: &str, error: Error) {
        self.error(fmt!("{} ({})", what, convert::errno(error).as_str()));
    }

    /// Carries out the actions of a step.
    fn perform(self: &Arc<Self>, actions: Actions) {
        for action in actions.iter() {
            match action {
                Action::CancelStale => {
                    self.zombie.cancel();
                }
                Action::StartHeartbeat => {
                    let first_ms = match self.imm_in_messages {
                        true => self.hb_interval_ms.max(HB_INTERVAL_MS),
                        false => self.hb_interval_ms,
                    };
                    self.heartbeat_work.enqueue_in(self.clone(), first_ms);
                    if self.is_authenticated() {
                        self.key_check.enqueue_in(self.clone(), KEY_CHECK_MS);
                    }
                }
                Action::SendInfoRsp => {
                    if let Err(error) = info::answer(self) {
                        self.failed("cannot send the session information", error);
                    }
                }
                // Both may take long, so they run on `Env::slow`.
                Action::TearDown | Action::Release => {
                    self.teardown.enqueue(self.clone());
                }
            }
        }
    }

    /// Sends an unsolicited message to the client.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: the client has not posted its receives yet; `ENOTCONN`; errors of the device's
    /// driver.
    pub(crate) fn notify(&self, imm: Imm) -> Result {
        match self.io.recvs_posted() {
            true => send_imm(&*self.io.service()?, imm),
            false => Err(EAGAIN),
        }
    }
}

/// Events that the connections and requests of the path report.
impl Control for Path {
    fn error(self: Arc<Self>, what: fmt::Arguments<'_>) {
        Path::error(&self, what);
    }

    fn ended(self: Arc<Self>, cid: u16, why: &CStr) {
        if self.event(Event::Error) && self.may_log() {
            pr_info!("{}: connection {}: {}\n", *self, cid, why);
        }
    }

    fn warn(&self, what: fmt::Arguments<'_>) {
        if self.may_log() {
            pr_warn!("{}: {}\n", *self, what);
        }
    }

    fn auth1_received(self: Arc<Self>, message: &[u8]) {
        let mut fsm = self.fsm.lock();
        fsm.auth1 = Some((Proof::new(message), Instant::now()));
        fsm.proving = true;
        drop(fsm);
        self.events.enqueue(self.clone());
    }

    fn info_received(self: Arc<Self>, message: &[u8]) {
        let mut fsm = self.fsm.lock();
        fsm.info = Some(Info::new(message));
        fsm.informed = true;
        drop(fsm);
        self.events.enqueue(self.clone());
    }

    fn fence_received(self: Arc<Self>, fence: Fence) -> Result<(), &'static str> {
        Path::fence_received(&self, fence)
    }

    fn durable_seen(&self, purpose: Purpose, number: u32) {
        // Until the path is connected, the client may not have proved itself.
        if self.charge.is_connected() {
            if let Some(upper) = self.io.session.upper(purpose) {
                upper.durable_seen(number);
            }
        }
    }

    fn downtime_seen(&self) {
        // As above.
        if self.charge.is_connected() {
            self.parent.downtime_seen();
        }
    }

    fn holder(&self) -> Arc<dyn Holder> {
        self.parent.clone().holder()
    }

    fn keeps_small(self: Arc<Self>) {
        self.begin_rounds();
    }

    fn wake(&self) {
        self.parent.clone().wake();
    }

    fn supersede(&self, id: PathId, waiting: Option<Tag>) {
        self.parent.supersede(id, waiting);
    }
}

/// As in the log: session and addresses.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_fmt(fmt!("{}: {}", self.io.session.name(), self.io.ends))
    }
}

/// Handles AUTH1, the INFO request and state changes.
impl WorkItem<{ work::EVENTS }> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let mut fsm = this.fsm.lock();
        let (auth1, info) = (fsm.auth1.take(), fsm.info.take());
        drop(fsm);
        if let Some((auth1, came)) = auth1 {
            if this.state() == State::Connecting {
                this.authenticate(&auth1, came);
            }
            this.fsm.lock().proving = false;
        }
        if let Some(info) = info {
            // A second INFO request ends the path.
            let complete = this.state() == State::Connecting && info::check(&this, &info);
            this.event(Event::Info { complete });
        }
        steps::carry_out(
            || this.fsm.lock().todo.take(),
            |actions| this.perform(actions),
        );
    }
}

/// Sends heartbeats.
impl WorkItem<{ work::HEARTBEAT }> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let send = |imm| send_imm(&*this.io.service()?, imm);
        match this.io.heartbeat.send_due(send) {
            Ok(()) if this.state() == State::Connected => {
                let wait = this.io.heartbeat.next_in_ms(this.hb_interval_ms);
                this.heartbeat_work.enqueue_in(this.clone(), wait);
            }
            Ok(()) => {}
            Err(error) => this.failed("no heartbeat from the client", error),
        }
    }
}

/// Closes the path once the key that has authenticated it is no longer loaded.
impl WorkItem<{ work::KEY_CHECK }> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if this.keeps_its_key() && this.state() == State::Connected {
            this.key_check.enqueue_in(this.clone(), KEY_CHECK_MS);
        }
    }
}

/// Closes the path if the client has not completed it in time.
impl WorkItem<{ work::ZOMBIE }> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let fsm = this.fsm.lock();
        let (informed, proving) = (fsm.informed, fsm.proving);
        drop(fsm);
        if informed {
            // The client has completed its part. The rest is up to the server, which completes the
            // path or closes it.
            return;
        }
        let limit_ms = this.io.session.env.config.setup_timeout_ms;
        let age_ms = u64::try_from(this.made.elapsed().as_millis()).unwrap_or(0);
        // The client's proof is being checked, or a connection of the client waits in the backlog.
        let is_behind = || {
            proving
                || this.io.session.env.backlog.lock().has(|asked| {
                    asked.request.session_uuid == this.io.session.uuid && this.owns(&asked.bytes)
                })
        };
        if setup::may_be_behind(age_ms, limit_ms) && is_behind() {
            this.zombie.enqueue_in(this.clone(), setup::BEHIND_MS);
            return;
        }
        if this.event(Event::Stale) && this.may_log() {
            pr_warn!(
                "{}: the client did not complete the path in time; the path is closed\n",
                *this
            );
        }
    }
}

/// Closes a path when its device is removed.
struct Removal(Arc<Path>);

impl RemovalHandler for Removal {
    fn device_removed(&self) {
        pr_warn!(
            "{}: the RDMA device is being removed; the path is closed\n",
            *self.0
        );
        self.0.event(Event::DeviceRemoved);
    }
}
