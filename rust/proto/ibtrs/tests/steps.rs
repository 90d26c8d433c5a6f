// SPDX-License-Identifier: GPL-2.0

//! Steps that wait for a worker: of anything, and of a client's path whose worker may be late.

use std::collections::HashSet;

use ibtrs_proto::backoff::Attempts;
use ibtrs_proto::errno::Errno;
use ibtrs_proto::fsm::client_path::{initial, Action, Actions, Event, Machine, State};
use ibtrs_proto::steps::{carry_out, Steps};

/// How many steps can wait.
const MAX: usize = 8;

#[test]
fn steps_keep_their_order() {
    let mut steps = Steps::default();
    assert!(steps.is_empty());
    for n in 0..MAX {
        steps.push(n, |_, _| unreachable!("there is room"));
        assert!(!steps.is_empty());
    }
    assert!(steps.iter().eq(0..MAX));
    // The last one takes what follows.
    steps.push(100, |last, new| last * 1000 + new);
    steps.push(5, |last, new| last + new);
    assert!(steps.iter().eq((0..MAX - 1).chain([7105])));
    assert_eq!(steps.take().iter().count(), MAX);
    assert!(steps.is_empty() && steps.iter().next().is_none());
}

#[test]
fn a_step_is_not_repeated() {
    let mut steps = Steps::default();
    for n in [1, 1, 2, 2, 2, 1] {
        steps.push(n, |_, _| unreachable!("there is room"));
    }
    assert!(steps.iter().eq([1, 2, 1]));
    // Nor when the list is full.
    (0..MAX).for_each(|n| steps.push(n, |last, _| last));
    let full: Vec<_> = steps.iter().collect();
    steps.push(full[MAX - 1], |_, _| unreachable!("it is there"));
    assert!(steps.iter().eq(full));
}

/// Actions that are added meanwhile are carried out as well.
#[test]
fn all_is_carried_out() {
    use std::cell::{Cell, RefCell};
    let steps = RefCell::new(Steps::default());
    steps.borrow_mut().push(3, |_, last| last);
    let done = RefCell::new(Vec::new());
    let taken = Cell::new(0);
    carry_out(
        || {
            taken.set(taken.get() + 1);
            steps.borrow_mut().take()
        },
        |n| {
            done.borrow_mut().push(n);
            if n > 0 {
                steps.borrow_mut().push(n - 1, |_, last| last);
            }
        },
    );
    assert_eq!(*done.borrow(), [3, 2, 1, 0]);
    assert_eq!(taken.get(), 5);
}

/// A client's path whose worker carries out one action at a time, between any two events.
#[derive(Clone, Debug)]
struct Path {
    machine: Machine,
    limit: Attempts,
    todo: Steps<Actions>,
    /// Actions that the worker has taken.
    taken: Vec<Action>,
    attempt: bool,
    heartbeat: bool,
    timer: bool,
}

impl Path {
    fn new(limit: Attempts) -> Self {
        let mut path = Self {
            machine: Machine::new(),
            limit,
            todo: Steps::default(),
            taken: Vec::new(),
            attempt: false,
            heartbeat: false,
            timer: false,
        };
        path.todo.push(initial().actions, Actions::and);
        path
    }

    /// All that its future depends on.
    fn key(&self) -> impl std::hash::Hash + Eq {
        let Machine {
            state,
            epoch,
            tries,
            removing,
        } = self.machine;
        let has = (self.attempt, self.heartbeat, self.timer);
        let todo: Vec<_> = self.todo.iter().collect();
        let tries = (tries.made, tries.repeats);
        let machine = (state, epoch, tries, removing);
        (machine, todo, self.taken.clone(), has)
    }

    fn event(&mut self, event: Event) {
        let step = match event {
            Event::Established | Event::ConnectFailed | Event::ConnectAgain | Event::Error => {
                self.machine.attempt_step(1, event, self.limit)
            }
            Event::ReconnectDue => {
                self.timer = false;
                self.machine.step(event, self.limit)
            }
            _ => self.machine.step(event, self.limit),
        };
        if step.actions.is_empty() {
            return;
        }
        if self.todo.iter().last() == Some(step.actions) {
            // It is not added, so that it has to be the same once and twice.
            let once = |action| matches!(action, Action::CancelReconnect | Action::ReconnectNow);
            assert!(step.actions.iter().all(once), "{event:?} {self:?}");
        }
        self.todo.push(step.actions, Actions::and);
    }

    /// The possible events.
    fn events(&self) -> Vec<Event> {
        use Event::*;
        let mut events = vec![LimitSet, UserReconnect, UserDisconnect, UserRemove];
        if self.attempt {
            events.extend([Established, ConnectFailed, ConnectAgain, Error]);
        }
        if self.timer {
            events.push(ReconnectDue);
        }
        events
    }

