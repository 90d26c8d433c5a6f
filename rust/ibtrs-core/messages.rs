// SPDX-License-Identifier: GPL-2.0

//! The interface of the transport to a service for messages between programs.
//!
//! The transport opens a message connection on each path, if both machines have a [`Service`] (the module
//! `ibmsg`), and passes it to the service's end of the session, [`Upper`]. The contents of frames are
//! opaque to the transport.
//!
//! Frames of a connection arrive in the order in which they were sent, or not at all: if one is lost, so
//! are all later ones, and the connection. A lost connection is never re-established; its [`Conn::epoch`]
//! is not reused.
//!
//! - [`register`] registers a service, [`attach`] attaches a session to it.
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

/// A frame, or the memory for one.
pub struct Frame {
    /// As many bytes as a frame of the connection may have.
    pub bytes: KVec<u8>,
    /// How many of them the frame has.
    pub len: usize,
}

impl Frame {
    /// Returns a frame that consists of a header only, in `kept` if there is one, otherwise in a new buffer of
    /// `size` bytes; `None` if the allocation fails.
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
    /// Returns a buffer for a frame; `None` if the allocation fails.
    ///
    /// # Context
    ///
    /// Any.
    fn room(&self) -> Option<Frame>;

    /// Sends a frame. The caller must not exceed the credits of the connection.
    ///
    /// # Context
    ///
    /// Any. Does not call [`Upper`] before it returns.
    fn send(&self, frame: Frame);

    /// Fails the connection because the peer has violated the protocol; `why` is for the log.
    /// [`Upper::lost`] follows.
    ///
    /// # Context
    ///
    /// Any. Does not call [`Upper`] before it returns.
    fn fail(&self, why: &str);

    /// As [`Connection::fail`], but the peer is not at fault.
    ///
    /// # Context
    ///
    /// As for [`Connection::fail`].
    fn give_up(&self, why: &str) {
        self.fail(why);
    }

    /// Returns the operations on memory of programs; `None` if the connection only carries frames.
    fn memory(&self) -> Option<&dyn memory::Device> {
        None
    }
}

/// The result of offering a received frame to the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrived {
    /// The frame was consumed: its memory can be reused.
    Done,
    /// There was no memory for the answer to a record for a channel that does not exist. The connection keeps
    /// the frame, and offers it again after a short delay, before any other. This never happens for messages.
    Later,
}

/// The service's end of a session.
///
/// # Context
///
/// [`Upper::connected`], [`Upper::finish`], [`Upper::drain`] and [`Upper::over`] may sleep. All others: any. Calls for one connection are never
/// concurrent.
pub trait Upper: Send + Sync {
    /// A client begins an attempt to connect a path. [`Upper::connected`] may follow;
    /// [`Upper::lost`] follows in any case.
    fn begins(&self, id: Conn) {
        let _ = id;
    }

    /// A connection was established, on which `receives` frames may be in flight in each direction.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINVAL`: there is already a connection with this id, or there are too many. The
    /// connection is not used.
    fn connected(&self, id: Conn, connection: Arc<dyn Connection>, receives: u32) -> Result;

    /// A frame has arrived. `done` is 0 at first; the connection saves it together with a frame that it
    /// keeps.
    fn arrived(&self, id: Conn, frame: &[u8], done: &mut usize) -> Arrived;

    /// The work request for memory that was posted with `cookie` has completed. Work requests that are outstanding
    /// when the connection is lost have ended before [`Upper::lost`], without a call of this function.
    fn completed(&self, id: Conn, cookie: u64);

    /// The peer of a client does not support message connections; [`Upper::lost`] follows when the path
    /// is lost.
    fn unsupported(&self, id: Conn) {
        let _ = id;
    }

    /// A connection was lost, or was never established. May be called again.
    ///
    /// The path is freed, and reconnects, once all references to the [`Connection`] are dropped. The service must drop
    /// its references here; only running code that waits neither for I/O nor for a program may hold one for longer.
    fn lost(&self, id: Conn);

    /// The client's session is about to be closed on purpose, while its connections are still there: ends the
    /// channels of programs on it, and waits for the server for a bounded time. May be called again.
    fn finish(&self) {}

    /// The server's session is about to be closed on purpose, as the server is stopped for about `seconds`, or for an
    /// unknown time if `seconds` is 0. [`Upper::drain`] follows.
    fn draining(&self, seconds: u32) {
        let _ = seconds;
    }

    /// The key of the session is no longer usable. On a server, a path was closed for this reason; on a client, an
    /// attempt to connect has failed. `why` is one of [`KEY_ERRORS`](crate::auth::KEY_ERRORS). Called again for each
    /// path and attempt.
    fn key_revoked(&self, why: Error) {
        let _ = why;
    }

    /// The connections of the server's session are about to be closed on purpose: waits until the client has
    /// received the messages that programs have written, for at most `limit_ms` milliseconds.
    fn drain(&self, limit_ms: u32) {
        let _ = limit_ms;
    }

    /// The session has ended; all its connections were lost before. A server's session may be resumed
    /// under its UUID, see [`Service::attach`].
    fn over(&self) {}
}

/// Which end of a session this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The machine that connects the paths.
    Client,
    /// The machine that accepts the paths.
    Server,
}

/// A session, for the service.
pub struct Peer<'a> {
    /// Which end of it this is.
    pub role: Role,
    /// Its name, unique among the current sessions of this role.
    pub name: &'a CStr,
    /// Its UUID, which the client has chosen; 0 on the client's side.
    pub uuid: [u8; 16],
    /// Whether the peer has proved that it has a key of that name.
    pub is_authenticated: bool,
}

/// The service for the message connections of all sessions of this machine.
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
    /// `ENOMEM`; `EINVAL`: programs cannot use a session of this name; `EEXIST`: another session
    /// has the name.
    fn attach(&self, peer: &Peer<'_>) -> Result<Arc<dyn Upper>>;
}

/// The service, while there is one.
static SERVICE: RcuPtr<Arc<dyn Service>> = RcuPtr::null();

/// While this exists, new sessions open message connections. The service's module must drop it
/// before it is unloaded.
pub struct Registration(());

/// Registers the service. A module must do this as the last step of its initialisation, which must not
/// fail afterwards, as sessions may refer to the service from here on.
///
/// # Context
///
/// May sleep. There is only one service, so there must be no concurrent call.
pub fn register(service: KBox<Arc<dyn Service>>) -> Registration {
    let former = SERVICE.replace(Some(service));
    drop(former);
    Registration(())
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Waits for tasks that are taking a reference.
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
    // Dropped after `upper`, whose code is in the module.
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

/// Attaches a session to the service.
///
/// # Context
///
/// May sleep.
///
/// # Errors
///
/// `EOPNOTSUPP`: there is no service; `ENOMEM`; errors of [`Service::attach`].
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
