// SPDX-License-Identifier: GPL-2.0

//! Faults of ports in configfs.

use super::{Finding, Severity};
use crate::configfs::{self, Configured, Port};
use crate::root::Root;

pub(super) fn all(root: &Root, configured: &Configured) -> Vec<Finding> {
    let ports = &configured.ports;
    if ports.is_empty() && configfs::listens_on_ports_only(root) {
        let what =
            "the server listens nowhere: port_nr of ibnbd_server is 0, and there are no ports";
        let remedy = "ibnbd port add NAME ADDRESS";
        return vec![Finding::new(Severity::Error, what, remedy)];
    }
    if configured.listens_nowhere() {
        let what = format!(
            "the server listens nowhere: there are ports in {}, and none is enabled",
            configfs::FOLDER
        );
        let remedy = ports.first().map(enable).unwrap_or_default();
        return vec![Finding::new(Severity::Error, what, remedy)];
    }
    ports.iter().filter_map(of_port).collect()
}

/// The command that enables a port.
fn enable(port: &Port) -> String {
    let address = match port.address {
        Some(_) => "",
        None => " address=ADDRESS",
    };
    format!("ibnbd port set {}{address} enable=1", port.name)
}

fn of_port(port: &Port) -> Option<Finding> {
    let (name, place) = (&port.name, port.place());
    match (port.enable, port.listening) {
        (Some(true), Some(false)) => {
            let what = format!("port {name} is enabled, but the server does not listen on {place}: the RDMA device of the address is missing");
            let remedy = format!("bring the device back, see `rdma link`: the server listens again by itself; or: ibnbd port remove {name}");
            Some(Finding::new(Severity::Warning, what, remedy))
        }
        (Some(false), _) => {
            let what = format!("port {name} is disabled: the server does not listen on {place}");
            Some(Finding::new(Severity::Hint, what, enable(port)))
        }
        _ => None,
    }
}
