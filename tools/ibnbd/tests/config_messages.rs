// SPDX-License-Identifier: GPL-2.0

//! Sessions that are open without a disk, for messages of programs: `messages = true`.

mod tree;

use tree::ran::{good, run};
use tree::Tree;

const FILE: &str = "/etc/ibtrs/client.toml";
const CONTROL: &str = "/sys/class/ibnbd-client/ctl";
const SESSION: &str =
    "[[session]]\nname = \"m\"\npaths = [\"10.0.1.2,10.0.1.1\"]\nqueues = 2\nmessages = true\n";

/// A client with a file, and the module for messages.
fn client(file: &str) -> Tree {
    let tree = Tree::new();
    tree.client().messages().file(FILE, file);
    tree
}

fn planned(tree: &Tree) -> Vec<String> {
    let text = good(tree, &["apply", "--dry-run", "--prune"]);
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_session_is_opened_without_a_disk() {
    let tree = client(SESSION);
    let step = "+ open session m over ip:10.0.1.2,ip:10.0.1.1 with 2 queues";
    assert_eq!(planned(&tree), [step]);
    assert_eq!(good(&tree, &["apply"]), format!("{step}\n"));
    assert_eq!(
        tree.text(&format!("{CONTROL}/open_session")),
        "sessname=m path=ip:10.0.1.2,ip:10.0.1.1 nr_queues=2"
    );
    // Once it is open, nothing is to be done but a path.
    tree.session("m", &[("10.0.1.2", "10.0.1.1", "connected")])
        .file(&format!("{CONTROL}/opened_sessions"), "other\nm\n");
    assert_eq!(planned(&tree), [""; 0]);
    let paths = "paths = [\"10.0.1.2,10.0.1.1\", \"10.0.2.2,10.0.2.1\"]\n";
    let text = format!("[[session]]\nname = \"m\"\nmessages = true\n{paths}");
    tree.file(FILE, text);
    assert_eq!(
        planned(&tree),
        ["+ path ip:10.0.2.2,ip:10.0.2.1 of session m"]
    );
}

#[test]
fn the_module_comes_first() {
    let tree = Tree::new();
    tree.client().file(FILE, SESSION);
    let steps = planned(&tree);
    assert_eq!(steps[0], "+ load ibmsg");
    assert!(steps[1].starts_with("+ open session m "), "{steps:?}");
    // Not for disks alone, and not for one of them.
    tree.file(FILE, SESSION.replace("messages = true\n", ""));
    assert_eq!(planned(&tree), [""; 0]);
    let disk = format!("{SESSION}[[session.disk]]\ndevice = \"a\"\n");
    tree.file(FILE, disk);
    let one = good(&tree, &["apply", "--disk", "m/a", "--dry-run"]);
    assert!(
        one.starts_with("+ map a of session m over ") && one.lines().count() == 1,
        "{one}"
    );
}

#[test]
fn disks_are_mapped_on_it() {
    let disk = "[[session.disk]]\ndevice = \"a\"\n";
    let tree = client(&format!("{SESSION}{disk}"));
    let steps = planned(&tree);
    assert!(steps[0].starts_with("+ open session m "), "{steps:?}");
    assert!(steps[1].starts_with("+ map a of session m "), "{steps:?}");
    // A session that has a disk stays open from now on. Its disk belongs to a unit of its own.
    let tree = client(&format!(
        "{}{disk}auto = false\n",
        SESSION.replace("queues = 2\n", "")
    ));
    tree.session("m", &[("10.0.1.2", "10.0.1.1", "connected")])
        .disk(0, "m", "a");
    assert_eq!(
        planned(&tree)[0],
        "+ open session m over ip:10.0.1.2,ip:10.0.1.1"
    );
}

#[test]
fn a_session_closes_with_its_last_disk_again() {
    let disk = "[[session]]\nname = \"m\"\npaths = [\"10.0.1.2,10.0.1.1\"]\n[[session.disk]]\ndevice = \"a\"\n";
    let tree = client(disk);
    tree.session("m", &[("10.0.1.2", "10.0.1.1", "connected")])
        .session("n", &[("10.0.1.2", "10.0.1.1", "connected")])
        .disk(0, "m", "a")
        .file(&format!("{CONTROL}/opened_sessions"), "m\nn\n");
    assert_eq!(
        planned(&tree),
        [
            "- close session m when it has no disk",
            "- close session n when it has no disk"
        ]
    );
    assert_eq!(good(&tree, &["apply", "--dry-run"]), "");
    good(&tree, &["apply", "--prune"]);
    // The last one; a file of sysfs takes each write as a whole.
    assert!(tree
        .text(&format!("{CONTROL}/close_session"))
        .starts_with("nsage"));
}

#[test]
fn it_is_saved() {
    let tree = client("");
    tree.session("m", &[("10.0.1.2", "10.0.1.1", "connected")])
        .file(&format!("{CONTROL}/opened_sessions"), "m\n");
    good(&tree, &["save"]);
    assert!(
        tree.text(FILE).contains("\nmessages = true\n"),
        "{}",
        tree.text(FILE)
    );
    assert_eq!(planned(&tree), [""; 0]);
    tree.file(&format!("{CONTROL}/opened_sessions"), "");
    good(&tree, &["save"]);
    assert!(
        tree.text(FILE).contains("\nmessages = false\n"),
        "{}",
        tree.text(FILE)
    );
}

#[test]
fn faults_are_said() {
    for (from, to, why) in [
        ("\"m\"", "\"m/n\"", "'/'"),
        ("\"m\"", "\"m=n\"", "messages: \"m=n\" has characters"),
        ("\"m\"", "\"local\"", "or is local"),
        ("true", "1", "messages: true or false is wanted"),
    ] {
        let tree = client(&SESSION.replacen(from, to, 1));
        let ran = run(&tree, &["apply"]);
        assert!(
            ran.code == 6 && ran.err.contains(why),
            "{from} {to}: {}",
            ran.err
        );
    }
    let polled = "[[session.disk]]\ndevice = \"a\"\npoll_queues = 2\n";
    let ran = run(&client(&format!("{SESSION}{polled}")), &["apply"]);
    assert!(ran.err.contains("is for its disk alone"), "{}", ran.err);
    // One without a name has that of the machine and the server.
    let tree = client("[[session]]\nservers = [\"10.0.1.1\"]\nmessages = true\n");
    tree.file("/proc/sys/kernel/hostname", "x".repeat(64));
    let ran = run(&tree, &["apply", "--dry-run"]);
    assert!(ran.out.starts_with("! session xxx"), "{}", ran.out);
}
