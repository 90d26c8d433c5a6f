// SPDX-License-Identifier: GPL-2.0

//! I/O to block devices without allocation.
//!
//! A [`BioTable`] has a fixed number of slots. Each holds one I/O: the bio, a segment, and the
//! user's [`BioOwner`], which names the device and the memory and handles the end of the I/O.
//! Memory in several pieces is passed with its segments.
//!
//! [`kernel::block`] has no counterpart: its requests come from the block layer, and it submits
//! none.
//!
//! # Examples
//!
//! ```
//! # use kernel::{prelude::*, sync::Arc};
//! use kx::{
//!     blk::{BioBuf, BioFlags, BioOwner, BioSpec, BioTable, BlockDevice, Op, OpenSpec, Status},
//!     mm::{Node, Pieces},
//! };
//!
//! struct Read {
//!     device: BlockDevice,
//!     to: Pieces,
//! }
//!
//! impl BioOwner for Read {
//!     fn device(&self) -> &BlockDevice {
//!         &self.device
//!     }
//!
//!     fn buffer(&self) -> Option<BioBuf<'_>> {
//!         BioBuf::new(&self.to, 0, 4096).ok()
//!     }
//!
//!     fn done(self, status: Status) {
//!         let _ = status.to_result();
//!     }
//! }
//!
//! let spec = OpenSpec { write: false, holder: None };
//! let device = BlockDevice::open(BlockDevice::find(c"/", c"/dev/vda")?, spec)?;
//! let read = Read { device, to: Pieces::new(4096, Node::ANY)? };
//! let table = BioTable::new(1)?;
//! let spec = BioSpec {
//!     op: Op::Read,
//!     sector: 0,
//!     bytes: 4096,
//!     flags: BioFlags::SYNC,
//!     prio: 0,
//! };
//! table.submit(0, &spec, read).map_err(|(error, _read)| error)?;
//! # Ok::<(), Error>(())
//! ```
//!
//! C header: [`include/linux/bio.h`](srctree/include/linux/bio.h)

use crate::{
    blk::{
        bdev::BlockDevice,
        operations::request::Op,
        status::Status, //
    },
    mm::{
        PageBlock,
        Pieces, //
    },
    sync::atomic::{
        Acquire,
        Atomic,
        Release, //
    }, //
};
use core::{
    cell::UnsafeCell,
    mem::MaybeUninit, //
};
use ibtrs_bindings as ours;
use kernel::{
    bindings,
    prelude::*,
    sync::rcu,
    task::might_sleep,
    time::{
        delay::fsleep,
        Delta, //
    },
    types::Opaque, //
};

/// A part of memory in pieces, as the memory of an I/O: either the beginning, or in one piece.
///
/// # Invariants
///
/// It is not empty, and the memory has all of it.
#[derive(Clone, Copy)]
pub struct BioBuf<'a> {
    place: Place<'a>,
    len: u32,
}

/// Where a [`BioBuf`] is.
#[derive(Clone, Copy)]
enum Place<'a> {
    /// All of it in this piece, from this offset on.
    One(&'a PageBlock, usize),
    /// At the beginning of this memory.
    Beginning(&'a Pieces),
}

impl<'a> BioBuf<'a> {
    /// Creates a buffer of `len` bytes of `pieces` from `offset` on.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is empty or exceeds the memory, or if it is in several pieces and not at their
    /// beginning.
    #[inline]
    pub fn new(pieces: &'a Pieces, offset: usize, len: usize) -> Result<Self> {
        // INVARIANT: `in_one` returns nothing for an empty range, or one that exceeds the memory.
        let place = match pieces.in_one(offset, len) {
            Some((block, at)) => Place::One(block, at),
            None if offset == 0 && (1..=pieces.len()).contains(&len) => Place::Beginning(pieces),
            None => return Err(EINVAL),
        };
        Ok(Self {
            place,
            len: u32::try_from(len)?,
        })
    }

    /// Returns the length in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty)]
    pub fn len(&self) -> u32 {
        self.len
    }
}

/// The owner of an I/O, from [`BioTable::submit`] to its end.
///
/// The table moves the owner into a slot before it calls [`Self::device`] and [`Self::buffer`], and
/// does not touch it until the I/O has completed. The device and the memory therefore outlive the
/// I/O.
pub trait BioOwner: Send + 'static {
    /// Returns the device that the I/O goes to.
    fn device(&self) -> &BlockDevice;

    /// Returns the memory of a read or write; called for no other operation.
    fn buffer(&self) -> Option<BioBuf<'_>>;

    /// Handles the end of the I/O. The slot of the I/O is already free.
    ///
    /// Dropping the table does not wait for this function. The owner must therefore hold something
    /// that the module with this function waits for before it is unloaded, and this function must
    /// drop that or pass it on.
    ///
    /// # Context
    ///
    /// *bio end*, inside an RCU read section.
    fn done(self, status: Status);
}

