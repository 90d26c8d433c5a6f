// SPDX-License-Identifier: GPL-2.0

//! Directories, and the functions that configfs calls when users act on them.

use core::{
    any::Any,
    marker::PhantomData,
    ptr::{
        self,
        NonNull, //
    },
};
use kernel::{
    bindings,
    error::to_result,
    module::this_module,
    prelude::*,
    types::Opaque,
    ModuleMetadata, //
};

use super::tree::{
    Member,
    Tree, //
};
use crate::mm::NoIo;
use attr::Attr;

pub(super) mod attr;

/// The data of a directory, with a handler for each action of users in it.
pub trait Directory: Any + Send + Sync + Sized {
    /// The driver's `crate::LocalModule`.
    type Module: ModuleMetadata;

    /// The files of the directory, at most 16.
    const FILES: &'static [Attr<Self>] = &[];

    /// Handles `mkdir` in this directory; the new directory must be created for `tree`. `name` has
    /// 1 to 255 bytes and no slash.
    ///
    /// # Errors
    ///
    /// The errno for the user.
    fn make(&self, _name: &CStr, _tree: &Tree) -> Result<Folder> {
        Err(EPERM)
    }

    /// Handles the removal of this directory, or a failure of `mkdir` after [`Self::make`] of its
    /// parent. Called once, if a user created the directory.
    fn removed(&self) {}

    /// Handles the creation of a link in this directory. `target` is the data of the directory that
    /// the link points to. If that directory is of another tree, `target` is `()`, and no link is
    /// created, even if this succeeds.
    ///
    /// # Errors
    ///
    /// The errno for the user.
    fn link(&self, _target: &dyn Any) -> Result {
        Err(EPERM)
    }

    /// Handles the removal of a link, or a failure of `symlink` after [`Self::link`].
    fn unlink(&self, _target: &dyn Any) {}
}

/// A [`Directory`] of unknown type.
trait AnyDirectory: Send + Sync {
    fn make(&self, name: &CStr, tree: &Tree) -> Result<Folder>;
    fn removed(&self);
    fn link(&self, target: &dyn Any) -> Result;
    fn unlink(&self, target: &dyn Any);
    fn as_any(&self) -> &dyn Any;
}

impl<D: Directory> AnyDirectory for D {
    fn make(&self, name: &CStr, tree: &Tree) -> Result<Folder> {
        Directory::make(self, name, tree)
    }

    fn removed(&self) {
        Directory::removed(self);
    }

    fn link(&self, target: &dyn Any) -> Result {
        Directory::link(self, target)
    }

    fn unlink(&self, target: &dyn Any) {
        Directory::unlink(self, target);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The configfs side of a directory.
///
/// # Invariants
///
/// - The group is initialised, and its type has [`ITEM_OPS`], which only types of nodes have.
/// - Each default group of the group is that of a node, whose first reference this group owns.
/// - The node is in a box that the references to the group own; [`release`] frees it. `member` is
///   therefore counted in its tree as long as there is a reference to the group.
#[repr(C)]
pub(super) struct Node {
    group: Opaque<bindings::config_group>,
    dir: KBox<dyn AnyDirectory>,
    member: Member,
}

impl Node {
    fn item(&self) -> *mut bindings::config_item {
        // CAST: The item is the first field of the group.
        self.group.get().cast()
    }

    /// Returns the node of an item, or `None` if the item is not one of this crate.
    ///
    /// # Safety
    ///
    /// `item` must be an initialised item, with a reference that is held during `'a` and put with
    /// `config_item_put()`.
    unsafe fn of_item<'a>(item: *mut bindings::config_item) -> Option<&'a Self> {
        // SAFETY: By this function's contract the item is initialised; its type does not change.
        let item_type = unsafe { (*item).ci_type };
        // SAFETY: The pointer is null, as for the root of configfs, or to the type that the module of
        // the item has given it. For an item of this crate, `Folder::new` explains why the module,
        // and the type in it, stay as long as there is a reference. The item may be of another
        // module if it is the target of a new link. Then, too, the type is valid until the last
        // reference is put, and by this function's contract there is one: `config_item_put()` reads
        // the type of each item when its last reference is put (`config_item_cleanup()`), so
        // configfs requires that of all modules.
        let ops = unsafe { item_type.as_ref() }?.ct_item_ops;
        if !ptr::eq(ops, &ITEM_OPS.0) {
            return None;
        }
        // CAST: The item is the first field of the first field of a `repr(C)` struct.
        // SAFETY: Only types of nodes have these operations, by the type invariant, so the item is
        // that of a node, which lives until the item is released.
        Some(unsafe { &*item.cast::<Self>() })
    }

    /// Returns the data of a directory of this crate, or `None` if it is not a `D`.
    ///
    /// # Safety
    ///
    /// `item` must be the item of a node, and as for [`Self::of_item`].
    pub(super) unsafe fn data_of_own<'a, D: Directory>(
        item: *mut bindings::config_item,
    ) -> Option<&'a D> {
        // SAFETY: By this function's contract.
        unsafe { Self::of_item(item) }?.dir.as_any().downcast_ref()
    }

