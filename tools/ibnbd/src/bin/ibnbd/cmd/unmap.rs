// SPDX-License-Identifier: GPL-2.0

//! `unmap`.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use ibnbd_host::advice::Task;
use ibnbd_host::config::{self, plan};
use ibnbd_host::disk_name::DiskName;
use ibnbd_host::family::Side;
use ibnbd_host::find::{self, Unclear};
use ibnbd_host::kmsg::Mark;
use ibnbd_host::model::{Disk, Machine};
use ibnbd_host::root::is_gone;
use ibtrs_proto::Errno;

use super::{apply, map, save, Done};
use crate::act;
use crate::context::Context;
use crate::fail::{even_unread, Failure, REFUSED};

pub(crate) const EXAMPLES: &str = "\
Examples:
  ibnbd unmap ibnbd0
  ibnbd unmap ibnbd0,ibnbd1 --persist         nor will they be mapped at the next boot
  ibnbd unmap disk1@s                         by its name on the server, and its session
  ibnbd unmap --unused
  ibnbd unmap --unused web1/disk1             by its session and its name on the server";

#[derive(Args, Debug)]
pub(crate) struct Unmap {
    /// Disks, by any of their names; several with blanks or commas between them
    #[arg(required_unless_present = "unused")]
    pub(crate) disks: Vec<String>,
    /// Also if somebody uses them: their I/O fails
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Takes them out of /etc/ibtrs/client.toml as well
    #[arg(long)]
    pub(crate) persist: bool,
    /// Only those that nobody uses, of these disks or of all; names those that stay
    #[arg(long, conflicts_with_all = ["force", "persist"])]
    pub(crate) unused: bool,
    /// Of all disks, leaves those that say auto = false in the files in /etc/ibtrs
    #[arg(long, requires = "unused", conflicts_with = "disks")]
    pub(crate) auto: bool,
}

pub(super) fn unmap(context: &Context, words: &Unmap) -> Done {
    // Without the module no disk is mapped.
    if words.unused {
        return unmap_unused(context, words);
    }
    context.need(Side::Client)?;
    let machine = context.machine();
    let names = names(context, &machine, &words.disks);
    let disks = names
        .into_iter()
        .map(|name| map::disk(context, &machine, name));
    let disks: Result<Vec<&Disk>, _> = disks.collect();
    for disk in disks? {
        unmap_disk(context, disk, words.force)?;
        if let (true, Some(session), Some(device)) =
            (words.persist, &disk.session, &disk.mapping_path)
        {
            save::forget(context, session, device)?;
        }
    }
    Ok(0)
}

/// The names, also of lists with commas. A name may have a comma itself.
fn names<'a>(context: &Context, machine: &Machine, words: &'a [String]) -> Vec<&'a str> {
    let parts = |word: &'a String| match is_list(context, machine, word) {
        true => word.split(',').filter(|part| !part.is_empty()).collect(),
        false => vec![word.as_str()],
    };
    words.iter().flat_map(parts).collect()
}

/// Whether a word is a list of disks, and not the name of one. `SESSION/DEVICE` is a list only if each part is
/// `SESSION/DEVICE` of a session that is there: a unit that stops must not take the name of its disk for others.
fn is_list(context: &Context, machine: &Machine, word: &str) -> bool {
    let found = find::disk(machine, &context.root, word);
    if !matches!(found, Err(Unclear::Nothing)) {
        return false;
    }
    let mut parts = word.split(',').filter(|part| !part.is_empty()).peekable();
    if parts.peek().is_none() {
        return false;
    }
    let of_session = |part: &str| {
        let name = part.parse::<DiskName>().ok();
        name.is_some_and(|name| machine.our(Side::Client, &name.session).is_some())
    };
    match word.parse::<DiskName>() {
        Ok(_) => parts.all(of_session),
        Err(_) => true,
    }
}

