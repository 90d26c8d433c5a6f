// SPDX-License-Identifier: GPL-2.0

//! The memory of a tag: where its requests land, and where their data is.
//!
//! A *chunk* can hold the largest request. A *slot* ([`ibtrs_proto::slots`]) can hold headers and a
//! little data; a request that needs more gets a [`Buffer`]. Slots lie in groups: each group is a
//! range of memory under one key.

use crate::{
    storage::{
        buffers::Buffer,
        pool::ChunkMemory,
        source::Source, //
    },
    types::{
        Round,
        SMALL_BYTES, //
    }, //
};
use ibtrs_proto::{
    buffers::SMALLEST,
    msg::{
        Direction as Dir,
        ServerRequest,
        SgDesc, //
    },
};
use kernel::{
    alloc::flags::GFP_NOWAIT,
    prelude::*,
    sync::{
        Arc,
        UniqueArc, //
    }, //
};
use kx::mm::Pieces;
use rdma::{
    dma::{
        Direction,
        DmaPieces, //
    },
    mr::{
        Access,
        Mr, //
    },
    pd::Pd,
    qp::Handler,
    sendq::Chain,
};

/// A chunk.
pub(crate) struct Whole {
    memory: Source,
    /// Memory for small data, to which no client can write; allocated for the first request that needs
    /// it, so that a path connects sooner.
    small: Option<Source>,
    /// Number of small requests to skip before the allocation is retried.
    pause: u8,
    /// The client must not be able to write to requests in service.
    secure: bool,
    /// The region that the client writes to.
    mr: Mr,
}

impl Whole {
    /// Creates a chunk in the protection domain of a path. Its regions are still to be
    /// [registered](Self::register). Data in more than `most_pieces` is sent from a region. If it is
    /// `secure`, the client cannot write to requests in service.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(
        pd: &Arc<Pd>,
        memory: ChunkMemory,
        secure: bool,
        most_pieces: usize,
    ) -> Result<Self> {
        let new = match secure {
            true => Source::complete,
            // The client's region is never invalidated, and can be sent from.
            false => Source::new,
        };
        let mut source = new(pd, memory.chunk, Direction::Bidirectional, most_pieces)?;
        let private = memory.private.filter(|_| secure);
        Ok(Self {
            mr: source.cover()?,
            small: private.and_then(|pieces| source.another(pieces)),
            memory: source,
            pause: 0,
            secure,
        })
    }

    /// Number of small requests to skip after a failed allocation of the memory for small data, as
    /// failing allocations take longest.
    const PAUSE: u8 = 64;

    /// Maximum number of work requests of [`Self::register`].
    pub(crate) const REGIONS: u32 = 2;

    /// Registers the chunk for remote writes by the client, and the memory that answers are sent
    /// from.
    pub(crate) fn register<H: Handler>(&self, chain: &mut Chain<'_, H>) {
        chain.reg_mr(&self.mr, Access::RemoteWrite);
        self.memory.register(chain);
    }

    /// Allocates the memory for small data if `request` is the first that needs it. Without free memory,
    /// the key of the chunk will be invalidated for the request, as for one with more data.
    ///
    /// # Context
    ///
    /// May sleep, but does not wait for memory.
    #[inline]
    pub(crate) fn want_small(&mut self, request: &ServerRequest) {
        // CAST: The constant fits.
        let needs = (1..=SMALL_BYTES as u32).contains(&request.data_len);
        if needs && self.secure && self.small.is_none() {
            self.try_small();
        }
    }

    #[cold]
    fn try_small(&mut self) {
        if let Some(left) = self.pause.checked_sub(1) {
            self.pause = left;
            return;
        }
        self.small = self.new_small();
        if self.small.is_none() {
            self.pause = Self::PAUSE;
        }
    }

    fn new_small(&self) -> Option<Source> {
        let node = self.memory.dma().pd().device().node();
        let pieces = Pieces::optional(SMALL_BYTES, node).ok()?;
        self.memory.another(Arc::new(pieces, GFP_NOWAIT).ok()?)
    }

    /// Returns the address and key of the chunk; the caller sets the length.
    pub(crate) fn descriptor(&self) -> SgDesc {
        descriptor(&self.mr)
    }

    /// Returns the region that covers the chunk.
    pub(crate) fn mr(&self) -> &Mr {
        &self.mr
    }

    /// Switches to the next key, after an invalidation.
    pub(crate) fn next_key(&mut self) {
        self.mr.next_key();
    }

    /// Returns whether the request has no data, or its data fits the memory for small data.
    #[inline]
    fn is_small(&self, request: &ServerRequest) -> bool {
        let len = request.data_len as usize;
        len == 0 || self.small.is_some() && len <= SMALL_BYTES
    }

    #[inline]
    fn data(&self, request: &ServerRequest) -> &Source {
        match &self.small {
            Some(small) if self.is_small(request) => small,
            _ => &self.memory,
        }
    }

    /// Returns the region to send data from, if it is in too many pieces.
    fn region(&self, request: &ServerRequest) -> Option<&Mr> {
        match self.secure {
            true => self.data(request).region(),
            false => Some(&self.mr),
        }
    }
}

