// SPDX-License-Identifier: GPL-2.0

//! The ioctls of `ibmsg.h`, and files in tokio's epoll: the only unsafe code of this crate but for [`uring`](crate::uring)
//! and [`memory`](crate::memory).

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};

/// Numbers of the ioctls.
pub(crate) const BIND: Opcode = 0xB900;
pub(crate) const CONNECT: Opcode = 0xB901;
pub(crate) const ACCEPT: Opcode = 0xB902;
pub(crate) const INFO: Opcode = 0xB903;
const SHUTDOWN: Opcode = 0xB904;
pub(crate) const CALL: Opcode = 0xB905;
const FLUSH: Opcode = 0xB906;
pub(crate) const TUNE: Opcode = 0xB907;
pub(crate) const SUBSCRIBE: Opcode = 0xB910;
pub(crate) const UNSUBSCRIBE: Opcode = 0xB911;
pub(crate) const LOG: Opcode = 0xB912;
pub(crate) const MAP: Opcode = 0xB908;
pub(crate) const UNMAP: Opcode = 0xB909;
pub(crate) const PUT: Opcode = 0xB90A;
pub(crate) const GET: Opcode = 0xB90B;
pub(crate) const RELEASE: Opcode = 0xB90C;

/// An ioctl with a structure, which begins with its size.
struct Call<'a> {
    number: Opcode,
    argument: &'a mut [u8],
}

// SAFETY: `ioctl` checks that the structure says its own length. The kernel reads no more than that, and writes
// only to fields of it; the structure is borrowed mutably for the call. The result is a number.
#[allow(unsafe_code)]
unsafe impl Ioctl for Call<'_> {
    type Output = IoctlOutput;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.number
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.argument.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(
        output: IoctlOutput,
        _: *mut c_void,
    ) -> rustix::io::Result<IoctlOutput> {
        Ok(output)
    }
}

/// `struct ibmsg_call`.
#[repr(C)]
pub(crate) struct CallArgument {
    size: u32,
    flags: u32,
    request: u64,
    reply: u64,
    request_len: u32,
    reply_len: u32,
    timeout_ms: u32,
    status: i32,
    tag: u64,
}

impl CallArgument {
    /// A call with this request and this room for its reply, which the caller keeps for as long as the kernel has it.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE`
    pub(crate) fn new(request: &[u8], reply: &mut [u8], timeout_ms: u32) -> io::Result<Self> {
        let length = |len: usize| u32::try_from(len).map_err(|_| rustix::io::Errno::MSGSIZE);
        Ok(Self {
            // CAST: A small constant.
            size: size_of::<Self>() as u32,
            flags: 0,
            request: request.as_ptr().expose_provenance() as u64,
            reply: reply.as_mut_ptr().expose_provenance() as u64,
            request_len: length(request.len())?,
            reply_len: length(reply.len())?,
            timeout_ms,
            status: 0,
            tag: 0,
        })
    }

    /// Status and length of the reply.
    pub(crate) fn reply(&self) -> (i32, usize) {
        // CAST: Lossless.
        (self.status, self.reply_len as usize)
    }
}

/// `IBMSG_IOC_CALL`, with the memory that its argument refers to.
struct Waiting<'a> {
    argument: &'a mut CallArgument,
    _request: &'a [u8],
    _reply: &'a mut [u8],
}

// SAFETY: The kernel reads the argument, and as much of the request as that says; it writes two fields of the argument,
// and no more to the reply than that has room. All of it is borrowed for the call.
#[allow(unsafe_code)]
unsafe impl Ioctl for Waiting<'_> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        CALL
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.argument).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// `IBMSG_IOC_CALL`: status and length of the reply. A reply that has no room is an error, `EMSGSIZE`.
pub(crate) fn call(
    file: impl AsFd,
    request: &[u8],
    reply: &mut [u8],
    timeout_ms: u32,
) -> io::Result<(i32, usize)> {
    let mut argument = CallArgument::new(request, reply, timeout_ms)?;
    let waiting = Waiting {
        argument: &mut argument,
        _request: request,
        _reply: reply,
    };
    // SAFETY: As for `ioctl`: other files refuse the number.
    #[allow(unsafe_code)]
    unsafe { rustix::ioctl::ioctl(file, waiting) }?;
    Ok(argument.reply())
}

/// `IBMSG_IOC_SHUTDOWN` or `IBMSG_IOC_FLUSH`, which have no argument.
struct Bare(Opcode);

// SAFETY: The kernel reads and writes nothing of the program.
#[allow(unsafe_code)]
unsafe impl Ioctl for Bare {
    type Output = ();
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        self.0
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// One of the ioctls with a structure. The structure has its size in the first four bytes.
pub(crate) fn ioctl(file: impl AsFd, number: Opcode, argument: &mut [u8]) -> io::Result<i32> {
    let size = argument
        .first_chunk()
        .map(|size| u32::from_ne_bytes(*size) as usize);
    assert_eq!(
        size,
        Some(argument.len()),
        "the structure of an ioctl says its size"
    );
    let call = Call { number, argument };
    // SAFETY: The numbers are those of `ibmsg.h`, all of whose ioctls take a structure of this kind. For any other
    // file, the kernel refuses a number that the file does not know; none of the drivers in the kernel has these.
    #[allow(unsafe_code)]
    Ok(unsafe { rustix::ioctl::ioctl(file, call) }?)
}

/// As [`ioctl`], with a structure that says where memory of the program is.
///
/// # Safety
///
/// The kernel, and the other program, may use that memory as `number` says, for as long as that takes.
#[allow(unsafe_code)]
pub(crate) unsafe fn with_memory(
    file: impl AsFd,
    number: Opcode,
    argument: &mut [u8],
) -> io::Result<()> {
    // Nothing else differs: what the kernel does with the memory is the caller's promise.
    ioctl(file, number, argument).map(drop)
}

/// One that returns a new file.
pub(crate) fn open(file: impl AsFd, number: Opcode, argument: &mut [u8]) -> io::Result<OwnedFd> {
    let fd = ioctl(file, number, argument)?;
    // SAFETY: The kernel has opened this file for the program, and nobody else knows it.
    #[allow(unsafe_code)]
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `IBMSG_IOC_SHUTDOWN`.
pub(crate) fn shutdown(file: impl AsFd) -> io::Result<()> {
    // SAFETY: As for `ioctl`; there is no argument.
    #[allow(unsafe_code)]
    Ok(unsafe { rustix::ioctl::ioctl(file, Bare(SHUTDOWN)) }?)
}

/// `IBMSG_IOC_FLUSH`.
pub(crate) fn flush(file: impl AsFd) -> io::Result<()> {
    // SAFETY: As for `shutdown`.
    #[allow(unsafe_code)]
    Ok(unsafe { rustix::ioctl::ioctl(file, Bare(FLUSH)) }?)
}

/// Has tokio wait for a file.
///
/// # Panics
///
/// Outside of a runtime of tokio.
#[cfg(feature = "tokio")]
pub(crate) fn watch(
    file: std::sync::Arc<std::fs::File>,
    interest: tokio::io::Interest,
) -> io::Result<tokio::io::unix::AsyncFd<std::sync::Arc<std::fs::File>>> {
    // SAFETY: A `File` owns its descriptor, which is open and the same until the `File` is dropped; nobody replaces the
    // file in an `AsyncFd` that is only lent out shared.
    #[allow(unsafe_code)]
    Ok(unsafe { tokio::io::unix::AsyncFd::register_with_interest(file, interest) }?)
}
