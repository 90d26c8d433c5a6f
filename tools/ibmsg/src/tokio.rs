// SPDX-License-Identifier: GPL-2.0

//! The same for programs that use tokio: futures in place of calls that block. Needs the feature `tokio` of this crate.
//!
//! A [`Channel`] can be cloned, and any number of tasks may send, call and receive at a time. One of the tasks that wait
//! reads for all of them: there is no task in the background, and no task has to receive just so that calls get their
//! replies. Messages that nobody receives stay in the kernel, where they hold credits of their sender; up to 128 KiB of
//! them move to the program while a call waits for its reply.
//!
//! # Dropped futures
//!
//! The kernel has no memory of a future, so a future can be dropped at any time, as `select!` and `timeout` do:
//!
//! | Future | If it is dropped |
//! |---|---|
//! | [`Channel::receive`] | no message is lost: the next call returns it |
//! | [`Channel::send`], [`Channel::reply`] | the message was not sent |
//! | [`Channel::call`] | the request was not sent, or its reply is dropped: the outcome is unknown |
//! | [`Channel::connect`] | the portal's program does not get the offer, or its channel is closed |
//! | [`Channel::put`], [`Channel::get`] | it goes on in its thread, with memory of its own, or has not begun |
//! | [`Portal::offer`], [`Portal::accept`] | no offer is lost |
//!
//! # Examples
//!
//! A service that answers any number of requests at a time, in the order in which it has the answers:
//!
//! ```no_run
//! use ibmsg::tokio::{Channel, Portal};
//! use ibmsg::Message;
//!
//! async fn answer(channel: Channel, id: u64, body: Vec<u8>) -> ibmsg::Result<()> {
//!     tokio::time::sleep(std::time::Duration::from_millis(body.len() as u64)).await;
//!     channel.reply(id, &body).await
//! }
//!
//! async fn serve(channel: Channel) -> ibmsg::Result<()> {
//!     while let Some(message) = channel.receive().await? {
//!         if let Message::Request { id, body, .. } = message {
//!             tokio::spawn(answer(channel.clone(), id, body));
//!         }
//!     }
//!     Ok(())
//! }
//!
//! # async fn run() -> ibmsg::Result<()> {
//! let portal = Portal::bind("kv")?;
//! loop {
//!     tokio::spawn(serve(portal.accept().await?));
//! }
//! # }
//! ```
//!
//! A client that makes two calls at a time:
//!
//! ```no_run
//! use ibmsg::tokio::Channel;
//! use ibmsg::Connect;
//!
//! # async fn run() -> ibmsg::Result<()> {
//! let channel = Channel::connect(Connect::new("storage1", "kv")).await?;
//! let (a, b) = tokio::try_join!(channel.call(b"a", None), channel.call(b"b", None))?;
//! # Ok(())
//! # }
//! ```

mod channel;
mod copy;
mod portal;
mod reader;
#[cfg(test)]
mod tests;

pub use channel::Channel;
pub use portal::{Offer, Portal};
