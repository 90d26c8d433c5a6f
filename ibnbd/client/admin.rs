// SPDX-License-Identifier: GPL-2.0

//! Administrative messages to the server: session information, opening and closing of devices,
//! discovery.

use ibnbd_proto::{
    checksum::DataChecksum,
    identity::Identity,
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
    Generation,
    Session, //
};
use ibtrs_core::convert;
use ibtrs_proto::name::DevicePath;
use kernel::prelude::*;
use kx::mm::NoIo;

/// A device that the server has open.
#[derive(Clone, Copy)]
pub(crate) struct OpenDevice {
    /// The server's description of the device.
    pub(crate) rsp: OpenRsp,
    /// The session generation in which the device has the number in `rsp`.
    pub(crate) generation: Generation,
}

/// Calls `send`, which sends a message to the server. If the server answers that the message was
/// damaged in transit, it has not executed the message, so this resends it once.
fn send_intact<T>(mut send: impl FnMut() -> Result<T>) -> Result<T> {
    match send() {
        Err(EBADMSG) => send(),
        result => result,
    }
}

/// Sends a message to the server, and returns the session generation in which the server has
/// answered; see [`send_intact`].
///
/// # Context
///
/// May sleep; interruptible.
///
/// # Errors
///
/// Errors of the server and of the transport.
fn send(transport: &Session, dir: Dir, message: &[u8], reply: &mut [u8]) -> Result<Generation> {
    send_intact(|| transport.admin(dir, message, reply))
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
pub(crate) fn introduce(transport: &Session) -> Result<u8> {
    let msg = SessInfo { ver: VERSION_MAJOR };
    let mut reply = [0; SESS_INFO_LEN];
    send(transport, Dir::Read, &msg.encode(), &mut reply)?;
    let rsp =
        SessInfoRsp::decode(&reply).map_err(|error| invalid_answer(transport.name(), error))?;
    Ok(rsp.ver)
}

/// Requests the description of a device that this session has open.
///
/// # Context
///
/// May sleep; interruptible.
///
/// # Errors
///
/// `ENOENT` if the server no longer has the device open; errors of [`open_device`].
pub(crate) fn ask_device(
    transport: &Session,
    name: DevicePath<'_>,
    access: Access,
    checksum: DataChecksum,
) -> Result<OpenDevice> {
    let open = Open {
        only_known: true,
        ..opening(name, access, checksum)
    };
    ask(transport, &open)
}

/// Opens a device on the server. The caller must pass the answer to [`check_checksum`].
///
/// A C server supports neither exclusive access nor checksums, so the client does not request them.
///
/// # Context
///
/// May sleep; interruptible. The server may open the device despite the interruption.
///
/// # Errors
///
/// `EOPNOTSUPP` if the server is a C server, and the options need an extension; errors of the
/// server and of the transport; `EPROTO` if the answer is invalid.
pub(crate) fn open_device(
    transport: &Session,
    name: DevicePath<'_>,
    access: Access,
    checksum: DataChecksum,
) -> Result<OpenDevice> {
    if !transport.has_extensions() {
        if access.exclusive {
            return Err(EOPNOTSUPP);
        }
        confirm(transport, name, checksum, false)?;
    }
    ask(transport, &opening(name, access, checksum))
}

/// Checks that the server uses the same `checksum` for the opened device. If not, the caller must
/// close the device.
///
/// # Errors
///
/// `EOPNOTSUPP` if the server does not support checksums; `EPROTO` if it expects checksums that the
/// client has not requested.
pub(crate) fn check_checksum(
    transport: &Session,
    name: DevicePath<'_>,
    checksum: DataChecksum,
    rsp: &OpenRsp,
) -> Result {
    confirm(transport, name, checksum, rsp.has_checksums())
}

/// Compares the `checksum` of a disk with the server's answer, and logs a difference.
fn confirm(
    transport: &Session,
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

fn ask(transport: &Session, msg: &Open<'_>) -> Result<OpenDevice> {
    let mut reply = [0; OPEN_RSP_LONG_LEN];
    let extensions = transport.has_extensions();
    // A C server sends as many bytes of its memory as the client requests.
    let wanted = if extensions {
        OPEN_RSP_LONG_LEN
    } else {
        OPEN_RSP_LEN
    };
    let (asked, _) = reply.split_at_mut(wanted);
    let generation = send(transport, Dir::Read, &msg.encode(), asked)?;
    let mut rsp =
        OpenRsp::decode(&reply).map_err(|error| invalid_answer(transport.name(), error))?;
    if extensions {
        rsp.details = Details::decode(&reply);
    } else {
        // A C server sends arbitrary bytes in this field.
        rsp.identity = Identity::UNKNOWN;
    }
    Ok(OpenDevice { rsp, generation })
}

/// Requests the list of exports that the session may open, from the one following `after` on; the
/// answer is stored in `reply`, which must have [`DISCOVER_RSP_LEN`] bytes.
///
/// # Context
///
/// May sleep; interruptible.
///
/// # Errors
///
/// `EOPNOTSUPP` if the server does not support the message; errors of the server and of the
/// transport; `EPROTO` if the answer is invalid.
///
/// [`DISCOVER_RSP_LEN`]: ibnbd_proto::msg::DISCOVER_RSP_LEN
pub(crate) fn discover<'a>(
    transport: &Session,
    after: Option<DevicePath<'_>>,
    reply: &'a mut [u8],
) -> Result<DiscoverRsp<'a>> {
    if !transport.has_extensions() {
        return Err(EOPNOTSUPP);
    }
    let msg = Discover { after };
    let sent = send(transport, Dir::Read, &msg.encode(), reply);
    sent.map_err(|error| match error {
        // The answer to an unsupported type of message.
        EINVAL => EOPNOTSUPP,
        error => error,
    })?;
    DiscoverRsp::decode(reply, after).map_err(|error| {
        // The user has not requested a particular export, so the error for an export would be
        // misleading.
        let _ = invalid_answer(transport.name(), error);
        EPROTO
    })
}

