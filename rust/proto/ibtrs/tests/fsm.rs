// SPDX-License-Identifier: GPL-2.0

//! Both path state machines, exhaustively.

use std::collections::HashSet;

use ibtrs_proto::backoff::{Attempts, Backoff};
use ibtrs_proto::errno::Errno;
use ibtrs_proto::fsm::{client_path as c, server_path as s, ActionSet, Reply};

/// Steps of a client that may try again, and of one that may not.
fn client_steps() -> impl Iterator<Item = (c::State, c::Event, c::Step)> {
    [true, false].into_iter().flat_map(|retry| {
        c::State::ALL
            .into_iter()
            .flat_map(move |st| c::Event::ALL.map(|ev| (st, ev, c::step(st, ev, retry))))
    })
}

fn server_steps() -> impl Iterator<Item = (s::State, s::Event, s::Step)> {
    s::State::ALL
        .into_iter()
        .flat_map(|st| s::Event::ALL.map(|ev| (st, ev, s::step(st, ev))))
}

#[test]
fn what_is_not_accepted_changes_nothing() {
    for (st, ev, step) in client_steps() {
        if !step.reply.accepted() {
            assert_eq!(step.next, st, "{st:?} {ev:?}");
            assert!(step.actions.is_empty(), "{st:?} {ev:?}");
        }
    }
    for (st, ev, step) in server_steps() {
        if !step.reply.accepted() {
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
        match step.reply {
            Reply::Ignored => assert!(!asked, "{st:?} {ev:?}"),
            Reply::Refused(_) => assert!(asked, "{st:?} {ev:?}"),
            Reply::Accepted => {}
        }
    }
    for (st, ev, step) in server_steps() {
        let asked = ev == s::Event::UserDisconnect;
        match step.reply {
            Reply::Ignored => assert!(!asked, "{st:?} {ev:?}"),
            Reply::Refused(_) => assert!(asked, "{st:?} {ev:?}"),
            Reply::Accepted => {}
        }
    }
    let answer = |st, ev| c::step(st, ev, true).reply.result();
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

/// The transitions that `fsm::client_path` draws, and no others.
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
        .filter(|(_, _, step)| step.reply.accepted())
        .map(|(st, _, step)| (st, step.next))
        .collect();
    assert_eq!(seen, allowed);
}

#[test]
fn server_transitions_of_the_protocol() {
    use s::State::*;
    let allowed: HashSet<_> = [
        (Connecting, Connected),
        (Connecting, Closing),
        (Connected, Closing),
        (Closing, Closed),
    ]
    .into();
    let seen: HashSet<_> = server_steps()
        .filter(|(_, _, step)| step.reply.accepted())
        .map(|(st, _, step)| (st, step.next))
        .collect();
    assert_eq!(seen, allowed);
}

/// The work that the driver of a client's path has under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
struct ClientDriver {
    attempt: bool,
    heartbeat: bool,
    timer: bool,
}

impl ClientDriver {
    /// Does what a step asks for; says whether the next attempt is to begin at once.
    fn perform(&mut self, actions: c::Actions) -> bool {
        use c::Action::*;
        let mut now = false;
        for action in actions.iter() {
            match action {
                AbortConnect => assert!(self.attempt, "nothing to abort"),
                CancelReconnect => self.timer = false,
                TearDown => {
                    assert!(self.attempt, "nothing to tear down");
                    (self.attempt, self.heartbeat) = (false, false);
                }
                ScheduleReconnect => {
                    assert!(!self.timer, "a second timer");
                    self.timer = true;
                }
                ReconnectNow => now = true,
                StartConnect => {
                    assert!(!self.attempt && !self.timer, "a second attempt");
                    self.attempt = true;
                }
                StartHeartbeat => {
                    assert!(self.attempt && !self.heartbeat, "a second heartbeat");
                    self.heartbeat = true;
                }
                CountConnect | CountFailure => {}
            }
        }
        now
    }

    /// The events that are possible in a state.
    fn events(self, state: c::State) -> Vec<c::Event> {
        use c::Event::*;
        let mut events = vec![LimitSet, UserReconnect, UserDisconnect, UserRemove];
        if self.attempt {
            events.extend([Established, ConnectFailed, Error]);
        }
        if self.timer {
            events.push(ReconnectDue);
        }
        if state == c::State::Closing {
            events.push(CloseDone);
        }
        events
    }

    fn fits(self, state: c::State) -> bool {
        use c::State::*;
        let (attempt, heartbeat, timer) = match state {
            Connecting | ConnectingErr => (true, false, false),
            Connected => (true, true, false),
            Reconnecting => (false, false, true),
            Closing | Closed | Dead => (false, false, false),
        };
        let is = Self {
            attempt,
            heartbeat,
            timer,
        };
        self == is
    }
}

/// Whatever happens, and in whichever order: an attempt, its heartbeat and the timer of the next
/// one are there when they have to be, once, and nothing is left when the path is closed.
#[test]
fn a_client_leaves_nothing_behind() {
    let limits = [Attempts::Forever, Attempts::AtMost(0), Attempts::AtMost(2)];
    for (limit, repeats) in limits
        .map(|l| [(l, false), (l, true)])
        .into_iter()
        .flatten()
    {
        let mut first = (c::Machine::new(), ClientDriver::default());
        assert!(!first.1.perform(c::initial().actions));
        assert!(first.0.begin(1));
        let mut todo = vec![first];
        let mut seen = HashSet::new();
        while let Some((machine, driver)) = todo.pop() {
            let tries = machine.tries;
            let tried = (tries.made, tries.repeats);
            let key = (machine.state, tried, machine.removing, driver);
            if tries.made > 4 || !seen.insert(key) {
                continue;
            }
            assert!(driver.fits(machine.state), "{machine:?} {driver:?}");
            let ends = matches!(
                machine.state,
                c::State::Closing | c::State::Closed | c::State::Dead
            );
            assert!(ends || !machine.removing, "{machine:?}");
            let mut events = driver.events(machine.state);
            if driver.attempt && repeats {
                events.push(c::Event::ConnectAgain);
            }
            for ev in events {
                let (mut machine, mut driver) = (machine, driver);
                driver.timer &= ev != c::Event::ReconnectDue;
                let mut step = machine.step(ev, limit);
                while driver.perform(step.actions) {
                    step = machine.step(c::Event::ReconnectDue, limit);
                }
                todo.push((machine, driver));
            }
        }
        let states: HashSet<_> = seen.iter().map(|(st, ..)| *st).collect();
        // Without attempts it never waits for one, unless one is repeated.
        let waits = limit != Attempts::AtMost(0) || repeats;
        assert_eq!(states.contains(&c::State::Reconnecting), waits);
        assert_eq!(states.len(), c::State::ALL.len() - usize::from(!waits));
    }
}

/// Each attempt counts as one success or one failure, unless a user ends it.
#[test]
fn attempts_are_counted_once() {
    use c::{Action, Event, State};
    for (st, ev, step) in client_steps() {
        let what = format!("{st:?} {ev:?} {:?}", step.actions);
        let has = |a| step.actions.contains(a);
        let trying = matches!(st, State::Connecting | State::ConnectingErr);
        let ends = trying && !matches!(step.next, State::Connecting | State::ConnectingErr);
        let by_user = matches!(ev, Event::UserDisconnect | Event::UserRemove);
        let up = step.next == State::Connected;
        assert_eq!(has(Action::CountConnect), ends && up, "{what}");
        assert_eq!(has(Action::CountFailure), ends && !up && !by_user, "{what}");
    }
}

/// The work that the driver of a server's path has under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct ServerDriver {
    cons: bool,
    heartbeat: bool,
    stale_timer: bool,
    answered: bool,
    released: bool,
}

