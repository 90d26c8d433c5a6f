// SPDX-License-Identifier: GPL-2.0

//! Failures to authenticate, by source.

use ibtrs_proto::auth::{
    Failures,
    Source, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::Mutex,
    time::{
        Instant,
        Monotonic, //
    },
};

/// Number of sources whose failures are remembered.
const SOURCES: usize = 64;

/// Failures to authenticate, by source.
#[pin_data]
pub(crate) struct FailureTable {
    #[pin]
    failures: Mutex<KBox<Failures<SOURCES>>>,
    since: Instant<Monotonic>,
}

impl FailureTable {
    pub(crate) fn new() -> Result<impl PinInit<Self>> {
        let failures = KBox::new(Failures::new(), GFP_KERNEL)?;
        Ok(pin_init!(Self {
            failures <- new_mutex!(failures, "FailureTable::failures"),
            since: Instant::now(),
        }))
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(0)
    }

    /// Returns whether clients of a source must wait before they may retry.
    pub(crate) fn must_wait(&self, source: &Source) -> bool {
        self.failures.lock().wait_ms(source, self.now_ms()) > 0
    }

    /// Counts a failure of a source.
    pub(crate) fn failed(&self, source: &Source) {
        self.failures.lock().failed(source, self.now_ms());
    }
}
