// SPDX-License-Identifier: GPL-2.0

use std::os::unix::net::UnixStream;
use std::thread;

use proptest::prelude::*;

use super::*;

const SECRET: [u8; 32] = [7; 32];
const RANDOM: [u8; 32] = [9; 32];

fn place() -> Place {
    Place {
        addresses: vec!["ip:10.0.1.1".to_owned(), "gid:fe80::2".to_owned()],
        port: 1234,
    }
}

/// What both ends have in the end.
struct Ended {
    client: Result<(Key, KeyId, Place), JoinError>,
    server: Result<Key, JoinError>,
}

/// A client that keeps its key at once.
fn come(
    stream: &mut UnixStream,
    host: &str,
    secret: [u8; 32],
) -> Result<(Key, KeyId, Place), JoinError> {
    let given = join(stream, host, &Key::new(secret), "machine1")?;
    let (key, id, place) = (given.key.clone(), given.id, given.place.clone());
    given.kept(stream)?;
    Ok((key, id, place))
}

fn id() -> KeyId {
    KeyId::new(b"join-1").unwrap()
}

/// A server that knows one token.
fn serve(stream: &mut UnixStream, host: &str, place: &Place) -> Result<Key, JoinError> {
    let knock = Knock::receive(stream)?;
    if knock.host() != host {
        return Err(JoinError::Stranger);
    }
    let mut guest = knock.answer(stream, &Key::new(SECRET))?;
    assert_eq!(guest.machine, "machine1");
    let random = Key::new(RANDOM);
    let key = guest.key(&random)?;
    guest.grant(stream, &random, &id(), place)?;
    guest.wait_kept(stream)?;
    Ok(key)
}

fn run(host: &str, secret: [u8; 32], place: &Place) -> Ended {
    let (mut here, mut there) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        let server = scope.spawn(move || serve(&mut there, "web1", place));
        let client = come(&mut here, host, secret);
        drop(here);
        Ended {
            client,
            server: server.join().unwrap(),
        }
    })
}

#[test]
fn both_ends_have_the_same_key() {
    let Ended { client, server } = run("web1", SECRET, &place());
    let (key, named, found) = client.unwrap();
    assert_eq!(key.as_bytes(), server.unwrap().as_bytes());
    assert_eq!(named, id());
    // With `gid:` all digits.
    assert_eq!(found.addresses[0], "ip:10.0.1.1");
    assert_eq!((found.addresses.len(), found.port), (2, 1234));
    // Neither the token nor the server alone makes it: another conversation has another one.
    assert!(key.as_bytes() != &RANDOM && key.as_bytes() != &SECRET);
    let other = run("web1", SECRET, &place()).client.unwrap().0;
    assert_ne!(key.as_bytes(), other.as_bytes());
}

#[test]
fn who_does_not_know_the_token_gets_nothing() {
    for (host, secret) in [("web1", [8; 32]), ("web2", SECRET), ("", SECRET)] {
        let Ended { client, server } = run(host, secret, &place());
        assert!(matches!(client, Err(JoinError::Stranger)), "{client:?}");
        assert!(matches!(server, Err(JoinError::Stranger)), "{server:?}");
    }
}

/// Its words come from who has proved the token, and are written into a file.
#[test]
fn a_place_that_makes_no_sense_is_refused() {
    for (addresses, port) in [
        (vec![], 1),
        (vec!["ip:10.0.1.1"], 0),
        (vec!["ip:10.0.1.1\"]\nx = [\""], 1),
        (vec!["storage1"], 1),
        (vec!["ip:10.0.1.1"; MOST_ADDRESSES + 1], 1),
    ] {
        let addresses = addresses.into_iter().map(String::from).collect();
        let ended = run("web1", SECRET, &Place { addresses, port });
        assert!(matches!(ended.client, Err(JoinError::Nonsense)));
    }
}

#[test]
fn a_refusal_is_told() {
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        let guest = Knock::receive(&mut there).unwrap();
        let guest = guest.answer(&mut there, &Key::new(SECRET)).unwrap();
        guest.refuse(&mut there, "no\x1b[31m").unwrap();
    });
    let result = join(&mut here, "web1", &Key::new(SECRET), "m");
    assert!(matches!(result, Err(JoinError::Refused(why)) if why == "no?[31m"));
    server.join().unwrap();
}

