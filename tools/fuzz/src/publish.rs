// SPDX-License-Identifier: GPL-2.0

//! Publishing: what a peer may say of subscriptions.

use ibmsg_proto::publish::{
    Admission, Feed, FeedStep, From, Log, LogId, LogTerms, Policy, Request, Subscription,
};
use ibmsg_proto::wire::{Kind, Message, MessageHdr, Publication, Record, Records};
use ibtrs_proto::Errno;

use crate::wire::head;

fn id(byte: u8) -> LogId {
    LogId::new(u64::from(byte % 2) + 1).expect("not 0")
}

/// What is decoded says the same when it is written again.
pub(crate) fn contents(bytes: &[u8]) {
    for record in Records::of(bytes).with_publishing().map_while(Result::ok) {
        let Record::Message(message) = record else {
            continue;
        };
        let Kind::Publish(kind) = message.hdr.kind else {
            continue;
        };
        let Ok(publication) = Publication::decode(kind, &message) else {
            continue;
        };
        let fields = publication.fields();
        assert_eq!(fields.kind, kind);
        if let Publication::Published(_) = publication {
            continue;
        }
        let hdr = MessageHdr {
            id: fields.id,
            status: fields.status,
            ..message.hdr
        };
        let content = fields.content();
        let again = Publication::decode(kind, &Message { hdr, content });
        assert_eq!(again, Ok(publication));
    }
}

/// A log keeps to its terms, a feed never goes back, and a subscription only takes what comes next, whatever the other
/// side says.
pub(crate) fn subscriptions(bytes: &[u8]) {
    let ([entries, policy], mut rest) = head(bytes);
    let policy = [Policy::Wait, Policy::Drop, Policy::Close][usize::from(policy) % 3];
    let entries = u32::from(entries % 8) + 1;
    let terms = LogTerms::new(entries, 1000, policy).expect("terms");
    let mut log = Log::new(id(0), terms);
    let request = |[what, from, exact]: [u8; 3]| Request {
        from: match what % 4 {
            0 => From::First,
            1 => From::Next,
            2 => From::Position(id(what >> 2), u64::from(from)),
            _ => From::Position(id(what >> 2), u64::MAX - u64::from(from)),
        },
        exact: exact & 1 != 0,
    };
    let mut feed = Feed::new(1, &request([0; 3]), &log);
    let mut sub = Subscription::new(request([0; 3]));
    let mut next = None;
    while !rest.is_empty() {
        let ([what, a, b, c], left) = head(rest);
        rest = left;
        let position = match a & 128 {
            0 => u64::from(a),
            _ => next.unwrap_or(u64::from(a)),
        };
        let why = (b & 1 != 0).then_some(Errno::from_peer(u16::from(c)));
        let was = feed.at();
        match what % 10 {
            0 | 1 => match log.admission(u32::from(b) * 5, feed.holds()) {
                Admission::Append => {
                    log.append(u32::from(b) * 5);
                }
                Admission::Evict => {
                    assert!(
                        policy != Policy::Wait
                            || feed.holds() > Some(log.first())
                            || feed.holds().is_none()
                    );
                    log.evicted(u32::from(c));
                }
                Admission::Wait => assert_eq!(policy, Policy::Wait),
                Admission::TooLong | Admission::Exhausted => {}
            },
            2 | 3 => {
                let step = feed.step(&log);
                if let FeedStep::Entry(at) = step {
                    assert!(at >= log.first() && at < log.next());
                }
                feed.queued(step);
                assert!(feed.at() >= was);
            }
            4 => feed.end(why),
            5 => feed = Feed::new(1, &request([a, b, c]), &log),
            6 => {
                if sub.subscribed(id(b), position).is_ok() {
                    assert_eq!(next.replace(position), None);
                }
            }
            7 => {
                if sub.published(position).is_ok() {
                    assert_eq!(next, Some(position));
                    next = Some(position + 1);
                }
            }
            8 => {
                let count = u64::from(b).wrapping_sub(u64::from(c));
                if sub.lost(position, count).is_ok() {
                    assert_eq!(next, Some(position));
                    next = position.checked_add(count);
                    assert!(next.is_some() && count > 0);
                }
            }
            _ => {
                if sub.ended(position, why).is_ok() {
                    assert!(next.is_none() || next == Some(position));
                    sub = Subscription::new(sub.renewal());
                    next = None;
                }
            }
        }
        assert!(log.len() <= u64::from(entries));
    }
}
