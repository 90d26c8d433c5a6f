// SPDX-License-Identifier: GPL-2.0

//! Setting up the connections of a path (protocol 2.2).
//!
//! The service connection comes first, as the server says there how deep the
//! queue is. All others are then brought up together, each step for all of
//! them before the next, so that the time does not grow with their number.

use crate::{
    con::{
        Con,
        RECV_ANSWERS,
        RECV_INFO, //
    },
    path::{
        Active,
        Path,
        Removal, //
    },
    request::{
        self,
        Request,
        Wire, //
    },
    session::Limits,
};
use ibtrs_core::convert;
use ibtrs_proto::{
    consts::{
        info_rsp_len,
        CONNECT_TIMEOUT_MS,
        RKEY_RSP_LEN,
        SERVICE_QUEUE_DEPTH, //
    },
    errno::Errno,
    handshake::{
        reject_decode,
        ConnReq,
        ConnRsp, //
    },
    msg::{
        InfoReq,
        InfoRsp, //
    },
    name::SessionName,
};
use kernel::{
    prelude::*,
    sync::{
        Arc,
        CondVarTimeoutResult, //
    },
    time::msecs_to_jiffies,
};
use kx::net::ns::Net;
use rdma::{
    cm::{
        CmEvent,
        CmHandler,
        CmId,
        ConnParam, //
    },
    cq::PollContext,
    device::Device,
    dma::{
        Direction,
        DmaBuf, //
    },
    qp::{
        Qp,
        QpConfig, //
    },
    recv::RecvClass,
    sendq::{
        Doorbell,
        Room,
        Signal, //
    },
    slot::Slots,
};

/// How far a connection has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Started,
    AddrResolved,
    RouteResolved,
    Established,
}

/// The progress of a path's connections, and how it is ended early.
pub(crate) struct Setup {
    stages: KVec<Stage>,
    /// Why the first connection to fail did.
    failed: Option<Error>,
    /// What the service connection was accepted with.
    rsp: Option<Result<ConnRsp, Errno>>,
    /// The session information; empty until it arrives.
    info: KVVec<u8>,
    info_len: usize,
    /// Ends the attempt with this.
    pub(crate) abort: Option<Error>,
    /// An attempt is under way.
    pub(crate) connecting: bool,
}

impl Setup {
    pub(crate) fn new(cons: usize) -> Result<Self> {
        Ok(Self {
            stages: KVec::from_elem(Stage::Started, cons, GFP_KERNEL)?,
            failed: None,
            rsp: None,
            info: KVVec::new(),
            info_len: 0,
            abort: None,
            connecting: true,
        })
    }

    /// Tells how far a connection has come, or why the attempt has failed.
    fn stage(&self, cid: usize) -> Result<Stage> {
        // What went wrong first says more than that the attempt was ended for it.
        match self.failed.or(self.abort) {
            Some(error) => Err(error),
            None => self.stages.get(cid).copied().ok_or(EINVAL),
        }
    }
}

/// Gets the events of a connection's id.
struct Events {
    path: Arc<Path>,
    cid: u16,
}

impl Events {
    fn set(&self, stage: Result<Stage, Error>) {
        let mut setup = self.path.setup.lock();
        match stage {
            Ok(stage) => {
                if let Some(place) = setup.stages.get_mut(usize::from(self.cid)) {
                    *place = stage;
                }
            }
            Err(error) => setup.failed = setup.failed.or(Some(error)),
        }
        drop(setup);
        self.path.progress.notify_all();
    }

    fn established(&self, private_data: &[u8]) {
        if self.cid == 0 {
            let rsp = ConnRsp::decode(private_data).map_err(|error| {
                pr_info!(
                    "{}: the server's acceptance is invalid: {}\n",
                    *self.path.name,
                    error.as_str()
                );
                error.errno()
            });
            self.path.setup.lock().rsp = Some(rsp);
        }
        self.set(Ok(Stage::Established));
    }

