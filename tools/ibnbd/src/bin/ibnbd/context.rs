// SPDX-License-Identifier: GPL-2.0

//! Context that all commands share.

use std::io::{self, Write};

use clap::ValueEnum;
use ibnbd_host::family::{Family, Side};
use ibnbd_host::model::{Machine, Note};
use ibnbd_host::{host, Root};

use crate::cli::{Format, Global};
use crate::fail::{Failure, NO_MODULE};

pub(crate) struct Context {
    pub(crate) root: Root,
    pub(crate) format: Format,
    pub(crate) columns: Vec<String>,
}

fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

impl Context {
    pub(crate) fn new(global: &Global) -> Self {
        Self {
            root: Root::new(&global.root),
            format: global.output,
            columns: global.columns.clone(),
        }
    }

    pub(crate) fn machine(&self) -> Machine {
        Machine::read(&self.root)
    }

    /// The same, with the portals and channels of programs.
    pub(crate) fn machine_with_messages(&self) -> Machine {
        let mut machine = self.machine();
        machine.read_messages(&self.root);
        machine
    }

    /// Fails if the command does not print what was asked for.
    pub(crate) fn need_format(&self, command: &str, formats: &[Format]) -> Result<(), Failure> {
        if formats.contains(&self.format) {
            return Ok(());
        }
        let name = |format: &Format| Some(format.to_possible_value()?.get_name().to_owned());
        let what = format!(
            "{command} --output {}",
            name(&self.format).unwrap_or_default()
        );
        let known: Vec<String> = formats.iter().filter_map(name).collect();
        let failure = Failure::usage(what, "the command has no such output");
        Err(failure.todo(format!("take one of: {}", known.join(" "))))
    }

    /// Prints to standard output. If nobody reads it any more, the command ends without a word.
    pub(crate) fn print(&self, text: &str) -> Result<(), Failure> {
        print(text).map_err(|error| {
            let failure = Failure::system("standard output", &error);
            match error.kind() {
                io::ErrorKind::BrokenPipe => failure.unread(),
                _ => failure,
            }
        })
    }

    /// Prints what is going to be done, which happens whether somebody listens or not.
    pub(crate) fn announce(&self, text: &str) {
        if let Err(error) = print(text) {
            note!("warning: standard output: {error}");
        }
    }

    /// A line, unless the output is for programs.
    pub(crate) fn say(&self, text: &str) -> Result<(), Failure> {
        self.print(&format!("{text}\n"))
    }

    /// Prints the files that could not be read; documents contain them.
    pub(crate) fn warn(&self, notes: &[Note]) {
        for note in notes {
            note!("warning: {}: {}", note.file, note.why);
        }
    }

    /// Fails if the block client or server is not there.
    pub(crate) fn need(&self, side: Side) -> Result<(), Failure> {
        if host::has(&self.root, side) {
            return Ok(());
        }
        let module = Family::Ibnbd.module(side);
        let more = match side {
            Side::Client => "",
            Side::Server => " dev_search_path=DIRECTORY",
        };
        let failure = Failure::new(NO_MODULE, module, "the module is not loaded");
        Err(failure.todo(format!("modprobe {module}{more}")))
    }

    /// Tells people why there is nothing to show.
    pub(crate) fn explain_nothing(&self, machine: &Machine) {
        let loaded = Side::ALL.iter().any(|side| host::has(&self.root, *side));
        if machine.is_empty() && !loaded && self.format == Format::Table {
            note!("neither ibnbd_client nor ibnbd_server is loaded; see `ibnbd check`");
        }
    }
}
