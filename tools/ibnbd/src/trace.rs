// SPDX-License-Identifier: GPL-2.0

//! Latency of each part of a request, from trace events.
//!
//! The block layer has events for the issue and the completion of a request, the transport for its
//! submission to a path and for its end there. No number appears in all four. The driver submits
//! the request on the CPU on which the block layer has issued it, right afterwards. That relates
//! the sector to the transport's tag, and the sector identifies the request on completion. A request
//! that is to be sent once more goes back to the block layer, which has an event for that too, and
//! may come with another tag.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The events that are needed, by folder, in the order in which they are enabled. The issue of a request is
/// the last one: whatever begins before it is left out, as a part of its time would be missing.
pub const EVENTS: [(&str, &[&str]); 2] = [
    ("ibtrs", &["ibtrs_client_submit", "ibtrs_client_complete"]),
    (
        "block",
        &["block_rq_requeue", "block_rq_complete", "block_rq_issue"],
    ),
];

/// Requests that are followed at a time; of more, the oldest is forgotten. Few disks have a tenth
/// in flight.
const MOST: usize = 4096;

/// A request that has ended. Times are in microseconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Traced {
    /// When it ended, by the kernel's monotonic clock.
    pub time_us: u64,
    /// As `blktrace` has it: `R` read, `W` write, `D` discard, `F` flush, with letters that say
    /// more.
    pub operation: String,
    /// Where it begins, in sectors of 512 bytes.
    pub sector: u64,
    /// Its length.
    pub bytes: u64,
    /// From when the block layer issued it until it ended.
    pub total_us: u64,
    /// Of that, on this machine: before it was handed to a path, and after its answer.
    pub client_us: u64,
    /// Of that, on paths that were lost or have damaged it, and waiting before it was sent again.
    pub failover_us: u64,
    /// Of that, on the way to the server, there, and back.
    pub wire_and_server_us: u64,
    /// Of `wire_and_server_us`, all but the next two: cards, network and interrupts at both ends.
    /// Not known, as those, if the server does not tell its share.
    pub wire_us: Option<u64>,
    /// Of `wire_and_server_us`, on the server before its disk got the request.
    pub server_queue_us: Option<u64>,
    /// Of `wire_and_server_us`, on the server's disk.
    pub disk_us: Option<u64>,
    /// The path that it was answered on; not known if it ended without.
    pub path: Option<String>,
    /// 0, or an error number of the transport below 0.
    pub error: i32,
}

/// A line of `trace_pipe`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Line<'a> {
    /// An event.
    Event {
        /// The CPU.
        cpu: u32,
        /// Microseconds.
        time_us: u64,
        /// Its name.
        name: &'a str,
        /// Its fields.
        text: &'a str,
    },
    /// Events came faster than they were read.
    Lost,
}

/// Reads a line; none for one that is something else.
pub fn parse(line: &str) -> Option<Line<'_>> {
    if line.starts_with("CPU:") && line.contains("LOST") {
        return Some(Line::Lost);
    }
    // The name of a task may have anything in it.
    line.match_indices(" [")
        .find_map(|(at, _)| event(line.get(at..)?.strip_prefix(" [")?))
}

/// `001] d..1.   12.345678: name: text`.
fn event(rest: &str) -> Option<Line<'_>> {
    let (cpu, rest) = rest.split_once("] ")?;
    let (flags, rest) = rest.trim_start().split_once(' ')?;
    let (time, rest) = rest.trim_start().split_once(": ")?;
    let (name, text) = rest.split_once(": ")?;
    let (seconds, fraction) = time.split_once('.')?;
    let whole = seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?;
    let is_plain = |c: char| !c.is_ascii_whitespace();
    if fraction.len() != 6 || !flags.chars().all(is_plain) {
        return None;
    }
    Some(Line::Event {
        cpu: cpu.parse().ok()?,
        time_us: whole.checked_add(fraction.parse().ok()?)?,
        name,
        text,
    })
}

