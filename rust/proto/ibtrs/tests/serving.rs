// SPDX-License-Identifier: GPL-2.0

//! Requests of one number, moved by several threads, in every order of their steps.
//!
//! Path A has the number in service, and a request of path B waits for it. The I/O of A ends, and
//! the worker takes the request of B and invalidates its key. Meanwhile B is closed, as the client
//! has superseded it, and in some cases path C brings the request again. In every order, no request
//! is lost, no two are in service at once, the teardown of B completes, and the number is free
//! afterwards. In other cases B is the path that the client uses, and a request arrives late over
//! C, which is closing: it takes nothing from B.

mod interleave;

use ibtrs_proto::chunk_owner::{ChunkOwner, PathId};
use ibtrs_proto::serving::{self, Claim, Left, Next, Place, Restored, Words};
use ibtrs_proto::tag::Tag;
use interleave::{explore, Stage, Thread};
use std::cell::RefCell;
use std::collections::VecDeque;

const A: usize = 1;
const B: usize = 2;
const C: usize = 3;
/// The tag of all requests.
const TAG: Tag = Tag::new(0);

fn id(path: usize) -> PathId {
    PathId::new(path as u16).unwrap()
}

/// A request of a path; each path has one at the most.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Request {
    path: usize,
}

#[derive(Clone, Default, Debug)]
struct Path {
    stopped: bool,
    /// Its connections were taken from it; nobody gets one any more.
    taken: bool,
    /// Nothing is posted any more.
    closed: bool,
    gone: bool,
    waiting: Option<Request>,
    pending: Option<Request>,
    /// References to its connections.
    refs: u32,
    /// Invalidations that were posted and have not completed.
    posted: u32,
    /// Requests that were served or dropped.
    over: u32,
    /// Those of them that were served.
    served: u32,
}

#[derive(Clone, Default, Debug)]
struct World {
    word: u32,
    woken: VecDeque<usize>,
    paths: [Path; 4],
    in_service: Option<usize>,
    /// Threads that may wake somebody yet.
    wakers: u32,
    worker_busy: bool,
    /// A request came late, and whether it was over before another had its place back.
    late: bool,
    superseded: bool,
}

/// The mistakes that may be planted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// A request whose invalidation could not be posted is left where it is.
    LeavesBehind,
    /// The end of a path looks once, and then waits for the worker.
    LooksOnce,
    /// A late request keeps the place of the one that it has displaced.
    KeepsPlace,
}

/// A thread's view of the world.
struct View<'a> {
    stage: &'a Stage<World>,
    wrong: Wrong,
}