/// As for the client.
#[test]
fn a_server_leaves_nothing_behind() {
    use s::{Action, Event, State};
    let first = ServerDriver {
        cons: true,
        heartbeat: false,
        stale_timer: true,
        answered: false,
        released: false,
    };
    let mut todo = vec![(s::INITIAL, first)];
    let mut seen = HashSet::new();
    while let Some((state, driver)) = todo.pop() {
        if !seen.insert((state, driver)) {
            continue;
        }
        let fits = match state {
            State::Connecting => driver == first,
            State::Connected => {
                driver.cons && driver.heartbeat && !driver.stale_timer && driver.answered
            }
            State::Closing => {
                !driver.cons && !driver.heartbeat && !driver.stale_timer && !driver.released
            }
            State::Closed => !driver.cons && driver.released,
        };
        assert!(fits, "{state:?} {driver:?}");
        for ev in Event::ALL {
            if ev == Event::CloseDone && state != State::Closing {
                continue;
            }
            let mut driver = driver;
            let step = s::step(state, ev);
            for action in step.actions.iter() {
                match action {
                    Action::CancelStale => driver.stale_timer = false,
                    Action::StartHeartbeat => {
                        assert!(!driver.heartbeat);
                        driver.heartbeat = true;
                    }
                    Action::SendInfoRsp => {
                        assert!(!driver.answered);
                        driver.answered = true;
                    }
                    Action::TearDown => {
                        assert!(driver.cons, "twice");
                        (driver.cons, driver.heartbeat, driver.stale_timer) = (false, false, false);
                    }
                    Action::Release => {
                        assert!(!driver.cons && !driver.released);
                        driver.released = true;
                    }
                }
            }
            todo.push((step.next, driver));
        }
    }
    assert_eq!(
        seen.iter().filter(|(st, _)| *st == State::Closed).count(),
        2
    );
}

