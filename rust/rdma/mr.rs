// SPDX-License-Identifier: GPL-2.0

//! Memory regions for fast registration.
//!
//! # Examples
//!
//! ```
//! # use kernel::{prelude::*, sync::Arc};
//! use kx::mm::{Node, PageBlock};
//! use rdma::{
//!     dma::{Direction, DmaPages},
//!     mr::Mr,
//!     pd::Pd,
//! };
//!
//! /// Returns what the peer needs to write to new memory, once a work request has registered it.
//! fn region(pd: &Arc<Pd>) -> Result<(Mr, u64, u32)> {
//!     let block = Arc::new(PageBlock::with_len(65536, Node::ANY)?, GFP_KERNEL)?;
//!     let mut mr = Mr::of_pages(&DmaPages::new(pd, block, Direction::FromDevice)?)?;
//!     mr.next_key();
//!     let (addr, key) = (mr.iova(), mr.rkey());
//!     Ok((mr, addr, key))
//! }
//! ```

use core::{
    mem::ManuallyDrop,
    ptr::NonNull, //
};

use crate::{
    dma::{
        DmaPages,
        DmaPieces,
        DmaUser,
        MappedIo, //
    },
    pd::{
        bases::Bases,
        Pd, //
    },
    sge::Sge,
    CZeroed, //
};
use ibtrs_bindings as bindings;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// The access that a registration allows with its keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The local queue pair may write.
    Local,
    /// The peer may read.
    RemoteRead,
    /// The local queue pair and the peer may write.
    RemoteWrite,
    /// The local queue pair and the peer may write, and the peer may read.
    RemoteReadWrite,
}

impl Access {
    pub(crate) fn bits(self) -> i32 {
        let bits = match self {
            Self::Local => bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE,
            Self::RemoteRead => bindings::ib_access_flags_IB_ACCESS_REMOTE_READ,
            Self::RemoteWrite => {
                bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE
                    | bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE
            }
            Self::RemoteReadWrite => {
                bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE
                    | bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE
                    | bindings::ib_access_flags_IB_ACCESS_REMOTE_READ
            }
        };
        bits as i32
    }
}

/// A memory region that work requests register and invalidate.
///
/// A registration takes these steps: [`Mr::next_key`] replaces the keys of the previous registration,
/// a `reg_mr` work request makes the device honour the new keys, and an invalidation (a local one, or
/// by the peer's send) ends the registration.
///
/// A region describes the same memory for its whole lifetime, and its protection domain keeps the
/// memory until all queue pairs are closed. Only an [`IoMr`] describes different memory each time.
///
/// This value is the right to use a region. The region itself is owned by its protection domain and
/// freed with it. The device may access the region as long as a pending work request names it, even
/// after this value was dropped: the queue pair that has the work request keeps the domain.
///
/// # Invariants
///
/// `ptr` is a region of `pd`, and only this value changes it.
pub struct Mr {
    ptr: NonNull<bindings::ib_mr>,
    /// `None` if the device accepts only DMA addresses.
    bases: Option<Bases>,
    pd: Arc<Pd>,
}

// SAFETY: Any thread may use a region.
unsafe impl Send for Mr {}
// SAFETY: Shared references only read the keys, the address and the length.
unsafe impl Sync for Mr {}

/// A memory region for the data of one I/O after the other.
///
/// # Examples
///
/// ```
/// # use kernel::{prelude::*, sync::Arc};
/// # use kx::io::IoHandle;
/// use rdma::{
///     dma::{Direction, MappedIo},
///     mr::IoMr,
///     pd::Pd,
/// };
///
/// /// Describes the data of a read, which the peer is to write once a work request has registered it.
/// fn describe(
///     pd: &Arc<Pd>,
///     mr: &mut IoMr,
///     io: IoHandle,
/// ) -> Result<MappedIo, (Error, IoHandle)> {
///     let mapped = MappedIo::new(pd, io, Direction::FromDevice)?;
///     match mr.map(&mapped) {
///         Ok(()) => {
///             mr.next_key();
///             Ok(mapped)
///         }
///         Err(error) => Err((error, mapped.unmap(pd))),
///     }
/// }
/// ```
pub struct IoMr(Mr);

