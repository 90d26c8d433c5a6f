// SPDX-License-Identifier: GPL-2.0

//! Module parameters: strings, booleans, and integers with a range. All are visible in sysfs.
//!
//! The kernel crate's `module!` supports only integers and booleans, and hides them from sysfs. A
//! module declares these parameters beside its `module!`, in the same crate. The kernel sets them
//! before the module's `init` runs.
//!
//! # Examples
//!
//! ```
//! # use kernel::prelude::*;
//! # use kx::param::{IntParam, StringParam};
//! # module! {
//! #     type: Example,
//! #     name: "example",
//! #     authors: ["The authors"],
//! #     description: "An example",
//! #     license: "GPL",
//! # }
//! # struct Example;
//! # impl kernel::Module for Example {
//! #     fn init(_module: &'static ThisModule) -> Result<Self> {
//! #         Ok(Self)
//! #     }
//! # }
//! # fn main() {}
//! kx::module_param! {
//!     /// The directory with the devices that clients may open.
//!     dev_search_path: StringParam<256> = StringParam::new("/"),
//!     "Directory with the devices that clients may open (default: /)";
//!
//!     /// The largest request.
//!     max_io_size: IntParam = IntParam::new(131072, 4096..=1048576),
//!     "Largest request in bytes, 4096 to 1048576 (default: 131072)";
//! }
//!
//! fn init() {
//!     pr_info!("{:?} {}\n", dev_search_path.get(), max_io_size.get());
//! }
//! ```
//!
//! C header: [`include/linux/moduleparam.h`](srctree/include/linux/moduleparam.h)

use crate::sync::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    SetOnce, //
};
use core::ops::RangeInclusive;
use kernel::{
    bindings,
    error::from_result,
    fmt::{
        self,
        Write, //
    },
    module_param::{
        KernelParam,
        ModuleParam, //
    },
    page::PAGE_SIZE,
    prelude::*,
    str::{
        BStr,
        Formatter, //
    }, //
};

/// A type of module parameter.
///
/// The kernel sets the value while it loads the module; afterwards the value is read-only.
pub trait Param: Sync + 'static {
    /// The type's name for `modinfo`.
    const TYPE: &'static str;

    /// Sets the value from the user's text.
    ///
    /// # Errors
    ///
    /// Any error, with which loading the module then fails.
    fn set(&self, arg: &BStr) -> Result;

    /// Writes the value as text for sysfs, without a newline.
    fn show(&self, f: &mut Formatter<'_>) -> fmt::Result;
}

/// An integer in a range.
pub struct IntParam {
    value: Atomic<u32>,
    range: RangeInclusive<u32>,
}

impl IntParam {
    /// Declares a parameter with a default.
    pub const fn new(default: u32, range: RangeInclusive<u32>) -> Self {
        assert!(*range.start() <= default && default <= *range.end());
        Self {
            value: Atomic::new(default),
            range,
        }
    }

    /// Returns the value, which is always in the range.
    pub fn get(&self) -> u32 {
        self.value.load(Relaxed)
    }
}

impl Param for IntParam {
    const TYPE: &'static str = "uint";

    fn set(&self, arg: &BStr) -> Result {
        let value = u32::try_from_param_arg(arg)?;
        if !self.range.contains(&value) {
            return Err(ERANGE);
        }
        self.value.store(value, Relaxed);
        Ok(())
    }

    fn show(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_fmt(fmt!("{}", self.get()))
    }
}

/// A boolean.
pub struct BoolParam(Atomic<bool>);

impl BoolParam {
    /// Declares a parameter with a default.
    pub const fn new(default: bool) -> Self {
        Self(Atomic::new(default))
    }

    /// Returns the value.
    #[inline]
    pub fn get(&self) -> bool {
        self.0.load(Relaxed)
    }
}

impl Param for BoolParam {
    const TYPE: &'static str = "bool";

    fn set(&self, arg: &BStr) -> Result {
        self.0.store(bool::try_from_param_arg(arg)?, Relaxed);
        Ok(())
    }

    fn show(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(if self.get() { "Y" } else { "N" })
    }
}

/// The number of times that a user may give one parameter.
const MOST: usize = 4;

/// A value that may be set several times; the last one applies.
///
/// modprobe joins the options of its files with those of its command line, so a parameter that is in
/// both is set twice.
pub struct Last<T>([SetOnce<T>; MOST]);

