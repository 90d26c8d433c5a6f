// SPDX-License-Identifier: GPL-2.0

//! Safe abstractions over kernel facilities that the [`kernel`] crate lacks.
//!
//! Nothing here knows of RDMA or of the transport that uses it. A driver written against this crate
//! needs no `unsafe`. Each part exists because the kernel crate lacks something; a part marked with
//! \* could move there as it is.
//!
//! | Part | Purpose | What the kernel crate lacks |
//! |---|---|---|
//! | [`blk`] (disks) | multi-queue disks with per-request data | in `block::mq`: request accessors, errors at the end of a request, several hardware queues, polling, timeouts, quiesce, flags, per-request initialisers, attribute groups |
//! | [`blk`] (bios) | I/O to block devices | opening a block device, bios |
//! | [`fs`] \* | reading files of procfs and sysfs | `kernel_read` |
//! | [`io`], [`sg`] | an I/O of any origin for a transport, and its scatterlist | scatterlists of fixed size inside an object, chaining excluded; [`io`] is a concept of this tree |
//! | [`log`] \* | rate-limited printing | `ratelimit_state`; it has `pr_*_once` only |
//! | [`mm`] \* | blocks of pages, allocation scopes | allocations of higher order, `memalloc_*_save` |
//! | [`module`] \* | keeping a module loaded | `try_module_get` |
//! | [`net`] \* | socket addresses, network namespaces | `struct sockaddr`, references to `struct net` |
//! | [`param`] | module parameters | strings, ranges, visibility in sysfs |
//! | [`percpu`] \* | counters, maxima and round-robin cursors | per-CPU memory |
//! | [`random`] \* | random numbers and UUIDs | `get_random_*`, `uuid_gen` |
//! | [`ring`] | FIFO of fixed capacity | a ring that allocates once; `KVec` shifts |
//! | [`sync`] | references that teardown waits for, completions, RCU pointers | `percpu_ref`; completions with time-outs and signals; a pointer replaced under RCU |
//! | [`sysfs`] | directories, attributes and links, classes of devices | kobjects, attributes, `class_create` |
//! | [`trace`] | trace events of a module | `tracepoint` resolves symbols of the kernel crate's bindings only |
//! | [`work`] | work queues, and work that can be cancelled | own queues, cancel and flush, works on a given CPU |
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
pub mod work;

/// The prefix of what this crate prints.
const __LOG_PREFIX: &[u8] = b"kx\0";
