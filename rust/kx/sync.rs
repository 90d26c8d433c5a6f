// SPDX-License-Identifier: GPL-2.0

//! Synchronisation primitives that [`kernel::sync`] lacks.
//!
//! | Type | Purpose |
//! |---|---|
//! | [`PercpuArc`] | a shared object whose teardown waits for its users, with a per-CPU count |
//! | [`Completion`] | waiting for one event, with time-outs and signals |
//! | [`TakeCell`] | handing one value from one context to another, without a lock |
//! | [`RcuPtr`] | publishing a value that readers reach without a lock |
//!
//! [`atomic`] and [`SetOnce`] do the same as their counterparts in the kernel crate, with fewer
//! calls.

pub mod atomic;
mod completion;
mod percpu_arc;
mod rcu_ptr;
mod set_once;
mod take_cell;

pub use completion::Completion;
pub use percpu_arc::{
    PercpuArc,
    PercpuEnd,
    PercpuOwner, //
};
pub use rcu_ptr::{
    RcuPtr,
    Retired, //
};
pub use set_once::SetOnce;
pub use take_cell::TakeCell;
