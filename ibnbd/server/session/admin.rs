// SPDX-License-Identifier: GPL-2.0

//! Administrative messages: session information, opening and closing of devices, discovery.
//!
//! The messages of a session are served one at a time, so a client occupies at most one worker,
//! whatever it sends. Closing a device waits for its I/O and runs in a separate worker; a session
//! has at most one of these for each device.

use super::{
    open::{
        Called,
        Closing,
        OpenDevice,
        OpenDevices, //
    },
    view::View,
    Session, //
};
use crate::{
    config::{
        Asked,
        Denied,
        Granted,
        Size, //
    },
    device::Opened,
    param,
    session, //
};
use ibnbd_proto::{
    grant::{
        self,
        Grant, //
    },
    msg::{
        Close,
        Discover,
        DiscoverPage,
        MsgError,
        Open,
        OpenRsp,
        UserMsg,
        DETAILS_LEN,
        DISCOVER_RSP_LEN,
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
use ibtrs_core::convert::{
    self,
    Shown, //
};
use ibtrs_proto::{
    addr::Addr,
    name::{
        DevicePath,
        SessionName, //
    },
};
use ibtrs_server::Request;
use kernel::{
    alloc::AllocError,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        MutexGuard, //
    }, //
};
use kx::{
    blk::BlockDevice,
    mm::NoIo,
    sync::PercpuOwner,
    work::Queue, //
};

/// The answer to a message.
enum Reply {
    SessInfo([u8; SESS_INFO_LEN]),
    Open(OpenAnswer),
    /// A part of the list of exports.
    Page(KVec<u8>),
}

/// The answer to OPEN, followed by the details.
type OpenAnswer = [u8; OPEN_RSP_LONG_LEN];

impl Reply {
    /// Returns the message, truncated to the `wanted` bytes of the client's buffer.
    fn bytes(&self, wanted: usize) -> &[u8] {
        match self {
            Self::SessInfo(bytes) => bytes,
            Self::Page(bytes) => bytes,
            Self::Open(bytes) => bytes
                .get(..wanted.clamp(OPEN_RSP_LEN, OPEN_RSP_LONG_LEN))
                .unwrap_or(bytes),
        }
    }
}

/// Serves an administrative message. CLOSE waits for the I/O of its device on `closers`.
///
/// # Context
///
/// May sleep.
pub(crate) fn serve(session: &Arc<Session>, closers: &Queue, mut request: Request) {
    // A task that closes a device for an operator waits for the lock of the session's devices, so no
    // allocation under it waits for I/O.
    let _no_io = NoIo::enter();
    let parsed = UserMsg::parse(request.user_hdr(), session.has_extensions());
    let message = parsed.and_then(|message| {
        message.check_direction(request.dir())?;
        Ok(message)
    });
    let reply = match message {
        Ok(UserMsg::SessInfo(info)) => {
            let answer = info.answer();
            session.set_version(answer.ver);
            Ok(Reply::SessInfo(answer.encode()))
        }
        // No answer can reach the client, which repeats the message.
        Ok(UserMsg::Open(_)) if request.is_moot() => return request.abandon(),
        Ok(UserMsg::Open(message)) => open(session, &message, request.source()).map(Reply::Open),
        Ok(UserMsg::Discover(_)) if request.is_moot() => return request.abandon(),
        Ok(UserMsg::Discover(message)) => {
            discover(session, &message, request.source()).map(Reply::Page)
        }
        Ok(UserMsg::Close(message)) => return close(session, closers, message, request),
        Ok(UserMsg::Io(_)) => Err(EINVAL),
        Err(error) => Err(session.refused(&request.source(), error)),
    };
    // No answer: the client repeats the message in its next session.
    if reply.is_err() && session.is_stopped() {
        return request.abandon();
    }
    let result = match &reply {
        Ok(reply) => request.reply_bytes(reply.bytes(request.data_len())),
        Err(error) => Err(*error),
    };
    request.respond(result);
}

/// Why a device is not opened.
struct OpenRefusal {
    error: Error,
    /// The reason for the log.
    why: &'static str,
}

impl OpenRefusal {
    const fn new(error: Error, why: &'static str) -> Self {
        Self { error, why }
    }
}

impl From<Denied> for OpenRefusal {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Refused(refusal) => {
                Self::new(convert::error(refusal.errno()), refusal.as_str())
            }
            Denied::Failed(error) => error.into(),
        }
    }
}

