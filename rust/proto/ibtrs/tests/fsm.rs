// SPDX-License-Identifier: GPL-2.0

//! Both path state machines, exhaustively.

use std::collections::HashSet;

use ibtrs_proto::errno::Errno;
use ibtrs_proto::fsm::{client_path as c, server_path as s, Verdict};

fn client_steps() -> impl Iterator<Item = (c::State, c::Event, c::Step)> {
    c::State::ALL
        .into_iter()
        .flat_map(|st| c::Event::ALL.map(|ev| (st, ev, c::step(st, ev))))
}

fn server_steps() -> impl Iterator<Item = (s::State, s::Event, s::Step)> {
    s::State::ALL
        .into_iter()
        .flat_map(|st| s::Event::ALL.map(|ev| (st, ev, s::step(st, ev))))
}

#[test]
fn what_is_not_accepted_changes_nothing() {
    for (st, ev, step) in client_steps() {
        if !step.verdict.accepted() {
            assert_eq!(step.next, st, "{st:?} {ev:?}");
            assert!(step.actions.is_empty(), "{st:?} {ev:?}");
        }
    }
    for (st, ev, step) in server_steps() {
        if !step.verdict.accepted() {
            assert_eq!(step.next, st, "{st:?} {ev:?}");
            assert!(step.actions.is_empty(), "{st:?} {ev:?}");
        }
    }
}

#[test]
fn users_get_an_answer() {
    use c::Event::*;
    for (st, ev, step) in client_steps() {
        let asked = matches!(ev, UserReconnect | UserDisconnect | UserRemove);
        match step.verdict {
            Verdict::Ignored => assert!(!asked, "{st:?} {ev:?}"),
            Verdict::Refused(_) => assert!(asked, "{st:?} {ev:?}"),
            Verdict::Accepted => {}
        }
    }
    for (st, ev, step) in server_steps() {
        let asked = matches!(ev, s::Event::UserDisconnect | s::Event::Connect);
        match step.verdict {
            Verdict::Ignored => assert!(!asked, "{st:?} {ev:?}"),
            Verdict::Refused(_) => assert!(asked, "{st:?} {ev:?}"),
            Verdict::Accepted => {}
        }
    }
    let answer = |st, ev| c::step(st, ev).verdict.result();
    assert_eq!(
        answer(c::State::Connecting, UserReconnect),
        Err(Errno::EBUSY)
    );
    assert_eq!(answer(c::State::Closing, UserReconnect), Err(Errno::EBUSY));
    assert_eq!(
        answer(c::State::Closing, UserDisconnect),
        Err(Errno::EALREADY)
    );
    assert_eq!(
        answer(c::State::Closed, UserDisconnect),
        Err(Errno::EALREADY)
    );
    assert_eq!(answer(c::State::Dead, UserRemove), Err(Errno::ENODEV));
    assert_eq!(answer(c::State::Connected, UserReconnect), Ok(()));
    assert_eq!(answer(c::State::Dead, CloseDone), Ok(()));
}

/// The transitions of protocol 5.1 and no others.
#[test]
fn client_transitions_of_the_protocol() {
    use c::State::*;
    let allowed: HashSet<_> = [
        (Connecting, Connected),
        (Connecting, ConnectingErr),
        // A failed attempt whose worker saw it first skips CONNECTING_ERR.
        (Connecting, Reconnecting),
        (ConnectingErr, Reconnecting),
        (Connected, Reconnecting),
        (Closed, Reconnecting),
        (Reconnecting, Reconnecting),
        (Reconnecting, Connecting),
        (Connecting, Closing),
        (ConnectingErr, Closing),
        (Reconnecting, Closing),
        (Connected, Closing),
        (Closing, Closed),
        (Closed, Dead),
    ]
    .into();
    let seen: HashSet<_> = client_steps()
        .filter(|(_, _, step)| step.verdict.accepted())
        .map(|(st, _, step)| (st, step.next))
        .collect();
    assert_eq!(seen, allowed);
}

#[test]
fn server_transitions_of_the_protocol() {
    use s::State::*;
    let allowed: HashSet<_> = [
        (Connecting, Connecting),
        (Connecting, Connected),
        (Connecting, Closing),
        (Connected, Closing),
        (Closing, Closed),
    ]
    .into();
    let seen: HashSet<_> = server_steps()
        .filter(|(_, _, step)| step.verdict.accepted())
        .map(|(st, _, step)| (st, step.next))
        .collect();
    assert_eq!(seen, allowed);
}

