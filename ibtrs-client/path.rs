// SPDX-License-Identifier: GPL-2.0

//! A path: one pair of addresses, its connections, and its state.

use crate::{
    con::Con,
    connect::{
        self,
        Setup, //
    },
    request::{
        self,
        Wire, //
    },
    session::{
        PathSpec,
        Session, //
    },
};
use ibtrs_core::{
    convert::Shown,
    heart::Heart,
    steps::Steps, //
};
use ibtrs_proto::{
    consts::{
        HB_INTERVAL_MS,
        HB_MISSED_MAX, //
    },
    fsm::client_path::{
        self as fsm,
        Actions,
        Event,
        State, //
    },
    hb::HbAction,
    imm::Imm, //
};
use kernel::{
    new_condvar, new_mutex, new_spinlock_irq,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        CondVar,
        Mutex,
        SetOnce,
        SpinLockIrq, //
    },
};
use kx::{
    sync::PercpuArc,
    work::{
        DelayedWork,
        Options,
        Queue,
        Work,
        WorkItem, //
    },
};
use rdma::{
    device::{
        Device,
        RemovalGuard,
        RemovalHandler, //
    },
    dma::DmaBuf,
    qp::{
        Qp,
        QueuePair, //
    },
    slot::Slots,
};

/// The state of a path, and what remains to be done about changes of it.
struct Fsm {
    state: State,
    todo: Steps<Actions>,
}

/// What an attempt to connect leaves behind, to be torn down.
pub(crate) struct Resources {
    pub(crate) qps: KVec<Qp<Con>>,
    pub(crate) slots: Option<Arc<Slots<Con>>>,
    /// The message with the session's name.
    pub(crate) info_req: Option<DmaBuf>,
    pub(crate) removal: Option<RemovalGuard>,
}

impl Resources {
    const fn new() -> Self {
        Self {
            qps: KVec::new(),
            slots: None,
            info_req: None,
            removal: None,
        }
    }
}

/// A connected path as submitters see it.
pub(crate) struct Active {
    pub(crate) path: Arc<Path>,
    pub(crate) qps: KVec<PercpuArc<QueuePair<Con>>>,
    pub(crate) slots: Arc<Slots<Con>>,
    pub(crate) wire: Wire,
    pub(crate) dev: Arc<Device>,
}

/// A path of a session.
#[pin_data]
pub(crate) struct Path {
    pub(crate) session: Arc<Session>,
    /// Session and addresses, for the log.
    pub(crate) name: CString,
    pub(crate) spec: PathSpec,
    pub(crate) uuid: [u8; 16],
    /// What the server said when the service connection was accepted.
    pub(crate) wire: SetOnce<Wire>,
    #[pin]
    fsm: SpinLockIrq<Fsm>,
    #[pin]
    changed: CondVar,
    #[pin]
    pub(crate) setup: SpinLockIrq<Setup>,
    #[pin]
    pub(crate) progress: CondVar,
    #[pin]
    pub(crate) cons: Mutex<Resources>,
    #[pin]
    ready: Mutex<Option<KBox<Active>>>,
    #[pin]
    pub(crate) heart: Heart,
    #[pin]
    events: Work<Self, 0>,
    #[pin]
    beat: DelayedWork<Self, 1>,
}

kx::impl_has_work! {
    impl HasWork<Work<Self, 0>> for Path { self.events }
    impl HasWork<DelayedWork<Self, 1>> for Path { self.beat }
}

