// SPDX-License-Identifier: GPL-2.0

//! `map`, `remap`, `resize`.

use std::thread;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};
use ibnbd_host::advice::Task;
use ibnbd_host::family::{Family, Side};
use ibnbd_host::join::joined;
use ibnbd_host::mapping::{self, Mapping};
use ibnbd_host::model::{Disk, Machine, Path, PathState};
use ibnbd_host::{find, host, value};
use ibnbd_proto::checksum::DataChecksum;
use ibnbd_proto::identity::IdentityCheck;
use ibtrs_proto::Errno;

use super::args::Server;
use super::{discover, map_joined, modules, save, Done};
use crate::act;
use crate::context::Context;
use crate::fail::{even_unread, Failure, NOT_FOUND};

pub(crate) const EXAMPLES: &str = "\
Examples:
  ibnbd map disk1                             of a server that this machine has joined
  ibnbd map --all                             all disks of such servers
  ibnbd map 10.0.1.1 disk1
  ibnbd map storage1 disk1 --path 10.0.1.2,10.0.1.1 --path 10.0.2.2,10.0.2.1
  ibnbd map fe80::1%eth0 disk1 --ro
  ibnbd map 10.0.1.1 disk1 --all-paths        also over the other addresses that the server names

Without --session the session is called HOST@SERVER, and disks of the same server share it.";

pub(crate) const REMAP_EXAMPLES: &str = "\
Example:
  ibnbd remap ibnbd0";

pub(crate) const RESIZE_EXAMPLES: &str = "\
Examples:
  ibnbd resize ibnbd0 20G
  ibnbd resize ibnbd0 41943040s               in sectors of 512 bytes";

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("access"))]
pub(crate) struct Map {
    #[command(flatten)]
    pub(crate) server: Server,
    /// The device's name on the server; alone, one that a joined server exports
    pub(crate) device: Option<String>,
    /// All that the servers which this machine has joined let it open
    #[arg(long, conflicts_with_all = ["servers", "paths", "device", "exclusive", "poll_queues"])]
    pub(crate) all: bool,
    /// Adds a path to each further address that the server names and this machine can reach
    #[arg(long)]
    pub(crate) all_paths: bool,
    /// For reading only
    #[arg(long, group = "access")]
    pub(crate) ro: bool,
    /// To hand a disk over: another client may write to it at the same time
    #[arg(long, group = "access")]
    pub(crate) migration: bool,
    /// Nobody else may have the device open
    #[arg(long)]
    pub(crate) exclusive: bool,
    /// Queues of a new session, if not one for each CPU: each path has a connection for each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) queues: Option<u32>,
    /// Queues for polled I/O; -1 for one for each CPU
    #[arg(long, default_value_t = 0, allow_hyphen_values = true, value_parser = clap::value_parser!(i64).range(-1..=4096))]
    pub(crate) poll_queues: i64,
    /// Longest time, in milliseconds, that I/O of a new session stands still when a path is lost
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1000..=300_000))]
    pub(crate) failover_time_ms: Option<u32>,
    /// Checksum of the data on its way: none or crc32c
    #[arg(long, value_name = "CHECKSUM", value_parser = checksum)]
    pub(crate) checksum: Option<DataChecksum>,
    /// A disk without identity after a restart of the server: auto (default) does not use it while
    /// it is open, none uses any disk of its name and size
    #[arg(long, value_name = "CHECK", value_parser = identity)]
    pub(crate) identity: Option<IdentityCheck>,
    /// Writes the disk into /etc/ibtrs/client.toml as well
    #[arg(long)]
    pub(crate) persist: bool,
}

fn checksum(text: &str) -> Result<DataChecksum, &'static str> {
    DataChecksum::parse(text).map_err(|error| error.as_str())
}

fn identity(text: &str) -> Result<IdentityCheck, &'static str> {
    IdentityCheck::parse(text).map_err(|error| error.as_str())
}

#[derive(Args, Debug)]
pub(crate) struct RemapArgs {
    /// A disk
    pub(crate) disk: String,
}

#[derive(Args, Debug)]
pub(crate) struct ResizeArgs {
    /// A disk
    pub(crate) disk: String,
    /// Bytes; with K, M, G, T or P in powers of 1024, with s in sectors of 512
    pub(crate) size: String,
}

/// Where a disk is mapped.
pub(super) const MAP_FILE: &str = "/sys/class/ibnbd-client/ctl/map_device";

