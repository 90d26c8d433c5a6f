// SPDX-License-Identifier: GPL-2.0

//! Memory of programs, as a message connection uses it.
//!
//! Work requests and frames of a connection are posted to one send queue, in order: a frame that is sent after a write
//! arrives after the written data, and a frame that is sent after a registration arrives when the key is valid. Reads are not
//! ordered like this: the peer's device may execute a read after a later frame has arrived, so the user of a key waits for
//! its reads to complete before it allows the peer to invalidate the key. A lost connection is drained before
//! [`Upper::lost`](super::Upper::lost), and no device accesses memory through it afterwards.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::user::UserPages;
use rdma::{
    device::Device as RdmaDevice,
    dma::{
        DmaUser,
        Sink, //
    },
    mr::UserMr,
    sendq::Position,
    sge::Sge, //
};

pub use rdma::{
    mr::Access,
    sge::Remote, //
};

/// Maximum size of a region in bytes.
pub const MAX_REGION: usize = ibmsg_proto::memory::PIECE as usize;

/// Maximum number of reads of a connection in flight in one direction. More would not be faster, and would take memory
/// of the device.
pub const MAX_READS: u8 = 16;

/// Limits of the reads in flight on a message connection, as negotiated by the connection manager.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Reads {
    /// Of the peer's memory.
    pub of_peer: u8,
    /// Of this side's memory, by the peer.
    pub by_peer: u8,
}

impl Reads {
    /// Returns the limits of a device: none if reads may lose data, or over iWARP, where a read needs a key for its
    /// target memory.
    pub fn of(dev: &RdmaDevice) -> Self {
        match dev.reads_survive_loss() && dev.has_immediates() && dev.max_read_sge() > 0 {
            true => Self {
                of_peer: dev.max_reads().min(MAX_READS),
                by_peer: dev.max_reads_by_peer().min(MAX_READS),
            },
            false => Self::default(),
        }
    }

    /// Reduces the limits for a peer that allows `allowed` reads of its memory, and requests `wanted` reads of this
    /// side's.
    pub fn with_peer(self, allowed: u8, wanted: u8) -> Self {
        Self {
            of_peer: self.of_peer.min(allowed),
            by_peer: self.by_peer.min(wanted),
        }
    }
}

/// Memory from which a connection can write. It stays mapped until the last reference is dropped. Each posted
/// write holds one until it has completed or the queue pair is drained.
///
/// It may be dropped in any context.
#[derive(Clone)]
pub struct Source(Arc<Mapped>);

/// A mapping, which is unmapped on drop.
struct Mapped(Option<DmaUser>);

impl Source {
    pub(super) fn new(mapped: DmaUser) -> Result<Self> {
        Ok(Self(Arc::new(Mapped(Some(mapped)), GFP_KERNEL)?))
    }

    /// Iterates over the scatter elements of `len` bytes from `at` on.
    pub(super) fn sges(&self, at: usize, len: usize) -> impl Iterator<Item = Sge> + Clone + '_ {
        let mapped = self.0 .0.iter();
        mapped.flat_map(move |mapped| mapped.sges(at, len))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if let Some(mapped) = self.0.take() {
            mapped.unmap();
        }
    }
}

/// The use of a region. The number of regions of a connection is limited. Some are reserved for landing zones, which
/// are short-lived, so that neither kind starves the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionUse {
    /// A key that the peer keeps until it needs another one.
    Key,
    /// The landing zone of one record GET.
    Landing,
}

/// Memory into which a connection can read, once. It stays mapped until the read has completed, or the queue pair is
/// drained.
///
/// It may be dropped in any context.
pub struct Target(Option<KBox<DmaUser>>);

impl Target {
    pub(super) fn new(mapped: DmaUser) -> Result<Self> {
        Ok(Self(Some(KBox::new(mapped, GFP_KERNEL)?)))
    }

    /// Iterates over the scatter elements of `len` bytes from `at` on.
    pub(super) fn sinks(
        &mut self,
        at: usize,
        len: usize,
    ) -> impl Iterator<Item = Sink<'_>> + Clone {
        let mapped = self.0.as_mut();
        let sinks = mapped.map(|mapped| mapped.sinks(at, len));
        sinks.into_iter().flatten()
    }

    /// Number of bytes.
    pub(super) fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |mapped| mapped.len())
    }

    /// The read has completed, and was posted before the request at `done`.
    pub(super) fn end_reads(&self, done: Position) {
        if let Some(mapped) = &self.0 {
            mapped.end_reads(done);
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(mapped) = self.0.take() {
            KBox::into_inner(mapped).unmap();
        }
    }
}

/// Memory with a key, which the peer may use. The key ends with [`Device::invalidate`], or with the connection.
///
/// It may be dropped in any context. If the connection still exists, the memory stays pinned until it is
/// lost.
pub struct Region(pub(super) KBox<UserMr>, pub(super) RegionUse);

impl Region {
    /// Returns the key and the address for it.
    pub fn remote(&self) -> Remote {
        Remote {
            addr: self.0.iova(),
            rkey: self.0.rkey(),
        }
    }
}

/// A connection whose device uses memory of programs.
pub trait Device: Send + Sync {
    /// Maps `len` bytes of `pages` from `at` on, to write from there.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINVAL`: there are no such bytes; `EOPNOTSUPP`: accesses of the device to the memory would
    /// need synchronisation.
    fn map(&self, pages: &Arc<UserPages>, at: usize, len: usize) -> Result<Source>;

    /// Registers `len` bytes of `pages` from `at` on, at most [`MAX_REGION`], spanning no more pages than an
    /// aligned region of that size.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// Errors of [`Device::map`]; `EAGAIN`: the send queue is full; `ENOBUFS`: there are too many regions of this use;
    /// `ENOTCONN`, and errors of the device's driver: the connection is being lost.
    fn register(
        &self,
        pages: &Arc<UserPages>,
        at: usize,
        len: usize,
        rights: (Access, RegionUse),
    ) -> Result<Region>;

    /// Invalidates a key. [`Upper::completed`](super::Upper::completed) follows, and the memory is unmapped
    /// soon after.
    ///
    /// # Context
    ///
    /// Any.
    fn invalidate(&self, region: Region, cookie: u64);

    /// Writes `len` bytes of `from` from `at` on to the peer's memory. [`Upper::completed`](super::Upper::completed) follows when
    /// the peer's device has received them.
    ///
    /// # Context
    ///
    /// Any.
    fn write(&self, from: &Source, at: usize, len: usize, to: Remote, cookie: u64);

    /// Whether [`Device::read`] may be used.
    ///
    /// # Context
    ///
    /// Any.
    fn can_read(&self) -> bool;

    /// Whether the peer may read memory that is registered with [`Access::RemoteRead`].
    ///
    /// # Context
    ///
    /// Any.
    fn is_readable(&self) -> bool;

    /// Maps `len` bytes of `pages` from `at` on, to read into them.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// Errors of [`Device::map`].
    fn map_target(&self, pages: &Arc<UserPages>, at: usize, len: usize) -> Result<Target>;

    /// Reads the peer's memory into `into`. [`Upper::completed`](super::Upper::completed) follows when all data has
    /// arrived.
    ///
    /// # Context
    ///
    /// Any.
    fn read(&self, into: Target, from: Remote, cookie: u64);

    /// Returns a number that changes with each completion of the connection: as long as it changes,
    /// outstanding work is only queued, not stuck.
    ///
    /// # Context
    ///
    /// Any.
    fn completions(&self) -> u32;
}
