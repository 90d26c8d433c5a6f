// SPDX-License-Identifier: GPL-2.0

//! A connection attempt of a path, and its connections.
//!
//! A path lives as long as the operator wants it. Its RDMA resources, and the properties of the
//! server, belong to one attempt and end with it. A late event of an attempt is therefore never
//! mistaken for an event of the next.

use crate::{
    data::{
        con::Con,
        io_buffer::IoBuffers,
        link::{
            Control,
            Link, //
        },
        slot,
        submit::PathIo, //
    },
    path::{
        attempt::connect::Setup,
        drain::{
            Drain,
            DrainMemory, //
        },
        Path, //
    },
    types::Proved, //
};
use ibtrs_core::{
    convert,
    imm::send_imm,
    messages::{
        con::{
            MessageConn,
            Owner, //
        },
        Attached,
        Conn, //
    },
    trace, //
};
use ibtrs_proto::{
    failover::{
        Loss,
        Published, //
    },
    failover_time::{
        Peer,
        Plan,
        DISCONNECT_GRACE_MS, //
    },
    fsm::client_path::State,
    imm::{
        Fence,
        Imm, //
    }, //
};
use kernel::{
    fmt,
    new_condvar,
    new_mutex,
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        CondVar,
        CondVarTimeoutResult,
        Mutex,
        SpinLockIrq, //
    },
    time::{
        msecs_to_jiffies,
        Instant,
        Monotonic, //
    }, //
};
use kx::{
    mm::in_reclaim,
    sync::{
        atomic::{
            Atomic,
            AtomicFlag,
            Relaxed, //
        },
        SetOnce, //
    }, //
};
use rdma::{
    device::RemovalGuard,
    dma::DmaBuf,
    qp::Qp,
    slot::Slots, //
};

pub(crate) mod auth;
pub(crate) mod connect;

/// The resources that an attempt has created, to be torn down.
pub(crate) struct Resources {
    pub(crate) qps: KVec<Qp<Con>>,
    /// The message connection, if there is one.
    pub(crate) messages: Option<KBox<MessageConn>>,
    pub(crate) slots: Option<Arc<Slots<Con>>>,
    pub(crate) io_buffers: Option<Arc<IoBuffers>>,
    /// For the teardown.
    drain: Option<DrainMemory>,
    /// AUTH1, the message with the client's proof.
    pub(crate) auth1: Option<DmaBuf>,
    /// The message with the session's name.
    pub(crate) info_req: Option<DmaBuf>,
    pub(crate) removal: Option<RemovalGuard>,
}

impl Resources {
    const fn new(drain: Option<DrainMemory>) -> Self {
        Self {
            drain,
            qps: KVec::new(),
            messages: None,
            slots: None,
            io_buffers: None,
            auth1: None,
            info_req: None,
            removal: None,
        }
    }
}

fn new_cons(resources: Resources) -> impl PinInit<Mutex<Resources>> {
    new_mutex!(resources, "Attempt::cons")
}

/// Tells lockdep that reclaim may wait for the lock of [`Attempt::cons`]. Attempts are created in a
/// `NoIo` scope, where that cannot be recorded, so call this outside of one.
pub(crate) fn needed_in_reclaim() {
    pin_init::stack_pin_init!(let cons = new_cons(Resources::new(None)));
    in_reclaim(|| drop(cons.lock()));
}

/// A connected path, as used by submitters.
pub(crate) struct PathConn {
    pub(crate) attempt: Arc<Attempt>,
    pub(crate) io: PathIo,
}

impl PathConn {
    /// Sends an immediate on the service connection.
    pub(crate) fn send_imm(&self, imm: Imm) -> Result {
        if let Imm::Fence(fence) = imm {
            self.attempt.fences.fetch_add(1, Relaxed);
            trace::client_fence(|| {
                let link = &self.io.link;
                (link.env.name(), &link.names.path, fence.epoch, fence.drain)
            });
        }
        send_imm(self.io.qps.first().ok_or(ENOTCONN)?, imm)
    }
}

