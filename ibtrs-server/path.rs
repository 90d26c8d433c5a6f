// SPDX-License-Identifier: GPL-2.0

//! A path: one client address, its connections, and its state.

use crate::{
    body::{
        Body,
        BodySlot, //
    },
    con::{
        self,
        Con, //
    },
    info,
    session::Session, //
};
use ibtrs_core::{
    heart::Heart,
    steps::Steps, //
};
use ibtrs_proto::{
    consts::{
        HB_INTERVAL_MS,
        HB_MISSED_MAX,
        INFO_REQ_LEN,
        ZOMBIE_TIMEOUT_MS, //
    },
    fsm::server_path::{
        self as fsm,
        Actions,
        Event,
        State, //
    },
    handshake::ConnReq,
    hb::HbAction,
    imm::Imm, //
};
use kernel::{
    new_mutex, new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        Mutex,
        SpinLockIrq, //
    },
};
use kx::work::{
    DelayedWork,
    Work,
    WorkItem, //
};
use rdma::{
    cm::CmId,
    device::{
        Device,
        RemovalGuard,
        RemovalHandler, //
    },
    dma::DmaBuf,
    qp::Qp,
    slot::Slots, //
};

struct Fsm {
    state: State,
    todo: Steps<Actions>,
    /// The client's message with the session's name, until it is handled.
    info: Option<Info>,
}

/// The message on the service connection that completes the set-up.
pub(crate) struct Info {
    pub(crate) bytes: [u8; INFO_REQ_LEN],
    pub(crate) len: usize,
}

/// What a path holds as long as it lives.
pub(crate) struct Resources {
    /// By number; connections arrive in any order.
    pub(crate) qps: KVec<Option<Qp<Con>>>,
    /// The answer to [`Info`].
    pub(crate) info_rsp: Option<DmaBuf>,
    pub(crate) removal: Option<RemovalGuard>,
}

/// A path of a session.
#[pin_data]
pub(crate) struct Path {
    pub(crate) session: Arc<Session>,
    pub(crate) uuid: [u8; 16],
    pub(crate) dev: Arc<Device>,
    pub(crate) slots: Arc<Slots<Con>>,
    cid_num: u16,
    #[pin]
    fsm: SpinLockIrq<Fsm>,
    #[pin]
    pub(crate) cons: Mutex<Resources>,
    #[pin]
    pub(crate) heart: Heart,
    #[pin]
    events: Work<Self, 0>,
    #[pin]
    beat: DelayedWork<Self, 1>,
    #[pin]
    zombie: DelayedWork<Self, 2>,
}

kx::impl_has_work! {
    impl HasWork<Work<Self, 0>> for Path { self.events }
    impl HasWork<DelayedWork<Self, 1>> for Path { self.beat }
    impl HasWork<DelayedWork<Self, 2>> for Path { self.zombie }
}

impl Path {
    /// Makes the path that the connection `id` is the first of.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENODEV` when the device goes away; `ENOMEM`; those of the driver.
    pub(crate) fn new(session: &Arc<Session>, id: &CmId, request: &ConnReq) -> Result<Arc<Self>> {
        let dev = id.device()?;
        let config = session.server.config;
        let slots = Slots::new(u32::from(config.queue_depth), |index| {
            let chunk = session.chunks.get(index as usize).ok_or(EINVAL)?;
            let body = Body::new(&dev, chunk.clone(), &config)?;
            Ok(BodySlot::new(KBox::new(body, GFP_KERNEL)?))
        })?;
        let mut qps = KVec::with_capacity(usize::from(request.cid_num), GFP_KERNEL)?;
        for _ in 0..request.cid_num {
            qps.push(None, GFP_KERNEL)?;
        }
        let queue = &session.server.queue;
        let path = Arc::pin_init(
            try_pin_init!(Self {
                session: session.clone(),
                uuid: request.path_uuid,
                dev,
                slots,
                cid_num: request.cid_num,
                fsm <- new_spinlock_irq!(
                    Fsm {
                        state: fsm::initial().next,
                        todo: Steps::default(),
                        info: None,
                    },
                    "Path::fsm"
                ),
                cons <- new_mutex!(
                    Resources { qps, info_rsp: None, removal: None },
                    "Path::cons"
                ),
                heart <- Heart::new(HB_MISSED_MAX),
                events <- kx::new_work!(queue.clone(), "Path::events"),
                beat <- kx::new_delayed_work!(queue.clone(), "Path::beat"),
                zombie <- kx::new_delayed_work!(queue.clone(), "Path::zombie"),
            }? Error),
            GFP_KERNEL,
        )?;
        let removal = path
            .dev
            .on_removal(Arc::new(Removal(path.clone()), GFP_KERNEL)?)?;
        path.cons.lock().removal = Some(removal);
        path.zombie.enqueue_in(path.clone(), ZOMBIE_TIMEOUT_MS);
        Ok(path)
    }

    /// Checks whether one more connection may join.
    ///
    /// # Errors
    ///
    /// `ECONNRESET` when the path is past its set-up, or the connection does
    /// not fit those that are there.
    pub(crate) fn may_connect(&self, request: &ConnReq) -> Result {
        let step = fsm::step(self.fsm.lock().state, Event::Connect);
        if !step.verdict.accepted() || request.cid_num != self.cid_num {
            return Err(ECONNRESET);
        }
        let cons = self.cons.lock();
        match cons.qps.get(usize::from(request.cid)) {
            Some(None) => Ok(()),
            _ => Err(ECONNRESET),
        }
    }

