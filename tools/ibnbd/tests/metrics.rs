// SPDX-License-Identifier: GPL-2.0

//! The metrics, and the queries of the dashboard.

mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ibnbd_host::model::Counters;
use tree::Tree;

/// A machine that has something of each kind, with names that need escapes.
fn full() -> Tree {
    let tree = Tree::new();
    tree.usual_client()
        .server("/x")
        .served("u", "10.0.1.3", "10.0.1.1")
        .opened("sda", "u", "a")
        .messages()
        .message_portal((7, "server"), "kv", 1)
        .message_rule("sessions", "s", 1)
        .message_rule("hosts", "u", 2)
        .channel((8, "client"), 5, "s", "")
        .channel((9, "client"), 6, "s", "unacknowledged:\t2\nqueued:\t7\n");
    tree.file(
        "/sys/block/ibnbd1/ibnbd/mapping_path",
        "a\"b\\c,d} 1\u{e4}\n",
    );
    tree
}

fn command(tree: &Tree) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ibnbd"));
    command.arg("--root").arg(tree.base()).arg("metrics");
    command
}

fn printed(tree: &Tree) -> String {
    let output = command(tree).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// `metrics --listen` on a free port.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn new(tree: &Tree) -> Self {
        Self::with(tree, &["--listen", "127.0.0.1:0"])
    }

    fn with(tree: &Tree, words: &[&str]) -> Self {
        let mut child = command(tree)
            .args(words)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").unwrap();
        let address = address.strip_suffix("/metrics").unwrap().to_owned();
        Self { child, address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        let limit = Some(Duration::from_secs(30));
        stream.set_read_timeout(limit).unwrap();
        stream
    }

    /// Head and body of the answer to a request.
    fn ask(&self, method: &str, path: &str) -> (String, String) {
        let mut stream = self.connect();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_lowercase(), body.to_owned())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn what_is_served_is_what_is_printed_and_as_new() {
    let tree = full();
    let served = Served::new(&tree);
    let (head, body) = served.ask("GET", "/metrics");
    assert!(head.starts_with("http/1.1 200 "), "{head}");
    assert!(
        head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"),
        "{head}"
    );
    assert_eq!(body, printed(&tree));
    tree.file("/sys/block/ibnbd1/ibnbd/mapping_path", "another\n");
    assert!(served
        .ask("GET", "/metrics?x=1")
        .1
        .contains("device=\"another\""));
}

#[test]
fn other_requests_are_refused() {
    let tree = full();
    let served = Served::new(&tree);
    let (head, body) = served.ask("HEAD", "/metrics");
    assert!(head.starts_with("http/1.1 200 ") && body.is_empty());
    assert!(served.ask("GET", "/").0.starts_with("http/1.1 404 "));
    let (head, _) = served.ask("POST", "/metrics");
    assert!(
        head.starts_with("http/1.1 405 ") && head.contains("allow: get, head"),
        "{head}"
    );
    let mut stream = served.connect();
    stream.write_all(b"\0\xff rubbish\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 400 "));
    assert!(served.ask("GET", "/metrics").0.starts_with("http/1.1 200 "));
}

/// Clients that say nothing take all slots, and lose them after ten seconds.
#[test]
fn silent_clients_do_not_keep_others_away() {
    let tree = full();
    let served = Served::new(&tree);
    let silent: Vec<TcpStream> = (0..8).map(|_| served.connect()).collect();
    let started = Instant::now();
    assert!(served.ask("GET", "/metrics").0.starts_with("http/1.1 200 "));
    assert!(started.elapsed() > Duration::from_secs(5));
    drop(silent);
}

#[test]
fn an_address_that_is_taken_is_said() {
    let tree = full();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = command(&tree)
        .args(["--listen", &address])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.starts_with(&format!("ibnbd: cannot listen on {address}: ")),
        "{said}"
    );
}

/// A sample: name, labels, value.
type Sample = (String, BTreeMap<String, String>, f64);

