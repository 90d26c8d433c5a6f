// SPDX-License-Identifier: GPL-2.0

//! The time for which a session has had no path to its server.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock;

/// A session without a path: `outage` of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Outage {
    /// When the last path was lost, in milliseconds since 1970.
    pub since_ms: u64,
    /// Seconds until requests fail; none if they wait without limit, or fail already.
    pub fails_in_s: Option<u64>,
    /// When requests began to fail, in milliseconds since 1970; none while they wait.
    pub fails_since_ms: Option<u64>,
}

impl Outage {
    /// Reads the file: lines of a name and a value; none if it is empty, as it is while a path is connected.
    pub fn parse(text: &str) -> Option<Option<Self>> {
        if text.is_empty() {
            return Some(None);
        }
        let mut since_ms = None;
        let mut found = Self::default();
        for line in text.lines() {
            match line.split_once(' ')? {
                ("since", time) => since_ms = Some(clock::parse(time)?),
                ("fails_in_s", left) => found.fails_in_s = Some(left.parse().ok()?),
                ("fails_since", time) => found.fails_since_ms = Some(clock::parse(time)?),
                _ => {}
            }
        }
        found.since_ms = since_ms?;
        Some(Some(found))
    }

    /// What I/O does: `waits for its server, fails in 37 s`.
    pub fn words(&self) -> String {
        match (self.fails_since_ms, self.fails_in_s) {
            (Some(at_ms), _) => format!("fails since {}", clock::text(at_ms)),
            (None, Some(left)) => format!("waits for its server, fails in {left} s"),
            (None, None) => "waits for its server".to_owned(),
        }
    }

    /// The time of the loss, for people.
    pub fn since(&self) -> String {
        clock::text(self.since_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read() {
        assert_eq!(Outage::parse(""), Some(None));
        let waits = Outage {
            since_ms: 1_764_376_027_042,
            fails_in_s: Some(37),
            fails_since_ms: None,
        };
        let text = "since 1764376027.042\nfails_in_s 37\n";
        assert_eq!(Outage::parse(text), Some(Some(waits)));
        assert_eq!(waits.words(), "waits for its server, fails in 37 s");
        let unlimited = Outage::parse("since 1764376027.042\n").unwrap().unwrap();
        assert_eq!(unlimited.words(), "waits for its server");
        let fails = Outage::parse("since 1764376027.042\nfails_since 1764376028.000\n");
        assert!(fails.unwrap().unwrap().words().starts_with("fails since "));
        // A later kernel may say more.
        assert!(Outage::parse("since 1.000\nmore 1\n").unwrap().is_some());
        for wrong in [
            "x",
            "since",
            "since x\n",
            "fails_in_s 1\n",
            "since 1.000\nfails_in_s x\n",
        ] {
            assert_eq!(Outage::parse(wrong), None, "{wrong}");
        }
    }
}
