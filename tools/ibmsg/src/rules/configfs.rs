// SPDX-License-Identifier: GPL-2.0

//! Rules in configfs: what is there, what changes, and the changes.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A directory of rules.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// Who may bind a portal, and which machines may use it.
    Portals,
    /// Who may open channels over a session.
    Sessions,
    /// Limits of another machine.
    Hosts,
}

impl Place {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Portals, Self::Sessions, Self::Hosts];

    /// The directory in configfs.
    fn folder(self) -> &'static str {
        match self {
            Self::Portals => "portals",
            Self::Sessions => "sessions",
            Self::Hosts => "hosts",
        }
    }

    /// The table of a file.
    pub fn table(self) -> &'static str {
        match self {
            Self::Portals => "portal",
            Self::Sessions => "session",
            Self::Hosts => "host",
        }
    }

    /// Its files, with the settings that they are in a file of rules, and the values that new directories have.
    pub fn settings(self) -> &'static [(&'static str, &'static str, &'static str)] {
        const USERS: [(&str, &str, &str); 2] = [
            ("users", "allowed_uids", ""),
            ("groups", "allowed_gids", ""),
        ];
        const LIMITS: [(&str, &str, &str); 3] = [
            ("max_channels", "max_channels", "0"),
            ("max_memory_mib", "max_memory_mib", "0"),
            ("max_published_mib", "max_published_mib", "0"),
        ];
        // What restricts comes first: nothing is allowed for a moment that will not stay so.
        const PORTALS: [(&str, &str, &str); 7] = [
            ("hosts", "allowed_hosts", "any"),
            LIMITS[0],
            LIMITS[1],
            LIMITS[2],
            ("unauthenticated", "allow_unauthenticated", "0"),
            USERS[0],
            USERS[1],
        ];
        const SESSIONS: [(&str, &str, &str); 5] =
            [LIMITS[0], LIMITS[1], LIMITS[2], USERS[0], USERS[1]];
        match self {
            Self::Portals => &PORTALS,
            Self::Sessions => &SESSIONS,
            Self::Hosts => &LIMITS,
        }
    }

    fn file(self, setting: &str) -> Option<&'static str> {
        let mut all = self.settings().iter();
        all.find(|(name, ..)| *name == setting)
            .map(|(_, file, _)| *file)
    }
}

/// The value of a setting, as configfs shows it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Value {
    setting: &'static str,
    text: String,
}

impl Value {
    /// `text` has the entries of a list in any order.
    pub fn new(setting: &'static str, text: &str) -> Self {
        let mut words: Vec<&str> = text.split_whitespace().collect();
        // As configfs sorts them: `any` first, numbers by size.
        words.sort_by_key(|word| (*word != "any", word.parse::<u32>().ok(), *word));
        words.dedup();
        Self {
            setting,
            text: words.join(" "),
        }
    }

    /// As configfs shows it.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// As in a file of rules.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.text.split_whitespace();
        match self.setting {
            "max_channels" | "max_memory_mib" | "max_published_mib" => f.write_str(&self.text),
            "unauthenticated" => f.write_str(if self.text == "1" { "true" } else { "false" }),
            _ => {
                let quoted: Vec<String> = words
                    .map(|word| match word.parse::<u32>() {
                        Ok(_) if self.setting != "hosts" => word.to_owned(),
                        _ => format!("{word:?}"),
                    })
                    .collect();
                write!(f, "[{}]", quoted.join(", "))
            }
        }
    }
}

/// The settings of a directory, by their names in a file of rules.
pub type Settings = BTreeMap<&'static str, Value>;

/// Some rules.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct State(pub(super) BTreeMap<(Place, String), Settings>);

impl State {
    /// All directories, with the settings that differ from those of a new one.
    pub fn folders(&self) -> impl Iterator<Item = (Place, &str, Settings)> {
        self.0.iter().map(|((place, name), settings)| {
            let mut own = settings.clone();
            for (setting, _, default) in place.settings() {
                if own.get(setting) == Some(&Value::new(setting, default)) {
                    own.remove(setting);
                }
            }
            (*place, name.as_str(), own)
        })
    }

    /// What leads from rules to these.
    pub fn changes_from(&self, present: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        for ((place, name), wanted) in &self.0 {
            let key = (*place, name.clone());
            let former = present.0.get(&key);
            if former.is_none() {
                changes.push(Change::Add(*place, name.clone()));
            }
            for (setting, _, default) in place.settings() {
                let default = Value::new(setting, default);
                let value = wanted.get(setting).unwrap_or(&default);
                let is = former.map_or(Some(&default), |former| former.get(setting));
                if is != Some(value) {
                    changes.push(Change::Set(*place, name.clone(), value.clone()));
                }
            }
        }
        let gone = present.0.keys().filter(|key| !self.0.contains_key(*key));
        changes.extend(gone.map(|(place, name)| Change::Remove(*place, name.clone())));
        changes
    }
}

/// A change of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A directory is made.
    Add(Place, String),
    /// A setting has another value.
    Set(Place, String, Value),
    /// A directory is removed.
    Remove(Place, String),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add(place, name) => write!(f, "{} {name}: added", place.table()),
            Self::Set(place, name, value) => {
                write!(f, "{} {name}: {} = {value}", place.table(), value.setting)
            }
            Self::Remove(place, name) => write!(f, "{} {name}: removed", place.table()),
        }
    }
}

