// SPDX-License-Identifier: GPL-2.0

//! `host list`, `add`, `remove` and `set`.

use std::io;
use std::time::Duration;

use clap::{Args, Subcommand};
use ibnbd_host::advice::Task;
use ibnbd_host::configfs::change::{self, Limits};
use ibnbd_host::configfs::{self, Host};
use ibnbd_host::document::{Hosts, FORMAT};
use ibnbd_host::family::Side;
use ibnbd_host::join::store::{self, Lock};
use ibnbd_host::join::{left, pending};
use ibnbd_host::keyring::{self, KeyringError, LoadedKey};
use ibnbd_host::prefix::{self, Prefix};

use super::args::{prefix, SetOf};
use super::token::{self, TokenWords};
use super::{configured, key, listen, modules, Done};
use crate::act;
use crate::context::Context;
use crate::fail::{Failure, REFUSED};
use crate::out::{self, cell, Table};

const SET_HELP: &str = "\
Settings: addresses (prefixes, or nothing for any), and these, of which 0 is no limit: max_paths,
max_connections and max_devices (up to 65535), max_memory_mib and max_bandwidth_mib_s (up to
1048576), max_iops (100 to 100000000).

Example:
  ibnbd host set web1 addresses=10.0.1.0/24 max_devices=4";

const LIST_EXAMPLES: &str = "\
Examples:
  ibnbd host list
  ibnbd host list -o json";

const ADD_EXAMPLES: &str = "\
Examples:
  ibnbd host add web1 --token                 prints a token, for `ibnbd join` on the client
  ibnbd host add web1
  ibnbd host add web1 --address 10.0.1.0/24 --max-paths 2 --max-iops 5000";

const REMOVE_EXAMPLES: &str = "\
Examples:
  ibnbd host remove web1
  ibnbd host remove web1 --force              also if it is connected";

/// How long the removal of a host waits for other commands that change keys, before it begins.
const BRIEFLY: Duration = Duration::from_secs(2);

#[derive(Subcommand, Debug)]
pub(crate) enum HostCommand {
    /// Lists the hosts that exports may name
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Makes a session known by its name, so that exports may name it; it gets a key by a token, or
    /// by `ibnbd key load`
    #[command(after_help = ADD_EXAMPLES)]
    Add {
        /// The session's name
        name: String,
        /// Addresses that its paths may come from; any without it
        #[arg(long = "address", value_name = "PREFIX,...", value_delimiter = ',', value_parser = prefix)]
        addresses: Vec<Prefix>,
        #[command(flatten)]
        limits: HostLimits,
        #[command(flatten)]
        token: TokenWords,
    },
    /// Removes a host, and disconnects its paths
    #[command(after_help = REMOVE_EXAMPLES)]
    Remove {
        /// The session's name
        name: String,
        /// Also if exports name it, or if it is connected
        #[arg(short, long)]
        force: bool,
    },
    /// Changes settings of a host
    #[command(after_help = SET_HELP)]
    Set(SetOf),
    /// Waits for clients that have a token
    #[command(after_help = listen::HELP)]
    Listen,
}

/// The limits of a host; 0 is no limit.
#[derive(Args, Debug)]
pub(crate) struct HostLimits {
    /// Most paths that it may have; 0 for any number
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = limit("max_paths"))]
    pub(crate) max_paths: u64,
    /// Most connections that its paths may have, one for each queue and one more; 0 for any number
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = limit("max_connections"))]
    pub(crate) max_connections: u64,
    /// Most memory of the server that its paths may take; 0 for any amount
    #[arg(long, value_name = "MIB", default_value_t = 0, value_parser = limit("max_memory_mib"))]
    pub(crate) max_memory_mib: u64,
    /// Most devices that it may have open; 0 for the limit of ibnbd_server
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = limit("max_devices"))]
    pub(crate) max_devices: u64,
    /// Most requests in a second, at least 100; 0 for any number
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = limit("max_iops"))]
    pub(crate) max_iops: u64,
    /// Most MiB of reads and writes in a second; 0 for any amount
    #[arg(long, value_name = "MIB", default_value_t = 0, value_parser = limit("max_bandwidth_mib_s"))]
    pub(crate) max_bandwidth_mib_s: u64,
}

/// Takes the value of a limit of a host.
fn limit(key: &'static str) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync {
    move |word| configfs::limit(key, word)
}

