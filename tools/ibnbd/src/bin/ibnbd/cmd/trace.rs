// SPDX-License-Identifier: GPL-2.0

//! `trace`.

use std::fs::{self, File, OpenOptions};
use std::future;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::task::Poll;
use std::time::Duration;

use clap::Args;
use ibnbd_host::model::Disk;
use ibnbd_host::trace::{self, Line, Traced, Tracer};
use ibnbd_host::Root;
use rustix::fs::OFlags;
use tokio::signal::unix::{signal, Signal, SignalKind};

use super::{map, Done};
use crate::cli::Format;
use crate::context::Context;
use crate::fail::{Failure, NOT_FOUND, REFUSED};
use crate::interrupt;

pub(crate) const HELP: &str = "\
Times are in microseconds. CLIENT was spent on this machine, FAILOVER on paths that were lost or have
damaged the request, and SERVER on the way to the server, there, and back. Of SERVER, QUEUE was spent on
the server before its disk got the request, DISK on that disk, and WIRE on the rest of the way; a dash if
the server does not tell.
Ctrl-C ends it.

Example:
  ibnbd trace ibnbd0 --slower-than 10         requests that took 10 ms or more";

#[derive(Args, Debug)]
pub(crate) struct Trace {
    /// A disk
    pub(crate) disk: String,
    /// Only requests that took at least that many milliseconds
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    pub(crate) slower_than: Option<f64>,
    /// Ends after that many
    #[arg(short = 'n', long)]
    pub(crate) count: Option<u64>,
}

fn milliseconds(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok();
    let number = number.filter(|ms| ms.is_finite() && *ms >= 0.0);
    number.ok_or_else(|| "it is not a number of milliseconds".to_owned())
}

/// Where tracefs may be.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// How often events are fetched.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes of events that are fetched at once.
const PIECE: usize = 1 << 16;

const HEAD: &str =
    "         TIME  OP     SECTOR       BYTES    TOTAL   CLIENT FAILOVER  SERVER    WIRE   QUEUE    DISK  ERROR  PATH\n";

pub(super) fn trace(context: &Context, words: &Trace) -> Done {
    context.need_format("trace", &[Format::Table, Format::Json])?;
    let machine = context.machine();
    let disk = map::disk(context, &machine, &words.disk)?;
    let session = disk.session.as_deref().unwrap_or_default();
    let failed = |error| Failure::system(format!("cannot trace {}", disk.name), &error);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    runtime.block_on(async {
        // Before there is an instance, which would outlive a command that dies of a signal.
        let mut signals = Signals::new().map_err(failed)?;
        let instance = Instance::new(&context.root, disk, session)?;
        let mut reader = Lines {
            pipe: instance.pipe().map_err(failed)?,
            rest: Vec::new(),
        };
        let mut show = Show {
            context,
            slower_than_us: words.slower_than.map_or(0.0, |ms| ms * 1000.0),
            left: words.count,
            tracer: Tracer::new(session),
        };
        if context.format == Format::Table {
            context.print(HEAD)?;
        }
        loop {
            while let Some(lines) = reader.next().map_err(failed)? {
                for line in lines.lines() {
                    show.take(line)?;
                    if show.left == Some(0) {
                        return Ok(0);
                    }
                }
            }
            if tokio::time::timeout(PAUSE, signals.any()).await.is_ok() {
                return Ok(0);
            }
        }
    })
}

/// The signals that end the command: from now on they only end its loop.
struct Signals(Vec<Signal>);

impl Signals {
    fn new() -> io::Result<Self> {
        let kinds = [
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::terminate(),
        ];
        let taken = kinds
            .into_iter()
            .filter(|kind| !interrupt::is_ignored(*kind));
        Ok(Self(taken.map(signal).collect::<io::Result<_>>()?))
    }

