// SPDX-License-Identifier: GPL-2.0

//! The portals and channels of this machine, for the commands that print them.

use std::io::{self, Write};
use std::path::Path;

use comfy_table::{presets, Table};
use ibmsg::fdinfo::{self, Found, Kind, Open, Owner};
use ibmsg::words::Doing;
use serde_json::{json, Map, Value};

use crate::out::{Failure, Out};

/// In place of what may not be read.
pub(crate) const NOT_PERMITTED: &str = "not permitted";
/// As many programs of a portal or channel are named in a table.
const NAMED: usize = 3;

/// Fails if the module is not loaded.
pub(crate) fn check_module() -> Result<(), Failure> {
    if Path::new(ibmsg::DEVICE).exists() {
        return Ok(());
    }
    let error = io::Error::from_raw_os_error(2);
    let doing = Doing::Open;
    let error = ibmsg::Error::System { doing, error };
    Err(Failure::of(ibmsg::DEVICE, &error))
}

/// What there is. Says on standard error if that is not all.
pub(crate) fn read(out: Out) -> Result<Found, Failure> {
    check_module()?;
    let found = fdinfo::read(Path::new("/"));
    if found.unseen > 0 {
        let _ = writeln!(io::stderr(), "{}", warning(out, found.unseen));
    }
    Ok(found)
}

fn warning(out: Out, unseen: usize) -> String {
    let text = format!("{unseen} processes could not be examined; root sees all");
    match out.json {
        true => json!({ "warning": text, "unseen": unseen }).to_string(),
        false => format!("ibmsg: {text}"),
    }
}

/// The programs that have it: `server (12)`.
pub(crate) fn programs(open: &Open) -> String {
    let mut owners: Vec<String> = open.owners.iter().map(Owner::to_string).collect();
    // Of a process that has several descriptors.
    owners.dedup();
    let more = owners.len().saturating_sub(NAMED);
    owners.truncate(NAMED);
    match more {
        0 => owners.join(", "),
        more => format!("{} and {more} more", owners.join(", ")),
    }
}

/// A field for a table.
pub(crate) fn cell(open: &Open, name: &str) -> String {
    match (&open.fields, open.text(name)) {
        (None, _) => NOT_PERMITTED.to_owned(),
        (_, Some(text)) => text.escape_debug().to_string(),
        // An older module does not say it.
        (_, None) => "-".to_owned(),
    }
}

/// Channels that a portal has refused, by the reason.
pub(crate) fn refused(open: &Open) -> impl Iterator<Item = (&str, u64)> {
    let fields = open.fields.iter().flatten();
    fields.filter_map(|(name, value)| {
        let reason = name.strip_prefix("refused_")?;
        Some((reason, value.parse().ok()?))
    })
}

/// The state of a channel for a table.
pub(crate) fn state(open: &Open) -> String {
    match (open.state(), open.number("connected")) {
        (None, _) => NOT_PERMITTED.to_owned(),
        (Some(state @ "open"), Some(0)) => format!("{state}, no path"),
        (Some(state), _) => state.to_owned(),
    }
}

/// All that is known about it.
pub(crate) fn document(open: &Open) -> Map<String, Value> {
    let mut document = Map::new();
    let kind = match open.kind {
        Kind::Portal => "portal",
        Kind::Channel => "channel",
    };
    document.insert("kind".into(), json!(kind));
    document.insert("permitted".into(), json!(open.fields.is_some()));
    for (name, value) in open.fields.iter().flatten() {
        let value = match (name.as_str(), value.parse::<u64>()) {
            ("session" | "portal" | "side", _) | (_, Err(_)) => json!(value),
            ("state", _) => json!(open.state()),
            ("connected" | "unauthenticated", Ok(number)) => json!(number != 0),
            (_, Ok(number)) => json!(number),
        };
        document.insert(name.clone(), value);
    }
    let owners = open.owners.iter();
    let owners: Vec<Value> = owners
        .map(|owner| json!({ "program": owner.program, "pid": owner.pid, "fd": owner.fd }))
        .collect();
    document.insert("programs".into(), json!(owners));
    document
}

/// The lines of a table.
pub(crate) fn table(heading: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(heading);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A portal or a channel of some processes; without a text, one that may not be read.
    pub(crate) fn open(kind: Kind, text: Option<&str>, owners: &[(u32, &str)]) -> Open {
        let owners = owners.iter().map(|(pid, program)| Owner {
            pid: *pid,
            fd: 4,
            program: (*program).to_owned(),
        });
        Open {
            kind,
            owners: owners.collect(),
            fields: text.map(fdinfo::fields),
        }
    }

    #[test]
    fn programs_are_named() {
        let of = |owners: &[(u32, &str)]| programs(&open(Kind::Portal, None, owners));
        assert_eq!(
            of(&[(7, "se\u{1b}rver"), (7, "se\u{1b}rver")]),
            "se\\u{1b}rver (7)"
        );
        assert_eq!(of(&[(1, "a"), (2, "a"), (3, "b")]), "a (1), a (2), b (3)");
        let five = [(1, "a"), (2, "a"), (3, "b"), (4, "c"), (5, "d")];
        assert_eq!(of(&five), "a (1), a (2), b (3) and 2 more");
    }

    #[test]
    fn what_is_not_known() {
        let channel = |text| open(Kind::Channel, text, &[(7, "x")]);
        let hidden = channel(None);
        assert_eq!(cell(&hidden, "moves"), "not permitted");
        assert_eq!(state(&hidden), "not permitted");
        assert_eq!(document(&hidden)["permitted"], false);
        let old = channel(Some("state:\t99\nportal:\t12\n"));
        assert_eq!(
            (cell(&old, "side"), state(&old)),
            ("-".into(), "unknown".into())
        );
        assert_eq!(document(&old)["portal"], "12");
        let lost = channel(Some("state:\t2\nconnected:\t0\nmoves:\t3\n"));
        assert_eq!(state(&lost), "open, no path");
        let document = document(&lost);
        assert_eq!(
            (&document["state"], &document["connected"]),
            (&json!("open"), &json!(false))
        );
        assert_eq!(document["moves"], 3);
        assert_eq!(
            document["programs"],
            json!([{ "program": "x", "pid": 7, "fd": 4 }])
        );
        let out = |json| warning(Out { json }, 3);
        assert!(
            out(false).starts_with("ibmsg: 3 processes ") && out(true).contains("\"unseen\":3")
        );
    }
}
