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
        ("ibnbd set" | "ibnbd show" | "ibnbd stats" | "ibnbd events", "name") => disks_and_sessions,
        ("ibnbd apply", _) => return None,
        (_, "disk" | "disks") => disks,
        ("ibnbd key load" | "ibnbd key remove", "session") => with_keys,
        (_, "session") => sessions,
        ("ibnbd path add", "path") => return None,
        (_, "path") => paths,
        ("ibnbd policy", "policy") => policies,
        ("ibnbd map", "checksum") => checksums,
        ("ibnbd map", "identity") => identities,
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
    words(&["min-inflight", "round-robin", "min-latency"])
}

fn checksums(_: &Root, _: &Machine) -> Vec<String> {
    words(&["none", "crc32c"])
}

fn identities(_: &Root, _: &Machine) -> Vec<String> {
    words(&["auto", "none"])
}

fn words(all: &[&str]) -> Vec<String> {
    all.iter().map(|word| (*word).to_owned()).collect()
}

/// Sessions whose keys the kernel or this machine has: also hosts, and servers that are not connected.
fn with_keys(root: &Root, _: &Machine) -> Vec<String> {
    let mut names = ibnbd_host::join::store::sessions(root).unwrap_or_default();
    let loaded = ibnbd_host::keyring::keys(root).unwrap_or_default();
    names.extend(loaded.into_iter().map(|key| key.session));
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use clap::ValueHint;

    use super::*;

    /// Arguments whose values nobody can know: new names, numbers, addresses, and names of other machines.
    const FREE: [&str; 29] = [
        "address",
        "addresses",
        "batch",
        "columns",
        "config",
        "count",
        "device",
        "directory",
        "disk",
        "downtime",
        "failover_time_ms",
        "from",
        "id",
        "interval",
        "join_address",
        "join_port",
        "key_id",
        "listen",
        "name",
        "path",
        "paths",
        "poll_queues",
        "port",
        "queues",
        "servers",
        "settings",
        "size",
        "slower_than",
        "token",
    ];

    /// All arguments, each with the command that has it.
    fn arguments<'a>(command: &'a Command, before: &str, found: &mut Vec<(String, &'a Arg)>) {
        let way = format!("{before} {}", command.get_name());
        let way = way.trim();
        found.extend(command.get_arguments().map(|arg| (way.to_owned(), arg)));
        for sub in command.get_subcommands() {
            arguments(sub, way, found);
        }
    }

    /// Those of all commands for which something holds, in words.
    fn those(holds: impl Fn(&str, &Arg) -> bool) -> Vec<String> {
        let (command, mut all) = (Cli::command(), Vec::new());
        arguments(&command, "", &mut all);
        all.retain(|(way, arg)| holds(way, arg));
        let words = all
            .iter()
            .map(|(way, arg)| format!("{way} {}", arg.get_id()));
        words.collect()
    }

    /// A new argument has completions, or nothing that could be completed.
    #[test]
    fn each_argument_has_completions_or_cannot_have_any() {
        let is_unknown = |way: &str, arg: &Arg| {
            let id = arg.get_id().as_str();
            let is_known = names(way, arg).is_some()
                || !arg.get_action().takes_values()
                || !arg.get_possible_values().is_empty()
                || matches!(arg.get_value_hint(), ValueHint::AnyPath)
                || id.starts_with("max_")
                || FREE.contains(&id);
            !is_known
        };
        assert_eq!(those(is_unknown), [""; 0]);
    }

    /// Those are new, and that of a disk which is to be mapped is one of the files.
    #[test]
    fn names_of_what_is_there_are_known() {
        const NAMES: [&str; 6] = ["name", "session", "disk", "disks", "path", "hosts"];
        let has_none = |way: &str, arg: &Arg| {
            NAMES.contains(&arg.get_id().as_str()) && names(way, arg).is_none()
        };
        assert_eq!(
            those(has_none),
            [
                "ibnbd path add path",
                "ibnbd export add name",
                "ibnbd host add name",
                "ibnbd port add name",
                "ibnbd apply disk",
            ]
        );
    }
}
