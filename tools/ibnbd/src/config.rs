// SPDX-License-Identifier: GPL-2.0

//! The files in `/etc/ibtrs`, and the steps that bring a machine to the state that they describe.
//!
//! `client.toml`, `server.toml` and `conf.d/*.toml` have one grammar, and are read as one:
//!
//! ```toml
//! [[session]]
//! name = "s"                         # else HOST@SERVER
//! servers = ["storage1"]             # each makes a path
//! paths = ["10.0.2.2,10.0.2.1"]
//! standby = ["10.0.2.2,10.0.2.1"]    # of these, in the same words
//! queue_timeout_s = 300              # and the other settings of a session
//! key_id = "web1-2026"               # else default
//! queues = 4                         # else one for each CPU
//! messages = true                    # open without a disk, too; else only with one
//!
//! [[session.disk]]
//! device = "disk1"
//! access = "ro"                      # else rw
//! auto = false                       # a unit of its own maps it, and plain `apply` does not
//!
//! [ibnbd_server]                     # parameters of modules
//! dev_search_path = "/dev/ibnbd-exports"
//!
//! [[export]]
//! name = "disk1"
//! device = "/dev/disk/by-id/wwn-0x5000c500a1b2c3d4"
//! ```
//!
//! An export with one of the keys `hosts`, `any_host`, `from`, `access`, `realtime` and `enable` is
//! made in configfs instead; then all exports are, and `dev_search_path` is not set:
//!
//! ```toml
//! [[host]]
//! name = "web1"
//! addresses = ["10.0.1.0/24"]
//!
//! [[export]]
//! name = "disk1"
//! device = "/dev/disk/by-id/wwn-0x5000c500a1b2c3d4"
//! access = "ro"
//! hosts = ["web1"]
//! ```
//!
//! Without any port the server listens on all addresses, and with some on these only:
//!
//! ```toml
//! [[port]]
//! name = "left"
//! address = "10.0.1.1"
//! port = 1235                        # else port_nr of ibnbd_server
//! ```

mod fields;
pub mod keep;
mod keep_array;
mod keep_exports;
mod keep_others;
mod keep_ports;
pub mod plan;
mod plan_exports;
mod plan_ports;
mod read;
mod read_exports;
mod read_ports;

use std::fmt;
use std::io;

use ibmsg::wire::is_name;

use crate::configfs::change::{Limits, Rules};
use crate::mapping;
use crate::root::Root;

pub use read::parse;

/// Where the files are.
pub const FOLDER: &str = "/etc/ibtrs";

/// The parameters that a file may set: module, name, and the value where nothing is set.
const PARAMETERS: [(&str, &str, &str); 27] = [
    ("ibtrs_client", "ack_timeout", "0"),
    ("ibtrs_client", "auth", "auto"),
    ("ibtrs_client", "auth_suites", "any"),
    ("ibtrs_client", "small_io_bytes", "4096"),
    ("ibtrs_server", "auth", "auto"),
    ("ibtrs_server", "auth_suites", "any"),
    ("ibtrs_server", "max_chunk_size", "135168"),
    ("ibtrs_server", "sess_queue_depth", "512"),
    ("ibtrs_server", "always_invalidate", "Y"),
    ("ibtrs_server", "remote_invalidation", "Y"),
    ("ibtrs_server", "capsules", "Y"),
    ("ibtrs_server", "slots", "Y"),
    ("ibtrs_server", "slots_over_rxe", "N"),
    ("ibtrs_server", "max_buffer_memory_mib", "0"),
    ("ibtrs_server", "max_sessions", "1024"),
    ("ibtrs_server", "max_connections", "1024"),
    ("ibtrs_server", "max_attempts_per_address", "64"),
    ("ibtrs_server", "setup_timeout_ms", "120000"),
    ("ibtrs_server", "max_chunk_memory_mib", "0"),
    ("ibtrs_server", "hb_interval_ms", "0"),
    ("ibtrs_server", "hb_missed_max", "5"),
    ("ibnbd_server", "port_nr", "1234"),
    ("ibnbd_server", "dev_search_path", ""),
    ("ibnbd_server", "max_devices", "256"),
    ("ibnbd_server", "allow_rt_prio", "N"),
    ("ibnbd_server", "stop_timeout_s", "30"),
    ("ibnbd_server", "downtime_s", "0"),
];

/// The configuration that a machine should have.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Config {
    /// Sessions with their disks.
    pub sessions: Vec<Session>,
    /// Devices that clients may open.
    pub exports: Vec<Export>,
    /// Hosts that exports may name.
    pub hosts: Vec<Host>,
    /// Ports of the server.
    pub ports: Vec<Port>,
    /// Parameters of modules: module, parameter, value.
    pub parameters: Vec<(String, String, String)>,
}

