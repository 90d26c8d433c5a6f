// SPDX-License-Identifier: GPL-2.0

//! Parsers of file contents, with valid and other texts.

mod tree;

use ibnbd_host::value::{self, DiskStat, Operation, Traffic};
use proptest::prelude::*;

#[test]
fn texts_that_are_right() {
    assert_eq!(value::flag("1\n"), Some(true));
    assert_eq!(value::flag("N\n"), Some(false));
    assert_eq!(value::nanoseconds("120 ns\n"), Some(Some(120)));
    assert_eq!(value::nanoseconds("0 ns\n"), Some(None));
    assert_eq!(
        value::policy("min-latency (ML: 2)\n").as_deref(),
        Some("min-latency")
    );
    assert_eq!(value::size("10G"), Some(10 << 30));
    assert_eq!(value::size("8s"), Some(4096));
    assert_eq!(value::size("1.5G"), None);
    for (text, seconds) in [
        ("0", 0),
        ("90", 90),
        ("90s", 90),
        ("10m", 600),
        ("10min", 600),
        ("2h", 7200),
    ] {
        assert_eq!(value::seconds(text), Some(seconds), "{text}");
    }
    for text in [
        "",
        "m",
        "-1",
        "1d",
        "1.5h",
        "1 h",
        "+1",
        "9999999999999999999h",
    ] {
        assert_eq!(value::seconds(text), None, "{text}");
    }
    assert_eq!(value::size("99999999999P"), None);
    assert_eq!(value::human(1536), "1.5 KiB");
    assert_eq!(value::traffic("1 2 3 4\n").unwrap().in_flight, None);
    assert_eq!(value::traffic("1 2 3\n"), None);
    assert_eq!(value::traffic("1 2 3 4 5 6 7\n"), None);
}

#[test]
fn percentiles_are_the_rows_limits() {
    let found = value::latency(tree::LATENCY).unwrap();
    assert_eq!(found.percentile(30, Operation::Read), Some(4));
    assert_eq!(found.percentile(31, Operation::Read), Some(8));
    assert_eq!(found.percentile(99, Operation::Read), Some(11));
    assert_eq!(found.percentile(99, Operation::Write), Some(2500));
    assert_eq!(found.percentile(50, Operation::Flush), None);
    let none = found.since(&found);
    assert_eq!(none.percentile(50, Operation::Read), None);
    // After a reset all that is counted is new.
    let mut less = found.clone();
    less.rows[2].reads = 1;
    assert_eq!(less.since(&found), less);
}

#[test]
fn disks_count_discards_and_flushes_as_well() {
    let found = value::latency(tree::DISK_LATENCY).unwrap();
    let half = |operation| found.percentile(50, operation);
    let halves: Vec<_> = Operation::ALL.map(half).into();
    assert_eq!(halves, [Some(8), Some(2501), Some(8), Some(2)]);
    let mut before = found.clone();
    before.rows[3].discards = Some(1);
    let since = found.since(&before);
    assert_eq!(since.rows[3].of(Operation::Discard), Some(3));
    assert_eq!(since.rows[3].of(Operation::Read), Some(0));
    before.rows[1].flushes = Some(2);
    assert_eq!(found.since(&before), found);
    // All rows are alike.
    assert_eq!(
        value::latency("1 us: 0 0\n>= 1 us: 0 0\nmaximum us: 0 0 0 0\n"),
        None
    );
    assert_eq!(value::latency(">= 1 us: 0 0 0\nmaximum us: 0 0 0\n"), None);
}

#[test]
fn latencies_without_their_last_rows_are_none() {
    assert_eq!(value::latency(""), None);
    assert_eq!(value::latency("1 us: 0 0\n"), None);
    assert_eq!(value::latency("1 us: 0 0\nmaximum us: 0 0\n"), None);
}

