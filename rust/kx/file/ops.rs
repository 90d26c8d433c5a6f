// SPDX-License-Identifier: GPL-2.0

//! The operations of a file.

use core::marker::PhantomData;
use ibtrs_bindings as ours;
use kernel::{
    alloc::Flags,
    bindings,
    fs::File,
    iov::{
        IovIterDest,
        IovIterSource, //
    },
    module::this_module,
    prelude::*,
    seq_file::SeqFile,
    sync::Arc,
    ModuleMetadata, //
};

use super::{
    uring::{
        self,
        UringOps, //
    },
    Ready,
    WaitQueue, //
};

/// How a file is read or written.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    /// The call must not wait, not even for a lock (`RWF_NOWAIT`, and io_uring).
    pub is_nowait: bool,
    /// The file has `O_NONBLOCK`.
    pub is_nonblock: bool,
}

impl Io {
    /// Whether the call may wait until there is something to do.
    pub const fn may_wait(&self) -> bool {
        !self.is_nowait && !self.is_nonblock
    }

    /// # Safety
    ///
    /// `kiocb` must be valid, and so its file.
    unsafe fn of(kiocb: *const bindings::kiocb) -> Self {
        // SAFETY: By this function's contract.
        let (flags, file) = unsafe { ((*kiocb).ki_flags, (*kiocb).ki_filp) };
        Self {
            is_nowait: flags & ours::IOCB_NOWAIT != 0,
            // SAFETY: By this function's contract the file is valid. `fcntl` may change the flags at any
            // time, in one store.
            is_nonblock: unsafe { (&raw const (*file).f_flags).read_volatile() }
                & bindings::O_NONBLOCK
                != 0,
        }
    }
}

/// The object of a file, which has the file's operations. A file owns a reference to its object.
pub trait FileOps: UringOps + Sized + Send + Sync + 'static {
    /// The driver: `crate::LocalModule`.
    type Module: ModuleMetadata;

    /// The tasks that wait for this file.
    fn waiters(&self) -> &WaitQueue;

    /// Returns which operations would not block now. When the file becomes ready for more, the
    /// driver must wake [`FileOps::waiters`].
    fn poll(&self) -> Ready;

    /// Reads; returns the number of bytes.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if the call would have to wait and `io` does not allow that.
    fn read(&self, _io: Io, _to: &mut IovIterDest<'_>) -> Result<usize> {
        Err(EINVAL)
    }

    /// Writes; returns the number of bytes.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if the call would have to wait and `io` does not allow that.
    fn write(&self, _io: Io, _from: &mut IovIterSource<'_>) -> Result<usize> {
        Err(EINVAL)
    }

    /// Handles `ioctl(2)`. 32-bit programs call this, too, so the structure that `arg` points to must
    /// have the same layout for them.
    ///
    /// # Errors
    ///
    /// `ENOTTY` if there is no such operation.
    fn ioctl(&self, file: &File, cmd: u32, arg: usize) -> Result<usize>;

    /// The current process closes one of its descriptors of the file, or dies.
    fn flush(&self) {}

    /// Nobody has the file any more.
    fn release(&self) {}

    /// Adds to the text of the file in /proc/PID/fdinfo.
    fn show_fdinfo(&self, _to: &SeqFile) {}
}

/// The operations for C.
pub(super) struct Vtable<T>(PhantomData<T>);

/// A length or an errno as C returns them.
fn returned(result: Result<usize>) -> isize {
    match result {
        // CAST: Lengths of reads and writes, and numbers of files, fit.
        Ok(value) => value as isize,
        // CAST: An errno fits.
        Err(e) => e.to_errno() as isize,
    }
}

impl<T: FileOps> Vtable<T> {
    pub(super) const fn operations() -> bindings::file_operations {
        bindings::file_operations {
            owner: this_module::<T::Module>().as_ptr(),
            flush: Some(Self::flush),
            release: Some(Self::release),
            read_iter: Some(Self::read_iter),
            write_iter: Some(Self::write_iter),
            poll: Some(Self::poll),
            unlocked_ioctl: Some(Self::ioctl),
            #[cfg(CONFIG_COMPAT)]
            compat_ioctl: bindings::compat_ptr_ioctl,
            show_fdinfo: Some(Self::show_fdinfo),
            #[cfg(CONFIG_IO_URING)]
            uring_cmd: Some(uring::uring_cmd::<T>),
            ..pin_init::zeroed()
        }
    }

    /// The operations of files that are made, not opened.
    pub(super) const MADE: &'static bindings::file_operations = &Self::operations();

    /// The object of a file.
    ///
    /// # Safety
    ///
    /// The file's `private_data` must come from [`Arc::into_raw`] of an `Arc<T>`, and the file must not be
    /// released during `'a`.
    unsafe fn object<'a>(file: *const bindings::file) -> &'a T {
        // SAFETY: By this function's contract, the file is valid, and owns a reference to the object, which
        // so stays valid.
        unsafe { &*(*file).private_data.cast_const().cast::<T>() }
    }

