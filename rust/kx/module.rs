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
/// Code of that module must not drop it, as the code may be gone before the function has returned:
/// for the files of sysfs there is [`StoreCtx::keep_module`](crate::sysfs::StoreCtx::keep_module).
/// Dropping it elsewhere in the module is fine as long as another reference keeps the code.
///
/// # Context
///
/// Everything here: *any*.
///
/// # Invariants
///
/// `module` points to a module whose count one reference of this value is part of.
pub struct ModuleRef {
    module: Option<NonNull<bindings::module>>,
}

// SAFETY: The count of a module may be changed anywhere.
unsafe impl Send for ModuleRef {}

// SAFETY: As above.
unsafe impl Sync for ModuleRef {}

impl ModuleRef {
    /// Keeps the module of type `M`, which is [`None`] if it is being unloaded.
    ///
    /// In a driver `M` is `crate::LocalModule`.
    pub fn get<M: ModuleMetadata>() -> Option<Self> {
        let module = this_module::<M>().as_ptr();
        // SAFETY: The module is there, as the caller is part of it. A null pointer stands for what
        // is built into the kernel, which C accepts.
        if unsafe { bindings::try_module_get(module) } {
            // INVARIANT: The reference belongs to the new value.
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
            // SAFETY: By the type invariant the reference is this value's.
            unsafe { bindings::module_put(module.as_ptr()) }
        }
    }
}

/// Waits for the tails of callbacks when it is dropped, as the last of the module that this crate
/// is part of.
///
/// Three callbacks may end what a driver's unloading waits for: the end of a bio (`blk::bio`), the
/// function of a file that removes itself (`sysfs::attr`), and a work that drops its own queue
/// (`work::queue`). A driver may be gone a moment later, so the functions that these return to are
/// not part of it, but of the module with this crate, which no driver can do without. A scenario
/// (`test_unload.py`) sees that they are.
///
/// That module can be unloaded as soon as the drivers are, and a task may have been preempted in
/// one of these functions, with a few instructions to go: the read section has ended, or the
/// driver's module been put. Nothing counts such a task. But it has not slept since, and this waits
/// until each task that was preempted anywhere in the kernel has run on and slept, or has returned
/// to user space. New ones cannot come: nobody calls these functions without a driver. Interrupts
/// are waited for by the grace period before the kernel frees a module.
///
/// # Context
///
/// *may sleep* to drop it: for a fraction of a second as a rule, or as long as a task computes in
/// the kernel without sleeping.
pub struct LastTails(());

impl LastTails {
    /// Of the module that this crate is part of.
    #[expect(clippy::new_without_default)]
    pub fn new() -> Self {
        Self(())
    }
}

impl Drop for LastTails {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: May be called wherever sleeping is allowed.
        unsafe { ibtrs_bindings::kx_synchronize_tasks() }
    }
}
