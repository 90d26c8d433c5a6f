// SPDX-License-Identifier: GPL-2.0

//! What a new user types wrongly, in one table: each says what is wrong, and what helps.

mod tree;

use ibnbd_host::advice::{self, Task};
use ibtrs_proto::Errno;
use tree::ran::run;
use tree::Tree;

/// A client with a session of one path and a disk, which is also a server with a client.
fn machine() -> Tree {
    let tree = Tree::new();
    tree.client()
        .session("s", &[("10.0.1.2", "10.0.1.1", "connected")])
        .disk(0, "s", "disk1")
        .file("/dev/vdb", "")
        .server("")
        .host("web1")
        .export("disk1", "/dev/vdb", &["web1"])
        .authenticated("web1", "10.0.1.3", "10.0.1.1", "default")
        .opened("vdb", "web1", "disk1");
    tree
}

/// Words, the exit code, what is said, and what helps.
const TABLE: &[(&str, i32, &str, &str)] = &[
    // The arguments in another order, or as other programs take them.
    (
        "map disk1.invalid 10.0.1.1",
        2,
        "but 10.0.1.1 in the place of the device is one",
        "remedy: ibnbd map 10.0.1.1 disk1.invalid",
    ),
    (
        "map 10.0.1.1:disk1",
        2,
        "the export is an argument of its own",
        "ibnbd map 10.0.1.1 disk1",
    ),
    (
        "map 10.0.1.1:4321 disk1",
        2,
        "a server has no port here",
        "--port 4321",
    ),
    (
        "map 10.0.1.1",
        2,
        "it is not said what to map of the server",
        "remedy: ibnbd map 10.0.1.1 EXPORT",
    ),
    (
        "map disk1",
        2,
        "this machine has joined no server",
        "ibnbd join TOKEN",
    ),
    ("map", 2, "it is not said what to map", "ibnbd map --all"),
    // Names that lead nowhere.
    (
        "map 10.0.1.1 ../nullb0",
        2,
        "the name of an export has no .. in it",
        "`ibnbd discover`",
    ),
    (
        "map nowhere.invalid disk1",
        2,
        "nowhere.invalid: no address is known for it",
        "",
    ),
    ("unmap ibnbd9", 3, "nothing has that name", "`ibnbd list`"),
    ("show ibnbd9", 3, "nothing has that name", "`ibnbd list`"),
    ("path drain s 10.9.9.9", 3, "", "remedy:"),
    (
        "export allow disk9 web1",
        3,
        "there is no such export",
        "`ibnbd export list`",
    ),
    (
        "export allow disk1 web9",
        3,
        "there is no such host",
        "ibnbd host add web9",
    ),
    // Tokens and keys.
    (
        "join ibtrs-token-1/web1/10.0.1.1",
        2,
        "a part is missing or was changed",
        "take the whole line",
    ),
    (
        "join hunter2",
        2,
        "a token begins with ibtrs-token-1/",
        "take the whole line",
    ),
    ("key load a.b --file /nowhere", 2, "'/' or '.'", ""),
    ("host add a.b", 2, "'/' or '.'", ""),
    // What would stop somebody.
    ("path remove s 10.0.1.1", 1, "no other path", "--force"),
    ("path disconnect s 10.0.1.1", 1, "no other path", "--force"),
    (
        "export disable disk1",
        1,
        "clients have it open: web1",
        "--force",
    ),
    (
        "export deny disk1 web1",
        1,
        "clients have it open: web1",
        "--force",
    ),
    (
        "export remove disk1",
        1,
        "clients have it open: web1",
        "--force",
    ),
    (
        "export set disk1 access_mode=ro",
        1,
        "clients have it open: web1",
        "--force",
    ),
    (
        "export add /dev/vdb disk2 --host web1",
        1,
        "the device is exported already, as disk1",
        "--force",
    ),
    (
        "host remove web1",
        1,
        "exports allow it: disk1",
        "`ibnbd export deny`",
    ),
    ("host add web1 --token", 1, "it is connected", "--force"),
    // Values.
    (
        "host set web1 addresses=10.0.1.2/24",
        2,
        "10.0.1.0/24 is probably meant",
        "",
    ),
    (
        "export set disk1 access_mode=wide",
        2,
        "ro, rw, migration",
        "",
    ),
    ("set s queue_timeout=5", 2, "", "queue_timeout_s"),
    ("set s nonsense", 2, "it is not SETTING=VALUE", ""),
    ("resize ibnbd0 large", 2, "it is not a size", "10G"),
    ("port add left 127.0.0.1", 2, "is a loopback address", ""),
    (
        "apply --config /nowhere",
        6,
        "there is no such folder",
        "correct --config",
    ),
];

