// SPDX-License-Identifier: GPL-2.0

//! The operator's lists and rules, and the limits of portals, sessions and hosts.

use ibmsg_proto::access::*;
use ibmsg_proto::refused::reasons;
use ibmsg_proto::wire::PortalName;
use ibtrs_proto::Errno;
use proptest::prelude::*;

fn ids_of(text: &str) -> Result<Vec<Entry<u32>>, ListError> {
    ids(text.as_bytes())?.collect()
}

#[test]
fn lists_of_ids() {
    let one = Entry::One;
    assert_eq!(ids_of(""), Ok(vec![]));
    assert_eq!(ids_of(" 0,1000\t7\n"), Ok(vec![one(0), one(1000), one(7)]));
    assert_eq!(ids_of("any 5"), Ok(vec![Entry::Any, one(5)]));
    assert_eq!(ids_of("4294967294"), Ok(vec![one(u32::MAX - 1)]));
    for wrong in [
        "4294967295",
        "-1",
        "+1",
        "0x10",
        "root",
        "1-5",
        "ANY",
        "1 x",
    ] {
        assert_eq!(ids_of(wrong), Err(ListError::Id), "{wrong}");
    }
    for wrong in [&b"1\0"[..], b"\xff", b"1\x07"] {
        assert_eq!(ids(wrong).err(), Some(ListError::NotText));
    }
}

#[test]
fn lists_of_hosts() {
    let name = |name: &'static str| Entry::One(PortalName::new(name.as_bytes()).unwrap());
    let list = hosts(b"web1, web2@rack.1\nlocal any").unwrap();
    assert_eq!(
        list.collect::<Result<Vec<_>, _>>(),
        Ok(vec![
            name("web1"),
            name("web2@rack.1"),
            name("local"),
            Entry::Any
        ])
    );
    for wrong in [".web", "a/b", "web*", "\u{e4}"] {
        let list = hosts(wrong.as_bytes()).unwrap();
        let list = list.collect::<Result<Vec<_>, _>>();
        assert_eq!(list, Err(ListError::Host), "{wrong}");
    }
    assert_eq!(hosts(b"web\x1b").err(), Some(ListError::NotText));
    assert_eq!(ListError::Host.errno(), Errno::EINVAL);
}

fn peers() -> impl Strategy<Value = Peer> {
    prop_oneof![
        Just(Peer::Local),
        Just(Peer::Authenticated),
        Just(Peer::Unauthenticated)
    ]
}

proptest! {
    /// Who has proved nothing needs the consent of both; no session is let in that the operator does not name.
    #[test]
    fn use_of_a_portal(
        peer in peers(),
        asks: bool,
        rule in proptest::option::of((any::<bool>(), any::<bool>())),
    ) {
        let rule = rule.map(|(admits_name, admits_unauthenticated)| Rule {
            admits_name,
            admits_unauthenticated,
        });
        let is_admitted = may_use(peer, asks, rule).is_ok();
        let expected = match peer {
            Peer::Unauthenticated => asks && rule.is_none_or(|rule| rule.admits_unauthenticated),
            _ => rule.is_none_or(|rule| rule.admits_name),
        };
        prop_assert_eq!(is_admitted, expected);
    }

    /// Limits hold, a refusal changes nothing, and all is given back.
    #[test]
    fn accounts(
        max_channels in 0..5u32,
        max_bytes in 0..500u64,
        steps in proptest::collection::vec((any::<bool>(), 0..200u64), 0..50),
    ) {
        let mut account = Account::new(max_channels, max_bytes);
        let mut model = Vec::new();
        for (adds, bytes) in steps {
            if adds {
                let sum: u64 = model.iter().sum();
                let fits = (max_channels == 0 || model.len() < max_channels as usize)
                    && (max_bytes == 0 || sum + bytes <= max_bytes);
                prop_assert_eq!(account.add(bytes), fits);
                if fits {
                    model.push(bytes);
                }
            } else if let Some(bytes) = model.pop() {
                account.remove(bytes);
            }
            let sum = model.iter().sum();
            prop_assert_eq!(account.used(), (model.len() as u32, sum));
        }
    }
}

#[test]
fn refusals_say_why() {
    let rule = |admits_name, admits_unauthenticated| {
        Some(Rule {
            admits_name,
            admits_unauthenticated,
        })
    };
    let why = |peer, asks, rule| may_use(peer, asks, rule).err();
    let stranger = Peer::Unauthenticated;
    assert_eq!(
        why(stranger, false, rule(true, true)),
        Some(Refusal::Unauthenticated)
    );
    assert_eq!(
        why(stranger, true, rule(true, false)),
        Some(Refusal::UnauthenticatedByRule)
    );
    assert_eq!(
        why(Peer::Local, true, rule(false, true)),
        Some(Refusal::Host)
    );
    assert_eq!(Refusal::Host.errno(), Errno::EACCES);
}

#[test]
fn published_memory_has_its_own_limit() {
    let mut account = Account::new(1, 1);
    // Without a limit, any number.
    assert!(account.publish(u64::MAX - 1) && account.publish(1) && account.publish(1));
    assert_eq!(account.published(), u64::MAX);
    let mut account = Account::new(0, 0);
    account.max_published = 100;
    assert!(account.publish(60) && account.publish(40) && !account.publish(1));
    account.max_published = 50;
    account.unpublish(60);
    assert!(account.publish(10) && !account.publish(1));
    assert_eq!((account.published(), account.used()), (50, (0, 0)));
}

#[test]
fn refused_channels_are_counted_by_reason() {
    let mut account = Account::new(1, 0);
    for (reason, _) in reasons::ALL.iter().enumerate() {
        for _ in 0..=reason {
            account.refuse(reason);
        }
    }
    // One that nobody has declared.
    account.refuse(reasons::ALL.len());
    let counts = (0..=reasons::ALL.len()).map(|reason| account.refused().get(reason));
    let counts: Vec<u64> = counts.collect();
    assert_eq!(counts, [1, 2, 3, 4, 5, 6, 0]);
    // They are no channels.
    assert_eq!(account.used(), (0, 0));
    let mut names: Vec<&str> = reasons::ALL.iter().map(|counter| counter.name()).collect();
    assert!(names.iter().all(|name| name.starts_with("refused_")));
    names.dedup();
    assert_eq!(names.len(), reasons::ALL.len());
}
