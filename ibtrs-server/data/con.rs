// SPDX-License-Identifier: GPL-2.0

//! The data plane's view of a connection, its path and its session. Events are reported to the control
//! plane through [`Control`], in any context.

use crate::{
    data::{
        batch::Batch,
        chunk_owner::ChunkOwners,
        idle::Idle,
        stats::Stats,
        unsent::Unsent, //
    },
    ends::Ends,
    env::Env,
    storage::{
        buffers::{
            Holder,
            Holding, //
        },
        chunk::{
            Chunk,
            ChunkSlot, //
        },
        source::Source, //
    },
    types::{
        Purpose,
        Round,
        Shape,
        Terms, //
    }, //
};
use ibtrs_core::{
    convert,
    heartbeat::PathHeartbeat,
    messages::con::MessageConn, //
};
use ibtrs_proto::{
    chunk_owner::PathId,
    handshake::ConnReq,
    imm::{
        Fence,
        ImmLayout, //
    },
    imm_check::ImmTerms,
    msg::Bounds,
    setup::SetupClock,
    tag::Tag, //
};
use kernel::{
    fmt,
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        barrier::smp_mb,
        Arc,
        Mutex, //
    }, //
};
use kx::sync::{
    atomic::{
        AtomicFlag,
        Full,
        Relaxed, //
    },
    PercpuArc,
    SetOnce, //
};
use rdma::{
    device::RemovalGuard,
    dma::DmaBuf,
    pd::Pd,
    qp::{
        Qp,
        QpEnd,
        QueuePair, //
    },
    slot::{
        Slots, //
    }, //
};

pub(crate) mod upper;

use upper::{
    ServiceSession,
    Uppers, //
};

/// Receives for immediates: requests, fences and heartbeats.
pub(crate) const RECV_REQUESTS: usize = 0;
/// The receive buffer for the session's name, on the service connection.
pub(crate) const RECV_INFO: usize = 1;
/// The receive buffer for AUTH1, on the service connection of a path that authenticates. The first
/// message arrives in it, whatever its type.
pub(crate) const RECV_AUTH: usize = 2;

