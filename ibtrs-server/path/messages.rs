// SPDX-License-Identifier: GPL-2.0

//! The message connection of a path.

use crate::{
    data::con::Control,
    path::Path, //
};
use ibtrs_core::messages::{
    con::{
        MessageConn,
        Owner, //
    },
    memory::Reads,
    Attached,
    Conn, //
};
use kernel::{
    fmt,
    prelude::*,
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kx::{
    mm::NoIo,
    sync::atomic::Relaxed, //
};
use rdma::cm::CmId;

/// Receives the events of the message connection for its path.
struct Messages(Arc<Path>);

impl Owner for Messages {
    fn heard(&self) {
        self.0.io.heartbeat.received();
    }

    fn flushed(&self) {
        Control::ended(self.0.clone(), self.0.cid_num, c"flushed");
    }

    fn error(&self, what: fmt::Arguments<'_>) {
        Path::error(&self.0, what);
    }

    fn breach(&self, what: fmt::Arguments<'_>) {
        Path::error(&self.0, what);
    }
}

impl Path {
    /// Creates the message connection of the path, with the completion vector `vector` and these limits of reads.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; errors of the device's driver.
    pub(crate) fn new_message_conn(
        self: &Arc<Self>,
        id: (Conn, Arc<CmId>),
        vector: u32,
        reads: Reads,
    ) -> Result<KBox<MessageConn>> {
        let owner = Arc::new(Messages(self.clone()), GFP_KERNEL)?;
        let queue = self.io.session.env.queue.clone();
        MessageConn::new(id, &self.io.pd, owner, queue, vector, reads)
    }

    /// As [`Path::add_con`], for the message connection.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ECONNRESET`: the path has one, or is being torn down.
    pub(crate) fn add_message_conn(
        self: &Arc<Self>,
        conn: KBox<MessageConn>,
        came: Instant<Monotonic>,
    ) -> Result {
        let mut cons = self.io.cons.lock();
        if cons.is_taken || cons.messages.is_some() {
            drop(cons);
            // Without the lock, as closing it takes locks of its handlers.
            drop(conn);
            return Err(ECONNRESET);
        }
        cons.messages = Some(conn);
        self.wait_for_client(&mut cons, came);
        Ok(())
    }

    /// Attaches the message connection to the message service. The client sends nothing on it before the
    /// path is complete.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ECONNRESET`: the path is being torn down; errors of [`MessageConn::attach`].
    pub(crate) fn attach_messages(&self, upper: Arc<Attached>) -> Result {
        // Teardowns of other paths wait for the lock.
        let _no_io = NoIo::enter();
        let cons = self.io.cons.lock();
        let conn = cons.messages.as_ref().ok_or(ECONNRESET)?;
        conn.attach(upper)?;
        // ORDERING: Only read by sysfs; it orders no other access.
        self.carries_messages.store(true, Relaxed);
        Ok(())
    }
}