/// The parameters of an I/O.
#[derive(Clone, Copy, Debug)]
pub struct BioSpec {
    /// The operation; a flush has no sector and no length.
    pub op: Op,
    /// First sector, in units of 512 bytes.
    pub sector: u64,
    /// Length in bytes, a multiple of 512. A read or write has the length of its memory.
    pub bytes: u32,
    /// How it is executed.
    pub flags: BioFlags,
    /// I/O priority (`IOPRIO_PRIO_VALUE`); a priority with an invalid class counts as none.
    pub prio: u16,
}

/// A set of flags of an I/O, as the block layer has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BioFlags(bindings::blk_opf_t);

impl BioFlags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// Writes only: the data is on the medium when the I/O ends.
    pub const FUA: Self = Self(ours::REQ_FUA);
    /// Writes only: the device's cache is flushed first.
    pub const PREFLUSH: Self = Self(ours::REQ_PREFLUSH);
    /// A task waits for the I/O. The disk's writeback throttling (`queue/wbt_lat_usec`) does not
    /// make the caller of [`BioTable::submit`] wait with such a write, as with direct I/O.
    pub const SYNC: Self = Self(ours::REQ_SYNC);
    /// Writes of zeroes only: the space stays allocated.
    pub const NOUNMAP: Self = Self(ours::REQ_NOUNMAP);
    /// The I/O ends with [`Status::AGAIN`] if [`BioTable::submit`] would block, or if the I/O would
    /// have to be split. Parts of it may have been executed by then. Only for devices that
    /// [accept](BlockDevice::takes_nowait) the flag.
    pub const NOWAIT: Self = Self(ours::REQ_NOWAIT);

    /// Returns both sets together.
    #[inline]
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the set without the members of `other`.
    #[inline]
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the set if `on`, else no flag.
    #[inline]
    #[must_use]
    pub const fn when(self, on: bool) -> Self {
        if on {
            self
        } else {
            Self::NONE
        }
    }

    /// Returns whether the sets have a member in common.
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

const FREE: u32 = 0;
const BUSY: u32 = 1;

/// A slot for one I/O.
///
/// # Invariants
///
/// `owner` is initialized while the state is `BUSY`, except while it is put in or taken out. Only
/// the caller that has set `BUSY`, and then the function that handles the end of the bio, touches
/// the other fields.
#[repr(C)]
struct Slot<T> {
    /// First, so that a pointer to it is also one to the slot.
    bio: Opaque<bindings::bio>,
    vec: Opaque<bindings::bio_vec>,
    state: Atomic<u32>,
    owner: UnsafeCell<MaybeUninit<T>>,
}

/// A table of slots for I/Os to block devices.
///
/// Dropping the table waits until all slots are free and *may sleep*. An owner in a slot must not
/// own the table.
pub struct BioTable<T: BioOwner> {
    slots: KVVec<Slot<T>>,
}

// SAFETY: Slots have no thread affinity, and their owners are `Send`.
unsafe impl<T: BioOwner> Send for BioTable<T> {}
// SAFETY: Only the caller that has won a slot uses it; the owner passes through it from one thread
// to another, for which `Send` is enough.
unsafe impl<T: BioOwner> Sync for BioTable<T> {}

