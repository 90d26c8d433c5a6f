// SPDX-License-Identifier: GPL-2.0

//! Lines of `key=value` options, separated by blanks, tabs or newlines.
//!
//! [`Options::parse`] checks the whole line against a table of keys before any value is used;
//! afterwards values are found by walking the borrowed text again. Nothing is stored.

use core::fmt;

use crate::errno::Errno;
use crate::text::{self, is_blank};

/// One key that a line may or must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// The text before the '='.
    pub name: &'static str,
    /// Whether a line without the key is refused.
    pub required: bool,
    /// How often the key may occur on a line.
    pub max: u16,
}

impl Key {
    /// A key that must be given, once.
    pub const fn required(name: &'static str) -> Self {
        Self {
            name,
            required: true,
            max: 1,
        }
    }

    /// A key that may be given, once.
    pub const fn optional(name: &'static str) -> Self {
        Self {
            name,
            required: false,
            max: 1,
        }
    }

    /// A key that may occur up to `max` times.
    pub const fn repeatable(name: &'static str, max: u16) -> Self {
        Self {
            name,
            required: false,
            max,
        }
    }
}

/// An error in a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptProblem {
    /// The line is not UTF-8, or has a NUL or another control character. Names no option.
    NotText,
    /// No such option.
    Unknown,
    /// Given twice.
    Doubled,
    /// Given more often than allowed.
    TooMany,
    /// No '=' or nothing after it.
    NoValue,
    /// Required, but missing.
    Missing,
}

/// A problem, and the option at fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptError<'a> {
    /// The problem.
    pub problem: OptProblem,
    /// Name of the option; empty if the problem is that of the whole line.
    pub option: &'a str,
}

impl OptError<'_> {
    /// The error in words, for the log; the option's name belongs before it.
    pub const fn as_str(&self) -> &'static str {
        match self.problem {
            OptProblem::NotText => "options are not printable text",
            OptProblem::Unknown => "no such option",
            OptProblem::Doubled => "option given twice",
            OptProblem::TooMany => "option given too often",
            OptProblem::NoValue => "option without value",
            OptProblem::Missing => "option is missing",
        }
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        Errno::EINVAL
    }
}

impl fmt::Display for OptError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.option.is_empty() {
            write!(f, "{}: ", self.option)?;
        }
        f.write_str(self.as_str())
    }
}

/// A line whose options are all known, within their limits, and have values.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    line: &'a str,
}

impl<'a> Options<'a> {
    /// Checks a line against `table`.
    ///
    /// # Errors
    ///
    /// The first problem in the order of the text, then the first missing option in the order
    /// of the table.
    pub fn parse(bytes: &'a [u8], table: &[Key]) -> Result<Self, OptError<'a>> {
        let line = text::line(bytes).map_err(|_| OptError {
            problem: OptProblem::NotText,
            option: "",
        })?;
        let opts = Self { line };
        for word in opts.words() {
            let (option, value) = split(word);
            let err = |problem| Err(OptError { problem, option });
            let Some(key) = table.iter().find(|k| k.name == option) else {
                return err(OptProblem::Unknown);
            };
            if value.is_none_or(str::is_empty) {
                return err(OptProblem::NoValue);
            }
            if opts.count(option) > usize::from(key.max) {
                return err(if key.max == 1 {
                    OptProblem::Doubled
                } else {
                    OptProblem::TooMany
                });
            }
        }
        let mut required = table.iter().filter(|k| k.required);
        match required.find(|k| opts.count(k.name) == 0) {
            Some(key) => Err(OptError {
                problem: OptProblem::Missing,
                option: key.name,
            }),
            None => Ok(opts),
        }
    }

    /// The value of an option, the first one when it is repeated.
    pub fn get(&self, option: &str) -> Option<&'a str> {
        self.all(option).next()
    }

    /// All values of a repeatable option, in the order of the text.
    pub fn all<'n>(&self, option: &'n str) -> Values<'a, 'n> {
        Values {
            rest: self.line,
            option,
        }
    }

    /// How often an option is given.
    pub fn count(&self, option: &str) -> usize {
        self.words()
            .filter(|w| split(w).0 == option)
            .fold(0, |n: usize, _| n.saturating_add(1))
    }

    fn words(&self) -> impl Iterator<Item = &'a str> {
        self.line.split(is_blank).filter(|w| !w.is_empty())
    }
}

/// Iterator over the values of one option.
#[derive(Clone, Debug)]
pub struct Values<'a, 'n> {
    rest: &'a str,
    option: &'n str,
}

impl<'a> Iterator for Values<'a, '_> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        while !self.rest.is_empty() {
            let (word, rest) = self.rest.split_once(is_blank).unwrap_or((self.rest, ""));
            self.rest = rest;
            match split(word) {
                (option, Some(value)) if option == self.option => return Some(value),
                _ => {}
            }
        }
        None
    }
}

fn split(word: &str) -> (&str, Option<&str>) {
    match word.split_once('=') {
        Some((option, value)) => (option, Some(value)),
        None => (word, None),
    }
}
