// SPDX-License-Identifier: GPL-2.0

//! A device of a session in sysfs: `/sys/class/ibnbd-server/ctl/devices/<device>/sessions/<session>/`.
//!
//! Contexts: *sysfs*.

use super::Session;
use ibnbd_proto::access::Access;
use ibtrs_core::convert;
use ibtrs_proto::text;
use kernel::{
    prelude::*,
    str::CString,
    sync::Arc, //
};
use kx::sysfs::{
    Attr,
    StoreCtx, //
};

/// A device of a session, for its attributes.
pub(crate) struct View {
    pub(crate) session: Arc<Session>,
    /// The id of the device in the session.
    pub(crate) id: u32,
    /// The name by which the client opened the device.
    pub(crate) name: CString,
    pub(crate) access: Access,
}

/// The attributes of the directory.
pub(crate) static FILES: [Attr<Arc<View>>; 4] = [
    Attr::ro(c"read_only", |view: &View, buf| {
        buf.line(fmt!("{}", u8::from(!view.access.writes())))
    }),
    Attr::ro(c"access_mode", |view: &View, buf| {
        buf.line(fmt!("{}", view.access.mode.as_str()))
    }),
    Attr::ro(c"mapping_path", |view: &View, buf| {
        buf.bytes(view.name.to_bytes())?;
        buf.bytes(b"\n")
    }),
    Attr::rw(
        c"force_close",
        |_view: &View, buf| buf.line(fmt!("Usage: echo 1 > force_close")),
        store_force_close,
    ),
];

/// Closes the device, which removes the directory of this attribute.
fn store_force_close(ctx: StoreCtx<'_, Arc<View>>, input: &[u8]) -> Result {
    // Keeps the module loaded until this returns: `remove_self` removes the file that called it.
    let ctx = ctx.keep_module::<crate::LocalModule>()?;
    text::one(input).map_err(|error| convert::error(error.errno()))?;
    let view = ctx.data().clone();
    // At once: an OPEN of another device may hold the lock below for as long as its disk hangs.
    if let Some(device) = view.session.device(view.id) {
        device.revoke();
    }
    let Some(device) = view.session.withdraw(view.id) else {
        // Another task is closing the device.
        return Err(ENODEV);
    };
    // Only the task that has withdrawn the device drops its directory.
    let _ = ctx.remove_self();
    let why = "an operator wrote to force_close";
    view.session.close_for_operator(device, why);
    Ok(())
}