impl<T: BioOwner> BioTable<T> {
    /// Creates a table with `nr` slots.
    ///
    /// # Context
    ///
    /// *may sleep*.
    pub fn new(nr: usize) -> Result<Self> {
        let mut slots = KVVec::with_capacity(nr, GFP_KERNEL)?;
        for _ in 0..nr {
            let slot = Slot {
                bio: Opaque::uninit(),
                vec: Opaque::uninit(),
                state: Atomic::new(FREE),
                owner: UnsafeCell::new(MaybeUninit::uninit()),
            };
            slots.push(slot, GFP_KERNEL)?;
        }
        Ok(Self { slots })
    }

    /// Starts an I/O in slot `idx`. [`BioOwner::done`] may be called before this returns.
    ///
    /// # Context
    ///
    /// *may sleep*.
    ///
    /// # Errors
    ///
    /// Returns the owner with `EINVAL` if the table has no such slot or the I/O is invalid, and
    /// with `EBUSY` if the slot is in use.
    pub fn submit(&self, idx: usize, spec: &BioSpec, owner: T) -> Result<(), (Error, T)> {
        might_sleep();
        let Some(slot) = self.slots.get(idx) else {
            return Err((EINVAL, owner));
        };
        // ORDERING: Pairs with the release in `free`: the previous user has finished with the slot.
        if slot.state.cmpxchg(FREE, BUSY, Acquire).is_err() {
            return Err((EBUSY, owner));
        }
        // INVARIANT: The slot was just won, and gets its owner.
        // SAFETY: This caller has set `BUSY`, so by the type invariant nobody else touches the
        // owner.
        let owner: &T = unsafe { (*slot.owner.get()).write(owner) };
        // SAFETY: This caller has set `BUSY`. The device and the memory belong to the owner, which
        // is only read from here on, until `free` takes it out after the bio has ended.
        if let Err(e) = unsafe { slot.prepare(spec, owner) } {
            // SAFETY: The slot is busy, and only this caller touches it, as its bio was not
            // submitted.
            return Err((e, unsafe { Slot::free(core::ptr::from_ref(slot)) }));
        }
        // SAFETY: `prepare` has completed the bio and set its end function, which alone touches the
        // bio and the owner from here on. The slot stays in place until then, as the table never
        // moves its slots, and its drop waits until they are free.
        unsafe { bindings::submit_bio(slot.bio.get()) };
        Ok(())
    }
}

impl<T: BioOwner> Slot<T> {
    /// Prepares the bio.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the I/O is invalid; the bio then needs no clean-up.
    ///
    /// # Safety
    ///
    /// The caller must have won the slot. The device and the memory of `owner` must be valid until
    /// the bio has ended.
    unsafe fn prepare(&self, spec: &BioSpec, owner: &T) -> Result {
        let bio = self.bio.get();
        let bdev = owner.device().as_raw();
        let opf = spec.opf()?;
        if spec.op.has_data() {
            let buf = owner.buffer().ok_or(EINVAL)?;
            if buf.len != spec.bytes {
                return Err(EINVAL);
            }
            // SAFETY: By this function's contract, nobody else uses the bio and the segment, and
            // the device and the memory stay valid.
            unsafe { self.set_data(bio, bdev, opf, buf) };
        } else {
            // SAFETY: As above, without data.
            unsafe { bindings::bio_init(bio, bdev, core::ptr::null_mut(), 0, opf) };
        }
        // SAFETY: `bio_init` has initialized the bio, and nobody else uses it before it is
        // submitted.
        let raw = unsafe { &mut *bio };
        if !spec.op.has_data() {
            raw.bi_iter.bi_size = spec.bytes;
        }
        if spec.op != Op::Flush {
            raw.bi_iter.bi_sector = spec.sector;
        }
        raw.bi_ioprio = spec.ioprio();
        // CAST: The address of a function, which `ended` turns into a function again.
        raw.bi_private = Self::end as End as *mut c_void;
        raw.bi_end_io = Some(ended);
        Ok(())
    }

