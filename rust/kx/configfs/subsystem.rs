// SPDX-License-Identifier: GPL-2.0

//! The directory of a module at the top of configfs.

use core::{
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
    optional_name,
    prelude::*,
    static_lock_class,
    task::might_sleep,
    types::Opaque,
    ModuleMetadata, //
};

use super::{
    folder::Folder,
    tree::{
        Member,
        Tree, //
    }, //
};

/// A directory at the root of configfs that is not registered yet. It has subdirectories, but no
/// files, and users cannot create anything in it.
///
/// # Invariants
///
/// - `top` points to a [`Top`]. This value owns one reference to its item: the first one, which
///   ends when this value is dropped.
/// - Each default group of its group is that of a [`Folder`] for `tree`, whose reference the group
///   owns.
/// - configfs does not know the subsystem.
pub struct Subsystem {
    top: NonNull<Top>,
    tree: Tree,
}

// SAFETY: A subsystem has no thread affinity, and folders are `Send`.
unsafe impl Send for Subsystem {}

// SAFETY: Shared references only read, and the directories are `Sync`.
unsafe impl Sync for Subsystem {}

/// The configfs side of a subsystem.
///
/// # Invariants
///
/// `raw` is initialised, and its item has the type of a [`Kind`]. This value is in a box that the
/// references to the item own; [`release`] frees it. `member` is therefore counted in its tree as
/// long as there is a reference to the item.
#[repr(C)]
struct Top {
    raw: Opaque<bindings::configfs_subsystem>,
    member: Member,
}

/// The C description of the directory of a module `M`.
struct Kind<M>(PhantomData<M>);

impl<M: ModuleMetadata> Kind<M> {
    const ITEM_TYPE: &'static bindings::config_item_type = &bindings::config_item_type {
        ct_owner: this_module::<M>().as_ptr(),
        ct_item_ops: &ITEM_OPS.0,
        ct_group_ops: ptr::null(),
        ct_attrs: ptr::null_mut(),
        ct_bin_attrs: ptr::null_mut(),
    };
}

/// The operations of the directory; users can neither create nor link anything in it.
struct ItemOps(bindings::configfs_item_operations);

// SAFETY: The value never changes.
unsafe impl Sync for ItemOps {}

static ITEM_OPS: ItemOps = ItemOps(bindings::configfs_item_operations {
    release: Some(release),
    ..pin_init::zeroed()
});

/// Called by configfs when the last reference to the directory was dropped.
///
/// # Safety
///
/// `item` must be the item of a [`Top`], which is not used afterwards.
//
// Part of the module with this crate, like `Member::drop`: see `LastTails`.
unsafe extern "C" fn release(item: *mut bindings::config_item) {
    // CAST: The item is the first field of the group, the group that of the subsystem, and the
    // subsystem that of a `repr(C)` struct.
    // SAFETY: By this function's contract the last reference was put, and by the type invariant the
    // references owned the box.
    let top = unsafe { KBox::from_raw(item.cast::<Top>()) };
    // SAFETY: By this function's contract nobody uses the mutex any more.
    unsafe { bindings::mutex_destroy(&raw mut (*top.raw.get()).su_mutex) };
    drop(top);
}

