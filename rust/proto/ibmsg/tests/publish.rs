// SPDX-License-Identifier: GPL-2.0

//! Publishing: golden bytes, each rule by itself, and a log with its subscribers. `tools/sim` has them on channels.

use std::collections::VecDeque;

use ibmsg_proto::limits::MAX_MESSAGE;
use ibmsg_proto::publish::{
    Admission, Begins, Feed, FeedStep, From, Log, LogId, LogTerms, Policy, PublishError,
    PublishTerms, Request, Subscription, MAX_SUBSCRIPTIONS,
};
use ibmsg_proto::window::{Window, WindowError};
use ibmsg_proto::wire::*;
use ibmsg_proto::Seq;
use ibtrs_proto::Errno;
use proptest::prelude::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    let byte = |i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn id(number: u64) -> LogId {
    LogId::new(number).unwrap()
}

fn ask(from: From, exact: bool) -> Request {
    Request { from, exact }
}

const ACK: &str = "01020304 00020304 05060708 090a0b0c";
const TAG: &str = "11121314 15161718";
const AT: &str = "01020304 05060708";
const LOG: &str = "21222324 25262728";
const POSITION: u64 = 0x0807_0605_0403_0201;
const LOG_ID: u64 = 0x2827_2625_2423_2221;

fn header(of: &PublicationFields, total: u32) -> MessageHdr {
    MessageHdr {
        channel: 7,
        number: Seq::new(0x14),
        kind: Kind::Publish(of.kind),
        prompt: false,
        body: false,
        ack: Ack {
            next: Seq::new(0x0403_0201),
            taken: Seq::new(0x0403_0200),
            msg_limit: Seq::new(0x0807_0605),
            byte_limit: Seq::new(0x0C0B_0A09),
        },
        total,
        offset: 0,
        id: of.id,
        tag: 0x1817_1615_1413_1211,
        status: of.status,
    }
}

/// Compares a message with its golden bytes, reads it back, and checks that other lengths are refused.
fn golden(publication: Publication, bytes: &str) {
    let want = hex(bytes);
    let fields = publication.fields();
    let content = match publication {
        Publication::Published(_) => b"abc",
        _ => fields.content(),
    };
    let hdr = header(&fields, content.len() as u32);
    let message = Message { hdr, content };
    let mut buf = [0xEE; 128];
    let len = message.encode(&mut buf).unwrap();
    assert_eq!(&buf[..len], want);
    let mut read = Records::of(&want).with_publishing();
    assert_eq!(read.next(), Some(Ok(Record::Message(message))));
    assert_eq!(Publication::decode(fields.kind, &message), Ok(publication));
    // Without publishing, the kind does not exist; with memory alone neither.
    let kind = want[2];
    for plain in [Records::of(&want), Records::of(&want).with_memory()] {
        assert_eq!(plain.clone().next(), Some(Err(WireError::Kind(kind))));
    }
    if matches!(publication, Publication::Published(_)) {
        return;
    }
    // Longer, shorter, or a piece.
    let refused = Some(Err(WireError::Publication(kind)));
    let mut longer = want.clone();
    longer.push(0);
    (longer[4], longer[32]) = (want[4] + 1, want[32] + 1);
    assert_eq!(Records::of(&longer).with_publishing().next(), refused);
    let mut piece = want.clone();
    piece[32] += 1;
    let read = Records::of(&piece).with_publishing().next();
    assert!(matches!(read, Some(Err(_))));
    if !content.is_empty() {
        let mut shorter = want.clone();
        shorter.truncate(want.len() - 1);
        (shorter[4], shorter[32]) = (want[4] - 1, want[32] - 1);
        assert_eq!(Records::of(&shorter).with_publishing().next(), refused);
    }
}

#[test]
fn records_are_those_of_the_page() {
    let log = id(LOG_ID);
    golden(
        Publication::Published(POSITION),
        &format!("01000300 43000000 07000000 14000000 {ACK} 03000000 00000000 {AT} {TAG} 0000 000000000000 616263"),
    );
    golden(
        Publication::Subscribe(ask(From::Position(log, POSITION), true)),
        &format!("01000400 50000000 07000000 14000000 {ACK} 10000000 00000000 {AT} {TAG} 0000 000000000000 {LOG} 0201000000000000"),
    );
    golden(
        Publication::Subscribe(ask(From::Next, false)),
        &format!("01000400 50000000 07000000 14000000 {ACK} 10000000 00000000 0000000000000000 {TAG} 0000 000000000000 0000000000000000 0100000000000000"),
    );
    golden(
        Publication::Unsubscribe,
        &format!("01000500 40000000 07000000 14000000 {ACK} 00000000 00000000 0000000000000000 {TAG} 0000 000000000000"),
    );
    golden(
        Publication::Subscribed(log, POSITION),
        &format!("01000600 48000000 07000000 14000000 {ACK} 08000000 00000000 {AT} {TAG} 0000 000000000000 {LOG}"),
    );
    golden(
        Publication::Lost(POSITION, 0x0102),
        &format!("01000700 48000000 07000000 14000000 {ACK} 08000000 00000000 {AT} {TAG} 0000 000000000000 0201000000000000"),
    );
    golden(
        Publication::Ended(POSITION, Some(Errno::ENOBUFS)),
        &format!("01000800 40000000 07000000 14000000 {ACK} 00000000 00000000 {AT} {TAG} 6900 000000000000"),
    );
}

