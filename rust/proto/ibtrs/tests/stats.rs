// SPDX-License-Identifier: GPL-2.0

//! The files of statistics and settings, with the contents that the documentation shows.

use ibtrs_proto::settings::{
    left_ms, Setting, HB_INTERVAL_MS, QUEUE_TIMEOUT_S, RECONNECT_DELAY_MS, UNLIMITED,
};
use ibtrs_proto::stats::latency::{bucket, Histogram, Latencies, BUCKETS};
use ibtrs_proto::stats::table::{
    migrated_from, sg_row, CpuMigration, MigrationLine, MigrationRow, PerCpu, SgEntries, SG_ROWS,
};
use ibtrs_proto::stats::{ClientRdma, Reconnects, ServerRdma, Transfers, WcCompletion};
use ibtrs_proto::text::{self, TextError};
use proptest::prelude::*;

fn transfers(count: u64, bytes: u64) -> Transfers {
    Transfers { count, bytes }
}

#[test]
fn lines() {
    let rdma = ClientRdma {
        reads: transfers(1, 4128),
        writes: transfers(2, 8256),
        in_flight: 3,
        failovers: u64::MAX,
    };
    assert_eq!(rdma.to_string(), "1 4128 2 8256 3 18446744073709551615\n");
    let rdma = ServerRdma {
        reads: transfers(1, 4128),
        writes: transfers(2, 8256),
        in_flight: 3,
    };
    assert_eq!(rdma.to_string(), "1 4128 2 8256 3\n");
    assert_eq!(Reconnects::default().to_string(), "0 0\n");
    let (successful, failed) = (4, 5);
    assert_eq!(Reconnects { successful, failed }.to_string(), "4 5\n");
}

#[test]
fn completions() {
    let (max, total, calls) = (7, 10, 4);
    let wc = WcCompletion { max, total, calls };
    assert_eq!(wc.client().to_string(), "7 3\n");
    assert_eq!(wc.server().to_string(), "7 10 4\n");
    let none = WcCompletion::default();
    assert_eq!(none.client().to_string(), "0 0\n");
    assert_eq!(none.server().to_string(), "0 0 0\n");
    let (total, calls) = (u64::MAX, 1);
    assert_eq!(WcCompletion { max, total, calls }.average(), u64::MAX);
}

/// The number in front of a row's unit, and what the row counts.
fn row(line: &str, unit: &str) -> (String, u64, u64) {
    let (label, counts) = line.split_once(": ").unwrap();
    let (limit, found) = label.rsplit_once(' ').unwrap();
    assert_eq!(found, unit);
    let (reads, writes) = counts.split_once(' ').unwrap();
    (
        limit.into(),
        reads.parse().unwrap(),
        writes.parse().unwrap(),
    )
}

/// Checks one file against limits counted here in another way.
fn check_file(ns: &[u64], text: &str, unit: &str, unit_ns: u64, powers: u32) {
    let mut lines = text.lines();
    let mut lower = 0;
    for power in 0..powers {
        let upper = unit_ns << power;
        let expected = ns.iter().filter(|ns| (lower..upper).contains(ns)).count();
        let limit = (1_u64 << power).to_string();
        assert_eq!(
            row(lines.next().unwrap(), unit),
            (limit, 0, expected as u64)
        );
        lower = upper;
    }
    let expected = ns.iter().filter(|ns| **ns >= lower).count() as u64;
    let limit = format!(">= {}", 1_u64 << (powers - 1));
    assert_eq!(row(lines.next().unwrap(), unit), (limit, 0, expected));
    let max = ns.iter().max().unwrap_or(&0) / unit_ns;
    assert_eq!(lines.next().unwrap(), format!("maximum {unit}: 0 {max}"));
    assert_eq!(lines.next(), None);
    assert!(text.ends_with('\n') && text.len() < 4096);
}

fn check(ns: &[u64]) {
    let mut writes = Latencies::NONE;
    for ns in ns {
        writes.counts[bucket(*ns)] += 1;
        writes.max_ns = writes.max_ns.max(*ns);
    }
    let histogram = Histogram {
        reads: &Latencies::NONE,
        writes: &writes,
    };
    check_file(ns, &histogram.in_ms().to_string(), "ms", 1_000_000, 17);
    check_file(ns, &histogram.in_us().to_string(), "us", 1000, 21);
}

#[test]
fn latencies_at_the_limits() {
    let mut ns = vec![0, u64::MAX];
    for power in 0..27 {
        for unit in [1000_u64, 1_000_000] {
            let limit = unit << power;
            ns.extend([limit - 1, limit, limit + 1]);
        }
    }
    check(&ns);
    check(&[]);
    for ns in ns {
        check(&[ns]);
    }
}