/// Closes the device that has number `device_id` in session generation `generation`. A failure is
/// logged: the device may still be open.
///
/// # Context
///
/// May sleep; interruptible.
///
/// # Errors
///
/// Errors of the server and of the transport; `ESTALE` if another session generation has begun, in
/// which the server may have kept the device.
pub(crate) fn close_device(transport: &Session, generation: Generation, device_id: u32) -> Result {
    let msg = Close { device_id }.encode();
    let closed = send_intact(|| transport.admin_in(generation, Dir::Write, &msg, &mut []));
    if let Err(error) = closed {
        kx::pr_warn_ratelimited!(
            "{}: closing device {} on the server failed: {}\n",
            transport.name(),
            device_id,
            convert::errno(error).as_str()
        );
    }
    closed
}

/// Closes the device `name` on the server, if the session has it open there with `access`. Only for a
/// session with extensions.
///
/// # Context
///
/// May sleep; interruptible.
///
/// # Errors
///
/// Errors of the server and of the transport; `EPROTO` if the answer is invalid; `ESTALE` if
/// another session generation has begun.
pub(crate) fn close_named(transport: &Session, name: &CStr, access: Access) -> Result {
    let _no_io = NoIo::enter();
    if !transport.has_extensions() {
        // It is another server, which does not know the device.
        return Ok(());
    }
    let name = DevicePath::new(name.to_bytes()).map_err(|error| convert::error(error.errno()))?;
    match ask_device(transport, name, access, DataChecksum::None) {
        Err(error) if error == ENOENT => Ok(()),
        Err(error) => Err(error),
        Ok(open) => close_device(transport, open.generation, open.rsp.device_id),
    }
}

/// Returns whether a message that has ended with `error` must be repeated: it may be unanswered, so
/// that it is unknown whether the server has executed it, or the server has answered that it was
/// not executed.
pub(crate) fn is_unanswered(error: Error) -> bool {
    // The server answers with `EIO` if it has no memory to handle a message, and with `EBADMSG` if the
    // message was damaged in transit.
    let errors = [
        ETIMEDOUT,
        ECONNABORTED,
        ESTALE,
        EINTR,
        ENOTCONN,
        ENOMEM,
        EAGAIN,
        EIO,
        EBADMSG,
    ];
    errors.contains(&error)
}

/// Logs that the server's answer is invalid, and returns the error for it.
fn invalid_answer(name: &CStr, error: MsgError) -> Error {
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
