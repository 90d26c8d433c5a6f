// SPDX-License-Identifier: GPL-2.0

//! Calls, GETs and PUTs as commands of io_uring: one thread makes many at a time, with few system calls. Needs the feature
//! `uring` of this crate, and a kernel that has not disabled io_uring.
//!
//! The memory of an operation, which the kernel reads and writes, belongs to the [`Ring`] and not to the program. So
//! there is nothing that the program could free or reuse too early.
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
use rustix::ioctl::Opcode;

use crate::channel::{answer, milliseconds, Channel};
use crate::error::{Error, Result};
use crate::memory::{may_go_on, Remote};
use crate::sys::{CallArgument, CALL, GET, PUT};
use crate::words::Doing;

/// Memory of a call, which the kernel uses until the command is complete. The argument comes first, so the address of
/// all is its address.
#[repr(C)]
struct CallMemory {
    argument: CallArgument,
    /// The argument has the address of its bytes.
    _request: Vec<u8>,
    reply: Vec<u8>,
}

impl CallMemory {
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

/// Memory of a GET or a PUT. Only the kernel uses its vectors, by the addresses that they had when they were made.
struct CopyMemory {
    argument: Vec<u8>,
    bytes: Vec<u8>,
}

impl CopyMemory {
    fn new(place: Remote, mut bytes: Vec<u8>, timeout: Option<Duration>) -> NonNull<Self> {
        let address = bytes.as_mut_ptr().expose_provenance();
        let argument = place.copy(address, bytes.len(), timeout);
        NonNull::from(Box::leak(Box::new(Self { argument, bytes })))
    }
}

/// Memory that nobody uses but the kernel, until [`Memory::take`].
#[derive(Clone, Copy)]
enum Memory {
    Call(NonNull<CallMemory>),
    Copy(NonNull<CopyMemory>),
}

/// The same, of which the kernel knows nothing any more.
enum Taken {
    Call(Box<CallMemory>),
    Copy(Box<CopyMemory>),
}

impl Memory {
    /// # Safety
    ///
    /// The kernel does not use the memory, and nobody takes it twice.
    #[allow(unsafe_code)]
    unsafe fn take(self) -> Taken {
        match self {
            // SAFETY: `CallMemory::new` has made it from a box.
            Self::Call(memory) => Taken::Call(unsafe { Box::from_raw(memory.as_ptr()) }),
            // SAFETY: `CopyMemory::new` has made it from a box.
            Self::Copy(memory) => Taken::Copy(unsafe { Box::from_raw(memory.as_ptr()) }),
        }
    }
}

/// An operation that is not complete.
struct Pending {
    memory: Memory,
    /// Has the descriptor stay this file's until the kernel has taken the command.
    _file: Arc<File>,
}

/// Names an operation of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Call(u64);

/// An operation that is complete.
#[derive(Debug)]
pub struct Done {
    /// Which one.
    pub call: Call,
    /// Of a call: the reply, or the errors of [`Channel::call`]; `EMSGSIZE` also for a reply that has no room. Of a GET:
    /// the bytes; of a PUT: the bytes that were put, to be used again; or the errors of [`Channel::get`] and
    /// [`Channel::put`].
    pub result: Result<Vec<u8>>,
}

/// Makes calls, GETs and PUTs on any number of channels.
///
/// If it is dropped, the kernel ends the operations that are not complete, as after a signal. Nothing tells when the
/// kernel has done so, so their memory is not freed: [`Ring::wait`] for them where that matters. The kernel's removal of
/// a ring interrupts the thread that had it, so [`Channel::call`] in that thread may end with `EINTR` soon after.
pub struct Ring {
    ring: IoUring,
    /// By the lower half of the number of an operation; the upper half tells operations in the same place apart.
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
    /// A ring for as many operations at a time, with room for a reply of `room` bytes for each call.
    ///
    /// # Errors
    ///
    /// Those of `io_uring_setup`: `EINVAL` for none or more than 32768, `EPERM` or `ENOSYS` if there is no io_uring.
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
        let memory = CallMemory::new(request, self.room, milliseconds(timeout));
        let memory = memory.map_err(|e| Error::system(Doing::Write, e))?;
        // The argument is its first field.
        let argument = memory.as_ptr().expose_provenance();
        self.push(channel, CALL, argument, Memory::Call(memory))
    }

