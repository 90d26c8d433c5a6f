// SPDX-License-Identifier: GPL-2.0

//! GET and PUT by a ring and with tokio: `test_message_programs.py` runs these tests in a guest that has a session to
//! itself, whose name is in `IBMSG_SESSION`.

#![cfg(all(feature = "tokio", feature = "uring"))]

use std::collections::HashMap;
use std::env;
use std::thread;
use std::time::Duration;

use ibmsg::uring::Ring;
use ibmsg::{Bind, Channel, Connect, Memory, Published, Rights};

const EAGAIN: i32 = 11;
const EACCES: i32 = 13;
const EINVAL: i32 = 22;
const ERANGE: i32 = 34;
const ESTALE: i32 = 116;

const BLOCK: usize = 40_000;
const BLOCKS: usize = 64;

fn pair(name: &str) -> (Channel, Channel) {
    let session = env::var("IBMSG_SESSION").expect("a session");
    let bind = Bind::new(name).unauthenticated();
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
