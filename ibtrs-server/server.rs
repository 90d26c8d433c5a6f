// SPDX-License-Identifier: GPL-2.0

//! The server's state, and the listener.

use crate::{
    accept::Backlog,
    audit::Audit,
    authentication::FailureTable,
    buffers::Buffers,
    clients::Clients,
    config::Config,
    drain::Drain,
    lines::Look,
    memory::Ledger,
    path::Path,
    pool::Pool,
    ports::Ports,
    service::Services,
    session::Session, //
};
use kernel::{
    new_condvar,
    new_mutex,
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        CondVar,
        CondVarTimeoutResult,
        Mutex,
        MutexGuard,
        SpinLockIrq, //
    },
    time::Jiffies, //
};
use kx::{
    sync::atomic::{
        Atomic,
        AtomicFlag, //
    },
    work::{
        DelayedWork,
        Options,
        Queue,
        Work, //
    }, //
};

/// The server of some services: all sessions, and what they share.
#[pin_data]
pub(crate) struct Server {
    pub(crate) services: Services,
    pub(crate) config: Config,
    /// The boot id of the server.
    pub(crate) boot_id: [u8; 16],
    /// Queue for heartbeats and fences, for which clients wait. Its work runs even if the machine is
    /// short of CPU time and memory.
    pub(crate) urgent: Arc<Queue>,
    /// Queue for other short work: accepts, checks of keys, buffers.
    pub(crate) queue: Arc<Queue>,
    /// Queue for the set-up and the state changes of paths. A set-up may wait for memory, for the client,
    /// and for another session to end, and so does not hold up the requests, fences and heartbeats of
    /// others.
    pub(crate) setup: Arc<Queue>,
    /// Queue for the ends of paths and sessions, which wait for connections to end and for devices
    /// to be closed.
    pub(crate) slow: Arc<Queue>,
    /// Queue for requests that had to wait for another path; they may wait for disks in turn.
    pub(crate) wakes: Arc<Queue>,
    #[pin]
    pub(crate) ledger: Ledger,
    /// Chunks of lost paths.
    #[pin]
    pub(crate) pool: Pool,
    /// Groups of slots of lost paths.
    #[pin]
    pub(crate) slot_pool: Pool,
    pub(crate) buffers: Arc<Buffers>,
    /// Held while the pools and the buffers are limited.
    #[pin]
    pub(crate) limits: Mutex<()>,
    /// Held while a path is looked up, created and added.
    #[pin]
    pub(crate) joining: Mutex<()>,
    #[pin]
    pub(crate) failures: FailureTable,
    pub(crate) audit: Arc<Audit>,
    #[pin]
    pub(crate) sessions: Mutex<Sessions>,
    #[pin]
    pub(crate) emptied: CondVar,
    /// Held while the server is being drained.
    #[pin]
    pub(crate) draining: Mutex<()>,
    /// The service did not finish in time with a drained session.
    pub(crate) left_over: AtomicFlag,
    /// Number of sessions that a drain has begun with and the service has not finished with. Such a
    /// session may have left the list, because its last path was lost.
    pub(crate) finishing: Atomic<u32>,
    #[pin]
    pub(crate) backlog: Mutex<Backlog>,
    #[pin]
    pub(crate) accept: Work<Self, { work::ACCEPT }>,
    #[pin]
    pub(crate) expiry: DelayedWork<Self, { work::EXPIRY }>,
    #[pin]
    pub(crate) feed: DelayedWork<Self, { work::FEED }>,
    #[pin]
    pub(crate) look: SpinLockIrq<Look>,
}

/// Ids of the work items of a server.
pub(crate) mod work {
    pub(crate) const ACCEPT: u64 = 0;
    pub(crate) const EXPIRY: u64 = 1;
    pub(crate) const FEED: u64 = 2;
}

kx::impl_has_work! {
    impl HasWork<Work<Self, { work::ACCEPT }>> for Server { self.accept }
    impl HasWork<DelayedWork<Self, { work::EXPIRY }>> for Server { self.expiry }
    impl HasWork<DelayedWork<Self, { work::FEED }>> for Server { self.feed }
}

/// The sessions, and whether new ones are accepted.
pub(crate) struct Sessions {
    pub(crate) list: KVec<Arc<Session>>,
    /// The candidates; neither they nor their sessions are in any other list.
    pub(crate) candidates: KVec<Arc<Path>>,
    /// Number of sessions created so far; the next session's generation follows from it.
    pub(crate) made: u32,
    /// The server is being unloaded: set for good.
    pub(crate) closing: bool,
    /// The server is drained: set until the operator undoes it.
    pub(crate) drained: bool,
}

