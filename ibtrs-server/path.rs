// SPDX-License-Identifier: GPL-2.0

//! A path: a pair of addresses, the connections between them, and the state.

use crate::{
    accept::{
        Incomer,
        Place,
        Refusal, //
    },
    authentication::Message,
    chunk::{
        Chunk,
        ChunkSlot, //
    },
    con::Con,
    fence::Inbox,
    info,
    memory::Charge,
    session::Session,
    stats::Stats,
    sysfs::PathDir, //
};
use ibtrs_core::{
    convert::{
        self,
        Shown, //
    },
    heartbeat::PathHeartbeat,
    imm::send_imm,
    steps::{
        self,
        Steps, //
    },
    trace, //
};
use ibtrs_proto::{
    addr::Addr,
    auth::ServerAuth,
    chunk_owner::PathTag,
    consts::INFO_REQ_LEN,
    fsm::server_path::{
        self as fsm,
        Action,
        Actions,
        Event,
        State, //
    },
    imm::Imm,
    join::{
        Attempt,
        Known, //
    },
    setup::{
        self,
        SetupClock, //
    },
};
use kernel::{
    fmt, new_mutex, new_spinlock_irq,
    prelude::*,
    str::CString,
    sync::{
        atomic::{
            AtomicFlag,
            Full,
            Relaxed, //
        },
        Arc,
        Mutex,
        SpinLockIrq, //
    },
    time::{
        Instant,
        Monotonic, //
    },
};
use kx::{
    pr_err_ratelimited, pr_info_ratelimited, pr_warn_ratelimited,
    work::{
        DelayedWork,
        Work,
        WorkItem, //
    },
};
use rdma::{
    cm::CmId,
    device::{
        Name,
        RemovalGuard,
        RemovalHandler, //
    },
    dma::DmaBuf,
    pd::Pd,
    qp::{
        Qp,
        QpEnd, //
    },
    slot::Slots, //
};

struct Fsm {
    state: State,
    todo: Steps<Actions>,
    /// The message by which the client proves itself, until it is handled.
    auth1: Option<(Message, Instant<Monotonic>)>,
    /// The client's message with the session's name, until it is handled.
    info: Option<Info>,
    /// The INFO request has arrived: the client has done its part.
    informed: bool,
}

/// The message on the service connection that completes the set-up.
pub(crate) struct Info {
    pub(crate) bytes: [u8; INFO_REQ_LEN],
    pub(crate) len: usize,
}

/// The parts of a path that exist as long as the path.
pub(crate) struct Resources {
    /// By number; connections arrive in any order.
    pub(crate) qps: KVVec<Option<Qp<Con>>>,
    /// The answer to the client's proof.
    pub(crate) auth2: Option<DmaBuf>,
    /// The answer to [`Info`].
    pub(crate) info_rsp: Option<DmaBuf>,
    pub(crate) removal: Option<RemovalGuard>,
    /// The time that the client has taken.
    clock: SetupClock,
    /// Connections that were closed, and that requests in service refer to still. As long as
    /// all, it has room for `qps`.
    pub(crate) closed: KVVec<QpEnd<Con>>,
    /// Number of checks whether these have ended; none before they were closed.
    pub(crate) looks: Option<u32>,
}

/// The addresses of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    /// The client's.
    pub(crate) src: Addr,
    /// The server's.
    pub(crate) dst: Addr,
}

impl Ends {
    /// Those of a connection.
    ///
    /// # Errors
    ///
    /// `EAFNOSUPPORT` if they are of a family that paths do not have.
    pub(crate) fn of(id: &CmId) -> Result<Self> {
        let addr = |addr: Option<_>| {
            let addr = addr.and_then(|addr| convert::addr(&addr));
            addr.ok_or(EAFNOSUPPORT)
        };
        Ok(Self {
            src: addr(id.peer_addr())?,
            dst: addr(id.local_addr())?,
        })
    }
}

/// As in the log and in sysfs: `src@dst`.
impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_fmt(fmt!("{}@{}", Shown(self.src), Shown(self.dst)))
    }
}