/// The rows of the document: "1 ms:" to "65536 ms:", ">= 65536 ms:", "maximum ms:".
#[test]
fn latencies_as_in_the_document() {
    let mut reads = Latencies::NONE;
    reads.counts[bucket(999_999)] = 5;
    reads.max_ns = 70_000_000_000;
    let mut writes = Latencies::NONE;
    writes.counts[bucket(70_000_000_000)] = 6;
    let (reads, writes) = (&reads, &writes);
    let text = Histogram { reads, writes }.in_ms().to_string();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 19);
    assert_eq!(
        lines[..5],
        [
            "1 ms: 5 0",
            "2 ms: 0 0",
            "4 ms: 0 0",
            "8 ms: 0 0",
            "16 ms: 0 0"
        ]
    );
    assert_eq!(
        lines[16..],
        ["65536 ms: 0 0", ">= 65536 ms: 0 6", "maximum ms: 70000 0"]
    );
}

proptest! {
    #[test]
    fn latencies(ns in prop::collection::vec((any::<u64>(), 0_u32..64), 0..20)) {
        let ns: Vec<u64> = ns.into_iter().map(|(ns, shift)| ns >> shift).collect();
        prop_assert!(ns.iter().all(|ns| bucket(*ns) < BUCKETS));
        check(&ns);
    }

    #[test]
    fn numbers(n in any::<i32>()) {
        for setting in Setting::ALL {
            let parsed = setting.parse(n.to_string().as_bytes());
            match u32::try_from(n) {
                Ok(n) if setting.allows(n) => prop_assert_eq!(parsed, Ok(n)),
                _ => prop_assert_eq!(parsed, Err(TextError::Range)),
            }
        }
    }
}

struct Table {
    possible: Vec<bool>,
    rows: Vec<Vec<u64>>,
}

impl PerCpu for Table {
    fn nr_cpus(&self) -> u32 {
        self.possible.len() as u32
    }

    fn is_possible(&self, cpu: u32) -> bool {
        self.possible[cpu as usize]
    }

    fn count(&self, row: usize, cpu: u32) -> u64 {
        let row = self.rows.get(row);
        row.and_then(|row| row.get(cpu as usize).copied())
            .unwrap_or(0)
    }
}

#[test]
fn rows_of_scatter_lists() {
    assert_eq!(sg_row(0), None);
    let first = [
        (1, 0),
        (2, 1),
        (3, 2),
        (4, 3),
        (5, 4),
        (7, 4),
        (8, 5),
        (15, 5),
        (16, 6),
    ];
    let then = [
        (31, 6),
        (32, 7),
        (63, 7),
        (64, 8),
        (127, 8),
        (128, 9),
        (255, 9),
        (256, 9),
        (512, 9),
        (u32::MAX, 9),
    ];
    for (entries, row) in first.into_iter().chain(then) {
        assert_eq!(sg_row(entries), Some(row), "{entries}");
    }
    assert_eq!(SG_ROWS, 10);
}

#[test]
fn scatter_lists() {
    let mut rows = vec![vec![0; 3]; SG_ROWS];
    rows[0] = vec![10, 0, 123_456];
    rows[4][2] = 7;
    rows[9][0] = 1;
    let table = Table {
        possible: vec![true, false, true],
        rows,
    };
    let expected = "\
n\\cpu:       0      2
=    1:     10 123456
=    2:      0      0
=    3:      0      0
=    4:      0      0
<    8:      0      7
<   16:      0      0
<   32:      0      0
<   64:      0      0
<  128:      0      0
>= 128:      1      0
total:      11 123463
";
    assert_eq!(SgEntries(&table).to_string(), expected);
}

#[test]
fn many_cpus() {
    let mut table = Table {
        possible: vec![true; 4096],
        rows: vec![vec![0; 4096]; SG_ROWS],
    };
    assert!(SgEntries(&table)
        .to_string()
        .starts_with("n\\cpu: \n=    1:\n"));
    table.rows[3][4000] = 9;
    let text = SgEntries(&table).to_string();
    assert!(text.starts_with("n\\cpu:   4000\n") && text.ends_with("total:      9\n"));
    table.rows[2] = vec![u64::MAX; 4096];
    table.rows[3] = vec![u64::MAX; 4096];
    let text = SgEntries(&table).to_string();
    assert!(
        text.len() < 4096 && text.ends_with(" more CPUs\n"),
        "{text}"
    );
}

