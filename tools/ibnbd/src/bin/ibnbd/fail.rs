// SPDX-License-Identifier: GPL-2.0

//! Texts of failures, and exit codes.

use std::fmt;
use std::io;

use ibnbd_host::find::Unclear;

/// It is done.
const DONE: u8 = 0;
/// The kernel, the server or the system refused.
pub(crate) const REFUSED: u8 = 1;
/// The command makes no sense; clap's own code.
pub(crate) const USAGE: u8 = 2;
/// There is no such thing, or it is not clear which one is meant.
pub(crate) const NOT_FOUND: u8 = 3;
/// A module is not loaded.
pub(crate) const NO_MODULE: u8 = 4;
/// Only root may do it.
pub(crate) const NO_RIGHTS: u8 = 5;

/// A file of the configuration is wrong.
pub(crate) const CONFIGURATION: u8 = 6;
/// A signal ended the command, whose number is added, as shells say it.
pub(crate) const SIGNALLED: u8 = 128;

/// A failure: the task, the reason and the remedy.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) what: String,
    pub(crate) why: String,
    /// The kernel's lines for it.
    pub(crate) kernel: Vec<String>,
    pub(crate) todo: Option<String>,
    pub(crate) code: u8,
    /// The error number of the kernel, if it has refused.
    pub(crate) errno: Option<i32>,
}

impl Failure {
    pub(crate) fn new(code: u8, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            why: why.into(),
            kernel: Vec::new(),
            todo: None,
            code,
            errno: None,
        }
    }

    pub(crate) fn todo(mut self, todo: impl Into<String>) -> Self {
        self.todo = Some(todo.into());
        self
    }

    /// The command's words make no sense.
    pub(crate) fn usage(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::new(USAGE, what, why)
    }

    /// Of a file or the system.
    pub(crate) fn system(what: impl Into<String>, error: &io::Error) -> Self {
        let rights = error.kind() == io::ErrorKind::PermissionDenied;
        let code = if rights { NO_RIGHTS } else { REFUSED };
        let failure = Self::new(code, what, error.to_string());
        if rights {
            failure.todo("try it as root")
        } else {
            failure
        }
    }

    /// The end of a command whose output nobody reads any more, which is none for them.
    pub(crate) fn unread(mut self) -> Self {
        self.code = DONE;
        self
    }

    /// Prints it on standard error, if it is one.
    pub(crate) fn print(&self) {
        if self.code != DONE {
            crate::note::print(format_args!("{self}"));
        }
    }

    /// A name that stands for nothing, or for several things.
    pub(crate) fn unclear(kind: &str, name: &str, why: &Unclear) -> Self {
        let what = format!("{kind} {name}");
        match why {
            Unclear::Nothing => {
                let failure = Self::new(NOT_FOUND, what, "nothing has that name");
                failure.todo("see `ibnbd list`, `ibnbd sessions` and `ibnbd paths`")
            }
            Unclear::Several(names) => Self::new(NOT_FOUND, what, "that may be several")
                .todo(format!("take one of: {}", names.join(" "))),
        }
    }
}

/// A result of printing, after which the command goes on even if nobody reads.
pub(crate) fn even_unread(printed: Result<(), Failure>) -> Result<(), Failure> {
    printed.or_else(|failure| match failure.code {
        DONE => Ok(()),
        _ => Err(failure),
    })
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "ibnbd: {}: {}", self.what, self.why)?;
        for line in &self.kernel {
            writeln!(f, "  kernel: {line}")?;
        }
        match &self.todo {
            Some(todo) => writeln!(f, "  remedy: {todo}"),
            None => Ok(()),
        }
    }
}
