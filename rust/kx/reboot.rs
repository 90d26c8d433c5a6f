// SPDX-License-Identifier: GPL-2.0

//! Reboot notifiers: callbacks before an orderly reboot, halt or power-off.
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
    /// The machine is about to be rebooted, halted or switched off. Devices and network still work;
    /// what follows waits until this returns.
    ///
    /// # Context
    ///
    /// *may sleep*.
    fn reboot(&self);
}

/// Calls its handler before a reboot, as long as it lives.
///
/// Dropping it waits for a call that runs.
///
/// # Invariants
///
/// The notifier block of `inner` is registered.
pub struct RebootNotifier<H: RebootHandler> {
    inner: Pin<KBox<Inner<H>>>,
}

/// The block comes first, for the cast in [`notify`].
#[repr(C)]
#[pin_data]
struct Inner<H> {
    #[pin]
    block: Opaque<bindings::notifier_block>,
    handler: H,
}

// SAFETY: The block belongs to no task, and the handler may be sent.
unsafe impl<H: RebootHandler> Send for RebootNotifier<H> {}

// SAFETY: There is nothing to be done with a reference.
unsafe impl<H: RebootHandler> Sync for RebootNotifier<H> {}

impl<H: RebootHandler> RebootNotifier<H> {
    /// Has the handler called from now on.
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
            pin_init!(Inner {
                block <- Opaque::ffi_init(|slot: *mut bindings::notifier_block| {
                    // SAFETY: The memory is nobody's yet; zeros are a block without successor and
                    // of the usual priority.
                    unsafe { slot.write_bytes(0, 1) };
                    // SAFETY: As above.
                    unsafe { (*slot).notifier_call = Some(notify::<H>) };
                }),
                handler,
            }),
            GFP_KERNEL,
        )?;
        // SAFETY: The block is initialised and does not move; it stays until `drop` has taken it
        // out of the list.
        to_result(unsafe { ibtrs_bindings::register_reboot_notifier(inner.block.get()) })?;
        // INVARIANT: It was registered.
        Ok(Self { inner })
    }
}

impl<H: RebootHandler> Drop for RebootNotifier<H> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the block is registered. This waits for its calls. It
        // cannot fail, as the block is in the list.
        unsafe { ibtrs_bindings::unregister_reboot_notifier(self.inner.block.get()) };
    }
}

/// Called by C.
///
/// # Safety
///
/// `block` must be that of an [`Inner`] of this type that is registered.
unsafe extern "C" fn notify<H: RebootHandler>(
    block: *mut bindings::notifier_block,
    _event: c_ulong,
    _data: *mut c_void,
) -> c_int {
    // CAST: The block is the first field of a `repr(C)` struct, and `Opaque` is transparent.
    // SAFETY: By the function's requirement the block is part of an `Inner`, which whoever drops the
    // notifier keeps until this call has returned. The handler is only shared.
    let handler = unsafe { &(*block.cast::<Inner<H>>()).handler };
    handler.reboot();
    // NOTIFY_DONE: the others are to hear of it as well.
    0
}
