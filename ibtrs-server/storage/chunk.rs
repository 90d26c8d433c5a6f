// SPDX-License-Identifier: GPL-2.0

//! Chunks: the memory of one tag on one path, and everything else that a
//! request in service needs.

use crate::{
    storage::{
        answer_buf::AnswerBuf,
        buffers::Buffer,
        landing::{
            InSlot,
            Landing,
            Spare,
            Whole, //
        },
        pool::ChunkMemory,
        source::{
            Parts,
            Source, //
        }, //
    },
    types::Round, //
};
use ibtrs_core::convert;
use ibtrs_proto::{
    consts::WRITE_HDR_LEN,
    imm::Answer,
    msg::{
        AnswerBody,
        Direction as Dir,
        InvAnswer,
        MoreAnswers,
        RkeyRsp,
        ServerRequest,
        ServerTimes,
        SgDesc,
        Trailer,
        USUAL_USER_HDR, //
    },
    tag::Tag, //
};
use kernel::{
    alloc::flags::GFP_NOWAIT,
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq,
        SpinLockIrqGuard, //
    },
    time::{
        Instant,
        Monotonic, //
    },
};
use kx::{
    mm::Pieces,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed, //
        },
        TakeCell, //
    },
};
use rdma::{
    dma::Sink,
    mr::Mr,
    pd::Pd,
    recv::Kept,
    sendq::Position,
    sge::Sge, //
};

/// Maximum length of a user header, in bytes.
pub(crate) const MAX_USER_HDR: usize = 512;
/// Maximum length of a user header that every chunk has space for. Only rare messages have a longer
/// one.
pub(crate) const SHORT_USER_HDR: usize = 48;

// Each slot has a chunk, and `kmalloc` has no size between 256 and 512 bytes.
const _: () = assert!(size_of::<Chunk>() <= 256);

/// An empty request: a placeholder for a request that is not parsed yet, which can be answered with
/// an error.
const NOTHING: ServerRequest = ServerRequest {
    direction: Dir::Write,
    data_len: 0,
    usr_at: 0,
    usr_len: 0,
    desc: None,
    need_inval: false,
    timed: false,
};

/// The state that the lock of a [`ChunkSlot`] protects.
struct ChunkSlotInner {
    /// The chunk, while no request is in service.
    idle: Option<KBox<Chunk>>,
    /// The reserve buffer, from which the device may still send the answer to an earlier request
    /// while a later one is in service.
    leaving: Option<Buffer>,
}

/// The slot of a chunk. The field that holds the chunk is the state of its request.
#[pin_data]
pub(crate) struct ChunkSlot {
    #[pin]
    inner: SpinLockIrq<ChunkSlotInner>,
    /// The chunk, while another path has the tag in service.
    pub(crate) waiting: TakeCell<KBox<Chunk>>,
    /// The chunk, while its key is being invalidated; a slot, while it waits for a buffer, or while
    /// its data is fetched.
    pub(crate) pending: TakeCell<KBox<Chunk>>,
    /// The chunk, while the response to its request waits for SQ space.
    pub(crate) unsent: TakeCell<KBox<Chunk>>,
    /// Number of signalled answers for which the device may still use a buffer.
    uses: Atomic<u32>,
}