    fn rejected(&self, reason: i32, private_data: &[u8]) {
        // Without data the refusal is the connection manager's: nobody listens
        // there, for the most part.
        let errno = if private_data.is_empty() {
            Errno::ECONNREFUSED
        } else {
            reject_decode(private_data)
        };
        pr_info!(
            "{}: connection {} was refused: reason {}, {}\n",
            *self.path.name,
            self.cid,
            reason,
            errno.as_str()
        );
        self.set(Err(convert::error(errno)));
    }
}

impl CmHandler for Events {
    fn event(&self, event: &CmEvent<'_>) {
        match *event {
            CmEvent::AddrResolved => self.set(Ok(Stage::AddrResolved)),
            CmEvent::RouteResolved => self.set(Ok(Stage::RouteResolved)),
            CmEvent::Established(data) => self.established(data),
            CmEvent::Rejected(reason, data) => self.rejected(reason, data),
            CmEvent::Failed(error, what) => {
                pr_info!("{}: connection {}: {}\n", *self.path.name, self.cid, what);
                self.set(Err(error));
            }
            CmEvent::Disconnected => self.set(Err(ECONNRESET)),
            CmEvent::DeviceRemoval => self.set(Err(ENODEV)),
        }
        if event.is_end() {
            self.path
                .error(fmt!("connection {}: {}", self.cid, event.as_str()));
        }
    }
}

impl Path {
    /// Takes the session information; see [`establish`].
    pub(crate) fn info_received(&self, bytes: &[u8]) {
        let mut setup = self.setup.lock();
        if let Some(place) = setup.info.get_mut(..bytes.len()) {
            place.copy_from_slice(bytes);
            setup.info_len = bytes.len();
        }
        drop(setup);
        self.progress.notify_all();
    }

    /// Waits until `ready` gives something about the progress.
    ///
    /// # Errors
    ///
    /// `EINTR` after a signal, `ETIMEDOUT`, those of `ready`.
    fn wait<T>(&self, ready: impl Fn(&Setup) -> Result<Option<T>>) -> Result<T> {
        let mut left = msecs_to_jiffies(CONNECT_TIMEOUT_MS);
        let mut setup = self.setup.lock();
        loop {
            if let Some(value) = ready(&setup)? {
                return Ok(value);
            }
            match self.progress.wait_interruptible_timeout(&mut setup, left) {
                CondVarTimeoutResult::Signal { .. } => return Err(EINTR),
                CondVarTimeoutResult::Timeout => return Err(ETIMEDOUT),
                CondVarTimeoutResult::Woken { jiffies } => left = jiffies,
            }
        }
    }

    fn wait_stage(&self, cid: usize, stage: Stage) -> Result {
        self.wait(|setup| Ok((setup.stage(cid)? >= stage).then_some(())))
    }
}

/// A connection that is not complete.
struct Start {
    cid: u16,
    id: Arc<CmId>,
}

impl Start {
    /// Makes the id of connection `cid` and starts to resolve the address.
    fn resolve(path: &Arc<Path>, net: &Net, cid: u16) -> Result<Self> {
        let events = Arc::new(
            Events {
                path: path.clone(),
                cid,
            },
            GFP_KERNEL,
        )?;
        let id = CmId::new(net, events)?;
        id.set_reuse_addr()?;
        // In range, as the parameter is.
        let ack_timeout = crate::param::ack_timeout.get() as u8;
        if ack_timeout > 0 {
            id.set_ack_timeout(ack_timeout)?;
        }
        let spec = &path.spec;
        let dst = convert::sock_addr(&spec.addr.dst, spec.port)?;
        let src = match &spec.addr.src {
            Some(src) => Some(convert::sock_addr(src, 0)?),
            None => None,
        };
        id.resolve_addr(src.as_ref(), &dst, CONNECT_TIMEOUT_MS)?;
        Ok(Self {
            cid,
            id: Arc::new(id, GFP_KERNEL)?,
        })
    }