pub(super) fn run(context: &Context, command: &HostCommand) -> Done {
    if let HostCommand::Add { .. } = command {
        if context.root.is_machine() {
            modules::ready(context, Side::Server)?;
        }
    }
    configured::need(context)?;
    match command {
        HostCommand::List => list(context),
        HostCommand::Add {
            name,
            addresses,
            limits,
            token,
        } => {
            let limits = Limits {
                addresses: addresses.clone(),
                max_paths: limits.max_paths,
                max_connections: limits.max_connections,
                max_memory_mib: limits.max_memory_mib,
                max_devices: limits.max_devices,
                max_iops: limits.max_iops,
                max_bandwidth_mib_s: limits.max_bandwidth_mib_s,
            };
            configured::check_host_name(name)?;
            configured::check_prefixes(addresses)?;
            if token.token {
                return add_with_token(context, name, &limits, token);
            }
            add(context, name, &limits)?;
            Ok(0)
        }
        HostCommand::Remove { name, force } => remove(context, name, *force),
        HostCommand::Set(words) => set(context, words),
        HostCommand::Listen => listen::listen(context),
    }
}

fn list(context: &Context) -> Done {
    let configured = configured::read(context);
    let mut table = Table::new([
        "host",
        "addresses",
        "max paths",
        "max devices",
        "max IOPS",
        "max MiB/s",
        "paths",
        "exports",
    ]);
    for host in &configured.hosts {
        table.row(row(host));
    }
    let document = Hosts {
        format: FORMAT,
        hosts: configured.hosts,
        notes: configured.notes,
    };
    out::emit(context, &document, vec![table])?;
    Ok(0)
}

fn row(host: &Host) -> [String; 8] {
    [
        host.name.clone(),
        host.addresses
            .as_deref()
            .map(prefix::text)
            .unwrap_or_default(),
        cell(&host.max_paths),
        cell(&host.max_devices),
        cell(&host.max_iops),
        cell(&host.max_bandwidth_mib_s),
        host.paths.to_string(),
        host.exports.join(" "),
    ]
}

/// Makes a host.
pub(super) fn add(context: &Context, name: &str, limits: &Limits) -> Result<(), Failure> {
    let what = format!("add host {name}");
    act::changes(context, Task::Host, &what, &change::add_host(name, limits))
}

/// Makes a host unless it is there, and issues a token for it.
fn add_with_token(context: &Context, name: &str, limits: &Limits, words: &TokenWords) -> Done {
    token::check(context, name)?;
    let configured = configured::read(context);
    match configured.host(name) {
        None => add(context, name, limits)?,
        Some(_) if *limits != Limits::default() => {
            let why = "it is there already, and gets no limits with a token";
            let failure = Failure::usage(format!("host {name}"), why);
            return Err(failure.todo(format!("ibnbd host set {name} SETTING=VALUE")));
        }
        Some(host) if host.paths > 0 && !words.force => {
            let why =
                "it is connected, and the client that joins replaces its key, which ends its paths";
            let failure = Failure::new(
                REFUSED,
                format!("cannot issue a token for host {name}"),
                why,
            );
            return Err(failure.todo("take --force, or give the other client a host of its own"));
        }
        Some(_) => {}
    }
    token::issue(context, name, words)?;
    Ok(0)
}

fn remove(context: &Context, name: &str, force: bool) -> Done {
    let configured = configured::read(context);
    if configured.host(name).is_none() && left::is_left(&context.root, &context.machine(), name) {
        complete(context, name)?;
        return Ok(0);
    }
    let host =
        configured::host(&configured, name).map_err(|failure| left_keys(context, name, failure))?;
    let what = || format!("cannot remove host {name}");
    if !force && !host.exports.is_empty() {
        let names = host.exports.join(", ");
        let failure = Failure::new(REFUSED, what(), format!("exports allow it: {names}"));
        return Err(failure.todo("deny it with `ibnbd export deny`, or take --force"));
    }
    if !force && host.paths > 0 {
        let failure = Failure::new(REFUSED, what(), "it is connected");
        return Err(failure.todo("unmap its disks there, or take --force, which disconnects it"));
    }
    remove_with_keys(context, &[name], || {
        configured::remove_host(context, host, &configured.exports)
    })?;
    Ok(0)
}

