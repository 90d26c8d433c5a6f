// SPDX-License-Identifier: GPL-2.0

//! Memory of programs of two machines: one publishes it, the other one gets from it and puts to it.
//!
//! ```no_run
//! # fn main() -> ibmsg::Result<()> {
//! use ibmsg::{Memory, Rights};
//!
//! let channel = ibmsg::Connect::new("storage1", "log").open()?;
//! let log = channel.publish(Memory::new(1 << 20), Rights::PUT)?;
//! channel.send(&log.handle().to_ne_bytes())?;
//! // Later, when a message has said that there is something.
//! let mut entry = [0; 512];
//! log.read(4096, &mut entry);
//! # Ok(())
//! # }
//! ```
//!
//! The other program may write to published memory at any time, so there are no references to its bytes: they are copied
//! in and out. Published memory is taken back before it is freed.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::channel::{milliseconds, Channel};
use crate::error::{Error, Result};
use crate::sys;
use crate::wire::Fields;
use crate::words::Doing;

/// Where memory begins, so that its offset is at the same place in a page.
const PAGE: usize = 1 << 16;
/// `IBMSG_MEM_BODY`: the memory becomes the body of a message.
const BODY: Rights = Rights(4);
/// Where `handle` is in `struct ibmsg_map`.
const HANDLE: usize = 32;

/// What the other program may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights(u32);

impl Rights {
    /// `IBMSG_MEM_GET`
    pub const GET: Self = Self(1);
    /// `IBMSG_MEM_PUT`
    pub const PUT: Self = Self(2);
    /// Both.
    pub const BOTH: Self = Self(3);
}

/// Bytes that others may read and write at any time.
#[derive(Debug)]
pub struct Memory {
    /// More than is asked for, so that a page begins among the first.
    bytes: Box<[AtomicU8]>,
    first: usize,
    len: usize,
}

impl Memory {
    /// Zeroes.
    ///
    /// # Panics
    ///
    /// If there is no memory.
    pub fn new(len: usize) -> Self {
        let bytes: Box<[AtomicU8]> = (0..len + PAGE).map(|_| AtomicU8::new(0)).collect();
        let first = bytes.as_ptr().addr().wrapping_neg() % PAGE;
        Self { bytes, first, len }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn part(&self, at: usize, len: usize) -> &[AtomicU8] {
        let end = at.checked_add(len).filter(|end| *end <= self.len);
        let end = end.expect("within the memory");
        &self.bytes[self.first + at..self.first + end]
    }

    /// Copies bytes from `at` on out of the memory.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    pub fn read(&self, at: usize, to: &mut [u8]) {
        let part = self.part(at, to.len());
        for (to, from) in to.iter_mut().zip(part) {
            *to = from.load(Ordering::Relaxed);
        }
    }

    /// Copies bytes into the memory, from `at` on.
    ///
    /// # Panics
    ///
    /// If it has fewer.
    pub fn write(&self, at: usize, from: &[u8]) {
        for (to, from) in self.part(at, from.len()).iter().zip(from) {
            to.store(*from, Ordering::Relaxed);
        }
    }
}

/// Memory that is published on a channel. It is taken back when this is dropped, which waits for the other machine.
#[derive(Debug)]
pub struct Published {
    /// None once it is taken back.
    memory: Option<Memory>,
    file: Arc<File>,
    handle: u64,
    is_body: bool,
}

impl Published {
    /// For the other program.
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// Takes the memory back.
    ///
    /// # Errors
    ///
    /// `EINTR`: a signal came first; `ESTALE`: the channel has ended. The memory is never freed then.
    pub fn take_back(mut self) -> Result<Memory> {
        self.unmap()
    }

    fn unmap(&mut self) -> Result<Memory> {
        let memory = self.memory.take().ok_or(Error::Format)?;
        let mut unmap = Fields::new().u32(0).u64(self.handle).finish();
        match sys::ioctl(&*self.file, sys::UNMAP, &mut unmap) {
            Ok(_) => Ok(memory),
            // A kernel that knows bodies says so only of memory that is out of reach.
            Err(e) if self.is_body && e.raw_os_error() == Some(Errno::STALE.raw_os_error()) => {
                Ok(memory)
            }
            Err(e) => {
                // The kernel may still be about to take it back: after a signal, or with a channel that has ended.
                std::mem::forget(memory);
                Err(Error::system(Doing::Map, e))
            }
        }
    }
}

impl Deref for Published {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        self.memory
            .as_ref()
            .expect("it is taken back only when this ends")
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        if self.memory.is_some() {
            let _ = self.unmap();
        }
    }
}

/// A place in memory of the other program.
#[derive(Clone, Copy)]
pub(crate) struct Remote {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
}

impl Remote {
    /// `struct ibmsg_copy`.
    pub(crate) fn copy(self, address: usize, len: usize, timeout: Option<Duration>) -> Vec<u8> {
        Fields::new()
            .u32(0)
            .u64(self.handle)
            .u64(self.offset)
            .u64(address as u64)
            .u64(len as u64)
            .u32(milliseconds(timeout))
            .u32(0)
            .finish()
    }
}

