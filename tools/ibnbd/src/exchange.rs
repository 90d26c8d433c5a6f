// SPDX-License-Identifier: GPL-2.0

//! Files that are written as a whole.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{fchown, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Mode and owner of a file that is written.
pub enum Mode {
    /// Those of the file that it replaces.
    OfOld(Metadata),
    /// The user's, as the system gives them.
    Usual,
    /// Nobody else can read it.
    Private,
}

/// Puts a file in the place of another one, which need not be there: a concurrent reader gets the old file or the new
/// one, even after a power failure.
///
/// # Errors
///
/// The system's. The old file is as it was.
pub fn exchange(target: &Path, bytes: &[u8], mode: &Mode) -> io::Result<()> {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let partial = target.with_file_name(name);
    // Of a command that was killed.
    let _ = fs::remove_file(&partial);
    let written = write_new(&partial, bytes, mode).and_then(|()| fs::rename(&partial, target));
    if written.is_err() {
        // If it was made at all.
        let _ = fs::remove_file(&partial);
    }
    let folder = match target.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    written.and_then(|()| File::open(folder)?.sync_all())
}

/// Writes a file that is not there.
fn write_new(file: &Path, bytes: &[u8], mode: &Mode) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    // Nobody reads meanwhile what is not for them.
    if !matches!(mode, Mode::Usual) {
        options.mode(0o600);
    }
    let mut new = options.open(file)?;
    new.write_all(bytes)?;
    if let Mode::OfOld(old) = mode {
        // Only root may give it to another user, but the group may still be one of ours.
        let group = fchown(&new, None, Some(old.gid()));
        let _ = fchown(&new, Some(old.uid()), None);
        // Another group must not read what the old group could.
        let allowed = if group.is_ok() { 0o777 } else { 0o707 };
        new.set_permissions(Permissions::from_mode(old.mode() & allowed))?;
    }
    new.sync_all()
}
