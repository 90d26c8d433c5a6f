// SPDX-License-Identifier: GPL-2.0

//! Scatterlists of fixed size that live in their owner.
//!
//! An [`SgList`] is a table with its entries. Code for any number of entries takes an [`SgTable`],
//! to which every list coerces. No list is ever chained.
//!
//! Contexts: *any*; nothing here allocates or sleeps.
//!
//! # Examples
//!
//! ```
//! use kx::sg::SgList;
//!
//! /// What a driver has as `Operations::Sg`: room for 128 segments in each request.
//! type Segments = SgList<128>;
//!
//! fn capacity(list: &mut Segments) -> usize {
//!     list.as_table().capacity()
//! }
//! ```
//!
//! C header: [`include/linux/scatterlist.h`](srctree/include/linux/scatterlist.h)

use crate::mm::PageBlock;
use core::ptr::NonNull;
use kernel::{
    bindings,
    prelude::*, //
};

/// One entry of a scatterlist.
#[repr(transparent)]
pub struct SgEntry(bindings::scatterlist);

/// A scatterlist table in storage `E`.
///
/// Only this crate fills tables, and lends them to others as [`SgTable`]s, which have no size and so
/// cannot be swapped. So a table describes the memory of its owner.
///
/// # Invariants
///
/// - `nents <= entries.len()`.
/// - No entry is a chain entry; if `nents` is not zero, the last of the first `nents` entries has
///   the end mark.
pub struct Sg<E: ?Sized> {
    nents: u32,
    entries: E,
}

/// A scatterlist table with room for `N` entries.
pub type SgList<const N: usize> = Sg<[SgEntry; N]>;

/// A scatterlist table of any size.
pub type SgTable = Sg<[SgEntry]>;

// SAFETY: All zeroes are a count of zero, and entries without a page that are not chained, which
// satisfies the type invariant.
unsafe impl<const N: usize> Zeroable for SgList<N> {}

// SAFETY: The pointers in an entry are to pages, which have no thread affinity.
unsafe impl Send for SgEntry {}
// SAFETY: Shared references only read an entry.
unsafe impl Sync for SgEntry {}

mod sealed {
    pub trait Sealed {}

    impl Sealed for () {}
    impl<const N: usize> Sealed for super::SgList<N> {}
}

/// Room for the scatterlist of a request: an [`SgList`], or `()` for none.
pub trait SgStorage: sealed::Sealed + Zeroable + Send + Sync {
    /// Returns the scatterlist.
    fn table(&mut self) -> Option<&mut SgTable>;
}

impl SgStorage for () {
    #[inline]
    fn table(&mut self) -> Option<&mut SgTable> {
        None
    }
}

impl<const N: usize> SgStorage for SgList<N> {
    #[inline]
    fn table(&mut self) -> Option<&mut SgTable> {
        Some(self)
    }
}

impl<const N: usize> SgList<N> {
    /// Returns the table without its size in the type.
    pub fn as_table(&mut self) -> &mut SgTable {
        self
    }
}

impl SgTable {
    /// Returns the number of entries that fit.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of entries in use.
    #[inline]
    pub fn nents(&self) -> u32 {
        self.nents
    }

