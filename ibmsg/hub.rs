// SPDX-License-Identifier: GPL-2.0

//! What all users need: programs, which have files, and other modules.

use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use kx::{
    sync::{
        atomic::AtomicFlag,
        RcuPtr, //
    },
    work::{
        Options,
        Queue, //
    }, //
};

use crate::{
    peers::Peers,
    session::{
        Shared,
        Side, //
    },
    types::Name, //
};

/// Where channels are opened and portals are bound.
pub(crate) struct Hub {
    pub(crate) shared: Shared,
    /// The side that opens channels to portals of this machine.
    pub(crate) local: Side,
    /// The other side of that session.
    pub(crate) local_portals: Side,
    pub(crate) peers: Arc<Peers>,
    pub(crate) handlers: Arc<Handlers>,
    /// The module is loaded.
    pub(crate) is_ready: AtomicFlag,
}

impl Hub {
    /// The side of a session that opens channels.
    ///
    /// # Errors
    ///
    /// [`ENODEV`]
    pub(crate) fn client(&self, session: &Name) -> Result<Side> {
        match *session == self.local.name() {
            true => Ok(self.local.clone()),
            false => self.peers.client(session).ok_or(ENODEV),
        }
    }
}

/// Queues for the handlers of other modules, which may sleep: one for each portal, and one for all channels that
/// modules have connected. So handlers that wait, and occupy all workers of a queue, stop only their own portal.
///
/// A queue lives until this is dropped, and serves the next portal when its portal has gone: the last reference to a
/// channel may be dropped in any context, where no queue can be destroyed.
#[pin_data]
pub(crate) struct Handlers {
    options: Options,
    connected: Arc<Queue>,
    #[pin]
    portals: Mutex<PortalQueues>,
}

struct PortalQueues {
    all: KVec<Arc<Queue>>,
    /// Queues without a portal. There is room for all of them.
    unused: KVec<Arc<Queue>>,
}

impl Handlers {
    /// Queues with these options.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn new(options: Options) -> Result<Arc<Self>> {
        let connected = Queue::new(options, fmt!("ibmsg-handlers"))?;
        let queues = PortalQueues {
            all: KVec::new(),
            unused: KVec::new(),
        };
        Arc::pin_init(
            pin_init!(Self {
                options,
                connected,
                portals <- new_mutex!(queues, "Handlers::portals"),
            }),
            GFP_KERNEL,
        )
    }

    /// The queue for channels that were connected.
    pub(crate) fn connected(&self) -> Arc<Queue> {
        self.connected.clone()
    }

    /// A queue for a portal and its channels, until [`Handlers::put_back`].
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn of_portal(&self) -> Result<Arc<Queue>> {
        let mut portals = self.portals.lock();
        if let Some(queue) = portals.unused.pop() {
            return Ok(queue);
        }
        let count = portals.all.len() + 1;
        portals.all.reserve(1, GFP_KERNEL)?;
        portals.unused.reserve(count, GFP_KERNEL)?;
        let queue = Queue::new(self.options, fmt!("ibmsg-portal-{}", count))?;
        // There is room.
        let _ = portals.all.push_within_capacity(queue.clone());
        Ok(queue)
    }

    /// The portal of this queue has gone.
    ///
    /// # Context
    ///
    /// *may sleep*
    pub(crate) fn put_back(&self, queue: Arc<Queue>) {
        // There is room.
        let _ = self.portals.lock().unused.push_within_capacity(queue);
    }

    /// Waits until no work item runs. None is queued any more.
    ///
    /// # Context
    ///
    /// *may sleep*
    pub(crate) fn flush(&self) {
        self.connected.flush();
        for queue in &self.portals.lock().all {
            queue.flush();
        }
    }
}

/// The hub, while the module is loaded.
static HUB: RcuPtr<Arc<Hub>> = RcuPtr::null();

/// The hub is known to other modules until this is dropped. By then none is left that uses it.
pub(crate) struct Registration(());

/// Makes the hub known to other modules.
///
/// # Context
///
/// *may sleep*
pub(crate) fn register(hub: KBox<Arc<Hub>>) -> Registration {
    drop(HUB.replace(Some(hub)));
    Registration(())
}

impl Drop for Registration {
    fn drop(&mut self) {
        drop(HUB.replace(None));
    }
}

/// The hub, for another module.
///
/// # Errors
///
/// [`ENODEV`]: the module is not loaded completely, which no module that uses its symbols sees.
pub(crate) fn get() -> Result<Arc<Hub>> {
    HUB.read().get().cloned().ok_or(ENODEV)
}