impl ChunkSlot {
    /// Creates an empty slot.
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            inner <- new_spinlock_irq!(ChunkSlotInner { idle: None, leaving: None }, "ChunkSlot::inner"),
            waiting: TakeCell::empty(),
            pending: TakeCell::empty(),
            unsent: TakeCell::empty(),
            uses: Atomic::new(0),
        }? Error)
    }

    /// Takes the chunk for a request; `None` if another request has it. A reserve buffer that the
    /// slot still has is moved to `leaving`: the new request may be in service for long, or may
    /// itself wait for the reserve buffer.
    #[inline]
    pub(crate) fn take(&self) -> Option<KBox<Chunk>> {
        let mut inner = self.inner.lock();
        let mut chunk = inner.idle.take()?;
        let reserve = chunk.landing.slot().and_then(InSlot::take_reserve);
        if reserve.is_some() && self.is_used() {
            // A session has only one, so the place is free.
            inner.leaving = reserve;
        } else {
            drop(inner);
            drop(reserve);
        }
        Some(chunk)
    }

    /// Locks the place of the chunk, for an answer after which the chunk is put back: the next request
    /// may arrive as soon as the client has the answer.
    #[inline]
    pub(crate) fn place(&self) -> IdlePlace<'_> {
        IdlePlace {
            slot: self,
            inner: self.inner.lock(),
        }
    }

    /// Records that the device is about to use a buffer until a signalled completion.
    pub(crate) fn begin_use(&self) {
        self.uses.fetch_add(1, Relaxed);
    }

    /// Reverts [`Self::begin_use`], as the work request was certainly not posted. Must only be called
    /// under the lock under which the use was begun, or by [`Self::end_use`].
    pub(crate) fn cancel_use(&self) {
        // ORDERING: Pairs with the load in `is_used`: a thread that then takes the buffer is
        // ordered after the device.
        self.uses.fetch_sub(1, Full);
    }

    /// Records the end of a use. After the last one, the slot releases the leaving buffer and, if
    /// the chunk is idle, the buffers that it does not need. For `short` see
    /// [`PathIo::shortage`](crate::data::con::PathIo::shortage).
    pub(crate) fn end_use(&self, short: Option<Round>) {
        self.cancel_use();
        let mut inner = self.inner.lock();
        if self.is_used() {
            return;
        }
        let leaving = inner.leaving.take();
        let idle = inner.idle.as_deref_mut();
        let spare = idle.map(|chunk| self.spare(chunk, short));
        drop(inner);
        drop(leaving);
        drop(spare);
    }

    /// Returns whether the device may still use a buffer until a signalled completion.
    pub(crate) fn is_used(&self) -> bool {
        // ORDERING: Pairs with `cancel_use`.
        self.uses.load(Acquire) > 0
    }

    /// Takes the buffers that the slot does not need for its next request, unless the device may
    /// still use them.
    #[inline]
    fn spare(&self, chunk: &mut Chunk, short: Option<Round>) -> Spare {
        match chunk.landing.slot().filter(|slot| slot.has_spare(short)) {
            Some(slot) if !self.is_used() => slot.spare(short),
            _ => Spare::NONE,
        }
    }

    /// Puts the chunk back; returns the buffers that it does not need for its next request. This is
    /// decided under the lock: the use of a buffer either has ended by then, or its end will find the
    /// chunk here.
    pub(crate) fn put(&self, chunk: KBox<Chunk>) -> Spare {
        self.place().put(chunk, None)
    }

    /// Releases the small buffer of a completed write, if memory is short.
    pub(crate) fn give_small(&self, chunk: &mut Chunk, short: Option<Round>) {
        drop(self.spare(chunk, short));
    }

    /// Releases all buffers that are not used by a request in service. The connections of the path
    /// must be closed.
    pub(crate) fn release_buffers(&self) {
        let mut inner = self.inner.lock();
        let leaving = inner.leaving.take();
        let slot = inner
            .idle
            .as_deref_mut()
            .and_then(|chunk| chunk.landing.slot());
        let idle = slot.map(InSlot::take_all);
        drop(inner);
        drop(leaving);
        drop(idle);
    }

    /// Takes the chunk when no further request can arrive and the connections are closed.
    pub(crate) fn take_last(&self) -> Option<KBox<Chunk>> {
        self.take().or_else(|| self.unsent.take())
    }

    /// Calls `func` with the chunk, if it is idle.
    pub(crate) fn with_idle<T>(&self, func: impl FnOnce(&mut Chunk) -> T) -> Option<T> {
        self.inner.lock().idle.as_deref_mut().map(func)
    }
}

/// The place of a chunk while no request is in service, locked.
#[must_use = "the place is unlocked when this is dropped"]
pub(crate) struct IdlePlace<'a> {
    slot: &'a ChunkSlot,
    inner: SpinLockIrqGuard<'a, ChunkSlotInner>,
}

