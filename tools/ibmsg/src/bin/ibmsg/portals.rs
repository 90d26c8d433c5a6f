// SPDX-License-Identifier: GPL-2.0

//! `portals`, `channels` and `show`.

use std::path::Path;

use clap::Args;
use ibmsg::fdinfo::{Kind, Open};
use ibmsg::rules::{Place, Rules, Settings, State, CONFIGFS};
use serde_json::{json, Value};

use crate::out::{Failure, Out, NOT_FOUND};
use crate::seen::{cell, document, programs, read, refused, state, table, NOT_PERMITTED};

#[derive(Args, Debug)]
pub(crate) struct Channels {
    /// Only those of that portal
    #[arg(long)]
    portal: Option<String>,
    /// Only those of that session
    #[arg(long)]
    session: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// Channels, as SESSION/NUMBER or PID:FD, and portals by their names, or as PID:FD. SESSION/NUMBER may stand for
    /// two channels: a channel of the session `local` has both ends here
    #[arg(required = true, value_name = "CHANNEL|PORTAL")]
    names: Vec<String>,
}

/// The rules in force, as far as this user may read them.
struct InForce(Result<State, ()>);

impl InForce {
    fn read() -> Self {
        let rules = Rules::below(Path::new(CONFIGFS));
        match rules.exist() {
            // Without configfs there are none.
            false => Self(Ok(State::default())),
            true => Self(rules.read().map_err(|_| ())),
        }
    }

    /// That of a portal; none if there is none.
    fn of(&self, portal: Option<&str>) -> Result<Option<Settings>, ()> {
        let Ok(rules) = &self.0 else {
            return Err(());
        };
        let mut folders = rules.folders();
        let found =
            folders.find(|(place, name, _)| *place == Place::Portals && Some(*name) == portal);
        Ok(found.map(|(.., settings)| settings))
    }
}

fn rule_text(rule: &Result<Option<Settings>, ()>) -> String {
    match rule {
        Err(()) => NOT_PERMITTED.to_owned(),
        Ok(None) => "none".to_owned(),
        Ok(Some(settings)) if settings.is_empty() => "any host".to_owned(),
        Ok(Some(settings)) => {
            let all = settings.iter();
            let all: Vec<String> = all
                .map(|(name, value)| format!("{name} = {value}"))
                .collect();
            all.join(", ")
        }
    }
}

fn portal_document(open: &Open, rule: &Result<Option<Settings>, ()>) -> Value {
    let mut document = document(open);
    let rule = match rule {
        Ok(Some(settings)) => {
            let all = settings.iter();
            Value::Object(
                all.map(|(n, v)| ((*n).to_owned(), json!(v.text())))
                    .collect(),
            )
        }
        Ok(None) => Value::Null,
        Err(()) => json!(NOT_PERMITTED),
    };
    document.insert("rule".into(), rule);
    Value::Object(document)
}

/// Prints a table, or a document for each row.
fn print(out: Out, heading: &[&str], rows: Vec<(Vec<String>, Value)>) -> Result<(), Failure> {
    if out.json {
        let mut documents = rows.into_iter();
        return documents.try_for_each(|(_, document)| out.say("", document));
    }
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(row, _)| row).collect();
    out.say(table(heading, &rows).join("\n"), Value::Null)
}

/// How many channels it has refused, for whatever reason.
fn refused_cell(open: &Open) -> String {
    match refused(open)
        .map(|(_, count)| count)
        .reduce(u64::saturating_add)
    {
        Some(sum) => sum.to_string(),
        // It may not be read, or the module is an older one.
        None => cell(open, "refused_rule"),
    }
}

