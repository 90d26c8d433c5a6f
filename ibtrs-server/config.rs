// SPDX-License-Identifier: GPL-2.0

//! Values of the module parameters, checked together.

use crate::chunk::SMALL_BYTES;
use ibtrs_proto::{
    consts::SERVICE_QUEUE_DEPTH,
    handshake::{
        ConnRsp,
        RspExt, //
    },
    imm::ImmLayout,
    limits,
    quota::Needs, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
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
    /// Connections of a path.
    pub(crate) max_connections: u32,
    /// Paths of one address that are being connected.
    pub(crate) max_attempts: u32,
    /// The time that a path has to be connected.
    pub(crate) setup_timeout_ms: u32,
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
            max_connections: crate::max_connections.get(),
            max_attempts: crate::max_attempts_per_address.get(),
            setup_timeout_ms: crate::setup_timeout_ms.get(),
            max_memory: limits::memory_limit(memory_mib, kx::mm::total_bytes()),
        })
    }

    /// Returns the parameters that connections are accepted with.
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

    /// Its receives, with those of AUTH1 and of the INFO request.
    pub(crate) fn service_recvs(&self) -> u32 {
        u32::from(SERVICE_QUEUE_DEPTH) + 2
    }

    /// Bytes that no client can write to, for each chunk.
    pub(crate) fn private_bytes(&self) -> usize {
        if self.invalidate {
            SMALL_BYTES
        } else {
            0
        }
    }

    /// Bytes that the chunks of a path take.
    pub(crate) fn chunks_bytes(&self) -> u64 {
        limits::chunks_bytes(&self.layout, self.private_bytes() as u32, PAGE_SIZE as u32)
    }

    /// Bytes that connection `cid` takes.
    pub(crate) fn connection_bytes(&self, cid: u16) -> u64 {
        if cid == 0 {
            limits::connection_bytes(self.service_sends(), self.service_recvs())
        } else {
            limits::connection_bytes(self.io_sends(), self.io_recvs())
        }
    }

    /// Bytes that a path takes beside its chunks and connections.
    pub(crate) fn numbers_bytes(&self) -> u64 {
        limits::numbers_bytes(&self.layout)
    }

    /// Returns the memory that a path with `cons` connections takes.
    pub(crate) fn path_needs(&self, cons: u16) -> Needs {
        let others = u64::from(cons.saturating_sub(1));
        let others = self.connection_bytes(1).saturating_mul(others);
        Needs {
            connections: self
                .numbers_bytes()
                .saturating_add(self.connection_bytes(0))
                .saturating_add(others),
            chunks: self.chunks_bytes(),
        }
    }
}
