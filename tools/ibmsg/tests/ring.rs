// SPDX-License-Identifier: GPL-2.0

//! The module `uring` on the device: `test_message_programs.py` runs these tests in a guest.

#![cfg(feature = "uring")]

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use ibmsg::uring::Ring;
use ibmsg::{Channel, Connect, Error, Message, Portal, Terms};

const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const EMSGSIZE: i32 = 90;
const ETIMEDOUT: i32 = 110;
const ECANCELED: i32 = 125;

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

fn pair(name: &str, terms: &Terms) -> (Channel, Channel) {
    let portal = Portal::bind_with(name, terms).expect("a portal");
    thread::scope(|scope| {
        let opener = scope.spawn(|| Connect::new("local", name).open());
        let server = portal.offer().expect("an offer").accept(&[]);
        let client = opener.join().expect("a thread");
        (client.expect("a channel"), server.expect("a channel"))
    })
}

/// Answers requests with their content twice, until the channel ends. Returns how many there were.
fn twice(mut server: Channel) -> u32 {
    let mut count = 0;
    while let Some(message) = server.next().expect("a message") {
        if let Message::Request { id, body, .. } = message {
            count += 1;
            server.reply(id, &body.repeat(2)).expect("room");
        }
    }
    count
}

#[test]
#[ignore = "needs the device"]
fn each_call_has_its_reply() {
    let terms = Terms {
        recv_calls: 8,
        ..Terms::default()
    };
    let (client, server) = pair("ring", &terms);
    let server = thread::spawn(|| twice(server));
    let mut ring = Ring::new(32, 4000).expect("a ring");
    assert!(ring.wait().expect("nothing").is_none());
    let mut requests = HashMap::new();
    let (mut made, mut done) = (0usize, 0);
    while done < 500 {
        while made < 500 && requests.len() < 32 {
            let request = vec![made as u8; made % 2001];
            let call = ring.call(&client, request.clone(), None).expect("a place");
            assert!(requests.insert(call, request).is_none());
            made += 1;
        }
        if requests.len() == 32 {
            let full = ring.call(&client, Vec::new(), None);
            assert_eq!(full.expect_err("full").errno(), Some(EAGAIN));
        }
        let one = ring.wait().expect("a call").expect("one");
        let request = requests.remove(&one.call).expect("its request");
        assert_eq!(one.result.expect("a reply"), request.repeat(2));
        done += 1;
    }
    // There is no room for its reply.
    let long = ring.call(&client, vec![1; 2001], None).expect("a place");
    let one = ring.wait().expect("a call").expect("one");
    assert_eq!(one.call, long);
    assert_eq!(one.result.expect_err("too long").errno(), Some(EMSGSIZE));
    assert!(ring.wait().expect("nothing").is_none());
    drop(client);
    assert_eq!(server.join().expect("a thread"), 501);
}

#[test]
#[ignore = "needs the device"]
fn outcomes() {
    let (client, mut server) = pair("outcomes_of_a_ring", &Terms::default());
    let mut ring = Ring::new(4, 100).expect("a ring");
    ring.call(&client, b"slow".to_vec(), Some(ms(50)))
        .expect("a place");
    let one = ring.wait().expect("a call").expect("one");
    // With a link that is lost, its time may be over before it is sent.
    assert!(
        matches!(one.result, Err(Error::Unanswered(ETIMEDOUT | ECANCELED))),
        "{one:?}"
    );
    // The channel stays open while a call waits.
    ring.call(&client, b"last".to_vec(), None).expect("a place");
    ring.submit().expect("the kernel takes it");
    drop(client);
    let id = loop {
        match server.next().expect("a message") {
            Some(Message::Request { id, body, .. }) if body == b"last" => break id,
            Some(Message::Request { .. }) => {}
            other => panic!("{other:?}"),
        }
    };
    server.reply_error(id, EINTR, b"no").expect("room");
    let one = ring.wait().expect("a call").expect("one");
    assert!(matches!(one.result, Err(Error::Answered(EINTR, why)) if why == b"no"));
    assert!(matches!(server.next(), Ok(Some(Message::Closed { .. }))));
}

/// The kernel ends the calls of a ring that is dropped; those of others go on.
#[test]
#[ignore = "needs the device"]
fn a_ring_is_dropped_with_calls() {
    let (client, server) = pair("dropped_ring", &Terms::default());
    let server = thread::spawn(|| twice(server));
    for _ in 0..50 {
        let mut ring = Ring::new(8, 4096).expect("a ring");
        for _ in 0..8 {
            ring.call(&client, vec![7; 100], None).expect("a place");
        }
        let one = ring.wait().expect("a call").expect("one");
        assert_eq!(one.result.expect("a reply"), [7; 200]);
    }
    // In another thread: the kernel removes the rings of this one, and interrupts it.
    let last = thread::scope(|scope| scope.spawn(|| client.call(b"last", None)).join());
    assert_eq!(last.expect("a thread").expect("a reply"), b"lastlast");
    drop(client);
    // Those that were not sent are not sent any more.
    let answered = server.join().expect("a thread");
    assert!((51..=401).contains(&answered), "{answered}");
}