    /// Makes a file one of this type.
    ///
    /// # Safety
    ///
    /// The file must have operations of this type, and its `private_data` a reference of it, and nobody else
    /// may use it yet.
    pub(super) unsafe fn set_up(file: *mut bindings::file) {
        // It never fails, and does not look at the inode.
        // SAFETY: By this function's contract the file is valid and not shared.
        unsafe { bindings::stream_open(core::ptr::null_mut(), file) };
        // SAFETY: As above.
        unsafe { (*file).f_mode |= ours::FMODE_NOWAIT };
    }

    /// # Safety
    ///
    /// Called by the VFS, for a file with these operations.
    unsafe extern "C" fn flush(file: *mut bindings::file, _id: bindings::fl_owner_t) -> c_int {
        // SAFETY: By this function's contract. The caller has a reference to the file.
        unsafe { Self::object(file) }.flush();
        0
    }

    /// # Safety
    ///
    /// Called by the VFS, for a file with these operations, once, as the last function.
    unsafe extern "C" fn release(_inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
        // SAFETY: The file owns this reference, and nobody uses the file any more.
        let object = unsafe { Arc::from_raw((*file).private_data.cast_const().cast::<T>()) };
        object.release();
        0
    }

    /// # Safety
    ///
    /// Called by the VFS, for a file with these operations; `to` is an iterator for a read.
    unsafe extern "C" fn read_iter(
        kiocb: *mut bindings::kiocb,
        to: *mut bindings::iov_iter,
    ) -> isize {
        // SAFETY: By this function's contract. The caller has a reference to the file.
        let (io, object) = unsafe { (Io::of(kiocb), Self::object((*kiocb).ki_filp)) };
        // SAFETY: By this function's contract, and nobody else uses the iterator during the call.
        let to = unsafe { IovIterDest::from_raw(to) };
        returned(object.read(io, to))
    }

    /// # Safety
    ///
    /// Called by the VFS, for a file with these operations; `from` is an iterator for a write.
    unsafe extern "C" fn write_iter(
        kiocb: *mut bindings::kiocb,
        from: *mut bindings::iov_iter,
    ) -> isize {
        // SAFETY: By this function's contract. The caller has a reference to the file.
        let (io, object) = unsafe { (Io::of(kiocb), Self::object((*kiocb).ki_filp)) };
        // SAFETY: By this function's contract, and nobody else uses the iterator during the call.
        let from = unsafe { IovIterSource::from_raw(from) };
        returned(object.write(io, from))
    }

    /// # Safety
    ///
    /// Called by the VFS, for a file with these operations; `table` is null or valid.
    unsafe extern "C" fn poll(
        file: *mut bindings::file,
        table: *mut bindings::poll_table_struct,
    ) -> bindings::__poll_t {
        // SAFETY: By this function's contract. The caller has a reference to the file.
        let object = unsafe { Self::object(file) };
        // SAFETY: File and table are valid. The queue must be valid as long as the file has an entry in it.
        // Entries are removed before the file is released: `poll` and io_uring hold a reference to the file
        // while they have an entry, and epoll removes its entries first. Until then the file owns its object,
        // which can be changed only through shared references. The `&WaitQueue` could therefore live as long
        // as `object`, from which it was borrowed: the compiler allows a borrow of any length.
        unsafe { bindings::poll_wait(file, object.waiters().as_raw(), table) };
        // The task is in the queue before the state is read, so a later change wakes it.
        object.poll().bits()
    }

    /// # Safety
    ///
    /// Called by the VFS, for a file with these operations.
    unsafe extern "C" fn ioctl(file: *mut bindings::file, cmd: c_uint, arg: c_ulong) -> c_long {
        // SAFETY: By this function's contract. The caller has a reference to the file, which has no position,
        // so no task holds the lock of that.
        let (object, file) = unsafe { (Self::object(file), File::from_raw_file(file)) };
        returned(object.ioctl(file, cmd, arg))
    }

    /// # Safety
    ///
    /// Called by procfs, for a file with these operations; `to` is valid.
    unsafe extern "C" fn show_fdinfo(to: *mut bindings::seq_file, file: *mut bindings::file) {
        // SAFETY: By this function's contract. The caller has a reference to the file, and nobody else uses
        // the text.
        let (object, to) = unsafe { (Self::object(file), SeqFile::from_raw(to)) };
        object.show_fdinfo(to);
    }
}

/// Appends the next `len` bytes of `from` to `to`.
///
/// # Context
///
/// *may sleep*
///
/// # Errors
///
/// [`ENOMEM`]; [`EFAULT`] if the bytes cannot be read.
pub fn append_from(
    from: &mut IovIterSource<'_>,
    to: &mut KVec<u8>,
    len: usize,
    flags: Flags,
) -> Result {
    to.reserve(len, flags)?;
    let room = to.spare_capacity_mut().get_mut(..len).ok_or(ENOMEM)?;
    if from.copy_from_iter_raw(room).len() != len {
        return Err(EFAULT);
    }
    // SAFETY: `len` bytes behind the last one were written, and there is room for them.
    unsafe { to.inc_len(len) };
    Ok(())
}