/// A path of a session.
#[pin_data]
pub(crate) struct Path {
    pub(crate) session: Arc<Session>,
    pub(crate) uuid: [u8; 16],
    /// Names it among the paths of the session.
    pub(crate) tag: PathTag,
    /// The number of the client's attempt, if it knows the extensions.
    pub(crate) epoch: Option<u32>,
    /// The client takes notices.
    pub(crate) notices: bool,
    /// The client takes answers of one message, which leave the key as it was.
    pub(crate) same_key: bool,
    /// The client takes note of what is durable.
    pub(crate) durable: bool,
    /// The client takes several answers in a message.
    pub(crate) more_answers: bool,
    /// The client takes the answer in the message that invalidates its key.
    pub(crate) inv_answers: bool,
    /// Whether and how the client has proved itself.
    #[pin]
    pub(crate) auth: Mutex<ServerAuth>,
    pub(crate) ends: Ends,
    /// The addresses in words, for traces.
    pub(crate) name: CString,
    /// Of this path only: no other client can use its keys.
    pub(crate) pd: Arc<Pd>,
    hca_port: u32,
    pub(crate) slots: Arc<Slots<Con>>,
    cid_num: u16,
    /// Requests are taken: the path is connected.
    takes_requests: AtomicFlag,
    /// The path's directory in sysfs, while it is connected.
    #[pin]
    shown: Mutex<Option<PathDir>>,
    pub(crate) stats: Stats,
    #[pin]
    fsm: SpinLockIrq<Fsm>,
    #[pin]
    pub(crate) cons: Mutex<Resources>,
    #[pin]
    pub(crate) heartbeat: PathHeartbeat,
    #[pin]
    pub(crate) inbox: Inbox,
    #[pin]
    events: Work<Self, { work::EVENTS }>,
    #[pin]
    pub(crate) heartbeat_work: DelayedWork<Self, { work::HEARTBEAT }>,
    #[pin]
    pub(crate) zombie: DelayedWork<Self, { work::ZOMBIE }>,
    #[pin]
    pub(crate) fences: DelayedWork<Self, { work::FENCES }>,
    #[pin]
    pub(crate) teardown: DelayedWork<Self, { work::TEARDOWN }>,
    made: Instant<Monotonic>,
    // Given back after the chunks and the connections.
    pub(crate) charge: Charge,
}

/// Names of the works of a path.
pub(crate) mod work {
    pub(crate) const EVENTS: u64 = 0;
    pub(crate) const HEARTBEAT: u64 = 1;
    pub(crate) const ZOMBIE: u64 = 2;
    pub(crate) const FENCES: u64 = 3;
    pub(crate) const TEARDOWN: u64 = 4;
}

kx::impl_has_work! {
    impl HasWork<Work<Self, { work::EVENTS }>> for Path { self.events }
    impl HasWork<DelayedWork<Self, { work::HEARTBEAT }>> for Path { self.heartbeat_work }
    impl HasWork<DelayedWork<Self, { work::ZOMBIE }>> for Path { self.zombie }
    impl HasWork<DelayedWork<Self, { work::FENCES }>> for Path { self.fences }
    impl HasWork<DelayedWork<Self, { work::TEARDOWN }>> for Path { self.teardown }
}

/// The interface for users.
impl Path {
    /// Returns the addresses.
    pub(crate) fn ends(&self) -> Ends {
        self.ends
    }

    /// Returns the name of the RDMA device.
    pub(crate) fn hca_name(&self) -> Name {
        self.pd.device().name()
    }

    /// Returns the number of the device's port.
    pub(crate) fn hca_port(&self) -> u32 {
        self.hca_port
    }

    /// Returns the counters.
    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Begins to close the path. Its client may connect it again.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `EALREADY` when it is being closed.
    pub(crate) fn disconnect(self: &Arc<Self>) -> Result {
        if !self.event(Event::UserDisconnect) {
            return Err(EALREADY);
        }
        pr_info!("{}: disconnected by a user\n", **self);
        Ok(())
    }
}

impl Path {
    /// Creates the path that a connection is the first of; `known` says that its client is.
    ///
    /// # Context
    ///
    /// May sleep. One path of a session after the other.
    ///
    /// # Errors
    ///
    /// `ENODEV` when the device goes away; `ENOMEM`; those of [`Charge::begin`] and of the driver.
    pub(crate) fn new(
        session: &Arc<Session>,
        incomer: &Incomer<'_>,
        auth: ServerAuth,
        known: bool,
    ) -> Result<Arc<Self>, Refusal> {
        let needs = session.server.config.path_needs(incomer.request.cid_num);
        let charge = Charge::begin(&session.server, incomer.ends.src, known, &needs)?;
        let path = Self::allocate(session, incomer, auth, charge);
        path.map_err(|error| Refusal::new(error, "the path cannot be made"))
    }

