// SPDX-License-Identifier: GPL-2.0

//! Reads values, and notes those that make no sense.

use std::io;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::root::{is_gone, Folder, Root};

/// A file that could not be read, or that makes no sense.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Note {
    /// Its name.
    pub file: String,
    /// The reason, in words.
    pub why: String,
}

pub(crate) struct Reader<'a> {
    pub(crate) root: &'a Root,
    pub(crate) notes: Vec<Note>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(root: &'a Root) -> Self {
        Self {
            root,
            notes: Vec::new(),
        }
    }

    fn note(&mut self, file: &str, why: impl ToString) {
        self.notes.push(Note {
            file: file.to_owned(),
            why: why.to_string(),
        });
    }

    /// The names in a folder; none where there is no such folder.
    pub(crate) fn list(&mut self, folder: &str) -> Vec<String> {
        match self.root.list_if_any(folder) {
            Ok(names) => names,
            Err(error) => {
                self.note(folder, error);
                Vec::new()
            }
        }
    }

    /// A folder whose files are read next, if it is there.
    pub(crate) fn open_folder(&mut self, folder: &str) -> Option<Folder> {
        match self.root.open_folder(folder) {
            Ok(opened) => Some(opened),
            Err(error) if is_gone(&error) => None,
            Err(error) => {
                self.note(folder, error);
                None
            }
        }
    }

    /// A value, if the file is there and has one.
    pub(crate) fn get<T>(&mut self, file: &str, parse: fn(&str) -> Option<T>) -> Option<T> {
        let read = self.root.read(file);
        self.parsed(read, || file.to_owned(), parse)
    }

    /// A value from a file of a folder.
    pub(crate) fn get_in<T>(
        &mut self,
        folder: &Folder,
        name: &str,
        parse: fn(&str) -> Option<T>,
    ) -> Option<T> {
        let read = self.root.read_in(folder, name);
        self.parsed(read, || folder.file(name), parse)
    }

    fn parsed<T>(
        &mut self,
        read: io::Result<String>,
        file: impl Fn() -> String,
        parse: fn(&str) -> Option<T>,
    ) -> Option<T> {
        match read {
            Ok(text) => {
                let value = parse(&text);
                if value.is_none() {
                    self.note(&file(), not_understood(&text));
                }
                value
            }
            Err(error) if is_gone(&error) => None,
            Err(error) => {
                self.note(&file(), in_words(&error));
                None
            }
        }
    }

    /// The same as [`Self::get`], without opening the file if it is not wanted.
    pub(crate) fn get_if<T>(
        &mut self,
        wanted: bool,
        file: &str,
        parse: fn(&str) -> Option<T>,
    ) -> Option<T> {
        wanted.then(|| self.get(file, parse)).flatten()
    }

    /// A word from a file, and none without a note if that is empty.
    pub(crate) fn get_if_any(&mut self, file: &str) -> Option<String> {
        self.get(file, crate::value::line)
            .filter(|text| !text.is_empty())
    }
}

/// Why a text is of no use, with its beginning.
pub(crate) fn not_understood(text: &str) -> String {
    match text.trim_end() {
        "" => "it is empty".to_owned(),
        text => {
            let short: String = text.chars().take(40).collect();
            let more = if short.len() < text.len() { "..." } else { "" };
            format!("not understood: {short:?}{more}")
        }
    }
}

fn in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::InvalidData => format!("not understood: it is {error}"),
        _ => error.to_string(),
    }
}