    /// Returns the node that a link in this directory points to, if the node is of the same tree.
    ///
    /// # Safety
    ///
    /// As for [`Self::of_item`].
    unsafe fn target<'a>(&self, item: *mut bindings::config_item) -> Option<&'a Self> {
        // SAFETY: By this function's contract.
        let target = unsafe { Self::of_item(item) };
        target.filter(|target| target.member.tree().is(self.member.tree()))
    }
}

/// A directory without a parent. Dropping it drops its data.
///
/// # Invariants
///
/// The pointer is to a node without a parent; this value owns the first reference to its group.
pub struct Folder(NonNull<Node>);

// SAFETY: A group has no thread affinity, and the data is `Send` and `Sync`.
unsafe impl Send for Folder {}

// SAFETY: Shared references only read the node, whose data is `Sync`.
unsafe impl Sync for Folder {}

impl Folder {
    /// Creates a directory without a name, for `tree`. Dropping the subsystem waits until the last
    /// reference to the directory is put.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub fn new<D: Directory>(tree: &Tree, dir: D) -> Result<Self> {
        let dir: KBox<dyn AnyDirectory> = KBox::new(dir, GFP_KERNEL)?;
        let node = KBox::new(
            Node {
                group: Opaque::zeroed(),
                dir,
                member: tree.join(),
            },
            GFP_KERNEL,
        )?;
        let node = NonNull::from(KBox::leak(node));
        // SAFETY: The node was just leaked, so it is valid.
        let group = unsafe { node.as_ref() }.group.get();
        // SAFETY: The group is zeroed memory that nobody else uses, and that never moves.
        unsafe { bindings::config_group_init(group) };
        // The type lives as long as the module `D::Module`, which implements `D` and owns the
        // subsystem of `tree`. Dropping the subsystem waits for the last reference to the node, and
        // nobody reads the type without a reference.
        // SAFETY: As above.
        unsafe { (*group).cg_item.ci_type = ptr::from_ref(Kind::<D>::ITEM_TYPE) };
        // INVARIANT: The group was initialised with its first reference, and has the type of a
        // `Kind`.
        Ok(Self(node))
    }

    fn node(&self) -> &Node {
        // SAFETY: By the type invariant the pointer is to a node, which the reference of this value
        // keeps.
        unsafe { self.0.as_ref() }
    }

    /// Sets the name of the directory.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    fn set_name(&self, name: &CStr) -> Result {
        // SAFETY: The item is initialised, and nobody else uses it, as configfs does not know the
        // directory yet. The format takes one string.
        to_result(unsafe {
            bindings::config_item_set_name(
                self.node().item(),
                c"%s".as_char_ptr(),
                name.as_char_ptr(),
            )
        })
    }

    /// Returns `EINVAL` unless the directory was created for `tree`.
    pub(super) fn check_tree(&self, tree: &Tree) -> Result {
        match self.node().member.tree().is(tree) {
            true => Ok(()),
            false => Err(EINVAL),
        }
    }

    /// Adds a subdirectory of the same tree, which is created and removed together with this
    /// directory.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if `folder` was created for another tree; [`ENOMEM`].
    pub fn add(&mut self, name: &CStr, folder: Folder) -> Result {
        folder.check_tree(self.node().member.tree())?;
        let group = self.node().group.get();
        // SAFETY: The group is initialised and has no parent, so configfs does not know it, and
        // nobody else uses it. `release` removes its default groups.
        unsafe { folder.add_to(group, name) }
    }

    /// Makes the directory a default group of `parent`, which takes over the reference.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    ///
    /// # Safety
    ///
    /// `parent` must be an initialised group that configfs does not know yet, and that no other
    /// thread uses during the call. Its default groups must be removed before it is freed, as
    /// [`release`] does for a node.
    pub(super) unsafe fn add_to(self, parent: *mut bindings::config_group, name: &CStr) -> Result {
        self.set_name(name)?;
        // SAFETY: `parent` is as this function's contract says. This group is in no list, as it has
        // no parent, and does not move as long as its reference exists, which passes to the list.
        unsafe { ibtrs_bindings::configfs_add_default_group(self.into_raw(), parent) };
        Ok(())
    }

    /// Gives up the reference.
    fn into_raw(self) -> *mut bindings::config_group {
        let group = self.node().group.get();
        core::mem::forget(self);
        group
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this value owns the reference, which ends here.
        unsafe { bindings::config_item_put(self.node().item()) };
    }
}