impl<T: Copy> Last<T> {
    /// Creates it without a value.
    pub const fn new() -> Self {
        Self([const { SetOnce::new() }; MOST])
    }

    /// Sets the value.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if it was set four times before.
    pub fn set(&self, value: T) -> Result {
        match self.0.iter().any(|place| place.populate(value)) {
            true => Ok(()),
            false => Err(EINVAL),
        }
    }

    /// Returns the value, or [`None`] if it was never set.
    pub fn get(&self) -> Option<&T> {
        self.0.iter().rev().find_map(SetOnce::as_ref)
    }
}

impl<T: Copy> Default for Last<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// A string of up to `N` bytes.
pub struct StringParam<const N: usize> {
    value: Last<([u8; N], usize)>,
    default: &'static str,
}

impl<const N: usize> StringParam<N> {
    /// Declares a parameter with a default.
    pub const fn new(default: &'static str) -> Self {
        // The text must fit into a page, with a newline and a terminator.
        assert!(N <= PAGE_SIZE - 2);
        Self {
            value: Last::new(),
            default,
        }
    }

    /// Returns the value, which may contain any byte except NUL.
    pub fn get(&self) -> &[u8] {
        match self.value.get() {
            Some((bytes, len)) => bytes.get(..*len).unwrap_or_default(),
            None => self.default.as_bytes(),
        }
    }
}

impl<const N: usize> Param for StringParam<N> {
    const TYPE: &'static str = "string";

    fn set(&self, arg: &BStr) -> Result {
        let mut bytes = [0; N];
        bytes
            .get_mut(..arg.len())
            .ok_or(ENAMETOOLONG)?
            .copy_from_slice(arg);
        self.value.set((bytes, arg.len()))
    }

    fn show(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_fmt(fmt!("{}", BStr::from_bytes(self.get())))
    }
}

/// Called by the kernel to set a parameter.
///
/// # Safety
///
/// `val` must be null or a C string, and `param` must come from [`raw_param`] for a `T`.
unsafe extern "C" fn set_param<T: Param>(
    val: *const c_char,
    param: *const bindings::kernel_param,
) -> c_int {
    if val.is_null() {
        return EINVAL.to_errno();
    }
    // SAFETY: By this function's contract this is a C string, which is valid during the call.
    let val = unsafe { CStr::from_char_ptr(val) };
    // SAFETY: By this function's contract `raw_param` has set `arg` to a static `T`.
    let this = unsafe { &*(*param).__bindgen_anon_1.arg.cast::<T>() };
    from_result(|| this.set(val.as_ref()).map(|()| 0))
}

/// Called by the kernel to show a parameter.
///
/// # Safety
///
/// `buf` must be an initialised page that is valid for writes and that nobody else uses, and
/// `param` must come from [`raw_param`] for a `T`.
unsafe extern "C" fn get_param<T: Param>(
    buf: *mut c_char,
    param: *const bindings::kernel_param,
) -> c_int {
    // SAFETY: By this function's contract the page is valid and initialised, and nobody else uses
    // it.
    let buf = unsafe { core::slice::from_raw_parts_mut(buf.cast::<u8>(), PAGE_SIZE) };
    // SAFETY: By this function's contract `raw_param` has set `arg` to a static `T`.
    let this = unsafe { &*(*param).__bindgen_anon_1.arg.cast::<T>() };
    let mut f = Formatter::new(buf);
    if this.show(&mut f).and_then(|()| f.write_str("\n")).is_err() {
        return EIO.to_errno();
    }
    // CAST: At most a page.
    f.bytes_written() as c_int
}

/// Creates a parameter that every user may read.
#[doc(hidden)]
pub const fn raw_param<T: Param>(
    name: &'static CStr,
    module: *mut bindings::module,
    param: &'static T,
) -> KernelParam {
    KernelParam::new(bindings::kernel_param {
        name: kernel::str::as_char_ptr_in_const_context(name),
        mod_: module,
        ops: &const {
            bindings::kernel_param_ops {
                flags: 0,
                set: Some(set_param::<T>),
                get: Some(get_param::<T>),
                free: None,
            }
        },
        perm: 0o444,
        level: -1,
        flags: 0,
        __bindgen_anon_1: bindings::kernel_param__bindgen_ty_1 {
            arg: core::ptr::from_ref(param).cast_mut().cast(),
        },
    })
}

