// SPDX-License-Identifier: GPL-2.0

//! Futures of the module `tokio` on the device: `test_message_programs.py` runs these tests in a guest.

#![cfg(feature = "tokio")]

use std::time::{Duration, Instant};

use ibmsg::publish::{Begin, Follower, LogTerms, Policy};
use ibmsg::tokio::{Channel, Portal};
use ibmsg::{Bind, Connect, Error, Message, Outgoing, Result, Terms, Tuning};
use tokio::time::{sleep, timeout};

const EAGAIN: i32 = 11;
const ENOENT: i32 = 2;
const EPERM: i32 = 1;
const ECANCELED: i32 = 125;
const ETIMEDOUT: i32 = 110;
const ECONNRESET: i32 = 104;

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

async fn pair(name: &str, terms: &Terms) -> (Channel, Channel) {
    let portal = Portal::open(Bind::new(name).terms(*terms)).expect("a portal");
    let client = Channel::connect(Connect::new("local", name).terms(*terms));
    let (client, server) = tokio::join!(client, portal.accept());
    (client.expect("a channel"), server.expect("a channel"))
}

/// Answers each request with its content, after a time.
fn echo(channel: Channel, time: Duration) {
    tokio::spawn(async move {
        while let Some(message) = channel.receive().await? {
            if let Message::Request { id, body, .. } = message {
                let channel = channel.clone();
                tokio::spawn(async move {
                    sleep(time).await;
                    channel.reply(id, &body).await
                });
            }
        }
        Result::Ok(())
    });
}

async fn number(channel: &Channel) -> u64 {
    match channel.receive().await {
        Ok(Some(Message::Msg { tag, .. })) => tag,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
#[ignore = "needs the device"]
async fn portals_answer() {
    let nobody = Channel::connect(Connect::new("local", "nobody")).await;
    assert!(
        matches!(nobody, Err(Error::Refused { reason: ENOENT, .. })),
        "{nobody:?}"
    );
    let portal = Portal::bind("answers").expect("a portal");
    let begun = Instant::now();
    let late = Channel::connect(Connect::new("local", "answers").timeout(Some(ms(100)))).await;
    assert_eq!(late.expect_err("no answer").errno(), Some(ETIMEDOUT));
    assert!(begun.elapsed() >= ms(100));
    // One offer may wait, and it does.
    let small = Portal::open(Bind::new("small").backlog(1)).expect("a portal");
    let first = Connect::new("local", "small").timeout(Some(ms(50)));
    let second = Channel::connect(Connect::new("local", "small"));
    let (first, second) = tokio::join!(Channel::connect(first), second);
    assert_eq!(first.expect_err("no answer").errno(), Some(ETIMEDOUT));
    let is_full = matches!(second, Err(Error::Refused { reason: EAGAIN, .. }));
    assert!(is_full, "{second:?}");
    drop(small);
    // Offers of those that wait no more are withdrawn, sooner or later.
    let dropped = Channel::connect(Connect::new("local", "answers"));
    assert!(timeout(ms(50), dropped).await.is_err());
    let data = Connect::new("local", "answers").data(b"hello");
    let (refused, ()) = tokio::join!(Channel::connect(data), async {
        loop {
            let offer = portal.offer().await.expect("an offer");
            assert!(offer.session == "local" && offer.is_authenticated);
            let is_last = offer.data == b"hello";
            match offer.reject(EPERM, b"not you") {
                Ok(()) if is_last => return,
                Ok(()) => {}
                Err(error) => assert!(!is_last && error.errno() == Some(ENOENT), "{error}"),
            }
        }
    });
    assert!(
        matches!(&refused, Err(Error::Refused { reason: EPERM, data }) if data == b"not you"),
        "{refused:?}"
    );
}

/// More calls than the other program takes, on several threads: each has its own reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the device"]
async fn more_calls_than_slots() {
    let terms = Terms {
        recv_calls: 4,
        ..Terms::default()
    };
    let (client, server) = pair("slots", &terms).await;
    echo(server, ms(2));
    let calls: Vec<_> = (0..200u32)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move { (number, client.call(&number.to_ne_bytes(), None).await) })
        })
        .collect();
    for call in calls {
        let (number, reply) = call.await.expect("a task");
        assert_eq!(reply.expect("a reply"), number.to_ne_bytes());
    }
}