/// The C description of the directories of a `D`.
struct Kind<D>(PhantomData<D>);

/// Maximum number of files of a directory.
const MAX_FILES: usize = 16;

/// The files of a directory, terminated by a null pointer.
type Files = [*mut bindings::configfs_attribute; MAX_FILES + 1];

impl<D: Directory> Kind<D> {
    const FILES: &'static Files = &Self::files();

    const ITEM_TYPE: &'static bindings::config_item_type = &bindings::config_item_type {
        ct_owner: this_module::<D::Module>().as_ptr(),
        ct_item_ops: &ITEM_OPS.0,
        ct_group_ops: &GROUP_OPS.0,
        // CAST: C takes a pointer to the first attribute, and changes none of them.
        ct_attrs: Self::FILES.as_ptr().cast_mut(),
        ct_bin_attrs: ptr::null_mut(),
    };

    const fn files() -> Files {
        let mut files = [ptr::null_mut(); MAX_FILES + 1];
        assert!(D::FILES.len() <= MAX_FILES);
        let mut i = 0;
        while i < D::FILES.len() {
            // CAST: C does not change an attribute.
            files[i] = D::FILES[i].as_raw().cast_mut();
            i += 1;
        }
        files
    }
}

/// The operations of directories. They are in a `static`, as their address identifies nodes.
struct ItemOps(bindings::configfs_item_operations);

// SAFETY: The value never changes.
unsafe impl Sync for ItemOps {}

static ITEM_OPS: ItemOps = ItemOps(bindings::configfs_item_operations {
    release: Some(release),
    allow_link: Some(allow_link),
    drop_link: Some(drop_link),
});

/// The operations of directories in which users create others.
struct GroupOps(bindings::configfs_group_operations);

// SAFETY: The value never changes.
unsafe impl Sync for GroupOps {}

static GROUP_OPS: GroupOps = GroupOps(bindings::configfs_group_operations {
    make_group: Some(make_group),
    drop_item: Some(drop_item),
    ..pin_init::zeroed()
});

