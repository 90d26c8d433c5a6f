// SPDX-License-Identifier: GPL-2.0

//! What channels of programs carry between two samples.

use ibmsg::fdinfo::Open;
use ibnbd_host::model::Messages;

use super::rates::{bytes, each, grown};
use crate::out::Table;

const COLUMNS: [&str; 13] = [
    "session",
    "portal",
    "channel",
    "side",
    "sent/s",
    "sent",
    "read/s",
    "read",
    "us/call",
    "us/served",
    "unacked",
    "unread",
    "program",
];

pub(super) fn table(before: &Messages, now: &Messages, seconds: f64) -> Table {
    let mut table = Table::new(COLUMNS);
    for open in now.found.channels().filter(|open| open.state().is_some()) {
        let is_same = |old: &&Open| {
            let number = open.number("file");
            number.is_some() && old.number("file") == number
        };
        // One that is new has no rates yet, as a new path.
        let old = before.found.channels().find(is_same).unwrap_or(open);
        table.row(row(old, open, seconds));
    }
    table
}

fn row(old: &Open, open: &Open, seconds: f64) -> [String; 13] {
    let text = |name| open.text(name).unwrap_or_default().to_owned();
    let number = |open: &Open, name| open.number(name).unwrap_or(0);
    let since = |name| grown(number(open, name), number(old, name));
    let mean = |us, calls| match since(calls) {
        0 => String::new(),
        calls => format!("{:.1}", since(us) as f64 / calls as f64),
    };
    let mut programs: Vec<String> = open
        .owners
        .iter()
        .map(|owner| format!("{} ({})", owner.program, owner.pid))
        .collect();
    programs.dedup();
    let more = programs.len().saturating_sub(1);
    let first = programs.into_iter().next().unwrap_or_default();
    [
        text("session"),
        text("portal"),
        text("channel"),
        text("side"),
        each(since("sent"), seconds),
        bytes(since("sent_bytes"), seconds),
        each(since("received"), seconds),
        bytes(since("received_bytes"), seconds),
        mean("call_us", "calls"),
        mean("served_us", "served"),
        text("unacknowledged"),
        text("waiting"),
        match more {
            0 => first,
            more => format!("{first} and {more} more"),
        },
    ]
}

#[cfg(test)]
pub(super) mod tests {
    use ibmsg::fdinfo::{fields, Found, Kind, Owner};

    use super::*;

    /// Two samples of a channel that two processes share, and of one that is opened in between.
    pub(in super::super) fn samples() -> (Messages, Messages) {
        let channel = |file: u64, sent: u64, calls: u64| {
            Open {
            kind: Kind::Channel,
            owners: [7, 8]
                .map(|pid| Owner {
                    pid,
                    fd: 4,
                    program: "loader".into(),
                })
                .into(),
            fields: Some(fields(&format!(
                "file:\t{file}\nsession:\ts\nportal:\tkv\nchannel:\t{file}\nside:\tclient\nstate:\t2\nsent:\t{sent}\n\
                 sent_bytes:\t{}\nreceived:\t0\nreceived_bytes:\t0\ncalls:\t{calls}\ncall_us:\t{}\nserved:\t0\n\
                 served_us:\t0\nunacknowledged:\t3\nwaiting:\t1\n",
                sent * 1024,
                calls * 50
            ))),
        }
        };
        let messages = |all| Messages {
            is_loaded: true,
            found: Found { all, unseen: 0 },
            refused: Vec::new(),
            stalled: Vec::new(),
        };
        let now = vec![channel(3, 300, 30), channel(4, 9, 9)];
        (messages(vec![channel(3, 100, 10)]), messages(now))
    }

    #[test]
    fn channels_have_rates() {
        let (before, now) = samples();
        let table = table(&before, &now, 2.0);
        let rows: Vec<String> = table.rows().iter().map(|row| row.join(" ")).collect();
        assert_eq!(
            rows,
            [
                "s kv 3 client 100 100.0 KiB/s 0 0 B/s 50.0  3 1 loader (7) and 1 more",
                "s kv 4 client 0 0 B/s 0 0 B/s   3 1 loader (7) and 1 more",
            ]
        );
    }
}
