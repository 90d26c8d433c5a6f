// SPDX-License-Identifier: GPL-2.0

//! Reboot notifiers: callbacks before an orderly reboot, halt or power-off.
//!
//! # Examples
//!
//! ```
//! # use kernel::prelude::*;
//! use kx::reboot::{RebootHandler, RebootNotifier};
//!
//! struct Stop;
//!
//! impl RebootHandler for Stop {
//!     fn reboot(&self) {
//!         // Flush what is left.
//!     }
//! }
//!
//! // As long as this lives.
//! let notifier = RebootNotifier::new(Stop)?;
//! # drop(notifier);
//! # Ok::<(), Error>(())
//! ```
//!
//! C header: [`include/linux/reboot.h`](srctree/include/linux/reboot.h)

use kernel::{
    bindings,
    error::to_result,
    ffi::{
        c_int,
        c_ulong,
        c_void, //
    },
    prelude::*,
    types::Opaque, //
};

/// A callback before a reboot.
pub trait RebootHandler: Send + Sync + 'static {
    /// Handles a reboot, halt or power-off that is about to begin. Devices and the network still
    /// work, and the shutdown waits until this returns.
    ///
    /// # Context
    ///
    /// *may sleep*.
    fn reboot(&self);
}

/// Calls its handler before a reboot, as long as this value lives.
///
/// Dropping it waits for a running call, and *may sleep*.
///
/// # Invariants
///
/// The notifier block of `inner` is registered.
pub struct RebootNotifier<H: RebootHandler> {
    inner: Pin<KBox<NotifierInner<H>>>,
}

/// The block is the first field, for the cast in [`notify`].
#[repr(C)]
#[pin_data]
struct NotifierInner<H> {
    #[pin]
    block: Opaque<bindings::notifier_block>,
    handler: H,
}

// SAFETY: The block has no thread affinity, and the handler is `Send`.
unsafe impl<H: RebootHandler> Send for RebootNotifier<H> {}

// SAFETY: No method takes a shared reference.
unsafe impl<H: RebootHandler> Sync for RebootNotifier<H> {}

impl<H: RebootHandler> RebootNotifier<H> {
    /// Registers `handler` for reboots.
    ///
    /// # Context
    ///
    /// *may sleep*.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`].
    pub fn new(handler: H) -> Result<Self> {
        let inner = KBox::pin_init(
            pin_init!(NotifierInner {
                block <- Opaque::ffi_init(|slot: *mut bindings::notifier_block| {
                    // SAFETY: `slot` is valid for writes, and nobody else uses it yet. Zeroes are a
                    // block without a successor and with the default priority.
                    unsafe { slot.write_bytes(0, 1) };
                    // SAFETY: As above.
                    unsafe { (*slot).notifier_call = Some(notify::<H>) };
                }),
                handler,
            }),
            GFP_KERNEL,
        )?;
        // SAFETY: The block is initialised and pinned, and stays valid until `drop` has taken it
        // off the list.
        to_result(unsafe { ibtrs_bindings::register_reboot_notifier(inner.block.get()) })?;
        // INVARIANT: The block was just registered.
        Ok(Self { inner })
    }
}

impl<H: RebootHandler> Drop for RebootNotifier<H> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the block is registered. The call waits for a running
        // handler, and cannot fail, as the block is in the list.
        unsafe { ibtrs_bindings::unregister_reboot_notifier(self.inner.block.get()) };
    }
}

/// Called by the kernel before a reboot.
///
/// # Safety
///
/// `block` must be the block of a registered [`NotifierInner`] of this type.
unsafe extern "C" fn notify<H: RebootHandler>(
    block: *mut bindings::notifier_block,
    _event: c_ulong,
    _data: *mut c_void,
) -> c_int {
    // CAST: The block is the first field of a `repr(C)` struct, and `Opaque` is transparent.
    // SAFETY: By this function's contract the block is part of an `NotifierInner`. It lives until this call
    // has returned, as dropping the notifier waits for the call, and is only shared until then.
    let handler = unsafe { &(*block.cast::<NotifierInner<H>>()).handler };
    handler.reboot();
    // NOTIFY_DONE, so that the kernel calls the other notifiers, too.
    0
}
