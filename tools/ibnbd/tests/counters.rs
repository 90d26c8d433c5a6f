// SPDX-License-Identifier: GPL-2.0

//! The counters that the driver declares, in the command and in the documentation.
//!
//! To write what is generated from the declarations: `make generated`.

mod tree;

use ibtrs_proto::stats::counter::{client_path, message_refusals, server_path, Counter};
use serde_json::Value;
use tree::ran::{good, run};
use tree::{is_generated, Tree};

fn each(counters: &[Counter], row: impl Fn(&Counter) -> String) -> String {
    counters.iter().map(row).collect()
}

/// A description as documents of the ABI have it, in lines of at most 56 characters.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().unwrap();
        if !last.is_empty() && last.len() + word.len() >= 56 {
            lines.push(word.to_owned());
        } else {
            *last += if last.is_empty() { "" } else { " " };
            *last += word;
        }
    }
    lines.join("\n\t\t")
}

#[test]
fn the_abi_has_each_counter() {
    for (class, path, counters, after) in [
        (
            "ibtrs-client",
            "<src@dst>",
            client_path::ALL,
            "\t\tpath. A reset keeps the number in flight.",
        ),
        (
            "ibtrs-server",
            "<client@server>",
            server_path::ALL,
            "\t\tsecond divided by the third is the average.",
        ),
    ] {
        let entry = |counter: &Counter| {
            let what = format!(
                "/sys/class/{class}/<session>/paths/{path}/stats/{}",
                counter.name()
            );
            let text = wrapped(&format!("(RW, 0644) {}.", counter.help));
            format!(
                "\nWhat:\t\t{what}\nDate:\t\tNovember 2026\nKernelVersion:\t7.3\n\
                 Contact:\tthe ibtrs authors\nDescription:\t{text}\n"
            )
        };
        let file = format!("Documentation/ABI/testing/sysfs-class-{class}");
        is_generated(&file, after, "", &each(counters, entry));
    }
}

#[test]
fn the_abi_of_messages_has_each_counter() {
    let entry = |counter: &Counter| {
        let of = |folder: &str| {
            format!(
                "What:\t\t/sys/kernel/config/ibmsg/{folder}/{}\n",
                counter.name()
            )
        };
        let folders = ["portals/<portal>", "sessions/<session>", "hosts/<session>"].map(of);
        let text = wrapped(&format!("(RO, 0444) {}.", counter.help));
        format!(
            "\n{}Date:\t\tNovember 2026\nKernelVersion:\t7.3\n\
             Contact:\tthe ibtrs authors\nDescription:\t{text}\n",
            folders.concat()
        )
    };
    let file = "Documentation/ABI/testing/configfs-ibmsg";
    let after = "\t\tportal since it was bound, whether or not it has a rule.";
    is_generated(file, after, "", &each(message_refusals::ALL, entry));
}

#[test]
fn the_page_of_messages_has_each_counter() {
    let row = |counter: &Counter| {
        let (first, rest) = counter.help.split_at(1);
        format!(
            "| `{}` | {}{rest} |\n",
            counter.name(),
            first.to_lowercase()
        )
    };
    let rows = format!("| --- | --- |\n{}\n", each(message_refusals::ALL, row));
    let (after, before) = ("| refused, by the reason |", "In a container, the device");
    is_generated("Documentation/messages.md", after, before, &rows);
}

#[test]
fn the_reference_has_each_counter() {
    for (folder, counters, after, before) in [
        (
            "",
            client_path::ALL,
            "| `wc_completion` |",
            "| `sg_entries` |",
        ),
        (
            "stats/",
            server_path::ALL,
            "| `stats/wc_completion` |",
            "| `stats/reset_all` |",
        ),
    ] {
        let row = |counter: &Counter| {
            let (first, rest) = counter.help.split_at(1);
            let (name, first) = (counter.name(), first.to_lowercase());
            format!("| `{folder}{name}` | {first}{rest} |\n")
        };
        let rows = each(counters, row);
        is_generated("Documentation/reference.md", after, before, &rows);
    }
}

#[test]
fn the_walk_of_sysfs_has_each_counter() {
    for (name, counters) in [("CLIENT", client_path::ALL), ("SERVER", server_path::ALL)] {
        let head = format!("{name}_PATH_COUNTERS = (");
        let lines = each(counters, |counter| format!("    \"{}\",\n", counter.name()));
        is_generated("tools/testbed/sysfs_walk.py", &head, ")", &lines);
    }
}

#[test]
fn the_walk_of_configfs_has_each_counter() {
    let lines = each(message_refusals::ALL, |counter| {
        format!("    \"{}\",\n", counter.name())
    });
    is_generated(
        "tools/testbed/sysfs_walk.py",
        "MESSAGE_REFUSALS = (",
        ")",
        &lines,
    );
}

#[test]
fn each_counter_is_shown() {
    let tree = Tree::new();
    tree.usual_client().served("u", "10.0.1.3", "10.0.1.1");
    let stats: Value = serde_json::from_str(&good(&tree, &["stats", "-o", "json"])).unwrap();
    let metrics = good(&tree, &["metrics"]);
    for (session, name, side, counters) in [
        ("s", "ip:10.0.1.2@ip:10.0.1.1", "client", client_path::ALL),
        ("u", "ip:10.0.1.3@ip:10.0.1.1", "server", server_path::ALL),
    ] {
        let mut paths = stats["paths"].as_array().unwrap().iter();
        let path = paths.find(|path| path["session"] == session && path["name"] == name);
        let table = good(&tree, &["stats", session, "-o", "csv"]);
        let row = table.lines().find(|line| line.contains(name)).unwrap();
        let head = table.lines().next().unwrap().split(',');
        let cell = |column: &str| {
            let at = head.clone().position(|each| each == column);
            row.split(',').nth(at.unwrap()).unwrap()
        };
        for (counter, value) in counters.iter().zip(5..) {
            let file = counter.name();
            assert_eq!(path.unwrap()["stats"]["counters"][file], value);
            let labels = format!("session=\"{session}\",path=\"{name}\",side=\"{side}\"");
            let line = format!("ibtrs_path_{file}_total{{{labels}}} {value}\n");
            assert!(metrics.contains(&line), "{line}{metrics}");
            assert!(cell(file).starts_with(&value.to_string()), "{table}");
        }
    }
}

/// Modules of an earlier version do not have each of them.
#[test]
fn a_counter_that_is_not_there_is_left_out() {
    let tree = Tree::new();
    tree.served("u", "10.0.1.3", "10.0.1.1");
    let first = server_path::ALL.first().unwrap().name();
    let folder = "/sys/class/ibtrs-server/u/paths/ip:10.0.1.3@ip:10.0.1.1/stats";
    std::fs::remove_file(tree.real(&format!("{folder}/{first}"))).unwrap();
    let ran = run(&tree, &["stats", "-o", "json"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let stats: Value = serde_json::from_str(&ran.out).unwrap();
    assert!(stats["paths"][0]["stats"]["counters"][first].is_null());
    assert!(!good(&tree, &["metrics"]).contains(&format!("ibtrs_path_{first}")));
}
