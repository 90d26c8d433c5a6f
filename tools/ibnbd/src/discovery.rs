// SPDX-License-Identifier: GPL-2.0

//! Lists of the exports that servers let this machine open: lines of `discover`, and the results.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use ibnbd_proto::map_opts::SessionOptions;
use ibtrs_proto::addr::Addr;
use ibtrs_proto::name::DevicePath;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::mapping::Mapping;
use crate::model::Note;
use crate::root::Root;
use crate::value;

/// The client's directory.
const CONTROL: &str = "/sys/class/ibnbd-client/ctl";
/// The file that takes a line.
pub const FILE: &str = "/sys/class/ibnbd-client/ctl/discover";

/// An export that a session may open.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Offered {
    /// The name to map it by.
    pub name: String,
    /// The widest mode that it may be mapped in: `ro`, `rw` or `migration`.
    pub access_mode: String,
    /// Its size when the server last looked; none if it does not know.
    pub size_bytes: Option<u64>,
    /// Its logical blocks, in bytes.
    pub block_size: Option<u64>,
}

/// An address of a server that clients can connect to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Portal {
    /// The address, with `ip:` or `gid:`.
    pub address: String,
    /// The port number.
    pub port: u16,
}

impl Portal {
    /// The address as RDMA ports show it.
    pub fn gid(&self) -> Option<Ipv6Addr> {
        match Addr::parse(&self.address).ok()? {
            Addr::V4(bytes) => Some(Ipv4Addr::from(bytes).to_ipv6_mapped()),
            Addr::V6(bytes, _) | Addr::Gid(bytes) => Some(bytes.into()),
        }
    }
}

/// The list that a session has received from a server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// In the order of their names.
    pub exports: Vec<Offered>,
    /// Of ports that the server's operator has configured; none if it listens on all addresses.
    pub portals: Vec<Portal>,
    /// The port of the session, to which all its paths go.
    pub port: Option<u16>,
    /// Whether the server opens devices that it does not list.
    pub unlisted: bool,
    /// Invalid parts of the answer.
    pub notes: Vec<Note>,
}

/// The line to write to `discover`, for the session of a mapping.
///
/// # Errors
///
/// Why the driver would not take it, in its own words.
pub fn line(session: &Mapping) -> Result<String, String> {
    let line = session.session_line();
    match SessionOptions::parse(line.as_bytes()) {
        // It is shown again in a file.
        Ok(_) if line.len() > 4000 => Err("too many paths: more than 4000 bytes in all".to_owned()),
        Ok(_) => Ok(line),
        Err(error) => Err(error.to_string()),
    }
}

/// The result for a line; none if another command of the session has replaced it.
///
/// # Errors
///
/// The system's.
pub fn read(root: &Root, session: &str, line: &str) -> io::Result<Option<Found>> {
    let folder = format!("{CONTROL}/discovered/{session}");
    let text = |name: &str| root.read(&format!("{folder}/{name}"));
    let number = text("number")?;
    if text("request")?.trim_end_matches('\n') != line {
        return Ok(None);
    }
    let mut found = Found {
        port: value::word(&text("port")?).and_then(|word| word.parse().ok()),
        unlisted: value::word(&text("unlisted")?).as_deref() == Some("1"),
        ..Found::default()
    };
    for line in text("portals")?.lines() {
        match portal(line) {
            Some(portal) => found.portals.push(portal),
            None => found.note(&folder, "portals", line),
        }
    }
    let pages = value::word(&text("pages")?).and_then(|word| word.parse::<u32>().ok());
    for page in 0..pages.unwrap_or(0) {
        let name = format!("{page}/exports");
        for line in text(&name)?.lines() {
            match offered(line) {
                Some(export) => found.exports.push(export),
                None => found.note(&folder, &name, line),
            }
        }
    }
    // Another result may have taken its place meanwhile.
    Ok((text("number")? == number).then_some(found))
}

impl Found {
    fn note(&mut self, folder: &str, name: &str, line: &str) {
        self.notes.push(Note {
            file: format!("{folder}/{name}"),
            why: format!("not understood: {line:?}"),
        });
    }
}

/// Adds each, as long as there is time; returns the number of those that were not begun.
pub fn add_within<T>(limit: Duration, all: &[T], mut add: impl FnMut(&T)) -> usize {
    let deadline = Instant::now() + limit;
    for (at, one) in all.iter().enumerate() {
        if Instant::now() >= deadline {
            return all.len() - at;
        }
        add(one);
    }
    0
}

fn portal(line: &str) -> Option<Portal> {
    let (address, port) = line.split_once(' ')?;
    Some(Portal {
        address: Addr::parse(address).ok()?.to_string(),
        port: port.parse().ok()?,
    })
}

fn offered(line: &str) -> Option<Offered> {
    let mut words = line.split(' ');
    let mut next = || words.next();
    let (name, mode, sectors, block) = (next()?, next()?, next()?, next()?);
    if next().is_some() {
        return None;
    }
    DevicePath::new(name.as_bytes()).ok()?;
    let number = |word: &str| word.parse::<u64>().ok();
    let known = |number: u64| (number > 0).then_some(number);
    Some(Offered {
        name: name.to_owned(),
        access_mode: mode.to_owned(),
        // A server that does not know the size does not know the blocks, either.
        block_size: known(number(block)?),
        size_bytes: known(number(block)?).and(number(sectors)?.checked_mul(512)),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_line_does_harm(text in "\\PC*|(ip:)?[0-9a-f.:%]{0,20} [0-9]{0,6}|[a-z/.]{1,9} (ro|rw) [0-9]{1,20} [0-9]{1,20}( x)?") {
            if let Some(portal) = portal(&text) {
                prop_assert!(Addr::parse(&portal.address).is_ok());
                let _ = portal.gid();
            }
            if let Some(export) = offered(&text) {
                prop_assert!(text.starts_with(&export.name));
                // Neither is known without the other.
                prop_assert!(export.block_size.is_some() || export.size_bytes.is_none());
                prop_assert!(export.size_bytes.is_none_or(|size| size % 512 == 0));
            }
        }
    }

    #[test]
    fn adding_has_an_end() {
        let mut added = Vec::new();
        let minute = Duration::from_secs(60);
        assert_eq!(add_within(minute, &[1, 2], |one| added.push(*one)), 0);
        assert_eq!(added, [1, 2]);
        let mut added = Vec::new();
        let left = add_within(Duration::from_millis(20), &[1, 2, 3], |one| {
            added.push(*one);
            std::thread::sleep(Duration::from_millis(30));
        });
        assert_eq!((added, left), (vec![1], 2));
    }
}
