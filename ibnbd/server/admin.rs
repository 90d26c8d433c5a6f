// SPDX-License-Identifier: GPL-2.0

//! Administrative messages: session information, opening and closing of devices.
//!
//! The messages of a session are served one at a time, so that a client occupies one worker
//! at most, whatever it sends. Closing a device waits for its I/O and runs elsewhere: a
//! session has no more of these workers than devices.

use crate::{
    device::Opened,
    param,
    session::{
        self,
        Closing,
        OpenDevice,
        Session, //
    },
    sysfs::View, //
};
use ibnbd_proto::{
    msg::{
        Close,
        MsgError,
        Open,
        OpenRsp,
        UserMsg,
        DETAILS_LEN,
        OPEN_RSP_LEN,
        OPEN_RSP_LONG_LEN,
        SESS_INFO_LEN, //
    },
    path::{
        self,
        PathError,
        PATH_MAX, //
    },
};
use ibtrs_core::convert;
use ibtrs_proto::name::{
    DevicePath,
    SessionName, //
};
use ibtrs_server::Request;
use kernel::{
    alloc::AllocError,
    prelude::*,
    str::CString,
    sync::Arc, //
};
use kx::{
    blk::BlockDevice,
    mm::NoIo,
    pr_err_ratelimited,
    pr_info_ratelimited,
    pr_warn_ratelimited,
    sync::PercpuOwner,
    work::Queue, //
};

/// The answer to a message.
enum Reply {
    SessInfo([u8; SESS_INFO_LEN]),
    Open(OpenAnswer),
}

/// The answer to OPEN, the details behind it.
type OpenAnswer = [u8; OPEN_RSP_LONG_LEN];

impl Reply {
    /// Returns the message, cut to the `wanted` bytes that the client has room for.
    fn bytes(&self, wanted: usize) -> &[u8] {
        match self {
            Self::SessInfo(bytes) => bytes,
            Self::Open(bytes) => bytes
                .get(..wanted.clamp(OPEN_RSP_LEN, OPEN_RSP_LONG_LEN))
                .unwrap_or(bytes),
        }
    }
}

/// Serves an administrative message. A device that it closes is waited for on `closers`.
///
/// # Context
///
/// May sleep.
pub(crate) fn serve(session: &Arc<Session>, closers: &Queue, mut request: Request) {
    let message = UserMsg::parse(request.user_hdr()).and_then(|message| {
        message.check_direction(request.dir())?;
        Ok(message)
    });
    let reply = match message {
        Ok(UserMsg::SessInfo(info)) => {
            let answer = info.answer();
            session.set_version(answer.ver);
            Ok(Reply::SessInfo(answer.encode()))
        }
        Ok(UserMsg::Open(message)) => open(session, &message).map(Reply::Open),
        Ok(UserMsg::Close(message)) => return close(session, closers, message, request),
        Ok(UserMsg::Io(_)) => Err(EINVAL),
        Err(error) => Err(refused(session, error)),
    };
    // The client asks again in its next session.
    if reply.is_err() && session.is_stopped() {
        return request.abandon();
    }
    let result = match &reply {
        Ok(reply) => request.reply_bytes(reply.bytes(request.data_len())),
        Err(error) => Err(*error),
    };
    request.respond(result);
}

/// Says why a message is refused, and returns the error to answer with.
pub(crate) fn refused(session: &Session, error: MsgError) -> Error {
    pr_warn_ratelimited!("{}: message refused: {}\n", session.name(), error.as_str());
    convert::error(error.errno())
}

/// Why a device is not opened.
struct Refusal {
    error: Error,
    /// The reason, where the errno alone does not give it.
    why: &'static str,
}

impl Refusal {
    const fn new(error: Error, why: &'static str) -> Self {
        Self { error, why }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let why = match error {
            ENOENT | ENOTDIR => "no such device",
            EXDEV => "a symbolic link leads out of dev_search_path",
            ENOTBLK => "it is no block device",
            EPERM => "no more sessions may write to it",
            EBUSY => "it is in use here or by a client, and one of the users needs it exclusively",
            EOPNOTSUPP => "it is zoned, which the protocol does not support",
            _ => "it cannot be opened",
        };
        Self { error, why }
    }
}

impl From<AllocError> for Refusal {
    fn from(error: AllocError) -> Self {
        Error::from(error).into()
    }
}

impl From<PathError> for Refusal {
    fn from(error: PathError) -> Self {
        Self {
            error: convert::error(error.errno()),
            why: error.as_str(),
        }
    }
}

impl From<MsgError> for Refusal {
    fn from(error: MsgError) -> Self {
        Self {
            error: convert::error(error.errno()),
            why: error.as_str(),
        }
    }
}

