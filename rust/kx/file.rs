// SPDX-License-Identifier: GPL-2.0

//! Files of a driver: a device, and files without a name.
//!
//! A file has an object of a type that implements [`FileOps`]. It is opened by way of a [`Device`], or made
//! with [`NewFile`]. Neither has a position, so reads and writes of several tasks do not wait for each other
//! in the kernel. The file keeps the driver's module loaded.
//!
//! [`kernel::miscdevice`] has neither `poll` nor files without a device, and its table of operations cannot
//! be extended from outside.
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
//! use kx::file::{uring::UringOps, Device, DeviceOps, File, FileOps, Io, IovIterDest, Ready, WaitQueue};
//!
//! #[pin_data]
//! struct Clock {
//!     #[pin]
//!     waiters: WaitQueue,
//! }
//!
//! impl UringOps for Clock {}
//!
//! impl FileOps for Clock {
//!     type Module = crate::LocalModule;
//!
//!     fn waiters(&self) -> &WaitQueue {
//!         &self.waiters
//!     }
//!
//!     fn poll(&self) -> Ready {
//!         Ready::IN
//!     }
//!
//!     fn read(&self, io: Io, to: &mut IovIterDest<'_>) -> Result<usize> {
//!         if !io.may_wait() {
//!             return Err(EAGAIN);
//!         }
//!         Ok(to.copy_to_iter(b"tick\n"))
//!     }
//!
//!     fn ioctl(&self, _file: &File, _cmd: u32, _arg: usize) -> Result<usize> {
//!         Err(ENOTTY)
//!     }
//! }
//!
//! impl DeviceOps for Clock {
//!     type Data = ();
//!
//!     fn open(_data: &()) -> Result<Arc<Self>> {
//!         Arc::pin_init(
//!             pin_init!(Self { waiters <- kx::new_wait_queue!("Clock::waiters") }),
//!             GFP_KERNEL,
//!         )
//!     }
//! }
//!
//! /// `/dev/clock`, as long as the result lives.
//! fn device() -> impl PinInit<Device<Clock>, Error> {
//!     Device::new(c"clock", 0o600, ())
//! }
//! ```
//!
//! C headers: [`include/linux/fs.h`](srctree/include/linux/fs.h),
//! [`include/linux/miscdevice.h`](srctree/include/linux/miscdevice.h),
//! [`include/linux/anon_inodes.h`](srctree/include/linux/anon_inodes.h)

mod anon;
mod device;
mod ops;
pub mod uring;
mod wait;

pub use crate::new_wait_queue;
pub use anon::NewFile;
pub use device::{
    Device,
    DeviceOps, //
};
pub use kernel::{
    fs::File,
    iov::{
        IovIterDest,
        IovIterSource, //
    },
    seq_file::SeqFile, //
};
pub use ops::{
    append_from,
    FileOps,
    Io, //
};
pub use wait::{
    Ready,
    WaitQueue, //
};
