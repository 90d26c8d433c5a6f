// SPDX-License-Identifier: GPL-2.0

//! The folder of devices that a server exports: the `dev_search_path` of `ibnbd_server`.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FileType, Mode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::host;
use crate::model::Machine;
use crate::root::Root;

/// The placeholder for the session's name in the folder's name.
pub const SESSION: &str = "%SESSNAME%";

/// Folders below the folder are looked into, so deep.
const DEPTH: usize = 4;

/// A device that clients may open.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Exported {
    /// The name that clients give.
    pub name: String,
    /// The block device's name, as in `/sys/class/block`; none for a number that no device has now.
    pub device: Option<String>,
    /// Its major number.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
    /// Its size in bytes.
    pub size_bytes: Option<u64>,
    /// Sessions that have it open.
    pub sessions: Vec<String>,
}

/// The folder that the server was loaded with, with the session in its name.
///
/// # Errors
///
/// Why there is none: the server is not loaded, has no folder, or one for each session.
pub fn of_server(root: &Root, session: Option<&str>) -> Result<String, String> {
    let Some(path) = host::parameter(root, "ibnbd_server", "dev_search_path") else {
        return Err(
            "ibnbd_server is not loaded, so that it is not known: give --directory".to_owned(),
        );
    };
    if path.is_empty() {
        return Err(
            "ibnbd_server was loaded without dev_search_path: it exports nothing".to_owned(),
        );
    }
    match session {
        Some(session) => Ok(path.replace(SESSION, session)),
        None if path.contains(SESSION) => Err(format!(
            "{path} is another one for each session: give --session"
        )),
        None => Ok(path),
    }
}

/// The devices below a folder.
///
/// # Errors
///
/// The system's, for the folder itself.
pub fn list(root: &Root, machine: &Machine, folder: &str) -> io::Result<Vec<Exported>> {
    let mut found = Vec::new();
    walk(root, machine, folder, "", DEPTH, &mut found)?;
    Ok(found)
}

fn walk(
    root: &Root,
    machine: &Machine,
    folder: &str,
    below: &str,
    depth: usize,
    found: &mut Vec<Exported>,
) -> io::Result<()> {
    for entry in root.list(&format!("{folder}/{below}"))? {
        let name = if below.is_empty() {
            entry
        } else {
            format!("{below}/{entry}")
        };
        let Ok(meta) = fs::metadata(root.real(&format!("{folder}/{name}"))) else {
            continue;
        };
        if meta.file_type().is_block_device() {
            found.push(exported(root, machine, name, meta.rdev()));
        } else if meta.is_dir() && depth > 1 {
            // One that may not be looked into, or goes, has nothing to show.
            let _ = walk(root, machine, folder, &name, depth.saturating_sub(1), found);
        }
    }
    Ok(())
}

fn exported(root: &Root, machine: &Machine, name: String, number: u64) -> Exported {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let device = host::block_name(root, major, minor);
    let size_bytes = device
        .as_ref()
        .and_then(|device| host::block_size(root, device));
    let open = machine
        .opened
        .iter()
        .filter(|o| Some(&o.device) == device.as_ref());
    let sessions = open.map(|o| o.session.clone()).collect();
    Exported {
        name,
        device,
        major,
        minor,
        size_bytes,
        sessions,
    }
}

/// The sessions that have the device of a file open, whatever they call it.
pub fn users(root: &Root, machine: &Machine, file: &str) -> Vec<String> {
    match fs::metadata(root.real(file)) {
        Ok(meta) if meta.file_type().is_block_device() => {
            exported(root, machine, String::new(), meta.rdev()).sessions
        }
        _ => Vec::new(),
    }
}

/// A name below a folder as the server takes it: it may begin with the folder or a slash, and a part
/// of it may be empty or a dot.
pub fn plain(folder: Option<&str>, name: &str) -> String {
    let parts = |text: &str| -> Vec<String> {
        let parts = text.split('/').filter(|part| !matches!(*part, "" | "."));
        parts.map(str::to_owned).collect()
    };
    let (folder, parts_of_name) = (parts(folder.unwrap_or_default()), parts(name));
    let below = match name.starts_with('/') {
        true => parts_of_name.strip_prefix(folder.as_slice()),
        false => None,
    };
    below
        .filter(|below| !below.is_empty())
        .unwrap_or(&parts_of_name)
        .join("/")
}

