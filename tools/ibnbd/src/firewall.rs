// SPDX-License-Identifier: GPL-2.0

//! The rules of the machine's firewall.

use std::io;
use std::time::Duration;

use serde_json::Value;

use crate::program;
use crate::root::Root;

/// How long `nft` may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);

/// The rules of the machine as `nft` has them.
///
/// # Errors
///
/// The system's where there is no such program; `TimedOut` if it does not end, and `Other` if it
/// fails, without rights for example.
pub fn rules(root: &Root) -> io::Result<Value> {
    let mut nft = program::command(root, "nft");
    nft.args(["-j", "list", "ruleset"]);
    Ok(serde_json::from_slice(&program::output(nft, LIMIT)?)?)
}