impl IdlePlace<'_> {
    /// Puts the chunk back; returns the buffers that the slot releases. For `short` see
    /// [`PathIo::shortage`](crate::data::con::PathIo::shortage).
    #[inline(always)]
    pub(crate) fn put(mut self, mut chunk: KBox<Chunk>, short: Option<Round>) -> Spare {
        let spare = self.slot.spare(&mut chunk, short);
        self.inner.idle = Some(chunk);
        spare
    }
}

/// The progress of a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Stage {
    Arrived,
    Executing,
    Executed,
}

/// The moments from which the server's share of a request's time is measured.
#[derive(Clone, Copy)]
pub(crate) struct Stages {
    arrived: Instant<Monotonic>,
    /// When the service handed the request to the disk, from [`Stage::Executing`] on.
    executing: Instant<Monotonic>,
    /// When the disk had executed it, from [`Stage::Executed`] on.
    executed: Instant<Monotonic>,
    stage: Stage,
}

impl Stages {
    /// Begins with a request that arrives now.
    fn new() -> Self {
        let now = Instant::now();
        Self {
            arrived: now,
            executing: now,
            executed: now,
            stage: Stage::Arrived,
        }
    }

    /// Records that the request is passed to the disk.
    pub(crate) fn executing(&mut self) {
        self.executing = Instant::now();
        self.stage = Stage::Executing;
    }

    /// Records that the disk has executed the request.
    pub(crate) fn executed(&mut self) {
        self.executed = Instant::now();
        if self.stage == Stage::Arrived {
            self.executing = self.executed;
        }
        self.stage = Stage::Executed;
    }

    /// Returns the times of a request that is answered now. If its execution was not recorded, the
    /// disk's time ends now; if its start was not recorded either, the disk's time is zero.
    fn times(mut self) -> ServerTimes {
        if self.stage < Stage::Executed {
            self.executed();
        }
        let ns = |from: Instant<Monotonic>, to: Instant<Monotonic>| {
            u64::try_from((to - from).as_nanos()).unwrap_or(0)
        };
        ServerTimes {
            queue_ns: ns(self.arrived, self.executing),
            disk_ns: ns(self.executing, self.executed),
        }
    }
}

/// The times of a request.
enum Times {
    NotWanted,
    /// The request is in service.
    Running(Stages),
    /// The request was answered, with these times.
    Encoded(u32),
}

/// A chunk of a path, and all data of its request.
pub(crate) struct Chunk {
    pub(crate) landing: Landing,
    answer: AnswerBuf,
    /// The user header, right-aligned: the transport header follows it in a request, so that both
    /// are read at once.
    hdr: [u8; SHORT_USER_HDR],
    /// The user header, if it is longer; allocated for the first such request.
    long_hdr: Option<KBox<[u8; MAX_USER_HDR]>>,
    /// The request in service.
    pub(crate) request: ServerRequest,
    /// The number of the service at the end of the answer; only of one that returns data.
    pub(crate) trailer: Option<u32>,
    times: Times,
    /// The answers to other requests that travel with this one's.
    pub(crate) more: MoreAnswers,
    /// The connection on which the request arrived.
    pub(crate) cid: u16,
    /// The data of the request in service, if that is a capsule with some, on that connection. It has
    /// [`ServerRequest::data_len`] bytes: the parser refuses data of anything but a WRITE, whose length
    /// is that of the data which has arrived.
    pub(crate) capsule: Option<Kept>,
    /// The key was invalidated for the request in service.
    pub(crate) invalidated: bool,
    /// The path owns the tag for this request, see [`crate::data::chunk_owner`].
    pub(crate) claimed: bool,
    /// The request is counted as in service.
    pub(crate) counted: bool,
    /// The result of the request; an error before it is served, if it is refused.
    pub(crate) result: Result,
}

/// Returns the memory for a user header of `len` bytes.
#[inline]
fn room<'a>(
    short: &'a mut [u8; SHORT_USER_HDR],
    long: &'a mut Option<KBox<[u8; MAX_USER_HDR]>>,
    len: usize,
) -> Result<&'a mut [u8]> {
    if let Some(at) = SHORT_USER_HDR.checked_sub(len) {
        return short.get_mut(at..).ok_or(EMSGSIZE);
    }
    let long = match long {
        Some(long) => long,
        none => none.insert(KBox::new([0; MAX_USER_HDR], GFP_NOWAIT)?),
    };
    long.get_mut(..len).ok_or(EMSGSIZE)
}

