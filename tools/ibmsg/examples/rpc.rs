// SPDX-License-Identifier: GPL-2.0

//! A service that answers requests in the order in which it has the answers, and its client, with tokio.
//!
//! `rpc serve PORTAL` answers a request of `MILLISECONDS TEXT` with the text, after that time. `rpc ask SESSION PORTAL
//! CALLS` makes calls at the same time, of which the last ones take the shortest time. `rpc drop SESSION PORTAL` makes
//! a call that takes an hour, drops it, and makes another one on the same channel.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use ibmsg::tokio::{Channel, Portal};
use ibmsg::{Connect, Message};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const USAGE: &str = "usage: rpc serve PORTAL | ask SESSION PORTAL CALLS | drop SESSION PORTAL";
const EINVAL: i32 = 22;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

async fn answer(channel: Channel, id: u64, request: Vec<u8>) -> ibmsg::Result<()> {
    let text = String::from_utf8_lossy(&request);
    let Some((Ok(time), text)) = text
        .split_once(' ')
        .map(|(time, text)| (time.parse(), text))
    else {
        return channel.reply_error(id, EINVAL, b"no time").await;
    };
    sleep(Duration::from_millis(time)).await;
    channel.reply(id, text.as_bytes()).await
}

/// Serves a client until it closes its channel, or dies: nobody needs the rest of its answers then.
async fn serve(channel: Channel) -> ibmsg::Result<()> {
    let mut answers = JoinSet::new();
    while let Some(message) = channel.receive().await? {
        if let Message::Request { id, body, .. } = message {
            answers.spawn(answer(channel.clone(), id, body));
        }
        while answers.try_join_next().is_some() {}
    }
    println!(
        "a channel has ended, {} requests are dropped",
        answers.len()
    );
    Ok(())
}

async fn listen(portal: &str) -> Result<()> {
    let portal = Portal::bind(portal)?;
    loop {
        let channel = portal.accept().await?;
        tokio::spawn(async {
            if let Err(error) = serve(channel).await {
                eprintln!("{error}");
            }
        });
    }
}

/// Makes calls at the same time. Each reply must be that to its own request.
async fn ask(channel: Channel, calls: usize) -> Result<()> {
    let replied = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for number in 0..calls {
        let (channel, replied) = (channel.clone(), replied.clone());
        tasks.spawn(async move {
            let text = format!("call {number}");
            let request = format!("{} {text}", 10 * (calls - number));
            let reply = channel.call(request.as_bytes(), None).await?;
            if reply != text.as_bytes() {
                return Err(format!("{text}: the reply to another request").into());
            }
            let is_out_of_order = replied.fetch_add(1, Ordering::SeqCst) != number;
            Result::Ok(is_out_of_order)
        });
    }
    let mut out_of_order = 0;
    while let Some(task) = tasks.join_next().await {
        out_of_order += usize::from(task??);
    }
    println!("{calls} calls, {out_of_order} replies out of order");
    Ok(())
}

async fn drop_one(channel: Channel) -> Result<()> {
    // The future is dropped; the service goes on.
    let long = timeout(
        Duration::from_millis(100),
        channel.call(b"3600000 late", None),
    );
    println!("the first call: {}", long.await.is_ok());
    let reply = channel.call(b"0 in time", None).await?;
    println!("the second call: {}", String::from_utf8_lossy(&reply));
    match channel.call(b"nonsense", None).await {
        Err(ibmsg::Error::Answered(EINVAL, why)) => {
            println!("the third call: {}", String::from_utf8_lossy(&why));
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
}

async fn run(words: &[&str]) -> Result<bool> {
    let connect = |session, portal| Channel::connect(Connect::new(session, portal));
    match words {
        ["serve", portal] => listen(portal).await?,
        ["ask", session, portal, calls] => {
            ask(connect(session, portal).await?, calls.parse()?).await?;
        }
        ["drop", session, portal] => drop_one(connect(session, portal).await?).await?,
        _ => return Ok(false),
    }
    Ok(true)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words.iter().map(String::as_str).collect::<Vec<_>>()).await {
        Ok(true) => {}
        Ok(false) => {
            eprintln!("{USAGE}");
            std::process::exit(2);
        }
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
    Ok(())
}