#[test]
fn impossible_requests_are_refused() {
    let message = |content: &[u8]| {
        let fields = Publication::Subscribe(ask(From::First, false)).fields();
        let hdr = header(&fields, 16);
        Publication::decode(PublishKind::Subscribe, &Message { hdr, content })
    };
    let mut content = [0; 16];
    assert!(message(&content).is_ok());
    // Another place to begin, a log without a position, a position without a log, another flag.
    for (at, value) in [(8, 3), (0, 1), (8, 2), (9, 2)] {
        content = [0; 16];
        content[at] = value;
        assert_eq!(message(&content), Err(WireError::Publication(4)), "{at}");
    }
    let fields = Publication::Subscribed(id(1), 0).fields();
    let hdr = header(&fields, 8);
    let none = Message {
        hdr,
        content: &[0; 8],
    };
    let read = Publication::decode(PublishKind::Subscribed, &none);
    assert_eq!(read, Err(WireError::Publication(6)));
}

#[test]
fn terms_are_negotiated() {
    let terms = |n| PublishTerms::new(n).unwrap();
    let plain = Window::new(8, 4096, 100, 0).unwrap();
    for (publish, features) in [
        (None, "00 0000 0000 0000"),
        (Some(terms(0x0102)), "02 0000 0000 0201"),
    ] {
        let window = plain.with_publishing(publish);
        let accept = Accept {
            channel: 7,
            moves: Seq::new(2),
            window,
            data: &[],
        };
        let mut buf = [0; 64];
        let len = accept.encode(&mut buf).unwrap();
        assert_eq!(buf[33..len], hex(features));
        let Some(Ok(Record::Accept(read))) = Records::of(&buf[..len]).next() else {
            panic!("not an ACCEPT");
        };
        assert_eq!(read.window, window);
        // Without the flag the number means nothing; with it, it is checked.
        buf[38] = 0;
        buf[39] = 0;
        let read = Records::of(&buf[..len]).next();
        let refused = matches!(read, Some(Err(WireError::Window(WindowError::Publish))));
        assert_eq!(refused, publish.is_some());
    }
    assert_eq!(PublishTerms::new(0), None);
    assert_eq!(PublishTerms::new(MAX_SUBSCRIPTIONS + 1), None);
    let agreed = PublishTerms::agreed;
    assert_eq!(agreed(Some(terms(3)), Some(terms(5))), 3);
    assert_eq!(agreed(Some(terms(5)), Some(terms(3))), 3);
    assert_eq!(agreed(None, Some(terms(3))), 0);
    assert_eq!(agreed(Some(terms(3)), None), 0);
}

fn log(entries: u32, policy: Policy) -> Log {
    Log::new(id(1), LogTerms::new(entries, 100, policy).unwrap())
}

fn publish(log: &mut Log, n: u64) {
    for _ in 0..n {
        while log.admission(10, None) == Admission::Evict {
            log.evicted(10);
        }
        assert_eq!(log.admission(10, None), Admission::Append);
        log.append(10);
    }
}

#[test]
fn a_log_is_bounded() {
    let mut log = log(4, Policy::Wait);
    assert!(log.is_unused());
    assert_eq!(log.admission(101, None), Admission::TooLong);
    for n in 0..4 {
        assert_eq!(log.admission(10, Some(0)), Admission::Append);
        assert_eq!(log.append(10), n);
    }
    // The oldest one leaves unless somebody waits for it.
    assert_eq!(log.admission(10, Some(0)), Admission::Wait);
    assert_eq!(log.admission(10, Some(1)), Admission::Evict);
    assert_eq!(log.admission(10, None), Admission::Evict);
    log.evicted(10);
    assert_eq!((log.first(), log.next(), log.bytes()), (1, 4, 30));
    // By bytes.
    assert_eq!(log.admission(71, Some(1)), Admission::Wait);
    assert_eq!(log.admission(70, Some(1)), Admission::Append);
    log.append(70);
    for policy in [Policy::Drop, Policy::Close] {
        log.set_terms(LogTerms::new(4, 100, policy).unwrap());
        assert_eq!(log.admission(10, Some(1)), Admission::Evict);
    }
    assert_eq!(LogTerms::new(0, 1, Policy::Drop), None);
    assert_eq!(LogTerms::new(1, 0, Policy::Drop), None);
}

