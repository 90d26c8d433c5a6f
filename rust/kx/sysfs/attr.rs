// SPDX-License-Identifier: GPL-2.0

//! Attributes: files with a line of text, or a few.

use crate::module::ModuleRef;
use core::{
    ops::Deref,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    bindings,
    error::{
        from_result,
        to_result, //
    },
    page::PAGE_SIZE,
    prelude::*,
    str::as_char_ptr_in_const_context,
    ModuleMetadata, //
};

use super::{
    buf::Buf,
    node::{
        Core,
        Node, //
    }, //
};

/// A reference to the data of a directory: `Arc<T>`, `PercpuArc<T>`, `&'static T`.
///
/// The directory keeps a reference as long as it exists, and each write keeps a clone until its
/// function has returned.
pub trait Data: Deref + Clone + Send + Sync + 'static {}

impl<P: Deref + Clone + Send + Sync + 'static> Data for P {}

/// The function that shows a file.
type Show<P> = fn(&<P as Deref>::Target, &mut Buf<'_>) -> Result;

/// The function that handles a write to a file.
///
/// It gets the bytes of the write, up to a page, without a newline at the end.
type Store<P> = fn(StoreCtx<'_, P>, &[u8]) -> Result;

/// The part of a file's description that does not depend on the type of the data.
///
/// # Invariants
///
/// This value is the first field of an [`Attr<P>`], and `show` and `store` are the functions of
/// that type.
#[repr(C)]
pub(super) struct RawAttr {
    /// Devices use all of it; directories use only its first field.
    attr: bindings::device_attribute,
    show: unsafe fn(&RawAttr, &Node, &mut Buf<'_>) -> Result,
    /// Takes a pointer to the node, which the call may free.
    store: unsafe fn(&RawAttr, NonNull<Node>, &[u8], &mut Option<ModuleRef>) -> Result,
}

impl RawAttr {
    pub(super) fn as_c(&self) -> *const bindings::attribute {
        &self.attr.attr
    }
}

/// A file in the directories whose data is a `P`: an entry of a `static` table.
#[repr(C)]
pub struct Attr<P: Data> {
    raw: RawAttr,
    show: Option<Show<P>>,
    store: Option<Store<P>>,
}

// SAFETY: An `Attr` never changes, and its pointers are to static data and functions.
unsafe impl<P: Data> Sync for Attr<P> {}

impl<P: Data> Attr<P> {
    /// Creates a file that everyone may read.
    pub const fn ro(name: &'static CStr, show: Show<P>) -> Self {
        Self::new(name, 0o444, Some(show), None)
    }

    /// Creates a file that everyone may read, and root may write.
    pub const fn rw(name: &'static CStr, show: Show<P>, store: Store<P>) -> Self {
        Self::new(name, 0o644, Some(show), Some(store))
    }

    /// Creates a file with the permissions `mode`, which must not allow everyone to write. Without
    /// `show`, reading fails with `EIO`; without `store`, writing does.
    pub const fn new(
        name: &'static CStr,
        mode: u16,
        show: Option<Show<P>>,
        store: Option<Store<P>>,
    ) -> Self {
        assert!(mode & !0o777 == 0 && mode & 0o002 == 0);
        let mut attr: bindings::device_attribute = pin_init::zeroed();
        attr.attr.name = as_char_ptr_in_const_context(name);
        attr.attr.mode = mode;
        attr.__bindgen_anon_1.show = Some(device_show);
        attr.__bindgen_anon_2.store = Some(device_store);
        // INVARIANT: `raw` is the first field, and these are the functions of this type.
        Self {
            raw: RawAttr {
                attr,
                show: Self::call_show,
                store: Self::call_store,
            },
            show,
            store,
        }
    }

    pub(super) fn as_raw(&self) -> &RawAttr {
        &self.raw
    }

    /// Returns the description that `raw` is part of.
    ///
    /// # Safety
    ///
    /// `raw` must be part of an `Attr<P>`.
    unsafe fn from_raw(raw: &RawAttr) -> &Self {
        // CAST: `raw` is the first field of a `repr(C)` struct.
        // SAFETY: By this function's contract.
        unsafe { &*ptr::from_ref(raw).cast() }
    }

    /// Calls `show`.
    ///
    /// # Safety
    ///
    /// `raw` must be part of an `Attr<P>`, and the data of `node` a `P` that is valid now.
    unsafe fn call_show(raw: &RawAttr, node: &Node, buf: &mut Buf<'_>) -> Result {
        // SAFETY: By this function's contract.
        let (this, data) = unsafe { (Self::from_raw(raw), &*node.data().cast::<P>()) };
        this.show.ok_or(EIO)?(data, buf)
    }

    /// Calls `store`.
    ///
    /// # Safety
    ///
    /// The caller must run inside the function of a file, which must be part of an `Attr<P>`, `raw`,
    /// in the directory of the node `node`, whose data must be a `P`. It must not use the node
    /// afterwards, as the call may have removed the file.
    unsafe fn call_store(
        raw: &RawAttr,
        node: NonNull<Node>,
        input: &[u8],
        module: &mut Option<ModuleRef>,
    ) -> Result {
        // SAFETY: By this function's contract.
        let this = unsafe { Self::from_raw(raw) };
        let store = this.store.ok_or(EIO)?;
        // SAFETY: By this function's contract nothing has removed the file yet, so the node and its
        // data are valid, and the data is a `P`. Both references end here.
        let data = unsafe { (*node.as_ref().data().cast::<P>()).clone() };
        // INVARIANT: By this function's contract.
        let ctx = StoreCtx {
            node,
            raw,
            data,
            module,
        };
        store(ctx, input)
    }
}

impl Node {
    /// Creates files. If creating one of them fails, the earlier ones remain.
    ///
    /// # Safety
    ///
    /// The node must be for data of type `P`, and its kobject must have been added and not deleted.
    pub(super) unsafe fn create_files<P: Data>(&self, attrs: &'static [Attr<P>]) -> Result {
        for attr in attrs {
            // SAFETY: By this function's contract the kobject has a directory, and the functions of
            // the attribute, which is static, are for the type of the node's data.
            to_result(unsafe {
                bindings::sysfs_create_file_ns(self.kobj(), attr.as_raw().as_c(), ptr::null())
            })?;
        }
        Ok(())
    }
}

/// The context of a write. It dereferences to the data.
///
/// # Invariants
///
/// This value exists only inside the function of the file `raw` in the directory of the node `node`,
/// and only until the file is removed: that consumes this value. Until then the node is valid, as
/// sysfs waits for the function before it deletes the directory.
pub struct StoreCtx<'a, P: Data> {
    /// Not a reference, which would have to stay valid for the whole lifetime of this value, and
    /// longer.
    node: NonNull<Node>,
    raw: &'a RawAttr,
    data: P,
    /// Dropped after the function of the file has returned.
    module: &'a mut Option<ModuleRef>,
}

impl<'a, P: Data> StoreCtx<'a, P> {
    /// Returns the reference to the data.
    pub fn data(&self) -> &P {
        &self.data
    }

    /// Keeps the module of type `M`, the driver's `crate::LocalModule`, from being unloaded until
    /// the file's function has returned to this crate.
    ///
    /// The function of a file that removes itself needs this, because sysfs then does not wait for
    /// its end. A [`ModuleRef`] in the function itself would be dropped a few instructions too
    /// early.
    ///
    /// # Errors
    ///
    /// [`ENODEV`] if the module is being unloaded.
    pub fn keep_module<M: ModuleMetadata>(self) -> Result<KeptCtx<'a, P>> {
        // INVARIANT: The context holds the new reference to the module.
        *self.module = Some(ModuleRef::get::<M>().ok_or(ENODEV)?);
        Ok(KeptCtx(self))
    }
}

/// The context of a write whose driver stays loaded until the function of the file has returned.
/// The function may therefore remove the file. The context dereferences to the data.
///
/// # Invariants
///
/// `module` of the context holds a reference.
pub struct KeptCtx<'a, P: Data>(StoreCtx<'a, P>);

