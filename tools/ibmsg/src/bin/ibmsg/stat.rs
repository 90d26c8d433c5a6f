// SPDX-License-Identifier: GPL-2.0

//! `stat`: what channels carry, in each interval.

use std::collections::HashMap;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use ibmsg::fdinfo::{list, Open};
use serde_json::{json, Value};

use crate::cli::time;
use crate::info::check_module;
use crate::out::{Failure, Out};

#[derive(Args, Debug)]
pub(crate) struct Command {
    /// Time between two tables: a number of seconds, or with ms, s or m
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1s")]
    interval: Duration,
    /// Ends after N tables
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

/// A channel, for as long as a process has it.
type Key = (u32, u32, String, String);

fn key(open: &Open) -> Key {
    let field = |name: &str| open.fields.get(name).cloned().unwrap_or_default();
    (open.pid, open.fd, field("session"), field("channel"))
}

fn number(open: &Open, name: &str) -> u64 {
    let text = open.fields.get(name);
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// What a channel has carried in an interval, and what waits.
#[derive(Debug)]
struct Row<'a> {
    open: &'a Open,
    seconds: f64,
    /// Messages and bytes sent, and received.
    sent: (u64, u64),
    received: (u64, u64),
}

impl<'a> Row<'a> {
    /// `before`: what there was at the beginning; a channel that is new began with nothing.
    fn new(open: &'a Open, before: Option<&Open>, seconds: f64) -> Self {
        let more = |name| {
            let former = before.map_or(0, |before| number(before, name));
            number(open, name).saturating_sub(former)
        };
        Self {
            open,
            seconds,
            sent: (more("sent"), more("sent_bytes")),
            received: (more("received"), more("received_bytes")),
        }
    }

    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.seconds
    }

    fn line(&self) -> String {
        let field = |name: &str| self.open.fields.get(name).map_or("?", String::as_str);
        let rates = |(messages, bytes): (u64, u64)| {
            let kib = self.per_second(bytes) / 1024.0;
            format!("{:>10.0} {:>10.1}", self.per_second(messages), kib)
        };
        format!(
            "{:<16} {:>7} {:<16} {:<12} {:>7} {} {} {:>7} {:>7}",
            self.open.program.escape_debug().to_string(),
            self.open.pid,
            field("portal"),
            field("session"),
            field("channel"),
            rates(self.sent),
            rates(self.received),
            field("unacknowledged"),
            field("waiting"),
        )
    }

    fn document(&self) -> Value {
        let field = |name: &str| self.open.fields.get(name);
        json!({
            "program": self.open.program, "pid": self.open.pid, "fd": self.open.fd,
            "portal": field("portal"), "session": field("session"),
            "channel": number(self.open, "channel"), "seconds": self.seconds,
            "sent": self.sent.0, "sent_bytes": self.sent.1,
            "received": self.received.0, "received_bytes": self.received.1,
            "unacknowledged": number(self.open, "unacknowledged"),
            "waiting": number(self.open, "waiting"),
        })
    }
}

fn heading() -> String {
    format!(
        "{:<16} {:>7} {:<16} {:<12} {:>7} {:>10} {:>10} {:>10} {:>10} {:>7} {:>7}",
        "PROGRAM",
        "PID",
        "PORTAL",
        "SESSION",
        "CHANNEL",
        "OUT/s",
        "KiB/s",
        "IN/s",
        "KiB/s",
        "UNACKED",
        "UNREAD"
    )
}

fn channels() -> HashMap<Key, Open> {
    let all = list(Path::new("/")).into_iter();
    let channels = all.filter(|open| open.is_channel);
    channels.map(|open| (key(&open), open)).collect()
}

pub(crate) fn run(out: Out, command: &Command) -> Result<(), Failure> {
    check_module()?;
    let (mut before, mut since) = (channels(), Instant::now());
    let mut tables = 0;
    while command.count.is_none_or(|count| tables < count) {
        sleep(command.interval);
        let (now, at) = (channels(), Instant::now());
        let seconds = (at - since).as_secs_f64();
        let mut rows: Vec<_> = now.iter().collect();
        rows.sort_by_key(|(key, _)| *key);
        if !out.json {
            out.say(heading(), Value::Null)?;
        }
        for (key, open) in rows {
            let row = Row::new(open, before.get(key), seconds);
            out.say(row.line(), row.document())?;
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
        Open {
            pid: 7,
            program: "serv\u{1b}er".into(),
            fd: 4,
            is_channel: true,
            fields: ibmsg::fdinfo::fields(text),
        }
    }

    #[test]
    fn rates() {
        let text = "session:\tlocal\nportal:\tkv\nchannel:\t3\nunacknowledged:\t2\nwaiting:\t5\n";
        let at = |sent: u64, bytes: u64, received: u64| {
            open(&format!(
                "{text}sent:\t{sent}\nsent_bytes:\t{bytes}\nreceived:\t{received}\nreceived_bytes:\t0\n"
            ))
        };
        let (before, now) = (at(10, 1000, 5), at(30, 5096, 5));
        assert_eq!(key(&before), key(&now));
        let row = Row::new(&now, Some(&before), 2.0);
        assert_eq!((row.sent, row.received), ((20, 4096), (0, 0)));
        let words: Vec<String> = row.line().split_whitespace().map(str::to_owned).collect();
        assert_eq!(
            words,
            [
                "serv\\u{1b}er",
                "7",
                "kv",
                "local",
                "3",
                "10",
                "2.0",
                "0",
                "0.0",
                "2",
                "5"
            ]
        );
        assert_eq!(heading().len(), row.line().len());
        assert_eq!(row.document()["sent_bytes"], 4096);
        // One that is new, and another one under its descriptor.
        assert_eq!(Row::new(&now, None, 1.0).sent, (30, 5096));
        let other = open("session:\tlocal\nportal:\tkv\nchannel:\t4\n");
        assert_ne!(key(&other), key(&now));
    }
}
