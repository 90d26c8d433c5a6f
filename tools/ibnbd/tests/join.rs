// SPDX-License-Identifier: GPL-2.0

//! `host add --token` and `join`, run on two made-up machines that talk over the loopback interface.

mod tree;

use std::fs;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ibnbd_host::document::Keys;
use ibnbd_host::join::handshake;
use ibnbd_host::join::pending;
use ibnbd_host::join::store;
use ibnbd_host::join::token::Token;
use ibnbd_host::Root;
use tree::ran::{document, run, Ran};
use tree::Tree;

/// A port on which nobody listens.
fn port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

/// A kernel with the keyring, empty, and a program in place of keyctl.
fn with_keyring(tree: &Tree) -> &Tree {
    tree.folder("/sys/module/ibtrs_core")
        .file("/ring", "\n")
        .file("/proc/keys", "")
        .file("/proc/uptime", "1000.25 5.0\n")
        .keyctl()
}

/// A server with the hosts web1 and web2, and an RDMA device with an address.
fn server() -> Tree {
    let tree = Tree::new();
    with_server(with_keyring(&tree));
    tree
}

fn with_server(tree: &Tree) {
    tree.server("")
        .host("web1")
        .host("web2")
        .file("/sys/module/ibtrs_server/parameters/auth", "auto\n")
        .file("/sys/class/infiniband/rxe0/node_type", "1: CA\n")
        .file(
            "/sys/class/infiniband/rxe0/ports/1/link_layer",
            "Ethernet\n",
        )
        .file("/sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n")
        .file(
            "/sys/class/infiniband/rxe0/ports/1/gids/0",
            "0000:0000:0000:0000:0000:ffff:0a00:0101\n",
        );
}

/// A machine on which systemd runs, with a program in place of systemd-creds that encrypts nothing.
fn with_systemd(tree: &Tree) -> &Tree {
    tree.folder("/run/systemd/system")
        .file("/open-creds", "")
        .program("/usr/sbin/systemd-creds")
        .program("/usr/sbin/systemctl")
}

/// On a real machine the kernel removes the files with their folder.
fn without_files(tree: &Tree, host: &str) {
    let folder = format!("/sys/kernel/config/ibnbd/hosts/{host}");
    for file in fs::read_dir(tree.real(&folder)).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
}

/// A client, with the answer of the server to a session.
fn client(session: &str) -> Tree {
    let tree = Tree::new();
    with_keyring(&tree)
        .client()
        .file("/proc/sys/kernel/hostname", "machine1.example\n")
        .file("/sys/class/ibnbd-client/ctl/discover", "")
        .files(
            &format!("/sys/class/ibnbd-client/ctl/discovered/{session}"),
            &[
                ("number", "7\n"),
                ("request", &format!("sessname={session} path=ip:10.0.1.1\n")),
                ("portals", ""),
                ("port", "1234\n"),
                ("unlisted", "0\n"),
                ("pages", "1\n"),
                ("0/exports", "disk1 rw 131072 512\n"),
            ],
        );
    tree
}

fn token(server: &Tree, host: &str, port: &str) -> String {
    let words = [
        "host",
        "add",
        host,
        "--token",
        "--join-address",
        "127.0.0.1",
    ];
    let ran = run(server, &[&words[..], &["--join-port", port]].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran
        .err
        .contains("within an hour and once: ibnbd join TOKEN"));
    assert_eq!(ran.out.lines().count(), 1);
    ran.out.trim().to_owned()
}

/// What the listener has said.
fn log(server: &Tree) -> String {
    server.text("/run/ibtrs/join.log")
}

