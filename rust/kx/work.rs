// SPDX-License-Identifier: GPL-2.0

//! Work queues of one's own, and work that can be cancelled.
//!
//! [`kernel::workqueue`] offers the system's queues and work that, once queued, always runs. Here
//! a driver makes a [`Queue`] of its own, which is empty before its code is unloaded, and embeds
//! [`Work`] and [`DelayedWork`] in its objects. While a work is queued it holds a reference to its
//! object; running, cancelling and nothing else give that back.
//!
//! Each work names its queue when it is created. The object thus keeps the queue alive, also while
//! only a timer is running.
//!
//! # Examples
//!
//! ```
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
    Options,
    Queue, //
};