/// Leaving CONNECTED tears down, fails what is in flight and says so; nothing else says so.
#[test]
fn client_up_and_down_are_balanced() {
    use c::{Actions, State};
    for (st, ev, step) in client_steps() {
        let what = format!("{st:?} {ev:?} {:?}", step.actions);
        let was = st == State::Connected;
        let is = step.next == State::Connected;
        let has = |a| step.actions.contains(a);
        assert_eq!(has(Actions::NOTIFY_UP), !was && is, "{what}");
        assert_eq!(has(Actions::START_HEARTBEAT), !was && is, "{what}");
        assert_eq!(has(Actions::NOTIFY_DOWN), was && !is, "{what}");
        assert_eq!(has(Actions::FAIL_INFLIGHT), was && !is, "{what}");
        if was && !is {
            assert!(has(Actions::STOP_AND_DESTROY), "{what}");
        }
        // An attempt starts exactly on the way into CONNECTING, and what it built is torn
        // down on each way out but the good one.
        let to_connecting = step.next == State::Connecting && st != State::Connecting;
        assert_eq!(has(Actions::START_CONNECT), to_connecting, "{what}");
        let trying = matches!(st, State::Connecting | State::ConnectingErr);
        if trying && matches!(step.next, State::Reconnecting | State::Closing) {
            assert!(has(Actions::STOP_AND_DESTROY), "{what}");
        }
        // RECONNECTING always waits for something, and lets go of it when it closes.
        if step.verdict.accepted() && step.next == State::Reconnecting {
            let waits = has(Actions::SCHEDULE_RECONNECT) != has(Actions::RECONNECT_NOW);
            assert!(waits, "{what}");
        }
        if st == State::Reconnecting && step.next == State::Closing {
            assert!(has(Actions::CANCEL_RECONNECT), "{what}");
        }
        assert_eq!(
            has(Actions::RELEASE),
            step.next == State::Dead && st != State::Dead
        );
    }
}

#[test]
fn server_up_and_down_are_balanced() {
    use s::{Actions, State};
    for (st, ev, step) in server_steps() {
        let what = format!("{st:?} {ev:?} {:?}", step.actions);
        let was = st == State::Connected;
        let is = step.next == State::Connected;
        let has = |a| step.actions.contains(a);
        assert_eq!(has(Actions::NOTIFY_UP), !was && is, "{what}");
        assert_eq!(has(Actions::SEND_INFO_RSP), !was && is, "{what}");
        assert_eq!(has(Actions::CLEAR_STAMP), !was && is, "{what}");
        assert_eq!(has(Actions::START_HEARTBEAT), !was && is, "{what}");
        assert_eq!(has(Actions::STOP_HEARTBEAT), was && !is, "{what}");
        assert_eq!(has(Actions::WAIT_INFLIGHT), was && !is, "{what}");
        assert_eq!(has(Actions::NOTIFY_DOWN), was && !is, "{what}");
        let closes = step.next == State::Closing && st != State::Closing;
        assert_eq!(has(Actions::DISCONNECT_AND_DRAIN), closes, "{what}");
        assert_eq!(has(Actions::DESTROY), closes, "{what}");
        let closed = step.next == State::Closed && st != State::Closed;
        assert_eq!(has(Actions::RELEASE), closed, "{what}");
    }
}

/// Without reconnect every path that breaks ends CLOSED, and stays there.
#[test]
fn no_retry_means_closed() {
    use c::{Event, State};
    let broken = [
        Event::ConnectFailed { retry: false },
        Event::Error { retry: false },
        Event::GiveUp,
        Event::CloseDone,
    ];
    for start in State::ALL {
        let mut st = start;
        for _ in 0..4 {
            for ev in broken {
                st = c::step(st, ev).next;
            }
        }
        let end = match start {
            State::Dead => State::Dead,
            _ => State::Closed,
        };
        assert_eq!(st, end, "from {start:?}");
        for ev in Event::ALL {
            let user = matches!(ev, Event::UserReconnect | Event::UserRemove);
            assert!(user || c::step(st, ev).next == st, "{st:?} {ev:?}");
        }
    }
}

/// A device that goes takes nothing with it that the operator configured.
#[test]
fn a_device_that_goes_is_an_error_like_others() {
    use c::{Event, State};
    for st in State::ALL {
        let gone = c::step(st, Event::DeviceRemoved);
        assert_eq!(gone, c::step(st, Event::Error { retry: true }), "{st:?}");
    }
}

