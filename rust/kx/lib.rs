// SPDX-License-Identifier: GPL-2.0

//! Safe abstractions over kernel facilities that the [`kernel`] crate lacks.
//!
//! Nothing here knows of RDMA or of the transport that uses it; each module could move to the
//! kernel crate as it is. A driver written against this crate needs no `unsafe`.
//!
//! | Module | What for |
//! |---|---|
//! | [`blk`] | drivers of disks with per-request data, I/O to block devices |
//! | [`fs`] | files of procfs and sysfs |
//! | [`io`], [`sg`] | an I/O of any origin for a transport, and its scatterlist |
//! | [`log`] | rate-limited printing |
//! | [`mm`] | blocks of pages, allocation scopes |
//! | [`module`] | keeping a module loaded |
//! | [`net`] | socket addresses, network namespaces |
//! | [`param`] | module parameters that are strings, have ranges, and show in sysfs |
//! | [`percpu`] | counters and maxima that each CPU keeps for itself |
//! | [`ring`] | queues of a fixed size |
//! | [`random`], [`uuid`] | random numbers and identifiers |
//! | [`sync`] | references that teardown waits for, completions, RCU pointers |
//! | [`sysfs`] | directories, files and links, classes of devices |
//! | [`trace`] | trace events of our own |
//! | [`work`] | work queues of one's own, and work that can be cancelled |
//!
//! The words of the `# Context` sections: *any* is callable from hard interrupts too; *may sleep*
//! needs process context without spinlocks and RCU read sections.
//!
//! # Owners are dropped
//!
//! What is registered with the kernel ends when its owner is dropped: disks and [`blk::DiskOwner`],
//! tag sets, tables of bios, works and queues, classes, devices, directories, links, and
//! [`sync::PercpuOwner`]. Each drop waits for the calls that may still come. A driver's code may
//! be called as long as one of them exists, so a module that passes an owner to
//! [`core::mem::forget`], leaks it or keeps it in a `static` must not be unloaded: there is no
//! memory error as long as it stays loaded, and nothing but its being loaded prevents one. No
//! type can ask for that, as forgetting is safe in Rust; the rule is that owners are part of what
//! the module's own value, or an object that this waits for, drops.

pub mod blk;
pub mod fs;
pub mod io;
pub mod log;
pub mod mm;
pub mod module;
pub mod net;
pub mod param;
pub mod percpu;
pub mod random;
pub mod ring;
pub mod sg;
pub mod sync;
pub mod sysfs;
pub mod trace;
pub mod uuid;
pub mod work;

/// The prefix of what this crate prints.
const __LOG_PREFIX: &[u8] = b"kx\0";