fn descriptor(mr: &Mr) -> SgDesc {
    SgDesc {
        addr: mr.iova(),
        key: mr.rkey(),
        len: 0,
    }
}

/// Memory of some slots, under one key.
pub(crate) struct Group {
    dma: DmaPieces,
    mr: Mr,
}

impl Group {
    /// Creates a group in the protection domain of a path. It is still to be
    /// [registered](Self::register).
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(pd: &Arc<Pd>, pieces: Arc<Pieces>) -> Result<Self> {
        let mut dma = DmaPieces::new(pd, pieces, Direction::Bidirectional)?;
        Ok(Self {
            mr: Mr::of_pieces(&mut dma)?,
            dma,
        })
    }

    /// Registers the slots for remote writes by the client.
    pub(crate) fn register<H: Handler>(&self, chain: &mut Chain<'_, H>) {
        chain.reg_mr(&self.mr, Access::RemoteWrite);
    }

    /// Returns the address and key of the slots; the caller sets the length.
    pub(crate) fn descriptor(&self) -> SgDesc {
        descriptor(&self.mr)
    }

    /// Returns the memory.
    pub(crate) fn pieces(&self) -> &Arc<Pieces> {
        self.dma.pieces()
    }

    /// Returns the memory of a group without slots, as [`Landing::into_memory`] does.
    pub(crate) fn take_memory(this: Pin<UniqueArc<Self>>) -> Option<ChunkMemory> {
        let pieces = this.pieces().clone();
        drop(this);
        ChunkMemory::unmapped(pieces, None)
    }
}

/// Where the data of a request in a slot is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Data {
    /// There is none, or the client has written it to the slot and may do so again.
    Slot,
    Small,
    Large,
}

/// A slot, and its current buffers.
pub(crate) struct InSlot {
    group: Arc<Group>,
    /// Where the slot begins in its group.
    at: u32,
    /// The client must not be able to write to requests in service.
    secure: bool,
    /// Kept until the path has been idle, or other requests wait for buffers.
    small: Option<Buffer>,
    /// The latest round when an answer was sent from `small` without a signal.
    sent: Option<Round>,
    /// For the request in service alone; then kept until the device has sent its data, or the answer
    /// to the next request.
    large: Option<Buffer>,
    /// Where the data of the request in service is.
    place: Data,
    /// No request has arrived since the last check for idle slots.
    pub(crate) is_idle: bool,
}

/// Buffers that a slot has released. They are freed when this is dropped, which must not happen
/// under the lock of the slot.
#[must_use]
pub(crate) struct Spare(Option<Buffer>, Option<Buffer>);

impl Spare {
    pub(crate) const NONE: Self = Self(None, None);

    /// Returns `self` if it has a buffer.
    #[inline]
    pub(crate) fn some(self) -> Option<Self> {
        (self.0.is_some() || self.1.is_some()).then_some(self)
    }
}

impl InSlot {
    /// Creates the slot at `at` of a group.
    pub(crate) fn new(group: Arc<Group>, at: u32, secure: bool) -> Self {
        Self {
            group,
            at,
            secure,
            small: None,
            sent: None,
            large: None,
            place: Data::Slot,
            is_idle: false,
        }
    }

