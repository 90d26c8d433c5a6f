// SPDX-License-Identifier: GPL-2.0

//! What carries frames between two kernels, or inside one.
//!
//! A link makes message connections, one after the other or several at a time, and loses them. It knows
//! nothing of what is in a frame. [`Upper`] is the end of the session that it serves, [`Connection`] what
//! it gives to that for each connection.
//!
//! Frames of a connection arrive in the order in which they were sent, or not at all: if one is lost, so
//! are all later ones, and the connection. A connection that is lost never comes back; its [`Conn::epoch`]
//! is not used again.

mod local;

pub(crate) use local::Local;

use ibmsg_proto::channel::Conn;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// A frame, or room for one.
pub(crate) struct Frame {
    /// As many bytes as a frame of the connection may have.
    pub(crate) bytes: KVec<u8>,
    /// How many of them the frame has.
    pub(crate) len: usize,
}

/// One side of a message connection.
pub(crate) trait Connection: Send + Sync {
    /// Room for a frame; none if there is no memory now.
    ///
    /// # Context
    ///
    /// *any*
    fn room(&self) -> Option<Frame>;

    /// Sends a frame. The caller keeps to the credits of the connection.
    ///
    /// # Context
    ///
    /// *any*. It does not call [`Upper`] before it returns.
    fn send(&self, frame: Frame);

    /// Gives the connection up, because the other side does not keep to the protocol. [`Upper::lost`]
    /// follows.
    ///
    /// # Context
    ///
    /// *any*. It does not call [`Upper`] before it returns.
    fn fail(&self);
}

/// What has become of a frame that has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrived {
    /// It was used up: its memory is free for another one.
    Done,
    /// There was no memory for the answer to a record for a channel that does not exist. The link keeps the
    /// frame, and offers it again a little later, before any other. Messages never need that.
    Later,
}

/// What a link serves.
///
/// # Context
///
/// Everything here: *any*, but for one connection never on two CPUs at a time.
pub(crate) trait Upper: Send + Sync {
    /// There is a new connection, for which `receives` frames may arrive on either side.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]: then the connection is not used.
    fn connected(&self, id: Conn, connection: Arc<dyn Connection>, receives: u32) -> Result;

    /// A frame has arrived. `done` is 0 at first, and the link keeps it with a frame that it keeps.
    fn arrived(&self, id: Conn, frame: &[u8], done: &mut usize) -> Arrived;

    /// A connection is lost.
    fn lost(&self, id: Conn);
}