/// Concatenates strings, for the module's information section.
#[doc(hidden)]
pub const fn concat<const N: usize>(parts: &[&str]) -> [u8; N] {
    let mut out = [0; N];
    let (mut part, mut pos) = (0, 0);
    while part < parts.len() {
        let bytes = parts[part].as_bytes();
        let mut i = 0;
        while i < bytes.len() {
            out[pos] = bytes[i];
            pos += 1;
            i += 1;
        }
        part += 1;
    }
    assert!(pos == N);
    out
}

/// Declares module parameters; see the [module's documentation](crate::param).
///
/// Each parameter becomes a `static` of that name.
#[macro_export]
macro_rules! module_param {
    ($(
        $(#[$attr:meta])*
        $vis:vis $name:ident: $type:ty = $value:expr, $description:literal;
    )*) => {$(
        $(#[$attr])*
        #[allow(non_upper_case_globals)]
        $vis static $name: $type = $value;

        const _: () = {
            #[link_section = "__param"]
            #[used(compiler)]
            static PARAM: ::kernel::module_param::KernelParam = $crate::param::raw_param(
                ::kernel::c_str!(::core::stringify!($name)),
                // SAFETY: Only the address is taken; the module outlives its parameters.
                unsafe { ::core::ptr::from_ref(&::kernel::bindings::__this_module).cast_mut() },
                &$name,
            );

            const TYPE: &str = <$type as $crate::param::Param>::TYPE;

            #[link_section = ".modinfo"]
            #[used(compiler)]
            static PARM_TYPE: [u8; ::core::concat!("parmtype=", ::core::stringify!($name), ":\0")
                .len() + TYPE.len()] = $crate::param::concat(&[
                ::core::concat!("parmtype=", ::core::stringify!($name), ":"),
                TYPE,
                "\0",
            ]);

            #[link_section = ".modinfo"]
            #[used(compiler)]
            static PARM: [u8; ::core::concat!("parm=", ::core::stringify!($name), ":", $description, "\0")
                .len()] = $crate::param::concat(&[::core::concat!(
                "parm=", ::core::stringify!($name), ":", $description, "\0"
            )]);
        };
    )*};
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_param)]
mod tests {
    use super::*;

    fn shown<P: Param>(param: &P) -> Result<KVec<u8>> {
        let mut page = KVec::from_elem(0u8, 100, GFP_KERNEL)?;
        let mut f = Formatter::new(&mut page);
        param.show(&mut f).map_err(|_| EIO)?;
        let len = f.bytes_written();
        page.truncate(len);
        Ok(page)
    }

    fn set<P: Param>(param: &P, arg: &[u8]) -> Result {
        param.set(BStr::from_bytes(arg))
    }

    #[test]
    fn int_keeps_to_its_range() -> Result {
        let param = IntParam::new(5, 1..=10);
        for far in ["0", "11"] {
            assert_eq!(set(&param, far.as_bytes()), Err(ERANGE));
        }
        for bad in ["", "x", "-1", "1 2", "4294967296"] {
            assert!(set(&param, bad.as_bytes()).is_err());
        }
        assert_eq!(param.get(), 5);
        set(&param, b"0xa")?;
        assert_eq!(param.get(), 10);
        assert_eq!(&shown(&param)?[..], b"10");
        Ok(())
    }

    #[test]
    fn switch() -> Result {
        let param = BoolParam::new(true);
        assert_eq!(&shown(&param)?[..], b"Y");
        set(&param, b"off")?;
        assert!(!param.get());
        assert_eq!(set(&param, b"?"), Err(EINVAL));
        Ok(())
    }

    #[test]
    fn the_string_set_last_holds() -> Result {
        let param = StringParam::<4>::new("/");
        assert_eq!(param.get(), b"/");
        assert_eq!(set(&param, b"abcde"), Err(ENAMETOOLONG));
        set(&param, b"x")?;
        set(&param, b"")?;
        assert_eq!(param.get(), b"");
        set(&param, b"abcd")?;
        assert_eq!(set(&param, b"abcde"), Err(ENAMETOOLONG));
        assert_eq!(param.get(), b"abcd");
        assert_eq!(&shown(&param)?[..], b"abcd");
        // There is room for no more than that.
        set(&param, b"y")?;
        assert_eq!(set(&param, b"z"), Err(EINVAL));
        assert_eq!(param.get(), b"y");
        Ok(())
    }

    #[test]
    fn joins() {
        assert_eq!(&concat::<6>(&["ab", "", "c", "def"]), b"abcdef");
    }
}
