// SPDX-License-Identifier: GPL-2.0

//! `map`, `remap`, `resize`.

use std::thread;
use std::time::{Duration, Instant};

use ibnbd_host::advice::Task;
use ibnbd_host::family::{Family, Side};
use ibnbd_host::mapping::{self, Mapping};
use ibnbd_host::model::{Disk, Machine, Path, PathState};
use ibnbd_host::{find, host, value};
use ibtrs_proto::Errno;

use super::{discover, save, Done};
use crate::act;
use crate::cli::{Map, Server};
use crate::context::Context;
use crate::fail::{even_unread, Failure, NOT_FOUND};

/// Where a disk is mapped.
pub(super) const MAP_FILE: &str = "/sys/class/ibnbd-client/ctl/map_device";

pub(super) fn map(context: &Context, map: &Map) -> Done {
    let wanted = wanted(context, map)?;
    let line = wanted.line().map_err(|why| Failure::usage("map", why))?;
    context.need(Side::Client)?;
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

/// How long a new session's further paths may take: the kernel waits for the first one only.
const FURTHER_PATHS: Duration = Duration::from_secs(5);

/// Waits for the paths of a new session, and names those that do not connect.
fn wait_for_paths(context: &Context, name: &str) {
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

fn wanted(context: &Context, map: &Map) -> Result<Mapping, Failure> {
    let own = (map.poll_queues != 0).then_some(map.device.as_str());
    let access = match (map.ro, map.migration) {
        (true, _) => Some("ro".to_owned()),
        (_, true) => Some("migration".to_owned()),
        _ => None,
    };
    Ok(Mapping {
        device: map.device.clone(),
        access,
        exclusive: map.exclusive,
        queues: map.queues,
        poll_queues: map.poll_queues,
        failover_time_ms: map.failover_time_ms,
        data_checksum: map.checksum.map(|checksum| checksum.as_str().to_owned()),
        identity: map.identity.map(|check| check.as_str().to_owned()),
        ..session(context, &map.server, own)?
    })
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
    for server in &words.servers {
        let end = path(context, server)?;
        let known = paths
            .iter()
            .any(|path| path.split(',').next_back() == Some(&end));
        if !known {
            paths.push(end);
        }
    }
    let server = words.servers.first().map(String::as_str);
    let server = server.unwrap_or_default();
    let generated = || mapping::session_name(&host::name(&context.root), server, own);
    Ok(Mapping {
        session: words.session.clone().unwrap_or_else(generated),
        paths,
        port: (words.port != 1234).then_some(words.port),
        key_id: words.key_id.map(|id| id.as_str().to_owned()),
        ..Mapping::default()
    })
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
