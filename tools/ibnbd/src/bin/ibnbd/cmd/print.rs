// SPDX-License-Identifier: GPL-2.0

//! `completions` and `manpages`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};
use clap_complete::env::Shells;
use clap_complete::Shell;

use super::Done;
use crate::cli::Cli;
use crate::complete;
use crate::context::Context;
use crate::fail::Failure;

pub(crate) const COMPLETIONS_EXAMPLES: &str = "\
Example:
  ibnbd completions bash >/etc/bash_completion.d/ibnbd";

pub(crate) const MANPAGES_EXAMPLES: &str = "\
Example:
  ibnbd manpages /usr/local/share/man/man1";

#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// Which one
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Args, Debug)]
pub(crate) struct ManpagesArgs {
    /// Into that folder
    pub(crate) folder: PathBuf,
}

pub(super) fn completions(context: &Context, shell: Shell) -> Done {
    let mut text = Vec::new();
    let shells = Shells::builtins();
    let completer = shells.completer(&shell.to_string());
    let completer = completer
        .ok_or_else(|| Failure::system("completions", &io::ErrorKind::Unsupported.into()))?;
    completer
        .write_registration(complete::VARIABLE, "ibnbd", "ibnbd", "ibnbd", &mut text)
        .map_err(|error| Failure::system("completions", &error))?;
    context.print(&String::from_utf8_lossy(&text))?;
    Ok(0)
}

pub(super) fn manpages(folder: &Path) -> Done {
    fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
        .map_err(|error| {
            Failure::system(format!("cannot write to {}", folder.display()), &error)
        })?;
    Ok(0)
}
