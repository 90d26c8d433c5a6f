// SPDX-License-Identifier: GPL-2.0

//! Connects a path (Documentation/protocol.md, "Connecting").
//!
//! The service connection comes first, because the server announces its queue depth on it. The
//! other connections are then set up in parallel, each step for all of them before the next, so
//! that the time hardly depends on their number.

use crate::{
    data::{
        con::{
            Con,
            RECV_ANSWERS,
            RECV_INFO, //
        },
        io_buffer::IoBuffers,
        slot::{
            self,
            ReqSlot, //
        },
        submit::PathIo,
        wire::{
            takes_slots,
            Wire,
            MAX_SGES, //
        }, //
    },
    env::{
        Env,
        Token, //
    },
    path::attempt::{
        auth,
        Attempt,
        PathConn, //
    }, //
};
use ibtrs_core::{
    auth::{
        Crypto,
        KEY_ERRORS, //
    },
    convert,
    messages::{
        con::MessageConn,
        memory::{
            Reads,
            MAX_READS, //
        }, //
    }, //
};
use ibtrs_proto::{
    auth::ClientAuth,
    consts::{
        info_rsp_len,
        CONNECT_TIMEOUT_MS,
        CONN_REQ_LEN,
        CONN_RSP_LEN,
        RETRY_COUNT,
        RKEY_RSP_LEN,
        SERVICE_QUEUE_DEPTH, //
    },
    failover::{
        Offer,
        OfferResult, //
    },
    failover_time::Peer,
    fsm::client_path::Event,
    handshake::{
        ConnReq,
        ReqExt, //
    },
    imm::{
        Fence,
        Imm, //
    },
    msg::{
        InfoReq,
        InfoRsp,
        MORE_ANSWERS_LEN, //
    },
    tag::Tag, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    mm::Reserve,
    net::addr::SockAddr,
    sync::{
        atomic::Relaxed,
        PercpuArc, //
    }, //
};
use rdma::{
    cm::{
        ActiveId,
        ConnParam,
        PortSpace, //
    },
    cq::PollContext,
    device::Device,
    dma::DmaBuf,
    mr::Access,
    pd::Pd,
    qp::{
        Qp,
        QpConfig,
        QueuePair, //
    },
    recv::RecvClass,
    sendq::{
        Doorbell,
        Signal,
        SqSpace, //
    },
    slot::Slots,
};

mod progress;

pub(crate) use progress::Setup;
use progress::{
    Events,
    Removal,
    Stage, //
};

/// Number of address queries. The kernel's resolver misses an answer that arrives while it sends
/// the query, and notices it only when the query times out.
const ADDR_TRIES: u32 = 15;

/// Send queue entries that the message with the session's name may need on the service connection,
/// where immediates travel in messages as well.
const MESSAGE_SENDS: u32 = 2;

/// Setup of one connection, from address resolution to ESTABLISHED.
struct ConnSetup {
    cid: u16,
    id: ActiveId,
    src: Option<SockAddr>,
    dst: SockAddr,
    /// The connection request as it was sent; zeros before that.
    request: [u8; CONN_REQ_LEN],
}

impl ConnSetup {
    /// Creates the id of connection `cid` and starts to resolve the address.
    fn resolve(attempt: &Arc<Attempt>, cid: u16) -> Result<Self> {
        let events = Arc::new(
            Events {
                attempt: attempt.clone(),
                cid,
            },
            GFP_KERNEL,
        )?;
        let spec = &attempt.path.spec;
        let dst = convert::sock_addr(&spec.addr.dst, spec.port)?;
        let src = match &spec.addr.src {
            Some(src) => Some(convert::sock_addr(src, 0)?),
            None => None,
        };
        let mut id = ActiveId::new(attempt.path.env.net(), PortSpace::of(&dst), events)?;
        id.set_reuse_addr()?;
        id.set_ack_timeout(match crate::param::ack_timeout.get() {
            0 => attempt.plan().ack_timeout,
            // CAST: The parameter is within 0..=31.
            exponent => exponent as u8,
        })?;
        let mut start = Self {
            cid,
            id,
            src,
            dst,
            request: [0; CONN_REQ_LEN],
        };
        start.ask()?;
        Ok(start)
    }

