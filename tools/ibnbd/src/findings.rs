// SPDX-License-Identifier: GPL-2.0

//! Faults of a machine, and their remedies.

mod boot;
mod client;
mod exports;
mod interrupts;
mod messages;
mod network;
mod ports;
mod server;
mod versions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::family::Side;
use crate::host::{self, Port};
use crate::model::{Machine, Note};
use crate::probe::Measured;
use crate::root::Root;

pub use network::links;

/// How bad it is.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something does not work.
    Error,
    /// Something works less well or less safely than it should.
    Warning,
    /// Something could be better.
    Hint,
}

impl Severity {
    /// As in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Hint => "hint",
        }
    }
}

/// Something that is wrong.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The fault, in one line.
    pub what: String,
    /// The command that mends it, or what to do.
    pub remedy: String,
}

impl Finding {
    fn new(severity: Severity, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            severity,
            what: what.into(),
            remedy: remedy.into(),
        }
    }
}

/// Below this a RoCE packet cannot carry 4 KiB.
const GOOD_MTU: u64 = 4200;

/// All that is wrong, the worst first; `measured` is what was found of [`links`].
pub fn all(root: &Root, machine: &Machine, measured: &[Measured]) -> Vec<Finding> {
    let mut found = modules(root, machine.messages.is_loaded);
    found.append(&mut versions::all(root));
    found.append(&mut rdma(&host::ports(root)));
    found.append(&mut network::all(root, machine, measured));
    found.append(&mut interrupts::all(root));
    found.append(&mut client::all(root, machine));
    found.append(&mut server::all(root, machine));
    found.append(&mut messages::all(root, machine));
    found.append(&mut boot::all(root, machine));
    found.extend(machine.notes.iter().map(of_note));
    found.sort_by_key(|finding| finding.severity);
    found
}

fn of_note(note: &Note) -> Finding {
    let what = format!("{}: {}", note.file, note.why);
    Finding::new(Severity::Warning, what, "report it: ibnbd report")
}

/// Messages between programs of one machine need neither of the two.
fn modules(root: &Root, has_messages: bool) -> Vec<Finding> {
    if has_messages || Side::ALL.iter().any(|side| host::has(root, *side)) {
        return Vec::new();
    }
    let what = "neither ibnbd_client nor ibnbd_server is loaded";
    let remedy =
        "ibnbd map or ibnbd join on a client, ibnbd export add on a server load what they need";
    vec![Finding::new(Severity::Error, what, remedy)]
}

fn rdma(ports: &[Port]) -> Vec<Finding> {
    if ports.is_empty() {
        let remedy =
            "load the driver of the RDMA device, or: rdma link add rxe0 type rxe netdev INTERFACE";
        return vec![Finding::new(
            Severity::Error,
            "there is no RDMA device",
            remedy,
        )];
    }
    ports.iter().flat_map(of_port).collect()
}

fn of_port(port: &Port) -> Vec<Finding> {
    let name = format!("{} port {}", port.device, port.port);
    let interface = port.interface.as_deref();
    let mut found = Vec::new();
    if let Some(state) = port.state.as_deref().filter(|state| *state != "ACTIVE") {
        let remedy = match interface {
            Some(interface) => format!("ip link set {interface} up"),
            None => "check cable, switch and subnet manager".to_owned(),
        };
        found.push(Finding::new(
            Severity::Warning,
            format!("{name} is {state}"),
            remedy,
        ));
    }
    if let Some((interface, mtu)) = interface.zip(port.mtu).filter(|(_, mtu)| *mtu < GOOD_MTU) {
        let what = format!("{name}: interface {interface} has an MTU of {mtu}; requests take more packets than they need");
        let remedy = format!("ip link set {interface} mtu 9000, at both ends and on the switches");
        found.push(Finding::new(Severity::Hint, what, remedy));
    }
    found
}
