// SPDX-License-Identifier: GPL-2.0

//! The last changes of sessions, their paths and their disks, and of portals and channels of programs, which the modules
//! keep.

use std::{fs, io};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::family::{Family, Side};
use crate::model::{not_understood, Machine, Note};
use crate::root::{is_gone, Root};

/// The device of messages, from which their events are read.
const MESSAGES: &str = "/dev/ibmsg";

/// The error of a device that cannot be read: of a module without events.
const EINVAL: i32 = 22;

/// What other users than root are told.
const ONLY_ROOT: &str = "only root sees what has happened to portals and channels";

/// The most disks of one line.
const MAX_DISKS: usize = 65_536;

/// A change of a session, a path, a disk, a portal or a channel.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// When it happened, in milliseconds since 1970.
    pub time_ms: u64,
    /// The session; none if it is a portal that has changed. `local` for a channel inside this machine.
    pub session: Option<String>,
    /// The path, by its addresses; none if it is not a path that has changed.
    pub path: Option<String>,
    /// The disk, by its name here; none if it is not a disk that has changed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub disk: Option<String>,
    /// The portal, or that of the channel; none if it is neither a portal nor a channel that has changed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub portal: Option<String>,
    /// The number of the channel in its session; none if it is not a channel that has changed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub channel: Option<u32>,
    /// Of a channel: `client` if this machine is the client of the session, `server`, or `local`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub side: Option<String>,
    /// `connected`, `lost`, `failed`, `closed`, `drained`, `undrained`, `standby`, `active` or `removed` of a
    /// path; `connected`, `disconnected` or `failing` of a session; `mapped`, `closed`, `open`, `refused`,
    /// `failing`, `resized`, `cache_lost` or `unmapped` of a disk; `bound` or `unbound` of a portal; `opened`,
    /// `moved`, `refused` or `closed` of a channel.
    pub event: String,
    /// Why, where there is a reason.
    pub cause: Option<String>,
    /// How often it has happened to channels of the portal, or to the portal, in a row; none: once. The time and the
    /// channel are those of the last one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub count: Option<u32>,
    /// When it happened first, in milliseconds since 1970, if it has happened more than once.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub since_ms: Option<u64>,
}

/// A change as the modules keep it: one for all disks to which it has happened at the same time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Kept {
    /// The change. Its disk may be several, as `ibnbd0-31,33`.
    pub change: Change,
    /// The names of the disks.
    pub disks: Vec<String>,
}

impl Kept {
    /// The change of each disk, or the change itself.
    pub fn each(self) -> Vec<Change> {
        let Self { change, disks } = self;
        if disks.is_empty() {
            return vec![change];
        }
        let of = |disk| Change {
            disk: Some(disk),
            ..change.clone()
        };
        disks.into_iter().map(of).collect()
    }

    /// The change of one disk, if it has happened to that.
    pub fn of_disk(self, disk: &str) -> Option<Self> {
        let disks: Vec<String> = self.disks.into_iter().filter(|own| own == disk).collect();
        let change = Change {
            disk: Some(disks.first()?.clone()),
            ..self.change
        };
        Some(Self { change, disks })
    }
}