/// Messages wait for others, until they are flushed or their time is over.
#[tokio::test]
#[ignore = "needs the device"]
async fn messages_wait_for_others() {
    const EINVAL: i32 = 22;
    let (client, server) = pair("more", &Terms::default()).await;
    let wrong = Tuning {
        more_for: Some(Duration::from_secs(2)),
        ..Tuning::default()
    };
    assert_eq!(
        client.tune(&wrong).expect_err("too long").errno(),
        Some(EINVAL)
    );
    let tuning = Tuning {
        more_for: Some(ms(900)),
        ..Tuning::default()
    };
    client.tune(&tuning).expect("in range");
    let begun = Instant::now();
    for tag in 1..=2 {
        let message = Outgoing::new(b"x").tag(tag).receipt(true).more(true);
        client.send_with(&message).await.expect("room");
    }
    assert!(timeout(ms(50), server.receive()).await.is_err());
    client.flush().expect("a flush");
    assert_eq!((number(&server).await, number(&server).await), (1, 2));
    let receipt = client.receive().await;
    assert!(
        matches!(receipt, Ok(Some(Message::Receipt { tag: 1, .. }))),
        "{receipt:?}"
    );
    if begun.elapsed() > ms(900) {
        eprintln!("slow: the time may have sent them");
    }
    let begun = Instant::now();
    let message = Outgoing::new(b"x").tag(3).more(true);
    client.send_with(&message).await.expect("room");
    assert_eq!(number(&server).await, 3);
    assert!(begun.elapsed() >= ms(900));
}

