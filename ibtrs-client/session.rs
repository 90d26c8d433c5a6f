// SPDX-License-Identifier: GPL-2.0

//! Sessions: what the layers above use.

use crate::{
    admin::Admin,
    path::{
        Active,
        Path, //
    },
    request, //
};
use ibtrs_proto::{
    addr::PathAddr,
    name::SessionName, //
};
use kernel::{
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex,
        SetOnce, //
    },
};
use kx::{
    io::{
        IoHandle,
        SyncIo, //
    },
    sync::RcuPtr,
};

pub use ibtrs_proto::msg::Direction as Dir;

/// Where a path of a session goes.
#[derive(Clone, Copy)]
pub struct PathSpec {
    /// The addresses of both ends.
    pub addr: PathAddr,
    /// The port that the server listens on.
    pub port: u16,
}

/// What to open.
pub struct SessionConfig<'a> {
    /// The name, as the server's operator will see it.
    pub name: SessionName<'a>,
    /// The paths; the first is used.
    pub paths: &'a [PathSpec],
    /// Who is told when the session is cut off and comes back.
    pub link: Arc<dyn LinkEvents>,
}

/// Gets the events of a session.
///
/// They come one at a time, in turns: down, up, down and so on. The first is
/// [`LinkEvents::down`], as [`Session::open`] itself tells of the first
/// connection.
///
/// # Context
///
/// Both are called from a work item of the session. They may sleep and use
/// [`Session::admin`], and must not close the session, nor wait for its requests.
pub trait LinkEvents: Send + Sync {
    /// The last path was lost.
    fn down(&self);

    /// The server can be reached again.
    ///
    /// If `fresh`, the server may have forgotten what was open on the session:
    /// it must be opened anew. Requests are held until this returns, except
    /// for administrative messages. Those that were submitted before end with
    /// `ESTALE` then, as what they name may not exist any more: they are to be
    /// built and submitted again. Should the session be lost meanwhile,
    /// the requests stay where they are, and the next time is fresh as well.
    fn up(&self, fresh: bool);
}

/// A span of a session's life during which the server knows the same devices.
///
/// A request that names a device of an earlier one is not sent: the server may
/// have given its number to another device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Life(pub(crate) u32);

/// A request for the server.
pub struct Submit<'a> {
    /// What [`Session::life`] gave before the request was built.
    pub life: Life,
    /// The chunk to use, below [`Session::io_depth`]. No other request may be
    /// in flight with it.
    pub tag: u16,
    /// Which way the data goes.
    pub dir: Dir,
    /// What the server's upper layer gets beside the data, at most
    /// [`request::MAX_USER_HDR`] bytes.
    pub user_hdr: &'a [u8],
    /// Bytes of data, the length of the scatter list of `io`; may be zero.
    pub bytes: u32,
    /// Ring the doorbell now. If not, [`Session::commit`] must follow.
    pub last: bool,
    /// The data, and who gets the result.
    pub io: IoHandle,
}

/// Sizes that both sides agreed on.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Chunks of the session.
    pub(crate) queue_depth: u16,
    /// Bytes of data in one request.
    pub(crate) max_io_bytes: u32,
}

/// An association with a server.
///
/// Whoever opened it must [`Session::close`] it.
#[pin_data]
pub struct Session {
    name: CString,
    /// Names the session to the server.
    pub(crate) uuid: [u8; 16],
    #[pin]
    active: RcuPtr<Active>,
    #[pin]
    path: Mutex<Option<Arc<Path>>>,
    limits: SetOnce<Limits>,
    #[pin]
    admin: Admin,
    link: Arc<dyn LinkEvents>,
}

impl Session {
    /// Opens a session: connects all connections of its path.
    ///
    /// # Context
    ///
    /// May sleep, up to the connect time-out for each step; interruptible.
    ///
    /// # Errors
    ///
    /// - `EINTR`: a signal came.
    /// - `ETIMEDOUT`, `EHOSTUNREACH`, `ECONNREFUSED`, `ECONNRESET` and others of
    ///   the connection manager: there is no way to the server.
    /// - What the server refused with.
    /// - `EINVAL`: no path, or a server whose queue is too short to use.
    /// - `EOPNOTSUPP`: the address is a GID.
    /// - `ENOMEM`.
    pub fn open(config: &SessionConfig<'_>) -> Result<Arc<Self>> {
        let spec = config.paths.first().ok_or(EINVAL)?;
        if config.paths.len() > 1 {
            pr_warn!("{}: only the first path is used\n", config.name.as_str());
        }
        let this = Arc::pin_init(
            try_pin_init!(Self {
                name: CString::try_from_fmt(fmt!("{}", config.name.as_str()))?,
                uuid: kx::uuid::generate(),
                active <- RcuPtr::new(None),
                path <- new_mutex!(None, "Session::path"),
                limits: SetOnce::new(),
                admin <- Admin::new(),
                link: config.link.clone(),
            }? Error),
            GFP_KERNEL,
        )?;
        let path = Path::new(this.clone(), *spec)?;
        *this.path.lock() = Some(path.clone());
        match path.open() {
            Ok(()) => Ok(this),
            Err(error) => {
                this.close();
                Err(error)
            }
        }
    }

    /// Closes the session. Every request has ended when this returns, those
    /// in flight with `ECONNABORTED`. May be called again.
    ///
    /// # Context
    ///
    /// May sleep; not from [`LinkEvents`].
    pub fn close(&self) {
        let path = self.path.lock().take();
        if let Some(path) = path {
            path.close();
        }
    }