/// Without reconnect every path that breaks ends CLOSED, and stays there.
#[test]
fn no_retry_means_closed() {
    use c::{Event, State};
    let broken = [
        Event::ConnectFailed,
        Event::Error,
        Event::LimitSet,
        Event::CloseDone,
    ];
    let step = |st, ev| c::step(st, ev, false).next;
    for start in State::ALL {
        let mut st = start;
        for _ in 0..4 {
            for ev in broken {
                st = step(st, ev);
            }
        }
        let end = match start {
            State::Dead => State::Dead,
            _ => State::Closed,
        };
        assert_eq!(st, end, "from {start:?}");
        for ev in Event::ALL {
            let user = matches!(ev, Event::UserReconnect | Event::UserRemove);
            assert!(user || step(st, ev) == st, "{st:?} {ev:?}");
        }
    }
}

/// After the allowed number of attempts the path is closed; a success or a user starts again.
#[test]
fn attempts_are_limited() {
    use c::{Event, Machine, State};
    let limit = Attempts::AtMost(2);
    let mut m = Machine::new();
    let fail = |m: &mut Machine| m.step(Event::ConnectFailed, limit).next;
    let again = |m: &mut Machine| m.step(Event::ReconnectDue, limit).next;
    assert_eq!(fail(&mut m), State::Reconnecting);
    assert_eq!(again(&mut m), State::Connecting);
    assert_eq!(fail(&mut m), State::Reconnecting);
    assert_eq!(again(&mut m), State::Connecting);
    assert_eq!(fail(&mut m), State::Closing);
    let _ = m.step(Event::CloseDone, limit);
    // The wish of a user is one of them.
    for made in [1, 2] {
        let now = m.step(Event::UserReconnect, limit);
        assert!(now.actions.contains(c::Action::ReconnectNow) && m.tries.made == 0);
        for _ in 0..made {
            assert_eq!(again(&mut m), State::Connecting);
            let _ = m.step(Event::ConnectFailed, limit);
        }
        assert_eq!(m.tries.made, made);
    }
    assert_eq!(m.state, State::Closing);
    // A success forgets them.
    let mut m = Machine::new();
    for _ in 0..5 {
        assert_eq!(m.step(Event::Established, limit).next, State::Connected);
        assert_eq!(m.step(Event::Error, limit).next, State::Reconnecting);
        assert_eq!(again(&mut m), State::Connecting);
        assert_eq!(m.tries.made, 1);
    }
    // A lower limit holds at once for a path that waits, a higher one changes nothing.
    assert_eq!(fail(&mut m), State::Reconnecting);
    let set = m.step(Event::LimitSet, Attempts::AtMost(2));
    assert!(!set.reply.accepted() && m.state == State::Reconnecting);
    assert_eq!(
        m.step(Event::LimitSet, Attempts::AtMost(1)).next,
        State::Closing
    );
}