    #[inline]
    fn data_of(&self, request: &ServerRequest) -> Data {
        let len = request.data_len as usize;
        let is_here = request.direction == Dir::Write && request.desc.is_none();
        let in_one = || self.group.pieces().in_one(self.at as usize, len).is_some();
        if len == 0 || is_here && !self.secure && in_one() {
            Data::Slot
        } else if len <= SMALLEST {
            Data::Small
        } else {
            Data::Large
        }
    }

    /// Begins a request whose header was not read yet.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.place = Data::Slot;
        self.is_idle = false;
    }

    /// Returns the buffer for the data of the request in service, if it has one.
    #[inline]
    fn buffer(&self) -> Option<&Buffer> {
        match self.place {
            Data::Slot => None,
            Data::Small => self.small.as_ref(),
            Data::Large => self.large.as_ref(),
        }
    }

    /// As [`Self::buffer`].
    #[inline]
    fn buffer_mut(&mut self) -> Option<&mut Buffer> {
        match self.place {
            Data::Slot => None,
            Data::Small => self.small.as_mut(),
            Data::Large => self.large.as_mut(),
        }
    }

    /// Chooses where the data of `request` is, which is in service from here on. Returns whether it
    /// needs a buffer that the slot does not have.
    #[inline]
    pub(crate) fn lacks_buffer(&mut self, request: &ServerRequest) -> bool {
        self.place = self.data_of(request);
        match self.place {
            Data::Slot => false,
            // It fits any small buffer.
            Data::Small => self.small.is_none(),
            Data::Large => {
                let len = request.data_len as usize;
                !self
                    .large
                    .as_ref()
                    .is_some_and(|buffer| buffer.has_room(len))
            }
        }
    }

    /// Assigns a buffer for the request in service to the slot; returns whether the slot keeps it
    /// after the request.
    pub(crate) fn grant(&mut self, mut buffer: Buffer) -> bool {
        if self.place == Data::Small && !buffer.is_reserve() {
            self.small = Some(buffer);
            self.sent = None;
            return true;
        }
        self.place = Data::Large;
        if let Some(former) = self.large.take() {
            buffer.keep_former(former);
        }
        self.large = Some(buffer);
        false
    }

    /// Records that data of the request in service is sent on connection `cid` while `round` is the
    /// latest. Returns whether the answer must be signalled: because the data is in a buffer for this
    /// request alone, because the service connection does not take part in rounds, or because slots
    /// must not keep buffers while memory `is_short`.
    #[inline]
    pub(crate) fn sends(&mut self, cid: u16, round: Round, is_short: bool) -> bool {
        let is_signalled = self.place == Data::Large || is_short || cid == 0;
        if !is_signalled {
            self.sent = Some(round);
        }
        is_signalled
    }

    /// Returns whether everything that was sent unsignalled from the small buffer was acknowledged by
    /// the completion of the round `done`.
    #[inline]
    fn is_acknowledged(&self, done: Round) -> bool {
        self.sent.is_none_or(|sent| sent.is_before(done))
    }

    #[inline]
    fn has_spare_small(&self, short: Option<Round>) -> bool {
        self.small.is_some() && short.is_some_and(|done| self.is_acknowledged(done))
    }

    /// Returns whether [`Self::spare`] would return a buffer.
    #[inline]
    pub(crate) fn has_spare(&self, short: Option<Round>) -> bool {
        self.large.is_some() || self.has_spare_small(short)
    }

    /// Takes the buffers that the slot does not need for its next request. No signalled answer must
    /// be in flight. For `short` see [`PathIo::shortage`](crate::data::con::PathIo::shortage).
    pub(crate) fn spare(&mut self, short: Option<Round>) -> Spare {
        let small = match self.has_spare_small(short) {
            true => self.small.take(),
            false => None,
        };
        Spare(small, self.large.take())
    }

    /// Takes the buffer of a completed request, if it is the reserve buffer.
    #[inline]
    pub(crate) fn take_reserve(&mut self) -> Option<Buffer> {
        self.large.take_if(|buffer| buffer.is_reserve())
    }

    /// Takes all buffers. No device must use any of them.
    pub(crate) fn take_all(&mut self) -> Spare {
        Spare(self.small.take(), self.large.take())
    }

    /// Returns whether the slot has a buffer.
    pub(crate) fn has_buffer(&self) -> bool {
        self.small.is_some() || self.large.is_some()
    }
}

