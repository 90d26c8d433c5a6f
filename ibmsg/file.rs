// SPDX-License-Identifier: GPL-2.0

//! The files that programs have: the device, portals and channels. `ibmsg.h` describes them.

mod call;
mod channel;
mod context;
mod events;
mod memory;
mod portal;
mod publish;

pub(crate) use context::Context;

use kernel::prelude::*;
use kx::file::{
    IovIterDest,
    IovIterSource,
    WaitQueue, //
};

use crate::types::{
    Arg,
    Body,
    Bytes,
    Header,
    Name,
    Terms,
    ALIGN,
    HEADER_LEN,
    MAX_DATA, //
};

/// Numbers of the ioctls, without sizes.
const BIND: u32 = 0xB900;
const CONNECT: u32 = 0xB901;
const ACCEPT: u32 = 0xB902;
const INFO: u32 = 0xB903;
const SHUTDOWN: u32 = 0xB904;
const CALL: u32 = 0xB905;
const FLUSH: u32 = 0xB906;
const TUNE: u32 = 0xB907;
const MAP: u32 = 0xB908;
const UNMAP: u32 = 0xB909;
const PUT: u32 = 0xB90A;
const GET: u32 = 0xB90B;
const RELEASE: u32 = 0xB90C;
const SUBSCRIBE: u32 = 0xB910;
const UNSUBSCRIBE: u32 = 0xB911;
const LOG: u32 = 0xB912;

/// The new file has `O_NONBLOCK`.
const NONBLOCK: u32 = 1;
/// An offer is refused.
const REJECT: u32 = 2;
/// A portal takes programs of machines that have not proved that they have a key.
const UNAUTHENTICATED: u32 = 4;

/// Where `connect.status` and `connect.data_len` are, and the data.
const CONNECT_STATUS: usize = 12;
const CONNECT_DATA: usize = 184;
const CONNECT_LEN: usize = CONNECT_DATA + MAX_DATA;
const BIND_LEN: usize = 112;
const ACCEPT_LEN: usize = 24 + MAX_DATA;
const INFO_LEN: usize = 248;
/// Where `call.reply_len` and `call.status` are.
const CALL_REPLY_LEN: usize = 28;
const CALL_STATUS: usize = 36;
const CALL_LEN: usize = 48;
const TUNE_LEN: usize = 24;

/// Where `map.handle` is.
const MAP_HANDLE: usize = 32;
const MAP_LEN: usize = 40;
const UNMAP_LEN: usize = 16;
const RELEASE_LEN: usize = 16;
const COPY_LEN: usize = 48;

/// What the other program may do with memory that is published.
const MEM_GET: u32 = 1;
const MEM_PUT: u32 = 2;
/// Nothing, until it is the body of a message.
const MEM_BODY: u32 = 4;

/// The longest message that can be written.
const MAX_MESSAGE: usize = ibmsg_proto::limits::MAX_MESSAGE as usize;

/// What a file is, for `info.kind`.
const FILE_CONTEXT: u32 = 1;
const FILE_PORTAL: u32 = 2;
const FILE_CHANNEL: u32 = 3;

/// Private data of this length, from a field that is longer.
fn data(fields: &mut Bytes<'_>, len: u32) -> Result<KVec<u8>> {
    let field = fields.take(MAX_DATA)?;
    // CAST: Lossless.
    crate::types::copy(field.get(..len as usize).ok_or(EINVAL)?, GFP_KERNEL_ACCOUNT)
}

/// Fills `struct ibmsg_info`, one field after the other.
struct InfoWriter {
    bytes: [u8; INFO_LEN],
    at: usize,
}

impl InfoWriter {
    fn new(kind: u32) -> Self {
        let mut this = Self {
            bytes: [0; INFO_LEN],
            at: 0,
        };
        // CAST: A small constant.
        this.u32(INFO_LEN as u32);
        this.u32(kind);
        this
    }

