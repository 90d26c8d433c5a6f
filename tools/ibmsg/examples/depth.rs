// SPDX-License-Identifier: GPL-2.0

//! Calls as commands of io_uring: `depth SESSION PORTAL DEPTH CALLS` has that many in flight all the time, to a service
//! that answers with the content of the request backwards, such as `threads serve` and `epoll_server`.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ibmsg::uring::Ring;
use ibmsg::Connect;

const USAGE: &str = "usage: depth SESSION PORTAL DEPTH CALLS";
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(30));

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn run(session: &str, portal: &str, depth: u32, calls: u32) -> Result<()> {
    let channel = Connect::new(session, portal).timeout(TIMEOUT).open()?;
    let mut ring = Ring::new(depth, 4096)?;
    let mut requests = HashMap::new();
    let begun = Instant::now();
    let mut made = 0;
    loop {
        while made < calls && requests.len() < depth as usize {
            let request = format!("call {made}");
            let call = ring.call(&channel, request.clone().into(), TIMEOUT)?;
            requests.insert(call, request);
            made += 1;
        }
        let Some(done) = ring.wait()? else {
            break;
        };
        let request = requests.remove(&done.call).ok_or("an unknown call")?;
        if !done.result?.iter().rev().eq(request.as_bytes()) {
            return Err(format!("{request}: the reply to another request").into());
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{calls} calls, {:.0} each second",
        f64::from(calls) / seconds
    );
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [session, portal, depth, calls] = &words[..] else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let (Ok(depth), Ok(calls)) = (depth.parse(), calls.parse()) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(session, portal, depth, calls) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