/// The names of disks: `ibnbd0`, or `ibnbd0-31,33`.
fn disks(text: &str) -> Vec<String> {
    let begin = text.find(|c: char| c.is_ascii_digit());
    let (prefix, numbers) = text.split_at(begin.unwrap_or(text.len()));
    let range = |range: &str| -> Option<std::ops::RangeInclusive<u32>> {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    let ranges: Option<Vec<_>> = numbers.split(',').map(range).collect();
    match ranges {
        Some(ranges) => ranges
            .into_iter()
            .flatten()
            .take(MAX_DISKS)
            .map(|number| format!("{prefix}{number}"))
            .collect(),
        None => vec![text.to_owned()],
    }
}

/// The cause at the end of a line.
fn cause(text: Option<&str>) -> Option<String> {
    let cause = text.unwrap_or_default().trim();
    (!cause.is_empty()).then(|| cause.to_owned())
}

/// What a word stands for; none for a dash.
fn unless_dash(word: &str) -> Option<String> {
    (word != "-").then(|| word.to_owned())
}

/// Reads a line of the file `events` of a session.
fn change(session: &str, line: &str) -> Option<Kept> {
    let mut words = line.splitn(4, ' ');
    let time_ms = clock::parse(words.next()?)?;
    let of = words.next()?;
    // The name of a path has a colon: `ip:10.0.1.1`.
    let is_path = of.contains(':');
    let disk = unless_dash(of).filter(|_| !is_path);
    let change = Change {
        time_ms,
        session: Some(session.to_owned()),
        path: is_path.then(|| of.to_owned()),
        event: words.next()?.to_owned(),
        cause: cause(words.next()),
        ..Change::default()
    };
    Some(Kept {
        disks: disk.as_deref().map(disks).unwrap_or_default(),
        change: Change { disk, ..change },
    })
}

/// Reads lines. Returns why some of them are left out, if they are not understood. The kernel cuts off a line at the end
/// for which it has no room.
fn parse<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> (Vec<T>, Option<String>) {
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    for line in text.split_inclusive('\n') {
        let whole = line.strip_suffix('\n').filter(|line| !line.is_empty());
        match whole.map(|line| parse(line).ok_or(line)) {
            Some(Ok(change)) => found.push(change),
            Some(Err(line)) => wrong.push(line),
            None => {}
        }
    }
    let why = match wrong[..] {
        [] => None,
        [only] => Some(not_understood(only)),
        [first, ..] => Some(format!("{} lines {}", wrong.len(), not_understood(first))),
    };
    (found, why)
}

/// Reads a line of the device of messages.
fn message(line: &str) -> Option<Change> {
    let mut words = line.splitn(9, ' ');
    let mut word = || words.next();
    let time_ms = clock::parse(word()?)?;
    let since_ms = clock::parse(word()?)?;
    let count: u32 = word()?.parse().ok()?;
    let (side, session) = (unless_dash(word()?), unless_dash(word()?));
    let portal = unless_dash(word()?);
    let channel = unless_dash(word()?);
    let is_again = count > 1;
    Some(Change {
        time_ms,
        session,
        portal,
        channel: channel.map(|number| number.parse()).transpose().ok()?,
        side,
        event: word()?.to_owned(),
        cause: cause(word()),
        count: is_again.then_some(count),
        since_ms: is_again.then_some(since_ms),
        ..Change::default()
    })
}

/// What has happened, as far as it could be read.
#[derive(Debug, Default)]
pub struct History {
    /// The changes, the earliest first.
    pub kept: Vec<Kept>,
    /// Files that could not be read, or are not understood.
    pub notes: Vec<Note>,
    /// What this user may not read, and may know nevertheless.
    pub unseen: Option<Note>,
}

impl History {
    fn note(&mut self, file: &str, why: Option<String>) {
        let file = file.to_owned();
        self.notes.extend(why.map(|why| Note { file, why }));
    }

    fn of_session(&mut self, file: &str, session: &str, read: io::Result<String>) {
        match read {
            Ok(text) => {
                let (mut changes, why) = parse(&text, |line| change(session, line));
                self.kept.append(&mut changes);
                self.note(file, why);
            }
            // The module of an older version has none.
            Err(error) if is_gone(&error) => {}
            Err(error) => self.note(file, Some(error.to_string())),
        }
    }

    fn of_messages(&mut self, read: io::Result<String>, is_wanted: impl Fn(&Change) -> bool) {
        match read {
            Ok(text) => {
                let (changes, why) = parse(&text, message);
                let wanted = changes.into_iter().filter(is_wanted);
                self.kept.extend(wanted.map(|change| Kept {
                    change,
                    disks: Vec::new(),
                }));
                self.note(MESSAGES, why);
            }
            Err(error) if is_gone(&error) || error.raw_os_error() == Some(EINVAL) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.unseen = Some(Note {
                    file: MESSAGES.to_owned(),
                    why: ONLY_ROOT.to_owned(),
                });
            }
            Err(error) => self.note(MESSAGES, Some(error.to_string())),
        }
    }
}

/// The text of a file; what is no text in it is replaced, as the lines around it are of use.
fn text(root: &Root, file: &str) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(root.real(file))?).into_owned())
}