    fn ask(&mut self) -> Result {
        let timeout_ms = CONNECT_TIMEOUT_MS / ADDR_TRIES;
        self.id
            .resolve_addr(self.src.as_ref(), &self.dst, timeout_ms)
    }

    /// Waits until the address is resolved.
    fn resolved(&mut self, attempt: &Attempt) -> Result {
        let cid = usize::from(self.cid);
        for left in (0..ADDR_TRIES).rev() {
            if attempt.wait_addr(cid)? {
                return Ok(());
            }
            if left > 0 {
                attempt.asks_again(cid);
                self.ask()?;
            }
        }
        attempt.error(fmt!("connection {}: no answer about the address", cid));
        Err(ETIMEDOUT)
    }

    /// Creates the queue pair once the address is resolved, and starts to resolve
    /// the route.
    fn route(&self, attempt: &Arc<Attempt>, config: QpConfig, pd: &Arc<Pd>) -> Result<Qp<Con>> {
        let con = Con::new(attempt.link.clone(), attempt.clone(), self.cid);
        let qp = config.create(self.id.shared(), pd, con)?;
        self.id.resolve_route(CONNECT_TIMEOUT_MS)?;
        Ok(qp)
    }

    /// As [`Self::route`], for the message connection.
    fn route_messages(
        &self,
        attempt: &Arc<Attempt>,
        pd: &Arc<Pd>,
        vector: u32,
    ) -> Result<KBox<MessageConn>> {
        let conn = attempt.message_conn()?;
        let queue = attempt.path.env.slow_queue();
        let (id, owner) = ((conn, self.id.shared()), attempt.clone());
        let conn = MessageConn::new(id, pd, owner, queue, vector, Reads::of(pd.device()))?;
        self.id.resolve_route(CONNECT_TIMEOUT_MS)?;
        Ok(conn)
    }

    /// Sends the connection request once the route is resolved; `prove` adds the client's part of
    /// the authentication to the request.
    fn connect<T>(
        &mut self,
        attempt: &Attempt,
        dev: &Device,
        first_conn: bool,
        prove: impl FnOnce(&mut [u8; CONN_REQ_LEN]) -> Result<T>,
    ) -> Result<T> {
        let path = &attempt.path;
        let cid_num = u16::try_from(path.env.nr_cons())?;
        let request = ConnReq {
            cid: self.cid,
            cid_num,
            // CAST: The wire has room for the low bits only.
            recon_cnt: path.nr_attempts() as u16,
            path_uuid: path.uuid,
            session_uuid: attempt.session_uuid,
            first_conn,
            ext: Some(extensions(attempt, dev)),
        };
        let reads = match (request.is_for_messages(), takes_slots(dev)) {
            (true, _) => Reads::of(dev),
            (false, true) => Reads {
                of_peer: 0,
                by_peer: dev.max_reads_by_peer().min(MAX_READS),
            },
            (false, false) => Reads::default(),
        };
        self.request = request.encode();
        let proved = prove(&mut self.request)?;
        self.id.connect(ConnParam {
            private_data: &self.request,
            retry_count: RETRY_COUNT,
            rnr_retry_count: 7,
            reads_by_peer: reads.by_peer,
            reads: reads.of_peer,
        })?;
        Ok(proved)
    }
}

/// Runs the attempt until the path is published or has failed.
///
/// Everything that was set up is then in [`Attempt::cons`], even after a failure.
///
/// # Context
///
/// May sleep.
pub(crate) fn run(attempt: &Arc<Attempt>) {
    let reached = {
        let _reserve = attempt.path.parent.is_cut_off().then(Reserve::enter);
        reach(attempt)
    };
    let result = reached.and_then(|reached| {
        let _guard = ReserveGuard::take(attempt)?;
        complete(attempt, reached).and_then(|established| offer(attempt, established))
    });
    if matches!(result, Err(error) if error == ENOMEM) {
        // ORDERING: Readers wait for the end of the attempt first.
        attempt.disposable.store(true, Relaxed);
    }
    match result {
        Ok(())
            if attempt
                .path
                .attempt_event(attempt.epoch(), Event::Established) =>
        {
            attempt.attach_messages();
            kx::pr_info_ratelimited!("{}: connected\n", attempt.log());
        }
        // The path failed after it was published.
        Ok(()) => attempt.failed(ECONNRESET),
        Err(error) => {
            // Only logged if no more specific error was logged.
            attempt.error(fmt!("cannot connect: {}", convert::errno(error).as_str()));
            attempt.failed(error);
            if KEY_ERRORS.contains(&error) {
                attempt.key_revoked(error);
            }
        }
    }
    attempt.set_ended();
}