/// A session that is wanted.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Session {
    /// Its name; none for the usual one.
    pub name: Option<String>,
    /// Names or addresses of its server.
    pub servers: Vec<String>,
    /// Paths, as `map` takes them.
    pub paths: Vec<String>,
    /// Those of the servers and paths that are on standby, in the same words; none if the file does not say.
    pub standby: Option<Vec<String>>,
    /// The server's port, if not the usual one.
    pub port: Option<u16>,
    /// Queues for I/O that is not polled, if not one for each CPU.
    pub queues: Option<u32>,
    /// Settings: file and value.
    pub settings: Vec<(String, String)>,
    /// Whether it is open without a disk, too, for messages of programs.
    pub messages: bool,
    /// Its disks.
    pub disks: Vec<Disk>,
}

/// A disk that is wanted.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Disk {
    /// Its name on the server.
    pub device: String,
    /// `ro`, `rw` or `migration`.
    pub access: Option<String>,
    /// Whether nobody else may have it.
    pub exclusive: bool,
    /// Queues for polled I/O.
    pub poll_queues: i64,
    /// The checksum of its data: `none` or `crc32c`.
    pub data_checksum: Option<String>,
    /// Settings: file and value.
    pub settings: Vec<(String, String)>,
    /// Whether it is mapped only by itself, when that is asked for: `auto = false`.
    pub manual: bool,
}

/// A device that clients are to be able to open.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Export {
    /// The name that clients give.
    pub name: String,
    /// The block device, or a link to one.
    pub device: String,
    /// The session, where each one has a directory of its own.
    pub session: Option<String>,
    /// The rules of an export in configfs; none for one in a directory.
    pub rules: Option<Rules>,
}

/// A host that exports may name.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Host {
    /// The session's name.
    pub name: String,
    /// Its limits.
    pub limits: Limits,
}

/// An address on which the server is to listen.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// The address, as the file has it.
    pub address: String,
    /// The port number; none for that of the module.
    pub port: Option<u16>,
    /// Whether it is to listen there at present.
    pub enable: bool,
}

/// A fault of a file, and its place.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Problem {
    /// The file.
    pub file: String,
    /// The line, from 1 on.
    pub line: usize,
    /// The column in characters, from 1 on.
    pub column: usize,
    /// The fault.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}:{}: {}",
            self.file, self.line, self.column, self.what
        )
    }
}

/// The files of a folder, as far as they are there.
///
/// # Errors
///
/// A file that cannot be read.
pub fn files(root: &Root, folder: &str) -> Result<Vec<(String, String)>, (String, io::Error)> {
    let mut names = vec![
        format!("{folder}/client.toml"),
        format!("{folder}/server.toml"),
    ];
    let more = format!("{folder}/conf.d");
    let found = root
        .list_if_any(&more)
        .map_err(|error| (more.clone(), error))?;
    names.extend(
        found
            .into_iter()
            .filter(|name| name.ends_with(".toml"))
            .map(|name| format!("{more}/{name}")),
    );
    let mut files = Vec::new();
    for name in names {
        match root.read(&name) {
            Ok(text) => files.push((name, text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err((name, error)),
        }
    }
    Ok(files)
}

/// What needs the name of a machine: an end of a path that is not an address, and a session without
/// a name, which is called after this machine. Each is a line for people.
pub fn needs_names(config: &Config) -> Vec<String> {
    let mut found = Vec::new();
    for session in &config.sessions {
        let of = match &session.name {
            Some(name) => format!("session {name}"),
            None => {
                let server = session.servers.first().map_or("", String::as_str);
                found.push(format!("the session of {server} has no name"));
                format!("the session of {server}")
            }
        };
        let texts = session.servers.iter().chain(&session.paths);
        let ends = texts.flat_map(|text| text.split([',', '@']));
        let names = ends.filter(|end| !mapping::is_address(end));
        found.extend(names.map(|end| format!("{of}: {end} is not an address")));
    }
    found
}

/// Checks the name of a session that is to carry messages.
///
/// # Errors
///
/// Why it cannot.
fn messages_name(name: &str) -> Result<(), String> {
    match is_name(name) && name != "local" {
        true => Ok(()),
        false => Err(format!(
            "messages: {name:?} has characters that the name of a portal may not have, is longer than 64, or is local"
        )),
    }
}

/// All files as one.
///
/// # Errors
///
/// All that is wrong with any of them.
pub fn read(files: &[(String, String)]) -> Result<Config, Vec<Problem>> {
    let mut all = read::All::default();
    for (name, text) in files {
        all.add(name, text);
    }
    all.end()
}
