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
//! | handlers of a [`Receiver`] | as [`ChannelOptions::context`] says; one at a time for a channel, in the order in which things arrive |
//!
//! No handler is called from within a function of this interface: what a handler causes on its own channel is delivered
//! when it has returned, and on another one by a work item. So a handler may send, and a lock that the module holds when
//! it sends may also be taken by a handler. A lock that a handler in [`HandlerContext::Arrival`] takes needs
//! interrupts, or softirqs, off elsewhere ([`kernel::sync::SpinLockIrq`]).
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