    /// Copies bytes to memory that the other program has published, as [`Channel::put`]. Operations of a ring have no
    /// order among each other: what must come behind a PUT is made when that is complete.
    ///
    /// # Errors
    ///
    /// As [`Ring::call`].
    pub fn put(
        &mut self,
        channel: &Channel,
        handle: u64,
        offset: u64,
        bytes: Vec<u8>,
        timeout: Option<Duration>,
    ) -> Result<Call> {
        self.copy(channel, PUT, Remote { handle, offset }, bytes, timeout)
    }

    /// Copies bytes of memory that the other program has published, as [`Channel::get`].
    ///
    /// # Errors
    ///
    /// As [`Ring::call`].
    pub fn get(
        &mut self,
        channel: &Channel,
        handle: u64,
        offset: u64,
        len: usize,
        timeout: Option<Duration>,
    ) -> Result<Call> {
        let place = Remote { handle, offset };
        self.copy(channel, GET, place, vec![0; len], timeout)
    }

    fn copy(
        &mut self,
        channel: &Channel,
        how: Opcode,
        place: Remote,
        bytes: Vec<u8>,
        timeout: Option<Duration>,
    ) -> Result<Call> {
        let memory = CopyMemory::new(place, bytes, timeout);
        // SAFETY: It was made just now, and the kernel does not know it.
        #[allow(unsafe_code)]
        let argument = unsafe { memory.as_ref() }.argument.as_ptr();
        self.push(
            channel,
            how,
            argument.expose_provenance(),
            Memory::Copy(memory),
        )
    }

    /// Has the ring make an operation with this memory, of which `argument` is the address of a part.
    fn push(
        &mut self,
        channel: &Channel,
        how: Opcode,
        argument: usize,
        memory: Memory,
    ) -> Result<Call> {
        let number = self.try_push(channel, how, argument, memory);
        if number.is_none() {
            // SAFETY: The kernel does not know it, and the ring has forgotten it.
            #[allow(unsafe_code)]
            drop(unsafe { memory.take() });
        }
        number
            .map(Call)
            .ok_or_else(|| Error::system(Doing::Write, Errno::AGAIN))
    }

    /// `None` if there is no place.
    fn try_push(
        &mut self,
        channel: &Channel,
        how: Opcode,
        argument: usize,
        memory: Memory,
    ) -> Option<u64> {
        let &at = self.free.last()?;
        let number = u64::from(self.made) << 32 | u64::from(at);
        let file = channel.file();
        let entry = opcode::UringCmd16::new(types::Fd(file.as_raw_fd()), how)
            .addr(Some(argument as u64))
            .build()
            .user_data(number);
        // SAFETY: The argument has the addresses of the other parts of the memory, with their lengths. All of them stay
        // as they are until the command is complete, since only `finish` frees them; the descriptor is that of `file`
        // until then.
        #[allow(unsafe_code)]
        unsafe { self.ring.submission().push(&entry) }.ok()?;
        self.free.pop();
        self.made = self.made.wrapping_add(1);
        if let Some(place) = self.calls.get_mut(at as usize) {
            *place = Some(Pending {
                memory,
                _file: file,
            });
        }
        Some(number)
    }

    /// Gives the kernel all operations that were made.
    ///
    /// # Errors
    ///
    /// Those of `io_uring_enter`. The operations are still made with the next attempt.
    pub fn submit(&mut self) -> Result<()> {
        self.enter(0)
    }

    fn enter(&mut self, want: usize) -> Result<()> {
        match self.ring.submit_and_wait(want) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
            result => result.map(drop).map_err(|e| Error::system(Doing::Write, e)),
        }
    }

    /// The next operation that is complete, in any order; `None` if there is none that could be.
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

    /// An operation that is complete already.
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
        // SAFETY: The command is complete, so the kernel uses it no more, and the ring has just forgotten it.
        #[allow(unsafe_code)]
        let memory = unsafe { pending.memory.take() };
        let done = match entry.result() {
            error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
            _ => Ok(()),
        };
        Some(Done {
            call: Call(number),
            result: memory.result(done),
        })
    }
}

impl Taken {
    fn result(self, done: io::Result<()>) -> Result<Vec<u8>> {
        match self {
            Self::Call(memory) => answer(done.map(|()| memory.argument.reply()), memory.reply),
            Self::Copy(memory) => match done {
                Ok(()) => Ok(memory.bytes),
                Err(e) => {
                    // What goes on uses the pages of this buffer, which must not become those of another one.
                    if may_go_on(&e) {
                        std::mem::forget(memory);
                    }
                    Err(Error::system(Doing::Copy, e))
                }
            },
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.complete().is_some() {}
        // The kernel may still write to the memory of the others.
    }
}
