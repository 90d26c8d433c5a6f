// SPDX-License-Identifier: GPL-2.0

//! What a module says about its channels.

use kernel::prelude::*;

use crate::types::{
    Terms,
    Wants, //
};

/// Where the handlers of a channel run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HandlerContext {
    /// In a work item: handlers may sleep. While they do, messages wait, and then the sender.
    #[default]
    WorkItem,
    /// Where the frame arrives, which is a softirq for channels of other machines, and a work item for those of this
    /// one: handlers must not sleep, and should be short, as all channels of the connection wait for them. What does
    /// not arrive in a frame, such as a time that is over, comes by a work item, and so does the rest of a long batch;
    /// handlers must not rely on either.
    Arrival,
}

/// The terms of one end of a channel. 0 stands for the default. Documentation/messages.md, "Flow control and limits",
/// explains them.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChannelOptions {
    /// The most messages that may wait for the receiver; default 256, at most 65536.
    pub recv_msgs: u32,
    /// The most bytes of them, each message with 64 more; default 262144, at most 2^30.
    pub recv_bytes: u32,
    /// The longest message that the receiver takes, in bytes; default and greatest 65536.
    pub max_message: u32,
    /// The most requests that may be unanswered; default 64, at most 4096.
    pub recv_calls: u32,
    /// The most messages that were sent, and are not in the queue of the other kernel; default 256, at most 4096. A
    /// module that only replies never lacks room if this is at least `recv_calls`, and `send_bytes` at least the same
    /// number times the longest reply with 64 more bytes.
    pub send_msgs: u32,
    /// The most bytes of them, as for `recv_bytes`.
    pub send_bytes: u32,
    /// The time limit of messages and calls that have none of their own, in milliseconds; 0: none.
    pub timeout_ms: u32,
    /// [`Receiver::path`](super::Receiver::path) is called.
    pub wants_paths: bool,
    /// [`Receiver::draining`](super::Receiver::draining) is called.
    pub wants_drain: bool,
    /// [`Receiver::key_revoked`](super::Receiver::key_revoked) is called.
    pub wants_key: bool,
    /// Where the handlers run.
    pub context: HandlerContext,
}

impl ChannelOptions {
    /// For a session.
    ///
    /// # Errors
    ///
    /// [`EINVAL`]
    pub(super) fn terms(&self) -> Result<Terms> {
        let said = [
            self.recv_msgs,
            self.recv_bytes,
            self.max_message,
            self.recv_calls,
            self.send_msgs,
            self.send_bytes,
            self.timeout_ms,
        ];
        Terms::new(
            said,
            Wants {
                paths: self.wants_paths,
                drain: self.wants_drain,
                key: self.wants_key,
                // A module has no memory on its channels.
                bodies: false,
            },
        )
    }
}

/// What a module says when it binds a portal.
#[derive(Clone, Copy, Debug, Default)]
pub struct PortalOptions {
    /// Of the channels that it accepts.
    pub channels: ChannelOptions,
    /// The most offers that may wait; 0: 128; at most 4096.
    pub backlog: u32,
    /// The most channels at a time, also of those that are offered; 0: 256. More are refused with [`EDQUOT`] before the
    /// service is asked. All modules share one budget of memory, so that this is what keeps the clients of one portal
    /// from using up that of the others; each channel is charged for what its terms allow to wait. One host can still
    /// have all channels of the portal, unless the operator limits the channels of a host.
    pub max_channels: u32,
    /// The portal takes programs of machines that have not proved that they have a key, if the operator's rule allows it.
    pub takes_unauthenticated: bool,
}

impl PortalOptions {
    /// The most channels at a time.
    pub(super) fn most_channels(&self) -> u32 {
        match self.max_channels {
            0 => 256,
            max => max,
        }
    }
}

/// What a module says when it opens a channel.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectOptions<'a> {
    /// Of the channel.
    pub channel: ChannelOptions,
    /// Private data for the portal, at most 256 bytes.
    pub data: &'a [u8],
    /// How long to wait for the portal, in milliseconds; 0: without limit.
    pub timeout_ms: u32,
}

/// What a module says about a message.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendOptions {
    /// For the other end's use, and in [`Receiver::outcome`](super::Receiver::outcome).
    pub tag: u64,
    /// The time within which the other kernel is to have the message, in milliseconds; 0: the channel's.
    pub timeout_ms: u32,
    /// [`Receiver::outcome`](super::Receiver::outcome) is called in any case. Otherwise only if a time limit has
    /// expired.
    pub wants_outcome: bool,
    /// The message may wait for others that follow, to share a frame with them: up to 1 ms, or until a message without
    /// this is sent, or a frame is full. [`ChannelRef::flush`](super::ChannelRef::flush) sends what waits.
    pub more: bool,
}
