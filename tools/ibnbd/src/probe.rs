// SPDX-License-Identifier: GPL-2.0

//! Measures which sizes of packets pass between the ends of paths.
//!
//! A probe is a UDP datagram that routers may not fragment, to a port on which nobody listens. If
//! it arrives, the other end answers that the port is closed; a router that cannot pass it on may
//! answer that it is too large. Both answers come as errors of an ordinary socket, so that no
//! privileges are needed.
//!
//! RoCE's own packets cannot tell: their loss looks like that of any other packet.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{
    set_ip_mtu_discover, set_ipv6_mtu_discover, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery,
};

/// How long answers are waited for, in each of two rounds.
const ROUND: Duration = Duration::from_millis(400);
/// How long the answer of RoCE's port is waited for once the other answers are there: they may
/// overtake it, on another CPU of this machine or on another way through the fabric.
const OVERTAKEN: Duration = Duration::from_millis(50);
/// How many links are measured at the same time.
const AT_ONCE: usize = 64;
/// Where nobody listens; what `traceroute` uses, so that firewalls often let it pass.
const CLOSED_PORT: u16 = 33_434;
/// The port of RoCE v2.
pub const ROCE_PORT: u16 = 4791;
/// The size of a packet that every link passes.
const SMALL: u32 = 128;
/// Sizes that are tried where the size that is needed does not pass: what an interface has to have
/// for RDMA MTUs of 2048, 512 and 256 bytes, and what Ethernet and IPv6 have. A machine answers
/// a peer only about six times at once, so that there are no more.
const SMALLER: [u32; 5] = [2144, 1500, 1280, 608, 352];

/// Two addresses between which packets are sent, from this machine to another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Link {
    /// The address of this machine.
    pub from: SocketAddr,
    /// The address of the other one.
    pub to: SocketAddr,
    /// The size of the largest IP packets that RDMA sends; none if only an answer counts.
    pub need: Option<u32>,
    /// Whether to find out if RoCE's port is closed at the other end.
    pub ask_roce: bool,
}

/// The outcome of a probe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// It has arrived.
    Arrived,
    /// It is too large for this machine or one on the way.
    TooLarge,
    /// Nothing was heard of it.
    Nothing,
    /// It could not be sent, or a machine on the way refused it: the reason.
    Failed(String),
}

/// The results for a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Packets of the size that is needed arrive.
    Passes,
    /// They do not, smaller ones do: the largest of those that were tried, if one was found.
    Stops(Option<u32>),
    /// Not even small ones are answered: they are lost, or a firewall drops answers.
    Silent,
    /// Nothing can be sent: the reason.
    Unsent(String),
}

/// A link and what was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Measured {
    /// The link.
    pub link: Link,
    /// The sizes that pass.
    pub reach: Reach,
    /// Whether the other end says that RoCE's port is closed.
    pub roce_is_closed: bool,
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.link.from.ip(), self.link.to.ip());
        match self.link.need {
            Some(need) => write!(f, "{from} to {to}: packets of {need} bytes ")?,
            None => write!(f, "{from} to {to}: small packets ")?,
        }
        match &self.reach {
            Reach::Passes => f.write_str("arrive"),
            Reach::Stops(Some(size)) => write!(f, "do not arrive, those of {size} bytes do"),
            Reach::Stops(None) => f.write_str("do not arrive, small ones do"),
            Reach::Silent => f.write_str("are not answered"),
            Reach::Unsent(why) => write!(f, "cannot be sent: {why}"),
        }?;
        match self.roce_is_closed {
            true => f.write_str("; UDP port 4791 is closed"),
            false => Ok(()),
        }
    }
}

/// Finds the sizes that pass. `send` sends packets of the given sizes, waits, and returns a result for each.
pub fn search(need: Option<u32>, send: &mut dyn FnMut(&[u32]) -> Vec<Reply>) -> Reach {
    let needed = need.unwrap_or(SMALL);
    let first = send(&[needed, SMALL]);
    let is_there = first.contains(&Reply::Arrived);
    let too_large = first.first() == Some(&Reply::TooLarge);
    match first.first() {
        Some(Reply::Arrived) => return Reach::Passes,
        Some(Reply::Failed(why)) if !is_there => return Reach::Unsent(why.clone()),
        _ if !is_there && !too_large => return Reach::Silent,
        _ => {}
    }
    // The packet or its answer may just have been lost, so it is sent again, twice.
    let mut sizes = vec![needed];
    sizes.extend(SMALLER.iter().filter(|size| **size < needed));
    sizes.push(needed);
    let replies = send(&sizes);
    let arrived = sizes.iter().zip(&replies);
    let largest = arrived
        .filter(|(_, reply)| **reply == Reply::Arrived)
        .map(|(size, _)| *size)
        .max();
    match largest {
        Some(size) if size == needed => Reach::Passes,
        // The other end answers no more for now: it has said nothing about these sizes.
        None if !too_large => Reach::Silent,
        largest => Reach::Stops(largest),
    }
}