/// An attempt that is repeated does not count, however strict the limit.
#[test]
fn attempts_that_are_repeated_do_not_count() {
    use c::{Event, Machine, State};
    for (limit, asked) in [(0, true), (1, true), (1, false), (2, false)] {
        let limit = Attempts::AtMost(limit);
        let mut m = Machine::new();
        let _ = m.step(Event::Established, limit);
        if asked {
            let now = m.step(Event::UserReconnect, limit);
            assert!(now.actions.contains(c::Action::ReconnectNow));
        } else {
            assert_eq!(m.step(Event::Error, limit).next, State::Reconnecting);
        }
        for _ in 0..5 {
            assert_eq!(m.step(Event::ReconnectDue, limit).next, State::Connecting);
            let again = m.step(Event::ConnectAgain, limit);
            assert_eq!(again.next, State::Reconnecting, "{limit:?}");
            assert!(again.actions.contains(c::Action::ScheduleReconnect));
        }
        // Nor does it when the limit is set meanwhile, to what it was.
        if limit != Attempts::AtMost(0) {
            assert!(!m.step(Event::LimitSet, limit).reply.accepted());
        }
        assert_eq!(m.step(Event::ReconnectDue, limit).next, State::Connecting);
        assert_eq!(m.tries.made, 1);
        let last = limit.allow(1);
        let failed = m.step(Event::ConnectFailed, limit).next;
        let next = [State::Closing, State::Reconnecting][usize::from(last)];
        assert_eq!(failed, next, "{limit:?}");
    }
    // The first of all, after which one is allowed.
    let limit = Attempts::AtMost(1);
    let mut m = Machine::new();
    let _ = m.step(Event::ConnectAgain, limit);
    let _ = m.step(Event::ReconnectDue, limit);
    assert_eq!(
        m.step(Event::ConnectFailed, limit).next,
        State::Reconnecting
    );
}

/// The more attempts, the later the next one, unless what the last one failed for is over.
#[test]
fn attempts_wait() {
    use c::{Event, Machine};
    let backoff = Backoff {
        base_ms: 100,
        max_ms: 1000,
    };
    let mut m = Machine::new();
    let mut delays = Vec::new();
    for _ in 0..6 {
        let _ = m.step(Event::ConnectFailed, Attempts::Forever);
        delays.push(m.delay_ms(&backoff, u32::MAX));
        let _ = m.step(Event::ReconnectDue, Attempts::Forever);
    }
    assert_eq!(delays, [100, 200, 400, 800, 1000, 1000]);
    m.reconnect_now();
    let _ = m.step(Event::ConnectFailed, Attempts::Forever);
    assert_eq!(m.delay_ms(&backoff, u32::MAX), 0);
    // Only that one.
    let _ = m.step(Event::ReconnectDue, Attempts::Forever);
    let _ = m.step(Event::ConnectFailed, Attempts::Forever);
    assert_eq!(m.delay_ms(&backoff, u32::MAX), 1000);
    m.reconnect_in(7);
    assert_eq!(m.delay_ms(&backoff, u32::MAX), 7);
    let _ = m.step(Event::UserReconnect, Attempts::Forever);
    assert_eq!(m.delay_ms(&backoff, u32::MAX), 100);
    // An event that is not taken changes nothing.
    let before = m;
    let _ = m.step(Event::Established, Attempts::Forever);
    assert_eq!(m, before);
}

/// Reports of an attempt count as long as it is the present one.
#[test]
fn events_of_former_attempts_are_ignored() {
    use c::{Event, Machine, State};
    let mut m = Machine::new();
    assert_eq!(m, Machine::default());
    assert!(m.begin(7));
    let late = m.attempt_step(6, Event::Established, Attempts::Forever);
    assert_eq!((late.reply, late.next), (Reply::Ignored, State::Connecting));
    assert!(late.actions.is_empty());
    let mut ended = m;
    ended.ended();
    let late = ended.attempt_step(7, Event::Established, Attempts::Forever);
    assert_eq!(
        (late.reply, ended.state),
        (Reply::Ignored, State::Connecting)
    );
    let taken = m.attempt_step(7, Event::Established, Attempts::Forever);
    assert!(taken.reply.accepted() && m.state == State::Connected);
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
        (include_str!("../fsm/server_path.rs"), 4, 7),
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
    assert!(client_steps().all(|(st, _, x)| st != c::State::Dead || !x.reply.accepted()));

    let mut seen = HashSet::from([s::INITIAL]);
    while let Some((_, _, step)) =
        server_steps().find(|(st, _, step)| seen.contains(st) && !seen.contains(&step.next))
    {
        seen.insert(step.next);
    }
    assert_eq!(seen.len(), s::State::ALL.len());
    assert!(server_steps().all(|(st, _, x)| st != s::State::Closed || !x.reply.accepted()));
}

/// From everywhere a user gets rid of a path: remove, wait, remove.
#[test]
fn remove_always_ends() {
    use c::{Event, State};
    for start in State::ALL {
        let mut st = start;
        for ev in [Event::UserRemove, Event::CloseDone, Event::UserRemove] {
            st = c::step(st, ev, true).next;
        }
        assert_eq!(st, State::Dead, "from {start:?}");
    }
}

