// SPDX-License-Identifier: GPL-2.0

//! Submits requests and administrative messages.

use super::Session;
use crate::{
    session::requeue_list::FailoverState,
    types::{
        Descriptor,
        Dir,
        Generation,
        ADMIN_TIMEOUT_MS,
        MAX_USER_HDR, //
    }, //
};
use ibtrs_core::trace;
use ibtrs_proto::failover::{
    Entry,
    Phase, //
    PhaseCheck,
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    io::{
        IoHandle,
        SyncIo, //
    },
    mm::Reserve,
    sync::atomic::{
        Acquire,
        Release, //
    }, //
};

impl Session {
    /// Returns the current session generation. A new one begins when the server has lost the
    /// session, and another when the resulting call of
    /// [`SessionEvents::up`](super::SessionEvents::up) returns.
    ///
    /// Read the generation before any value that depends on it, such as the number of a device.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn generation(&self) -> Generation {
        // ORDERING: Pairs with the release in `publish_generation`: the reader sees all changes
        // that the users made before they resumed I/O.
        Generation(Phase::from_bits(self.generation.load(Acquire)))
    }

    /// Publishes the generation of `failover`.
    pub(crate) fn publish_generation(&self, failover: &FailoverState) {
        // ORDERING: See `generation`.
        self.generation
            .store(failover.generation().0.to_bits(), Release);
    }

    /// Submits a request on connection `queue` of a path, with `user_hdr` for the server's upper
    /// layer, of at most [`MAX_USER_HDR`] bytes. `generation` is the result of
    /// [`generation`](Self::generation), read before the request was built; `io` has the memory of the
    /// data, and receives the result. While no path is connected, the request waits for one.
    ///
    /// # Context
    ///
    /// Any but hardirq.
    ///
    /// # Errors
    ///
    /// Returns the I/O with
    /// - `EAGAIN`: the connection's queue is full, retry later;
    /// - `ENOMEM`: the RDMA device has no space left to map the data; retry later;
    /// - `ESTALE`: the request was built for an earlier generation;
    /// - `ETIMEDOUT`: no path has been connected for longer than requests may wait
    ///   (`queue_timeout_s`);
    /// - `ENOTCONN`: the session is closed;
    /// - `EMSGSIZE`, `EINVAL`: the request is too long or malformed;
    /// - `EBUSY`: another request with this tag is in flight.
    ///
    /// The I/O may also end with these errors, or with `ECONNABORTED` if the session is closed;
    /// otherwise it ends with the server's answer.
    pub fn submit(
        self: &Arc<Self>,
        queue: u32,
        generation: Generation,
        mut req: Descriptor,
        user_hdr: &[u8],
        io: IoHandle,
    ) -> Result<(), (Error, IoHandle)> {
        let Some(cid) = cid_of(queue) else {
            return Err((EINVAL, io));
        };
        (req.cid, req.usr_len) = (cid, user_hdr.len());
        if user_hdr.len() > MAX_USER_HDR || req.bytes > self.max_io_bytes() {
            return Err((EMSGSIZE, io));
        }
        let (mut io, mut polled) = (io, false);
        let alone = loop {
            match self.submit_or_requeue(generation, &mut req, user_hdr, io) {
                // The send queue may be full of unpolled completions.
                Err((EAGAIN, back)) if !polled && self.poll(queue) > 0 => {
                    (io, polled) = (back, true);
                }
                result => break result?,
            }
        };
        if req.last && !alone {
            // Earlier requests of the batch may have gone over other paths.
            self.ring(cid);
        }
        Ok(())
    }

    /// Sends the request or puts it on the requeue list. Returns true if the session's only path
    /// accepted it, so that there is no other path whose doorbell must be rung.
    #[inline]
    fn submit_or_requeue(
        self: &Arc<Self>,
        generation: Generation,
        req: &mut Descriptor,
        user_hdr: &[u8],
        mut io: IoHandle,
    ) -> Result<bool, (Error, IoHandle)> {
        let multipath = self.multipath.read();
        if let Some(multipath) = multipath.get() {
            match multipath.generation.0.check(generation.0) {
                PhaseCheck::Stale => return Err((ESTALE, io)),
                PhaseCheck::Requeue => {}
                PhaseCheck::Submit => {
                    match multipath.submit(self.policy(), &self.round_robin, req, user_hdr, io) {
                        Ok(_) => return Ok(multipath.paths.len() == 1),
                        Err((ENOTCONN, back)) => io = back,
                        Err(refused) => return Err(refused),
                    }
                }
            }
        }
        drop(multipath);
        self.wait_for_path(generation, req, user_hdr, io)
            .map(|()| false)
    }

    /// Puts the request on the requeue list.
    #[cold]
    fn wait_for_path(
        self: &Arc<Self>,
        generation: Generation,
        req: &Descriptor,
        user_hdr: &[u8],
        io: IoHandle,
    ) -> Result<(), (Error, IoHandle)> {
        self.failover.lock().put(generation, req, user_hdr, io)?;
        trace::client_requeue(|| (self.name(), req.tag.get(), 0));
        self.kick_requeue();
        Ok(())
    }

    /// Calls `func` with the name of the connected path whose epoch is `epoch`, if there is one.
    ///
    /// # Context
    ///
    /// Any; `func` must not sleep.
    pub fn with_path_name<T>(&self, epoch: u32, func: impl FnOnce(Option<&CStr>) -> T) -> T {
        let multipath = self.multipath.read();
        let mut paths = multipath.get().into_iter().flat_map(|all| &all.paths);
        let path = paths.find(|path| path.attempt.epoch() == epoch);
        func(path.map(|path| path.attempt.path.name()))
    }

    /// Rings the doorbell of connection `queue` on all paths, for requests submitted without
    /// [`Descriptor::last`].
    ///
    /// # Context
    ///
    /// As [`Session::submit`].
    pub fn commit(&self, queue: u32) {
        if let Some(cid) = cid_of(queue) {
            self.ring(cid);
        }
    }

    fn ring(&self, cid: u16) {
        if let Some(multipath) = self.multipath.read().get() {
            for path in &multipath.paths {
                path.io.commit(cid);
            }
        }
    }

    /// Returns whether an administrative message is unanswered, even if its sender no longer waits for
    /// the answer.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn has_unanswered(&self) -> bool {
        self.admin.is_busy()
    }

    /// Sends an administrative message and waits for its answer, which fills `reply`; returns the
    /// session generation in which the server has answered. The message is resent if its path is
    /// lost and another path is connected.
    ///
    /// A message that contains a number from the server, such as that of a device, needs
    /// [`admin_in`](Self::admin_in).
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// - `ENOTCONN`: no path is connected; messages do not wait for one.
    /// - `ECONNABORTED`: the last path was lost.
    /// - `ESTALE`: another session generation has begun, so the message must be built again.
    /// - `EINTR`, `ETIMEDOUT`, `EMSGSIZE`, `ENOMEM`; the error with which the server answered.
    pub fn admin(&self, dir: Dir, user_hdr: &[u8], reply: &mut [u8]) -> Result<Generation> {
        self.send_admin(None, dir, user_hdr, reply)
    }

    /// As [`admin`](Self::admin), but sends the message only in session generation `generation`: in
    /// a later one, its number may name another object.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// Errors of [`admin`](Self::admin). `ESTALE` can also mean that the message was not sent, as
    /// another generation had begun before.
    pub fn admin_in(
        &self,
        generation: Generation,
        dir: Dir,
        user_hdr: &[u8],
        reply: &mut [u8],
    ) -> Result {
        self.send_admin(Some(generation), dir, user_hdr, reply)
            .map(drop)
    }

    fn send_admin(
        &self,
        only: Option<Generation>,
        dir: Dir,
        user_hdr: &[u8],
        reply: &mut [u8],
    ) -> Result<Generation> {
        if user_hdr.len() > MAX_USER_HDR {
            return Err(EMSGSIZE);
        }
        let permit = self.admin.get(self, only)?;
        let io = {
            // These messages open devices whose I/O waits, and reclaim may depend on that I/O. The
            // number of permits limits how much of the reserve they take.
            let _reserve = Reserve::enter();
            SyncIo::new(reply.len())?
        };
        let mut req = Descriptor {
            usr_len: user_hdr.len(),
            entry: Entry::ADMIN,
            ..Descriptor::new(permit.tag(), dir, u32::try_from(reply.len())?)
        };
        let handle = io.handle()?;
        let multipath = self.multipath.read();
        let sent = match multipath.get() {
            // Another generation may have begun since the permit was acquired.
            Some(multipath) if only.is_some_and(|only| !multipath.is_of(only)) => {
                Err((ESTALE, handle))
            }
            // If its path is lost, the message is resent in the same generation or not at all.
            Some(multipath) => multipath
                .submit_to_one(self.policy(), &self.round_robin, &mut req, user_hdr, handle)
                .map(|_| multipath.generation),
            None => Err((ENOTCONN, handle)),
        };
        drop(multipath);
        let generation = sent.map_err(|(error, _io)| error)?;
        if let Err(error) = io.wait_interruptible_timeout(ADMIN_TIMEOUT_MS) {
            // A message that its sender no longer waits for must not be resent, as it could then
            // arrive after later messages.
            io.leave();
            if !io.has_ended() {
                permit.keep_until_answered(io);
            }
            return Err(if error == ERESTARTSYS { EINTR } else { error });
        }
        if !reply.is_empty() {
            let bytes = io.bytes()?.get(..reply.len()).ok_or(EIO)?;
            reply.copy_from_slice(bytes);
        }
        Ok(generation)
    }
}

/// Returns the number of the connection that serves `queue`: connection 0 is the service
/// connection.
pub(crate) fn cid_of(queue: u32) -> Option<u16> {
    u16::try_from(queue.checked_add(1)?).ok()
}