/// One attempt to connect a path, and its resources.
#[pin_data]
pub(crate) struct Attempt {
    pub(crate) path: Arc<Path>,
    pub(crate) link: Arc<Link>,
    /// The session's UUID for all connections of the attempt.
    pub(crate) session_uuid: [u8; 16],
    /// The message service's end of the session; if present, the attempt requests a message
    /// connection.
    pub(crate) messages: Option<Arc<Attached>>,
    /// Programs can use its message connection.
    pub(crate) carries_messages: AtomicFlag,
    /// Set when both sides have proved themselves; unset without authentication.
    pub(crate) proved: SetOnce<Proved>,
    /// Set when the path is published to submitters.
    pub(crate) published: SetOnce<Published>,
    /// Set with `published`.
    pub(crate) published_at: SetOnce<Instant<Monotonic>>,
    #[pin]
    pub(crate) setup: SpinLockIrq<Setup>,
    /// Notified when `setup` changes.
    #[pin]
    pub(crate) progress: CondVar,
    #[pin]
    pub(crate) cons: Mutex<Resources>,
    /// When the probe in progress began, by the clock of the heartbeat, but at least 1; 0 without one.
    /// See [`crate::path::probe`].
    pub(crate) probe_began: Atomic<u64>,
    /// The resources are not kept for the next attempt, because their device is being removed or an
    /// allocation of the attempt has failed.
    pub(crate) disposable: AtomicFlag,
    /// The number of the failover that began with the loss of the path, or that the path joined; unset
    /// if there is none.
    pub(crate) failover: SetOnce<u32>,
    /// Fences that the server has not answered.
    fences: Atomic<u32>,
}

impl Attempt {
    /// Creates an attempt that has not begun.
    pub(crate) fn new(
        path: Arc<Path>,
        epoch: u32,
        messages: Option<Arc<Attached>>,
    ) -> Result<Arc<Self>> {
        // One more for a message connection.
        let setup = Setup::new(path.env.nr_cons() as usize + 1)?;
        let resources = Resources::new(DrainMemory::new(path.env.nr_poll_queues())?);
        let link = path.new_link(epoch)?;
        let session_uuid = path.parent.uuid();
        Arc::pin_init(
            try_pin_init!(Self {
                path,
                link,
                session_uuid,
                messages,
                carries_messages: AtomicFlag::new(false),
                proved: SetOnce::new(),
                published: SetOnce::new(),
                failover: SetOnce::new(),
                published_at: SetOnce::new(),
                setup <- new_spinlock_irq!(setup, "Attempt::setup"),
                progress <- new_condvar!("Attempt::progress"),
                cons <- new_cons(resources),
                probe_began: Atomic::new(0),
                disposable: AtomicFlag::new(false),
                fences: Atomic::new(0),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the path epoch.
    pub(crate) fn epoch(&self) -> u32 {
        self.link.epoch
    }

    /// Returns the names of session and path, for the log.
    pub(crate) fn log(&self) -> &CStr {
        self.path.log()
    }

    /// Fails the path if this attempt is the current one; `what` is the reason for the log.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn error(&self, what: fmt::Arguments<'_>) {
        self.path.error(self.epoch(), what);
    }

    /// As [`Attempt::error`], for a violation of the protocol by the server. It may be repeated
    /// whenever one of the requests in flight is resent, see [`Loss`].
    pub(crate) fn breach(&self, what: fmt::Arguments<'_>) {
        self.link.set_broken();
        self.error(what);
    }

    fn loss(&self) -> Loss {
        if self.link.is_broken() {
            Loss::Protocol
        } else {
            Loss::Link
        }
    }

    /// Returns the kind of the server, on which the heartbeats depend; [`Peer::Ours`] until the
    /// server has accepted the service connection.
    pub(crate) fn peer(&self) -> Peer {
        match self.link.wire.as_ref() {
            Some(wire) if wire.rsp.ext.is_none() => Peer::Fixed,
            _ => Peer::Ours,
        }
    }

    /// Returns the times that follow from the session's failover time.
    pub(crate) fn plan(&self) -> Plan {
        self.path.env.settings().plan(self.peer())
    }

    /// Sends a heartbeat at the end of an interval, if one is due.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`: the server has been silent for too long. Others: sending failed.
    pub(crate) fn heartbeat_due(&self) -> Result {
        let missed_max = self.path.env.settings().hb_missed_max.get();
        self.link.heartbeat.set_missed_max(missed_max);
        self.link.heartbeat.send_due(|imm| {
            let cons = self.cons.lock();
            send_imm(cons.qps.first().ok_or(ENOTCONN)?, imm)
        })
    }

    /// Stores the queue pair of a new connection until the attempt is torn down.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn keep(&self, qp: Qp<Con>) -> Result {
        let mut cons = self.cons.lock();
        // On an error, the queue pair is dropped after the lock was released: closing takes the
        // lock of the connection's events.
        cons.qps.reserve(1, GFP_KERNEL)?;
        Ok(cons.qps.push_within_capacity(qp)?)
    }

    /// Returns the id of the message connection.
    ///
    /// # Errors
    ///
    /// `EINVAL`: more connections than a path can have.
    pub(crate) fn message_conn(&self) -> Result<Conn> {
        self.path.env.message_conn(self.epoch())
    }

    /// Notifies the message service that the attempt has ended. Its message connection must be
    /// closed.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn end_messages(&self) {
        if let (Some(upper), Ok(id)) = (&self.messages, self.message_conn()) {
            upper.lost(id);
        }
    }

    /// Attaches the message connection, if there is one, to the message service. The path must be
    /// connected.
    ///
    /// # Context
    ///
    /// May sleep. Called by the worker of the attempt, for which a teardown waits.
    pub(crate) fn attach_messages(&self) {
        let (Some(upper), Ok(id)) = (&self.messages, self.message_conn()) else {
            return;
        };
        let cons = self.cons.lock();
        let Some(conn) = &cons.messages else {
            return upper.unsupported(id);
        };
        let attached = conn.attach(upper.clone());
        drop(cons);
        match attached {
            // ORDERING: Only read by sysfs; it orders no other access.
            Ok(()) => self.carries_messages.store(true, Relaxed),
            Err(error) => {
                let name = convert::errno(error).as_str();
                self.error(fmt!("cannot use the message connection ({})", name));
            }
        }
    }

    /// Notifies programs that the attempt has failed because the sides have no common key.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn key_revoked(&self, why: Error) {
        if let Some(upper) = &self.messages {
            upper.key_revoked(why);
        }
    }

