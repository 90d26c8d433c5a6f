// SPDX-License-Identifier: GPL-2.0

//! Options of mapping and unmapping a device, and of asking a server for its exports.

use core::fmt;

use ibtrs_proto::addr::{AddrError, PathAddr};
use ibtrs_proto::auth::{KeyError, KeyId};
use ibtrs_proto::consts::{DEFAULT_PORT, MAX_PATHS};
use ibtrs_proto::name::{DevicePath, NameError, SessionName};
use ibtrs_proto::opts::{Key, OptError, Options, Values};
use ibtrs_proto::settings;
use ibtrs_proto::text;
use ibtrs_proto::Errno;

use crate::access::{Access, AccessMode};
use crate::checksum::{BadChecksum, DataChecksum};
use crate::identity::{BadCheck, IdentityCheck};

const SESSNAME: &str = "sessname";
const DEVICE_PATH: &str = "device_path";
const PATH: &str = "path";
const DEST_PORT: &str = "dest_port";
const ACCESS_MODE: &str = "access_mode";
const EXCLUSIVE: &str = "exclusive";
const NR_QUEUES: &str = "nr_queues";
const NR_POLL_QUEUES: &str = "nr_poll_queues";
const KEY_ID: &str = "key_id";
const FAILOVER_TIME_MS: &str = settings::FAILOVER_TIME_MS.name;
const DATA_CHECKSUM: &str = "data_checksum";
const IDENTITY: &str = "identity";

// CAST: `MAX_PATHS` is 128.
const PATHS: Key = Key::repeatable(PATH, MAX_PATHS as u16);

/// The options of `map_device`.
const MAP: [Key; 12] = [
    Key::required(SESSNAME),
    Key::required(DEVICE_PATH),
    PATHS,
    Key::optional(DEST_PORT),
    Key::optional(ACCESS_MODE),
    Key::optional(EXCLUSIVE),
    Key::optional(NR_QUEUES),
    Key::optional(NR_POLL_QUEUES),
    Key::optional(KEY_ID),
    Key::optional(FAILOVER_TIME_MS),
    Key::optional(DATA_CHECKSUM),
    Key::optional(IDENTITY),
];

/// The options of `discover`.
const DISCOVER: [Key; 4] = [
    Key::required(SESSNAME),
    PATHS,
    Key::optional(DEST_PORT),
    Key::optional(KEY_ID),
];

/// The options of `open_session`.
const OPEN: [Key; 6] = [
    Key::required(SESSNAME),
    PATHS,
    Key::optional(DEST_PORT),
    Key::optional(NR_QUEUES),
    Key::optional(KEY_ID),
    Key::optional(FAILOVER_TIME_MS),
];

