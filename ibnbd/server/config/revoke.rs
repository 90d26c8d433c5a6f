// SPDX-License-Identifier: GPL-2.0

//! Closes devices of clients that may no longer have the export open.
//!
//! The [`Closer`] of a device is allocated before the device is opened, so the operator can
//! withdraw an export from clients even when memory is short. It first revokes the device, which
//! never blocks, because the session's lock may be held by an OPEN of another device whose disk
//! hangs.

use super::{
    Asked,
    Config,
    ExportId, //
};
use crate::peer::Peer;
use ibnbd_proto::grant::GrantRefusal;
use ibtrs_server::Deadline;
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use kx::{
    mm::NoIo,
    sync::{
        atomic::{
            AtomicFlag,
            Relaxed, //
        },
        SetOnce, //
    },
    work::{
        Queue,
        Work,
        WorkItem, //
    }, //
};

/// Interval at which an operator's task checks whether the devices are closed.
const CHECK_MS: i64 = 2;

/// A session, of which an operator closes a device.
pub(crate) trait CloseDevice: Send + Sync {
    /// Closes device `id` and notifies the client, if the session has it open; `why` is for the log.
    ///
    /// # Context
    ///
    /// May sleep, until the device's I/O has ended.
    fn close_device(self: Arc<Self>, id: u32, why: &str);
}

/// Closes the device of a session when the session may no longer open the export.
#[pin_data]
pub(crate) struct Closer {
    peer: Arc<Peer>,
    session: Arc<dyn CloseDevice>,
    /// The id of the device in the session.
    device: u32,
    why: SetOnce<GrantRefusal>,
    /// Shared with the open device, whose requests are refused once this is set.
    revoked: Arc<AtomicFlag>,
    #[pin]
    work: Work<Self>,
}

kx::impl_has_work! {
    impl HasWork<Work<Self>> for Closer { self.work }
}

impl Closer {
    /// Creates the closer of the device of the request `asked`, which closes the device on `queue`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(asked: &Asked<'_>, queue: &Arc<Queue>) -> Result<Arc<Self>> {
        let (peer, session) = (asked.peer.clone(), asked.session.clone());
        let (device, queue) = (asked.device, queue.clone());
        let revoked = Arc::new(AtomicFlag::new(false), GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                peer,
                session,
                device,
                why: SetOnce::new(),
                revoked,
                work <- kx::new_work!(queue, "Closer::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the client of the session.
    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Returns the flag that is set when the device is revoked.
    pub(super) fn revoked(&self) -> Arc<AtomicFlag> {
        self.revoked.clone()
    }

    /// Refuses new requests to the device, and queues its closing; `why` is for the log.
    fn start(self: &Arc<Self>, why: GrantRefusal) {
        // ORDERING: The flag orders no other access. The close waits for requests that miss it.
        self.revoked.store(true, Relaxed);
        self.why.populate(why);
        self.work.enqueue(self.clone());
    }
}

/// Closes the device. Waits for an OPEN in service, which holds the lock of the session's devices.
impl WorkItem for Closer {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _no_io = NoIo::enter();
        let why = this.why.as_ref().map_or("", GrantRefusal::as_str);
        // Finds no device if the client has closed it, or OPEN has failed.
        this.session.clone().close_device(this.device, why);
    }
}

/// Revokes the devices of sessions that have the export open and may no longer open it, and begins
/// to close them.
///
/// # Context
///
/// May sleep, but does not allocate.
pub(crate) fn refuse(config: &Config, export: ExportId) {
    while let Some((closer, why)) = config.next_refused(export) {
        closer.start(why);
    }
}

/// Waits until the devices of an export that were revoked are closed, or until `limit_ms` have
/// passed.
///
/// # Context
///
/// May sleep, but does not allocate.
///
/// # Errors
///
/// `ETIMEDOUT` if devices are still being closed.
pub(crate) fn wait_closed(config: &Config, export: ExportId, limit_ms: u32) -> Result {
    let limit = Deadline::in_ms(limit_ms);
    while config.is_closing(export) {
        if limit.has_passed() {
            return Err(ETIMEDOUT);
        }
        fsleep(Delta::from_millis(CHECK_MS));
    }
    Ok(())
}
