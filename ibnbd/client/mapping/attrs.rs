// SPDX-License-Identifier: GPL-2.0

//! The files of a disk: `/sys/block/ibnbd<N>/ibnbd/`.
//!
//! Contexts: *sysfs*.

use super::Mapping;
use ibnbd_proto::{
    identity::{
        IdentityCheck,
        Wwid, //
    },
    map_opts::UnmapMode, //
};
use ibtrs_core::convert;
use ibtrs_proto::text;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    sysfs::{
        Attr,
        Buf,
        StoreCtx, //
    }, //
};

/// Attributes of a disk.
pub(crate) static FILES: [Attr<Arc<Mapping>>; 18] = [
    Attr::rw(c"unmap_device", show_unmap_device, store_unmap_device),
    Attr::rw(c"remap_device", show_remap_device, store_remap_device),
    Attr::rw(c"resize", show_resize, store_resize),
    Attr::ro(c"state", show_state),
    Attr::ro(c"session", show_session),
    Attr::ro(c"mapping_path", show_mapping_path),
    Attr::ro(c"access_mode", show_access_mode),
    Attr::ro(c"exclusive", show_exclusive),
    Attr::ro(c"nr_queues", show_nr_queues),
    Attr::ro(c"nr_poll_queues", show_nr_poll_queues),
    Attr::rw(
        c"io_timeout_limit",
        show_io_timeout_limit,
        store_io_timeout_limit, //
    ),
    Attr::ro(c"timed_out", show_timed_out),
    Attr::rw(c"cache_lost", show_cache_lost, store_cache_lost),
    Attr::ro(c"wwid", show_wwid),
    Attr::rw(c"identity", show_identity, store_identity),
    Attr::rw(c"latency_us", show_latency_us, store_latency_us),
    Attr::ro(c"data_checksum", show_data_checksum),
    Attr::rw(
        c"checksum_errors",
        show_checksum_errors,
        store_checksum_errors, //
    ),
];

fn show_unmap_device(_this: &Mapping, buf: &mut Buf<'_>) -> Result {
    buf.line(fmt!("Usage: echo <normal|force> > unmap_device"))
}

fn store_unmap_device(ctx: StoreCtx<'_, Arc<Mapping>>, input: &[u8]) -> Result {
    // Keeps the module loaded until this returns: `remove_self` removes the file that called it.
    let ctx = ctx.keep_module::<crate::LocalModule>()?;
    let mode = UnmapMode::parse(input).map_err(|error| {
        kx::pr_err_ratelimited!("unmap_device: {}\n", error.as_str());
        convert::error(error.errno())
    })?;
    let this = ctx.data().clone();
    this.unmap(mode.force(), || ctx.remove_self().map(drop).ok_or(ENODEV))
        .inspect_err(|error| complain(&this, c"unmap_device", *error))
}

fn show_remap_device(_this: &Mapping, buf: &mut Buf<'_>) -> Result {
    buf.line(fmt!("Usage: echo 1 > remap_device"))
}

fn store_remap_device(ctx: StoreCtx<'_, Arc<Mapping>>, input: &[u8]) -> Result {
    text::one(input).map_err(|error| {
        kx::pr_err_ratelimited!("remap_device: {}: write 1\n", error.as_str());
        convert::error(error.errno())
    })?;
    let this = ctx.data();
    this.remap()
        .inspect_err(|error| complain(this, c"remap_device", *error))
}

fn show_resize(_this: &Mapping, buf: &mut Buf<'_>) -> Result {
    buf.line(fmt!("Usage: echo <new size in sectors> > resize"))
}

fn store_resize(ctx: StoreCtx<'_, Arc<Mapping>>, input: &[u8]) -> Result {
    let sectors = text::number(input).map_err(|error| {
        kx::pr_err_ratelimited!("resize: {}\n", error.as_str());
        convert::error(error.errno())
    })?;
    let this = ctx.data();
    this.device()
        .resize(sectors)
        .inspect_err(|error| complain(this, c"resize", *error))
}

/// Logs that an operator's request failed.
fn complain(this: &Mapping, what: &CStr, error: Error) {
    kx::pr_err_ratelimited!(
        "ibnbd{}: {}: {} ({})\n",
        this.number(),
        what,
        convert::errno(error).as_str(),
        error.to_errno()
    );
}

fn show_state(this: &Mapping, buf: &mut Buf<'_>) -> Result {
    buf.line(fmt!("{}", this.device().state().as_str()))
}

fn show_session(this: &Mapping, buf: &mut Buf<'_>) -> Result {
    buf.bytes(this.session_name().to_bytes())?;
    buf.bytes(b"\n")
}

