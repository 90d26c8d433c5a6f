// SPDX-License-Identifier: GPL-2.0

//! Metrics of messages between programs.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ibmsg::fdinfo::Open;

use ibtrs_proto::stats::counter::message_refusals;

use super::{Labels, Out};
use crate::model::Messages;

/// Series of portals without channels are kept up to this number: their names come from programs.
const MAX_IDLE: usize = 1000;

/// What is counted for each channel, by its name in fdinfo.
const COUNTS: [&str; 8] = [
    "sent",
    "received",
    "sent_bytes",
    "received_bytes",
    "calls",
    "call_us",
    "served",
    "served_us",
];

type Counts = [u64; COUNTS.len()];

/// The channels of a session to a portal, at one end: session, portal, side.
type Series = (String, String, String);

/// What channels have carried, also those that are closed by now. Without the processes there are no labels of theirs, so
/// the number of series is that of the portals that programs use.
#[derive(Debug, Default)]
pub struct Totals {
    all: BTreeMap<Series, Counts>,
    /// What each channel had counted when it was last looked at, by the number of its file.
    last: HashMap<u64, Counts>,
}

fn series(open: &Open) -> Series {
    let text = |name| open.text(name).unwrap_or_default().to_owned();
    (text("session"), text("portal"), text("side"))
}

/// Whether a program at the other end has accepted it. Until then any name of a portal can be in it.
fn is_accepted(open: &Open) -> bool {
    let has_carried = |name| open.number(name).is_some_and(|count| count > 0);
    matches!(open.state(), Some("open" | "closing"))
        || (open.state() == Some("closed") && (has_carried("sent") || has_carried("received")))
}

impl Totals {
    /// Adds what channels have carried since the last time.
    pub fn add(&mut self, messages: &Messages) {
        let mut present = HashMap::new();
        for open in messages.found.channels().filter(|open| is_accepted(open)) {
            let now = COUNTS.map(|name| open.number(name).unwrap_or(0));
            let file = open.number("file");
            let before = file.and_then(|file| self.last.get(&file));
            let before = before.copied().unwrap_or_default();
            let total = self.all.entry(series(open)).or_default();
            for (total, (now, before)) in total.iter_mut().zip(now.into_iter().zip(before)) {
                *total = total.saturating_add(now.saturating_sub(before));
            }
            present.extend(file.map(|file| (file, now)));
        }
        self.last = present;
        if self.all.len() > MAX_IDLE {
            let used: BTreeSet<Series> = messages.found.channels().map(series).collect();
            self.all.retain(|series, _| used.contains(series));
        }
    }
}

fn labels((session, portal, side): &Series) -> Labels<'_> {
    vec![("session", session), ("portal", portal), ("side", side)]
}

/// What there is at the moment.
#[derive(Default)]
struct Now {
    channels: u64,
    without_path: u64,
    unacknowledged: u64,
    unread: u64,
}

pub(super) fn text(out: &mut Out, messages: &Messages, totals: &Totals) {
    if !messages.is_loaded {
        return;
    }
    of_now(out, messages);
    let both = |[sent, received]: [usize; 2]| {
        totals.all.iter().flat_map(move |(series, counts)| {
            [
                ("sent", counts.get(sent)),
                ("received", counts.get(received)),
            ]
            .map(|(way, value)| {
                let mut labels = labels(series);
                labels.push(("direction", way));
                (labels, value.copied())
            })
        })
    };
    let ends = |[calls, served]: [usize; 2], scale: f64| {
        totals.all.iter().flat_map(move |(series, counts)| {
            [
                ("caller", counts.get(calls)),
                ("server", counts.get(served)),
            ]
            .map(|(end, value)| {
                let mut labels = labels(series);
                labels.push(("end", end));
                (labels, value.map(|count| *count as f64 * scale))
            })
        })
    };
    out.metric(
        "ibmsg_messages_total",
        "counter",
        "Messages that programs here have sent and read.",
        both([0, 1]),
    );
    out.metric(
        "ibmsg_bytes_total",
        "counter",
        "Bytes of these messages.",
        both([2, 3]),
    );
    out.metric(
        "ibmsg_calls_total",
        "counter",
        "Calls that have a reply, by whether programs here have made or answered them.",
        ends([4, 6], 1.0),
    );
    out.metric(
        "ibmsg_call_seconds_total",
        "counter",
        "Time that they took: until the reply has arrived, or from the arrival of the request until it was answered.",
        ends([5, 7], 1e-6),
    );
}

