// SPDX-License-Identifier: GPL-2.0

//! A channel whose other end is a socket that keeps bounds of messages: the tests write what the kernel would.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use ::tokio::time::{sleep, timeout};
use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};

use super::reader::FULL;
use super::Channel;
use crate::channel::{whole, Message};
use crate::error::Error;
use crate::wire::{Header, Kind, F_KERNEL, HEADER_LEN, MAX_MESSAGE};

struct Peer(File);

impl Peer {
    fn write(&mut self, header: Header, body: &[u8]) {
        let message = whole(header, body).expect("a message");
        self.0.write_all(&message).expect("room");
    }

    fn message(&mut self, tag: u64, body: &[u8]) {
        let header = Header {
            tag,
            ..Header::new(Kind::Msg)
        };
        self.write(header, body);
    }

    fn reply(&mut self, tag: u64, status: i32, flags: u8, body: &[u8]) {
        let header = Header {
            tag,
            status,
            flags,
            ..Header::new(Kind::Reply)
        };
        self.write(header, body);
    }

    /// The next message of the program: its kind, its tag and its content.
    fn read(&mut self) -> (Kind, u64, Vec<u8>) {
        let mut buffer = vec![0; HEADER_LEN + MAX_MESSAGE];
        let len = self.0.read(&mut buffer).expect("a message");
        let mut bytes = &buffer[..len];
        let (header, body) = Header::take(&mut bytes).expect("one message");
        assert!(bytes.is_empty());
        (header.kind, header.tag, body.to_vec())
    }
}

fn pair() -> (Channel, Peer) {
    let (ours, other): (OwnedFd, OwnedFd) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("sockets");
    let channel = Channel::try_from(crate::Channel::from(ours)).expect("a channel");
    (channel, Peer(other.into()))
}

/// Has other tasks do what they can.
async fn settle() {
    sleep(Duration::from_millis(20)).await;
}

fn tag_of(message: Option<Message>) -> u64 {
    match message {
        Some(Message::Msg { tag, .. }) => tag,
        other => panic!("{other:?}"),
    }
}

#[::tokio::test]
async fn replies_reach_their_calls_in_any_order() {
    let (channel, mut peer) = pair();
    let mut tasks = Vec::new();
    for number in 0..50u8 {
        let channel = channel.clone();
        tasks.push(::tokio::spawn(async move {
            channel
                .call(&[number], None)
                .await
                .map(|reply| (number, reply))
        }));
    }
    settle().await;
    let mut requests: Vec<_> = (0..50).map(|_| peer.read()).collect();
    requests.reverse();
    for (kind, tag, body) in requests {
        assert_eq!(kind, Kind::Request);
        peer.message(1000, b"in between");
        peer.reply(tag, 0, 0, &body);
    }
    for task in tasks {
        let (number, reply) = task.await.expect("a task").expect("a reply");
        assert_eq!(reply, [number]);
    }
    for _ in 0..50 {
        assert_eq!(tag_of(channel.receive().await.expect("a message")), 1000);
    }
}

#[::tokio::test]
async fn errors_of_replies() {
    let (channel, mut peer) = pair();
    let call = |body: &'static [u8]| {
        let channel = channel.clone();
        ::tokio::spawn(async move { channel.call(body, None).await })
    };
    let calls = [call(b"a"), call(b"b"), call(b"c")];
    settle().await;
    for _ in 0..3 {
        let (_, tag, body) = peer.read();
        match &body[..] {
            b"a" => peer.reply(tag, 110, F_KERNEL, b""),
            b"b" => peer.reply(tag, 2, 0, b"none"),
            _ => {}
        }
    }
    // The third one has no reply when the channel ends.
    drop(peer);
    let [a, b, c] = calls;
    assert!(matches!(
        a.await.expect("a task"),
        Err(Error::Unanswered(110))
    ));
    let answered = b.await.expect("a task");
    assert!(matches!(answered, Err(Error::Answered(2, why)) if why == b"none"));
    assert!(matches!(
        c.await.expect("a task"),
        Err(Error::Unanswered(103))
    ));
    assert_eq!(channel.receive().await.expect("the end"), None);
    assert_eq!(channel.receive().await.expect("the end"), None);
    assert!(channel.send(b"x").await.is_err());
}