    /// Makes the queue pair once the address is resolved, and starts to resolve
    /// the route.
    fn route(&self, path: &Arc<Path>, config: QpConfig, dev: &Arc<Device>) -> Result<Qp<Con>> {
        let con = Con {
            path: path.clone(),
            cid: self.cid,
        };
        let qp = config.create(self.id.clone(), dev, con)?;
        self.id.resolve_route(CONNECT_TIMEOUT_MS)?;
        Ok(qp)
    }

    /// Asks the server for the connection once the route is resolved.
    fn connect(&self, path: &Path, cid_num: u16) -> Result {
        let request = ConnReq {
            cid: self.cid,
            cid_num,
            recon_cnt: 1,
            path_uuid: path.uuid,
            session_uuid: path.session.uuid,
            first_conn: true,
            ext: None,
        };
        self.id.connect(ConnParam {
            private_data: &request.encode(),
            retry_count: 7,
            rnr_retry_count: 7,
        })
    }
}

/// Connects a path: gives what submitters need.
///
/// Whatever was set up is in [`Path::cons`] afterwards, also after an error.
///
/// # Context
///
/// May sleep; interruptible.
pub(crate) fn establish(path: &Arc<Path>) -> Result<KBox<Active>> {
    let net = Net::current();
    let cid_num = u16::try_from(crate::session::nr_queues() + 1)?;

    let service = Start::resolve(path, &net, 0)?;
    path.wait_stage(0, Stage::AddrResolved)?;
    let dev = service.id.device()?;
    let removal = dev.on_removal(Arc::new(Removal(path.clone()), GFP_KERNEL)?)?;
    path.cons.lock().removal = Some(removal);
    let qp = service.route(path, service_config(), &dev)?;
    path.cons.lock().qps.push(qp, GFP_KERNEL)?;
    path.wait_stage(0, Stage::RouteResolved)?;
    service.connect(path, cid_num)?;
    path.wait_stage(0, Stage::Established)?;
    let rsp = path.wait(|setup| Ok(setup.rsp))?.map_err(convert::error)?;
    let wire = agree(path, rsp, &dev)?;

    connect_rest(path, &net, &dev, &wire, cid_num)?;
    let slots = exchange_info(path, &dev, &wire)?;
    start(path, dev, wire, slots)
}

fn service_config() -> QpConfig {
    QpConfig {
        send_depth: 2 * u32::from(SERVICE_QUEUE_DEPTH) + 2,
        send_sges: 2,
        recv_depth: 2 * u32::from(SERVICE_QUEUE_DEPTH) + 1,
        context: PollContext::SoftIrq,
        vector: 0,
    }
}

fn io_config(dev: &Device, wire: &Wire, cid: u16) -> QpConfig {
    let depth = u32::from(wire.rsp.queue_depth);
    QpConfig {
        // A registration, the request, and an invalidation for each chunk.
        send_depth: 3 * depth + 1,
        send_sges: dev.max_send_sge().min(request::MAX_SGES),
        recv_depth: 2 * depth,
        context: PollContext::SoftIrq,
        vector: u32::from(cid) - 1,
    }
}

/// Fixes the sizes that both sides can do.
fn agree(path: &Path, rsp: ConnRsp, dev: &Device) -> Result<Wire> {
    let wire = Wire::new(rsp, dev)?;
    path.session.set_limits(Limits {
        queue_depth: rsp.queue_depth,
        max_io_bytes: wire.max_io_bytes,
    })?;
    path.wire.populate(wire);
    Ok(wire)
}

