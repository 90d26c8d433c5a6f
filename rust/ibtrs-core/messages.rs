// SPDX-License-Identifier: GPL-2.0

//! Messages between programs, as the transport knows them.
//!
//! The transport opens a message connection on each path, if both machines have a [`Service`] (the module
//! `ibmsg`), and gives it to the service's end of the session, [`Upper`]. It knows nothing of what is in
//! a frame.
//!
//! Frames of a connection arrive in the order in which they were sent, or not at all: if one is lost, so
//! are all later ones, and the connection. A connection that is lost never comes back; its [`Conn::epoch`]
//! is not used again.
//!
//! - [`register`] makes a service known, [`attach`] gives a session to it.
//! - [`con::MessageConn`] is a message connection.
//! - [`memory`]: a connection between machines also writes to memory of the peer's programs, and registers that of
//!   this side's.

use core::ops::Deref;
use ibmsg_proto::wire::FRAME_HDR_LEN;
use kernel::{
    prelude::*,
    str::CStr,
    sync::{
        Arc,
        UniqueArc, //
    }, //
};
use kx::{
    module::ModuleRef,
    sync::RcuPtr, //
};

pub mod con;
pub mod memory;

pub use ibmsg_proto::channel::Conn;

/// A frame, or room for one.
pub struct Frame {
    /// As many bytes as a frame of the connection may have.
    pub bytes: KVec<u8>,
    /// How many of them the frame has.
    pub len: usize,
}

impl Frame {
    /// Returns a frame of a header alone, in `kept` or else in `size` new bytes; `None` if there is no memory now.
    ///
    /// # Context
    ///
    /// Any.
    pub fn new(kept: Option<KVec<u8>>, size: usize) -> Option<Self> {
        let bytes = match kept {
            Some(bytes) => bytes,
            None => KVec::from_elem(0, size, GFP_ATOMIC | __GFP_NOWARN).ok()?,
        };
        Some(Self {
            bytes,
            len: FRAME_HDR_LEN,
        })
    }
}

/// One side of a message connection.
pub trait Connection: Send + Sync {
    /// Returns room for a frame; `None` if there is no memory now.
    ///
    /// # Context
    ///
    /// Any.
    fn room(&self) -> Option<Frame>;

    /// Sends a frame. The caller keeps to the credits of the connection.
    ///
    /// # Context
    ///
    /// Any. Does not call [`Upper`] before it returns.
    fn send(&self, frame: Frame);

    /// Gives the connection up; `why` is for the log. It counts as a breach of the protocol by the peer.
    /// [`Upper::lost`] follows.
    ///
    /// # Context
    ///
    /// Any. Does not call [`Upper`] before it returns.
    fn fail(&self, why: &str);

    /// As [`Connection::fail`], for a reason that is not the peer's fault.
    ///
    /// # Context
    ///
    /// As for [`Connection::fail`].
    fn give_up(&self, why: &str) {
        self.fail(why);
    }

    /// What the connection does with memory of programs; none if it only carries frames.
    fn memory(&self) -> Option<&dyn memory::Device> {
        None
    }
}

/// What has become of a frame that has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrived {
    /// It was used up: its memory is free for another one.
    Done,
    /// There was no memory for the answer to a record for a channel that does not exist. The connection keeps
    /// the frame, and offers it again a little later, before any other. Messages never need that.
    Later,
}

/// The service's end of a session.
///
/// # Context
///
/// [`Upper::connected`], [`Upper::finish`], [`Upper::drain`] and [`Upper::over`] may sleep. Everything else: any. For one connection, nothing is
/// called on two CPUs at a time.
pub trait Upper: Send + Sync {
    /// A client begins an attempt to connect a path, on which [`Upper::connected`] may follow, and
    /// [`Upper::lost`] does in any case.
    fn begins(&self, id: Conn) {
        let _ = id;
    }

    /// There is a new connection, on which `receives` frames may be on their way in each direction.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINVAL`: there is one of this id, or there are too many. The connection is not used.
    fn connected(&self, id: Conn, connection: Arc<dyn Connection>, receives: u32) -> Result;

    /// A frame has arrived. `done` is 0 at first, and the connection keeps it with a frame that it keeps.
    fn arrived(&self, id: Conn, frame: &[u8], done: &mut usize) -> Arrived;

    /// A work request for memory has completed, which was posted with `cookie`. What was posted and had not completed
    /// when the connection was lost, has by the time of [`Upper::lost`].
    fn completed(&self, id: Conn, cookie: u64);

    /// The peer of a client takes no message connections; [`Upper::lost`] follows when the path is lost.
    fn unsupported(&self, id: Conn) {
        let _ = id;
    }