/// Measures links, all at the same time as far as there are not too many. It takes a second, and
/// one more for each further 64 links. `progress` is told how many have been measured, each time
/// before more of them are.
pub fn all(links: &[Link], progress: &mut dyn FnMut(usize)) -> Vec<Measured> {
    let mut found = Vec::new();
    for some in links.chunks(AT_ONCE) {
        progress(found.len());
        thread::scope(|scope| {
            let started: Vec<_> = some
                .iter()
                .map(|link| (link, Builder::new().spawn_scoped(scope, || one(link))))
                .collect();
            let failed = |link: &Link| Measured {
                link: *link,
                reach: Reach::Unsent("the measurement failed".to_owned()),
                roce_is_closed: false,
            };
            found.extend(started.into_iter().map(|(link, thread)| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|_| failed(link)),
                // No more threads are allowed: it is measured after those that are.
                Err(_) => one(link),
            }));
        });
    }
    found
}

/// Measures a link.
pub fn one(link: &Link) -> Measured {
    let roce = link
        .ask_roce
        .then(|| probe(link, ROCE_PORT, SMALL).ok())
        .flatten();
    let reach = search(link.need, &mut |sizes| round(link, sizes));
    let closed = roce.map(|socket| answer(&socket, Instant::now() + OVERTAKEN));
    Measured {
        link: *link,
        reach,
        roce_is_closed: closed == Some(Reply::Arrived),
    }
}

fn round(link: &Link, sizes: &[u32]) -> Vec<Reply> {
    let ports = CLOSED_PORT..;
    let sent: Vec<_> = sizes
        .iter()
        .zip(ports)
        .map(|(size, port)| probe(link, port, *size))
        .collect();
    let until = Instant::now() + ROUND;
    sent.into_iter()
        .map(|sent| match sent {
            Ok(socket) => answer(&socket, until),
            Err(error) => of_error(&error),
        })
        .collect()
}

/// Sends an IP packet of a size, with a socket of its own that gets the answer.
fn probe(link: &Link, port: u16, size: u32) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(link.from)?;
    let mut to = link.to;
    to.set_port(port);
    socket.connect(to)?;
    let headers: usize = match to {
        SocketAddr::V4(_) => 20 + 8,
        SocketAddr::V6(_) => 40 + 8,
    };
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let payload = vec![0; size.saturating_sub(headers)];
    // May not be fragmented, whatever the kernel has learned about the path before.
    discover(&socket, true)?;
    socket.send(&payload)?;
    // An answer is for us, and not for the kernel, which would remember it for ten minutes.
    discover(&socket, false)?;
    Ok(socket)
}

fn discover(socket: &UdpSocket, probe: bool) -> io::Result<()> {
    let (v4, v6) = if probe {
        (Ipv4PathMtuDiscovery::PROBE, Ipv6PathMtuDiscovery::PROBE)
    } else {
        (
            Ipv4PathMtuDiscovery::INTERFACE,
            Ipv6PathMtuDiscovery::INTERFACE,
        )
    };
    match socket.local_addr()?.ip() {
        IpAddr::V4(_) => set_ip_mtu_discover(socket, v4)?,
        IpAddr::V6(_) => set_ipv6_mtu_discover(socket, v6)?,
    }
    Ok(())
}

/// Waits for the answer to a probe; at least long enough to take one that is there.
fn answer(socket: &UdpSocket, until: Instant) -> Reply {
    let left = until.saturating_duration_since(Instant::now());
    let left = left.max(Duration::from_millis(1));
    if let Err(error) = socket.set_read_timeout(Some(left)) {
        return of_error(&error);
    }
    match socket.recv(&mut [0; 1]) {
        // Somebody listens there, after all.
        Ok(_) => Reply::Arrived,
        Err(error) => of_error(&error),
    }
}

fn of_error(error: &io::Error) -> Reply {
    const EMSGSIZE: i32 = 90;
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Reply::Arrived,
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {
            Reply::Nothing
        }
        _ if error.raw_os_error() == Some(EMSGSIZE) => Reply::TooLarge,
        _ => Reply::Failed(error.to_string()),
    }
}