    /// Returns whether no entry is in use.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.nents == 0
    }

    /// Returns a pointer to the entries, for a C function that reads [`Self::nents`] of them.
    #[inline]
    pub fn as_ptr(&self) -> *const bindings::scatterlist {
        // CAST: `SgEntry` is transparent over `scatterlist`.
        self.entries.as_ptr().cast()
    }

    /// Like [`Self::as_ptr`], for functions that write, such as those for DMA mapping.
    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut bindings::scatterlist {
        // CAST: `SgEntry` is transparent over `scatterlist`.
        self.entries.as_mut_ptr().cast()
    }

    /// Returns the total number of bytes in all entries.
    pub fn bytes(&self) -> u64 {
        self.used().map(|e| u64::from(e.0.length)).sum()
    }

    /// Empties the table.
    #[inline]
    pub fn clear(&mut self) {
        // INVARIANT: Zero entries are in use.
        self.nents = 0;
    }

    /// Makes the table describe one buffer.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the table has no entries.
    ///
    /// # Safety
    ///
    /// `buf..buf + len` must be memory of the kernel's linear mapping, and must stay allocated as
    /// long as this table may be mapped for a device, or a device may use the mapping.
    pub(crate) unsafe fn set_buf(&mut self, buf: NonNull<u8>, len: u32) -> Result {
        self.clear();
        let entry = self.entries.first_mut().ok_or(ENOSPC)?;
        // SAFETY: `entry` is one valid entry, and the buffer is in the linear mapping by this
        // function's contract.
        unsafe { bindings::sg_init_one(&mut entry.0, buf.as_ptr().cast(), len) };
        // INVARIANT: `sg_init_one` has set the end mark.
        self.nents = 1;
        Ok(())
    }

    /// Makes the table describe the data of `rq`, or leaves it empty if the request has no bios.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` if the request has more segments than fit.
    ///
    /// # Safety
    ///
    /// `rq` must be a valid read or write request, owned by the caller.
    #[inline]
    pub(crate) unsafe fn set_request(&mut self, rq: *mut bindings::request) -> Result {
        self.clear();
        // SAFETY: `rq` is valid by this function's contract, and only its owner changes the number.
        let segments = usize::from(unsafe { (*rq).nr_phys_segments });
        if segments > self.capacity() {
            return Err(EMSGSIZE);
        }
        let mut last = core::ptr::null_mut();
        // SAFETY: `rq` is valid by this function's contract. The callee fills one entry for each
        // segment at most, and the table has as many entries, as was just checked.
        let nents = unsafe { bindings::__blk_rq_map_sg(rq, self.as_mut_ptr(), &mut last) };
        // INVARIANT: The callee has filled that many entries, no more than the table has, and has
        // marked the last of them as the end.
        self.nents = u32::try_from(nents).map_err(|_| EIO)?;
        Ok(())
    }

    /// Copies `len` bytes of `from`, from `at` on, to the memory that the table describes.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the block is shorter, or if the memory is shorter, which is then full.
    ///
    /// # Safety
    ///
    /// The memory that the table describes must be allocated, and there must be no reference to it.
    /// It may be read and written concurrently, for instance by tasks that map a page.
    #[inline]
    pub(crate) unsafe fn copy_from(&mut self, from: &PageBlock, at: usize, len: usize) -> Result {
        // SAFETY: By this function's contract.
        unsafe { self.copy(from, at, len, false) }
    }

    /// Copies the first `len` bytes that the table describes to `to`, from `at` on.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the block is shorter, or if the memory is shorter, all of which is then copied.
    ///
    /// # Safety
    ///
    /// As [`Self::copy_from`].
    #[inline]
    pub(crate) unsafe fn copy_to(&mut self, to: &PageBlock, at: usize, len: usize) -> Result {
        // SAFETY: By this function's contract.
        unsafe { self.copy(to, at, len, true) }
    }

    /// Copies `len` bytes from the memory that the table describes to `block` (`out`), from `at` on,
    /// or from there to that memory.
    ///
    /// # Safety
    ///
    /// As [`Self::copy_from`].
    #[inline]
    unsafe fn copy(&mut self, block: &PageBlock, at: usize, len: usize, out: bool) -> Result {
        let place = block.range(at, len)?;
        // SAFETY: The table has that many entries, and their memory is allocated by this function's contract.
        // `range` has checked that the bytes are in the block. There is no reference to the memory of either
        // side. Both may be read and written concurrently, which the C callee tolerates.
        let copied = unsafe {
            ibtrs_bindings::kx_sg_copy(self.as_mut_ptr().cast(), self.nents, place.cast(), len, out)
        };
        match copied == len {
            true => Ok(()),
            false => Err(EINVAL),
        }
    }

    /// Continues a CRC-32C over the memory that the table describes, see
    /// [`crc32c`](crate::crc::crc32c).
    ///
    /// # Safety
    ///
    /// As [`Self::copy_from`].
    pub(crate) unsafe fn crc32c(&mut self, crc: u32) -> u32 {
        if self.is_empty() {
            return crc;
        }
        // SAFETY: The table has that many entries. The callee, in C, only reads the memory that
        // they describe, which is allocated by this function's contract, and tolerates concurrent
        // writes.
        unsafe { ibtrs_bindings::kx_sg_crc32c(crc, self.as_mut_ptr().cast(), self.nents) }
    }

    fn used(&self) -> impl Iterator<Item = &SgEntry> + '_ {
        self.entries.iter().take(self.nents as usize)
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_sg)]
mod tests {
    use super::*;
    use kernel::page::PAGE_SIZE;

