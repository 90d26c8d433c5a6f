// SPDX-License-Identifier: GPL-2.0

//! Messages without answers, whose outcome is known nevertheless.
//!
//! `receipts listen PORTAL` prints the tags of the messages of one program. `receipts send SESSION PORTAL COUNT` sends
//! as many, a millisecond apart, and prints what has become of them.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use ibmsg::{Channel, Connect, Message, Outgoing, Portal};

const USAGE: &str = "usage: receipts listen PORTAL | send SESSION PORTAL COUNT";
const ECANCELED: i32 = 125;
const EPIPE: i32 = 32;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn listen(portal: &str) -> Result<()> {
    let mut channel = Portal::bind(portal)?.offer()?.accept(&[])?;
    while let Some(message) = channel.next()? {
        if let Message::Msg { tag, .. } = message {
            println!("{tag}");
        }
    }
    Ok(())
}

/// What has become of messages.
#[derive(Default)]
struct Outcomes {
    delivered: u64,
    /// The other program has not received them, and never will: they can be sent again.
    not_delivered: u64,
    /// They may have been delivered.
    unknown: u64,
}

/// Reads receipts until the end. It has a thread, as receipts that are not read use up the room for messages.
fn outcomes(mut channel: Channel) -> Result<Outcomes> {
    let mut outcomes = Outcomes::default();
    while let Some(message) = channel.next()? {
        if let Message::Receipt { status, .. } = message {
            *match status {
                0 => &mut outcomes.delivered,
                ECANCELED => &mut outcomes.not_delivered,
                _ => &mut outcomes.unknown,
            } += 1;
        }
    }
    Ok(outcomes)
}

fn send(session: &str, portal: &str, count: u64) -> Result<()> {
    let channel = Connect::new(session, portal).open()?;
    let reader = channel.share()?;
    let reader = thread::spawn(move || outcomes(reader));
    let mut sent = 0;
    while sent < count {
        let body = format!("message {sent}");
        let message = Outgoing::new(body.as_bytes()).tag(sent).receipt(true);
        match channel.send_with(&message) {
            Ok(()) => sent += 1,
            // The other program has gone: this message was not sent.
            Err(error) if error.errno() == Some(EPIPE) => break,
            Err(error) => return Err(error.into()),
        }
        thread::sleep(Duration::from_millis(1));
    }
    // The end comes after all receipts.
    channel.shut_down()?;
    let outcomes = reader.join().map_err(|_| "a thread has panicked")??;
    println!(
        "{sent} sent, {} delivered, {} not delivered, {} unknown",
        outcomes.delivered, outcomes.not_delivered, outcomes.unknown
    );
    Ok(())
}

fn run(words: &[&str]) -> Result<bool> {
    match words {
        ["listen", portal] => listen(portal)?,
        ["send", session, portal, count] => send(session, portal, count.parse()?)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