    /// Initializes the bio as one with the data of `buf`.
    ///
    /// # Safety
    ///
    /// `bio` must be that of this slot, which the caller must have won. The device and the memory
    /// must be valid until the bio has ended.
    unsafe fn set_data(
        &self,
        bio: *mut bindings::bio,
        bdev: *mut bindings::block_device,
        opf: bindings::blk_opf_t,
        buf: BioBuf<'_>,
    ) {
        let pieces = match buf.place {
            Place::One(block, offset) => {
                // With a segment of just that length, the block layer skips the check whether the bio
                // must be split.
                // SAFETY: By this function's contract, nobody else uses the bio and the segment, and
                // the device stays open.
                unsafe { bindings::bio_init(bio, bdev, self.vec.get(), 1, opf) };
                let start = block.as_ptr().wrapping_add(offset);
                // SAFETY: The bio has room for one segment. By the type invariant the memory is
                // inside the block, which is contiguous in the linear mapping, and which stays valid
                // by this function's contract.
                unsafe { bindings::bio_add_virt_nofail(bio, start.cast(), buf.len) };
                return;
            }
            Place::Beginning(pieces) => pieces,
        };
        // SAFETY: As above, without a segment.
        unsafe { bindings::bio_init(bio, bdev, core::ptr::null_mut(), 0, opf) };
        // SAFETY: `bio_init` has initialized the bio, and nobody else uses it before it is
        // submitted.
        let raw = unsafe { &mut *bio };
        // As `bio_iov_iter_set()` does. The flag marks the segments as not owned by the bio: they
        // are only read, and only the first `bi_size` bytes of them. They cover `bi_size` bytes and
        // begin with `buf` by its type invariant. They stay valid as long as the memory.
        raw.bi_io_vec = pieces.segments().cast_mut();
        raw.bi_iter.bi_size = buf.len;
        raw.bi_flags |= 1 << bindings::BIO_CLONED;
    }

    /// Takes the owner out of a busy slot, and frees the slot.
    ///
    /// # Safety
    ///
    /// The slot must be busy, and only the caller may touch it; the caller must not touch it later.
    unsafe fn free(this: *const Self) -> T {
        // SAFETY: A busy slot has an owner by the type invariant, and nobody else touches it by
        // this function's contract.
        let owner = unsafe { (*(*this).owner.get()).assume_init_read() };
        // ORDERING: Pairs with the acquire in `submit` and in the table's drop.
        // SAFETY: The table exists, as its drop waits until this slot is free.
        unsafe { &(*this).state }.store(FREE, Release);
        owner
    }

    /// # Safety
    ///
    /// `bio` must be the ended bio of a slot of this type.
    unsafe fn end(bio: *mut bindings::bio) {
        // SAFETY: By this function's contract the bio has ended, so nobody else uses it.
        let status = Status::from_raw(unsafe { (*bio).bi_status });
        // SAFETY: `prepare` has initialized the bio, and initializes it again before its next use.
        unsafe { bindings::bio_uninit(bio) };
        // CAST: The bio is the first field of a `repr(C)` struct, and `Opaque` is transparent.
        // SAFETY: The slot is busy, as `submit` has set `BUSY` and its bio ends only here. Nobody
        // uses the bio or the slot any more.
        let owner = unsafe { Self::free(bio.cast()) };
        owner.done(status);
    }
}

/// Ends the bio of a [`Slot`] of one type.
type End = unsafe fn(*mut bindings::bio);

/// Called by the block layer when a bio has ended.
///
/// This function is not generic, so that it is not part of the driver's module. Unloading the
/// driver may wait for the owner of an I/O. Once the owner is dropped, the kernel may free the
/// driver's code while [`BioOwner::done`] still has a few instructions to execute. The kernel frees
/// a module only after an RCU grace period, which cannot end before the read section below. The
/// instructions after the section belong to the module that the driver depends on, whose unloading
/// waits for them (see [`LastTails`](crate::module::LastTails)).
///
/// # Safety
///
/// `bio` must be the ended bio of a slot, whose [`Slot::end`] is its private data.
unsafe extern "C" fn ended(bio: *mut bindings::bio) {
    let section = rcu::read_lock();
    // SAFETY: By this function's contract, the private data is the `Slot::end` that `prepare` has
    // stored there; only the submitter of a bio changes it.
    let end = unsafe { core::mem::transmute::<*mut c_void, End>((*bio).bi_private) };
    // SAFETY: By this function's contract the bio has ended, and belongs to a slot of the type
    // whose `end` this is.
    unsafe { end(bio) };
    drop(section);
}

