// SPDX-License-Identifier: GPL-2.0

//! Names of disks that hold before they are mapped: `SESSION/DEVICE`.

use std::fmt;
use std::str::FromStr;

use ibtrs_proto::name::{DevicePath, SessionName};

/// A disk by its session and its name on the server.
///
/// A session's name has no `/`, so the first one ends it: `s//dev/nullb0` is the device
/// `/dev/nullb0`. udev's links below `/dev/disk/by-ibnbd` and instances of `ibnbd@.service` are
/// made of the same two names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskName {
    /// The session.
    pub session: String,
    /// The device.
    pub device: String,
}

impl FromStr for DiskName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (session, device) = text
            .split_once('/')
            .ok_or_else(|| "it is not of the form SESSION/DEVICE".to_owned())?;
        SessionName::new(session.as_bytes())
            .map_err(|error| format!("session: {}", error.as_str()))?;
        DevicePath::new(device.as_bytes())
            .map_err(|error| format!("device: {}", error.as_str()))?;
        Ok(Self {
            session: session.to_owned(),
            device: device.to_owned(),
        })
    }
}

impl fmt::Display for DiskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.session, self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Result<(String, String), String> {
        text.parse()
            .map(|name: DiskName| (name.session, name.device))
    }

    #[test]
    fn the_first_slash_ends_the_session() {
        for (text, session, device) in [
            ("s/disk1", "s", "disk1"),
            ("web1@10-0-1-1/a-b", "web1@10-0-1-1", "a-b"),
            ("s//dev/nullb0", "s", "/dev/nullb0"),
            ("s/vg/data", "s", "vg/data"),
        ] {
            let expected = (session.to_owned(), device.to_owned());
            assert_eq!(parts(text), Ok(expected));
            assert_eq!(text.parse::<DiskName>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        for (text, why) in [
            ("disk1", "it is not of the form SESSION/DEVICE"),
            ("", "it is not of the form SESSION/DEVICE"),
            ("/dev/ibnbd0", "session: name is empty"),
            ("a.b/disk1", "session: name contains '/' or '.'"),
            ("s/", "device: name is empty"),
            ("s/a b", "device: name contains a blank"),
        ] {
            let found = parts(text).unwrap_err();
            assert!(found.starts_with(why), "{text}: {found}");
        }
    }
}
