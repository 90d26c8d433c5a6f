// SPDX-License-Identifier: GPL-2.0

//! Runs a few threads in every order of their steps.
//!
//! A thread is a function of the results of its steps, so it needs no stack of its own. For each
//! step, the function runs again from its beginning, receives the results of its former steps,
//! makes one more step and stops at the next. If two orders lead to the same state of the world and
//! of all threads, only one of them is followed.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt::Debug;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::rc::Rc;

/// The result of a step: the value, and a text.
type Found = (Rc<dyn Any>, String);
/// One of the threads.
pub type Thread<W> = fn(&Stage<W>);

/// Where a thread makes its steps.
pub struct Stage<W> {
    inner: RefCell<Inner<W>>,
}

struct Inner<W> {
    world: W,
    found: Vec<Found>,
    at: usize,
    stepped: bool,
}

/// A thread is left here.
struct Pause;

impl<W: Clone> Stage<W> {
    /// A step, which no other thread comes between.
    pub fn act<T: Clone + Debug + 'static>(&self, action: impl FnOnce(&mut W) -> T) -> T {
        let inner = &mut *self.inner.borrow_mut();
        if let Some((found, _)) = inner.found.get(inner.at) {
            inner.at += 1;
            return found
                .downcast_ref::<T>()
                .expect("the same steps each time")
                .clone();
        }
        if inner.stepped {
            resume_unwind(Box::new(Pause));
        }
        let found = action(&mut inner.world);
        inner
            .found
            .push((Rc::new(found.clone()), format!("{found:?}")));
        inner.at += 1;
        inner.stepped = true;
        found
    }

    /// A step that can be made once `ready` says so.
    pub fn wait(&self, ready: impl FnOnce(&W) -> bool) {
        {
            let inner = self.inner.borrow();
            if inner.at == inner.found.len() && !ready(&inner.world) {
                resume_unwind(Box::new(Pause));
            }
        }
        self.act(|_| ());
    }
}

#[derive(Clone)]
struct State<W> {
    world: W,
    /// The results of the steps of each thread; none when it is over.
    threads: Vec<Option<Vec<Found>>>,
}

impl<W: Clone + Debug> State<W> {
    fn key(&self) -> String {
        let words = |thread: &Option<Vec<Found>>| -> Option<Vec<String>> {
            Some(
                thread
                    .as_ref()?
                    .iter()
                    .map(|(_, words)| words.clone())
                    .collect(),
            )
        };
        format!(
            "{:?} {:?}",
            self.world,
            self.threads.iter().map(words).collect::<Vec<_>>()
        )
    }

    /// Lets a thread make a step, if it can.
    fn step(&self, number: usize, thread: Thread<W>) -> Result<Option<Self>, String> {
        let Some(found) = &self.threads[number] else {
            return Ok(None);
        };
        let stage = Stage {
            inner: RefCell::new(Inner {
                world: self.world.clone(),
                found: found.clone(),
                at: 0,
                stepped: false,
            }),
        };
        let result = catch_unwind(AssertUnwindSafe(|| thread(&stage)));
        let inner = stage.inner.into_inner();
        let over = match result {
            Ok(()) => true,
            Err(panic) if panic.is::<Pause>() && inner.stepped => false,
            Err(panic) if panic.is::<Pause>() => return Ok(None),
            Err(panic) => return Err(told(panic)),
        };
        let mut next = self.clone();
        next.world = inner.world;
        next.threads[number] = (!over).then_some(inner.found);
        Ok(Some(next))
    }
}

fn told(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic
            .downcast::<&str>()
            .map_or("a panic".into(), |text| text.to_string()),
    }
}

/// Runs `threads` in all orders of their steps, and `check` whenever all are over. Returns how many
/// states there were.
///
/// # Errors
///
/// The first failure: a panic of a thread or of the check, or threads that wait for each other.
pub fn explore<W: Clone + Debug>(
    world: W,
    threads: &[Thread<W>],
    check: impl Fn(&W),
) -> Result<usize, String> {
    let first = State {
        world,
        threads: vec![Some(Vec::new()); threads.len()],
    };
    let mut seen = HashSet::from([first.key()]);
    let mut open = vec![first];
    while let Some(state) = open.pop() {
        let mut stuck = true;
        for (number, thread) in threads.iter().enumerate() {
            if let Some(next) = state.step(number, *thread)? {
                stuck = false;
                if seen.insert(next.key()) {
                    open.push(next);
                }
            }
        }
        if stuck {
            if state.threads.iter().any(Option::is_some) {
                return Err(format!("threads wait for each other: {:?}", state.world));
            }
            catch_unwind(AssertUnwindSafe(|| check(&state.world))).map_err(told)?;
        }
    }
    Ok(seen.len())
}
