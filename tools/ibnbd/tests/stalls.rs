// SPDX-License-Identifier: GPL-2.0

//! Requests that wait for a path or an answer, drained paths, and `ibnbd events`.

mod tree;

use ibnbd_host::document::{Events, List, Sessions};
use tree::ran::{document, good, run};
use tree::Tree;

const SESSION: &str = "/sys/class/ibtrs-client/s";

fn client(state: &str) -> Tree {
    let tree = Tree::new();
    tree.client()
        .session(
            "s",
            &[
                ("10.0.1.2", "10.0.1.1", state),
                ("10.0.2.2", "10.0.2.1", state),
            ],
        )
        .disk(0, "s", "disk1");
    tree
}

/// In place of states, what requests do; programs get states as they were.
#[test]
fn a_session_without_a_path_says_since_when() {
    let tree = client("disconnected");
    tree.file("/sys/block/ibnbd0/ibnbd/state", "closed\n");
    for (left, words) in [
        ("fails_in_s 37\n", "waits for its server, fails in 37 s"),
        ("", "waits for its server"),
        ("fails_since 1764376027.500\n", "fails since 2025-11-"),
    ] {
        tree.file(
            &format!("{SESSION}/outage"),
            format!("since 1764376027.042\n{left}"),
        );
        for command in ["list", "sessions"] {
            let shown = good(&tree, &[command]);
            assert!(shown.contains(words), "{shown}");
            let csv = good(&tree, &[command, "-o", "csv"]);
            assert!(!csv.contains(words), "{csv}");
        }
        let ran = run(&tree, &["status"]);
        let said = "CRITICAL: session s: 0 of 2 paths connected since 2025-11-";
        assert!(ran.code == 2 && ran.out.starts_with(said), "{}", ran.out);
        assert!(ran.out.contains(&format!("I/O {words}")), "{}", ran.out);
        let found = run(&tree, &["check"]).out;
        let said = format!("error: session s has no path to its server: I/O {words}");
        assert!(found.contains(&said), "{found}");
        assert!(found.contains("the last path was lost at 2025-11-"));
        // The session is the cause.
        assert!(!found.contains("ibnbd0 is closed"), "{found}");
    }
    let list: List = document(&tree, &["list"]);
    let outage = list.disks[0].outage.unwrap();
    assert_eq!(outage.since_ms, 1_764_376_027_042);
    assert_eq!(outage.fails_since_ms, Some(1_764_376_027_500));
    let sessions: Sessions = document(&tree, &["sessions"]);
    assert_eq!(sessions.sessions[0].outage, Some(outage));
    let metric = "ibtrs_session_outage_start_timestamp_seconds{session=\"s\",side=\"client\"} 1764376027.042\n";
    assert!(good(&tree, &["metrics"]).contains(metric));
}

#[test]
fn a_request_without_an_answer_is_a_warning() {
    let tree = client("connected");
    let file = format!("{SESSION}/oldest_request_ms");
    tree.file(&file, "5000\n");
    assert_eq!(run(&tree, &["status"]).code, 0);
    tree.file(&file, "20999\n");
    let ran = run(&tree, &["status"]);
    let said = "WARNING: session s: a request has waited for its answer for 20 s, since ";
    assert!(ran.code == 1 && ran.out.starts_with(said), "{}", ran.out);
    let found = run(&tree, &["check"]).out;
    let said = "warning: session s: a request has waited for its answer for 20 s, since ";
    assert!(found.contains(said), "{found}");
    let metric = "ibtrs_session_oldest_request_seconds{session=\"s\",side=\"client\"} 20.999\n";
    assert!(good(&tree, &["metrics"]).contains(metric));
}

