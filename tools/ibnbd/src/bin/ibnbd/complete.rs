// SPDX-License-Identifier: GPL-2.0

//! Completions: the shell asks the command, which knows the names of what the machine has.

use std::path::PathBuf;

use clap::{Arg, Command, CommandFactory};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::CompleteEnv;
use ibnbd_host::configfs::Configured;
use ibnbd_host::model::Machine;
use ibnbd_host::Root;

use crate::cli::Cli;

/// The variable by which a shell asks.
pub(crate) const VARIABLE: &str = "IBNBD_COMPLETE";

/// Answers a shell that asks for completions, and ends; goes on otherwise.
pub(crate) fn answer() {
    CompleteEnv::with_factory(|| with_names(Cli::command(), ""))
        .var(VARIABLE)
        .complete();
}

/// The command with the names that its arguments may have.
fn with_names(command: Command, before: &str) -> Command {
    let way = match before.is_empty() {
        true => command.get_name().to_owned(),
        false => format!("{before} {}", command.get_name()),
    };
    let of_arg = way.clone();
    command
        .mut_args(move |arg| match names(&of_arg, &arg) {
            Some(names) => arg.add(ArgValueCandidates::new(move || candidates(names))),
            None => arg,
        })
        .mut_subcommands(|sub| with_names(sub, &way))
}

type Names = fn(&Root, &Machine) -> Vec<String>;

fn candidates(names: Names) -> Vec<CompletionCandidate> {
    let root = root();
    let found = names(&root, &Machine::read(&root));
    found.into_iter().map(CompletionCandidate::new).collect()
}

/// The root that the words give, which come behind the shell's own.
fn root() -> Root {
    let mut words = std::env::args_os()
        .skip_while(|word| word != "--root")
        .skip(1);
    Root::new(
        words
            .next()
            .map_or_else(|| PathBuf::from("/"), PathBuf::from),
    )
}

/// What an argument of a command stands for; none if it is new, or no name.
fn names(way: &str, arg: &Arg) -> Option<Names> {
    Some(match (way, arg.get_id().as_str()) {
        ("ibnbd map" | "ibnbd discover", "session") => joined,
        ("ibnbd host add", _) | ("ibnbd port add", _) => return None,
        ("ibnbd host remove" | "ibnbd host set", "name") | (_, "hosts") => hosts,
        ("ibnbd port remove" | "ibnbd port set", "name") => ports,
        ("ibnbd export add", "name") => return None,
        (way, "name") if way.starts_with("ibnbd export ") => exports,
        ("ibnbd close", "device") => exports,
        ("ibnbd set" | "ibnbd show" | "ibnbd stats", "name") => disks_and_sessions,
        ("ibnbd apply", _) => return None,
        (_, "disk" | "disks") => disks,
        ("ibnbd disconnect", "session") => sessions,
        (_, "session") => sessions,
        ("ibnbd path add", "path") => return None,
        (_, "path") => paths,
        ("ibnbd policy", "policy") => policies,
        _ => return None,
    })
}

fn disks(_: &Root, machine: &Machine) -> Vec<String> {
    machine.our_disks().map(|disk| disk.name.clone()).collect()
}

fn sessions(_: &Root, machine: &Machine) -> Vec<String> {
    let names = machine.sessions.iter().map(|session| session.name.clone());
    let mut names: Vec<String> = names.collect();
    names.dedup();
    names
}

fn disks_and_sessions(root: &Root, machine: &Machine) -> Vec<String> {
    let mut names = disks(root, machine);
    names.append(&mut sessions(root, machine));
    names
}

/// A path by the address that tells it from others, without the kind.
fn paths(_: &Root, machine: &Machine) -> Vec<String> {
    let all = machine.sessions.iter().flat_map(|session| &session.paths);
    let ends = all.filter_map(|path| path.dst.as_deref());
    ends.map(|end| end.trim_start_matches("ip:").to_owned())
        .collect()
}

fn exports(root: &Root, machine: &Machine) -> Vec<String> {
    let configured = Configured::read(root, machine);
    configured
        .exports
        .into_iter()
        .map(|export| export.name)
        .collect()
}

fn hosts(root: &Root, machine: &Machine) -> Vec<String> {
    let configured = Configured::read(root, machine);
    configured.hosts.into_iter().map(|host| host.name).collect()
}

fn ports(root: &Root, machine: &Machine) -> Vec<String> {
    let configured = Configured::read(root, machine);
    configured.ports.into_iter().map(|port| port.name).collect()
}

fn joined(root: &Root, _: &Machine) -> Vec<String> {
    let servers = ibnbd_host::join::joined::all(root).unwrap_or_default();
    servers.into_iter().map(|server| server.session).collect()
}

fn policies(_: &Root, _: &Machine) -> Vec<String> {
    ["min-inflight", "round-robin", "min-latency"]
        .map(String::from)
        .to_vec()
}