impl IoMr {
    /// Allocates a region of at most `pages` pages of
    /// [`Device::region_page_bytes`](crate::device::Device::region_page_bytes).
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` or `ENOMEM` from the device's driver, when the device cannot register that many
    /// pages at once or has no region left; `ENOMEM`.
    pub fn new(pd: &Arc<Pd>, pages: u32) -> Result<Self> {
        Mr::new(pd, pages).map(Self)
    }

    /// Describes the mapped scatter list of `io` as one range of I/O virtual addresses.
    ///
    /// All elements except the first must begin, and all except the last must end, at a page
    /// boundary of the machine, even if the region's pages are smaller.
    ///
    /// The registration of the last description must be invalid, or all queue pairs closed, see the
    /// duties of the driver in the documentation of the crate. If it is still valid, the peer may
    /// access the new memory with the old keys.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the list has gaps or more pages than the region, or is mapped for another
    /// protection domain.
    pub fn map(&mut self, io: &MappedIo) -> Result {
        if io.domain() != self.0.pd.id() {
            return Err(EINVAL);
        }
        // SAFETY: `io` has a list of that many elements, mapped for the region's device, as it is that
        // of the domain. The end of the list is marked by the type invariant of `SgTable`.
        unsafe { self.0.map(io.as_raw(), io.nents() as i32) }
    }

    /// See [`Mr::next_key`].
    pub fn next_key(&mut self) {
        self.0.next_key();
    }
}

/// There is no `DerefMut`, as an exclusive reference could be used to swap in a region of another
/// kind.
impl core::ops::Deref for IoMr {
    type Target = Mr;

    #[inline]
    fn deref(&self) -> &Mr {
        &self.0
    }
}

/// A memory region for memory of programs, one part after the other.
///
/// It owns the memory that it describes. If it is dropped or gets other memory while its key may be
/// valid, the former memory passes to the domain.
///
/// It may be dropped in any context.
pub struct UserMr {
    /// Taken when this is dropped.
    mr: ManuallyDrop<Mr>,
    memory: Option<DmaUser>,
}

impl UserMr {
    /// Allocates a region of at most `pages` pages of the machine.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` or `ENOMEM` from the device's driver, when the device cannot register that many
    /// pages at once or has no region left; `ENOMEM`.
    pub fn new(pd: &Arc<Pd>, pages: u32) -> Result<Self> {
        let bytes = usize::try_from(pages)?.saturating_mul(PAGE_SIZE);
        Ok(Self {
            mr: ManuallyDrop::new(Mr::with_len(pd, bytes)?),
            memory: None,
        })
    }

    /// Describes all of `memory` as one range of I/O virtual addresses, with new keys. The region must have none,
    /// or the last ones must have been [invalidated](Self::invalidated).
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the memory has more pages than the region, or is mapped for another protection domain;
    /// `EBUSY`: the last keys may be valid; `ENOMEM`.
    pub fn describe(&mut self, memory: DmaUser) -> Result {
        let described = self.try_describe(&memory);
        match described {
            Ok(()) => self.memory = Some(memory),
            // No key was created for the memory.
            Err(_) => memory.unmap(),
        }
        described
    }

    fn try_describe(&mut self, memory: &DmaUser) -> Result {
        if self.memory.is_some() {
            return Err(EBUSY);
        }
        if !self.mr.is_of(memory.pd()) {
            return Err(EINVAL);
        }
        let mapped = memory.mapped();
        let mut sg = KVVec::new();
        let zeroed = kernel::bindings::scatterlist::c_zeroed();
        sg.resize(mapped.len(), zeroed, GFP_KERNEL)?;
        fill_list(&mut sg, mapped.iter().copied())?;
        // SAFETY: `fill_list` has filled in that many elements and marked the end. The DMA
        // addresses and lengths are those of memory mapped for the region's device.
        unsafe { self.mr.map(sg.as_mut_ptr(), i32::try_from(mapped.len())?) }?;
        self.mr.next_key();
        Ok(())
    }

    /// Ends the mapping of the memory. The keys must be invalid: an invalidation has completed, or the registration
    /// was never posted.
    ///
    /// # Context
    ///
    /// Any.
    pub fn invalidated(&mut self) {
        if let Some(memory) = self.memory.take() {
            memory.unmap();
        }
    }
}

/// There is no `DerefMut`, as an exclusive reference could be used to swap in a region of another
/// kind.
impl core::ops::Deref for UserMr {
    type Target = Mr;

