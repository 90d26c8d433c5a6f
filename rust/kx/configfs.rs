// SPDX-License-Identifier: GPL-2.0

//! Directories in configfs, which users make and remove, with files and links.
//!
//! A type that implements [`Directory`] is the data of one kind of directory: it has a table of
//! files ([`Attr`]), and says what becomes of `mkdir`, `rmdir` and links in it. A [`Folder`] is a
//! directory that was not given to configfs yet. A [`Subsystem`] is what a module has at the top.
//!
//! # Lifetime
//!
//! configfs keeps a [`Directory`] until the last reference to its directory is gone, which may be
//! some time after `rmdir`: a task that creates a link holds one while it looks up the target. So
//! [`Directory::link`] may still be called after [`Directory::removed`]; the functions of files are
//! not, as `rmdir` waits for them. While a directory exists that a user has made, configfs holds
//! references to the module, which cannot be unloaded then.
//!
//! One task uses a directory without such a reference: in `configfs_symlink()`, root's `symlink(2)`
//! takes a reference to the directory of the link, gives up the lock of its inode while it looks up
//! the target, which may take as long as a disk or a server of files likes, takes a reference to
//! the target, and only then calls [`Directory::link`]. Meanwhile the directory can be removed and
//! the module unloaded. So a [`Subsystem`] counts its directories and itself ([`Tree`]) until the
//! last reference to each is put, and dropping it waits for that. Then nobody has anything of the
//! module:
//!
//! - configfs gets a reference from a directory that is in its tree, or from one that it has. All
//!   are out of it when the subsystem is unregistered, and `symlink(2)` looks whether the directory
//!   still is in it when it takes the reference to the target.
//! - configfs reads the type of an item, and calls its functions, while it has a reference to it.
//! - `mkdir`, and a file that is open, keep the module; `rmdir` does, too, as the directory was
//!   made by a user. They are the only ones that use the subsystem's mutex and the functions of
//!   files.
//! - A link keeps no reference to its target, but then `rmdir` does not remove the target, nor what
//!   it came with. Targets are of the same tree as the link: while users can still remove it,
//!   either the directory that it is in keeps the module, or the subsystem has not been
//!   unregistered. Links that lead here from elsewhere are up to the drivers there, which take
//!   targets of their own types.
//! - The last reference is put by [`folder`] or [`subsystem`], which belong to the module with this
//!   crate: that waits for the last instructions of both ([`LastTails`](crate::module::LastTails)).
//!
//! # Context
//!
//! Everything here *may sleep*, and none of it waits for a disk to get memory
//! ([`NoIo`](crate::mm::NoIo)): what users configure may be what a client of this machine waits
//! for. These locks are held, the outer one first:
//!
//! | call | locks |
//! |---|---|
//! | [`Directory::make`] | the inode of the parent, the subsystem's mutex |
//! | [`Directory::removed`] | the inodes of the parent and of the directory, the subsystem's mutex |
//! | [`Directory::link`], [`Directory::unlink`] | the inode of the directory |
//! | functions of files | the semaphore of the directory and those that came with it, for reading |
//!
//! So none of them may do anything that waits for another one, or that takes the inode of one of
//! these directories, as a look-up of a path below configfs does.
//!
//! # Examples
//!
//! ```ignore
//! struct Number(AtomicU32);
//!
//! impl Directory for Number {
//!     type Module = crate::LocalModule;
//!     const FILES: &'static [Attr<Self>] = &[Attr::rw(
//!         c"value",
//!         |this: &Self, buf: &mut Buf<'_>| buf.line(fmt!("{}", this.get())),
//!         |this: &Self, input: &[u8]| this.set(input),
//!     )];
//! }
//!
//! struct Numbers;
//!
//! impl Directory for Numbers {
//!     type Module = crate::LocalModule;
//!
//!     fn make(&self, _name: &CStr, tree: &Tree) -> Result<Folder> {
//!         Folder::new(tree, Number(AtomicU32::new(0)))
//!     }
//! }
//!
//! let mut top = Subsystem::new::<crate::LocalModule>(c"example")?;
//! let numbers = Folder::new(top.tree(), Numbers)?;
//! top.add(c"numbers", numbers)?;
//! let registration = top.register()?;
//! ```
//!
//! C header: [`include/linux/configfs.h`](srctree/include/linux/configfs.h)

mod attr;
mod folder;
mod subsystem;
mod tree;

pub use crate::sysfs::Buf;
pub use attr::Attr;
pub use folder::{
    Directory,
    Folder, //
};
pub use subsystem::{
    Registration,
    Subsystem, //
};
pub use tree::Tree;
