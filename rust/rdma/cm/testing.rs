// SPDX-License-Identifier: GPL-2.0

//! Helpers for the tests of ids.

use super::{
    CmEvent,
    CmHandler,
    ConnParam, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// A connection without private data, retries and reads.
pub(super) const NO_DATA: ConnParam<'_> = ConnParam {
    private_data: &[],
    retry_count: 0,
    rnr_retry_count: 0,
    reads_by_peer: 0,
    reads: 0,
};

struct Nobody;

impl CmHandler for Nobody {
    fn event(&self, _event: &CmEvent<'_>) {}
}

/// Returns a handler that does nothing.
pub(super) fn nobody() -> Result<Arc<dyn CmHandler>> {
    Ok(Arc::new(Nobody, GFP_KERNEL)?)
}
