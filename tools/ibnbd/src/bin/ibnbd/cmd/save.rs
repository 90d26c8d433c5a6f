// SPDX-License-Identifier: GPL-2.0

//! `save`, and the implementation of `--persist`.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use clap::Args;
use ibnbd_host::config::keep::{self, Choice, Others};
use ibnbd_host::config::{self, Problem};
use ibnbd_host::configfs::Configured;
use ibnbd_host::family::Side;
use ibnbd_host::folder::{self, Exported};
use ibnbd_host::host;
use ibnbd_host::mapping;
use ibnbd_host::model::{Machine, Note};
use rustix::fs::{flock, FlockOperation};
use toml_edit::DocumentMut;

use super::{apply, args, configured, observe, Done};
use crate::act;
use crate::context::Context;
use crate::fail::{Failure, CONFIGURATION, REFUSED};

pub(crate) const EXAMPLES: &str = "\
Examples:
  ibnbd save --dry-run                        shows the files as they would be
  ibnbd save
  ibnbd save --prune                          what the machine has not leaves the files";

#[derive(Args, Debug)]
pub(crate) struct Save {
    /// Only shows the files as they would be
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Also takes out of the files what the machine has not
    #[arg(long)]
    pub(crate) prune: bool,
    #[command(flatten)]
    pub(crate) files: args::Files,
}

pub(super) fn save(context: &Context, words: &Save) -> Done {
    let folder = &words.files.config;
    let _lock = (!words.dry_run)
        .then(|| lock(context, folder))
        .transpose()?;
    let machine = context.machine();
    context.warn(&machine.notes);
    let server = Server::read(context, &machine);
    if let Some(server) = &server {
        context.warn(&server.configured.notes);
        context.warn(&server.notes);
    }
    if words.prune {
        need_all(context, &machine, server.as_ref())?;
    }
    let files = Files::read(context, folder)?;
    let edit = |prune| edited(context, &files, &machine, server.as_ref(), prune);
    let edited = edit(words.prune)?;
    if words.dry_run {
        for (file, text) in &edited.written {
            context.print(&format!("# {file}\n{text}"))?;
        }
    }
    let wrong = files.check(&edited);
    if wrong.is_empty() {
        return match words.dry_run {
            true => Ok(0),
            false => files.write(context, &edited).map(|()| 0),
        };
    }
    let prune_helps = !words.prune
        && need_all(context, &machine, server.as_ref()).is_ok()
        && files.check(&edit(true)?).is_empty();
    Err(files.wrong(&edited, &wrong, prune_helps))
}

/// The configuration of a server.
struct Server {
    configured: Configured,
    exports: Vec<Exported>,
    /// Its directory, if that could not be read.
    notes: Vec<Note>,
}

impl Server {
    fn read(context: &Context, machine: &Machine) -> Option<Self> {
        let root = &context.root;
        host::has(root, Side::Server).then(|| {
            let (exports, notes) = match exports(context, machine) {
                Ok(exports) => (exports, Vec::new()),
                Err(note) => (Vec::new(), vec![note]),
            };
            let configured = Configured::read(root, machine);
            Self {
                configured,
                exports,
                notes,
            }
        })
    }
}

fn exports(context: &Context, machine: &Machine) -> Result<Vec<Exported>, Note> {
    let Ok(directory) = folder::of_server(&context.root, None) else {
        return Ok(Vec::new());
    };
    // All devices of the machine are no list of exports.
    if ibnbd_proto::path::holds_every_device(&directory) {
        return Ok(Vec::new());
    }
    folder::list(&context.root, machine, &directory).map_err(|error| Note {
        file: directory,
        why: error.to_string(),
    })
}

/// Fails unless all that the machine has could be read: what could not be would go from the files.
fn need_all(context: &Context, machine: &Machine, server: Option<&Server>) -> Result<(), Failure> {
    let mut notes: Vec<&Note> = machine.notes.iter().collect();
    if let Some(server) = server {
        configured::need_ports(context)?;
        notes.extend(server.configured.notes.iter().chain(&server.notes));
    }
    let Some(note) = notes.first() else {
        return Ok(());
    };
    let why = "it could not be read, and what is there would go from the files";
    let todo = "see the warnings; without --prune nothing goes";
    Err(Failure::new(REFUSED, &*note.file, why).todo(todo))
}

fn edited(
    context: &Context,
    files: &Files<'_>,
    machine: &Machine,
    server: Option<&Server>,
    prune: bool,
) -> Result<Edited, Failure> {
    let root = &context.root;
    let mut edited = Edited::default();
    if host::has(root, Side::Client) {
        let choice = Choice {
            prune,
            ..Choice::default()
        };
        files.edit(&mut edited, "client.toml", |document, others| {
            keep::client(root, machine, document, others, choice, &mapping::resolve);
        })?;
    }
    if let Some(Server {
        configured,
        exports,
        ..
    }) = server
    {
        files.edit(&mut edited, "server.toml", |document, others| {
            keep::server(root, exports, configured, document, others, prune);
        })?;
    }
    Ok(edited)
}

