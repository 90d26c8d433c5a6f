// SPDX-License-Identifier: GPL-2.0

//! Copies a file over a channel.
//!
//! `copy receive PORTAL FILE` writes what one program sends. `copy send SESSION PORTAL FILE` sends the file in messages
//! of 60 KiB, and then its SHA-256 as a request, which the receiver answers with an error if it has got another one. The
//! sender needs no pace of its own: it waits in `send` while the receiver, which has not read what is there, has no
//! credits left.

use std::fs::File;
use std::io::{Read, Write};
use std::process::ExitCode;

use ibmsg::{Connect, Message, Portal};
use sha2::{Digest, Sha256};

const USAGE: &str = "usage: copy receive PORTAL FILE | send SESSION PORTAL FILE";
const BLOCK: usize = 60 << 10;
const EIO: i32 = 5;
const EBADMSG: i32 = 74;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn receive(portal: &str, name: &str) -> Result<()> {
    let portal = Portal::bind(portal)?;
    let mut file = File::create(name)?;
    let mut channel = portal.offer()?.accept(&[])?;
    let (mut sum, mut bytes) = (Sha256::new(), 0);
    let mut written = Ok(());
    while let Some(message) = channel.next()? {
        match message {
            Message::Msg { body, .. } => {
                sum.update(&body);
                bytes += body.len();
                written = written.and_then(|()| file.write_all(&body));
            }
            Message::Request { id, body, .. } => {
                let is_right = body == sum.finalize_reset()[..];
                // Not before the disk has it.
                let stored = written.and_then(|()| file.sync_all());
                let errno = match (is_right, &stored) {
                    (true, Ok(())) => 0,
                    (false, _) => EBADMSG,
                    (_, Err(error)) => error.raw_os_error().unwrap_or(EIO),
                };
                channel.reply_error(id, errno, &[])?;
                stored?;
                if is_right {
                    println!("{bytes} bytes received");
                    return Ok(());
                }
                return Err("the checksum is another one".into());
            }
            _ => {}
        }
    }
    Err("the sender has gone before the end of the file".into())
}

fn send(session: &str, portal: &str, name: &str) -> Result<()> {
    let mut file = File::open(name)?;
    let channel = Connect::new(session, portal).open()?;
    let (mut sum, mut bytes) = (Sha256::new(), 0);
    let mut block = vec![0; BLOCK];
    loop {
        let len = file.read(&mut block)?;
        if len == 0 {
            break;
        }
        sum.update(&block[..len]);
        channel.send(&block[..len])?;
        bytes += len;
    }
    channel.call(&sum.finalize(), None)?;
    println!("{bytes} bytes sent");
    Ok(())
}

fn run(words: &[&str]) -> Result<bool> {
    match words {
        ["receive", portal, file] => receive(portal, file)?,
        ["send", session, portal, file] => send(session, portal, file)?,
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