/// Brings up the I/O connections, each step for all of them at once.
fn connect_rest(
    path: &Arc<Path>,
    net: &Net,
    dev: &Arc<Device>,
    wire: &Wire,
    cid_num: u16,
) -> Result {
    let mut starts = KVec::with_capacity(usize::from(cid_num), GFP_KERNEL)?;
    for cid in 1..cid_num {
        starts.push(Start::resolve(path, net, cid)?, GFP_KERNEL)?;
    }
    for start in &starts {
        path.wait_stage(usize::from(start.cid), Stage::AddrResolved)?;
        let qp = start.route(path, io_config(dev, wire, start.cid), dev)?;
        path.cons.lock().qps.push(qp, GFP_KERNEL)?;
    }
    for start in &starts {
        path.wait_stage(usize::from(start.cid), Stage::RouteResolved)?;
        start.connect(path, cid_num)?;
    }
    for start in &starts {
        path.wait_stage(usize::from(start.cid), Stage::Established)?;
    }
    Ok(())
}

/// Tells the server the session's name, and learns where its chunks are; makes
/// the requests that will use them.
fn exchange_info(path: &Arc<Path>, dev: &Arc<Device>, wire: &Wire) -> Result<Arc<Slots<Con>>> {
    let len = info_rsp_len(wire.rsp.queue_depth);
    let info = KVVec::from_elem(0u8, len, GFP_KERNEL)?;
    path.setup.lock().info = info;

    let name = path.session.name().to_bytes();
    let name = SessionName::new(name).map_err(|error| convert::error(error.errno()))?;
    let request = InfoReq { name }.encode();
    let mut message = DmaBuf::new(dev, request.len(), Direction::ToDevice)?;
    message.bytes_mut().copy_from_slice(&request);
    let sge = message.sge(0, request.len())?;

    let cons = path.cons.lock();
    let service = cons.qps.first().ok_or(ENOTCONN)?.get();
    drop(cons);
    service.add_recvs(
        RECV_INFO,
        RecvClass {
            count: 1,
            bytes: u32::try_from(len)?,
        },
    )?;
    service.send(Room { wrs: 1, sges: 1 }, Doorbell::Now, |chain| {
        chain.send([sge], Signal::Control);
    })?;
    // The device may read the message until the connection is drained.
    path.cons.lock().info_req = Some(message);
    path.wait(|setup| {
        setup.stage(0)?;
        Ok((setup.info_len > 0).then_some(()))
    })?;

    let mut setup = path.setup.lock();
    let (info, len) = (core::mem::take(&mut setup.info), setup.info_len);
    drop(setup);
    let bytes = info.get(..len).ok_or(EIO)?;
    let rsp = InfoRsp::parse(bytes, wire.rsp.queue_depth, wire.rsp.chunk_size());
    let rsp = rsp.map_err(|error| {
        pr_info!(
            "{}: the server's session information is invalid: {}\n",
            *path.name,
            error.as_str()
        );
        convert::error(error.errno())
    })?;
    let mut chunks = rsp.chunks();
    let slots = Slots::new(u32::from(wire.rsp.queue_depth), |_| {
        Request::new(dev, wire, chunks.next().ok_or(EIO)?)
    })?;
    path.cons.lock().slots = Some(slots.clone());
    Ok(slots)
}

/// Lets the connections take answers.
fn start(
    path: &Arc<Path>,
    dev: Arc<Device>,
    wire: Wire,
    slots: Arc<Slots<Con>>,
) -> Result<KBox<Active>> {
    let bytes = if wire.rsp.new_rkey { RKEY_RSP_LEN } else { 0 };
    let cons = path.cons.lock();
    let mut qps = KVec::with_capacity(cons.qps.len(), GFP_KERNEL)?;
    for (cid, qp) in cons.qps.iter().enumerate() {
        qp.set_slots(slots.clone())?;
        let depth = match cid {
            0 => SERVICE_QUEUE_DEPTH,
            _ => wire.rsp.queue_depth,
        };
        qp.add_recvs(
            RECV_ANSWERS,
            RecvClass {
                count: 2 * u32::from(depth),
                bytes: bytes as u32,
            },
        )?;
        qps.push(qp.get(), GFP_KERNEL)?;
    }
    drop(cons);
    Ok(KBox::new(
        Active {
            path: path.clone(),
            qps,
            slots,
            wire,
            dev,
        },
        GFP_KERNEL,
    )?)
}
