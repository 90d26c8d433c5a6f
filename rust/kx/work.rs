// SPDX-License-Identifier: GPL-2.0

//! Work queues that belong to a driver, and work items that can be cancelled.
//!
//! [`kernel::workqueue`] offers the system's queues, and work items that always run once they are
//! queued. Here, a driver creates its own [`Queue`], which is empty before the driver is unloaded,
//! and embeds [`Work`] and [`DelayedWork`] in its objects. A queued work item owns a reference to
//! its object. The reference passes to the function of the work item when it runs, and is dropped
//! when the work item is cancelled.
//!
//! Each work item gets its queue when it is created, so the object keeps the queue alive, even
//! while only a timer is running.
//!
//! # Examples
//!
//! ```
//! # use kernel::prelude::*;
//! use kx::{sync::{PercpuArc, PercpuOwner}, work::*};
//!
//! #[pin_data]
//! struct Link {
//!     #[pin]
//!     close: Work<Self, 1>,
//!     #[pin]
//!     reconnect: DelayedWork<Self, 2>,
//! }
//!
//! kx::impl_has_work! {
//!     impl HasWork<Work<Self, 1>> for Link { self.close }
//!     impl HasWork<DelayedWork<Self, 2>> for Link { self.reconnect }
//! }
//!
//! impl WorkItem<1> for Link {
//!     type Pointer = PercpuArc<Self>;
//!     fn run(this: PercpuArc<Self>) {
//!         this.reconnect.enqueue_in(this.clone(), 1000);
//!     }
//! }
//!
//! impl WorkItem<2> for Link {
//!     type Pointer = PercpuArc<Self>;
//!     fn run(_this: PercpuArc<Self>) {}
//! }
//!
//! let queue = Queue::new(Options::ordered().mem_reclaim(), fmt!("link-{}", 1))?;
//! let link = PercpuOwner::pin_init(try_pin_init!(Link {
//!     close <- kx::new_work!(queue.clone(), "Link::close"),
//!     reconnect <- kx::new_delayed_work!(queue, "Link::reconnect"),
//! }? Error))?;
//! link.close.enqueue(link.get());
//! link.close.flush();
//! link.reconnect.cancel_sync();
//! # Ok::<(), Error>(())
//! ```
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

mod delayed;
mod item;
mod queue;

pub use crate::{
    impl_has_work,
    new_delayed_work,
    new_work, //
};
pub use delayed::DelayedWork;
pub use item::{
    HasWork,
    Work,
    WorkItem,
    WorkPointer, //
};
pub use queue::{
    flush_later,
    later,
    Options,
    Queue,
    QueueDestroyer, //
};

/// Yields the processor if another task is to run on it; for long loops.
///
/// # Context
///
/// *may sleep*
pub fn cond_resched() {
    // SAFETY: By this function's contract the context may sleep.
    unsafe { ibtrs_bindings::kx_cond_resched() }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_work)]