    #[test]
    fn empty_list() -> Result {
        let mut list = KBox::init(pin_init::init_zeroed::<SgList<4>>(), GFP_KERNEL)?;
        let table = list.as_table();
        assert_eq!(table.capacity(), 4);
        assert!(table.is_empty());
        assert_eq!(table.bytes(), 0);
        Ok(())
    }

    #[test]
    fn one_buffer() -> Result {
        let mut buf = KVec::<u8>::from_elem(0, 600, GFP_KERNEL)?;
        let ptr = NonNull::new(buf.as_mut_ptr()).ok_or(EINVAL)?;
        let mut list = KBox::init(pin_init::init_zeroed::<SgList<2>>(), GFP_KERNEL)?;
        let table = list.as_table();
        // SAFETY: The buffer is in the linear mapping and outlives the table's use.
        unsafe { table.set_buf(ptr, 600)? };
        assert_eq!(table.nents(), 1);
        assert_eq!(table.bytes(), 600);
        table.clear();
        assert!(table.is_empty());
        Ok(())
    }

    /// A contiguous piece of one page is copied in another way than the rest.
    #[test]
    fn copies_both_ways() -> Result {
        let pages = || PageBlock::new(1, crate::mm::Node::ANY);
        let mut list = KBox::init(pin_init::init_zeroed::<SgList<1>>(), GFP_KERNEL)?;
        let table = list.as_table();
        for (offset, len) in [
            (0, PAGE_SIZE),
            (0, 2 * PAGE_SIZE),
            (512, 1024),
            (512, PAGE_SIZE),
            (PAGE_SIZE, PAGE_SIZE),
        ] {
            let (data, there, back) = (pages()?, pages()?, pages()?);
            for at in 0..len {
                // CAST: Any byte but zero will do.
                data.copy_in(at, &[(at % 251 + 1) as u8])?;
            }
            let memory = data_at(&there, offset).ok_or(EINVAL)?;
            // SAFETY: The block is in the linear mapping and outlives the table's use; nobody has
            // a reference to its content.
            unsafe {
                table.set_buf(memory, u32::try_from(len)?)?;
                table.copy_from(&data, 0, len)?;
                table.copy_to(&back, 0, len)?;
                assert_eq!(table.copy_to(&back, 0, len + 1), Err(EINVAL));
            }
            let (mut sent, mut got) = ([0], [0]);
            for at in 0..2 * PAGE_SIZE {
                back.copy_out(at, &mut got)?;
                data.copy_out(at, &mut sent)?;
                assert_eq!(got, sent);
                there.copy_out(at, &mut got)?;
                let copied = at >= offset && at < offset + len;
                assert_eq!(u8::from(copied), got[0].min(1));
            }
        }
        Ok(())
    }

    /// Returns the memory of a block from `offset` on.
    fn data_at(block: &PageBlock, offset: usize) -> Option<NonNull<u8>> {
        NonNull::new(block.as_ptr().wrapping_add(offset))
    }

    #[test]
    fn no_room() -> Result {
        let mut byte = KBox::new(0u8, GFP_KERNEL)?;
        let mut list = KBox::init(pin_init::init_zeroed::<SgList<0>>(), GFP_KERNEL)?;
        // SAFETY: The buffer is in the linear mapping.
        let res = unsafe { list.as_table().set_buf(NonNull::from(&mut *byte), 1) };
        assert_eq!(res, Err(ENOSPC));
        Ok(())
    }
}