/// What a feed queues until it has nothing more.
fn steps(feed: &mut Feed, log: &Log) -> Vec<FeedStep> {
    let mut all = Vec::new();
    loop {
        match feed.step(log) {
            FeedStep::Idle => return all,
            step => {
                feed.queued(step);
                all.push(step);
            }
        }
    }
}

#[test]
fn a_subscription_begins_where_it_was_asked() {
    use FeedStep::{Ended, Entry, Lost, Subscribed};
    let mut log = log(4, Policy::Close);
    publish(&mut log, 6);
    let at = |n| From::Position(id(1), n);
    let feed = |from, exact| {
        let mut feed = Feed::new(9, &ask(from, exact), &log);
        assert_eq!((feed.tag(), feed.log()), (9, id(1)));
        steps(&mut feed, &log)
    };
    let live = |n| Subscribed(id(1), n);
    assert_eq!(feed(From::Next, true), [live(6)]);
    let all = [live(2), Entry(2), Entry(3), Entry(4), Entry(5)];
    assert_eq!(feed(From::First, false), all);
    assert_eq!(feed(at(2), true), all);
    assert_eq!(feed(at(5), true), [live(5), Entry(5)]);
    assert_eq!(feed(at(6), true), [live(6)]);
    // What was dropped before does not count as slow.
    assert_eq!(feed(at(0), false)[..3], [live(0), Lost(0, 2), Entry(2)]);
    assert_eq!(feed(at(1), true), [Ended(1, Some(Errno::ESTALE))]);
    assert_eq!(feed(at(7), false), [Ended(7, Some(Errno::ERANGE))]);
    // Another log.
    let other = |n| From::Position(id(2), n);
    assert_eq!(feed(other(5), false), all);
    assert_eq!(feed(other(5), true), [Ended(5, Some(Errno::ESTALE))]);
    let mut refusal = Feed::refusal(9, &ask(at(3), false), id(1), Errno::ENOMEM);
    assert_eq!(refusal.holds(), None);
    assert_eq!(steps(&mut refusal, &log), [Ended(3, Some(Errno::ENOMEM))]);
    assert!(refusal.is_over());
}

#[test]
fn slow_subscribers_are_treated_as_the_publisher_wants() {
    use FeedStep::{Ended, Entry, Lost};
    for policy in [Policy::Drop, Policy::Close] {
        let mut log = log(2, policy);
        let mut feed = Feed::new(9, &ask(From::First, false), &log);
        assert_eq!(steps(&mut feed, &log).len(), 1);
        publish(&mut log, 1);
        assert_eq!(steps(&mut feed, &log), [Entry(0)]);
        assert_eq!(feed.holds(), Some(1));
        publish(&mut log, 4);
        match policy {
            Policy::Drop => {
                assert_eq!(steps(&mut feed, &log), [Lost(1, 2), Entry(3), Entry(4)]);
            }
            _ => {
                let ended = [Ended(1, Some(Errno::ENOBUFS))];
                assert_eq!(steps(&mut feed, &log), ended);
                assert!(feed.is_over());
                assert_eq!(feed.holds(), None);
            }
        }
    }
}

#[test]
fn an_end_has_its_place() {
    use FeedStep::{Ended, Entry, Subscribed};
    let mut log = log(4, Policy::Wait);
    let mut feed = Feed::new(9, &ask(From::First, false), &log);
    publish(&mut log, 2);
    for _ in 0..2 {
        let step = feed.step(&log);
        feed.queued(step);
    }
    assert_eq!(feed.holds(), Some(1));
    feed.end(Some(Errno::ESHUTDOWN));
    assert_eq!(feed.holds(), None);
    feed.end(None);
    assert_eq!(steps(&mut feed, &log), [Ended(1, Some(Errno::ESHUTDOWN))]);
    feed.end(None);
    assert_eq!(feed.step(&log), FeedStep::Idle);
    // Before it had begun.
    let mut feed = Feed::new(9, &ask(From::First, false), &log);
    feed.end(None);
    assert_eq!(steps(&mut feed, &log), [Ended(0, None)]);
    let mut feed = Feed::new(9, &ask(From::First, false), &log);
    assert_eq!(
        steps(&mut feed, &log)[..2],
        [Subscribed(id(1), 0), Entry(0)]
    );
}