    fn allocate(
        session: &Arc<Session>,
        incomer: &Incomer<'_>,
        auth: ServerAuth,
        charge: Charge,
    ) -> Result<Arc<Self>> {
        let server = &session.server;
        let (ends, request) = (incomer.ends, incomer.request);
        let pd = Pd::new(&incomer.id.device()?)?;
        let config = server.config;
        let slots = Slots::new(u32::from(config.queue_depth), |_| Ok(ChunkSlot::new()))?;
        let mut qps = KVVec::with_capacity(usize::from(request.cid_num), GFP_KERNEL)?;
        for _ in 0..request.cid_num {
            qps.push(None, GFP_KERNEL)?;
        }
        let closed = KVVec::with_capacity(qps.len(), GFP_KERNEL)?;
        let (queue, slow) = (&server.queue, &server.slow);
        let path = Arc::pin_init(
            try_pin_init!(Self {
                session: session.clone(),
                uuid: request.path_uuid,
                tag: session.next_tag().ok_or(ENOSPC)?,
                epoch: request.ext.map(|ext| ext.epoch),
                notices: request.ext.is_some_and(|ext| ext.notices),
                same_key: request.ext.is_some_and(|ext| ext.same_key),
                durable: request.ext.is_some_and(|ext| ext.durable),
                more_answers: request.ext.is_some_and(|ext| ext.wants_more_answers()),
                inv_answers: request.ext.is_some_and(|ext| ext.wants_inv_answers()),
                auth <- new_mutex!(auth, "Path::auth"),
                name: CString::try_from_fmt(fmt!("{ends}"))?,
                ends,
                pd,
                hca_port: incomer.id.port_num(),
                slots,
                cid_num: request.cid_num,
                takes_requests: AtomicFlag::new(false),
                shown <- new_mutex!(None, "Path::shown"),
                stats: Stats::new()?,
                fsm <- new_spinlock_irq!(
                    Fsm {
                        state: fsm::INITIAL,
                        todo: Steps::default(),
                        auth1: None,
                        info: None,
                        informed: false,
                    },
                    "Path::fsm"
                ),
                cons <- new_mutex!(
                    Resources {
                        qps,
                        auth2: None,
                        info_rsp: None,
                        removal: None,
                        clock: SetupClock::default(),
                        closed,
                        looks: None,
                    },
                    "Path::cons"
                ),
                heartbeat <- PathHeartbeat::new(config.hb_missed_max),
                inbox <- Inbox::new(),
                events <- kx::new_work!(queue.clone(), "Path::events"),
                heartbeat_work <- kx::new_delayed_work!(queue.clone(), "Path::heartbeat_work"),
                zombie <- kx::new_delayed_work!(queue.clone(), "Path::zombie"),
                fences <- kx::new_delayed_work!(queue.clone(), "Path::fences"),
                teardown <- kx::new_delayed_work!(slow.clone(), "Path::teardown"),
                made: Instant::now(),
                charge,
            }? Error),
            GFP_KERNEL,
        )?;
        let removal = path
            .pd
            .device()
            .on_removal(Arc::new(Removal(path.clone()), GFP_KERNEL)?)?;
        path.cons.lock().removal = Some(removal);
        Ok(path)
    }

    /// Takes memory for connection `cid`.
    ///
    /// # Errors
    ///
    /// Those of [`Charge::connect`].
    pub(crate) fn take_for_connection(&self, cid: u16) -> Result<(), Refusal> {
        let config = &self.session.server.config;
        let mut bytes = config.connection_bytes(cid);
        if self.charge.is_empty() {
            bytes = bytes.saturating_add(config.numbers_bytes());
        }
        let total = config.path_needs(self.cid_num).total();
        Ok(self.charge.connect(bytes, total)?)
    }

    /// Creates the chunks: the client completes the path.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// Those of [`Charge::complete`]; `ENOMEM`, those of the driver.
    pub(crate) fn make_chunks(&self) -> Result<(), Refusal> {
        let server = &self.session.server;
        self.charge.complete(server.config.chunks_bytes())?;
        let result = self.slots.iter().try_for_each(|slot| {
            slot.put(self.make_chunk()?);
            Ok::<_, Error>(())
        });
        server.leave_to_pool(server.ledger.taken());
        result.map_err(|error| Refusal::new(error, "its chunks cannot be allocated"))
    }

    fn make_chunk(&self) -> Result<KBox<Chunk>> {
        let server = &self.session.server;
        let config = &server.config;
        let chunk_bytes = config.chunk_bytes as usize;
        let blocks = server.pool.take(chunk_bytes, config.private_bytes())?;
        Ok(KBox::new(Chunk::new(&self.pd, blocks)?, GFP_KERNEL)?)
    }

