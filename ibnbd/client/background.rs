// SPDX-License-Identifier: GPL-2.0

//! Work that continues after its user has stopped waiting.
//!
//! A signal cannot take back a message that was sent to the server, and the answer may mean that a
//! device is open there. So a worker, which receives no signals, completes such work.
//!
//! Contexts: *may sleep*.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    sync::{
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
/// `EINTR` if a signal arrived: `func` continues, and the worker drops its result. `ENOMEM`;
/// `func` does not run then.
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
/// `ENOMEM`; `func` does not run then.
pub(crate) fn complete<R: Send + 'static>(
    queue: &Queue,
    func: impl FnOnce() -> R + Send + 'static,
) -> Result<R> {
    let task = start(queue, func)?;
    task.done.wait();
    task.result.take().ok_or(EIO)
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