impl Chunk {
    /// Creates a chunk in the protection domain of a path; see [`Whole::new`].
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(
        pd: &Arc<Pd>,
        memory: ChunkMemory,
        secure: bool,
        most_pieces: usize,
        answer: AnswerBuf,
    ) -> Result<Self> {
        let whole = Whole::new(pd, memory, secure, most_pieces)?;
        let whole = KBox::new(whole, GFP_KERNEL)?;
        Ok(Self::with_landing(Landing::Chunk(whole), answer))
    }

    /// Creates the request state of a slot.
    pub(crate) fn in_slot(slot: InSlot, answer: AnswerBuf) -> Self {
        Self::with_landing(Landing::Slot(slot), answer)
    }

    fn with_landing(landing: Landing, answer: AnswerBuf) -> Self {
        Self {
            landing,
            answer,
            hdr: [0; SHORT_USER_HDR],
            long_hdr: None,
            request: NOTHING,
            trailer: None,
            times: Times::NotWanted,
            more: MoreAnswers::NONE,
            cid: 0,
            capsule: None,
            invalidated: false,
            claimed: false,
            counted: false,
            result: Ok(()),
        }
    }

    /// Begins a request that arrived on connection `cid` and has not been parsed yet.
    #[inline]
    pub(crate) fn begin(&mut self, cid: u16) {
        self.request = NOTHING;
        self.trailer = None;
        self.times = Times::NotWanted;
        self.more.clear();
        self.cid = cid;
        // A remaining one belongs to a connection that is closed, or about to be.
        self.capsule = None;
        self.invalidated = false;
        self.result = Ok(());
        if let Some(slot) = self.landing.slot() {
            slot.begin();
        }
    }

    /// Returns the tag of the chunk's requests.
    #[inline]
    pub(crate) fn tag(&self) -> Tag {
        self.answer.tag()
    }

    /// Returns the outcome of the request as encoded in answers: an error in nine bits.
    pub(crate) fn outcome(&self) -> Answer {
        let errno = |error| convert::errno(error).to_imm();
        Answer {
            id: self.tag().into(),
            errno: self.result.map_or_else(errno, |()| 0),
        }
    }

    /// Returns the length of the request in bytes, user header included.
    pub(crate) fn request_bytes(&self) -> u64 {
        u64::from(self.request.data_len) + u64::from(self.request.usr_len)
    }

    /// Returns the region that covers the chunk, if its key was invalidated for the request.
    pub(crate) fn invalidated_mr(&self) -> Option<&Mr> {
        self.landing
            .chunk()
            .filter(|_| self.invalidated)
            .map(Whole::mr)
    }

    /// Switches to the next key, after an invalidation.
    pub(crate) fn next_key(&mut self) {
        if let Landing::Chunk(whole) = &mut self.landing {
            whole.next_key();
        }
    }

    /// Saves the user header of the request, whose last bytes are `last`; a long one is copied out of
    /// the chunk.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: a long header cannot be allocated without waiting.
    #[inline]
    pub(crate) fn keep_header(&mut self, last: &[u8; SHORT_USER_HDR]) -> Result {
        let len = usize::from(self.request.usr_len);
        if len <= SHORT_USER_HDR {
            self.hdr = *last;
            return Ok(());
        }
        let hdr = room(&mut self.hdr, &mut self.long_hdr, len)?;
        self.landing.read(self.request.usr_at as usize, hdr)
    }

    /// Copies the user header of a request from its capsule.
    ///
    /// # Errors
    ///
    /// As [`Self::keep_header`].
    #[inline]
    pub(crate) fn copy_header_from(&mut self, headers: &[u8]) -> Result {
        let len = usize::from(self.request.usr_len);
        if let (USUAL_USER_HDR, Some(from)) = (len, headers.first_chunk::<USUAL_USER_HDR>()) {
            // A copy of constant length is faster.
            *self.hdr.last_chunk_mut().ok_or(EMSGSIZE)? = *from;
            return Ok(());
        }
        let from = headers.get(..len).ok_or(EMSGSIZE)?;
        let hdr = room(&mut self.hdr, &mut self.long_hdr, len)?;
        hdr.copy_from_slice(from);
        Ok(())
    }

