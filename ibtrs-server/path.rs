// SPDX-License-Identifier: GPL-2.0

//! A path: a pair of addresses, the connections between them, and the state.

use crate::{
    accept::Incomer,
    answer_buf::{
        AnswerBuf,
        AnswerBufs, //
    },
    authentication::Proof,
    buffers::Buffer,
    chunk::{
        Chunk,
        ChunkSlot, //
    },
    con::{
        Con,
        RECV_REQUESTS, //
    },
    ends::Ends,
    fence::Inbox,
    idle::Idle,
    info,
    landing::{
        Group,
        InSlot, //
    },
    memory::Charge,
    refusal::Refusal,
    session::Session,
    source::{
        data_pieces,
        Source, //
    },
    stats::Stats,
    sysfs::PathDir,
    types::{
        Place,
        Shape,
        Terms, //
    },
};
use ibtrs_core::{
    convert,
    heartbeat::PathHeartbeat,
    imm::send_imm,
    message::Message,
    trace, //
};
use ibtrs_proto::{
    audit::Trust,
    auth::ServerAuth,
    chunk_owner::PathTag,
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
    imm::{
        Imm,
        ImmLayout, //
    },
    imm_check::ImmTerms,
    join::{
        Attempt,
        Known, //
    },
    msg::Bounds,
    setup::{
        self,
        SetupClock, //
    },
    steps::{
        self,
        Steps, //
    },
};
use kernel::{
    fmt,
    new_mutex,
    new_spinlock_irq,
    prelude::*,
    str::CString,
    sync::{
        barrier::smp_mb,
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
        Full,
        Relaxed, //
    },
    work::{
        DelayedWork,
        Work,
        WorkItem, //
    }, //
};
use rdma::{
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

/// Time between two checks of the key of a connected path. The kernel tells nobody that a key was
/// removed or has expired.
const KEY_CHECK_MS: u32 = 500;

struct Fsm {
    state: State,
    todo: Steps<Actions>,
    /// AUTH1 and its time of arrival, until it is handled.
    auth1: Option<(Proof, Instant<Monotonic>)>,
    /// The INFO request, until it is handled.
    info: Option<Info>,
    /// The INFO request has arrived: the client has done its part.
    informed: bool,
    /// AUTH1 has arrived and is not answered yet: the client waits.
    proving: bool,
}

/// The INFO request, which completes the setup.
pub(crate) type Info = Message<INFO_REQ_LEN>;

/// The RDMA resources of a path, which its teardown releases.
pub(crate) struct Resources {
    /// By connection number; connections arrive in any order.
    pub(crate) qps: KVVec<Option<Qp<Con>>>,
    /// AUTH2, the answer to the client's proof.
    pub(crate) auth2: Option<DmaBuf>,
    /// The answer to [`Info`].
    pub(crate) info_rsp: Option<Source>,
    pub(crate) removal: Option<RemovalGuard>,
    /// The teardown has taken what was here.
    pub(crate) is_taken: bool,
    /// The setup time that the client has used.
    clock: SetupClock,
    /// Closed connections to which requests in service may still refer. Has capacity for all of
    /// `qps`.
    pub(crate) closed: KVVec<QpEnd<Con>>,
    /// Number of checks whether the `closed` connections have ended; `None` until they are closed.
    pub(crate) checks: Option<u32>,
}

/// A path of a session.
#[pin_data]
pub(crate) struct Path {
    pub(crate) session: Arc<Session>,
    pub(crate) uuid: [u8; 16],
    /// Identifies the path among those of its session.
    pub(crate) tag: PathTag,
    /// The path epoch, if the client knows the extensions.
    pub(crate) epoch: Option<u32>,
    /// The immediates that the client may send.
    pub(crate) imms: ImmTerms,
    /// The client takes notices.
    pub(crate) notices: bool,
    /// The client has sent a heartbeat: it has posted its receives. Over iWARP, what comes before that
    /// ends the connection.
    hears: AtomicFlag,
    /// The client takes answers that consist of one message and leave the key as it was.
    pub(crate) same_key: bool,
    /// The client takes reports that writes are durable.
    pub(crate) durable: bool,
    /// The client takes the time for which the server expects to be away.
    pub(crate) downtime: bool,
    /// The client takes several answers in one message.
    pub(crate) more_answers: bool,
    /// The client takes the answer in the message that invalidates its key.
    pub(crate) inv_answers: bool,
    /// Answers invalidate the client's key if it asks for that.
    pub(crate) remote_invalidation: bool,
    pub(crate) terms: Terms,
    pub(crate) layout: ImmLayout,
    /// The place of a request.
    pub(crate) bounds: Bounds,
    /// The memory of the slots.
    #[pin]
    pub(crate) groups: Mutex<KVVec<Arc<Group>>>,
    pub(crate) idle: Idle,
    /// The connections are closed, and no device uses the memory; see `Path::put_back`.
    pub(crate) is_drained: AtomicFlag,
    /// Whether and how the client has proved itself.
    #[pin]
    pub(crate) auth: Mutex<ServerAuth>,
    /// The client has proved itself.
    authenticated: AtomicFlag,
    pub(crate) ends: Ends,
    /// The addresses as text, for traces.
    pub(crate) name: CString,
    /// The protection domain of this path alone: no other client can use its keys.
    pub(crate) pd: Arc<Pd>,
    hca_port: u32,
    pub(crate) slots: Arc<Slots<Con>>,
    pub(crate) cid_num: u16,
    /// The completion vector of connections 0 and 1; each further one has the next.
    first_vector: u32,
    /// The path is connected, so its requests are served.
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
    hb_interval_ms: u32,
    /// Immediates travel in messages, as over iWARP: a message that comes before the client has posted
    /// its receives ends the connection.
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
    // Dropped last: given back after the chunks and the connections.
    pub(crate) charge: Charge,
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

    /// Returns whether the client knows the extensions of the protocol.
    pub(crate) fn has_extensions(&self) -> bool {
        self.epoch.is_some()
    }

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
    /// Creates a path for its first connection; `known` tells whether its client is known.
    ///
    /// # Context
    ///
    /// May sleep. Called for one path of a session at a time.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device goes away; `ENOMEM`; those of [`Charge::begin`] and of the driver.
    pub(crate) fn new(
        session: &Arc<Session>,
        incomer: &Incomer<'_>,
        auth: ServerAuth,
        known: bool,
    ) -> Result<Arc<Self>, Refusal> {
        let config = &session.env.config;
        let needs = config.path_needs(incomer.terms(config), incomer.request.cid_num);
        let charge = Charge::begin(&session.env, incomer.origin(), known, &needs)?;
        let path = Self::allocate(session, incomer, auth, charge);
        path.map_err(|error| Refusal::new(error, "the path cannot be created"))
    }

    fn allocate(
        session: &Arc<Session>,
        incomer: &Incomer<'_>,
        auth: ServerAuth,
        charge: Charge,
    ) -> Result<Arc<Self>> {
        let env = &session.env;
        let (ends, request) = (incomer.ends, incomer.request);
        let pd = Pd::new(&incomer.id.device()?)?;
        let first_vector = pd
            .device()
            .next_vectors(u32::from(request.cid_num).saturating_sub(1));
        let config = env.config;
        let terms = incomer.terms(&config);
        let (layout, bounds) = (config.layout(terms), config.bounds(terms));
        let slots = Slots::new(u32::from(layout.queue_depth()), |_| Ok(ChunkSlot::new()))?;
        let mut qps = KVVec::with_capacity(usize::from(request.cid_num), GFP_KERNEL)?;
        for _ in 0..request.cid_num {
            qps.push(None, GFP_KERNEL)?;
        }
        let closed = KVVec::with_capacity(qps.len(), GFP_KERNEL)?;
        let failover_time_ms = request.ext.map_or(0, |ext| ext.failover_time_ms);
        let plan = Plan::of_server(
            failover_time_ms,
            config.hb_interval_ms,
            config.hb_missed_max,
        );
        let (queue, setup, slow) = (&env.queue, &env.setup, &env.slow);
        let path = Arc::pin_init(
            try_pin_init!(Self {
                session: session.clone(),
                uuid: request.path_uuid,
                tag: session.next_tag().ok_or(ENOSPC)?,
                epoch: request.ext.map(|ext| ext.epoch),
                imms: ImmTerms::new(request.ext, terms.shape == Shape::Slots),
                notices: request.ext.is_some_and(|ext| ext.notices),
                hears: AtomicFlag::new(false),
                same_key: request.ext.is_some_and(|ext| ext.same_key),
                durable: request.ext.is_some_and(|ext| ext.durable),
                downtime: request.ext.is_some_and(|ext| ext.downtime),
                more_answers: request.ext.is_some_and(|ext| ext.wants_more_answers()),
                inv_answers: request.ext.is_some_and(|ext| ext.wants_inv_answers()),
                remote_invalidation: request.ext.is_some() || config.remote_invalidation,
                terms,
                layout,
                bounds,
                groups <- new_mutex!(KVVec::new(), "Path::groups"),
                idle: Idle::new(),
                is_drained: AtomicFlag::new(false),
                auth <- new_mutex!(auth, "Path::auth"),
                authenticated: AtomicFlag::new(false),
                name: CString::try_from_fmt(fmt!("{ends}"))?,
                ends,
                pd,
                hca_port: incomer.id.port_num(),
                slots,
                cid_num: request.cid_num,
                first_vector,
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
                        proving: false,
                    },
                    "Path::fsm"
                ),
                cons <- new_mutex!(
                    Resources {
                        qps,
                        auth2: None,
                        info_rsp: None,
                        removal: None,
                        is_taken: false,
                        clock: SetupClock::default(),
                        closed,
                        checks: None,
                    },
                    "Path::cons"
                ),
                heartbeat <- PathHeartbeat::new(plan.hb_missed_max),
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
        let mut cons = self.cons.lock();
        if cons.is_taken {
            // Nobody would drop it, and the path would refer to itself.
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

    /// Charges the memory of connection `cid`.
    ///
    /// # Errors
    ///
    /// Those of [`Charge::connect`].
    pub(crate) fn take_for_connection(&self, cid: u16) -> Result<(), Refusal> {
        let config = &self.session.env.config;
        let mut bytes = config.connection_bytes(self.terms, cid);
        if self.charge.is_empty() {
            bytes = bytes.saturating_add(config.numbers_bytes(self.terms));
        }
        Ok(self.charge.connect(bytes, self.needs())?)
    }

    /// Returns the bytes that the path takes when it is complete.
    pub(crate) fn needs(&self) -> u64 {
        let config = &self.session.env.config;
        let needs = config.path_needs(self.terms, self.cid_num);
        needs.total()
    }

    /// Creates the chunks, when the client completes the path.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// Those of [`Charge::complete`]; `ENOMEM`, those of the driver.
    pub(crate) fn make_chunks(&self) -> Result<(), Refusal> {
        let env = &self.session.env;
        let bytes = env.config.chunks_bytes(self.terms, self.cid_num);
        self.charge.complete(bytes)?;
        let result = self.fill_slots().and_then(|()| self.add_capsules());
        env.leave_to_pool();
        result.map_err(|error| Refusal::new(error, "its chunks cannot be allocated"))
    }

    /// Posts the receives for capsules on the I/O connections, which had none until now.
    fn add_capsules(&self) -> Result {
        if self.terms.window.is_none() {
            return Ok(());
        }
        let class = self.session.env.config.capsules(self.terms);
        for cid in 1..usize::from(self.cid_num) {
            let cons = self.cons.lock();
            let qp = cons.qps.get(cid).and_then(Option::as_ref).map(Qp::get);
            drop(cons);
            qp.ok_or(ENOTCONN)?.add_recvs(RECV_REQUESTS, class)?;
        }
        Ok(())
    }

    /// Gives each slot its chunk.
    fn fill_slots(&self) -> Result {
        let answers = AnswerBufs::new(&self.pd, self.layout.queue_depth().into())?;
        if self.terms.shape == Shape::Slots {
            return self.make_slots(&answers);
        }
        for (number, slot) in self.slots.iter().enumerate() {
            drop(slot.put(self.make_chunk(AnswerBuf::new(&answers, number))?));
        }
        Ok(())
    }

    /// Creates the slots, in groups.
    fn make_slots(&self, answers: &Arc<AnswerBufs>) -> Result {
        let env = &self.session.env;
        self.session.share.make_reserve()?;
        let config = &env.config;
        let (count, slot_bytes) = (usize::from(config.group()), self.layout.chunk_size());
        let mut groups = KVVec::new();
        for (index, slot) in self.slots.iter().enumerate() {
            let place = index % count;
            if place == 0 {
                let node = self.pd.device().node();
                let memory = env
                    .slot_pool
                    .take(config.group_bytes(self.terms), 0, node)?;
                let group = Group::new(&self.pd, memory.chunk)?;
                groups.push(Arc::new(group, GFP_KERNEL)?, GFP_KERNEL)?;
            }
            let group = groups.last().ok_or(EINVAL)?;
            let in_slot = InSlot::new(group.clone(), place as u32 * slot_bytes, config.invalidate);
            let chunk = Chunk::in_slot(in_slot, AnswerBuf::new(answers, index));
            drop(slot.put(KBox::new(chunk, GFP_KERNEL)?));
        }
        *self.groups.lock() = groups;
        Ok(())
    }

    /// Gives a request a buffer.
    pub(crate) fn grant(self: &Arc<Self>, chunk: &mut Chunk, buffer: Buffer) {
        if chunk.grant(buffer) {
            self.keeps_small();
        }
    }

    fn make_chunk(&self, answer: AnswerBuf) -> Result<KBox<Chunk>> {
        let env = &self.session.env;
        let config = &env.config;
        let chunk_bytes = config.chunk_bytes as usize;
        let node = self.pd.device().node();
        let memory = env.pool.take(chunk_bytes, config.private_bytes(), node)?;
        let most_pieces = data_pieces(self.inv_answers);
        let chunk = Chunk::new(&self.pd, memory, most_pieces, answer)?;
        Ok(KBox::new(chunk, GFP_KERNEL)?)
    }

    /// Returns the properties of the path that decide about a connection request; `same_uuid` tells
    /// whether the path is the connection's own.
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

    /// Returns the client's connection attempt to which the path belongs.
    pub(crate) fn attempt(&self) -> Attempt {
        Attempt {
            cid_num: self.cid_num,
            epoch: self.epoch,
        }
    }

    /// Adds a connection whose request arrived at `came`, and grants time for further ones, but no
    /// more than `setup_timeout_ms` in all to the client.
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
        let mut cons = self.cons.lock();
        match cons.qps.get_mut(usize::from(cid)) {
            Some(place @ None) => *place = Some(qp),
            _ => return Err(ECONNRESET),
        }
        self.wait_for_client(&mut cons, came);
        Ok(())
    }

    /// Grants the client time for its next connection, after it has proved itself with a message
    /// that arrived at `came`.
    pub(crate) fn client_has_answered(self: &Arc<Self>, came: Instant<Monotonic>) {
        self.wait_for_client(&mut self.cons.lock(), came);
    }

    /// Grants the client time for its next step: it took the last one at `came`, and the server has
    /// done its own part since.
    fn wait_for_client(self: &Arc<Self>, cons: &mut Resources, came: Instant<Monotonic>) {
        // The first request arrived before the path was created, and counts as arrived at that
        // moment.
        let age_ms = |at: Instant<_>| u64::try_from((at - self.made).as_millis()).unwrap_or(0);
        cons.clock.accepted(age_ms(came), age_ms(Instant::now()));
        let limit_ms = self.session.env.config.setup_timeout_ms;
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
        self.session.env.audit.may_log(trust, &self.ends.src)
    }

    /// Returns whether the path is closing or closed.
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

    /// As [`Path::takes_requests`], for a thread that has put a request into its place instead of
    /// claiming a number.
    pub(crate) fn takes_requests_after_all(&self) -> bool {
        // ORDERING: The request is put there before the flag is read; pairs with the full exchange
        // in `Path::event`.
        smp_mb(Full);
        self.takes_requests()
    }

    /// Returns whether the client takes notices over this path, as soon as it [hears](Self::hears).
    pub(crate) fn takes_notices(&self) -> bool {
        self.notices && self.takes_requests()
    }

    /// Returns whether the client can be sent what it has not asked for.
    pub(crate) fn hears(&self) -> bool {
        self.hears.load(Relaxed)
    }

    /// Notes that the client has sent a heartbeat.
    pub(crate) fn is_heard(&self) {
        self.hears.store(true, Relaxed);
    }

    /// Creates the directory of the path, which is connected, in sysfs.
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
        if self.may_log() {
            pr_info!("{}: path connected\n", **self);
        }
        Ok(())
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
        // Under the lock, so that the directory is gone when the path counts as not shown.
        let mut shown = self.shown.lock();
        if let Some(dir) = shown.take() {
            drop(dir);
            if self.may_log() {
                pr_info!("{}: path closed\n", *self);
            }
        }
    }

    /// Takes AUTH1, to be handled by the work item.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn auth1_received(self: &Arc<Self>, message: &[u8]) {
        let mut fsm = self.fsm.lock();
        fsm.auth1 = Some((Proof::new(message), Instant::now()));
        fsm.proving = true;
        drop(fsm);
        self.events.enqueue(self.clone());
    }

    /// Takes the INFO request, to be handled by the work item.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn info_received(self: &Arc<Self>, message: &[u8]) {
        let mut fsm = self.fsm.lock();
        fsm.info = Some(Info::new(message));
        fsm.informed = true;
        drop(fsm);
        self.events.enqueue(self.clone());
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

    /// Closes the path because of an error; `what` is logged as the reason.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn error(self: &Arc<Self>, what: kernel::fmt::Arguments<'_>) {
        if self.event(Event::Error) && self.may_log() {
            pr_err!("{}: {}\n", **self, what);
        }
    }

    /// Closes the path because of `error`; the log has `what` and the name of the error.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn failed(self: &Arc<Self>, what: &str, error: Error) {
        self.error(fmt!("{} ({})", what, convert::errno(error).as_str()));
    }

    /// Closes the path because the client ended connection `cid` or the connection was lost.
    pub(crate) fn ended(self: &Arc<Self>, cid: u16, why: &CStr) {
        if self.event(Event::Error) && self.may_log() {
            pr_info!("{}: connection {}: {}\n", **self, cid, why);
        }
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
        match this.heartbeat.send_due(|imm| this.send_heartbeat(imm)) {
            Ok(()) if this.state() == State::Connected => {
                let wait = this.heartbeat.next_in_ms(this.hb_interval_ms);
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
            // The client has done its part: the rest takes the server's time, and completes the
            // path or closes it.
            return;
        }
        let limit_ms = this.session.env.config.setup_timeout_ms;
        let age_ms = u64::try_from(this.made.elapsed().as_millis()).unwrap_or(0);
        // The client's proof is being checked, or a connection of the client waits in the backlog.
        let is_behind = || {
            proving
                || this.session.env.backlog.lock().has(|asked| {
                    asked.request.session_uuid == this.session.uuid && this.owns(&asked.bytes)
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
