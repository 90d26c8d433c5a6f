// SPDX-License-Identifier: GPL-2.0

//! The path of a connection, the paths that a fence closes, and the memory limits of paths.

use ibtrs_proto::addr::{Addr, Scope};
use ibtrs_proto::consts::MAX_PATHS;
use ibtrs_proto::errno::Errno;
use ibtrs_proto::fsm::server_path::State;
use ibtrs_proto::imm::Fence;
use ibtrs_proto::join::{decide, Attempt, Decision, JoinRefusal, Known};
use ibtrs_proto::limits::{
    chunks_bytes, connection_bytes, memory_limit, numbers_bytes, server_layout,
};

fn attempt(epoch: Option<u32>) -> Attempt {
    Attempt { cid_num: 3, epoch }
}

fn other() -> Known {
    Known {
        same_uuid: false,
        same_addrs: false,
        state: State::Connected,
        attempt: attempt(None),
        has_cid: true,
    }
}

fn own(state: State, epoch: Option<u32>) -> Known {
    Known {
        same_uuid: true,
        same_addrs: true,
        state,
        attempt: attempt(epoch),
        has_cid: false,
    }
}

fn ask(epoch: Option<u32>, paths: &[Known]) -> Decision<usize> {
    decide(attempt(epoch), paths.iter().copied().enumerate())
}

#[test]
fn first_connection_makes_the_path() {
    assert_eq!(ask(None, &[]), Decision::New);
    assert_eq!(ask(Some(1), &[other(), other()]), Decision::New);
}

#[test]
fn further_connections_join() {
    for epoch in [None, Some(5)] {
        let path = own(State::Connecting, epoch);
        assert_eq!(ask(epoch, &[other(), path]), Decision::Join(1));
    }
}

#[test]
fn connections_that_do_not_fit() {
    let path = own(State::Connecting, None);
    let has = Known {
        has_cid: true,
        ..path
    };
    let refused = Decision::Refuse(JoinRefusal::ConnectionId, None);
    assert_eq!(ask(None, &[has]), refused);
    // As of somebody who has read the path's UUID on the wire.
    let elsewhere = Known {
        same_addrs: false,
        ..path
    };
    let refused = Decision::Refuse(JoinRefusal::OtherAddresses, None);
    assert_eq!(ask(None, &[elsewhere]), refused);
    let wide = Attempt {
        cid_num: 4,
        epoch: None,
    };
    let refused = Decision::Refuse(JoinRefusal::ConnectionCount, None);
    assert_eq!(decide(wide, [(0, path)].into_iter()), refused);
}

/// As long as a path is not closed, nobody takes its UUID.
#[test]
fn old_path_is_in_the_way() {
    for state in [State::Connected, State::Closing, State::Closed] {
        for (new, old, closes) in [
            (None, None, None),
            (None, Some(4), None),
            (Some(5), Some(4), Some(0)),
            (Some(5), None, Some(0)),
            // Late.
            (Some(3), Some(4), None),
            (Some(4), Some(4), None),
        ] {
            let refused = Decision::Refuse(JoinRefusal::PastSetUp, closes);
            assert_eq!(ask(new, &[own(state, old)]), refused, "{new:?} {old:?}");
        }
    }
}

#[test]
fn attempts_do_not_mix() {
    let half = own(State::Connecting, Some(4));
    for (new, closes) in [(Some(5), Some(0)), (Some(3), None), (None, None)] {
        let refused = Decision::Refuse(JoinRefusal::OtherAttempt, closes);
        assert_eq!(ask(new, &[half]), refused);
    }
}

#[test]
fn same_addresses_only_while_the_other_lives() {
    for state in State::ALL {
        let path = Known {
            same_addrs: true,
            state,
            ..other()
        };
        let live = matches!(state, State::Connecting | State::Connected);
        let wanted = if live {
            Decision::Refuse(JoinRefusal::Addresses, None)
        } else {
            Decision::New
        };
        assert_eq!(ask(None, &[path]), wanted);
    }
    assert_eq!(JoinRefusal::Addresses.errno(), Errno::EEXIST);
}