    /// Keeps a connection.
    ///
    /// # Errors
    ///
    /// `ECONNRESET` when the path is being torn down.
    pub(crate) fn add_con(&self, cid: u16, qp: Qp<Con>) -> Result {
        let mut cons = self.cons.lock();
        match cons.qps.get_mut(usize::from(cid)) {
            Some(place @ None) => *place = Some(qp),
            _ => return Err(ECONNRESET),
        }
        Ok(())
    }

    /// Gives a path up that has not been completed in time.
    pub(crate) fn check_stale(self: &Arc<Self>) {
        if self.state() == State::Connecting && !self.zombie.is_queued() {
            self.event(Event::Stale);
        }
    }

    /// Tells whether the path is torn down or about to be.
    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.state(), State::Closing | State::Closed)
    }

    fn state(&self) -> State {
        self.fsm.lock().state
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
        self.fsm.lock().info = Some(info);
        self.events.enqueue(self.clone());
    }

    /// Lets the state machine make a step; tells whether it took the event.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn event(self: &Arc<Self>, event: Event) -> bool {
        let mut fsm = self.fsm.lock();
        let step = fsm::step(fsm.state, event);
        fsm.state = step.next;
        let work = !step.actions.is_empty();
        if work {
            fsm.todo.push(step.actions, Actions::and);
        }
        drop(fsm);
        if work {
            self.events.enqueue(self.clone());
        }
        step.verdict.accepted()
    }

    /// Something broke, which `what` says: the path is closed.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn error(self: &Arc<Self>, what: kernel::fmt::Arguments<'_>) {
        if self.event(Event::Error) {
            pr_err!("{}: {}\n", self.session.name(), what);
        }
    }

    /// The client ended a connection, or it was lost.
    pub(crate) fn ended(self: &Arc<Self>, cid: u16, why: &CStr) {
        if self.event(Event::Error) {
            pr_info!(
                "{}: path closed: connection {}: {}\n",
                self.session.name(),
                cid,
                why
            );
        }
    }

    /// Does what a step asked for.
    fn perform(self: &Arc<Self>, actions: Actions) {
        if actions.contains(Actions::CLEAR_STAMP) {
            self.zombie.cancel();
        }
        if actions.contains(Actions::START_HEARTBEAT) {
            self.beat.enqueue_in(self.clone(), HB_INTERVAL_MS);
        }
        if actions.contains(Actions::SEND_INFO_RSP) {
            if let Err(error) = info::answer(self) {
                self.error(fmt!("cannot send the session information ({:?})", error));
            }
        }
        if actions.contains(Actions::DISCONNECT_AND_DRAIN) {
            self.tear_down();
            self.event(Event::CloseDone);
        }
        if actions.contains(Actions::RELEASE) {
            self.session.path_gone(self);
        }
    }

    /// Ends the connections and waits for the requests in service.
    fn tear_down(self: &Arc<Self>) {
        self.beat.cancel();
        self.zombie.cancel();
        let mut cons = self.cons.lock();
        let qps = core::mem::take(&mut cons.qps);
        let removal = cons.removal.take();
        drop(cons);
        drop(removal);
        for qp in qps.iter().flatten() {
            qp.close();
        }
        // Waits for the requests that are with the service.
        drop(qps);
        self.cons.lock().info_rsp = None;
    }

    fn send_heartbeat(&self) -> Result {
        let cons = self.cons.lock();
        match cons.qps.first() {
            Some(Some(service)) => con::send_imm(service, Imm::Heartbeat),
            _ => Err(ENOTCONN),
        }
    }
}

/// State changes and the message that completes the set-up.
impl WorkItem<0> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let info = this.fsm.lock().info.take();
        if let Some(info) = info {
            let complete = info::check(&this, &info);
            this.event(Event::Info { complete });
        }
        loop {
            let todo = this.fsm.lock().todo.take();
            if todo.is_empty() {
                break;
            }
            for actions in todo.iter() {
                this.perform(actions);
            }
        }
    }
}

/// Heartbeats.
impl WorkItem<1> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let alive = match this.heart.tick() {
            HbAction::Send => this.send_heartbeat(),
            HbAction::Nothing => Ok(()),
            HbAction::Dead => Err(ETIMEDOUT),
        };
        match alive {
            Ok(()) if this.state() == State::Connected => {
                this.beat.enqueue_in(this.clone(), HB_INTERVAL_MS);
            }
            Ok(()) => {}
            Err(error) => this.error(fmt!("no heartbeat from the client ({:?})", error)),
        }
    }
}

/// The time in which all connections must have come.
impl WorkItem<2> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if this.event(Event::Stale) {
            pr_warn!(
                "{}: a client did not complete its connections\n",
                this.session.name()
            );
        }
    }
}

/// Tells a path that its device goes away.
struct Removal(Arc<Path>);

impl RemovalHandler for Removal {
    fn device_removed(&self) {
        pr_warn!("{}: the RDMA device goes away\n", self.0.session.name());
        self.0.event(Event::DeviceRemoved);
    }
}
