// SPDX-License-Identifier: GPL-2.0

//! `map`, `unmap`, `remap`, `resize`.

use ibnbd_host::advice::Task;
use ibnbd_host::family::{Family, Side};
use ibnbd_host::mapping::{self, Mapping};
use ibnbd_host::model::{Disk, Machine};
use ibnbd_host::{find, host, value};

use super::{save, Done};
use crate::act;
use crate::cli::Map;
use crate::context::Context;
use crate::fail::{Failure, NOT_FOUND};

/// Where a disk is mapped.
pub(super) const MAP_FILE: &str = "/sys/class/ibnbd-client/ctl/map_device";

pub(super) fn map(context: &Context, map: &Map) -> Done {
    let wanted = wanted(context, map)?;
    let line = wanted.line().map_err(|why| Failure::usage("map", why))?;
    context.need(Side::Client)?;
    let disk = map_line(context, &wanted, &line)?;
    context.say(&disk)?;
    if map.persist {
        save::persist(context, &wanted.session, &wanted.device, wanted.port)?;
    }
    Ok(0)
}

/// Maps, and finds out what the disk is called.
pub(super) fn map_line(context: &Context, wanted: &Mapping, line: &str) -> Result<String, Failure> {
    let what = format!("map {} of session {}", wanted.device, wanted.session);
    act::write(context, Task::Map, &what, MAP_FILE, line)?;
    let machine = context.machine();
    match mapped(&machine, &wanted.session, &wanted.device) {
        Some(disk) => Ok(disk.device.clone()),
        None => Err(Failure::new(
            NOT_FOUND,
            what,
            "it was mapped, and is not there any more",
        )),
    }
}

/// The disk of ours that is that device of the session.
pub(super) fn mapped<'a>(machine: &'a Machine, session: &str, device: &str) -> Option<&'a Disk> {
    machine.disks.iter().find(|d| {
        d.family == Family::Ibnbd
            && d.session.as_deref() == Some(session)
            && d.mapping_path.as_deref() == Some(device)
    })
}

fn wanted(context: &Context, map: &Map) -> Result<Mapping, Failure> {
    let mut paths = Vec::new();
    for text in &map.paths {
        paths.push(path(context, text)?);
    }
    for server in &map.servers {
        let end = path(context, server)?;
        let known = paths
            .iter()
            .any(|path| path.split(',').next_back() == Some(&end));
        if !known {
            paths.push(end);
        }
    }
    let server = map.servers.first().map(String::as_str).unwrap_or_default();
    let own = (map.poll_queues != 0).then_some(map.device.as_str());
    let generated = || mapping::session_name(&host::name(&context.root), server, own);
    let access = match (map.ro, map.migration) {
        (true, _) => Some("ro".to_owned()),
        (_, true) => Some("migration".to_owned()),
        _ => None,
    };
    Ok(Mapping {
        session: map.session.clone().unwrap_or_else(generated),
        device: map.device.clone(),
        paths,
        port: (map.port != 1234).then_some(map.port),
        access,
        exclusive: map.exclusive,
        poll_queues: map.poll_queues,
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

pub(super) fn unmap(context: &Context, names: &[String], force: bool, persist: bool) -> Done {
    context.need(Side::Client)?;
    let machine = context.machine();
    let disks: Result<Vec<&Disk>, _> = names
        .iter()
        .map(|name| disk(context, &machine, name))
        .collect();
    for disk in disks? {
        unmap_disk(context, disk, force)?;
        if let (true, Some(session), Some(device)) = (persist, &disk.session, &disk.mapping_path) {
            save::forget(context, session, device)?;
        }
    }
    Ok(0)
}

pub(super) fn unmap_disk(context: &Context, disk: &Disk, force: bool) -> Result<(), Failure> {
    let file = format!("{}/unmap_device", disk.folder());
    let how = if force { "force" } else { "normal" };
    act::write(
        context,
        Task::Unmap,
        &format!("unmap {}", disk.name),
        &file,
        how,
    )
}

pub(super) fn remap(context: &Context, name: &str) -> Done {
    context.need(Side::Client)?;
    let machine = context.machine();
    let disk = disk(context, &machine, name)?;
    let what = format!("open {} anew", disk.name);
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
        Failure::usage(format!("size {size}"), "it is no size")
            .todo("take bytes, 10G, or 2048s for sectors")
    })?;
    if bytes % 512 != 0 {
        return Err(Failure::usage(
            format!("size {size}"),
            "it is no whole number of sectors of 512 bytes",
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