/// The last part of a path, by which an export is called if it has no name of its own.
pub fn last_part(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// Whether a name is a place below a folder.
pub fn is_below(name: &str) -> bool {
    let parts = || name.trim_start_matches('/').split('/');
    !name.is_empty() && parts().all(|part| !matches!(part, "" | "." | ".."))
}

/// Makes a device file in the folder, which is made if it is not there. Only root can open it.
///
/// # Errors
///
/// The system's; `InvalidInput` for a device that is not a block device, or a name that leads out.
pub fn add(root: &Root, folder: &str, device: &str, name: &str) -> io::Result<()> {
    if !is_below(name) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the name leads out of the folder",
        ));
    }
    let meta = fs::metadata(root.real(device))?;
    if !meta.file_type().is_block_device() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{device} is not a block device"),
        ));
    }
    let file = root.real(&format!("{folder}/{name}"));
    if let Some(parent) = file.parent() {
        fs::create_dir_all(parent)?;
    }
    let mode = Mode::RUSR | Mode::WUSR;
    Ok(rustix::fs::mknodat(
        rustix::fs::CWD,
        &file,
        FileType::BlockDevice,
        mode,
        meta.rdev(),
    )?)
}

/// Whether a name in the folder stands for that device already.
pub fn same(root: &Root, folder: &str, device: &str, name: &str) -> bool {
    is_same(root, &format!("{folder}/{name}"), device)
}

/// Whether a file, or what it leads to, is a block device.
pub fn is_device(root: &Root, file: &str) -> bool {
    fs::metadata(root.real(file)).is_ok_and(|meta| meta.file_type().is_block_device())
}

/// Whether a file is a block device itself, and no link to one.
pub fn is_device_file(root: &Root, file: &str) -> bool {
    fs::symlink_metadata(root.real(file)).is_ok_and(|meta| meta.file_type().is_block_device())
}

/// Whether two files stand for one block device.
pub fn is_same(root: &Root, one: &str, other: &str) -> bool {
    let number = |path: &Path| {
        fs::metadata(path)
            .ok()
            .filter(|m| m.file_type().is_block_device())
            .map(|m| m.rdev())
    };
    let there = number(&root.real(one));
    there.is_some() && there == number(&root.real(other))
}

/// Names in the folder other than `name` that stand for that device.
pub fn other_names(
    root: &Root,
    machine: &Machine,
    folder: &str,
    device: &str,
    name: &str,
) -> Vec<String> {
    // A folder that is not there yet has none.
    let all = list(root, machine, folder).unwrap_or_default();
    let own = plain(None, name);
    let names = all.into_iter().map(|exported| exported.name);
    names
        .filter(|other| *other != own && same(root, folder, device, other))
        .collect()
}

/// Takes a device file, or a link to one, out of the folder. The device stays.
///
/// # Errors
///
/// The system's; `InvalidInput` for what is neither.
pub fn remove(root: &Root, folder: &str, name: &str) -> io::Result<()> {
    let file = root.real(&format!("{folder}/{name}"));
    let kind = fs::symlink_metadata(&file)?.file_type();
    if !is_below(name) || !(kind.is_block_device() || kind.is_symlink()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a device file, and stays",
        ));
    }
    fs::remove_file(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_write_a_name_is_the_servers() {
        for (name, expected) in [
            ("disk1", "disk1"),
            ("/disk1", "disk1"),
            ("./a//disk1", "a/disk1"),
            ("/dev/exports/disk1", "disk1"),
            ("//dev/./exports/a/disk1", "a/disk1"),
            // Only a whole path begins with the folder, and a name is left.
            ("dev/exports/disk1", "dev/exports/disk1"),
            ("/dev/exports2/disk1", "dev/exports2/disk1"),
            ("/dev/exports", "dev/exports"),
            ("../disk1", "../disk1"),
        ] {
            assert_eq!(plain(Some("/dev/exports/"), name), expected, "{name}");
        }
        assert_eq!(plain(None, "/dev/disk1"), "dev/disk1");
    }
}
