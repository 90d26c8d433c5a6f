// SPDX-License-Identifier: GPL-2.0

//! `status`, `check` and `report`.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use ibnbd_host::configfs::{self, Configured};
use ibnbd_host::document::{Check, Status, FORMAT};
use ibnbd_host::findings::{self, Severity};
use ibnbd_host::health::Health;
use ibnbd_host::model::Machine;
use ibnbd_host::probe::{self, Measured};
use ibnbd_host::{host, kmsg};

use super::Done;
use crate::cli::Format;
use crate::context::Context;
use crate::fail::Failure;
use crate::out::{self, Table};

pub(super) fn status(context: &Context) -> Done {
    let machine = context.machine();
    let health = Health::of(&context.root, &machine);
    let code = health.level.code();
    if context.format == Format::Table {
        context.say(&health.line())?;
        return Ok(code);
    }
    let mut table = Table::new([
        "level",
        "disks",
        "disks open",
        "paths",
        "paths connected",
        "clients",
        "problems",
    ]);
    table.row([
        health.level.as_str().to_owned(),
        health.disks.to_string(),
        health.disks_open.to_string(),
        health.paths.to_string(),
        health.paths_connected.to_string(),
        health.clients.to_string(),
        health.problems.join("; "),
    ]);
    let document = Status {
        format: FORMAT,
        health,
        notes: machine.notes,
    };
    out::emit(context, &document, vec![table])?;
    Ok(code)
}

/// What passes between the ends of paths; of a machine only, not of a folder that looks like one.
fn measured(context: &Context, machine: &Machine) -> Vec<Measured> {
    if !context.root.is_machine() {
        return Vec::new();
    }
    let links = findings::links(&context.root, machine);
    let is_told = io::stderr().is_terminal() && !links.is_empty();
    let tell = |text: &str| {
        if is_told {
            // Nobody has to see it.
            let _ = write!(io::stderr(), "\r\x1b[K{text}");
        }
    };
    let found = probe::all(&links, &mut |done| {
        let all = links.len();
        tell(&format!(
            "measuring sizes of packets: {done} of {all} links"
        ));
    });
    tell("");
    found
}

pub(super) fn check(context: &Context) -> Done {
    let machine = context.machine();
    let findings = findings::all(&context.root, &machine, &measured(context, &machine));
    let bad = findings
        .iter()
        .any(|finding| finding.severity == Severity::Error);
    if context.format == Format::Table {
        let mut text = String::new();
        for finding in &findings {
            text += &format!(
                "{}: {}\n  remedy: {}\n",
                finding.severity.as_str(),
                finding.what,
                finding.remedy
            );
        }
        context.print(if text.is_empty() {
            "nothing is wrong\n"
        } else {
            &text
        })?;
    } else {
        let mut table = Table::new(["severity", "what", "remedy"]);
        for finding in &findings {
            table.row([
                finding.severity.as_str().to_owned(),
                finding.what.clone(),
                finding.remedy.clone(),
            ]);
        }
        let document = Check {
            format: FORMAT,
            findings,
            notes: machine.notes,
        };
        out::emit(context, &document, vec![table])?;
    }
    Ok(u8::from(bad))
}

/// Whoever reads the file meanwhile has the old one or the new one.
pub(super) fn replace(file: &Path, text: &str) -> Result<(), Failure> {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let partial = file.with_file_name(name);
    let written = fs::write(&partial, text).and_then(|()| fs::rename(&partial, file));
    written.map_err(|error| {
        // If it was made at all.
        let _ = fs::remove_file(&partial);
        Failure::system(format!("cannot write {}", file.display()), &error)
    })
}

pub(super) fn report(context: &Context, file: Option<&Path>) -> Done {
    let text = report_text(context)?;
    match file {
        None => context.print(&text)?,
        Some(file) => replace(file, &text)?,
    }
    Ok(0)
}

fn report_text(context: &Context) -> Result<String, Failure> {
    let root = &context.root;
    let mut machine = context.machine();
    machine.read_stats(root);
    machine.read_disk_stats(root);
    let mut text = format!(
        "ibnbd {}\nkernel {}\n",
        env!("CARGO_PKG_VERSION"),
        out::cell(&host::release(root))
    );
    for module in host::MODULES
        .iter()
        .filter(|module| host::is_loaded(root, module))
    {
        let version = root
            .read(&format!("/sys/module/{module}/srcversion"))
            .unwrap_or_default();
        text += &format!("module {module} {}\n", version.trim());
        for (name, value) in host::parameters(root, module) {
            text += &format!("  {name}={value}\n");
        }
    }
    for port in host::ports(root) {
        let (state, interface, mtu) = (
            out::cell(&port.state),
            out::cell(&port.interface),
            out::cell(&port.mtu),
        );
        text += &format!(
            "rdma {}/{} {state} {interface} mtu {mtu}\n",
            port.device, port.port
        );
    }
    text += "\nfindings:\n";
    for finding in findings::all(root, &machine, &measured(context, &machine)) {
        text += &format!("  {}: {}\n", finding.severity.as_str(), finding.what);
    }
    text += &format!("\nmachine:\n{}\n", out::json(&machine)?);
    if configfs::is_there(root) {
        let configured = Configured::read(root, &machine);
        text += &format!("\nexports:\n{}\n", out::json(&configured)?);
    }
    text += "\nkernel log:\n";
    match kmsg::all(root) {
        None => text += "  it may be read by root only\n",
        Some(lines) => lines.iter().for_each(|line| text += &format!("  {line}\n")),
    }
    Ok(text)
}