    #[inline]
    fn deref(&self) -> &Mr {
        &self.mr
    }
}

impl Drop for UserMr {
    fn drop(&mut self) {
        // SAFETY: The field is taken once, as `self` is being dropped.
        let Mr { pd, .. } = unsafe { ManuallyDrop::take(&mut self.mr) };
        // The memory passes to the domain, which must still exist.
        drop(self.memory.take());
        Pd::leave(pd);
    }
}

impl Mr {
    /// Number of pieces whose list is not allocated.
    const FEW: usize = 8;

    /// Allocates a region of at most `pages` pages, which describes no memory yet.
    fn new(pd: &Arc<Pd>, pages: u32) -> Result<Self> {
        let (ptr, bases) = pd.new_region(pages)?;
        let any = pd.device().takes_any_address();
        // INVARIANT: The region was just allocated in `pd`, and nobody else has it.
        Ok(Self {
            ptr,
            bases: any.then_some(bases),
            pd: pd.clone(),
        })
    }

    /// Allocates a region that covers `len` bytes of whole pages.
    fn with_len(pd: &Arc<Pd>, len: usize) -> Result<Self> {
        let page_bytes = pd.device().region_page_bytes();
        Self::new(pd, u32::try_from(len)?.div_ceil(page_bytes))
    }

    /// Allocates a region that covers all of `pages`, with a key.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` or `ENOMEM` from the device's driver, when the device cannot register that many
    /// pages at once or has no region left; `ENOMEM`.
    pub fn of_pages(pages: &DmaPages) -> Result<Self> {
        let mut this = Self::with_len(pages.pd(), pages.len())?;
        let mut sg = [kernel::bindings::scatterlist::c_zeroed()];
        fill_list(&mut sg, [(pages.addr(), u32::try_from(pages.len())?)])?;
        // SAFETY: `fill_list` has filled in one element and marked the end. The DMA address and the
        // length are those of memory mapped for the region's device.
        unsafe { this.map(sg.as_mut_ptr(), 1) }?;
        this.next_key();
        Ok(this)
    }

    /// Allocates a region that covers all of `pieces` as one range, with a key. After this,
    /// [`DmaPieces::unmap`] fails while the domain has a queue pair, and reads from a peer into the pieces are
    /// refused.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// As [`Mr::of_pages`].
    pub fn of_pieces(pieces: &mut DmaPieces) -> Result<Self> {
        let mut this = Self::with_len(pieces.pd(), pieces.pieces().len())?;
        let mapped = pieces.mapped();
        let count = mapped.len();
        let zeroed = kernel::bindings::scatterlist::c_zeroed();
        // A path has hundreds of regions of few pieces.
        let (mut few, mut many) = ([zeroed; Self::FEW], KVVec::new());
        let sg = match few.get_mut(..count) {
            Some(few) => few,
            None => {
                many.resize(count, zeroed, GFP_KERNEL)?;
                &mut many[..]
            }
        };
        // CAST: The length of a block of pages fits in 32 bits.
        fill_list(sg, mapped.map(|(addr, len)| (addr, len as u32)))?;
        // SAFETY: `fill_list` has filled in that many elements and marked the end. The DMA
        // addresses and lengths are those of memory mapped for the region's device.
        unsafe { this.map(sg.as_mut_ptr(), i32::try_from(count)?) }?;
        pieces.keep();
        this.next_key();
        Ok(this)
    }

    /// # Safety
    ///
    /// `sg` must point to a list of `nents` elements that are mapped for the region's device, and
    /// whose end is marked.
    unsafe fn map(&mut self, sg: *mut kernel::bindings::scatterlist, nents: i32) -> Result {
        let page_bytes = self.pd.device().region_page_bytes();
        // SAFETY: By the type invariant the region is live, and only this value changes it. The
        // list is valid by this function's contract.
        let mapped = unsafe {
            bindings::ib_map_mr_sg(
                self.ptr.as_ptr(),
                sg,
                nents,
                core::ptr::null_mut(),
                page_bytes,
            )
        };
        kernel::error::to_result(mapped.min(0))?;
        if mapped != nents {
            return Err(EINVAL);
        }
        let addr = self.iova();
        if let Some(bases) = &mut self.bases {
            let iova = bases.next(addr);
            // It has the same offset in the page as the memory.
            // SAFETY: By the type invariant the region is live, and only this value changes it. The
            // drivers of devices that take any address read the field when they execute a
            // registration. None is pending: the region is new, or its last registration is invalid,
            // as `IoMr::map` requires. (If it were not, a driver would read one of two numbers, or the
            // device would refuse accesses; the field is an aligned word that C reads and writes.)
            unsafe { (*self.ptr.as_ptr()).iova = iova };
        }
        Ok(())
    }