proptest! {
    #[test]
    fn no_text_does_harm(text in "\\PC*|[0-9 \n:a-z<>=-]{0,200}") {
        let _ = value::line(&text);
        let _ = value::number::<u64>(&text);
        let _ = value::sectors(&text);
        let _ = value::nanoseconds(&text);
        let _ = value::policy(&text);
        let _ = value::size(&text);
        let _ = value::seconds(&text);
        let _ = value::traffic(&text);
        let _ = value::disk_stat(&text);
        let found = value::latency(&text);
        if let Some(found) = found {
            for percent in [0, 50, 99, 100] {
                let _ = found.percentile(percent, Operation::Write);
            }
        }
    }

    #[test]
    fn traffic_is_what_was_written(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) {
        let text = format!("{a} {b} {c} {d} {e} {f}\n");
        let expected = Traffic {
            reads: a, read_bytes: b, writes: c, write_bytes: d, in_flight: Some(e), failovers: Some(f),
        };
        prop_assert_eq!(value::traffic(&text), Some(expected));
    }

    #[test]
    fn sizes_are_what_was_written(n in 0u64..1 << 20) {
        prop_assert_eq!(value::size(&n.to_string()), Some(n));
        prop_assert_eq!(value::size(&format!("{n}GiB")), Some(n << 30));
        prop_assert_eq!(value::size(&format!("{n}s")), Some(n * 512));
    }

    #[test]
    fn counts_since_are_never_more(rows in proptest::collection::vec((0u64..99, 0u64..99), 1..20)) {
        let text = |factor: u64| {
            let mut text = String::new();
            for (power, (r, w)) in rows.iter().enumerate() {
                text += &format!("{} us: {} {}\n", 1u64 << power, r * factor, w * factor);
            }
            text + ">= 9 us: 0 0\nmaximum us: 1 1\n"
        };
        let (once, twice) = (value::latency(&text(1)).unwrap(), value::latency(&text(2)).unwrap());
        prop_assert_eq!(twice.since(&once).rows, once.rows);
    }

    #[test]
    fn short_stats_are_none(n in 0usize..9) {
        let text = vec!["1"; n].join(" ");
        prop_assert_eq!(value::disk_stat(&text), None::<DiskStat>);
    }
}

#[test]
fn failovers() {
    let found = value::failover(tree::FAILOVER).unwrap().unwrap();
    assert_eq!(found.time_ms, 1_764_376_027_042);
    assert_eq!(found.path, "ip:10.0.1.2@ip:10.0.1.1");
    assert_eq!(found.cause, "no heartbeat from the server (ETIMEDOUT)");
    assert_eq!((found.requests, found.total_ms), (16, Some(3700)));
    assert_eq!((found.detect_ms, found.move_ms), (Some(3500), Some(200)));
    // None yet; without a request that was moved; and texts of another form.
    assert_eq!(value::failover(""), Some(None));
    let idle = "time 1.002\npath ip:10.0.1.1\ncause x\nrequests 0\n";
    let found = value::failover(idle).unwrap().unwrap();
    assert_eq!((found.time_ms, found.total_ms), (1002, None));
    for part in ["time", "path", "cause", "requests"] {
        let lines = idle.lines().filter(|line| !line.starts_with(part));
        let text: String = lines.map(|line| format!("{line}\n")).collect();
        assert_eq!(value::failover(&text), None, "{part}");
    }
    for (from, to) in [
        ("1.002", "1"),
        ("1.002", "x.y"),
        ("requests 0", "requests -1"),
    ] {
        assert_eq!(value::failover(&idle.replace(from, to)), None, "{to}");
    }
}

#[test]
fn times_of_failovers() {
    let found = value::times(tree::FAILOVER_TIMES).unwrap();
    let limits: Vec<_> = found.rows.iter().map(|row| row.below_ms).collect();
    assert_eq!(limits, [Some(1), Some(2), Some(4), Some(8), None]);
    assert_eq!(found.rows.iter().map(|row| row.count).sum::<u64>(), 3);
    assert_eq!(found.longest_ms, 3700);
    for text in [
        "",
        "maximum ms: 1\n",
        "1 ms: 0\n",
        "1 us: 0\nmaximum ms: 0\n",
        "1 ms: x\nmaximum ms: 0\n",
    ] {
        assert_eq!(value::times(text), None, "{text}");
    }
}
