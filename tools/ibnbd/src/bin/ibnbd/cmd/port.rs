// SPDX-License-Identifier: GPL-2.0

//! `port list`, `add`, `set` and `remove`.

use clap::Subcommand;
use ibnbd_host::advice::Task;
use ibnbd_host::configfs::{self, address, change, Configured, Port};
use ibnbd_host::document::{Ports, FORMAT};
use ibnbd_host::{host, Root};

use super::args::SetOf;
use super::{configured, Done};
use crate::act;
use crate::context::Context;
use crate::fail::Failure;
use crate::out::{self, cell, Table};

const ADD_HELP: &str = "\
Without any port the server listens on all addresses, at the port_nr of ibnbd_server. With the first
one it listens on the ports that are enabled, and nowhere else. Paths that are connected stay.

Examples:
  ibnbd port add left 10.0.1.1
  ibnbd port add right fe80::1%eth1 --port 1235
  ibnbd port add ib gid:fe80::2:c903:0:1";

const SET_HELP: &str = "\
Settings: address, port (1 to 65535), enable (0, 1). The server does not listen on an enabled port
while its address or number changes; paths that are connected stay.

Example:
  ibnbd port set left address=10.0.1.2 port=1235";

const LIST_EXAMPLES: &str = "\
Example:
  ibnbd port list";

const REMOVE_EXAMPLES: &str = "\
Example:
  ibnbd port remove left";

#[derive(Subcommand, Debug)]
pub(crate) enum PortCommand {
    /// Lists the addresses on which the server listens; on all of them if the list is empty
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Makes the server listen on an address, and from the first one on no longer on all of them
    #[command(after_help = ADD_HELP)]
    Add {
        /// A name for it
        name: String,
        /// An address of this machine, 0.0.0.0 or ::
        address: String,
        /// The port number, if not the port_nr of ibnbd_server
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
        port: Option<u16>,
    },
    /// Changes settings of a port
    #[command(after_help = SET_HELP)]
    Set(SetOf),
    /// Stops listening on a port, and removes it; with the last one the server listens on all
    /// addresses again
    #[command(after_help = REMOVE_EXAMPLES)]
    Remove {
        /// A port
        name: String,
    },
}

pub(super) fn run(context: &Context, command: &PortCommand) -> Done {
    configured::need_ports(context)?;
    match command {
        PortCommand::List => list(context),
        PortCommand::Add {
            name,
            address,
            port,
        } => add(context, name, address, *port),
        PortCommand::Set(words) => set(context, words),
        PortCommand::Remove { name } => remove(context, name),
    }
}

fn list(context: &Context) -> Done {
    let configured = configured::read(context);
    let mut table = Table::new(["name", "address", "port", "enabled", "listening"]);
    for port in &configured.ports {
        table.row(row(port));
    }
    let document = Ports {
        format: FORMAT,
        ports: configured.ports,
        notes: configured.notes,
    };
    out::emit(context, &document, vec![table])?;
    Ok(0)
}

fn row(port: &Port) -> [String; 5] {
    let yes = |flag| if flag { "yes" } else { "no" }.to_owned();
    [
        port.name.clone(),
        cell(&port.address),
        cell(&port.port),
        port.enable.map(yes).unwrap_or_default(),
        port.listening.map(yes).unwrap_or_default(),
    ]
}

fn add(context: &Context, name: &str, address: &str, number: Option<u16>) -> Done {
    let what = format!("add port {name}");
    configured::check_port_name(name)?;
    let address = canonical(&context.root, &what, address)?;
    let changes = change::add_port(name, &address, number);
    let before = configured::read(context);
    act::changes(context, Task::Port, &what, &changes)?;
    let added = Port {
        address: Some(address),
        port: number.or_else(|| port_nr(&context.root)),
        ..Port::default()
    };
    match before.said_of_added(&added) {
        Some(warning) if !configfs::listens_on_ports_only(&context.root) => {
            note!("warning: {warning}");
        }
        _ => {}
    }
    Ok(0)
}

/// The port number of the server where a port has none of its own.
fn port_nr(root: &Root) -> Option<u16> {
    configfs::usual_number(&host::parameter(root, "ibnbd_server", "port_nr")?)
}

fn canonical(root: &Root, what: &str, text: &str) -> Result<String, Failure> {
    address::canonical(root, text)
        .map_err(|why| Failure::usage(format!("cannot {what}"), format!("{text:?} {why}")))
}

fn remove(context: &Context, name: &str) -> Done {
    let configured = configured::read(context);
    configured::port(&configured, name)?;
    configured::remove_port(context, name)?;
    if configured.ports.len() == 1 && configfs::listens_on_ports_only(&context.root) {
        note!("warning: the server listens nowhere, as there is no port any more and its port_nr is 0: ibnbd port add NAME ADDRESS");
    } else if configured.ports.len() == 1 {
        let number = port_nr(&context.root);
        let number = number.map(|number| format!(" at port {number}"));
        note!(
            "warning: from now on the server listens on all addresses{}, as there is no port any more",
            number.unwrap_or_default()
        );
    }
    warn_if_nowhere(context);
    Ok(0)
}

/// Tells that no client can come, which may be what is wanted.
fn warn_if_nowhere(context: &Context) {
    let now = Configured {
        ports: configfs::ports(&context.root),
        ..Configured::default()
    };
    if now.listens_nowhere() {
        note!("warning: the server listens nowhere, as no port is enabled: ibnbd port set NAME enable=1");
    }
}

fn set(context: &Context, words: &SetOf) -> Done {
    let configured = configured::read(context);
    let port = configured::port(&configured, &words.name)?;
    let what = format!("set {} of port {}", words.settings.join(" "), words.name);
    let mut settings = Vec::new();
    for setting in &words.settings {
        let (key, value) = super::setting(setting, &configfs::OF_PORT, "there is no such setting")?;
        let value = match key {
            "address" => canonical(&context.root, &what, value)?,
            _ => check(key, value)?,
        };
        // The server goes on to listen if nothing changes.
        let is_so = key == "address"
            && (port.address.as_deref())
                .is_some_and(|is| address::is_same(&context.root, is, &value))
            || port.setting(key).as_ref() == Some(&value);
        // The last value of a setting counts.
        settings.retain(|(other, _)| *other != key);
        if !is_so {
            settings.push((key, value));
        }
    }
    act::changes(
        context,
        Task::Port,
        &what,
        &change::set_port(port, &settings),
    )?;
    warn_if_nowhere(context);
    Ok(0)
}

fn check(key: &str, value: &str) -> Result<String, Failure> {
    let wrong = |why: &str| Err(Failure::usage(format!("set {key}={value}"), why));
    match (key, value) {
        ("enable", "0" | "1") => Ok(value.to_owned()),
        ("enable", _) => wrong("it is neither 0 nor 1"),
        _ => match value.parse::<u16>() {
            Ok(number) if number > 0 => Ok(number.to_string()),
            _ => wrong("it is not 1 to 65535"),
        },
    }
}
