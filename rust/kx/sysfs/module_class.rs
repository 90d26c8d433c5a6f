// SPDX-License-Identifier: GPL-2.0

//! The class of a module.

use super::Class;
use crate::sync::RcuPtr;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Where a module keeps its class, in a `static`, so that whatever is to be shown finds it.
pub struct ModuleClass {
    name: &'static CStr,
    class: RcuPtr<Arc<Class>>,
}

impl ModuleClass {
    /// Makes a place for the class `name`.
    pub const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            class: RcuPtr::null(),
        }
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
    pub fn register(&'static self) -> Result<Registration> {
        let class = Class::new(self.name)?;
        drop(self.class.replace(Some(KBox::new(class, GFP_KERNEL)?)));
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
        self.class.read().get().cloned().ok_or(ENODEV)
    }
}

/// Keeps the class of a module; dropping it *may sleep*.
pub struct Registration(&'static ModuleClass);

impl Drop for Registration {
    fn drop(&mut self) {
        drop(self.0.class.replace(None));
    }
}
