// SPDX-License-Identifier: GPL-2.0

//! Socket addresses and network namespaces.
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
/// Instances of this type are always refcounted.
#[repr(transparent)]
pub struct Net(Opaque<bindings::net>);

// SAFETY: A namespace belongs to no task.
unsafe impl Send for Net {}

// SAFETY: As above; there are no methods that change it.
unsafe impl Sync for Net {}

impl Net {
    /// The namespace of the current task.
    ///
    /// # Context
    ///
    /// Process context.
    pub fn current() -> ARef<Self> {
        // SAFETY: Only the task itself changes its own namespaces.
        let net = unsafe { ibtrs_bindings::kx_current_net() };
        if net.is_null() {
            return ARef::from(Self::init());
        }
        // CAST: `Net` is transparent.
        // SAFETY: The task holds a reference, which the result adds one to.
        ARef::from(unsafe { &*net.cast::<Self>() })
    }

    /// The first namespace, which is always there.
    pub fn init() -> &'static Self {
        // CAST: `Net` is transparent.
        // SAFETY: It is a static object.
        unsafe { &*(&raw const bindings::init_net).cast::<Self>() }
    }

    /// The C object.
    pub fn as_raw(&self) -> *mut bindings::net {
        self.0.get()
    }
}

/// Whether it is the same namespace.
impl PartialEq for Net {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self, other)
    }
}

impl Eq for Net {}

// SAFETY: `get_net()` and `put_net()` do what is asked for.
unsafe impl AlwaysRefCounted for Net {
    fn inc_ref(&self) {
        // SAFETY: The reference shows that the count is not zero.
        unsafe { ibtrs_bindings::get_net(self.as_raw()) };
    }

    unsafe fn dec_ref(net: NonNull<Self>) {
        // SAFETY: By the function's requirement there is a reference to give back.
        unsafe { ibtrs_bindings::put_net(net.as_ref().as_raw()) }
    }
}
