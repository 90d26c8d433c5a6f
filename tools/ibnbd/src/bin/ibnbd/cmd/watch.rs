// SPDX-License-Identifier: GPL-2.0

//! `watch`.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use ibnbd_host::clock;
use ibnbd_host::uevent::{Event, Socket};

use super::Done;
use crate::cli::Format;
use crate::context::Context;
use crate::fail::{Failure, REFUSED};

pub(crate) const EXAMPLES: &str = "\
Examples:
  ibnbd watch
  ibnbd watch -n 1                            ends after the first event
  ibnbd watch -o json";

#[derive(Args, Debug)]
pub(crate) struct WatchArgs {
    /// Ends after that many
    #[arg(short = 'n', long)]
    pub(crate) count: Option<u64>,
}

pub(super) fn watch(context: &Context, count: Option<u64>) -> Done {
    context.need_format("watch", &[Format::Table, Format::Json])?;
    let socket =
        Socket::open().map_err(|error| Failure::system("cannot listen for events", &error))?;
    let mut left = count;
    while left != Some(0) {
        match socket
            .next(now)
            .map_err(|error| Failure::system("cannot wait for events", &error))?
        {
            Some(event) => print(context, &event)?,
            None => {
                note!("warning: events were lost: they came faster than they were read");
                continue;
            }
        }
        left = left.map(|n| n.saturating_sub(1));
    }
    Ok(0)
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

fn print(context: &Context, event: &Event) -> Result<(), Failure> {
    if context.format != Format::Json {
        let time = clock::text(event.time.saturating_mul(1000));
        return context.say(&format!("{time}  {}", event.text()));
    }
    let line =
        serde_json::to_string(event).map_err(|e| Failure::new(REFUSED, "json", e.to_string()))?;
    context.say(&line)
}