pub(super) fn map(context: &Context, map: &Map) -> Done {
    if map.all {
        return map_joined::all(context, map);
    }
    match (map.server.servers(), &map.device) {
        (_, Some(device)) => from_server(context, map, device),
        ([device], None) => map_joined::one(context, map, device),
        _ => {
            let failure = Failure::usage("map", "it is not said what to map");
            Err(failure.todo("ibnbd map SERVER EXPORT, or of a server that was joined: ibnbd map EXPORT, ibnbd map --all"))
        }
    }
}

fn from_server(context: &Context, map: &Map, device: &str) -> Done {
    // A server would say no more than that the name makes no sense.
    if device.split('/').any(|part| part == "..") {
        let why = "the name of an export has no .. in it";
        let failure = Failure::usage(format!("map {device}"), why);
        return Err(
            failure.todo("take the name that the server exports it by: see `ibnbd discover`")
        );
    }
    let wanted = wanted(context, map, device);
    let wanted = wanted.map_err(|failure| swapped(map, device).unwrap_or(failure))?;
    let line = wanted.line().map_err(|why| Failure::usage("map", why))?;
    modules::ready(context, Side::Client)?;
    let first = context
        .machine()
        .our(Side::Client, &wanted.session)
        .is_none();
    let found = match map.all_paths {
        true => Some(discover::ask(context, &wanted)?),
        false => None,
    };
    let disk = map_line(context, &wanted, &line)?;
    even_unread(context.say(&disk))?;
    if let Some(found) = found {
        discover::add_paths(context, &wanted, &found);
    }
    if map.persist {
        save::persist(context, &wanted.session, &wanted.device, wanted.port)?;
    }
    // Later disks take the session as it is.
    if first && wanted.paths.len() > 1 {
        wait_for_paths(context, &wanted.session);
    }
    Ok(0)
}

/// The failure to say if the user has given the device before the server.
fn swapped(map: &Map, device: &str) -> Option<Failure> {
    let [server] = map.server.servers() else {
        return None;
    };
    if mapping::is_address(server) || !mapping::is_address(device) {
        return None;
    }
    let what = format!("server {server}");
    let why = format!("no address is known for it, but {device} in the place of the device is one");
    Some(Failure::usage(what, why).todo(format!("ibnbd map {device} {server}")))
}

/// How long a new session's further paths may take: the kernel waits for the first one only.
const FURTHER_PATHS: Duration = Duration::from_secs(5);

/// Waits for the paths of a new session, and names those that do not connect.
pub(super) fn wait_for_paths(context: &Context, name: &str) {
    let deadline = Instant::now() + FURTHER_PATHS;
    let lost = act::with_progress("connect all paths", || loop {
        let machine = context.machine();
        let paths = machine
            .our(Side::Client, name)
            .map_or(&[][..], |session| &session.paths);
        let lost: Vec<Path> = paths
            .iter()
            .filter(|path| path.state != PathState::Connected)
            .cloned()
            .collect();
        if lost.is_empty() || Instant::now() >= deadline {
            return lost;
        }
        thread::sleep(Duration::from_millis(50));
    });
    for path in lost {
        note!(
            "warning: the path {} is not connected yet; the session goes on trying",
            path.name
        );
    }
}

/// Maps, and finds out what the disk is called.
pub(super) fn map_line(context: &Context, wanted: &Mapping, line: &str) -> Result<String, Failure> {
    let what = format!("map {} of session {}", wanted.device, wanted.session);
    act::write(context, Task::Map, &what, MAP_FILE, line)?;
    let machine = context.machine();
    match machine.our_disk(&wanted.session, &wanted.device) {
        Some(disk) => Ok(disk.device.clone()),
        None => Err(Failure::new(
            NOT_FOUND,
            what,
            "it was mapped, and is not there any more",
        )),
    }
}

/// How long a mapping that others have begun may take to be seen: their server has answered.
const OTHERS_ARE_DONE: Duration = Duration::from_secs(3);