    /// Aborts the attempt.
    pub(crate) fn abort(&self) {
        self.setup.lock().abort = Some(ECONNABORTED);
        self.progress.notify_all();
    }

    /// Records that the worker of the attempt is about to return.
    pub(crate) fn set_ended(&self) {
        self.setup.lock().connecting = false;
        self.progress.notify_all();
    }

    /// Waits until the worker of the attempt has returned.
    pub(crate) fn wait_ended(&self) {
        let mut setup = self.setup.lock();
        while setup.connecting {
            self.progress.wait(&mut setup);
        }
    }

    /// Ends the connections. Requests in flight move to the requeue list, to be sent over another
    /// path; the caller must then kick the requeue, and drop the returned resources only after
    /// that, as a device may be slow to destroy queue pairs.
    ///
    /// The returned resources give no access to the memory of the requests. The protection domain
    /// belongs to this attempt, all queue pairs that the attempt ever had are closed before the
    /// first request is taken out, and no more are created, as the worker that creates them has
    /// returned. The server therefore has no queue pair, over this path or another, that honours
    /// the keys that it may still know, although the regions exist until the resources are dropped.
    ///
    /// # Context
    ///
    /// May sleep, but does not wait for memory. The path must be unpublished: no submitter uses it.
    #[must_use]
    pub(crate) fn tear_down(&self) -> Resources {
        let mut resources = core::mem::replace(&mut *self.cons.lock(), Resources::new(None));
        for qp in &resources.qps {
            qp.disconnect();
        }
        if let Some(conn) = &resources.messages {
            conn.disconnect();
        }
        let memory = resources.drain.take();
        let drain = Drain::begin(&self.path, &resources.qps, memory);
        for qp in &resources.qps {
            qp.close();
        }
        drop(drain);
        if let Some(conn) = &resources.messages {
            conn.close();
        }
        self.end_messages();
        // From here on no key of this attempt gives access to memory.
        let (Some(published), Some(slots), Some(service)) = (
            self.published.copy(),
            &resources.slots,
            resources.qps.first(),
        ) else {
            return resources;
        };
        if !published.ext {
            // Without fences, this is the best effort: once the server has answered the
            // disconnects, it accepts no more requests from this path.
            self.wait_disconnected(resources.qps.len());
        }
        let parent = &self.path.parent;
        let loss = self.loss();
        let failover = self.failover.copy().unwrap_or(0);
        for slot in slots.iter() {
            let over = slot::take(&slot, service, |moved, user, io| {
                let (mut request, since) = moved;
                self.link.stats.failed_over();
                request.failover = parent.request_moved(failover, request.failover, since);
                trace::client_failover(|| (self.link.env.name(), request.tag.get(), self.epoch()));
                let parent = parent.clone();
                parent.requeue_lost((&published, loss), request, user, io)
            });
            if let Some(ended) = over {
                ended.end(&slot, service);
            }
        }
        parent.clone().requests_moved(failover);
        resources
    }