/// Removes hosts by `remove`, then their tokens and keys: their owners would still be accepted as those hosts. The
/// files of the keys are set aside before, so that a command that is killed leaves none which a boot loads. A host that
/// cannot be removed keeps its keys.
pub(super) fn remove_with_keys(
    context: &Context,
    names: &[&str],
    remove: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let root = &context.root;
    // A client that is to be locked out does not stay for two more minutes because another command changes keys.
    let lock = store::lock_within(root, BRIEFLY).ok();
    let set_aside = |name: &&str| {
        let files = lock.as_ref().map(|lock| store::set_aside(root, name, lock));
        files.unwrap_or_default()
    };
    let aside: Vec<Vec<String>> = names.iter().map(set_aside).collect();
    let removed = remove();
    let mut all = Ok(());
    for (name, files) in names.iter().zip(&aside) {
        let stays = removed.is_err() && root.exists(&configfs::host_folder(name));
        let done = match (&lock, stays) {
            (Some(lock), true) => store::put_back(root, files, lock)
                .map_err(|error| Failure::system(format!("the keys of host {name}"), &error)),
            (None, true) => Ok(()),
            (lock, false) => forget(context, name, lock.as_ref()),
        };
        all = all.and(done);
    }
    removed.and(all)
}

/// Completes the removal of a host by a command that was killed, unless somebody has begun to use its name since.
pub(super) fn complete(context: &Context, name: &str) -> Result<(), Failure> {
    let root = &context.root;
    let lock = key::turn(context, &keys_of(name))?;
    if !left::is_left(root, &context.machine(), name) {
        return Ok(());
    }
    if store::file(root, name).is_none() {
        return forget(context, name, Some(&lock));
    }
    // Keys that have come since are none of that host.
    store::forget_aside(root, name, &lock).map_err(|error| Failure::system(keys_of(name), &error))
}

fn keys_of(name: &str) -> String {
    format!("the keys of host {name}, which was removed")
}

/// Removes the token and the keys of a host that was removed.
fn forget(context: &Context, name: &str, lock: Option<&Lock>) -> Result<(), Failure> {
    let withdrawn = withdraw(context, name);
    // Also if that has failed.
    forget_keys(context, name, lock).and(withdrawn)
}

/// Takes the token of a host out of use: it would be for a host of that name which is made later.
pub(super) fn withdraw(context: &Context, name: &str) -> Result<(), Failure> {
    let root = &context.root;
    let withdrawn = pending::lock(root).and_then(|lock| pending::withdraw(root, name, &lock));
    withdrawn.map_err(|error| Failure::system(format!("the token of host {name}"), &error))
}

/// Whether a session has keys, in the kernel or for later boots.
pub(super) fn has_keys(context: &Context, name: &str, loaded: &[LoadedKey]) -> bool {
    loaded.iter().any(|key| key.session == name) || store::file(&context.root, name).is_some()
}

/// There is no such host: if a removal that was interrupted has left keys, says so.
fn left_keys(context: &Context, name: &str, failure: Failure) -> Failure {
    let loaded = keyring::keys(&context.root).unwrap_or_default();
    match has_keys(context, name, &loaded) {
        true => failure.todo(format!(
            "keys of that name are left: see `ibnbd key list`, and `ibnbd key remove {name} --id ID`"
        )),
        false => failure,
    }
}

/// Removes the keys of a host that was removed. Without a lock of its caller it waits for one.
fn forget_keys(context: &Context, name: &str, lock: Option<&Lock>) -> Result<(), Failure> {
    let root = &context.root;
    let remedy = format!("see `ibnbd key list`, and `ibnbd key remove {name} --id ID`");
    let failed = |error: io::Error| Failure::system(keys_of(name), &error).todo(&*remedy);
    // A client that joins at this moment has its key by then, or finds that its host is gone.
    let own = match lock {
        Some(_) => Ok(None),
        None => key::turn(context, &keys_of(name)).map(Some),
    };
    let was_kept = store::file(root, name).is_some() || !store::files_aside(root, name).is_empty();
    // From the kernel first: what goes from the files only is still accepted. Not by what the files say, which may
    // be lost.
    let unloaded = match store::unload_all(root, name) {
        // Nobody can have loaded one.
        Err(KeyringError::NoProgram | KeyringError::NoKeyring) if !was_kept => Ok(()),
        result => result,
    };
    // Also if that has failed: the next boot must not load them again.
    let own = own.map_err(|failure| failure.todo(&*remedy))?;
    if let Some(lock) = lock.or(own.as_ref()) {
        if let Some(removed) = store::forget_all(root, name, lock).map_err(failed)? {
            key::warn_of_unit(name, &removed);
        }
    }
    unloaded.map_err(|error| key::failure(context, keys_of(name), &error))
}

fn set(context: &Context, words: &SetOf) -> Done {
    let configured = configured::read(context);
    let host = configured::host(&configured, &words.name)?;
    let folder = configfs::host_folder(&host.name);
    let now = |key: &str| host.setting(key);
    configured::set(context, Task::Host, words, &configfs::OF_HOST, &folder, now)
}
