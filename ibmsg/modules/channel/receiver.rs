// SPDX-License-Identifier: GPL-2.0

//! The handlers of a channel.

use kernel::prelude::*;

use super::ChannelRef;
use crate::types::Body;

/// A request of the other end.
pub struct Request {
    /// For [`ChannelRef::reply`].
    pub id: u64,
    /// Chosen by the other end.
    pub tag: u64,
    /// The content.
    pub body: Body,
}

/// The reply of the other end to a call.
pub struct Reply {
    /// What the other end says: success, or an errno.
    pub status: Result,
    /// The content.
    pub body: Body,
}

/// The end of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed {
    /// `Ok`: the other end was closed, or its program died. Otherwise:
    ///
    /// - [`ECONNABORTED`]: the other kernel has lost the channel, or the session has ended,
    /// - [`ESHUTDOWN`]: the client's session was closed,
    /// - [`EACCES`]: the portal's rule no longer allows the session.
    pub reason: Result,
    /// How many messages of this end the other end has taken.
    pub taken: u64,
    /// How many the other kernel has queued.
    pub queued: u64,
}

/// The handlers of a channel.
///
/// # Context
///
/// That of [`ChannelOptions::context`](crate::ChannelOptions::context): in a work item, handlers may sleep; in
/// [`HandlerContext::Arrival`](crate::HandlerContext::Arrival) they must not. For one channel, no two handlers
/// run at a time. No lock of `ibmsg` is held: handlers may call everything of [`ChannelRef`].
///
/// A handler must not drop the [`Channel`](crate::Channel) or the [`Portal`](crate::Portal) that calls it, as that
/// waits for the handler; [`ChannelRef::close`] is for handlers. Nor may two handlers drop the channels of each other:
/// both would wait.
///
/// A receiver must not own its channel, or the portal that has accepted it: that is a reference cycle, and the handlers
/// would be called after the module was unloaded.
///
/// # Flow control
///
/// The other end gets the credits of a message back when its handler has returned. The content belongs to the
/// handler, which may keep or send it; what is kept is not counted any more.
pub trait Receiver: Send + Sync {
    /// A message without an answer has arrived, with a tag that the other end has chosen.
    fn message(&self, channel: &ChannelRef, tag: u64, body: Body) {
        let _ = (channel, tag, body);
    }

    /// A request has arrived. It is to be answered by [`ChannelRef::reply`], now or later. Without a handler, the answer
    /// is [`EOPNOTSUPP`]. If that cannot be sent, which the terms of the channel can rule out
    /// ([`ChannelOptions::send_msgs`](crate::ChannelOptions::send_msgs)), the channel is closed.
    fn request(&self, channel: &ChannelRef, request: Request) {
        if channel
            .reply(request.id, Err(EOPNOTSUPP), Body::new())
            .is_err()
        {
            channel.close();
        }
    }

    /// A call with this tag has ended: with a reply, or without one for one of these reasons:
    ///
    /// - [`ECANCELED`]: the request was not delivered, and will not be,
    /// - [`ECONNRESET`]: it was delivered; the channel was closed before the answer,
    /// - [`ETIMEDOUT`]: no answer in time; one that arrives later is dropped,
    /// - [`ECONNABORTED`]: nobody knows what has become of it.
    fn reply(&self, channel: &ChannelRef, tag: u64, reply: Result<Reply>) {
        let _ = (channel, tag, reply);
    }

    /// What has become of a message with this tag. `Ok`: the other kernel has queued it. Otherwise [`ECANCELED`]: it was
    /// not delivered; [`ETIMEDOUT`] or [`ECONNABORTED`]: unknown.
    fn outcome(&self, channel: &ChannelRef, tag: u64, outcome: Result) {
        let _ = (channel, tag, outcome);
    }

    /// There is room again after [`EAGAIN`], perhaps not enough for the longest message, or memory after [`ENOMEM`].
    fn room(&self, channel: &ChannelRef) {
        let _ = channel;
    }

    /// The channel has lost its connection, or has one again, if [`ChannelOptions::wants_paths`](crate::ChannelOptions::wants_paths).
    fn path(&self, channel: &ChannelRef, is_there: bool) {
        let _ = (channel, is_there);
    }

    /// The server of the session, which is this machine or the other one, is about to be stopped for about that many
    /// seconds, 0 if it is not known for how long, if
    /// [`ChannelOptions::wants_drain`](crate::ChannelOptions::wants_drain). Messages may wait until it is back.
    fn draining(&self, channel: &ChannelRef, seconds: u32) {
        let _ = (channel, seconds);
    }

    /// The key by which the machines of the session know each other is of no use any more, if
    /// [`ChannelOptions::wants_key`](crate::ChannelOptions::wants_key): [`ENOKEY`], [`EKEYEXPIRED`] or [`EKEYREVOKED`]: one
    /// of the machines no longer has it; [`EKEYREJECTED`]: they have different ones. Messages wait until a path connects
    /// with another key.
    fn key_revoked(&self, channel: &ChannelRef, why: Error) {
        let _ = (channel, why);
    }

    /// The channel has ended. It is the last call; all others for messages that had arrived, and for outcomes, came before.
    /// It is not called for a channel that this module drops before.
    fn closed(&self, channel: &ChannelRef, closed: Closed) {
        let _ = (channel, closed);
    }
}
