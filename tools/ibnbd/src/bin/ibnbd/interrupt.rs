// SPDX-License-Identifier: GPL-2.0

//! Signals that end the command, while several system calls belong together.
//!
//! Elsewhere they end the command at once.

use std::fs;
use std::future;
use std::io::{self, IsTerminal, Write};
use std::mem;
use std::process;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;

use signal_hook::low_level::emulate_default_handler;
use tokio::runtime::Builder;
use tokio::signal::unix::{signal, SignalKind};

use crate::fail::SIGNALLED;

/// The signals that are held back, and how they are called.
const SIGNALS: [(SignalKind, &str); 3] = [
    (SignalKind::hangup(), "SIGHUP"),
    (SignalKind::interrupt(), "Ctrl-C"),
    (SignalKind::terminate(), "SIGTERM"),
];

#[derive(Clone, Copy)]
enum State {
    /// The command may end.
    Free,
    /// System calls belong together.
    Busy,
    /// A signal came while they did: the exit code for it.
    Interrupted(u8),
}

static STATE: Mutex<State> = Mutex::new(State::Free);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps signals from ending the command as long as it lives.
pub(crate) struct HeldBack(());

impl HeldBack {
    pub(crate) fn new() -> Self {
        static WATCH: Once = Once::new();
        *state() = State::Busy;
        WATCH.call_once(watch);
        Self(())
    }

    /// The exit code for the signal, if one came.
    pub(crate) fn came(&self) -> Option<u8> {
        match *state() {
            State::Interrupted(code) => Some(code),
            State::Free | State::Busy => None,
        }
    }

    /// The same at the end, so that no signal comes between the question and the end.
    pub(crate) fn end(self) -> Option<u8> {
        match mem::replace(&mut *state(), State::Free) {
            State::Interrupted(code) => Some(code),
            State::Free | State::Busy => None,
        }
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        *state() = State::Free;
    }
}

/// Takes each signal from now on. If that fails, the system goes on to end the command.
fn watch() {
    let Ok(runtime) = Builder::new_current_thread().enable_io().build() else {
        return;
    };
    let inside = runtime.enter();
    for (kind, name) in SIGNALS {
        if is_ignored(kind) {
            continue;
        }
        if let Ok(mut signal) = signal(kind) {
            runtime.spawn(async move {
                while signal.recv().await.is_some() {
                    interrupt(kind, name);
                }
            });
        }
    }
    drop(inside);
    thread::spawn(move || runtime.block_on(future::pending::<()>()));
}

/// Whether the process was started with that signal ignored, as `nohup` does: it must outlive the
/// signal, so it takes no notice of it.
pub(crate) fn is_ignored(kind: SignalKind) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bits = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let bits = bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.unwrap_or_default() & (1 << (kind.as_raw_value() - 1)) != 0
}

fn interrupt(kind: SignalKind, name: &str) {
    let number = u8::try_from(kind.as_raw_value()).unwrap_or_default();
    let code = SIGNALLED + number;
    let mut state = state();
    if !matches!(*state, State::Busy) {
        // With the lock, so that no change begins any more.
        die(kind, code);
    }
    *state = State::Interrupted(code);
    // Nobody may read what is said for a while, and the command must see the signal meanwhile.
    drop(state);
    // After the terminal's ^C, or the line that says what is waited for.
    let start = if io::stderr().is_terminal() { "\n" } else { "" };
    // The terminal may be gone.
    let _ = writeln!(io::stderr(), "{start}ibnbd: interrupted by {name}: waits for the step in progress, then takes back what was done; another {name} ends it at once");
}

/// Ends the command by the signal, as if nobody had taken it: the service manager calls that a
/// clean end, and a shell ends its loop.
fn die(kind: SignalKind, code: u8) -> ! {
    let _ = emulate_default_handler(kind.as_raw_value());
    process::exit(code.into())
}