/// The rules in force on a machine.
#[derive(Debug)]
pub struct Rules(PathBuf);

impl Rules {
    /// Those in a directory of configfs.
    pub fn below(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// That directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Whether the module is loaded, and configfs mounted.
    pub fn exist(&self) -> bool {
        self.0.exists()
    }

    fn at(&self, place: Place, name: &str) -> PathBuf {
        self.0.join(place.folder()).join(name)
    }

    /// What there is.
    ///
    /// # Errors
    ///
    /// Those of reading a file or directory, with its path.
    pub fn read(&self) -> Result<State, (PathBuf, io::Error)> {
        let mut state = State::default();
        for place in Place::ALL {
            let folder = self.0.join(place.folder());
            let found = fs::read_dir(&folder).map_err(|e| (folder.clone(), e))?;
            for entry in found {
                let entry = entry.map_err(|e| (folder.clone(), e))?;
                let Ok(name) = entry.file_name().into_string() else {
                    continue;
                };
                let mut settings = Settings::new();
                for (setting, file, _) in place.settings() {
                    let path = entry.path().join(file);
                    let text = fs::read_to_string(&path).map_err(|e| (path, e))?;
                    settings.insert(*setting, Value::new(setting, &text));
                }
                state.0.insert((place, name), settings);
            }
        }
        Ok(state)
    }

    /// Makes a change.
    ///
    /// # Errors
    ///
    /// Those of the kernel, with the path.
    pub fn make(&self, change: &Change) -> Result<(), (PathBuf, io::Error)> {
        let (path, done) = match change {
            Change::Add(place, name) => {
                let path = self.at(*place, name);
                let made = fs::create_dir(&path);
                (path, made)
            }
            Change::Remove(place, name) => {
                let path = self.at(*place, name);
                let removed = fs::remove_dir(&path);
                (path, removed)
            }
            Change::Set(place, name, value) => {
                let file = place.file(value.setting).unwrap_or_default();
                let path = self.at(*place, name).join(file);
                // An empty list is a line of its own: the kernel sees no write of nothing.
                let written = fs::write(&path, format!("{}\n", value.text));
                (path, written)
            }
        };
        done.map_err(|e| (path, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Of<'a> = (Place, &'a str, &'a [(&'static str, &'a str)]);

    fn state(of: &[Of<'_>]) -> State {
        let mut state = State::default();
        for (place, name, settings) in of {
            let settings = settings.iter();
            let settings = settings.map(|(setting, text)| (*setting, Value::new(setting, text)));
            state
                .0
                .insert((*place, (*name).to_owned()), settings.collect());
        }
        state
    }

    fn lines(wanted: &State, present: &State) -> Vec<String> {
        let changes = wanted.changes_from(present);
        changes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn changes() {
        let present = state(&[
            (
                Place::Portals,
                "kv",
                &[
                    ("hosts", "any"),
                    ("max_channels", "0"),
                    ("max_memory_mib", "7"),
                    ("max_published_mib", "0"),
                    ("unauthenticated", "0"),
                    ("users", "7 10"),
                    ("groups", ""),
                ],
            ),
            (Place::Hosts, "web9", &[("max_channels", "3")]),
        ]);
        let wanted = state(&[
            (
                Place::Portals,
                "kv",
                &[
                    ("hosts", "web2 web1"),
                    ("users", "10 7 7"),
                    ("unauthenticated", "1"),
                ],
            ),
            (Place::Sessions, "local", &[("groups", "any")]),
        ]);
        assert_eq!(
            lines(&wanted, &present),
            [
                "portal kv: hosts = [\"web1\", \"web2\"]",
                "portal kv: max_memory_mib = 0",
                "portal kv: unauthenticated = true",
                "session local: added",
                "session local: groups = [\"any\"]",
                "host web9: removed",
            ]
        );
    }

    #[test]
    fn what_is_made_is_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        for place in Place::ALL {
            fs::create_dir(folder.path().join(place.folder())).expect("a folder");
        }
        let rules = Rules::below(folder.path());
        let wanted = state(&[
            (
                Place::Portals,
                "kv",
                &[("users", "1000 any"), ("hosts", "")],
            ),
            (Place::Hosts, "web1", &[("max_channels", "5")]),
        ]);
        for change in wanted.changes_from(&State::default()) {
            rules.make(&change).expect("a change");
            if let Change::Add(place, name) = &change {
                // As the kernel does.
                for (_, file, default) in place.settings() {
                    let path = rules.at(*place, name).join(file);
                    fs::write(path, format!("{default}\n")).expect("a file");
                }
            }
        }
        let found = rules.read().expect("the rules");
        assert_eq!(lines(&wanted, &found), [""; 0]);
        let shown: Vec<_> = found.folders().collect();
        assert_eq!(shown.len(), 2);
        assert_eq!(shown[0].2["users"].to_string(), "[\"any\", 1000]");
        assert_eq!(shown[0].2["hosts"].to_string(), "[]");
        let gone = Rules::below(&folder.path().join("x"));
        assert!(!gone.exist() && gone.read().is_err());
    }
}