    /// Returns the name.
    pub fn name(&self) -> &CStr {
        &self.name
    }

    /// Tells whether requests can reach the server now.
    pub fn is_connected(&self) -> bool {
        self.active.read().get().is_some()
    }

    fn limits(&self) -> Limits {
        self.limits.copy().unwrap_or(Limits {
            queue_depth: 0,
            max_io_bytes: 0,
        })
    }

    /// Returns the number of tags for I/O: tags below it are chunks of the
    /// server. A few chunks above are left for administrative messages.
    pub fn io_depth(&self) -> u16 {
        let depth = self.limits().queue_depth;
        depth - Admin::reserved(depth)
    }

    /// Returns how many bytes of data one request can carry.
    pub fn max_io_bytes(&self) -> u32 {
        self.limits().max_io_bytes
    }

    /// Returns how many elements the scatter list of a request may have. All
    /// but the first must begin, and all but the last must end, on a page
    /// boundary.
    pub fn max_segments(&self) -> u16 {
        ibtrs_proto::consts::MAX_SEGMENTS as u16
    }

    /// Returns the number of connections for I/O, one for each possible CPU;
    /// they are numbered from zero.
    pub fn nr_queues(&self) -> u32 {
        nr_queues()
    }

    /// Names the present span of the session's life. Another one begins when
    /// the server turns out to be fresh (see [`LinkEvents::up`]), and again when
    /// that call returns.
    ///
    /// To be asked before anything is looked at that a fresh server changes,
    /// such as the number of a device.
    ///
    /// # Context
    ///
    /// Any.
    pub fn life(&self) -> Life {
        Life(0)
    }

    /// Hands a request to the connection `queue`. When it ends, `io` is told.
    ///
    /// # Context
    ///
    /// Any but hardirq.
    ///
    /// # Errors
    ///
    /// The I/O comes back with
    /// - `EAGAIN`: the connection's queue is full, try again later;
    /// - `ESTALE`: it was built for an earlier life, see [`Submit::life`];
    /// - `ETIMEDOUT`: the session is cut off from the server, and was so for too
    ///   long; before that, requests wait;
    /// - `ENOTCONN`: the session is closed;
    /// - `EMSGSIZE`, `EINVAL`: the request is too long or malformed;
    /// - `EIO`: its memory could not be mapped.
    pub fn submit(&self, queue: u32, submit: Submit<'_>) -> Result<(), (Error, IoHandle)> {
        let active = self.active.read();
        let Some(active) = active.get() else {
            return Err((ENOTCONN, submit.io));
        };
        active.submit(queue.wrapping_add(1) as usize, submit)
    }

    /// Rings the doorbell of the connection `queue` for the requests that were
    /// submitted without.
    ///
    /// # Context
    ///
    /// As [`Session::submit`].
    pub fn commit(&self, queue: u32) {
        if let Some(active) = self.active.read().get() {
            active.commit(queue.wrapping_add(1) as usize);
        }
    }

    /// Sends an administrative message and waits for its answer; gives the
    /// number of bytes that were put into `reply`, all of it.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// `EINTR`, `ETIMEDOUT`; those of [`Session::submit`]; what the server
    /// answered.
    pub fn admin(&self, dir: Dir, user_hdr: &[u8], reply: &mut [u8]) -> Result<usize> {
        let io = SyncIo::new(reply.len())?;
        let permit = self.admin.get(self)?;
        let submit = Submit {
            life: self.life(),
            tag: permit.tag(),
            dir,
            user_hdr,
            bytes: u32::try_from(reply.len())?,
            last: true,
            io: io.handle()?,
        };
        let sent = match self.active.read().get() {
            Some(active) => active.submit(0, submit),
            None => Err((ENOTCONN, submit.io)),
        };
        sent.map_err(|(error, _io)| error)?;
        io.wait_interruptible_timeout(request::ADMIN_TIMEOUT_MS)
            .map_err(|error| if error == ERESTARTSYS { EINTR } else { error })?;
        io.result()?;
        if !reply.is_empty() {
            let bytes = io.bytes()?.get(..reply.len()).ok_or(EIO)?;
            reply.copy_from_slice(bytes);
        }
        Ok(reply.len())
    }

    /// Tells whether no request is in flight with the chunk `tag`.
    pub(crate) fn is_idle(&self, tag: u16) -> bool {
        let active = self.active.read();
        active.get().is_some_and(|active| active.is_idle(tag))
    }

    pub(crate) fn set_limits(&self, limits: Limits) -> Result {
        if limits.queue_depth <= Admin::reserved(limits.queue_depth) {
            pr_err!(
                "{}: the server's queue depth {} is too short\n",
                *self.name,
                limits.queue_depth
            );
            return Err(EINVAL);
        }
        self.limits.populate(limits);
        Ok(())
    }

    pub(crate) fn queue_depth(&self) -> u16 {
        self.limits().queue_depth
    }

    /// Lets submitters find the path.
    pub(crate) fn publish(&self, active: KBox<Active>) {
        drop(self.active.replace(Some(active)));
    }

    /// Hides the path; no submitter is in it any more when this returns.
    pub(crate) fn unpublish(&self) -> bool {
        self.active.replace(None).is_some()
    }

    /// Says that the server cannot be reached any more.
    pub(crate) fn link_down(&self) {
        self.link.down();
    }
}

/// Returns the number of I/O connections of a path.
pub(crate) fn nr_queues() -> u32 {
    kernel::cpu::nr_cpu_ids()
}
