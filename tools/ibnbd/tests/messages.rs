// SPDX-License-Identifier: GPL-2.0

//! What the command says of messages between programs.

mod tree;

use ibnbd_host::document;
use ibtrs_proto::stats::counter::message_refusals;
use tree::ran::{document, good, rows, run};
use tree::Tree;

/// Lines of `check` that are about messages, each with its remedy.
fn findings(tree: &Tree) -> Vec<String> {
    let said = run(tree, &["check"]).out;
    let words = ["channel ", "portal ", "messages", "ibmsg"];
    let mut found = Vec::new();
    let mut lines = said.lines();
    while let Some(line) = lines.next() {
        let remedy = lines.next().unwrap_or_default();
        if words.iter().any(|word| line.contains(word)) {
            found.push(format!("{line}|{}", remedy.trim_start()));
        }
    }
    found
}

/// A client with channels over its session.
fn client() -> Tree {
    let tree = Tree::new();
    tree.usual_client()
        .messages()
        .message_portal((7, "server"), "kv", 1)
        .channel((7, "server"), 4, "local", "side:\tserver\n")
        .channel((8, "client"), 5, "local", "")
        .channel((8, "client"), 6, "s", "")
        .channel((9, "client"), 6, "s", "");
    tree
}

#[test]
fn sessions_and_status_count_channels() {
    let tree = client();
    let text = good(&tree, &["sessions"]);
    let rows = rows(&text);
    assert_eq!(rows[0][5..], ["CHANNELS", "USED"]);
    assert_eq!((rows[1][0], rows[1][5]), ("s", "1"));
    assert_eq!((rows[2][0], rows[2][5]), ("t", "0"));
    let all: document::Sessions = document(&tree, &["sessions"]);
    let blocked = |at: usize| all.sessions[at].messages_blocked_by.as_deref();
    assert_eq!((all.sessions[0].channels, blocked(0)), (Some(1), None));
    let status = run(&tree, &["status"]).out;
    assert!(status.contains(", 1 portals, 3 channels"), "{status}");
    let health = document::<document::Status>(&tree, &["status"]).health;
    assert_eq!((health.portals, health.channels), (Some(1), Some(3)));
    // Without the module nothing is said.
    let tree = Tree::new();
    tree.usual_client();
    assert!(!run(&tree, &["status"]).out.contains("channels"));
    let all: document::Sessions = document(&tree, &["sessions"]);
    assert_eq!(all.sessions[0].channels, None);
}

#[test]
fn a_machine_with_messages_only_is_well() {
    let tree = Tree::new();
    assert_eq!(run(&tree, &["status"]).code, 3);
    tree.messages();
    let status = run(&tree, &["status"]);
    assert_eq!(status.code, 0, "{}", status.out);
    assert!(!run(&tree, &["check"]).out.contains("neither ibnbd_client"));
}

#[test]
fn channels_that_get_nowhere_are_found() {
    let tree = client();
    assert_eq!(findings(&tree), [""; 0]);
    tree.channel(
        (10, "wr\u{1b}iter"),
        7,
        "s",
        "unacknowledged:\t5\nqueued:\t9\n",
    )
    .channel((11, "loser"), 8, "s", "unacknowledged:\t3\nqueued:\t7\n")
    .channel(
        (9, "client"),
        6,
        "s",
        "unacknowledged:\t1\nconnected:\t0\nfile:\t20\n",
    )
    .message_portal((12, "sleeper"), "slow", 4);
    assert_eq!(
        findings(&tree),
        [
            "warning: channel s/6 to portal kv of client (9): 1 messages wait: the channel has no path|remedy: check the \
             paths of the session: ibnbd paths; it goes on by itself",
            "warning: channel s/7 to portal kv of wr\\u{1b}iter (10): 5 messages wait: the program at the other end \
             reads none, or too few|remedy: see on the other machine what that program does: ibmsg channels --portal kv",
            "warning: channel s/8 to portal kv of loser (11): 3 messages wait: the other machine does not acknowledge \
             them|remedy: check the paths of the session: ibnbd paths",
            "warning: portal slow: 4 offers wait, and no more can: sleeper (12) does not answer them|remedy: see what \
             the program does, or bind the portal with a larger backlog",
        ]
    );
}

