// SPDX-License-Identifier: GPL-2.0

//! Why a server refuses a connection, in the words of the client.

use std::collections::BTreeSet;

use ibtrs_proto::refused::{words, ERRNOS};
use ibtrs_proto::Errno;

/// The longest line of an error of a path, before the words.
const BEFORE: &str = "connection 255 was refused: reason 28, EPROTONOSUPPORT; ";
/// The most bytes of such a line.
const MOST: usize = 160;

#[test]
fn each_errno_has_words_of_its_own_that_are_not_cut_off() {
    let all: BTreeSet<&str> = ERRNOS.iter().filter_map(|errno| words(*errno)).collect();
    assert_eq!(all.len(), ERRNOS.len());
    for words in all {
        assert!(BEFORE.len() + words.len() <= MOST, "{words}");
    }
    assert_eq!(words(Errno::EIO), None);
}

#[test]
fn they_are_those_of_the_page() {
    let page = include_str!("../../../../Documentation/protocol.md");
    let (_, table) = page
        .split_once("Our server refuses a connection with:")
        .unwrap();
    let (table, _) = table.split_once("| others |").unwrap();
    let firsts = table.lines().filter_map(|line| line.split('|').nth(1));
    let names = firsts.flat_map(|first| first.split(','));
    let numbered = names.filter(|name| name.contains('('));
    let found: BTreeSet<&str> = numbered.map(str::trim).collect();
    let name = |errno: &Errno| format!("{} ({})", errno.as_str(), errno.get());
    let declared: BTreeSet<String> = ERRNOS.iter().map(name).collect();
    assert!(found.into_iter().eq(declared.iter()), "{declared:?}");
}