/// The order of the checks: the path's own UUID, the number of paths, the addresses.
#[test]
fn order_of_checks() {
    let mut paths = vec![other(); MAX_PATHS - 1];
    assert_eq!(ask(None, &paths), Decision::New);
    paths.push(Known {
        same_addrs: true,
        ..other()
    });
    assert_eq!(
        ask(None, &paths),
        Decision::Refuse(JoinRefusal::Paths, None)
    );
    paths.push(own(State::Connecting, None));
    assert_eq!(ask(None, &paths), Decision::Join(MAX_PATHS));
    for refusal in [
        JoinRefusal::PastSetUp,
        JoinRefusal::OtherAttempt,
        JoinRefusal::ConnectionCount,
        JoinRefusal::ConnectionId,
        JoinRefusal::OtherAddresses,
        JoinRefusal::Paths,
    ] {
        assert_eq!(refusal.errno(), Errno::ECONNRESET);
        assert!(!refusal.as_str().is_empty());
    }
}

#[test]
fn fences() {
    let one = Fence {
        epoch: 7,
        drain: false,
    };
    let older = Fence { drain: true, ..one };
    for (epoch, by_one, by_older) in [
        (Some(7), true, true),
        (Some(6), false, true),
        (Some(8), false, false),
        (None, false, true),
    ] {
        assert_eq!(one.covers(epoch), by_one, "{epoch:?}");
        assert_eq!(older.covers(epoch), by_older, "{epoch:?}");
    }
    assert!(one.is_valid(0, Some(8)) && older.is_valid(0, Some(8)));
    for fence in [one, older] {
        assert!(!fence.is_valid(0, Some(7)), "the carrier itself");
    }
    assert!(one.is_valid(0, Some(6)) && !older.is_valid(0, Some(6)));
    assert!(!one.is_valid(1, Some(8)) && !one.is_valid(0, None));
}

#[test]
fn memory() {
    let layout = server_layout(131_072, 512).unwrap();
    let beside = 512 * (2048 + 2048);
    assert_eq!(numbers_bytes(&layout), 512 * 512);
    assert_eq!(chunks_bytes(&layout, 0, 4096), (64 << 20) + beside);
    let private = 512 * 256;
    assert_eq!(
        chunks_bytes(&layout, 16_384, 4096),
        (72 << 20) + beside + private
    );
    // Where pages are larger, so is what is taken of them.
    assert_eq!(
        chunks_bytes(&layout, 16_384, 65_536),
        (96 << 20) + beside + private
    );
    let default = server_layout(135_168, 512).unwrap();
    let tables = 512 * (2048 + 2112);
    assert_eq!(chunks_bytes(&default, 0, 65_536), (96 << 20) + tables);
    assert_eq!(connection_bytes(0, 0), 16_384);
    assert_eq!(connection_bytes(5 * 512, 513), 16_384 + 819_200 + 65_664);
    let (most, least) = (
        connection_bytes(u32::MAX, u32::MAX),
        connection_bytes(u32::MAX, 0),
    );
    assert!(most > least);
    assert_eq!(memory_limit(0, 1000), 500);
    assert_eq!(memory_limit(3, 1000), 3 << 20);
    assert_eq!(memory_limit(u32::MAX, 0), u64::from(u32::MAX) << 20);
}

#[test]
fn scopes_by_number() {
    assert_eq!(Scope::from_index(0), None);
    for index in [1, 9, 10, 99, 100, 4_294_967_295] {
        let scope = Scope::from_index(index).unwrap();
        assert_eq!(scope.index(), Some(index));
        assert_eq!(scope.as_str(), index.to_string());
        let text = format!("ip:fe80::1%{index}");
        assert_eq!(Addr::parse(&text).unwrap().to_string(), text);
    }
}