/// Whose changes are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of<'a> {
    /// Those of all sessions of our client, of portals and of channels.
    All,
    /// Those of a session, with its disks and its channels.
    Session(&'a str),
    /// Those of a session, if a disk has one, and of its disks.
    Disks(Option<&'a str>),
}

/// The last changes, and what could not be read.
pub fn read(root: &Root, machine: &Machine, of: Of<'_>) -> History {
    let mut found = History::default();
    let is_wanted = |session: Option<&str>| match of {
        Of::All => true,
        Of::Session(name) => session == Some(name),
        Of::Disks(name) => name.is_some() && session == name,
    };
    let ours = machine.ours(Side::Client);
    for session in ours.map(|own| &own.name) {
        if is_wanted(Some(session)) {
            let file = format!("{}/{session}/events", Family::Ibnbd.sessions(Side::Client));
            found.of_session(&file, session, text(root, &file));
        }
    }
    if machine.messages.is_loaded && !matches!(of, Of::Disks(_)) {
        found.of_messages(text(root, MESSAGES), |change| {
            is_wanted(change.session.as_deref())
        });
    }
    // Of one session, the latest comes first in the file.
    found.kept.reverse();
    found.kept.sort_by_key(|kept| kept.change.time_ms);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let text = "1764376029.000 ibnbd0 closed closed on the server\n\
            1764376028.000 - connected \n\
            1764376027.042 ip:10.0.1.2@ip:10.0.1.1 lost no heartbeat from the server (ETIMEDOUT)\n\
            1764376026.0";
        let (mut found, why) = parse(text, |line| change("s", line));
        assert_eq!(why, None);
        assert_eq!(found.len(), 3, "the last line is cut off");
        let disk = found.remove(0);
        assert_eq!(disk.disks, ["ibnbd0"]);
        let disk = disk.change;
        assert_eq!(
            (disk.disk.as_deref(), disk.path.as_deref()),
            (Some("ibnbd0"), None)
        );
        assert_eq!(
            (disk.event.as_str(), disk.cause.as_deref()),
            ("closed", Some("closed on the server"))
        );
        let found: Vec<Change> = found.into_iter().flat_map(Kept::each).collect();
        assert_eq!(found[0].disk, None);
        assert_eq!(
            (found[0].path.as_deref(), found[0].cause.as_deref()),
            (None, None)
        );
        assert_eq!(found[1].time_ms, 1_764_376_027_042);
        assert_eq!(found[1].event, "lost");
        let cause = "no heartbeat from the server (ETIMEDOUT)";
        assert_eq!(found[1].cause.as_deref(), Some(cause));
        let read = |text: &str| parse(text, |line| change("s", line));
        assert_eq!(read(""), (Vec::new(), None));
        for wrong in ["x", "1.000", "1.000 -", "x - lost"] {
            assert_eq!(change("s", wrong), None, "{wrong}");
        }
        // The others are read, and one line is said for all of those.
        let good = "1764376028.000 - connected \n";
        for (wrong, said) in [
            ("what\n", "not understood: \"what\""),
            ("\x1b[31m\nx\n", "2 lines not understood: \"\\u{1b}[31m\""),
        ] {
            let (found, why) = read(&format!("{good}{wrong}{good}"));
            assert_eq!((found.len(), why.as_deref()), (2, Some(said)));
        }
    }

    /// Another user than root reads what is for all users, and is told the rest.
    #[test]
    fn what_only_root_sees_is_no_fault() {
        const EPERM: i32 = 1;
        const EACCES: i32 = 13;
        const EIO: i32 = 5;
        const ENODEV: i32 = 19;
        let read = |errno| {
            let mut found = History::default();
            let session = Ok("1764376028.000 - connected \n".to_owned());
            found.of_session("s/events", "s", session);
            found.of_messages(Err(io::Error::from_raw_os_error(errno)), |_| true);
            assert_eq!(found.kept.len(), 1);
            (found.unseen.is_some(), found.notes.len())
        };
        assert_eq!(read(EPERM), (true, 0));
        assert_eq!(read(EACCES), (true, 0));
        assert_eq!(read(EIO), (false, 1));
        assert_eq!(read(EINVAL), (false, 0));
        assert_eq!(read(ENODEV), (false, 0));
    }

    #[test]
    fn several_disks_are_each_of_them() {
        assert_eq!(disks("ibnbd7"), ["ibnbd7"]);
        assert_eq!(
            disks("ibnbd0-2,5"),
            ["ibnbd0", "ibnbd1", "ibnbd2", "ibnbd5"]
        );
        assert_eq!(disks("ibnbd0-4294967295").len(), MAX_DISKS);
        for odd in ["disk", "ibnbd", "ibnbd1-x", "ibnbd1,,2", "ibnbd99999999999"] {
            assert_eq!(disks(odd), [odd]);
        }
        let text = "1764376029.000 ibnbd0-2 closed no path to the server\n";
        let kept = change("s", text.trim_end()).unwrap();
        assert_eq!(kept.change.disk.as_deref(), Some("ibnbd0-2"));
        let one = kept.clone().of_disk("ibnbd1").unwrap();
        assert_eq!(one.change.disk.as_deref(), Some("ibnbd1"));
        assert_eq!(kept.clone().of_disk("ibnbd3"), None);
        let each = kept.each();
        let names: Vec<_> = each.iter().map(|change| change.disk.as_deref()).collect();
        assert_eq!(names, [Some("ibnbd0"), Some("ibnbd1"), Some("ibnbd2")]);
        assert!(each.iter().all(|change| change.event == "closed"));
    }

    #[test]
    fn portals_and_channels_are_read() {
        let portal =
            message("1764376029.000 1764376029.000 1 - - kv - bound by user 1000").unwrap();
        let expected = Change {
            time_ms: 1_764_376_029_000,
            portal: Some("kv".to_owned()),
            event: "bound".to_owned(),
            cause: Some("by user 1000".to_owned()),
            ..Change::default()
        };
        assert_eq!(portal, expected);
        let line = "1764376032.417 1764376029.001 40 server web1 kv 17 opened ";
        let expected = Change {
            time_ms: 1_764_376_032_417,
            session: Some("web1".to_owned()),
            portal: Some("kv".to_owned()),
            channel: Some(17),
            side: Some("server".to_owned()),
            event: "opened".to_owned(),
            count: Some(40),
            since_ms: Some(1_764_376_029_001),
            ..Change::default()
        };
        assert_eq!(message(line), Some(expected));
        for wrong in [
            "",
            "1.000 1.000 1 - - kv -",
            "1.000 1.000 x - - kv - bound",
            "1.000 1.000 1 - s kv x opened",
            "1.000 1 1 - s kv 1 opened",
        ] {
            assert_eq!(message(wrong), None, "{wrong}");
        }
    }
}
