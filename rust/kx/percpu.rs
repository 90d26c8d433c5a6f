// SPDX-License-Identifier: GPL-2.0

//! Counters, maxima and turns that each CPU keeps for itself.
//!
//! What is counted in interrupts touches no memory that other CPUs write to; who reads adds up.
//!
//! C header: [`include/linux/percpu.h`](srctree/include/linux/percpu.h)

mod array;
mod counters;
mod maxima;
mod round_robin;

pub use array::is_possible;
pub use counters::Counters;
pub use maxima::Maxima;
pub use round_robin::RoundRobin;