    /// Replaces the keys with new ones, whose low byte is higher by one.
    ///
    /// # Context
    ///
    /// Any.
    pub fn next_key(&mut self) {
        // SAFETY: By the type invariant the region is live, and only this value changes it.
        unsafe {
            let key = bindings::ib_inc_rkey(self.rkey());
            bindings::ib_update_fast_reg_key(self.ptr.as_ptr(), key as u8);
        }
    }

    /// Returns the remote key.
    #[inline]
    pub fn rkey(&self) -> u32 {
        // SAFETY: The region is live by the type invariant.
        unsafe { (*self.ptr.as_ptr()).rkey }
    }

    /// Returns the I/O virtual address of the range that was described last. The address is a
    /// different one for each description, is below 2^63, and reveals no more of the memory's
    /// address than the offset in the page. For a device that accepts only DMA addresses, it is the
    /// DMA address.
    #[inline]
    pub fn iova(&self) -> u64 {
        // SAFETY: The region is live by the type invariant.
        unsafe { (*self.ptr.as_ptr()).iova }
    }

    /// Returns the length of the range in bytes.
    #[inline]
    pub fn length(&self) -> u64 {
        // SAFETY: The region is live by the type invariant.
        unsafe { (*self.ptr.as_ptr()).length }
    }

    /// Returns the scatter element for the first `len` bytes of the range, for use once the range
    /// is registered.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the range is shorter.
    #[inline]
    pub fn sge(&self, len: u32) -> Result<Sge> {
        if u64::from(len) > self.length() {
            return Err(EINVAL);
        }
        // SAFETY: The region is live by the type invariant.
        let lkey = unsafe { (*self.ptr.as_ptr()).lkey };
        Ok(Sge::new(&self.pd, self.iova(), len, lkey))
    }

    /// Returns whether the region is one of `pd`.
    pub(crate) fn is_of(&self, pd: &Arc<Pd>) -> bool {
        Arc::ptr_eq(&self.pd, pd)
    }

    pub(crate) fn as_raw(&self) -> *mut bindings::ib_mr {
        self.ptr.as_ptr()
    }
}

/// Makes `sg` a list of mapped elements without pages, which `ib_map_mr_sg()` does not need.
///
/// # Errors
///
/// `EINVAL` if it has no element, of which the kernel would mark the last.
fn fill_list(
    sg: &mut [kernel::bindings::scatterlist],
    mapped: impl IntoIterator<Item = (u64, u32)>,
) -> Result {
    let count = u32::try_from(sg.len())?;
    if count == 0 {
        return Err(EINVAL);
    }
    // The call marks the last element. Without the mark, `sg_next()` would read beyond it.
    // SAFETY: `sg` is that many valid elements, at least one.
    unsafe { kernel::bindings::sg_init_table(sg.as_mut_ptr(), count) };
    for (element, (addr, length)) in sg.iter_mut().zip(mapped) {
        element.dma_address = addr;
        element.length = length;
        // SAFETY: The element is valid; the call only sets its DMA length.
        unsafe { bindings::sg_set_dma_len(element, length) };
    }
    Ok(())
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(rdma_mr)]
mod tests {
    use super::*;
    use crate::{
        device::Device,
        dma::Direction, //
    };
    use kernel::page::PAGE_SIZE;
    use kx::{
        io::SyncIo,
        mm::{
            Node,
            PageBlock,
            Pieces, //
        },
    };

    #[test]
    fn takes_only_what_is_mapped_in_its_domain() -> Result {
        let device = Device::nth(0)?;
        let (pd, other) = (Pd::new(&device)?, Pd::new(&device)?);
        let mut mr = IoMr::new(&pd, 2)?;
        for (pd, expected) in [(&pd, Ok(())), (&other, Err(EINVAL))] {
            let io = SyncIo::new(PAGE_SIZE)?;
            let mapped = MappedIo::new(pd, io.handle()?, Direction::FromDevice);
            let mapped = mapped.map_err(|(error, _)| error)?;
            let taken = mr.map(&mapped);
            mapped.unmap(pd).done(Ok(()));
            assert_eq!(taken, expected);
        }
        Ok(())
    }

