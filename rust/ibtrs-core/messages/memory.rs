// SPDX-License-Identifier: GPL-2.0

//! Memory of programs, as a message connection uses it.
//!
//! Work requests of a connection and frames that are sent later begin in this order: a frame that follows a write
//! arrives after what was written, and one that follows a registration after that. A connection that is lost is
//! drained before [`Upper::lost`](super::Upper::lost): nothing reaches memory by it afterwards.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::user::UserPages;
use rdma::{
    dma::DmaUser,
    mr::UserMr,
    sge::Sge, //
};

pub use rdma::{
    mr::Access,
    sge::Remote, //
};

/// The most bytes of a region.
pub const MAX_REGION: usize = ibmsg_proto::memory::PIECE as usize;

/// Memory from which a connection can write. It stays mapped until nothing refers to it: each write that is posted
/// does, until it has completed or the queue pair is drained.
///
/// It may be dropped in any context.
#[derive(Clone)]
pub struct Source(Arc<Mapped>);

/// A mapping, which ends with this.
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

/// What a region is for. The number of regions of a connection is limited; keys leave some of them for landing zones, which are
/// needed for a short time only, so that neither kind waits for the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionUse {
    /// A key that the peer keeps until it needs another one.
    Key,
    /// The landing zone of one record GET.
    Landing,
}

/// Memory with a key, which the peer may use. The key ends with [`Device::invalidate`], or with the connection.
///
/// It may be dropped in any context. Unless the connection was lost before, the memory stays pinned until then.
pub struct Region(pub(super) KBox<UserMr>, pub(super) RegionUse);

impl Region {
    /// The key, and the address that goes with it.
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
    /// `ENOMEM`; `EINVAL`: there are no such bytes; `EOPNOTSUPP`: the device does not see the memory as it is.
    fn map(&self, pages: &Arc<UserPages>, at: usize, len: usize) -> Result<Source>;

    /// Registers `len` bytes of `pages` from `at` on, at most [`MAX_REGION`] and in as many pages as that takes.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// Those of [`Device::map`]; `EAGAIN`: the queue has no place now; `ENOBUFS`: there are too many regions of this use;
    /// `ENOTCONN`, and others of the device's driver: the connection is being lost.
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

    /// Writes `len` bytes of `from` from `at` on to the peer's memory. [`Upper::completed`](super::Upper::completed) follows, when
    /// they are there.
    ///
    /// # Context
    ///
    /// Any.
    fn write(&self, from: &Source, at: usize, len: usize, to: Remote, cookie: u64);

    /// Returns a number that changes with each completion of the connection: what was posted waits its
    /// turn as long as it does.
    ///
    /// # Context
    ///
    /// Any.
    fn completions(&self) -> u32;
}
