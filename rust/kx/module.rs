// SPDX-License-Identifier: GPL-2.0

//! Keeping a module loaded.
//!
//! # Examples
//!
//! ```
//! # use kernel::prelude::*;
//! use kx::module::ModuleRef;
//!
//! /// Keeps the driver with the given `LocalModule` loaded while the result lives.
//! fn keep<M: kernel::ModuleMetadata>() -> Result<ModuleRef> {
//!     ModuleRef::get::<M>().ok_or(ENODEV)
//! }
//! ```
//!
//! C header: [`include/linux/module.h`](srctree/include/linux/module.h)

use core::ptr::NonNull;
use kernel::{
    bindings,
    module::this_module,
    task::might_sleep,
    ModuleMetadata, //
};

/// A reference that keeps a module from being unloaded.
///
/// Code of that module must not drop the last reference, as the kernel may free the code before the
/// function has returned. It may drop a reference as long as another one keeps the module. The
/// function of a sysfs file uses [`StoreCtx::keep_module`](crate::sysfs::StoreCtx::keep_module).
///
/// # Context
///
/// Everything here: *any*.
///
/// # Invariants
///
/// `module` is none for code that is built into the kernel; otherwise it points to a module, to
/// which this value owns a reference.
pub struct ModuleRef {
    module: Option<NonNull<bindings::module>>,
}

// SAFETY: Any thread may change the reference count of a module.
unsafe impl Send for ModuleRef {}

// SAFETY: As above.
unsafe impl Sync for ModuleRef {}

impl ModuleRef {
    /// Takes a reference to the module of type `M`; returns [`None`] if the module is being
    /// unloaded.
    ///
    /// In a driver `M` is `crate::LocalModule`.
    pub fn get<M: ModuleMetadata>() -> Option<Self> {
        let module = this_module::<M>().as_ptr();
        // SAFETY: The module is loaded, as the caller is part of it. A null pointer stands for code
        // that is built into the kernel, and C accepts it.
        if unsafe { bindings::try_module_get(module) } {
            // INVARIANT: The new value owns the reference.
            Some(Self {
                module: NonNull::new(module),
            })
        } else {
            None
        }
    }
}

impl Drop for ModuleRef {
    fn drop(&mut self) {
        if let Some(module) = self.module {
            // SAFETY: By the type invariant this value owns the reference, which ends here.
            unsafe { bindings::module_put(module.as_ptr()) }
        }
    }
}

/// Waits, when dropped, for the last instructions of callbacks. It is the last field of the module
/// that this crate is part of.
///
/// Four callbacks may release the last object that a driver's unloading waits for: the end of a bio
/// (`blk::bio`), the function of a file that removes itself (`sysfs::attr`), a work item that drops
/// its own queue (`work::queue`), and the release of a directory (`configfs`). The driver may be
/// unloaded a moment later. So the functions to which these callbacks return are part of the module
/// with this crate, on which every driver depends. A scenario (`test_unload.py`) checks that.
///
/// That module can be unloaded right after the drivers, while a task was preempted in one of these
/// functions with a few instructions to go: its RCU read section has ended, or it has put the
/// driver's module. Nothing counts such a task. But the task has not slept since, and dropping this
/// value waits until each task that was preempted anywhere in the kernel has slept or has returned
/// to user space. No other task follows, as nothing calls these functions without a driver. The
/// grace period before the kernel frees a module covers interrupts.
///
/// # Context
///
/// Dropping it *may sleep*: usually for a fraction of a second, but as long as any task computes in
/// the kernel without sleeping.
pub struct LastTails(());

impl LastTails {
    /// Creates the value for the module that this crate is part of.
    #[expect(clippy::new_without_default)]
    pub fn new() -> Self {
        Self(())
    }
}

impl Drop for LastTails {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: The callee requires only that the task may sleep, as it may here.
        unsafe { ibtrs_bindings::kx_synchronize_tasks() }
    }
}
