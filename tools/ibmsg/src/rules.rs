// SPDX-License-Identifier: GPL-2.0

//! Rules: who may bind portals, open channels over sessions, and use portals from other machines.
//!
//! They are in force as directories in configfs, and those that last are in a file. Documentation/messages.md, "Who may
//! use it", has both.

mod configfs;
mod file;
mod ids;

pub use configfs::{Change, Place, Rules, Settings, State, Value};
pub use file::{parse, Numbers};
pub use ids::{number, number_by, Getent, Of};

/// Where the operator writes rules that last.
pub const FILE: &str = "/etc/ibtrs/messages.toml";
/// Where the rules in force are.
pub const CONFIGFS: &str = "/sys/kernel/config/ibmsg";
