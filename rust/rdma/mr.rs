// SPDX-License-Identifier: GPL-2.0

//! Memory regions for fast registration.

use core::ptr::NonNull;

use crate::{
    dma::{
        DmaPages,
        DmaPieces,
        MappedIo, //
    },
    pd::Pd,
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
        };
        bits as i32
    }
}

/// A memory region that work requests register and invalidate.
///
/// A registration takes these steps: [`Mr::map_io`], [`Mr::map_pages`] or [`Mr::map_pieces`]
/// describes the memory, [`Mr::next_key`] replaces the keys of the previous registration, a `reg_mr`
/// work request makes the device honour the new keys, and an invalidation (a local one, or by the
/// peer's send) ends the registration.
///
/// This value is the right to use a region. The region itself belongs to its protection domain and
/// is freed with it. The device may access the region as long as a pending work request names it,
/// even after this value was dropped: the queue pair that has the work request keeps the domain.
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

impl Mr {
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
        let ptr = pd.new_region(pages)?;
        let any = pd.device().takes_any_address();
        // INVARIANT: The region was just allocated in `pd`, and nobody else has it.
        Ok(Self {
            ptr,
            bases: any.then(|| Bases::new(kx::random::next_u64())),
            pd: pd.clone(),
        })
    }

    /// Describes the mapped scatter list of `io` as one range of I/O virtual addresses.
    ///
    /// All elements except the first must begin, and all except the last must end, at a page
    /// boundary of the machine, even if the region's pages are smaller.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the list has gaps or more pages than the region, or is
    /// mapped for another device.
    pub fn map_io(&mut self, io: &MappedIo) -> Result {
        if io.device_id() != self.pd.device().id() {
            return Err(EINVAL);
        }
        // SAFETY: `io` has a list of that many elements, mapped for the region's device, as was
        // just checked. The end of the list is marked by the type invariant of `SgTable`.
        unsafe { self.map(io.as_raw(), io.nents() as i32) }
    }

    /// Describes all of `pages`, which must be mapped for the region's device; see [`Mr::map_io`].
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// As [`Mr::map_io`].
    pub fn map_pages(&mut self, pages: &DmaPages) -> Result {
        if pages.device_id() != self.pd.device().id() {
            return Err(EINVAL);
        }
        let mut sg = [kernel::bindings::scatterlist::c_zeroed()];
        fill_list(&mut sg, [(pages.addr(), u32::try_from(pages.len())?)])?;
        // SAFETY: `fill_list` has made it a list of one element with its end marked. The DMA
        // address and the length are those of memory mapped for the region's device.
        unsafe { self.map(sg.as_mut_ptr(), 1) }
    }

    /// Describes all of `pieces`, which must be mapped for the region's device, as one range; see
    /// [`Mr::map_io`].
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// As [`Mr::map_io`]; `ENOMEM`.
    pub fn map_pieces(&mut self, pieces: &DmaPieces) -> Result {
        if pieces.device_id() != self.pd.device().id() {
            return Err(EINVAL);
        }
        let mapped = pieces.mapped();
        let count = mapped.len();
        let zeroed = kernel::bindings::scatterlist::c_zeroed();
        let mut sg = KVVec::from_elem(zeroed, count, GFP_KERNEL)?;
        // CAST: The length of a block of pages fits in 32 bits.
        fill_list(&mut sg, mapped.map(|(addr, len)| (addr, len as u32)))?;
        // SAFETY: `fill_list` has made it a list of that many elements with its end marked. The DMA
        // addresses and lengths are those of memory mapped for the region's device.
        unsafe { self.map(sg.as_mut_ptr(), i32::try_from(count)?) }
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
            // The drivers of devices that take any address read it when they execute the
            // registration. It has the same offset in the page as the memory.
            // SAFETY: By the type invariant the region is live, and only this value changes it.
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
        Ok(Sge::new(self.pd.device(), self.iova(), len, lkey))
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

/// The I/O virtual addresses for the registrations of a region.
///
/// The DMA addresses of the memory would tell the peer, and any eavesdropper, where the memory is.
/// The numbers used instead are not secret, but reveal nothing.
struct Bases(u64);

impl Bases {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the address for a range that begins at `addr`: with the same offset in the page, and
    /// below 2^63, so that adding a length or an offset never overflows.
    fn next(&mut self, addr: u64) -> u64 {
        const IN_PAGE: u64 = PAGE_SIZE as u64 - 1;
        // SplitMix64 takes only a few instructions for each I/O.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        (bits >> 1) & !IN_PAGE | (addr & IN_PAGE)
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(rdma_mr)]
mod tests {
    use super::*;
    use crate::{
        device::Device,
        dma::Direction, //
    };
    use kx::{
        io::SyncIo,
        mm::PageBlock, //
    };

    #[test]
    fn takes_only_what_is_mapped_for_its_device() -> Result {
        let (own, other) = (Device::nth(0)?, Device::nth(1)?);
        let (pd, other_pd) = (Pd::new(&own)?, Pd::new(&other)?);
        let mut mr = Mr::new(&pd, 2)?;
        for (dev, expected) in [(&own, Ok(())), (&other, Err(EINVAL))] {
            let io = SyncIo::new(PAGE_SIZE)?;
            let mapped = MappedIo::new(dev, io.handle()?, Direction::FromDevice);
            let mapped = mapped.map_err(|(error, _)| error)?;
            let taken = mr.map_io(&mapped);
            mapped.unmap(dev).done(Ok(()));
            assert_eq!(taken, expected);
        }
        for (pd, expected) in [(&pd, Ok(())), (&other_pd, Err(EINVAL))] {
            let block = Arc::new(
                PageBlock::with_len(PAGE_SIZE, pd.device().node())?,
                GFP_KERNEL,
            )?;
            let pages = DmaPages::new(pd, block, Direction::FromDevice)?;
            assert_eq!(mr.map_pages(&pages), expected);
        }
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
        // what it lists is live as long as `pd` is.
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
                // SAFETY: `sg` is an element of the list; nothing behind the last is read if that
                // is marked.
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
        let (mut one, mut other) = (Bases::new(1), Bases::new(2));
        let mut last = 0;
        for _ in 0..1000 {
            let base = one.next(ADDR);
            assert!(base != last && base != other.next(ADDR));
            last = base;
        }
    }
}
