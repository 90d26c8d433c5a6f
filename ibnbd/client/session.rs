// SPDX-License-Identifier: GPL-2.0

//! The parts of a session that its disks share: the transport and the tags.

use crate::{
    events::EventHandler,
    fair_share::DiskGroup,
    request::Queue, //
};
use ibnbd_proto::{
    checksum::DataChecksum,
    identity::Identity,
    map_opts::SessionOptions,
    msg::{
        Close,
        Details,
        Discover,
        DiscoverRsp,
        MsgError,
        Open,
        OpenRsp,
        SessInfo,
        SessInfoRsp,
        OPEN_RSP_LEN,
        OPEN_RSP_LONG_LEN,
        SESS_INFO_LEN,
        VERSION_MAJOR, //
    },
    Access, //
};
use ibtrs_client::{
    Dir,
    PathSpec,
    SessionConfig, //
};
use ibtrs_core::convert;
use ibtrs_proto::name::DevicePath;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::blk::{
    TagSet,
    TagSetSpec, //
};

/// From this version on, servers honour the priority of requests.
const PRIO_VERSION: u8 = 2;

/// A session with a server. Drop closes it.
pub(crate) struct Session {
    transport: Arc<ibtrs_client::Session>,
    events: Arc<EventHandler>,
    /// The version that both sides speak.
    version: u8,
    tags: Arc<TagSet<Queue>>,
    group: Arc<DiskGroup>,
}

/// Number of maps of a tag set with poll queues: default, read and poll.
const MAPS_WITH_POLL: u32 = 3;

