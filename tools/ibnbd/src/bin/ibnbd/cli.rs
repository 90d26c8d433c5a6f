// SPDX-License-Identifier: GPL-2.0

//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::cmd::{
    apply, args, change, discover, events, export, host, join, key, map, metrics, observe, paths,
    port, print, save, serve, show, stats, top, trace, tree, unmap, watch,
};

const EXAMPLES: &str = "\
Examples:
  ibnbd map 10.0.1.1 disk1                    maps disk1 of a server, and prints /dev/ibnbd0
  ibnbd map storage1,storage1-b disk1         the same over two paths
  ibnbd list                                  disks here, and devices that clients have open
  ibnbd unmap ibnbd0
  ibnbd export add /dev/vg/data disk1         on a server: clients may open it as disk1
  ibnbd check                                 what is wrong, and what mends it

Exit status: 0 done, 1 refused by the kernel or the server, 2 wrong usage, 3 no such thing,
4 a module is not loaded, 5 not root, 6 wrong configuration; `status` has codes of its own.";

/// Maps, exports and watches network block devices over RDMA.
#[derive(Parser, Debug)]
#[command(name = "ibnbd", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Args, Debug)]
pub(crate) struct Global {
    /// How to print what is shown
    #[arg(short, long, value_enum, default_value = "table", global = true)]
    pub(crate) output: Format,
    /// Columns of tables and CSV, in that order
    #[arg(long, value_delimiter = ',', value_name = "NAME,...", global = true)]
    pub(crate) columns: Vec<String>,
    /// Folder that stands for the machine's root
    #[arg(long, default_value = "/", hide = true, global = true)]
    pub(crate) root: PathBuf,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// For people
    Table,
    /// One document; its schema is in Documentation/tool.schema.json
    Json,
    /// The same document
    Yaml,
    /// Comma-separated values with a line of names
    Csv,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Lists disks that are mapped here, and devices that clients have open
    #[command(after_help = show::LIST_EXAMPLES)]
    List,
    /// Shows all of a disk, a session, a path, or a device that a client has open
    #[command(after_help = show::SHOW_EXAMPLES)]
    Show(show::ShowArgs),
    /// Lists sessions, at either end
    #[command(after_help = show::SESSIONS_EXAMPLES)]
    Sessions,
    /// Lists paths, at either end
    #[command(after_help = show::PATHS_EXAMPLES)]
    Paths(show::PathsArgs),
    /// Shows which disks, sessions and paths, or exports, hosts and clients hang on each other
    #[command(after_help = tree::HELP)]
    Tree,
    /// Shows what disks and paths have counted
    #[command(after_help = stats::EXAMPLES)]
    Stats(stats::StatsArgs),
    /// Joins a server by a token of its operator, and lists what this machine may map of it
    #[command(after_help = join::HELP)]
    Join(join::JoinArgs),
    /// Maps a device of a server as a disk
    #[command(after_help = map::EXAMPLES)]
    Map(map::Map),
    /// Lists the exports of a server that this machine may map, and the server's addresses
    #[command(after_help = discover::HELP)]
    Discover(args::Server),
    /// Unmaps disks
    #[command(after_help = unmap::EXAMPLES)]
    Unmap(unmap::Unmap),
    /// Has the server open a disk again that it refused, or that its operator has closed
    #[command(after_help = map::REMAP_EXAMPLES)]
    Remap(map::RemapArgs),
    /// Gives a disk another size, for a server that does not tell
    #[command(after_help = map::RESIZE_EXAMPLES)]
    Resize(map::ResizeArgs),
    /// Adds, removes and connects paths of a session
    #[command(subcommand)]
    Path(paths::PathCommand),
    /// Shows or sets which path of a session a request takes
    #[command(after_help = change::POLICY_EXAMPLES)]
    Policy(change::PolicyArgs),
    /// Changes settings of a session or a disk
    #[command(after_help = change::SET_HELP)]
    Set(change::SetArgs),
    /// Manages the devices that clients may open
    #[command(subcommand)]
    Export(export::ExportCommand),
    /// Manages the hosts that exports may name
    #[command(subcommand)]
    Host(host::HostCommand),
    /// Manages the addresses on which this server listens
    #[command(subcommand)]
    Port(port::PortCommand),
    /// Makes, loads, lists and removes the keys by which clients and servers know each other
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Lists the clients of this server
    #[command(after_help = serve::CLIENTS_EXAMPLES)]
    Clients,
    /// Throws a client's path out, or all paths of its session; it may connect again
    #[command(after_help = serve::DISCONNECT_EXAMPLES)]
    Disconnect(serve::DisconnectArgs),
    /// Takes a device from clients; their I/O to it fails
    #[command(after_help = serve::CLOSE_EXAMPLES)]
    Close(serve::CloseArgs),
    /// Stops this server in good order, so that clients lose nothing; they wait until it is undone
    #[command(after_help = serve::DRAIN_EXAMPLES)]
    Drain(serve::DrainArgs),
    /// Says in one line how things are, for monitoring
    #[command(after_help = observe::STATUS_HELP)]
    Status,
    /// Finds what is wrong, and says what mends it
    #[command(after_help = observe::CHECK_HELP)]
    Check,
    /// Collects what a bug report needs
    #[command(after_help = observe::REPORT_EXAMPLES)]
    Report(observe::ReportArgs),
    /// Prints metrics for Prometheus, or serves them
    #[command(after_help = metrics::HELP)]
    Metrics(metrics::Metrics),
    /// Shows the last changes of sessions and their paths, with times and causes
    #[command(after_help = events::HELP)]
    Events(events::EventsArgs),
    /// Prints events as they come; with --output json a document a line
    #[command(after_help = watch::EXAMPLES)]
    Watch(watch::WatchArgs),
    /// Shows what disks, sessions and paths do, all the time
    #[command(after_help = top::HELP)]
    Top(top::Top),
    /// Shows each request of a disk as it ends, and where its time went; with --output json a
    /// document a line
    #[command(after_help = trace::HELP)]
    Trace(trace::Trace),
    /// Makes the machine what the files in /etc/ibtrs say, and shows the difference first
    #[command(after_help = apply::HELP)]
    Apply(apply::Apply),
    /// Writes into the files in /etc/ibtrs what the machine has; comments and order stay
    #[command(after_help = save::EXAMPLES)]
    Save(save::Save),
    /// Prints completions for a shell
    #[command(after_help = print::COMPLETIONS_EXAMPLES)]
    Completions(print::CompletionsArgs),
    /// Writes the manual pages of all commands
    #[command(after_help = print::MANPAGES_EXAMPLES)]
    Manpages(print::ManpagesArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Commands without subcommands, each with the words that lead to it.
    fn leaves<'a>(
        command: &'a clap::Command,
        way: &str,
        found: &mut Vec<(String, &'a clap::Command)>,
    ) {
        let way = format!("{way} {}", command.get_name());
        if !command.has_subcommands() {
            found.push((way.trim().to_owned(), command));
        }
        for sub in command.get_subcommands() {
            leaves(sub, &way, found);
        }
    }

    /// The words of an example, without the comment and what the shell handles.
    fn words(example: &str) -> Vec<&str> {
        let plain = example.split("  ").next().unwrap_or_default();
        let plain = plain.trim_start_matches("(umask 077; ");
        let until = plain.find(['<', '>']).unwrap_or(plain.len());
        plain[..until].split_whitespace().collect()
    }

    #[test]
    fn each_command_has_examples_that_it_takes() {
        let (command, mut all) = (Cli::command(), Vec::new());
        leaves(&command, "", &mut all);
        assert!(all.len() > 45, "{}", all.len());
        for (way, one) in all {
            let help = one.get_after_help().map(ToString::to_string);
            let help = help.unwrap_or_default();
            let below = help.split_once("Example").map(|(_, below)| below);
            let below = below.unwrap_or_else(|| panic!("{way} has no example"));
            let lines = below
                .lines()
                .skip(1)
                .map_while(|line| line.strip_prefix("  "));
            let lines: Vec<&str> = lines.collect();
            assert_eq!(below.starts_with("s:"), lines.len() > 1, "{way}");
            assert!(!lines.is_empty(), "{way} has no example");
            for line in lines {
                let words = words(line);
                assert!(words.join(" ").starts_with(&way), "{way}: {line}");
                if let Err(error) = Cli::try_parse_from(&words) {
                    panic!("{line}: {error}");
                }
            }
        }
    }

    /// `a,b` is the same as `a b`, or `--x a --x b`, wherever a list is.
    #[test]
    fn lists_take_commas() {
        let command = Cli::command();
        let (mut all, mut lists) = (Vec::new(), 0);
        leaves(&command, "", &mut all);
        for (_, one) in all {
            for arg in one.get_arguments().chain(command.get_arguments()) {
                if !matches!(arg.get_action(), clap::ArgAction::Append) {
                    continue;
                }
                lists += 1;
                let takes = arg.get_value_delimiter() == Some(',');
                let is_other = match arg.get_id().as_str() {
                    // The value of a setting may be a list.
                    "settings" => true,
                    // A pair of addresses.
                    "paths" => arg.get_value_names().unwrap()[0] == "SRC,DST",
                    // A name may have a comma: the command splits what is no disk.
                    "disks" => one.get_name() == "unmap",
                    _ => false,
                };
                assert!(takes != is_other, "{} {}", one.get_name(), arg.get_id());
            }
        }
        assert!(lists > 8, "{lists}");
    }

    /// Commands that stop nobody: each other one has its row in the page.
    const HARMLESS: [&str; 36] = [
        "list",
        "show",
        "sessions",
        "paths",
        "tree",
        "stats",
        "join",
        "map",
        "discover",
        "remap",
        "resize",
        "path add",
        "path reconnect",
        "policy",
        "set",
        "export list",
        "export allow",
        "export enable",
        "host list",
        "host add",
        "port list",
        "key new",
        "key list",
        "clients",
        "status",
        "check",
        "report",
        "metrics",
        "events",
        "watch",
        "top",
        "trace",
        "save",
        "completions",
        "manpages",
        "host listen",
    ];

    /// The page has a table of all ways to stop somebody.
    #[test]
    fn each_way_to_stop_somebody_is_in_the_table() {
        let page = include_str!("../../../../../Documentation/tool.md");
        let (_, below) = page
            .split_once("There are several ways to stop somebody")
            .unwrap();
        let (tables, _) = below.split_once("\n## ").unwrap();
        let rows = tables.lines().filter(|line| line.starts_with("| `"));
        let rows: Vec<&str> = rows.filter_map(|line| line.split('|').nth(1)).collect();
        let (command, mut all) = (Cli::command(), Vec::new());
        leaves(&command, "", &mut all);
        let ways = all
            .iter()
            .map(|(way, _)| way.trim_start_matches("ibnbd ").to_owned());
        let ways: Vec<String> = ways.collect();
        for way in &ways {
            let begins = format!("`{way}");
            let is_there = rows.iter().any(|row| {
                let mut found = row.match_indices(&begins);
                found.any(|(at, _)| row[at + begins.len()..].starts_with([' ', '`']))
            });
            assert!(is_there != HARMLESS.contains(&way.as_str()), "{way}");
        }
        // A command that is gone is in neither.
        for row in &rows {
            let names = row.split('`').skip(1).step_by(2);
            for name in names {
                let is_one = ways
                    .iter()
                    .any(|way| format!("{name} ").starts_with(&format!("{way} ")));
                assert!(is_one, "{name}");
            }
        }
        for way in HARMLESS {
            assert!(ways.iter().any(|one| one == way), "{way}");
        }
    }

    #[test]
    fn the_definitions_go_together() {
        Cli::command().debug_assert();
    }
}
