// SPDX-License-Identifier: GPL-2.0

//! Faults of disks and sessions of a client.

use ibtrs_proto::settings::{Setting, QUEUE_TIMEOUT_S};

use super::{Finding, Severity};
use crate::family::Side;
use crate::health;
use crate::host;
use crate::model::{Disk, Machine, Path, Session, SessionState};
use crate::planned;
use crate::root::Root;
use crate::value::{self, ChecksumErrors};

/// Where the rules for names that stay can be.
const RULES: [&str; 2] = [
    "/usr/lib/udev/rules.d/60-ibnbd.rules",
    "/etc/udev/rules.d/60-ibnbd.rules",
];

/// Fewer answers say nothing about how interrupts are spread.
const ENOUGH_ANSWERS: u64 = 10_000;

pub(super) fn all(root: &Root, machine: &Machine) -> Vec<Finding> {
    let mut found: Vec<Finding> = machine
        .ours(Side::Client)
        .flat_map(|session| of_session(root, session))
        .collect();
    found.extend(machine.our_disks().flat_map(of_disk));
    if host::has(root, Side::Client) && !RULES.iter().any(|file| root.exists(file)) {
        let what = "the rules for udev are not installed: disks have no names that stay";
        found.push(Finding::new(
            Severity::Hint,
            what,
            "install the package ibtrs-tools, or: make install",
        ));
    }
    found
}

fn of_session(root: &Root, session: &Session) -> Vec<Finding> {
    let name = &session.name;
    let mut found = Vec::new();
    if let Some(left) = session
        .server_back_in_s
        .filter(|_| session.is_planned_stop())
    {
        let (back, waits) = (planned::back(left), waits(session));
        let what =
            format!("session {name}: its server was stopped as planned, and is {back}: {waits}");
        found.push(Finding::new(
            Severity::Warning,
            what,
            "wait for the server; paths come back by themselves",
        ));
    } else if session.state == SessionState::Disconnected {
        let does = match session.outage {
            Some(outage) => format!(
                "I/O {}; the last path was lost at {}",
                outage.words(),
                outage.since()
            ),
            None => "I/O waits or fails".to_owned(),
        };
        let what = format!("session {name} has no path to its server: {does}");
        let remedy = match session.paths.is_empty() {
            true => format!("ibnbd path add {name} ADDRESS: all of its paths were removed"),
            false => format!("check server and network; lost paths come back by themselves, and those that `ibnbd path disconnect` has ended after: ibnbd path reconnect {name} PATH"),
        };
        found.push(Finding::new(Severity::Error, what, remedy));
    }
    if let Some(ms) = session.stalled_ms() {
        let what = format!("session {name}: {}", health::stalled(ms));
        let remedy = format!("look at the server's disk and log; `ibnbd events {name}` has the last changes of paths, and another path takes over after: ibnbd path disconnect {name} PATH");
        found.push(Finding::new(Severity::Warning, what, remedy));
    }
    if let Some((path, ms)) = session.silent_path() {
        let what = format!("session {name}: {}", health::silent(path, ms));
        let remedy = "check the link and the server, which may be busy; another path takes over when this one is lost, which takes as long as failover_time_ms allows";
        found.push(Finding::new(Severity::Warning, what, remedy));
    }
    for path in session
        .paths
        .iter()
        .filter(|path| path.drained == Some(true))
    {
        let what = format!(
            "session {name}: path {} is drained: requests take it only if no other path does",
            path.name
        );
        let remedy = format!(
            "after the work on the link: ibnbd path drain {name} {} --undo",
            path.name
        );
        found.push(Finding::new(Severity::Hint, what, remedy));
    }
    if session.paths.len() == 1 {
        let what = format!("session {name} has one path: nothing takes over when it is lost");
        let remedy = format!("ibnbd path add {name} SOURCE,DESTINATION");
        found.push(Finding::new(Severity::Hint, what, remedy));
    }
    if session.paths.iter().any(|path| path.extensions == Some(0)) {
        let what = format!("session {name}: its server does not have our extensions: disks have no identity, the server does not report changes of size or planned stops, there is no authentication and no exclusive use, and a write over a path that was lost may still reach the disk after later ones");
        let remedy =
            "replace rnbd_server with ibnbd_server there, or load the version that runs here";
        found.push(Finding::new(Severity::Warning, what, remedy));
    }
    found.extend(session.paths.iter().filter_map(|path| spread(root, path)));
    found
}