    /// Says how the path looks to a connection that asks to be accepted; whose own it is if
    /// `same_uuid`.
    pub(crate) fn known(&self, place: &Place, same_uuid: bool) -> Known {
        let cons = self.cons.lock();
        let con = cons.qps.get(usize::from(place.cid));
        Known {
            same_uuid,
            same_addrs: self.ends == place.ends,
            state: self.state(),
            attempt: self.attempt(),
            has_cid: !matches!(con, Some(None)),
        }
    }

    /// Returns the client's attempt that the path belongs to.
    pub(crate) fn attempt(&self) -> Attempt {
        Attempt {
            cid_num: self.cid_num,
            epoch: self.epoch,
        }
    }

    /// Keeps a connection whose request came at `came`, and gives the others some more time to
    /// come, but the client no more than `setup_timeout_ms` in all.
    ///
    /// # Errors
    ///
    /// `ECONNRESET` when the path is being torn down.
    pub(crate) fn add_con(
        self: &Arc<Self>,
        cid: u16,
        qp: Qp<Con>,
        came: Instant<Monotonic>,
    ) -> Result {
        let mut cons = self.cons.lock();
        match cons.qps.get_mut(usize::from(cid)) {
            Some(place @ None) => *place = Some(qp),
            _ => return Err(ECONNRESET),
        }
        self.wait_for_client(&mut cons, came);
        Ok(())
    }

    /// The client has proved itself by what came at `came`, and may take some time for its next
    /// connection.
    pub(crate) fn client_has_answered(self: &Arc<Self>, came: Instant<Monotonic>) {
        self.wait_for_client(&mut self.cons.lock(), came);
    }

    /// The client did what came at `came`, and the server has done its own part since.
    fn wait_for_client(self: &Arc<Self>, cons: &mut Resources, came: Instant<Monotonic>) {
        // The first one came before the path was made, which counts as that moment.
        let age_ms = |at: Instant<_>| u64::try_from((at - self.made).as_millis()).unwrap_or(0);
        cons.clock.accepted(age_ms(came), age_ms(Instant::now()));
        let limit_ms = self.session.server.config.setup_timeout_ms;
        self.zombie
            .modify(self.clone(), cons.clock.left_ms(limit_ms));
    }