/// Passes messages on, and keeps them. `change` may change the one with that number.
fn relay(change: impl Fn(usize, &mut Vec<u8>) + Sync) -> (Ended, Vec<Vec<u8>>) {
    let (mut here, mut left) = UnixStream::pair().unwrap();
    let (mut right, mut there) = UnixStream::pair().unwrap();
    let mut seen = Vec::new();
    let ended = thread::scope(|scope| {
        let server = scope.spawn(move || serve(&mut there, "web1", &place()));
        let client = scope.spawn(move || come(&mut here, "web1", SECRET));
        // From which end each message comes.
        for (number, from_client) in [true, true, false, true, false, true]
            .into_iter()
            .enumerate()
        {
            let (from, to) = match from_client {
                true => (&mut left, &mut right),
                false => (&mut right, &mut left),
            };
            let Ok(mut message) = receive(from) else {
                break;
            };
            seen.push(message.clone());
            change(number, &mut message);
            if send(to, &message).is_err() {
                break;
            }
        }
        drop((left, right));
        Ended {
            client: client.join().unwrap(),
            server: server.join().unwrap(),
        }
    });
    (ended, seen)
}

#[test]
fn each_changed_bit_is_found() {
    let (ended, seen) = relay(|_, _| {});
    assert!(ended.client.is_ok() && ended.server.is_ok());
    assert_eq!(seen.len(), 6);
    for (message, whole) in seen.iter().enumerate() {
        for at in (0..whole.len()).step_by(7) {
            let flip = |number, bytes: &mut Vec<u8>| {
                if number == message {
                    bytes[at] ^= 1;
                }
            };
            let (ended, _) = relay(flip);
            assert!(ended.server.is_err(), "message {message}, byte {at}");
            // The last message is the client's: it cannot know whether it arrives, and need not.
            assert!(ended.client.is_err() || message == 5);
        }
    }
}

/// Who replays the messages of a client makes the server answer once, and cannot go on: the token
/// stays in use for the client.
#[test]
fn a_replay_proves_nothing() {
    let (_, seen) = relay(|_, _| {});
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || serve(&mut there, "web1", &place()));
    send(&mut here, &seen[0]).unwrap();
    send(&mut here, &seen[1]).unwrap();
    receive(&mut here).unwrap();
    send(&mut here, &seen[3]).unwrap();
    drop(here);
    let error = server.join().unwrap();
    assert!(matches!(error, Err(JoinError::Nonsense)), "{error:?}");
}

/// One who knows the token can be the server for the client and the client for the server. Then the
/// two have different keys, which their fingerprints show, and no session.
#[test]
fn between_the_ends_are_two_keys() {
    let (mut here, mut left) = UnixStream::pair().unwrap();
    let (mut right, mut there) = UnixStream::pair().unwrap();
    let secret = || Key::new(SECRET);
    let server = thread::spawn(move || serve(&mut there, "web1", &place()));
    let client = thread::spawn(move || come(&mut here, "web1", SECRET));
    come(&mut right, "web1", SECRET).unwrap();
    let guest = Knock::receive(&mut left).unwrap();
    let mut guest = guest.answer(&mut left, &secret()).unwrap();
    let random = Key::new(RANDOM);
    guest.grant(&mut left, &random, &id(), &place()).unwrap();
    guest.wait_kept(&mut left).unwrap();
    let (of_client, ..) = client.join().unwrap().unwrap();
    let of_server = server.join().unwrap().unwrap();
    assert_ne!(of_client.as_bytes(), of_server.as_bytes());
}

proptest! {
    #[test]
    fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        here.write_all(&bytes).unwrap();
        drop(here);
        prop_assert!(Knock::receive(&mut there).is_err() || bytes.starts_with(&[0]));
        let (mut here, mut there) = UnixStream::pair().unwrap();
        send(&mut here, &bytes).unwrap();
        here.shutdown(std::net::Shutdown::Write).unwrap();
        let server = thread::spawn(move || join(&mut there, "web1", &Key::new(SECRET), "m"));
        let _ = io::copy(&mut here, &mut io::sink());
        prop_assert!(server.join().unwrap().is_err());
        // Behind the name of a host that has a token.
        let (mut here, mut there) = UnixStream::pair().unwrap();
        send(&mut here, prologue("web1").as_bytes()).unwrap();
        send(&mut here, &bytes).unwrap();
        here.shutdown(std::net::Shutdown::Write).unwrap();
        prop_assert!(serve(&mut there, "web1", &place()).is_err());
    }
}

#[test]
fn a_slow_end_is_not_waited_for() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    let feeder = thread::spawn(move || {
        // A byte now and then, so that no single call takes long.
        while slow.write_all(&[0]).is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    let start = Instant::now();
    let mut limited = Limited::new(stream, Duration::from_millis(200));
    let error = limited.read_exact(&mut [0; 1000]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(start.elapsed() < Duration::from_secs(10));
    drop(limited);
    feeder.join().unwrap();
}
