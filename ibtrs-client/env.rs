// SPDX-License-Identifier: GPL-2.0

//! The environment of a session, which it shares with its paths and their connections: its name,
//! network, settings and queues.

use crate::wait_queue::WaitQueue;
use ibtrs_core::{
    convert,
    messages::Conn, //
};
use ibtrs_proto::{
    auth::KeyId,
    failover_time::Peer,
    name::SessionName, //
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    str::CString,
    sync::{
        aref::ARef,
        Arc,
        SpinLockIrq, //
    }, //
};
use kx::{
    net::Net,
    sync::atomic::{
        Atomic,
        AtomicFlag,
        Relaxed, //
    },
    work::{
        Options,
        Queue, //
    }, //
};

mod settings;

pub use settings::{
    Number,
    Settings, //
};

/// The environment that a session shares with its paths.
#[pin_data]
pub(crate) struct Env {
    name: CString,
    /// The network namespace of the task that opened the session.
    net: ARef<Net>,
    settings: Settings,
    /// Set once it was logged that the server's heartbeats do not follow the failover time.
    told_fixed: AtomicFlag,
    nr_queues: u16,
    nr_poll_queues: u16,
    #[pin]
    key_id: SpinLockIrq<KeyId>,
    /// Held by the attempt that requests the creation of the session.
    pub(crate) first_conn: Token,
    /// Held by the attempt that may use much of the memory reserve.
    pub(crate) reserve: Token,
    #[pin]
    wait_queue: WaitQueue,
    uevent_queue: Arc<Queue>,
    events_queue: Arc<Queue>,
    slow_queue: Arc<Queue>,
}

/// Epoch of the attempt that holds the token; 0 for none.
pub(crate) struct Token(Atomic<u32>);

impl Token {
    fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Takes the token for attempt `epoch`; returns false if it is held.
    pub(crate) fn take(&self, epoch: u32) -> bool {
        // ORDERING: The token orders no other access.
        self.0.cmpxchg(0, epoch, Relaxed).is_ok()
    }

    /// Releases the token if attempt `epoch` holds it.
    pub(crate) fn give(&self, epoch: u32) {
        let _ = self.0.cmpxchg(epoch, 0, Relaxed);
    }
}

/// Returns the properties of the queues of a session.
fn unbound() -> Options {
    Options::unbound().mem_reclaim()
}

/// Creates the queue `ibtrs-LETTER-NAME` for heartbeats or failover, which must not be delayed by
/// programs that keep all CPUs busy.
pub(crate) fn urgent_queue(letter: char, name: &str) -> Result<Arc<Queue>> {
    Queue::new(unbound().high_priority(), fmt!("ibtrs-{}-{}", letter, name))
}

impl Env {
    /// Creates the environment of a session in the network namespace of the caller.
    pub(crate) fn new(
        name: SessionName<'_>,
        nr_queues: u16,
        nr_poll_queues: u16,
        key_id: KeyId,
    ) -> Result<Arc<Self>> {
        let name = name.as_str();
        let events_queue = urgent_queue('e', name)?;
        let slow_queue = Queue::new(unbound(), fmt!("ibtrs-c-{}", name))?;
        let uevent_queue = Queue::new(unbound(), fmt!("ibtrs-u-{}", name))?;
        Arc::pin_init(
            try_pin_init!(Self {
                name: CString::try_from_fmt(fmt!("{}", name))?,
                net: Net::current(),
                settings: Settings::new(),
                told_fixed: AtomicFlag::new(false),
                nr_queues,
                nr_poll_queues,
                key_id <- new_spinlock_irq!(key_id, "Env::key_id"),
                first_conn: Token::new(),
                reserve: Token::new(),
                wait_queue <- WaitQueue::new(),
                uevent_queue,
                events_queue,
                slow_queue,
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the name of the session.
    pub(crate) fn name(&self) -> &CStr {
        &self.name
    }

    /// Returns the name in the form that messages use.
    pub(crate) fn session_name(&self) -> Result<SessionName<'_>> {
        SessionName::new(self.name().to_bytes()).map_err(|error| convert::error(error.errno()))
    }

    /// Returns the network namespace that the session belongs to.
    pub(crate) fn net(&self) -> &Net {
        &self.net
    }

    /// Returns the settings of the session.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the id of the key that paths authenticate with from their next connection on, if
    /// client and server authenticate.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn key_id(&self) -> KeyId {
        *self.key_id.lock()
    }

    /// Sets the id of the key.
    pub(crate) fn set_key_id(&self, id: KeyId) {
        *self.key_id.lock() = id;
    }

    pub(crate) fn wait_queue(&self) -> &WaitQueue {
        &self.wait_queue
    }

    pub(crate) fn events_queue(&self) -> Arc<Queue> {
        self.events_queue.clone()
    }

    /// Returns the queue for uevents, which no other work item waits for.
    pub(crate) fn uevent_queue(&self) -> Arc<Queue> {
        self.uevent_queue.clone()
    }

    pub(crate) fn slow_queue(&self) -> Arc<Queue> {
        self.slow_queue.clone()
    }

    /// Returns the number of connections of a path for ordinary I/O; they are numbered from zero.
    #[inline]
    pub(crate) fn nr_queues(&self) -> u32 {
        self.nr_queues.into()
    }

    /// Returns the number of polled connections, which are numbered after those for ordinary I/O.
    pub(crate) fn nr_poll_queues(&self) -> u32 {
        self.nr_poll_queues.into()
    }

    /// Returns the number of connections of a path, the service connection
    /// included.
    pub(crate) fn nr_cons(&self) -> u32 {
        1 + self.nr_queues() + self.nr_poll_queues()
    }

    /// Returns the id of the message connection of attempt `epoch`: its number is behind the others.
    ///
    /// # Errors
    ///
    /// `EOVERFLOW` or `EINVAL`: more connections than a path can have.
    pub(crate) fn message_conn(&self, epoch: u32) -> Result<Conn> {
        let cid = u16::try_from(self.nr_cons())?;
        Ok(Conn { epoch, cid })
    }

    /// Logs, once for the session, that with a connected server of kind `peer` the failover time
    /// cannot be met.
    pub(crate) fn tell_failover_time(&self, peer: Peer) {
        let plan = self.settings.plan(peer);
        let set_ms = self.settings.failover_time_ms.get();
        if peer == Peer::Ours || plan.total_ms() <= set_ms || self.told_fixed.xchg(true, Relaxed) {
            return;
        }
        kx::pr_info_ratelimited!(
            "{}: the server has the fixed heartbeats of the mainline kernel: the silent loss of a path stops I/O for up to {} ms, not {} (failover_time_ms)\n",
            self.name(),
            plan.total_ms(),
            set_ms
        );
    }
}
