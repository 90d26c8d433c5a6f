// SPDX-License-Identifier: GPL-2.0

//! The last changes of sessions, their paths and their disks, which the client's module keeps.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::family::{Family, Side};
use crate::model::{Machine, Note, Reader};
use crate::root::Root;

/// A change of a session, a path or a disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// When it happened, in milliseconds since 1970.
    pub time_ms: u64,
    /// The session.
    pub session: String,
    /// The path, by its addresses; none if it is not a path that has changed.
    pub path: Option<String>,
    /// The disk, by its name here; none if it is not a disk that has changed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub disk: Option<String>,
    /// `connected`, `lost`, `failed`, `closed`, `drained`, `undrained`, `standby`, `active` or `removed` of a
    /// path; `connected`, `disconnected` or `failing` of a session; `mapped`, `closed`, `open`, `refused`,
    /// `failing`, `resized`, `cache_lost` or `unmapped` of a disk.
    pub event: String,
    /// Why, where there is a reason.
    pub cause: Option<String>,
}

/// Reads a line of the file `events` of a session.
fn change(session: &str, line: &str) -> Option<Change> {
    let mut words = line.splitn(4, ' ');
    let time_ms = clock::parse(words.next()?)?;
    let of = words.next()?;
    // The name of a path has a colon: `ip:10.0.1.1`.
    let is_path = of.contains(':');
    let event = words.next()?.to_owned();
    let cause = words.next().unwrap_or_default().trim();
    Some(Change {
        time_ms,
        session: session.to_owned(),
        path: is_path.then(|| of.to_owned()),
        disk: (!is_path && of != "-").then(|| of.to_owned()),
        event,
        cause: (!cause.is_empty()).then(|| cause.to_owned()),
    })
}

/// Reads the file `events` of a session. A line at the end that is cut off is left out.
fn parse(session: &str, text: &str) -> Option<Vec<Change>> {
    let lines = text.split_inclusive('\n');
    let whole = lines.filter_map(|line| line.strip_suffix('\n'));
    whole.map(|line| change(session, line)).collect()
}

/// The last changes of the sessions of our client, or of one of them, the earliest first; and files that
/// could not be read.
pub fn read(root: &Root, machine: &Machine, session: Option<&str>) -> (Vec<Change>, Vec<Note>) {
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
    // Of one session, the latest comes first in the file.
    found.reverse();
    found.sort_by_key(|change| change.time_ms);
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
        assert_eq!(
            (disk.disk.as_deref(), disk.path.as_deref()),
            (Some("ibnbd0"), None)
        );
        assert_eq!(
            (disk.event.as_str(), disk.cause.as_deref()),
            ("closed", Some("closed on the server"))
        );
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
}
