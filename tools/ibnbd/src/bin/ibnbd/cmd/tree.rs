// SPDX-License-Identifier: GPL-2.0

//! `tree`: what hangs on what.

use ibnbd_host::configfs::{Configured, Port};
use ibnbd_host::document::{Tree, FORMAT};
use ibnbd_host::model::PathState;
use ibnbd_host::planned;
use ibnbd_host::prefix;
use ibnbd_host::topology::{
    ChannelsNode, ClientNode, DiskNode, ExportNode, HostNode, PathNode, PortalNode, SessionNode,
    Topology,
};

use super::Done;
use crate::cli::Format;
use crate::context::Context;
use crate::out::{self, cell, visible};

pub(crate) const HELP: &str = "\
On a client: each disk, its session, and the paths of that with state, requests in flight and the time
of a round trip. On a server: the ports, each of which leads to all exports, and each export with its
hosts and their clients. With the module ibmsg, also the channels that sessions carry, and the portals of
programs.

Examples:
  ibnbd tree
  ibnbd tree -o json";

/// A line with lines that hang on it.
struct Node {
    text: String,
    below: Vec<Node>,
}

impl Node {
    /// Of words, of which those are left out that are not known.
    fn new<'a>(words: impl IntoIterator<Item = &'a str>, below: Vec<Self>) -> Self {
        let words: Vec<String> = words
            .into_iter()
            .filter(|word| !word.is_empty())
            .map(visible)
            .collect();
        Self {
            text: words.join("  "),
            below,
        }
    }

    /// Writes the line, and those below it behind `margin`.
    fn draw(&self, text: &mut String, margin: &str) {
        *text += &self.text;
        text.push('\n');
        let last = self.below.len().saturating_sub(1);
        for (number, node) in self.below.iter().enumerate() {
            let (branch, below) = match number == last {
                true => ("`- ", "   "),
                false => ("|- ", "|  "),
            };
            *text += margin;
            *text += branch;
            node.draw(text, &format!("{margin}{below}"));
        }
    }
}

pub(super) fn tree(context: &Context) -> Done {
    context.need_format("tree", &[Format::Table, Format::Json, Format::Yaml])?;
    let mut machine = context.machine_with_messages();
    machine.read_stats(&context.root);
    let configured = Configured::read(&context.root, &machine);
    context.warn(&machine.notes);
    context.warn(&configured.notes);
    context.explain_nothing(&machine);
    let all = Topology::of(&context.root, &machine, &configured);
    if context.format == Format::Table {
        let mut text = String::new();
        for node in roots(&all) {
            node.draw(&mut text, "");
        }
        context.print(&text)?;
        return Ok(0);
    }
    let mut notes = machine.notes;
    notes.extend(configured.notes);
    let document = Tree {
        format: FORMAT,
        disks: all.disks,
        sessions: all.sessions,
        ports: all.ports,
        exports: all.exports,
        clients: all.clients,
        portals: all.portals,
        local: all.local,
        notes,
    };
    out::emit(context, &document, Vec::new())?;
    Ok(0)
}

fn roots(all: &Topology) -> Vec<Node> {
    let mut roots: Vec<Node> = all.disks.iter().map(disk).collect();
    roots.extend(all.sessions.iter().map(|own| session("session", own, "")));
    let mut server: Vec<Node> = all.ports.iter().map(port).collect();
    server.extend(all.exports.iter().map(export));
    server.extend(all.clients.iter().map(|own| session("client", own, "")));
    if !server.is_empty() {
        roots.push(Node::new(["server"], server));
    }
    let mut messages: Vec<Node> = all.portals.iter().map(portal).collect();
    messages.extend(all.local.iter().map(channels));
    if !messages.is_empty() {
        roots.push(Node::new(["messages"], messages));
    }
    roots
}

fn portal(portal: &PortalNode) -> Node {
    let waits = portal.offers.filter(|count| *count > 0);
    let waits = waits.map(|count| format!("offers {count}"));
    let words = [
        &*format!("portal {}", portal.name),
        &cell(&portal.program),
        &cell(&waits),
    ];
    Node::new(words, Vec::new())
}

