// SPDX-License-Identifier: GPL-2.0

//! Sizes of packets, measured between network namespaces that a user may make.

use std::env;
use std::io::{self, Write};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ibnbd_host::probe::{self, Link, Measured, Reach, ROCE_PORT};

/// Set where a test runs in a network namespace of its own.
const INSIDE: &str = "IBNBD_TEST_NAMESPACE";

/// Whether the test runs in a network namespace of its own; outside of one, it is run in one.
fn is_inside(test: &str) -> bool {
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net"]);
        command
    };
    let may = unshare().args(["ip", "link", "set", "lo", "up"]).status();
    if !may.is_ok_and(|status| status.success()) {
        // Not with eprintln!, which is shown of failed tests only.
        let _ = writeln!(
            io::stderr(),
            "SKIPPED: {test}: this user may not make network namespaces"
        );
        return false;
    }
    let status = unshare()
        .arg(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .status();
    assert!(status.unwrap().success());
    false
}

fn shell(commands: &str) {
    let status = Command::new("sh").args(["-ec", commands]).status();
    assert!(status.unwrap().success(), "{commands}");
}

/// A namespace below this one. It goes with the test, even with one that is killed: `cat` ends with
/// the pipe that it reads.
struct Namespace(Child);

impl Namespace {
    fn new() -> Self {
        let child = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .spawn();
        let found = Self(child.unwrap());
        let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
        let start = Instant::now();
        while of(&found.pid()) == of("self") {
            assert!(start.elapsed() < Duration::from_secs(30));
            thread::sleep(Duration::from_millis(10));
        }
        found
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    fn shell(&self, commands: &str) {
        let mut inside = Command::new("nsenter");
        inside.args(["-t", &self.pid(), "-n", "sh", "-ec", commands]);
        assert!(inside.status().unwrap().success(), "{commands}");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn link(from: &str, to: &str, need: u32) -> Link {
    let address = |text: &str| SocketAddr::new(text.parse().unwrap(), 0);
    Link {
        from: address(from),
        to: address(to),
        need: Some(need),
        ask_roce: false,
    }
}

/// The result; if an answer took too long on a busy machine, the probe is repeated.
fn reach(link: &Link, expected: &Reach) -> Measured {
    measure(link, |found| found.reach == *expected)
}

fn measure(link: &Link, is_expected: impl Fn(&Measured) -> bool) -> Measured {
    let mut found = probe::one(link);
    for _ in 0..5 {
        if is_expected(&found) {
            break;
        }
        // A machine answers once a second where it has answered often.
        thread::sleep(Duration::from_secs(6));
        found = probe::one(link);
    }
    found
}

#[test]
fn all_sizes_pass_on_this_machine() {
    let mut link = link("127.0.0.1", "127.0.0.1", 4160);
    // The port of RoCE is open if somebody has it.
    link.ask_roce = true;
    let free = UdpSocket::bind(("127.0.0.1", ROCE_PORT)).is_ok();
    let found = measure(&link, |found| {
        found.reach == Reach::Passes && found.roce_is_closed == free
    });
    assert_eq!((found.reach, found.roce_is_closed), (Reach::Passes, free));
}

#[test]
fn many_links_take_little_longer_than_one() {
    let links = vec![link("127.0.0.1", "127.0.0.1", 4160); 100];
    let start = Instant::now();
    let mut told = Vec::new();
    let found = probe::all(&links, &mut |done| told.push(done));
    assert_eq!(told, [0, 64]);
    assert!(found.iter().all(|each| each.reach == Reach::Passes) && found.len() == 100);
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn an_address_that_is_not_here_is_told() {
    let found = probe::one(&link("192.0.2.1", "127.0.0.1", 4160));
    assert!(matches!(found.reach, Reach::Unsent(_)), "{found:?}");
}

#[test]
fn an_interface_that_is_too_small_is_found() {
    if is_inside("an_interface_that_is_too_small_is_found") {
        shell("ip link set lo mtu 1280 up");
        let found = probe::one(&link("127.0.0.1", "127.0.0.1", 4160));
        assert_eq!(found.reach, Reach::Stops(Some(1280)));
        let found = probe::one(&link("::1", "::1", 4180));
        assert_eq!(found.reach, Reach::Stops(Some(1280)));
    }
}

/// Two cables and a router between them. A packet that is too large for the first cable is dropped
/// without a word; of one that is too large for the second, the router says so.
#[test]
fn a_hop_that_is_too_small_is_found() {
    if !is_inside("a_hop_that_is_too_small_is_found") {
        return;
    }
    let (router, far) = (Namespace::new(), Namespace::new());
    shell(&format!(
        "ip link add name near mtu 4200 type veth peer name near1 mtu 4200 netns {}
         ip addr add 10.9.1.1/24 dev near
         ip addr add fd00:9:1::1/64 dev near nodad
         ip link set near up
         ip route add 10.9.2.0/24 via 10.9.1.2",
        router.pid()
    ));
    router.shell(&format!(
        "ip link add name far mtu 4200 type veth peer name far1 mtu 4200 netns {}
         echo 1 > /proc/sys/net/ipv4/ip_forward
         ip addr add 10.9.1.2/24 dev near1
         ip addr add fd00:9:1::2/64 dev near1 nodad
         ip addr add 10.9.2.1/24 dev far
         ip link set near1 up
         ip link set far up",
        far.pid()
    ));
    far.shell(
        "ip addr add 10.9.2.2/24 dev far1
         ip link set far1 up
         ip route add 10.9.1.0/24 via 10.9.2.1",
    );
    let (one, two) = (
        link("10.9.1.1", "10.9.1.2", 4160),
        link("10.9.1.1", "10.9.2.2", 4160),
    );
    let six = link("fd00:9:1::1", "fd00:9:1::2", 4180);
    for link in [&one, &two, &six] {
        assert_eq!(reach(link, &Reach::Passes).reach, Reach::Passes, "{link:?}");
    }

    // The router says that packets are too large, and this machine does not remember it.
    router.shell("ip link set far mtu 1400");
    let expected = Reach::Stops(Some(1280));
    assert_eq!(reach(&two, &expected).reach, expected);
    router.shell("ip link set far mtu 4200");
    assert_eq!(reach(&two, &Reach::Passes).reach, Reach::Passes);

    // The end of a cable drops what is too large, and nobody says so.
    router.shell("ip link set near1 mtu 1500");
    let expected = Reach::Stops(Some(1500));
    for link in [&one, &six] {
        assert_eq!(reach(link, &expected).reach, expected, "{link:?}");
    }

    // Nobody is there at all.
    router.shell("ip link set near1 down");
    assert_eq!(reach(&one, &Reach::Silent).reach, Reach::Silent);
}