impl From<Error> for OpenRefusal {
    fn from(error: Error) -> Self {
        let why = match error {
            ENOENT | ENOTDIR => "no such device",
            EXDEV => "a symbolic link leads out of dev_search_path",
            ENOTBLK => "it is not a block device",
            EPERM => "no more sessions may write to it",
            EBUSY => "it is in use here or by a client, and one of the users needs it exclusively",
            EOPNOTSUPP => "it is zoned, which the protocol does not support",
            _ => "it cannot be opened",
        };
        Self::new(error, why)
    }
}

impl From<AllocError> for OpenRefusal {
    fn from(error: AllocError) -> Self {
        Error::from(error).into()
    }
}

impl From<PathError> for OpenRefusal {
    fn from(error: PathError) -> Self {
        Self::new(convert::error(error.errno()), error.as_str())
    }
}

impl From<MsgError> for OpenRefusal {
    fn from(error: MsgError) -> Self {
        Self::new(convert::error(error.errno()), error.as_str())
    }
}

/// Opens a device. If the session already has it open, it is described again, because a client that
/// has lost the answer repeats its message.
fn open(session: &Arc<Session>, message: &Open<'_>, source: Addr) -> Result<OpenAnswer> {
    let called = Called {
        name: message.dev_name.as_str(),
        export: session.config.has_exports(),
    };
    try_open(session, message, source).map_err(|OpenRefusal { error, why }| {
        // The client has only queried the device.
        let is_answer = error == ENOENT && message.only_known && session.has_extensions();
        if !is_answer && session.may_log(&source) {
            pr_warn!(
                "{}: {}: {}: refused, {}: {} ({})\n",
                session.name(),
                Shown(source),
                called,
                message.access(session.has_extensions()).as_str(),
                why,
                convert::errno(error).as_str()
            );
        }
        error
    })
}

fn try_open(
    session: &Arc<Session>,
    message: &Open<'_>,
    source: Addr,
) -> Result<OpenAnswer, OpenRefusal> {
    let name = message.dev_name;
    let mut open = session.open.lock();
    if session.is_stopped() {
        return Err(OpenRefusal::new(ESHUTDOWN, "the server is being stopped"));
    }
    if let Some(known) = open.by_name(name) {
        return describe_known(session, message, known);
    }
    // The answer notifies the client that the device is closed, or the client reopens it.
    session.gone.lock().forget(name.as_str().as_bytes());
    if is_question(session, message) {
        return Err(OpenRefusal::new(
            ENOENT,
            "the session does not have it open",
        ));
    }
    let permitted = permit(session, message, &mut open)?;
    let new = open_permitted(session, message, source, &mut open, permitted)?;
    let (id, grant, answer) = (new.device.id, new.grant, new.answer);
    publish(session, open, new)?;
    session.watch_sizes();
    if session.may_log(&source) {
        let called = Called {
            name: name.as_str(),
            export: grant.is_some(),
        };
        pr_info!(
            "{}: {}: {}: granted, {}: {} (device {})\n",
            session.name(),
            Shown(source),
            called,
            message.access(session.has_extensions()).as_str(),
            grant.map_or("it is below dev_search_path", |grant| grant.as_str()),
            id
        );
    }
    Ok(answer)
}

/// Returns whether the client only queries a device that the session has open.
fn is_question(session: &Session, message: &Open<'_>) -> bool {
    // C clients send uninitialised memory in this field.
    message.only_known && session.has_extensions()
}

