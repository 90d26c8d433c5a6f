// SPDX-License-Identifier: GPL-2.0

//! Administrative messages: session information, opening and closing.

use crate::{
    device::Opened,
    session::{
        self,
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
    Access, //
};
use ibtrs_core::convert;
use ibtrs_proto::name::{
    DevicePath,
    SessionName, //
};
use ibtrs_server::Op;
use kernel::{
    alloc::AllocError,
    prelude::*,
    str::CString,
    sync::Arc, //
};
use kx::{
    pr_err_ratelimited,
    sync::PercpuOwner, //
};

/// The answer to a message.
enum Reply {
    None,
    SessInfo([u8; SESS_INFO_LEN]),
    Open(OpenAnswer),
}

/// The answer to OPEN, the details behind it.
type OpenAnswer = [u8; OPEN_RSP_LONG_LEN];

impl Reply {
    /// Returns the bytes for a client that wants so many.
    fn bytes(&self, wanted: usize) -> &[u8] {
        match self {
            Self::None => &[],
            Self::SessInfo(bytes) => bytes,
            Self::Open(bytes) => bytes
                .get(..wanted.clamp(OPEN_RSP_LEN, OPEN_RSP_LONG_LEN))
                .unwrap_or(bytes),
        }
    }
}

/// Serves an administrative message.
///
/// # Context
///
/// May sleep.
pub(crate) fn serve(session: &Arc<Session>, mut op: Op) {
    let reply = match UserMsg::parse(op.user_hdr()) {
        Ok(UserMsg::SessInfo(info)) => {
            let answer = info.answer();
            session.set_version(answer.ver);
            Ok(Reply::SessInfo(answer.encode()))
        }
        Ok(UserMsg::Open(message)) => open(session, &message).map(Reply::Open),
        Ok(UserMsg::Close(message)) => close(session, message).map(|()| Reply::None),
        Ok(UserMsg::Io(_)) => Err(EINVAL),
        Err(error) => Err(convert::error(error.errno())),
    };
    let result = match &reply {
        Ok(Reply::None) => Ok(()),
        Ok(reply) => op.reply_bytes(reply.bytes(op.data_len())),
        Err(error) => Err(*error),
    };
    op.respond(result);
}

/// Why a device is not opened.
struct Refusal {
    error: Error,
    /// What is wrong, where the error does not say it.
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
            ENOENT | ENOTDIR => "there is none",
            EXDEV => "a symbolic link leads out of dev_search_path",
            ENOTBLK => "it is no block device",
            EPERM => "as many sessions as may write to it do",
            EBUSY => "it is in use, here or by a client, and one wants it for itself",
            EOPNOTSUPP => "it is zoned, and the protocol knows no zones",
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
    let known = open
        .list
        .iter()
        .find(|device| device.name.to_bytes() == name.as_bytes());
    if let Some(known) = known {
        if known.device.access() != access {
            let why = "the session has it open in another mode";
            return Err(Refusal::new(EPERM, why));
        }
        return answer(session, known.id, &known.device);
    }
    if message.only_known && session.has_extensions() {
        return Err(Refusal::new(ENOENT, "the session does not have it open"));
    }
    let device = open_below(session, name, access)?;
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
    open.list.reserve(1, GFP_KERNEL)?;
    let device = PercpuOwner::new(device)?;
    let device = OpenDevice {
        id,
        name,
        dir: device.user().show(&view),
        device,
    };
    open.list.push(device, GFP_KERNEL)?;
    if let Err(error) = session.publish(&open) {
        let device = open.list.pop();
        drop(open);
        // Its files take the lock.
        drop(device);
        return Err(error.into());
    }
    session.watch_sizes();
    pr_info!(
        "{}: opened {} as device {}, {}\n",
        session.name(),
        *view.name,
        id,
        access.as_str()
    );
    Ok(rsp)
}

/// Finds the device below the search path.
fn open_below(
    session: &Session,
    device: DevicePath<'_>,
    access: Access,
) -> Result<Opened, Refusal> {
    if crate::param::dev_search_path.get().is_empty() {
        return Err(Refusal::new(EACCES, "dev_search_path is not set"));
    }
    let name = SessionName::new(session.name().to_bytes())
        .map_err(|error| Refusal::new(convert::error(error.errno()), error.as_str()))?;
    let mut root = KVec::from_elem(0u8, PATH_MAX, GFP_KERNEL)?;
    let mut place = KVec::from_elem(0u8, PATH_MAX, GFP_KERNEL)?;
    let root = path::root(&mut root, session::search_path()?, name)?;
    let place = path::below(&mut place, root, device)?;
    Ok(Opened::open(&session.exports, root, place, access)?)
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

/// Closes a device; one that is not open counts as closed.
fn close(session: &Session, message: Close) -> Result {
    if let Some(device) = session.withdraw(message.device_id)? {
        pr_info!("{}: closed {}\n", session.name(), *device.name);
        device.close();
    }
    Ok(())
}
