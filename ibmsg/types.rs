// SPDX-License-Identifier: GPL-2.0

//! What programs and this module pass to each other.

mod arg;
mod body;
mod header;
mod name;
mod terms;

pub(crate) use arg::{
    Arg,
    Bytes, //
};
pub use body::Body;
pub(crate) use body::BLOCK;
pub(crate) use header::{
    Event,
    Header,
    Kind,
    F_AUTHENTICATED,
    F_BODY,
    F_KERNEL,
    F_MORE,
    F_NOWAIT,
    F_RECEIPT,
    HEADER_LEN, //
};
pub(crate) use name::{
    Name,
    NAME_LEN, //
};
pub(crate) use terms::{
    Terms,
    Wants,
    SUBSCRIPTIONS, //
};

use kernel::{
    prelude::*,
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kx::sync::SetOnce;

/// Where a message begins in a buffer that holds several: at the next multiple of this.
pub(crate) const ALIGN: usize = 8;
/// The most private data.
pub(crate) const MAX_DATA: usize = ibmsg_proto::limits::MAX_PRIVATE_DATA;

/// A point in time, in microseconds.
pub(crate) fn now() -> u64 {
    static BEGIN: SetOnce<Instant<Monotonic>> = SetOnce::new();
    let since = match BEGIN.as_ref() {
        Some(begin) => begin.elapsed().as_nanos(),
        None => {
            BEGIN.populate(Instant::now());
            0
        }
    };
    // Not negative, as the clock goes forward. Beginning with 1 s, so that nothing is before the beginning.
    u64::try_from(since / 1000).unwrap_or(0) + 1_000_000
}

/// A copy of private data.
///
/// # Errors
///
/// [`ENOMEM`]
pub(crate) fn copy(data: &[u8], flags: kernel::alloc::Flags) -> Result<KVec<u8>> {
    let mut copy = KVec::new();
    copy.extend_from_slice(data, flags)?;
    Ok(copy)
}
