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
///
/// If several ports change, those that leave an address or a number are all disabled before that:
/// one of them may get what another one has. One that cannot be enabled then listens as before,
/// unless another one has its former address by then.
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
    let mut differing = Vec::new();
    for wanted in &config.ports {
        let made = || configfs::Port {
            name: wanted.name.clone(),
            port: number,
            enable: Some(false),
            ..configfs::Port::default()
        };
        let is = find(&wanted.name).cloned().unwrap_or_else(made);
        match differences(root, &is, wanted, number) {
            Ok(settings) if settings.is_empty() => {}
            Ok(settings) => differing.push((is, wanted, settings)),
            Err(why) => steps.push(cannot(
                what(&wanted.name, SETTINGS),
                format!("port {}: {:?} {why}", wanted.name, wanted.address),
            )),
        }
    }
    let several = differing.len() > 1;
    let mut later = Vec::new();
    for (mut is, wanted, mut settings) in differing {
        // One that the files name leaves the address by then, and with --prune others are gone.
        let is_other = |port: &&configfs::Port| !config.ports.iter().any(|w| w.name == port.name);
        let stays = |port: &&configfs::Port| is_other(port) && !wish.prune;
        if let Some(other) = now
            .iter()
            .filter(stays)
            .find(|o| is_there(root, o, wanted, number))
        {
            let (name, other) = (&wanted.name, &other.name);
            let why = format!(
                "port {name}: port {other}, which no file names, has that address and number: \
                 `ibnbd port remove {other}`, or take --prune"
            );
            later.push(cannot(what(name, SETTINGS), why));
            continue;
        }
        let is_place = |(key, _): &(&str, String)| *key != ENABLE;
        let leaves = is.enable == Some(true) && (!wanted.enable || settings.iter().any(is_place));
        let mut back = Vec::new();
        if several && leaves {
            let off = (ENABLE, change::flag(false).to_owned());
            steps.push(set(&is, &[off], Vec::new()));
            is.enable = Some(false);
            settings.retain(is_place);
            if wanted.enable {
                let on = (ENABLE, change::flag(true).to_owned());
                back = change::set_port(&is, std::slice::from_ref(&on));
                settings.push(on);
            }
        }
        if !settings.is_empty() {
            later.push(set(&is, &settings, back));
        }
    }
    steps.append(&mut later);
}

/// Whether an enabled port has the address and the number that another one is to be enabled with.
fn is_there(root: &Root, port: &configfs::Port, wanted: &Port, number: Option<u16>) -> bool {
    let has_address = || {
        let address = address::canonical(root, &wanted.address).ok();
        let both = port.address.as_ref().zip(address);
        both.is_some_and(|(is, address)| address::is_same(root, is, &address))
    };
    let numbers = port.port.zip(wanted.port.or(number));
    let has_number = numbers.is_some_and(|(is, wanted)| is == wanted);
    wanted.enable && port.enable == Some(true) && has_number && has_address()
}

fn step(what: String, line: String, changes: Vec<change::Change>) -> Step {
    Step::Configure {
        of: Of::Port,
        what,
        line,
        changes,
        back: Vec::new(),
    }
}

/// `part` is empty for the whole port.
fn what(name: &str, part: &str) -> String {
    format!("port {name} {part}")
}

const SETTINGS: &str = "settings";
const ENABLE: &str = "enable";

/// The port number where a port has none of its own: that of the server, or that which it will
/// have.
fn usual_number(root: &Root, config: &Config) -> Option<u16> {
    let is = host::parameter(root, "ibnbd_server", "port_nr");
    let mut parameters = config.parameters.iter();
    let mut wanted = || parameters.find(|(m, n, _)| m == "ibnbd_server" && n == "port_nr");
    let text = is.or_else(|| wanted().map(|(.., value)| value.clone()));
    configfs::usual_number(text.as_deref().unwrap_or("0"))
}

type Settings = Vec<(&'static str, String)>;

/// The settings of a port that differ, or what is wrong with its address.
fn differences(
    root: &Root,
    is: &configfs::Port,
    wanted: &Port,
    number: Option<u16>,
) -> Result<Settings, String> {
    let address = address::canonical(root, &wanted.address)?;
    let mut settings = Vec::new();
    let has_address = |is: &String| address::is_same(root, is, &address);
    if !is.address.as_ref().is_some_and(has_address) {
        settings.push(("address", address));
    }
    if let Some(number) = wanted.port.or(number).filter(|n| is.port != Some(*n)) {
        settings.push(("port", number.to_string()));
    }
    if is.enable != Some(wanted.enable) {
        settings.push((ENABLE, change::flag(wanted.enable).to_owned()));
    }
    Ok(settings)
}

/// One step for all settings of a port that differ.
fn set(
    is: &configfs::Port,
    settings: &[(&'static str, String)],
    back: Vec<change::Change>,
) -> Step {
    let name = &is.name;
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
    Step::Configure {
        of: Of::Port,
        what: what(name, SETTINGS),
        line,
        changes: change::set_port(is, settings),
        back,
    }
}
