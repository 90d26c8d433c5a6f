// SPDX-License-Identifier: GPL-2.0

//! GET and PUT by a ring and with tokio, and messages with a body: `test_message_programs.py` runs these tests in a guest
//! that has a session to itself, whose name is in `IBMSG_SESSION`.

#![cfg(all(feature = "tokio", feature = "uring"))]

use std::collections::HashMap;
use std::env;
use std::thread;
use std::time::Duration;

use ibmsg::uring::Ring;
use ibmsg::{
    Bind, Channel, Connect, Memory, Message, Outgoing, Published, RemoteBody, Rights, Terms,
};

const EAGAIN: i32 = 11;
const EACCES: i32 = 13;
const EINVAL: i32 = 22;
const ERANGE: i32 = 34;
const EOPNOTSUPP: i32 = 95;
const ESTALE: i32 = 116;

const BLOCK: usize = 40_000;
const BLOCKS: usize = 64;

fn pair(name: &str) -> (Channel, Channel) {
    let session = env::var("IBMSG_SESSION").expect("a session");
    let terms = Terms {
        bodies: true,
        ..Terms::default()
    };
    let bind = Bind::new(name).unauthenticated().terms(terms);
    let portal = bind.open().expect("a portal");
    thread::scope(|scope| {
        let opener = scope.spawn(|| Connect::new(&session, name).open());
        let server = portal.offer().expect("an offer").accept(&[]);
        let client = opener.join().expect("a thread");
        (client.expect("a channel"), server.expect("a channel"))
    })
}

fn published(channel: &Channel, rights: Rights) -> Published {
    let memory = Memory::new(BLOCK * BLOCKS);
    channel.publish(memory, rights).expect("published memory")
}

fn block(number: usize) -> Vec<u8> {
    (0..BLOCK).map(|at| (at * 7 + number * 13) as u8).collect()
}

fn offset(number: usize) -> u64 {
    (number * BLOCK) as u64
}

fn found(memory: &Memory, number: usize) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    memory.read(number * BLOCK, &mut bytes);
    bytes
}

fn errno(result: ibmsg::Result<Vec<u8>>) -> Option<i32> {
    result.expect_err("an error").errno()
}

#[test]
#[ignore = "needs the device, and a session"]
fn a_ring_copies_many_at_a_time() {
    let (client, server) = pair("ring");
    let memory = published(&server, Rights::BOTH);
    let handle = memory.handle();
    let mut ring = Ring::new(BLOCKS as u32, 0).expect("a ring");
    let mut numbers = HashMap::new();
    for number in 0..BLOCKS {
        let call = ring.put(&client, handle, offset(number), block(number), None);
        numbers.insert(call.expect("a place"), number);
    }
    let full = ring.get(&client, handle, 0, 1, None);
    assert_eq!(full.expect_err("full").errno(), Some(EAGAIN));
    while let Some(done) = ring.wait().expect("an operation") {
        let number = numbers.remove(&done.call).expect("its number");
        // The bytes come back.
        assert_eq!(done.result.expect("a PUT"), block(number));
        assert_eq!(found(&memory, number), block(number));
    }
    assert!(numbers.is_empty());
    for number in 0..BLOCKS {
        let call = ring.get(&client, handle, offset(number), BLOCK, None);
        numbers.insert(call.expect("a place"), number);
    }
    while let Some(done) = ring.wait().expect("an operation") {
        let number = numbers.remove(&done.call).expect("its number");
        assert_eq!(done.result.expect("a GET"), block(number));
    }
    assert!(numbers.is_empty());
}

