// SPDX-License-Identifier: GPL-2.0

//! Chunks: the memory of one request number on one path, and everything else that a
//! request in service needs.

use crate::{
    con::Con,
    pool::ChunkMemory,
    source::{
        self,
        Source,
        Writes, //
    }, //
};
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
        MORE_ANSWERS_LEN, //
    }, //
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    },
    time::{
        Instant,
        Monotonic, //
    },
};
use kx::{
    mm::Pieces,
    sync::TakeCell, //
};
use rdma::{
    dma::{
        Direction,
        DmaBuf,
        DmaPieces, //
    },
    mr::{
        Access,
        Mr, //
    },
    pd::Pd,
    sendq::Chain,
    sge::Sge, //
};

/// Data of up to this many bytes is copied through memory that no client can write to, which costs
/// less than an invalidation.
pub(crate) const SMALL_BYTES: usize = 16384;

/// Maximum length of a user header, in bytes.
pub(crate) const MAX_USER_HDR: usize = 512;

/// An empty request, which stands for one not parsed yet and can be answered with an error.
const NOTHING: ServerRequest = ServerRequest {
    direction: Dir::Write,
    data_len: 0,
    usr_len: 0,
    desc: None,
    need_inval: false,
    timed: false,
};

/// The slot of a chunk: where the chunk is tells its state.
#[pin_data]
pub(crate) struct ChunkSlot {
    /// The chunk, while no request is in service.
    #[pin]
    idle: SpinLockIrq<Option<KBox<Chunk>>>,
    /// The chunk, while another path has the number in service.
    pub(crate) waiting: TakeCell<KBox<Chunk>>,
    /// The chunk, while its key is being invalidated.
    pub(crate) invalidating: TakeCell<KBox<Chunk>>,
    /// The chunk and the result of its request, while the response waits for SQ space.
    pub(crate) unsent: TakeCell<(KBox<Chunk>, Result)>,
}

impl ChunkSlot {
    /// Creates an empty slot.
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            idle <- new_spinlock_irq!(None, "ChunkSlot::idle"),
            waiting: TakeCell::empty(),
            invalidating: TakeCell::empty(),
            unsent: TakeCell::empty(),
        }? Error)
    }

    /// Takes the chunk for a request; `None` if a request has it.
    pub(crate) fn take(&self) -> Option<KBox<Chunk>> {
        self.idle.lock().take()
    }

    /// Sends an answer with `answer` and puts the chunk back. Both happen under the lock, as the
    /// next request may arrive as soon as the client has the answer. If `answer` fails, the chunk
    /// is handed back with the error.
    pub(crate) fn put_after(
        &self,
        mut chunk: KBox<Chunk>,
        answer: impl FnOnce(&mut Chunk) -> Result,
    ) -> Result<(), (Error, KBox<Chunk>)> {
        let mut idle = self.idle.lock();
        match answer(&mut chunk) {
            Ok(()) => {
                *idle = Some(chunk);
                Ok(())
            }
            Err(error) => Err((error, chunk)),
        }
    }

    /// Puts the chunk back.
    pub(crate) fn put(&self, chunk: KBox<Chunk>) {
        *self.idle.lock() = Some(chunk);
    }

    /// Takes the chunk when no further request can arrive and the connections are gone.
    pub(crate) fn take_last(&self) -> Option<KBox<Chunk>> {
        let unsent = || self.unsent.take().map(|(chunk, _)| chunk);
        self.take().or_else(unsent)
    }

    /// Calls `func` with the chunk, if it is idle.
    pub(crate) fn with_idle<T>(&self, func: impl FnOnce(&mut Chunk) -> T) -> Option<T> {
        let mut idle = self.idle.lock();
        idle.as_deref_mut().map(func)
    }
}

/// The moments from which the server's share of a request's time is measured.
pub(crate) struct Stages {
    arrived: Instant<Monotonic>,
    /// When the service handed the request to the disk.
    executing: Option<Instant<Monotonic>>,
    /// When the disk had executed it; otherwise that is the time of the answer.
    executed: Option<Instant<Monotonic>>,
}

impl Stages {
    /// Begins with a request that arrives now.
    pub(crate) fn new() -> Self {
        Self {
            arrived: Instant::now(),
            executing: None,
            executed: None,
        }
    }

    /// Notes that the disk gets the request.
    pub(crate) fn executing(&mut self) {
        self.executing = Some(Instant::now());
    }

    /// Notes that the disk has executed the request.
    pub(crate) fn executed(&mut self) {
        self.executed = Some(Instant::now());
    }

    /// Returns the times of a request that is answered now.
    fn times(&self) -> ServerTimes {
        let executed = self.executed.unwrap_or_else(Instant::now);
        let executing = self.executing.unwrap_or(executed);
        let ns = |from: Instant<Monotonic>, to: Instant<Monotonic>| {
            u64::try_from((to - from).as_nanos()).unwrap_or(0)
        };
        ServerTimes {
            queue_ns: ns(self.arrived, executing),
            disk_ns: ns(executing, executed),
        }
    }
}

