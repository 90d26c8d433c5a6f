// SPDX-License-Identifier: GPL-2.0

//! The files of a configuration beside the one that is written.

use std::ops::Range;

use toml_edit::{ArrayOfTables, Document, DocumentMut, Item, Table};

use super::fields::Source;
use super::keep::{forget, parameter};
use super::{plan, Problem};
use crate::root::Root;

/// The other files. What they have is not written again.
#[derive(Default)]
pub struct Others {
    files: Vec<Other>,
    /// Entries of them that are not as the machine has them.
    pub problems: Vec<Problem>,
}

struct Other {
    name: String,
    text: String,
    document: DocumentMut,
}

impl Other {
    /// A problem of what has that place in the text.
    fn problem(&self, what: String, span: impl Fn(&Table) -> Option<Range<usize>>) -> Problem {
        let source = Source {
            file: &self.name,
            text: &self.text,
            problems: Vec::new(),
        };
        // Only a document that cannot be changed knows where it was read.
        let document = Document::parse(self.text.as_str()).ok();
        let span = document.and_then(|document| span(document.as_table()));
        source.possible(span, what)
    }
}

fn list<'a>(table: &'a Table, key: &str) -> Option<&'a ArrayOfTables> {
    table.get(key)?.as_array_of_tables()
}

impl Others {
    /// All files but the one that is written.
    pub fn of(files: &[(String, String)], written: &str) -> Self {
        let others = files.iter().filter(|(name, _)| name != written);
        let other = |(name, text): &(String, String)| {
            let (name, text) = (name.clone(), text.clone());
            let document = text.parse().ok()?;
            Some(Other {
                name,
                text,
                document,
            })
        };
        Self {
            files: others.filter_map(other).collect(),
            problems: Vec::new(),
        }
    }

    /// The files that have a disk.
    pub fn still_have(&self, root: &Root, session: &str, device: &str) -> Vec<&str> {
        let has = |other: &&Other| forget(root, &mut other.document.clone(), session, device);
        self.files
            .iter()
            .filter(has)
            .map(|other| other.name.as_str())
            .collect()
    }

    pub(super) fn any(&self, has: impl Fn(&DocumentMut) -> bool) -> bool {
        self.files.iter().any(|other| has(&other.document))
    }

    /// Brings the entry that `is` finds to what the machine has, by `keep`. It is made of `new` if
    /// no file has it. If another file has it, it must be so already.
    pub(super) fn keep(
        &mut self,
        entries: &mut ArrayOfTables,
        (kind, name): (&str, &str),
        is: &dyn Fn(&Table) -> bool,
        new: Table,
        keep: &dyn Fn(&mut Table),
    ) {
        if let Some(table) = entries.iter_mut().find(|table| is(table)) {
            return keep(table);
        }
        for other in &self.files {
            let found = list(&other.document, kind).and_then(|list| {
                let mut entries = list.iter().enumerate();
                entries.find(|(_, table)| is(table))
            });
            let Some((at, table)) = found else {
                continue;
            };
            let mut kept = table.clone();
            keep(&mut kept);
            let text = |table: Table| DocumentMut::from(table).to_string();
            if text(kept) != text(table.clone()) {
                let what = format!("the machine has the {kind} {name:?} in another form");
                let span = |table: &Table| list(table, kind)?.get(at)?.span();
                self.problems.push(other.problem(what, span));
            }
            return;
        }
        let mut table = new;
        keep(&mut table);
        entries.push(table);
    }

    /// Whether another file sets the parameter of a module; that must be its value.
    pub(super) fn have_parameter(&mut self, module: &str, name: &str, now: &str) -> bool {
        let find = |table: &Table| -> Option<Item> { table.get(module)?.get(name).cloned() };
        let found = self
            .files
            .iter()
            .find_map(|other| Some((other, find(&other.document)?)));
        let Some((other, item)) = found else {
            return false;
        };
        if !plan::means(&parameter(&item), now) {
            let what = format!("{name}: the machine has {now:?}");
            let span = |table: &Table| table.get(module)?.get(name)?.span();
            self.problems.push(other.problem(what, span));
        }
        true
    }
}