    /// Waits for one of them.
    async fn any(&mut self) {
        future::poll_fn(|context| {
            let came = |signal: &mut Signal| signal.poll_recv(context).is_ready();
            if self.0.iter_mut().any(came) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

struct Show<'a> {
    context: &'a Context,
    slower_than_us: f64,
    left: Option<u64>,
    tracer: Tracer,
}

impl Show<'_> {
    fn take(&mut self, line: &str) -> Result<(), Failure> {
        let traced = match trace::parse(line) {
            Some(Line::Event {
                cpu,
                time_us,
                name,
                text,
            }) => self.tracer.take(cpu, time_us, name, text),
            Some(Line::Lost) => {
                note!("warning: events were lost: they came faster than they were read");
                None
            }
            None => None,
        };
        let Some(traced) = traced.filter(|t| t.total_us as f64 >= self.slower_than_us) else {
            return Ok(());
        };
        self.left = self.left.map(|n| n.saturating_sub(1));
        self.print(&traced)
    }

    fn print(&self, traced: &Traced) -> Result<(), Failure> {
        if self.context.format == Format::Json {
            let line = serde_json::to_string(traced)
                .map_err(|e| Failure::new(REFUSED, "json", e.to_string()))?;
            return self.context.say(&line);
        }
        let t = traced;
        self.context.say(&format!(
            "{:>6}.{:06}  {:<4} {:>8} {:>11} {:>8} {:>8} {:>8} {:>7} {:>7} {:>7} {:>7} {:>6}  {}",
            t.time_us / 1_000_000,
            t.time_us % 1_000_000,
            t.operation,
            t.sector,
            t.bytes,
            t.total_us,
            t.client_us,
            t.failover_us,
            t.wire_and_server_us,
            or_dash(t.wire_us),
            or_dash(t.server_queue_us),
            or_dash(t.disk_us),
            t.error,
            t.path.as_deref().unwrap_or("-"),
        ))
    }
}

fn or_dash(us: Option<u64>) -> String {
    us.map_or_else(|| "-".to_owned(), |us| us.to_string())
}

/// A buffer of tracefs of our own: others may trace at the same time.
struct Instance {
    folder: PathBuf,
}

impl Instance {
    fn new(root: &Root, disk: &Disk, session: &str) -> Result<Self, Failure> {
        let what = format!("cannot trace {}", disk.name);
        let place = TRACEFS
            .iter()
            .find(|place| root.exists(&format!("{place}/instances")));
        let Some(place) = place else {
            // Nobody but root sees what is in there.
            return Err(if rustix::process::geteuid().is_root() {
                Failure::new(NOT_FOUND, what, "there is no tracefs")
                    .todo("mount -t tracefs tracefs /sys/kernel/tracing")
            } else {
                Failure::system(what, &io::ErrorKind::PermissionDenied.into())
            });
        };
        let folder = root.real(&format!("{place}/instances/ibnbd-{}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| Failure::system(&*what, &error))?;
        let instance = Self { folder };
        let number = number(root, disk).map_err(|error| Failure::system(&*what, &error))?;
        let enabled = instance.enable(number, session);
        enabled.map_err(|error| Failure::system(what, &error))?;
        Ok(instance)
    }

    fn enable(&self, number: u64, session: &str) -> io::Result<()> {
        let write = |file: &str, text: &str| fs::write(self.folder.join(file), text);
        write("trace_clock", "mono")?;
        for (group, events) in trace::EVENTS {
            let filter = match group {
                "block" => format!("dev == {number}"),
                _ => format!("session == \"{session}\""),
            };
            for event in events {
                write(&format!("events/{group}/{event}/filter"), &filter)?;
                write(&format!("events/{group}/{event}/enable"), "1")?;
            }
        }
        Ok(())
    }

    fn pipe(&self) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(self.folder.join("trace_pipe"))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // That switches its events off. It cannot fail but for somebody who uses it as well.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// A device's number as the kernel keeps it, and not as user space does.
fn number(root: &Root, disk: &Disk) -> io::Result<u64> {
    let text = root.read(&format!("/sys/block/{}/dev", disk.name))?;
    let parts = text.trim().split_once(':');
    let number = parts.and_then(|(major, minor)| {
        let (major, minor) = (major.parse::<u64>().ok()?, minor.parse::<u64>().ok()?);
        Some((major << 20) | minor)
    });
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The pipe, a number of whole lines at a time.
struct Lines {
    pipe: File,
    rest: Vec<u8>,
}

impl Lines {
    /// None if there is nothing more for now.
    fn next(&mut self) -> io::Result<Option<String>> {
        let mut piece = vec![0; PIECE];
        let read = match self.pipe.read(&mut piece) {
            Ok(0) => return Ok(None),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        self.rest.extend(piece.iter().take(read));
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n');
        let lines: Vec<u8> = self.rest.drain(..whole.map_or(0, |at| at + 1)).collect();
        Ok(Some(String::from_utf8_lossy(&lines).into_owned()))
    }
}
