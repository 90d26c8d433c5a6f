// SPDX-License-Identifier: GPL-2.0

//! What is printed, and failures.

use std::fmt::{self, Display};
use std::io::{self, IsTerminal, Write};

use ibmsg::words::Doing;
use ibmsg::Error;
use serde_json::{json, Value};

/// Refused, or not delivered.
pub(crate) const REFUSED: u8 = 1;
/// There is no such session or portal.
pub(crate) const NOT_FOUND: u8 = 3;
/// The module is not loaded.
pub(crate) const NO_MODULE: u8 = 4;
/// This user may not.
const NO_RIGHTS: u8 = 5;
/// The time is over.
pub(crate) const TIME: u8 = 6;

const ENOENT: i32 = 2;
const EACCES: i32 = 13;
const ENODEV: i32 = 19;
const ETIMEDOUT: i32 = 110;

/// A failure: what, why, and the remedy.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    why: String,
    todo: Option<&'static str>,
    errno: Option<i32>,
    pub(crate) code: u8,
}

impl Failure {
    pub(crate) fn new(code: u8, what: impl Display, why: impl Display) -> Self {
        Self {
            what: what.to_string(),
            why: why.to_string(),
            todo: None,
            errno: None,
            code,
        }
    }

    pub(crate) fn of(what: impl Display, error: &Error) -> Self {
        Self {
            todo: error.advice(),
            errno: error.errno(),
            ..Self::new(code(error), what, error)
        }
    }

    /// The same, with what can be done.
    pub(crate) fn with_remedy(self, todo: &'static str) -> Self {
        Self {
            todo: Some(todo),
            ..self
        }
    }

    /// The other program has said more.
    pub(crate) fn saying(mut self, data: &[u8]) -> Self {
        self.why = format!("{}; it says: {}", self.why, printable(data));
        self
    }

    /// Prints it on standard error, if anybody reads that.
    pub(crate) fn print(&self, json: bool) {
        let _ = match json {
            true => {
                let document = json!({
                    "error": self.why, "what": self.what, "remedy": self.todo, "errno": self.errno,
                });
                writeln!(io::stderr(), "{document}")
            }
            false => write!(io::stderr(), "{self}"),
        };
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "ibmsg: {}: {}", self.what, self.why)?;
        match self.todo {
            Some(todo) => writeln!(f, "  remedy: {todo}"),
            None => Ok(()),
        }
    }
}

/// The exit code of an error.
fn code(error: &Error) -> u8 {
    match (error, error.errno()) {
        (
            Error::System {
                doing: Doing::Open, ..
            },
            Some(ENOENT),
        ) => NO_MODULE,
        (
            Error::System {
                doing: Doing::Open | Doing::Bind | Doing::Connect,
                ..
            },
            Some(1 | EACCES),
        ) => NO_RIGHTS,
        (Error::System { .. }, Some(ENODEV)) | (Error::Refused { .. }, Some(ENOENT)) => NOT_FOUND,
        (Error::System { .. } | Error::Unanswered(_), Some(ETIMEDOUT)) => TIME,
        _ => REFUSED,
    }
}

/// The content of a message in a document.
pub(crate) fn content(body: &[u8]) -> (&'static str, Value) {
    match std::str::from_utf8(body) {
        Ok(text) => ("text", json!(text)),
        Err(_) => {
            let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
            ("hex", json!(hex))
        }
    }
}

/// Nothing of a message reaches a terminal as control.
fn printable(body: &[u8]) -> String {
    let mut shown = String::with_capacity(body.len());
    for c in String::from_utf8_lossy(body).chars() {
        match c {
            '"' | '\'' | '\\' => shown.push(c),
            c => shown.extend(c.escape_debug()),
        }
    }
    shown
}

/// How to print.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    pub(crate) json: bool,
}

impl Out {
    /// Prints bytes. Where nobody reads any more, the command is done.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
            result => result.map_err(|e| Failure::new(REFUSED, "standard output", e)),
        }
    }

    /// Prints a line, or a document.
    pub(crate) fn say(&self, line: impl Display, document: Value) -> Result<(), Failure> {
        match self.json {
            true => self.bytes(format!("{document}\n").as_bytes()),
            false => self.bytes(format!("{line}\n").as_bytes()),
        }
    }

    /// Prints a message, or a document.
    pub(crate) fn message(&self, body: &[u8], document: Value) -> Result<(), Failure> {
        if self.json {
            return self.say("", document);
        }
        match io::stdout().is_terminal() {
            true => self.say(printable(body), document),
            false => self.bytes(&[body, b"\n"].concat()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Error as Io;

    fn system(doing: Doing, errno: i32) -> Error {
        let error = Io::from_raw_os_error(errno);
        Error::System { doing, error }
    }

    #[test]
    fn codes() {
        let refused = |reason| Error::Refused {
            reason,
            data: Vec::new(),
        };
        for (error, expected) in [
            (system(Doing::Open, ENOENT), NO_MODULE),
            (system(Doing::Open, EACCES), NO_RIGHTS),
            (system(Doing::Open, 1), NO_RIGHTS),
            (system(Doing::Bind, EACCES), NO_RIGHTS),
            (system(Doing::Connect, EACCES), NO_RIGHTS),
            (system(Doing::Bind, 98), REFUSED),
            (system(Doing::Connect, ENODEV), NOT_FOUND),
            (system(Doing::Connect, ETIMEDOUT), TIME),
            (refused(ENOENT), NOT_FOUND),
            (refused(EACCES), REFUSED),
            (Error::Unanswered(ETIMEDOUT), TIME),
            (Error::Unanswered(104), REFUSED),
            (Error::Answered(2, Vec::new()), REFUSED),
            (Error::Closed(0), REFUSED),
        ] {
            assert_eq!(code(&error), expected, "{error}");
        }
    }

    #[test]
    fn failures_have_remedies() {
        let text = Failure::of("portal kv", &system(Doing::Bind, 98)).to_string();
        assert_eq!(
            text,
            "ibmsg: portal kv: another program has bound that name\n  \
             remedy: see `ibmsg portals` for the program that has it\n"
        );
        assert_eq!(Failure::new(1, "a", "b").to_string(), "ibmsg: a: b\n");
    }

    #[test]
    fn contents() {
        assert_eq!(content(b"a\n"), ("text", json!("a\n")));
        assert_eq!(content(b"\xffa"), ("hex", json!("ff61")));
        assert_eq!(printable(b"a\x1b[2J\"\xff"), "a\\u{1b}[2J\"\u{fffd}");
    }
}
