// SPDX-License-Identifier: GPL-2.0

//! The state of IBNBD and IBTRS on a machine, read from sysfs, and changes to it.
//!
//! Everything below a [`Root`] is read: `/` on a machine, any folder in a test. Nothing is kept
//! open, nothing is cached, and each file is opened once for each value. A file
//! that vanishes between the listing of its folder and the reading is left out; one that cannot be
//! read or makes no sense becomes a [`Note`].
//!
//! | Module | Contents |
//! |---|---|
//! | [`root`] | files below a root: reading, listing, writing |
//! | [`family`] | locations of the files of our modules and of the kernel's own |
//! | [`value`] | parsers of the contents of files |
//! | [`model`] | disks, sessions, paths and opened devices, and [`model::Machine`] with all of them |
//! | [`find`] | finds the objects that a user names |
//! | [`disk_name`] | names that disks have before they are mapped |
//! | [`host`] | modules, RDMA devices, block devices |
//! | [`folder`] | the folder of devices that a server exports |
//! | [`mapping`] | names of servers and sessions, and lines of `map_device` |
//! | [`discovery`] | lists of the exports that servers let this machine open |
//! | [`configfs`] | exports and hosts of a server in configfs, and their changes |
//! | [`prefix`] | prefixes of addresses |
//! | [`exchange`] | files that are written as a whole |
//! | [`config`] | the files in `/etc/ibtrs`, and the steps to the state that they describe |
//! | [`findings`] | faults of a machine, and their remedies |
//! | [`health`] | the health of a machine in one line |
//! | [`metrics`] | metrics in the format of Prometheus |
//! | [`program`] | other programs, and what they print |
//! | [`probe`] | measures which sizes of packets pass between the ends of paths |
//! | [`firewall`] | the rules of nftables |
//! | [`topology`] | disks, sessions and paths, exports and clients, and what hangs on what |
//! | [`trace`] | latency of each part of a request |
//! | [`uevent`] | uevents of the kernel |
//! | [`join`] | tokens, and the keys that servers and clients make of them |
//! | [`keyring`] | shared keys that the kernel has |
//! | [`outage`] | what is said of a session without a path |
//! | [`history`] | the last changes of sessions, paths and disks |
//! | [`clock`] | times, as people read them |
//! | [`planned`] | what is said of a server that was stopped as planned |
//! | [`kmsg`] | log lines of our modules |
//! | [`advice`] | explanations of error numbers, and advice |
//! | [`document`] | output as JSON and YAML, and its schema |

#![forbid(unsafe_code)]
#![warn(missing_docs, rust_2018_idioms, unreachable_pub)]

pub mod advice;
pub mod clock;
pub mod config;
pub mod configfs;
pub mod discovery;
pub mod disk_name;
pub mod document;
pub mod exchange;
pub mod family;
pub mod find;
pub mod findings;
pub mod firewall;
pub mod folder;
pub mod health;
pub mod history;
pub mod host;
pub mod join;
pub mod keyring;
pub mod kmsg;
pub mod mapping;
pub mod metrics;
pub mod model;
pub mod outage;
pub mod planned;
pub mod prefix;
pub mod probe;
mod program;
pub mod root;
pub mod topology;
pub mod trace;
#[cfg(test)]
#[path = "../tests/tree/mod.rs"]
mod tree;
pub mod uevent;
pub mod value;

pub use family::Family;
pub use model::{Disk, Machine, Note, Opened, Path, Session};
pub use root::Root;
