// SPDX-License-Identifier: GPL-2.0

//! Network namespaces.

use kernel::bindings;

/// A network namespace.
pub struct Net(());

impl Net {
    /// The namespace that the machine starts with.
    pub fn current() -> Self {
        Self(())
    }

    /// Returns the pointer for C.
    pub fn as_raw(&self) -> *mut bindings::net {
        &raw mut bindings::init_net
    }
}