/// Publishes memory on a channel.
pub(crate) fn publish(file: Arc<File>, memory: Memory, rights: Rights) -> Result<Published> {
    let address = memory.part(0, memory.len).as_ptr().expose_provenance();
    let mut map = Fields::new()
        .u32(rights.0)
        .u64(address as u64)
        .u64(memory.len as u64)
        .u64(0)
        .u64(0)
        .finish();
    // SAFETY: The bytes are atomic, and are freed only after the kernel has taken them back.
    #[allow(unsafe_code)]
    let mapped = unsafe { sys::with_memory(&*file, sys::MAP, &mut map) };
    mapped.map_err(|e| Error::system(Doing::Map, e))?;
    let handle = map.get(HANDLE..).and_then(|bytes| bytes.first_chunk());
    Ok(Published {
        handle: handle.map_or(0, |bytes| u64::from_ne_bytes(*bytes)),
        memory: Some(memory),
        file,
        is_body: rights == BODY,
    })
}

/// The same for memory that becomes the body of a message.
pub(crate) fn publish_body(file: Arc<File>, memory: Memory) -> Result<Published> {
    publish(file, memory, BODY)
}

/// Whether the kernel, or the other machine, may use the buffer of an operation that has failed so.
pub(crate) fn may_go_on(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::TIMEDOUT | Errno::INTR))
}

pub(crate) fn put(
    file: &File,
    place: Remote,
    bytes: &[u8],
    timeout: Option<Duration>,
) -> io::Result<()> {
    let address = bytes.as_ptr().expose_provenance();
    let mut put = place.copy(address, bytes.len(), timeout);
    // SAFETY: The kernel reads the bytes, whose pages it keeps.
    #[allow(unsafe_code)]
    unsafe {
        sys::with_memory(file, sys::PUT, &mut put)
    }
}

pub(crate) fn get(
    file: &File,
    place: Remote,
    len: usize,
    timeout: Option<Duration>,
) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let address = bytes.as_mut_ptr().expose_provenance();
    let mut get = place.copy(address, len, timeout);
    // SAFETY: The kernel writes to the buffer, which belongs to this function. Unless it says that it does not any more,
    // the buffer is never freed.
    #[allow(unsafe_code)]
    match unsafe { sys::with_memory(file, sys::GET, &mut get) } {
        Ok(()) => Ok(bytes),
        Err(e) => {
            if may_go_on(&e) {
                std::mem::forget(bytes);
            }
            Err(e)
        }
    }
}

impl Channel {
    /// Publishes memory for the other program, whose offsets begin with 0.
    ///
    /// # Errors
    ///
    /// `ENOMEM` for the limit of locked memory, `EOPNOTSUPP` on a channel of this machine, `ENOBUFS`, `EPIPE`.
    pub fn publish(&self, memory: Memory, rights: Rights) -> Result<Published> {
        publish(self.file(), memory, rights)
    }

    /// Copies bytes to memory that the other program has published, and waits until they are there. What it finds in a
    /// message that is sent afterwards, it finds behind them.
    ///
    /// # Errors
    ///
    /// `ESTALE`, `EACCES`, `ERANGE`: nothing was copied; `EIO`: a part may have been; `ECANCELED`, `ECONNABORTED`: the
    /// channel has ended; `ETIMEDOUT`, `EINTR`: some may be copied later, perhaps of what is in `bytes` then.
    pub fn put(
        &self,
        handle: u64,
        offset: u64,
        bytes: &[u8],
        timeout: Option<Duration>,
    ) -> Result<()> {
        let done = put(&self.file(), Remote { handle, offset }, bytes, timeout);
        done.map_err(|e| Error::system(Doing::Copy, e))
    }

    /// Copies bytes of memory that the other program has published.
    ///
    /// # Errors
    ///
    /// `ESTALE`, `EACCES`, `ERANGE`; `ECANCELED`: the channel has ended; `ETIMEDOUT`, `EINTR`: the other machine may still
    /// write to the buffer, which is lost.
    pub fn get(
        &self,
        handle: u64,
        offset: u64,
        len: usize,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>> {
        let done = get(&self.file(), Remote { handle, offset }, len, timeout);
        done.map_err(|e| Error::system(Doing::Copy, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_begins_with_a_page() {
        for len in [0, 1, 4096, 100_000] {
            let memory = Memory::new(len);
            assert_eq!(memory.len(), len);
            assert_eq!(memory.part(0, len).as_ptr().addr() % 4096, 0);
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let memory = Memory::new(100);
        memory.write(90, &[7; 10]);
        let mut bytes = [0; 11];
        memory.read(89, &mut bytes);
        assert_eq!(bytes, [0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
    }

    #[test]
    #[should_panic(expected = "within the memory")]
    fn nothing_else_is_read() {
        Memory::new(100).read(90, &mut [0; 11]);
    }
}