/// Maps. Two services may do so at the same moment, of which the kernel lets one: then the disk is
/// as both want it.
pub(super) fn map_unless_others_do(
    context: &Context,
    wanted: &Mapping,
    line: &str,
) -> Result<(), Failure> {
    let Err(failure) = map_line(context, wanted, line) else {
        return Ok(());
    };
    if failure.errno != Some(Errno::EEXIST.get()) {
        return Err(failure);
    }
    let deadline = Instant::now() + OTHERS_ARE_DONE;
    loop {
        let machine = context.machine();
        // Before it is complete, it has no partitions yet.
        let disk = machine.our_disk(&wanted.session, &wanted.device);
        if disk.is_some_and(|disk| disk.state.as_deref() != Some("init")) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(failure);
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn wanted(context: &Context, map: &Map, device: &str) -> Result<Mapping, Failure> {
    let own = (map.poll_queues != 0).then_some(device);
    Ok(with_options(
        map,
        device,
        session(context, &map.server, own)?,
    ))
}

/// A mapping over a session, with the options of the command.
pub(super) fn with_options(map: &Map, device: &str, session: Mapping) -> Mapping {
    let access = match (map.ro, map.migration) {
        (true, _) => Some("ro".to_owned()),
        (_, true) => Some("migration".to_owned()),
        _ => None,
    };
    Mapping {
        device: device.to_owned(),
        access,
        exclusive: map.exclusive,
        queues: map.queues,
        poll_queues: map.poll_queues,
        failover_time_ms: map.failover_time_ms,
        data_checksum: map.checksum.map(|checksum| checksum.as_str().to_owned()),
        identity: map.identity.map(|check| check.as_str().to_owned()),
        ..session
    }
}

/// A mapping's session. Without a name it has that of this machine and the server, and of the device
/// `own` if it is for that alone.
pub(super) fn session(
    context: &Context,
    words: &Server,
    own: Option<&str>,
) -> Result<Mapping, Failure> {
    let mut paths = Vec::new();
    for text in &words.paths {
        paths.push(path(context, text)?);
    }
    for server in words.servers() {
        let end = path(context, server)?;
        let known = paths
            .iter()
            .any(|path| path.split(',').next_back() == Some(&end));
        if !known {
            paths.push(end);
        }
    }
    let server = words.servers().first().map(String::as_str);
    let server = server.unwrap_or_default();
    let generated = || mapping::session_name(&host::name(&context.root), server, own);
    let session = words.session.clone().unwrap_or_else(generated);
    let key_id = words.key_id.map(|id| id.as_str().to_owned());
    Ok(Mapping {
        paths,
        port: (words.port != 1234).then_some(words.port),
        key_id: key_id.or_else(|| joined_key(context, &session)),
        session,
        ..Mapping::default()
    })
}

/// The id of the key of a session that was made by joining the server. A session that is there has its own, with
/// which it goes on.
fn joined_key(context: &Context, session: &str) -> Option<String> {
    let is_there = context.machine().our(Side::Client, session).is_some();
    let id = || joined::key_id(&context.root, session);
    (!is_there).then(id).flatten()
}

/// A path as the kernel takes it.
pub(super) fn path(context: &Context, text: &str) -> Result<String, Failure> {
    let found = mapping::path(&context.root, &mapping::resolve, text);
    found.map_err(|why| Failure::usage(format!("path {text}"), why))
}

/// A disk of ours by any of its names.
pub(super) fn disk<'a>(
    context: &Context,
    machine: &'a Machine,
    name: &str,
) -> Result<&'a Disk, Failure> {
    let disk = find::disk(machine, &context.root, name)
        .map_err(|why| Failure::unclear("disk", name, &why))?;
    if disk.family == Family::Ibnbd {
        return Ok(disk);
    }
    let why = "it belongs to the kernel's own rnbd_client, which this command only looks at";
    Err(Failure::usage(format!("disk {name}"), why))
}

pub(super) fn remap(context: &Context, name: &str) -> Done {
    context.need(Side::Client)?;
    let machine = context.machine();
    let disk = disk(context, &machine, name)?;
    let what = format!("open {} again", disk.name);
    act::write(
        context,
        Task::Remap,
        &what,
        &format!("{}/remap_device", disk.folder()),
        "1",
    )?;
    Ok(0)
}

pub(super) fn resize(context: &Context, name: &str, size: &str) -> Done {
    let bytes = value::size(size).ok_or_else(|| {
        Failure::usage(format!("size {size}"), "it is not a size")
            .todo("take bytes, 10G, or 2048s for sectors")
    })?;
    if bytes % 512 != 0 {
        return Err(Failure::usage(
            format!("size {size}"),
            "it is not a whole number of sectors of 512 bytes",
        ));
    }
    context.need(Side::Client)?;
    let machine = context.machine();
    let disk = disk(context, &machine, name)?;
    let what = format!("resize {}", disk.name);
    act::write(
        context,
        Task::Resize,
        &what,
        &format!("{}/resize", disk.folder()),
        &(bytes / 512).to_string(),
    )?;
    Ok(0)
}
