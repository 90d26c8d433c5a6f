// SPDX-License-Identifier: GPL-2.0

//! Plugs, which collect the I/O of a thread so that it reaches the drivers in one batch.
//!
//! [`kernel::block`] has no counterpart.
//!
//! # Examples
//!
//! ```
//! use kx::blk;
//!
//! let submitted = blk::plugged(
//!     || {
//!         // Submit some I/O.
//!         3
//!     },
//!     || {
//!         // The I/O so far is on its way.
//!     },
//! );
//! # let _ = submitted;
//! ```
//!
//! C header: [`include/linux/blkdev.h`](srctree/include/linux/blkdev.h)

use core::{
    cell::Cell,
    ffi::c_void,
    marker::PhantomPinned,
    pin::pin, //
};
use kernel::{
    bindings,
    types::Opaque, //
};

/// Collects the I/O that `f` submits, and passes it to the drivers of the devices in one batch.
///
/// If the thread goes to sleep during `f`, the I/O collected so far is passed on. `sleeps` is
/// called before the first time. It is also called where a sleep might go unnoticed: before
/// requests go to a driver that may sleep (`BLK_MQ_F_BLOCKING`), or when code called by `f` flushes
/// the plug. If the thread already has a plug, that plug collects the I/O, and `sleeps` is not
/// called.
///
/// # Context
///
/// *may sleep*; `sleeps` must not.
pub fn plugged<R, S: Fn()>(f: impl FnOnce() -> R, sleeps: S) -> R {
    let plug: Opaque<bindings::blk_plug> = Opaque::uninit();
    let watch = Watch {
        sleeps,
        finishing: Cell::new(false),
    };
    let callback = pin!(Callback::new(&watch));
    // SAFETY: The plug, the callback and `watch` stay on this stack until the plug is finished
    // below, and only this thread calls the callback, while it has the plug. The helper adds the
    // callback only if the plug is the thread's, so that its list is initialized.
    unsafe {
        bindings::blk_start_plug(plug.get());
        ibtrs_bindings::kx_plug_callback(plug.get().cast(), callback.callback.get().cast());
    }
    let result = f();
    // SAFETY: Both are still on this stack. The helper reads the plug only if it is the thread's:
    // then its lists are initialized, and its requests belong to this thread until they are passed
    // on.
    let may_sleep = unsafe {
        ibtrs_bindings::kx_plug_may_sleep(plug.get().cast(), callback.callback.get().cast())
    };
    if may_sleep {
        (watch.sleeps)();
    }
    watch.finishing.set(true);
    // SAFETY: This thread has started the plug above. Afterwards no callback is on the plug's list.
    unsafe { bindings::blk_finish_plug(plug.get()) };
    result
}

/// The data of a plug's callback.
struct Watch<S> {
    sleeps: S,
    /// Whether the plug is flushed because `plugged` finishes it.
    finishing: Cell<bool>,
}

/// A callback of a plug.
struct Callback {
    callback: Opaque<bindings::blk_plug_cb>,
    _pin: PhantomPinned,
}

impl Callback {
    fn new<S: Fn()>(watch: &Watch<S>) -> Self {
        Self {
            callback: Opaque::new(bindings::blk_plug_cb {
                callback: Some(call::<S>),
                data: core::ptr::from_ref(watch).cast_mut().cast::<c_void>(),
                ..bindings::blk_plug_cb::default()
            }),
            _pin: PhantomPinned,
        }
    }
}

/// # Safety
///
/// `callback` must be one of [`Callback::new`] for this type, whose [`Watch`] is live, and the
/// thread that created it must call this.
unsafe extern "C" fn call<S: Fn()>(callback: *mut bindings::blk_plug_cb, from_schedule: bool) {
    // SAFETY: By this function's contract.
    let watch = unsafe { &*(*callback).data.cast::<Watch<S>>() };
    if from_schedule || !watch.finishing.get() {
        (watch.sleeps)();
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_blk_plug)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use kernel::time::{
        delay::fsleep,
        Delta, //
    };

    /// Longer than it takes from the start of a timer to the sleep, even on slow machines: if the timer
    /// has already expired, the thread does not sleep.
    const LONG: Delta = Delta::from_millis(100);

    #[test]
    fn hears_of_sleep_once() {
        let (calls, within) = (Cell::new(0), Cell::new(0));
        let sleeps = || calls.set(calls.get() + 1);
        assert_eq!(plugged(|| 5, sleeps), 5);
        assert_eq!(calls.get(), 0);
        plugged(
            || {
                fsleep(LONG);
                within.set(calls.get());
                fsleep(LONG);
            },
            sleeps,
        );
        assert_eq!((within.get(), calls.get()), (1, 1));
    }

    /// The outer plug is the thread's, and gets the call.
    #[test]
    fn plugs_in_plugs() {
        let (outer, inner) = (Cell::new(0), Cell::new(0));
        plugged(
            || plugged(|| fsleep(LONG), || inner.set(inner.get() + 1)),
            || outer.set(outer.get() + 1),
        );
        assert_eq!((outer.get(), inner.get()), (1, 0));
    }
}
