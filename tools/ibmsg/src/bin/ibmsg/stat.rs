// SPDX-License-Identifier: GPL-2.0

//! `stat`: what channels carry, and how many portals refuse, in each interval.

use std::collections::HashMap;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use ibmsg::fdinfo::{self, Found, Kind, Open};
use serde_json::{json, Value};

use crate::cli::time;
use crate::out::{Failure, Out};
use crate::seen::{cell, programs, read, refused};

#[derive(Args, Debug)]
pub(crate) struct Command {
    /// Time between two tables: a number of seconds, or with ms, s or m
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1s")]
    interval: Duration,
    /// Ends after N tables
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

/// A channel: the number of its file. Older modules do not number files.
type Key = Result<u64, (u32, u32, Option<String>)>;

fn key(open: &Open) -> Key {
    let owner = open.owners.first();
    let owner = owner.map_or((0, 0), |owner| (owner.pid, owner.fd));
    open.number("file")
        .ok_or_else(|| (owner.0, owner.1, open.name()))
}

/// Calls that ended in an interval, and the microseconds that they took.
#[derive(Clone, Copy, Debug)]
struct Took {
    calls: u64,
    us: u64,
}

impl Took {
    /// The mean time.
    fn mean(self) -> Option<f64> {
        (self.calls > 0).then(|| self.us as f64 / self.calls as f64)
    }

    fn cell(self) -> String {
        self.mean()
            .map_or_else(|| "-".to_owned(), |mean| format!("{mean:.1}"))
    }
}

/// What a channel has carried in an interval, and what waits.
#[derive(Debug)]
struct Row<'a> {
    open: &'a Open,
    seconds: f64,
    /// Messages and bytes sent, and received.
    sent: (u64, u64),
    received: (u64, u64),
    /// Calls of the program, until the reply has arrived.
    called: Took,
    /// Requests for it, until it has replied.
    served: Took,
}

impl<'a> Row<'a> {
    /// `before`: what there was at the beginning; a channel that is new began with nothing.
    fn new(open: &'a Open, before: Option<&Open>, seconds: f64) -> Self {
        let more = |name| {
            let former = before.and_then(|before| before.number(name));
            let now = open.number(name).unwrap_or(0);
            now.saturating_sub(former.unwrap_or(0))
        };
        let took = |calls, us| Took {
            calls: more(calls),
            us: more(us),
        };
        Self {
            open,
            seconds,
            sent: (more("sent"), more("sent_bytes")),
            received: (more("received"), more("received_bytes")),
            called: took("calls", "call_us"),
            served: took("served", "served_us"),
        }
    }

    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.seconds
    }

    fn line(&self) -> String {
        let rates = |(messages, bytes): (u64, u64)| {
            let kib = self.per_second(bytes) / 1024.0;
            format!("{:>9.0} {:>9.1}", self.per_second(messages), kib)
        };
        format!(
            "{:<20} {:<16} {:<12} {:>7} {} {} {:>9} {:>9} {:>7} {:>7}",
            programs(self.open),
            cell(self.open, "portal"),
            cell(self.open, "session"),
            cell(self.open, "channel"),
            rates(self.sent),
            rates(self.received),
            self.called.cell(),
            self.served.cell(),
            cell(self.open, "unacknowledged"),
            cell(self.open, "waiting"),
        )
    }

    fn document(&self) -> Value {
        let number = |name| self.open.number(name).unwrap_or(0);
        let mut document = crate::seen::document(self.open);
        document.retain(|name, _| {
            ["session", "side", "portal", "channel", "programs"].contains(&name.as_str())
        });
        for (name, value) in [
            ("seconds", json!(self.seconds)),
            ("sent", json!(self.sent.0)),
            ("sent_bytes", json!(self.sent.1)),
            ("received", json!(self.received.0)),
            ("received_bytes", json!(self.received.1)),
            ("calls", json!(self.called.calls)),
            ("call_mean_us", json!(self.called.mean())),
            ("served", json!(self.served.calls)),
            ("served_mean_us", json!(self.served.mean())),
            ("unacknowledged", json!(number("unacknowledged"))),
            ("waiting", json!(number("waiting"))),
        ] {
            document.insert(name.into(), value);
        }
        Value::Object(document)
    }
}

/// Channels that a portal has refused in an interval, by the reason; none if it has refused none.
fn refusals(open: &Open, before: Option<&Open>) -> Option<(String, Value)> {
    let former: HashMap<&str, u64> = before.into_iter().flat_map(refused).collect();
    let more = refused(open).map(|(reason, count)| {
        let former = former.get(reason).copied().unwrap_or(0);
        (reason, count.saturating_sub(former))
    });
    let more: Vec<(&str, u64)> = more.filter(|(_, count)| *count > 0).collect();
    if more.is_empty() {
        return None;
    }
    let words: Vec<String> = more
        .iter()
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect();
    let portal = open.text("portal").unwrap_or_default();
    let reasons: serde_json::Map<String, Value> = more
        .iter()
        .map(|(reason, count)| ((*reason).to_owned(), json!(count)))
        .collect();
    Some((
        format!(
            "{:<20} {portal:<16} channels refused: {}",
            programs(open),
            words.join(", ")
        ),
        json!({ "portal": portal, "refused": reasons }),
    ))
}

