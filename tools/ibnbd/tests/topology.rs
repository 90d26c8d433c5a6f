// SPDX-License-Identifier: GPL-2.0

//! `ibnbd tree`: what hangs on what, at either end.

mod tree;

use ibnbd_host::document::Tree as Document;
use ibnbd_host::model::{PathState, SessionState};
use rustix::fs::{mknodat, FileType, Mode, CWD};
use tree::ran::{document, good, run};
use tree::Tree;

/// A path that has failed over since has an error that is over.
#[test]
fn a_client_shows_disks_with_sessions_and_paths() {
    let tree = Tree::new();
    tree.client()
        .session(
            "s",
            &[
                ("10.0.1.2", "10.0.1.1", "connected"),
                ("10.0.2.2", "10.0.2.1", "connected"),
            ],
        )
        .session("t", &[("10.0.1.2", "10.0.3.1", "disconnected")])
        .session("u", &[])
        .disk(0, "s", "disk1")
        .disk(1, "s", "a\u{202e}b")
        .disk(2, "t", "disk3")
        .file("/sys/block/ibnbd2/ibnbd/state", "closed\n");
    let paths = "/sys/class/ibtrs-client/s/paths";
    tree.file(&format!("{paths}/ip:10.0.2.2@ip:10.0.2.1/drain"), "1\n")
        .file(
            &format!("{paths}/ip:10.0.2.2@ip:10.0.2.1/last_error"),
            "old\n",
        );
    let session = "\
`- session s  connected  2 of 2 paths  min-inflight
   |- ip:10.0.1.2@ip:10.0.1.1  connected  in flight 1  120.5 us  rxe0/1
   `- ip:10.0.2.2@ip:10.0.2.1  connected  drained  in flight 1  120.5 us  rxe0/1
";
    let expected = format!(
        "\
ibnbd0  disk1  open  64.0 MiB  rw
{session}ibnbd1  a\\u{{202e}}b  open  64.0 MiB  rw
{session}ibnbd2  disk3  closed  64.0 MiB  rw
`- session t  disconnected  0 of 1 paths  min-inflight
   `- ip:10.0.1.2@ip:10.0.3.1  disconnected  in flight 1  rxe0/1  no heartbeat from the server (ETIMEDOUT)
session u  disconnected  0 of 0 paths  min-inflight
"
    );
    assert_eq!(good(&tree, &["tree"]), expected);
    let all: Document = document(&tree, &["tree"]);
    let names: Vec<&str> = all.disks.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["ibnbd0", "ibnbd1", "ibnbd2"]);
    assert_eq!(all.disks[0].export.as_deref(), Some("disk1"));
    let session = all.disks[0].session.as_ref().unwrap();
    assert_eq!(
        (&*session.name, session.state),
        ("s", SessionState::Connected)
    );
    let drained = &session.paths[1];
    assert_eq!(
        (drained.drained, drained.in_flight, drained.latency_ns),
        (Some(true), Some(1), Some(120_500))
    );
    assert_eq!(session.paths[0].drained, Some(false));
    let lost = &all.disks[2].session.as_ref().unwrap().paths[0];
    assert_eq!(lost.state, PathState::Disconnected);
    assert_eq!(all.sessions[0].name, "u");
    assert_eq!(
        (all.exports.len(), all.ports.len(), all.clients.len()),
        (0, 0, 0)
    );
    // A server that was stopped as planned is expected.
    tree.file("/sys/class/ibtrs-client/t/server_back_in_s", "540\n");
    let out = good(&tree, &["tree"]);
    let planned =
        "`- session t  disconnected  planned stop, back in 540 s  0 of 1 paths  min-inflight\n";
    assert!(out.contains(planned), "{out}");
}

#[test]
fn a_server_shows_ports_exports_hosts_and_clients() {
    let tree = Tree::new();
    tree.server("")
        .host("web1")
        .host("web2")
        .host("web3")
        .port("left", "ip:10.0.1.1")
        .port("right", "ip:10.0.2.1")
        .file("/sys/kernel/config/ibnbd/ports/right/enable", "0\n")
        .export("disk1", "/dev/vda", &["web1", "web2", "web3"])
        .export("disk2", "/dev/vdb", &[])
        .export("disk3", "/dev/vdc", &[])
        .file(
            "/sys/kernel/config/ibnbd/exports/disk2/allow_any_host",
            "1\n",
        )
        .file(
            "/sys/kernel/config/ibnbd/exports/disk2/allow_unauthenticated",
            "10.0.0.0/8\n",
        )
        .file("/sys/kernel/config/ibnbd/exports/disk3/enable", "0\n")
        .authenticated("web1", "10.0.1.2", "10.0.1.1", "default")
        .authenticated("web1", "10.0.2.2", "10.0.2.1", "default")
        .authenticated("web2", "10.0.1.3", "10.0.1.1", "default")
        .served("x", "10.0.1.4", "10.0.1.1")
        .served("y", "10.0.1.5", "10.0.1.1")
        .opened("vda", "web1", "/disk1")
        .opened("vdb", "x", "disk2");
    let expected = "\
server
|- port left  ip:10.0.1.1 port 1234  listening
|- port right  ip:10.0.2.1 port 1234  disabled
|- export disk1  /dev/vda  rw  enabled
|  |- host web1
|  |  `- client web1  open as rw  connected  2 of 2 paths
|  |     |- ip:10.0.1.2@ip:10.0.1.1  connected  in flight 0  rxe0/1
|  |     `- ip:10.0.2.2@ip:10.0.2.1  connected  in flight 0  rxe0/1
|  |- host web2
|  |  `- client web2  not open  connected  1 of 1 paths
|  |     `- ip:10.0.1.3@ip:10.0.1.1  connected  in flight 0  rxe0/1
|  `- host web3
|- export disk2  /dev/vdb  rw  enabled
|  `- any host, without a key from 10.0.0.0/8
|     `- client x  open as rw  connected  1 of 1 paths
|        `- ip:10.0.1.4@ip:10.0.1.1  connected  in flight 0  rxe0/1
|- export disk3  /dev/vdc  rw  disabled
`- client y  connected  1 of 1 paths
   `- ip:10.0.1.5@ip:10.0.1.1  connected  in flight 0  rxe0/1
";
    assert_eq!(good(&tree, &["tree"]), expected);
    let all: Document = document(&tree, &["tree"]);
    let ports: Vec<&str> = all.ports.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(ports, ["left", "right"]);
    let hosts = &all.exports[0].hosts;
    let open: Vec<_> = hosts
        .iter()
        .map(|host| {
            let modes = host.clients.iter().map(|c| c.access_mode.as_deref());
            (host.name.as_deref(), modes.collect::<Vec<_>>())
        })
        .collect();
    assert_eq!(
        open,
        [
            (Some("web1"), vec![Some("rw")]),
            (Some("web2"), vec![None]),
            (Some("web3"), vec![]),
        ]
    );
    assert_eq!(all.exports[1].hosts[0].name, None);
    assert_eq!(all.clients[0].name, "y");
}

