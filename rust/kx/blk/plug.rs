// SPDX-License-Identifier: GPL-2.0

//! Plugs: I/O of a thread that reaches the drivers in one batch.
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

/// Collects the I/O that `f` submits, and hands it to the device's driver in one batch.
///
/// If the thread goes to sleep meanwhile, the I/O collected so far is handed over then; the first
/// time, after a call of `sleeps`. `sleeps` is also called when the thread may sleep unnoticed:
/// before requests go to a driver that may sleep (`BLK_MQ_F_BLOCKING`), or when code below flushes
/// the plug. It is not called if the thread has a plug already.
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
    // SAFETY: The plug stays on this stack until it is finished below, and so does the callback,
    // which is pinned, and called only by this thread while it has the plug.
    unsafe {
        bindings::blk_start_plug(plug.get());
        ibtrs_bindings::kx_plug_callback(plug.get().cast(), callback.callback.get().cast());
    }
    let result = f();
    // SAFETY: Both are still on this stack. If the plug is the thread's, its lists are this
    // thread's, and its requests belong to it until they are handed over.
    let may_sleep = unsafe {
        ibtrs_bindings::kx_plug_may_sleep(plug.get().cast(), callback.callback.get().cast())
    };
    if may_sleep {
        (watch.sleeps)();
    }
    watch.finishing.set(true);
    // SAFETY: Started above by this thread. No callback is on the plug's list afterwards.
    unsafe { bindings::blk_finish_plug(plug.get()) };
    result
}

/// The data of a plug's callback.
struct Watch<S> {
    sleeps: S,
    /// The plug is flushed because it is finished, not by code below.
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
/// `callback` must be one of [`Callback::new`] for this type, whose [`Watch`] lives; called by the
/// thread that created it.
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

    #[test]
    fn hears_of_sleep_once() {
        let (calls, within) = (Cell::new(0), Cell::new(0));
        let sleeps = || calls.set(calls.get() + 1);
        assert_eq!(plugged(|| 5, sleeps), 5);
        assert_eq!(calls.get(), 0);
        plugged(
            || {
                fsleep(Delta::from_millis(2));
                within.set(calls.get());
                fsleep(Delta::from_millis(2));
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
            || {
                plugged(
                    || fsleep(Delta::from_millis(2)),
                    || inner.set(inner.get() + 1),
                )
            },
            || outer.set(outer.get() + 1),
        );
        assert_eq!((outer.get(), inner.get()), (1, 0));
    }
}