impl View<'_> {
    fn act<T: Clone + std::fmt::Debug + 'static>(&self, action: impl FnOnce(&mut World) -> T) -> T {
        self.stage.act(action)
    }

    fn wait(&self, ready: impl FnOnce(&World) -> bool) {
        self.stage.wait(ready)
    }

    fn place(&self, path: usize) -> Spot<'_> {
        Spot { view: self, path }
    }

    fn release(&self, path: usize) {
        match serving::release(self, id(path), TAG) {
            Next::Nobody => {}
            Next::Wake(waiter) => self.act(|world| world.woken.push_back(waiter.get().into())),
            Next::Stray => panic!("not the owner"),
        }
    }

    /// Drops a request that has the number.
    fn drop_request(&self, request: Request) {
        self.act(|world| world.paths[request.path].over += 1);
        self.release(request.path);
    }

    /// Serves a request, and answers it.
    fn serve(&self, request: Request) {
        let path = request.path;
        self.act(|world| assert_eq!(world.in_service.replace(path), None, "two in service"));
        self.act(|world| {
            world.in_service = None;
            world.paths[path].over += 1;
            world.paths[path].served += 1;
        });
        self.release(path);
    }

    /// Lets the key of a request be invalidated.
    fn proceed(&self, request: Request) {
        let path = request.path;
        if path != B {
            // Its data is small.
            return self.serve(request);
        }
        let post = || {
            self.act(|world| {
                let path = &mut world.paths[path];
                path.posted += u32::from(!path.closed);
                !path.closed || self.wrong == Wrong::LeavesBehind
            })
        };
        if let Err(request) = serving::pend(&self.place(path), request, post) {
            self.drop_request(request);
        }
    }

    fn serve_woken(&self, path: usize) {
        let Some(request) = self.place(path).take_waiting() else {
            panic!("a wake-up without a request");
        };
        let connected = self.act(|world| {
            let path = &mut world.paths[path];
            let connected = !path.taken && !path.stopped;
            path.refs += u32::from(connected);
            connected
        });
        if !connected {
            return self.drop_request(request);
        }
        self.proceed(request);
        self.act(|world| world.paths[path].refs -= 1);
    }

    /// The worker that serves what was woken.
    fn worker(&self) {
        loop {
            self.wait(|world| !world.woken.is_empty() || world.wakers == 0);
            let next = self.act(|world| {
                let next = world.woken.pop_front();
                world.worker_busy = next.is_some();
                next
            });
            let Some(path) = next else {
                return;
            };
            self.act(|world| {
                assert!(
                    !world.paths[path].gone,
                    "the path of a woken request is gone"
                )
            });
            self.serve_woken(path);
            self.act(|world| world.worker_busy = false);
        }
    }

    /// Completions of invalidations on the connections of a path, until they are drained.
    fn completions(&self, path: usize) {
        loop {
            self.wait(move |world| world.paths[path].posted > 0 || world.paths[path].closed);
            let flushed = self.act(|world| {
                let path = &mut world.paths[path];
                (path.posted == 0)
                    .then_some(false)
                    .or(path.closed.then_some(true))
            });
            match flushed {
                Some(false) => return,
                Some(true) => {}
                None => {
                    if let Some(request) = self.place(path).take_pending() {
                        let stopped = self.act(|world| world.paths[path].stopped);
                        match stopped {
                            true => self.drop_request(request),
                            false => self.serve(request),
                        }
                    }
                }
            }
            self.act(|world| world.paths[path].posted -= 1);
        }
    }

    /// Takes what a path has left; returns whether it is to look again.
    fn look(&self, path: usize) -> bool {
        match serving::leave(self, id(path), TAG, &self.place(path)) {
            Left::Nothing => false,
            Left::Pending(request) => {
                self.drop_request(request);
                false
            }
            Left::Waiting(request) => {
                self.act(|world| world.paths[request.path].over += 1);
                false
            }
            Left::Taken => true,
        }
    }

    /// Closes a path.
    fn end(&self, path: usize) {
        self.act(|world| world.paths[path].stopped = true);
        self.act(|world| world.paths[path].taken = true);
        self.act(|world| world.paths[path].closed = true);
        self.wait(move |world| world.paths[path].posted == 0);
        if self.wrong == Wrong::LooksOnce {
            self.look(path);
            self.wait(|world| world.woken.is_empty() && !world.worker_busy);
        } else {
            while self.look(path) {
                // It looks now and then. What it finds is the same until that.
                self.wait(move |world| {
                    let waiter = ChunkOwner::from_bits(world.word).waiter();
                    world.paths[path].waiting.is_none() || waiter == Some(id(path))
                });
            }
        }
        self.wait(move |world| world.paths[path].refs == 0);
        self.act(|world| world.paths[path].gone = true);
    }

    /// A request arrives by a path that is not closed.
    fn arrive(&self, path: usize) {
        match serving::claim(self, id(path), TAG, &self.place(path), Request { path }) {
            Claim::Has(request) => self.serve(request),
            Claim::Waits { displaced, .. } => {
                if let Some(displaced) = displaced {
                    self.displace(displaced);
                }
            }
            Claim::Violation(_) => panic!("the path has none"),
        }
    }

    fn displace(&self, displaced: PathId) {
        if let Some(request) = self.place(displaced.get().into()).take_waiting() {
            self.act(|world| world.paths[request.path].over += 1);
        }
    }

    /// A request arrives by a path that begins to be closed meanwhile, and then is closed.
    fn arrive_late(&self, path: usize) {
        self.act(|world| {
            world.late = true;
            world.paths[path].stopped = true;
        });
        let place = self.place(path);
        match serving::claim(self, id(path), TAG, &place, Request { path }) {
            Claim::Has(request) => self.drop_request(request),
            Claim::Waits {
                displaced: Some(displaced),
                ..
            } if self.wrong == Wrong::KeepsPlace => self.displace(displaced),
            Claim::Waits {
                displaced: Some(displaced),
                ..
            } => match serving::restore(self, id(path), TAG, &place, displaced) {
                Restored::Waits(None) => {}
                Restored::Waits(Some(_)) => self.act(|world| world.paths[path].over += 1),
                Restored::Superseded => {
                    self.act(|world| world.superseded = true);
                    self.displace(displaced);
                }
            },
            Claim::Waits { .. } => {}
            Claim::Violation(_) => panic!("the path has none"),
        }
        self.end(path);
    }

    /// Closes a path once its request is over.
    fn end_later(&self, path: usize) {
        self.wait(move |world| world.paths[path].over == 1);
        self.end(path);
    }
}

