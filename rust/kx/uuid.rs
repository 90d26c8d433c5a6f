// SPDX-License-Identifier: GPL-2.0

//! Universally unique identifiers.
//!
//! C header: [`include/linux/uuid.h`](srctree/include/linux/uuid.h)

use kernel::bindings;

/// Returns a new random identifier (version 4), in the byte order of RFC 9562.
///
/// # Context
///
/// *any*
pub fn generate() -> [u8; 16] {
    let mut uuid = bindings::uuid_t { b: [0; 16] };
    // SAFETY: The pointer is valid for writing during the call.
    unsafe { bindings::uuid_gen(&mut uuid) };
    uuid.b
}