fn is_name(name: &str) -> bool {
    let first = name.chars().next().is_some_and(|c| !c.is_ascii_digit());
    first
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Reads a sample as the text format says.
fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            let twice = labels.insert(label.to_owned(), value).is_some();
            if twice || !is_name(label) || label.starts_with("__") {
                return None;
            }
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ')?.parse().ok()?;
    is_name(name).then(|| (name.to_owned(), labels, value))
}

/// A label's value up to its quote, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                c @ ('\\' | '"') => c,
                _ => return None,
            }),
            c => value.push(c),
        }
    }
    None
}

/// Metrics by name: the kind, and the samples.
fn parsed(text: &str) -> BTreeMap<String, (String, Vec<Sample>)> {
    let mut all: BTreeMap<String, (String, Vec<Sample>)> = BTreeMap::new();
    let (mut help, mut current) = (String::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, words) = rest.split_once(' ').unwrap();
            assert!(words.ends_with('.'), "{line}");
            help = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, help, "the help comes first");
            let twice = all.insert(name.to_owned(), (kind.to_owned(), Vec::new()));
            assert!(twice.is_none(), "{line}");
            current = name.to_owned();
        } else {
            let sample = sample(line).unwrap_or_else(|| panic!("no sample: {line}"));
            let (kind, samples) = all.get_mut(&current).unwrap();
            let suffix = sample.0.strip_prefix(&current).unwrap();
            let allowed: &[&str] = match kind.as_str() {
                "histogram" => &["_bucket", "_count"],
                _ => &[""],
            };
            assert!(allowed.contains(&suffix), "{line}");
            samples.push(sample);
        }
    }
    all
}

/// Names and units are Prometheus' own, and no series comes twice.
#[test]
fn metrics_keep_the_conventions() {
    let text = printed(&full());
    let mut series = BTreeSet::new();
    for (name, (kind, samples)) in parsed(&text) {
        assert!(
            name.starts_with("ibnbd_") || name.starts_with("ibtrs_") || name.starts_with("ibmsg_"),
            "{name}"
        );
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
        assert!(!samples.is_empty(), "{name}");
        for unit in [
            "_ms",
            "_us",
            "_ns",
            "milliseconds",
            "kib",
            "_mb",
            "sectors",
            "percent",
        ] {
            assert!(!name.contains(unit), "{name}");
        }
        for (name, labels, value) in samples {
            assert!(value.is_finite() && value >= 0.0, "{name}");
            assert!(series.insert((name.clone(), labels.clone())), "{name}");
        }
    }
    // Escapes lead back to what sysfs has.
    assert!(series
        .iter()
        .any(|(_, labels)| labels.get("device").map(String::as_str) == Some("a\"b\\c,d} 1\u{e4}")));
}

#[test]
fn buckets_count_up_to_all_requests() {
    let all = parsed(&printed(&full()));
    buckets_count_up(&all["ibtrs_path_request_duration_seconds"].1);
    buckets_count_up(&all["ibnbd_disk_request_duration_seconds"].1);
}

fn buckets_count_up(samples: &[Sample]) {
    let mut last: BTreeMap<BTreeMap<String, String>, (f64, f64)> = BTreeMap::new();
    let mut counts = 0;
    for (name, labels, value) in samples {
        let mut labels = labels.clone();
        match labels.remove("le") {
            Some(limit) => {
                let limit: f64 = limit.parse().unwrap();
                if let Some((below, seen)) = last.insert(labels, (limit, *value)) {
                    assert!(below < limit && seen <= *value, "{name}");
                }
            }
            None => {
                assert_eq!(last[&labels], (f64::INFINITY, *value));
                counts += 1;
            }
        }
    }
    assert!(counts >= 2 && counts == last.len());
}

