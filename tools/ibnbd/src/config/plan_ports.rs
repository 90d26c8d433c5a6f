// SPDX-License-Identifier: GPL-2.0

//! The steps to the ports in configfs that the files describe.

use super::plan::{cannot, Of, Step, Wish};
use super::{Config, Port};
use crate::configfs::{self, address, change};
use crate::host;
use crate::root::Root;

/// All of them.
///
/// Directories come first. With the first one the server listens on all addresses no longer, so
/// none of them is in the way of a port. That a port cannot be enabled, as its RDMA device comes up
/// later for example, takes its settings back, and not its directory: without any, the server would
/// listen on all addresses until then.
///
/// Ports that no file names go next, as one of them may have the address under another name. Then
/// each port gets its settings and is enabled, in one step. So the server does not listen during a
/// few system calls only, and clients that come meanwhile try again.
pub(super) fn steps(root: &Root, config: &Config, wish: &Wish<'_>, steps: &mut Vec<Step>) {
    let now = configfs::ports(root);
    let find = |name: &str| now.iter().find(|port| port.name == name);
    for wanted in &config.ports {
        let name = &wanted.name;
        if find(name).is_none() {
            let folder = configfs::port_folder(name);
            let changes = vec![change::Change::MakeFolder(folder)];
            steps.push(step(what(name, ""), format!("+ port {name}"), changes));
        }
    }
    if wish.prune && !config.ports.is_empty() {
        for port in &now {
            let name = &port.name;
            if !config.ports.iter().any(|wanted| wanted.name == *name) {
                let changes = change::remove_port(name);
                steps.push(step(what(name, ""), format!("- port {name}"), changes));
            }
        }
    }
    let number = usual_number(root, config);
    for wanted in &config.ports {
        let made = || configfs::Port {
            name: wanted.name.clone(),
            port: number,
            enable: Some(false),
            ..configfs::Port::default()
        };
        let is = find(&wanted.name).cloned().unwrap_or_else(made);
        settings(root, &is, wanted, number, steps);
    }
}

fn step(what: String, line: String, changes: Vec<change::Change>) -> Step {
    Step::Configure {
        of: Of::Port,
        what,
        line,
        changes,
    }
}

/// `part` is empty for the whole port.
fn what(name: &str, part: &str) -> String {
    format!("port {name} {part}")
}

const SETTINGS: &str = "settings";

/// The port number where a port has none of its own: that of the server, or that which it will
/// have.
fn usual_number(root: &Root, config: &Config) -> Option<u16> {
    let is = host::parameter(root, "ibnbd_server", "port_nr");
    let mut parameters = config.parameters.iter();
    let mut wanted = || parameters.find(|(m, n, _)| m == "ibnbd_server" && n == "port_nr");
    let text = is.or_else(|| wanted().map(|(.., value)| value.clone()));
    configfs::usual_number(text.as_deref().unwrap_or("0"))
}

/// One step for all settings of a port that differ.
fn settings(
    root: &Root,
    is: &configfs::Port,
    wanted: &Port,
    number: Option<u16>,
    steps: &mut Vec<Step>,
) {
    let name = &wanted.name;
    let address = match address::canonical(root, &wanted.address) {
        Ok(address) => address,
        Err(why) => {
            let why = format!("port {name}: {:?} {why}", wanted.address);
            steps.push(cannot(what(name, SETTINGS), why));
            return;
        }
    };
    let mut settings = Vec::new();
    let has_address = |is: &String| address::is_same(root, is, &address);
    if !is.address.as_ref().is_some_and(has_address) {
        settings.push(("address", address));
    }
    if let Some(number) = wanted.port.or(number).filter(|n| is.port != Some(*n)) {
        settings.push(("port", number.to_string()));
    }
    if is.enable != Some(wanted.enable) {
        settings.push(("enable", change::flag(wanted.enable).to_owned()));
    }
    if settings.is_empty() {
        return;
    }
    let mut line = "~ set".to_owned();
    for (at, (key, value)) in settings.iter().enumerate() {
        let was = is.setting(key);
        let was = was.as_deref().unwrap_or(match *key {
            "address" => "nothing",
            _ => "unknown",
        });
        line += &match at {
            0 => format!(" {key} of port {name} from {was} to {value}"),
            _ => format!(", {key} from {was} to {value}"),
        };
    }
    let changes = change::set_port(is, &settings);
    steps.push(step(what(name, SETTINGS), line, changes));
}
