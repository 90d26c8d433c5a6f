// SPDX-License-Identifier: GPL-2.0

//! Names of servers and sessions, and lines of `map_device`.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};

use ibnbd_proto::map_opts::MapOptions;
use ibtrs_proto::addr::PathAddr;

use crate::root::Root;
use crate::value;

/// Finds addresses of names. On a machine that is the system's resolver.
pub type Resolve<'a> = &'a dyn Fn(&str) -> io::Result<Vec<IpAddr>>;

/// Asks the system.
///
/// # Errors
///
/// The resolver's.
pub fn resolve(name: &str) -> io::Result<Vec<IpAddr>> {
    Ok((name, 0)
        .to_socket_addrs()?
        .map(|address| address.ip())
        .collect())
}

/// One end of a path as a path's line has it, from what a user has written: a name, an address,
/// `ip:` or `gid:` and an address. The scope of a link-local address may be the name of an
/// interface. A name has an end for each of its addresses, in their order, and one at least.
///
/// # Errors
///
/// Why it is none.
fn ends(root: &Root, resolve: Resolve<'_>, text: &str) -> Result<Vec<String>, String> {
    if text.is_empty() {
        return Err("an address is empty".to_owned());
    }
    if text.starts_with("gid:") {
        return Ok(vec![text.to_owned()]);
    }
    let plain = text.strip_prefix("ip:").unwrap_or(text);
    let plain = plain
        .strip_prefix('[')
        .and_then(|t| t.strip_suffix(']'))
        .unwrap_or(plain);
    if let Some((address, scope)) = plain.split_once('%') {
        return Ok(vec![format!("ip:{address}%{}", scope_number(root, scope)?)]);
    }
    if let Ok(address) = plain.parse::<IpAddr>() {
        return Ok(vec![format!("ip:{address}")]);
    }
    let found =
        resolve(plain).map_err(|error| format!("{plain}: no address is known for it: {error}"))?;
    if found.is_empty() {
        return Err(format!("{plain}: no address is known for it"));
    }
    Ok(found
        .iter()
        .map(|address| format!("ip:{address}"))
        .collect())
}

/// The parts of `SERVER:REST`; none of a server without a rest. Addresses of IPv6 have colons, but
/// in brackets only if one follows.
pub fn split_server(text: &str) -> Option<(&str, &str)> {
    if let Some(below) = text.strip_prefix('[') {
        let (address, rest) = below.split_once("]:")?;
        return Some((address, rest));
    }
    let (server, rest) = text.split_once(':')?;
    let is_kind = matches!(server, "ip" | "gid");
    (!is_kind && !server.is_empty() && !rest.contains(':')).then_some((server, rest))
}

/// Whether an end of a path is an address, and no name that has to be looked up.
pub fn is_address(end: &str) -> bool {
    let plain = end.strip_prefix("ip:").unwrap_or(end);
    let plain = plain.trim_start_matches('[').trim_end_matches(']');
    let (address, _) = plain.split_once('%').unwrap_or((plain, ""));
    end.starts_with("gid:") || address.parse::<IpAddr>().is_ok()
}

/// The number of an interface, from its name or its number.
pub(crate) fn scope_number(root: &Root, scope: &str) -> Result<String, String> {
    if !scope.is_empty() && scope.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(scope.to_owned());
    }
    if scope.contains('/') {
        return Err(format!("{scope}: no such interface"));
    }
    let file = format!("/sys/class/net/{scope}/ifindex");
    let text = root
        .read(&file)
        .map_err(|_| format!("{scope}: no such interface"))?;
    value::word(&text).ok_or_else(|| format!("{file}: not understood"))
}

/// The paths that a text may stand for, as names may have several addresses; first that of [`path`].
///
/// # Errors
///
/// Those of [`path`].
pub(crate) fn paths(root: &Root, resolve: Resolve<'_>, text: &str) -> Result<Vec<String>, String> {
    let mut lines: Vec<String> = Vec::new();
    for part in text.split([',', '@']) {
        let ends = ends(root, resolve, part)?;
        lines = match lines.is_empty() {
            true => ends,
            false => lines
                .iter()
                .flat_map(|line| ends.iter().map(move |end| format!("{line},{end}")))
                .collect(),
        };
    }
    if let Some(Err(error)) = lines.first().map(|line| PathAddr::parse(line)) {
        return Err(format!("{text}: {}", error.as_str()));
    }
    // Addresses of two families make no path.
    lines.retain(|line| PathAddr::parse(line).is_ok());
    Ok(lines)
}

/// A path as `map_device` and `add_path` take it, from `DST`, `SRC,DST` or `SRC@DST`. Of names, the
/// first addresses count.
///
/// # Errors
///
/// Why it is none.
pub fn path(root: &Root, resolve: Resolve<'_>, text: &str) -> Result<String, String> {
    Ok(paths(root, resolve, text)?.swap_remove(0))
}

