// SPDX-License-Identifier: GPL-2.0

//! Metrics of a server: exports, hosts, and how full it is.

use std::collections::HashMap;

use super::{Labels, Out};
use crate::configfs::{Configured, Export, Host};
use crate::family::Side;
use crate::host;
use crate::model::Machine;
use crate::root::Root;

/// What a server has beside its sessions.
#[derive(Debug, Default)]
pub struct Server {
    configured: Configured,
    /// The most sessions that it takes.
    max_sessions: Option<u64>,
    /// The most devices of a client without a limit of its own.
    max_devices: Option<u64>,
}

impl Server {
    /// Reads what a machine has of a server, which may be nothing.
    pub fn read(root: &Root, machine: &Machine) -> Self {
        let number = |module: &str, name: &str| {
            let text = host::parameter(root, module, name)?;
            text.parse().ok()
        };
        Self {
            configured: Configured::read(root, machine),
            max_sessions: number("ibtrs_server", "max_sessions"),
            max_devices: number("ibnbd_server", "max_devices"),
        }
    }
}

pub(super) fn text(out: &mut Out, machine: &Machine, server: &Server) {
    sessions(out, machine, server);
    exports(out, &server.configured.exports);
    hosts(out, machine, server);
}

fn sessions(out: &mut Out, machine: &Machine, server: &Server) {
    let Some(most) = server.max_sessions else {
        return;
    };
    let count = machine.ours(Side::Server).count();
    out.metric(
        "ibtrs_server_sessions",
        "gauge",
        "Sessions of clients.",
        [(Labels::new(), Some(count))],
    );
    out.metric(
        "ibtrs_server_sessions_limit",
        "gauge",
        "Most sessions that the server takes.",
        [(Labels::new(), Some(most))],
    );
}

fn exports(out: &mut Out, exports: &[Export]) {
    let all = |value: fn(&Export) -> Option<usize>| {
        (exports.iter()).map(move |export| (vec![("export", export.name.as_str())], value(export)))
    };
    out.metric(
        "ibnbd_export_enabled",
        "gauge",
        "Whether clients may open the export.",
        all(|export| export.enable.map(usize::from)),
    );
    out.metric(
        "ibnbd_export_clients",
        "gauge",
        "Clients that have the export open.",
        all(|export| Some(export.sessions.len())),
    );
}

fn hosts(out: &mut Out, machine: &Machine, server: &Server) {
    let hosts = &server.configured.hosts;
    let mut by_session: HashMap<&str, usize> = HashMap::new();
    for opened in &machine.opened {
        *by_session.entry(&opened.session).or_default() += 1;
    }
    let opened = |host: &Host| by_session.get(host.name.as_str()).copied().unwrap_or(0);
    out.metric(
        "ibnbd_host_paths",
        "gauge",
        "Authenticated paths of the host that are connected.",
        (hosts.iter()).map(|host| (vec![("host", host.name.as_str())], Some(host.paths))),
    );
    out.metric(
        "ibnbd_host_devices",
        "gauge",
        "Devices that the host has open.",
        (hosts.iter()).map(|host| (vec![("host", host.name.as_str())], Some(opened(host)))),
    );
    let limits = hosts.iter().flat_map(|host| {
        [
            ("paths", host.max_paths),
            ("connections", host.max_connections),
            ("memory_mib", host.max_memory_mib),
            ("devices", set(host.max_devices).or(server.max_devices)),
            ("iops", host.max_iops),
            ("bandwidth_mib_s", host.max_bandwidth_mib_s),
        ]
        .map(|(of, limit)| {
            let labels: Labels<'_> = vec![("host", &host.name), ("of", of)];
            (labels, set(limit))
        })
    });
    out.metric(
        "ibnbd_host_limit",
        "gauge",
        "The most that the host may have, where it has a limit.",
        limits,
    );
}

/// A limit, of which 0 is none.
fn set(limit: Option<u64>) -> Option<u64> {
    limit.filter(|limit| *limit > 0)
}
