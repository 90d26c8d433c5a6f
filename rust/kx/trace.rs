// SPDX-License-Identifier: GPL-2.0

//! Trace events that a module of ours defines in C.
//!
//! [`kernel::tracepoint`] knows the events that the kernel crate binds. Those that
//! [`trace_events!`](crate::trace_events) makes callable are defined in `rust/helpers/trace.h`.
//! While an event is not traced, it costs one instruction that does nothing.
//!
//! C header: [`include/linux/tracepoint.h`](srctree/include/linux/tracepoint.h)

use kernel::prelude::*;

#[doc(hidden)]
pub use ibtrs_bindings as bindings;

/// The types of an event's arguments: numbers and strings.
pub trait Arg {
    /// The type in C.
    type Raw;

    /// Returns the argument for C, valid during the call.
    fn raw(&self) -> Self::Raw;
}

macro_rules! plain_args {
    ($($ty:ty)*) => {$(
        impl Arg for $ty {
            type Raw = $ty;

            #[inline]
            fn raw(&self) -> $ty {
                *self
            }
        }
    )*};
}
plain_args! { bool u8 u16 u32 u64 i32 }

impl Arg for &CStr {
    type Raw = *const c_char;

    #[inline]
    fn raw(&self) -> *const c_char {
        self.as_char_ptr()
    }
}

/// Creates safe functions for trace events.
///
/// Each takes a function that returns the event's arguments, and that is called only while the
/// event is traced; borrowed arguments live for `'a`. The event must take these arguments, as
/// [`Arg::Raw`](crate::trace::Arg::Raw), and copy the strings. It may be called in any context.
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
                // SAFETY: The key of a tracepoint may be read at any time.
                let traced = unsafe {
                    ::kernel::jump_label::static_branch_unlikely!(
                        $crate::trace::bindings::[< __tracepoint_ $event >],
                        ::kernel::bindings::tracepoint,
                        key
                    )
                };
                if traced {
                    let ($($arg,)*) = args();
                    // SAFETY: Strings are borrowed until after the call, which copies them; numbers
                    // need nothing.
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
        // SAFETY: `system` is valid during the call; a null pointer stands for all events of it.
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