/// A token that one attempt of the session holds at a time.
struct TokenGuard<'a> {
    attempt: &'a Attempt,
    token: &'a Token,
}

impl<'a> TokenGuard<'a> {
    /// Interval between attempts to take the token.
    const PAUSE_MS: u32 = 20;

    /// Waits for the token while `wanted` returns true; after `wait_ms` milliseconds, continues
    /// without it. Returns `None` as soon as `wanted` returns false.
    ///
    /// # Errors
    ///
    /// The error of the attempt, if it has failed.
    fn wait(
        attempt: &'a Attempt,
        token: &'a Token,
        wait_ms: u32,
        wanted: impl Fn() -> bool,
    ) -> Result<Option<Self>> {
        for _ in 0..wait_ms / Self::PAUSE_MS {
            if !wanted() {
                return Ok(None);
            }
            if token.take(attempt.epoch()) {
                break;
            }
            attempt.pause(Self::PAUSE_MS)?;
        }
        Ok(Some(Self { attempt, token }))
    }
}

impl Drop for TokenGuard<'_> {
    fn drop(&mut self) {
        self.token.give(self.attempt.epoch());
    }
}

/// The right to use much of the memory reserve.
///
/// The attempts of all paths of a session together could take the whole reserve, so only one at a
/// time may use it: once it has succeeded, the others do not need the reserve.
struct ReserveGuard<'a> {
    _guard: TokenGuard<'a>,
    _scope: Reserve,
}

impl<'a> ReserveGuard<'a> {
    /// How long to wait for the attempt that holds the right. An attempt that takes longer is
    /// waiting for its own network, and has already allocated its memory.
    const WAIT_MS: u32 = 2000;

    /// Takes the right, if the attempt may use the reserve.
    ///
    /// # Errors
    ///
    /// Errors of [`TokenGuard::wait`].
    fn take(attempt: &'a Attempt) -> Result<Option<Self>> {
        let parent = &attempt.path.parent;
        let guard = TokenGuard::wait(attempt, &attempt.path.env.reserve, Self::WAIT_MS, || {
            parent.is_cut_off()
        })?;
        Ok(guard.map(|guard| Self {
            _guard: guard,
            _scope: Reserve::enter(),
        }))
    }
}

/// A server that has accepted the service connection.
struct Reached<'a> {
    pd: Arc<Pd>,
    wire: Wire,
    auth: KBox<ClientAuth>,
    first: FirstConn<'a>,
}

/// Sets up the service connection, which takes little memory.
fn reach(attempt: &Arc<Attempt>) -> Result<Reached<'_>> {
    let mut service = ConnSetup::resolve(attempt, 0)?;
    service.resolved(attempt)?;
    let dev = service.id.device()?;
    let removal = dev.on_removal(Arc::new(Removal(attempt.clone()), GFP_KERNEL)?)?;
    attempt.cons.lock().removal = Some(removal);
    attempt.path.bound(&dev, &service.id);
    // The protection domain belongs to this attempt alone, so no other peer and no later attempt
    // can use its keys.
    let pd = Pd::new(&dev)?;
    let qp = service.route(attempt, service_config(&dev), &pd)?;
    attempt.keep(qp)?;
    attempt.wait_stage(0, Stage::RouteResolved)?;
    let first = FirstConn::take(attempt)?;
    let mut auth = service.connect(attempt, &dev, first.is_first, |request| {
        auth::begin(attempt, request)
    })?;
    attempt.wait_stage(0, Stage::Established)?;
    let (rsp, acceptance) = attempt.wait(|setup| Ok(setup.rsp))?;
    attempt.path.set_accepted();
    let asked = extensions(attempt, &dev);
    let wire = Wire::new(rsp, asked, &dev, sharing(&attempt.path.env))?;
    attempt.link.wire.populate(wire);
    if wire.imm_in_messages {
        for service in &attempt.cons.lock().qps {
            service.carry_imm_in_messages()?;
        }
    }
    // The server has no session until the client has proved itself, so `first` is held until then.
    auth::exchange(attempt, &mut auth, &acceptance)?;
    Ok(Reached {
        first: first.after(&wire),
        pd,
        wire,
        auth,
    })
}

