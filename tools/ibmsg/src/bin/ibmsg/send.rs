// SPDX-License-Identifier: GPL-2.0

//! `send` and `call`

use std::io::BufRead;

use ibmsg::words::{meaning, Doing};
use ibmsg::{Channel, Connect, Error, Message, Outgoing};
use serde_json::json;

use crate::cli::{Call, Send, Target};
use crate::out::{content, Failure, Out, REFUSED, TIME};

const ETIMEDOUT: i32 = 110;

fn open(target: &Target) -> Result<(Channel, String), Failure> {
    let what = format!("portal {} of session {}", target.portal, target.session);
    let connect = Connect::new(&target.session, &target.portal).timeout(target.timeout);
    let channel = connect.open().map_err(|error| {
        let failure = Failure::of(&what, &error);
        match &error {
            Error::Refused { data, .. } if !data.is_empty() => failure.saying(data),
            _ => failure,
        }
    })?;
    Ok((channel, what))
}

/// What has become of the messages of a channel that has ended.
struct Outcome {
    undelivered: u64,
    code: u8,
    status: i32,
    queued: u64,
    taken: u64,
}

/// Reads what the kernel says about messages, until the end.
fn outcomes(out: Out, tells: bool, mut channel: Channel) -> Result<Outcome, Failure> {
    let mut outcome = Outcome {
        undelivered: 0,
        code: REFUSED,
        status: 0,
        queued: 0,
        taken: 0,
    };
    for message in channel.messages() {
        match message.map_err(|error| Failure::of("channel", &error))? {
            Message::Receipt { tag, status } => {
                if status != 0 {
                    outcome.undelivered += 1;
                    outcome.code = if status == ETIMEDOUT { TIME } else { REFUSED };
                }
                let words = match status {
                    0 => "delivered".to_owned(),
                    status => meaning(Doing::Undelivered, status),
                };
                if tells || status != 0 {
                    out.say(
                        format_args!("message {tag}: {words}"),
                        json!({"message": tag, "errno": status, "outcome": words}),
                    )?;
                }
            }
            Message::Closed {
                status,
                queued,
                taken,
            } => {
                (outcome.status, outcome.queued, outcome.taken) = (status, queued, taken);
            }
            // Nobody has asked for what the other program sends.
            _ => {}
        }
    }
    Ok(outcome)
}

pub(crate) fn send(out: Out, send: &Send) -> Result<(), Failure> {
    let (channel, what) = open(&send.target)?;
    let failure = |error: Error| Failure::of(&what, &error);
    // Receipts that are not read use up the room for messages.
    let reader = channel.share().map_err(failure)?;
    let tells = send.receipt;
    let reading = std::thread::spawn(move || outcomes(out, tells, reader));
    let mut sent = 0;
    let mut write = |body: &[u8]| {
        sent += 1;
        let message = Outgoing::new(body).tag(sent).receipt(tells);
        channel.send_with(&message.timeout(send.target.timeout))
    };
    let mut written = Ok(());
    if send.messages.is_empty() {
        for line in std::io::stdin().lock().split(b'\n') {
            let line = line.map_err(|e| Failure::new(REFUSED, "standard input", e))?;
            written = write(&line);
            if written.is_err() {
                break;
            }
        }
    } else {
        written = send.messages.iter().try_for_each(|m| write(m.as_bytes()));
    }
    if written.is_err() {
        sent -= 1;
    }
    // The end says how many messages the other kernel has.
    channel.shut_down().map_err(failure)?;
    let outcome = match reading.join() {
        Ok(outcome) => outcome?,
        Err(_) => return Err(Failure::new(REFUSED, what, "reading has failed")),
    };
    if out.json {
        let document = json!({
            "sent": sent, "queued": outcome.queued, "read": outcome.taken, "undelivered": outcome.undelivered,
        });
        out.say("", document)?;
    }
    const EPIPE: i32 = 32;
    match written {
        // It says the same as the end, and less.
        Err(error) if error.errno() != Some(EPIPE) => return Err(failure(error)),
        Ok(()) if outcome.undelivered > 0 => {
            let why = format!(
                "{} of {sent} messages were not delivered for certain",
                outcome.undelivered
            );
            return Err(Failure::new(outcome.code, what, why));
        }
        Ok(()) if outcome.status == 0 && outcome.queued == sent => return Ok(()),
        _ => {}
    }
    let closed = Error::Closed(outcome.status);
    let why = format!(
        "{closed}; it had read {} messages, of {sent} that were sent",
        outcome.taken
    );
    Err(Failure::new(REFUSED, what, why))
}

pub(crate) fn call(out: Out, call: &Call) -> Result<(), Failure> {
    let (channel, what) = open(&call.target)?;
    let set = call.waiting.set(&channel);
    set.map_err(|error| Failure::of(&what, &error))?;
    match channel.call(call.message.as_bytes(), call.target.timeout) {
        Ok(answer) => {
            let (name, content) = content(&answer);
            out.message(&answer, json!({ name: content }))
        }
        Err(error) => {
            let failure = Failure::of(what, &error);
            Err(match &error {
                Error::Answered(_, data) if !data.is_empty() => failure.saying(data),
                _ => failure,
            })
        }
    }
}
