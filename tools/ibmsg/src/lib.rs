// SPDX-License-Identifier: GPL-2.0

//! Messages between programs, over the device of the kernel module `ibmsg`.
//!
//! A program binds a [`Portal`] and accepts channels there, or opens a [`Channel`] to one. Documentation/messages.md
//! explains what is promised. All calls block until they are done, but for those of the module `tokio`.
//!
//! ```no_run
//! # fn main() -> ibmsg::Result<()> {
//! let mut channel = ibmsg::Connect::new("local", "kv").open()?;
//! channel.send(b"hello")?;
//! let answer = channel.call(b"question", None)?;
//! for message in channel.messages() {
//!     println!("{:?}", message?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | Module | Contents |
//! |---|---|
//! | [`sys`] | the ioctls |
//! | [`wire`] | the structures of `ibmsg.h` |
//! | [`words`] | error numbers in words |
//! | [`error`] | failures |
//! | [`portal`] | message portals, and offers |
//! | [`channel`] | channels, and their messages |
//! | [`memory`] | memory of a program that the other one of its channel may use |
//! | [`body`] | messages whose body stays in the memory of the sender |
//! | [`publish`] | logs of portals, and subscriptions |
//! | [`fdinfo`] | the portals and channels of all processes |
//! | [`rules`] | who may use portals and sessions |
//! | [`mod@tokio`] | the same as futures, with the feature `tokio` |
//! | [`uring`] | calls, GETs and PUTs as commands of io_uring, with the feature `uring` |

#![deny(unsafe_code)]
#![allow(rustdoc::private_intra_doc_links)]
#![warn(missing_docs, rust_2018_idioms, unreachable_pub)]

pub mod body;
mod channel;
mod error;
pub mod fdinfo;
pub mod memory;
mod portal;
pub mod publish;
pub mod rules;
mod sys;
#[cfg(feature = "tokio")]
pub mod tokio;
#[cfg(feature = "uring")]
pub mod uring;
pub mod wire;
pub mod words;

pub use body::{Lent, RemoteBody};
pub use channel::{Channel, Connect, Message, Outgoing, Tuning};
pub use error::{Error, Result};
pub use memory::{Memory, Published, Rights};
pub use portal::{Bind, Offer, Portal};
pub use wire::Terms;

/// The device.
pub const DEVICE: &str = "/dev/ibmsg";

/// The examples of the guide compile.
#[cfg(doctest)]
#[doc = include_str!("../../../Documentation/messages-guide.md")]
struct Guide;