impl Words for View<'_> {
    fn load(&self, _tag: Tag) -> Option<ChunkOwner> {
        Some(self.act(|world| ChunkOwner::from_bits(world.word)))
    }

    fn replace(&self, _tag: Tag, old: ChunkOwner, new: ChunkOwner) -> bool {
        self.act(|world| {
            let same = world.word == old.to_bits();
            if same {
                world.word = new.to_bits();
            }
            same
        })
    }
}

struct Spot<'a> {
    view: &'a View<'a>,
    path: usize,
}

impl Spot<'_> {
    fn put(
        &self,
        request: Request,
        which: impl FnOnce(&mut Path) -> &mut Option<Request>,
    ) -> Result<(), Request> {
        self.view.act(|world| {
            let place = which(&mut world.paths[self.path]);
            if place.is_some() {
                return Err(request);
            }
            *place = Some(request);
            Ok(())
        })
    }
}

impl Place for Spot<'_> {
    type Request = Request;

    fn put_waiting(&self, request: Request) -> Result<(), Request> {
        self.put(request, |path| &mut path.waiting)
    }

    fn take_waiting(&self) -> Option<Request> {
        self.view.act(|world| world.paths[self.path].waiting.take())
    }

    fn has_waiting(&self) -> bool {
        self.view
            .act(|world| world.paths[self.path].waiting.is_some())
    }

    fn put_pending(&self, request: Request) -> Result<(), Request> {
        self.put(request, |path| &mut path.pending)
    }

    fn take_pending(&self) -> Option<Request> {
        self.view.act(|world| world.paths[self.path].pending.take())
    }
}

/// Runs all orders of `threads`; returns how many of them wake others.
fn play(wakers: u32, threads: &[Thread<World>]) -> Result<usize, String> {
    let mut world = World {
        wakers,
        ..World::default()
    };
    let Claim::Waits { .. } = begin(&mut world) else {
        panic!("the number is in service");
    };
    explore(world, threads, |world| {
        assert_eq!(
            ChunkOwner::from_bits(world.word),
            ChunkOwner::FREE,
            "the number is lost"
        );
        assert_eq!(world.in_service, None);
        let b = &world.paths[B];
        assert_eq!(
            (b.over, &b.waiting, &b.pending),
            (1, &None, &None),
            "the request is lost"
        );
        if world.late && !world.superseded {
            assert_eq!(b.served, 1, "the request is not served");
            assert_eq!(world.paths[C].served, 0, "a late request is served");
        }
    })
}

/// A's request is in service, and B's has just come.
fn begin(world: &mut World) -> Claim<Request> {
    struct Still<'a>(RefCell<&'a mut World>);
    impl Words for Still<'_> {
        fn load(&self, _tag: Tag) -> Option<ChunkOwner> {
            Some(ChunkOwner::from_bits(self.0.borrow().word))
        }
        fn replace(&self, _tag: Tag, _old: ChunkOwner, new: ChunkOwner) -> bool {
            self.0.borrow_mut().word = new.to_bits();
            true
        }
    }
    impl Place for Still<'_> {
        type Request = Request;
        fn put_waiting(&self, request: Request) -> Result<(), Request> {
            let path = request.path;
            self.0.borrow_mut().paths[path].waiting = Some(request);
            Ok(())
        }
        fn take_waiting(&self) -> Option<Request> {
            None
        }
        fn has_waiting(&self) -> bool {
            false
        }
        fn put_pending(&self, request: Request) -> Result<(), Request> {
            Err(request)
        }
        fn take_pending(&self) -> Option<Request> {
            None
        }
    }
    let still = Still(RefCell::new(world));
    let first = serving::claim(&still, id(A), TAG, &still, Request { path: A });
    assert_eq!(first, Claim::Has(Request { path: A }));
    serving::claim(&still, id(B), TAG, &still, Request { path: B })
}

