// SPDX-License-Identifier: GPL-2.0

//! `save`, and the implementation of `--persist`.

use std::fs;
use std::io;

use ibnbd_host::config::keep::{self, Choice};
use ibnbd_host::configfs::Configured;
use ibnbd_host::family::Side;
use ibnbd_host::model::Machine;
use ibnbd_host::{folder, host};
use toml_edit::DocumentMut;

use super::{apply, observe, Done};
use crate::cli::Save;
use crate::context::Context;
use crate::fail::{Failure, CONFIGURATION};

pub(super) fn save(context: &Context, words: &Save) -> Done {
    // Nothing is written over what is wrong.
    apply::read(context, &words.files.config)?;
    let machine = context.machine();
    context.warn(&machine.notes);
    let choice = Choice {
        prune: words.prune,
        ..Choice::default()
    };
    let mut files = Vec::new();
    if host::has(&context.root, Side::Client) {
        files.push(edit(
            context,
            &words.files.config,
            "client.toml",
            |document| {
                keep::client(&context.root, &machine, document, choice);
            },
        )?);
    }
    if host::has(&context.root, Side::Server) {
        let exports = exports(context, &machine);
        let configured = Configured::read(&context.root, &machine);
        context.warn(&configured.notes);
        files.push(edit(
            context,
            &words.files.config,
            "server.toml",
            |document| {
                keep::server(&context.root, &exports, &configured, document, words.prune);
            },
        )?);
    }
    for (file, text) in files {
        if words.dry_run {
            context.print(&format!("# {file}\n{text}"))?;
        } else {
            write(context, &file, &text)?;
        }
    }
    Ok(0)
}

fn exports(context: &Context, machine: &Machine) -> Vec<folder::Exported> {
    let Ok(directory) = folder::of_server(&context.root, None) else {
        return Vec::new();
    };
    // All devices of the machine are no list of exports.
    if ibnbd_proto::path::holds_every_device(&directory) {
        return Vec::new();
    }
    folder::list(&context.root, machine, &directory).unwrap_or_default()
}

/// A file as it is to be.
fn edit(
    context: &Context,
    folder: &str,
    name: &str,
    change: impl FnOnce(&mut DocumentMut),
) -> Result<(String, String), Failure> {
    let file = format!("{folder}/{name}");
    let text = match context.root.read(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        other => other.map_err(|error| Failure::system(&*file, &error))?,
    };
    let mut document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
        Failure::new(CONFIGURATION, &*file, error.to_string())
    })?;
    change(&mut document);
    Ok((file, document.to_string()))
}

fn write(context: &Context, file: &str, text: &str) -> Result<(), Failure> {
    let real = context.root.real(file);
    if let Some(parent) = real.parent() {
        fs::create_dir_all(parent).map_err(|error| Failure::system(file, &error))?;
    }
    observe::replace(&real, text)
}

/// Writes one disk into `client.toml`.
pub(super) fn persist(
    context: &Context,
    session: &str,
    device: &str,
    port: Option<u16>,
) -> Result<(), Failure> {
    let folder = ibnbd_host::config::FOLDER;
    apply::read(context, folder)?;
    let machine = context.machine();
    let choice = Choice {
        only: Some((session, device)),
        prune: false,
        port,
    };
    let (file, text) = edit(context, folder, "client.toml", |document| {
        keep::client(&context.root, &machine, document, choice);
    })?;
    write(context, &file, &text)
}

/// Takes one disk out of it.
pub(super) fn forget(context: &Context, session: &str, device: &str) -> Result<(), Failure> {
    let folder = ibnbd_host::config::FOLDER;
    apply::read(context, folder)?;
    let mut found = false;
    let (file, text) = edit(context, folder, "client.toml", |document| {
        found = keep::forget(&context.root, document, session, device);
    })?;
    if found {
        write(context, &file, &text)?;
    }
    Ok(())
}