/// Sets up the I/O connections; returns the state that submitters need.
fn complete<'a>(attempt: &'a Arc<Attempt>, reached: Reached<'a>) -> Result<Established<'a>> {
    let Reached {
        pd,
        wire,
        auth,
        first,
    } = reached;
    // Freeing the kept resources leaves enough memory for the I/O connections.
    attempt.path.release_kept();
    connect_rest(attempt, &pd, &wire, &auth)?;
    if wire.imm_in_messages {
        // `reach` has done so for the service connection.
        for qp in attempt.cons.lock().qps.iter().skip(1) {
            qp.carry_imm_in_messages()?;
        }
    }
    let slots = exchange_info(attempt, &pd, &wire)?;
    let qps = start(attempt, &wire, &slots)?;
    Ok(Established {
        qps,
        slots,
        wire,
        pd,
        first,
    })
}

/// Whether a connection requests that the server create the session if it does not know it.
///
/// A server in C can create two sessions for two paths that connect at once, so paths connect one
/// at a time. A slow path delays the others only for [`FirstConn::WAIT_MS`].
struct FirstConn<'a> {
    _guard: Option<TokenGuard<'a>>,
    is_first: bool,
}

impl<'a> FirstConn<'a> {
    /// How long a path waits for another path to get its answer.
    const WAIT_MS: u32 = 3000;

    fn take(attempt: &'a Attempt) -> Result<Self> {
        let parent = &attempt.path.parent;
        let guard = TokenGuard::wait(attempt, &attempt.path.env.first_conn, Self::WAIT_MS, || {
            !parent.is_connected()
        })?;
        let again = || attempt.path.was_accepted() && parent.may_create();
        Ok(Self {
            is_first: guard.is_some() || again(),
            _guard: guard,
        })
    }

    /// Releases the token so that other paths can connect, if the server reports to which session the
    /// path belongs. Otherwise they wait until this path is published, or until
    /// [`FirstConn::WAIT_MS`], and do not request a session.
    fn after(self, wire: &Wire) -> Self {
        match wire.rsp.ext {
            Some(_) => Self {
                _guard: None,
                ..self
            },
            None => self,
        }
    }
}

/// The result of [`complete`].
struct Established<'a> {
    qps: KVec<PercpuArc<QueuePair<Con>>>,
    slots: Arc<Slots<Con>>,
    wire: Wire,
    pd: Arc<Pd>,
    first: FirstConn<'a>,
}

/// Offers the path to the session until the session publishes or refuses it.
fn offer(attempt: &Arc<Attempt>, established: Established<'_>) -> Result {
    let parent = &attempt.path.parent;
    let mut offer = Offer {
        epoch: attempt.epoch(),
        previous: attempt.path.previous(),
        ext: established.wire.rsp.ext,
        is_first: established.first.is_first,
        queue_depth: established.wire.depth,
        max_io_bytes: established.wire.max_io_bytes,
        fenced: 0,
    };
    let conn = Arc::new(
        PathConn {
            attempt: attempt.clone(),
            io: PathIo {
                link: attempt.link.clone(),
                qps: established.qps,
                slots: established.slots,
                wire: established.wire,
                pd: established.pd,
            },
        },
        GFP_KERNEL,
    )?;
    // Send the first heartbeat now, to measure the latency early.
    attempt.heartbeat_due()?;
    // Held until this returns, see `FirstConn::after`.
    let _first = established.first;
    loop {
        match parent.clone().offer(&offer, &conn)? {
            OfferResult::Publish(_) => {
                attempt.path.env.tell_failover_time(attempt.peer());
                return Ok(());
            }
            OfferResult::Fence(epoch) => {
                fence_abandoned(attempt, &conn, epoch)?;
                offer.fenced = epoch;
            }
            // Does not count as a failed attempt.
            OfferResult::Join => return Err(EAGAIN),
            OfferResult::Again | OfferResult::SessionLost => {
                attempt.path.set_reconnect_now();
                return Err(ESTALE);
            }
            OfferResult::Refuse(refusal) => {
                attempt.error(fmt!("{}", refusal.as_str()));
                return Err(convert::error(refusal.errno()));
            }
        }
    }
}