/// The disks that are to go if nobody uses them. All of them: the last one first, as it may be made
/// of those before it. One that is not mapped has gone already.
fn candidates<'a>(
    context: &Context,
    machine: &'a Machine,
    words: &Unmap,
) -> Result<Vec<&'a Disk>, Failure> {
    if words.disks.is_empty() {
        let manual = match words.auto {
            true => manual(context)?,
            false => Vec::new(),
        };
        let stays = |disk: &&Disk| !manual.iter().any(|name| is_called(disk, name));
        return Ok(machine.our_disks().rev().filter(stays).collect());
    }
    let mut found = Vec::new();
    for name in names(context, machine, &words.disks) {
        match if_mapped(context, machine, name)? {
            Some(disk) => found.push(disk),
            None => even_unread(context.say(&format!("{name} is not mapped")))?,
        }
    }
    Ok(found)
}

/// A disk by any of its names, or none. `SESSION/DEVICE` is that disk or none: a device of another
/// session may have the same text as its name, and a unit that stops must leave that one alone.
fn if_mapped<'a>(
    context: &Context,
    machine: &'a Machine,
    name: &str,
) -> Result<Option<&'a Disk>, Failure> {
    if let Ok(name) = name.parse::<DiskName>() {
        return Ok(machine.our_disk(&name.session, &name.device));
    }
    match find::disk(machine, &context.root, name) {
        Err(Unclear::Nothing) => Ok(None),
        _ => map::disk(context, machine, name).map(Some),
    }
}

/// The disks that the files leave to units of their own.
fn manual(context: &Context) -> Result<Vec<DiskName>, Failure> {
    let config = apply::read(context, config::FOLDER)?;
    let disks = plan::disks(&context.root, &config).into_iter();
    let manual = disks.filter(|(_, disk)| disk.manual);
    Ok(manual.map(|(name, _)| name).collect())
}

fn is_called(disk: &Disk, name: &DiskName) -> bool {
    disk.session.as_ref() == Some(&name.session) && disk.mapping_path.as_ref() == Some(&name.device)
}

/// udev reads a disk that somebody has just closed, which takes a moment.
const UDEV_IS_DONE: Duration = Duration::from_secs(3);

/// Unmaps the disks that are not in use, and names the others.
fn unmap_unused(context: &Context, words: &Unmap) -> Done {
    let machine = context.machine();
    let mut left = candidates(context, &machine, words)?;
    let deadline = Instant::now() + UDEV_IS_DONE;
    let mut failed = false;
    loop {
        left.retain(|disk| {
            unmap_if_unused(context, disk).unwrap_or_else(|failure| {
                failure.print();
                failed = true;
                false
            })
        });
        if left.is_empty() || Instant::now() >= deadline {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    for disk in left {
        context.say(&format!("{} stays, as it is in use", disk.name))?;
    }
    Ok(u8::from(failed) * REFUSED)
}

/// Returns whether the disk is in use.
fn unmap_if_unused(context: &Context, disk: &Disk) -> Result<bool, Failure> {
    let mark = Mark::now(&context.root);
    let file = format!("{}/unmap_device", disk.folder());
    match context.root.write(&file, "normal") {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(true),
        // Another command unmaps it, or has not mapped it completely yet.
        Err(error) if error.raw_os_error() == Some(Errno::EALREADY.get()) => Ok(true),
        // Somebody else was faster.
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => {
            let what = format!("unmap {}", disk.name);
            Err(act::failure(Task::Unmap, &what, &error, mark))
        }
        Ok(()) => Ok(false),
    }
}

pub(super) fn unmap_disk(context: &Context, disk: &Disk, force: bool) -> Result<(), Failure> {
    let file = format!("{}/unmap_device", disk.folder());
    let how = if force { "force" } else { "normal" };
    act::write(
        context,
        Task::Unmap,
        &format!("unmap {}", disk.name),
        &file,
        how,
    )
}
