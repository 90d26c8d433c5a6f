// SPDX-License-Identifier: GPL-2.0

//! Parsers of the contents of files. Each function returns `None` for a text of another form.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A line: the text without the newline at its end.
pub fn line(text: &str) -> Option<String> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    (!text.contains('\n')).then(|| text.to_owned())
}

/// A line that is not empty.
pub fn word(text: &str) -> Option<String> {
    line(text).filter(|text| !text.is_empty())
}

/// A number.
pub fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    line(text)?.trim().parse().ok()
}

/// A number, or none on an empty line.
pub fn optional(text: &str) -> Option<Option<u64>> {
    match line(text)?.trim() {
        "" => Some(None),
        text => text.parse().ok().map(Some),
    }
}

/// `0` or `1`, `N` or `Y`.
pub fn flag(text: &str) -> Option<bool> {
    match line(text)?.as_str() {
        "0" | "N" => Some(false),
        "1" | "Y" => Some(true),
        _ => None,
    }
}

/// Bytes, from a number of sectors of 512.
pub fn sectors(text: &str) -> Option<u64> {
    number::<u64>(text)?.checked_mul(512)
}

/// Nanoseconds: `123 ns`. Zero stands for none, and so does mainline's `-1`.
pub fn nanoseconds(text: &str) -> Option<Option<u64>> {
    let text = line(text)?;
    let number: i64 = text
        .strip_suffix("ns")
        .unwrap_or(&text)
        .trim()
        .parse()
        .ok()?;
    Some(u64::try_from(number).ok().filter(|&n| n > 0))
}

/// The policy of a session: the word of `min-inflight (MI: 1)`.
pub fn policy(text: &str) -> Option<String> {
    let text = line(text)?;
    let word = text.split_whitespace().next()?;
    Some(word.to_owned())
}

/// A time in seconds as people write it: `90`, `90s`, `10m`, `2h`.
pub fn seconds(text: &str) -> Option<u64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// A size as people write it: `10G`, `512M`, `4096`, `2048s`; bytes, or sectors with `s`.
///
/// K, M, G, T and P are powers of 1024, with or without `iB`.
pub fn size(text: &str) -> Option<u64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "" | "B" => 1,
        "s" => 512,
        "K" | "k" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "T" | "TiB" => 1 << 40,
        "P" | "PiB" => 1 << 50,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// A size for people: `64.0 MiB`.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// The I/O of a path: `stats/rdma`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    /// Reads that were handed to the path.
    pub reads: u64,
    /// Bytes of these.
    pub read_bytes: u64,
    /// Writes and all other operations.
    pub writes: u64,
    /// Bytes of these.
    pub write_bytes: u64,
    /// Requests that have not ended; mainline's server does not say.
    pub in_flight: Option<u64>,
    /// Requests that left the path for another one; clients only.
    pub failovers: Option<u64>,
}

/// Reads `stats/rdma`: four to six numbers.
pub fn traffic(text: &str) -> Option<Traffic> {
    let numbers = numbers(text)?;
    let &[reads, read_bytes, writes, write_bytes, ref more @ ..] = numbers.as_slice() else {
        return None;
    };
    (more.len() <= 2).then(|| Traffic {
        reads,
        read_bytes,
        writes,
        write_bytes,
        in_flight: more.first().copied(),
        failovers: more.get(1).copied(),
    })
}

/// A path was lost while another one was connected: `last_failover` of a session.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Failover {
    /// When the loss was noticed, in milliseconds since 1970.
    pub time_ms: u64,
    /// The path, by its addresses.
    pub path: String,
    /// Why it was lost.
    pub cause: String,
    /// Requests that were moved to other paths.
    pub requests: u64,
    /// Milliseconds until the first answer over another path; none if no request was moved, and
    /// before that answer.
    pub total_ms: Option<u64>,
    /// The part of that until the loss was noticed.
    pub detect_ms: Option<u64>,
    /// The part after that.
    pub move_ms: Option<u64>,
}

/// Reads `last_failover`: lines of a name and a value; none if the file is empty.
pub fn failover(text: &str) -> Option<Option<Failover>> {
    if text.is_empty() {
        return Some(None);
    }
    let value = |name: &str| {
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let mut values = lines.filter(|(key, _)| *key == name);
        values.next().map(|(_, value)| value)
    };
    let number = |name| match value(name) {
        Some(text) => text.parse::<u64>().ok().map(Some),
        None => Some(None),
    };
    let (s, ms) = value("time")?.split_once('.')?;
    let (s, ms): (u64, u64) = (s.parse().ok()?, ms.parse().ok()?);
    Some(Some(Failover {
        time_ms: s.checked_mul(1000)?.checked_add(ms)?,
        path: value("path")?.to_owned(),
        cause: value("cause")?.to_owned(),
        requests: number("requests")??,
        total_ms: number("total_ms")?,
        detect_ms: number("detect_ms")?,
        move_ms: number("move_ms")?,
    }))
}

