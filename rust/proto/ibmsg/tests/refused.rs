// SPDX-License-Identifier: GPL-2.0

//! Why channels are refused: the same words at both ends, and on the page.

use std::collections::BTreeSet;
use std::path::Path;

use ibmsg_proto::access::Refusal;
use ibmsg_proto::refused::{closed, reasons, Reason};
use ibtrs_proto::Errno;

#[test]
fn the_other_end_tells_the_reason_by_its_errno() {
    for reason in Reason::ALL {
        let errno = reason.errno().unwrap_or(Errno::EPERM);
        assert_eq!(Reason::told(errno), *reason);
    }
    for errno in [
        Refusal::Unauthenticated,
        Refusal::UnauthenticatedByRule,
        Refusal::Host,
    ] {
        assert_eq!(Reason::told(errno.errno()), Reason::Rule);
    }
    assert_eq!(Reason::told(Errno::EREMCHG), Reason::Program);
    assert_eq!(Reason::told(Errno(4095)), Reason::Program);
}

#[test]
fn each_reason_has_words_and_a_counter() {
    let words: BTreeSet<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(words.len(), Reason::ALL.len());
    let counted: BTreeSet<usize> = Reason::ALL.iter().filter_map(|r| r.counter()).collect();
    assert!(counted.into_iter().eq(0..reasons::ALL.len()));
    // Its end is an end of the session, and no refusal that an operator looks for.
    assert_eq!(Reason::Closing.counter(), None);
    let words = [Errno::ESHUTDOWN, Errno::EACCES, Errno::EIO].map(closed);
    assert_eq!(BTreeSet::from(words).len(), 3);
    assert_eq!(words[0], Reason::Closing.as_str());
}

/// `make generated` writes the rows.
#[test]
fn the_page_has_each_reason() {
    let row = |reason: &Reason| match reason.errno() {
        Some(errno) => format!("| `{}` | {} |\n", errno.as_str(), reason.meaning()),
        None => format!("| any other | {} |\n", reason.meaning()),
    };
    let wanted: String = Reason::ALL.iter().map(row).collect();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../Documentation/messages.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let head = "| reason of a refusal | meaning |\n| --- | --- |\n";
    let begin = text.find(head).expect(head) + head.len();
    let end = begin + text[begin..].find("\n\n").unwrap() + 1;
    if std::env::var_os("IBNBD_WRITE_GENERATED").is_some() {
        std::fs::write(&page, [&text[..begin], &wanted, &text[end..]].concat()).unwrap();
        return;
    }
    assert_eq!(&text[begin..end], wanted, "`make generated` writes it");
}
