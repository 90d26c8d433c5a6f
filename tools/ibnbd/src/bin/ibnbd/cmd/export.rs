// SPDX-License-Identifier: GPL-2.0

//! `export list`, `add` and `remove`.

use ibnbd_host::document::{Exports, FORMAT};
use ibnbd_host::folder::{self, Exported};
use ibnbd_proto::path::holds_every_device;

use super::Done;
use crate::cli::{Directory, ExportCommand};
use crate::context::Context;
use crate::fail::{Failure, NOT_FOUND, REFUSED};
use crate::out::{self, cell, Table};

pub(super) fn run(context: &Context, command: &ExportCommand) -> Done {
    match command {
        ExportCommand::List(directory) => list(context, directory),
        ExportCommand::Add {
            device,
            name,
            directory,
        } => add(context, device, name.as_deref(), directory),
        ExportCommand::Remove {
            name,
            force,
            directory,
        } => remove(context, name, *force, directory),
    }
}

fn directory(context: &Context, directory: &Directory) -> Result<String, Failure> {
    let found = match &directory.directory {
        Some(given) => Ok(given.clone()),
        None => folder::of_server(&context.root, directory.session.as_deref()),
    };
    found.map_err(|why| Failure::new(NOT_FOUND, "export", why))
}

fn list(context: &Context, of: &Directory) -> Done {
    let directory = directory(context, of)?;
    let machine = context.machine();
    context.warn(&machine.notes);
    let exports = folder::list(&context.root, &machine, &directory)
        .map_err(|error| Failure::system(format!("export list {directory}"), &error))?;
    let mut table = Table::new(["export", "device", "number", "size", "clients"]);
    for export in &exports {
        table.row(row(export));
    }
    let document = Exports {
        format: FORMAT,
        directory,
        exports,
        notes: machine.notes,
    };
    out::emit(context, &document, vec![table])?;
    Ok(0)
}

fn row(export: &Exported) -> [String; 5] {
    [
        export.name.clone(),
        cell(&export.device),
        format!("{}:{}", export.major, export.minor),
        out::size(export.size_bytes),
        export.sessions.join(" "),
    ]
}

fn add(context: &Context, device: &str, name: Option<&str>, of: &Directory) -> Done {
    let directory = directory(context, of)?;
    if holds_every_device(&directory) {
        let why = "that directory has all devices of the machine already";
        return Err(
            Failure::usage(format!("export add to {directory}"), why).todo(
                "load ibnbd_server with dev_search_path=DIRECTORY, one with nothing else in it",
            ),
        );
    }
    let name = name.unwrap_or_else(|| device.rsplit('/').next().unwrap_or(device));
    export(context, &directory, device, name)?;
    Ok(0)
}

/// Makes a device's file, unless it is there.
pub(super) fn export(
    context: &Context,
    directory: &str,
    device: &str,
    name: &str,
) -> Result<(), Failure> {
    if folder::is_below(name) && folder::same(&context.root, directory, device, name) {
        return Ok(());
    }
    folder::add(&context.root, directory, device, name).map_err(|error| {
        Failure::system(
            format!("cannot export {device} as {directory}/{name}"),
            &error,
        )
    })
}

fn remove(context: &Context, name: &str, force: bool, of: &Directory) -> Done {
    let directory = directory(context, of)?;
    let what = format!("cannot remove {directory}/{name}");
    let machine = context.machine();
    let exports = folder::list(&context.root, &machine, &directory).unwrap_or_default();
    let users = exports
        .iter()
        .find(|e| e.name == name)
        .map(|e| e.sessions.as_slice())
        .unwrap_or_default();
    if !users.is_empty() && !force {
        let why = format!("the device is open, by {}", users.join(" "));
        return Err(Failure::new(REFUSED, what, why)
            .todo("unmap it there, or take --force and `ibnbd close`: those who have it open go on without"));
    }
    folder::remove(&context.root, &directory, name)
        .map_err(|error| Failure::system(what, &error))?;
    Ok(0)
}
