// SPDX-License-Identifier: GPL-2.0

//! Safe functions for the trace events that `rust/helpers/trace.h` defines in C.
//!
//! [`kernel::tracepoint`] supports only events that the kernel crate binds.
//! [`trace_events!`](crate::trace_events) creates a function for an event of this tree. While the
//! event is not traced, calling the function costs one no-op instruction.
//!
//! C header: [`include/linux/tracepoint.h`](srctree/include/linux/tracepoint.h)

use kernel::prelude::*;

#[doc(hidden)]
pub use ibtrs_bindings as bindings;

mod sealed {
    pub trait Sealed {}
}

/// An argument of an event: a number or a string. Only the types of this module implement it, as C uses
/// what [`Arg::raw`] returns.
pub trait Arg: sealed::Sealed {
    /// The type in C.
    type Raw;

    /// Returns the argument for C, which is valid as long as `self` is borrowed.
    fn raw(&self) -> Self::Raw;
}

macro_rules! plain_args {
    ($($ty:ty)*) => {$(
        impl sealed::Sealed for $ty {}

        impl Arg for $ty {
            type Raw = $ty;

            #[inline]
            fn raw(&self) -> $ty {
                *self
            }
        }
    )*};
}
plain_args! { bool u8 u16 u32 u64 i32 i64 }

impl sealed::Sealed for &CStr {}

impl Arg for &CStr {
    type Raw = *const c_char;

    #[inline]
    fn raw(&self) -> *const c_char {
        self.as_char_ptr()
    }
}

/// Creates safe functions for trace events.
///
/// Each takes a function that returns the event's arguments, and calls it only while the event is
/// traced; borrowed arguments live for `'a`. The event must take these arguments, as
/// [`Arg::Raw`](crate::trace::Arg::Raw), and copy the strings. The safe functions may be called in
/// any context in which `args` may be.
///
/// # Examples
///
/// ```ignore
/// kx::trace_events! {
///     /// A request was submitted.
///     pub fn submit = my_submit(name: &'a CStr, bytes: u32);
/// }
///
/// submit(|| (session.name(), 4096));
/// ```
#[macro_export]
macro_rules! trace_events {
    ($(
        $(#[$attr:meta])*
        $vis:vis fn $name:ident = $event:ident($($arg:ident: $ty:ty),* $(,)?);
    )*) => {$(
        $(#[$attr])*
        #[inline(always)]
        $vis fn $name<'a>(args: impl FnOnce() -> ($($ty,)*)) {
            #[cfg(CONFIG_TRACEPOINTS)]
            ::kernel::macros::paste! {
                if $crate::is_traced!($event) {
                    let ($($arg,)*) = args();
                    // SAFETY: The compiler checks the types of the arguments. Strings are borrowed
                    // until the call, which copies them, has returned.
                    unsafe {
                        $crate::trace::bindings::[< rust_do_trace_ $event >](
                            $($crate::trace::Arg::raw(&$arg)),*
                        )
                    }
                }
            }
            #[cfg(not(CONFIG_TRACEPOINTS))]
            let _ = args;
        }
    )*};
}

/// Returns whether an event of this tree is traced; costs one no-op instruction while it is not.
///
/// # Examples
///
/// ```ignore
/// if kx::is_traced!(my_submit) {
///     note_time();
/// }
/// ```
#[macro_export]
macro_rules! is_traced {
    ($event:ident) => {{
        #[cfg(CONFIG_TRACEPOINTS)]
        let traced = ::kernel::macros::paste! {
            // SAFETY: The key of a tracepoint may be read at any time.
            unsafe {
                ::kernel::jump_label::static_branch_unlikely!(
                    $crate::trace::bindings::[< __tracepoint_ $event >],
                    ::kernel::bindings::tracepoint,
                    key
                )
            }
        };
        #[cfg(not(CONFIG_TRACEPOINTS))]
        let traced = false;
        traced
    }};
}

/// Enables all events of a trace system while it exists.
///
/// # Context
///
/// Creating and dropping one *may sleep*.
#[cfg(IBTRS_KUNIT)]
pub struct Traced(&'static CStr);

#[cfg(IBTRS_KUNIT)]
impl Traced {
    /// Enables the events.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if the system has no events.
    pub fn new(system: &'static CStr) -> Result<Self> {
        Self::switch(system, true)?;
        Ok(Self(system))
    }

    fn switch(system: &CStr, on: bool) -> Result {
        // SAFETY: `system` is a C string, and a null pointer stands for all events of the system.
        kernel::error::to_result(unsafe {
            bindings::trace_set_clr_event(system.as_char_ptr(), core::ptr::null(), on.into())
        })
    }
}

#[cfg(IBTRS_KUNIT)]
impl Drop for Traced {
    fn drop(&mut self) {
        // The system has events, otherwise `new` would have failed.
        let _ = Self::switch(self.0, false);
    }
}