/// The portal as it was before, unless it was bound again: then its counts have fallen.
fn former_portal<'a>(before: &'a [Open], open: &Open) -> Option<&'a Open> {
    let sum = |open: &Open| {
        let counts = refused(open).map(|(_, count)| count);
        counts.fold(0, u64::saturating_add)
    };
    before.iter().find(|other| {
        let is_same = other.kind == Kind::Portal && other.name() == open.name();
        is_same && other.owners == open.owners && sum(other) <= sum(open)
    })
}

/// What channels have carried, and portals have refused, since what was there before.
fn rows(now: &[Open], before: &[Open], seconds: f64) -> Vec<(String, Value)> {
    let is_channel = |open: &&Open| open.kind == Kind::Channel;
    let former = before.iter().filter(is_channel);
    let former: HashMap<Key, &Open> = former.map(|open| (key(open), open)).collect();
    let channels = now.iter().filter(is_channel).map(|open| {
        let row = Row::new(open, former.get(&key(open)).copied(), seconds);
        (row.line(), row.document())
    });
    let portals = now.iter().filter(|open| !is_channel(open));
    let portals = portals.filter_map(|open| refusals(open, former_portal(before, open)));
    channels.chain(portals).collect()
}

fn heading() -> String {
    format!(
        "{:<20} {:<16} {:<12} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7}",
        "PROGRAM",
        "PORTAL",
        "SESSION",
        "CHANNEL",
        "OUT/s",
        "KiB/s",
        "IN/s",
        "KiB/s",
        "CALL us",
        "SERVE us",
        "UNACKED",
        "UNREAD"
    )
}

/// The channels and portals that could be read, in the order of tables.
fn seen(found: Found) -> Vec<Open> {
    let is_seen = |open: &Open| open.state().is_some() || open.kind == Kind::Portal;
    found.all.into_iter().filter(is_seen).collect()
}

pub(crate) fn run(out: Out, command: &Command) -> Result<(), Failure> {
    let (mut before, mut since) = (seen(read(out)?), Instant::now());
    let mut tables = 0;
    while command.count.is_none_or(|count| tables < count) {
        sleep(command.interval);
        // What is missing was said once.
        let (now, at) = (seen(fdinfo::read(Path::new("/"))), Instant::now());
        let seconds = (at - since).as_secs_f64();
        if !out.json {
            out.say(heading(), Value::Null)?;
        }
        for (line, document) in rows(&now, &before, seconds) {
            out.say(line, document)?;
        }
        (before, since) = (now, at);
        tables += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(text: &str) -> Open {
        crate::seen::tests::open(Kind::Channel, Some(text), &[(7, "serv\u{1b}er")])
    }

    #[test]
    fn refused_channels() {
        let portal = |rule: u64, limit: u64| {
            let text = format!("portal:\tkv\nrefused_rule:\t{rule}\nrefused_limit:\t{limit}\n");
            crate::seen::tests::open(Kind::Portal, Some(&text), &[(7, "server")])
        };
        let said = |now, before: &[Open]| rows(&[now], before, 1.0);
        assert!(said(portal(3, 1), &[portal(3, 1)]).is_empty());
        let (line, document) = &said(portal(3, 5), &[portal(3, 1)])[0];
        assert!(
            line.starts_with("server (7) ")
                && line.ends_with(" kv               channels refused: limit 4"),
            "{line}"
        );
        assert_eq!(
            *document,
            json!({ "portal": "kv", "refused": { "limit": 4 } })
        );
        // It was bound again, or is new.
        for before in [vec![portal(9, 9)], vec![]] {
            let (line, _) = &said(portal(1, 2), &before)[0];
            assert!(
                line.ends_with("channels refused: limit 2, rule 1"),
                "{line}"
            );
        }
    }

    #[test]
    fn rates() {
        let text = "file:\t9\nsession:\tlocal\nportal:\tkv\nchannel:\t3\nunacknowledged:\t2\nwaiting:\t5\n";
        let at = |sent: u64, bytes: u64, received: u64, calls: u64, us: u64| {
            open(&format!(
                "{text}sent:\t{sent}\nsent_bytes:\t{bytes}\nreceived:\t{received}\nreceived_bytes:\t0\n\
                 calls:\t{calls}\ncall_us:\t{us}\nserved:\t4\nserved_us:\t99\n"
            ))
        };
        let (before, now) = (at(10, 1000, 5, 1, 50), at(30, 5096, 5, 5, 68));
        assert_eq!(key(&before), key(&now));
        let row = Row::new(&now, Some(&before), 2.0);
        assert_eq!((row.sent, row.received), ((20, 4096), (0, 0)));
        let words: Vec<String> = row.line().split_whitespace().map(str::to_owned).collect();
        assert_eq!(
            words,
            [
                "serv\\u{1b}er",
                "(7)",
                "kv",
                "local",
                "3",
                "10",
                "2.0",
                "0",
                "0.0",
                "4.5",
                "-",
                "2",
                "5"
            ]
        );
        assert_eq!(heading().len(), row.line().len());
        let document = row.document();
        assert_eq!(
            (&document["sent_bytes"], &document["calls"]),
            (&json!(4096), &json!(4))
        );
        assert_eq!(
            (&document["call_mean_us"], &document["served_mean_us"]),
            (&json!(4.5), &Value::Null)
        );
        // One that is new, and another one under its descriptor.
        assert_eq!(Row::new(&now, None, 1.0).sent, (30, 5096));
        let old = |channel| key(&open(&format!("session:\tlocal\nchannel:\t{channel}\n")));
        assert!(old(3) == old(3) && old(3) != old(4) && old(3) != key(&now));
    }
}