#[::tokio::test]
async fn dropped_futures_lose_nothing() {
    let (channel, mut peer) = pair();
    let wait = Duration::from_millis(5);
    for tag in 0..20 {
        // One that waits when the message comes, and one that is dropped in the same moment.
        assert!(timeout(wait, channel.receive()).await.is_err());
        assert!(timeout(wait, channel.call(b"late", None)).await.is_err());
        let (kind, call, _) = peer.read();
        assert_eq!(kind, Kind::Request);
        peer.message(tag, b"");
        let _ = timeout(Duration::ZERO, channel.call(b"never", None)).await;
        peer.reply(call, 0, 0, b"nobody waits");
        assert_eq!(tag_of(channel.receive().await.expect("a message")), tag);
        // It was sent, or not.
        while timeout(wait, channel.receive()).await.is_ok() {}
    }
    let (tag, reply) = {
        let channel = channel.clone();
        let last = ::tokio::spawn(async move { channel.call(b"last", None).await });
        settle().await;
        let tag = loop {
            let (_, tag, body) = peer.read();
            if body == b"last" {
                break tag;
            }
        };
        (tag, last)
    };
    peer.reply(tag, 0, 0, b"answer");
    assert_eq!(reply.await.expect("a task").expect("a reply"), b"answer");
}

/// The reader's place goes to another task when its future is dropped.
#[::tokio::test]
async fn another_task_reads() {
    let (channel, mut peer) = pair();
    let first = {
        let channel = channel.clone();
        ::tokio::spawn(async move { channel.receive().await })
    };
    settle().await;
    let second = {
        let channel = channel.clone();
        ::tokio::spawn(async move { channel.call(b"x", None).await })
    };
    settle().await;
    first.abort();
    let tag = peer.read().1;
    peer.reply(tag, 0, 0, b"y");
    assert_eq!(second.await.expect("a task").expect("a reply"), b"y");
}

/// Messages that nobody receives stay in the channel but for a bound, also if a call looks for its reply.
#[::tokio::test]
async fn what_is_not_received_waits() {
    let (channel, mut peer) = pair();
    let call = {
        let channel = channel.clone();
        ::tokio::spawn(async move { channel.call(b"x", None).await })
    };
    settle().await;
    let tag = peer.read().1;
    const COUNT: usize = 10;
    let writer = std::thread::spawn(move || {
        for number in 0..COUNT {
            peer.message(number as u64, &vec![0; FULL / 4]);
        }
        peer.reply(tag, 0, 0, b"y");
        peer
    });
    for _ in 0..5 {
        settle().await;
    }
    assert!(!call.is_finished());
    for number in 0..COUNT {
        assert_eq!(
            tag_of(channel.receive().await.expect("a message")),
            number as u64
        );
    }
    assert_eq!(call.await.expect("a task").expect("a reply"), b"y");
    drop(writer.join());
}

/// Two tasks that receive have different messages, and both have the end.
#[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_tasks_receive() {
    let (channel, mut peer) = pair();
    let receivers: Vec<_> = (0..4)
        .map(|_| {
            let channel = channel.clone();
            ::tokio::spawn(async move {
                let mut tags = Vec::new();
                while let Ok(Some(message)) = channel.receive().await {
                    tags.push(tag_of(Some(message)));
                }
                tags
            })
        })
        .collect();
    let writer = std::thread::spawn(move || {
        for tag in 0..2000 {
            peer.message(tag, b"message");
        }
    });
    let mut all = Vec::new();
    for receiver in receivers {
        all.extend(receiver.await.expect("a task"));
    }
    drop(writer.join());
    all.sort_unstable();
    assert!(all.into_iter().eq(0..2000));
}

/// A message is written when there is room, which `poll` tells.
#[::tokio::test]
async fn writing_waits_for_room() {
    let (channel, mut peer) = pair();
    let writer = ::tokio::spawn(async move {
        for number in 0..1000u32 {
            channel.send(&number.to_ne_bytes().repeat(1000)).await?;
        }
        crate::Result::Ok(())
    });
    settle().await;
    assert!(!writer.is_finished());
    let reader = std::thread::spawn(move || {
        (0..1000u32).all(|number| peer.read().2 == number.to_ne_bytes().repeat(1000))
    });
    assert!(writer.await.expect("a task").is_ok());
    assert!(reader.join().expect("a thread"));
}
