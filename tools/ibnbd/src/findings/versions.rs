// SPDX-License-Identifier: GPL-2.0

//! Modules of several versions, and those that were installed and are not loaded yet.

use std::io;
use std::time::Duration;

use super::{Finding, Severity};
use crate::host;
use crate::program;
use crate::root::Root;
use crate::value;

/// Of this command, and of the modules that belong to it.
const OWN: &str = env!("CARGO_PKG_VERSION");

/// How long `modinfo` may take.
const LIMIT: Duration = Duration::from_secs(5);

/// The remedy that loads the installed modules.
const EXCHANGE: &str = "unload all of them, and load those that are installed: see \"Restart the server\" and \"Update a client\" in Documentation/guide.md";

/// A module that is loaded.
struct Loaded {
    name: &'static str,
    version: String,
    source: Option<String>,
}

pub(super) fn all(root: &Root) -> Vec<Finding> {
    let loaded = loaded(root);
    let mut found = Vec::new();
    let Some(first) = loaded.first() else {
        return found;
    };
    if loaded.iter().any(|module| module.version != first.version) {
        let all: Vec<String> = loaded
            .iter()
            .map(|module| format!("{} {}", module.name, module.version))
            .collect();
        let what = format!(
            "modules of different versions are loaded: {}",
            all.join(", ")
        );
        found.push(Finding::new(Severity::Error, what, EXCHANGE));
    } else if first.version != OWN {
        let what = format!("this command has version {OWN}, and the modules that are loaded have {}: it may not know all that they can do, or the other way round", first.version);
        let remedy = "install the command and the modules of the same version";
        found.push(Finding::new(Severity::Warning, what, remedy));
    }
    found.extend(newer(root, &loaded));
    found
}

fn loaded(root: &Root) -> Vec<Loaded> {
    let word = |name: &str, file: &str| {
        let text = root.read(&format!("/sys/module/{name}/{file}")).ok()?;
        value::word(&text)
    };
    let one = |name: &&'static str| {
        Some(Loaded {
            name,
            version: word(name, "version")?,
            source: word(name, "srcversion"),
        })
    };
    host::MODULES.iter().filter_map(one).collect()
}

/// Modules whose files on disk are others than those that are loaded.
fn newer(root: &Root, loaded: &[Loaded]) -> Option<Finding> {
    let mut others = Vec::new();
    for module in loaded {
        // Without the program, or the file, nothing is known.
        let version = of_file(root, module.name, "version").ok()?;
        let source = of_file(root, module.name, "srcversion").ok()?;
        if version != module.version {
            others.push(format!("{} {version}", module.name));
        } else if module.source.as_ref().is_some_and(|own| *own != source) {
            others.push(format!("{} {version} of other sources", module.name));
        }
    }
    (!others.is_empty()).then(|| {
        let what = format!(
            "the modules that are loaded are not those that are installed: {}",
            others.join(", ")
        );
        Finding::new(Severity::Hint, what, EXCHANGE)
    })
}

/// What `modinfo` says of the file from which a module would be loaded now.
fn of_file(root: &Root, name: &str, field: &str) -> io::Result<String> {
    let mut modinfo = program::command(root, "modinfo");
    modinfo.args(["-F", field, name]);
    let text = program::output(modinfo, LIMIT)?;
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}