/// The outcome of a call is known in time even if the messages that arrive are not received.
#[tokio::test]
#[ignore = "needs the device"]
async fn a_call_ends_in_spite_of_messages() {
    let terms = Terms {
        recv_bytes: 1 << 20,
        send_bytes: 1 << 20,
        ..Terms::default()
    };
    let (client, server) = pair("flood", &terms).await;
    for tag in 0..100 {
        let body = vec![0; 8000];
        let message = Outgoing::new(&body).tag(tag);
        server.send_with(&message).await.expect("room");
    }
    let outcome = timeout(ms(20_000), client.call(b"x", Some(ms(300)))).await;
    let outcome = outcome.expect("an outcome in time");
    assert!(
        matches!(outcome, Err(Error::Unanswered(ETIMEDOUT))),
        "{outcome:?}"
    );
    // A second one, whose channel is closed.
    let call = {
        let client = client.clone();
        tokio::spawn(async move { client.call(b"y", None).await })
    };
    loop {
        match server.receive().await.expect("a message") {
            Some(Message::Request { body, .. }) if body == b"y" => break,
            Some(Message::Request { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    drop(server);
    let outcome = timeout(ms(20_000), call).await.expect("an outcome in time");
    let outcome = outcome.expect("a task");
    assert!(
        matches!(outcome, Err(Error::Unanswered(ECONNRESET | ECANCELED))),
        "{outcome:?}"
    );
    // The end does not keep the processor busy.
    let again = timeout(ms(500), client.call(b"z", None)).await;
    assert!(again.is_ok_and(|call| call.is_err()));
    for tag in 0..100 {
        assert_eq!(number(&client).await, tag);
    }
    let end = client.receive().await;
    assert!(
        matches!(end, Ok(Some(Message::Closed { status: 0, .. }))),
        "{end:?}"
    );
    assert_eq!(client.receive().await.expect("nothing"), None);
}

/// Nothing is lost with futures that are dropped at any time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the device"]
async fn dropped_futures() {
    let terms = Terms {
        recv_msgs: 8,
        send_msgs: 8,
        ..Terms::default()
    };
    let (client, server) = pair("dropped", &terms).await;
    const COUNT: u64 = 2000;
    let sender = tokio::spawn(async move {
        let mut tag = 0;
        while tag < COUNT {
            let body = tag.to_ne_bytes();
            let message = Outgoing::new(&body).tag(tag);
            // A dropped future has not sent it.
            let time = Duration::from_micros(tag % 7 * 50);
            match timeout(time, client.send_with(&message)).await {
                Ok(sent) => {
                    sent.expect("room");
                    tag += 1;
                }
                Err(_) => tokio::task::yield_now().await,
            }
        }
        client
    });
    let mut next = 0;
    while next < COUNT {
        let time = Duration::from_micros(next % 5 * 50);
        if let Ok(message) = timeout(time, server.receive()).await {
            match message {
                Ok(Some(Message::Msg { tag, .. })) => assert_eq!(tag, next),
                other => panic!("{other:?}"),
            }
            next += 1;
        }
    }
    let client = sender.await.expect("a task");
    // Calls whose replies nobody waits for take no slot for ever.
    echo(server, ms(1));
    for number in 0..300u64 {
        let time = Duration::from_micros(number % 10 * 300);
        let _ = timeout(time, client.call(&number.to_ne_bytes(), None)).await;
    }
    let last = timeout(ms(20_000), client.call(b"last", None)).await;
    assert_eq!(last.expect("a reply in time").expect("a reply"), b"last");
}

#[tokio::test]
#[ignore = "needs the device"]
async fn outcomes_and_the_end() {
    let (client, server) = pair("outcomes", &Terms::default()).await;
    let receipt = |tag| Outgoing::new(b"x").tag(tag).receipt(true);
    client.send_with(&receipt(7)).await.expect("room");
    let outcome = client.receive().await;
    assert!(
        matches!(outcome, Ok(Some(Message::Receipt { tag: 7, status: 0 }))),
        "{outcome:?}"
    );
    assert_eq!(number(&server).await, 7);
    let (refused, ()) = tokio::join!(client.call(b"x", None), async {
        match server.receive().await {
            Ok(Some(Message::Request { id, .. })) => {
                server.reply_error(id, EPERM, b"no").await.expect("room");
                let twice = server.reply(id, b"").await;
                assert_eq!(twice.expect_err("answered").errno(), Some(ENOENT));
            }
            other => panic!("{other:?}"),
        }
    });
    assert!(matches!(refused, Err(Error::Answered(EPERM, why)) if why == b"no"));
    assert!(client.number().is_ok());
    client.shut_down().expect("the end");
    for channel in [&server, &client] {
        let end = channel.receive().await;
        assert!(matches!(end, Ok(Some(Message::Closed { status: 0, .. }))));
        assert_eq!(channel.receive().await.expect("nothing"), None);
    }
    assert!(server.send(b"x").await.is_err());
    // A channel that blocks becomes one that does not.
    let portal = Portal::bind("converted").expect("a portal");
    let opener = std::thread::spawn(|| {
        Connect::new("local", "converted")
            .open()
            .expect("a channel")
    });
    let server = portal.accept().await.expect("a channel");
    let client = Channel::try_from(opener.join().expect("a thread")).expect("a channel");
    assert!(timeout(ms(50), client.receive()).await.is_err());
    server.send(b"x").await.expect("room");
    assert_eq!(number(&client).await, 0);
}

/// Reads entries by one channel, at least `count`.
async fn follow(follower: &mut Follower, name: &str, count: usize) -> Vec<Vec<u8>> {
    let channel = Channel::connect(Connect::new("local", name)).await;
    let channel = channel.expect("a channel");
    let asked = channel.subscribe(follower.tag(), follower.begin(), true);
    asked.await.expect("a subscription");
    let mut bodies = Vec::new();
    loop {
        let message = channel.receive().await.expect("no error");
        let message = message.expect("no end");
        follower.saw(&message);
        match message {
            Message::Published { body, .. } => bodies.push(body),
            Message::Subscribed { .. } => {}
            Message::Unsubscribed { status: 0, .. } => return bodies,
            other => panic!("{other:?}"),
        }
        if bodies.len() == count {
            channel.unsubscribe(follower.tag()).await.expect("the end");
        }
    }
}

#[tokio::test]
#[ignore = "needs the device"]
async fn entries_are_published() {
    let portal = Portal::bind("published").expect("a portal");
    let terms = LogTerms {
        entries: 8,
        policy: Policy::Wait,
        ..LogTerms::default()
    };
    portal.set_log(Some(7), &terms).expect("a log");
    assert!(portal.log(8).is_err());
    for n in 0..8u8 {
        portal.publish(7, &[n; 100]).await.expect("room");
    }
    let accepting = async {
        let mut channels = Vec::new();
        loop {
            channels.push(portal.accept().await.expect("a channel"));
        }
    };
    let mut follower = Follower::new(7);
    let publishing = async {
        // What was on its way comes as well.
        let mut all = follow(&mut follower, "published", 3).await;
        portal.publish(7, &[8; 100]).await.expect("room");
        all.extend(follow(&mut follower, "published", 9 - all.len()).await);
        assert_eq!(all, (0..9).map(|n| vec![n; 100]).collect::<Vec<_>>());
    };
    tokio::select! {
        () = accepting => {}
        () = publishing => {}
    }
    let state = portal.log(7).expect("a log");
    assert_eq!((state.first, state.next, state.terms.entries), (1, 9, 8));
    // A subscriber that does not read.
    let slow = Terms {
        recv_msgs: 1,
        ..Terms::default()
    };
    let slow = Channel::connect(Connect::new("local", "published").terms(slow));
    let (slow, _server) = tokio::join!(slow, portal.accept());
    let slow = slow.expect("a channel");
    slow.subscribe(7, Begin::First, false).await.expect("room");
    while portal.log(7).expect("a log").subscribers == 0 {
        sleep(ms(10)).await;
    }
    assert!(timeout(ms(200), portal.publish(7, b"x")).await.is_err());
    let more = async {
        let waits = portal.publish(7, b"y");
        let reads = async {
            for _ in 0..3 {
                slow.receive().await.expect("an entry");
            }
        };
        tokio::join!(waits, reads).0
    };
    more.await.expect("room, when it reads");
}