impl Server {
    pub(crate) fn new(services: Services) -> Result<Arc<Self>> {
        // Without memory for another worker, clients must still learn that this server is there.
        let urgent = Options::unbound().high_priority().mem_reclaim();
        let urgent = Queue::new(urgent, fmt!("ibtrs-server-hb"))?;
        // The others have no rescuers: the end of a session closes devices, which waits for queues
        // of the system that have none either.
        let queue = Queue::new(Options::unbound(), fmt!("ibtrs-server"))?;
        let setup = Queue::new(Options::unbound(), fmt!("ibtrs-server-setup"))?;
        let slow = Queue::new(Options::unbound(), fmt!("ibtrs-server-end"))?;
        let wakes = Queue::new(Options::unbound(), fmt!("ibtrs-server-io"))?;
        let (accept_queue, expiry_queue) = (queue.clone(), slow.clone());
        let feed_queue = queue.clone();
        let config = Config::from_params()?;
        let buffers = Buffers::new(
            config.max_io(),
            config.max_memory.min(config.max_buffers),
            slow.clone(),
        )?;
        let backlog = Backlog::new()?;
        let failures = FailureTable::new()?;
        Arc::pin_init(
            try_pin_init!(Self {
                services,
                config,
                boot_id: kx::random::uuid(),
                urgent,
                queue,
                setup,
                slow,
                wakes,
                ledger <- Ledger::new(),
                pool <- Pool::new(),
                slot_pool <- Pool::new(),
                buffers,
                joining <- new_mutex!((), "Server::joining"),
                failures <- failures,
                audit: Audit::new()?,
                sessions <- new_mutex!(
                    Sessions {
                        list: KVec::new(),
                        candidates: KVec::new(),
                        made: 0,
                        closing: false,
                        drained: false,
                    },
                    "Server::sessions"
                ),
                emptied <- new_condvar!("Server::emptied"),
                draining <- new_mutex!((), "Server::draining"),
                limits <- new_mutex!((), "Server::limits"),
                left_over: AtomicFlag::new(false),
                finishing: Atomic::new(0),
                backlog <- new_mutex!(backlog, "Server::backlog"),
                accept <- kx::new_work!(accept_queue, "Server::accept"),
                expiry <- kx::new_delayed_work!(expiry_queue, "Server::expiry"),
                feed <- kx::new_delayed_work!(feed_queue, "Server::feed"),
                look <- new_spinlock_irq!(Look::new(), "Server::look"),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Waits until a session or a candidate is gone, at most for `left`. Returns the remaining
    /// time; 0 after a signal.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn wait_for_end(
        &self,
        sessions: &mut MutexGuard<'_, Sessions>,
        left: Jiffies,
    ) -> Jiffies {
        match self.emptied.wait_interruptible_timeout(sessions, left) {
            CondVarTimeoutResult::Woken { jiffies } => jiffies,
            _ => 0,
        }
    }

    /// Closes every session and waits until the last is gone.
    pub(crate) fn close(&self) {
        let mut sessions = self.sessions.lock();
        sessions.closing = true;
        for session in &sessions.list {
            session.close();
        }
        sessions.close_candidates();
        while !sessions.list.is_empty() || !sessions.candidates.is_empty() {
            self.emptied.wait(&mut sessions);
        }
        drop(sessions);
        self.wakes.flush();
        self.setup.flush();
        self.slow.flush();
        self.queue.flush();
        self.expiry.disable_sync();
        self.feed.disable_sync();
        self.buffers.close();
    }
}

/// Accepts sessions as long as it lives.
///
/// Dropping it closes all sessions and waits for their requests: may sleep.
pub struct Listener {
    ports: Arc<Ports>,
    server: Arc<Server>,
}

impl Listener {
    /// Returns a handle that drains the server.
    pub fn drain(&self) -> Drain {
        Drain::new(self.server.clone())
    }

    /// Returns a handle that closes paths of authenticated clients.
    pub fn clients(&self) -> Clients {
        Clients::new(self.server.clone())
    }

    /// Returns where the server listens.
    pub fn ports(&self) -> Arc<Ports> {
        self.ports.clone()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.ports.close();
        // Wait for the connection requests that arrived before.
        self.server.queue.flush();
        self.server.close();
    }
}

/// Accepts sessions of `services` in the caller's network namespace, which the listener keeps. It
/// listens on all local addresses at `port_nr` until there are [ports](Ports); with 0, on ports
/// only.
///
/// # Context
///
/// May sleep.
///
/// # Errors
///
/// `EADDRINUSE`: the port is in use; `EINVAL`: module parameters contradict each other; `ENOMEM`.
pub fn listen(services: Services, port_nr: u16) -> Result<Listener> {
    let server = Server::new(services)?;
    // If this fails, dropping the listener ends what clients have begun meanwhile.
    let listener = Listener {
        ports: Ports::new(server.clone(), port_nr)?,
        server,
    };
    listener.ports.open()?;
    Ok(listener)
}