/// Failovers by the time they took: `failover_times_ms` of a session.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Times {
    /// The rows; the last one has no limit.
    pub rows: Vec<TimesRow>,
    /// The longest, in milliseconds.
    pub longest_ms: u64,
}

/// One row: what took less than the limit, and not less than the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimesRow {
    /// Milliseconds; none in the last row.
    pub below_ms: Option<u64>,
    /// How many there were.
    pub count: u64,
}

/// Reads `failover_times_ms`.
pub fn times(text: &str) -> Option<Times> {
    let mut times = Times::default();
    let mut longest = None;
    for line in text.lines() {
        let (name, value) = line.split_once(": ")?;
        let value: u64 = value.parse().ok()?;
        if name == "maximum ms" {
            longest = Some(value);
            continue;
        }
        let limit = name.strip_suffix(" ms")?;
        let below_ms = match limit.strip_prefix(">= ") {
            Some(_) => None,
            None => Some(limit.parse().ok()?),
        };
        times.rows.push(TimesRow {
            below_ms,
            count: value,
        });
    }
    times.longest_ms = longest?;
    (!times.rows.is_empty()).then_some(times)
}

/// All words as numbers; signed ones are none.
pub fn numbers(text: &str) -> Option<Vec<u64>> {
    let text = line(text)?;
    text.split_whitespace().map(|w| w.parse().ok()).collect()
}

/// Two numbers.
pub fn pair(text: &str) -> Option<(u64, u64)> {
    match numbers(text)?.as_slice() {
        &[a, b] => Some((a, b)),
        _ => None,
    }
}

/// Requests of a disk that were damaged on the way: the file `checksum_errors`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChecksumErrors {
    /// On the way to the server.
    pub to_server: u64,
    /// On the way from the server.
    pub from_server: u64,
}

/// Reads `checksum_errors` of a disk.
pub fn checksum_errors(text: &str) -> Option<ChecksumErrors> {
    let (to_server, from_server) = pair(text)?;
    Some(ChecksumErrors {
        to_server,
        from_server,
    })
}

/// The operation of a request, as histograms distinguish it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Reads.
    Read,
    /// Writes; of a disk, also of zeroes.
    Write,
    /// Discards, which only disks count.
    Discard,
    /// Flushes, which only disks count.
    Flush,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Discard, Self::Flush];

    /// As in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Discard => "discard",
            Self::Flush => "flush",
        }
    }
}

/// Requests by the time they took: `stats/rdma_lat_us` of a path, `latency_us` of a disk.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// The rows; the last one has no limit.
    pub rows: Vec<LatencyRow>,
    /// The longest read, in microseconds.
    pub longest_read_us: u64,
    /// The longest write, in microseconds.
    pub longest_write_us: u64,
    /// The longest discard, in microseconds; disks only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub longest_discard_us: Option<u64>,
    /// The longest flush, in microseconds; disks only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub longest_flush_us: Option<u64>,
}

/// One row: what took less than the limit, and not less than the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LatencyRow {
    /// Microseconds; none in the last row.
    pub below_us: Option<u64>,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Discards; disks only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub discards: Option<u64>,
    /// Flushes; disks only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub flushes: Option<u64>,
}

impl LatencyRow {
    /// Reads a row's numbers: two, or four.
    fn new(below_us: Option<u64>, numbers: &[u64]) -> Option<Self> {
        let (reads, writes, discards, flushes) = match *numbers {
            [reads, writes] => (reads, writes, None, None),
            [reads, writes, discards, flushes] => (reads, writes, Some(discards), Some(flushes)),
            _ => return None,
        };
        Some(Self {
            below_us,
            reads,
            writes,
            discards,
            flushes,
        })
    }

    /// How many there are; none if that is not counted.
    pub const fn of(&self, operation: Operation) -> Option<u64> {
        match operation {
            Operation::Read => Some(self.reads),
            Operation::Write => Some(self.writes),
            Operation::Discard => self.discards,
            Operation::Flush => self.flushes,
        }
    }

    fn since(&self, before: &Self) -> Option<Self> {
        let both = |now: Option<u64>, before: Option<u64>| match (now, before) {
            (Some(now), Some(before)) => now.checked_sub(before).map(Some),
            (now, _) => Some(now),
        };
        Some(Self {
            below_us: self.below_us,
            reads: self.reads.checked_sub(before.reads)?,
            writes: self.writes.checked_sub(before.writes)?,
            discards: both(self.discards, before.discards)?,
            flushes: both(self.flushes, before.flushes)?,
        })
    }
}