/// What I/O does while the server is away.
fn waits(session: &Session) -> String {
    match session.settings.queue_timeout_s {
        Some(timeout) if timeout == Setting::number(QUEUE_TIMEOUT_S.default) => {
            "I/O waits for it, for an hour at most".to_owned()
        }
        Some(0) => "I/O fails until then".to_owned(),
        Some(-1) => "I/O waits for it".to_owned(),
        Some(timeout) => format!("I/O waits for it, for {timeout} s at most"),
        None => "I/O waits or fails".to_owned(),
    }
}

/// Whether answers arrive on other CPUs than those whose connections they came on.
fn spread(root: &Root, path: &Path) -> Option<Finding> {
    // With soft-RoCE that is always so.
    if path
        .hca
        .as_deref()
        .is_some_and(|hca| hca.starts_with("rxe"))
    {
        return None;
    }
    let read = |file: &str| root.read(&format!("{}/stats/{file}", path.folder())).ok();
    let moved: u64 = value::numbers(&read("cpu_migration_from")?)?.iter().sum();
    let traffic = value::traffic(&read("rdma")?)?;
    let all = traffic.reads.saturating_add(traffic.writes);
    (all >= ENOUGH_ANSWERS && moved > all / 2).then(|| {
        let what = format!(
            "session {}: path {}: {moved} of {all} answers were handled on the wrong CPU",
            path.session, path.name
        );
        let remedy = "spread the interrupts of the RDMA device over the CPUs: systemctl start irqbalance, or its driver's script";
        Finding::new(Severity::Hint, what, remedy)
    })
}

fn of_disk(disk: &Disk) -> Vec<Finding> {
    let name = &disk.name;
    let mut found = Vec::new();
    if disk.state.as_deref() == Some("closed") && disk.paths_connected > 0 {
        let what = format!("{name} is closed though its server is there: it was refused, closed by the server's operator, or is being opened again");
        found.push(Finding::new(
            Severity::Error,
            what,
            format!("ibnbd remap {name}"),
        ));
    } else if disk.state.as_deref() == Some("closed")
        && disk.server_back_in_s.is_none()
        && disk.outage.is_none()
    {
        let what = format!("{name} is closed: its server is out of reach");
        found.push(Finding::new(
            Severity::Error,
            what,
            "check server and network; it is opened again by itself",
        ));
    }
    if disk.cache_lost == Some(true) {
        let what =
            format!("{name}: the server has lost writes that were not flushed; flushes fail");
        let remedy =
            format!("unmount and check what is on it, then: ibnbd set {name} cache_lost=0");
        found.push(Finding::new(Severity::Error, what, remedy));
    }
    let errors = disk.checksum_errors.unwrap_or_default();
    if errors != ChecksumErrors::default() {
        let what = format!(
            "{name}: data was damaged on the way: {} requests to the server, {} from it",
            errors.to_server, errors.from_server
        );
        let remedy = format!(
            "check network cards and memory, and programs that change data while it is written; then: ibnbd set {name} checksum_errors=0"
        );
        found.push(Finding::new(Severity::Warning, what, remedy));
    }
    if disk.lacks_identity() {
        let what = match disk.accepts_any() {
            true => format!("{name} has no identity: after a restart of the server any disk of its name and size is used"),
            false => format!("{name} has no identity: after a restart of the server it is not used while it is open, as it could be another disk; with the kernel's own server, another disk is noticed by its size only"),
        };
        let remedy = format!("export a partition, a logical volume, or a disk with a serial number; or vouch for the server's disks: ibnbd set {name} identity=none");
        found.push(Finding::new(Severity::Warning, what, remedy));
    }
    found
}