fn show_mapping_path(this: &Mapping, buf: &mut Buf<'_>) -> Result {
    buf.bytes(this.device().name().to_bytes())?;
    buf.bytes(b"\n")
}

fn show_access_mode(this: &Mapping, buf: &mut Buf<'_>) -> Result {
    buf.line(fmt!("{}", this.device().access().mode.as_str()))
}

fn show_exclusive(this: &Mapping, buf: &mut Buf<'_>) -> Result {
    buf.line(fmt!("{}", u8::from(this.device().access().exclusive)))
}

fn show_nr_queues(this: &Mapping, buf: &mut Buf<'_>) -> Result {
    buf.line(fmt!("{}", this.nr_queues()))
}

fn show_nr_poll_queues(this: &Mapping, buf: &mut Buf<'_>) -> Result {
    buf.line(fmt!("{}", this.nr_poll_queues()))
}

fn show_io_timeout_limit(this: &Mapping, buf: &mut Buf<'_>) -> Result {
    buf.line(fmt!("{}", this.device().io().timeouts().limit()))
}

fn store_io_timeout_limit(ctx: StoreCtx<'_, Arc<Mapping>>, input: &[u8]) -> Result {
    let limit = text::number(input).map_err(|error| {
        kx::pr_err_ratelimited!("io_timeout_limit: {}\n", error.as_str());
        convert::error(error.errno())
    })?;
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    let this = ctx.data();
    this.device()
        .io()
        .timeouts()
        .set_limit(limit)
        .inspect_err(|error| complain(this, c"io_timeout_limit", *error))
}

fn show_timed_out(this: &Mapping, buf: &mut Buf<'_>) -> Result {
    buf.line(fmt!("{}", this.device().io().timeouts().timed_out()))
}

fn show_cache_lost(this: &Mapping, buf: &mut Buf<'_>) -> Result {
    let lost = this.device().io().write_cache().has_lost();
    buf.line(fmt!("{}", u8::from(lost)))
}

fn store_cache_lost(ctx: StoreCtx<'_, Arc<Mapping>>, input: &[u8]) -> Result {
    if text::number(input) != Ok(0) {
        kx::pr_err_ratelimited!("cache_lost: write 0 to acknowledge the loss\n");
        return Err(EINVAL);
    }
    ctx.data().device().io().accept_loss();
    Ok(())
}

fn show_wwid(this: &Mapping, buf: &mut Buf<'_>) -> Result {
    let wwid = Wwid {
        identity: this.device().rsp().identity,
        session: this.session_name().to_str()?,
        device: this.device().name().to_str()?,
    };
    buf.line(fmt!("{}", convert::Shown(wwid)))
}

fn show_identity(this: &Mapping, buf: &mut Buf<'_>) -> Result {
    buf.line(fmt!("{}", this.device().identity_check().as_str()))
}

fn store_identity(ctx: StoreCtx<'_, Arc<Mapping>>, input: &[u8]) -> Result {
    let this = ctx.data();
    let text = text::line(input).map_err(|error| convert::error(error.errno()))?;
    let check = IdentityCheck::parse(text).map_err(|error| {
        kx::pr_err_ratelimited!("ibnbd{}: {}\n", this.number(), error.as_str());
        convert::error(error.errno())
    })?;
    this.device().set_identity_check(check);
    Ok(())
}

fn show_latency_us(this: &Mapping, buf: &mut Buf<'_>) -> Result {
    let histogram = this.device().io().latencies().histogram()?;
    buf.write(fmt!("{}", convert::Shown(&*histogram)))
}

fn store_latency_us(ctx: StoreCtx<'_, Arc<Mapping>>, input: &[u8]) -> Result {
    text::reset(input).map_err(|error| {
        kx::pr_err_ratelimited!("latency_us: {}: write 0 to reset\n", error.as_str());
        convert::error(error.errno())
    })?;
    ctx.data().device().io().latencies().reset();
    Ok(())
}

fn show_data_checksum(this: &Mapping, buf: &mut Buf<'_>) -> Result {
    let checksum = this.device().io().damage().checksum();
    buf.line(fmt!("{}", checksum.as_str()))
}

fn show_checksum_errors(this: &Mapping, buf: &mut Buf<'_>) -> Result {
    let (to_server, from_server) = this.device().io().damage().counts();
    buf.line(fmt!("{to_server} {from_server}"))
}

fn store_checksum_errors(ctx: StoreCtx<'_, Arc<Mapping>>, input: &[u8]) -> Result {
    text::reset(input).map_err(|error| {
        kx::pr_err_ratelimited!("checksum_errors: {}: write 0 to reset\n", error.as_str());
        convert::error(error.errno())
    })?;
    ctx.data().device().io().damage().reset();
    Ok(())
}