    /// Overwrites the transport header of the request in the chunk. If the data of the next request
    /// for the chunk is lost although its immediate arrives, its header is then invalid, instead of
    /// a copy of this one. A service that checks checksums relies on that, even for requests before
    /// the first one with a checksum.
    pub(crate) fn forget_header(&self) -> Result {
        let at = self.request.usr_at as usize + usize::from(self.request.usr_len);
        self.landing.zero(at, WRITE_HDR_LEN)
    }

    /// Returns the user header.
    pub(crate) fn user_hdr(&self) -> &[u8] {
        let len = usize::from(self.request.usr_len);
        let hdr = match SHORT_USER_HDR.checked_sub(len) {
            Some(at) => self.hdr.get(at..),
            None => self.long_hdr.as_ref().and_then(|long| long.get(..len)),
        };
        hdr.unwrap_or(&[])
    }

    /// Returns whether the key of the chunk must be invalidated before the
    /// request is served.
    pub(crate) fn must_invalidate(&self) -> bool {
        self.capsule.is_none() && self.landing.must_invalidate(&self.request)
    }

    /// Allocates memory for the data of the request; see [`Whole::want_small`].
    #[inline(always)]
    pub(crate) fn want_small(&mut self) {
        if self.capsule.is_none() {
            self.landing.want_small(&self.request);
        }
    }

    /// Returns whether the request needs a buffer that the slot does not have.
    #[inline(always)]
    pub(crate) fn lacks_buffer(&mut self) -> bool {
        match &mut self.landing {
            Landing::Slot(slot) if self.capsule.is_none() => slot.lacks_buffer(&self.request),
            _ => false,
        }
    }

    /// Assigns a buffer for the request to the slot; returns whether the slot keeps the buffer
    /// after the request.
    pub(crate) fn grant(&mut self, buffer: Buffer) -> bool {
        let slot = self.landing.slot();
        slot.is_some_and(|slot| slot.grant(buffer))
    }

    /// Returns the client's memory from which the data of the request is to be fetched, and the buffer
    /// for it.
    fn to_fetch(&self) -> Option<(SgDesc, &Source)> {
        let from = self.request.source()?;
        let (source, _) = self.landing.source(&self.request)?;
        Some((from, source))
    }

    /// Returns the client's memory from which the data of the request is to be fetched, and the
    /// work requests for that.
    pub(crate) fn fetch(&mut self) -> Option<(SgDesc, Parts<impl Iterator<Item = Sink<'_>>>)> {
        let from = self.request.source()?;
        let source = self.landing.fetched()?;
        Some((from, source.reads(self.request.data_len)))
    }

    /// Returns the number of work requests of [`Self::fetch`].
    pub(crate) fn count_reads(&self) -> u32 {
        let count = |(_, source): (_, &Source)| source.count_writes(self.request.data_len);
        self.to_fetch().map_or(0, count)
    }

    /// Syncs the buffer for the device, which is about to write the data of the request: dirty cache
    /// lines of an earlier request must not be written back over the fetched data.
    pub(crate) fn prepare_fetch(&self) -> Result {
        match self.to_fetch() {
            Some((_, source)) => source
                .dma()
                .sync_for_device(0, self.request.data_len as usize),
            None => Ok(()),
        }
    }

    /// Records that all work requests of the connection up to `done` have completed, and so has
    /// [`Self::fetch`] if it was posted before.
    pub(crate) fn end_fetch(&self, done: Position) {
        if let Some((_, source)) = self.to_fetch() {
            source.dma().end_reads(done);
        }
    }

    /// Makes the data of a write ready for the service.
    #[inline(always)]
    pub(crate) fn prepare_data(&mut self) -> Result {
        self.landing.prepare_data(&self.request)
    }

