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
        .and_then(|()| keep_lines_of_all(folder))
        .map_err(|error| {
            Failure::system(format!("cannot write to {}", folder.display()), &error)
        })?;
    Ok(0)
}

/// Has no example of a page be wrapped to the width of a terminal.
fn keep_lines_of_all(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let file = entry?.path();
        let name = file.file_name().and_then(|name| name.to_str());
        let is_ours = name.is_some_and(|name| name.starts_with("ibnbd") && name.ends_with(".1"));
        if is_ours {
            let text = fs::read_to_string(&file)?;
            fs::write(&file, keep_lines(&text))?;
        }
    }
    Ok(())
}

/// A page whose indented lines are shown as they are.
fn keep_lines(page: &str) -> String {
    let Some((before, extra)) = page.split_once(".SH EXTRA\n") else {
        return page.to_owned();
    };
    let title = match extra.starts_with("Example") {
        true => "EXAMPLES",
        false => "NOTES",
    };
    let mut text = format!("{before}.SH {title}\n");
    let mut is_kept = false;
    for line in extra.lines() {
        let is_example = line.starts_with("  ");
        if is_example != is_kept {
            text += if is_example { ".nf\n" } else { ".fi\n" };
            is_kept = is_example;
        }
        text += line;
        text += "\n";
    }
    if is_kept {
        text += ".fi\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_keep_their_lines() {
        let page = ".TH a 1\n.SH EXTRA\nSays this\nand that.\n\nExamples:\n  ibnbd a   b\n  ibnbd c\n.SH VERSION\nv1\n";
        let kept = ".TH a 1\n.SH NOTES\nSays this\nand that.\n\nExamples:\n.nf\n  ibnbd a   b\n  ibnbd c\n.fi\n.SH VERSION\nv1\n";
        assert_eq!(keep_lines(page), kept);
        let last = ".SH EXTRA\nExample:\n  ibnbd a";
        let kept = ".SH EXAMPLES\nExample:\n.nf\n  ibnbd a\n.fi\n";
        assert_eq!(keep_lines(last), kept);
        assert_eq!(keep_lines(".SH NAME\na\n"), ".SH NAME\na\n");
    }
}
