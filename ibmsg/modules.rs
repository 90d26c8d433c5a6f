// SPDX-License-Identifier: GPL-2.0

//! What other modules of the kernel have: portals and channels with handlers.
//!
//! It is what programs have, without files. The other end of a channel may be a program or a module, on this machine or
//! on the other one of a session, and neither end can tell.
//!
//! - [`Portal::bind`] binds a name. Its [`Service`] answers offers, and names the [`Receiver`] of each channel.
//! - [`Channel::connect`] opens a channel to a portal.
//! - [`ChannelRef`] sends messages, makes calls and replies to requests, from any context.
//! - [`Receiver`] has the handlers of a channel, which run in the context that [`ChannelOptions::context`] asks for.
//!
//! A module that uses this needs symbols of `ibmsg`, which therefore stays loaded. Before the module is unloaded, it drops
//! its portals and channels, which waits for handlers that run: then nothing refers to the module any more.
//!
//! # Contexts
//!
//! | what | context |
//! |---|---|
//! | [`Portal::bind`], [`Channel::connect`], dropping a [`Portal`] or a [`Channel`] | may sleep |
//! | all of [`ChannelRef`] and [`Body`] | any, also in a handler and under locks of the module |
//! | [`Service::offered`] | may sleep; one at a time for a portal |
//! | handlers of a [`Receiver`] | as [`ChannelOptions::context`] says; one at a time for a channel |
//!
//! No handler is called from within a function of this interface: what a handler causes on its own channel is delivered
//! when it has returned, and on another one by a work item. So a handler may send, and a lock that the module holds when
//! it sends may also be taken by a handler.
//!
//! Handlers in [`HandlerContext::Arrival`] run in softirqs, and in process context with softirqs enabled. A spinlock
//! that such a handler takes is therefore taken with interrupts disabled everywhere, also in the handler:
//! [`kernel::sync::SpinLockIrq`].
//!
//! Handlers that may sleep run on a workqueue: one for each portal, and one for all channels that modules have
//! connected. A workqueue runs at most 1024 of them at a time. Handlers that wait for other handlers of the same
//! workqueue deadlock when all 1024 wait. The workqueues have no rescuer (`WQ_MEM_RECLAIM`), so writing back memory
//! must not depend on them. The disks of the session do not: whatever a handler waits for, none of its paths waits for the
//! handler.
//!
//! # Order
//!
//! Messages, requests and replies are delivered in the order in which the other end has sent them. [`Receiver::room`],
//! [`Receiver::outcome`], [`Receiver::path`], [`Receiver::draining`], [`Receiver::key_revoked`], and [`Receiver::reply`] for
//! a call without a reply, overtake messages that wait. [`Receiver::closed`] is the last call.
//!
//! # Memory
//!
//! [`ChannelRef`] allocates what a message needs without sleeping. If that fails, the message comes back with `ENOMEM`,
//! and [`Receiver::room`] is called when there is memory. A channel keeps memory for one more reply, so that replies
//! hardly ever fail for that.
//!
//! # Reference cycles
//!
//! A [`Channel`] has its [`Receiver`], and a [`Portal`] has its [`Service`], and the receivers of the channels that it
//! has accepted. A receiver or service that owns its own channel or portal keeps itself: neither is dropped when the
//! module is unloaded, and its code is called afterwards. A receiver keeps a [`ChannelRef`] if it has to send.
//!
//! # Rules and limits
//!
//! The rules for uids do not concern modules. Those for hosts do ([`Portal::bind`]). All modules together are charged
//! for channels like one user: up to the parameters `user_mib` and `total_mib`, and the limits of the portal, the
//! session and the host.
//!
//! # Examples
//!
//! A portal that answers each request with its content. `rust/samples/calls` is a whole module.
//!
//! ```
//! use ibmsg::{Answer, ChannelRef, Offer, Portal, PortalOptions, Receiver, Request, Service};
//! use kernel::{prelude::*, sync::Arc};
//!
//! struct Echo;
//!
//! impl Receiver for Echo {
//!     fn request(&self, channel: &ChannelRef, request: Request) {
//!         if channel.reply(request.id, Ok(()), request.body).is_err() {
//!             channel.close();
//!         }
//!     }
//! }
//!
//! impl Service for Echo {
//!     fn offered(&self, _offer: &Offer<'_>) -> Result<Answer> {
//!         Ok(Answer::accept(Arc::new(Echo, GFP_KERNEL)?))
//!     }
//! }
//!
//! /// The portal is open until this is dropped.
//! fn open() -> Result<Portal> {
//!     Portal::bind(b"echo", &PortalOptions::default(), Arc::new(Echo, GFP_KERNEL)?)
//! }
//! # let _ = open;
//! ```

mod channel;
mod options;
mod portal;
#[cfg(IBTRS_KUNIT)]
mod tests;

pub use channel::{
    receiver::{
        Closed,
        Receiver,
        Reply,
        Request, //
    },
    Channel,
    ChannelRef,
    Unsent, //
};
pub use options::{
    ChannelOptions,
    ConnectOptions,
    HandlerContext,
    PortalOptions,
    SendOptions, //
};
pub use portal::{
    Answer,
    Offer,
    Portal,
    Service, //
};
