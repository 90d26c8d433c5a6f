// SPDX-License-Identifier: GPL-2.0

//! The files of a path: `/sys/class/ibtrs-client/<session>/paths/<src@dst>/`.
//!
//! Contexts: *sysfs*.

use super::show;
use crate::path::Path;
use ibtrs_core::convert;
use ibtrs_proto::{
    addr::Addr,
    auth::{
        KeyId,
        Suite, //
    },
    fsm::client_path::State,
    handshake::EXT_VERSION,
    text, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    net::addr::SockAddr,
    sysfs::{
        Attr,
        Buf,
        StoreCtx, //
    }, //
};

type Ctx<'a> = StoreCtx<'a, Arc<Path>>;

pub(super) static FILES: [Attr<Arc<Path>>; 17] = [
    Attr::ro(c"state", show_state),
    Attr::rw(
        c"reconnect",
        |_path: &Path, buf| usage(buf, "reconnect"),
        store_reconnect,
    ),
    Attr::rw(
        c"disconnect",
        |_path: &Path, buf| usage(buf, "disconnect"),
        store_disconnect,
    ),
    Attr::rw(
        c"drain",
        |path: &Path, buf| buf.line(fmt!("{}", u8::from(path.is_drained()))),
        store_drain,
    ),
    Attr::rw(
        c"standby",
        |path: &Path, buf| buf.line(fmt!("{}", u8::from(path.is_standby()))),
        store_standby,
    ),
    Attr::rw(
        c"remove_path",
        |_path: &Path, buf| usage(buf, "remove_path"),
        store_remove_path,
    ),
    Attr::ro(c"hca_name", |path: &Path, buf| {
        path.with_hca(|name, _port| buf.line(fmt!("{name}")))
    }),
    Attr::ro(c"hca_port", |path: &Path, buf| {
        path.with_hca(|_name, port| buf.line(fmt!("{port}")))
    }),
    Attr::ro(c"src_addr", |path: &Path, buf| {
        show_addr(buf, path.src_addr(), path.spec().addr.src)
    }),
    Attr::ro(c"dst_addr", |path: &Path, buf| {
        show_addr(buf, path.dst_addr(), Some(path.spec().addr.dst))
    }),
    // An empty line if the path is not connected or not authenticated.
    Attr::ro(c"key_id", |path: &Path, buf| {
        let id = path.key_id();
        buf.line(fmt!("{}", id.as_ref().map_or("", KeyId::as_str)))
    }),
    // An empty line if the path is not connected or not authenticated.
    Attr::ro(c"suite", |path: &Path, buf| {
        buf.line(fmt!("{}", path.suite().map_or("", Suite::as_str)))
    }),
    // An empty line if the path is not connected.
    Attr::ro(c"extensions", |path: &Path, buf| match path.state() {
        State::Connected => {
            let known = path.parent.has_extensions();
            buf.line(fmt!("{}", if known { EXT_VERSION } else { 0 }))
        }
        _ => buf.line(fmt!("")),
    }),
    Attr::ro(c"message_connections", |path: &Path, buf| {
        buf.line(fmt!("{}", path.message_connections()))
    }),
    Attr::ro(c"cur_latency", |path: &Path, buf| {
        buf.line(fmt!("{} ns", path.latency_ns().unwrap_or(0)))
    }),
    Attr::ro(c"heartbeat_overdue_ms", |path: &Path, buf| {
        buf.line(fmt!("{}", path.heartbeat_overdue_ms()))
    }),
    Attr::ro(c"last_error", |path: &Path, buf| {
        buf.line(fmt!("{}", path.last_error().as_str()))
    }),
];

fn usage(buf: &mut Buf<'_>, file: &str) -> Result {
    buf.line(fmt!("Usage: echo 1 > {file}"))
}

/// Checks that "1" was written.
fn one(input: &[u8]) -> Result {
    text::one(input).map_err(|error| convert::error(error.errno()))
}

fn show_state(path: &Path, buf: &mut Buf<'_>) -> Result {
    buf.line(fmt!(
        "{}",
        match path.state() {
            State::Connected => "connected",
            _ => "disconnected",
        }
    ))
}

/// Shows the address in use, or without one, the address that the operator gave.
fn show_addr(buf: &mut Buf<'_>, used: Option<SockAddr>, asked: Option<Addr>) -> Result {
    if let Some(addr) = used.and_then(|addr| convert::addr(&addr)).or(asked) {
        show(buf, addr)?;
    }
    buf.line(fmt!(""))
}

fn store_reconnect(path: Ctx<'_>, input: &[u8]) -> Result {
    one(input)?;
    path.data().reconnect()
}

fn store_disconnect(path: Ctx<'_>, input: &[u8]) -> Result {
    one(input)?;
    path.data().disconnect()
}

fn store_drain(path: Ctx<'_>, input: &[u8]) -> Result {
    path.data().set_drained(flag(input)?);
    Ok(())
}

fn store_standby(path: Ctx<'_>, input: &[u8]) -> Result {
    path.data().set_standby(flag(input)?);
    Ok(())
}

/// Returns whether "1" was written, and not "0".
fn flag(input: &[u8]) -> Result<bool> {
    let on = text::decimal(input, 0, 1).map_err(|error| convert::error(error.errno()))?;
    Ok(on == 1)
}

fn store_remove_path(ctx: Ctx<'_>, input: &[u8]) -> Result {
    one(input)?;
    // Keep the module loaded, as this function continues to run after its file is removed.
    let ctx = ctx.keep_module::<crate::LocalModule>()?;
    let path = ctx.data().clone();
    path.remove(|| ctx.remove_self().map(drop).ok_or(ENODEV))
}