/// Reads `stats/rdma_lat_us`, or `latency_us`.
pub fn latency(text: &str) -> Option<Latency> {
    let mut rows = Vec::new();
    let mut longest = None;
    for row in text.lines() {
        let (label, counts) = row.split_once(':')?;
        let counts = numbers(counts)?;
        let label = label.trim();
        if label == "maximum us" {
            longest = LatencyRow::new(None, &counts);
            continue;
        }
        let below_us = match label.strip_prefix(">=") {
            Some(_) => None,
            None => Some(label.strip_suffix("us")?.trim().parse().ok()?),
        };
        rows.push(LatencyRow::new(below_us, &counts)?);
    }
    let (longest, last) = (longest?, rows.last()?);
    let alike = |row: &LatencyRow| row.flushes.is_some() == longest.flushes.is_some();
    (last.below_us.is_none() && rows.iter().all(alike)).then_some(Latency {
        rows,
        longest_read_us: longest.reads,
        longest_write_us: longest.writes,
        longest_discard_us: longest.discards,
        longest_flush_us: longest.flushes,
    })
}

impl Latency {
    fn longest_us(&self, operation: Operation) -> Option<u64> {
        match operation {
            Operation::Read => Some(self.longest_read_us),
            Operation::Write => Some(self.longest_write_us),
            Operation::Discard => self.longest_discard_us,
            Operation::Flush => self.longest_flush_us,
        }
    }

    /// The limit below which `percent` of the requests stay: microseconds, from the row that
    /// the request is in; the longest one for the last row. None without requests.
    pub fn percentile(&self, percent: u64, operation: Operation) -> Option<u64> {
        let count = |row: &LatencyRow| row.of(operation).unwrap_or(0);
        let all = self.rows.iter().map(count).fold(0, u64::saturating_add);
        let wanted = (u128::from(all) * u128::from(percent)).div_ceil(100);
        if all == 0 {
            return None;
        }
        let mut seen = 0u128;
        for row in &self.rows {
            seen += u128::from(count(row));
            if seen >= wanted.max(1) {
                return row.below_us.or(self.longest_us(operation));
            }
        }
        None
    }

    /// Both together; none if their rows are not the same.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Option<Self> {
        let both =
            |one: Option<u64>, other: Option<u64>, add: fn(u64, u64) -> u64| match (one, other) {
                (Some(one), Some(other)) => Some(add(one, other)),
                (one, other) => one.or(other),
            };
        let row = |(one, other): (&LatencyRow, &LatencyRow)| LatencyRow {
            below_us: one.below_us,
            reads: one.reads.saturating_add(other.reads),
            writes: one.writes.saturating_add(other.writes),
            discards: both(one.discards, other.discards, u64::saturating_add),
            flushes: both(one.flushes, other.flushes, u64::saturating_add),
        };
        let limits =
            |latency: &Self| -> Vec<_> { latency.rows.iter().map(|r| r.below_us).collect() };
        (limits(self) == limits(other)).then(|| Self {
            rows: self.rows.iter().zip(&other.rows).map(row).collect(),
            longest_read_us: self.longest_read_us.max(other.longest_read_us),
            longest_write_us: self.longest_write_us.max(other.longest_write_us),
            longest_discard_us: both(self.longest_discard_us, other.longest_discard_us, u64::max),
            longest_flush_us: both(self.longest_flush_us, other.longest_flush_us, u64::max),
        })
    }

    /// The increase since `before`; the whole count if `before` was higher, after a reset.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        if before.rows.len() != self.rows.len() {
            return self.clone();
        }
        let rows = self.rows.iter().zip(&before.rows);
        let rows: Option<Vec<_>> = rows.map(|(row, old)| row.since(old)).collect();
        match rows {
            Some(rows) => Self {
                rows,
                ..self.clone()
            },
            None => self.clone(),
        }
    }
}

/// The counters of a disk: the useful part of the file `stat` of a block device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskStat {
    /// Reads that ended.
    pub reads: u64,
    /// Bytes of these.
    pub read_bytes: u64,
    /// Milliseconds that all reads took together.
    pub read_ms: u64,
    /// Writes that ended.
    pub writes: u64,
    /// Bytes of these.
    pub write_bytes: u64,
    /// Milliseconds that all writes took together.
    pub write_ms: u64,
    /// Requests that have not ended.
    pub in_flight: u64,
    /// Discards that ended.
    pub discards: u64,
    /// Flushes that ended.
    pub flushes: u64,
}

/// Reads `stat` of a block device.
pub fn disk_stat(text: &str) -> Option<DiskStat> {
    let all = numbers(text.trim_end_matches('\n'))?;
    let at = |index: usize| all.get(index).copied();
    Some(DiskStat {
        reads: at(0)?,
        read_bytes: at(2)?.checked_mul(512)?,
        read_ms: at(3)?,
        writes: at(4)?,
        write_bytes: at(6)?.checked_mul(512)?,
        write_ms: at(7)?,
        in_flight: at(8)?,
        discards: at(11).unwrap_or(0),
        flushes: at(15).unwrap_or(0),
    })
}