    fn put(&mut self, field: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.at..self.at + field.len()) {
            place.copy_from_slice(field);
        }
        self.at += field.len();
    }

    fn u32(&mut self, field: u32) {
        self.put(&field.to_ne_bytes());
    }

    fn len(&mut self, field: usize) {
        self.u32(u32::try_from(field).unwrap_or(u32::MAX));
    }

    fn u64(&mut self, field: u64) {
        self.put(&field.to_ne_bytes());
    }

    fn terms(&mut self, terms: Option<&Terms>) {
        let fields = terms.map_or([0; 8], Terms::as_field);
        for field in fields {
            self.u32(field);
        }
    }

    /// The names are the last fields.
    fn names(&mut self, session: Option<&Name>, portal: Option<&Name>) {
        self.at = INFO_LEN - 2 * crate::types::NAME_LEN;
        for name in [session, portal] {
            let none = [0; crate::types::NAME_LEN];
            self.put(name.map_or(&none, |name| name.as_field()));
        }
    }

    /// Gives it to the program.
    fn write(self, address: usize) -> Result<usize> {
        // It is an error if the program cannot take all of it.
        let arg = Arg::<INFO_LEN>::read(address)?;
        arg.write(4, self.bytes.get(4..).ok_or(EINVAL)?)?;
        Ok(0)
    }
}

/// What was copied to a program by one read.
struct Reading {
    /// Bytes so far.
    done: usize,
}

impl Reading {
    /// Zeroes before the next message.
    fn padding(&self) -> usize {
        self.done.next_multiple_of(ALIGN) - self.done
    }

    /// Bytes that the next message may have.
    fn room(&self, to: &IovIterDest<'_>) -> usize {
        to.len().saturating_sub(self.padding())
    }

    /// Copies a message, for which there is room.
    ///
    /// # Errors
    ///
    /// [`EFAULT`]. What was copied before counts nevertheless.
    fn copy(
        &mut self,
        to: &mut IovIterDest<'_>,
        header: &Header,
        parts: &[&[u8]],
        body: Option<&Body>,
    ) -> Result {
        let (begin, padding) = (to.len(), self.padding());
        let zeroes = [0; ALIGN];
        let header = header.bytes();
        let pad = zeroes.get(..padding).unwrap_or(&[]);
        for part in Iterator::chain([pad, &header].iter(), parts) {
            if to.copy_to_iter(part) != part.len() {
                return Err(EFAULT);
            }
        }
        if let Some(body) = body {
            body.read_out(to)?;
        }
        self.done += begin - to.len();
        Ok(())
    }

    /// The result of a read that ends with an error.
    fn or(&self, error: Error) -> Result<usize> {
        match self.done {
            0 => Err(error),
            done => Ok(done),
        }
    }
}

/// The header of the message that a program writes, and the length of the content behind it.
///
/// # Errors
///
/// [`EINVAL`], [`EMSGSIZE`], [`EFAULT`]
fn written(from: &mut IovIterSource<'_>) -> Result<(Header, usize)> {
    let len = from.len().checked_sub(HEADER_LEN).ok_or(EINVAL)?;
    if len > MAX_MESSAGE {
        return Err(EMSGSIZE);
    }
    let mut header = [0; HEADER_LEN];
    if from.copy_from_iter(&mut header) != HEADER_LEN {
        return Err(EFAULT);
    }
    Ok((Header::written(&header, len)?, len))
}

/// Tries something that fails with [`EAGAIN`] as long as there is no room, until there is some.
///
/// # Errors
///
/// Those of `attempt`; [`EAGAIN`] unless the task may wait; [`ERESTARTSYS`] if a signal came first.
fn with_room<R>(
    waiters: &WaitQueue,
    may_wait: bool,
    mut attempt: impl FnMut() -> Result<R>,
) -> Result<R> {
    match attempt() {
        Err(EAGAIN) if may_wait => waiters.wait(None, || match attempt() {
            Err(EAGAIN) => None,
            result => Some(result),
        })?,
        result => result,
    }
}

/// Whether a buffer can have any message at all.
fn is_too_small(to: &IovIterDest<'_>) -> bool {
    to.len() < HEADER_LEN
}
