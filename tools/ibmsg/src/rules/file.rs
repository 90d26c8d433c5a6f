// SPDX-License-Identifier: GPL-2.0

//! Files of rules: TOML.

use std::collections::BTreeMap;

use crate::wire::is_name;
use serde::Deserialize;

use super::configfs::{Place, State, Value};
use super::ids::Of;

/// A user, a group: by name or number.
#[derive(Deserialize, Debug)]
#[serde(untagged, expecting = "neither a number nor a name")]
enum Id {
    Number(u32),
    Name(String),
}

#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
struct Limits {
    max_channels: u32,
    max_memory_mib: u32,
    max_published_mib: u32,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields, default)]
struct Portal {
    users: Vec<Id>,
    groups: Vec<Id>,
    hosts: Vec<String>,
    unauthenticated: bool,
    max_channels: u32,
    max_memory_mib: u32,
    max_published_mib: u32,
}

impl Default for Portal {
    fn default() -> Self {
        Self {
            users: Vec::new(),
            groups: Vec::new(),
            hosts: vec!["any".into()],
            unauthenticated: false,
            max_channels: 0,
            max_memory_mib: 0,
            max_published_mib: 0,
        }
    }
}

#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
struct Session {
    users: Vec<Id>,
    groups: Vec<Id>,
    max_channels: u32,
    max_memory_mib: u32,
    max_published_mib: u32,
}

#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
struct File {
    portal: BTreeMap<String, Portal>,
    session: BTreeMap<String, Session>,
    host: BTreeMap<String, Limits>,
}

/// How the number of a user or group is found.
pub type Numbers<'a> = &'a dyn Fn(Of, &str) -> Result<u32, String>;

/// Reads rules.
///
/// # Errors
///
/// What is wrong, for a person.
pub fn parse(text: &str, numbers: Numbers<'_>) -> Result<State, String> {
    let file: File = toml_edit::de::from_str(text).map_err(|e| e.to_string())?;
    let mut state = State::default();
    for (name, rule) in file.portal {
        let users = [(Of::Users, &rule.users), (Of::Groups, &rule.groups)];
        let mut settings =
            ids(users, numbers).map_err(|why| format!("[portal.{name:?}]: {why}"))?;
        for host in &rule.hosts {
            if host != "any" && !is_name(host) {
                return Err(format!(
                    "[portal.{name:?}]: hosts: {host:?} is no name of a session that can carry messages"
                ));
            }
        }
        settings.push(("hosts", rule.hosts.join(" ")));
        settings.push((
            "unauthenticated",
            u8::from(rule.unauthenticated).to_string(),
        ));
        settings.extend(limits(
            rule.max_channels,
            rule.max_memory_mib,
            rule.max_published_mib,
        ));
        add(&mut state, Place::Portals, name, settings)?;
    }
    for (name, rule) in file.session {
        let users = [(Of::Users, &rule.users), (Of::Groups, &rule.groups)];
        let mut settings =
            ids(users, numbers).map_err(|why| format!("[session.{name:?}]: {why}"))?;
        settings.extend(limits(
            rule.max_channels,
            rule.max_memory_mib,
            rule.max_published_mib,
        ));
        add(&mut state, Place::Sessions, name, settings)?;
    }
    for (name, rule) in file.host {
        let settings = limits(
            rule.max_channels,
            rule.max_memory_mib,
            rule.max_published_mib,
        )
        .into();
        add(&mut state, Place::Hosts, name, settings)?;
    }
    Ok(state)
}

fn ids(
    lists: [(Of, &Vec<Id>); 2],
    numbers: Numbers<'_>,
) -> Result<Vec<(&'static str, String)>, String> {
    let mut settings = Vec::new();
    for (of, list) in lists {
        let words: Result<Vec<String>, String> = list
            .iter()
            .map(|id| match id {
                Id::Number(number) => Ok(number.to_string()),
                Id::Name(name) if name == "any" => Ok(name.clone()),
                Id::Name(name) => Ok(numbers(of, name)?.to_string()),
            })
            .collect();
        let setting = if of == Of::Users { "users" } else { "groups" };
        settings.push((setting, words?.join(" ")));
    }
    Ok(settings)
}

fn limits(
    max_channels: u32,
    max_memory_mib: u32,
    max_published_mib: u32,
) -> [(&'static str, String); 3] {
    [
        ("max_channels", max_channels.to_string()),
        ("max_memory_mib", max_memory_mib.to_string()),
        ("max_published_mib", max_published_mib.to_string()),
    ]
}

fn add(
    state: &mut State,
    place: Place,
    name: String,
    settings: Vec<(&'static str, String)>,
) -> Result<(), String> {
    if !is_name(&name) {
        return Err(format!(
            "[{}.{name:?}]: a name has 1 to 64 ASCII letters, digits and -_:@+., and begins with neither - nor .",
            place.table()
        ));
    }
    let settings = settings.into_iter();
    let settings = settings.map(|(setting, text)| (setting, Value::new(setting, &text)));
    state.0.insert((place, name), settings.collect());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(of: Of, name: &str) -> Result<u32, String> {
        match (of, name) {
            (Of::Users, "kv") => Ok(1000),
            (Of::Groups, "db") => Ok(2000),
            _ => Err(format!("there is no {name}")),
        }
    }

    #[test]
    fn a_file() {
        let text = r#"
            [portal.kv]
            users = ["kv", 7]
            hosts = ["web1", "local"]
            max_channels = 5

            [portal."a@b"]
            unauthenticated = true

            [session.local]
            groups = ["db", "any"]

            [host.web1]
            max_memory_mib = 64
            max_published_mib = 8
        "#;
        let state = parse(text, &numbers).expect("rules");
        let lines: Vec<String> = state
            .changes_from(&State::default())
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            lines,
            [
                "portal a@b: added",
                "portal a@b: unauthenticated = true",
                "portal kv: added",
                "portal kv: hosts = [\"local\", \"web1\"]",
                "portal kv: max_channels = 5",
                "portal kv: users = [7, 1000]",
                "session local: added",
                "session local: groups = [\"any\", 2000]",
                "host web1: added",
                "host web1: max_memory_mib = 64",
                "host web1: max_published_mib = 8",
            ]
        );
        assert_eq!(parse("", &numbers), Ok(State::default()));
    }

    #[test]
    fn mistakes() {
        for (text, why) in [
            ("[portal.kv]\nuser = [1]", "unknown field `user`"),
            ("[portals.kv]", "unknown field `portals`"),
            (
                "[portal.kv]\nusers = [\"nobody-here\"]",
                "[portal.\"kv\"]: there is no nobody-here",
            ),
            ("[portal.kv]\nusers = [-1]", "neither a number nor a name"),
            (
                "[portal.kv]\nhosts = [\".x\"]",
                "\".x\" is no name of a session",
            ),
            ("[portal.\"a b\"]", "[portal.\"a b\"]: a name has 1 to 64"),
            ("[host.web1]\nusers = [1]", "unknown field `users`"),
            ("[portal.kv]\nmax_channels = -1", "invalid value"),
            ("[portal.kv", "TOML parse error at line 1, column 11"),
        ] {
            let error = parse(text, &numbers).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
