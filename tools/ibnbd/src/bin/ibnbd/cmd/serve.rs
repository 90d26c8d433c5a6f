// SPDX-License-Identifier: GPL-2.0

//! `clients`, `disconnect`, `close` and `drain`.

use clap::Args;
use ibnbd_host::advice::Task;
use ibnbd_host::document::{Client, Clients, FORMAT};
use ibnbd_host::family::{Family, Side};
use ibnbd_host::find::{self, Unclear};
use ibnbd_host::model::{Machine, Path};
use ibnbd_host::value;
use ibtrs_proto::downtime::{Downtime, MAX_WAIT_S};

use super::Done;
use crate::act;
use crate::context::Context;
use crate::fail::Failure;
use crate::out::{self, Table};

pub(crate) const CLIENTS_EXAMPLES: &str = "\
Examples:
  ibnbd clients
  ibnbd clients -o json";

pub(crate) const DISCONNECT_EXAMPLES: &str = "\
Examples:
  ibnbd disconnect web1
  ibnbd disconnect web1 10.0.1.2              only its path from that address";

pub(crate) const CLOSE_EXAMPLES: &str = "\
Examples:
  ibnbd close disk1                           for all clients
  ibnbd close disk1 web1                      only for the session web1";

pub(crate) const DRAIN_EXAMPLES: &str = "\
Examples:
  ibnbd drain                                 before work on the server
  ibnbd drain --downtime 10m                  the same; clients know how long to wait
  ibnbd drain --undo";

fn downtime(text: &str) -> Result<u32, String> {
    let seconds = value::seconds(text).and_then(|seconds| u32::try_from(seconds).ok());
    let seconds = seconds.filter(|seconds| *seconds <= Downtime::MAX_S);
    seconds.ok_or_else(|| "it is not a time of at most a day, such as 600, 10m or 2h".to_owned())
}

#[derive(Args, Debug)]
pub(crate) struct DisconnectArgs {
    /// The client's session
    pub(crate) session: String,
    /// One of its paths only
    pub(crate) path: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct CloseArgs {
    /// The device, by its name here or that of the clients
    pub(crate) device: String,
    /// Only from that session
    pub(crate) session: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct DrainArgs {
    /// Takes clients again
    #[arg(long)]
    pub(crate) undo: bool,
    /// Tells clients for how long the server is away: seconds, or 10m, or 2h; 0 to tell them nothing
    #[arg(long, value_name = "TIME", conflicts_with = "undo", value_parser = downtime)]
    pub(crate) downtime: Option<u32>,
}

pub(super) fn clients(context: &Context) -> Done {
    let machine = context.machine();
    context.warn(&machine.notes);
    context.explain_nothing(&machine);
    let clients = all(&machine);
    let mut table = Table::new(["client", "addresses", "paths", "devices"]);
    for client in &clients {
        table.row([
            client.session.clone(),
            client.addresses.join(" "),
            client.paths.to_string(),
            client.devices.join(" "),
        ]);
    }
    let document = Clients {
        format: FORMAT,
        clients,
        notes: machine.notes,
    };
    out::emit(context, &document, vec![table])?;
    Ok(0)
}

fn all(machine: &Machine) -> Vec<Client> {
    let sessions = machine.sessions.iter().filter(|s| s.side == Side::Server);
    let client = |session: &ibnbd_host::Session| {
        let mut addresses: Vec<String> =
            session.paths.iter().filter_map(|p| p.src.clone()).collect();
        addresses.sort();
        addresses.dedup();
        let opened = machine
            .opened
            .iter()
            .filter(|o| o.session == session.name && o.family == session.family);
        Client {
            session: session.name.clone(),
            addresses,
            paths: session.paths.len(),
            devices: opened.map(|o| o.device.clone()).collect(),
        }
    };
    sessions.map(client).collect()
}

pub(super) fn disconnect(context: &Context, name: &str, path: Option<&str>) -> Done {
    context.need(Side::Server)?;
    let machine = context.machine();
    let found = find::session(&machine, name, Some(Side::Server));
    let session = found.map_err(|why| Failure::unclear("client", name, &why))?;
    if session.family != Family::Ibnbd {
        let why = "it belongs to the kernel's own rtrs_server, which this command only looks at";
        return Err(Failure::usage(format!("client {name}"), why));
    }
    let paths: Vec<&Path> = match path {
        None => session.paths.iter().collect(),
        Some(path) => {
            let found = find::path_of(session, &context.root, path);
            vec![found.map_err(|why| Failure::unclear("path", path, &why))?]
        }
    };
    for path in paths {
        disconnect_path(context, path)?;
    }
    Ok(0)
}

/// Throws one path of a client out.
pub(super) fn disconnect_path(context: &Context, path: &Path) -> Result<(), Failure> {
    let what = format!("disconnect the path {} of {}", path.name, path.session);
    let file = format!("{}/disconnect", path.folder());
    act::write(context, Task::Path, &what, &file, "1")
}

pub(super) fn close(context: &Context, device: &str, session: Option<&str>) -> Done {
    context.need(Side::Server)?;
    let machine = context.machine();
    let mut open = find::opened(&machine, &context.root, device);
    open.retain(|o| {
        o.family == Family::Ibnbd && session.is_none_or(|session| o.session == session)
    });
    if open.is_empty() {
        return Err(Failure::unclear("open device", device, &Unclear::Nothing));
    }
    for open in open {
        let what = format!("close {} for session {}", open.device, open.session);
        act::write(
            context,
            Task::Close,
            &what,
            &format!("{}/force_close", open.folder()),
            "1",
        )?;
    }
    Ok(0)
}

pub(super) fn drain(context: &Context, undo: bool, downtime: Option<u32>) -> Done {
    context.need(Side::Server)?;
    let (what, text) = match (undo, downtime) {
        (true, _) => ("let clients come again", "0".to_owned()),
        (false, None) => ("drain the server", "1".to_owned()),
        (false, Some(seconds)) => ("drain the server", format!("downtime={seconds}")),
    };
    let file = format!("{}/drain", Family::Ibnbd.control(Side::Server));
    act::write(context, Task::Drain, what, &file, &text)?;
    if let Some(downtime) = downtime.and_then(Downtime::new) {
        if downtime.waits_s() < downtime.seconds() {
            note!("warning: I/O of clients waits for {MAX_WAIT_S} s at most, unless their queue_timeout_s is longer");
        }
    }
    Ok(0)
}
