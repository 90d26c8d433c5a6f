// SPDX-License-Identifier: GPL-2.0

//! The parts of a session that its disks share: the transport and the tags.

use crate::{
    admin,
    events::EventHandler,
    fair_share::DiskGroup,
    request::IbnbdMq, //
};
use ibnbd_proto::map_opts::SessionOptions;
use ibtrs_client::{
    PathSpec,
    SessionConfig, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    blk::{
        TagSet,
        TagSetSpec, //
    },
    work, //
};

/// From this version on, servers honour the priority of requests.
const PRIO_VERSION: u8 = 2;

/// The queues of a session, each of them a connection of each path.
#[derive(Clone, Copy)]
pub(crate) struct Queues {
    /// Queues for ordinary I/O, at least one.
    pub(crate) ordinary: u16,
    /// Queues for polled I/O.
    pub(crate) polled: u16,
}

/// A session with a server. Drop closes it.
pub(crate) struct Session {
    transport: Arc<ibtrs_client::Session>,
    events: Arc<EventHandler>,
    /// The version that both sides speak.
    version: u8,
    tags: Arc<TagSet<IbnbdMq>>,
    group: Arc<DiskGroup>,
}

impl Session {
    /// Opens the session that the options name. Work items on `jobs` wait for the server.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// Errors of the transport; `EPROTO` if the server's answer is invalid; `ENOMEM`.
    pub(crate) fn open(
        opts: &SessionOptions<'_>,
        queues: Queues,
        jobs: &Arc<work::Queue>,
    ) -> Result<Self> {
        let mut paths = KVec::with_capacity(opts.path_count(), GFP_KERNEL)?;
        for addr in opts.paths() {
            let path = PathSpec {
                addr,
                port: opts.dest_port,
            };
            paths.push(path, GFP_KERNEL)?;
        }
        let events = EventHandler::new(opts.name.as_str(), jobs)?;
        let group = DiskGroup::new()?;
        let transport = ibtrs_client::Session::open(&SessionConfig {
            name: opts.name,
            paths: &paths,
            nr_queues: queues.ordinary,
            nr_poll_queues: queues.polled,
            key_id: opts.key_id.unwrap_or_default(),
            failover_time_ms: opts.failover_time_ms,
            events: events.clone(),
        })?;
        events.set_transport(Some(transport.clone()));
        let made =
            admin::introduce(&transport).and_then(|version| Ok((version, tags(&transport)?)));
        match made {
            Ok((version, tags)) => Ok(Self {
                transport,
                events,
                version,
                tags,
                group,
            }),
            Err(error) => {
                events.set_transport(None);
                transport.close();
                Err(error)
            }
        }
    }

    /// Returns the name of the session.
    pub(crate) fn name(&self) -> &CStr {
        self.transport.name()
    }

    /// Returns the transport, for requests.
    pub(crate) fn transport(&self) -> &Arc<ibtrs_client::Session> {
        &self.transport
    }

    /// Returns whether the session belongs to the network namespace of the caller.
    ///
    /// # Context
    ///
    /// Process context.
    pub(crate) fn is_local(&self) -> bool {
        self.transport.is_local()
    }

    /// Returns the tag set of the disks.
    pub(crate) fn tags(&self) -> &Arc<TagSet<IbnbdMq>> {
        &self.tags
    }

    /// Returns the disk group of the session.
    pub(crate) fn group(&self) -> &Arc<DiskGroup> {
        &self.group
    }

    /// Returns the handler of session events, which knows the devices.
    pub(crate) fn events(&self) -> &Arc<EventHandler> {
        &self.events
    }

    /// Returns the number of queues for ordinary I/O.
    pub(crate) fn nr_queues(&self) -> u32 {
        self.transport.nr_queues()
    }

    /// Returns the number of poll queues.
    pub(crate) fn nr_poll_queues(&self) -> u32 {
        self.transport.nr_poll_queues()
    }

    /// Returns whether the server honours the priority of requests.
    pub(crate) fn wants_prio(&self) -> bool {
        self.version >= PRIO_VERSION
    }

    /// Closes the session; may be called again.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn close(&self) {
        self.transport.close();
        self.events.set_transport(None);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

fn tags(transport: &ibtrs_client::Session) -> Result<Arc<TagSet<IbnbdMq>>> {
    Arc::pin_init(
        TagSet::new(TagSetSpec {
            nr_queues: transport.nr_queues(),
            nr_poll_queues: transport.nr_poll_queues(),
            depth: u32::from(transport.io_depth()),
            shared_tags: true,
            no_scheduler: true,
            ..TagSetSpec::default()
        }),
        GFP_KERNEL,
    )
}