/// One row for each pair of state and event, none twice: a pattern that would cover several
/// rows hides what was forgotten.
#[test]
fn tables_are_complete() {
    let client: HashSet<_> = client_steps().map(|(st, ev, _)| (st, ev)).collect();
    assert_eq!(client.len(), c::State::ALL.len() * c::Event::ALL.len());
    let server: HashSet<_> = server_steps().map(|(st, ev, _)| (st, ev)).collect();
    assert_eq!(server.len(), s::State::ALL.len() * s::Event::ALL.len());
    // Rows, as they are written: an event without a value in any row of it has one row.
    for (source, states, events) in [
        (include_str!("../fsm/client_path.rs"), 7, 10),
        (include_str!("../fsm/server_path.rs"), 4, 8),
    ] {
        let rows = source.lines().filter(|l| l.contains("(S::")).count();
        assert!(rows >= states * events, "{rows}");
        let all = source.split("pub const fn step").nth(1).unwrap();
        assert!(!all.contains(" _ =>"), "a row that covers the rest");
    }
}

#[test]
fn every_state_is_reached_and_ends_are_ends() {
    let mut seen = HashSet::from([c::initial().next]);
    while let Some((_, _, step)) =
        client_steps().find(|(st, _, step)| seen.contains(st) && !seen.contains(&step.next))
    {
        seen.insert(step.next);
    }
    assert_eq!(seen.len(), c::State::ALL.len());
    assert!(client_steps().all(|(st, _, x)| st != c::State::Dead || !x.verdict.accepted()));

    let mut seen = HashSet::from([s::initial().next]);
    while let Some((_, _, step)) =
        server_steps().find(|(st, _, step)| seen.contains(st) && !seen.contains(&step.next))
    {
        seen.insert(step.next);
    }
    assert_eq!(seen.len(), s::State::ALL.len());
    assert!(server_steps().all(|(st, _, x)| st != s::State::Closed || !x.verdict.accepted()));
}

/// From everywhere a user gets rid of a path: remove, wait, remove.
#[test]
fn remove_always_ends() {
    use c::{Event, State};
    for start in State::ALL {
        let mut st = start;
        for ev in [Event::UserRemove, Event::CloseDone, Event::UserRemove] {
            st = c::step(st, ev).next;
        }
        assert_eq!(st, State::Dead, "from {start:?}");
    }
}

/// Who waits, who hurries, who wakes the attempt: exactly on these steps.
#[test]
fn client_reconnect_actions() {
    use c::{Actions, Event, State};
    for (st, ev, step) in client_steps() {
        let what = format!("{st:?} {ev:?} {:?}", step.actions);
        let has = |a| step.actions.contains(a);
        let ok = step.verdict.accepted();
        let trying = matches!(st, State::Connecting | State::ConnectingErr);
        let failed = matches!(ev, Event::ConnectFailed { .. });
        // The attempt is stopped by everybody but its own worker.
        let abort = ok && trying && !failed && ev != Event::Established;
        assert_eq!(has(Actions::ABORT_CONNECT), abort, "{what}");
        // A user is not kept waiting, everything else is.
        let again = ok && step.next == State::Reconnecting;
        let user = ev == Event::UserReconnect;
        assert_eq!(has(Actions::RECONNECT_NOW), again && user, "{what}");
        assert_eq!(has(Actions::SCHEDULE_RECONNECT), again && !user, "{what}");
        let up = step.next == State::Connected && st != State::Connected;
        assert_eq!(
            has(Actions::RESET_ATTEMPTS),
            up || (again && user),
            "{what}"
        );
        let lost = ok && trying && (failed || user);
        assert_eq!(has(Actions::COUNT_FAILURE), lost, "{what}");
        let closed = step.next == State::Closed && st != State::Closed;
        assert_eq!(has(Actions::WAKE_WAITERS), closed, "{what}");
        let wanted = st == State::Reconnecting && ok && ev != Event::ReconnectDue;
        assert_eq!(has(Actions::CANCEL_RECONNECT), wanted, "{what}");
    }
}

