// SPDX-License-Identifier: GPL-2.0

//! Random texts and nearly valid ones do no harm to any parser of the library. Parsers
//! that only their modules see are tested there.

use std::io;
use std::net::IpAddr;

use ibnbd_host::configfs::{self, address};
use ibnbd_host::trace::{self, Line, Tracer};
use ibnbd_host::value::{self, Operation};
use ibnbd_host::{mapping, probe, Root};
use nft_drops::Packet;
use proptest::prelude::*;
use serde_json::{json, Value};

/// Names that the resolver of the tests knows.
fn resolve(name: &str) -> io::Result<Vec<IpAddr>> {
    match name.len() % 3 {
        0 => Err(io::ErrorKind::NotFound.into()),
        1 => Ok(Vec::new()),
        _ => Ok(vec![[10, 0, 0, 1].into()]),
    }
}

/// Rules as `nft` prints them, and others: objects whose names it knows, with anything in them.
fn ruleset() -> impl Strategy<Value = Value> {
    let word = prop_oneof![
        Just("filter"),
        Just("input"),
        Just("other"),
        Just("inet"),
        Just("drop"),
        Just("udp"),
        Just("dport"),
        Just("lo"),
        Just("established"),
        Just("=="),
        Just("@set"),
        Just("xt"),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        Just(json!(4791)),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        word.prop_map(Value::from),
    ];
    let name = prop_oneof![
        Just("rule"),
        Just("chain"),
        Just("match"),
        Just("left"),
        Just("right"),
        Just("op"),
        Just("payload"),
        Just("protocol"),
        Just("field"),
        Just("set"),
        Just("prefix"),
        Just("range"),
        Just("meta"),
        Just("ct"),
        Just("key"),
        Just("jump"),
        Just("goto"),
        Just("target"),
        Just("drop"),
        Just("accept"),
        Just("return"),
        Just("vmap"),
        Just("expr"),
        Just("family"),
        Just("table"),
        Just("name"),
        Just("hook"),
        Just("policy"),
    ];
    let tree = leaf.prop_recursive(6, 60, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(name.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|fields| fields.into_iter().collect::<Value>()),
        ]
    });
    prop::collection::vec(tree, 0..6).prop_map(|expressions| {
        let place = json!({"family": "inet", "table": "filter"});
        let rule = |chain: &str, expression: &Value| {
            let mut rule = place.clone();
            rule["chain"] = chain.into();
            rule["expr"] = json!([expression, {"jump": {"target": "other"}}]);
            json!({ "rule": rule })
        };
        let mut all = vec![
            json!({"chain": {"family": "inet", "table": "filter", "name": "input", "hook": "input", "policy": "drop"}}),
            json!({"chain": {"family": "inet", "table": "filter", "name": "other"}}),
        ];
        for expression in &expressions {
            all.push(expression.clone());
            all.push(rule("input", expression));
            all.push(rule("other", expression));
        }
        json!({ "nftables": all })
    })
}

proptest! {
    #[test]
    fn no_value_does_harm(text in "\\PC*|[0-9 \n]{0,40}|[01YNyn]?\n?") {
        let _ = (value::flag(&text), value::optional(&text), value::pair(&text));
        let _ = (value::checksum_errors(&text), value::numbers(&text), value::word(&text));
    }

    #[test]
    fn histograms_are_added_and_subtracted(one in rows(), other in rows()) {
        let [first, second] = [one, other].map(|rows| value::latency(&histogram(&rows)).unwrap());
        let both = first.plus(&second).unwrap();
        prop_assert_eq!(&both, &second.plus(&first).unwrap());
        for operation in Operation::ALL {
            let count = |latency: &value::Latency| -> Option<u64> {
                latency.rows.iter().map(|row| row.of(operation)).sum()
            };
            let sum = count(&first).zip(count(&second)).map(|(one, other)| one + other);
            prop_assert_eq!(count(&both), sum);
            prop_assert_eq!(count(&both.since(&first)), count(&second));
        }
    }

    #[test]
    fn no_address_does_harm(text in "\\PC*|(ip:|gid:|\\[)?[0-9a-f.:]{0,24}(%[a-z0-9/]{0,5})?\\]?") {
        let root = Root::new("/nowhere");
        if let Ok(found) = address::parse(&text) {
            prop_assert_eq!(address::parse(&found.to_string()), Ok(found));
        }
        let _ = (address::canonical(&root, &text), address::lasting(&root, &text));
        prop_assert!(address::is_same(&root, &text, &text));
        let _ = probe::address(&text, &|_| Some(1));
        let _ = configfs::check_port_name(&text);
        for key in configfs::OF_HOST {
            let _ = configfs::limit(key, &text);
        }
    }

    #[test]
    fn no_name_of_a_path_does_harm(text in "\\PC*|([a-z0-9.:%\\[\\]-]{0,12}[,@]?){0,3}") {
        let root = Root::new("/nowhere");
        if let Ok(line) = mapping::path(&root, &resolve, &text) {
            // A valid text stays valid, and has a name in sysfs.
            prop_assert!(mapping::canonical(&line).is_ok(), "{line}");
        }
        let name = mapping::session_name("host", &text, Some(&text));
        prop_assert!(!name.contains(['/', '.', ' ']), "{name}");
    }

    #[test]
    fn no_line_of_a_trace_does_harm(lines in prop::collection::vec(
        "\\PC*|x-1 +\\[00[0-3]\\] d..1. +[0-9]{1,4}\\.[0-9]{6}: (block_rq_[a-z]{4,8}|ibtrs_[a-z_]{4,16}): (252,0 WS ([0-9]{0,4} )?\\(\\) [0-9]{1,3} \\+ [0-9]{1,2} )?((session|path|tag|error|result)=[a-z0-9-]{0,4} ?){0,4}|CPU:[0-3] \\[LOST 5 EVENTS\\]", 0..12)
    ) {
        let mut tracer = Tracer::new("s");
        for line in &lines {
            if let Some(Line::Event { cpu, time_us, name, text }) = trace::parse(line) {
                prop_assert!(line.ends_with(text));
                let _ = tracer.take(cpu, time_us, name, text);
            }
        }
    }

    #[test]
    fn no_rules_do_harm(rules in ruleset(), port: u16) {
        for protocol in ["udp", "tcp"] {
            for drops in nft_drops::drops(&rules, Packet { protocol, port }) {
                prop_assert_eq!(drops.hook.as_str(), "input");
            }
        }
    }
}

/// Counts of three rows: reads, writes, discards, flushes.
fn rows() -> impl Strategy<Value = [[u32; 4]; 3]> {
    any::<[[u32; 4]; 3]>()
}

fn histogram(rows: &[[u32; 4]; 3]) -> String {
    let labels = ["1 us", "2 us", ">= 2 us"];
    let line = |(label, row): (&str, &[u32; 4])| {
        let [reads, writes, discards, flushes] = row;
        format!("{label}: {reads} {writes} {discards} {flushes}\n")
    };
    let lines: String = labels.into_iter().zip(rows).map(line).collect();
    lines + "maximum us: 9 9 9 9\n"
}