impl<P: Data> KeptCtx<'_, P> {
    /// Returns the reference to the data.
    pub fn data(&self) -> &P {
        self.0.data()
    }

    /// Removes the file, so that the caller may drop the file's directory.
    ///
    /// The first of several callers in one directory gets the reference to the data. The other
    /// callers get [`None`], and so do callers whose directory another task is about to drop. They
    /// should return soon, because the removal waits for them.
    pub fn remove_self(self) -> Option<P> {
        let StoreCtx {
            node, raw, data, ..
        } = self.0;
        // SAFETY: By the type invariant of `StoreCtx` this runs inside the function of that file,
        // which was not removed. The context, with the pointer to the node, was taken apart.
        unsafe { Node::remove_self(node, raw.as_c()) }.then_some(data)
    }
}

impl<P: Data> Deref for StoreCtx<'_, P> {
    type Target = P::Target;

    fn deref(&self) -> &P::Target {
        &self.data
    }
}

impl<P: Data> Deref for KeptCtx<'_, P> {
    type Target = P::Target;

    fn deref(&self) -> &P::Target {
        &self.0
    }
}

/// Shows a file.
///
/// # Safety
///
/// - `core` must point to the core of a directory with this file, which sysfs keeps during the
///   call.
/// - `buf` must be an initialised page that is valid for writes, and that nobody else uses.
unsafe fn show<K>(core: *const Core<K>, raw: *const RawAttr, buf: *mut c_char) -> isize {
    // SAFETY: The core is valid by this function's contract, and attributes are static.
    let (node, raw) = unsafe { (&(*core).node, &*raw) };
    // SAFETY: By this function's contract.
    let mut buf = Buf::new(unsafe { &mut *buf.cast::<[u8; PAGE_SIZE]>() });
    // SAFETY: `Node::create_files` creates files only in directories with data of their type. By
    // the type invariant of `Node` the data is valid until the kobject has been deleted, and by
    // this function's contract sysfs keeps the directory during the call.
    let result = unsafe { (raw.show)(raw, node, &mut buf) };
    // CAST: At most a page.
    from_result(|| result.map(|()| buf.len() as isize))
}