/// Where requests with a tag land.
pub(crate) enum Landing {
    Chunk(KBox<Whole>),
    Slot(InSlot),
}

impl Landing {
    #[inline]
    fn memory(&self) -> (&DmaPieces, usize) {
        match self {
            Self::Chunk(whole) => (whole.memory.dma(), 0),
            Self::Slot(slot) => (&slot.group.dma, slot.at as usize),
        }
    }

    /// Copies the bytes at `at`, which the client has written; the caller has checked the bounds.
    #[inline]
    pub(crate) fn read(&self, at: usize, to: &mut [u8]) -> Result {
        let (dma, base) = self.memory();
        dma.sync_for_cpu(base + at, to.len())?;
        dma.pieces().copy_out(base + at, to)
    }

    /// Zeroes bytes that the client has written.
    #[inline]
    pub(crate) fn zero(&self, at: usize, len: usize) -> Result {
        let (dma, base) = self.memory();
        dma.pieces().zero(base + at, len)?;
        dma.sync_for_device(base + at, len)
    }

    /// Returns whether the key of the chunk must be invalidated before `request` is served.
    pub(crate) fn must_invalidate(&self, request: &ServerRequest) -> bool {
        match self {
            Self::Chunk(whole) => whole.secure && !whole.is_small(request),
            Self::Slot(_) => false,
        }
    }

    /// Makes the data of a write ready for the service.
    #[inline(always)]
    pub(crate) fn prepare_data(&self, request: &ServerRequest) -> Result {
        let len = request.data_len as usize;
        if request.direction == Dir::Read || len == 0 {
            return Ok(());
        }
        if request.source().is_some() {
            let (source, _) = self.source(request).ok_or(EINVAL)?;
            return source.dma().sync_for_cpu(0, len);
        }
        let (dma, base) = self.memory();
        dma.sync_for_cpu(base, len)?;
        let to = match self {
            Self::Chunk(whole) if !whole.is_small(request) => return Ok(()),
            Self::Chunk(whole) => whole.small.as_ref(),
            Self::Slot(slot) => slot.buffer().and_then(Buffer::source),
        };
        match to {
            Some(to) => dma.pieces().copy_to(base, to.pieces(), 0, len),
            None => Ok(()),
        }
    }

    /// Returns the memory of the request's data, and where in it the data begins.
    #[inline]
    pub(crate) fn data(&self, request: &ServerRequest) -> (&Pieces, usize) {
        match self {
            Self::Chunk(whole) => (whole.data(request).pieces(), 0),
            Self::Slot(slot) => match slot.buffer().and_then(Buffer::source) {
                Some(source) => (source.pieces(), 0),
                None => (slot.group.pieces(), slot.at as usize),
            },
        }
    }

    /// Returns where the data of `request` is sent from, or fetched to, and the region for that if
    /// it is in too many pieces; `None` if its data is in the slot.
    #[inline]
    pub(crate) fn source(&self, request: &ServerRequest) -> Option<(&Source, Option<&Mr>)> {
        match self {
            Self::Chunk(whole) => Some((whole.data(request), whole.region(request))),
            Self::Slot(slot) => Some((slot.buffer()?.source()?, None)),
        }
    }

    /// Returns where the data of `request` is fetched to; `None` if it is in the slot, or in a chunk, as
    /// clients with chunks push all data.
    #[inline]
    pub(crate) fn fetched(&mut self) -> Option<&mut Source> {
        match self {
            Self::Chunk(_) => None,
            Self::Slot(slot) => slot.buffer_mut()?.source_mut(),
        }
    }

    /// Returns the slot, if it is one.
    #[inline]
    pub(crate) fn slot(&mut self) -> Option<&mut InSlot> {
        match self {
            Self::Chunk(_) => None,
            Self::Slot(slot) => Some(slot),
        }
    }

    /// See [`Whole::want_small`].
    #[inline]
    pub(crate) fn want_small(&mut self, request: &ServerRequest) {
        if let Self::Chunk(whole) = self {
            whole.want_small(request);
        }
    }

    /// Returns the chunk, if it is one.
    pub(crate) fn chunk(&self) -> Option<&Whole> {
        match self {
            Self::Chunk(whole) => Some(whole),
            Self::Slot(_) => None,
        }
    }

