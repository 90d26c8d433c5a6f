// SPDX-License-Identifier: GPL-2.0

//! What a machine has of IBNBD and IBTRS, read from sysfs, and what is done to it there.
//!
//! Everything below a [`Root`] is read: `/` on a machine, any folder in a test. Nothing is kept
//! open, nothing is cached, and each file is opened once for each value. What vanishes between the
//! listing of a folder and the reading of its files is left out; what cannot be read or makes no
//! sense is told as a [`Note`] beside the rest.
//!
//! | Module | Contents |
//! |---|---|
//! | [`root`] | files below a root: reading, listing, writing |
//! | [`family`] | where our modules and the kernel's own have their files |
//! | [`value`] | what the files say, as values |
//! | [`model`] | disks, sessions, paths and opened devices, and [`model::Machine`] with all of them |
//! | [`find`] | which of these a user means |
//! | [`host`] | modules, RDMA devices, block devices |
//! | [`folder`] | the folder of devices that a server exports |
//! | [`mapping`] | servers' names, sessions' names and lines of `map_device` |
//! | [`config`] | what the files in `/etc/ibtrs` want, and how a machine gets there |
//! | [`findings`] | what is wrong with a machine, and the remedies |
//! | [`health`] | the same in one line |
//! | [`metrics`] | numbers in the format of Prometheus |
//! | [`trace`] | where the time of a request goes |
//! | [`uevent`] | events of the kernel |
//! | [`kmsg`] | lines of the kernel's log |
//! | [`advice`] | error numbers in words, and what helps |
//! | [`document`] | what is printed as JSON and YAML, and its schema |

#![forbid(unsafe_code)]
#![warn(missing_docs, rust_2018_idioms, unreachable_pub)]

pub mod advice;
pub mod config;
pub mod document;
pub mod family;
pub mod find;
pub mod findings;
pub mod folder;
pub mod health;
pub mod host;
pub mod kmsg;
pub mod mapping;
pub mod metrics;
pub mod model;
pub mod root;
pub mod trace;
pub mod uevent;
pub mod value;

pub use family::Family;
pub use model::{Disk, Machine, Note, Opened, Path, Session};
pub use root::Root;
