// SPDX-License-Identifier: GPL-2.0

//! `policy` and `set`.

use clap::Args;
use ibnbd_host::advice::Task;
use ibnbd_host::config::plan;
use ibnbd_host::family::{Family, Side};
use ibnbd_host::find::{self, Unclear};
use ibnbd_host::model::Machine;
use ibtrs_proto::settings::Setting;

use super::{paths, Done};
use crate::act;
use crate::context::Context;
use crate::fail::Failure;

pub(crate) const POLICY_EXAMPLES: &str = "\
Examples:
  ibnbd policy s                              says which it is
  ibnbd policy s round-robin";

pub(crate) const SET_HELP: &str = "\
Settings of a session: mp_policy, max_reconnect_attempts, failover_time_ms, reconnect_delay_ms,
hb_interval_ms, hb_missed_max, queue_timeout_s, reauth_interval_s, key_id. Of a disk: io_timeout_ms,
io_timeout_limit, identity (auto or none), cache_lost and checksum_errors (0 only).

Example:
  ibnbd set s queue_timeout_s=300 failover_time_ms=2000";

#[derive(Args, Debug)]
pub(crate) struct PolicyArgs {
    /// A session
    pub(crate) session: String,
    /// min-inflight, round-robin or min-latency
    pub(crate) policy: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    /// A session or a disk
    pub(crate) name: String,
    /// Settings
    #[arg(required = true, value_name = "SETTING=VALUE")]
    pub(crate) settings: Vec<String>,
}

const OF_DISK: [&str; 5] = [
    "io_timeout_ms",
    "io_timeout_limit",
    "identity",
    "cache_lost",
    "checksum_errors",
];

pub(super) fn policy(context: &Context, name: &str, policy: Option<&str>) -> Done {
    context.need(Side::Client)?;
    let machine = context.machine();
    let session = paths::session(&machine, name)?;
    match policy {
        None => context.say(session.settings.mp_policy.as_deref().unwrap_or("unknown"))?,
        Some(policy) => write(
            context,
            &session.name,
            &session.folder(),
            "mp_policy",
            policy,
        )?,
    }
    Ok(0)
}

pub(super) fn set(context: &Context, name: &str, settings: &[String]) -> Done {
    context.need(Side::Client)?;
    let machine = context.machine();
    let (kind, folder, known) = target(context, &machine, name)?;
    let unknown = format!("{kind} has no such setting");
    let pairs = settings
        .iter()
        .map(|text| super::setting(text, &known, &unknown));
    // All names and values are checked before the first one is set.
    let mut pairs: Vec<_> = pairs.collect::<Result<_, _>>()?;
    pairs.sort_by_key(|(key, _)| plan::order(key));
    for (key, value) in pairs {
        write(context, name, &folder, key, value)?;
    }
    Ok(0)
}

/// The settings of a session.
fn of_session() -> Vec<&'static str> {
    let numbers = Setting::ALL.iter().map(|setting| setting.name);
    let texts = ["mp_policy", "max_reconnect_attempts"].into_iter();
    texts.chain(numbers).chain(["key_id"]).collect()
}

/// The kind of object, its folder and its settings.
fn target(
    context: &Context,
    machine: &Machine,
    name: &str,
) -> Result<(&'static str, String, Vec<&'static str>), Failure> {
    match find::disk(machine, &context.root, name) {
        Ok(disk) if disk.family == Family::Ibnbd => {
            return Ok(("a disk", disk.folder(), OF_DISK.to_vec()))
        }
        Err(why @ Unclear::Several(_)) => return Err(Failure::unclear("disk", name, &why)),
        _ => {}
    }
    let session = paths::session(machine, name)?;
    Ok(("a session", session.folder(), of_session()))
}

/// Sets one setting of a session or a disk.
pub(super) fn write(
    context: &Context,
    name: &str,
    folder: &str,
    key: &str,
    value: &str,
) -> Result<(), Failure> {
    let file = match key {
        // The block layer's own.
        "io_timeout_ms" => format!("{folder}/../queue/io_timeout"),
        _ => format!("{folder}/{key}"),
    };
    act::write(
        context,
        Task::Set,
        &format!("set {key}={value} of {name}"),
        &file,
        value,
    )
}