fn channels(channels: &ChannelsNode) -> Node {
    let name = match &*channels.portal {
        "" => "channels".to_owned(),
        portal => format!("channels to {portal}"),
    };
    let waits = match channels.without_path {
        0 => String::new(),
        count => format!("without a path {count}"),
    };
    let count = channels.channels.to_string();
    Node::new([&*name, &count, &waits], Vec::new())
}

fn disk(disk: &DiskNode) -> Node {
    let below = disk.session.iter().map(|own| session("session", own, ""));
    let size = out::size(disk.size_bytes);
    Node::new(
        [
            &*disk.name,
            &cell(&disk.mapping_path),
            &cell(&disk.state),
            &size,
            &cell(&disk.access_mode),
        ],
        below.collect(),
    )
}

/// A session at either end; `more` says what else it has.
fn session(kind: &str, session: &SessionNode, more: &str) -> Node {
    let connected = session.paths.iter();
    let connected = connected.filter(|path| path.state == PathState::Connected);
    let counts = format!("{} of {} paths", connected.count(), session.paths.len());
    let back = session.server_back_in_s.map(|left| {
        let back = planned::back(left);
        format!("planned stop, {back}")
    });
    Node::new(
        [
            &*format!("{kind} {}", session.name),
            more,
            session.state.as_str(),
            &cell(&back),
            &counts,
            &cell(&session.mp_policy),
        ],
        (session.paths.iter().map(path))
            .chain(session.channels.iter().map(channels))
            .collect(),
    )
}

fn path(path: &PathNode) -> Node {
    let in_flight = path.in_flight.map(|count| format!("in flight {count}"));
    let rdma = match (&path.hca, path.port) {
        (Some(hca), Some(port)) => format!("{hca}/{port}"),
        (hca, _) => cell(hca),
    };
    let is_connected = path.state == PathState::Connected;
    // That of a path which is connected is history.
    let error = path.last_error.as_ref().filter(|_| !is_connected);
    let round_trip = path.latency_ns.filter(|_| is_connected);
    Node::new(
        [
            &*path.name,
            path.state.as_str(),
            match (path.drained, path.standby) {
                (Some(true), _) => "drained",
                (_, Some(true)) => "standby",
                _ => "",
            },
            &cell(&in_flight),
            &out::time(round_trip),
            &rdma,
            &cell(&error),
        ],
        Vec::new(),
    )
}

fn port(port: &Port) -> Node {
    let state = match (port.enable, port.listening) {
        (Some(false), _) => "disabled",
        (_, Some(true)) => "listening",
        (_, Some(false)) => "not listening",
        (_, None) => "",
    };
    Node::new(
        [&*format!("port {}", port.name), &port.place(), state],
        Vec::new(),
    )
}

fn export(export: &ExportNode) -> Node {
    let state = match export.enable {
        Some(true) => "enabled",
        Some(false) => "disabled",
        None => "",
    };
    Node::new(
        [
            &*format!("export {}", export.name),
            &cell(&export.device),
            &cell(&export.access_mode),
            state,
        ],
        export
            .hosts
            .iter()
            .flat_map(|own| host(export, own))
            .collect(),
    )
}

/// A host with its clients. Clients of an export without rules have no host.
fn host(export: &ExportNode, host: &HostNode) -> Vec<Node> {
    let clients: Vec<Node> = host.clients.iter().map(client).collect();
    let prefixes = export.allow_unauthenticated.as_deref().unwrap_or_default();
    let mut rules = Vec::new();
    match &host.name {
        Some(name) => rules.push(format!("host {name}")),
        None => {
            if export.allow_any_host == Some(true) {
                rules.push("any host".to_owned());
            }
            if !prefixes.is_empty() {
                rules.push(format!("without a key from {}", prefix::text(prefixes)));
            }
        }
    }
    match rules.is_empty() {
        true => clients,
        false => vec![Node::new([&*rules.join(", ")], clients)],
    }
}

fn client(client: &ClientNode) -> Node {
    let open = match &client.access_mode {
        Some(mode) => format!("open as {mode}"),
        None => "not open".to_owned(),
    };
    match &client.session {
        Some(own) => session("client", own, &open),
        None => Node::new([&*format!("client {}", client.name), &open], Vec::new()),
    }
}