/// Fences the attempts up to `epoch`: waits until the server has ended all requests that they may
/// have left there.
fn fence_abandoned(attempt: &Attempt, conn: &PathConn, epoch: u32) -> Result {
    conn.send_imm(Imm::Fence(Fence { epoch, drain: true }))?;
    attempt.wait(|setup| {
        setup.stage(0)?;
        Ok((setup.fenced >= epoch).then_some(()))
    })
}

/// Returns the number of connections that share the requests of a path, if they may have windows.
/// Requests that exceed the window of their connection use another connection that is not polled,
/// so there must be enough of these.
fn sharing(env: &Env) -> Option<u16> {
    let queues = env.nr_queues();
    // CAST: A path has no more connections than fit 16 bits.
    (env.nr_poll_queues() <= queues).then_some(queues as u16)
}

/// Returns whether requests may be capsules.
fn sends_capsules(env: &Env, dev: &Device) -> bool {
    dev.has_immediates() && sharing(env).is_some()
}

/// Returns the extensions that all connections of the attempt request.
fn extensions(attempt: &Attempt, dev: &Device) -> ReqExt {
    ReqExt {
        epoch: attempt.epoch(),
        send_imm: !dev.has_immediates(),
        notices: true,
        same_key: true,
        durable: true,
        more_answers: true,
        inv_answers: dev.has_immediates(),
        slots: takes_slots(dev),
        capsules: sends_capsules(&attempt.path.env, dev),
        downtime: true,
        messages: attempt.messages.is_some(),
        failover_time_ms: told_failover_time(&attempt.path.env),
    }
}

/// Returns the failover time for the server, from which it derives its heartbeats. It is longer than the
/// session's if explicit settings make the client detect a loss later.
fn told_failover_time(env: &Env) -> u32 {
    let settings = env.settings();
    let total_ms = settings.plan(Peer::Ours).total_ms();
    settings.failover_time_ms.get().max(total_ms)
}

/// The receives of the service connection for AUTH2 and the session information.
const SETUP_RECVS: u32 = 2;

/// Returns the number of send queue entries of the service connection, at most half of the completion
/// queue.
fn service_sends(dev: &Device) -> u32 {
    (2 * u32::from(SERVICE_QUEUE_DEPTH) + 2).min(dev.max_cqe() / 2)
}

/// Returns the number of receives of the service connection for answers and heartbeats: two for each
/// request that mainline's server allows there, or as many as fit the device's queues. A message without
/// a receive is retried, except over iWARP, whose devices have longer queues.
fn service_answers(dev: &Device) -> u32 {
    let room = dev.max_recvs(service_sends(dev));
    room.saturating_sub(SETUP_RECVS)
        .min(2 * u32::from(SERVICE_QUEUE_DEPTH))
}

fn service_config(dev: &Device) -> QpConfig {
    QpConfig {
        // The send queue of the device may have fewer.
        send_depth: service_sends(dev),
        send_reserve: 0,
        send_sges: 2,
        recv_depth: service_answers(dev) + SETUP_RECVS,
        payloads: false,
        context: PollContext::SoftIrq,
        vector: 0,
    }
}

/// Returns the number of receives of an I/O connection: an invalidation (with slots, an [`Imm::Nop`])
/// and an answer for each request, one for the answer being handled, whose tag may be in use again, and
/// some for the server's own `Nop`s. With slots but without a window, there is always one left for
/// these, as some tags are reserved for messages on the service connection. iWARP does not tolerate a
/// receive that is posted late.
fn answers(wire: &Wire) -> u32 {
    2 * wire.requests_of_connection() + 1 + wire.own_nops()
}

