// SPDX-License-Identifier: GPL-2.0

//! Commands that a program gives to a file by io_uring (`IORING_OP_URING_CMD`).
//!
//! A command is *issued* once, or twice if it would have had to wait the first time. It fails then, or is
//! queued: from then on, the owner of its [`Command`] completes it, in any context. The result is made in a
//! task of the program, which may copy to its memory.
//!
//! C header: [`include/linux/io_uring/cmd.h`](srctree/include/linux/io_uring/cmd.h)

use core::{
    marker::PhantomData,
    mem::ManuallyDrop,
    ptr::NonNull, //
};
use ibtrs_bindings as ours;
use kernel::{
    bindings,
    prelude::*, //
};

/// What a file does with commands; by default, they fail with `EOPNOTSUPP`.
pub trait UringOps: Sized {
    /// A program gives a command by io_uring.
    fn uring_cmd<'a>(&self, issue: Issue<'a, Self>) -> Issued<'a> {
        issue.fail(EOPNOTSUPP)
    }

    /// Makes the result of a command that was queued with `words`, in a task of the program. `is_dying`: it
    /// has no memory any more to copy to.
    ///
    /// # Errors
    ///
    /// Are the result as well.
    fn uring_complete(&self, _words: Words, _is_dying: bool) -> Result<usize> {
        Err(EOPNOTSUPP)
    }

    /// The command that was queued with `words` is to end at once, as its task or its ring goes. Returns it,
    /// and how it fails, unless it is complete. It may be called more than once, also before [`Issue::queue`]
    /// returns. A command that is neither returned nor completed keeps its ring, and a task that exits.
    fn uring_cancel(&self, _words: Words) -> Option<(Command, Error)> {
        None
    }
}

/// What a driver keeps in a command.
pub type Words = [u64; 2];

// CAST: Bits.
const NONBLOCK: c_uint = ours::io_uring_cmd_flags_IO_URING_F_NONBLOCK as c_uint;
const CANCEL: c_uint = ours::io_uring_cmd_flags_IO_URING_F_CANCEL as c_uint;

/// A command that is being issued to a file with objects of type `T`. It is of this call, `'a`, alone.
///
/// # Invariants
///
/// `cmd` is valid during `'a`, and neither queued nor complete.
pub struct Issue<'a, T> {
    cmd: NonNull<bindings::io_uring_cmd>,
    flags: c_uint,
    _call: Call<'a>,
    _object: PhantomData<T>,
}

/// What has become of an issued command: an errno or `-EIOCBQUEUED`. It is of the same call.
pub struct Issued<'a>(c_int, Call<'a>);

/// Of one call: no other lifetime will do.
type Call<'a> = PhantomData<fn(&'a ()) -> &'a ()>;

impl<'a, T: UringOps> Issue<'a, T> {
    /// The operation.
    pub fn op(&self) -> u32 {
        // SAFETY: By the type invariant.
        unsafe { ours::kx_uring_op(self.cmd.as_ptr()) }
    }

    /// The field `addr` of the submission queue entry. Each call may return another value.
    pub fn addr(&self) -> u64 {
        // SAFETY: By the type invariant; a command has its entry as long as it is being issued.
        unsafe { ours::kx_uring_addr(self.cmd.as_ptr()) }
    }

    /// Whether the call may wait. If not, failing with [`EAGAIN`] has the command issued once more, by a
    /// task that may.
    pub const fn may_wait(&self) -> bool {
        self.flags & NONBLOCK == 0
    }

    /// Whether the file has `O_NONBLOCK`.
    pub fn is_nonblock(&self) -> bool {
        // SAFETY: By the type invariant.
        let file = unsafe { ours::kx_uring_file(self.cmd.as_ptr()) };
        // SAFETY: The command keeps its file. `fcntl` may change the flags at any time, in one store.
        let flags = unsafe { (&raw const (*file).f_flags).read_volatile() };
        flags & bindings::O_NONBLOCK != 0
    }

    /// The command fails.
    pub fn fail(self, error: Error) -> Issued<'a> {
        let errno = errno(error);
        if errno == EAGAIN.to_errno() && self.may_wait() {
            // For a ring with IORING_SETUP_IOPOLL, the core would issue it for ever.
            // SAFETY: By the type invariant; the flags are those of this call, which returns that it is queued.
            unsafe { ours::kx_uring_done(self.cmd.as_ptr(), errno, self.flags) };
            return Issued(-(bindings::EIOCBQUEUED as c_int), PhantomData);
        }
        Issued(errno, PhantomData)
    }

    /// Queues the command, with `words` for [`UringOps::uring_complete`] and [`UringOps::uring_cancel`].
    ///
    /// # Context
    ///
    /// *may sleep*
    pub fn queue(self, words: Words) -> (Issued<'a>, Command) {
        // SAFETY: By the type invariant; the words are in the command, and nobody else has it yet. CAST: An
        // array is like its first element.
        unsafe {
            ours::kx_uring_words(self.cmd.as_ptr())
                .cast::<Words>()
                .write(words);
        }
        // SAFETY: By the type invariant. From here on, the core may ask to cancel the command.
        unsafe { ours::kx_uring_mark_cancelable(self.cmd.as_ptr(), self.flags) };
        let queued = Issued(-(bindings::EIOCBQUEUED as c_int), PhantomData);
        // INVARIANT: This value, of which there is one for an `Issue`, completes the command: the call returns
        // `queued`, as it has no other `Issued`.
        let command = Command {
            cmd: self.cmd,
            complete: complete::<T>,
        };
        (queued, command)
    }
}

