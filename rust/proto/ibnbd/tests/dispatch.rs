// SPDX-License-Identifier: GPL-2.0

//! Submission while other threads change the queue state, in every order of their steps.

#[path = "../../ibtrs/tests/interleave/mod.rs"]
mod interleave;

use ibnbd_proto::dispatch::{self, Disk, Dispatch};
use ibnbd_proto::state::QueueState;
use interleave::{explore, Stage, Thread};

/// The server's number of the device, before and after it was opened again.
const OLD: u32 = 1;
const NEW: u32 = 2;

#[derive(Clone, Debug)]
struct World {
    queue_state: QueueState,
    gone: bool,
    device_id: u32,
    queued_here: Option<()>,
    queued: u32,
    /// The server has opened the device again: the old number means something else.
    reopened: bool,
    sent: u32,
    failed: u32,
    /// Threads that may still change the queue state.
    changers: usize,
}

/// A mistake for the test to find.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// A submitter that queues a request does not read the state again.
    LooksOnce,
    /// The queue goes live before the device number is stored.
    LiveTooEarly,
}

struct View<'a>(&'a Stage<World>);

impl Disk for View<'_> {
    type Request = ();

    fn queue_state(&self) -> QueueState {
        self.0.act(|w| w.queue_state)
    }
    fn set_queue_state(&self, queue_state: QueueState) {
        self.0.act(|w| w.queue_state = queue_state)
    }
    fn is_gone(&self) -> bool {
        self.0.act(|w| w.gone)
    }
    fn set_gone(&self) {
        self.0.act(|w| w.gone = true)
    }
    fn device_id(&self) -> u32 {
        self.0.act(|w| w.device_id)
    }
    fn set_device_id(&self, id: u32) {
        self.0.act(|w| w.device_id = id)
    }
    // Steps are in order here.
    fn barrier(&self) {}
    fn put(&self, _tag: u32, (): ()) -> Result<(), ()> {
        self.0.act(|w| match w.queued_here.replace(()) {
            None => Ok(()),
            Some(()) => Err(()),
        })
    }
    fn requeue(&self, _tag: u32) {
        self.0
            .act(|w| w.queued += u32::from(w.queued_here.take().is_some()))
    }
    fn requeue_all(&self) {
        self.requeue(0)
    }
}

/// The request, whenever it is queued, until it is sent or fails.
fn submitter(view: &View<'_>, wrong: Wrong) {
    loop {
        view.0.wait(|w| w.queued > 0 || w.changers == 0);
        if view.0.act(|w| w.queued == 0) {
            // No other thread queues it any more.
            return;
        }
        view.0.act(|w| w.queued -= 1);
        match dispatch::dispatch(view) {
            Dispatch::Send(id) => {
                // A request that was sent before the queue was quiesced has the old number.
                view.0.act(|w| {
                    let right = if w.queue_state == QueueState::Live && w.reopened {
                        NEW
                    } else {
                        id
                    };
                    assert_eq!(id, right, "another device's number");
                    w.sent += 1;
                });
                return;
            }
            Dispatch::Fail => return view.0.act(|w| w.failed += 1),
            Dispatch::Queue if wrong == Wrong::LooksOnce => {
                view.put(0, ()).expect("its own place");
            }
            Dispatch::Queue => dispatch::queue(view, 0, ()).expect("its own place"),
        }
    }
}

/// The server has lost the session, and opens the device again.
fn opener(view: &View<'_>, wrong: Wrong) {
    view.0.act(|w| w.reopened = true);
    if wrong == Wrong::LiveTooEarly {
        dispatch::set_state(view, QueueState::Live);
        view.set_device_id(NEW);
    } else {
        dispatch::open(view, NEW);
    }
}

fn play(threads: &[Thread<World>], check: impl Fn(&World)) -> Result<usize, String> {
    let world = World {
        queue_state: QueueState::Quiesced,
        gone: false,
        device_id: OLD,
        queued_here: None,
        queued: 1,
        reopened: false,
        sent: 0,
        failed: 0,
        changers: threads.len() - 1,
    };
    explore(world, threads, check)
}

/// A thread that changes the queue state.
macro_rules! changer {
    ($action:expr) => {
        |stage| {
            let action: fn(&View<'_>) = $action;
            action(&View(stage));
            stage.act(|w| w.changers -= 1);
        }
    };
}

fn all_over(w: &World) {
    assert_eq!((w.queued_here, w.queued), (None, 0), "the request is lost");
    assert_eq!(w.sent + w.failed, 1, "the request is lost");
}

#[test]
fn a_request_waits_until_the_queue_is_live_and_no_longer() {
    let threads: [Thread<World>; 2] = [
        |stage| submitter(&View(stage), Wrong::Nothing),
        changer!(|view| opener(view, Wrong::Nothing)),
    ];
    let states = play(&threads, |w| {
        all_over(w);
        assert_eq!(w.sent, 1);
    });
    assert!(states.unwrap() > 20);
}

#[test]
fn a_disk_goes_while_requests_wait() {
    let threads: [Thread<World>; 3] = [
        |stage| submitter(&View(stage), Wrong::Nothing),
        changer!(|view| opener(view, Wrong::Nothing)),
        changer!(|view| dispatch::fail_all(view)),
    ];
    let states = play(&threads, all_over);
    assert!(states.unwrap() > 50);
}

#[test]
fn no_request_waits_for_a_disk_that_is_gone() {
    let threads: [Thread<World>; 2] = [
        |stage| submitter(&View(stage), Wrong::Nothing),
        changer!(|view| dispatch::fail_all(view)),
    ];
    let states = play(&threads, |w| {
        all_over(w);
        assert_eq!(w.failed, 1);
    });
    assert!(states.unwrap() > 5);
}

#[test]
fn requests_fail_when_they_have_waited_too_long() {
    let threads: [Thread<World>; 2] = [
        |stage| submitter(&View(stage), Wrong::Nothing),
        changer!(|view| dispatch::set_state(view, QueueState::Failing)),
    ];
    let states = play(&threads, |w| {
        all_over(w);
        assert_eq!(w.failed, 1);
    });
    assert!(states.unwrap() > 5);
}

#[test]
fn a_submitter_that_does_not_look_again_is_found() {
    let threads: [Thread<World>; 2] = [
        |stage| submitter(&View(stage), Wrong::LooksOnce),
        changer!(|view| opener(view, Wrong::Nothing)),
    ];
    let wrong = play(&threads, all_over).unwrap_err();
    assert!(wrong.contains("the request is lost"), "{wrong}");
}

#[test]
fn a_queue_that_goes_live_early_is_found() {
    let threads: [Thread<World>; 2] = [
        |stage| submitter(&View(stage), Wrong::Nothing),
        changer!(|view| opener(view, Wrong::LiveTooEarly)),
    ];
    let wrong = play(&threads, all_over).unwrap_err();
    assert!(wrong.contains("another device's number"), "{wrong}");
}