pub(crate) fn portals(out: Out) -> Result<(), Failure> {
    let (found, rules) = (read(out)?, InForce::read());
    let row = |open: &Open| {
        let rule = rules.of(open.text("portal"));
        let cells = vec![
            cell(open, "portal"),
            cell(open, "offers"),
            cell(open, "backlog"),
            refused_cell(open),
            rule_text(&rule),
            programs(open),
        ];
        (cells, portal_document(open, &rule))
    };
    let rows = found.portals().map(row).collect();
    print(
        out,
        &["PORTAL", "OFFERS", "BACKLOG", "REFUSED", "RULE", "PROGRAM"],
        rows,
    )
}

const CHANNELS: [&str; 9] = [
    "SESSION", "PORTAL", "CHANNEL", "SIDE", "STATE", "UNACKED", "UNREAD", "MOVES", "PROGRAM",
];

fn channel_row(open: &Open) -> (Vec<String>, Value) {
    let cells = vec![
        cell(open, "session"),
        cell(open, "portal"),
        cell(open, "channel"),
        cell(open, "side"),
        state(open),
        cell(open, "unacknowledged"),
        cell(open, "waiting"),
        cell(open, "moves"),
        programs(open),
    ];
    (cells, Value::Object(document(open)))
}

pub(crate) fn channels(out: Out, command: &Channels) -> Result<(), Failure> {
    let found = read(out)?;
    let is = |wanted: &Option<String>, text| wanted.is_none() || wanted.as_deref() == text;
    let wanted = found.channels().filter(|open| {
        is(&command.portal, open.text("portal")) && is(&command.session, open.text("session"))
    });
    print(out, &CHANNELS, wanted.map(channel_row).collect())
}

/// Whether a name on the command line stands for it.
fn is_named(open: &Open, name: &str) -> bool {
    let by_owner = |(pid, fd): (&str, &str)| {
        let (pid, fd) = (pid.parse().ok(), fd.parse().ok());
        let mut owners = open.owners.iter();
        owners.any(|owner| (Some(owner.pid), Some(owner.fd)) == (pid, fd))
    };
    open.name().as_deref() == Some(name) || name.split_once(':').is_some_and(by_owner)
}

/// Everything, a line each.
fn lines(open: &Open, rules: &InForce) -> (Vec<String>, Value) {
    let mut lines = Vec::new();
    let mut line = |name: &str, value: String| lines.push(format!("{name}: {value}"));
    let all = match open.kind {
        Kind::Portal => {
            let rule = rules.of(open.text("portal"));
            line("kind", "portal".into());
            line("rule", rule_text(&rule));
            portal_document(open, &rule)
        }
        Kind::Channel => {
            line("kind", "channel".into());
            Value::Object(document(open))
        }
    };
    if open.fields.is_none() {
        line("fields", NOT_PERMITTED.into());
    }
    for (name, value) in open.fields.iter().flatten() {
        let value = match name.as_str() {
            "state" => open.state().unwrap_or_default().to_owned(),
            _ => value.escape_debug().to_string(),
        };
        line(name, value);
    }
    for owner in &open.owners {
        line("program", format!("{owner}, descriptor {}", owner.fd));
    }
    (lines, all)
}

