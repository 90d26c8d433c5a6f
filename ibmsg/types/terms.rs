// SPDX-License-Identifier: GPL-2.0

//! The terms of one end of a channel.

use ibmsg_proto::{
    limits::{
        cost,
        MAX_CALLS,
        MAX_MESSAGE,
        MAX_QUEUE,
        MAX_WINDOW_BYTES, //
    },
    publish::PublishTerms,
    send::SendLimits,
    window::Window, //
};
use kernel::prelude::*;

use super::Bytes;

/// Messages in either direction, unless the program says otherwise.
const MESSAGES: u32 = 256;
/// Bytes in either direction, unless the program says otherwise.
const BYTES: u32 = 256 << 10;
/// Calls, unless the program says otherwise.
const CALLS: u32 = 64;
/// Memory of a receipt that the program has not read, and of a call that it makes. There is one of each at most
/// for each message that may be unacknowledged.
const SENT: u64 = 128;
/// The most subscriptions of a channel.
pub(crate) const SUBSCRIPTIONS: u16 = 64;
/// Memory of a subscription.
const SUBSCRIPTION: u64 = 256;
/// Memory of a call that it has to answer.
const CALL: u64 = 24;
/// Events of paths are wanted.
const WANT_PATHS: u32 = 1;
/// The event of a planned stop is wanted.
const WANT_DRAIN: u32 = 2;
/// The event of a key that is of no use any more is wanted.
const WANT_KEY: u32 = 4;
/// Messages with a body are wanted.
const WANT_BODIES: u32 = 8;

/// What a program has said about one end of a channel.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// What it receives.
    pub(crate) window: Window,
    /// What it may have unacknowledged.
    pub(crate) limits: SendLimits,
    /// How long its messages may take, in milliseconds; 0: as long as they like.
    pub(crate) timeout_ms: u32,
    /// What it wants to be told of.
    pub(crate) wants: Wants,
}

/// What a program is not told of unless it wants that.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wants {
    /// A path is lost, and there is one again.
    pub(crate) paths: bool,
    /// The server is about to be stopped.
    pub(crate) drain: bool,
    /// The key of the session is of no use any more.
    pub(crate) key: bool,
    /// Messages with a body.
    pub(crate) bodies: bool,
}

impl Terms {
    /// Takes `struct ibmsg_opts`.
    ///
    /// # Errors
    ///
    /// [`EINVAL`]
    pub(crate) fn field(fields: &mut Bytes<'_>) -> Result<Self> {
        let mut said = [0; 7];
        for place in &mut said {
            *place = fields.u32()?;
        }
        let events = fields.flags(WANT_PATHS | WANT_DRAIN | WANT_KEY | WANT_BODIES)?;
        let wants = Wants {
            paths: events & WANT_PATHS != 0,
            drain: events & WANT_DRAIN != 0,
            key: events & WANT_KEY != 0,
            bodies: events & WANT_BODIES != 0,
        };
        let mut terms = Self::new(said, wants)?;
        let publishing = PublishTerms::new(SUBSCRIPTIONS);
        terms.window = terms.window.with_publishing(publishing);
        Ok(terms)
    }

    /// Takes the fields of that, without `events`. 0 stands for the default.
    ///
    /// # Errors
    ///
    /// [`EINVAL`]
    pub(crate) fn new(said: [u32; 7], wants: Wants) -> Result<Self> {
        let or = |said, default| if said == 0 { default } else { said };
        let [messages, bytes, max_message, calls, send_messages, send_bytes, timeout_ms] = said;
        let messages = or(messages, MESSAGES);
        let max_message = or(max_message, MAX_MESSAGE);
        let calls = u16::try_from(or(calls, CALLS)).map_err(|_| EINVAL)?;
        let send_messages = or(send_messages, MESSAGES);
        let send_bytes = or(send_bytes, BYTES);
        let bytes = or(bytes, BYTES.max(cost(max_message)));
        if send_messages > MAX_QUEUE || send_bytes > MAX_WINDOW_BYTES || calls > MAX_CALLS {
            return Err(EINVAL);
        }
        Ok(Self {
            window: Window::new(messages, bytes, max_message, calls).map_err(|_| EINVAL)?,
            limits: SendLimits {
                messages: send_messages,
                bytes: send_bytes,
            },
            timeout_ms,
            wants,
        })
    }

    /// `struct ibmsg_opts`.
    pub(crate) fn as_field(&self) -> [u32; 8] {
        let wants = |is_wanted, flag| if is_wanted { flag } else { 0 };
        [
            self.window.messages(),
            self.window.bytes(),
            self.window.max_message(),
            u32::from(self.window.calls()),
            self.limits.messages,
            self.limits.bytes,
            self.timeout_ms,
            wants(self.wants.paths, WANT_PATHS)
                | wants(self.wants.drain, WANT_DRAIN)
                | wants(self.wants.key, WANT_KEY)
                | wants(self.wants.bodies, WANT_BODIES),
        ]
    }

    /// The memory that may wait in this end.
    pub(crate) fn memory(&self) -> u64 {
        // One message may always wait.
        let send = self.limits.bytes.max(cost(MAX_MESSAGE));
        let sent = u64::from(self.limits.messages) * SENT;
        let calls = u64::from(self.window.calls()) * CALL;
        let publishing = self.window.publishing();
        let subscriptions = publishing.map_or(0, |it| u64::from(it.subscriptions()));
        let subscriptions = subscriptions * SUBSCRIPTION;
        u64::from(self.window.bytes()) + u64::from(send) + sent + calls + subscriptions
    }
}
