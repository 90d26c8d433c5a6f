// SPDX-License-Identifier: GPL-2.0

//! Uevents of the kernel, received by netlink.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{bind, recv, socket_with, AddressFamily, RecvFlags, SocketFlags, SocketType};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An event of a disk, a session or one of our modules' devices.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Seconds since 1970, when it was received; a reader fills it in.
    pub time: u64,
    /// `add`, `remove`, `change`, `online`, `offline` and others.
    pub action: String,
    /// `block`, `ibtrs-client` or `ibtrs-server`.
    pub subsystem: String,
    /// The disk's or the session's name.
    pub name: String,
    /// Variables whose names begin with `IBTRS_` or `IBNBD_`, and `RESIZE`.
    pub variables: BTreeMap<String, String>,
}

const SUBSYSTEMS: [&str; 6] = [
    "ibtrs-client",
    "ibtrs-server",
    "ibnbd-client",
    "ibnbd-server",
    "rtrs-client",
    "rtrs-server",
];

/// The largest message of the kernel.
const MAX_MESSAGE: usize = 8192;

/// Reads a message: `ACTION@PATH`, and then `NAME=VALUE`, each ended by a NUL. None for one that is
/// about something else, or that makes no sense.
pub fn parse(message: &[u8], time: u64) -> Option<Event> {
    let mut parts = message.split(|&b| b == 0).map(std::str::from_utf8);
    let (action, path) = parts.next()?.ok()?.split_once('@')?;
    let all: BTreeMap<&str, &str> = parts
        .filter_map(|part| part.ok()?.split_once('='))
        .collect();
    let subsystem = *all.get("SUBSYSTEM")?;
    let name = path.rsplit('/').next().filter(|name| !name.is_empty())?;
    let disk = subsystem == "block" && (name.starts_with("ibnbd") || name.starts_with("rnbd"));
    if !disk && !SUBSYSTEMS.contains(&subsystem) {
        return None;
    }
    let ours =
        |name: &str| name.starts_with("IBTRS_") || name.starts_with("IBNBD_") || name == "RESIZE";
    let variables = all.iter().filter(|(name, _)| ours(name));
    Some(Event {
        time,
        action: action.to_owned(),
        subsystem: subsystem.to_owned(),
        name: name.to_owned(),
        variables: variables
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect(),
    })
}

impl Event {
    /// The event for people: `s: path ip:10.0.1.2@ip:10.0.1.1: connected`.
    pub fn text(&self) -> String {
        let get = |name: &str| self.variables.get(name).map(String::as_str);
        let what = match (get("IBTRS_PATH"), get("IBTRS_STATE")) {
            (Some(path), Some(state)) => format!("path {path}: {state}"),
            _ => match (
                get("IBTRS_SESSION_STATE"),
                get("IBNBD_STATE"),
                get("IBNBD_CACHE_LOST"),
                get("RESIZE"),
            ) {
                (Some(state), ..) => format!("session {state}"),
                (_, Some(state), ..) => state.to_owned(),
                (_, _, Some("1"), _) => "the server has lost its cache".to_owned(),
                (_, _, _, Some(_)) => "has another size".to_owned(),
                _ => self.action.clone(),
            },
        };
        format!("{} {}: {what}", self.subsystem, self.name)
    }
}

/// A place where events arrive.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl Socket {
    /// Listens from now on.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn open() -> io::Result<Self> {
        const KERNEL_EVENTS: u32 = 1;
        let kind = Some(netlink::KOBJECT_UEVENT);
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            kind,
        )?;
        bind(&socket, &SocketAddrNetlink::new(0, KERNEL_EVENTS))?;
        Ok(Self(socket))
    }

    /// Waits for the next event that is ours. `None` stands for events that were lost, as they came
    /// faster than they were read.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn next(&self, now: impl Fn() -> u64) -> io::Result<Option<Event>> {
        let mut message = vec![0; MAX_MESSAGE];
        loop {
            match recv(&self.0, &mut *message, RecvFlags::empty()) {
                Ok((length, _)) => {
                    let event = parse(message.get(..length).unwrap_or_default(), now());
                    if event.is_some() {
                        return Ok(event);
                    }
                }
                Err(rustix::io::Errno::NOBUFS) => return Ok(None),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