#[test]
fn what_arrives_is_checked() {
    let mut sub = Subscription::new(ask(From::Next, false));
    assert_eq!(sub.published(0), Err(PublishError::NoSubscription(0)));
    assert_eq!(sub.renewal(), ask(From::Next, false));
    assert_eq!(sub.subscribed(id(1), 5), Ok(Begins::Asked));
    assert_eq!(sub.subscribed(id(1), 5), Err(PublishError::Begin));
    for wrong in [4, 6] {
        assert_eq!(sub.published(wrong), Err(PublishError::Position(wrong)));
        assert_eq!(sub.lost(wrong, 1), Err(PublishError::Position(wrong)));
        assert_eq!(sub.ended(wrong, None), Err(PublishError::Position(wrong)));
    }
    assert_eq!(sub.published(5), Ok(()));
    assert_eq!(sub.lost(6, 0), Err(PublishError::Count(0)));
    assert_eq!(
        sub.lost(6, u64::MAX - 5),
        Err(PublishError::Count(u64::MAX - 5))
    );
    assert_eq!(sub.lost(6, 3), Ok(()));
    assert_eq!(sub.renewal(), ask(From::Position(id(1), 9), false));
    assert_eq!(sub.cut_off(), (9, Some(Errno::ESHUTDOWN)));
    assert_eq!(sub.ended(9, None), Ok(()));
    // Positions are not used up: the last one has no entry.
    assert_eq!(sub.lost(9, u64::MAX - 9), Ok(()));
    assert_eq!(sub.published(u64::MAX), Err(PublishError::Count(1)));
}

#[test]
fn it_begins_as_asked_or_says_so() {
    let at = From::Position(id(1), 5);
    let begin = |exact, log, position| Subscription::new(ask(at, exact)).subscribed(log, position);
    assert_eq!(begin(true, id(1), 5), Ok(Begins::Asked));
    assert_eq!(begin(false, id(1), 6), Err(PublishError::Begin));
    assert_eq!(begin(false, id(2), 0), Ok(Begins::OtherLog));
    assert_eq!(begin(true, id(2), 5), Err(PublishError::Begin));
    // It ends before it has begun if it is refused, or if nobody wants it any more.
    let mut sub = Subscription::new(ask(at, false));
    assert_eq!(sub.ended(5, Some(Errno::ENOMEM)), Ok(()));
    assert_eq!(sub.ended(5, None), Err(PublishError::Position(5)));
    assert_eq!(sub.cut_off(), (0, Some(Errno::ESHUTDOWN)));
    assert!(sub.leave() && !sub.leave());
    assert_eq!(sub.cut_off(), (0, None));
    assert_eq!(sub.ended(0, None), Ok(()));
    assert_eq!(sub.renewal(), ask(at, false));
}