/// An address as sysfs has it, `ip:10.0.1.1` or `ip:fe80::1%2`; `index` finds the number of an
/// interface by its name.
pub fn address(text: &str, index: &dyn Fn(&str) -> Option<u32>) -> Option<SocketAddr> {
    let text = text.strip_prefix("ip:")?;
    let (address, scope) = match text.split_once('%') {
        Some((address, scope)) => (address, scope.parse().ok().or_else(|| index(scope))?),
        None => (text, 0),
    };
    Some(match address.parse().ok()? {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), 0),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, 0, 0, scope).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link with an MTU. `said`: whether who drops a packet says so.
    fn through(mtu: u32, said: bool) -> impl FnMut(&[u32]) -> Vec<Reply> {
        move |sizes| {
            let reply = |size: &u32| match said {
                _ if *size <= mtu => Reply::Arrived,
                true => Reply::TooLarge,
                false => Reply::Nothing,
            };
            sizes.iter().map(reply).collect()
        }
    }

    #[test]
    fn what_was_found_is_said() {
        let said = |need, reach, roce_is_closed| {
            let [from, to] = ["ip:10.0.1.2", "ip:10.0.1.1"].map(|text| address(text, &|_| None));
            let link = Link {
                from: from.unwrap(),
                to: to.unwrap(),
                need,
                ask_roce: true,
            };
            let measured = Measured {
                link,
                reach,
                roce_is_closed,
            };
            measured.to_string()
        };
        let stops = Reach::Stops(Some(1500));
        assert_eq!(
            said(Some(4160), stops, false),
            "10.0.1.2 to 10.0.1.1: packets of 4160 bytes do not arrive, those of 1500 bytes do"
        );
        assert_eq!(
            said(None, Reach::Passes, true),
            "10.0.1.2 to 10.0.1.1: small packets arrive; UDP port 4791 is closed"
        );
    }

    #[test]
    fn what_passes_is_found() {
        for said in [false, true] {
            for (mtu, reach) in [
                (9000, Reach::Passes),
                (4160, Reach::Passes),
                (4159, Reach::Stops(Some(2144))),
                (1500, Reach::Stops(Some(1500))),
                (1400, Reach::Stops(Some(1280))),
                (700, Reach::Stops(Some(608))),
            ] {
                let found = search(Some(4160), &mut through(mtu, said));
                assert_eq!(found, reach, "{mtu} {said}");
            }
        }
        // A size that is not smaller is not tried.
        let found = search(Some(1088), &mut through(1000, false));
        assert_eq!(found, Reach::Stops(Some(608)));
        assert_eq!(search(None, &mut through(200, false)), Reach::Passes);
    }

    #[test]
    fn silence_is_no_verdict() {
        let mut none = |sizes: &[u32]| vec![Reply::Nothing; sizes.len()];
        assert_eq!(search(Some(4160), &mut none), Reach::Silent);
        // One that answers a single time, and then no more.
        let mut rounds = 0;
        let mut once = |sizes: &[u32]| {
            rounds += 1;
            let mut replies = vec![Reply::Nothing; sizes.len()];
            if rounds == 1 {
                replies[1] = Reply::Arrived;
            }
            replies
        };
        assert_eq!(search(Some(4160), &mut once), Reach::Silent);
    }

    #[test]
    fn a_lost_packet_is_sent_again() {
        for lost in 0..2 {
            let mut rounds = 0;
            let mut losing = |sizes: &[u32]| {
                rounds += 1;
                let mut replies = vec![Reply::Arrived; sizes.len()];
                replies[0] = Reply::Nothing;
                if rounds == 2 && lost == 1 {
                    replies[1] = Reply::Nothing;
                }
                replies
            };
            assert_eq!(search(Some(4160), &mut losing), Reach::Passes);
        }
    }

    #[test]
    fn what_cannot_be_sent_is_told() {
        let mut refused = |sizes: &[u32]| vec![Reply::Failed("no way".to_owned()); sizes.len()];
        let told = Reach::Unsent("no way".to_owned());
        assert_eq!(search(Some(4160), &mut refused), told);
        // Small ones leave, but no large ones: this machine's own interface is too small.
        let mut local = through(1500, true);
        assert_eq!(search(Some(4160), &mut local), Reach::Stops(Some(1500)));
    }

    #[test]
    fn addresses_are_those_of_sysfs() {
        let index = |name: &str| (name == "eth0").then_some(7);
        let read = |text| address(text, &index).map(|found| found.to_string());
        assert_eq!(read("ip:10.0.1.1").as_deref(), Some("10.0.1.1:0"));
        assert_eq!(read("ip:fd00::1").as_deref(), Some("[fd00::1]:0"));
        assert_eq!(read("ip:fe80::1%3").as_deref(), Some("[fe80::1%3]:0"));
        assert_eq!(read("ip:fe80::1%eth0").as_deref(), Some("[fe80::1%7]:0"));
        for text in ["gid:fe80::1", "ip:fe80::1%eth9", "ip:x", ""] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