#[test]
fn migrations() {
    let table = Table {
        possible: vec![true, true, false, true],
        rows: vec![vec![1, 2, 3, 4], vec![5, 6, 7, 80]],
    };
    let expected = "cpu:  0 1 3\nfrom: 1 2 4\nto:   5 6 80\n";
    assert_eq!(CpuMigration(&table).to_string(), expected);
    let line = |row| MigrationLine(&table, row).to_string();
    assert_eq!(line(MigrationRow::From), "1 2 4 \n");
    assert_eq!(line(MigrationRow::To), "5 6 80 \n");
}

#[test]
fn completions_migrate_between_connections() {
    // One connection for each of four CPUs: connection 1 is that of CPU 0.
    for cid in 1..=4 {
        for cpu in 0..4 {
            let home = u32::from(cid) - 1;
            let moved = (cpu != home).then_some(home);
            assert_eq!(migrated_from(cid, 4, cpu), moved, "{cid} {cpu}");
        }
    }
    // Two connections: CPUs 0 and 2 share the first one, and 1 and 3 the second.
    let of = |cid| [0, 1, 2, 3].map(|cpu| migrated_from(cid, 2, cpu));
    assert_eq!(of(1), [None, Some(0), None, Some(0)]);
    assert_eq!(of(2), [Some(1), None, Some(1), None]);
    // All CPUs share a single one.
    assert_eq!([0, 1, 255].map(|cpu| migrated_from(1, 1, cpu)), [None; 3]);
    // The service connection and polled ones belong to no CPU.
    for cid in [0, 3, 4, u16::MAX] {
        assert_eq!(of(cid), [None; 4], "{cid}");
    }
    assert_eq!(migrated_from(1, 0, 0), None);
}

#[test]
fn settings() {
    for setting in Setting::ALL {
        assert!(setting.allows(setting.default));
        assert!(setting.allows(setting.min) && setting.allows(setting.max));
        assert!(setting.min < 2 || !setting.allows(setting.min - 1));
        assert!(!setting.allows(setting.max + 1));
        assert_eq!(setting.allows(0), setting.min == 0 || setting.may_be_off);
        assert_eq!(setting.allows(UNLIMITED), setting.may_be_unlimited);
        for value in [setting.min, setting.default, setting.max] {
            assert_eq!(setting.value(Setting::number(value)), Some(value));
        }
        let unlimited = setting.may_be_unlimited.then_some(UNLIMITED);
        assert_eq!(setting.value(Setting::number(UNLIMITED)), unlimited);
        assert_eq!(setting.value(i64::from(UNLIMITED)), None);
        for bad in [
            &b""[..],
            b"x",
            b"1.5",
            b"0x10",
            b"+5",
            b"5 5",
            b"- 5",
            b"\xff",
        ] {
            assert!(setting.parse(bad).is_err(), "{bad:?}");
        }
    }
    assert_eq!(HB_INTERVAL_MS.parse(b"100\n"), Ok(100));
    assert_eq!(HB_INTERVAL_MS.parse(b"99"), Err(TextError::Range));
    assert_eq!(HB_INTERVAL_MS.parse(b"ten"), Err(TextError::Value));
    assert_eq!(QUEUE_TIMEOUT_S.parse(b"0"), Ok(0));
    assert_eq!(QUEUE_TIMEOUT_S.default, 600);
    assert_eq!(QUEUE_TIMEOUT_S.parse(b"-1\n"), Ok(UNLIMITED));
    assert_eq!(QUEUE_TIMEOUT_S.parse(b"-2"), Err(TextError::Range));
    assert_eq!(QUEUE_TIMEOUT_S.parse(b"4294967295"), Err(TextError::Range));
    assert_eq!(HB_INTERVAL_MS.parse(b"-1"), Err(TextError::Range));
    assert_eq!(
        RECONNECT_DELAY_MS.parse(b"99999999999999999999"),
        Err(TextError::Range)
    );
    assert!(text::reset(b"0\n").is_ok() && text::reset(b"1").is_ok());
    assert_eq!(text::reset(b"2"), Err(TextError::Value));
}

#[test]
fn time_left() {
    assert_eq!(left_ms(600, 0), Some(600_000));
    assert_eq!(left_ms(600, 599_999), Some(1));
    assert_eq!(left_ms(600, 600_000), Some(0));
    assert_eq!(left_ms(600, u64::MAX), Some(0));
    assert_eq!(left_ms(0, 0), Some(0));
    assert_eq!(left_ms(UNLIMITED - 1, 0), Some(4_294_967_294_000));
    for waited in [0, 1, u64::MAX] {
        assert_eq!(left_ms(UNLIMITED, waited), None);
    }
}
