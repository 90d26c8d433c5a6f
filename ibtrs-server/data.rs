// SPDX-License-Identifier: GPL-2.0

//! The data plane: requests, and the connections on which they arrive.
//!
//! It knows a path as a [`con::PathIo`] and a session as a [`con::SessionIo`], reports to the path
//! through [`con::Control`], and passes requests to the service through [`con::upper::ServiceSession`].
//!
//! | Module | Purpose |
//! |---|---|
//! | [`stats`] | the counters of a path |
//! | [`batch`], [`unsent`] | answers that are batched, and the queue of answers and fetches that wait
//! for SQ space |
//! | [`idle`] | rounds after which the device no longer sends from the small buffers of idle slots
//! |
//! | [`chunk_owner`] | which path has a tag in service |
//! | [`con`] | a connection, its path and its session, as requests know them |
//! | [`claims`] | claims tags, and releases them |
//! | [`send`] | sends answers, and fetches data |
//! | [`request`] | a request in service |
//! | [`serve`] | the way of a request from its claim to the service |
//! | [`receive`] | the handler of a connection's completions |

pub(crate) mod batch;
pub(crate) mod chunk_owner;
pub(crate) mod claims;
pub(crate) mod con;
pub(crate) mod idle;
mod receive;
mod request;
pub(crate) mod send;
pub(crate) mod serve;
pub(crate) mod stats;
pub(crate) mod unsent;
