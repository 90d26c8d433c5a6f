// SPDX-License-Identifier: GPL-2.0

//! The last changes of sessions, their paths and their disks, and of portals and channels of programs, which the modules
//! keep.

use std::io;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::family::{Family, Side};
use crate::model::{Machine, Note, Reader};
use crate::root::{is_gone, Root};

/// The device of messages, from which their events are read.
const MESSAGES: &str = "/dev/ibmsg";

/// The error of a device that cannot be read: of a module without events.
const EINVAL: i32 = 22;

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

/// Reads the file `events` of a session. A line at the end that is cut off is left out.
fn parse(session: &str, text: &str) -> Option<Vec<Kept>> {
    let lines = text.split_inclusive('\n');
    let whole = lines.filter_map(|line| line.strip_suffix('\n'));
    whole.map(|line| change(session, line)).collect()
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

/// Reads the device of messages.
fn messages(root: &Root, notes: &mut Vec<Note>) -> Vec<Change> {
    let mut note = |why: String| {
        let file = MESSAGES.to_owned();
        notes.push(Note { file, why });
    };
    let lines = match root.lines(MESSAGES) {
        Ok(lines) => lines,
        Err(error) if is_gone(&error) || error.raw_os_error() == Some(EINVAL) => return Vec::new(),
        Err(error) if error.raw_os_error().is_some_and(is_forbidden) => {
            note("run it as root to see what has happened to portals and channels".to_owned());
            return Vec::new();
        }
        Err(error) => {
            note(error.to_string());
            return Vec::new();
        }
    };
    let lines = lines.iter().filter(|line| !line.is_empty());
    let found: Option<Vec<Change>> = lines.map(|line| message(line)).collect();
    found.unwrap_or_else(|| {
        note("not understood".to_owned());
        Vec::new()
    })
}

/// Whether an error is for want of rights.
fn is_forbidden(errno: i32) -> bool {
    io::Error::from_raw_os_error(errno).kind() == io::ErrorKind::PermissionDenied
}

/// The last changes of the sessions of our client, of portals and of channels, or those of one session, the earliest
/// first; and files that could not be read.
pub fn read(root: &Root, machine: &Machine, session: Option<&str>) -> (Vec<Kept>, Vec<Note>) {
    let mut reader = Reader::new(root);
    let mut found = Vec::new();
    let wanted = |name: &str| session.is_none_or(|only| only == name);
    for own in machine.ours(Side::Client).filter(|own| wanted(&own.name)) {
        let file = format!(
            "{}/{}/events",
            Family::Ibnbd.sessions(Side::Client),
            own.name
        );
        let text = reader.get(&file, |text| Some(text.to_owned()));
        match parse(&own.name, text.as_deref().unwrap_or_default()) {
            Some(mut changes) => found.append(&mut changes),
            None => reader.notes.push(Note {
                file,
                why: "not understood".to_owned(),
            }),
        }
    }
    if machine.messages.is_loaded {
        let messages = messages(root, &mut reader.notes).into_iter();
        let is_wanted = |change: &Change| match &change.session {
            Some(name) => wanted(name),
            None => session.is_none(),
        };
        found.extend(messages.filter(is_wanted).map(|change| Kept {
            change,
            disks: Vec::new(),
        }));
    }
    // Of one session, the latest comes first in the file.
    found.reverse();
    found.sort_by_key(|kept| kept.change.time_ms);
    (found, reader.notes)
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
        let mut found = parse("s", text).unwrap();
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
        assert_eq!(parse("s", ""), Some(Vec::new()));
        for wrong in ["x\n", "1.000\n", "1.000 -\n", "x - lost\n"] {
            assert_eq!(parse("s", wrong), None, "{wrong}");
        }
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
        let kept = parse("s", text).unwrap().remove(0);
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