    /// Waits up to [`DISCONNECT_GRACE_MS`] for the server to answer the disconnects.
    fn wait_disconnected(&self, cons: usize) {
        let mut left = msecs_to_jiffies(DISCONNECT_GRACE_MS);
        let mut setup = self.setup.lock();
        while !setup.all_ended(cons) {
            let waited = self.progress.wait_interruptible_timeout(&mut setup, left);
            match waited {
                CondVarTimeoutResult::Woken { jiffies } => left = jiffies,
                // Workers get no signals.
                CondVarTimeoutResult::Timeout | CondVarTimeoutResult::Signal { .. } => break,
            }
        }
    }

    /// Reports to the state machine that the attempt has failed with `error`.
    pub(crate) fn failed(&self, error: Error) {
        self.path.attempt_failed(self.epoch(), error);
    }
}

/// Events that the message connection reports.
impl Owner for Attempt {
    fn heard(&self) {
        self.link.heartbeat.received();
    }

    fn flushed(&self) {
        self.error(fmt!("the message connection was flushed"));
    }

    fn error(&self, what: fmt::Arguments<'_>) {
        self.error(what);
    }

    fn breach(&self, what: fmt::Arguments<'_>) {
        self.breach(what);
    }
}

impl Control for Attempt {
    fn error(&self, what: fmt::Arguments<'_>) {
        self.error(what);
    }

    fn is_connected(&self) -> bool {
        self.path.state() == State::Connected
    }

    fn info_received(&self, bytes: &[u8]) {
        self.setup.lock().set_info(bytes);
        self.progress.notify_all();
    }

    fn auth2_received(&self, bytes: &[u8]) {
        self.setup.lock().set_auth2(bytes);
        self.progress.notify_all();
    }

    fn fence_done(&self, fence: Fence) {
        // ORDERING: A fence is counted before it is posted. Only the handler of the service connection,
        // whose calls are serialized, subtracts.
        if self.fences.load(Relaxed) == 0 {
            return self.breach(fmt!("answer to a fence that was not sent"));
        }
        self.fences.fetch_sub(1, Relaxed);
        trace::client_fence_done(|| {
            let path = &self.path;
            (path.env.name(), path.name(), fence.epoch, fence.drain)
        });
        let mut setup = self.setup.lock();
        if setup.connecting && fence.drain {
            setup.fenced = setup.fenced.max(fence.epoch);
            drop(setup);
            self.progress.notify_all();
            return;
        }
        drop(setup);
        if self.published.as_ref().is_none() {
            // Before that, the only fence is one with `drain`.
            return self.breach(fmt!("answer to a fence that was not sent"));
        }
        self.path.parent.clone().fence_done(fence.epoch);
    }

    fn noticed(&self, number: u32) {
        self.path.parent.clone().noticed(number);
    }

    fn durable(&self, number: u32) {
        self.path.parent.clone().durable(self.epoch(), number);
    }

    fn downtime_announced(&self, seconds: u32) -> bool {
        let parent = self.path.parent.clone();
        parent.downtime_announced(self, seconds)
    }

    fn moved_request_answered(&self, failover: u32) {
        self.path.parent.clone().moved_request_answered(failover);
    }

    fn moved_request_ended(&self, failover: u32) {
        self.path.parent.clone().moved_request_ended(failover);
    }
}