/// Answers the OPEN of a device that the session has open.
fn describe_known(
    session: &Session,
    message: &Open<'_>,
    known: &OpenDevice,
) -> Result<OpenAnswer, OpenRefusal> {
    let only_known = is_question(session, message);
    if known.device.access() != message.access(session.has_extensions()) {
        let why = "the session has it open in another mode";
        return Err(OpenRefusal::new(EPERM, why));
    }
    if known.device.is_revoked() {
        let errno = match only_known {
            true => ENOENT,
            false => EBUSY,
        };
        return Err(OpenRefusal::new(errno, "an operator closes it"));
    }
    let is_granted = only_known || known.granted.is_some();
    if !is_granted && session.config.has_exports() {
        let why = "the session has it open from dev_search_path, which is off: close it before the export is opened";
        return Err(OpenRefusal::new(EEXIST, why));
    }
    // The last OPEN that opens the device is decisive, as a client whose CLOSE was lost may map the
    // device again.
    let checksums = match only_known {
        true => known.device.has_checksums(),
        false => wants_checksums(session, message),
    };
    let granted = known.granted.as_ref();
    let described = answer(session, known.id, &known.device, granted, checksums)?;
    known.device.set_checksums(checksums);
    if checksums {
        session.set_checksums(known.device.throttle().cloned());
    }
    Ok(described)
}

/// A device that a session may open.
struct Permitted {
    /// Its id in the session.
    id: u32,
    /// The number of the block device.
    dev: u32,
    /// The grant, if it is an export.
    granted: Option<Granted>,
}

/// Decides whether a session may open a device, and looks it up.
fn permit(
    session: &Arc<Session>,
    message: &Open<'_>,
    open: &mut OpenDevices,
) -> Result<Permitted, OpenRefusal> {
    let name = message.dev_name;
    if session.is_full(open) {
        let why = "the session already has max_devices devices open or being closed";
        return Err(OpenRefusal::new(ENOSPC, why));
    }
    let id = open.new_id()?;
    let granted = session.config.grant(&Asked {
        peer: session.peer(),
        session: session.clone(),
        device: id,
        devices: session.count(open),
        name: grant::export_name(name.as_str()),
        access: message.access(session.has_extensions()),
    })?;
    let dev = match &granted {
        Some(granted) => BlockDevice::find(c"/", &granted.path)?,
        None => find_below(session, name)?,
    };
    // A device may have any number of names, of which a session uses one. With the same id for
    // two names, CLOSE of one would close the device of the other.
    if open.has_device(dev) {
        let why = "the session has it open by another name";
        return Err(OpenRefusal::new(EEXIST, why));
    }
    Ok(Permitted { id, dev, granted })
}

/// A device that was opened, and the answer to the client.
struct NewDevice {
    device: OpenDevice,
    /// Why it was granted, if it is an export.
    grant: Option<Grant>,
    checksums: bool,
    answer: OpenAnswer,
}

/// Opens a device, and reserves space for it in the list.
fn open_permitted(
    session: &Arc<Session>,
    message: &Open<'_>,
    source: Addr,
    open: &mut OpenDevices,
    permitted: Permitted,
) -> Result<NewDevice, OpenRefusal> {
    let Permitted { id, dev, granted } = permitted;
    let access = message.access(session.has_extensions());
    let grant = granted.as_ref().map(|granted| granted.grant);
    let terms = granted.as_ref().map(|granted| granted.terms.clone());
    let device = Opened::open(
        &session.exports,
        session.name(),
        &session.requests,
        dev,
        access,
        terms,
    )?;
    let checksums = wants_checksums(session, message);
    device.set_checksums(checksums);
    let answer = answer(session, id, &device, granted.as_ref(), checksums)?;
    let view = Arc::new(
        View {
            session: session.clone(),
            id,
            name: CString::try_from_fmt(fmt!("{}", message.dev_name.as_str()))?,
            access,
        },
        GFP_KERNEL,
    )?;
    let name = CString::try_from_fmt(fmt!("{}", message.dev_name.as_str()))?;
    open.reserve()?;
    // Without this check, the OPEN would succeed for a device that is closed as soon as this lock
    // is released.
    if device.is_revoked() {
        let why = "its export was taken away while it was being opened";
        return Err(OpenRefusal::new(EACCES, why));
    }
    let device = PercpuOwner::new(device)?;
    let device = OpenDevice {
        id,
        dev,
        name,
        source,
        _dir: view.show(device.user()),
        device,
        granted,
    };
    Ok(NewDevice {
        device,
        grant,
        checksums,
        answer,
    })
}