/// The same, for another path with the same ends: how sysfs would call it.
///
/// # Errors
///
/// Why it is none.
pub fn canonical(line: &str) -> Result<String, String> {
    let parsed = PathAddr::parse(line).map_err(|error| format!("{line}: {}", error.as_str()))?;
    Ok(match parsed.src {
        Some(src) => format!("{src}@{}", parsed.dst),
        None => parsed.dst.to_string(),
    })
}

/// A name for a session with these servers: `<this machine>@<first server>`.
///
/// A disk with poll queues has a session of its own, so its name is a part of that.
pub fn session_name(host: &str, server: &str, device: Option<&str>) -> String {
    let server = server
        .trim_start_matches("ip:")
        .trim_start_matches('[')
        .trim_end_matches(']');
    let mut name = format!("{host}@{server}");
    if let Some(device) = device {
        name = format!("{name}+{}", device.trim_start_matches('/'));
    }
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_:@+".contains(c);
    let name: String = name
        .chars()
        .map(|c| if safe(c) { c } else { '-' })
        .take(254)
        .collect();
    name.trim_start_matches('-').to_owned()
}

/// A device to map, and the options.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mapping {
    /// The session's name.
    pub session: String,
    /// The device's name on the server.
    pub device: String,
    /// Paths, as [`path`] makes them; none for a session that is there.
    pub paths: Vec<String>,
    /// The server's port, if another one than usual.
    pub port: Option<u16>,
    /// `ro`, `rw` or `migration`.
    pub access: Option<String>,
    /// Whether nobody else may have it.
    pub exclusive: bool,
    /// Queues of a new session for I/O that is not polled, if not one for each CPU.
    pub queues: Option<u32>,
    /// Queues for polled I/O, -1 for one for each CPU.
    pub poll_queues: i64,
    /// The id of the key of a new session, if another one than usual.
    pub key_id: Option<String>,
    /// The failover time of a new session in milliseconds, if another one than usual.
    pub failover_time_ms: Option<u32>,
    /// The checksum of the data, if there is to be one.
    pub data_checksum: Option<String>,
    /// What to do about a disk without identity, if another thing than usual.
    pub identity: Option<String>,
}

impl Mapping {
    /// The line for the session without a device.
    pub(crate) fn session_line(&self) -> String {
        format!("sessname={}{}{}", self.session, self.way(), self.key())
    }

    /// The line to write to `open_session`, which opens the session without the device.
    pub fn open_line(&self) -> String {
        let mut line = self.session_line();
        if let Some(queues) = self.queues {
            line += &format!(" nr_queues={queues}");
        }
        if let Some(ms) = self.failover_time_ms {
            line += &format!(" failover_time_ms={ms}");
        }
        line
    }

    fn way(&self) -> String {
        let mut words: String = self.paths.iter().map(|p| format!(" path={p}")).collect();
        if let Some(port) = self.port {
            words += &format!(" dest_port={port}");
        }
        words
    }

    fn key(&self) -> String {
        let id = self.key_id.as_ref();
        id.map(|id| format!(" key_id={id}")).unwrap_or_default()
    }

    /// The line to write to `map_device`.
    ///
    /// # Errors
    ///
    /// Why the driver would not take it, in its own words.
    pub fn line(&self) -> Result<String, String> {
        // A line has no quoting: such a name would be several words.
        for (what, name) in [("device", &self.device), ("session", &self.session)] {
            if name.chars().any(|c| c.is_whitespace() || c.is_control()) {
                return Err(format!(
                    "{what} {name:?}: a name with blanks or control characters cannot be used"
                ));
            }
        }
        let mut line = format!("sessname={} device_path={}", self.session, self.device);
        line += &self.way();
        if let Some(access) = &self.access {
            line += &format!(" access_mode={access}");
        }
        if self.exclusive {
            line += " exclusive=1";
        }
        if let Some(queues) = self.queues {
            line += &format!(" nr_queues={queues}");
        }
        if self.poll_queues != 0 {
            line += &format!(" nr_poll_queues={}", self.poll_queues);
        }
        line += &self.key();
        if let Some(ms) = self.failover_time_ms {
            line += &format!(" failover_time_ms={ms}");
        }
        if let Some(checksum) = &self.data_checksum {
            line += &format!(" data_checksum={checksum}");
        }
        if let Some(check) = &self.identity {
            line += &format!(" identity={check}");
        }
        match MapOptions::parse(line.as_bytes()) {
            Ok(_) if line.len() > 4096 => {
                Err("too many paths: more than 4096 bytes in all".to_owned())
            }
            Ok(_) => Ok(line),
            Err(error) => Err(error.to_string()),
        }
    }
}