/// Names in an expression of PromQL that are metrics of ours, each with the labels that it is asked
/// for.
fn asked(expression: &str) -> Vec<(String, Vec<String>)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = ["ibnbd_", "ibtrs_", "ibmsg_"]
        .iter()
        .filter_map(|p| rest.find(p))
        .min()
    {
        let name: String = rest[at..].chars().take_while(|c| is_part(*c)).collect();
        rest = &rest[at + name.len()..];
        let mut labels = Vec::new();
        if let Some((inner, _)) = rest.strip_prefix('{').and_then(|r| r.split_once('}')) {
            labels.extend(
                inner
                    .split("\",")
                    .map(|one| one.split(['=', '!']).next().unwrap().to_owned()),
            );
        }
        found.push((name, labels));
    }
    found
}

/// All strings of a document that belong to such a key.
fn strings<'a>(value: &'a serde_json::Value, keys: &[&str], found: &mut Vec<&'a str>) {
    match value {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                match value.as_str() {
                    Some(text) if keys.contains(&key.as_str()) => found.push(text),
                    _ => strings(value, keys, found),
                }
            }
        }
        serde_json::Value::Array(list) => list.iter().for_each(|v| strings(v, keys, found)),
        _ => {}
    }
}

/// Besides, what is only there while a server is away.
fn with_an_outage() -> Tree {
    let tree = full();
    let away = "/sys/class/ibtrs-client/away";
    tree.session("away", &[("10.0.1.2", "10.0.9.1", "disconnected")])
        .file(&format!("{away}/server_back_in_s"), "60\n")
        .file(&format!("{away}/outage"), "since 1764376027.042\n");
    tree.configfs()
        .host("u")
        .export("a", "/dev/sda", &["u"])
        .file("/sys/kernel/config/ibnbd/hosts/u/max_paths", "2\n")
        .file("/sys/module/ibtrs_server/parameters/max_sessions", "1024\n");
    tree
}

#[test]
fn a_server_has_metrics_of_exports_and_hosts() {
    let text = printed(&with_an_outage());
    for line in [
        "ibtrs_server_sessions 1",
        "ibtrs_server_sessions_limit 1024",
        "ibnbd_export_enabled{export=\"a\"} 1",
        "ibnbd_export_clients{export=\"a\"} 1",
        "ibnbd_host_devices{host=\"u\"} 1",
        "ibnbd_host_limit{host=\"u\",of=\"paths\"} 2",
        "ibnbd_host_limit{host=\"u\",of=\"devices\"} 256",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
    }
    // A limit of 0 is none.
    assert!(!text.contains("of=\"iops\""), "{text}");
}

/// The metrics that there are, each with its labels.
fn known() -> BTreeMap<String, BTreeSet<String>> {
    let all = parsed(&printed(&with_an_outage()));
    let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (_, samples) in all.values() {
        for (name, labels, _) in samples {
            let labels = labels.keys().cloned();
            known.entry(name.clone()).or_default().extend(labels);
        }
    }
    known
}

