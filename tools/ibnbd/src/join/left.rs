// SPDX-License-Identifier: GPL-2.0

//! Keys of hosts whose removal was interrupted.
//!
//! A command that removes a host sets the files of its keys aside first. If it is killed, these files tell a later
//! command which keys were to go. No other key is taken for one of a host that is gone: servers without hosts and
//! clients that map by hand have keys of sessions that neither configfs nor `/etc/ibtrs` names.

use super::{joined, store};
use crate::configfs;
use crate::family::Side;
use crate::model::Machine;
use crate::root::Root;

/// The hosts that are gone and have keys that are set aside. Other users than root see none.
pub fn hosts(root: &Root, machine: &Machine) -> Vec<String> {
    let mut names = store::sessions_aside(root).unwrap_or_default();
    names.retain(|name| is_left(root, machine, name));
    names
}

/// Whether a host is gone and has keys that are set aside, and nobody else uses its name: neither a host that was
/// made again nor a session of this machine as a client.
pub fn is_left(root: &Root, machine: &Machine, name: &str) -> bool {
    // Without the list, this machine may have joined any server.
    let is_joined = joined::all(root).map_or(true, |all| all.iter().any(|one| one.session == name));
    !store::files_aside(root, name).is_empty()
        && !root.exists(&configfs::host_folder(name))
        && !is_joined
        && machine.our(Side::Client, name).is_none()
}
