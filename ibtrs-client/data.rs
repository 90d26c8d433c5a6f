// SPDX-License-Identifier: GPL-2.0

//! The data plane: requests in flight, and the connections that they use.
//!
//! It accesses its connection attempt through a [`link::Link`], reports to it through
//! [`link::Control`], and depends on nothing above that.
//!
//! | Module | Purpose |
//! |---|---|
//! | [`stats`] | the counters of a path |
//! | [`wire`], [`plan`] | the negotiated parameters, and the ways in which a request can be sent |
//! | [`link`] | an attempt, as connections and requests know it |
//! | [`con`] | the state of a connection |
//! | [`io_buffer`] | buffers for the data of small requests |
//! | [`slot`] | the life of a request in flight |
//! | [`submit`] | the way of a request to the send queue |
//! | [`small`] | the same for most requests: small ones of a disk |
//! | [`receive`] | the handler of a connection's completions |

pub(crate) mod con;
pub(crate) mod io_buffer;
pub(crate) mod link;
pub(crate) mod plan;
mod receive;
pub(crate) mod slot;
mod small;
pub(crate) mod stats;
pub(crate) mod submit;
pub(crate) mod wire;
