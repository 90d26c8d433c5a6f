// SPDX-License-Identifier: GPL-2.0

//! A closure as a work item.
//!
//! The kernel crate has the same, but its lock class has one key for all modules and a name in each:
//! lockdep warns as soon as a second module queues a closure.

use kernel::{
    impl_has_work,
    prelude::*,
    static_lock_class,
    sync::LockClassKey,
    workqueue::{
        Work,
        WorkItem, //
    },
};

/// A function that a queue runs once.
#[pin_data]
pub(super) struct Closure<F> {
    #[pin]
    work: Work<Closure<F>>,
    func: Option<F>,
}

impl_has_work! {
    impl{F} HasWork<Self> for Closure<F> { self.work }
}

/// Of no type of the caller's, and never inlined, so that name and key are the same in every module.
#[inline(never)]
fn lock_class() -> (&'static CStr, Pin<&'static LockClassKey>) {
    (c"work::Closure", static_lock_class!())
}

impl<F: FnOnce()> Closure<F> {
    pub(super) fn new(func: F) -> impl PinInit<Self> {
        let (name, key) = lock_class();
        pin_init!(Self {
            work <- Work::new(name, key),
            func: Some(func),
        })
    }
}

impl<F: FnOnce()> WorkItem for Closure<F> {
    type Pointer = Pin<KBox<Self>>;

    fn run(mut this: Pin<KBox<Self>>) {
        if let Some(func) = this.as_mut().project().func.take() {
            func();
        }
    }
}
