// SPDX-License-Identifier: GPL-2.0

//! The environment of a server, which its sessions and paths share: settings, queues, memory and the
//! accounts of clients.

use crate::{
    env::{
        audit::Audit,
        backlog::Backlog,
        config::Config,
        failures::FailureTable,
        memory::Ledger, //
    },
    storage::{
        buffers::Buffers,
        pool::{
            ChunkMemory,
            Pool, //
        }, //
    }, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use kx::work::{
    DelayedWork,
    Options,
    Queue,
    WorkItem, //
};

pub(crate) mod audit;
pub(crate) mod backlog;
pub(crate) mod config;
pub(crate) mod failures;
pub(crate) mod memory;

/// Interval between checks, in milliseconds. Memory that was not needed between two checks is
/// freed, so unused memory is kept for one to two intervals.
const KEEP_MS: u32 = 120_000;

/// The state that the sessions and paths of a server share.
#[pin_data]
pub(crate) struct Env {
    pub(crate) config: Config,
    /// The boot id of the server.
    pub(crate) boot_id: [u8; 16],
    /// Queue for heartbeats and fences, for which clients wait. Its work items run even if the
    /// machine is short of CPU time and memory.
    pub(crate) urgent: Arc<Queue>,
    /// Queue for other short work: accepts, checks of keys, buffers.
    pub(crate) queue: Arc<Queue>,
    /// Queue for the set-up and the state changes of paths. A set-up may wait for memory, for the client,
    /// and for the end of another session, without delaying requests, fences and heartbeats of other
    /// clients.
    pub(crate) setup: Arc<Queue>,
    /// Queue for the teardown of paths and sessions, which waits for connections to end and for
    /// devices to be closed.
    pub(crate) slow: Arc<Queue>,
    /// Queue for requests that have waited for another path, and may now wait for disks.
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
    limits: Mutex<()>,
    #[pin]
    pub(crate) failures: FailureTable,
    pub(crate) audit: Arc<Audit>,
    #[pin]
    pub(crate) backlog: Mutex<Backlog>,
    #[pin]
    expiry: DelayedWork<Self>,
}

kx::impl_has_work! {
    impl HasWork<DelayedWork<Self>> for Env { self.expiry }
}

impl Env {
    /// Reads the parameters of the module.
    ///
    /// # Errors
    ///
    /// `EINVAL`: they contradict each other; `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        // Even if there is no memory for another worker, clients must get heartbeats from this
        // server.
        let urgent = Options::unbound().high_priority().mem_reclaim();
        let urgent = Queue::new(urgent, fmt!("ibtrs-server-hb"))?;
        // The other queues have no rescuers: the end of a session closes devices, which waits for
        // system queues without rescuers anyway.
        let queue = Queue::new(Options::unbound(), fmt!("ibtrs-server"))?;
        let setup = Queue::new(Options::unbound(), fmt!("ibtrs-server-setup"))?;
        let slow = Queue::new(Options::unbound(), fmt!("ibtrs-server-end"))?;
        let wakes = Queue::new(Options::unbound(), fmt!("ibtrs-server-io"))?;
        let expiry_queue = slow.clone();
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
                limits <- new_mutex!((), "Env::limits"),
                failures <- failures,
                audit: Audit::new()?,
                backlog <- new_mutex!(backlog, "Env::backlog"),
                expiry <- kx::new_delayed_work!(expiry_queue, "Env::expiry"),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Stops the work items. There must be no sessions any more.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn close(&self) {
        self.wakes.flush();
        self.setup.flush();
        self.slow.flush();
        self.queue.flush();
        self.expiry.disable_sync();
        self.buffers.close();
    }

    /// Limits the pools and the buffers to the memory that paths do not use. The buffers get what the
    /// pools do not use of it.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn leave_to_pool(&self) {
        let _limits = self.limits.lock();
        let left = self.left();
        let mut kept = 0;
        for pool in [&self.pool, &self.slot_pool] {
            pool.shrink(self.config.for_pools(left).saturating_sub(kept));
            kept += pool.bytes();
        }
        let buffers = left.saturating_sub(kept);
        self.buffers.set_limit(buffers.min(self.config.max_buffers));
    }

    /// Returns the bytes that paths have not taken.
    fn left(&self) -> u64 {
        self.config.max_memory.saturating_sub(self.ledger.taken())
    }

    /// Retains the memory that a path has released in `pool`.
    pub(crate) fn keep(self: &Arc<Self>, pool: &Pool, memory: impl Iterator<Item = ChunkMemory>) {
        let most = self.config.for_pools(self.left());
        memory.for_each(|memory| pool.give(memory, most));
        // Other paths may have taken memory concurrently.
        self.leave_to_pool();
        self.expiry.enqueue_in(self.clone(), KEEP_MS);
    }
}

/// Frees memory that was not needed for some time.
impl WorkItem for Env {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let chunks = this.pool.expire();
        let slots = this.slot_pool.expire();
        if chunks || slots {
            this.expiry.enqueue_in(this.clone(), KEEP_MS);
        }
        this.leave_to_pool();
    }
}