/// The steps that wait, reconnect now, or wake the attempt, and no others.
#[test]
fn client_reconnect_actions() {
    use c::{Action, Event, State};
    for (st, ev, step) in client_steps() {
        let what = format!("{st:?} {ev:?} {:?}", step.actions);
        let has = |a| step.actions.contains(a);
        let ok = step.reply.accepted();
        let trying = matches!(st, State::Connecting | State::ConnectingErr);
        // The attempt is stopped by everybody but its own worker.
        let own = [
            Event::ConnectFailed,
            Event::ConnectAgain,
            Event::Established,
        ];
        let abort = ok && trying && !own.contains(&ev);
        assert_eq!(has(Action::AbortConnect), abort, "{what}");
        // A user is not kept waiting, everything else is.
        let again = ok && step.next == State::Reconnecting;
        let user = ev == Event::UserReconnect;
        assert_eq!(has(Action::ReconnectNow), again && user, "{what}");
        assert_eq!(has(Action::ScheduleReconnect), again && !user, "{what}");
    }
}

/// Each server row by name.
#[test]
fn server_rows() {
    use s::Event::*;
    use s::State::{Closed, Closing, Connected, Connecting};
    for (ev, next) in [
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
        (Superseded, [Closing, Closing, Closing, Closed]),
        (UserDisconnect, [Closing, Closing, Closing, Closed]),
        (DeviceRemoved, [Closing, Closing, Closing, Closed]),
        (CloseDone, [Connecting, Connected, Closed, Closed]),
    ] {
        assert_eq!(s::State::ALL.map(|st| s::step(st, ev).next), next, "{ev:?}");
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
    for (ev, retry, next) in [
        (Established, true, [u, e, u, r, g, d, x]),
        (ConnectFailed, true, [r, r, u, r, g, d, x]),
        (ConnectFailed, false, [g, g, u, r, g, d, x]),
        (ConnectAgain, true, [r, r, u, r, g, d, x]),
        (Error, true, [e, e, r, r, g, d, x]),
        (Error, false, [e, e, g, r, g, d, x]),
        (ReconnectDue, true, [a, e, u, a, g, d, x]),
        (LimitSet, true, [a, e, u, r, g, d, x]),
        (LimitSet, false, [a, e, u, g, g, d, x]),
        (UserReconnect, true, [a, r, r, r, g, r, x]),
        (UserDisconnect, true, [g, g, g, g, g, d, x]),
        (UserRemove, true, [g, g, g, g, g, x, x]),
        (CloseDone, true, [a, e, u, r, d, d, x]),
    ] {
        let step = |st| c::step(st, ev, retry);
        assert_eq!(c::State::ALL.map(|st| step(st).next), next, "{ev:?}");
        if !matches!(ev, ConnectFailed | Error | LimitSet) {
            let other = |st| c::step(st, ev, !retry);
            assert_eq!(c::State::ALL.map(step), c::State::ALL.map(other), "{ev:?}");
        }
    }
}

#[test]
fn first_steps() {
    assert_eq!(c::initial().next, c::State::Connecting);
    assert_eq!(
        c::initial().actions,
        c::Actions::of(c::Action::StartConnect)
    );
    assert_eq!(s::INITIAL, s::State::Connecting);
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
    // Each by itself, and all together in their order.
    let mut all = c::Actions::NONE;
    assert!(all.is_empty() && all.iter().next().is_none());
    for action in c::Action::ALL {
        assert!(!all.contains(*action));
        all = all.with(*action);
        assert!(all.contains(*action));
        assert!(c::Actions::of(*action).iter().eq([*action]));
    }
    assert!(all.iter().eq(c::Action::ALL.iter().copied()));
    let set = c::Actions::of(c::Action::StartHeartbeat).and(c::Actions::of(c::Action::TearDown));
    assert_eq!(format!("{set:?}"), "{TearDown, StartHeartbeat}");
    for (names, count) in [
        (c::Event::ALL.map(|ev| ev.as_str()).to_vec(), 10),
        (s::Event::ALL.map(|ev| ev.as_str()).to_vec(), 7),
        (s::State::ALL.map(|st| st.as_str()).to_vec(), 4),
    ] {
        let names: HashSet<_> = names.into_iter().collect();
        assert_eq!(names.len(), count, "{names:?}");
        assert!(names.iter().all(|n| n.len() > 2));
    }
}