/// Returns the completion vector of the first I/O connection. With a connection for each CPU,
/// each has the vector of its CPU's number; sessions with fewer connections share the vectors.
fn first_vector(attempt: &Attempt, dev: &Device) -> u32 {
    let nr_queues = attempt.path.env.nr_queues();
    if nr_queues < kernel::cpu::nr_cpu_ids() {
        dev.next_vectors_for_cpus(nr_queues)
    } else {
        0
    }
}

/// Returns the number of send queue entries of an I/O connection: a registration, the message, and an
/// invalidation for each request. If immediates are separate messages, a request has one, and each chain
/// reserves space for one.
///
/// With a window there are few requests, so that entries which are not free yet when their request
/// has ended matter more. The queue has additional entries for these, and a [reserve](invalidations)
/// for invalidations.
fn sends(wire: &Wire) -> u32 {
    /// Maximum number of entries that become free with the next signalled completion, and as many
    /// for signals in flight.
    const UNSIGNALLED: u32 = 128;
    let (requests, imms) = (
        wire.requests_of_connection(),
        u32::from(wire.imm_in_messages),
    );
    let late = wire.window().map_or(0, |window| window.min(UNSIGNALLED));
    (3 + imms) * requests + late + 1 + imms
}

/// Returns the number of send queue entries of an I/O connection that are reserved for invalidations: one
/// for each request, which is in the window until its invalidation has completed, and one more if chains
/// reserve space for a separate immediate. Without a window, there is no reserve, as the queue has three
/// entries for each request of the path.
fn invalidations(wire: &Wire) -> u32 {
    wire.window()
        .map_or(0, |window| window + u32::from(wire.imm_in_messages))
}

fn io_config(attempt: &Attempt, dev: &Device, wire: &Wire, cid: u16, vector: u32) -> QpConfig {
    QpConfig {
        send_depth: sends(wire),
        send_reserve: invalidations(wire),
        send_sges: dev.max_send_sge().min(MAX_SGES),
        recv_depth: answers(wire),
        payloads: false,
        context: if u32::from(cid) > attempt.path.env.nr_queues() {
            PollContext::Direct
        } else {
            PollContext::SoftIrq
        },
        vector,
    }
}

/// Sets up the I/O connections and the message connection, each step for all of them before the next.
fn connect_rest(attempt: &Arc<Attempt>, pd: &Arc<Pd>, wire: &Wire, auth: &ClientAuth) -> Result {
    let cid_num = u16::try_from(attempt.path.env.nr_cons())?;
    // The id of a message connection is behind the others.
    let cids = cid_num + u16::from(wire.messages);
    let dev = pd.device();
    let mut setups = KVec::with_capacity(usize::from(cids), GFP_KERNEL)?;
    for cid in 1..cids {
        setups.push(ConnSetup::resolve(attempt, cid)?, GFP_KERNEL)?;
    }
    let first_vector = first_vector(attempt, dev);
    for (vector, start) in (first_vector..).zip(&mut setups) {
        start.resolved(attempt)?;
        if start.cid == cid_num {
            let conn = start.route_messages(attempt, pd, vector)?;
            attempt.cons.lock().messages = Some(conn);
            continue;
        }
        let config = io_config(attempt, dev, wire, start.cid, vector);
        let qp = start.route(attempt, config, pd)?;
        attempt.keep(qp)?;
    }
    if auth.is_authenticated() {
        let places = KVVec::from_elem([0; CONN_RSP_LEN], usize::from(cids), GFP_KERNEL)?;
        attempt.setup.lock().acceptances = places;
    }
    for start in &mut setups {
        attempt.wait_stage(usize::from(start.cid), Stage::RouteResolved)?;
        // The server has the session now.
        start.connect(attempt, dev, false, |request| {
            auth.further_request(&Crypto, request)
                .map_err(|error| auth::refused(attempt, error))
        })?;
    }
    for start in &setups {
        attempt.wait_stage(usize::from(start.cid), Stage::Established)?;
    }
    let acceptances = core::mem::take(&mut attempt.setup.lock().acceptances);
    for start in &setups {
        if let Some(acceptance) = acceptances.get(usize::from(start.cid)) {
            auth.further_accepted(&Crypto, &start.request, acceptance)
                .map_err(|error| auth::refused(attempt, error))?;
        }
    }
    Ok(())
}