#[test]
fn sessions_that_carry_no_messages_are_found() {
    let tree = client();
    tree.channel((8, "client"), 6, "s", "connected:\t0\n")
        .channel((9, "client"), 6, "s", "connected:\t0\n");
    let found = findings(&tree);
    assert_eq!(found.len(), 1, "{found:?}");
    let what = "warning: session s carries no messages: no path has a message connection|";
    assert!(found[0].starts_with(what), "{found:?}");
    let status = run(&tree, &["status"]);
    let what = "session s: 1 channels wait: no path has a message connection";
    assert!(
        status.code == 1 && status.out.contains(what),
        "{}",
        status.out
    );
    // One that a rule names, and whose paths say that they carry none, and then one of them.
    let tree = Tree::new();
    tree.usual_client().messages();
    let file = |path: &str, name: &str| {
        format!("/sys/class/ibtrs-client/s/paths/ip:10.0.{path}.2@ip:10.0.{path}.1/{name}")
    };
    for path in ["1", "2"] {
        tree.file(&file(path, "message_connections"), "0\n");
    }
    let of_session = |found: Vec<String>| {
        let is_it = |line: &String| line.contains("carries no messages");
        found.into_iter().filter(is_it).collect::<Vec<_>>()
    };
    assert_eq!(of_session(findings(&tree)), [""; 0]);
    tree.file("/etc/ibtrs/messages.toml", "[session.s]\nusers = [7]\n");
    assert_eq!(
        of_session(findings(&tree)),
        [
            "warning: session s carries no messages: no path has a message connection|remedy: load ibmsg on both \
             machines, then for each path: ibnbd path reconnect s PATH"
        ]
    );
    tree.file(&file("2", "message_connections"), "1\n");
    let path = "ip:10.0.1.2@ip:10.0.1.1";
    assert_eq!(
        of_session(findings(&tree)),
        [format!(
            "warning: session s: path {path} carries no messages, and others do|remedy: ibnbd path reconnect s {path}, \
             which connects it with messages"
        )]
    );
    let shown: document::Sessions = document(&tree, &["sessions"]);
    let counts = shown.sessions[0].paths.iter();
    let counts: Vec<_> = counts.map(|path| path.message_connections).collect();
    assert_eq!(counts, [Some(0), Some(1)]);
    assert_eq!(shown.sessions[0].messages_blocked_by, None);
    // A peer without extensions.
    tree.file(&file("1", "extensions"), "0\n");
    let what = "session s carries no messages: the other machine takes no message connections";
    assert!(findings(&tree).iter().any(|found| found.contains(what)));
}

#[test]
fn rules_are_compared() {
    const FILE: &str = "/etc/ibtrs/messages.toml";
    let tree = Tree::new();
    tree.usual_client();
    tree.file(FILE, "[portal.kv]\nusers = [7]\n");
    let found = findings(&tree);
    assert_eq!(
        found,
        [
            "warning: /etc/ibtrs/messages.toml has rules, and the module ibmsg is not loaded|\
          remedy: systemctl enable --now ibmsg-rules, or: modprobe ibmsg"
        ]
    );
    tree.messages();
    assert_eq!(
        findings(&tree),
        ["warning: /etc/ibtrs/messages.toml is not in force: portal kv: added; portal kv: users = [7]|\
          remedy: ibmsg rules apply"]
    );
    tree.files(
        "/sys/kernel/config/ibmsg/portals/kv",
        &[
            ("allowed_hosts", "any\n"),
            ("max_channels", "0\n"),
            ("max_memory_mib", "0\n"),
            ("max_published_mib", "0\n"),
            ("allow_unauthenticated", "0\n"),
            ("allowed_uids", "7\n"),
            ("allowed_gids", "\n"),
        ],
    );
    assert_eq!(findings(&tree), [""; 0]);
    tree.file(FILE, "[portal.kv]\nuser = [7]\n");
    let found = findings(&tree);
    let what = "error: /etc/ibtrs/messages.toml: TOML parse error at line 2, column 1: unknown field `user`";
    assert!(found[0].starts_with(what), "{found:?}");
    assert!(found[0].ends_with("|remedy: mend it, then: ibmsg rules apply"));
    tree.file(FILE, "[portal.kv]\nusers = [\"nobody-here\"]\n");
    assert!(findings(&tree)[0].contains("getent, which finds users by name"));
    std::fs::remove_file(tree.real(FILE)).unwrap();
    assert!(findings(&tree)[0].contains("they are gone after a reboot"));
}

#[test]
fn a_report_has_channels() {
    let tree = client();
    let report = good(&tree, &["report"]);
    let line = "\n  client (8) client (9)  call_us=2000 calls=4 channel=6 ";
    assert!(report.contains(line), "{report}");
}

#[test]
fn refused_channels_are_counted() {
    let tree = client();
    tree.message_rule("sessions", "s", 1)
        .message_rule("hosts", "web1", 11);
    let metrics = good(&tree, &["metrics"]);
    for (at, counter) in (0..).zip(message_refusals::ALL) {
        let reason = counter.name().strip_prefix("refused_").unwrap();
        for (of, count) in [
            ("portal_refused_channels_total{portal=\"kv\"", 5),
            (
                "session_refused_channels_total{session=\"s\",side=\"client\"",
                1,
            ),
            (
                "session_refused_channels_total{session=\"web1\",side=\"server\"",
                11,
            ),
        ] {
            let line = format!("ibmsg_{of},reason=\"{reason}\"}} {}\n", count + at);
            assert!(metrics.contains(&line), "{line}{metrics}");
        }
    }
    // Modules of an earlier version count nothing.
    let tree = Tree::new();
    tree.usual_client().messages();
    tree.folder("/sys/kernel/config/ibmsg/hosts/web1");
    assert!(!good(&tree, &["metrics"]).contains("refused"));
}
