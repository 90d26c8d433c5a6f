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
/// Memory of a call that it has to answer.
const CALL: u64 = 24;
/// Events of paths are wanted.
const WANT_PATHS: u32 = 1;
/// The event of a planned stop is wanted.
const WANT_DRAIN: u32 = 2;

/// What a program has said about one end of a channel.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// What it receives.
    pub(crate) window: Window,
    /// What it may have unacknowledged.
    pub(crate) limits: SendLimits,
    /// How long its messages may take, in milliseconds; 0: as long as they like.
    pub(crate) timeout_ms: u32,
    /// Whether it wants the events of paths.
    pub(crate) wants_paths: bool,
    /// Whether it wants the event of a planned stop.
    pub(crate) wants_drain: bool,
}

impl Terms {
    /// Takes `struct ibmsg_opts`.
    ///
    /// # Errors
    ///
    /// [`EINVAL`]
    pub(crate) fn field(fields: &mut Bytes<'_>) -> Result<Self> {
        let mut or = |default| match fields.u32() {
            Ok(0) => Ok(default),
            said => said,
        };
        let messages = or(MESSAGES)?;
        let bytes = or(0)?;
        let max_message = or(MAX_MESSAGE)?;
        let calls = or(CALLS)?;
        let calls = u16::try_from(calls).map_err(|_| EINVAL)?;
        let send_messages = or(MESSAGES)?;
        let send_bytes = or(BYTES)?;
        let (timeout_ms, events) = (fields.u32()?, fields.flags(WANT_PATHS | WANT_DRAIN)?);
        let bytes = match bytes {
            0 => BYTES.max(cost(max_message)),
            bytes => bytes,
        };
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
            wants_paths: events & WANT_PATHS != 0,
            wants_drain: events & WANT_DRAIN != 0,
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
            wants(self.wants_paths, WANT_PATHS) | wants(self.wants_drain, WANT_DRAIN),
        ]
    }

    /// The memory that may wait in this end.
    pub(crate) fn memory(&self) -> u64 {
        // One message may always wait.
        let send = self.limits.bytes.max(cost(MAX_MESSAGE));
        let sent = u64::from(self.limits.messages) * SENT;
        let calls = u64::from(self.window.calls()) * CALL;
        u64::from(self.window.bytes()) + u64::from(send) + sent + calls
    }
}
