// SPDX-License-Identifier: GPL-2.0

//! Directories, files and links in sysfs, and classes of devices.
//!
//! A table of [`Attr`]s lists the files of one kind of directory, with the functions that show and
//! write them. A [`Dir`] is a directory below another one; a [`Device`] is the directory of a
//! device of a [`Class`]. Both keep a reference to the data that the functions get. A [`Link`]
//! points from one directory to another.
//!
//! # Context
//!
//! Everything here *may sleep*. Dropping a directory waits for the functions of its files, so these
//! functions must not wait for the task that drops the directory. The function of a file that
//! removes its own directory calls [`KeptCtx::remove_self`] first, and may then drop the directory
//! itself.
//!
//! # Examples
//!
//! ```
//! # use kernel::{prelude::*, sync::Arc};
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
//! use kx::sysfs::{Attr, Buf, Class, Device, StoreCtx};
//!
//! struct Session;
//!
//! static FILES: [Attr<Arc<Session>>; 2] = [
//!     Attr::ro(c"state", Session::show_state),
//!     Attr::new(c"remove", 0o200, None, Some(Session::store_remove)),
//! ];
//!
//! impl Session {
//!     fn show_state(&self, buf: &mut Buf<'_>) -> Result {
//!         buf.line(fmt!("{}", "open"))
//!     }
//!
//!     fn store_remove(ctx: StoreCtx<'_, Arc<Self>>, input: &[u8]) -> Result {
//!         if input != b"1" {
//!             return Err(EINVAL);
//!         }
//!         let ctx = ctx.keep_module::<crate::LocalModule>()?;
//!         let this = ctx.remove_self().ok_or(ENODEV)?;
//!         // The directory may go now.
//!         drop(this);
//!         Ok(())
//!     }
//! }
//!
//! fn show(session: Arc<Session>) -> Result<Device<Arc<Session>>> {
//!     let class = Class::new(c"my-class")?;
//!     Device::new(&class, fmt!("one"), session, &FILES)
//! }
//! ```
//!
//! C headers: [`include/linux/sysfs.h`](srctree/include/linux/sysfs.h),
//! [`include/linux/kobject.h`](srctree/include/linux/kobject.h),
//! [`include/linux/device.h`](srctree/include/linux/device.h)

mod attr;
mod buf;
mod class;
mod device;
mod dir;
mod link;
mod name;
mod node;

pub use attr::{
    Attr,
    Data,
    KeptCtx,
    StoreCtx, //
};
pub use buf::Buf;
pub use class::{
    Class,
    ModuleClass,
    Registration, //
};
pub(crate) use device::send_uevent;
pub use device::{
    Action,
    Device, //
};
pub use dir::{
    Dir,
    PlainDir, //
};
pub use link::Link;
pub use node::InSysfs;

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_sysfs)]
mod tests {
    use super::*;
    use kernel::{
        prelude::*,
        sync::Arc, //
    };

    static FILES: [Attr<Arc<u32>>; 2] = [
        Attr::ro(c"value", |value, buf| buf.line(fmt!("{value}"))),
        Attr::new(c"nothing", 0o200, None, Some(|_, _| Ok(()))),
    ];

    #[test]
    fn names_of_devices() -> Result {
        let class = Class::new(c"kx-names")?;
        let new = |name: &str| Device::new(&class, fmt!("{name}"), &(), &[]);
        let first = new("same/name")?;
        assert!(matches!(new("same/name"), Err(e) if e == EEXIST));
        assert!(matches!(new("same!name"), Err(e) if e == EEXIST));
        let second = new("same")?;
        drop(first);
        let first = new("same!name")?;
        drop((second, first));
        Ok(())
    }

    #[test]
    fn any_order_of_removal() -> Result {
        let class = Class::new(c"kx-test")?;
        let value = Arc::new(5, GFP_KERNEL)?;
        let device = Device::new(&class, fmt!("a/b"), value.clone(), &FILES)?;
        drop(class);
        assert_eq!(device.name().to_bytes(), b"a!b");
        assert_eq!(**device.data(), 5);
        device.uevent(Action::Change, &[c"TEST=1", c"MORE=2"])?;

        let top = Arc::new(Dir::plain(&device, fmt!("top"))?, GFP_KERNEL)?;
        let inner = Dir::new(&*top, fmt!("inner"), value.clone(), &FILES)?;
        let again = Dir::new(&*top, fmt!("inner"), value.clone(), &FILES);
        assert!(matches!(again, Err(e) if e == EEXIST));
        let mut inner = inner;
        inner.rename(fmt!("other name"))?;
        assert_eq!(inner.rename(fmt!("a\0b")), Err(EINVAL));
        let third = Dir::new(&*top, fmt!("inner"), value.clone(), &FILES)?;
        assert_eq!(inner.rename(fmt!("inner")), Err(EEXIST));
        drop(third);
        inner.rename(fmt!("inner"))?;
        let link = Link::new(top.clone(), &inner, fmt!("link"))?;
        assert!(matches!(Link::new(top.clone(), &device, fmt!("link")), Err(e) if e == EEXIST));
        let other = Link::new(top.clone(), &device, fmt!("other"))?;

        // Directories below a device are removed with it, before their owners are dropped.
        drop(device);
        drop(link);
        drop(inner);
        drop(top);
        drop(other);
        assert!(Arc::into_unique_or_drop(value).is_some());
        Ok(())
    }
}