    /// Returns the memory of a chunk for reuse. The connections of its path must be closed, so that
    /// its keys are no longer valid; dropping the chunk ends its mappings. `None` if the domain of the
    /// path still has it mapped, see [`ChunkMemory::unmapped`], and for a slot, whose memory belongs
    /// to its group.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn into_memory(self) -> Option<ChunkMemory> {
        match self {
            Self::Chunk(whole) => {
                let chunk = whole.memory.pieces().clone();
                let private = whole.small.as_ref().map(|small| small.pieces().clone());
                drop(whole);
                ChunkMemory::unmapped(chunk, private)
            }
            Self::Slot(_) => None,
        }
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibtrs_server_landing)]
mod tests {
    use super::*;
    use crate::storage::pool::Pool;
    use kernel::page::PAGE_SIZE;
    use kx::mm::Node;
    use rdma::device::Device;

    const LEN: usize = 2 * PAGE_SIZE;

    fn chunk(pd: &Arc<Pd>, secure: bool, most_pieces: usize) -> Result<Landing> {
        let pool = KBox::pin_init(Pool::new(), GFP_KERNEL)?;
        let memory = pool.take(LEN, Node::ANY)?;
        let whole = Whole::new(pd, memory, secure, most_pieces)?;
        Ok(Landing::Chunk(KBox::new(whole, GFP_KERNEL)?))
    }

    /// Returns a request with this much data.
    fn request(len: usize) -> Result<ServerRequest> {
        Ok(ServerRequest {
            direction: Dir::Write,
            data_len: u32::try_from(len)?,
            usr_at: 0,
            usr_len: 0,
            desc: None,
            need_inval: false,
            timed: false,
        })
    }

    fn has_small(landing: &Landing) -> bool {
        landing.chunk().is_some_and(|whole| whole.small.is_some())
    }

    #[test]
    fn a_chunk_gets_memory_for_small_data_when_it_needs_it() -> Result {
        let pd = Pd::new(&Device::nth(0)?)?;
        let mut landing = chunk(&pd, true, 6)?;
        for len in [0, SMALL_BYTES + 1] {
            landing.want_small(&request(len)?);
            assert!(!has_small(&landing));
            assert_eq!(landing.must_invalidate(&request(len)?), len > 0);
        }
        // Without memory for small data, the key is invalidated.
        assert!(landing.must_invalidate(&request(1)?));
        landing.want_small(&request(1)?);
        assert!(has_small(&landing));
        for (len, invalidates) in [
            (0, false),
            (1, false),
            (SMALL_BYTES, false),
            (SMALL_BYTES + 1, true),
        ] {
            let request = request(len)?;
            landing.want_small(&request);
            assert_eq!(landing.must_invalidate(&request), invalidates);
        }
        // Memory in too many pieces would need a region.
        let mut none = chunk(&pd, true, 0)?;
        none.want_small(&request(1)?);
        assert!(!has_small(&none) && none.must_invalidate(&request(1)?));
        // Without `always_invalidate`, there is neither.
        let mut plain = chunk(&pd, false, 6)?;
        plain.want_small(&request(1)?);
        assert!(!has_small(&plain) && !plain.must_invalidate(&request(LEN)?));
        Ok(())
    }

    /// With the key of a connection that is still open, a client could write to memory that the next
    /// client uses.
    #[test]
    fn memory_is_given_back_when_it_is_not_mapped() -> Result {
        for is_used in [false, true] {
            let pd = Pd::new(&Device::nth(0)?)?;
            let (mut before, mut after) = (chunk(&pd, true, 6)?, chunk(&pd, true, 6)?);
            if is_used {
                before.want_small(&request(1)?);
                after.want_small(&request(1)?);
            }
            assert!(before.into_memory().is_none());
            pd.end()?;
            let memory = after.into_memory().ok_or(EINVAL)?;
            assert_eq!(memory.chunk.len(), LEN);
            assert_eq!(memory.private.is_some(), is_used);
            // The next chunk has the memory for small data from the beginning.
            let pd = Pd::new(&Device::nth(0)?)?;
            let next = Whole::new(&pd, memory, true, 6)?;
            assert_eq!(next.small.is_some(), is_used);
        }
        Ok(())
    }
}