fn fingerprint(text: &str) -> String {
    let (_, rest) = text.split_once("fingerprint of ").unwrap();
    let line = rest.lines().next().unwrap().split(';').next().unwrap();
    line.rsplit(' ').next().unwrap().to_owned()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn nobody_listens(port: &str) -> bool {
    TcpStream::connect(format!("127.0.0.1:{port}")).is_err()
}

#[test]
fn a_token_becomes_a_key_that_both_ends_keep() {
    let (server, client, port) = (server(), client("web1"), port());
    let token = token(&server, "web1", &port);
    // One that says nothing keeps nobody waiting.
    let stranger = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    let begun = Instant::now();
    let ran = run(&client, &["join", &token]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("disk1"), "{}", ran.out);
    // The kernels have the same key, and so have the files.
    let key = |tree: &Tree| fs::read(tree.real("/payload")).unwrap();
    assert_eq!(key(&server), key(&client));
    assert_eq!(key(&server).len(), 32);
    let file = |tree: &Tree| tree.text("/etc/ibtrs/keys/web1.key");
    assert_eq!(file(&server), file(&client));
    assert!(client
        .text("/keyctl.log")
        .contains("padd logon ibtrs:default:web1 @s"));
    // People can compare both ends.
    wait_until("the server says so", || log(&server).contains("has joined"));
    let said = log(&server);
    assert!(
        said.contains("127.0.0.1 has joined as host web1; the fingerprint"),
        "{said}"
    );
    assert_eq!(fingerprint(&said), fingerprint(&ran.err));
    for tree in [&server, &client] {
        tree.file("/ring", "77\n").file(
            "/proc/keys",
            "0000004d I--Q---     1 perm 3d010000     0     0 logon     ibtrs:default:web1: 32\n",
        );
        let Keys { keys, .. } = document(tree, &["key", "list"]);
        assert_eq!(keys[0].fingerprint.as_ref(), Some(&fingerprint(&ran.err)));
    }
    // It has the server's addresses, and the listener has ended.
    let joined = client.text("/etc/ibtrs/joined.toml");
    assert!(
        joined.contains("session = \"web1\"") && joined.contains("\"ip:10.0.1.1\""),
        "{joined}"
    );
    wait_until("the listener ends", || nobody_listens(&port));
    assert!(
        begun.elapsed() < Duration::from_secs(9),
        "a stranger was waited for"
    );
    drop(stranger);
    let ran = run(&client, &["join", &token]);
    assert_eq!(ran.code, 1);
    assert!(
        ran.err
            .contains("no address answers: 127.0.0.1: Connection refused"),
        "{}",
        ran.err
    );
    assert!(
        ran.err
            .contains(&format!("TCP port {port} passes firewalls")),
        "{}",
        ran.err
    );
}

#[test]
fn a_used_or_replaced_token_is_worthless() {
    let (server, port) = (server(), port());
    let other = token(&server, "web2", &port);
    let old = token(&server, "web1", &port);
    let new = token(&server, "web1", &port);
    let refused = |text: &str| {
        let ran = run(&client("web1"), &["join", text]);
        assert_eq!(ran.code, 3, "{}", ran.err);
        assert!(
            ran.err
                .contains("the server does not know the token: it was used"),
            "{}",
            ran.err
        );
        assert!(
            ran.err
                .contains("remedy: `ibnbd host add web1 --token` on the server"),
            "{}",
            ran.err
        );
    };
    refused(&old);
    assert_eq!(run(&client("web1"), &["join", &new]).code, 0);
    refused(&new);
    assert_eq!(run(&client("web2"), &["join", &other]).code, 0);
    wait_until("the listener ends", || nobody_listens(&port));
    let log = log(&server);
    assert_eq!(log.matches("has joined").count(), 2, "{log}");
    assert_eq!(log.matches("127.0.0.1: refused: ").count(), 2, "{log}");
}

#[test]
fn a_token_dies_with_its_hour_and_its_host() {
    let (server, port) = (server(), port());
    let token1 = token(&server, "web1", &port);
    server.file("/proc/uptime", "4600.25 5.0\n");
    wait_until("the listener ends", || nobody_listens(&port));
    assert_eq!(run(&client("web1"), &["join", &token1]).code, 1);
    token(&server, "web2", &port);
    without_files(&server, "web2");
    assert_eq!(run(&server, &["host", "remove", "web2"]).code, 0);
    wait_until("the listener ends", || nobody_listens(&port));
}

/// The key lines that a machine keeps for web1: their ids.
fn kept(tree: &Tree) -> Vec<String> {
    let text = tree.text("/etc/ibtrs/keys/web1.key");
    let id = |line: &str| line.split(':').nth(1).unwrap().to_owned();
    text.lines().map(id).collect()
}

/// The kernel of a machine has the key `default` of web1.
fn has_loaded(tree: &Tree) {
    tree.file("/ring", "77\n").file(
        "/proc/keys",
        "0000004d I--Q---     1 perm 3d010000     0     0 logon     ibtrs:default:web1: 32\n",
    );
}

/// The second key of a host: the first one goes at both ends when both have the second.
#[test]
fn a_host_that_joins_again_has_another_key() {
    let (server, client, port) = (server(), client("web1"), port());
    assert_eq!(
        run(&client, &["join", &token(&server, "web1", &port)]).code,
        0
    );
    assert!(!client.text("/etc/ibtrs/joined.toml").contains("key_id"));
    for tree in [&server, &client] {
        assert_eq!(kept(tree), ["default"]);
        has_loaded(tree);
    }
    wait_until("the listener ends", || nobody_listens(&port));
    client.session("web1", &[("10.0.1.2", "10.0.1.1", "connected")]);
    client.file(
        "/etc/ibtrs/client.toml",
        "[[session]]\nname = \"web1\"\npaths = [\"10.0.1.1\"]\nkey_id = \"default\"\n",
    );
    let ran = run(&client, &["join", &token(&server, "web1", &port)]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let said = "a file in /etc/ibtrs has another key_id of session web1";
    assert!(ran.err.contains(said), "{}", ran.err);
    wait_until("the server knows", || {
        log(&server).contains("its former key")
    });
    let ids = kept(&client);
    assert_eq!(
        (ids.len(), ids[0].starts_with("join-")),
        (1, true),
        "{ids:?}"
    );
    assert_eq!(kept(&server), ids);
    for tree in [&server, &client] {
        assert!(tree.text("/keyctl.log").contains("unlink 77 %:.ibtrs"));
    }
    // The session that is there, and those that are mapped later.
    assert_eq!(client.text("/sys/class/ibtrs-client/web1/key_id"), ids[0]);
    let joined = client.text("/etc/ibtrs/joined.toml");
    assert!(
        joined.contains(&format!("key_id = \"{}\"", ids[0])),
        "{joined}"
    );
    fs::remove_dir_all(client.real("/sys/class/ibtrs-client/web1")).unwrap();
    fs::remove_file(client.real("/etc/ibtrs/client.toml")).unwrap();
    run(&client, &["map", "10.0.1.1", "disk1", "--session", "web1"]);
    let asked = client.text("/sys/class/ibnbd-client/ctl/map_device");
    assert!(asked.contains(&format!("key_id={}", ids[0])), "{asked}");
}

/// Joins, whether or not the made-up kernel has an answer of the server to that session.
#[track_caller]
fn joins(client: &Tree, text: &str) {
    let ran = run(client, &["join", text]);
    assert!(ran.err.contains("joined as web1"), "{}", ran.err);
}

/// Wherever the connection is lost, the client has a key that the server takes.
#[test]
fn a_connection_that_is_lost_locks_nobody_out() {
    let (server, client, port) = (server(), client("web1"), port());
    assert_eq!(
        run(&client, &["join", &token(&server, "web1", &port)]).code,
        0
    );
    wait_until("the listener ends", || nobody_listens(&port));
    for tree in [&server, &client] {
        has_loaded(tree);
    }
    // After the server has made the key: the client does not have it, or cannot say so.
    let text = token(&server, "web1", &port);
    let secret = Token::parse(&text).unwrap().secret;
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    let given = handshake::join(&mut stream, "web1", &secret, "m").unwrap();
    drop(stream);
    wait_until("the server notices", || {
        log(&server).contains("has not said that it keeps")
    });
    assert_eq!(kept(&server), ["default", given.id.as_str()]);
    assert!(!server.text("/keyctl.log").contains("unlink"));
    assert!(log(&server).contains("former keys of host web1 stay"));
    wait_until("the listener ends", || nobody_listens(&port));
    // The token was used nevertheless, and the next one sets it right.
    assert_eq!(run(&client, &["join", &text]).code, 1);
    joins(&client, &token(&server, "web1", &port));
    wait_until("the server knows", || {
        log(&server).contains("its former key")
    });
    assert_eq!(kept(&server), kept(&client));
    assert_eq!(kept(&server).len(), 1);
    assert!(!kept(&server).contains(&given.id.as_str().to_owned()));
    // Before that: the token stays good.
    let text = token(&server, "web1", &port);
    drop(TcpStream::connect(format!("127.0.0.1:{port}")).unwrap());
    joins(&client, &text);
}

/// One that says nothing, from one address, leaves room for others; and it is turned away at once.
#[test]
fn a_stranger_takes_only_some_of_the_places() {
    let (server, port) = (server(), port());
    let text = token(&server, "web1", &port);
    let knock = || TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    let strangers: Vec<TcpStream> = (0..20).map(|_| knock()).collect();
    let is_closed = |mut stream: &TcpStream| {
        stream
            .set_read_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        matches!(stream.read(&mut [0]), Ok(0))
    };
    let closed = strangers.iter().filter(|one| is_closed(one)).count();
    assert_eq!(closed, 12);
    drop(strangers);
    wait_until("they are gone", || {
        run(&client("web1"), &["join", &text]).code == 0
    });
}

#[test]
fn who_may_not_come_from_the_address_gets_no_key() {
    let (server, port) = (server(), port());
    server.file(
        "/sys/kernel/config/ibnbd/hosts/web1/addresses",
        "10.0.1.0/24\n",
    );
    let text = token(&server, "web1", &port);
    let ran = run(&client("web1"), &["join", &text]);
    let why = "the host may not come from this address";
    assert!(ran.code == 1 && ran.err.contains(why), "{}", ran.err);
    assert!(log(&server).contains(&format!("host web1: {why}")));
    server.file(
        "/sys/kernel/config/ibnbd/hosts/web1/addresses",
        "127.0.0.0/8\n",
    );
    assert_eq!(run(&client("web1"), &["join", &text]).code, 0);
}

/// For a command to come to where it waits for another one.
const LONG_ENOUGH: Duration = Duration::from_secs(2);

/// Ends the process that waits for the clients of tokens that nobody uses.
fn end_listener(server: &Tree, port: &str) {
    for host in ["web1", "web2"] {
        let _ = fs::remove_file(server.real(&format!("/run/ibtrs/tokens/{host}")));
    }
    wait_until("the listener ends", || nobody_listens(port));
}

fn has_token(server: &Tree, host: &str) -> bool {
    server.real(&format!("/run/ibtrs/tokens/{host}")).exists()
}

/// A lock that is held, at either end, costs time and no token.
#[test]
fn a_key_that_has_to_wait_costs_no_token() {
    let port = port();
    for held_by_client in [false, true] {
        let (server, client) = (server(), client("web1"));
        let text = token(&server, "web1", &port);
        let tree = if held_by_client { &client } else { &server };
        let lock = store::lock(&Root::new(tree.base())).unwrap();
        thread::scope(|scope| {
            let joining = scope.spawn(|| run(&client, &["join", &text]));
            thread::sleep(LONG_ENOUGH);
            assert!(!joining.is_finished() && has_token(&server, "web1"));
            drop(lock);
            let ran = joining.join().unwrap();
            assert_eq!(ran.code, 0, "{}", ran.err);
            assert!(ran.err.contains("ibnbd: waiting to"), "{}", ran.err);
        });
        assert!(!has_token(&server, "web1"));
        assert_eq!(kept(&server), ["default"]);
        wait_until("the listener ends", || nobody_listens(&port));
    }
}

/// A TPM that fails or is too slow, for example.
#[test]
fn a_key_that_the_server_cannot_keep_costs_no_token() {
    let (server, client, port) = (server(), client("web1"), port());
    with_systemd(&server);
    let text = token(&server, "web1", &port);
    server.file("/no-creds", "");
    let ran = run(&client, &["join", &text]);
    let why =
        "the server cannot keep the key now, and its log has the reason; the token stays valid";
    assert!(ran.code == 1 && ran.err.contains(why), "{}", ran.err);
    assert!(
        ran.err.contains("join again with this token"),
        "{}",
        ran.err
    );
    assert!(log(&server).contains("host web1: the TPM does not answer"));
    assert!(has_token(&server, "web1"));
    assert!(!server.real("/etc/ibtrs/keys/web1.cred").exists());
    fs::remove_file(server.real("/no-creds")).unwrap();
    let ran = run(&client, &["join", &text]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(
        server.text("/etc/ibtrs/keys/web1.cred"),
        client.text("/etc/ibtrs/keys/web1.key")
    );
}

/// Its operator has ended it with Ctrl-C, for example.
#[test]
fn a_client_that_goes_before_its_key_is_kept_has_not_used_its_token() {
    let (server, port) = (server(), port());
    let text = token(&server, "web1", &port);
    let lock = store::lock(&Root::new(server.base())).unwrap();
    let stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    let secret = Token::parse(&text).unwrap().secret;
    thread::scope(|scope| {
        let joining = scope.spawn(|| handshake::join(&mut &stream, "web1", &secret, "m").is_err());
        thread::sleep(LONG_ENOUGH);
        stream.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(joining.join().unwrap());
    });
    drop(lock);
    wait_until("the server notices", || {
        log(&server).contains("host web1: the client has gone; its token stays valid")
    });
    assert!(!server.real("/etc/ibtrs/keys/web1.key").exists());
    assert!(has_token(&server, "web1"));
    assert_eq!(run(&client("web1"), &["join", &text]).code, 0);
    assert_eq!(kept(&server).len(), 1);
}

/// Two tokens of one name: the one that comes second finds what the first one has left, before its token is used.
#[test]
fn of_two_servers_with_one_name_the_second_one_is_refused() {
    let (client, ports) = (client("web1"), [port(), port()]);
    let servers = [server(), server()];
    // Addresses of its own tell one server from the other.
    let texts = [0, 1].map(|n| {
        let address = format!("127.0.0.{}", n + 1);
        let words = ["host", "add", "web1", "--token", "--join-address", &address];
        let ran = run(
            &servers[n],
            &[&words[..], &["--join-port", &ports[n]]].concat(),
        );
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.out.trim().to_owned()
    });
    let lock = store::lock(&Root::new(client.base())).unwrap();
    let mut ran: Vec<Ran> = thread::scope(|scope| {
        let client = &client;
        let joining = texts
            .each_ref()
            .map(|text| scope.spawn(move || run(client, &["join", text])));
        thread::sleep(LONG_ENOUGH);
        drop(lock);
        joining.into_iter().map(|one| one.join().unwrap()).collect()
    });
    ran.sort_by_key(|ran| ran.code);
    let why = "the session web1 leads to another server";
    assert!(
        ran[0].code == 0 && ran[1].code == 1,
        "{} {}",
        ran[0].err,
        ran[1].err
    );
    assert!(ran[1].err.contains(why), "{}", ran[1].err);
    let left = servers.iter().filter(|server| has_token(server, "web1"));
    assert_eq!(left.count(), 1);
    assert_eq!(
        client
            .text("/etc/ibtrs/joined.toml")
            .matches("[[server]]")
            .count(),
        1
    );
    assert_eq!(kept(&client).len(), 1);
    for (server, port) in servers.iter().zip(&ports) {
        for host in ["web1", "web2"] {
            let _ = fs::remove_file(server.real(&format!("/run/ibtrs/tokens/{host}")));
        }
        // Each of them has an address of its own.
        wait_until("the listener ends", || {
            ["127.0.0.1", "127.0.0.2"]
                .iter()
                .all(|address| TcpStream::connect(format!("{address}:{port}")).is_err())
        });
    }
}

#[test]
fn two_hosts_are_joined_at_once() {
    let (server, client, port) = (server(), client("web1"), port());
    let texts = ["web1", "web2"].map(|host| token(&server, host, &port));
    thread::scope(|scope| {
        let joining = texts
            .each_ref()
            .map(|text| scope.spawn(|| run(&client, &["join", text])));
        for one in joining {
            let ran = one.join().unwrap();
            assert!(ran.err.contains("joined as web"), "{}", ran.err);
        }
    });
    assert_eq!(
        client
            .text("/etc/ibtrs/joined.toml")
            .matches("[[server]]")
            .count(),
        2
    );
    for host in ["web1", "web2"] {
        let file = format!("/etc/ibtrs/keys/{host}.key");
        assert_eq!(client.text(&file), server.text(&file));
    }
}

/// By one client or by two of them.
#[test]
fn one_token_at_once_makes_one_key() {
    for is_same in [true, false] {
        let (server, port) = (server(), port());
        let clients = [client("web1"), client("web1")];
        let text = token(&server, "web1", &port);
        let lock = store::lock(&Root::new(server.base())).unwrap();
        let ran: Vec<Ran> = thread::scope(|scope| {
            let joining = [0, usize::from(!is_same)]
                .map(|n| &clients[n])
                .map(|client| scope.spawn(|| run(client, &["join", &text])));
            thread::sleep(LONG_ENOUGH);
            drop(lock);
            joining.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let won: Vec<&Ran> = ran.iter().filter(|ran| ran.code == 0).collect();
        let lost: Vec<&Ran> = ran.iter().filter(|ran| ran.code != 0).collect();
        assert_eq!(
            (won.len(), lost.len()),
            (1, 1),
            "{} {}",
            ran[0].err,
            ran[1].err
        );
        let reasons = [
            "the token was used, or replaced, at the same moment",
            "the server does not know the token",
            "no address answers",
            "Connection refused",
        ];
        assert!(
            reasons.iter().any(|why| lost[0].err.contains(why)),
            "{}",
            lost[0].err
        );
        assert_eq!(kept(&server), ["default"]);
        let files = clients
            .iter()
            .filter(|client| client.real("/etc/ibtrs/keys/web1.key").exists());
        assert_eq!(files.count(), 1);
    }
}

/// Each of them is the server of the other one: neither waits for keys of the other one while it has its own.
#[test]
fn two_machines_join_each_other_at_once() {
    let machines = [client("web2"), client("web1")];
    let texts = [("web1", 0), ("web2", 1)].map(|(host, n)| {
        with_server(&machines[n]);
        token(&machines[n], host, &port())
    });
    // Both begin when both have come to where they need their keys.
    let locks = [0, 1].map(|n| store::lock(&Root::new(machines[n].base())).unwrap());
    let began = Instant::now();
    thread::scope(|scope| {
        let joining = [(0, 1), (1, 0)].map(|(n, of)| {
            let (machine, text) = (&machines[n], &texts[of]);
            scope.spawn(move || run(machine, &["join", text]))
        });
        thread::sleep(LONG_ENOUGH);
        drop(locks);
        for one in joining {
            let ran = one.join().unwrap();
            assert_eq!(ran.code, 0, "{}", ran.err);
        }
    });
    // No wait has come to its end.
    assert!(began.elapsed() < LONG_ENOUGH + Duration::from_secs(15));
    for host in ["web1", "web2"] {
        let file = format!("/etc/ibtrs/keys/{host}.key");
        assert_eq!(machines[0].text(&file), machines[1].text(&file));
    }
}

/// The key is kept, and counts: a boot has to load it, and the server has to know.
#[test]
fn a_former_key_that_stays_keeps_nothing_from_being_done() {
    let (server, client, port) = (server(), client("web1"), port());
    with_systemd(&client);
    joins(&client, &token(&server, "web1", &port));
    wait_until("the listener ends", || nobody_listens(&port));
    for tree in [&server, &client] {
        has_loaded(tree);
    }
    client.file("/keeps-keys", "").file("/systemctl.log", "");
    let ran = run(&client, &["join", &token(&server, "web1", &port)]);
    assert!(ran.err.contains("joined as web1"), "{}", ran.err);
    let said = "warning: a former key of session web1 stays on this machine: keyctl_unlink: Permission denied";
    assert!(ran.err.contains(said), "{}", ran.err);
    let asked = client.text("/systemctl.log");
    for words in ["enable", "restart"] {
        let line = format!("--quiet {words} ibnbd-key@web1.service\n");
        assert!(asked.contains(&line), "{asked}");
    }
    wait_until("the server knows", || {
        log(&server).contains("its former key is not valid")
    });
}

/// Its server needs the lock that its client has otherwise.
#[test]
fn a_machine_joins_itself() {
    let (machine, port) = (client("web1"), port());
    with_server(&machine);
    let ran = run(&machine, &["join", &token(&machine, "web1", &port)]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(kept(&machine), ["default"]);
}

/// The listener has the token, and waits for the keys, while the host is removed.
#[test]
fn a_host_that_is_removed_meanwhile_gets_no_key() {
    let (server, port) = (server(), port());
    let text = token(&server, "web1", &port);
    let lock = store::lock(&Root::new(server.base())).unwrap();
    let joining = thread::spawn(move || run(&client("web1"), &["join", &text]));
    thread::sleep(LONG_ENOUGH);
    fs::remove_dir_all(server.real("/sys/kernel/config/ibnbd/hosts/web1")).unwrap();
    drop(lock);
    let ran = joining.join().unwrap();
    assert!(
        ran.code == 1
            && ran
                .err
                .contains("the host was removed while its client joined"),
        "{}",
        ran.err
    );
    assert!(log(&server).contains("the host was removed while its client joined"));
    assert!(!server.real("/etc/ibtrs/keys/web1.key").exists());
    assert!(!server.text("/keyctl.log").contains("padd"));
}

/// Keys of any id, and of a file that cannot be read.
#[test]
fn a_host_that_is_removed_leaves_no_key() {
    let server = server();
    has_loaded(&server);
    server
        .file("/ring", "77 78 79\n")
        .file(
            "/proc/keys",
            "0000004d I--Q---     1 perm 3d010000     0     0 logon     ibtrs:default:web1: 32\n\
             0000004e I--Q---     1 perm 3d010000     0     0 logon     ibtrs:join-1:web1: 32\n\
             0000004f I--Q---     1 perm 3d010000     0     0 logon     ibtrs:join-1:web2: 32\n",
        )
        .file("/etc/ibtrs/keys/web1.cred", "sealed");
    without_files(&server, "web1");
    let ran = run(&server, &["host", "remove", "web1"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let asked = server.text("/keyctl.log");
    assert!(
        asked.contains("unlink 77 ") && asked.contains("unlink 78 "),
        "{asked}"
    );
    assert!(!asked.contains("unlink 79"), "{asked}");
    assert!(!server.real("/etc/ibtrs/keys/web1.cred").exists());
    // A removal that was interrupted says how it is completed.
    server.file("/etc/ibtrs/keys/web1.cred", "sealed");
    let again = run(&server, &["host", "remove", "web1"]);
    let remedy = "`ibnbd key remove web1 --id ID`";
    assert!(
        again.code == 3 && again.err.contains(remedy),
        "{}",
        again.err
    );
}

/// The names of the files with keys.
fn key_files(tree: &Tree) -> Vec<String> {
    let mut names = Root::new(tree.base()).list("/etc/ibtrs/keys").unwrap();
    names.retain(|name| !name.starts_with('.'));
    names
}

/// Kills a command when it has removed the host web1, and not yet its token and its keys.
fn killed_in_between(server: &Tree, words: &[&str]) {
    let lock = pending::lock(&Root::new(server.base())).unwrap();
    let mut command = Command::new(tree::ran::ibnbd(server, words).get_program());
    command.arg("--root").arg(server.base()).args(words);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let folder = server.real("/sys/kernel/config/ibnbd/hosts/web1");
    wait_until("the host is removed", || !folder.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    drop(lock);
    assert!(!server.text("/keyctl.log").contains("unlink"));
}

/// A server that prunes web1, whose key it has as a credential, with a unit.
fn server_that_prunes() -> Tree {
    let server = server();
    has_loaded(&server);
    with_systemd(&server);
    without_files(&server, "web1");
    server
        .file("/etc/ibtrs/keys/web1.cred", "sealed")
        .file("/etc/ibtrs/keys/web2.cred", "sealed")
        .file("/etc/ibtrs/server.toml", "[[host]]\nname = \"web2\"\n")
        .file("/keyctl.log", "");
    server
}

const PRUNE: [&str; 4] = ["apply", "--side", "server", "--prune"];
const COMPLETED: &str = "- keys of host web1, whose removal was interrupted\n";

/// The next boot does not load the key, and the next command of either kind completes the removal.
#[test]
fn a_removal_that_is_killed_leaves_no_key_for_a_boot() {
    let all = ["export", "remove", "--all", "--keys"];
    for (first, second) in [
        (
            &["host", "remove", "web1"][..],
            &["host", "remove", "web1"][..],
        ),
        (&["host", "remove", "web1"], &PRUNE),
        (&PRUNE, &PRUNE),
        (&PRUNE, &all),
    ] {
        let server = server_that_prunes();
        killed_in_between(&server, first);
        assert_eq!(key_files(&server), ["web1.cred.gone", "web2.cred"]);
        let shown = run(&server, &[&PRUNE[..], &["--dry-run"]].concat()).out;
        assert!(shown.contains(COMPLETED), "{shown}");
        if second == all {
            without_files(&server, "web2");
        }
        let ran = run(&server, second);
        assert_eq!(ran.code, 0, "{second:?}: {}", ran.err);
        let rest = &["web2.cred"][..if second == all { 0 } else { 1 }];
        assert_eq!(key_files(&server), rest, "{second:?}");
        let asked = server.text("/keyctl.log");
        assert_eq!(asked.matches("unlink 77 ").count(), 1, "{asked}");
        let disabled = "--quiet disable --now ibnbd-key@web1.service\n";
        assert!(server.text("/systemctl.log").contains(disabled));
        assert!(!run(&server, &PRUNE).out.contains("keys of"));
    }
}

/// All of them at once: those that are removed have no keys any more, the others have theirs.
#[test]
fn a_host_that_cannot_be_removed_keeps_its_keys() {
    for words in [&["export", "remove", "--all", "--keys"][..], &PRUNE] {
        let server = server_that_prunes();
        // A folder with files cannot be removed.
        server.file("/sys/kernel/config/ibnbd/hosts/web1/addresses", "\n");
        let ran = run(&server, words);
        assert!(ran.code != 0, "{words:?}");
        assert_eq!(key_files(&server), ["web1.cred", "web2.cred"], "{words:?}");
        assert!(!server.text("/keyctl.log").contains("unlink"), "{words:?}");
    }
    let server = server_that_prunes();
    let ran = run(&server, &["export", "remove", "--all", "--keys"]);
    assert!(ran.code != 0, "web2 has files");
    assert_eq!(key_files(&server), ["web2.cred"]);
}

/// No key goes because nothing names its session: there are servers without hosts, clients that map by hand, and
/// files in another directory.
#[test]
fn only_keys_of_hosts_that_were_removed_are_pruned() {
    let server = server();
    server
        .file("/ring", "81\n")
        .file(
            "/proc/keys",
            "00000051 I--Q---     1 perm 3d010000     0     0 logon     ibtrs:default:legacy: 32\n",
        )
        .file("/etc/ibtrs/server.toml", "[[host]]\nname = \"later\"\n")
        .file(
            "/etc/other/server.toml",
            "[[host]]\nname = \"web1\"\n[[host]]\nname = \"web2\"\n",
        )
        .file("/keyctl.log", "");
    let all = [
        "by-hand.key",
        "later.cred",
        "legacy.cred",
        "legacy.key",
        "own.key",
    ];
    for name in all {
        server.file(&format!("/etc/ibtrs/keys/{name}"), "");
    }
    let ran = run(&server, &[&PRUNE[..], &["--config", "/etc/other"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(!ran.out.contains("keys"), "{}", ran.out);
    for host in ["web1", "web2"] {
        without_files(&server, host);
    }
    for words in [&PRUNE[..], &["export", "remove", "--all", "--keys"]] {
        run(&server, words);
        assert_eq!(key_files(&server), all, "{words:?}");
        // The first command has made it, and the second one would remove its keys as well.
        let _ = fs::remove_dir_all(server.real("/sys/kernel/config/ibnbd/hosts/later"));
    }
    assert!(!server.text("/keyctl.log").contains("unlink"));
}

/// The name of the host is that of something else by now, which has no other key.
#[test]
fn keys_that_were_set_aside_stay_while_their_name_is_used() {
    type Use = fn(&Tree);
    let uses: [Use; 5] = [
        |tree| _ = tree.host("web1"),
        |tree| _ = tree.file("/etc/ibtrs/server.toml", "[[host]]\nname = \"web1\"\n"),
        |tree| _ = tree.file("/etc/ibtrs/joined.toml", JOINED),
        |tree| _ = tree.file("/etc/ibtrs/joined.toml", "damaged"),
        |tree| {
            tree.client()
                .session("web1", &[("10.0.1.2", "10.0.1.1", "connected")]);
        },
    ];
    for (number, uses) in uses.iter().enumerate() {
        let server = server_that_prunes();
        killed_in_between(&server, &["host", "remove", "web1"]);
        uses(&server);
        run(&server, &PRUNE);
        let names = key_files(&server);
        assert!(
            names.contains(&"web1.cred.gone".to_owned()),
            "{number}: {names:?}"
        );
        assert!(!server.text("/keyctl.log").contains("unlink"), "{number}");
    }
    // A key that has come since stays, in the kernel as well.
    let server = server_that_prunes();
    killed_in_between(&server, &["host", "remove", "web1"]);
    server.file("/etc/ibtrs/keys/web1.cred", "new");
    run(&server, &PRUNE);
    assert_eq!(key_files(&server), ["web1.cred", "web2.cred"]);
    assert!(!server.text("/keyctl.log").contains("unlink"));
}

const JOINED: &str =
    "[[server]]\nsession = \"web1\"\naddresses = [\"ip:10.9.9.9\"]\nport = 1234\njoined_at = []\n";

/// A server whose hosts have a token and a key in the kernel each; that of web1 has it in a file, too.
fn server_with_keys(port: &str) -> Tree {
    let server = server();
    server.file("/ring", "77 78\n").file(
        "/proc/keys",
        "0000004d I--Q---     1 perm 3d010000     0     0 logon     ibtrs:default:web1: 32\n\
             0000004e I--Q---     1 perm 3d010000     0     0 logon     ibtrs:default:web2: 32\n",
    );
    for host in ["web1", "web2"] {
        token(&server, host, port);
        without_files(&server, host);
    }
    server.file("/etc/ibtrs/keys/web1.key", "");
    server
}

#[test]
fn a_host_that_apply_prunes_leaves_neither_key_nor_token() {
    let port = port();
    let server = server_with_keys(&port);
    server.file("/etc/ibtrs/server.toml", "[[host]]\nname = \"web2\"\n");
    let words = ["apply", "--side", "server", "--prune"];
    let ran = run(&server, &[&words[..], &["--dry-run"]].concat());
    assert!(
        ran.out.contains("- host web1 and its keys\n"),
        "{}",
        ran.out
    );
    assert!(has_token(&server, "web1"));
    run(&server, &words);
    assert!(!has_token(&server, "web1") && has_token(&server, "web2"));
    assert!(!server.real("/etc/ibtrs/keys/web1.key").exists());
    let asked = server.text("/keyctl.log");
    assert!(
        asked.contains("unlink 77 ") && !asked.contains("unlink 78"),
        "{asked}"
    );
    end_listener(&server, &port);
}

/// A service removes all when it stops, and needs the keys when it starts again.
#[test]
fn all_hosts_go_with_their_tokens_and_on_request_with_their_keys() {
    let server = server_with_keys(&port());
    let ran = run(&server, &["export", "remove", "--all"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(!has_token(&server, "web1") && !has_token(&server, "web2"));
    assert!(server.real("/etc/ibtrs/keys/web1.key").exists());
    assert!(!server.text("/keyctl.log").contains("unlink"));
    let said = "the keys of web1 web2 stay, for the next start: ibnbd key remove HOST removes one";
    assert!(ran.err.contains(said), "{}", ran.err);
    let server = server_with_keys(&port());
    let ran = run(&server, &["export", "remove", "--all", "--keys"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert!(!has_token(&server, "web1") && !has_token(&server, "web2"));
    assert!(!server.real("/etc/ibtrs/keys/web1.key").exists());
    let asked = server.text("/keyctl.log");
    assert!(
        asked.contains("unlink 77 ") && asked.contains("unlink 78 "),
        "{asked}"
    );
}

/// One that is being loaded or made is gone after the command, too.
#[test]
fn a_key_that_comes_before_its_removal_goes() {
    let machine = client("web1");
    let lock = store::lock(&Root::new(machine.base())).unwrap();
    thread::scope(|scope| {
        let removing = scope.spawn(|| run(&machine, &["key", "remove", "web1"]));
        thread::sleep(LONG_ENOUGH);
        has_loaded(&machine);
        drop(lock);
        let ran = removing.join().unwrap();
        assert_eq!(ran.code, 0, "{}", ran.err);
    });
    assert!(machine.text("/keyctl.log").contains("unlink 77 "));
}

#[test]
fn loading_a_key_waits_for_a_removal() {
    let machine = client("web1");
    let line = run(&machine, &["key", "new"]).out;
    machine.file("/etc/ibtrs/keys/web1.key", &line);
    for source in [
        &["--kept"][..],
        &[
            "--file",
            machine.real("/etc/ibtrs/keys/web1.key").to_str().unwrap(),
        ],
    ] {
        let words = [&["key", "load", "web1"][..], source].concat();
        let lock = store::lock(&Root::new(machine.base())).unwrap();
        thread::scope(|scope| {
            let loading = scope.spawn(|| run(&machine, &words));
            thread::sleep(LONG_ENOUGH);
            assert!(!loading.is_finished());
            drop(lock);
            let ran = loading.join().unwrap();
            assert_eq!(ran.code, 0, "{}", ran.err);
        });
    }
    assert!(machine
        .text("/keyctl.log")
        .contains("padd logon ibtrs:default:web1"));
}

/// The key is gone, and that counts: the unit can only fail from then on.
#[test]
fn a_unit_that_cannot_be_disabled_is_a_warning() {
    let (server, port) = (server(), port());
    with_systemd(&server);
    assert_eq!(
        run(&client("web1"), &["join", &token(&server, "web1", &port)]).code,
        0
    );
    wait_until("the listener ends", || nobody_listens(&port));
    has_loaded(&server);
    fs::remove_file(server.real("/usr/sbin/systemctl")).unwrap();
    let ran = run(&server, &["key", "remove", "web1"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        ran.out.contains("also from /etc/ibtrs/keys/web1.cred"),
        "{}",
        ran.out
    );
    let said = "warning: cannot disable ibnbd-key@web1.service, which has no key to load any more";
    assert!(ran.err.contains(said), "{}", ran.err);
    assert!(!server.real("/etc/ibtrs/keys/web1.cred").exists());
    assert!(server.text("/keyctl.log").contains("unlink 77 "));
}

/// The next boot loads what is in the file.
#[test]
fn a_key_that_is_removed_is_kept_no_longer() {
    let (server, port) = (server(), port());
    assert_eq!(
        run(&client("web1"), &["join", &token(&server, "web1", &port)]).code,
        0
    );
    has_loaded(&server);
    let ran = run(&server, &["key", "remove", "web1"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        ran.out
            .contains("of session web1, also from /etc/ibtrs/keys/web1.key"),
        "{}",
        ran.out
    );
    assert!(!server.real("/etc/ibtrs/keys/web1.key").exists());
    assert!(server.text("/keyctl.log").contains("unlink 77 "));
    // One that cannot be decrypted is no longer accepted, but would come back.
    server.file("/etc/ibtrs/keys/web1.cred", "sealed");
    let ran = run(&server, &["key", "remove", "web1"]);
    assert!(
        ran.code == 1 && ran.err.contains("loaded again at the next boot"),
        "{}",
        ran.err
    );
    assert_eq!(server.text("/keyctl.log").matches("unlink 77 ").count(), 2);
}

#[test]
fn what_is_no_token_is_refused_before_anything_happens() {
    let client = client("web1");
    for text in [
        "",
        "ibtrs-key-1:default:00:00",
        "ibtrs-token-1/web1/10.0.1.1/11235/00/00",
    ] {
        let ran = run(&client, &["join", text]);
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(
            ran.err.contains("remedy: take the whole line"),
            "{}",
            ran.err
        );
    }
    let ran = Ran::of(tree::ran::ibnbd(&client, &["join", "-"]).write_stdin("ibtrs-token-1/x\n"));
    assert_eq!(ran.code, 2);
    assert!(!client.real("/keyctl.log").exists());
}

/// A token that could not become a key is not used up.
#[test]
fn what_would_fail_later_is_found_before() {
    let (server, port) = (server(), port());
    let text = token(&server, "web1", &port);
    type Spoil = fn(&Tree);
    let cases: [(Spoil, i32, &str); 3] = [
        (
            |tree| fs::remove_file(tree.real("/usr/bin/keyctl")).unwrap(),
            3,
            "keyctl is not there",
        ),
        (
            |tree| _ = tree.file("/etc/ibtrs", ""),
            1,
            "/etc/ibtrs/keys: ",
        ),
        (
            |tree| {
                let other =
                    "[[server]]\nsession = \"web1\"\naddresses = [\"ip:10.9.9.9\"]\nport = 1234\njoined_at = []\n";
                tree.file("/etc/ibtrs/joined.toml", other);
            },
            1,
            "the session web1 leads to another server",
        ),
    ];
    for (spoil, code, why) in cases {
        let client = client("web1");
        spoil(&client);
        let ran = run(&client, &["join", &text]);
        assert!(
            ran.code == code && ran.err.contains(why),
            "{}: {}",
            ran.code,
            ran.err
        );
    }
    assert_eq!(run(&client("web1"), &["join", &text]).code, 0);
}

#[test]
fn no_token_is_issued_that_nobody_could_use() {
    let add = |tree: &Tree, words: &[&str]| {
        run(tree, &[&["host", "add", "web1", "--token"], words].concat())
    };
    let tree = server();
    tree.file("/sys/module/ibtrs_server/parameters/auth", "none\n");
    let ran = add(&tree, &[]);
    assert!(
        ran.code == 1 && ran.err.contains("auth=none"),
        "{}",
        ran.err
    );
    let tree = server();
    tree.file("/sys/class/infiniband/rxe0/ports/1/state", "1: DOWN\n");
    let ran = add(&tree, &[]);
    assert!(
        ran.code == 3 && ran.err.contains("`rdma link`"),
        "{}",
        ran.err
    );
    // The address of the device is none of this machine.
    let tree = server();
    let ran = add(&tree, &["--join-port", &port()]);
    assert!(
        ran.code == 1 && ran.err.contains("nobody listens on 10.0.1.1"),
        "{}",
        ran.err
    );
    assert!(!tree.real("/run/ibtrs/tokens/web1").exists());
    let tree = server();
    let ran = add(&tree, &["--max-paths", "2"]);
    assert!(
        ran.code == 2 && ran.err.contains("it is there already"),
        "{}",
        ran.err
    );
    tree.authenticated("web1", "10.0.1.2", "10.0.1.1", "default");
    let ran = add(&tree, &[]);
    assert!(
        ran.code == 1 && ran.err.contains("it is connected"),
        "{}",
        ran.err
    );
    let ran = run(&tree, &["host", "add", "web1", "--join-port", "1"]);
    assert!(ran.code == 2 && ran.err.contains("--token"), "{}", ran.err);
}