    /// The device may write to the memory of a region as long as its key is valid.
    #[test]
    fn what_a_region_covers_is_kept() -> Result {
        let pd = Pd::new(&Device::nth(0)?)?;
        let block = Arc::new(PageBlock::with_len(PAGE_SIZE, Node::ANY)?, GFP_KERNEL)?;
        let pages = DmaPages::new(&pd, block.clone(), Direction::FromDevice)?;
        let mr = Mr::of_pages(&pages)?;
        assert_eq!(mr.length(), PAGE_SIZE as u64);
        drop((mr, pages));
        assert_eq!(pd.kept(), 1);

        let pieces = Arc::new(Pieces::new(3 * PAGE_SIZE, Node::ANY)?, GFP_KERNEL)?;
        let mut dma = DmaPieces::new(&pd, pieces.clone(), Direction::FromDevice)?;
        let mr = Mr::of_pieces(&mut dma)?;
        assert_eq!(mr.length(), pieces.len() as u64);
        // Even this does not end the mapping.
        drop(dma.unmap().err().ok_or(EINVAL)?);
        assert_eq!(pd.kept(), 2);

        drop(mr);
        drop(pd);
        assert!(Arc::into_unique_or_drop(block).is_some());
        assert!(Arc::into_unique_or_drop(pieces).is_some());
        Ok(())
    }

    /// A work request that waits for the doorbell may still name it.
    #[test]
    fn a_region_outlives_the_right_to_use_it() -> Result {
        let pd = Pd::new(&Device::nth(0)?)?;
        let mr = Mr::new(&pd, 1)?;
        let (region, rkey) = (mr.ptr, mr.rkey());
        drop(mr);
        assert!(pd.has_region(region));
        // SAFETY: The assertion above has shown that `pd` lists the region, and by its type invariant
        // the listed regions are live as long as `pd` is.
        assert_eq!(unsafe { (*region.as_ptr()).rkey }, rkey);
        // The next one is another.
        assert!(Mr::new(&pd, 1)?.ptr != region);
        Ok(())
    }

    /// As high as kernel addresses are.
    const ADDR: u64 = 0xffff_8880_1234_5678;

    #[test]
    fn a_list_has_an_end() {
        let parts = [(ADDR, 8192), (ADDR + 4096, 4096), (0, 1)];
        assert_eq!(fill_list(&mut [], parts), Err(EINVAL));
        for count in 1..=parts.len() {
            let mut list = [kernel::bindings::scatterlist::c_zeroed(); 3];
            assert_eq!(fill_list(&mut list[..count], parts), Ok(()));
            let mut sg = list.as_mut_ptr();
            for part in &parts[..count] {
                assert!(!sg.is_null());
                // SAFETY: `sg` is an element of the list; nothing behind the last element is read
                // if it is marked as the end.
                let (mapped, next) = unsafe {
                    let mapped = (
                        kernel::bindings::sg_dma_address(sg),
                        kernel::bindings::sg_dma_len(sg),
                    );
                    (mapped, kernel::bindings::sg_next(sg))
                };
                assert_eq!(mapped, *part);
                sg = next;
            }
            assert!(sg.is_null());
        }
    }

    #[test]
    fn keeps_the_place_in_the_page() {
        let mut bases = Bases::new(7);
        for offset in [0, 1, 511, 512, 4095] {
            assert_eq!(bases.next(offset) % 4096, offset);
        }
        assert_eq!(bases.next(ADDR) % 4096, ADDR % 4096);
    }

    #[test]
    fn is_far_from_the_end() {
        let mut bases = Bases::new(u64::MAX);
        for _ in 0..1000 {
            let base = bases.next(ADDR);
            assert!(base >> 63 == 0);
            assert!(base.checked_add(u64::from(u32::MAX)).is_some());
        }
    }

    #[test]
    fn differs_each_time() {
        let mut all = Bases::new(1);
        let (mut one, mut other) = (all.split(), all.split());
        let mut last = 0;
        for _ in 0..1000 {
            let base = one.next(ADDR);
            assert!(base != last && base != other.next(ADDR));
            last = base;
        }
    }
}