/// Long before the path is lost, if its session tolerates long silences.
#[test]
fn overdue_heartbeats_are_a_warning() {
    let tree = client("connected");
    let path = "ip:10.0.2.2@ip:10.0.2.1";
    let file = format!("{SESSION}/paths/{path}/heartbeat_overdue_ms");
    // A busy machine may answer late.
    tree.file(&file, "2000\n");
    assert_eq!(run(&tree, &["status"]).code, 0);
    tree.file(&file, "20999\n");
    let ran = run(&tree, &["status"]);
    let said = format!("session s: path {path}: heartbeats overdue for 20 s, since ");
    assert!(
        ran.code == 1 && ran.out.starts_with(&format!("WARNING: {said}")),
        "{}",
        ran.out
    );
    let found = run(&tree, &["check"]).out;
    assert!(found.contains(&format!("warning: {said}")), "{found}");
    assert!(found.contains("check the link and the server"), "{found}");
    let metric = format!(
        "ibtrs_path_heartbeat_overdue_seconds{{session=\"s\",path=\"{path}\",side=\"client\"}} 20.999\n"
    );
    assert!(good(&tree, &["metrics"]).contains(&metric));
    let shown: serde_json::Value = document(&tree, &["paths"]);
    assert_eq!(shown["paths"][1]["heartbeat_overdue_ms"], 20_999);
    // A module that has no such file.
    std::fs::remove_file(tree.real(&file)).unwrap();
    let ran = run(&tree, &["status"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
}

#[test]
fn a_drained_path_is_seen_everywhere() {
    let tree = client("connected");
    let path = format!("{SESSION}/paths/ip:10.0.2.2@ip:10.0.2.1");
    tree.file(&format!("{path}/drain"), "1\n")
        .file(&format!("{path}/last_error"), "old\n");
    let paths = good(&tree, &["paths"]);
    assert!(paths.contains("connected, drained"), "{paths}");
    // The error of a path that is connected is history.
    assert!(!paths.contains("old"), "{paths}");
    assert!(good(&tree, &["paths", "-o", "json"]).contains("\"last_error\": \"old\""));
    for command in ["sessions", "list"] {
        assert!(good(&tree, &[command]).contains("2/2, 1 drained"));
        assert!(!good(&tree, &[command, "-o", "csv"]).contains("drained"));
    }
    let list: List = document(&tree, &["list"]);
    assert_eq!(list.disks[0].paths_drained, 1);
    let ran = run(&tree, &["status"]);
    let said = "WARNING: session s: 1 of 2 paths drained (";
    assert!(ran.code == 1 && ran.out.starts_with(said), "{}", ran.out);
    let found = run(&tree, &["check"]).out;
    let said = "hint: session s: path ip:10.0.2.2@ip:10.0.2.1 is drained";
    assert!(found.contains(said), "{found}");
    let metric = "ibtrs_session_paths_drained{session=\"s\",side=\"client\"} 1\n";
    assert!(good(&tree, &["metrics"]).contains(metric));
}

/// That is how it should be, and no warning.
#[test]
fn a_path_on_standby_is_shown() {
    let tree = client("connected");
    let path = format!("{SESSION}/paths/ip:10.0.2.2@ip:10.0.2.1");
    let ran = run(&tree, &["path", "set", "s", "10.0.2.1", "--standby"]);
    assert_eq!((ran.code, ran.err.contains("warning")), (0, false));
    assert_eq!(tree.text(&format!("{path}/standby")).trim(), "1");
    assert!(good(&tree, &["paths"]).contains("connected, standby"));
    assert!(good(&tree, &["tree"]).contains("connected  standby"));
    let shown = good(&tree, &["show", "s/10.0.2.1", "-o", "json"]);
    assert!(shown.contains("\"standby\": true"), "{shown}");
    assert_eq!(run(&tree, &["status"]).code, 0);
    // None is preferred if all of them wait.
    let ran = run(&tree, &["path", "set", "s", "10.0.1.1", "--standby"]);
    let said = "all paths of the session are on standby now";
    assert!(ran.code == 0 && ran.err.contains(said), "{}", ran.err);
    good(&tree, &["path", "set", "s", "10.0.2.1", "--active"]);
    assert_eq!(tree.text(&format!("{path}/standby")).trim(), "0");
    for words in [&[][..], &["--active", "--standby"]] {
        let words = [&["path", "set", "s", "10.0.2.1"], words].concat();
        assert_eq!(run(&tree, &words).code, 2, "{words:?}");
    }
}

#[test]
fn events_have_times_and_causes() {
    let tree = client("connected");
    tree.session("t", &[("10.0.1.2", "10.0.3.1", "connected")]);
    tree.file(
        "/sys/class/ibtrs-client/t/events",
        "1764376029.000 ip:10.0.1.2@ip:10.0.3.1 drained by a user\n1764376",
    );
    let all: Events = document(&tree, &["events"]);
    let shown: Vec<_> = all
        .events
        .iter()
        .map(|e| {
            (
                e.session.as_deref().unwrap(),
                e.event.as_str(),
                e.path.is_some(),
            )
        })
        .collect();
    // By their times, of all sessions.
    let expected = [
        ("s", "lost", true),
        ("t", "drained", true),
        ("s", "connected", true),
        ("s", "connected", false),
    ];
    assert_eq!(shown, expected);
    let cause = "no heartbeat from the server (ETIMEDOUT)";
    assert_eq!(all.events[0].cause.as_deref(), Some(cause));
    let one: Events = document(&tree, &["events", "t"]);
    assert_eq!(one.events.len(), 1);
    let csv = good(&tree, &["events", "t", "-o", "csv"]);
    let line = "2025-11-29T00:27:09Z,t,ip:10.0.1.2@ip:10.0.3.1,,drained,by a user,,,,,\n";
    assert!(csv.ends_with(line), "{csv}");
    assert!(good(&tree, &["events"]).contains("2025-11-2"));
    assert_eq!(run(&tree, &["events", "none"]).code, 3);
    // Those of a disk.
    tree.file(
        &format!("{SESSION}/events"),
        "1764376030.000 ibnbd0 closed closed on the server\n1764376027.000 ibnbd0 mapped disk1\n1764376026.000 - connected \n",
    );
    let of_disk: Events = document(&tree, &["events", "ibnbd0"]);
    let shown: Vec<_> = (of_disk.events.iter())
        .map(|e| (e.disk.as_deref(), e.event.as_str(), e.cause.as_deref()))
        .collect();
    let disk = Some("ibnbd0");
    assert_eq!(
        shown,
        [
            (disk, "mapped", Some("disk1")),
            (disk, "closed", Some("closed on the server"))
        ]
    );
    assert_eq!(document::<Events>(&tree, &["events", "disk1"]), of_disk);
    // A line that is not understood, and a cause that is no text, cost no other line.
    let file = tree.real(&format!("{SESSION}/events"));
    std::fs::write(
        file,
        b"1764376031.000 - failing \xff\nwhat\n1764376026.000 - connected \n",
    )
    .unwrap();
    let ran = run(&tree, &["events", "s", "-o", "csv"]);
    let said = format!("ibnbd: warning: {SESSION}/events: not understood: \"what\"\n");
    assert_eq!((ran.code, ran.err), (0, said));
    assert_eq!(ran.out.lines().count(), 3, "{}", ran.out);
    // A module that has no such file.
    std::fs::remove_file(tree.real("/sys/class/ibtrs-client/t/events")).unwrap();
    let none: Events = document(&tree, &["events", "t"]);
    assert!(none.events.is_empty() && none.notes.is_empty());
}

/// What happens to many disks at once is one line of the file and of a table, and concerns each of them.
#[test]
fn disks_of_a_session_change_together() {
    let tree = client("connected");
    tree.file(
        &format!("{SESSION}/events"),
        "1764376030.000 ibnbd0-1,7 closed no path to the server\n1764376027.000 ibnbd0 mapped disk1\n",
    );
    let all: Events = document(&tree, &["events"]);
    let shown: Vec<_> = (all.events.iter())
        .map(|e| (e.disk.as_deref().unwrap(), e.event.as_str()))
        .collect();
    let expected = [
        ("ibnbd0", "mapped"),
        ("ibnbd0", "closed"),
        ("ibnbd1", "closed"),
        ("ibnbd7", "closed"),
    ];
    assert_eq!(shown, expected);
    let table = good(&tree, &["events"]);
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.contains(" ibnbd0-1,7  closed"), "{table}");
    let of_disk: Events = document(&tree, &["events", "ibnbd0"]);
    assert_eq!(of_disk.events, all.events[..2]);
    assert!(good(&tree, &["events", "ibnbd0"]).contains(" ibnbd0  closed"));
    assert_eq!(good(&tree, &["events", "-o", "csv"]).lines().count(), 5);
}

/// Portals and channels, as the module for messages tells of them.
#[test]
fn events_of_portals_and_channels() {
    let tree = client("connected");
    const TOLD: &str = "\
        1764376020.114 1764376020.114 1 - - kv - bound by user 1000\n\
        1764376033.200 1764376031.001 12 client s kv 13 opened \n\
        1764376026.000 1764376026.000 1 server web1 log 4 refused its backlog is full (EAGAIN)\n\
        1764376025.000 1764376025.000 1 local local kv 2 closed by the portal's program\n";
    tree.file("/dev/ibmsg", TOLD);
    // Not while the module is not loaded.
    let none: Events = document(&tree, &["events"]);
    assert!(none.events.iter().all(|event| event.portal.is_none()));
    assert!(!good(&tree, &["events"]).contains("PORTAL"));
    tree.messages();
    let all: Events = document(&tree, &["events"]);
    let shown: Vec<_> = (all.events.iter())
        .map(|e| {
            (
                e.session.as_deref(),
                e.portal.as_deref(),
                e.channel,
                e.event.as_str(),
            )
        })
        .collect();
    let session = Some("s");
    let expected = [
        (None, Some("kv"), None, "bound"),
        (Some("local"), Some("kv"), Some(2), "closed"),
        (Some("web1"), Some("log"), Some(4), "refused"),
        (session, None, None, "lost"),
        (session, None, None, "connected"),
        (session, None, None, "connected"),
        (session, Some("kv"), Some(13), "opened"),
    ];
    assert_eq!(shown, expected);
    let last = all.events.last().unwrap();
    assert_eq!(
        (last.side.as_deref(), last.count, last.since_ms),
        (Some("client"), Some(12), Some(1_764_376_031_001))
    );
    let table = good(&tree, &["events"]);
    assert!(
        table
            .lines()
            .next()
            .unwrap()
            .contains("PORTAL  CHANNEL  EVENT"),
        "{table}"
    );
    assert!(table.contains("(12 times since 2025-11-2"), "{table}");
    let csv = good(&tree, &["events", "-o", "csv"]);
    let line = "2025-11-29T00:27:06Z,web1,,,refused,its backlog is full (EAGAIN),log,4,server,,\n";
    assert!(csv.contains(line), "{csv}");
    let line = "2025-11-29T00:27:13Z,s,,,opened,,kv,13,client,12,2025-11-29T00:27:11Z\n";
    assert!(csv.ends_with(line), "{csv}");
    // Of one session, which may be over, and of one portal, which may be closed.
    let events = |name| document::<Events>(&tree, &["events", name]).events;
    for (name, count) in [("s", 4), ("web1", 1), ("local", 1), ("kv", 3), ("log", 1)] {
        assert_eq!(events(name).len(), count, "{name}");
    }
    assert_eq!(run(&tree, &["events", "none"]).code, 3);
    // What is not understood is said once, and the rest is shown.
    tree.file(
        "/dev/ibmsg",
        format!("1764376020.114 what\n{TOLD}\n\u{1b}\n"),
    );
    let ran = run(&tree, &["events"]);
    let said = "ibnbd: warning: /dev/ibmsg: 2 lines not understood: \"1764376020.114 what\"\n";
    assert_eq!((ran.code, ran.err.as_str()), (0, said));
    assert_eq!(ran.out, table);
    // None of them concerns a disk.
    let ran = run(&tree, &["events", "ibnbd0"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    std::fs::remove_file(tree.real("/dev/ibmsg")).unwrap();
    assert!(run(&tree, &["events"]).err.is_empty());
}

/// What a monitoring system reads of a server.
#[test]
fn a_server_speaks_of_its_clients_and_exports() {
    let tree = Tree::new();
    tree.server("")
        .export("disk1", "/dev/sdb", &[])
        .served("web1", "10.0.1.2", "10.0.1.1");
    let ran = run(&tree, &["status"]);
    let said = "OK: 0 of 0 disks open, 0 of 0 paths connected, 1 clients over 1 paths, 1 exports\n";
    assert_eq!((ran.code, ran.out.as_str()), (0, said));
}