    /// Returns whether the path is torn down or about to be.
    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.state(), State::Closing | State::Closed)
    }

    pub(crate) fn state(&self) -> State {
        self.fsm.lock().state
    }

    /// Returns whether requests of the path may be served.
    ///
    /// A thread that serves a request first claims the chunk number and then calls this. A thread
    /// that stops the path first clears the flag and then visits the chunk numbers. So one of them
    /// sees the other.
    pub(crate) fn takes_requests(&self) -> bool {
        self.takes_requests.load(Relaxed)
    }

    /// Returns whether the client can be sent a notice by this path.
    pub(crate) fn takes_notices(&self) -> bool {
        self.notices && self.takes_requests()
    }

    /// Shows the path to users: it is connected.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// Those of [`PathDir::new`].
    pub(crate) fn show(self: &Arc<Self>) -> Result {
        let session = self.session.dir().ok_or(ENODEV)?;
        *self.shown.lock() = Some(PathDir::new(&session, self)?);
        pr_info_ratelimited!("{}: path connected\n", **self);
        Ok(())
    }

    pub(crate) fn is_shown(&self) -> bool {
        self.shown.lock().is_some()
    }

    /// Shows the path no more: it is being closed. Another path of the same
    /// addresses is shown after this only.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn hide(&self) {
        // Under the lock, so that the directory is gone when the path is not shown.
        let mut shown = self.shown.lock();
        if let Some(dir) = shown.take() {
            drop(dir);
            pr_info_ratelimited!("{}: path closed\n", *self);
        }
    }

    /// Takes the message by which the client proves itself, to be handled later.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn auth1_received(self: &Arc<Self>, message: &[u8]) {
        self.fsm.lock().auth1 = Some((Message::new(message), Instant::now()));
        self.events.enqueue(self.clone());
    }

    /// Takes the message with the session's name, to be handled later.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn info_received(self: &Arc<Self>, message: &[u8]) {
        let mut info = Info {
            bytes: [0; INFO_REQ_LEN],
            len: message.len().min(INFO_REQ_LEN),
        };
        for (to, from) in info.bytes.iter_mut().zip(message) {
            *to = *from;
        }
        let mut fsm = self.fsm.lock();
        fsm.info = Some(info);
        fsm.informed = true;
        drop(fsm);
        self.events.enqueue(self.clone());
    }

    /// Lets the state machine make a step; returns whether it took the event.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn event(self: &Arc<Self>, event: Event) -> bool {
        let mut fsm = self.fsm.lock();
        let from = fsm.state;
        let step = fsm::step(from, event);
        fsm.state = step.next;
        let connected = step.next == State::Connected;
        if self.takes_requests() != connected {
            // ORDERING: Pairs with the exchange of the claim, see `takes_requests`.
            self.takes_requests.xchg(connected, Full);
        }
        let work = !step.actions.is_empty();
        if work {
            fsm.todo.push(step.actions, Actions::and);
        }
        drop(fsm);
        if from != step.next {
            let (from, to) = (from.to_u8(), step.next.to_u8());
            trace::server_path_state(|| (self.session.name(), &self.name, from, to));
        }
        if work {
            self.events.enqueue(self.clone());
        }
        step.reply.accepted()
    }

    /// Something broke, which `what` says: the path is closed.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn error(self: &Arc<Self>, what: kernel::fmt::Arguments<'_>) {
        if self.event(Event::Error) {
            pr_err_ratelimited!("{}: {}\n", **self, what);
        }
    }

    /// The client ended a connection, or it was lost.
    pub(crate) fn ended(self: &Arc<Self>, cid: u16, why: &CStr) {
        if self.event(Event::Error) {
            pr_info_ratelimited!("{}: connection {}: {}\n", **self, cid, why);
        }
    }

    /// Does what a step asked for.
    fn perform(self: &Arc<Self>, actions: Actions) {
        for action in actions.iter() {
            match action {
                Action::CancelStale => {
                    self.zombie.cancel();
                }
                Action::StartHeartbeat => {
                    self.heartbeat_work
                        .enqueue_in(self.clone(), self.hb_interval_ms());
                }
                Action::SendInfoRsp => {
                    if let Err(error) = info::answer(self) {
                        self.error(fmt!(
                            "cannot send the session information ({})",
                            convert::errno(error).as_str()
                        ));
                    }
                }
                // Both may take long.
                Action::TearDown | Action::Release => {
                    self.teardown.enqueue(self.clone());
                }
            }
        }
    }

    fn hb_interval_ms(&self) -> u32 {
        self.session.server.config.hb_interval_ms
    }

    fn send_heartbeat(&self, imm: Imm) -> Result {
        let cons = self.cons.lock();
        match cons.qps.first() {
            Some(Some(service)) => send_imm(service, imm),
            _ => Err(ENOTCONN),
        }
    }
}

/// As in the log: session and addresses.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_fmt(fmt!("{}: {}", self.session.name(), self.ends))
    }
}

/// State changes and the message that completes the set-up.
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
        }
        if let Some(info) = info {
            // A second one ends the path.
            let complete = this.state() == State::Connecting && info::check(&this, &info);
            this.event(Event::Info { complete });
        }
        steps::carry_out(
            || this.fsm.lock().todo.take(),
            |actions| this.perform(actions),
        );
    }
}

/// Heartbeats.
impl WorkItem<{ work::HEARTBEAT }> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        match this.heartbeat.send_due(|imm| this.send_heartbeat(imm)) {
            Ok(()) if this.state() == State::Connected => {
                this.heartbeat_work
                    .enqueue_in(this.clone(), this.hb_interval_ms());
            }
            Ok(()) => {}
            Err(error) => this.error(fmt!(
                "no heartbeat from the client ({})",
                convert::errno(error).as_str()
            )),
        }
    }
}

/// The time in which all connections must have come.
impl WorkItem<{ work::ZOMBIE }> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if this.fsm.lock().informed {
            // The client has done its part: the rest takes the server's time, and completes the
            // path or closes it.
            return;
        }
        let limit_ms = this.session.server.config.setup_timeout_ms;
        let age_ms = u64::try_from(this.made.elapsed().as_millis()).unwrap_or(0);
        if setup::may_be_behind(age_ms, limit_ms) && this.session.server.backlog.lock().has(&this) {
            // The client has done its part; it is the server that is behind.
            this.zombie.enqueue_in(this.clone(), setup::BEHIND_MS);
            return;
        }
        if this.event(Event::Stale) {
            pr_warn_ratelimited!(
                "{}: the client did not complete the path in time; the path is closed\n",
                *this
            );
        }
    }
}

/// Tells a path that its device goes away.
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
