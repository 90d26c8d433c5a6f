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
//! C headers: [`include/linux/fs.h`](srctree/include/linux/fs.h),
//! [`include/linux/miscdevice.h`](srctree/include/linux/miscdevice.h),
//! [`include/linux/anon_inodes.h`](srctree/include/linux/anon_inodes.h)

mod anon;
mod device;
mod ops;
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