/// `252,0 WS 4096 () 8 + 8 ...` and `252,0 WS () 8 + 8 ...`: operation, sector, sectors.
fn block(text: &str) -> Option<(&str, u64, u64)> {
    let mut words = text.split(' ');
    let operation = words.nth(1)?;
    let (_, place) = text.split_once(") ")?;
    let mut words = place.split(' ');
    let sector = words.next()?.parse().ok()?;
    let sectors = (words.next()? == "+").then(|| words.next()?.parse().ok());
    Some((operation, sector, sectors??))
}

/// The value of `name=value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut words = text.split(' ').filter_map(|word| word.split_once('='));
    words.find(|(key, _)| *key == name).map(|(_, value)| value)
}

#[derive(Debug)]
struct Open {
    operation: String,
    sector: u64,
    sectors: u64,
    cpu: u32,
    issued_us: u64,
    sent: Option<Sent>,
    over: Option<Over>,
}

#[derive(Debug)]
struct Sent {
    /// None while the block layer has it once more.
    tag: Option<u64>,
    first_us: u64,
    /// Whether it was sent again.
    again: bool,
}

#[derive(Debug)]
struct Over {
    time_us: u64,
    on_path_us: u64,
    share: Option<ServerShare>,
    path: String,
    error: i32,
}

/// The times that the server reports.
#[derive(Clone, Copy, Debug)]
struct ServerShare {
    queue_us: u64,
    disk_us: u64,
}

impl ServerShare {
    /// Of an event; none if the server, or an older driver, says nothing.
    fn of(text: &str) -> Option<Self> {
        let us = |name| Some(field(text, name)?.parse::<u64>().ok()? / 1000);
        Some(Self {
            queue_us: us("queue_ns")?,
            disk_us: us("disk_ns")?,
        })
    }

    /// As far as it fits: nothing that a server says takes longer than its request.
    fn within(self, most_us: u64) -> Self {
        let disk_us = self.disk_us.min(most_us);
        let queue_us = self.queue_us.min(most_us.saturating_sub(disk_us));
        Self { queue_us, disk_us }
    }
}

impl Open {
    /// Returns the number of bytes that the transport carries for it.
    fn data(&self) -> u64 {
        let carries = ["R", "W"].iter().any(|kind| {
            let plain = self.operation.trim_start_matches('F');
            plain.starts_with(kind) && !plain.starts_with("WZ")
        });
        if carries {
            self.sectors.saturating_mul(512)
        } else {
            0
        }
    }

    /// Whether the transport does not have it.
    fn is_unsent(&self) -> bool {
        self.sent.as_ref().is_none_or(|sent| sent.tag.is_none())
    }

    fn has_tag(&self, tag: u64) -> bool {
        let sent = self.sent.as_ref().and_then(|sent| sent.tag);
        self.over.is_none() && sent == Some(tag)
    }

    fn ended(self, time_us: u64) -> Traced {
        let total_us = time_us.saturating_sub(self.issued_us);
        let (mut failover_us, mut wire_and_server_us) = (0, 0);
        if let Some((sent, over)) = self.sent.as_ref().zip(self.over.as_ref()) {
            let since_first = over.time_us.saturating_sub(sent.first_us);
            wire_and_server_us = over.on_path_us.min(since_first.max(1)).min(total_us);
            if sent.again {
                failover_us = since_first.saturating_sub(wire_and_server_us);
            }
        }
        let share = self.over.as_ref().and_then(|over| over.share);
        let share = share.map(|share| share.within(wire_and_server_us));
        Traced {
            time_us,
            bytes: self.sectors.saturating_mul(512),
            operation: self.operation,
            sector: self.sector,
            total_us,
            client_us: total_us
                .saturating_sub(failover_us)
                .saturating_sub(wire_and_server_us),
            failover_us,
            wire_and_server_us,
            wire_us: share.map(|share| {
                wire_and_server_us
                    .saturating_sub(share.queue_us)
                    .saturating_sub(share.disk_us)
            }),
            server_queue_us: share.map(|share| share.queue_us),
            disk_us: share.map(|share| share.disk_us),
            error: self.over.as_ref().map_or(0, |over| over.error),
            path: self.over.map(|over| over.path),
        }
    }
}

/// Follows the requests of one disk.
#[derive(Debug)]
pub struct Tracer {
    session: String,
    open: Vec<Open>,
}

