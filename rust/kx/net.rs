// SPDX-License-Identifier: GPL-2.0

//! Socket addresses and network namespaces.
//!
//! # Examples
//!
//! ```
//! use kx::net::{addr::SockAddr, Net};
//!
//! let net = Net::current();
//! let is_first = *net == *Net::init();
//! let server = SockAddr::v4([192, 168, 0, 1], 1234);
//! assert!(server.port() == 1234);
//! # let _ = is_first;
//! ```
//!
//! C header: [`include/net/net_namespace.h`](srctree/include/net/net_namespace.h)

use core::ptr::NonNull;
use kernel::{
    bindings,
    sync::aref::{
        ARef,
        AlwaysRefCounted, //
    },
    types::Opaque, //
};

pub mod addr;

/// A network namespace, `struct net` in C.
///
/// # Invariants
///
/// Instances of this type are always reference-counted.
#[repr(transparent)]
pub struct Net(Opaque<bindings::net>);

// SAFETY: A namespace has no thread affinity.
unsafe impl Send for Net {}

// SAFETY: As above; there are no methods that change it.
unsafe impl Sync for Net {}

impl Net {
    /// Returns the current task's namespace, or the initial namespace if the task is exiting and
    /// has none any more.
    ///
    /// # Context
    ///
    /// Process context.
    pub fn current() -> ARef<Self> {
        // SAFETY: The callee reads the current task's namespaces, which only the task itself
        // changes.
        let net = unsafe { ibtrs_bindings::kx_current_net() };
        if net.is_null() {
            return ARef::from(Self::init());
        }
        // CAST: `Net` is transparent.
        // SAFETY: The task holds a reference to its namespace during this call. The result takes
        // another reference.
        ARef::from(unsafe { &*net.cast::<Self>() })
    }

    /// Returns the initial namespace, which is never freed.
    pub fn init() -> &'static Self {
        // CAST: `Net` is transparent.
        // SAFETY: `init_net` is a static object.
        unsafe { &*(&raw const bindings::init_net).cast::<Self>() }
    }

    /// Returns the C object.
    pub fn as_raw(&self) -> *mut bindings::net {
        self.0.get()
    }
}

/// References are equal if they are to the same namespace.
impl PartialEq for Net {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self, other)
    }
}

impl Eq for Net {}

// SAFETY: `get_net()` and `put_net()` take and drop references, and a referenced namespace is not
// freed.
unsafe impl AlwaysRefCounted for Net {
    fn inc_ref(&self) {
        // SAFETY: The count is not zero, as `self` is borrowed from a reference.
        unsafe { ibtrs_bindings::get_net(self.as_raw()) };
    }

    unsafe fn dec_ref(net: NonNull<Self>) {
        // SAFETY: By the trait's contract, the caller gives up a reference.
        unsafe { ibtrs_bindings::put_net(net.as_ref().as_raw()) }
    }
}