#[test]
fn each_wrong_input_says_what_helps() {
    for (words, code, why, todo) in TABLE {
        let tree = machine();
        tree.folder("/sys/module/ibtrs_core")
            .file("/ring", "\n")
            .file("/proc/keys", "")
            .file("/sys/module/ibtrs_server/parameters/auth", "auto\n")
            .keyctl();
        let words: Vec<&str> = words.split(' ').collect();
        let ran = run(&tree, &words);
        assert_eq!(ran.code, *code, "{words:?}: {}", ran.err);
        assert!(ran.err.contains(why), "{words:?}: {}", ran.err);
        assert!(ran.err.contains(todo), "{words:?}: {}", ran.err);
        // Nothing was done.
        assert_eq!(ran.out, "", "{words:?}");
    }
}

#[test]
fn without_a_module_the_remedy_loads_it() {
    let tree = Tree::new();
    for (words, todo) in [
        (
            "export add /dev/vdb disk1 --host web1",
            "modprobe ibnbd_server",
        ),
        ("host add web1 --token", "modprobe ibnbd_server"),
        ("map 10.0.1.1 disk1", "modprobe ibnbd_client"),
        ("unmap ibnbd0", "modprobe ibnbd_client"),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let ran = run(&tree, &words);
        assert_eq!(ran.code, 4, "{words:?}: {}", ran.err);
        assert!(ran.err.contains(todo), "{words:?}: {}", ran.err);
    }
}

/// What the kernel or the server refuses: the number and the kernel's line tell causes apart.
#[test]
fn each_refusal_has_its_own_words() {
    let session = "ibnbd_client: map_device: the session cannot be opened: ENODEV (-19)";
    let export = "ibnbd_client: map_device: cannot open the device on the server: ENODEV (-19)";
    for (task, errno, line, why, todo) in [
        (
            Task::Map,
            Errno::ENODEV,
            session,
            "no RDMA device leads to the address",
            "rdma link add",
        ),
        (
            Task::Map,
            Errno::ENODEV,
            export,
            "the export is disabled",
            "ibnbd export enable",
        ),
        (
            Task::Map,
            Errno::ENETUNREACH,
            "",
            "no route leads to the address",
            "check routes",
        ),
        (
            Task::Map,
            Errno::ETIMEDOUT,
            "",
            "did not answer",
            "ibnbd_server is loaded there",
        ),
        (
            Task::Map,
            Errno::EKEYREJECTED,
            "",
            "the keys of this machine and the server differ",
            "must be that of a host of the server",
        ),
        (
            Task::Map,
            Errno::EACCES,
            "",
            "exports nothing of that name to this machine",
            "`ibnbd export allow`",
        ),
        (
            Task::Remap,
            Errno::ENODEV,
            "",
            "the export is disabled on the server",
            "`ibnbd export enable`",
        ),
    ] {
        let lines: Vec<String> = (!line.is_empty())
            .then(|| line.to_owned())
            .into_iter()
            .collect();
        let (said, remedy) = advice::find(task, errno.get(), &lines);
        assert!(said.contains(why), "{errno:?}: {said}");
        assert!(
            remedy.is_some_and(|remedy| remedy.contains(todo)),
            "{errno:?}: {remedy:?}"
        );
    }
}