    /// The worker does one thing; says whether there was any.
    fn work(&mut self) -> bool {
        if self.taken.is_empty() {
            self.taken = self.todo.take().iter().flat_map(Actions::iter).collect();
        }
        if self.taken.is_empty() {
            let closing = self.machine.state == State::Closing;
            if closing {
                self.event(Event::CloseDone);
            }
            return closing;
        }
        match self.taken.remove(0) {
            // Its report is ignored from now on, or has been made.
            Action::AbortConnect => {}
            Action::CancelReconnect => self.timer = false,
            Action::TearDown => {
                self.machine.ended();
                (self.attempt, self.heartbeat) = (false, false);
            }
            Action::ScheduleReconnect => {
                assert!(!self.timer, "a second timer: {self:?}");
                self.timer = true;
            }
            Action::ReconnectNow => self.event_now(),
            Action::StartConnect => {
                if self.machine.begin(1) {
                    assert!(!self.attempt && !self.timer, "a second attempt: {self:?}");
                    self.attempt = true;
                }
            }
            Action::StartHeartbeat => self.heartbeat = true,
            Action::CountConnect | Action::CountFailure => {}
        }
        true
    }

    fn event_now(&mut self) {
        let timer = self.timer;
        self.event(Event::ReconnectDue);
        self.timer = timer;
    }

    /// Everything that the state names exists, and nothing else.
    fn fits(&self) -> bool {
        let (attempt, heartbeat, timer) = match self.machine.state {
            State::Connecting | State::ConnectingErr => (true, false, false),
            State::Connected => (true, true, false),
            State::Reconnecting => (false, false, true),
            State::Closing | State::Closed | State::Dead => (false, false, false),
        };
        (self.attempt, self.heartbeat, self.timer) == (attempt, heartbeat, timer)
    }
}

/// However late the worker is, there is room for all steps; and when it has done all, what is there
/// is what the state says.
#[test]
fn a_worker_may_be_late() {
    for limit in [Attempts::Forever, Attempts::AtMost(0), Attempts::AtMost(2)] {
        let mut todo = vec![Path::new(limit)];
        let mut seen = HashSet::new();
        let mut most = 0;
        while let Some(path) = todo.pop() {
            if path.machine.tries.made > 2 || !seen.insert(path.key()) {
                continue;
            }
            most = most.max(path.todo.iter().count());
            assert!(most < MAX, "no room: {path:?}");
            for event in path.events() {
                let mut path = path.clone();
                path.event(event);
                todo.push(path);
            }
            let mut worked = path.clone();
            if worked.work() {
                todo.push(worked);
            } else {
                assert!(path.fits(), "{path:?}");
            }
        }
        assert!(most > 2, "{most}");
    }
}

/// Users ask for a path again and again that takes long to tear down, and then for its end.
#[test]
fn users_who_do_not_wait() {
    let mut path = Path::new(Attempts::Forever);
    let work = |path: &mut Path| while path.work() {};
    work(&mut path);
    path.event(Event::Established);
    work(&mut path);
    assert!(path.machine.state == State::Connected && path.fits());
    path.event(Event::UserReconnect);
    // It has begun with the tear-down.
    assert!(path.work());
    (0..2 * MAX).for_each(|_| path.event(Event::UserReconnect));
    while path.machine.state != State::Connecting {
        assert!(path.work());
    }
    path.event(Event::UserDisconnect);
    work(&mut path);
    assert!(
        path.machine.state == State::Closed && path.fits(),
        "{path:?}"
    );
}

/// One operator connects a path again and again, and another one can remove it nevertheless.
#[test]
fn a_path_that_is_being_removed_is_not_connected_again() {
    for state in State::ALL {
        let mut machine = Machine {
            state,
            ..Machine::new()
        };
        let step = |machine: &mut Machine, event| machine.step(event, Attempts::Forever);
        for event in [Event::UserRemove, Event::CloseDone, Event::UserRemove] {
            let _ = step(&mut machine, event);
            let before = machine.state;
            let refused = step(&mut machine, Event::UserReconnect).reply.result();
            assert_eq!(refused, Err(Errno::ENODEV), "{state:?}");
            assert_eq!(machine.state, before, "{state:?}");
        }
        assert_eq!(machine.state, State::Dead, "{state:?}");
    }
}

#[test]
fn an_attempt_begins_while_the_path_connects() {
    for state in State::ALL {
        let mut machine = Machine {
            state,
            epoch: 1,
            ..Machine::new()
        };
        let begins = machine.begin(2);
        assert_eq!(begins, state == State::Connecting, "{state:?}");
        assert_eq!(machine.epoch, if begins { 2 } else { 1 }, "{state:?}");
    }
}