#[test]
#[ignore = "needs the device, and a session"]
fn what_a_ring_is_refused() {
    let (client, server) = pair("refusals");
    let memory = published(&server, Rights::GET);
    let handle = memory.handle();
    let mut ring = Ring::new(1, 0).expect("a ring");
    let one = |call: ibmsg::Result<_>, ring: &mut Ring| {
        call.expect("a place");
        let done = ring.wait().expect("an operation");
        errno(done.expect("one").result)
    };
    let call = ring.put(&client, handle, 0, vec![1; 10], None);
    assert_eq!(one(call, &mut ring), Some(EACCES));
    let call = ring.get(&client, handle, offset(BLOCKS), 1, None);
    assert_eq!(one(call, &mut ring), Some(ERANGE));
    let call = ring.get(&client, handle, 0, 0, None);
    assert_eq!(one(call, &mut ring), Some(EINVAL));
    drop(memory);
    let call = ring.get(&client, handle, 0, 1, None);
    assert_eq!(one(call, &mut ring), Some(ESTALE));
}

/// Calls, GETs and PUTs share a ring; the ring goes with operations that are under way.
#[test]
#[ignore = "needs the device, and a session"]
fn a_ring_is_dropped_with_copies() {
    let (client, server) = pair("dropped");
    let memory = published(&server, Rights::BOTH);
    for _ in 0..10 {
        let mut ring = Ring::new(16, 100).expect("a ring");
        for number in 0..7 {
            let put = ring.put(
                &client,
                memory.handle(),
                offset(number),
                block(number),
                None,
            );
            put.expect("a place");
            let get = ring.get(&client, memory.handle(), offset(40), BLOCK, None);
            get.expect("a place");
        }
        ring.call(
            &client,
            b"nobody answers".to_vec(),
            Some(Duration::from_millis(50)),
        )
        .expect("a place");
        ring.wait().expect("an operation").expect("one");
    }
    // In another thread: the kernel removes the rings of this one, and interrupts it.
    let last = thread::scope(|scope| {
        let get = || client.get(memory.handle(), offset(1), BLOCK, None);
        scope.spawn(get).join()
    });
    assert_eq!(last.expect("a thread").expect("a GET"), block(1));
}

#[tokio::test]
#[ignore = "needs the device, and a session"]
async fn futures_copy() {
    let (client, server) = pair("futures");
    let client = ibmsg::tokio::Channel::try_from(client).expect("a channel");
    let server = ibmsg::tokio::Channel::try_from(server).expect("a channel");
    let memory = Memory::new(BLOCK * BLOCKS);
    let memory = server.publish(memory, Rights::BOTH);
    let memory = memory.expect("published memory");
    let handle = memory.handle();
    // More than the kernel takes at a time.
    let puts = (0..2 * BLOCKS).map(|number| {
        let (client, number) = (client.clone(), number % BLOCKS);
        tokio::spawn(async move {
            let bytes = client.put(handle, offset(number), block(number), None);
            assert_eq!(bytes.await.expect("a PUT"), block(number));
        })
    });
    for put in puts.collect::<Vec<_>>() {
        put.await.expect("a task");
    }
    let gets = (0..2 * BLOCKS).map(|number| {
        let (client, number) = (client.clone(), number % BLOCKS);
        tokio::spawn(async move {
            let bytes = client.get(handle, offset(number), BLOCK, None);
            assert_eq!(bytes.await.expect("a GET"), block(number));
        })
    });
    for get in gets.collect::<Vec<_>>() {
        get.await.expect("a task");
    }
    for number in 0..BLOCKS {
        assert_eq!(found(&memory, number), block(number));
    }
    let range = client.get(handle, offset(BLOCKS), 1, None).await;
    assert_eq!(errno(range), Some(ERANGE));
    // Futures that are dropped: what has begun ends.
    for number in 0..20 {
        let put = client.put(handle, 0, vec![number; BLOCK], None);
        let time = Duration::from_micros(u64::from(number) * 100);
        let _ = tokio::time::timeout(time, put).await;
    }
    let put = client.put(handle, 0, vec![99; BLOCK], None).await;
    put.expect("a PUT");
    let back = server.take_back(memory).await.expect("memory");
    assert_eq!(back.len(), BLOCK * BLOCKS);
    let stale = client.get(handle, 0, 1, None).await;
    assert_eq!(errno(stale), Some(ESTALE));
}

