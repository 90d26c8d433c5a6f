// SPDX-License-Identifier: GPL-2.0

//! Administrative messages: session information, opening and closing.

use crate::{
    device::Opened,
    session::{
        self,
        OpenDevice,
        Session, //
    },
};
use ibnbd_proto::{
    msg::{
        Close,
        Open,
        OpenRsp,
        UserMsg,
        OPEN_RSP_LEN,
        SESS_INFO_LEN, //
    },
    path::{
        self,
        PathError,
        PATH_MAX, //
    },
};
use ibtrs_core::convert;
use ibtrs_proto::name::SessionName;
use ibtrs_server::Op;
use kernel::{
    prelude::*,
    str::CString, //
};
use kx::{
    pr_err_ratelimited,
    sync::PercpuOwner, //
};

/// The answer to a message.
enum Reply {
    None,
    SessInfo([u8; SESS_INFO_LEN]),
    Open([u8; OPEN_RSP_LEN]),
}

impl Reply {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::SessInfo(bytes) => bytes,
            Self::Open(bytes) => bytes,
        }
    }
}

/// Serves an administrative message.
///
/// # Context
///
/// May sleep.
pub(crate) fn serve(session: &Session, mut op: Op) {
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
        Ok(reply) => op.reply_bytes(reply.bytes()),
        Err(error) => Err(*error),
    };
    op.respond(result);
}

/// Opens a device, or finds it open: a client that has lost the answer asks again.
fn open(session: &Session, message: &Open<'_>) -> Result<[u8; OPEN_RSP_LEN]> {
    let name = message.dev_name;
    try_open(session, message).inspect_err(|error| {
        pr_err_ratelimited!(
            "{}: cannot open {}, {}: {} ({})\n",
            session.name(),
            name.as_str(),
            message.access_mode.as_str(),
            convert::errno(*error).as_str(),
            error.to_errno()
        );
    })
}

fn try_open(session: &Session, message: &Open<'_>) -> Result<[u8; OPEN_RSP_LEN]> {
    let name = message.dev_name;
    let mut open = session.open.lock();
    let known = open
        .list
        .iter()
        .find(|device| device.name.to_bytes() == name.as_bytes());
    if let Some(known) = known {
        if known.device.mode() != message.access_mode {
            pr_err_ratelimited!(
                "{}: {} is open already, {}\n",
                session.name(),
                name.as_str(),
                known.device.mode().as_str()
            );
            return Err(EPERM);
        }
        return answer(session, known.id, &known.device);
    }
    let device = open_below(session, message)?;
    let id = open.new_id()?;
    let rsp = answer(session, id, &device)?;
    let device = OpenDevice {
        id,
        name: CString::try_from_fmt(fmt!("{}", name.as_str()))?,
        device: PercpuOwner::new(device)?,
    };
    open.list.push(device, GFP_KERNEL)?;
    if let Err(error) = session.publish(&open) {
        open.list.pop();
        return Err(error);
    }
    pr_info!(
        "{}: opened {} as device {}, {}\n",
        session.name(),
        name.as_str(),
        id,
        message.access_mode.as_str()
    );
    Ok(rsp)
}

/// Finds the device below the search path.
fn open_below(session: &Session, message: &Open<'_>) -> Result<Opened> {
    let refuse = |error: PathError| convert::error(error.errno());
    if crate::param::dev_search_path.get().is_empty() {
        pr_err_ratelimited!("dev_search_path is not set: no device can be opened\n");
        return Err(EACCES);
    }
    let name = SessionName::new(session.name().to_bytes())
        .map_err(|error| convert::error(error.errno()))?;
    let mut root = KVec::from_elem(0u8, PATH_MAX, GFP_KERNEL)?;
    let mut place = KVec::from_elem(0u8, PATH_MAX, GFP_KERNEL)?;
    let search = session::search_path().map_err(refuse)?;
    let root = path::root(&mut root, search, name).map_err(refuse)?;
    let place = path::below(&mut place, root, message.dev_name).map_err(refuse)?;
    Opened::open(&session.exports, root, place, message.access_mode)
}

fn answer(session: &Session, id: u32, device: &Opened) -> Result<[u8; OPEN_RSP_LEN]> {
    let mut rsp = OpenRsp::new(id, &device.limits()).map_err(|error| {
        pr_err_ratelimited!("{}: {}\n", device.bdev().name(), error.as_str());
        convert::error(error.errno())
    })?;
    if session.has_extensions() {
        rsp.identity = device.identity();
    }
    Ok(rsp.encode())
}

/// Closes a device; one that is not open counts as closed.
fn close(session: &Session, message: Close) -> Result {
    let mut open = session.open.lock();
    let at = open
        .list
        .iter()
        .position(|device| device.id == message.device_id);
    let Some(at) = at else {
        return Ok(());
    };
    let device = open.list.remove(at).map_err(|_| EINVAL)?;
    if let Err(error) = session.publish(&open) {
        // It is still found by I/O; the client may try again.
        let _ = open.list.push(device, GFP_KERNEL);
        return Err(error);
    }
    drop(open);
    pr_info!("{}: closed {}\n", session.name(), *device.name);
    device.device.kill_and_wait();
    Ok(())
}