/// Sends the session's name to the server, receives the addresses of its chunks, and creates the
/// request slots that use them.
fn exchange_info(attempt: &Arc<Attempt>, pd: &Arc<Pd>, wire: &Wire) -> Result<Arc<Slots<Con>>> {
    let len = info_rsp_len(wire.rsp.queue_depth);
    let info = KVVec::<u8>::zeroed(len, GFP_KERNEL)?;
    attempt.setup.lock().info = info;

    let name = attempt.path.env.session_name()?;
    let request = InfoReq { name }.encode();
    let message = DmaBuf::with(pd, &request)?;
    let sge = message.sge(0, request.len())?;

    let cons = attempt.cons.lock();
    let service = cons.qps.first().ok_or(ENOTCONN)?.get();
    drop(cons);
    service.add_recvs(
        RECV_INFO,
        RecvClass {
            count: 1,
            bytes: u32::try_from(len)?,
            payload: 0,
        },
    )?;
    // Before the buffers, which are optional.
    let mut memory = KVVec::with_capacity(usize::from(wire.depth), GFP_KERNEL)?;
    for _ in 0..wire.depth {
        memory.push(slot::Memory::new(pd, wire)?, GFP_KERNEL)?;
    }
    // Registered before the message on the same queue, so they are ready when its answer arrives.
    let places = service.send_depth().saturating_sub(MESSAGE_SENDS);
    let buffers = Arc::new(IoBuffers::new(pd, wire.depth, places), GFP_KERNEL)?;
    attempt.cons.lock().io_buffers = Some(buffers.clone());
    for region in buffers.regions() {
        service.send(SqSpace { wrs: 1, sges: 0 }, Doorbell::Now, |chain| {
            chain.reg_mr(region, Access::RemoteWrite)
        })?;
    }
    service.send(SqSpace { wrs: 1, sges: 1 }, Doorbell::Now, |chain| {
        chain.send([sge], Signal::Control);
    })?;
    // The device may read the message until the connection is drained.
    attempt.cons.lock().info_req = Some(message);
    attempt.wait(|setup| {
        setup.stage(0)?;
        Ok((setup.info_len > 0).then_some(()))
    })?;

    let mut setup = attempt.setup.lock();
    let (info, len) = (core::mem::take(&mut setup.info), setup.info_len);
    drop(setup);
    let bytes = info.get(..len).ok_or(EIO)?;
    let rsp = InfoRsp::parse(bytes, wire.rsp.queue_depth, wire.rsp.chunk_size());
    let rsp = rsp.map_err(|error| {
        attempt.error(fmt!(
            "the server's session information is invalid: {}",
            error.as_str()
        ));
        convert::error(error.errno())
    })?;
    let mut slots = Iterator::zip(memory.into_iter(), rsp.chunks());
    let slots = Slots::new(wire.depth, |tag| {
        let (memory, chunk) = slots.next().ok_or(EIO)?;
        Ok(ReqSlot::new(memory, chunk, buffers.get(Tag::new(tag))))
    })?;
    attempt.cons.lock().slots = Some(slots.clone());
    Ok(slots)
}

/// Posts the receives for answers on all connections, which it returns.
fn start(
    attempt: &Attempt,
    wire: &Wire,
    slots: &Arc<Slots<Con>>,
) -> Result<KVec<PercpuArc<QueuePair<Con>>>> {
    let bytes = match wire.rsp {
        // The longest answer.
        rsp if rsp.ext.is_some() => MORE_ANSWERS_LEN,
        rsp if rsp.new_rkey => RKEY_RSP_LEN,
        _ => 0,
    };
    let cons = attempt.cons.lock();
    let mut qps = KVec::with_capacity(cons.qps.len(), GFP_KERNEL)?;
    for (cid, qp) in cons.qps.iter().enumerate() {
        qp.set_slots(slots.clone())?;
        let count = match cid {
            0 => service_answers(qp.pd().device()),
            _ => answers(wire),
        };
        qp.add_recvs(
            RECV_ANSWERS,
            RecvClass {
                count,
                bytes: bytes as u32,
                payload: 0,
            },
        )?;
        qps.push(qp.get(), GFP_KERNEL)?;
    }
    drop(cons);
    Ok(qps)
}