mod tests {
    use super::*;
    use crate::sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Completion,
        PercpuArc,
        PercpuOwner, //
    };
    use kernel::{
        prelude::*,
        sync::Arc,
        time::{
            delay::fsleep,
            Delta, //
        }, //
    };

    #[pin_data]
    struct Item {
        #[pin]
        now: Work<Self, 1>,
        #[pin]
        later: DelayedWork<Self, 2>,
        runs: Atomic<u32>,
        /// The work item waits for this.
        #[pin]
        release: Completion,
        #[pin]
        started: Completion,
    }

    impl_has_work! {
        impl HasWork<Work<Self, 1>> for Item { self.now }
        impl HasWork<DelayedWork<Self, 2>> for Item { self.later }
    }

    impl WorkItem<1> for Item {
        type Pointer = PercpuArc<Self>;

        fn run(this: PercpuArc<Self>) {
            this.started.complete_all();
            this.release.wait();
            this.runs.fetch_add(1, Relaxed);
        }
    }

    impl WorkItem<2> for Item {
        type Pointer = PercpuArc<Self>;

        fn run(this: PercpuArc<Self>) {
            this.runs.fetch_add(100, Relaxed);
        }
    }

    fn item() -> Result<PercpuOwner<Item>> {
        let queue = Queue::new(Options::ordered(), fmt!("kx-work-test"))?;
        PercpuOwner::pin_init(try_pin_init!(Item {
            now <- new_work!(queue.clone(), "Item::now"),
            later <- new_delayed_work!(queue, "Item::later"),
            runs: Atomic::new(0),
            release <- Completion::new(),
            started <- Completion::new(),
        }? Error))
    }

    #[test]
    fn runs_once_for_each_time() -> Result {
        let item = item()?;
        item.release.complete_all();
        assert!(!item.now.flush());
        for runs in 1..4 {
            assert!(item.now.enqueue(item.get()));
            item.now.flush();
            assert_eq!(item.runs.load(Relaxed), runs);
        }
        assert!(!item.now.cancel_sync());
        Ok(())
    }

    #[test]
    fn cancelled_gives_its_reference_back() -> Result {
        let item = item()?;
        // One item runs, so on an ordered queue the other does not.
        assert!(item.now.enqueue(item.get()));
        item.started.wait();
        assert!(item.now.enqueue(item.get()));
        assert!(!item.now.enqueue(item.get()));
        assert!(item.now.cancel());
        assert!(!item.now.cancel());
        assert!(item.now.enqueue(item.get()));
        item.release.complete_all();
        item.now.disable_sync();
        assert!(!item.now.enqueue(item.get()));
        // This would not return if a reference were lost.
        drop(item);
        Ok(())
    }

    #[test]
    fn delayed() -> Result {
        let item = item()?;
        let hour = 3_600_000;
        assert!(item.later.enqueue_in(item.get(), hour));
        assert!(!item.later.enqueue(item.get()));
        assert!(item.later.cancel());
        assert!(item.later.modify(item.get(), hour));
        assert!(!item.later.modify(item.get(), hour));
        assert!(item.later.cancel_sync());
        assert!(!item.later.cancel_sync());
        assert_eq!(item.runs.load(Relaxed), 0);

        assert!(item.later.enqueue_in(item.get(), hour));
        assert!(!item.later.modify(item.get(), 0));
        item.later.flush();
        assert_eq!(item.runs.load(Relaxed), 100);
        assert!(item.later.enqueue_in(item.get(), hour));
        item.later.flush();
        assert_eq!(item.runs.load(Relaxed), 200);

        assert!(item.later.enqueue_in(item.get(), hour));
        assert!(item.later.disable_sync());
        assert!(!item.later.modify(item.get(), 0));
        assert!(!item.later.enqueue(item.get()));
        assert_eq!(item.runs.load(Relaxed), 200);
        drop(item);
        Ok(())
    }

    /// An object whose work item holds the last reference to it and to its queue.
    #[pin_data]
    struct Alone {
        #[pin]
        work: Work<Self>,
        done: Arc<Completion>,
    }

    impl_has_work! {
        impl HasWork<Work<Self>> for Alone { self.work }
    }

    impl WorkItem for Alone {
        type Pointer = Arc<Self>;

        fn run(this: Arc<Self>) {
            let done = this.done.clone();
            drop(this);
            done.complete_all();
        }
    }

    #[test]
    fn last_reference_on_its_own_worker() -> Result {
        let queue = Queue::new(Options::ordered(), fmt!("kx-alone"))?;
        let done = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
        let release = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
        let (passed, ended) = (release.clone(), done.clone());
        queue.spawn(GFP_KERNEL, move || passed.wait())?;
        let alone = Arc::pin_init(
            try_pin_init!(Alone {
                work <- new_work!(queue, "Alone::work"),
                done: ended,
            }? Error),
            GFP_KERNEL,
        )?;
        assert!(alone.work.enqueue(alone.clone()));
        drop(alone);
        release.complete_all();
        assert_eq!(done.wait_timeout(10_000), Ok(()));
        Ok(())
    }

    /// Unloading waits for a queue that ends like this, because it empties the destroyer's queue. A
    /// system queue might still run code of this module then.
    #[test]
    fn the_destroyer_waits_for_its_queues() -> Result {
        let queue = Queue::new(Options::ordered(), fmt!("kx-destroyed"))?;
        let event = || Arc::pin_init(Completion::new(), GFP_KERNEL);
        let (release, left) = (event()?, event()?);
        let ended = Arc::new(Atomic::new(0u32), GFP_KERNEL)?;
        let (its_own, done) = (queue.clone(), event()?);
        let alone = Arc::pin_init(
            try_pin_init!(Alone {
                work <- new_work!(its_own, "Alone::work"),
                done,
            }? Error),
            GFP_KERNEL,
        )?;
        let released = release.clone();
        queue.spawn(GFP_KERNEL, move || released.wait())?;
        assert!(alone.work.enqueue(alone.clone()));
        let (has_left, has_ended) = (left.clone(), ended.clone());
        // On an ordered queue this begins after the work item has passed the queue to the
        // destroyer.
        queue.spawn(GFP_KERNEL, move || {
            has_left.complete_all();
            fsleep(Delta::from_millis(500));
            has_ended.store(1, Relaxed);
        })?;
        drop((alone, queue));
        release.complete_all();
        assert_eq!(left.wait_timeout(10_000), Ok(()));
        assert_eq!(ended.load(Relaxed), 0);
        queue::flush_later();
        assert_eq!(ended.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn queue_ends_empty() -> Result {
        let runs = Arc::new(Atomic::new(0u32), GFP_KERNEL)?;
        let queue = Queue::new(Options::unbound().mem_reclaim(), fmt!("kx-spawn"))?;
        for _ in 0..10 {
            let runs = runs.clone();
            queue.spawn(GFP_KERNEL, move || {
                runs.fetch_add(1, Relaxed);
            })?;
        }
        drop(queue);
        assert_eq!(runs.load(Relaxed), 10);
        Ok(())
    }

    /// lockdep reports a deadlock unless the functions of each queue have their own lock class.
    #[test]
    fn a_function_ends_another_queue() -> Result {
        let (inner, outer) = (
            Queue::new(Options::ordered(), fmt!("kx-inner"))?,
            Queue::new(Options::ordered(), fmt!("kx-outer"))?,
        );
        inner.spawn(GFP_KERNEL, || {})?;
        outer.spawn(GFP_KERNEL, move || drop(inner))?;
        drop(outer);
        Ok(())
    }
}