    /// Returns the memory for the request's data, and where in it the data begins.
    #[inline]
    pub(crate) fn buffer(&self) -> (&Pieces, usize) {
        self.landing.data(&self.request)
    }

    /// Syncs the data of a read for the device, even if the read has failed: dirty cache lines must
    /// not be written back over the data that the client sends next. Returns the scatter element of
    /// the data, if one covers it, which is the common case.
    #[inline]
    pub(crate) fn leave_data(&self) -> Result<Option<Sge>> {
        let Some((source, region)) = self.landing.source(&self.request) else {
            return Ok(None);
        };
        let len = self.request.return_len();
        source.dma().sync_for_device(0, len as usize)?;
        Ok(source.sge(len, region))
    }

    /// Returns the number of work requests of [`Self::answer_data`].
    pub(crate) fn count_writes(&self) -> u32 {
        self.landing.source(&self.request).map_or(0, |(source, _)| {
            source.count_writes(self.request.return_len())
        })
    }

    /// Returns the work requests that send the data of a read, if [`Self::leave_data`] returns no element.
    pub(crate) fn answer_data(&self) -> Option<Parts<impl Iterator<Item = Sge> + '_>> {
        let (source, _) = self.landing.source(&self.request)?;
        Some(source.writes(self.request.return_len()))
    }

    /// Returns the key of the chunk.
    fn rkey(&self) -> u32 {
        self.landing.chunk().map_or(0, |whole| whole.mr().rkey())
    }

    /// Returns the message with the new key of the chunk.
    pub(crate) fn key(&self) -> RkeyRsp {
        RkeyRsp {
            tag: self.tag(),
            rkey: self.rkey(),
        }
    }

    /// Begins to measure the times of the request, which its answer ends with.
    pub(crate) fn begin_times(&mut self) {
        self.times = Times::Running(Stages::new());
    }

    /// Returns the stages of the request in service, if its times are measured.
    pub(crate) fn stages(&mut self) -> Option<&mut Stages> {
        match &mut self.times {
            Times::Running(stages) => Some(stages),
            _ => None,
        }
    }

    /// Measures the times at the end of the answer, if the client wants them.
    pub(crate) fn note_times(&mut self) {
        if let Times::Running(stages) = &self.times {
            self.times = Times::Encoded(stages.times().encode());
        }
    }

    /// Returns the numbers at the end of the answer.
    fn end_of_answer(&self) -> Trailer {
        let times = match self.times {
            Times::Encoded(times) => Some(times),
            _ => None,
        };
        Trailer::new(self.trailer, times)
    }

    /// Returns whether the answer has a trailer.
    pub(crate) fn has_trailer(&self) -> bool {
        self.trailer.is_some() || !matches!(self.times, Times::NotWanted)
    }

    /// Writes the body of an answer with `key` and the trailer; returns its scatter element, `None`
    /// if there is neither.
    pub(crate) fn answer_body(&mut self, key: Option<RkeyRsp>) -> Result<Option<Sge>> {
        let body = AnswerBody {
            key,
            trailer: self.end_of_answer(),
        };
        self.answer.write(|out| body.encode(out))
    }

    /// Writes the message that both answers a request and invalidates a key; returns its scatter
    /// element.
    pub(crate) fn inv_answer(&mut self) -> Result<Sge> {
        let message = InvAnswer {
            answer: self.outcome(),
            rkey: self.invalidated.then(|| self.rkey()),
            trailer: self.end_of_answer(),
        };
        let sge = self.answer.write(|out| message.encode(out))?;
        sge.ok_or(EINVAL)
    }

    /// Returns whether the answer is just a result, without data, key or trailer.
    pub(crate) fn is_bare(&self) -> bool {
        self.request.desc.is_none() && !self.invalidated && !self.has_trailer()
    }

    /// Writes the message with the answers to other requests; returns its scatter element. The
    /// message does not change before the client has received it, as the chunk's next request can
    /// arrive only after that.
    #[inline]
    pub(crate) fn more_answers(&mut self) -> Result<Sge> {
        let sge = self.answer.write(|out| self.more.encode(out))?;
        sge.ok_or(EINVAL)
    }
}
