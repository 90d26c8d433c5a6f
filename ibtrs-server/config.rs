// SPDX-License-Identifier: GPL-2.0

//! What the parameters say, and the memory that they allow.

use crate::{
    body::SMALL_BYTES,
    server::Server, //
};
use ibtrs_proto::{
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
    /// Bytes that the chunks of all paths may take together.
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

    /// Bytes that the chunks of a path take.
    fn path_bytes(&self) -> u64 {
        let private = if self.invalidate {
            SMALL_BYTES as u32
        } else {
            0
        };
        limits::path_bytes(&self.layout, private)
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
    /// Takes a path's share.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` when it would be more than allowed.
    pub(crate) fn take(server: &Arc<Server>) -> Result<Self> {
        let bytes = server.config.path_bytes();
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