/// What happens to a log with three subscribers.
#[derive(Clone, Debug)]
enum Op {
    Publish(u32),
    Queue(usize),
    Subscribe(usize, u64, bool),
    Unsubscribe(usize),
    Restart,
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0u32..60).prop_map(Op::Publish),
        6 => (0usize..3).prop_map(Op::Queue),
        2 => (0usize..3, 0u64..4, any::<bool>()).prop_map(|(n, from, exact)| Op::Subscribe(n, from, exact)),
        1 => (0usize..3).prop_map(Op::Unsubscribe),
        1 => Just(Op::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever a feed queues, a subscription takes, each entry is the one that was published, and the log keeps to
    /// its terms.
    #[test]
    fn each_sees_all_or_is_told(ops in prop::collection::vec(any_op(), 0..120), policy in 0usize..3, entries in 1u32..6) {
        let policy = [Policy::Wait, Policy::Drop, Policy::Close][policy];
        let terms = LogTerms::new(entries, 100, policy).unwrap();
        let mut next_id = 1;
        let mut log = Log::new(id(next_id), terms);
        let mut content: VecDeque<u32> = VecDeque::new();
        let mut feeds: [Option<Feed>; 3] = [None; 3];
        let mut subs: [Option<Subscription>; 3] = [None; 3];
        // Where each subscriber goes on, after it has left.
        let mut resume = [ask(From::First, false); 3];
        for op in ops {
            match op {
                Op::Publish(len) => {
                    let slowest = feeds.iter().flatten().filter_map(Feed::holds).min();
                    let before = log.first();
                    let admission = loop {
                        match log.admission(len, slowest) {
                            Admission::Evict => log.evicted(content.pop_front().unwrap()),
                            other => break other,
                        }
                    };
                    match admission {
                        Admission::Append => {
                            prop_assert_eq!(log.append(len) + 1, log.next());
                            content.push_back(len);
                        }
                        Admission::Wait => prop_assert!(policy == Policy::Wait),
                        other => prop_assert!(false, "{other:?}"),
                    }
                    if policy == Policy::Wait {
                        prop_assert!(slowest.is_none_or(|at| at.max(before) >= log.first()));
                    }
                }
                Op::Queue(n) => {
                    let (Some(feed), Some(sub)) = (&mut feeds[n], &mut subs[n]) else { continue };
                    let step = feed.step(&log);
                    feed.queued(step);
                    match step {
                        FeedStep::Idle => {}
                        FeedStep::Subscribed(log, at) => {
                            prop_assert!(sub.subscribed(log, at).is_ok());
                        }
                        FeedStep::Lost(first, count) => {
                            prop_assert_eq!(sub.lost(first, count), Ok(()));
                        }
                        FeedStep::Entry(at) => {
                            prop_assert!(at >= log.first() && at < log.next());
                            prop_assert_eq!(sub.published(at), Ok(()));
                        }
                        FeedStep::Ended(at, why) => {
                            prop_assert_eq!(sub.ended(at, why), Ok(()));
                            resume[n] = sub.renewal();
                            (feeds[n], subs[n]) = (None, None);
                        }
                    }
                }
                Op::Subscribe(n, from, exact) if feeds[n].is_none() => {
                    let request = match from {
                        0 => ask(From::First, exact),
                        1 => ask(From::Next, exact),
                        _ => Request { exact, ..resume[n] },
                    };
                    feeds[n] = Some(Feed::new(1, &request, &log));
                    subs[n] = Some(Subscription::new(request));
                }
                Op::Subscribe(..) => {}
                Op::Unsubscribe(n) => {
                    if let (Some(feed), Some(sub)) = (&mut feeds[n], &mut subs[n]) {
                        if sub.leave() {
                            feed.end(None);
                        }
                    }
                }
                // The publisher: its subscriptions are gone with their channels.
                Op::Restart => {
                    for n in 0..3 {
                        if let Some(sub) = subs[n].take() {
                            resume[n] = sub.renewal();
                        }
                        feeds[n] = None;
                    }
                    next_id += 1;
                    log = Log::new(id(next_id), terms);
                    content.clear();
                }
            }
            prop_assert!(log.len() <= u64::from(entries) && log.bytes() <= 100);
            prop_assert_eq!(log.len(), content.len() as u64);
            prop_assert_eq!(log.bytes(), content.iter().map(|len| u64::from(*len)).sum::<u64>());
        }
    }

    /// No content of a peer is misread: what is decoded says the same again.
    #[test]
    fn contents_round_trip(kind in 3u8..9, id: u64, tag: u64, status in 0u16..134, content in prop::collection::vec(any::<u8>(), 0..20), fix: bool) {
        let mut bytes = vec![0; 64];
        (bytes[0], bytes[2], bytes[8]) = (1, kind, 7);
        let len = match (fix, kind) {
            (true, 4) => 16,
            (true, 5 | 8) => 0,
            (true, 6 | 7) => 8,
            _ => content.len(),
        };
        let mut content = content;
        content.resize(len, 0);
        if fix && kind == 4 {
            let begins = [content[8] % 3, content[9] % 2, 0, 0, 0, 0, 0, 0];
            content[8..].copy_from_slice(&begins);
        }
        bytes[4] = 64 + len as u8;
        bytes[32] = len as u8;
        bytes[40..48].copy_from_slice(&id.to_le_bytes());
        bytes[48..56].copy_from_slice(&tag.to_le_bytes());
        bytes[56..58].copy_from_slice(&status.to_le_bytes());
        bytes.extend(&content);
        let Some(Ok(Record::Message(message))) = Records::of(&bytes).with_publishing().next() else {
            return Ok(());
        };
        prop_assert!(message.hdr.total <= MAX_MESSAGE);
        let Kind::Publish(of) = message.hdr.kind else {
            return Err(TestCaseError::fail("another kind"));
        };
        if let Ok(publication) = Publication::decode(of, &message) {
            let fields = publication.fields();
            prop_assert_eq!(fields.kind, of);
            if of != PublishKind::Published {
                prop_assert_eq!(fields.content(), message.content);
                let again = MessageHdr { id: fields.id, status: fields.status, ..message.hdr };
                let again = Message { hdr: again, content: fields.content() };
                prop_assert_eq!(Publication::decode(of, &again), Ok(publication));
            }
        }
    }
}
