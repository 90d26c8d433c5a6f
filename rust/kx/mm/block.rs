// SPDX-License-Identifier: GPL-2.0

//! Physically contiguous memory.
//!
//! C header: [`include/linux/gfp.h`](srctree/include/linux/gfp.h)

use core::ptr::NonNull;
use kernel::{
    bindings,
    page::PAGE_SIZE,
    prelude::*,
    task::might_sleep, //
};

/// A preferred NUMA node for allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node(i32);

impl Node {
    /// No preference.
    pub const ANY: Self = Self(bindings::NUMA_NO_NODE);

    /// Prefers the node `id` if it is online, else none.
    pub fn new(id: i32) -> Self {
        // SAFETY: The callee accepts any number.
        if unsafe { ibtrs_bindings::node_online(id) } {
            Self(id)
        } else {
            Self::ANY
        }
    }
}

/// Contiguous pages whose contents may change at any time.
///
/// A remote peer may write to the pages while the CPU reads them, so there is never a reference to
/// their contents. [`Self::copy_out`] makes a private copy, which the caller checks and uses.
///
/// # Invariants
///
/// - `page` is the first of `pages` initialised pages, mapped at `addr`, which this value owns.
///   There is at least one page, and there are no more than in the largest allocation.
/// - The pages are a compound page if `pages` is a power of two, and split otherwise.
pub struct PageBlock {
    page: NonNull<bindings::page>,
    addr: NonNull<u8>,
    pages: usize,
}

// SAFETY: Pages have no thread affinity.
unsafe impl Send for PageBlock {}

// SAFETY: No method makes a reference to the contents. All access is through C helpers that copy or
// clear, and that tolerate concurrent reads and writes.
unsafe impl Sync for PageBlock {}

impl PageBlock {
    /// Allocates `2^order` pages of zeros, preferably on `node`. The kernel does not search long for
    /// more than one page, and kills no process for any number.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`], without a warning in the log.
    pub fn new(order: u32, node: Node) -> Result<Self> {
        Self::compound(order, node, bindings::GFP_KERNEL)
    }

    /// Allocates a buffer of zeros that the caller can do without: as [`PageBlock::with_len`], but
    /// takes only memory that is free and not reserved, even in a [`Reserve`](super::Reserve), and
    /// does not wait for any.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`], without a warning in the log.
    pub fn optional(len: usize, node: Node) -> Result<Self> {
        let how = bindings::GFP_NOWAIT | ibtrs_bindings::__GFP_NOMEMALLOC;
        Self::exact(len, node, how)
    }

    /// Returns the number of pages that `len` bytes take, at least one.
    fn pages_of(len: usize) -> usize {
        len.div_ceil(PAGE_SIZE).max(1)
    }

    /// Returns the order of the smallest allocation that has at least this number of pages.
    fn order_of(pages: usize) -> Result<u32> {
        let pages = pages.checked_next_power_of_two().ok_or(ENOMEM)?;
        Ok(pages.trailing_zeros())
    }

    fn compound(order: u32, node: Node, how: bindings::gfp_t) -> Result<Self> {
        let (page, addr) = Self::allocate(order, node, how | ibtrs_bindings::__GFP_COMP)?;
        // INVARIANT: The pages were just allocated, with that order and zeroed, as a compound page.
        Ok(Self {
            page,
            addr,
            pages: 1 << order,
        })
    }

