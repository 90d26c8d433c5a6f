// SPDX-License-Identifier: GPL-2.0

//! Commands that a program submits to a file through io_uring (`IORING_OP_URING_CMD`).
//!
//! A command is *issued* once, or a second time if the first attempt would have blocked. It then either
//! fails or is queued. The owner of the [`Command`] completes a queued command, in any context. The result
//! is computed in a task of the program, so that it can be copied to the program's memory.
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

/// The io_uring commands of a file. By default, all fail with `EOPNOTSUPP`.
pub trait UringOps: Sized {
    /// Handles a command.
    fn uring_cmd<'a>(&self, issue: Issue<'a, Self>) -> Issued<'a> {
        issue.fail(EOPNOTSUPP)
    }

    /// Computes the result of a command that was queued with `words`, in a task of the program. If
    /// `is_dying` is set, the program's memory is no longer accessible.
    ///
    /// # Errors
    ///
    /// The error becomes the result of the command.
    fn uring_complete(&self, _words: Words, _is_dying: bool) -> Result<usize> {
        Err(EOPNOTSUPP)
    }

    /// Cancels the command that was queued with `words`, because its task exits or its ring is closed.
    /// Returns the command and the error with which it fails, unless it is already complete. This may be
    /// called more than once, even before [`Issue::queue`] returns. A command that is neither returned nor
    /// completed blocks the release of its ring and the exit of its task.
    fn uring_cancel(&self, _words: Words) -> Option<(Command, Error)> {
        None
    }
}

/// Data that a driver stores in a command.
pub type Words = [u64; 2];

// CAST: Bits.
const NONBLOCK: c_uint = ours::io_uring_cmd_flags_IO_URING_F_NONBLOCK as c_uint;
const CANCEL: c_uint = ours::io_uring_cmd_flags_IO_URING_F_CANCEL as c_uint;

/// A command that is being issued to a file with objects of type `T`. `'a` ties it to this call.
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

/// The outcome of an issued command, an errno or `-EIOCBQUEUED`. `'a` ties it to the same call.
pub struct Issued<'a>(c_int, Call<'a>);

/// Ties a value to one call, by an invariant lifetime.
type Call<'a> = PhantomData<fn(&'a ()) -> &'a ()>;

impl<'a, T: UringOps> Issue<'a, T> {
    /// The operation.
    pub fn op(&self) -> u32 {
        // SAFETY: By the type invariant.
        unsafe { ours::kx_uring_op(self.cmd.as_ptr()) }
    }

    /// The field `addr` of the submission queue entry. Each call may return another value.
    pub fn addr(&self) -> u64 {
        // SAFETY: By the type invariant; the submission queue entry is valid while the command is
        // being issued.
        unsafe { ours::kx_uring_addr(self.cmd.as_ptr()) }
    }

    /// Whether the call may wait. If not, io_uring reissues a command that fails with [`EAGAIN`] in a
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

    /// Fails the command.
    pub fn fail(self, error: Error) -> Issued<'a> {
        let errno = errno(error);
        if errno == EAGAIN.to_errno() && self.may_wait() {
            // With IORING_SETUP_IOPOLL, the core would reissue the command forever.
            // SAFETY: By the type invariant; the flags are those of this call, which returns `-EIOCBQUEUED`.
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
        // SAFETY: By the type invariant; the words are in the command, which is not shared yet. CAST: An
        // array has the address of its first element.
        unsafe {
            ours::kx_uring_words(self.cmd.as_ptr())
                .cast::<Words>()
                .write(words);
        }
        // SAFETY: By the type invariant. From here on, the core may cancel the command.
        unsafe { ours::kx_uring_mark_cancelable(self.cmd.as_ptr(), self.flags) };
        let queued = Issued(-(bindings::EIOCBQUEUED as c_int), PhantomData);
        // INVARIANT: Only this value completes the command: there is one for each `Issue`, and the call
        // returns `queued`, as there is no other `Issued` for it.
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
        // The system call that submitted the command has already succeeded, so it cannot be
        // restarted.
        errno if errno == ERESTARTSYS.to_errno() => EINTR.to_errno(),
        // Errors that are internal to the kernel. One of them, `-EIOCBQUEUED`, would mean that the
        // command is queued.
        ..=-512 => EIO.to_errno(),
        errno => errno,
    }
}

/// A function for task work.
type TaskWork = unsafe extern "C" fn(ours::io_tw_req, ours::io_tw_token_t);
/// Index of the errno, behind the words of the driver.
const ERRNO: usize = size_of::<Words>() / size_of::<u64>();

/// A queued command. Its owner must complete it; if dropped, the command fails with `ECANCELED`.
///
/// # Invariants
///
/// The command is queued, and only this value completes it. Until then, io_uring keeps the command and its
/// file, whose object has the type that `complete` was instantiated for.
pub struct Command {
    cmd: NonNull<bindings::io_uring_cmd>,
    complete: TaskWork,
}

// SAFETY: Task work may be added for a command in any context.
unsafe impl Send for Command {}

impl Command {
    /// Schedules the completion of the command by [`UringOps::uring_complete`], in a task of the
    /// program.
    ///
    /// # Context
    ///
    /// *any*
    pub fn complete(self) {
        let this = ManuallyDrop::new(self);
        // SAFETY: By the type invariant, and `this` is not used again.
        unsafe { ours::kx_uring_do_in_task(this.cmd.as_ptr(), Some(this.complete)) };
    }

    /// Fails the command.
    ///
    /// # Context
    ///
    /// *any*
    pub fn fail(self, error: Error) {
        let cmd = ManuallyDrop::new(self).cmd.as_ptr();
        // SAFETY: By the type invariant. No other code uses this word, for which the command has
        // space behind the driver's words.
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
    // SAFETY: The owner of the command has passed it to this task work. The core holds the file, and with it
    // this module, until it has posted the completion after this function.
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
    // SAFETY: By this function's contract; the words do not change once the command is queued. CAST: An array
    // has the address of its first element.
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
        // If the driver returns another command, that one is dropped and fails.
        let is_it = |(command, _): &(Command, Error)| command.cmd.as_ptr() == cmd;
        if let Some((command, error)) = command.filter(is_it) {
            let cmd = ManuallyDrop::new(command).cmd.as_ptr();
            // SAFETY: By the type invariant of `command`, which is not used again. The flags are those
            // of this call.
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