/// A thread that does something.
macro_rules! thread {
    ($wrong:expr, $action:expr) => {
        |stage| {
            let view = View {
                stage,
                wrong: $wrong,
            };
            let action: fn(&View<'_>) = $action;
            action(&view);
            view.act(|world| world.wakers = world.wakers.saturating_sub(1));
        }
    };
}

#[test]
fn a_path_is_closed_while_its_request_is_woken() {
    let threads: [Thread<World>; 4] = [
        thread!(Wrong::Nothing, |view| view.release(A)),
        thread!(Wrong::Nothing, |view| view.end(B)),
        thread!(Wrong::Nothing, |view| view.completions(B)),
        thread!(Wrong::Nothing, |view| view.worker()),
    ];
    let states = play(3, &threads).unwrap();
    println!("{states} states");
    assert!(states > 500, "{states}");
}

/// C takes B's place, or waits for B, or comes when all is over. It has the number in the end, and
/// gives it back.
#[test]
fn and_a_third_path_has_the_request_too() {
    let threads: [Thread<World>; 5] = [
        thread!(Wrong::Nothing, |view| view.release(A)),
        thread!(Wrong::Nothing, |view| view.end(B)),
        thread!(Wrong::Nothing, |view| view.completions(B)),
        thread!(Wrong::Nothing, |view| view.worker()),
        thread!(Wrong::Nothing, |view| view.arrive(C)),
    ];
    let states = play(4, &threads).unwrap();
    println!("{states} states");
    assert!(states > 5000, "{states}");
}

/// A request arrives late over C: it is dropped, and B's is served in its turn.
macro_rules! late {
    ($wrong:expr) => {{
        let threads: [Thread<World>; 5] = [
            thread!($wrong, |view| view.release(A)),
            thread!($wrong, |view| view.end_later(B)),
            thread!($wrong, |view| view.completions(B)),
            thread!($wrong, |view| view.worker()),
            thread!($wrong, |view| view.arrive_late(C)),
        ];
        play(4, &threads)
    }};
}

#[test]
fn a_late_request_displaces_nobody() {
    let states = late!(Wrong::Nothing).unwrap();
    println!("{states} states");
    assert!(states > 1000, "{states}");
}

#[test]
fn a_late_request_that_keeps_its_place_is_found() {
    let wrong = late!(Wrong::KeepsPlace).unwrap_err();
    assert!(wrong.contains("is not served"), "{wrong}");
}

/// As before, but B is closed meanwhile, and finds nothing on the word until its request has its
/// place back.
#[test]
fn a_path_is_closed_while_its_request_is_displaced() {
    let threads: [Thread<World>; 4] = [
        thread!(Wrong::Nothing, |view| {
            view.wait(|world| world.paths[B].gone && world.paths[C].gone);
            view.release(A);
        }),
        thread!(Wrong::Nothing, |view| view.end(B)),
        thread!(Wrong::Nothing, |view| view.worker()),
        thread!(Wrong::Nothing, |view| {
            // B's request is not served, of course.
            view.act(|world| world.superseded = true);
            view.arrive_late(C);
        }),
    ];
    let states = play(3, &threads).unwrap();
    println!("{states} states");
    assert!(states > 50, "{states}");
}

/// The purpose of the model: it finds how a number can be lost.
macro_rules! finds {
    ($wrong:expr) => {{
        let threads: [Thread<World>; 4] = [
            thread!($wrong, |view| view.release(A)),
            thread!($wrong, |view| view.end(B)),
            thread!($wrong, |view| view.completions(B)),
            thread!($wrong, |view| view.worker()),
        ];
        play(3, &threads).unwrap_err()
    }};
}

#[test]
fn a_request_that_is_left_behind_is_found() {
    let wrong = finds!(Wrong::LeavesBehind);
    assert!(wrong.contains("the number is lost"), "{wrong}");
}

#[test]
fn a_look_too_early_is_found() {
    let wrong = finds!(Wrong::LooksOnce);
    assert!(wrong.contains("is gone"), "{wrong}");
}