    /// Allocates the smallest number of pages with room for `len` bytes, at least one, filled with
    /// zeros and preferably on `node`; see [`PageBlock::new`].
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`], without a warning in the log.
    pub fn with_len(len: usize, node: Node) -> Result<Self> {
        Self::exact(len, node, bindings::GFP_KERNEL)
    }

    fn exact(len: usize, node: Node, how: bindings::gfp_t) -> Result<Self> {
        let pages = Self::pages_of(len);
        let order = Self::order_of(pages)?;
        if pages.is_power_of_two() {
            return Self::compound(order, node, how);
        }
        let (page, addr) = Self::allocate(order, node, how)?;
        // SAFETY: The pages were just allocated with that order, and not as a compound page.
        unsafe { bindings::split_page(page.as_ptr(), order) };
        let unused = addr.as_ptr().wrapping_add(pages * PAGE_SIZE);
        // SAFETY: The range covers the unused rest of the pages, which were just split.
        unsafe {
            bindings::free_pages_exact(unused.cast(), ((1 << order) - pages) * PAGE_SIZE);
        }
        // INVARIANT: The remaining pages were just allocated, zeroed and split.
        Ok(Self { page, addr, pages })
    }

    /// Allocates `2^order` pages of zeros with the allocation flags `how`.
    fn allocate(
        order: u32,
        node: Node,
        how: bindings::gfp_t,
    ) -> Result<(NonNull<bindings::page>, NonNull<u8>)> {
        might_sleep();
        if order > bindings::MAX_PAGE_ORDER {
            return Err(ENOMEM);
        }
        // A caller that wants many pages tries smaller blocks next, and can fail.
        let effort = match order {
            0 => ibtrs_bindings::__GFP_RETRY_MAYFAIL,
            _ => ibtrs_bindings::__GFP_NORETRY,
        };
        let gfp = bindings::__GFP_ZERO | bindings::__GFP_NOWARN | how | effort;
        // SAFETY: `Node::new` has checked the node, the order is in range, and this function may
        // sleep.
        let page = unsafe { ibtrs_bindings::alloc_pages_node(node.0, gfp, order) };
        let page = NonNull::new(page).ok_or(ENOMEM)?;
        // SAFETY: The page was just allocated.
        let addr = unsafe { ibtrs_bindings::page_address(page.as_ptr()) };
        // No flag asks for high memory, so the page has an address.
        Ok((page, NonNull::new(addr.cast()).ok_or(ENOMEM)?))
    }

    /// Returns the size in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.pages * PAGE_SIZE
    }

    /// Returns the address in the kernel's linear mapping, for device drivers and DMA mapping.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.addr.as_ptr()
    }

    /// Returns the first page, for scatterlists. The pages are compound if their number is a power
    /// of two.
    #[inline]
    pub fn page(&self) -> *mut bindings::page {
        self.page.as_ptr()
    }

    /// Returns the address of a range, or `EINVAL` if the range exceeds the block.
    #[inline]
    pub(crate) fn range(&self, offset: usize, len: usize) -> Result<*mut u8> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(self.addr.as_ptr().wrapping_add(offset)),
            _ => Err(EINVAL),
        }
    }

    /// Copies the bytes from `offset` on to `to`, reading each byte once.
    ///
    /// # Context
    ///
    /// *any*
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if the range exceeds the block.
    #[inline]
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) -> Result {
        let from = self.range(offset, to.len())?;
        // SAFETY: `range` has checked that the source is inside the block. There is no reference to
        // the contents of a block, so the slice does not overlap with it. The helper tolerates
        // concurrent writes to the source.
        unsafe {
            ibtrs_bindings::kx_memcpy_shared(to.as_mut_ptr().cast(), from.cast(), to.len());
        }
        Ok(())
    }

    /// Copies `from` into the block, from `offset` on.
    ///
    /// # Context
    ///
    /// *any*
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if the range exceeds the block.
    #[inline]
    pub fn copy_in(&self, offset: usize, from: &[u8]) -> Result {
        let to = self.range(offset, from.len())?;
        // SAFETY: `range` has checked that the destination is inside the block. There is no
        // reference to the contents of a block, so the slice does not overlap with it, and the
        // destination may be written through a shared reference to the block.
        unsafe {
            ibtrs_bindings::kx_memcpy_shared(to.cast(), from.as_ptr().cast(), from.len());
        }
        Ok(())
    }

    /// Copies `len` bytes from `offset` on to the offset `at` of another block.
    ///
    /// # Context
    ///
    /// *any*
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if a range exceeds its block, or if both blocks are the same one.
    #[inline]
    pub fn copy_to(&self, offset: usize, other: &Self, at: usize, len: usize) -> Result {
        let from = self.range(offset, len)?;
        let to = other.range(at, len)?;
        if core::ptr::eq(self, other) {
            return Err(EINVAL);
        }
        // SAFETY: `range` has checked that both sides are inside their blocks. Blocks own their
        // pages, so two blocks do not overlap, and there is no reference to the contents of either.
        unsafe { ibtrs_bindings::kx_copy_shared(to.cast(), from.cast(), len) };
        Ok(())
    }

    /// Continues a CRC-32C with `len` bytes from `offset` on, see [`crc32c`](crate::crc::crc32c).
    ///
    /// # Context
    ///
    /// *any*
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if the range exceeds the block.
    #[inline]
    pub fn crc32c(&self, crc: u32, offset: usize, len: usize) -> Result<u32> {
        let from = self.range(offset, len)?;
        // SAFETY: `range` has checked that the range is inside the block. The callee, in C, only
        // reads it, and tolerates concurrent writes: any result is a valid number.
        Ok(unsafe { ibtrs_bindings::crc32c(crc, from.cast_const().cast(), len) })
    }

    /// Writes `len` zeroes from `offset` on.
    ///
    /// # Context
    ///
    /// *any*
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if the range exceeds the block.
    #[inline]
    pub fn zero(&self, offset: usize, len: usize) -> Result {
        let to = self.range(offset, len)?;
        // SAFETY: `range` has checked that the range is inside the block, to whose contents there
        // is no reference. The helper tolerates concurrent reads and writes.
        unsafe { ibtrs_bindings::kx_memzero_shared(to.cast(), len) };
        Ok(())
    }
}

impl Drop for PageBlock {
    fn drop(&mut self) {
        if self.pages.is_power_of_two() {
            // SAFETY: By the type invariant this value owns the pages, which are a compound page.
            unsafe { bindings::__free_pages(self.page.as_ptr(), self.pages.trailing_zeros()) }
        } else {
            // SAFETY: By the type invariant this value owns the pages, which are split.
            unsafe { bindings::free_pages_exact(self.addr.as_ptr().cast(), self.len()) }
        }
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_page_block)]
mod tests {
    use super::*;

    #[test]
    fn keeps_to_its_bounds() -> Result {
        let block = PageBlock::new(1, Node::ANY)?;
        let len = block.len();
        assert_eq!(len, 2 * PAGE_SIZE);
        let mut bytes = [1; 4];
        assert_eq!(block.copy_out(len - 4, &mut bytes), Ok(()));
        assert_eq!(bytes, [0; 4]);
        assert_eq!(block.copy_in(len - 4, &[1, 2, 3, 4]), Ok(()));
        assert_eq!(block.copy_out(len - 4, &mut bytes), Ok(()));
        assert_eq!(bytes, [1, 2, 3, 4]);
        assert_eq!(block.copy_out(len, &mut []), Ok(()));
        for offset in [len - 3, len, len + 1, usize::MAX - 1, usize::MAX] {
            assert_eq!(block.copy_out(offset, &mut bytes), Err(EINVAL));
            assert_eq!(block.copy_in(offset, &bytes), Err(EINVAL));
            assert_eq!(block.zero(offset, 4), Err(EINVAL));
        }
        assert_eq!(bytes, [1, 2, 3, 4]);
        Ok(())
    }

    /// The block has exactly the requested number of pages.
    #[test]
    fn any_number_of_pages() -> Result {
        for pages in 1..=33 {
            let block = PageBlock::with_len(pages * PAGE_SIZE - 1, Node::ANY)?;
            assert_eq!(block.len(), pages * PAGE_SIZE);
            let mut byte = [1];
            for page in 0..pages {
                block.copy_out(page * PAGE_SIZE, &mut byte)?;
                assert_eq!(byte, [0]);
                block.copy_in((page + 1) * PAGE_SIZE - 1, &[1])?;
            }
            assert_eq!(block.copy_in(block.len(), &byte), Err(EINVAL));
        }
        Ok(())
    }

    #[test]
    fn copies_between_blocks() -> Result {
        let (from, to) = (
            PageBlock::new(0, Node::ANY)?,
            PageBlock::new(0, Node::new(0))?,
        );
        from.copy_in(0, b"abcdef")?;
        assert_eq!(from.copy_to(2, &to, PAGE_SIZE - 3, 3), Ok(()));
        let mut bytes = [0; 4];
        to.copy_out(PAGE_SIZE - 4, &mut bytes)?;
        assert_eq!(&bytes, b"\0cde");
        assert_eq!(to.zero(PAGE_SIZE - 2, 1), Ok(()));
        to.copy_out(PAGE_SIZE - 4, &mut bytes)?;
        assert_eq!(&bytes, b"\0c\0e");
        assert_eq!(from.copy_to(0, &from, 8, 4), Err(EINVAL));
        assert_eq!(from.copy_to(0, &to, PAGE_SIZE - 3, 4), Err(EINVAL));
        assert_eq!(from.copy_to(PAGE_SIZE - 3, &to, 0, 4), Err(EINVAL));
        Ok(())
    }

    /// Whole pages and parts of pages are copied in different ways.
    #[test]
    fn copies_pages_and_parts_of_them() -> Result {
        let from = PageBlock::new(1, Node::ANY)?;
        let mut bytes = [0; 1];
        for at in 0..2 * PAGE_SIZE {
            // CAST: Any byte will do.
            from.copy_in(at, &[(at % 251) as u8])?;
        }
        for (offset, at, len) in [
            (0, 0, PAGE_SIZE),
            (PAGE_SIZE, 0, PAGE_SIZE),
            (0, PAGE_SIZE, PAGE_SIZE),
            (1, 0, PAGE_SIZE),
            (0, 1, PAGE_SIZE),
            (0, 0, 2 * PAGE_SIZE),
            (0, 0, 2 * PAGE_SIZE - 1),
            (PAGE_SIZE, 0, PAGE_SIZE - 1),
            (0, 0, PAGE_SIZE - 1),
        ] {
            let to = PageBlock::new(1, Node::ANY)?;
            from.copy_to(offset, &to, at, len)?;
            for byte in 0..2 * PAGE_SIZE {
                to.copy_out(byte, &mut bytes)?;
                let wanted = match byte.checked_sub(at) {
                    // CAST: As above.
                    Some(within) if within < len => ((offset + within) % 251) as u8,
                    _ => 0,
                };
                assert_eq!(bytes[0], wanted);
            }
        }
        Ok(())
    }

    #[test]
    fn rounds_up_to_pages() -> Result {
        assert_eq!(PageBlock::with_len(0, Node::ANY)?.len(), PAGE_SIZE);
        assert_eq!(PageBlock::with_len(1, Node::ANY)?.len(), PAGE_SIZE);
        for block in [PageBlock::with_len, PageBlock::optional] {
            assert_eq!(block(2 * PAGE_SIZE + 1, Node::ANY)?.len(), 3 * PAGE_SIZE);
        }
        assert!(matches!(PageBlock::with_len(usize::MAX, Node::ANY), Err(e) if e == ENOMEM));
        assert!(matches!(PageBlock::new(64, Node::ANY), Err(e) if e == ENOMEM));
        Ok(())
    }

    #[test]
    fn no_such_node() {
        assert_eq!(Node::new(-1), Node::ANY);
        assert_eq!(Node::new(i32::MAX), Node::ANY);
    }
}