/// The dashboard asks for metrics and labels that there are, and shows each metric that changes.
#[test]
fn the_dashboard_asks_for_what_there_is() {
    let dashboard = include_str!("../../grafana/ibnbd.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    let known = known();
    let mut expressions = Vec::new();
    strings(&dashboard, &["expr", "query"], &mut expressions);
    assert!(expressions.len() > 15);
    let mut used = BTreeSet::new();
    for expression in expressions {
        for (name, labels) in asked(expression) {
            let has = known.get(&name);
            let has = has.unwrap_or_else(|| panic!("no metric {name}: {expression}"));
            for label in labels {
                // Prometheus itself gives each series an instance.
                assert!(
                    label == "instance" || has.contains(&label),
                    "{label} of {name}: {expression}"
                );
            }
            used.insert(name);
        }
    }
    // Those of counters that the driver declares need no panel.
    let has_panel = |name: &&String| {
        Counters::declared().all(|c| **name != format!("ibtrs_path_{}_total", c.name()))
    };
    let unused = known.keys().filter(|name| !used.contains(*name));
    let unused: Vec<&String> = unused.filter(has_panel).collect();
    let expected = [
        "ibmsg_portals",
        "ibmsg_unseen_processes",
        "ibnbd_disk_flushes_total",
        "ibnbd_disk_request_duration_seconds_count",
        "ibnbd_disk_size_bytes",
        "ibnbd_unreadable_files",
        "ibtrs_path_request_duration_seconds_count",
        "ibtrs_path_requests_in_flight",
        "ibtrs_path_requests_total",
        "ibtrs_session_failover_duration_seconds_count",
        "ibtrs_session_server_back_in_seconds",
    ];
    assert_eq!(unused, expected);
}

/// With several machines, a line says which one's it is, and the choice of a disk holds everywhere.
#[test]
fn the_dashboard_tells_machines_and_disks_apart() {
    let dashboard = include_str!("../../grafana/ibnbd.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut number = 0;
    for target in panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array())
        .flatten()
    {
        let text = |key: &str| target[key].as_str().unwrap_or_default();
        if text("legendFormat").contains("{{") {
            assert!(text("legendFormat").contains("{{instance}}"), "{target}");
        }
        let is_of_disk = text("expr").contains("ibnbd_disk_");
        assert!(
            !is_of_disk || text("expr").contains("disk=~\"$disk\""),
            "{target}"
        );
        number += usize::from(is_of_disk);
    }
    assert!(number > 8, "{number}");
}

/// Rules that ask for a metric or a label that is not there would never fire.
#[test]
fn the_alert_rules_ask_for_what_there_is() {
    let rules: serde_yaml_ng::Value =
        serde_yaml_ng::from_str(include_str!("../../grafana/alerts.yml")).unwrap();
    let known = known();
    let rules = rules["groups"][0]["rules"].as_sequence().unwrap();
    assert_eq!(rules.len(), 6);
    for rule in rules {
        let expression = rule["expr"].as_str().unwrap();
        let asked = asked(expression);
        assert!(!asked.is_empty(), "{expression}");
        for (name, labels) in asked {
            let has = known.get(&name);
            let has = has.unwrap_or_else(|| panic!("no metric {name}: {expression}"));
            assert!(
                labels.iter().all(|label| has.contains(label)),
                "{expression}"
            );
        }
        assert!(
            rule["labels"]["severity"].is_string() && rule["annotations"]["summary"].is_string()
        );
    }
}

/// The unit's words are known, and lead to the documented address.
#[test]
fn the_unit_starts_what_there_is() {
    let unit = include_str!("../../systemd/ibnbd-metrics.service");
    let line = unit.lines().find_map(|l| l.strip_prefix("ExecStart="));
    let words = line
        .unwrap()
        .strip_prefix("/usr/bin/ibnbd metrics ")
        .unwrap();
    assert!(words.ends_with(" 127.0.0.1:11234"), "{words}");
    let words = words.replace(":11234", ":0");
    let tree = full();
    let served = Served::with(&tree, &words.split(' ').collect::<Vec<_>>());
    assert!(served.ask("GET", "/metrics").0.starts_with("http/1.1 200 "));
}

/// The table of the documentation has each metric, its kind, its labels and its help.
#[test]
fn the_table_of_metrics_is_the_one_in_the_documentation() {
    let text = printed(&with_an_outage());
    let all = parsed(&text);
    let table: String = text
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '))
        .map(|(name, help)| {
            let (kind, samples) = &all[name];
            // In the order in which they are printed.
            let line = text
                .lines()
                .find(|line| line.starts_with(&samples[0].0))
                .unwrap();
            let labels: Vec<String> = labels_of(line).map(|label| format!("`{label}`")).collect();
            let help = help.trim_end_matches('.');
            format!("| `{name}` | {kind} | {} | {help} |\n", labels.join(", "))
        })
        .collect();
    let table = format!("| --- | --- | --- | --- |\n{table}");
    tree::is_generated("Documentation/tool.md", "| metric | type |", "\n", &table);
}

fn labels_of(line: &str) -> impl Iterator<Item = &str> {
    let inner = line.split_once('{').map_or("", |(_, rest)| rest);
    inner
        .split("\"")
        .step_by(2)
        .filter_map(|part| part.trim_start_matches(',').strip_suffix('='))
}