impl Tracer {
    /// For a disk of that session. Its events of the block layer are the only ones that it is
    /// given.
    pub fn new(session: &str) -> Self {
        Self {
            session: session.to_owned(),
            open: Vec::new(),
        }
    }

    /// Takes an event, and returns the request that has ended with it.
    pub fn take(&mut self, cpu: u32, time_us: u64, name: &str, text: &str) -> Option<Traced> {
        match name {
            "block_rq_issue" => self.issued(cpu, time_us, text),
            "block_rq_requeue" => self.requeued(text),
            "ibtrs_client_submit" => self.submitted(cpu, time_us, text),
            "ibtrs_client_complete" => self.completed(time_us, text),
            "block_rq_complete" => return self.ended(time_us, text),
            _ => None,
        };
        None
    }

    fn issued(&mut self, cpu: u32, time_us: u64, text: &str) -> Option<()> {
        let (operation, sector, sectors) = block(text)?;
        let again = self.open.iter_mut().find(|o| {
            o.is_unsent()
                && (o.operation.as_str(), o.sector, o.sectors) == (operation, sector, sectors)
        });
        if let Some(open) = again {
            // It was put back into its queue.
            open.cpu = cpu;
            return None;
        }
        if self.open.len() >= MOST {
            self.open.remove(0);
        }
        self.open.push(Open {
            operation: operation.to_owned(),
            sector,
            sectors,
            cpu,
            issued_us: time_us,
            sent: None,
            over: None,
        });
        None
    }

    fn requeued(&mut self, text: &str) -> Option<()> {
        let (operation, sector, _) = block(text)?;
        let is_it =
            |o: &Open| !o.is_unsent() && (o.operation.as_str(), o.sector) == (operation, sector);
        let answered = self.open.iter().position(|o| is_it(o) && o.over.is_some());
        let at = answered.or_else(|| self.open.iter().position(is_it))?;
        let open = self.open.get_mut(at)?;
        open.over = None;
        let sent = open.sent.as_mut()?;
        (sent.tag, sent.again) = (None, true);
        None
    }

    fn submitted(&mut self, cpu: u32, time_us: u64, text: &str) -> Option<()> {
        let tag = self.tag(text)?;
        let mut sent = self.open.iter_mut().filter(|open| open.has_tag(tag));
        if let Some(sent) = sent.next().and_then(|open| open.sent.as_mut()) {
            sent.again = true;
            return None;
        }
        let bytes: u64 = field(text, "bytes")?.parse().ok()?;
        // The latest: what an interrupt began in between has been handed over since.
        let mut open = self.open.iter_mut().rev();
        let open = open.find(|o| o.is_unsent() && o.cpu == cpu && o.data() == bytes)?;
        let sent = open.sent.get_or_insert(Sent {
            tag: None,
            first_us: time_us,
            again: false,
        });
        sent.tag = Some(tag);
        None
    }

    fn completed(&mut self, time_us: u64, text: &str) -> Option<()> {
        let tag = self.tag(text)?;
        let open = self.open.iter_mut().find(|open| open.has_tag(tag))?;
        let ns: u64 = field(text, "ns")?.parse().ok()?;
        open.over = Some(Over {
            time_us,
            on_path_us: ns / 1000,
            share: ServerShare::of(text),
            path: field(text, "path")?.to_owned(),
            error: field(text, "error")?.parse().ok()?,
        });
        None
    }

    fn ended(&mut self, time_us: u64, text: &str) -> Option<Traced> {
        let (_, sector, _) = block(text)?;
        let ends = |open: &Open| open.sector == sector;
        let answered = self.open.iter().position(|o| ends(o) && o.over.is_some());
        let at = answered.or_else(|| self.open.iter().position(ends))?;
        Some(self.open.remove(at).ended(time_us))
    }