impl Session {
    /// Opens the session that the options name, with `nr_poll_queues` poll queues.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// Errors of the transport; `EPROTO` if the server's answer is invalid; `ENOMEM`.
    pub(crate) fn open(opts: &SessionOptions<'_>, nr_poll_queues: u16) -> Result<Self> {
        let mut paths = KVec::with_capacity(opts.path_count(), GFP_KERNEL)?;
        for addr in opts.paths() {
            let path = PathSpec {
                addr,
                port: opts.dest_port,
            };
            paths.push(path, GFP_KERNEL)?;
        }
        let events = EventHandler::new(opts.name.as_str())?;
        let group = DiskGroup::new()?;
        let transport = ibtrs_client::Session::open(&SessionConfig {
            name: opts.name,
            paths: &paths,
            nr_poll_queues,
            key_id: opts.key_id.unwrap_or_default(),
            events: events.clone(),
        })?;
        events.set_transport(Some(transport.clone()));
        let made = introduce(&transport).and_then(|version| Ok((version, tags(&transport)?)));
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
    pub(crate) fn tags(&self) -> &Arc<TagSet<Queue>> {
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

fn nonsense(name: &CStr, error: MsgError) -> Error {
    kx::pr_err_ratelimited!(
        "{}: the server sent an invalid answer: {}\n",
        name,
        error.as_str()
    );
    match error {
        MsgError::BlockSize(_) | MsgError::Capacity(_) => convert::error(error.errno()),
        _ => EPROTO,
    }
}

fn tags(transport: &ibtrs_client::Session) -> Result<Arc<TagSet<Queue>>> {
    Arc::pin_init(
        TagSet::new(TagSetSpec {
            nr_hw_queues: transport.nr_queues() + transport.nr_poll_queues(),
            nr_maps: if transport.nr_poll_queues() > 0 {
                MAPS_WITH_POLL
            } else {
                1
            },
            depth: u32::from(transport.io_depth()),
            shared_tags: true,
            no_scheduler: true,
            ..TagSetSpec::default()
        }),
        GFP_KERNEL,
    )
}

/// Sends a message to the server, and once more if the server says that the message was damaged on
/// the way, of which it has executed nothing then.
///
/// # Context
///
/// May sleep; interruptible.
///
/// # Errors
///
/// Errors of the server and of the transport.
fn send(
    transport: &ibtrs_client::Session,
    dir: Dir,
    message: &[u8],
    reply: &mut [u8],
) -> Result<usize> {
    match transport.admin(dir, message, reply) {
        Err(EBADMSG) => transport.admin(dir, message, reply),
        result => result,
    }
}

/// Sends the client's version to the server, and returns the version that both sides speak.
///
/// # Context
///
/// May sleep; interruptible.
///
/// # Errors
///
/// Errors of the transport; `EPROTO` if the answer is invalid.
pub(crate) fn introduce(transport: &ibtrs_client::Session) -> Result<u8> {
    let msg = SessInfo { ver: VERSION_MAJOR };
    let mut reply = [0; SESS_INFO_LEN];
    send(transport, Dir::Read, &msg.encode(), &mut reply)?;
    let rsp = SessInfoRsp::decode(&reply).map_err(|error| nonsense(transport.name(), error))?;
    Ok(rsp.ver)
}

/// Asks the server to describe a device that this session has open.
///
/// # Context
///
/// May sleep; interruptible.
///
/// # Errors
///
/// `ENOENT` if the server has the device no longer open; errors of [`open_device`].
pub(crate) fn ask_device(
    transport: &ibtrs_client::Session,
    name: DevicePath<'_>,
    access: Access,
    checksum: DataChecksum,
) -> Result<OpenRsp> {
    let open = Open {
        only_known: true,
        ..opening(name, access, checksum)
    };
    ask(transport, &open)
}

/// Opens a device on the server; [`check_checksum`] follows. A C server, which knows neither
/// exclusive access nor checksums, is not asked.
///
/// # Context
///
/// May sleep; interruptible. The server may open the device despite the interruption.
///
/// # Errors
///
/// `EOPNOTSUPP` if a C server is not asked; errors of the server and of the transport; `EPROTO` if
/// the answer is invalid.
pub(crate) fn open_device(
    transport: &ibtrs_client::Session,
    name: DevicePath<'_>,
    access: Access,
    checksum: DataChecksum,
) -> Result<OpenRsp> {
    if !transport.has_extensions() {
        if access.exclusive {
            return Err(EOPNOTSUPP);
        }
        confirm(transport, name, checksum, false)?;
    }
    ask(transport, &opening(name, access, checksum))
}

/// Checks that the server of the opened device does what `checksum` says. If it does not, the caller
/// closes the device, unless the session was lost meanwhile: the number may be that of another
/// device then.
///
/// # Errors
///
/// `EOPNOTSUPP` if the server does not know checksums; `EPROTO` if it expects some unasked.
pub(crate) fn check_checksum(
    transport: &ibtrs_client::Session,
    name: DevicePath<'_>,
    checksum: DataChecksum,
    rsp: &OpenRsp,
) -> Result {
    confirm(transport, name, checksum, rsp.has_checksums())
}

/// Logs why a device is refused whose server has `confirmed` checksums or not.
fn confirm(
    transport: &ibtrs_client::Session,
    name: DevicePath<'_>,
    checksum: DataChecksum,
    confirmed: bool,
) -> Result {
    checksum.check_confirmed(confirmed).map_err(|error| {
        kx::pr_err_ratelimited!(
            "{}: {}: {}\n",
            transport.name(),
            name.as_str(),
            error.as_str()
        );
        convert::error(error.errno())
    })
}

/// Returns the message that opens a device.
fn opening(name: DevicePath<'_>, access: Access, checksum: DataChecksum) -> Open<'_> {
    Open {
        access_mode: access.mode,
        exclusive: access.exclusive,
        dev_name: name,
        only_known: false,
        checksums: checksum.is_on(),
    }
}

fn ask(transport: &ibtrs_client::Session, msg: &Open<'_>) -> Result<OpenRsp> {
    let mut reply = [0; OPEN_RSP_LONG_LEN];
    let extensions = transport.has_extensions();
    // A C server sends as much of its memory as the client asks for.
    let wanted = if extensions {
        OPEN_RSP_LONG_LEN
    } else {
        OPEN_RSP_LEN
    };
    let (asked, _) = reply.split_at_mut(wanted);
    send(transport, Dir::Read, &msg.encode(), asked)?;
    let mut rsp = OpenRsp::decode(&reply).map_err(|error| nonsense(transport.name(), error))?;
    if extensions {
        rsp.details = Details::decode(&reply);
    } else {
        // A C server leaves arbitrary bytes there.
        rsp.identity = Identity::UNKNOWN;
    }
    Ok(rsp)
}

/// Asks the server for the exports that the session may open, from the one behind `after` on;
/// `reply` has the answer, which has room for [`DISCOVER_RSP_LEN`] bytes.
///
/// # Context
///
/// May sleep; interruptible.
///
/// # Errors
///
/// `EOPNOTSUPP` if the server does not know the message; errors of the server and of the transport;
/// `EPROTO` if the answer is invalid.
///
/// [`DISCOVER_RSP_LEN`]: ibnbd_proto::msg::DISCOVER_RSP_LEN
pub(crate) fn discover<'a>(
    transport: &ibtrs_client::Session,
    after: Option<DevicePath<'_>>,
    reply: &'a mut [u8],
) -> Result<DiscoverRsp<'a>> {
    if !transport.has_extensions() {
        return Err(EOPNOTSUPP);
    }
    let msg = Discover { after };
    let sent = send(transport, Dir::Read, &msg.encode(), reply);
    sent.map_err(|error| match error {
        // The answer to a type of message that the server does not have.
        EINVAL => EOPNOTSUPP,
        error => error,
    })?;
    DiscoverRsp::decode(reply, after).map_err(|error| {
        // The user does not ask for one of the exports, so the error of an export says nothing.
        let _ = nonsense(transport.name(), error);
        EPROTO
    })
}

/// Closes a device on the server. A failure is only logged: the device then stays open until the
/// session ends.
///
/// # Context
///
/// May sleep; interruptible.
pub(crate) fn close_device(transport: &ibtrs_client::Session, device_id: u32) {
    let msg = Close { device_id };
    let closed = send(transport, Dir::Write, &msg.encode(), &mut []);
    if let Err(error) = closed {
        kx::pr_warn_ratelimited!(
            "{}: closing device {} on the server failed: {}\n",
            transport.name(),
            device_id,
            convert::errno(error).as_str()
        );
    }
}

/// Returns how long requests may wait for a path or for a device, in seconds.
///
/// # Context
///
/// Any.
pub(crate) fn queue_timeout_s(transport: &ibtrs_client::Session) -> u32 {
    transport.settings().queue_timeout_s.get()
}