/// An error as the result of a command.
fn errno(error: Error) -> c_int {
    match error.to_errno() {
        // The system call has succeeded long ago.
        errno if errno == ERESTARTSYS.to_errno() => EINTR.to_errno(),
        // Of the kernel alone. One of them would say that the command is queued.
        ..=-512 => EIO.to_errno(),
        errno => errno,
    }
}

/// A function for task work.
type TaskWork = unsafe extern "C" fn(ours::io_tw_req, ours::io_tw_token_t);
/// Where an errno is, behind the words of the driver.
const ERRNO: usize = size_of::<Words>() / size_of::<u64>();

/// A command that is queued, with the duty to complete it. One that is dropped fails with `ECANCELED`.
///
/// # Invariants
///
/// The command is queued, and only this value completes it. Until then, io_uring keeps it and its file, whose
/// objects are of the type for which `complete` is.
pub struct Command {
    cmd: NonNull<bindings::io_uring_cmd>,
    complete: TaskWork,
}

// SAFETY: Task work may be added for a command in any context.
unsafe impl Send for Command {}

impl Command {
    /// Has the driver complete the command by [`UringOps::uring_complete`], in a task of the program.
    ///
    /// # Context
    ///
    /// *any*
    pub fn complete(self) {
        let this = ManuallyDrop::new(self);
        // SAFETY: By the type invariant, and this value is gone.
        unsafe { ours::kx_uring_do_in_task(this.cmd.as_ptr(), Some(this.complete)) };
    }

    /// Fails the command.
    ///
    /// # Context
    ///
    /// *any*
    pub fn fail(self, error: Error) {
        let cmd = ManuallyDrop::new(self).cmd.as_ptr();
        // SAFETY: By the type invariant. Nobody else uses this word, which the helper has room for.
        let place = unsafe { ours::kx_uring_words(cmd).add(ERRNO) };
        // SAFETY: As above. CAST: An errno, in two's complement.
        unsafe { place.write(errno(error) as u64) };
        // SAFETY: As in `complete`; task work runs after this.
        unsafe { ours::kx_uring_do_in_task(cmd, Some(failed)) };
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        let Self { cmd, complete } = *self;
        // INVARIANT: `self` is not used any more.
        Self { cmd, complete }.fail(ECANCELED);
    }
}

/// # Safety
///
/// Called as task work of a command that was queued for a file with objects of type `T`.
unsafe extern "C" fn complete<T: UringOps>(req: ours::io_tw_req, token: ours::io_tw_token_t) {
    // SAFETY: By this function's contract.
    let cmd = unsafe { ours::kx_uring_from_tw(req) };
    // SAFETY: By this function's contract, the command is valid, and keeps its file.
    let (object, words) = unsafe { (object::<T>(cmd), words(cmd)) };
    let result = match object.uring_complete(words, token.cancel) {
        // CAST: A length, which fits.
        Ok(value) => value as i32,
        Err(e) => errno(e),
    };
    // SAFETY: The owner of the command has left it to this task work. The file, and so this module, stays until
    // the core has posted the completion, after this function.
    unsafe { ours::kx_uring_done_in_task(cmd, result) };
}

/// # Safety
///
/// As [`complete`]; the errno was written.
unsafe extern "C" fn failed(req: ours::io_tw_req, _token: ours::io_tw_token_t) {
    // SAFETY: By this function's contract.
    let cmd = unsafe { ours::kx_uring_from_tw(req) };
    // SAFETY: By this function's contract.
    let errno = unsafe { ours::kx_uring_words(cmd).add(ERRNO).read() };
    // SAFETY: As in `complete`. CAST: An errno, in two's complement.
    unsafe { ours::kx_uring_done_in_task(cmd, errno as i32) };
}

/// # Safety
///
/// The command must be valid, and its file have objects of type `T`. It must not be completed during `'a`.
unsafe fn object<'a, T>(cmd: *mut bindings::io_uring_cmd) -> &'a T {
    // SAFETY: By this function's contract.
    let file = unsafe { ours::kx_uring_file(cmd) };
    // SAFETY: The file owns a reference to its object, and the command one to the file.
    unsafe { &*(*file).private_data.cast_const().cast::<T>() }
}

/// # Safety
///
/// The command must be valid, and have been queued.
unsafe fn words(cmd: *mut bindings::io_uring_cmd) -> Words {
    // SAFETY: By this function's contract; the words do not change after that. CAST: An array is like its first
    // element.
    unsafe { ours::kx_uring_words(cmd).cast::<Words>().read() }
}

/// # Safety
///
/// Called by io_uring, for a file with objects of type `T`, to issue a command or to cancel it.
pub(super) unsafe extern "C" fn uring_cmd<T: UringOps>(
    cmd: *mut bindings::io_uring_cmd,
    flags: c_uint,
) -> c_int {
    // SAFETY: By this function's contract.
    let object = unsafe { object::<T>(cmd) };
    if flags & CANCEL != 0 {
        // SAFETY: By this function's contract; only queued commands are cancelled.
        let command = object.uring_cancel(unsafe { words(cmd) });
        // Another command than this one fails like any that is dropped.
        let is_it = |(command, _): &(Command, Error)| command.cmd.as_ptr() == cmd;
        if let Some((command, error)) = command.filter(is_it) {
            let cmd = ManuallyDrop::new(command).cmd.as_ptr();
            // SAFETY: By the type invariant, and that value is gone. The flags are those of this call.
            unsafe { ours::kx_uring_done(cmd, errno(error), flags) };
        }
        return 0;
    }
    let Some(cmd) = NonNull::new(cmd) else {
        return EINVAL.to_errno();
    };
    // INVARIANT: By this function's contract, the command is valid during the call.
    let issue = Issue {
        cmd,
        flags,
        _call: PhantomData,
        _object: PhantomData,
    };
    object.uring_cmd(issue).0
}
