// SPDX-License-Identifier: GPL-2.0

//! Requests and replies of many threads on many channels.
//!
//! `threads serve PORTAL CHANNELS` accepts channels and answers each request with its content backwards, until all
//! are closed. `threads ask SESSION PORTAL CHANNELS THREADS CALLS` opens channels, on each of which threads make calls.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use ibmsg::{Channel, Connect, Message, Portal};

const USAGE: &str =
    "usage: threads serve PORTAL CHANNELS | ask SESSION PORTAL CHANNELS THREADS CALLS";
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(30));

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Answers the requests of one channel until it ends.
fn answer(mut channel: Channel) -> Result<()> {
    while let Some(message) = channel.next()? {
        if let Message::Request { id, mut body, .. } = message {
            body.reverse();
            channel.reply(id, &body)?;
        }
    }
    Ok(())
}

fn serve(portal: &str, channels: usize) -> Result<()> {
    let portal = Portal::bind(portal)?;
    let mut threads = Vec::new();
    for _ in 0..channels {
        let channel = portal.offer()?.accept(&[])?;
        threads.push(thread::spawn(|| answer(channel)));
    }
    for thread in threads {
        thread.join().map_err(|_| "a thread has panicked")??;
    }
    Ok(())
}

/// Makes calls. Each reply must be that to its own request.
fn calls(channel: &Channel, thread: usize, count: usize) -> Result<()> {
    for number in 0..count {
        let request = format!("{thread} {number} {}", ".".repeat(number % 100));
        let reply = channel.call(request.as_bytes(), TIMEOUT)?;
        if !reply.iter().rev().eq(request.as_bytes()) {
            return Err(format!("{request}: the reply to another request").into());
        }
    }
    Ok(())
}

fn ask(session: &str, portal: &str, [channels, threads, count]: [usize; 3]) -> Result<()> {
    let open = |_| Connect::new(session, portal).timeout(TIMEOUT).open();
    let channels = (0..channels).map(open).collect::<ibmsg::Result<Vec<_>>>()?;
    let begun = Instant::now();
    thread::scope(|scope| {
        let mut all = Vec::new();
        for channel in &channels {
            for thread in 0..threads {
                all.push(scope.spawn(move || calls(channel, thread, count)));
            }
        }
        for thread in all {
            thread.join().map_err(|_| "a thread has panicked")??;
        }
        Result::Ok(())
    })?;
    let made = channels.len() * threads * count;
    println!(
        "{made} calls, {:.0} each second",
        made as f64 / begun.elapsed().as_secs_f64()
    );
    Ok(())
}

fn run(words: &[&str]) -> Result<bool> {
    match words {
        ["serve", portal, channels] => serve(portal, channels.parse()?)?,
        ["ask", session, portal, channels, threads, count] => ask(
            session,
            portal,
            [channels.parse()?, threads.parse()?, count.parse()?],
        )?,
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
