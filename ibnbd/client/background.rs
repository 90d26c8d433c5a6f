// SPDX-License-Identifier: GPL-2.0

//! Work that continues after its user has stopped waiting.
//!
//! A signal cannot recall a message that was sent to the server, and the answer may mean that a
//! device is open there. A worker, which receives no signals, therefore completes such work.
//!
//! Contexts: *may sleep*.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    sync::{
        atomic::{
            Atomic,
            Full, //
        },
        Completion,
        TakeCell, //
    },
    work::Queue, //
};

/// Length of one wait in milliseconds; waits repeat until the function has returned.
const ROUND_MS: u32 = 3_600_000;

/// The state that a worker shares with the task that waits for the result of its function.
#[pin_data]
struct Task<R> {
    #[pin]
    done: Completion,
    result: TakeCell<R>,
}

/// Runs `func` on a worker of `queue`, and waits for its result until a signal arrives.
///
/// # Errors
///
/// `EINTR` if a signal arrived: `func` continues, and the worker drops its result. `ENOMEM`; then
/// `func` does not run.
pub(crate) fn attempt<R: Send + 'static>(
    queue: &Queue,
    func: impl FnOnce() -> R + Send + 'static,
) -> Result<R> {
    let task = start(queue, func)?;
    loop {
        match task.done.wait_interruptible_timeout(ROUND_MS) {
            Ok(()) => return task.result.take().ok_or(EIO),
            Err(ETIMEDOUT) => (),
            Err(_) => return Err(EINTR),
        }
    }
}

/// Runs `func` on a worker of `queue`, and waits for its result uninterruptibly.
///
/// # Errors
///
/// `ENOMEM`; then `func` does not run.
pub(crate) fn complete<R: Send + 'static>(
    queue: &Queue,
    func: impl FnOnce() -> R + Send + 'static,
) -> Result<R> {
    let task = start(queue, func)?;
    task.done.wait();
    task.result.take().ok_or(EIO)
}

/// Whether a function on a worker continues after its user was killed. The first of the two decides.
pub(crate) struct Fate(Atomic<u32>);

impl Fate {
    const OPEN: u32 = 0;
    const COMMITTED: u32 = 1;
    const ABANDONED: u32 = 2;

    fn decide(&self, fate: u32) -> bool {
        // ORDERING: Only the value itself is used.
        self.0.cmpxchg(Self::OPEN, fate, Full).is_ok()
    }

    /// Commits the function: from here on, it continues even if its user is killed.
    ///
    /// # Errors
    ///
    /// `EINTR` if the user was already killed. The function must then undo its work.
    pub(crate) fn commit(&self) -> Result {
        match self.decide(Self::COMMITTED) {
            true => Ok(()),
            false => Err(EINTR),
        }
    }
}

/// Runs `func` on a worker of `queue`, and waits for its result until this task is killed. Other
/// signals do not end the wait.
///
/// Returns `None` if the task is being killed and `func` has committed.
///
/// # Errors
///
/// `EINTR` if the task is being killed, and `func` undoes its work. `ENOMEM`; then `func` does not
/// run.
pub(crate) fn attempt_until_killed<R: Send + 'static>(
    queue: &Queue,
    func: impl FnOnce(&Fate) -> R + Send + 'static,
) -> Result<Option<R>> {
    let fate = Arc::new(Fate(Atomic::new(Fate::OPEN)), GFP_KERNEL)?;
    let task = {
        let fate = fate.clone();
        start(queue, move || func(&fate))?
    };
    match task.done.wait_killable() {
        Ok(()) => task.result.take().ok_or(EIO).map(Some),
        Err(_) if fate.decide(Fate::ABANDONED) => Err(EINTR),
        Err(_) => Ok(None),
    }
}

fn start<R: Send + 'static>(
    queue: &Queue,
    func: impl FnOnce() -> R + Send + 'static,
) -> Result<Arc<Task<R>>> {
    let task = Arc::pin_init(
        pin_init!(Task {
            done <- Completion::new(),
            result: TakeCell::empty(),
        }),
        GFP_KERNEL,
    )?;
    let worker = task.clone();
    queue.spawn(GFP_KERNEL, move || {
        // Cannot fail: only this worker stores a result, and only once.
        let _ = worker.result.put(func());
        worker.done.complete_all();
    })?;
    Ok(task)
}
