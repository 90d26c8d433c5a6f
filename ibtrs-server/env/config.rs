// SPDX-License-Identifier: GPL-2.0

//! Values of the module parameters, checked together.

use crate::types::{
    Shape,
    Terms,
    MAX_SGES,
    SMALL_BYTES, //
};
use ibtrs_core::messages::con;
use ibtrs_proto::{
    capsule::{
        self,
        Window, //
    },
    consts::SERVICE_QUEUE_DEPTH,
    handshake::{
        ConnRsp,
        RspExt, //
    },
    imm::ImmLayout,
    limits,
    msg::Bounds,
    permit::DepthSplit,
    quota::Needs,
    settings::{
        self,
        Setting, //
    },
    slots::{
        group_of,
        MAX_SLOT_IO,
        SLOT_BYTES,
        SMALL_SLOT_BYTES, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};
use rdma::{
    recv::RecvClass,
    sendq::MAX_CHAIN, //
};

/// Sizes, limits and mode, the same for all sessions.
#[derive(Clone, Copy)]
pub(crate) struct Config {
    /// Requests of a session; clients without slots may have fewer.
    pub(crate) queue_depth: u16,
    pub(crate) chunk_bytes: u32,
    pub(crate) invalidate: bool,
    /// Answers invalidate the keys of clients without extensions.
    pub(crate) remote_invalidation: bool,
    chunks: ImmLayout,
    /// The slots, if they are enabled.
    slots: Option<ImmLayout>,
    /// The slots of clients that send capsules. They are smaller, as the data of small writes is in
    /// the capsules.
    small_slots: Option<ImmLayout>,
    /// Milliseconds between heartbeats; 0 if they follow the failover time of the client.
    pub(crate) hb_interval_ms: u32,
    pub(crate) hb_missed_max: u32,
    pub(crate) max_sessions: usize,
    /// Maximum number of connections of a path.
    pub(crate) max_connections: u32,
    /// Maximum number of paths of one address that are being connected.
    pub(crate) max_attempts: u32,
    /// Time for a path to be connected.
    pub(crate) setup_timeout_ms: u32,
    /// Maximum bytes that all paths and buffers may take together.
    pub(crate) max_memory: u64,
    /// Maximum bytes that the buffers may take.
    pub(crate) max_buffers: u64,
}

/// Maximum number of send queue entries of a connection with slots. Answers wait if there is no free
/// entry. With the default depth, the completion queue has 1023 entries; with one more, rxe would
/// double its memory.
const SLOT_SENDS: u32 = 508;
/// Maximum number of send queue entries of a service connection with slots.
const SLOT_SERVICE_SENDS: u32 = 252;
/// Number of send queue entries of the longest chain: the data of the largest request, if each page
/// is a piece, and the answer.
const LONGEST_CHAIN: u32 = (MAX_SLOT_IO / PAGE_SIZE as u32).div_ceil(MAX_SGES) + 2;
/// Minimum number of send queue entries with slots: the longest chain, plus up to 64 entries that
/// become free only with the next signalled completion.
pub(crate) const SHORTEST_SENDS: u32 = LONGEST_CHAIN + 64;

const _: () = assert!(LONGEST_CHAIN <= MAX_CHAIN.wrs && LONGEST_CHAIN * MAX_SGES <= MAX_CHAIN.sges);
const _: () = assert!(SHORTEST_SENDS <= SLOT_SERVICE_SENDS && SHORTEST_SENDS <= SLOT_SENDS);

/// The receives of a service connection for AUTH1 and the INFO request.
pub(crate) const SETUP_RECVS: u32 = 2;

/// The fraction of the memory that is reserved for buffers, as a divisor.
const FOR_BUFFERS: u64 = 4;

impl Config {
    /// Reads the module parameters.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the parameters contradict each other; the log has the reason.
    pub(crate) fn from_params() -> Result<Self> {
        let (chunk_bytes, depth) = (crate::max_chunk_size.get(), crate::sess_queue_depth.get());
        let refused = |error: limits::LimitError| {
            pr_err!(
                "sess_queue_depth={} with max_chunk_size={}: {}\n",
                depth,
                chunk_bytes,
                error.as_str()
            );
            EINVAL
        };
        let slots = |bytes| {
            let layout = || limits::slot_layout(depth, bytes).map_err(refused);
            crate::slots.get().then(layout).transpose()
        };
        let (slots, small_slots) = (slots(SLOT_BYTES)?, slots(SMALL_SLOT_BYTES)?);
        let chunk_depth = match slots {
            Some(_) => limits::chunk_depth(chunk_bytes, depth),
            None => depth,
        };
        let chunks = limits::server_layout(chunk_bytes, chunk_depth).map_err(refused)?;
        let hb_interval_ms = crate::hb_interval_ms.get();
        if !settings::HB_INTERVAL_MS.allows(hb_interval_ms) {
            let Setting { min, max, .. } = settings::HB_INTERVAL_MS;
            pr_err!(
                "hb_interval_ms={}: not 0, or {} to {}\n",
                hb_interval_ms,
                min,
                max
            );
            return Err(ERANGE);
        }
        let memory_mib = crate::max_chunk_memory_mib.get();
        let max_memory = limits::memory_limit(memory_mib, kx::mm::total_bytes());
        Ok(Self {
            queue_depth: slots.unwrap_or(chunks).queue_depth(),
            chunk_bytes: chunks.chunk_size(),
            invalidate: crate::always_invalidate.get(),
            remote_invalidation: crate::remote_invalidation.get(),
            chunks,
            slots,
            small_slots,
            hb_interval_ms,
            hb_missed_max: crate::hb_missed_max.get(),
            max_sessions: crate::max_sessions.get() as usize,
            max_connections: crate::max_connections.get(),
            max_attempts: crate::max_attempts_per_address.get(),
            setup_timeout_ms: crate::setup_timeout_ms.get(),
            max_memory,
            max_buffers: match crate::max_buffer_memory_mib.get() {
                // Hung disks hold buffers until they answer, while new paths can still connect. This
                // bounds the excess over the memory limit.
                0 => max_memory / 2,
                mib => limits::memory_limit(mib, 0),
            },
        })
    }

    /// Returns the bytes that paths may take. With slots, a part of the memory is reserved for
    /// buffers, so that new paths do not take the memory with which existing ones work.
    pub(crate) fn for_paths(&self) -> u64 {
        self.for_pools(self.max_memory)
    }

    /// Returns how many of the bytes `left` by paths the pools may retain.
    pub(crate) fn for_pools(&self, left: u64) -> u64 {
        let for_buffers = (self.max_memory / FOR_BUFFERS).min(self.max_buffers);
        left.saturating_sub(self.slots.map_or(0, |_| for_buffers))
    }

    /// Returns whether clients that support slots get them.
    pub(crate) fn gives_slots(&self) -> bool {
        self.slots.is_some()
    }

    /// Returns the layout of the chunks or slots of a path.
    pub(crate) fn layout(&self, terms: Terms) -> ImmLayout {
        let slots = match (terms.shape, terms.window) {
            (Shape::Chunks, _) => None,
            (Shape::Slots, None) => self.slots,
            (Shape::Slots, Some(_)) => self.small_slots,
        };
        slots.unwrap_or(self.chunks)
    }

    /// Returns the maximum number of bytes of data in a request of a client with slots.
    pub(crate) fn max_io(&self) -> u32 {
        let max_io = limits::server_response(&self.chunks, false).max_io_size;
        max_io.min(MAX_SLOT_IO)
    }

    /// Returns the place of a request of a path.
    pub(crate) fn bounds(&self, terms: Terms) -> Bounds {
        let bytes = self.layout(terms).chunk_size();
        match terms.shape {
            Shape::Chunks => Bounds::Chunk(bytes),
            Shape::Slots => Bounds::Slot {
                bytes,
                max_io: self.max_io(),
            },
        }
    }

    /// Returns the terms of a path of this shape with `cons` connections. Its client sends capsules if
    /// it `has_capsules`.
    pub(crate) fn terms(&self, shape: Shape, has_capsules: bool, cons: u16) -> Terms {
        let plain = Terms {
            shape,
            window: None,
            messages: false,
        };
        let depth = self.layout(plain).queue_depth();
        // Messages use the service connection.
        let requests = depth - DepthSplit::of_session(depth).reserved();
        Terms {
            window: has_capsules.then(|| Window::of_path(requests, cons.saturating_sub(1))),
            ..plain
        }
    }

    /// Returns the parameters with which connections of a path are accepted.
    pub(crate) fn rsp(&self, terms: Terms, ext: Option<RspExt>) -> ConnRsp {
        let layout = self.layout(terms);
        let rsp = match terms.shape {
            Shape::Chunks => limits::server_response(&layout, self.invalidate),
            Shape::Slots => limits::slot_response(&layout, self.max_io(), self.invalidate),
        };
        ConnRsp {
            times: ext.is_some(),
            messages: ext.is_some() && terms.messages,
            window: terms.window,
            ext,
            ..rsp
        }
    }

    /// Returns the number of requests that a path may have in flight.
    fn depth(&self, terms: Terms) -> u32 {
        self.layout(terms).queue_depth().into()
    }

    /// Returns the number of requests of a path that a client may have in flight on one connection.
    fn requests_of_connection(&self, terms: Terms) -> u32 {
        let depth = self.depth(terms);
        terms
            .window
            .map_or(depth, |window| window.requests().min(depth))
    }

    /// Returns the number of send queue entries of an I/O connection. With chunks, the longest answer
    /// takes four work requests, and an invalidation precedes it. Entries of completed requests may
    /// not be free yet. Answers wait if there is no free entry; invalidations have a reserve, see
    /// [`Self::invalidations`].
    pub(crate) fn io_sends(&self, terms: Terms) -> u32 {
        /// Entries that become free with the next signalled completion, and as many for signals in
        /// flight. With eight queues, this keeps the queue just below a power of two, to which
        /// soft-RoCE rounds up.
        const UNSIGNALLED: u32 = 120;
        match terms.shape {
            Shape::Chunks => {
                (5 * self.requests_of_connection(terms) + UNSIGNALLED).max(SHORTEST_SENDS)
            }
            Shape::Slots => (5 * self.depth(terms)).clamp(SHORTEST_SENDS, SLOT_SENDS),
        }
    }

    /// Returns the number of send queue entries of an I/O connection that are reserved for the
    /// invalidation of keys: one for each request of the window, as an invalidation completes, and its
    /// entry is free, before its request is served; and one more, as over iWARP an invalidation needs
    /// two free entries. With slots, no keys are invalidated locally.
    pub(crate) fn invalidations(&self, terms: Terms) -> u32 {
        match terms.shape {
            Shape::Chunks => self.requests_of_connection(terms) + 1,
            Shape::Slots => 0,
        }
    }

    /// Returns the number of receives of an I/O connection: one for each chunk, and one for the
    /// request being handled, whose chunk may be in use again. iWARP does not tolerate a receive that
    /// is posted late. Clients with slots reserve tags for messages, which do not arrive on these
    /// connections; two receives more than a power of two would double the memory that rxe allocates.
    /// With capsules, the number of requests is the window.
    pub(crate) fn io_recvs(&self, terms: Terms) -> u32 {
        let depth = self.layout(terms).queue_depth();
        let messages = match terms.shape {
            Shape::Chunks => 0,
            Shape::Slots => DepthSplit::of_session(depth).reserved(),
        };
        let requests = match terms.window {
            Some(window) => window.requests(),
            None => u32::from(depth - messages.min(2)),
        };
        requests + 1
    }

    /// Returns the receives of an I/O connection with capsules.
    pub(crate) fn capsules(&self, terms: Terms) -> RecvClass {
        RecvClass {
            count: self.io_recvs(terms),
            bytes: capsule::HEADERS,
            payload: capsule::MAX_DATA,
        }
    }

    /// Returns the bytes that the capsules of a path with `cons` connections take.
    fn capsules_bytes(&self, terms: Terms, cons: u16) -> u64 {
        if terms.window.is_none() {
            return 0;
        }
        let (class, page) = (self.capsules(terms), PAGE_SIZE as u64);
        let memory = |bytes: u32| {
            let bytes = u64::from(class.count).saturating_mul(bytes.into());
            bytes.next_multiple_of(page)
        };
        let each = memory(class.bytes).saturating_add(memory(class.payload));
        // Add a small part for the structures that describe the pages.
        let each = each.saturating_add(each / 64);
        each.saturating_mul(cons.saturating_sub(1).into())
    }

    /// Returns the number of send queue entries of the service connection: the registration of all
    /// chunks and the information about them, later fences and heartbeats. With slots, there are few
    /// registrations, and answers that find no entry wait.
    pub(crate) fn service_sends(&self, terms: Terms) -> u32 {
        match terms.shape {
            Shape::Chunks => {
                let messages = 2 * u32::from(SERVICE_QUEUE_DEPTH) + 2;
                messages.max(self.depth(terms) + 2)
            }
            Shape::Slots => SLOT_SERVICE_SENDS,
        }
    }

    /// Returns the number of receives of the service connection for all but AUTH1 and the INFO
    /// request. Over InfiniBand and RoCE, a message that finds none is retried.
    pub(crate) fn service_requests(&self, terms: Terms) -> u32 {
        match terms.shape {
            Shape::Chunks => SERVICE_QUEUE_DEPTH.into(),
            Shape::Slots => u32::from(SERVICE_QUEUE_DEPTH) - 4,
        }
    }

    /// Returns the number of receives of the service connection, including those for AUTH1 and the
    /// INFO request.
    pub(crate) fn service_recvs(&self, terms: Terms) -> u32 {
        self.service_requests(terms) + SETUP_RECVS
    }

    /// Returns the bytes of the private memory that each chunk may get, which no client can write to.
    pub(crate) fn private_bytes(&self) -> usize {
        if self.invalidate {
            SMALL_BYTES
        } else {
            0
        }
    }

    /// Returns the number of slots in a group.
    pub(crate) fn group(&self) -> u16 {
        group_of(self.queue_depth)
    }

    /// Returns the bytes of a group of slots.
    pub(crate) fn group_bytes(&self, terms: Terms) -> usize {
        usize::from(self.group()) * self.layout(terms).chunk_size() as usize
    }

    /// Returns the bytes that the chunks or slots and the capsules of a path with `cons` connections
    /// take. With slots, its session has a reserve buffer, which each of its paths counts.
    pub(crate) fn chunks_bytes(&self, terms: Terms, cons: u16) -> u64 {
        let (layout, page) = (self.layout(terms), PAGE_SIZE as u32);
        let chunks = match terms.shape {
            Shape::Chunks => limits::chunks_bytes(&layout, self.private_bytes() as u32, page),
            Shape::Slots => limits::slots_bytes(&layout, page).saturating_add(self.max_io().into()),
        };
        chunks.saturating_add(self.capsules_bytes(terms, cons))
    }

    /// Returns the memory of a message connection, in bytes.
    pub(crate) fn message_connection_bytes() -> u64 {
        let (sends, recvs) = con::ENTRIES;
        limits::connection_bytes(sends, recvs).saturating_add(con::BYTES)
    }

    /// Returns the bytes that connection `cid` takes, which is not for messages.
    pub(crate) fn connection_bytes(&self, terms: Terms, cid: u16) -> u64 {
        if cid == 0 {
            return limits::connection_bytes(self.service_sends(terms), self.service_recvs(terms));
        }
        // The tags of answers that wait for SQ space.
        let unsent = size_of::<u32>() as u64 * u64::from(self.depth(terms));
        limits::connection_bytes(self.io_sends(terms), self.io_recvs(terms)).saturating_add(unsent)
    }

    /// Returns the bytes that a path takes in addition to its chunks and connections.
    pub(crate) fn numbers_bytes(&self, terms: Terms) -> u64 {
        limits::numbers_bytes(&self.layout(terms))
    }

    /// Returns the memory that a path with `cons` connections takes.
    pub(crate) fn path_needs(&self, terms: Terms, cons: u16) -> Needs {
        let others = u64::from(cons.saturating_sub(1));
        let others = self.connection_bytes(terms, 1).saturating_mul(others);
        let others = match terms.messages {
            true => others.saturating_add(Self::message_connection_bytes()),
            false => others,
        };
        Needs {
            connections: self
                .numbers_bytes(terms)
                .saturating_add(self.connection_bytes(terms, 0))
                .saturating_add(others),
            chunks: self.chunks_bytes(terms, cons),
        }
    }
}
