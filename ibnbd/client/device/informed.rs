// SPDX-License-Identifier: GPL-2.0

//! The reactions of a device to events of its session.

use super::{
    changes::REFRESH_PAUSE_MS,
    Device, //
};
use crate::events::SessionDevice;
use ibnbd_proto::state::Standing;
use ibtrs_proto::imm::notice_number;
use kernel::{
    sync::Arc,
    time::Instant, //
};

impl SessionDevice for Device {
    fn number(&self) -> u32 {
        self.number
    }

    fn show(self: Arc<Self>) {
        self.show_locked(&mut self.inner.lock());
    }

    fn session_lost(self: Arc<Self>, generation: u32) {
        let mut inner = self.inner.lock();
        inner.generation = generation;
        inner.standing = Standing::Reopening;
        inner.attempts = 0;
        inner.since = Instant::now();
        inner.last_error = None;
        self.io.set_queue_state(inner.standing.queue_state());
        self.show_locked(&mut inner);
    }

    fn open_soon(self: Arc<Self>) {
        if self.inner.lock().standing.is_retried() {
            self.reopen.modify(self.clone(), 0);
        }
    }

    fn unused(self: Arc<Self>) {
        let mut inner = self.inner.lock();
        if inner.disk.is_some() {
            self.retry_refused(&mut inner);
        }
    }

    fn noticed(self: Arc<Self>, number: u32) {
        let inner = self.inner.lock();
        if notice_number(inner.rsp.device_id) != number {
            return;
        }
        let passed = inner.refreshed.map(|at| at.elapsed().as_millis());
        drop(inner);
        let passed = passed.and_then(|ms| u32::try_from(ms).ok());
        let delay = passed.map_or(0, |ms| REFRESH_PAUSE_MS.saturating_sub(ms));
        self.refresh.enqueue_in(self.clone(), delay);
    }

    fn queue_timeout_changed(self: Arc<Self>) {
        let mut inner = self.inner.lock();
        self.end_wait(&mut inner);
        if inner.standing != Standing::Reopening {
            return;
        }
        // Each attempt schedules the next one, at the latest for the end of the timeout. Without a
        // path, no earlier attempt would succeed.
        let delay = match self.io.transport().is_connected() {
            true => 0,
            false => self.left_ms(&inner).saturating_add(1),
        };
        drop(inner);
        if delay != u32::MAX {
            self.reopen.modify(self.clone(), delay);
        }
    }

    fn durable(&self, number: u32) -> Option<bool> {
        let mut inner = self.inner.lock();
        if inner.standing != Standing::Open {
            return (!inner.standing.is_retried()).then_some(false);
        }
        let is_this = notice_number(inner.rsp.device_id) == number;
        if is_this {
            inner.cache_history.durable();
        }
        Some(is_this)
    }
}