/// Each server row by name.
#[test]
fn server_rows() {
    use s::Event::*;
    use s::State::{Closed, Closing, Connected, Connecting};
    for (ev, next) in [
        (Connect, [Connecting, Connected, Closing, Closed]),
        (
            Info { complete: true },
            [Connected, Closing, Closing, Closed],
        ),
        (
            Info { complete: false },
            [Closing, Closing, Closing, Closed],
        ),
        (Error, [Closing, Closing, Closing, Closed]),
        (Stale, [Closing, Connected, Closing, Closed]),
        (GivenUp, [Closing, Closing, Closing, Closed]),
        (UserDisconnect, [Closing, Closing, Closing, Closed]),
        (DeviceRemoved, [Closing, Closing, Closing, Closed]),
        (CloseDone, [Connecting, Connected, Closed, Closed]),
    ] {
        assert_eq!(s::State::ALL.map(|st| s::step(st, ev).next), next, "{ev:?}");
    }
    for (st, ev, step) in server_steps() {
        let accept = st == Connecting && ev == Connect;
        assert_eq!(
            step.actions.contains(s::Actions::ACCEPT),
            accept,
            "{st:?} {ev:?}"
        );
    }
}

/// Each client row by name.
#[test]
fn client_rows() {
    use c::Event::*;
    use c::State::*;
    // From CONNECTING, CONNECTING_ERR, CONNECTED, RECONNECTING, CLOSING, CLOSED, DEAD.
    let [a, e, u, r, g, d, x] = c::State::ALL;
    assert_eq!(
        (a, e, u, r),
        (Connecting, ConnectingErr, Connected, Reconnecting)
    );
    assert_eq!((g, d, x), (Closing, Closed, Dead));
    for (ev, next) in [
        (Established, [u, e, u, r, g, d, x]),
        (ConnectFailed { retry: true }, [r, r, u, r, g, d, x]),
        (ConnectFailed { retry: false }, [g, g, u, r, g, d, x]),
        (Error { retry: true }, [e, e, r, r, g, d, x]),
        (Error { retry: false }, [e, e, g, r, g, d, x]),
        (ReconnectDue, [a, e, u, a, g, d, x]),
        (GiveUp, [a, e, u, g, g, d, x]),
        (UserReconnect, [a, r, r, r, g, r, x]),
        (UserDisconnect, [g, g, g, g, g, d, x]),
        (UserRemove, [g, g, g, g, g, x, x]),
        (DeviceRemoved, [e, e, r, r, g, d, x]),
        (CloseDone, [a, e, u, r, d, d, x]),
    ] {
        assert_eq!(c::State::ALL.map(|st| c::step(st, ev).next), next, "{ev:?}");
    }
}

#[test]
fn first_steps() {
    assert_eq!(c::initial().next, c::State::Connecting);
    assert_eq!(c::initial().actions, c::Actions::START_CONNECT);
    assert_eq!(s::initial().next, s::State::Connecting);
    assert_eq!(s::initial().actions, s::Actions::ACCEPT);
}

#[test]
fn zombies() {
    assert!(!s::is_stale(None, u64::MAX));
    assert!(!s::is_stale(Some(1000), 31_000));
    assert!(s::is_stale(Some(1000), 31_001));
    assert!(!s::is_stale(Some(1000), 0));
    let stale = s::step(s::State::Connecting, s::Event::Stale);
    assert_eq!(stale.next, s::State::Closing);
    let rejected = s::step(s::State::Connected, s::Event::Connect).verdict;
    assert_eq!(rejected, Verdict::Refused(Errno::ECONNRESET));
}

#[test]
fn names_and_numbers() {
    for st in c::State::ALL {
        assert_eq!(c::State::from_u8(st.to_u8()), Some(st));
        let up = st == c::State::Connected;
        assert_eq!(st.sysfs_str() == "connected", up);
        assert!(up || st.sysfs_str() == "disconnected");
    }
    assert_eq!(c::State::from_u8(7), None);
    for st in s::State::ALL {
        assert_eq!(s::State::from_u8(st.to_u8()), Some(st));
    }
    assert_eq!(s::State::from_u8(4), None);
    let names: HashSet<_> = c::State::ALL.iter().map(|s| s.as_str()).collect();
    assert_eq!(names.len(), 7);
    let bits: HashSet<_> = c::Actions::ALL.iter().map(|(a, _)| *a).collect();
    assert_eq!(bits.len(), c::Actions::ALL.len());
    let set = c::Actions::NOTIFY_UP.and(c::Actions::RELEASE);
    assert_eq!(format!("{set:?}"), r#"{"NOTIFY_UP", "RELEASE"}"#);
    assert_eq!(set.iter().count(), 2);
    assert!(c::Actions::NONE.iter().next().is_none());
}