/// Events that connections and requests report to their path, in any context.
pub(crate) trait Control: Send + Sync {
    /// Closes the path because of an error; `what` is the reason for the log.
    fn error(self: Arc<Self>, what: fmt::Arguments<'_>);

    /// Closes the path because the client ended connection `cid` or the connection was lost.
    fn ended(self: Arc<Self>, cid: u16, why: &CStr);

    /// Logs a warning about something that the client has caused.
    fn warn(&self, what: fmt::Arguments<'_>);

    /// Stores AUTH1, for a work item to handle.
    fn auth1_received(self: Arc<Self>, message: &[u8]);

    /// Stores the INFO request, for a work item to handle.
    fn info_received(self: Arc<Self>, message: &[u8]);

    /// Handles a fence that the path may carry.
    ///
    /// # Errors
    ///
    /// A violation of the protocol, for the log.
    fn fence_received(self: Arc<Self>, fence: Fence) -> Result<(), &'static str>;

    /// Handles the client's confirmation that object `number` is durable.
    fn durable_seen(&self, purpose: Purpose, number: u32);

    /// Handles the client's confirmation of a downtime.
    fn downtime_seen(&self);

    /// Returns the holder of the buffers of the path's requests, which is the session.
    fn holder(&self) -> Arc<dyn Holder>;

    /// Ensures that a round is scheduled, as a slot of the path now has a small buffer.
    fn keeps_small(self: Arc<Self>);

    /// Schedules the service of the session's requests that have waited for another path.
    fn wake(&self);

    /// Closes the path `id` of the session, which the client has superseded. If a newer request has
    /// replaced its `waiting` one, the latter is dropped.
    ///
    /// # Context
    ///
    /// May sleep.
    fn supersede(&self, id: PathId, waiting: Option<Tag>);
}

/// The view of a session that its requests have.
#[pin_data]
pub(crate) struct SessionIo {
    pub(crate) env: Arc<Env>,
    pub(crate) uuid: [u8; 16],
    pub(crate) name: SetOnce<CString>,
    /// The name that the session's first client has proved; set under `Sessions::joining`.
    pub(crate) owner: SetOnce<CString>,
    /// The services' ends of the session, set when its first path is connected.
    pub(crate) uppers: SetOnce<Uppers>,
    #[pin]
    pub(crate) owners: ChunkOwners,
    #[pin]
    pub(crate) holding: Holding,
}

impl SessionIo {
    /// Creates a session without a name.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(env: &Arc<Env>, uuid: [u8; 16]) -> Result<Arc<Self>> {
        let depth = env.config.queue_depth;
        Arc::pin_init(
            try_pin_init!(Self {
                env: env.clone(),
                uuid,
                name: SetOnce::new(),
                owner: SetOnce::new(),
                uppers: SetOnce::new(),
                owners <- ChunkOwners::new(depth),
                holding <- Holding::new(env.buffers.clone(), depth),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the name. Until the first path is connected, that is the name that a client has
    /// proved, or a placeholder.
    pub(crate) fn name(&self) -> &CStr {
        self.known_name().unwrap_or(c"(unnamed)")
    }

    /// Returns the name, if it is known.
    pub(crate) fn known_name(&self) -> Option<&CStr> {
        self.name
            .as_ref()
            .or(self.owner.as_ref())
            .map(|name| &**name)
    }

    /// Returns the end of the session of the service for `purpose`, once a path is connected.
    #[inline]
    pub(crate) fn upper(&self, purpose: Purpose) -> Option<&dyn ServiceSession> {
        self.uppers.as_ref()?.of(purpose)
    }
}

/// The RDMA resources of a path, which its teardown releases.
pub(crate) struct Resources {
    /// By connection number; connections arrive in any order.
    pub(crate) qps: KVVec<Option<Qp<Con>>>,
    /// The message connection, if the path has one.
    pub(crate) messages: Option<KBox<MessageConn>>,
    /// AUTH2, the answer to the client's proof.
    pub(crate) auth2: Option<DmaBuf>,
    /// The answer to [`Info`].
    pub(crate) info_rsp: Option<Source>,
    pub(crate) removal: Option<RemovalGuard>,
    /// The teardown has taken the resources.
    pub(crate) is_taken: bool,
    /// The setup time that the client has used.
    pub(crate) clock: SetupClock,
    /// Closed connections to which requests in service may still refer. Has capacity for all of
    /// `qps`.
    pub(crate) closed: KVVec<QpEnd<Con>>,
    /// Number of checks whether the `closed` connections have ended; `None` until they are closed.
    pub(crate) checks: Option<u32>,
}

/// The view of a path that its requests have.
#[pin_data]
pub(crate) struct PathIo {
    pub(crate) session: Arc<SessionIo>,
    /// Identifies the path within its session.
    pub(crate) id: PathId,
    /// The path epoch, if the client knows the extensions.
    pub(crate) epoch: Option<u32>,
    /// The immediates that the client may send.
    pub(crate) imms: ImmTerms,
    /// The client has sent a heartbeat, so it has posted its receives. Over iWARP, a message that
    /// arrives earlier terminates the connection.
    recvs_posted: AtomicFlag,
    /// The client supports answers that consist of one message and do not change the key.
    pub(crate) same_key: bool,
    /// The client supports several answers in one message.
    pub(crate) more_answers: bool,
    /// The client supports the answer in the message that invalidates its key.
    pub(crate) inv_answers: bool,
    /// Answers invalidate the client's key on request.
    pub(crate) remote_invalidation: bool,
    pub(crate) terms: Terms,
    pub(crate) layout: ImmLayout,
    /// The place of a request.
    pub(crate) bounds: Bounds,
    pub(crate) idle: Idle,
    /// The connections are closed, and no device uses the memory; see [`Self::put_back`].
    pub(crate) is_drained: AtomicFlag,
    pub(crate) ends: Ends,
    /// The addresses as text, for traces.
    pub(crate) name: CString,
    /// The protection domain of this path alone: no other client can use its keys.
    pub(crate) pd: Arc<Pd>,
    pub(crate) slots: Arc<Slots<Con>>,
    /// The path is connected, so its requests are served.
    takes_requests: AtomicFlag,
    pub(crate) stats: Stats,
    #[pin]
    pub(crate) cons: Mutex<Resources>,
    #[pin]
    pub(crate) heartbeat: PathHeartbeat,
}

impl PathIo {
    /// Creates a path of `session` for its first connection, requested by `request`.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; errors of the device's driver.
    pub(crate) fn new(
        session: &Arc<SessionIo>,
        id: PathId,
        ends: Ends,
        request: &ConnReq,
        terms: Terms,
        pd: Arc<Pd>,
        missed_max: u32,
    ) -> Result<Arc<Self>> {
        let config = &session.env.config;
        let (layout, bounds) = (config.layout(terms), config.bounds(terms));
        let slots = Slots::new(layout.queue_depth(), |_| Ok(ChunkSlot::new()))?;
        let mut qps = KVVec::with_capacity(usize::from(request.cid_num), GFP_KERNEL)?;
        for _ in 0..request.cid_num {
            qps.push(None, GFP_KERNEL)?;
        }
        let closed = KVVec::with_capacity(qps.len(), GFP_KERNEL)?;
        let ext = request.ext;
        Arc::pin_init(
            try_pin_init!(Self {
                session: session.clone(),
                id,
                epoch: ext.map(|ext| ext.epoch),
                imms: ImmTerms::new(ext, terms.shape == Shape::Slots),
                recvs_posted: AtomicFlag::new(false),
                same_key: ext.is_some_and(|ext| ext.same_key),
                more_answers: ext.is_some_and(|ext| ext.wants_more_answers()),
                inv_answers: ext.is_some_and(|ext| ext.wants_inv_answers()),
                remote_invalidation: ext.is_some() || config.remote_invalidation,
                terms,
                layout,
                bounds,
                idle: Idle::new(),
                is_drained: AtomicFlag::new(false),
                name: CString::try_from_fmt(fmt!("{ends}"))?,
                ends,
                pd,
                slots,
                takes_requests: AtomicFlag::new(false),
                stats: Stats::new()?,
                cons <- new_mutex!(
                    Resources {
                        qps,
                        messages: None,
                        auth2: None,
                        info_rsp: None,
                        removal: None,
                        is_taken: false,
                        clock: SetupClock::default(),
                        closed,
                        checks: None,
                    },
                    "PathIo::cons"
                ),
                heartbeat <- PathHeartbeat::new(missed_max),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the queue pair of a connection, if there is one.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn qp(&self, cid: u16) -> Option<PercpuArc<QueuePair<Con>>> {
        let cons = self.cons.lock();
        Some(cons.qps.get(usize::from(cid))?.as_ref()?.get())
    }

    /// Returns the queue pair of the service connection.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`: there is none, as the path is being closed.
    pub(crate) fn service(&self) -> Result<PercpuArc<QueuePair<Con>>> {
        self.qp(0).ok_or(ENOTCONN)
    }

    /// Returns whether requests of the path may be served.
    ///
    /// A thread that serves a request first claims the tag and then calls this. A thread that stops
    /// the path first clears the flag and then visits the tags. At least one of them therefore sees
    /// the other.
    pub(crate) fn takes_requests(&self) -> bool {
        self.takes_requests.load(Relaxed)
    }

    /// As [`Self::takes_requests`], for a thread that has made a request pending instead of
    /// claiming a tag.
    pub(crate) fn takes_requests_ordered(&self) -> bool {
        // ORDERING: The request is stored before the flag is read; pairs with the full exchange in
        // `set_connected`.
        smp_mb(Full);
        self.takes_requests()
    }

    /// Returns whether unsolicited messages can be sent to the client.
    pub(crate) fn recvs_posted(&self) -> bool {
        self.recvs_posted.load(Relaxed)
    }

    /// Records that the client has sent a heartbeat.
    pub(crate) fn set_recvs_posted(&self) {
        self.recvs_posted.store(true, Relaxed);
    }

    /// Records whether the path is connected.
    pub(crate) fn set_connected(&self, connected: bool) {
        if self.takes_requests() != connected {
            // ORDERING: Pairs with the exchange of the claim, see `takes_requests`.
            self.takes_requests.xchg(connected, Full);
        }
    }

    /// If memory is short, so that slots must not keep buffers for their next requests, returns the
    /// last completed round.
    #[inline]
    pub(crate) fn shortage(&self) -> Option<Round> {
        self.session.holding.is_short().then(|| self.idle.done())
    }

    /// Returns the chunk of a completed request to its slot. If the connections of the path are
    /// closed, the slot's buffers are released.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub(crate) fn put_back(&self, slot: &ChunkSlot, chunk: KBox<Chunk>) {
        drop(slot.put(chunk));
        self.strip_if_drained(slot);
    }

    /// Releases the buffers of a slot whose chunk was returned, if the connections of the path are
    /// closed.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub(crate) fn strip_if_drained(&self, slot: &ChunkSlot) {
        // ORDERING: See `Path::give_buffers_back`.
        if self.is_drained.load(Relaxed) {
            slot.release_buffers();
        }
    }
}

/// A connection: the state of its handler.
pub(crate) struct Con {
    pub(crate) path: Arc<PathIo>,
    pub(crate) control: Arc<dyn Control>,
    pub(crate) cid: u16,
    pub(crate) purpose: Purpose,
    /// Answers, fetches and a flush that wait for SQ space.
    pub(crate) unsent: Pin<KBox<Unsent>>,
    /// Answers that wait to be sent in one message.
    pub(crate) batch: Pin<KBox<Batch>>,
}

impl Con {
    pub(crate) fn new(
        path: Arc<PathIo>,
        control: Arc<dyn Control>,
        cid: u16,
        purpose: Purpose,
    ) -> Result<Self> {
        Ok(Self {
            unsent: KBox::pin_init(Unsent::new(path.layout.queue_depth()), GFP_KERNEL)?,
            batch: KBox::pin_init(Batch::new(), GFP_KERNEL)?,
            path,
            control,
            cid,
            purpose,
        })
    }

    /// Returns the service's session that receives the requests of the connection.
    pub(crate) fn upper(&self) -> Option<&dyn ServiceSession> {
        self.path.session.upper(self.purpose)
    }

    /// See [`Control::error`].
    #[cold]
    pub(crate) fn error(&self, what: fmt::Arguments<'_>) {
        self.control.clone().error(what);
    }

    /// Closes the path because of `error`; logs `what` and the name of the error.
    #[cold]
    pub(crate) fn failed(&self, what: &str, error: Error) {
        self.error(fmt!("{} ({})", what, convert::errno(error).as_str()));
    }

    /// As [`Self::failed`], unless the connection is closed anyway.
    #[cold]
    pub(crate) fn cannot_send(&self, what: &str, error: Error) {
        if error != ENOTCONN {
            self.failed(what, error);
        }
    }
}

/// A request that the service must answer.
///
/// The request owns its memory: until it is dropped, no other request uses the memory, and with
/// `always_invalidate` the client cannot write to it. Dropping the request answers with `EIO`.
pub struct Request {
    pub(crate) qp: PercpuArc<QueuePair<Con>>,
    /// Present until the request is answered.
    pub(crate) chunk: Option<KBox<Chunk>>,
}

impl Request {
    pub(crate) fn new(qp: PercpuArc<QueuePair<Con>>, chunk: KBox<Chunk>) -> Self {
        Self {
            qp,
            chunk: Some(chunk),
        }
    }
}