/// Publishes a device that was opened for I/O. A refused device is dropped without the lock, as its
/// attributes take it.
fn publish(
    session: &Session,
    mut open: MutexGuard<'_, OpenDevices>,
    new: NewDevice,
) -> Result<(), OpenRefusal> {
    let limits = new.device.device.throttle().cloned();
    // The device is already in sysfs, so an operator who creates the first export after this check
    // can see it.
    let result = match new.grant.is_none() && session.config.has_exports() {
        true => Err((Denied::from(grant::unknown(false)).into(), new.device)),
        false => open
            .insert(new.device)
            .map_err(|device| (ENOMEM.into(), device)),
    };
    if result.is_ok() {
        if new.checksums {
            session.set_checksums(limits);
        }
        session.publish(&mut open);
    }
    drop(open);
    result.map_err(|(refusal, _device): (OpenRefusal, _)| refusal)
}

/// Returns whether requests to the device that `message` opens will have checksums.
fn wants_checksums(session: &Session, message: &Open<'_>) -> bool {
    message.checksums && session.has_extensions()
}

/// Returns the device number of a block device below `dev_search_path`.
fn find_below(session: &Session, device: DevicePath<'_>) -> Result<u32, OpenRefusal> {
    if param::dev_search_path.get().is_empty() {
        return Err(OpenRefusal::new(EACCES, "dev_search_path is not set"));
    }
    let name = SessionName::new(session.name().to_bytes())
        .map_err(|error| OpenRefusal::new(convert::error(error.errno()), error.as_str()))?;
    let mut root = KVec::from_elem(0u8, PATH_MAX, GFP_KERNEL)?;
    let mut place = KVec::from_elem(0u8, PATH_MAX, GFP_KERNEL)?;
    let root = path::root(&mut root, session::search_path()?, name)?;
    let place = path::below(&mut place, root, device)?;
    Ok(BlockDevice::find(root, place)?)
}

fn answer(
    session: &Session,
    id: u32,
    device: &Opened,
    granted: Option<&Granted>,
    checksums: bool,
) -> Result<OpenAnswer, OpenRefusal> {
    let limits = device.tell_limits();
    let mut rsp = OpenRsp::new(id, &limits)?;
    if let Some(granted) = granted {
        granted.note_size(Size {
            nsectors: limits.nsectors,
            logical_block_size: limits.logical_block_size,
        });
    }
    let mut details = [0; DETAILS_LEN];
    if session.has_extensions() {
        rsp.identity = device.identity();
        details = limits.details(checksums).encode();
    }
    let mut answer = [0; OPEN_RSP_LONG_LEN];
    let (head, tail) = answer.split_at_mut(OPEN_RSP_LEN);
    head.copy_from_slice(&rsp.encode());
    tail.copy_from_slice(&details);
    Ok(answer)
}

/// Returns a part of the list of exports that the session may open.
fn discover(session: &Session, message: &Discover<'_>, source: Addr) -> Result<KVec<u8>> {
    let mut bytes = KVec::from_elem(0u8, DISCOVER_RSP_LEN, GFP_KERNEL)?;
    let mut page = DiscoverPage::new(&mut bytes).ok_or(EMSGSIZE)?;
    let list = session
        .config
        .list(session.peer(), message.after, &mut page)?;
    let listed = page.exports();
    let len = page.finish(list.more, list.unlisted);
    bytes.truncate(len);
    if session.may_log(&source) {
        pr_info!(
            "{}: {}: discovery: {}exports listed: {}{}\n",
            session.name(),
            Shown(source),
            if message.after.is_some() {
                "further "
            } else {
                ""
            },
            listed,
            if list.more { ", and more" } else { "" }
        );
    }
    Ok(bytes)
}

/// Closes a device, and answers when its I/O has ended. A device that is not open counts as closed.
fn close(session: &Arc<Session>, closers: &Queue, message: Close, request: Request) {
    let Some(device) = session.withdraw(message.device_id) else {
        return request.respond(Ok(()));
    };
    session.log_close(&device, "by its client");
    let closing = Closing::new(session, device);
    let _no_io = NoIo::enter();
    // If the allocation fails, the closure is dropped here, which closes the device and answers
    // with an error.
    let _ = closers.spawn(GFP_KERNEL, move || {
        drop(closing);
        request.respond(Ok(()));
    });
}
