// SPDX-License-Identifier: GPL-2.0

//! Per-CPU counters, maxima and round-robin cursors.
//!
//! Counting in interrupts writes to no memory that other CPUs write to; readers add up.
//!
//! C header: [`include/linux/percpu.h`](srctree/include/linux/percpu.h)

mod array;
mod counters;

pub use array::is_possible;
pub use counters::{
    Counters,
    Maxima,
    RoundRobin, //
};