impl Subsystem {
    /// Creates the directory of the module `M`, the driver's `crate::LocalModule`.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub fn new<M: ModuleMetadata>(name: &CStr) -> Result<Self> {
        let (tree, member) = Tree::new()?;
        let top = Top {
            raw: Opaque::zeroed(),
            member,
        };
        let top = NonNull::from(KBox::leak(KBox::new(top, GFP_KERNEL)?));
        // SAFETY: The box was just leaked, so the pointer is valid.
        let subsystem = unsafe { top.as_ref() }.raw.get();
        // SAFETY: The subsystem is zeroed memory that nobody else uses, and that does not move; the
        // name and the key are static.
        unsafe {
            bindings::__mutex_init(
                &raw mut (*subsystem).su_mutex,
                optional_name!("configfs::Subsystem").as_char_ptr(),
                static_lock_class!().as_ptr(),
            );
        }
        // SAFETY: As above.
        unsafe { bindings::config_group_init(&raw mut (*subsystem).su_group) };
        // The type lives as long as the module, which owns this value. Dropping this value waits
        // for the last reference to the item, and nobody reads the type without a reference.
        // SAFETY: As above.
        unsafe { (*subsystem).su_group.cg_item.ci_type = ptr::from_ref(Kind::<M>::ITEM_TYPE) };
        // INVARIANT: The group was initialised with its first reference, and has no default groups.
        let this = Self { top, tree };
        // SAFETY: The item is initialised, and nobody else uses it; the format takes one string.
        to_result(unsafe {
            bindings::config_item_set_name(
                &raw mut (*subsystem).su_group.cg_item,
                c"%s".as_char_ptr(),
                name.as_char_ptr(),
            )
        })?;
        Ok(this)
    }

    fn raw(&self) -> *mut bindings::configfs_subsystem {
        // SAFETY: By the type invariant this value owns a reference to the item, so `top` is valid.
        unsafe { self.top.as_ref() }.raw.get()
    }

    fn group(&self) -> *mut bindings::config_group {
        // SAFETY: `raw` returns a pointer to a valid subsystem.
        unsafe { &raw mut (*self.raw()).su_group }
    }

    /// Returns the tree for which directories of this subsystem are created.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Adds a directory, which must have been created for the subsystem's tree.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if `folder` was created for another tree; [`ENOMEM`].
    pub fn add(&mut self, name: &CStr, folder: Folder) -> Result {
        folder.check_tree(&self.tree)?;
        // SAFETY: By the type invariant the group is initialised and unknown to configfs, and its
        // default groups are removed when this value is dropped.
        unsafe { folder.add_to(self.group(), name) }
    }

    /// Registers the directory with configfs. Users can create directories in its subdirectories
    /// before this returns.
    ///
    /// A module's `init` calls this last and must not fail afterwards. A reference of configfs does
    /// not keep a module loaded whose `init` has failed.
    ///
    /// # Errors
    ///
    /// [`EEXIST`] if there is a directory of that name; [`ENOMEM`].
    pub fn register(self) -> Result<Registration> {
        // SAFETY: By the type invariant the subsystem is initialised, and not registered yet.
        to_result(unsafe { bindings::configfs_register_subsystem(self.raw()) })?;
        // INVARIANT: The subsystem was just registered.
        Ok(Registration(self))
    }
}

impl Drop for Subsystem {
    /// Waits until nobody has a reference to the subsystem or its directories; see
    /// [`configfs`](super).
    ///
    /// # Context
    ///
    /// *may sleep*, as long as a task is in `symlink(2)` in one of the directories.
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: By the type invariant the group owns the references to its default groups, and
        // configfs does not know it.
        unsafe { bindings::configfs_remove_default_groups(self.group()) };
        // SAFETY: By the type invariant this value owns the reference, which ends here.
        unsafe { bindings::config_item_put(&raw mut (*self.group()).cg_item) };
        self.tree.wait_gone();
    }
}

/// A registered [`Subsystem`]; dropping it unregisters the subsystem.
///
/// It belongs to the module's own value. The kernel drops that value only when no directory is left
/// that a user has created, as each of them keeps the module loaded. Dropping it also waits for the
/// references that tasks still hold to removed directories (see [`Subsystem`]).
///
/// # Invariants
///
/// configfs knows the subsystem, as an exception to the invariant of [`Subsystem`]. The drop of
/// this value unregisters the subsystem before the subsystem is dropped.
pub struct Registration(Subsystem);

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the subsystem is registered. Afterwards configfs does not
        // know it.
        unsafe { bindings::configfs_unregister_subsystem(self.0.raw()) };
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_configfs)]
mod tests {
    use super::*;
    use crate::configfs::{
        Attr,
        Buf,
        Directory, //
    };
    use crate::sync::atomic::{
        Atomic,
        Relaxed, //
    };
    use crate::work::{
        Options,
        Queue, //
    };
    use kernel::{
        sync::Arc,
        time::{
            delay::fsleep,
            Delta, //
        }, //
    };

