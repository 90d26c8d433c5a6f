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
        let rank = match (get("IBTRS_DRAINED"), get("IBTRS_STANDBY")) {
            (Some("1"), _) => Some("drained"),
            (Some(_), _) => Some("no longer drained"),
            (_, Some("1")) => Some("on standby"),
            (_, Some(_)) => Some("no longer on standby"),
            _ => None,
        };
        let what = match (get("IBTRS_PATH"), get("IBTRS_STATE").or(rank)) {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(parts: &[&str]) -> Vec<u8> {
        let ended = parts.iter().map(|part| [part.as_bytes(), b"\0"].concat());
        ended.collect::<Vec<_>>().concat()
    }

    fn text(parts: &[&str]) -> Option<String> {
        parse(&message(parts), 7).map(|event| event.text())
    }

    #[test]
    fn events_of_ours_are_read() {
        let path = "change@/devices/virtual/ibtrs-client/s";
        let common = ["SUBSYSTEM=ibtrs-client", "ACTION=change", "SEQNUM=4711"];
        let with = |more: &[&str]| text(&[&[path], &common[..], more].concat()).unwrap();
        let lost = [
            "IBTRS_PATH=ip:10.0.1.2@ip:10.0.1.1",
            "IBTRS_STATE=disconnected",
        ];
        let said = "ibtrs-client s: path ip:10.0.1.2@ip:10.0.1.1: disconnected";
        assert_eq!(with(&lost), said);
        for (variable, said) in [
            ("IBTRS_DRAINED=1", "drained"),
            ("IBTRS_DRAINED=0", "no longer drained"),
            ("IBTRS_STANDBY=1", "on standby"),
            ("IBTRS_STANDBY=0", "no longer on standby"),
        ] {
            let said = format!("ibtrs-client s: path ip:10.0.1.1: {said}");
            assert_eq!(with(&["IBTRS_PATH=ip:10.0.1.1", variable]), said);
        }
        let session = "IBTRS_SESSION_STATE=connected";
        assert_eq!(with(&[session]), "ibtrs-client s: session connected");
        assert_eq!(with(&[]), "ibtrs-client s: change");
        let disk = "change@/devices/virtual/block/ibnbd0";
        let of_disk = |more| text(&[disk, "SUBSYSTEM=block", "DEVTYPE=disk", more]).unwrap();
        assert_eq!(of_disk("IBNBD_STATE=closed"), "block ibnbd0: closed");
        assert_eq!(of_disk("RESIZE=1"), "block ibnbd0: has another size");
        let lost = "block ibnbd0: the server has lost its cache";
        assert_eq!(of_disk("IBNBD_CACHE_LOST=1"), lost);
        assert_eq!(of_disk("IBNBD_CACHE_LOST=0"), "block ibnbd0: change");
    }

    #[test]
    fn only_variables_of_ours_are_kept() {
        let parts = [
            "add@/devices/virtual/block/ibnbd0",
            "SUBSYSTEM=block",
            "IBNBD_STATE=a=b",
        ];
        let event = parse(
            &message(&[&parts[..], &["MAJOR=252", "no value"]].concat()),
            7,
        )
        .unwrap();
        assert_eq!((event.time, event.action.as_str()), (7, "add"));
        let variables: Vec<_> = event.variables.iter().collect();
        assert_eq!(variables, [(&"IBNBD_STATE".to_owned(), &"a=b".to_owned())]);
    }

    #[test]
    fn other_messages_are_none() {
        for parts in [
            &["add@/devices/virtual/block/sda", "SUBSYSTEM=block"][..],
            &["add@/devices/x/net/eth0", "SUBSYSTEM=net"],
            &["add@/devices/virtual/block/ibnbd0"],
            &["add@/devices/virtual/block/", "SUBSYSTEM=block"],
            // A message that udev sends to other programs.
            &["libudev", "SUBSYSTEM=block"],
            &[],
        ] {
            assert_eq!(text(parts), None, "{parts:?}");
        }
        assert_eq!(parse(b"\xff@/x/ibnbd0\0SUBSYSTEM=block\0", 0), None);
        assert_eq!(parse(b"", 0), None);
        // One that was cut off has what came before.
        let whole = b"change@/x/ibnbd0\0SUBSYSTEM=block\0IBNBD_STA";
        assert!(parse(whole, 0).unwrap().variables.is_empty());
    }

    proptest! {
        #[test]
        fn no_message_does_harm(bytes: Vec<u8>, parts in "([a-z]{0,6}@?/?(ibnbd0|s)?\0)?((SUBSYSTEM|IBTRS_PATH|IBTRS_STATE|RESIZE|[A-Z]{0,3})=?(block|ibtrs-client|\\PC{0,9})\0){0,6}") {
            for message in [&bytes[..], parts.as_bytes()] {
                if let Some(event) = parse(message, 1) {
                    prop_assert!(!event.name.is_empty() && !event.name.contains('/'));
                    prop_assert!(event.text().starts_with(&event.subsystem));
                }
            }
        }
    }
}
