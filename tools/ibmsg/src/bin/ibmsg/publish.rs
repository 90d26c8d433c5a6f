// SPDX-License-Identifier: GPL-2.0

//! `publish` and `subscribe`

use std::collections::HashMap;
use std::io::BufRead;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ibmsg::publish::{Begin, Follower, LogTerms, Policy};
use ibmsg::words::name;
use ibmsg::{Channel, Connect, Error, Message, Portal};
use serde_json::json;

use crate::cli::{PolicyName, Publish, Subscribe};
use crate::out::{content, Failure, Out, REFUSED, TIME};

const EPIPE: i32 = 32;
const ENOBUFS: i32 = 105;
const ESHUTDOWN: i32 = 108;
/// Interval at which the number of subscribers, and what they lack, is read.
const PAUSE: Duration = Duration::from_millis(20);

/// Accepts all channels, and keeps them until their other ends are closed.
fn accept_all(portal: &Portal) {
    while let Ok(offer) = portal.offer() {
        if let Ok(mut channel) = offer.accept(&[]) {
            std::thread::spawn(move || while let Ok(Some(_)) = channel.next() {});
        }
    }
}

/// Waits until the log of the tag is as is wanted; without a log, it is not.
fn wait(
    portal: &Portal,
    tag: u64,
    until: Option<Instant>,
    is_done: impl Fn(&ibmsg::publish::LogState) -> bool,
) -> bool {
    loop {
        if portal.log(tag).is_ok_and(|state| is_done(&state)) {
            return true;
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}

pub(crate) fn publish(out: Out, publish: &Publish) -> Result<(), Failure> {
    let what = format!("portal {}", publish.portal);
    let failure = |error: Error| Failure::of(&what, &error);
    let portal = Arc::new(Portal::bind(&publish.portal).map_err(failure)?);
    let terms = LogTerms {
        entries: publish.entries,
        bytes: publish.bytes,
        policy: match publish.slow {
            PolicyName::Wait => Policy::Wait,
            PolicyName::Drop => Policy::Drop,
            PolicyName::Close => Policy::Close,
        },
    };
    let tag = publish.tag;
    portal.set_log(Some(tag), &terms).map_err(failure)?;
    let accepting = portal.clone();
    std::thread::spawn(move || accept_all(&accepting));
    let until = publish.timeout.map(|time| Instant::now() + time);
    let late = |why: &str| Failure::new(TIME, &what, why);
    if !wait(&portal, tag, until, |state| {
        state.subscribers >= publish.subscribers
    }) {
        return Err(late("not as many programs have subscribed"));
    }
    if publish.messages.is_empty() {
        for line in std::io::stdin().lock().split(b'\n') {
            let line = line.map_err(|e| Failure::new(REFUSED, "standard input", e))?;
            portal.publish(tag, &line).map_err(failure)?;
        }
    } else {
        for message in &publish.messages {
            portal.publish(tag, message.as_bytes()).map_err(failure)?;
        }
    }
    let state = portal.log(tag).map_err(failure)?;
    out.say(
        format_args!("published up to position {}", state.next),
        json!({
            "tag": tag, "log": format!("{:016x}", state.log), "first": state.first, "next": state.next,
            "subscribers": state.subscribers,
        }),
    )?;
    if publish.keep {
        loop {
            std::thread::sleep(Duration::from_secs(3600));
        }
    }
    // What is on its way when the command ends is still delivered.
    match wait(&portal, tag, until, |state| state.slowest >= state.next) {
        true => Ok(()),
        false => Err(late("a subscriber does not have everything")),
    }
}

/// What a command reads of some logs.
struct Reading<'a> {
    out: Out,
    subscribe: &'a Subscribe,
    followers: HashMap<u64, Follower>,
    left: u64,
}

/// Why reading stops.
enum Stop {
    /// As many entries were read as are wanted.
    Done,
    /// The channel has ended, with an errno or 0.
    Closed(i32),
}

pub(crate) fn subscribe(out: Out, subscribe: &Subscribe) -> Result<(), Failure> {
    let follower = |tag: &u64| (*tag, Follower::new(*tag));
    let mut reading = Reading {
        out,
        subscribe,
        followers: subscribe.tags.iter().map(follower).collect(),
        left: subscribe.count.unwrap_or(u64::MAX),
    };
    let until = subscribe.target.timeout.map(|time| Instant::now() + time);
    let mut is_first = true;
    while reading.left > 0 {
        let target = &subscribe.target;
        let what = format!("portal {} of session {}", target.portal, target.session);
        let connect = Connect::new(&target.session, &target.portal).timeout(target.timeout);
        let mut channel = match connect.open() {
            Ok(channel) => channel,
            // The publisher may come back.
            Err(_) if !is_first && until.is_none_or(|until| Instant::now() < until) => {
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(error) => return Err(Failure::of(what, &error)),
        };
        match reading.read(&mut channel, &what)? {
            Stop::Done => return Ok(()),
            Stop::Closed(_) if subscribe.reconnect => is_first = false,
            // The publisher is done.
            Stop::Closed(0 | ESHUTDOWN) => return Ok(()),
            Stop::Closed(errno) => return Err(Failure::of(what, &Error::Closed(errno))),
        }
    }
    Ok(())
}

impl Reading<'_> {
    /// Reads from a channel as long as it goes.
    fn read(&mut self, channel: &mut Channel, what: &str) -> Result<Stop, Failure> {
        for follower in self.followers.values() {
            let begin = match follower.begin() {
                Begin::First if self.subscribe.next => Begin::Next,
                begin => begin,
            };
            ask(channel, follower.tag(), begin, what)?;
        }
        while let Some(message) = channel.next().map_err(|e| Failure::of(what, &e))? {
            if let Some(follower) = tag(&message).and_then(|tag| self.followers.get_mut(&tag)) {
                follower.saw(&message);
            }
            if let Some(stop) = self.message(channel, message, what)? {
                return Ok(stop);
            }
        }
        Ok(Stop::Closed(0))
    }

    fn message(
        &mut self,
        channel: &Channel,
        message: Message,
        what: &str,
    ) -> Result<Option<Stop>, Failure> {
        match message {
            Message::Published {
                tag,
                position,
                body,
            } => {
                let (name, text) = content(&body);
                let document = json!({"tag": tag, "position": position, name: text});
                self.out.message(&body, document)?;
                self.left -= 1;
                if self.left == 0 {
                    return Ok(Some(Stop::Done));
                }
            }
            Message::Lost { tag, first, count } => {
                let why = format!("{count} entries are lost, from position {first} on");
                match self.out.json {
                    true => {
                        let document = json!({"tag": tag, "first": first, "lost": count});
                        self.out.say("", document)?;
                    }
                    false => Failure::new(REFUSED, format_args!("tag {tag}"), why).print(false),
                }
            }
            Message::Unsubscribed {
                tag,
                position,
                status,
            } => {
                // The channel is of no use when the portal is closed.
                if status == ESHUTDOWN {
                    return Ok(Some(Stop::Closed(status)));
                }
                if self.subscribe.reconnect && status == ENOBUFS {
                    let begin = self.followers.get(&tag).map(Follower::begin);
                    ask(channel, tag, begin.unwrap_or(Begin::First), what)?;
                    return Ok(None);
                }
                let why = format!(
                    "the subscription has ended at position {position}: {}",
                    name(status)
                );
                return Err(Failure::new(REFUSED, format_args!("tag {tag}"), why));
            }
            Message::Closed { status, .. } => return Ok(Some(Stop::Closed(status))),
            _ => {}
        }
        Ok(None)
    }
}

/// Subscribes. If the publisher has closed the channel meanwhile, the channel says so when it is read.
fn ask(channel: &Channel, tag: u64, begin: Begin, what: &str) -> Result<(), Failure> {
    match channel.subscribe(tag, begin, false) {
        Err(error) if error.errno() != Some(EPIPE) => Err(Failure::of(what, &error)),
        _ => Ok(()),
    }
}

/// The tag of a message about a log.
fn tag(message: &Message) -> Option<u64> {
    match *message {
        Message::Subscribed { tag, .. }
        | Message::Published { tag, .. }
        | Message::Lost { tag, .. } => Some(tag),
        _ => None,
    }
}