/// A chunk of a path, and all that its request needs.
pub(crate) struct Chunk {
    memory: Source,
    /// Memory for small data, to which no client can write.
    small: Option<Source>,
    /// The region that the client writes to.
    mr: Mr,
    /// The body of an answer's message.
    body: DmaBuf,
    hdr: [u8; MAX_USER_HDR],
    /// The request in service.
    pub(crate) request: ServerRequest,
    /// The number of the service at the end of the answer; only of one that returns data.
    pub(crate) trailer: Option<u32>,
    /// Of a request whose answer ends with times.
    pub(crate) stages: Option<Stages>,
    /// The times, once the request is answered.
    times: Option<u32>,
    /// The answers to other requests that travel with this one's.
    pub(crate) more: MoreAnswers,
    /// The connection on which the request arrived.
    pub(crate) cid: u16,
    /// The key was invalidated for the request in service.
    pub(crate) invalidated: bool,
    /// The path owns the number for this request, see [`crate::chunk_owner`].
    pub(crate) claimed: bool,
    /// The request has waited for another path, and is handed to the service by the work item that
    /// all such requests of the session share.
    pub(crate) woken: bool,
    /// The request is counted as in service.
    pub(crate) counted: bool,
}

impl Chunk {
    /// Creates a chunk in the protection domain of a path. Its regions are still to be
    /// [registered](Self::register). Data in more than `most_pieces` is sent from a region.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(pd: &Arc<Pd>, memory: ChunkMemory, most_pieces: usize) -> Result<Self> {
        let private = |pieces| Source::complete(pd, pieces, Direction::ToDevice, most_pieces);
        let small = memory.private.map(private).transpose()?;
        let new = match small {
            Some(_) => Source::complete,
            // The client's region is never invalidated, and can be sent from.
            None => Source::new,
        };
        let memory = new(pd, memory.chunk, Direction::Bidirectional, most_pieces)?;
        Ok(Self {
            mr: source::region(pd, memory.dma())?,
            memory,
            small,
            body: DmaBuf::new(pd, MORE_ANSWERS_LEN, Direction::ToDevice)?,
            hdr: [0; MAX_USER_HDR],
            request: NOTHING,
            trailer: None,
            stages: None,
            times: None,
            more: MoreAnswers::NONE,
            cid: 0,
            invalidated: false,
            claimed: false,
            woken: false,
            counted: false,
        })
    }

    /// Gives the memory back. No device uses it any more: the connections are gone, and the
    /// mappings and the region are dropped here.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn into_memory(self) -> ChunkMemory {
        ChunkMemory {
            chunk: self.memory.pieces().clone(),
            private: self.small.as_ref().map(|small| small.pieces().clone()),
        }
    }

    /// Begins a request that arrived on connection `cid` and has not been parsed yet.
    pub(crate) fn begin(&mut self, cid: u16) {
        self.request = NOTHING;
        self.trailer = None;
        self.stages = None;
        self.times = None;
        self.more.clear();
        self.cid = cid;
        self.invalidated = false;
        self.woken = false;
    }

    /// Returns the length of the request in bytes, user header included.
    pub(crate) fn request_bytes(&self) -> u64 {
        u64::from(self.request.data_len) + u64::from(self.request.usr_len)
    }

    /// Maximum number of work requests of [`Self::register`].
    pub(crate) const REGIONS: u32 = 3;

    /// Registers the chunk for the client to write to, and what answers are sent from.
    pub(crate) fn register(&self, chain: &mut Chain<'_, Con>) {
        chain.reg_mr(&self.mr, Access::RemoteWrite);
        self.memory.register(chain);
        if let Some(small) = &self.small {
            small.register(chain);
        }
    }

    /// Returns the address and key of the chunk; the caller sets the length.
    pub(crate) fn descriptor(&self) -> SgDesc {
        SgDesc {
            addr: self.mr.iova(),
            key: self.mr.rkey(),
            len: 0,
        }
    }

    /// Returns the region that covers the chunk.
    pub(crate) fn mr(&self) -> &Mr {
        &self.mr
    }

    /// Switches to the next key, after an invalidation.
    pub(crate) fn next_key(&mut self) {
        self.mr.next_key();
    }

    /// Returns the memory of the chunk.
    pub(crate) fn memory(&self) -> &DmaPieces {
        self.memory.dma()
    }

    /// Copies the user header of the request out of the chunk.
    pub(crate) fn copy_header(&mut self) -> Result {
        let at = self.request.data_len as usize;
        let len = usize::from(self.request.usr_len);
        let hdr = self.hdr.get_mut(..len).ok_or(EMSGSIZE)?;
        self.memory.dma().sync_for_cpu(at, len)?;
        self.memory.pieces().copy_out(at, hdr)
    }

    /// Overwrites the transport header of the request in the chunk. If the next request for the
    /// chunk does not get there, although its immediate does, its header is a bad one then, instead
    /// of this one once more. A service that checks checksums relies on that, also for requests from
    /// before the first that has one.
    pub(crate) fn forget_header(&self) -> Result {
        let at = self.request.data_len as usize + usize::from(self.request.usr_len);
        self.memory.pieces().zero(at, WRITE_HDR_LEN)?;
        self.memory.dma().sync_for_device(at, WRITE_HDR_LEN)
    }

    /// Returns the user header.
    pub(crate) fn user_hdr(&self) -> &[u8] {
        self.hdr
            .get(..usize::from(self.request.usr_len))
            .unwrap_or(&[])
    }

    /// Returns whether the data of the request goes through private memory.
    pub(crate) fn is_small(&self) -> bool {
        self.small.is_some() && self.request.data_len as usize <= SMALL_BYTES
    }

    /// Returns whether the key of the chunk must be invalidated before the
    /// request is served.
    pub(crate) fn must_invalidate(&self) -> bool {
        self.small.is_some() && !self.is_small()
    }

    fn data(&self) -> &Source {
        match &self.small {
            Some(small) if self.is_small() => small,
            _ => &self.memory,
        }
    }

    /// Makes the data of a write ready for the service.
    pub(crate) fn prepare_data(&mut self) -> Result {
        let len = self.request.data_len as usize;
        if self.request.direction == Dir::Read || len == 0 {
            return Ok(());
        }
        self.memory.dma().sync_for_cpu(0, len)?;
        match &self.small {
            Some(small) if self.is_small() => {
                self.memory.pieces().copy_to(0, small.pieces(), 0, len)
            }
            _ => Ok(()),
        }
    }

    /// Returns the memory for the request's data.
    pub(crate) fn buffer(&self) -> &Pieces {
        self.data().pieces()
    }

    /// Makes the data of a read visible to the device. Also if the read has failed: bytes that the
    /// CPU has written there must not reach memory after the data that the client sends next.
    pub(crate) fn leave_data(&self) -> Result {
        let len = self.request.return_len() as usize;
        self.data().dma().sync_for_device(0, len)
    }

    /// Returns the scatter element of the data of a read, if one covers it, as mostly. The data goes
    /// out after [`Self::leave_data`].
    pub(crate) fn answer_sge(&self) -> Option<Sge> {
        let data = self.data();
        let region = match &self.small {
            Some(_) => data.region(),
            None => Some(&self.mr),
        };
        data.sge(self.request.return_len(), region)
    }

    /// Returns the number of work requests of [`Self::answer_data`].
    pub(crate) fn count_writes(&self) -> u32 {
        self.data().count_writes(self.request.return_len())
    }

    /// Returns the work requests that send the data of a read, if [`Self::answer_sge`] has none.
    pub(crate) fn answer_data(&self) -> Writes<impl Iterator<Item = Sge> + '_> {
        self.data().writes(self.request.return_len())
    }

    /// Returns the message that names the key of the chunk `buf_id` from now on.
    pub(crate) fn key(&self, buf_id: u16) -> RkeyRsp {
        RkeyRsp {
            buf_id,
            rkey: self.mr.rkey(),
        }
    }

    /// Measures the times that the answer ends with, if the client wants them.
    pub(crate) fn note_times(&mut self) {
        self.times = self.stages.as_ref().map(|stages| stages.times().encode());
    }

    /// Returns the numbers at the end of the answer.
    fn end_of_answer(&self) -> Trailer {
        Trailer::new(self.trailer, self.times)
    }

    /// Returns whether the answer has a trailer.
    pub(crate) fn has_trailer(&self) -> bool {
        self.trailer.is_some() || self.times.is_some()
    }

    /// Writes the body of an answer with `key` and the trailer; returns its scatter element, `None`
    /// if there is neither.
    pub(crate) fn answer_body(&mut self, key: Option<RkeyRsp>) -> Result<Option<Sge>> {
        let body = AnswerBody {
            key,
            trailer: self.end_of_answer(),
        };
        match body.encode(self.body.bytes_mut()).ok_or(EINVAL)? {
            0 => Ok(None),
            len => self.body.sge(0, len).map(Some),
        }
    }

    /// Writes the message that both answers a request and invalidates a key; returns its scatter
    /// element.
    pub(crate) fn inv_answer(&mut self, answer: Answer) -> Result<Sge> {
        let message = InvAnswer {
            answer,
            rkey: self.invalidated.then(|| self.mr.rkey()),
            trailer: self.end_of_answer(),
        };
        let len = message.encode(self.body.bytes_mut());
        self.body.sge(0, len.ok_or(EINVAL)?)
    }

    /// Returns whether the answer is just a result, without data, key or trailer.
    pub(crate) fn is_bare(&self) -> bool {
        self.request.desc.is_none() && !self.invalidated && !self.has_trailer()
    }

    /// Writes the message with the answers to other requests; returns its scatter element. The
    /// message does not change before the client has it: only then can the chunk's next request
    /// arrive.
    pub(crate) fn more_answers(&mut self) -> Result<Sge> {
        let len = self.more.encode(self.body.bytes_mut());
        self.body.sge(0, len.ok_or(EINVAL)?)
    }
}