/// Called by configfs when the last reference to a directory was dropped.
///
/// # Safety
///
/// `item` must be the item of a node, which is not used afterwards.
//
// Part of the module with this crate, like `Member::drop`: see `LastTails`.
unsafe extern "C" fn release(item: *mut bindings::config_item) {
    // CAST: The item is the first field of the group.
    // SAFETY: By this function's contract nobody uses the group or the list of its default groups.
    // By the invariant of the node, the group owns their first references; configfs has put its own
    // references to them before those to this group.
    unsafe { bindings::configfs_remove_default_groups(item.cast()) };
    // CAST: The item is the first field of the first field of a `repr(C)` struct.
    // SAFETY: By this function's contract the last reference was put, and by the invariant of the
    // node the references owned its box.
    let node = unsafe { KBox::from_raw(item.cast::<Node>()) };
    let Node { dir, member, .. } = KBox::into_inner(node);
    // Dropping `dir` runs the driver's code, which may be unloaded once the node is not counted any
    // more.
    drop(dir);
    drop(member);
}

/// Called by configfs to create a directory.
///
/// # Safety
///
/// `group` must be the group of a node to which the caller holds a reference, and `name` a C
/// string.
unsafe extern "C" fn make_group(
    group: *mut bindings::config_group,
    name: *const c_char,
) -> *mut bindings::config_group {
    // CAST: The item is the first field of the group.
    // SAFETY: By this function's contract.
    let node = unsafe { Node::of_item(group.cast()) };
    // SAFETY: By this function's contract.
    let name = unsafe { CStr::from_char_ptr(name) };
    let _no_io = NoIo::enter();
    let make = || {
        let node = node.ok_or(EPERM)?;
        let tree = node.member.tree();
        let folder = node.dir.make(name, tree)?;
        // configfs does not call `removed` if this fails.
        folder
            .check_tree(tree)
            .and_then(|()| folder.set_name(name))
            .inspect_err(|_| folder.node().dir.removed())?;
        Ok(folder.into_raw())
    };
    make().unwrap_or_else(|error: Error| error.to_ptr())
}

/// Called by configfs when a directory that a user created was removed.
///
/// # Safety
///
/// `item` must be the item of a node, whose initial reference passes to this function.
unsafe extern "C" fn drop_item(
    _parent: *mut bindings::config_group,
    item: *mut bindings::config_item,
) {
    let _no_io = NoIo::enter();
    // SAFETY: By this function's contract.
    if let Some(node) = unsafe { Node::of_item(item) } {
        node.dir.removed();
    }
    // SAFETY: By this function's contract.
    unsafe { bindings::config_item_put(item) };
}

/// Called by configfs to create a link.
///
/// # Safety
///
/// `from` must be the item of a node, and `to` any item; the caller must hold references to both.
unsafe extern "C" fn allow_link(
    from: *mut bindings::config_item,
    to: *mut bindings::config_item,
) -> c_int {
    let _no_io = NoIo::enter();
    // SAFETY: By this function's contract.
    let link = || match unsafe { Node::of_item(from) } {
        // SAFETY: As above.
        Some(node) => match unsafe { node.target(to) } {
            Some(target) => node.dir.link(target.dir.as_any()),
            None => node.dir.link(&()).and(Err(EPERM)),
        },
        None => Err(EPERM),
    };
    link().map_or_else(Error::to_errno, |()| 0)
}

/// Called by configfs when a link was removed, or could not be created after [`allow_link`].
///
/// # Safety
///
/// `from` must be the item of a node to which the caller holds a reference. `to` must be an item to
/// which [`allow_link`] has allowed a link in `from`, and which is not released during the call.
unsafe extern "C" fn drop_link(from: *mut bindings::config_item, to: *mut bindings::config_item) {
    let _no_io = NoIo::enter();
    // configfs keeps the contract for `to` without a reference: `rmdir` does not remove the target
    // of a link, nor was its subsystem, which is that of `from`, unregistered (see the section on
    // lifetime of `configfs`).
    // SAFETY: By this function's contract.
    if let Some(node) = unsafe { Node::of_item(from) } {
        // SAFETY: As above.
        if let Some(target) = unsafe { node.target(to) } {
            node.dir.unlink(target.dir.as_any());
        }
    }
}
