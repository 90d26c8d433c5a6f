// SPDX-License-Identifier: GPL-2.0

//! Calls as commands of io_uring: one thread makes many at a time, with few system calls. Needs the feature `uring` of
//! this crate, and a kernel that has not disabled io_uring.
//!
//! The memory of a call, which the kernel writes the reply to, belongs to the [`Ring`] and not to the program. So there
//! is nothing that the program could free or reuse too early.
//!
//! ```no_run
//! # fn main() -> ibmsg::Result<()> {
//! let channel = ibmsg::Connect::new("storage1", "kv").open()?;
//! let mut ring = ibmsg::uring::Ring::new(64, 4096)?;
//! for key in ["a", "b", "c"] {
//!     ring.call(&channel, key.into(), None)?;
//! }
//! while let Some(done) = ring.wait()? {
//!     println!("{:?}: {:?}", done.call, done.result);
//! }
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use io_uring::{cqueue, opcode, types, IoUring};
use rustix::io::Errno;

use crate::channel::{answer, milliseconds, Channel};
use crate::error::{Error, Result};
use crate::sys::{CallArgument, CALL};
use crate::words::Doing;

/// Memory of a call, which the kernel uses until the command is complete. The argument comes first, so the address of
/// all is its address.
#[repr(C)]
struct Memory {
    argument: CallArgument,
    /// The argument has the address of its bytes.
    _request: Vec<u8>,
    reply: Vec<u8>,
}

impl Memory {
    fn new(request: Vec<u8>, room: usize, timeout_ms: u32) -> io::Result<NonNull<Self>> {
        let mut reply = vec![0; room];
        let memory = Box::new(Self {
            argument: CallArgument::new(&request, &mut reply, timeout_ms)?,
            _request: request,
            reply,
        });
        Ok(NonNull::from(Box::leak(memory)))
    }
}

/// A call that is not complete.
struct Pending {
    /// Nobody uses it but the kernel.
    memory: NonNull<Memory>,
    /// Has the descriptor stay this file's until the kernel has taken the command.
    _file: Arc<File>,
}

/// Names a call of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Call(u64);

/// A call that is complete.
#[derive(Debug)]
pub struct Done {
    /// Which one.
    pub call: Call,
    /// The reply, or the errors of [`Channel::call`]; `EMSGSIZE` also for a reply that has no room.
    pub result: Result<Vec<u8>>,
}

/// Makes calls on any number of channels.
///
/// If it is dropped, the kernel ends the calls that are not complete, as after a signal. Nothing tells when the kernel
/// has done so, so their memory is not freed: [`Ring::wait`] for them where that matters. The kernel's removal of a ring
/// interrupts the thread that had it, so [`Channel::call`] in that thread may end with `EINTR` soon after.
pub struct Ring {
    ring: IoUring,
    /// By the lower half of the number of a call; the upper half tells calls in the same place apart.
    calls: Vec<Option<Pending>>,
    free: Vec<u32>,
    made: u32,
    room: usize,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pending = self.calls.len() - self.free.len();
        f.debug_struct("Ring")
            .field("pending", &pending)
            .finish_non_exhaustive()
    }
}

impl Ring {
    /// A ring for as many calls at a time, with room for a reply of `room` bytes for each.
    ///
    /// # Errors
    ///
    /// Those of `io_uring_setup`: `EINVAL` for no call or more than 32768, `EPERM` or `ENOSYS` if there is no io_uring.
    pub fn new(calls: u32, room: usize) -> Result<Self> {
        // Without COOP_TASKRUN, each completion would interrupt ioctls of this thread.
        let ring = IoUring::builder()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .build(calls);
        Ok(Self {
            ring: ring.map_err(|e| Error::system(Doing::Open, e))?,
            calls: (0..calls).map(|_| None).collect(),
            free: (0..calls).rev().collect(),
            made: 0,
            room,
        })
    }

    /// Makes a call. The kernel gets it with the next [`Ring::submit`] or [`Ring::wait`]. The channel stays open until
    /// the call is complete.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if the ring has no place for another call: [`Ring::wait`] makes one.
    pub fn call(
        &mut self,
        channel: &Channel,
        request: Vec<u8>,
        timeout: Option<Duration>,
    ) -> Result<Call> {
        let full = || Error::system(Doing::Write, Errno::AGAIN);
        let &at = self.free.last().ok_or_else(full)?;
        let number = u64::from(self.made) << 32 | u64::from(at);
        let memory = Memory::new(request, self.room, milliseconds(timeout));
        let memory = memory.map_err(|e| Error::system(Doing::Write, e))?;
        let file = channel.file();
        let entry = opcode::UringCmd16::new(types::Fd(file.as_raw_fd()), CALL)
            .addr(Some(memory.as_ptr().expose_provenance() as u64))
            .build()
            .user_data(number);
        // SAFETY: The argument, the first field of the memory, has the addresses of the request and of the room for the
        // reply, with their lengths. All three stay as they are until the command is complete, since only `finish`
        // frees them; the descriptor is that of `file` until then.
        #[allow(unsafe_code)]
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            // SAFETY: `Memory::new` has made it, and the kernel does not know it.
            #[allow(unsafe_code)]
            drop(unsafe { Box::from_raw(memory.as_ptr()) });
            return Err(full());
        }
        self.free.pop();
        self.made = self.made.wrapping_add(1);
        if let Some(place) = self.calls.get_mut(at as usize) {
            *place = Some(Pending {
                memory,
                _file: file,
            });
        }
        Ok(Call(number))
    }

    /// Gives the kernel all calls that were made.
    ///
    /// # Errors
    ///
    /// Those of `io_uring_enter`. The calls are still made with the next attempt.
    pub fn submit(&mut self) -> Result<()> {
        self.enter(0)
    }

    fn enter(&mut self, want: usize) -> Result<()> {
        match self.ring.submit_and_wait(want) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
            result => result.map(drop).map_err(|e| Error::system(Doing::Write, e)),
        }
    }

    /// The next call that is complete, in any order; `None` if there is none that could be.
    ///
    /// # Errors
    ///
    /// As [`Ring::submit`].
    pub fn wait(&mut self) -> Result<Option<Done>> {
        loop {
            if let Some(done) = self.complete() {
                return Ok(Some(done));
            }
            if self.free.len() == self.calls.len() {
                return Ok(None);
            }
            self.enter(1)?;
        }
    }

    /// A call that is complete already.
    fn complete(&mut self) -> Option<Done> {
        let entry = self.ring.completion().next()?;
        self.finish(&entry)
    }

    fn finish(&mut self, entry: &cqueue::Entry) -> Option<Done> {
        let number = entry.user_data();
        // CAST: The lower half.
        let at = number as u32;
        let pending = self.calls.get_mut(at as usize)?.take()?;
        self.free.push(at);
        // SAFETY: `Memory::new` has made it. The command is complete, so the kernel uses it no more, and the ring has
        // just forgotten it.
        #[allow(unsafe_code)]
        let memory = unsafe { Box::from_raw(pending.memory.as_ptr()) };
        let done = match entry.result() {
            error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
            _ => Ok(memory.argument.reply()),
        };
        Some(Done {
            call: Call(number),
            result: answer(done, memory.reply),
        })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.complete().is_some() {}
        // The kernel may still write to the memory of the others.
    }
}