#[test]
fn channels_and_portals_are_shown() {
    let tree = Tree::new();
    tree.client()
        .session("s", &[("10.0.1.2", "10.0.1.1", "connected")])
        .messages()
        .message_portal((7, "server"), "kv", 1)
        .channel((8, "one"), 5, "s", "portal:\tdb\n")
        .channel((9, "two"), 6, "s", "portal:\tdb\nconnected:\t0\n");
    let expected = "\
session s  connected  1 of 1 paths  min-inflight
|- ip:10.0.1.2@ip:10.0.1.1  connected  in flight 1  120.5 us  rxe0/1
`- channels to db  2  without a path 1
messages
`- portal kv  server (7)  offers 1
";
    assert_eq!(good(&tree, &["tree"]), expected);
    let all: Document = document(&tree, &["tree"]);
    let channels = &all.sessions[0].channels[0];
    assert_eq!(
        (&*channels.portal, channels.channels, channels.without_path),
        ("db", 2, 1)
    );
    assert_eq!(
        (&*all.portals[0].name, all.portals[0].offers),
        ("kv", Some(1))
    );
    assert!(all.local.is_empty());
}

/// Without exports in configfs, what clients have open is known.
#[test]
fn devices_without_rules_are_shown_with_their_clients() {
    let tree = Tree::new();
    tree.server("/e/%SESSNAME%")
        .mainline()
        .served("s", "10.0.1.2", "10.0.1.1")
        .opened("sda", "s", "disk1");
    let expected = "\
rnbd0  dev/nullb0  open  1.0 MiB  rw
`- session m  connected  1 of 1 paths  min-inflight
   `- ip:10.0.1.2@ip:10.0.1.1  connected  in flight 0  17.0 us  rxe0/1
server
|- export disk1  sda
|  `- client s  open as rw  connected  1 of 1 paths
|     `- ip:10.0.1.2@ip:10.0.1.1  connected  in flight 0  rxe0/1
`- export dev/nullb1  nullb1
   `- client n  open as migration  connected  1 of 1 paths
      `- ip:10.0.1.3@ip:10.0.1.2  connected  rxe0/1
";
    assert_eq!(good(&tree, &["tree"]), expected);
}

#[test]
fn the_directory_is_shown() {
    let tree = Tree::new();
    tree.server("/e")
        .link("/sys/dev/block/7:0", "../../devices/virtual/block/loop0")
        .link("/sys/dev/block/7:1", "../../devices/virtual/block/loop1")
        .served("s", "10.0.1.2", "10.0.1.1")
        .opened("loop0", "s", "/e/disk1")
        .folder("/e");
    for (name, minor) in [("disk1", 0), ("disk2", 1)] {
        let number = rustix::fs::makedev(7, minor);
        let (real, mode) = (tree.real(&format!("/e/{name}")), Mode::from_raw_mode(0o600));
        // Only root can make it.
        if mknodat(CWD, &real, FileType::BlockDevice, mode, number).is_err() {
            return;
        }
    }
    let expected = "\
server
|- export disk1  loop0
|  `- client s  open as rw  connected  1 of 1 paths
|     `- ip:10.0.1.2@ip:10.0.1.1  connected  in flight 0  rxe0/1
`- export disk2  loop1
";
    assert_eq!(good(&tree, &["tree"]), expected);
}

#[test]
fn a_tree_is_no_table() {
    let tree = Tree::new();
    tree.usual_client();
    let ran = run(&tree, &["tree", "-o", "csv"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    // Without any module, people are told.
    let ran = run(&Tree::new(), &["tree"]);
    assert_eq!((ran.code, &*ran.out), (0, ""));
    assert!(ran
        .err
        .contains("neither ibnbd_client nor ibnbd_server is loaded"));
}
