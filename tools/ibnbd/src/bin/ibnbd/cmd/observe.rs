// SPDX-License-Identifier: GPL-2.0

//! `status`, `check` and `report`.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use ibnbd_host::config;
use ibnbd_host::configfs::{self, Configured};
use ibnbd_host::document::{Check, Status, FORMAT};
use ibnbd_host::exchange::{exchange, Mode};
use ibnbd_host::findings::{self, Severity};
use ibnbd_host::health::Health;
use ibnbd_host::model::{Machine, Messages};
use ibnbd_host::probe::{self, Measured};
use ibnbd_host::{host, kmsg};

use super::Done;
use crate::cli::Format;
use crate::context::Context;
use crate::fail::Failure;
use crate::out::{self, cell, Table};

pub(crate) const STATUS_HELP: &str = "\
Exit status: 0 OK, 1 WARNING (a path is lost, requests take too long, the server here is drained, or
that of a session was stopped as planned), 2 CRITICAL (I/O waits or fails), 3 UNKNOWN (no module).

Example:
  ibnbd status";

pub(crate) const CHECK_HELP: &str = "\
Exit status: 1 if there is an error among the findings, else 0. Root sees more: keys, and the rules of
the firewall.

Examples:
  ibnbd check
  ibnbd check -o json";

pub(crate) const REPORT_EXAMPLES: &str = "\
Example:
  ibnbd report --file report.txt";

#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// A file instead of standard output
    #[arg(long)]
    pub(crate) file: Option<PathBuf>,
}

pub(super) fn status(context: &Context) -> Done {
    let machine = context.machine_with_messages();
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
        "portals",
        "channels",
        "problems",
    ]);
    table.row([
        health.level.as_str().to_owned(),
        health.disks.to_string(),
        health.disks_open.to_string(),
        health.paths.to_string(),
        health.paths_connected.to_string(),
        health.clients.to_string(),
        cell(&health.portals),
        cell(&health.channels),
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

/// How long messages that are not acknowledged are watched; a folder that looks like a machine does not change.
fn pause(context: &Context) -> Duration {
    match context.root.is_machine() {
        true => Duration::from_secs(1),
        false => Duration::ZERO,
    }
}

/// The packet sizes that pass between the ends of paths; of a machine only, not of a folder that looks like one.
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
    let mut machine = context.machine_with_messages();
    machine.messages.find_stalls(&context.root, pause(context));
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

/// A concurrent reader gets the old file or the new one, even after a power failure.
/// It keeps its mode and, as far as we may give it away, its owner. A link stays one.
pub(super) fn replace(file: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error| Failure::system(format!("cannot write {}", file.display()), &error);
    let target = target(file).map_err(failed)?;
    let mode = match fs::metadata(&target) {
        Ok(old) => Mode::OfOld(old),
        Err(_) => Mode::Usual,
    };
    exchange(&target, text.as_bytes(), &mode).map_err(failed)
}

/// A file for the user only, in a folder where others may put links and files of theirs, such as
/// `/tmp`: whatever has the name goes, and a link is not followed.
fn write_private(file: &Path, text: &str) -> Result<(), Failure> {
    let what = format!("cannot write {}", file.display());
    // Such as `/dev/stdout`, which is not to be exchanged for a file.
    if fs::metadata(file).is_ok_and(|there| !there.is_file()) {
        let failure = Failure::usage(what, "it is not a regular file");
        return Err(failure.todo("leave out --file to have the report on standard output"));
    }
    let failed = |error| Failure::system(&*what, &error);
    exchange(file, text.as_bytes(), &Mode::Private).map_err(failed)
}

/// The most links to links, as many as Linux follows.
const LINKS: usize = 40;

/// The file that a link leads to, which need not be there.
fn target(file: &Path) -> io::Result<PathBuf> {
    let mut file = file.to_owned();
    for _ in 0..LINKS {
        let Ok(to) = fs::read_link(&file) else {
            return Ok(file);
        };
        file = file.with_file_name("").join(to);
    }
    Err(rustix::io::Errno::LOOP.into())
}

pub(super) fn report(context: &Context, file: Option<&Path>) -> Done {
    let text = report_text(context)?;
    match file {
        None => context.print(&text)?,
        Some(file) => write_private(file, &text)?,
    }
    Ok(0)
}

/// The portals and channels of programs, a line each.
fn messages(messages: &Messages) -> String {
    if !messages.is_loaded {
        return String::new();
    }
    let unseen = messages.found.unseen;
    let mut text = format!("\nmessages, without those of {unseen} processes:\n");
    for open in &messages.found.all {
        text += "  ";
        for owner in &open.owners {
            text += &format!("{owner} ");
        }
        for (name, value) in open.fields.iter().flatten() {
            text += &format!(" {name}={value}");
        }
        text += "\n";
    }
    text
}

fn report_text(context: &Context) -> Result<String, Failure> {
    let root = &context.root;
    let mut machine = context.machine_with_messages();
    machine.messages.find_stalls(root, pause(context));
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
        let of = |file: &str| {
            let text = root.read(&format!("/sys/module/{module}/{file}"));
            text.unwrap_or_default().trim().to_owned()
        };
        let (version, source) = (of("version"), of("srcversion"));
        text += &format!("module {module} {version} srcversion {source}\n");
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
    text += &configuration(context);
    if let Some(services) = host::services(root) {
        text += &format!("\nservices:\n{}", indented(&services));
    }
    let measured = measured(context, &machine);
    text += "\nmeasured:\n";
    for found in &measured {
        text += &format!("  {found}\n");
    }
    text += "\nfindings:\n";
    for finding in findings::all(root, &machine, &measured) {
        let (severity, what) = (finding.severity.as_str(), finding.what);
        text += &format!("  {severity}: {what}\n    remedy: {}\n", finding.remedy);
    }
    text += &format!("\nmachine:\n{}\n", out::json(&machine)?);
    if configfs::is_there(root) {
        let configured = Configured::read(root, &machine);
        text += &format!("\nexports:\n{}\n", out::json(&configured)?);
    }
    text += &messages(&machine.messages);
    text += "\nkernel log:\n";
    match kmsg::all(root) {
        None => text += "  it may be read by root only\n",
        Some(lines) => lines.iter().for_each(|line| text += &format!("  {line}\n")),
    }
    Ok(text)
}

/// The files in `/etc/ibtrs`. They have no key: those are in the kernel, and in credentials.
fn configuration(context: &Context) -> String {
    match config::files(&context.root, config::FOLDER) {
        Ok(files) => files
            .iter()
            .map(|(name, content)| format!("\n{name}:\n{}", indented(content)))
            .collect(),
        Err((name, error)) => format!("\n{name}: {error}\n"),
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}