    /// The module of the test's directories.
    struct Nobody;

    impl ModuleMetadata for Nobody {
        const NAME: &'static CStr = c"nobody";
        // SAFETY: A null pointer stands for code that is built into the kernel.
        const THIS_MODULE: ThisModule = unsafe { ThisModule::from_ptr(ptr::null_mut()) };
    }

    struct Numbers(Arc<u32>);

    impl Directory for Numbers {
        type Module = Nobody;
        const FILES: &'static [Attr<Self>] = &[Attr::rw(
            c"value",
            |this: &Self, buf: &mut Buf<'_>| buf.line(fmt!("{}", *this.0)),
            |_this: &Self, _input: &[u8]| Err(EINVAL),
        )];
    }

    const NAME: &CStr = c"kx-test-subsystem-of-kunit";

    fn numbers(tree: &Tree, value: &Arc<u32>) -> Result<Folder> {
        let mut folder = Folder::new(tree, Numbers(value.clone()))?;
        // Longer than the name inside an item.
        folder.add(
            c"a-name-of-more-than-twenty-bytes",
            Folder::new(tree, Numbers(value.clone()))?,
        )?;
        Ok(folder)
    }

    fn top(value: &Arc<u32>) -> Result<Subsystem> {
        let mut top = Subsystem::new::<Nobody>(NAME)?;
        let numbers = numbers(top.tree(), value)?;
        top.add(c"numbers", numbers)?;
        Ok(top)
    }

    #[test]
    fn everything_is_dropped() -> Result {
        let value = Arc::new(5, GFP_KERNEL)?;
        drop(top(&value)?);

        let top = top(&value)?.register()?;
        let again = Subsystem::new::<Nobody>(NAME)?;
        assert!(matches!(again.register(), Err(e) if e == EEXIST));
        drop(top);
        assert!(Arc::into_unique_or_drop(value).is_some());
        Ok(())
    }

    #[test]
    fn a_directory_of_another_tree_is_refused() -> Result {
        let value = Arc::new(5, GFP_KERNEL)?;
        let other = Subsystem::new::<Nobody>(NAME)?;
        let mut top = top(&value)?;
        let stray = numbers(other.tree(), &value)?;
        assert_eq!(top.add(c"stray", stray), Err(EINVAL));
        let mut folder = numbers(top.tree(), &value)?;
        let stray = numbers(other.tree(), &value)?;
        assert_eq!(folder.add(c"stray", stray), Err(EINVAL));
        Ok(())
    }

    /// Dropping a subsystem waits for references such as those of a task that creates a link.
    #[test]
    fn the_end_waits_for_references() -> Result {
        for of_top in [true, false] {
            let value = Arc::new(5, GFP_KERNEL)?;
            let top = top(&value)?.register()?;
            // A further member stands for a reference to the top.
            let kept = match of_top {
                true => Kept::Top(top.0.tree.join()),
                false => Kept::Folder(numbers(top.0.tree(), &value)?),
            };
            let ended = Arc::new(Atomic::new(0u32), GFP_KERNEL)?;
            let queue = Queue::new(Options::ordered(), fmt!("kx-configfs-test"))?;
            let has_ended = ended.clone();
            queue.spawn(GFP_KERNEL, move || {
                fsleep(Delta::from_millis(300));
                has_ended.store(1, Relaxed);
                drop(kept);
            })?;
            drop(top);
            assert_eq!(ended.load(Relaxed), 1);
            queue.flush();
            assert!(Arc::into_unique_or_drop(value).is_some());
        }
        Ok(())
    }

    /// A reference of the test's own.
    enum Kept {
        Top(#[expect(dead_code)] Member),
        Folder(#[expect(dead_code)] Folder),
    }
}