impl Path {
    /// Makes a path that is about to connect.
    pub(crate) fn new(session: Arc<Session>, spec: PathSpec) -> Result<Arc<Self>> {
        let queue = Queue::new(
            Options::ordered().mem_reclaim(),
            fmt!("ibtrs-{}", session.name()),
        )?;
        let cons = crate::session::nr_queues() as usize + 1;
        let setup = Setup::new(cons)?;
        Arc::pin_init(
            try_pin_init!(Self {
                name: CString::try_from_fmt(fmt!("{}: {}", session.name(), Shown(spec.addr)))?,
                session,
                spec,
                uuid: kx::uuid::generate(),
                wire: SetOnce::new(),
                fsm <- new_spinlock_irq!(
                    Fsm {
                        state: fsm::initial().next,
                        todo: Steps::default(),
                    },
                    "Path::fsm"
                ),
                changed <- new_condvar!("Path::changed"),
                setup <- new_spinlock_irq!(setup, "Path::setup"),
                progress <- new_condvar!("Path::progress"),
                cons <- new_mutex!(Resources::new(), "Path::cons"),
                ready <- new_mutex!(None, "Path::ready"),
                heart <- Heart::new(HB_MISSED_MAX),
                events <- kx::new_work!(queue.clone(), "Path::events"),
                beat <- kx::new_delayed_work!(queue, "Path::beat"),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Connects; on success the session has the path.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// Those of [`Session::open`].
    pub(crate) fn open(self: &Arc<Self>) -> Result {
        let mut result = connect::establish(self).map(|active| {
            *self.ready.lock() = Some(active);
        });
        if result.is_ok() && !self.event(Event::Established) {
            // Something broke just now.
            result = Err(ECONNRESET);
        }
        if result.is_err() {
            self.event(Event::ConnectFailed { retry: false });
        }
        self.setup.lock().connecting = false;
        self.progress.notify_all();
        self.events.flush();
        result
    }

    /// Closes the path for good.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn close(self: &Arc<Self>) {
        self.event(Event::UserDisconnect);
        let mut fsm = self.fsm.lock();
        while !matches!(fsm.state, State::Closed | State::Dead) {
            self.changed.wait(&mut fsm);
        }
        drop(fsm);
        self.beat.cancel_sync();
        self.events.flush();
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
        let work = !step.actions.is_empty() || step.next == State::Closing;
        if !step.actions.is_empty() {
            fsm.todo.push(step.actions, Actions::and);
        }
        drop(fsm);
        if work {
            self.events.enqueue(self.clone());
        }
        step.verdict.accepted()
    }

    /// Something broke, which `what` says: the path is given up.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn error(self: &Arc<Self>, what: kernel::fmt::Arguments<'_>) {
        if !self.event(Event::Error { retry: false }) {
            return;
        }
        // Whoever is connecting learns of it, and says so.
        if self.setup.lock().connecting {
            pr_info!("{}: {}\n", *self.name, what);
        } else {
            pr_err!("{}: {}\n", *self.name, what);
        }
    }

    /// Does what a step asked for.
    fn perform(self: &Arc<Self>, actions: Actions) {
        if actions.contains(Actions::ABORT_CONNECT) {
            self.setup.lock().abort = Some(ECONNABORTED);
            self.progress.notify_all();
        }
        if actions.contains(Actions::STOP_AND_DESTROY) {
            self.tear_down();
        }
        if actions.contains(Actions::NOTIFY_DOWN) {
            self.session.link_down();
        }
        if actions.contains(Actions::START_HEARTBEAT) {
            self.beat.enqueue_in(self.clone(), HB_INTERVAL_MS);
        }
        if actions.contains(Actions::NOTIFY_UP) {
            let ready = self.ready.lock().take();
            if let Some(ready) = ready {
                self.session.publish(ready);
                pr_info!("{}: connected\n", *self.name);
            }
        }
        if actions.contains(Actions::WAKE_WAITERS) {
            self.changed.notify_all();
        }
    }

    /// Lets no new request in, ends the connections, and ends the requests that
    /// were in flight with an error.
    fn tear_down(&self) {
        let mut setup = self.setup.lock();
        while setup.connecting {
            self.progress.wait(&mut setup);
        }
        drop(setup);

        drop(self.ready.lock().take());
        self.session.unpublish();
        self.beat.cancel();
        let resources = core::mem::replace(&mut *self.cons.lock(), Resources::new());
        for qp in &resources.qps {
            qp.close();
        }
        let (Some(slots), Some(service)) = (&resources.slots, resources.qps.first()) else {
            return;
        };
        for slot in slots.iter() {
            request::abort(&slot, service.device());
        }
    }

    /// Sends a heartbeat message on the service connection.
    fn send_heartbeat(&self) -> Result {
        let cons = self.cons.lock();
        let service = cons.qps.first().ok_or(ENOTCONN)?;
        request::send_imm(service, Imm::Heartbeat)
    }
}

/// State changes.
impl WorkItem<0> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        loop {
            let todo = this.fsm.lock().todo.take();
            if todo.is_empty() {
                break;
            }
            for actions in todo.iter() {
                this.perform(actions);
            }
        }
        if this.fsm.lock().state == State::Closing {
            this.event(Event::CloseDone);
            this.changed.notify_all();
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
            Ok(()) => {
                if this.fsm.lock().state == State::Connected {
                    this.beat.enqueue_in(this.clone(), HB_INTERVAL_MS);
                }
            }
            Err(error) => this.error(fmt!("no heartbeat from the server ({:?})", error)),
        }
    }
}

/// Tells a path that its device goes away.
pub(crate) struct Removal(pub(crate) Arc<Path>);

impl RemovalHandler for Removal {
    fn device_removed(&self) {
        pr_warn!("{}: the RDMA device goes away\n", *self.0.name);
        self.0.event(Event::DeviceRemoved);
    }
}
