// SPDX-License-Identifier: GPL-2.0

//! Prefixes of addresses, as the files of exports and hosts take them: `10.0.1.0/24`, `fe80::1`,
//! `any`.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ibnbd_proto::prefix::{self as proto, PrefixError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most prefixes that a file takes.
pub const MOST: usize = proto::MAX_PREFIXES;

/// Addresses with the same first bits.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Prefix(proto::Prefix);

impl Prefix {
    /// Reads one prefix.
    ///
    /// # Errors
    ///
    /// Why the text is none, as it goes on behind the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        proto::Prefix::parse(text)
            .map(Self)
            .map_err(|error| match error {
                PrefixError::HostBits(meant) => {
                    format!("has host bits set: {meant} is probably meant")
                }
                _ => "is no address, prefix such as 10.0.1.0/24, or any".to_owned(),
            })
    }

    /// Whether all addresses of a kind have it.
    pub const fn is_everything(&self) -> bool {
        use proto::Prefix::{Any, V4, V6};
        matches!(self.0, Any | V4(_, 0) | V6(_, 0))
    }

    /// Whether it has all addresses that the other one has.
    pub fn covers(&self, other: &Self) -> bool {
        use proto::Prefix::{Any, V4, V6};
        match (self.0, other.0) {
            (Any, _) => true,
            (V4(own, bits), V4(first, length)) => {
                bits <= length && (own ^ first).leading_zeros() >= u32::from(bits)
            }
            (V6(own, bits), V6(first, length)) => {
                bits <= length && (own ^ first).leading_zeros() >= u32::from(bits)
            }
            _ => false,
        }
    }

    /// Whether an address has it.
    pub fn has(&self, address: IpAddr) -> bool {
        let alone = Self::parse(&address.to_string());
        alone.is_ok_and(|alone| self.covers(&alone))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.to_string()
    }
}

impl TryFrom<String> for Prefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).map_err(|why| format!("{text:?} {why}"))
    }
}

/// The prefixes in a text, which blanks and commas separate.
pub fn list(text: &str) -> Option<Vec<Prefix>> {
    words(text).map(|word| Prefix::parse(word).ok()).collect()
}

/// The words that would be prefixes.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    let between = |c: char| c == ',' || c.is_ascii_whitespace();
    text.split(between).filter(|word| !word.is_empty())
}

/// Whether two lists have the same prefixes, in any order.
pub fn same(one: &[Prefix], other: &[Prefix]) -> bool {
    let set = |list: &[Prefix]| list.iter().copied().collect::<BTreeSet<_>>();
    set(one) == set(other)
}

/// Prefixes with a blank between them.
pub fn text(prefixes: &[Prefix]) -> String {
    let words: Vec<String> = prefixes.iter().map(Prefix::to_string).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_take_what_the_files_do() {
        assert_eq!(
            text(&list(" 10.0.1.0/24,fe80::/10\n\tany ,").unwrap()),
            "10.0.1.0/24 fe80::/10 any"
        );
        assert_eq!(list("\n"), Some(Vec::new()));
        assert_eq!(list("10.0.1.0/24 x"), None);
    }

    #[test]
    fn a_prefix_covers_those_that_begin_with_it() {
        for (wide, narrow) in [
            ("any", "10.0.0.0/8"),
            ("any", "any"),
            ("0.0.0.0/0", "10.0.1.2"),
            ("10.0.0.0/16", "10.0.1.0/24"),
            ("10.0.1.2", "10.0.1.2/32"),
            ("::/0", "fe80::1"),
            ("fe80::/10", "fe80::/64"),
        ] {
            let [wide, narrow] = [wide, narrow].map(|text| Prefix::parse(text).unwrap());
            assert!(wide.covers(&narrow), "{wide} {narrow}");
            assert_eq!(narrow.covers(&wide), narrow == wide, "{wide} {narrow}");
        }
        for (one, other) in [
            ("10.0.0.0/16", "10.1.0.0/24"),
            ("0.0.0.0/0", "fe80::1"),
            ("::/0", "any"),
        ] {
            let [one, other] = [one, other].map(|text| Prefix::parse(text).unwrap());
            assert!(!one.covers(&other), "{one} {other}");
        }
    }

    #[test]
    fn what_is_probably_meant_is_said() {
        for (text, why) in [
            (
                "10.0.0.1/24",
                "has host bits set: 10.0.0.0/24 is probably meant",
            ),
            (
                "fe80::1/10",
                "has host bits set: fe80::/10 is probably meant",
            ),
            (
                "10.0.0.1/33",
                "is no address, prefix such as 10.0.1.0/24, or any",
            ),
        ] {
            assert_eq!(Prefix::parse(text), Err(why.to_owned()));
        }
    }

    #[test]
    fn what_everybody_has_is_everything() {
        for (word, everything) in [
            ("any", true),
            ("0.0.0.0/0", true),
            ("::/0", true),
            ("0.0.0.0/1", false),
            ("::", false),
        ] {
            assert_eq!(
                Prefix::parse(word).unwrap().is_everything(),
                everything,
                "{word}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_text_does_harm(text in "\\PC*|[0-9a-f:./, any]*") {
            for prefix in list(&text).unwrap_or_default() {
                prop_assert_eq!(Prefix::parse(&prefix.to_string()), Ok(prefix));
            }
        }
    }
}