    /// A connection is lost, or was never made. May be called again.
    ///
    /// The path is freed, and connects again, once all references to the [`Connection`] were dropped: none is kept from
    /// here on, but by code that runs, and waits neither for I/O nor for a program.
    fn lost(&self, id: Conn);

    /// The client's session is about to be closed on purpose, while its connections are still there: ends what
    /// programs have on it, and waits for the server for a bounded time. May be called again.
    fn finish(&self) {}

    /// The server's session is about to be closed on purpose, as the server is stopped for about `seconds`; 0: it is not
    /// known for how long. [`Upper::drain`] follows.
    fn draining(&self, seconds: u32) {
        let _ = seconds;
    }

    /// The key of the session is of no use any more: on a server, because a path was closed for it; on a client, because
    /// an attempt to connect has failed for it. `why` is one of [`KEY_ERRORS`](crate::auth::KEY_ERRORS). Called again
    /// for each path and attempt.
    fn key_revoked(&self, why: Error) {
        let _ = why;
    }

    /// The connections of the server's session are about to be closed on purpose: waits until the client has what
    /// programs have written, for at most `limit_ms` milliseconds.
    fn drain(&self, limit_ms: u32) {
        let _ = limit_ms;
    }

    /// The session is over; all connections were lost before. A server's session may come back under its
    /// UUID, see [`Service::attach`].
    fn over(&self) {}
}

/// Which end of a session this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The one that connects the paths.
    Client,
    /// The other one.
    Server,
}

/// A session, for the service.
pub struct Peer<'a> {
    /// Which end of it this is.
    pub role: Role,
    /// Its name, which no other session of this role has now.
    pub name: &'a CStr,
    /// Its UUID, which the client has chosen. It is 0 for a client.
    pub uuid: [u8; 16],
    /// Whether the peer has proved that it has a key of that name.
    pub is_authenticated: bool,
}

/// What serves the message connections of all sessions of this machine.
pub trait Service: Send + Sync {
    /// Takes a reference to the service's module; `None` if it is being unloaded.
    ///
    /// # Context
    ///
    /// RCU read section: must not sleep.
    fn keep(&self) -> Option<ModuleRef>;

    /// Returns the end of a session that is about to get its first message connection. For a server's
    /// session, it may be that of an earlier session with the same client, whose paths were all lost.
    ///
    /// # Context
    ///
    /// May sleep, but must not wait for a program.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINVAL`: the name is not one for programs; `EEXIST`: another session has it.
    fn attach(&self, peer: &Peer<'_>) -> Result<Arc<dyn Upper>>;
}

/// The service, while there is one.
static SERVICE: RcuPtr<Arc<dyn Service>> = RcuPtr::null();

/// Makes sessions that connect later open message connections; dropping it ends that. The service's
/// module must not be unloaded before.
pub struct Registration(());

/// Registers the service. A module does that as the last step of its initialisation, which must not fail
/// afterwards: sessions refer to the service from here on.
///
/// # Context
///
/// May sleep. The module that calls this is alone: there is one service.
pub fn register(service: KBox<Arc<dyn Service>>) -> Registration {
    let former = SERVICE.replace(Some(service));
    drop(former);
    Registration(())
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Waits for those who are about to take a reference.
        drop(SERVICE.replace(None));
    }
}

/// Returns whether there is a service.
///
/// # Context
///
/// Any.
pub fn has_service() -> bool {
    SERVICE.read().get().is_some()
}

/// The service's end of a session, which keeps the service's module loaded. Dropping the last reference
/// ends the session for the service, and may sleep.
pub struct Attached {
    upper: Arc<dyn Upper>,
    // Dropped after what is of that module.
    _module: ModuleRef,
}

impl Deref for Attached {
    type Target = dyn Upper;

    fn deref(&self) -> &Self::Target {
        &*self.upper
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.upper.over();
    }
}

/// Gives a session to the service.
///
/// # Context
///
/// May sleep.
///
/// # Errors
///
/// `EOPNOTSUPP`: there is no service; `ENOMEM`; those of [`Service::attach`].
pub fn attach(peer: &Peer<'_>) -> Result<Arc<Attached>> {
    let place = UniqueArc::new_uninit(GFP_KERNEL)?;
    let found = SERVICE
        .read()
        .get()
        .and_then(|service| Some((service.keep()?, service.clone())));
    // The service is dropped before the reference to its module.
    let (module, service) = found.ok_or(EOPNOTSUPP)?;
    let upper = service.attach(peer)?;
    drop(service);
    let attached = Attached {
        upper,
        _module: module,
    };
    Ok(place.write(attached).into())
}
