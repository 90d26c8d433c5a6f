// SPDX-License-Identifier: GPL-2.0

//! Loads modules that a command needs.

use std::process::Command;

use ibnbd_host::family::{Family, Side};
use ibnbd_host::host;
use ibnbd_host::kmsg::Mark;

use crate::act;
use crate::context::Context;
use crate::fail::{Failure, REFUSED};

/// Loads the block client or server unless it is there. Its parameters are those of /etc/modprobe.d.
///
/// # Errors
///
/// As of [`load`]; users who may not load modules read that it is missing.
pub(super) fn ready(context: &Context, side: Side) -> Result<(), Failure> {
    let may_load = context.root.is_machine() && rustix::process::geteuid().is_root();
    if host::has(&context.root, side) || !may_load {
        return context.need(side);
    }
    load(context, Family::Ibnbd.module(side), &[])
}

/// Loads a module with parameters.
///
/// # Errors
///
/// What modprobe and the kernel say.
pub(super) fn load(context: &Context, module: &str, parameters: &[String]) -> Result<(), Failure> {
    let what = format!("cannot load {module}");
    if !context.root.is_machine() {
        return Err(Failure::new(
            REFUSED,
            what,
            "this is not a machine, but a folder that looks like one",
        ));
    }
    let mark = Mark::now(&context.root);
    let run = || {
        Command::new("modprobe")
            .arg(module)
            .args(parameters)
            .output()
    };
    let output = act::with_progress(&format!("load {module}"), run)
        .map_err(|error| Failure::system(&*what, &error))?;
    // modprobe takes a refusal with EEXIST for a module that is loaded already.
    let why = match (
        output.status.success(),
        host::is_live(&context.root, module),
    ) {
        (true, true) => return Ok(()),
        (true, false) => "modprobe has found no fault, but the module is not loaded".to_owned(),
        (false, _) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    };
    let mut failure = Failure::new(REFUSED, what, why)
        .todo("see Documentation/troubleshooting.md, \"Loading the server\"");
    failure.kernel = mark.map(Mark::lines).unwrap_or_default();
    Err(failure)
}
