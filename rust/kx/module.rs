// SPDX-License-Identifier: GPL-2.0

//! Keeping a module loaded.
//!
//! C header: [`include/linux/module.h`](srctree/include/linux/module.h)

use core::ptr::NonNull;
use kernel::{
    bindings,
    module::this_module,
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
