// SPDX-License-Identifier: GPL-2.0

//! `rules`: who may bind portals, open channels over sessions, and use portals from other machines.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use ibmsg::rules::{self, Change, Rules, CONFIGFS, FILE};
use serde_json::json;

use crate::out::{Failure, Out, NO_MODULE, REFUSED};

#[derive(Args, Debug)]
pub(crate) struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Prints the rules in force, as lines of a file that `apply` takes
    Show,
    /// Makes the rules in force those of a file: adds, changes and removes
    Apply {
        /// The file
        #[arg(default_value = FILE)]
        file: PathBuf,
        /// Prints the changes, and makes none
        #[arg(long)]
        dry_run: bool,
    },
}

pub(crate) fn run(out: Out, command: &Command) -> Result<(), Failure> {
    let rules = Rules::below(Path::new(CONFIGFS));
    match &command.what {
        What::Apply { file, dry_run } => apply(out, &rules, file, *dry_run),
        What::Show => show(out, &there(rules)?),
    }
}

/// The rules, if there can be any.
fn there(rules: Rules) -> Result<Rules, Failure> {
    match rules.exist() {
        true => Ok(rules),
        false => Err(Failure::new(
            NO_MODULE,
            rules.path().display(),
            "not there: the module ibmsg is not loaded, or configfs is not mounted",
        )
        .with_remedy("modprobe ibmsg; mount -t configfs configfs /sys/kernel/config")),
    }
}

fn show(out: Out, rules: &Rules) -> Result<(), Failure> {
    let found = rules.read().map_err(|(path, e)| unreadable(&path, &e))?;
    for (place, name, settings) in found.folders() {
        let mut lines = vec![format!("[{}.{name:?}]", place.table())];
        let mut document = json!({ "kind": place.table(), "name": name });
        for (setting, value) in settings {
            lines.push(format!("{setting} = {value}"));
            document[setting] = json!(value.text());
        }
        out.say(lines.join("\n"), document)?;
    }
    Ok(())
}

fn apply(out: Out, rules: &Rules, file: &Path, dry_run: bool) -> Result<(), Failure> {
    let text = std::fs::read_to_string(file).map_err(|e| unreadable(file, &e))?;
    let wanted = rules::parse(&text, &rules::number)
        .map_err(|why| Failure::new(REFUSED, file.display(), why))?;
    // A wrong file is wrong without the module, too.
    if !rules.exist() {
        there(Rules::below(rules.path()))?;
    }
    let present = rules.read().map_err(|(path, e)| unreadable(&path, &e))?;
    for change in wanted.changes_from(&present) {
        if !dry_run {
            let done = rules.make(&change);
            done.map_err(|(path, e)| {
                Failure::new(REFUSED, path.display(), e)
                    .with_remedy("see the kernel log for the reason")
            })?;
        }
        out.say(change.to_string(), document(&change, !dry_run))?;
    }
    Ok(())
}

fn document(change: &Change, is_done: bool) -> serde_json::Value {
    json!({ "change": change.to_string(), "done": is_done })
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(REFUSED, path.display(), error)
}
