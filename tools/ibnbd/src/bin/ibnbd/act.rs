// SPDX-License-Identifier: GPL-2.0

//! Writes to a file of the kernel, with progress, and with the kernel's log lines if the write
//! fails.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use ibnbd_host::advice::{self, Task};
use ibnbd_host::configfs::change::{self, Change};
use ibnbd_host::kmsg::Mark;

use crate::context::Context;
use crate::fail::{Failure, NO_RIGHTS, REFUSED};
use crate::interrupt::HeldBack;

/// Writes `text` to `file`. `what` says what that does, as "cannot ..." would go on.
pub(crate) fn write(
    context: &Context,
    task: Task,
    what: &str,
    file: &str,
    text: &str,
) -> Result<(), Failure> {
    let mark = Mark::now(&context.root);
    let result = with_progress(what, || context.root.write(file, text));
    result.map_err(|error| failure(task, what, &error, mark))
}

/// Changes exports or hosts: all of it, or nothing, also if a signal ends the command meanwhile.
/// `what` says what that does, as "cannot ..." would go on.
pub(crate) fn changes(
    context: &Context,
    task: Task,
    what: &str,
    changes: &[Change],
) -> Result<(), Failure> {
    let mark = Mark::now(&context.root);
    let held_back = HeldBack::new();
    let mut ended = false;
    let result = with_progress(what, || {
        change::all(changes, |change| {
            // After the first failure, the remaining calls take back the earlier ones.
            let result = match !ended && held_back.came().is_some() {
                true => Err(io::ErrorKind::Interrupted.into()),
                false => change.carry_out(&context.root),
            };
            ended |= result.is_err();
            result
        })
    });
    let result = result.map_err(|failed| {
        for (change, error) in &failed.left {
            note!("warning: {change}, to take back what was done: {error}");
        }
        let what = format!("{what} ({})", failed.change);
        failure(task, &what, &failed.error, mark)
    });
    if let Some(code) = held_back.end() {
        match result {
            Ok(()) => note!("{what}: it was done already, and stays"),
            Err(failure) => failure.print(),
        }
        std::process::exit(code.into());
    }
    result
}

/// The failure of a write, with the kernel's lines since `mark`.
pub(crate) fn failure(task: Task, what: &str, error: &io::Error, mark: Option<Mark>) -> Failure {
    let what = format!("cannot {what}");
    // Root gets that as an answer of the server.
    if error.kind() == io::ErrorKind::PermissionDenied && !rustix::process::geteuid().is_root() {
        return Failure::new(NO_RIGHTS, what, "only root may do that").todo("try it as root");
    }
    let Some(errno) = error.raw_os_error() else {
        return Failure::system(what, error);
    };
    let kernel = mark.map(Mark::lines).unwrap_or_default();
    let (why, todo) = advice::find(task, errno, &kernel);
    let mut failure = Failure::new(REFUSED, what, why);
    failure.errno = Some(errno);
    failure.kernel = kernel;
    let exact = advice::of_lines(&failure.kernel);
    failure.todo = exact.or(todo).map(String::from);
    failure
}

/// Does something that may take long, and says so after a second.
pub(crate) fn with_progress<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let (done, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || progress(what, &ended));
        let result = work();
        drop(done);
        result
    })
}

fn progress(what: &str, ended: &mpsc::Receiver<()>) {
    let started = Instant::now();
    let terminal = io::stderr().is_terminal();
    let mut told = false;
    while ended.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
        let seconds = started.elapsed().as_secs();
        // Nobody has to see it.
        let _ = if terminal {
            write!(
                io::stderr(),
                "\r\x1b[Kwaiting to {what}: {seconds} s; Ctrl-C ends it"
            )
        } else if told {
            Ok(())
        } else {
            writeln!(io::stderr(), "ibnbd: waiting to {what}")
        };
        told = true;
    }
    if told && terminal {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
}
