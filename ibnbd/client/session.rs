// SPDX-License-Identifier: GPL-2.0

//! What the disks of a session share: the transport and the tags.

use crate::queue::Queue;
use ibnbd_proto::{
    map_opts::MapOptions,
    msg::{
        Close,
        MsgError,
        Open,
        OpenRsp,
        SessInfo,
        SessInfoRsp,
        OPEN_RSP_LEN,
        SESS_INFO_LEN,
        VERSION_MAJOR, //
    },
    AccessMode, //
};
use ibtrs_client::{
    Dir,
    LinkEvents,
    PathSpec,
    SessionConfig, //
};
use ibtrs_core::convert;
use ibtrs_proto::name::DevicePath;
use kernel::{
    prelude::*,
    str::CString,
    sync::Arc, //
};
use kx::blk::{
    TagSet,
    TagSetSpec, //
};

/// A session with a server. It is closed on drop, if not before.
pub(crate) struct Session {
    transport: Arc<ibtrs_client::Session>,
    tags: Arc<TagSet<Queue>>,
}

/// Notes what happens to the session.
struct Link(CString);

impl LinkEvents for Link {
    fn down(&self) {
        pr_info!("{}: disconnected\n", *self.0);
    }

    fn up(&self, _fresh: bool) {
        pr_info!("{}: connected\n", *self.0);
    }
}

impl Session {
    /// Opens the session that the options name.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// Those of the transport; `EPROTO` if the server's answer makes no sense;
    /// `ENOMEM`.
    pub(crate) fn open(opts: &MapOptions<'_>) -> Result<Self> {
        let mut paths = KVec::with_capacity(opts.path_count(), GFP_KERNEL)?;
        for addr in opts.paths() {
            let path = PathSpec {
                addr,
                port: opts.dest_port,
            };
            paths.push(path, GFP_KERNEL)?;
        }
        let link: Arc<dyn LinkEvents> = Arc::new(
            Link(CString::try_from_fmt(fmt!("{}", opts.session.as_str()))?),
            GFP_KERNEL,
        )?;
        let transport = ibtrs_client::Session::open(&SessionConfig {
            name: opts.session,
            paths: &paths,
            link,
        })?;
        let tags = introduce(&transport).and_then(|()| {
            Arc::pin_init(
                TagSet::new(TagSetSpec {
                    nr_hw_queues: transport.nr_queues(),
                    depth: u32::from(transport.io_depth()),
                    shared_tags: true,
                    no_scheduler: true,
                    ..TagSetSpec::default()
                }),
                GFP_KERNEL,
            )
        });
        match tags {
            Ok(tags) => Ok(Self { transport, tags }),
            Err(error) => {
                transport.close();
                Err(error)
            }
        }
    }

    /// Returns the name.
    pub(crate) fn name(&self) -> &CStr {
        self.transport.name()
    }

    /// Returns the transport, for requests.
    pub(crate) fn transport(&self) -> &Arc<ibtrs_client::Session> {
        &self.transport
    }

    /// Returns the tags of the disks.
    pub(crate) fn tags(&self) -> &Arc<TagSet<Queue>> {
        &self.tags
    }

    /// Has the server open a device.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// The server's; those of the transport; `EPROTO` if the answer makes no
    /// sense.
    pub(crate) fn open_device(&self, name: DevicePath<'_>, mode: AccessMode) -> Result<OpenRsp> {
        let msg = Open {
            access_mode: mode,
            dev_name: name,
        };
        let mut reply = [0; OPEN_RSP_LEN];
        self.transport.admin(Dir::Read, &msg.encode(), &mut reply)?;
        OpenRsp::decode(&reply).map_err(|error| self.nonsense(error))
    }

    /// Has the server close a device. If that fails, it closes it with the
    /// session.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    pub(crate) fn close_device(&self, device_id: u32) {
        if !self.transport.is_connected() {
            return;
        }
        let msg = Close { device_id };
        let closed = self.transport.admin(Dir::Write, &msg.encode(), &mut []);
        if let Err(error) = closed {
            pr_warn!(
                "{}: closing device {} on the server failed: {:?}\n",
                self.name(),
                device_id,
                error
            );
        }
    }

    /// Closes the session; may be called again.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn close(&self) {
        self.transport.close();
    }

    fn nonsense(&self, error: MsgError) -> Error {
        nonsense(self.name(), error)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

fn nonsense(name: &CStr, error: MsgError) -> Error {
    kx::pr_err_ratelimited!("{}: the server's answer: {}\n", name, error.as_str());
    match error {
        MsgError::BlockSize(_) | MsgError::Capacity(_) => convert::error(error.errno()),
        _ => EPROTO,
    }
}

/// Tells the server our version, and learns which one to use.
fn introduce(transport: &ibtrs_client::Session) -> Result {
    let msg = SessInfo { ver: VERSION_MAJOR };
    let mut reply = [0; SESS_INFO_LEN];
    transport.admin(Dir::Read, &msg.encode(), &mut reply)?;
    // Nothing depends on the version: what version 1 lacks, it ignores.
    SessInfoRsp::decode(&reply).map_err(|error| nonsense(transport.name(), error))?;
    Ok(())
}
