// SPDX-License-Identifier: GPL-2.0

//! Safe abstractions over kernel facilities that the [`kernel`] crate lacks.
//!
//! This crate is independent of RDMA and of the transport that uses it. A driver that uses it needs
//! no `unsafe`. Each part exists because the kernel crate of Linux 7.3 lacks something, and can go
//! once the kernel crate has it. The parts marked with \* could move there as they are.
//!
//! | Part | Purpose | What the kernel crate would need |
//! |---|---|---|
//! | [`blk`] (disks) | multi-queue disks with per-request data | in `block::mq`: access to the fields of a request, errors at its end, per-request data of the driver, scatterlists, requeueing, several maps of hardware queues, polling, timeouts, quiesce and freeze, limits and features, opening and removal of a disk, attribute groups, uevents |
//! | [`blk`] (bios) | I/O to block devices of other drivers | opening and claiming block devices, their limits, bios,
//! plugs |
//! | [`configfs`] | directories that users make, files, links | in `configfs`: links, default groups, groups whose data is dropped with the last reference, files without an implementation each |
//! | [`crc`] \* | CRC-32C | `crc32c` |
//! | [`cred`] \* | the user of a task | `from_kuid` for the first user namespace |
//! | [`crypto`] \* | authentication codes | `hmac_sha256_*` |
//! | [`deque`] \* | double-ended queue | a `VecDeque` |
//! | [`file`] \* | devices and files without a name, with `poll` | in `miscdevice`: `poll`; `anon_inode_getfile`; a table of operations for other files; wait queues for `poll` that are dropped without waiting |
//! | [`fs`] \* | reading files of procfs and sysfs | `filp_open`, `kernel_read`, and lookups from the root of the first process |
//! | [`io`] | an I/O of any origin, passed to a transport with its type erased | nothing: a concept of this tree |
//! | [`keyring`] \* | keys that users load and only the kernel reads | `struct key`, `keyring_alloc`, `keyring_search` |
//! | [`log`] \* | rate-limited printing | `ratelimit_state`; it has `pr_*_once` only |
//! | [`mm`] \* | blocks of pages, allocation scopes, locks of reclaim | allocations of higher order and on a node, copies to memory that others write, `memalloc_*_save`, `fs_reclaim_acquire` |
//! | [`module`] \* | keeping a module loaded | a counted reference to a module: `try_module_get` |
//! | [`net`] \* | socket addresses, network namespaces | `struct sockaddr`, references to `struct net` |
//! | [`param`] | module parameters | strings, ranges and values that can be read in sysfs; `module!` has integers and booleans |
//! | [`percpu`] \* | counters, maxima and round-robin cursors | per-CPU memory |
//! | [`random`] \* | random numbers and UUIDs | `get_random_*`, `uuid_gen` |
//! | [`reboot`] \* | work before a reboot | `register_reboot_notifier` |
//! | [`ring`] \* | FIFO of fixed capacity | a queue that allocates once; taking the first of a `KVec` moves the rest |
//! | [`sg`] | scatterlists of fixed size inside an object | in `scatterlist`: tables that belong to their owner, filled from a request or a buffer; it maps whole tables of `struct device`s only |
//! | [`sync`] | references that teardown waits for, completions, slots, RCU pointers | `percpu_ref`; completions with time-outs and signals; a value handed over without a lock; a pointer replaced under RCU |
//! | [`sysfs`] | directories, attributes and links, classes of devices | kobjects, attributes and their removal by themselves, `class_create`, uevents |
//! | [`trace`] | trace events of a module | `tracepoint` looks up symbols in the kernel crate's bindings only |
//! | [`user`] \* | pages of programs that stay where they are, and the end of an address space | `pin_user_pages_fast`, `struct mmu_notifier` |
//! | [`work`] | work queues, and work that can be cancelled | private queues; cancelling, flushing, changing delays; works of objects with a per-CPU count |
//!
//! In the `# Context` sections, *any* means that the function may be called even in hard
//! interrupts; *may sleep* means that it needs process context, without spinlocks and RCU read
//! sections.
//!
//! # Owners must be dropped
//!
//! Each registration with the kernel has an owner, and ends when the owner is dropped: disks and
//! [`blk::DiskOwner`], tag sets, tables of bios, work items and queues, classes, devices,
//! directories, links, subsystems of configfs, [`file::Device`], [`reboot::RebootNotifier`], and
//! [`sync::PercpuOwner`]. Each drop waits for calls that may still be running or pending. A work
//! item that owns an `Arc` owns the object that embeds it: the reference is released after it has
//! run, so a module flushes its queue before it is unloaded.
//!
//! The kernel may call the driver's code as long as an owner exists. Therefore a module that passes
//! an owner to [`core::mem::forget`], leaks it or keeps it in a `static` must not be unloaded;
//! while it stays loaded, there is no memory error. No type can enforce that, as forgetting is safe
//! in Rust. The rule is: the module's own value drops every owner, or waits for the object that
//! drops it.

pub mod blk;
pub mod configfs;
pub mod crc;
pub mod cred;
pub mod crypto;
pub mod deque;
pub mod file;
pub mod fs;
pub mod io;
pub mod keyring;
pub mod log;
pub mod mm;
pub mod module;
pub mod net;
pub mod param;
pub mod percpu;
pub mod random;
pub mod reboot;
pub mod ring;
pub mod sg;
pub mod sync;
pub mod sysfs;
pub mod trace;
pub mod user;
pub mod work;

/// The prefix of this crate's log messages.
const __LOG_PREFIX: &[u8] = b"kx\0";
