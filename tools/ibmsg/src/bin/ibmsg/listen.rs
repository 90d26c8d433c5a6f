// SPDX-License-Identifier: GPL-2.0

//! `listen`

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use ibmsg::{Channel, Message, Portal};
use serde_json::{json, Value};

use crate::cli::Listen;
use crate::out::{content, Failure, Out};

const EOPNOTSUPP: i32 = 95;

pub(crate) fn run(out: Out, listen: &Listen) -> Result<(), Failure> {
    let what = format!("portal {}", listen.portal);
    let failure = |error: ibmsg::Error| Failure::of(&what, &error);
    let portal = Portal::bind(&listen.portal).map_err(failure)?;
    let left = Arc::new(AtomicU64::new(listen.count.unwrap_or(u64::MAX)));
    if listen.count == Some(0) {
        return Ok(());
    }
    loop {
        let offer = portal.offer().map_err(failure)?;
        let session = offer.session.clone();
        // A program that does not wait any more is none to serve.
        let Ok(channel) = offer.accept(&[]) else {
            continue;
        };
        let number = channel.number().unwrap_or(0);
        if let Err(error) = listen.waiting.set(&channel) {
            failure(error).print(out.json);
        }
        let serving = Serving {
            out,
            echo: listen.echo,
            left: left.clone(),
            session,
            number,
        };
        std::thread::spawn(move || serving.serve(channel));
    }
}

/// A channel, and what to do with its messages.
struct Serving {
    out: Out,
    echo: bool,
    left: Arc<AtomicU64>,
    session: String,
    number: u32,
}

impl Serving {
    fn serve(&self, mut channel: Channel) {
        loop {
            let result = match channel.next() {
                Ok(Some(message)) => self.message(&mut channel, message),
                Ok(None) => return,
                Err(error) => Err(self.failure(&error)),
            };
            if let Err(failure) = result {
                failure.print(self.out.json);
                return;
            }
        }
    }

    fn failure(&self, error: &ibmsg::Error) -> Failure {
        Failure::of(format!("channel {}", self.number), error)
    }

    fn document(&self, kind: &str, tag: u64, body: &[u8]) -> Value {
        let (name, content) = content(body);
        json!({
            "session": self.session, "channel": self.number, "kind": kind, "tag": tag, name: content,
        })
    }

    fn message(&self, channel: &mut Channel, message: Message) -> Result<(), Failure> {
        match message {
            Message::Msg { tag, body, .. } => {
                self.out
                    .message(&body, self.document("message", tag, &body))?;
                if self.echo {
                    let sent = channel.send_with(&ibmsg::Outgoing::new(&body).tag(tag));
                    self.even_closed(sent)?;
                }
            }
            Message::Request { id, tag, body, .. } => {
                self.out
                    .message(&body, self.document("request", tag, &body))?;
                let sent = match self.echo {
                    true => channel.reply(id, &body),
                    false => channel.reply_error(id, EOPNOTSUPP, &[]),
                };
                self.even_closed(sent)?;
            }
            // It writes no messages that have any, and subscribes to nothing.
            _ => return Ok(()),
        }
        self.one_less(channel);
        Ok(())
    }

    /// The other program may have gone; what it has sent before is still printed.
    fn even_closed(&self, sent: ibmsg::Result<()>) -> Result<(), Failure> {
        const EPIPE: i32 = 32;
        match sent {
            Err(error) if error.errno() == Some(EPIPE) => Ok(()),
            result => result.map_err(|error| self.failure(&error)),
        }
    }

    /// Ends the command after the last message that it waits for.
    fn one_less(&self, channel: &mut Channel) {
        if self.left.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        // What was answered is still delivered.
        if channel.shut_down().is_ok() {
            while let Ok(Some(_)) = channel.next() {}
        }
        std::process::exit(0);
    }
}
