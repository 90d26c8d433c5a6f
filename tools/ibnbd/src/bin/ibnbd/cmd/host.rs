// SPDX-License-Identifier: GPL-2.0

//! `host list`, `add`, `remove` and `set`.

use ibnbd_host::advice::Task;
use ibnbd_host::configfs::change::{self, Limits};
use ibnbd_host::configfs::{self, Host};
use ibnbd_host::document::{Hosts, FORMAT};
use ibnbd_host::prefix;

use super::{configured, Done};
use crate::act;
use crate::cli::{HostCommand, SetOf};
use crate::context::Context;
use crate::fail::{Failure, REFUSED};
use crate::out::{self, cell, Table};

pub(super) fn run(context: &Context, command: &HostCommand) -> Done {
    configured::need(context)?;
    match command {
        HostCommand::List => list(context),
        HostCommand::Add {
            name,
            addresses,
            limits,
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
            add(context, name, &limits)?;
            Ok(0)
        }
        HostCommand::Remove { name, force } => remove(context, name, *force),
        HostCommand::Set(words) => set(context, words),
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

fn remove(context: &Context, name: &str, force: bool) -> Done {
    let configured = configured::read(context);
    let host = configured::host(&configured, name)?;
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
    configured::remove_host(context, host, &configured.exports)?;
    Ok(0)
}

fn set(context: &Context, words: &SetOf) -> Done {
    let configured = configured::read(context);
    let host = configured::host(&configured, &words.name)?;
    let folder = configfs::host_folder(&host.name);
    let now = |key: &str| host.setting(key);
    configured::set(context, Task::Host, words, &configfs::OF_HOST, &folder, now)
}
