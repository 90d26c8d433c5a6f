// SPDX-License-Identifier: GPL-2.0

//! What may sleep, and is done without the lock.

use ibmsg_proto::memory::{
    Range,
    Rights, //
};
use ibtrs_core::messages::memory::{
    Access,
    Device,
    Region,
    RegionUse,
    Source,
    Target, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::user::UserPages;

use super::Memory;

/// What is to be done. `era`: the result counts only for the same channel, as long as it has not left its connection.
pub(crate) enum Job {
    /// Registers a key for the peer.
    Register {
        era: u64,
        at: usize,
        pages: Arc<UserPages>,
        from: usize,
        len: usize,
        access: Access,
        key: (Range, Rights),
    },
    /// Maps what the peer has asked for.
    MapPush {
        era: u64,
        number: u32,
        pages: Arc<UserPages>,
        from: usize,
        len: usize,
    },
    /// Registers the landing zone of a GET.
    Land {
        era: u64,
        number: u32,
        pages: Arc<UserPages>,
        from: usize,
        len: usize,
        access: Access,
    },
    /// Maps a part of the buffer of a GET.
    MapGet {
        era: u64,
        number: u32,
        pages: Arc<UserPages>,
        from: usize,
        len: usize,
    },
    /// Maps the buffer of a PUT.
    MapPut {
        era: u64,
        number: u32,
        pages: Arc<UserPages>,
    },
}

/// What was done.
pub(crate) enum Done {
    Registered {
        era: u64,
        at: usize,
        key: (Range, Rights),
        region: Result<Region>,
    },
    MappedPush {
        era: u64,
        number: u32,
        source: Result<Source>,
    },
    Landed {
        era: u64,
        number: u32,
        region: Result<Region>,
    },
    MappedGet {
        era: u64,
        number: u32,
        target: Result<Target>,
    },
    /// [`Memory::did`] returns this: the PUT is in the queue of messages.
    MappedPut {
        era: u64,
        number: u32,
        source: Result<Source>,
    },
}

impl Job {
    /// Does it.
    ///
    /// # Context
    ///
    /// *may sleep*
    pub(crate) fn run(self, device: &dyn Device) -> Done {
        match self {
            Self::Register {
                era,
                at,
                pages,
                from,
                len,
                access,
                key,
            } => Done::Registered {
                era,
                at,
                key,
                region: device.register(&pages, from, len, (access, RegionUse::Key)),
            },
            Self::MapPush {
                era,
                number,
                pages,
                from,
                len,
            } => Done::MappedPush {
                era,
                number,
                source: device.map(&pages, from, len),
            },
            Self::Land {
                era,
                number,
                pages,
                from,
                len,
                access,
            } => Done::Landed {
                era,
                number,
                region: device.register(&pages, from, len, (access, RegionUse::Landing)),
            },
            Self::MapGet {
                era,
                number,
                pages,
                from,
                len,
            } => Done::MappedGet {
                era,
                number,
                target: device.map_target(&pages, from, len),
            },
            Self::MapPut { era, number, pages } => Done::MappedPut {
                era,
                number,
                source: device.map(&pages, 0, pages.len()),
            },
        }
    }
}

impl Done {
    /// Whether the device does not see the memory as it is.
    pub(crate) fn is_unsupported(&self) -> bool {
        match self {
            Self::Registered { region, .. } | Self::Landed { region, .. } => {
                matches!(region, Err(EOPNOTSUPP))
            }
            Self::MappedPush { source, .. } | Self::MappedPut { source, .. } => {
                matches!(source, Err(EOPNOTSUPP))
            }
            Self::MappedGet { target, .. } => matches!(target, Err(EOPNOTSUPP)),
        }
    }
}

impl Memory {
    /// Whether there is something to do that may sleep.
    pub(crate) fn has_job(&self) -> bool {
        let registers = self.pause.is_none() && (self.wants_key() || self.wants_landing());
        self.to_map.is_some() || self.wants_push() || self.wants_target() || registers
    }

    /// The next thing to do.
    pub(crate) fn next_job(&mut self) -> Option<Job> {
        let mapping = self.job_of_put().or_else(|| self.job_of_push());
        if let Some(job) = mapping.or_else(|| self.job_of_target()) {
            return Some(job);
        }
        if self.pause.is_some() {
            return None;
        }
        self.job_of_key().or_else(|| self.job_of_landing())
    }

    /// It was done. Returns the PUT whose buffer is mapped.
    pub(crate) fn did(
        &mut self,
        done: Done,
        device: &dyn Device,
        now: u64,
    ) -> Option<(u32, Result<Source>)> {
        match done {
            Done::Registered {
                era,
                at,
                key,
                region,
            } if era == self.era => self.registered(at, key, region, device, now),
            Done::MappedPush {
                era,
                number,
                source,
            } if era == self.era => self.push_is_mapped(number, source, device),
            Done::Landed {
                era,
                number,
                region,
            } if era == self.era => self.landed(number, region, device, now),
            Done::MappedGet {
                era,
                number,
                target,
            } if era == self.era => self.get_is_mapped(number, target),
            Done::MappedPut {
                era,
                number,
                source,
            } if era == self.era => return Some((number, source)),
            // What was registered goes with the connection.
            Done::Registered { .. }
            | Done::MappedPush { .. }
            | Done::Landed { .. }
            | Done::MappedGet { .. }
            | Done::MappedPut { .. } => {}
        }
        None
    }
}