/// Handles a write to a file.
///
/// # Safety
///
/// - `core` must point to the core of a directory with this file, which sysfs keeps during the
///   call, or until the function removes the file.
/// - `buf` must be valid for reads of `len` bytes.
unsafe fn store<K>(
    core: *const Core<K>,
    raw: *const RawAttr,
    buf: *const c_char,
    len: usize,
) -> isize {
    // SAFETY: The core is valid by this function's contract, and attributes are static. The node is
    // only named, by a pointer.
    let (node, raw) = unsafe { (&raw const (*core).node, &*raw) };
    // SAFETY: It is part of the core, to which the pointer is not null.
    let node = unsafe { NonNull::new_unchecked(node.cast_mut()) };
    // SAFETY: By this function's contract.
    let input = unsafe { core::slice::from_raw_parts(buf.cast::<u8>(), len) };
    let input = input.strip_suffix(b"\n").unwrap_or(input);
    // This function is not part of the driver's module, so it may drop the reference. It is part of
    // the module that the driver depends on, whose unloading waits for its end, see `LastTails`.
    let mut module = None;
    // SAFETY: `Node::create_files` creates files only in directories with data of their type, and
    // this is the function of the file `raw` in the directory of the core. By this function's
    // contract sysfs keeps the directory until the call removes the file. The node is not used
    // afterwards.
    let result = unsafe { (raw.store)(raw, node, input, &mut module) };
    drop(module);
    // CAST: At most a page.
    from_result(|| result.map(|()| len as isize))
}

/// Called by sysfs to show a file of a [`Dir`](super::Dir).
///
/// # Safety
///
/// As for [`show`], with the kobject of the core, and the attribute of a [`RawAttr`].
pub(super) unsafe extern "C" fn kobject_show(
    kobj: *mut bindings::kobject,
    attr: *mut bindings::attribute,
    buf: *mut c_char,
) -> isize {
    // CAST: Both are first fields, of first fields, of `repr(C)` structs.
    // SAFETY: By this function's contract.
    unsafe { show::<bindings::kobject>(kobj.cast(), attr.cast(), buf) }
}

/// Called by sysfs to write a file of a [`Dir`](super::Dir).
///
/// # Safety
///
/// As for [`store`], with the kobject of the core, and the attribute of a [`RawAttr`].
pub(super) unsafe extern "C" fn kobject_store(
    kobj: *mut bindings::kobject,
    attr: *mut bindings::attribute,
    buf: *const c_char,
    len: usize,
) -> isize {
    // CAST: Both are first fields, of first fields, of `repr(C)` structs.
    // SAFETY: By this function's contract.
    unsafe { store::<bindings::kobject>(kobj.cast(), attr.cast(), buf, len) }
}

/// Called by sysfs to show a file of a [`Device`](super::Device).
///
/// # Safety
///
/// As for [`show`], with the device of the core, and the attribute of a [`RawAttr`].
unsafe extern "C" fn device_show(
    dev: *mut bindings::device,
    attr: *mut bindings::device_attribute,
    buf: *mut c_char,
) -> isize {
    // CAST: Both are first fields, of first fields, of `repr(C)` structs.
    // SAFETY: By this function's contract.
    unsafe { show::<bindings::device>(dev.cast(), attr.cast(), buf) }
}

/// Called by sysfs to write a file of a [`Device`](super::Device).
///
/// # Safety
///
/// As for [`store`], with the device of the core, and the attribute of a [`RawAttr`].
unsafe extern "C" fn device_store(
    dev: *mut bindings::device,
    attr: *mut bindings::device_attribute,
    buf: *const c_char,
    len: usize,
) -> isize {
    // CAST: Both are first fields, of first fields, of `repr(C)` structs.
    // SAFETY: By this function's contract.
    unsafe { store::<bindings::device>(dev.cast(), attr.cast(), buf, len) }
}
