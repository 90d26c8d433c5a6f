// SPDX-License-Identifier: GPL-2.0

//! Notifications to the service manager; see sd_notify(3).

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The service has started; `status` is a line that people see. Does nothing where nobody asks
/// for it. That nobody listens is said, and changes nothing else.
pub(crate) fn ready(status: &str) {
    let Some(socket) = env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let text = format!("READY=1\nSTATUS={status}\n");
    if let Err(error) = send(&socket, text.as_bytes()) {
        note!("cannot tell the manager of services: {error}");
    }
}

fn send(socket: &OsStr, text: &[u8]) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?
        .send_to_addr(text, &address)
        .map(|_| ())
}