pub(crate) fn show(out: Out, command: &Show) -> Result<(), Failure> {
    let (found, rules) = (read(out)?, InForce::read());
    let mut is_first = true;
    for name in &command.names {
        let mut matching = found
            .all
            .iter()
            .filter(|open| is_named(open, name))
            .peekable();
        if matching.peek().is_none() {
            return Err(
                Failure::new(NOT_FOUND, name, "there is no such channel or portal")
                    .with_remedy("see `ibmsg channels` and `ibmsg portals`"),
            );
        }
        for open in matching {
            let (lines, document) = lines(open, &rules);
            let gap = if is_first { "" } else { "\n" };
            out.say(format!("{gap}{}", lines.join("\n")), document)?;
            is_first = false;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seen::tests::open;

    const CHANNEL: &str = "file:\t3\nsession:\ts\nside:\tclient\nportal:\tkv\nchannel:\t3\nstate:\t2\nconnected:\t1\n\
        sent:\t9\nqueued:\t8\ntaken:\t7\nreceived:\t6\nwaiting:\t5\nunacknowledged:\t1\nmoves:\t2\n";

    #[test]
    fn rows_of_channels() {
        let channel = open(Kind::Channel, Some(CHANNEL), &[(7, "x"), (8, "x")]);
        let (row, document) = channel_row(&channel);
        assert_eq!(
            row,
            [
                "s",
                "kv",
                "3",
                "client",
                "open",
                "1",
                "5",
                "2",
                "x (7), x (8)"
            ]
        );
        let shown = table(&CHANNELS, &[row]);
        assert_eq!(shown.len(), 2);
        assert!(
            shown[0].starts_with("SESSION  PORTAL  CHANNEL"),
            "{shown:?}"
        );
        assert_eq!(document["unacknowledged"], 1);
        let (row, _) = channel_row(&open(Kind::Channel, None, &[(7, "x")]));
        assert!(row[..8].iter().all(|cell| cell == "not permitted") && row[8] == "x (7)");
    }

    #[test]
    fn refused_channels_of_portals() {
        let text = "portal:\tkv\nrefused_rule:\t3\nrefused_limit:\t4\nrefused_program:\tx\n";
        let cell_of = |text| refused_cell(&open(Kind::Portal, text, &[(7, "x")]));
        assert_eq!(cell_of(Some(text)), "7");
        assert_eq!(cell_of(Some("portal:\tkv\n")), "-");
        assert_eq!(cell_of(None), "not permitted");
    }

    #[test]
    fn names() {
        let channel = open(Kind::Channel, Some(CHANNEL), &[(7, "x"), (8, "x")]);
        for name in ["s/3", "7:4", "8:4"] {
            assert!(is_named(&channel, name), "{name}");
        }
        for name in ["s", "kv", "s/33", "7:5", "9:4", "7", ":", "x:y"] {
            assert!(!is_named(&channel, name), "{name}");
        }
        let portal = open(Kind::Portal, Some("portal:\ta:b\n"), &[(7, "x")]);
        assert!(is_named(&portal, "a:b") && is_named(&portal, "7:4"));
        let hidden = open(Kind::Channel, None, &[(7, "x")]);
        assert!(is_named(&hidden, "7:4") && !is_named(&hidden, ""));
    }

    #[test]
    fn all_that_is_known() {
        let text = "[portal.kv]\nusers = [7]\n[portal.any]\n[session.kv2]\n";
        let rules = InForce(Ok(
            ibmsg::rules::parse(text, &|_, name| Err(name.into())).expect("rules")
        ));
        let portal = |name: &str| {
            let text = format!("portal:\t{name}\noffers:\t2\nbacklog:\t128\nunauthenticated:\t0\n");
            lines(
                &open(Kind::Portal, Some(&text), &[(7, "serv\u{1b}er")]),
                &rules,
            )
        };
        let (lines_of, document) = portal("kv");
        assert_eq!(
            lines_of,
            [
                "kind: portal",
                "rule: users = [7]",
                "backlog: 128",
                "offers: 2",
                "portal: kv",
                "unauthenticated: 0",
                "program: serv\\u{1b}er (7), descriptor 4",
            ]
        );
        assert_eq!(document["rule"], json!({ "users": "7" }));
        assert_eq!(portal("any").0[1], "rule: any host");
        assert_eq!(portal("kv2").0[1], "rule: none");
        assert_eq!(portal("kv2").1["rule"], Value::Null);
        let unread = InForce(Err(()));
        let (shown, document) = lines(&open(Kind::Portal, None, &[(7, "x")]), &unread);
        assert_eq!(
            shown[1..3],
            ["rule: not permitted", "fields: not permitted"]
        );
        assert_eq!(document["rule"], "not permitted");
        let channel = open(Kind::Channel, Some(CHANNEL), &[(7, "x")]);
        assert!(lines(&channel, &rules)
            .0
            .contains(&"state: open".to_owned()));
    }
}