/// Opens a device, or finds it open: a client that has lost the answer asks again.
fn open(session: &Arc<Session>, message: &Open<'_>) -> Result<OpenAnswer> {
    try_open(session, message).map_err(|Refusal { error, why }| {
        pr_err_ratelimited!(
            "{}: cannot open {}, {}: {}: {} ({})\n",
            session.name(),
            message.dev_name.as_str(),
            message.access_mode.as_str(),
            why,
            convert::errno(error).as_str(),
            error.to_errno()
        );
        error
    })
}

fn try_open(session: &Arc<Session>, message: &Open<'_>) -> Result<OpenAnswer, Refusal> {
    let name = message.dev_name;
    let access = message.access(session.has_extensions());
    let mut open = session.open.lock();
    if session.is_stopped() {
        return Err(Refusal::new(ESHUTDOWN, "the server is being stopped"));
    }
    if let Some(known) = open.by_name(name) {
        if known.device.access() != access {
            let why = "the session has it open in another mode";
            return Err(Refusal::new(EPERM, why));
        }
        return answer(session, known.id, &known.device);
    }
    if message.only_known && session.has_extensions() {
        return Err(Refusal::new(ENOENT, "the session does not have it open"));
    }
    if session.is_full(&open) {
        let why = "the session already has max_devices devices open or being closed";
        return Err(Refusal::new(ENOSPC, why));
    }
    let dev = find_below(session, name)?;
    // Names are without number: a device has one of them in a session. To give the same answer
    // for another name would not do, as CLOSE of one would take the device from the other.
    if open.has_device(dev) {
        let why = "the session has it open by another name";
        return Err(Refusal::new(EEXIST, why));
    }
    let device = Opened::open(&session.exports, dev, access)?;
    let id = open.new_id()?;
    let rsp = answer(session, id, &device)?;
    let view = Arc::new(
        View {
            session: session.clone(),
            id,
            name: CString::try_from_fmt(fmt!("{}", name.as_str()))?,
            access,
        },
        GFP_KERNEL,
    )?;
    let name = CString::try_from_fmt(fmt!("{}", name.as_str()))?;
    open.reserve()?;
    let device = PercpuOwner::new(device)?;
    let device = OpenDevice {
        id,
        dev,
        name,
        _dir: device.user().show(&view),
        device,
    };
    let result = match open.insert(device) {
        Ok(()) => session
            .publish(&open)
            .map_err(|error| (error, open.take(id))),
        Err(device) => Err((ENOMEM, Some(device))),
    };
    drop(open);
    if let Err((error, device)) = result {
        // Not before, as its files take the lock.
        drop(device);
        return Err(error.into());
    }
    session.watch_sizes();
    pr_info_ratelimited!(
        "{}: opened {} as device {}, {}\n",
        session.name(),
        *view.name,
        id,
        access.as_str()
    );
    Ok(rsp)
}

/// Finds the number of a device below the search path.
fn find_below(session: &Session, device: DevicePath<'_>) -> Result<u32, Refusal> {
    if param::dev_search_path.get().is_empty() {
        return Err(Refusal::new(EACCES, "dev_search_path is not set"));
    }
    let name = SessionName::new(session.name().to_bytes())
        .map_err(|error| Refusal::new(convert::error(error.errno()), error.as_str()))?;
    let mut root = KVec::from_elem(0u8, PATH_MAX, GFP_KERNEL)?;
    let mut place = KVec::from_elem(0u8, PATH_MAX, GFP_KERNEL)?;
    let root = path::root(&mut root, session::search_path()?, name)?;
    let place = path::below(&mut place, root, device)?;
    Ok(BlockDevice::find(root, place)?)
}

fn answer(session: &Session, id: u32, device: &Opened) -> Result<OpenAnswer, Refusal> {
    let limits = device.tell_limits();
    let mut rsp = OpenRsp::new(id, &limits)?;
    let mut details = [0; DETAILS_LEN];
    if session.has_extensions() {
        rsp.identity = device.identity();
        details = limits.details().encode();
    }
    let mut answer = [0; OPEN_RSP_LONG_LEN];
    let (head, tail) = answer.split_at_mut(OPEN_RSP_LEN);
    head.copy_from_slice(&rsp.encode());
    tail.copy_from_slice(&details);
    Ok(answer)
}

/// Closes a device, and answers when its I/O has ended; one that is not open counts as closed.
fn close(session: &Arc<Session>, closers: &Queue, message: Close, request: Request) {
    let device = match session.withdraw(message.device_id) {
        Ok(Some(device)) => device,
        Ok(None) => return request.respond(Ok(())),
        Err(error) => return request.respond(Err(error)),
    };
    pr_info_ratelimited!("{}: closed {}\n", session.name(), *device.name);
    let closing = Closing::new(session, device);
    let _no_io = NoIo::enter();
    // Without memory it is closed here, and the client told that something was wrong.
    let _ = closers.spawn(GFP_KERNEL, move || {
        drop(closing);
        request.respond(Ok(()));
    });
}