/// Why a line is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError<'a> {
    /// An option is unknown, doubled, missing, or has no value.
    Option(OptError<'a>),
    /// The session's name is unusable.
    Session(NameError),
    /// The device's name is unusable.
    Device(NameError),
    /// A path is unusable; with the text of the path.
    Path(AddrError, &'a str),
    /// The port is not 1..=65535.
    Port(&'a str),
    /// The access mode is unknown.
    AccessMode(&'a str),
    /// The value of `exclusive` is neither 0 nor 1.
    Exclusive(&'a str),
    /// The number of queues is no number from 1 on.
    Queues(&'a str),
    /// The number of poll queues is no number from -1 on.
    PollQueues(&'a str),
    /// The key id is malformed.
    KeyId(&'a str),
    /// The failover time is out of range.
    FailoverTime(&'a str),
    /// The checksum is unknown.
    DataChecksum(&'a str),
    /// The check of the identity is unknown.
    Identity(&'a str),
}

impl MapError<'_> {
    /// One line for the log; `Display` adds the option at fault.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Option(e) => e.as_str(),
            Self::Session(e) | Self::Device(e) => e.as_str(),
            Self::Path(e, _) => e.as_str(),
            Self::Port(_) => "port is not 1 to 65535",
            Self::AccessMode(_) => "access mode is not ro, rw or migration",
            Self::Exclusive(_) => "exclusive is not 0 or 1",
            Self::Queues(_) => "number of queues is not 1 or more",
            Self::PollQueues(_) => "number of poll queues is not -1 or more",
            Self::KeyId(_) => KeyError::Id.as_str(),
            Self::FailoverTime(_) => "failover time is not 1000 to 300000 milliseconds",
            Self::DataChecksum(_) => BadChecksum.as_str(),
            Self::Identity(_) => BadCheck.as_str(),
        }
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::Option(e) => e.errno(),
            Self::Session(e) | Self::Device(e) => e.errno(),
            Self::Path(e, _) => e.errno(),
            Self::Port(_)
            | Self::AccessMode(_)
            | Self::Exclusive(_)
            | Self::Queues(_)
            | Self::PollQueues(_)
            | Self::KeyId(_)
            | Self::FailoverTime(_)
            | Self::DataChecksum(_)
            | Self::Identity(_) => Errno::EINVAL,
        }
    }
}

impl fmt::Display for MapError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option(e) => e.fmt(f),
            Self::Session(e) => write!(f, "{SESSNAME}: {}", e.as_str()),
            Self::Device(e) => write!(f, "{DEVICE_PATH}: {}", e.as_str()),
            Self::Path(e, text) => write!(f, "{PATH}={text}: {}", e.as_str()),
            Self::Port(text) => write!(f, "{DEST_PORT}={text}: {}", self.as_str()),
            Self::AccessMode(text) => write!(f, "{ACCESS_MODE}={text}: {}", self.as_str()),
            Self::Exclusive(text) => write!(f, "{EXCLUSIVE}={text}: {}", self.as_str()),
            Self::Queues(text) => write!(f, "{NR_QUEUES}={text}: {}", self.as_str()),
            Self::PollQueues(text) => write!(f, "{NR_POLL_QUEUES}={text}: {}", self.as_str()),
            Self::KeyId(text) => write!(f, "{KEY_ID}={text}: {}", self.as_str()),
            Self::FailoverTime(text) => write!(f, "{FAILOVER_TIME_MS}={text}: {}", self.as_str()),
            Self::DataChecksum(text) => write!(f, "{DATA_CHECKSUM}={text}: {}", self.as_str()),
            Self::Identity(text) => write!(f, "{IDENTITY}={text}: {}", self.as_str()),
        }
    }
}

/// The session that a line names, and how to open it if it does not exist.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions<'a> {
    options: Options<'a>,
    /// Name of the session to use, or to create with the paths.
    pub name: SessionName<'a>,
    /// Port of the server, for all paths.
    pub dest_port: u16,
    /// The key for a session that is created; a session that exists must have this key.
    pub key_id: Option<KeyId>,
    /// The failover time of a session that is created, in milliseconds; a session that exists must have
    /// this time.
    pub failover_time_ms: Option<u32>,
}

impl<'a> SessionOptions<'a> {
    /// Parses a line of `discover`, which has no other options, and checks all values.
    ///
    /// # Errors
    ///
    /// The first problem; see [`MapError`].
    pub fn parse(line: &'a [u8]) -> Result<Self, MapError<'a>> {
        Self::of(Options::parse(line, &DISCOVER).map_err(MapError::Option)?)
    }

    fn of(options: Options<'a>) -> Result<Self, MapError<'a>> {
        let name = options.get(SESSNAME).unwrap_or("");
        let name = SessionName::new(name.as_bytes()).map_err(MapError::Session)?;
        for text in options.all(PATH) {
            PathAddr::parse(text).map_err(|e| MapError::Path(e, text))?;
        }
        let dest_port = match options.get(DEST_PORT) {
            Some(text) => port(text).ok_or(MapError::Port(text))?,
            None => DEFAULT_PORT,
        };
        let key_id = match options.get(KEY_ID) {
            Some(text) => Some(KeyId::new(text.as_bytes()).ok_or(MapError::KeyId(text))?),
            None => None,
        };
        let failover_time_ms = match options.get(FAILOVER_TIME_MS) {
            Some(text) => Some(failover_time(text).ok_or(MapError::FailoverTime(text))?),
            None => None,
        };
        Ok(Self {
            options,
            name,
            dest_port,
            key_id,
            failover_time_ms,
        })
    }

    /// The paths, in the order of the line; none if the session is expected to exist.
    pub fn paths(&self) -> Paths<'a> {
        Paths {
            values: self.options.all(PATH),
        }
    }

    /// Number of paths, at most 128.
    pub fn path_count(&self) -> usize {
        self.options.count(PATH)
    }
}

/// A checked line of `map_device`.
///
/// The order of options does not matter; in particular `dest_port` holds for every path.
#[derive(Clone, Copy, Debug)]
pub struct MapOptions<'a> {
    /// The session of the device.
    pub session: SessionOptions<'a>,
    /// Name of the device, for the server to interpret.
    pub device_path: DevicePath<'a>,
    /// The access to the device; by default read and write, and not exclusive.
    pub access: Access,
    /// Queues for I/O that is not polled, of a session that is created; a session that exists must
    /// have this number. See [`MapOptions::queues`].
    pub nr_queues: Option<u32>,
    /// Poll queues: 0 unless given, -1 for one per CPU. See [`MapOptions::poll_queues`].
    pub nr_poll_queues: i32,
    /// The checksum of the disk's data; none unless given.
    pub data_checksum: DataChecksum,
    /// What to do about a disk without identity; [`IdentityCheck::Auto`] unless given.
    pub identity: IdentityCheck,
}

impl<'a> MapOptions<'a> {
    /// Parses a line, and checks all values.
    ///
    /// # Errors
    ///
    /// The first problem; see [`MapError`].
    pub fn parse(line: &'a [u8]) -> Result<Self, MapError<'a>> {
        let options = Options::parse(line, &MAP).map_err(MapError::Option)?;
        let session = SessionOptions::of(options)?;
        let device = options.get(DEVICE_PATH).unwrap_or("");
        let device_path = DevicePath::new(device.as_bytes()).map_err(MapError::Device)?;
        let access_mode = match options.get(ACCESS_MODE) {
            Some(text) => AccessMode::parse(text).map_err(|_| MapError::AccessMode(text))?,
            None => AccessMode::default(),
        };
        let exclusive = match options.get(EXCLUSIVE) {
            Some("1") => true,
            Some("0") | None => false,
            Some(text) => return Err(MapError::Exclusive(text)),
        };
        let nr_queues = nr_queues(&options)?;
        let nr_poll_queues = match options.get(NR_POLL_QUEUES) {
            Some(text) => poll_queues(text).ok_or(MapError::PollQueues(text))?,
            None => 0,
        };
        let data_checksum = match options.get(DATA_CHECKSUM) {
            Some(text) => DataChecksum::parse(text).map_err(|_| MapError::DataChecksum(text))?,
            None => DataChecksum::None,
        };
        let identity = match options.get(IDENTITY) {
            Some(text) => IdentityCheck::parse(text).map_err(|_| MapError::Identity(text))?,
            None => IdentityCheck::default(),
        };
        Ok(Self {
            session,
            device_path,
            access: Access {
                mode: access_mode,
                exclusive,
            },
            nr_queues,
            nr_poll_queues,
            data_checksum,
            identity,
        })
    }

    /// Number of queues of a session that is created on a machine with `nr_cpus` CPUs: one for each
    /// unless the line has a number; `None` if it asks for more.
    pub fn queues(&self, nr_cpus: u32) -> Option<u32> {
        queues_of(self.nr_queues, nr_cpus)
    }

    /// Number of poll queues on a machine with `nr_cpus` CPUs; `None` if the line asks for more.
    pub fn poll_queues(&self, nr_cpus: u32) -> Option<u32> {
        match u32::try_from(self.nr_poll_queues) {
            Ok(n) if n <= nr_cpus => Some(n),
            Ok(_) => None,
            Err(_) => Some(nr_cpus),
        }
    }
}

/// A checked line of `open_session`.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions<'a> {
    /// The session.
    pub session: SessionOptions<'a>,
    /// As [`MapOptions::nr_queues`].
    pub nr_queues: Option<u32>,
}

impl<'a> OpenOptions<'a> {
    /// Parses a line, and checks all values.
    ///
    /// # Errors
    ///
    /// The first problem; see [`MapError`].
    pub fn parse(line: &'a [u8]) -> Result<Self, MapError<'a>> {
        let options = Options::parse(line, &OPEN).map_err(MapError::Option)?;
        Ok(Self {
            session: SessionOptions::of(options)?,
            nr_queues: nr_queues(&options)?,
        })
    }

    /// As [`MapOptions::queues`].
    pub fn queues(&self, nr_cpus: u32) -> Option<u32> {
        queues_of(self.nr_queues, nr_cpus)
    }
}

fn nr_queues<'a>(options: &Options<'a>) -> Result<Option<u32>, MapError<'a>> {
    match options.get(NR_QUEUES) {
        Some(text) => Ok(Some(queues(text).ok_or(MapError::Queues(text))?)),
        None => Ok(None),
    }
}

fn queues_of(nr: Option<u32>, nr_cpus: u32) -> Option<u32> {
    let nr = nr.unwrap_or(nr_cpus);
    (nr <= nr_cpus).then_some(nr)
}

fn port(text: &str) -> Option<u16> {
    let n = text::decimal(text.as_bytes(), 1, i64::from(u16::MAX)).ok()?;
    u16::try_from(n).ok()
}

fn failover_time(text: &str) -> Option<u32> {
    settings::FAILOVER_TIME_MS.parse(text.as_bytes()).ok()
}

fn queues(text: &str) -> Option<u32> {
    let n = text::decimal(text.as_bytes(), 1, i64::from(i32::MAX)).ok()?;
    u32::try_from(n).ok()
}

fn poll_queues(text: &str) -> Option<i32> {
    let n = text::decimal(text.as_bytes(), -1, i64::from(i32::MAX)).ok()?;
    i32::try_from(n).ok()
}

/// Iterator over the paths of [`SessionOptions`].
#[derive(Clone, Debug)]
pub struct Paths<'a> {
    values: Values<'a, 'static>,
}

impl Iterator for Paths<'_> {
    type Item = PathAddr;

    fn next(&mut self) -> Option<PathAddr> {
        // `SessionOptions` has checked every value.
        self.values.find_map(|text| PathAddr::parse(text).ok())
    }
}

/// How to unmap a device, as operators write it to `unmap_device`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnmapMode {
    /// Only if the device is not open.
    Normal,
    /// In any case.
    Force,
}

/// A text that is neither "normal" nor "force".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadUnmapMode;

impl BadUnmapMode {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        "write normal or force"
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        Errno::EINVAL
    }
}

impl UnmapMode {
    /// Parses a line.
    ///
    /// # Errors
    ///
    /// When it is neither "normal" nor "force".
    pub fn parse(line: &[u8]) -> Result<Self, BadUnmapMode> {
        match text::line(line) {
            Ok("normal") => Ok(Self::Normal),
            Ok("force") => Ok(Self::Force),
            _ => Err(BadUnmapMode),
        }
    }

    /// Whether the device is unmapped even if it is open.
    pub const fn force(&self) -> bool {
        matches!(self, Self::Force)
    }
}