    /// The tag of an event of the disk's session.
    fn tag(&self, text: &str) -> Option<u64> {
        (field(text, "session")? == self.session).then(|| field(text, "tag")?.parse().ok())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(tracer: &mut Tracer, lines: &str) -> Vec<Traced> {
        lines
            .lines()
            .filter_map(|line| match parse(line)? {
                Line::Event {
                    cpu,
                    time_us,
                    name,
                    text,
                } => tracer.take(cpu, time_us, name, text),
                Line::Lost => None,
            })
            .collect()
    }

    const WRITE: &str = "\
     a [1] b-12 [001] ...1.    10.000100: block_rq_issue: 252,0 WS 4096 () 8 + 8 none,0,0 [a [1] b]
     a [1] b-12 [001] ...1.    10.000104: ibtrs_client_submit: session=s path=ip:10.0.1.1 tag=3 write bytes=4096
     a [1] b-12 [001] ...1.    10.000106: ibtrs_client_submit: session=other path=ip:10.0.9.1 tag=4 write bytes=4096
      <idle>-0  [000] ..s1.    10.000300: ibtrs_client_complete: session=s path=ip:10.0.1.1 tag=3 error=0 ns=195800
      <idle>-0  [000] ..s1.    10.000310: block_rq_complete: 252,0 WS () 8 + 8 none,0,0 [0]
";

    #[test]
    fn the_time_of_a_request_is_divided() {
        let ended = run(&mut Tracer::new("s"), WRITE);
        let expected = Traced {
            time_us: 10_000_310,
            operation: "WS".to_owned(),
            sector: 8,
            bytes: 4096,
            total_us: 210,
            client_us: 15,
            failover_us: 0,
            wire_and_server_us: 195,
            wire_us: None,
            server_queue_us: None,
            disk_us: None,
            path: Some("ip:10.0.1.1".to_owned()),
            error: 0,
        };
        assert_eq!(ended, [expected]);
    }

    /// The whole time of each request, and the shares of it.
    fn shares(ended: &[Traced]) -> Vec<(u64, u64, u64, u64)> {
        let of = |t: &Traced| (t.total_us, t.client_us, t.failover_us, t.wire_and_server_us);
        ended.iter().map(of).collect()
    }

    /// The times that the server reports, in an event of a request that took 195 us.
    #[test]
    fn the_servers_share_is_divided() {
        let shares = |said: &str| {
            let lines = WRITE.replace(" ns=195800", &format!(" ns=195800{said}"));
            let ended = run(&mut Tracer::new("s"), &lines);
            let t = ended.first().expect("a request").clone();
            assert_eq!(t.wire_and_server_us, 195);
            (t.wire_us, t.server_queue_us, t.disk_us)
        };
        let known = |wire, queue, disk| (Some(wire), Some(queue), Some(disk));
        assert_eq!(shares(" queue_ns=20999 disk_ns=100000"), known(75, 20, 100));
        assert_eq!(shares(" queue_ns=0 disk_ns=0"), known(195, 0, 0));
        // An older driver, and a server that says nothing.
        for said in [
            "",
            " queue_ns=-1 disk_ns=-1",
            " queue_ns=5000",
            " queue_ns=x disk_ns=1",
        ] {
            assert_eq!(shares(said), (None, None, None), "{said}");
        }
        // More than the request took: servers may say anything.
        assert_eq!(
            shares(" queue_ns=9000000 disk_ns=100000"),
            known(0, 95, 100)
        );
        assert_eq!(shares(" queue_ns=1000 disk_ns=9000000"), known(0, 0, 195));
        let most = format!(" queue_ns={} disk_ns={}", i64::MAX, u64::MAX);
        assert_eq!(shares(&most), known(0, 0, 195));
    }

    /// The first path is lost after 100 us; the second one takes 50 us.
    #[test]
    fn a_request_that_is_sent_again_has_a_share_for_that() {
        let lines = "\
 fio-1 [000] ..... 1.000000: block_rq_issue: 252,0 R 4096 () 16 + 8 none,0,0 [fio]
 fio-1 [000] ..... 1.000010: ibtrs_client_submit: session=s path=a tag=7 read bytes=4096
 kw-2  [001] ..... 1.000110: ibtrs_client_submit: session=s path=b tag=7 read bytes=4096
 kw-2  [001] ..... 1.000160: ibtrs_client_complete: session=s path=b tag=7 error=0 ns=50000
 kw-2  [001] ..... 1.000165: block_rq_complete: 252,0 R () 16 + 8 none,0,0 [0]
";
        let ended = run(&mut Tracer::new("s"), lines);
        assert_eq!(shares(&ended), [(165, 15, 100, 50)]);
        assert_eq!(ended.first().and_then(|t| t.path.as_deref()), Some("b"));
    }

    /// It is damaged on the way, pauses, and comes with another tag; the next one of its sector has
    /// nothing of it.
    #[test]
    fn a_request_that_was_damaged_is_one_request() {
        let lines = "\
 fio-1 [000] ..... 1.000000: block_rq_issue: 252,0 R 4096 () 16 + 8 none,0,0 [fio]
 fio-1 [000] ..... 1.000010: ibtrs_client_submit: session=s path=a tag=7 read bytes=4096
 kw-2  [001] ..... 1.000110: ibtrs_client_complete: session=s path=a tag=7 error=-74 ns=90000 queue_ns=1000 disk_ns=2000
 kw-2  [001] ..... 1.000120: block_rq_requeue: 252,0 R () 16 + 8 none,0,0 [0]
 kw-2  [001] ..... 1.010200: block_rq_issue: 252,0 R 4096 () 16 + 8 none,0,0 [kw]
 kw-2  [001] ..... 1.010210: ibtrs_client_submit: session=s path=b tag=9 read bytes=4096
 kw-2  [001] ..... 1.010270: ibtrs_client_complete: session=s path=b tag=9 error=0 ns=50000 queue_ns=10000 disk_ns=20000
 kw-2  [001] ..... 1.010280: block_rq_complete: 252,0 R () 16 + 8 none,0,0 [0]
 fio-1 [000] ..... 2.000000: block_rq_issue: 252,0 R 4096 () 16 + 8 none,0,0 [fio]
 fio-1 [000] ..... 2.000010: ibtrs_client_submit: session=s path=a tag=7 read bytes=4096
 kw-2  [001] ..... 2.000110: ibtrs_client_complete: session=s path=a tag=7 error=0 ns=90000
 kw-2  [001] ..... 2.000120: block_rq_complete: 252,0 R () 16 + 8 none,0,0 [0]
";
        let mut tracer = Tracer::new("s");
        let ended = run(&mut tracer, lines);
        assert_eq!(shares(&ended), [(10_280, 20, 10_210, 50), (120, 30, 0, 90)]);
        let of = |t: &Traced| (t.error, t.disk_us, t.path.clone());
        let said: Vec<_> = ended.iter().map(of).collect();
        assert_eq!(
            said,
            [
                (0, Some(20), Some("b".to_owned())),
                (0, None, Some("a".to_owned()))
            ]
        );
        assert!(tracer.open.is_empty());
    }

    /// The transport has no room for it, so it comes once more, and was not sent yet.
    #[test]
    fn a_request_that_is_put_back_unsent_is_not_sent_again() {
        let lines = "\
 fio-1 [000] ..... 1.000000: block_rq_issue: 252,0 R 4096 () 16 + 8 none,0,0 [fio]
 fio-1 [000] ..... 1.000005: block_rq_requeue: 252,0 R () 16 + 8 none,0,0 [0]
 kw-2  [001] ..... 1.000010: block_rq_issue: 252,0 R 4096 () 16 + 8 none,0,0 [kw]
 kw-2  [001] ..... 1.000020: ibtrs_client_submit: session=s path=a tag=7 read bytes=4096
 kw-2  [001] ..... 1.000120: ibtrs_client_complete: session=s path=a tag=7 error=0 ns=100000
 kw-2  [001] ..... 1.000130: block_rq_complete: 252,0 R () 16 + 8 none,0,0 [0]
";
        let ended = run(&mut Tracer::new("s"), lines);
        assert_eq!(shares(&ended), [(130, 30, 0, 100)]);
    }

    /// An interrupt comes between an event and the moment from which the transport measures: that
    /// is no failover.
    #[test]
    fn a_request_that_is_sent_once_has_no_share_for_failover() {
        let lines = "\
 fio-1 [000] ..... 1.000000: block_rq_issue: 252,0 R 4096 () 16 + 8 none,0,0 [fio]
 fio-1 [000] ..... 1.000010: ibtrs_client_submit: session=s path=a tag=7 read bytes=4096
 kw-2  [001] ..... 1.006060: ibtrs_client_complete: session=s path=a tag=7 error=0 ns=50000
 kw-2  [001] ..... 1.006065: block_rq_complete: 252,0 R () 16 + 8 none,0,0 [0]
";
        let ended = run(&mut Tracer::new("s"), lines);
        assert_eq!(shares(&ended), [(6065, 6015, 0, 50)]);
    }

    /// Events are enabled one after the other, and each takes its time: with any other event after the issue,
    /// requests of that time would seem to have spent all of it on this machine.
    #[test]
    fn requests_that_began_before_are_left_out() {
        let order = EVENTS.iter().flat_map(|(_, names)| names.iter());
        assert_eq!(order.last(), Some(&"block_rq_issue"));
        let (_, late) = WRITE.split_once('\n').expect("the issue");
        assert_eq!(run(&mut Tracer::new("s"), late), []);
    }

    /// An interrupt issues another request between the two events of the first one, on the same
    /// CPU.
    #[test]
    fn nested_requests_keep_their_tags() {
        let lines = "\
 a-1 [000] ..... 1.000000: block_rq_issue: 252,0 R 4096 () 0 + 8 none,0,0 [a]
 a-1 [000] ..s.. 1.000001: block_rq_issue: 252,0 R 4096 () 8 + 8 none,0,0 [a]
 a-1 [000] ..s.. 1.000002: ibtrs_client_submit: session=s path=inner tag=1 read bytes=4096
 a-1 [000] ..... 1.000003: ibtrs_client_submit: session=s path=outer tag=2 read bytes=4096
 a-1 [000] ..s.. 1.000010: ibtrs_client_complete: session=s path=inner tag=1 error=0 ns=8000
 a-1 [000] ..s.. 1.000011: ibtrs_client_complete: session=s path=outer tag=2 error=-5 ns=8000
 a-1 [000] ..s.. 1.000012: block_rq_complete: 252,0 R () 0 + 8 none,0,0 [0]
 a-1 [000] ..s.. 1.000013: block_rq_complete: 252,0 R () 8 + 8 none,0,0 [0]
";
        let ended = run(&mut Tracer::new("s"), lines);
        let found: Vec<_> = ended
            .iter()
            .map(|t| (t.sector, t.path.as_deref(), t.error))
            .collect();
        assert_eq!(found, [(0, Some("outer"), -5), (8, Some("inner"), 0)]);
    }

    /// Requests that failed for want of a path have no path, and all of their time was spent here.
    #[test]
    fn a_request_that_was_not_sent_is_shown() {
        let lines = "\
 a-1 [000] ..... 1.000000: block_rq_issue: 252,0 FF 0 () 0 + 0 none,0,0 [a]
 a-1 [000] ..... 1.000500: block_rq_complete: 252,0 FF () 0 + 0 none,0,0 [-5]
";
        let ended = run(&mut Tracer::new("s"), lines);
        let found: Vec<_> = ended
            .iter()
            .map(|t| (t.client_us, t.wire_and_server_us, t.path.clone()))
            .collect();
        assert_eq!(found, [(500, 0, None)]);
    }

    #[test]
    fn other_lines_are_none() {
        assert_eq!(parse("CPU:1 [LOST 12 EVENTS]"), Some(Line::Lost));
        for line in [
            "",
            "# tracer: nop",
            "x [1",
            "x [001] d.. 1.5: n: t",
            "x [q] d.. 1.000005: n: t",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
        let mut tracer = Tracer::new("s");
        for text in [
            "",
            "252,0",
            "252,0 R 1 () x + 8",
            ") ",
            "session=s tag=99999999999999999999",
        ] {
            for (_, names) in EVENTS {
                for name in names {
                    assert_eq!(tracer.take(0, 0, name, text), None);
                }
            }
        }
        assert!(tracer.open.is_empty());
    }

    /// Requests whose ends are never told are forgotten.
    #[test]
    fn what_is_open_is_bounded() {
        let mut tracer = Tracer::new("s");
        for sector in 0..MOST + 10 {
            let text = format!("252,0 R 512 () {sector} + 1 none,0,0 [a]");
            tracer.take(0, 0, "block_rq_issue", &text);
        }
        assert_eq!(tracer.open.len(), MOST);
        assert_eq!(tracer.open.first().map(|open| open.sector), Some(10));
    }
}
