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
        return context.say(&line(event));
    }
    let line =
        serde_json::to_string(event).map_err(|e| Failure::new(REFUSED, "json", e.to_string()))?;
    context.say(&line)
}

/// An event for people: when it came, and what it is.
fn line(event: &Event) -> String {
    let time = clock::text(event.time.saturating_mul(1000));
    format!("{time}  {}", event.text())
}

#[cfg(test)]
mod tests {
    use ibnbd_host::uevent;

    use super::*;

    #[test]
    fn a_line_begins_with_the_time() {
        let message = b"change@/class/ibtrs-client/s\0SUBSYSTEM=ibtrs-client\0\
            IBTRS_PATH=ip:10.0.1.2@ip:10.0.1.1\0IBTRS_STATE=connected\0";
        let event = uevent::parse(message, 1_764_376_027).unwrap();
        let line = line(&event);
        let (time, what) = line.split_once("  ").unwrap();
        // In the time zone of the machine, with the date, as it is not of today.
        assert_eq!(time, clock::text(1_764_376_027_000));
        assert!(
            time.starts_with("2025-11-2") && time.ends_with(":07"),
            "{time}"
        );
        assert_eq!(
            what,
            "ibtrs-client s: path ip:10.0.1.2@ip:10.0.1.1: connected"
        );
    }
}
