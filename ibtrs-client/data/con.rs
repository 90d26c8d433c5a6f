// SPDX-License-Identifier: GPL-2.0

//! One connection of a path: its state. [`crate::data::receive`] handles its completions.

use crate::data::link::{
    Control,
    Link, //
};
use ibtrs_proto::keys::{
    Bogus,
    Revoked, //
};
use kernel::{
    fmt,
    prelude::*,
    sync::Arc, //
};
use kx::sync::atomic::{
    Atomic,
    Relaxed, //
};

/// Receive buffers for the server's answers.
pub(crate) const RECV_ANSWERS: usize = 0;
/// The receive buffer for the session information, on the service connection.
pub(crate) const RECV_INFO: usize = 1;
/// The receive buffer for AUTH2, on the service connection.
pub(crate) const RECV_AUTH: usize = 2;

/// The handler of a connection.
pub(crate) struct Con {
    link: Arc<Link>,
    control: Arc<dyn Control>,
    /// The number of the connection; 0 is the service connection.
    cid: u16,
    /// The keys that the server has invalidated since its last answer, as bits of a [`Revoked`].
    ///
    /// Only completion handlers access it. They are serialized, except while a polled connection is
    /// being closed. An update that is missed then fails the path, which is closing anyway: no
    /// request ever ends by another request's key.
    revoked: Atomic<u64>,
    /// Number of the message that invalidated the key; accessed as `revoked`.
    revoked_at: Atomic<u64>,
    /// Number of messages received.
    messages: Atomic<u64>,
    /// Number of requests that were sent and have not ended.
    outstanding: Atomic<i32>,
}

impl Con {
    pub(crate) fn new(link: Arc<Link>, control: Arc<dyn Control>, cid: u16) -> Self {
        Self {
            link,
            control,
            cid,
            revoked: Atomic::new(Revoked::NONE.to_bits()),
            revoked_at: Atomic::new(0),
            messages: Atomic::new(0),
            outstanding: Atomic::new(0),
        }
    }

    /// Returns the state that the connections of the attempt share.
    #[inline]
    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// Returns the receiver of errors and of messages other than answers.
    pub(crate) fn control(&self) -> &dyn Control {
        &*self.control
    }

    /// See [`Control::error`].
    #[cold]
    pub(crate) fn error(&self, what: fmt::Arguments<'_>) {
        self.control.error(what);
    }

    /// As [`Con::error`], for a violation of the protocol by the server.
    #[cold]
    pub(crate) fn breach(&self, what: fmt::Arguments<'_>) {
        self.link.set_broken();
        self.error(what);
    }

    /// Returns the number of the connection.
    pub(crate) fn cid(&self) -> u16 {
        self.cid
    }

    /// Counts a request that is about to be sent, unless `window` are in flight.
    #[inline]
    pub(crate) fn try_acquire_credit(&self, window: i32) -> bool {
        // ORDERING: A counter only. The server has one receive more than the window, for the request
        // that it answers before it reposts the receive.
        if self.outstanding.load(Relaxed) >= window {
            return false;
        }
        if self.outstanding.fetch_add(1, Relaxed) < window {
            return true;
        }
        self.release_credit();
        false
    }

    /// Stops counting a request that has ended, or was not sent.
    #[inline]
    pub(crate) fn release_credit(&self) {
        self.outstanding.fetch_sub(1, Relaxed);
    }

    /// Returns the number of messages received.
    pub(crate) fn messages(&self) -> u64 {
        self.messages.load(Relaxed)
    }

    /// Counts a message.
    #[inline]
    pub(crate) fn count_message(&self) {
        // ORDERING: As for `revoked`.
        self.messages.store(self.messages() + 1, Relaxed);
    }

    /// Records that the server has invalidated `key`.
    pub(crate) fn key_revoked(&self, key: u32) {
        // ORDERING: Completions of a connection are serialized; for the exception see `revoked`.
        let revoked = Revoked::from_bits(self.revoked.load(Relaxed));
        match revoked.add(key) {
            Ok(next) => {
                self.revoked_at.store(self.messages(), Relaxed);
                self.revoked.store(next.to_bits(), Relaxed);
            }
            Err(bogus) => self.bogus(bogus),
        }
    }

    /// Takes the recorded invalidation, for the answer being handled.
    pub(crate) fn take_revoked(&self) -> Revoked {
        // ORDERING: As in `key_revoked`.
        let bits = self.revoked.load(Relaxed);
        if bits != 0 {
            self.revoked.store(0, Relaxed);
        }
        Revoked::from_bits(bits)
    }

    /// Returns the number of the message that invalidated the key.
    pub(crate) fn revoked_at(&self) -> u64 {
        self.revoked_at.load(Relaxed)
    }

    /// Fails the path because the server has invalidated a wrong key.
    #[cold]
    pub(crate) fn bogus(&self, bogus: Bogus) {
        let polled = u32::from(self.cid) > self.link.env.nr_queues();
        // While a polled connection is being closed, the key may be that of the next answer (see
        // `revoked`), so there is no reason to suspect the server.
        let report = match polled && !self.control.is_connected() {
            true => Self::error,
            false => Self::breach,
        };
        report(
            self,
            fmt!(
                "connection {}: the server invalidated a wrong key ({:#x})",
                self.cid,
                bogus.key
            ),
        );
    }
}
