// SPDX-License-Identifier: GPL-2.0

//! Files of a configfs directory.

use core::{
    marker::PhantomData,
    mem::size_of,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    error::from_result,
    module::this_module,
    prelude::*,
    str::as_char_ptr_in_const_context, //
};

use super::{
    Directory,
    Node, //
};
use crate::{
    mm::NoIo,
    sysfs::Buf, //
};

/// Size of a file's contents, the same on machines with larger pages (`SIMPLE_ATTR_SIZE` in C).
const SIZE: usize = 4096;
/// Maximum number of bytes that configfs passes on at a time. It splits a longer write.
const MAX_INPUT: usize = SIZE - 1;

/// A file in the directories of a `D`, an entry of the table [`Directory::FILES`].
///
/// # Invariants
///
/// The functions in `attr` are instances of [`show`] and [`store`] for `D`, or there is no `store`.
pub struct Attr<D> {
    attr: bindings::configfs_attribute,
    _dir: PhantomData<fn(&D)>,
}

// SAFETY: An `Attr` never changes, and its pointers are to static data.
unsafe impl<D> Sync for Attr<D> {}

impl<D: Directory> Attr<D> {
    /// Creates a file that everyone may read, and root may write.
    ///
    /// Both functions must capture nothing, which the compiler checks. They must be `Send` and `Sync`,
    /// as any thread may call them and even a zero-sized value may be tied to one thread. `store` gets
    /// the bytes written, up to 4094, without a newline at the end; longer writes fail with `EFBIG`.
    /// See [`configfs`](super::super) for the locks that are held.
    pub const fn rw<S, T>(name: &'static CStr, _show: S, _store: T) -> Self
    where
        S: Fn(&D, &mut Buf<'_>) -> Result + Copy + Send + Sync + 'static,
        T: Fn(&D, &[u8]) -> Result + Copy + Send + Sync + 'static,
    {
        const {
            assert!(size_of::<S>() == 0 && size_of::<T>() == 0);
        }
        // INVARIANT: The functions are instances for `D`. The values of `_show` and `_store` prove
        // that their types have values.
        Self {
            attr: bindings::configfs_attribute {
                ca_name: as_char_ptr_in_const_context(name),
                ca_owner: this_module::<D::Module>().as_ptr(),
                ca_mode: 0o644,
                show: Some(show::<D, S>),
                store: Some(store::<D, T>),
            },
            _dir: PhantomData,
        }
    }

    /// Creates a file that everyone may read. `show` is as for [`Attr::rw`].
    pub const fn ro<S>(name: &'static CStr, _show: S) -> Self
    where
        S: Fn(&D, &mut Buf<'_>) -> Result + Copy + Send + Sync + 'static,
    {
        const {
            assert!(size_of::<S>() == 0);
        }
        // INVARIANT: `show` is an instance for `D`, and there is no `store`. The value of `_show`
        // proves that its type has values.
        Self {
            attr: bindings::configfs_attribute {
                ca_name: as_char_ptr_in_const_context(name),
                ca_owner: this_module::<D::Module>().as_ptr(),
                ca_mode: 0o444,
                show: Some(show::<D, S>),
                store: None,
            },
            _dir: PhantomData,
        }
    }

    pub(super) const fn as_raw(&self) -> *const bindings::configfs_attribute {
        &raw const self.attr
    }
}

/// Returns the value of a type without data.
///
/// # Safety
///
/// A value of this type must exist. It may be one of another thread.
unsafe fn function<F: Copy + Send>() -> F {
    const {
        assert!(size_of::<F>() == 0);
    }
    // SAFETY: The pointer is aligned, and no byte is read, as the size is zero. By this function's
    // contract the type has a value, which may be copied and sent to this thread (`Copy`, `Send`),
    // and all its values are alike.
    unsafe { NonNull::<F>::dangling().read() }
}

/// Called by configfs to show a file.
///
/// # Safety
///
/// - `item` must be the item of a directory of a `D`, which configfs keeps during the call.
/// - `page` must be valid for writes of a page, which has at least [`SIZE`] bytes, and nobody else
///   may use it.
/// - A value of the type `S` must exist.
unsafe extern "C" fn show<D, S>(item: *mut bindings::config_item, page: *mut c_char) -> isize
where
    D: Directory,
    S: Fn(&D, &mut Buf<'_>) -> Result + Copy + Send,
{
    // SAFETY: By this function's contract the item is that of a directory of a `D`. `Folder::new`,
    // which alone creates such directories, makes each of them a node.
    let dir = unsafe { Node::data_of_own::<D>(item) };
    // configfs does not zero a page that it allocates for a write, and may use it for a read later.
    // SAFETY: By this function's contract.
    unsafe { page.write_bytes(0, SIZE) };
    let _no_io = NoIo::enter();
    // SAFETY: By this function's contract the page is valid and nobody else uses it; the line above
    // has initialised it.
    let mut buf = Buf::new(unsafe { &mut *page.cast::<[u8; SIZE]>() });
    // SAFETY: By this function's contract.
    let show = unsafe { function::<S>() };
    // CAST: At most a page.
    from_result(|| show(dir.ok_or(EIO)?, &mut buf).map(|()| buf.len() as isize))
}

/// Called by configfs to write a file.
///
/// # Safety
///
/// - `item` must be the item of a directory of a `D`, which configfs keeps during the call.
/// - `page` must be valid for reads of `len` bytes, and must not change during the call.
/// - A value of the type `T` must exist.
unsafe extern "C" fn store<D, T>(
    item: *mut bindings::config_item,
    page: *const c_char,
    len: usize,
) -> isize
where
    D: Directory,
    T: Fn(&D, &[u8]) -> Result + Copy + Send,
{
    // SAFETY: As in `show`.
    let dir = unsafe { Node::data_of_own::<D>(item) };
    // SAFETY: By this function's contract.
    let input = unsafe { core::slice::from_raw_parts(page.cast::<u8>(), len) };
    // SAFETY: By this function's contract.
    let store = unsafe { function::<T>() };
    let _no_io = NoIo::enter();
    // CAST: At most a page.
    from_result(|| {
        if input.len() >= MAX_INPUT {
            return Err(EFBIG);
        }
        let input = input.strip_suffix(b"\n").unwrap_or(input);
        store(dir.ok_or(EIO)?, input).map(|()| len as isize)
    })
}
