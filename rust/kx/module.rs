// SPDX-License-Identifier: GPL-2.0

//! Keeping a module loaded.
//!
//! C header: [`include/linux/module.h`](srctree/include/linux/module.h)

use core::ptr::NonNull;
use kernel::{
    bindings,
    module::this_module,
    task::might_sleep,
    ModuleMetadata, //
};

/// Keeps a module from being unloaded.
///
/// Code of that module must not drop the last reference, as the code may be freed before the
/// function has returned: for the files of sysfs there is
/// [`StoreCtx::keep_module`](crate::sysfs::StoreCtx::keep_module). Dropping it in the module is
/// allowed as long as another reference keeps the code.
///
/// # Context
///
/// Everything here: *any*.
///
/// # Invariants
///
/// `module` is none, or points to a module on which this value owns a reference.
pub struct ModuleRef {
    module: Option<NonNull<bindings::module>>,
}

// SAFETY: The count of a module may be changed by any thread.
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

/// Waits, when dropped, for the last instructions of callbacks; the last field of the module that
/// this crate is part of.
///
/// Four callbacks may end what a driver's unloading waits for: the end of a bio (`blk::bio`), the
/// function of a file that removes itself (`sysfs::attr`), a work item that drops its own queue
/// (`work::queue`), and the release of a directory (`configfs`). The driver may be unloaded a
/// moment later, so the functions that these return to are part of the module with this crate,
/// which every driver depends on. A scenario (`test_unload.py`) checks that.
///
/// That module can be unloaded as soon as the drivers are, while a task may have been preempted in
/// one of these functions, with a few instructions to go: the read section has ended, or the
/// driver's module was put. Nothing counts such a task. But it has not slept since, and dropping
/// this waits until each task that was preempted anywhere in the kernel has slept, or has returned
/// to user space. No others follow: nobody calls these functions without a driver. The grace period
/// before the kernel frees a module covers interrupts.
///
/// # Context
///
/// Dropping *may sleep*: for a fraction of a second as a rule, or as long as a task computes in the
/// kernel without sleeping.
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
        // SAFETY: Callable where sleeping is allowed, as it is here.
        unsafe { ibtrs_bindings::kx_synchronize_tasks() }
    }
}
