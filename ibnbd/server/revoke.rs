// SPDX-License-Identifier: GPL-2.0

//! Closing the devices of clients that may not have an export open any more.
//!
//! What closes a device is made before the device is opened, so that the operator can take an
//! export away from clients also when there is no memory.

use crate::{
    config::{
        Config,
        ExportId, //
    },
    session::{
        Closing,
        Session, //
    },
};
use ibnbd_proto::grant::Refusal;
use ibtrs_server::Deadline;
use kernel::{
    prelude::*,
    sync::{
        Arc,
        SetOnce, //
    },
    time::{
        delay::fsleep,
        Delta, //
    },
};
use kx::{
    mm::NoIo,
    work::{
        Queue,
        Work,
        WorkItem, //
    }, //
};

/// Interval at which an operator's task checks whether the devices are closed.
const LOOK_MS: i64 = 2;

/// Closes the device of a session when the session may no longer open the export.
#[pin_data]
pub(crate) struct Closer {
    pub(crate) session: Arc<Session>,
    /// The id of the device in the session.
    pub(crate) device: u32,
    why: SetOnce<Refusal>,
    #[pin]
    work: Work<Self>,
}

kx::impl_has_work! {
    impl HasWork<Work<Self>> for Closer { self.work }
}

impl Closer {
    /// Creates a closer, which closes the device on `queue`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(
        session: &Arc<Session>,
        device: u32,
        queue: &Arc<Queue>,
    ) -> Result<Arc<Self>> {
        let (session, queue) = (session.clone(), queue.clone());
        Arc::pin_init(
            pin_init!(Self {
                session,
                device,
                why: SetOnce::new(),
                work <- kx::new_work!(queue, "Closer::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Queues the closing of the device; `why` is for the log.
    fn start(self: &Arc<Self>, why: Refusal) {
        self.why.populate(why);
        self.work.enqueue(self.clone());
    }
}

/// Closes the device. Waits for an OPEN in service, which holds the lock of the session's devices.
impl WorkItem for Closer {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _no_io = NoIo::enter();
        let Some(opened) = this.session.withdraw(this.device) else {
            // The client has closed the device, or OPEN has failed.
            return;
        };
        let why = this.why.as_ref().map_or("", Refusal::as_str);
        this.session.log_operator_close(&opened, why);
        drop(Closing::new(&this.session, opened));
        this.session.notify(this.device);
    }
}

/// Closes the devices of sessions that have the export open and may no longer open it. Returns
/// when these and all earlier ones are closed, or after `limit_ms`.
///
/// # Context
///
/// May sleep. Allocates nothing.
///
/// # Errors
///
/// `ETIMEDOUT` if devices are still being closed.
pub(crate) fn close_refused(config: &Config, export: ExportId, limit_ms: u32) -> Result {
    while let Some((closer, why)) = config.next_refused(export) {
        closer.start(why);
    }
    let limit = Deadline::in_ms(limit_ms);
    while config.is_closing(export) {
        if limit.has_passed() {
            return Err(ETIMEDOUT);
        }
        fsleep(Delta::from_millis(LOOK_MS));
    }
    Ok(())
}
