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

/// Sizes, limits and mode, the same for all sessions.
#[derive(Clone, Copy)]
pub(crate) struct Config {
    pub(crate) queue_depth: u16,
    pub(crate) chunk_bytes: u32,
    pub(crate) invalidate: bool,
    pub(crate) layout: ImmLayout,
    pub(crate) hb_interval_ms: u32,
    pub(crate) hb_missed_max: u32,
    pub(crate) max_sessions: usize,
    /// Maximum number of connections of a path.
    pub(crate) max_connections: u32,
    /// Maximum number of paths of one address that are being connected.
    pub(crate) max_attempts: u32,
    /// Time for a path to be connected.
    pub(crate) setup_timeout_ms: u32,
    /// Maximum bytes that all paths may take together.
    pub(crate) max_memory: u64,
}

impl Config {
    /// Reads the module parameters.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the parameters contradict each other; the log has the reason.
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

    /// Returns the parameters with which connections are accepted.
    pub(crate) fn rsp(&self, ext: Option<RspExt>) -> ConnRsp {
        ConnRsp {
            times: ext.is_some(),
            ext,
            ..limits::server_response(&self.layout, self.invalidate)
        }
    }

    /// Returns the number of send queue entries of an I/O connection: the longest answer takes four
    /// work requests, and an invalidation precedes it.
    pub(crate) fn io_sends(&self) -> u32 {
        5 * u32::from(self.queue_depth)
    }

    /// Returns the number of receives of an I/O connection: one for each chunk, and one for the
    /// request being handled, whose chunk may be in use again. iWARP does not wait for a receive
    /// that is posted late.
    pub(crate) fn io_recvs(&self) -> u32 {
        u32::from(self.queue_depth) + 1
    }

    /// Returns the number of send queue entries of the service connection: the registration of all
    /// chunks and the information about them, later fences and heartbeats.
    pub(crate) fn service_sends(&self) -> u32 {
        u32::from(self.queue_depth).max(2 * u32::from(SERVICE_QUEUE_DEPTH)) + 2
    }

    /// Returns the number of receives of the service connection, including those for AUTH1 and the
    /// INFO request.
    pub(crate) fn service_recvs(&self) -> u32 {
        u32::from(SERVICE_QUEUE_DEPTH) + 2
    }

    /// Returns the bytes of each chunk's private memory, which no client can write to.
    pub(crate) fn private_bytes(&self) -> usize {
        if self.invalidate {
            SMALL_BYTES
        } else {
            0
        }
    }

    /// Returns the bytes that the chunks of a path take.
    pub(crate) fn chunks_bytes(&self) -> u64 {
        limits::chunks_bytes(&self.layout, self.private_bytes() as u32, PAGE_SIZE as u32)
    }

    /// Returns the bytes that connection `cid` takes.
    pub(crate) fn connection_bytes(&self, cid: u16) -> u64 {
        if cid == 0 {
            limits::connection_bytes(self.service_sends(), self.service_recvs())
        } else {
            limits::connection_bytes(self.io_sends(), self.io_recvs())
        }
    }

    /// Returns the bytes that a path takes in addition to its chunks and connections.
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
