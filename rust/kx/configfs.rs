// SPDX-License-Identifier: GPL-2.0

//! Directories in configfs, which users create and remove, with files and links.
//!
//! A type that implements [`Directory`] is the data of one kind of directory. It has a table of
//! files ([`Attr`]) and handles `mkdir`, `rmdir` and links in the directory. A [`Folder`] is a
//! directory that configfs does not know yet. A [`Subsystem`] is a module's directory at the root
//! of configfs.
//!
//! # Lifetime
//!
//! configfs keeps a [`Directory`] until the last reference to its directory is put, which may be
//! some time after `rmdir`: a task that creates a link holds a reference while it looks up the
//! target. configfs may therefore still call [`Directory::link`] after [`Directory::removed`]. It
//! no longer calls the functions of files, as `rmdir` waits for them. While a directory exists that
//! a user has created, configfs holds references to the module, so the module cannot be unloaded.
//!
//! Only `symlink(2)` uses a directory without a reference to the module. In `configfs_symlink()`,
//! root's task takes a reference to the directory of the link and releases the lock of its inode.
//! It then looks up the target, which takes as long as a disk or a file server needs, takes a
//! reference to the target, and only then calls [`Directory::link`]. The directory can be removed
//! and the module unloaded during the look-up. A [`Subsystem`] therefore counts itself and its
//! directories ([`Tree`]) until the last reference to each is put, and dropping it waits for the
//! count to become zero. Then nothing in the kernel refers to the module:
//!
//! - configfs takes a reference to a directory only while the directory is in its tree, or while it
//!   already holds one. When the subsystem is unregistered, all its directories are out of the
//!   tree, and `symlink(2)` checks that the directory of the link is still in the tree when it
//!   takes the reference to the target.
//! - configfs reads the type of an item, and calls its functions, only while it holds a reference
//!   to the item.
//! - `mkdir` and an open file keep the module loaded, and so does `rmdir`, as a user has created
//!   its directory. Nothing else uses the subsystem's mutex and the functions of files.
//! - A link keeps no reference to its target, but while the link exists, `rmdir` removes neither
//!   the target nor the directories that the target was created with. Targets are of the same tree
//!   as the link. While users can still remove the link, either the directory of the link keeps the
//!   module loaded, or the subsystem has not been unregistered. Links from other trees into this
//!   one are up to the drivers of those trees, which accept only targets of their own types.
//! - [`folder`] or [`subsystem`] handle the put of the last reference. They belong to the module
//!   with this crate, whose unloading waits for their last instructions
//!   ([`LastTails`](crate::module::LastTails)).
//!
//! # Context
//!
//! Everything here *may sleep*, but no allocation waits for I/O ([`NoIo`](crate::mm::NoIo)): a
//! client on this machine may wait for the change that a user makes here. These locks are held, the
//! outer one first:
//!
//! | call | locks |
//! |---|---|
//! | [`Directory::make`] | the inode of the parent, the subsystem's mutex |
//! | [`Directory::removed`] | the inodes of the parent and the directory, the subsystem's mutex |
//! | [`Directory::link`], [`Directory::unlink`] | the inode of the directory |
//! | functions of files | the semaphore of the directory and of its default groups, for reading |
//!
//! Therefore none of these functions may wait for another one, or lock the inode of one of these
//! directories, as a look-up of a path below configfs does.
//!
//! # Examples
//!
//! ```
//! # use kernel::prelude::*;
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
//! use kx::{
//!     configfs::{Attr, Buf, Directory, Folder, Registration, Subsystem, Tree},
//!     sync::atomic::{Atomic, Relaxed},
//! };
//!
//! struct Number(Atomic<u32>);
//!
//! impl Directory for Number {
//!     type Module = crate::LocalModule;
//!
//!     const FILES: &'static [Attr<Self>] = &[Attr::rw(
//!         c"value",
//!         |this: &Self, buf: &mut Buf<'_>| buf.line(fmt!("{}", this.0.load(Relaxed))),
//!         |this: &Self, input: &[u8]| {
//!             this.0.store(u32::try_from(input.len())?, Relaxed);
//!             Ok(())
//!         },
//!     )];
//! }
//!
//! struct Numbers;
//!
//! impl Directory for Numbers {
//!     type Module = crate::LocalModule;
//!
//!     fn make(&self, _name: &CStr, tree: &Tree) -> Result<Folder> {
//!         Folder::new(tree, Number(Atomic::new(0)))
//!     }
//! }
//!
//! fn register() -> Result<Registration> {
//!     let mut top = Subsystem::new::<crate::LocalModule>(c"example")?;
//!     let numbers = Folder::new(top.tree(), Numbers)?;
//!     top.add(c"numbers", numbers)?;
//!     top.register()
//! }
//! ```
//!
//! C header: [`include/linux/configfs.h`](srctree/include/linux/configfs.h)

mod folder;
mod subsystem;
mod tree;

pub use crate::sysfs::Buf;
pub use folder::{
    attr::Attr,
    Directory,
    Folder, //
};
pub use subsystem::{
    Registration,
    Subsystem, //
};
pub use tree::Tree;
