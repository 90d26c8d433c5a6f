// SPDX-License-Identifier: GPL-2.0

//! What the parameters say, and the memory that they allow.

use crate::{
    body::SMALL_BYTES,
    server::Server, //
};
use ibtrs_proto::{
    consts::SERVICE_QUEUE_DEPTH,
    handshake::{
        ConnRsp,
        RspExt, //
    },
    imm::ImmLayout,
    limits, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
};

/// Sizes and mode, the same for all sessions.
#[derive(Clone, Copy)]
pub(crate) struct Config {
    pub(crate) queue_depth: u16,
    pub(crate) chunk_bytes: u32,
    pub(crate) invalidate: bool,
    pub(crate) layout: ImmLayout,
    pub(crate) hb_interval_ms: u32,
    pub(crate) hb_missed_max: u32,
    pub(crate) max_sessions: usize,
    /// Bytes that all paths may take together.
    pub(crate) max_memory: u64,
}

impl Config {
    /// Takes the module's parameters.
    ///
    /// # Errors
    ///
    /// `EINVAL` when they do not go together, which is said in the log.
    pub(crate) fn from_params() -> Result<Self> {
        let (chunk_bytes, depth) = (crate::max_chunk_size.get(), crate::sess_queue_depth.get());
        let layout = limits::server_layout(chunk_bytes, depth).map_err(|error| {
            pr_err!(
                "sess_queue_depth={} with max_chunk_size={}: {}\n",
                depth,
                chunk_bytes,
                error.as_str()
            );
            EINVAL
        })?;
        let memory_mib = crate::max_chunk_memory_mib.get();
        Ok(Self {
            queue_depth: layout.queue_depth(),
            chunk_bytes: layout.chunk_size(),
            invalidate: crate::always_invalidate.get(),
            layout,
            hb_interval_ms: crate::hb_interval_ms.get(),
            hb_missed_max: crate::hb_missed_max.get(),
            max_sessions: crate::max_sessions.get() as usize,
            max_memory: limits::memory_limit(memory_mib, kx::mm::total_bytes()),
        })
    }

    /// What connections are accepted with.
    pub(crate) fn rsp(&self, ext: Option<RspExt>) -> ConnRsp {
        ConnRsp {
            ext,
            ..limits::server_response(&self.layout, self.invalidate)
        }
    }

    /// Entries of the send queue of a connection for I/O: the longest answer has four
    /// requests, and an invalidation comes before.
    pub(crate) fn io_sends(&self) -> u32 {
        5 * u32::from(self.queue_depth)
    }

    /// Its receives. A request is being handled while its chunk may be in use again already,
    /// and iWARP does not wait for a receive that is late.
    pub(crate) fn io_recvs(&self) -> u32 {
        u32::from(self.queue_depth) + 1
    }

    /// Entries of the send queue of the service connection: the registration of all chunks
    /// and the information about them, later fences and heartbeats.
    pub(crate) fn service_sends(&self) -> u32 {
        u32::from(self.queue_depth).max(2 * u32::from(SERVICE_QUEUE_DEPTH)) + 2
    }

    /// Its receives.
    pub(crate) fn service_recvs(&self) -> u32 {
        u32::from(SERVICE_QUEUE_DEPTH) + 1
    }

    /// Bytes that a path with so many connections takes.
    fn path_bytes(&self, cons: u16) -> u64 {
        let private = if self.invalidate {
            SMALL_BYTES as u32
        } else {
            0
        };
        let service = limits::connection_bytes(self.service_sends(), self.service_recvs());
        let each = limits::connection_bytes(self.io_sends(), self.io_recvs());
        limits::chunks_bytes(&self.layout, private)
            .saturating_add(service)
            .saturating_add(each.saturating_mul(u64::from(cons.saturating_sub(1))))
    }
}

/// The memory that all paths have taken.
pub(crate) struct Memory(Atomic<u64>);

impl Memory {
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(0))
    }
}

/// A path's share of the memory, given back when it is dropped.
pub(crate) struct Share {
    server: Arc<Server>,
    bytes: u64,
}

impl Share {
    /// Takes the share of a path with so many connections, which it has to be given before
    /// the first of them.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` when it would be more than allowed.
    pub(crate) fn take(server: &Arc<Server>, cons: u16) -> Result<Self> {
        let bytes = server.config.path_bytes(cons);
        let before = server.memory.0.fetch_add(bytes, Relaxed);
        let this = Self {
            server: server.clone(),
            bytes,
        };
        // If not, dropping it gives it back.
        if before.saturating_add(bytes) <= server.config.max_memory {
            Ok(this)
        } else {
            Err(ENOBUFS)
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let taken = &self.server.memory.0;
        taken.fetch_sub(self.bytes, Relaxed);
    }
}