fn of_now(out: &mut Out, messages: &Messages) {
    out.metric(
        "ibmsg_unseen_processes",
        "gauge",
        "Processes whose portals and channels are missing here, for want of rights as a rule.",
        [(Labels::new(), Some(messages.found.unseen))],
    );
    let portals: Vec<&Open> = messages.found.portals().collect();
    out.metric(
        "ibmsg_portals",
        "gauge",
        "Message portals that programs have bound.",
        [(Labels::new(), Some(portals.len()))],
    );
    let waiting = portals.iter().filter_map(|open| {
        let labels = vec![("portal", open.text("portal")?)];
        Some((labels, open.number("offers")))
    });
    out.metric(
        "ibmsg_portal_offers",
        "gauge",
        "Programs that wait for the portal to accept a channel.",
        waiting,
    );
    let reasons = message_refusals::ALL.iter().map(|counter| {
        let file = counter.name();
        (file, file.strip_prefix("refused_").unwrap_or(file))
    });
    let by_reason = portals.iter().flat_map(|open| {
        reasons.clone().filter_map(move |(field, reason)| {
            let labels = vec![("portal", open.text("portal")?), ("reason", reason)];
            Some((labels, open.number(field)))
        })
    });
    out.metric(
        "ibmsg_portal_refused_channels_total",
        "counter",
        "Channels that were refused at the portal since it was bound.",
        by_reason,
    );
    let by_reason = messages.refused.iter().flat_map(|of| {
        let counts = of.counts.iter().copied();
        reasons
            .clone()
            .zip(counts)
            .map(move |((_, reason), count)| {
                let labels = vec![
                    ("session", of.session.as_str()),
                    ("side", of.side.as_str()),
                    ("reason", reason),
                ];
                (labels, count)
            })
    });
    out.metric(
        "ibmsg_session_refused_channels_total",
        "counter",
        "Channels over the session that were refused, since it has a rule for sessions or hosts here.",
        by_reason,
    );
    let mut all: BTreeMap<Series, Now> = BTreeMap::new();
    for open in messages.found.channels().filter(|open| is_accepted(open)) {
        let count = |name| open.number(name).unwrap_or(0);
        let now = all.entry(series(open)).or_default();
        now.channels += 1;
        let is_lost = open.state() == Some("open") && open.number("connected") == Some(0);
        now.without_path += u64::from(is_lost);
        now.unacknowledged = now.unacknowledged.saturating_add(count("unacknowledged"));
        now.unread = now.unread.saturating_add(count("waiting"));
    }
    let mut gauge = |name, help, value: fn(&Now) -> u64| {
        let samples = all
            .iter()
            .map(|(series, now)| (labels(series), Some(value(now))));
        out.metric(name, "gauge", help, samples);
    };
    gauge("ibmsg_channels", "Channels that programs have.", |now| {
        now.channels
    });
    gauge(
        "ibmsg_channels_without_path",
        "Channels whose messages wait for a path.",
        |now| now.without_path,
    );
    gauge(
        "ibmsg_unacknowledged_messages",
        "Messages of programs here that the other kernel has not queued.",
        |now| now.unacknowledged,
    );
    gauge(
        "ibmsg_unread_messages",
        "Messages that programs here have not read.",
        |now| now.unread,
    );
}

#[cfg(test)]
mod tests {
    use ibmsg::fdinfo::{fields, Found, Kind, Owner};

    use super::*;

    fn channel(file: u32, portal: &str, state: u32, sent: u32) -> Open {
        let text = format!(
            "file:\t{file}\nsession:\ts\nside:\tclient\nportal:\t{portal}\nstate:\t{state}\nsent:\t{sent}\n"
        );
        Open {
            kind: Kind::Channel,
            owners: vec![Owner {
                pid: 1,
                fd: 1,
                program: "x".into(),
            }],
            fields: Some(fields(&text)),
        }
    }

    fn sent(totals: &Totals) -> Vec<(&str, u64)> {
        let all = totals.all.iter();
        all.map(|((_, portal, _), counts)| (portal.as_str(), counts[0]))
            .collect()
    }

    #[test]
    fn totals_never_fall() {
        let messages = |all: Vec<Open>| Messages {
            is_loaded: true,
            found: Found { all, unseen: 0 },
            refused: Vec::new(),
            stalled: Vec::new(),
        };
        let mut totals = Totals::default();
        totals.add(&messages(vec![
            channel(1, "a", 2, 10),
            channel(2, "a", 2, 5),
        ]));
        assert_eq!(sent(&totals), [("a", 15)]);
        // One is closed, another one has sent more, and there is a third one. A fourth was never accepted.
        totals.add(&messages(vec![
            channel(2, "a", 2, 7),
            channel(3, "b", 4, 1),
            channel(4, "c", 4, 0),
            channel(5, "d", 1, 0),
        ]));
        assert_eq!(sent(&totals), [("a", 17), ("b", 1)]);
        totals.add(&messages(Vec::new()));
        assert_eq!(sent(&totals), [("a", 17), ("b", 1)]);
        let many = (0..=1000).map(|n| channel(n, &n.to_string(), 2, 1));
        totals.add(&messages(many.collect()));
        assert_eq!(totals.all.len(), 1001);
    }
}
