// SPDX-License-Identifier: GPL-2.0

//! The class of a module.

use super::Class;
use crate::sync::RcuPtr;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Where a module keeps its class, in a `static`, so that whatever is to be shown finds it.
pub struct ModuleClass(RcuPtr<Arc<Class>>);

impl ModuleClass {
    /// Makes a place without a class.
    pub const fn new() -> Self {
        Self(RcuPtr::null())
    }

    /// Makes the class, which is kept until the registration is dropped.
    ///
    /// # Context
    ///
    /// *may sleep*; one registration at a time.
    ///
    /// # Errors
    ///
    /// Those of [`Class::new`].
    pub fn register(&'static self, name: &'static CStr) -> Result<Registration> {
        let class = Class::new(name)?;
        drop(self.0.replace(Some(KBox::new(class, GFP_KERNEL)?)));
        Ok(Registration(self))
    }

    /// Returns the class.
    ///
    /// # Context
    ///
    /// *any*
    ///
    /// # Errors
    ///
    /// [`ENODEV`] if there is none.
    pub fn get(&self) -> Result<Arc<Class>> {
        self.0.read().get().cloned().ok_or(ENODEV)
    }
}

impl Default for ModuleClass {
    fn default() -> Self {
        Self::new()
    }
}

/// Keeps the class of a module; dropping it *may sleep*.
pub struct Registration(&'static ModuleClass);

impl Drop for Registration {
    fn drop(&mut self) {
        drop(self.0 .0.replace(None));
    }
}
