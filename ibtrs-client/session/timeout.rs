// SPDX-License-Identifier: GPL-2.0

//! Request timeouts.
//!
//! A request times out because the path is dead or because the backing device is slow. If the path
//! is dead, the request fails over as soon as the path is failed. If the device is slow, a failover
//! is useless: the second attempt would wait on the server until the first has ended, and all other
//! disks would lose the path. The client therefore probes the server with a heartbeat, and fails
//! the path if there is no answer. Periodic heartbeats would detect a dead path, too, but their
//! interval may be long.

use crate::{
    data::slot,
    session::Session, //
};
use ibtrs_proto::tag::Tag;
use kernel::{
    prelude::*,
    sync::Arc, //
};

impl Session {
    /// Probes the paths that carry the request with tag `tag`, which has timed out. A path whose
    /// server does not answer fails; the request is then sent over another path, or over this one
    /// when it has reconnected. The request itself stays in flight.
    ///
    /// # Context
    ///
    /// Any but hardirq.
    pub fn request_timeout(&self, tag: Tag) {
        self.with_multipath(|multipath| {
            for path in &multipath.paths {
                let slot = path.io.slots.get(tag.get());
                if slot.is_some_and(|slot| slot.is_busy()) {
                    path.probe();
                }
            }
        });
    }

    /// Cancels the request with tag `tag`, if
    /// [`IoHandle::is_cancelled`](kx::io::IoHandle::is_cancelled) is true for it: it ends for its users
    /// with `ETIMEDOUT`, even if it waits for a path. Its chunk stays in use until the server has
    /// answered. If the path is lost, the request is resent as a message without effect, as the server
    /// may still be executing the original in that chunk.
    ///
    /// Cancelling a read revokes the key of its memory. If the server answers later, it uses that
    /// key, which fails the path; the path then reconnects.
    ///
    /// # Context
    ///
    /// Any but hardirq. I/Os end during this call: hold no lock that their completion needs.
    pub fn cancel(self: &Arc<Self>, tag: Tag) {
        self.with_multipath(|multipath| {
            for path in &multipath.paths {
                if let Some(slot) = path.io.slots.get(tag.get()) {
                    slot::cancel(&path.io.qps, slot);
                }
            }
        });
        // It may be on the requeue list.
        self.kick_requeue();
    }
}

/// Forced removal of a disk.
impl Session {
    /// Fails the paths that carry an unanswered request which is no longer wanted
    /// ([`IoHandle::is_wanted`](kx::io::IoHandle::is_wanted)). That request ends with `EIO` as soon
    /// as its memory is no longer accessible to the server. All other requests are resent over
    /// another path, or over this one when it has reconnected.
    ///
    /// A server that executes such a request for a long time accepts the path again only after the
    /// request has ended.
    ///
    /// # Context
    ///
    /// Any but hardirq.
    pub fn fail_unwanted(&self) {
        self.with_multipath(|multipath| {
            // Skip administrative messages, which belong to no disk: an abandoned one is no reason to
            // fail its path.
            let io = usize::from(self.depth_split().io());
            for path in &multipath.paths {
                if path.io.slots.iter().take(io).any(|slot| slot.is_unwanted()) {
                    path.attempt.error(fmt!(
                        "unanswered request of a disk that is unmapped by force"
                    ));
                }
            }
        });
    }
}
