// SPDX-License-Identifier: GPL-2.0

//! Takes the fields of a table, and collects their errors.

use std::ops::Range;

use toml_edit::{Item, Table, Value};

use super::Problem;

/// A file that is being read.
pub(super) struct Source<'a> {
    pub(super) file: &'a str,
    pub(super) text: &'a str,
    pub(super) problems: Vec<Problem>,
}

impl Source<'_> {
    /// Something is wrong at that place of the text.
    pub(super) fn problem(&mut self, at: Option<Range<usize>>, what: impl Into<String>) {
        let problem = self.possible(at, what);
        self.problems.push(problem);
    }

    /// A problem that counts only if something else is so, too.
    pub(super) fn possible(&self, at: Option<Range<usize>>, what: impl Into<String>) -> Problem {
        let start = at.map_or(0, |range| range.start);
        let before = self.text.get(..start).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        Problem {
            file: self.file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before
                .get(line_start..)
                .map_or(0, |line| line.chars().count())
                + 1,
            what: what.into(),
        }
    }
}

/// A table of which fields are taken one after the other.
pub(super) struct Fields<'a> {
    table: &'a Table,
    known: Vec<&'static str>,
}

/// A value and where it is.
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) span: Option<Range<usize>>,
}

impl<'a> Fields<'a> {
    pub(super) fn of(table: &'a Table) -> Self {
        Self {
            table,
            known: Vec::new(),
        }
    }

    pub(super) fn item(&mut self, name: &'static str) -> Option<&'a Item> {
        self.known.push(name);
        self.table.get(name)
    }

    fn value<T>(
        &mut self,
        source: &mut Source<'_>,
        name: &'static str,
        kind: &str,
        get: impl Fn(&Value) -> Option<T>,
    ) -> Option<At<T>> {
        let item = self.item(name)?;
        let span = item.span();
        match item.as_value().and_then(get) {
            Some(value) => Some(At { value, span }),
            None => {
                source.problem(span, format!("{name}: {kind} is wanted"));
                None
            }
        }
    }

    pub(super) fn text(
        &mut self,
        source: &mut Source<'_>,
        name: &'static str,
    ) -> Option<At<String>> {
        self.value(source, name, "a text in quotes", |v| {
            v.as_str().map(String::from)
        })
    }

    pub(super) fn number(
        &mut self,
        source: &mut Source<'_>,
        name: &'static str,
        range: std::ops::RangeInclusive<i64>,
    ) -> Option<At<i64>> {
        let found = self.value(source, name, "a number", Value::as_integer)?;
        if range.contains(&found.value) {
            return Some(found);
        }
        let what = format!(
            "{name}: {} is not {} to {}",
            found.value,
            range.start(),
            range.end()
        );
        source.problem(found.span, what);
        None
    }

    pub(super) fn flag(&mut self, source: &mut Source<'_>, name: &'static str) -> Option<bool> {
        self.value(source, name, "true or false", Value::as_bool)
            .map(|found| found.value)
    }

    pub(super) fn one_of(
        &mut self,
        source: &mut Source<'_>,
        name: &'static str,
        words: &[&str],
    ) -> Option<String> {
        let found = self.text(source, name)?;
        if words.contains(&found.value.as_str()) {
            return Some(found.value);
        }
        source.problem(
            found.span,
            format!(
                "{name}: {:?} is not one of {}",
                found.value,
                words.join(", ")
            ),
        );
        None
    }

    /// Texts in brackets.
    pub(super) fn texts(&mut self, source: &mut Source<'_>, name: &'static str) -> Vec<At<String>> {
        self.texts_if_any(source, name).unwrap_or_default()
    }

    /// Texts in brackets, of which there may be none; none if the field is missing or wrong.
    pub(super) fn texts_if_any(
        &mut self,
        source: &mut Source<'_>,
        name: &'static str,
    ) -> Option<Vec<At<String>>> {
        let item = self.item(name)?;
        let Some(array) = item.as_array() else {
            source.problem(item.span(), format!("{name}: texts in brackets are wanted"));
            return None;
        };
        let mut found = Vec::new();
        for value in array {
            match value.as_str() {
                Some(text) => found.push(At {
                    value: text.to_owned(),
                    span: value.span(),
                }),
                None => source.problem(value.span(), format!("{name}: a text in quotes is wanted")),
            }
        }
        Some(found)
    }

    /// Tables that begin with `[[name]]`.
    pub(super) fn tables(&mut self, source: &mut Source<'_>, name: &'static str) -> Vec<&'a Table> {
        let Some(item) = self.item(name) else {
            return Vec::new();
        };
        match item.as_array_of_tables() {
            Some(tables) => tables.iter().collect(),
            None => {
                source.problem(
                    item.span().or_else(|| self.at(name)),
                    format!("{name}: it begins with [[{name}]]"),
                );
                Vec::new()
            }
        }
    }

    fn at(&self, name: &str) -> Option<Range<usize>> {
        self.table.key(name).and_then(toml_edit::Key::span)
    }

    /// Whatever was not taken is not known.
    pub(super) fn end(self, source: &mut Source<'_>, of: &str) {
        for (name, _) in self
            .table
            .iter()
            .filter(|(name, _)| !self.known.contains(name))
        {
            let known = self.known.join(", ");
            source.problem(
                self.at(name),
                format!("{of} has no {name:?}; it may have {known}"),
            );
        }
    }
}