/// Memory with the bytes of some blocks.
fn filled(blocks: usize) -> Memory {
    let memory = Memory::new(BLOCK * blocks);
    for number in 0..blocks {
        memory.write(number * BLOCK, &block(number));
    }
    memory
}

/// The content of a message, and its body.
fn with_body(message: Option<Message>) -> (Vec<u8>, RemoteBody) {
    match message {
        Some(Message::Msg {
            body,
            remote: Some(remote),
            ..
        }) => (body, remote),
        other => panic!("{other:?}"),
    }
}

fn receipt(message: Option<Message>) -> (u64, i32) {
    match message {
        Some(Message::BodyReceipt { tag, status }) => (tag, status),
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "needs the device, and a session"]
fn messages_have_bodies() {
    let (mut client, mut server) = pair("bodies");
    let first = Outgoing::new(b"first").tag(7);
    let lent = client.send_with_body(&first, filled(4));
    let lent = lent.expect("a message");
    let (content, body) = with_body(server.next().expect("a message"));
    assert_eq!((&content[..], body.size()), (&b"first"[..], offset(4)));
    for number in [3, 0, 2] {
        let got = server.get_body(&body, offset(number), BLOCK, None);
        assert_eq!(got.expect("a part"), block(number));
    }
    let beyond = server.get_body(&body, offset(4), 1, None);
    assert_eq!(errno(beyond), Some(ERANGE));
    server.release(body).expect("a body");
    let again = server.release(body);
    assert_eq!(again.expect_err("released").errno(), Some(ESTALE));
    assert_eq!(receipt(client.next().expect("a receipt")), (7, 0));
    // The same memory again; this time, the body is taken back.
    let memory = lent.take_back().expect("memory");
    assert_eq!(found(&memory, 3), block(3));
    memory.write(0, &block(9));
    let second = Outgoing::new(b"").tag(8);
    let lent = client.send_with_body(&second, memory);
    let (content, body) = with_body(server.next().expect("a message"));
    assert!(content.is_empty());
    let got = server.get_body(&body, 0, BLOCK, None);
    assert_eq!(got.expect("a part"), block(9));
    drop(lent.expect("a message"));
    assert_eq!(receipt(client.next().expect("a receipt")), (8, ESTALE));
    let stale = server.get_body(&body, 0, 1, None);
    assert_eq!(errno(stale), Some(ESTALE));
    server.release(body).expect("a body");
    // The client has not said that it takes any.
    let refused = server.send_with_body(&first, filled(1));
    assert_eq!(refused.expect_err("no").errno(), Some(EOPNOTSUPP));
}

#[tokio::test]
#[ignore = "needs the device, and a session"]
async fn futures_have_bodies() {
    // More than there may be at a time.
    const COUNT: u64 = 100;
    let (client, server) = pair("lent");
    let client = ibmsg::tokio::Channel::try_from(client).expect("a channel");
    let server = ibmsg::tokio::Channel::try_from(server).expect("a channel");
    let reader = tokio::spawn(async move {
        for _ in 0..COUNT {
            let (_, body) = with_body(server.receive().await.expect("a message"));
            let got = server.get_body(&body, 5, 10, None).await;
            assert_eq!(got.expect("a part"), block(0)[5..15]);
            server.release(body).await.expect("a body");
        }
    });
    let mut lent = HashMap::new();
    for tag in 0..COUNT {
        if lent.len() == 8 {
            let (tag, status) = receipt(client.receive().await.expect("a receipt"));
            assert_eq!(status, 0);
            let lent = lent.remove(&tag).expect("its tag");
            let memory = client.take_body_back(lent).await.expect("memory");
            assert_eq!(found(&memory, 0), block(0));
        }
        let message = Outgoing::new(b"").tag(tag);
        let sent = client.send_with_body(&message, filled(1)).await;
        lent.insert(tag, sent.expect("a message"));
    }
    reader.await.expect("a task");
    for _ in 0..lent.len() {
        let (tag, status) = receipt(client.receive().await.expect("a receipt"));
        assert!(status == 0 && lent.contains_key(&tag));
    }
}