impl BioSpec {
    /// Returns the operation with its flags, or `EINVAL` if they are invalid for the block layer.
    #[inline]
    fn opf(&self) -> Result<bindings::blk_opf_t> {
        let empty_ok = self.op == Op::Flush;
        let others = match self.op {
            Op::Write => BioFlags::NOUNMAP,
            Op::WriteZeroes => BioFlags::FUA.and(BioFlags::PREFLUSH),
            _ => BioFlags::FUA.and(BioFlags::PREFLUSH).and(BioFlags::NOUNMAP),
        };
        // The block layer counts the length of a bio in sectors.
        if (self.bytes == 0) != empty_ok || self.flags.intersects(others) || self.bytes % 512 != 0 {
            return Err(EINVAL);
        }
        let op = match self.op {
            Op::Read => bindings::req_op_REQ_OP_READ,
            // Throttling tells direct writes from writeback by both flags together.
            Op::Write if self.flags.intersects(BioFlags::SYNC) => {
                bindings::req_op_REQ_OP_WRITE | ours::REQ_IDLE
            }
            Op::Write => bindings::req_op_REQ_OP_WRITE,
            Op::Flush => bindings::req_op_REQ_OP_WRITE | ours::REQ_PREFLUSH,
            Op::Discard => bindings::req_op_REQ_OP_DISCARD,
            Op::SecureErase => bindings::req_op_REQ_OP_SECURE_ERASE,
            Op::WriteZeroes => bindings::req_op_REQ_OP_WRITE_ZEROES,
        };
        Ok(op | self.flags.0)
    }

    /// Returns whether the disk's writeback throttling may apply: to flushes, discards, and writes
    /// other than direct ones.
    #[inline]
    pub(crate) fn may_be_throttled(&self) -> bool {
        match self.op {
            Op::Write => !self.flags.intersects(BioFlags::SYNC),
            Op::Flush | Op::Discard => true,
            _ => false,
        }
    }

    /// Returns the priority, none for an invalid class: schedulers index arrays with the class.
    #[inline]
    fn ioprio(&self) -> u16 {
        const IOPRIO_CLASS_SHIFT: u16 = 13;
        const IOPRIO_CLASS_IDLE: u16 = 3;
        if self.prio >> IOPRIO_CLASS_SHIFT <= IOPRIO_CLASS_IDLE {
            self.prio
        } else {
            0
        }
    }
}

impl<T: BioOwner> Drop for BioTable<T> {
    fn drop(&mut self) {
        might_sleep();
        for slot in &self.slots {
            // ORDERING: Pairs with the release in `free`, the last access to the slot. `free` wakes
            // nobody, as that would take a shared cache line at the end of each I/O; tables are
            // rarely dropped, and then idle.
            while slot.state.load(Acquire) != FREE {
                fsleep(Delta::from_millis(1));
            }
        }
    }
}

impl BlockDevice {
    /// Returns whether [`BioFlags::NOWAIT`] keeps the submitter of this I/O from waiting: the device
    /// takes such I/O, its driver does not sleep, and writeback throttling, which makes even such I/O
    /// wait, does not apply. All of this may change at any time, so the answer is for this I/O only.
    ///
    /// A device above others may still wait for a driver below that sleeps, such as `nbd`.
    #[inline]
    pub fn takes_nowait(&self, spec: &BioSpec) -> bool {
        self.waits_for_nothing(spec.may_be_throttled())
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_blk_bio)]
mod tests {
    use super::*;

    /// Only a write for which a task waits passes the throttling.
    #[test]
    fn such_writes_are_direct() -> Result {
        const DIRECT: bindings::blk_opf_t = ours::REQ_SYNC | ours::REQ_IDLE;
        for (op, sync, flags) in [
            (Op::Write, true, DIRECT),
            (Op::Write, false, 0),
            (Op::Read, true, ours::REQ_SYNC),
            (Op::WriteZeroes, true, ours::REQ_SYNC),
        ] {
            let spec = BioSpec {
                op,
                sector: 0,
                bytes: 512,
                flags: BioFlags::SYNC.when(sync),
                prio: 0,
            };
            assert_eq!(spec.opf()? & DIRECT, flags);
            assert_eq!(spec.may_be_throttled(), op == Op::Write && !sync);
        }
        Ok(())
    }
}
