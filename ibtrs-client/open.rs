// SPDX-License-Identifier: GPL-2.0

//! Opens a session, and shows it in sysfs.

use crate::{
    session::{
        Session,
        SessionConfig, //
    },
    sysfs::SessionHook, //
};
use ibtrs_proto::consts::MAX_CONNECTIONS;
use kernel::{
    prelude::*,
    sync::Arc, //
};

impl Session {
    /// Opens a session: connects its paths and waits until the first is connected; the others keep
    /// retrying. The session belongs to the network namespace of the caller.
    ///
    /// # Context
    ///
    /// May sleep, up to the connect time-out for each step; interruptible.
    ///
    /// # Errors
    ///
    /// If no path could be connected, the error of the first path; everything is undone.
    ///
    /// - `EINTR`: interrupted by a signal.
    /// - `ECONNABORTED`: users disconnected or removed all its paths during the call.
    /// - `ETIMEDOUT`, `EHOSTUNREACH`, `ECONNREFUSED`, `ECONNRESET` and other errors of the
    ///   connection manager: the server cannot be reached.
    /// - The error with which the server refused the connection.
    /// - `EINVAL`: no path, no connection for ordinary I/O, more connections than a path may have, or
    ///   a server whose queue is too short to use.
    /// - `ENOSPC`: more than 128 paths.
    /// - `EEXIST`: a path is given twice.
    /// - `ENODEV`: no InfiniBand port reaches the given GID.
    /// - `ENOMEM`.
    pub fn open(config: &SessionConfig<'_>) -> Result<Arc<Self>> {
        if config.paths.is_empty() || config.nr_queues == 0 {
            return Err(EINVAL);
        }
        let this = Self::new(config)?;
        if let Some(ms) = config.failover_time_ms {
            this.set_failover_time_ms(ms)?;
        }
        if this.env().nr_cons() > MAX_CONNECTIONS.into() {
            return Err(EINVAL);
        }
        this.poll_later();
        let hook = SessionHook::create(&this);
        if let Err(error) = hook.and_then(|hook| this.connect_first(hook, config.paths)) {
            this.close();
            return Err(error);
        }
        Ok(this)
    }
}
