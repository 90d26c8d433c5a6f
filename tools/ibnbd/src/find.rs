// SPDX-License-Identifier: GPL-2.0

//! Finds the objects that a user names.

use std::fs;

use ibtrs_proto::addr::PathAddr;

use crate::disk_name::DiskName;
use crate::family::{Family, Side};
use crate::folder;
use crate::mapping;
use crate::model::{Disk, Machine, Opened, Path, Session};
use crate::root::Root;

/// Why nothing, or nothing certain, is meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unclear {
    /// There is none.
    Nothing,
    /// There are several; how each can be called.
    Several(Vec<String>),
}

/// A thing that a user has named.
#[derive(Clone, PartialEq, Debug)]
pub enum Found<'a> {
    /// A disk.
    Disk(&'a Disk),
    /// A session, at either end.
    Session(&'a Session),
    /// A path, at either end.
    Path(&'a Path),
    /// A device that a client has open.
    Opened(&'a Opened),
}

fn only<T>(mut found: Vec<&T>, call: fn(&T) -> String) -> Result<&T, Unclear> {
    match found.len() {
        0 => Err(Unclear::Nothing),
        1 => Ok(found.remove(0)),
        _ => Err(Unclear::Several(found.into_iter().map(call).collect())),
    }
}

/// A disk: `ibnbd0`, `/dev/ibnbd0`, a link to it as udev makes them, `SESSION/DEVICE`, its `wwid`,
/// its name on the server, or that with `@` and the session.
///
/// # Errors
///
/// See [`Unclear`].
pub fn disk<'a>(machine: &'a Machine, root: &Root, name: &str) -> Result<&'a Disk, Unclear> {
    let short = name.strip_prefix("/dev/").unwrap_or(name);
    let by_name = |disk: &&Disk| disk.name == short;
    if let Some(disk) = machine.disks.iter().find(by_name) {
        return Ok(disk);
    }
    if let Some(disk) = by_link(machine, root, name) {
        return Ok(disk);
    }
    // As units name it, for which there must be no other one.
    if let Some(disk) = name.parse().ok().and_then(|name| mapped_as(machine, &name)) {
        return Ok(disk);
    }
    let mapped = |disk: &&Disk| {
        let path = disk.mapping_path.as_deref();
        let both = path
            .zip(disk.session.as_deref())
            .map(|(p, s)| format!("{p}@{s}"));
        path == Some(name) || both.as_deref() == Some(name) || disk.wwid.as_deref() == Some(name)
    };
    only(machine.disks.iter().filter(mapped).collect(), |disk| {
        disk.name.clone()
    })
}

/// A disk of ours by its session and its name on the server.
fn mapped_as<'a>(machine: &'a Machine, name: &DiskName) -> Option<&'a Disk> {
    machine.our_disk(&name.session, &name.device)
}

fn by_link<'a>(machine: &'a Machine, root: &Root, name: &str) -> Option<&'a Disk> {
    if !name.starts_with('/') {
        return None;
    }
    let real = fs::canonicalize(root.real(name)).ok()?;
    let real = real.file_name()?.to_str()?;
    machine.disks.iter().find(|disk| disk.name == real)
}

/// A session by its name, at the end that is wanted, or at either. Ours comes first.
///
/// # Errors
///
/// See [`Unclear`].
pub fn session<'a>(
    machine: &'a Machine,
    name: &str,
    side: Option<Side>,
) -> Result<&'a Session, Unclear> {
    let mut found: Vec<&Session> = machine
        .sessions
        .iter()
        .filter(|s| s.name == name && side.is_none_or(|side| s.side == side))
        .collect();
    if found.iter().any(|s| s.family == Family::Ibnbd) {
        found.retain(|s| s.family == Family::Ibnbd);
    }
    // A machine may be both ends of one: the client's says more.
    found.sort_by_key(|s| s.side == Side::Server);
    found.first().copied().ok_or(Unclear::Nothing)
}

/// A path of a session: by its name, by both addresses, or by an address that no other path of it
/// has. Names of machines are not looked up.
///
/// # Errors
///
/// See [`Unclear`].
pub fn path_of<'a>(session: &'a Session, root: &Root, name: &str) -> Result<&'a Path, Unclear> {
    if let Some(path) = session.paths.iter().find(|path| path.name == name) {
        return Ok(path);
    }
    let line = mapping::path(root, &|_| Ok(Vec::new()), name);
    let ends = line.ok().and_then(|line| PathAddr::parse(&line).ok());
    let ends = ends.ok_or(Unclear::Nothing)?;
    let fits = |path: &&Path| match ends.src {
        Some(_) => path.is_at(&ends),
        None => path.has_end(&ends.dst),
    };
    only(session.paths.iter().filter(fits).collect(), |path| {
        path.name.clone()
    })
}

/// A path: `SESSION/PATH`, or a path that only one session has.
///
/// # Errors
///
/// See [`Unclear`].
pub fn path<'a>(
    machine: &'a Machine,
    root: &Root,
    name: &str,
    side: Option<Side>,
) -> Result<&'a Path, Unclear> {
    if let Some((of, rest)) = name.split_once('/') {
        return path_of(session(machine, of, side)?, root, rest);
    }
    let of_side = |s: &&Session| side.is_none_or(|side| s.side == side);
    let mut found = Vec::new();
    for session in machine.sessions.iter().filter(of_side) {
        match path_of(session, root, name) {
            Ok(path) => found.push(path),
            Err(Unclear::Several(_)) => found.extend(&session.paths),
            Err(Unclear::Nothing) => {}
        }
    }
    only(found, |path| format!("{}/{}", path.session, path.name))
}

/// Devices that are open: by their name, or the one that clients have used, however they and the
/// user have written it.
pub fn opened<'a>(machine: &'a Machine, root: &Root, name: &str) -> Vec<&'a Opened> {
    let short = name.strip_prefix("/dev/").unwrap_or(name);
    let is_same = |session: &str, path: &str| {
        let folder = folder::of_server(root, Some(session)).ok();
        let plain = |name| folder::plain(folder.as_deref(), name);
        plain(path) == plain(name)
    };
    let fits = |o: &&Opened| {
        let path = o.mapping_path.as_deref();
        o.device == short || path.is_some_and(|path| is_same(&o.session, path))
    };
    machine.opened.iter().filter(fits).collect()
}

/// Whatever has that name: a disk, else a session, else a path, else a device that is open.
///
/// # Errors
///
/// See [`Unclear`].
pub fn anything<'a>(machine: &'a Machine, root: &Root, name: &str) -> Result<Found<'a>, Unclear> {
    let mut several = None;
    let found = disk(machine, root, name)
        .map(Found::Disk)
        .or_else(|why| {
            or_note(&mut several, why, || {
                session(machine, name, None).map(Found::Session)
            })
        })
        .or_else(|why| {
            or_note(&mut several, why, || {
                path(machine, root, name, None).map(Found::Path)
            })
        })
        .or_else(|why| {
            or_note(&mut several, why, || {
                let call = |o: &Opened| format!("{} of session {}", o.device, o.session);
                only(opened(machine, root, name), call).map(Found::Opened)
            })
        });
    found.map_err(|why| several.unwrap_or(why))
}

fn or_note<'a>(
    several: &mut Option<Unclear>,
    why: Unclear,
    next: impl FnOnce() -> Result<Found<'a>, Unclear>,
) -> Result<Found<'a>, Unclear> {
    if why != Unclear::Nothing && several.is_none() {
        *several = Some(why);
    }
    next()
}