/// Keeps others from changing the files until it is dropped. The file of the lock stays, as the
/// files that it is for are replaced; nobody else can open it, and so keep us waiting.
fn lock(context: &Context, folder: &str) -> Result<File, Failure> {
    let real = context.root.real(folder);
    let failed = |error: io::Error| Failure::system(format!("cannot lock {folder}"), &error);
    fs::create_dir_all(&real).map_err(failed)?;
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(real.join(".lock")).map_err(failed)?;
    let what = format!("wait for another command that changes {folder}");
    act::with_progress(&what, || loop {
        match flock(&file, FlockOperation::LockExclusive) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other,
        }
    })
    .map_err(|error| failed(error.into()))?;
    Ok(file)
}

/// The files of a configuration, as they are.
struct Files<'a> {
    folder: &'a str,
    texts: Vec<(String, String)>,
}

/// Files as they are to be.
#[derive(Default)]
struct Edited {
    written: Vec<(String, String)>,
    /// The reason why they cannot be written.
    problems: Vec<Problem>,
}

impl<'a> Files<'a> {
    /// Nothing is written over what is wrong.
    fn read(context: &Context, folder: &'a str) -> Result<Self, Failure> {
        apply::read(context, folder)?;
        let texts = config::files(&context.root, folder)
            .map_err(|(file, error)| Failure::system(file, &error))?;
        Ok(Self { folder, texts })
    }

    fn text(&self, file: &str) -> &str {
        let found = self.texts.iter().find(|(name, _)| name == file);
        found.map_or("", |(_, text)| text)
    }

    fn edit(
        &self,
        edited: &mut Edited,
        name: &str,
        change: impl FnOnce(&mut DocumentMut, &mut Others),
    ) -> Result<(), Failure> {
        let file = format!("{}/{name}", self.folder);
        let document = self.text(&file).parse();
        let mut document: DocumentMut = document.map_err(|error: toml_edit::TomlError| {
            Failure::new(CONFIGURATION, &*file, error.to_string())
        })?;
        let mut others = Others::of(&self.texts, &file);
        change(&mut document, &mut others);
        edited.written.push((file, document.to_string()));
        edited.problems.append(&mut others.problems);
        Ok(())
    }

    /// The faults that the files would have.
    fn check(&self, edited: &Edited) -> Vec<Problem> {
        let mut texts = edited.written.clone();
        let is_written = |name: &String| edited.written.iter().any(|(file, _)| file == name);
        let others = self.texts.iter().filter(|(name, _)| !is_written(name));
        texts.extend(others.cloned());
        let mut problems = edited.problems.clone();
        problems.extend(config::read(&texts).err().unwrap_or_default());
        problems.sort();
        problems
    }

    fn wrong(&self, edited: &Edited, wrong: &[Problem], prune_helps: bool) -> Failure {
        let lines: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        let why = format!(
            "{} of them do not go with what the machine has, and nothing was written\n{}",
            lines.len(),
            lines.join("\n")
        );
        let files: BTreeSet<&str> = wrong.iter().map(|problem| problem.file.as_str()).collect();
        let is_other = |file: &&str| !edited.written.iter().any(|(name, _)| name == file);
        let others: Vec<&str> = files.into_iter().filter(is_other).collect();
        let todo = if prune_helps {
            "give --prune, which takes out of the files what the machine does not have".to_owned()
        } else if others.is_empty() {
            "change these lines; `ibnbd save --dry-run` shows the files as they would be".to_owned()
        } else {
            format!(
                "change these lines of {}, or take them out",
                others.join(" and ")
            )
        };
        let what = format!("configuration in {}: lines", self.folder);
        Failure::new(CONFIGURATION, what, why).todo(todo)
    }

    /// Writes what differs.
    fn write(&self, context: &Context, edited: &Edited) -> Result<(), Failure> {
        for (file, text) in &edited.written {
            if text != self.text(file) {
                observe::replace(&context.root.real(file), text)?;
            }
        }
        Ok(())
    }
}

/// Writes one disk into `client.toml`.
pub(super) fn persist(
    context: &Context,
    session: &str,
    device: &str,
    port: Option<u16>,
) -> Result<(), Failure> {
    let folder = config::FOLDER;
    let _lock = lock(context, folder)?;
    let files = Files::read(context, folder)?;
    let machine = context.machine();
    let choice = Choice {
        only: Some((session, device)),
        prune: false,
        port,
    };
    let mut edited = Edited::default();
    files.edit(&mut edited, "client.toml", |document, others| {
        let root = &context.root;
        keep::client(root, &machine, document, others, choice, &mapping::resolve);
    })?;
    match files.check(&edited) {
        wrong if wrong.is_empty() => files.write(context, &edited),
        wrong => Err(files.wrong(&edited, &wrong, false)),
    }
}

/// Takes one disk out of it.
pub(super) fn forget(context: &Context, session: &str, device: &str) -> Result<(), Failure> {
    let folder = config::FOLDER;
    // Without files there is nothing to forget.
    if !context.root.exists(folder) {
        return Ok(());
    }
    let _lock = lock(context, folder)?;
    let files = Files::read(context, folder)?;
    let mut edited = Edited::default();
    let root = &context.root;
    files.edit(&mut edited, "client.toml", |document, others| {
        if keep::forget(root, document, session, device) {
            return;
        }
        for file in others.still_have(root, session, device) {
            note!(
                "warning: {file} still has {device} of session {session}: \
                 `ibnbd apply` maps it again"
            );
        }
    })?;
    files.write(context, &edited)
}
