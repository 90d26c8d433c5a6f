// SPDX-License-Identifier: GPL-2.0

//! A device of a session in sysfs: `/sys/class/ibnbd-server/ctl/devices/<device>/sessions/<session>/`.
//!
//! Contexts: *sysfs*.

use super::Session;
use crate::export::User;
use ibnbd_proto::access::Access;
use ibtrs_core::convert;
use ibtrs_proto::text;
use kernel::{
    prelude::*,
    str::CString,
    sync::Arc, //
};
use kx::{
    pr_warn_ratelimited,
    sysfs::{
        Attr,
        Dir,
        PlainDir,
        StoreCtx, //
    }, //
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

impl View {
    /// Creates the directory below that of the export, if the export has one.
    ///
    /// # Context
    ///
    /// May sleep. The task that drops the directory must not hold a lock that its attributes take.
    pub(crate) fn show(self: &Arc<Self>, user: &User) -> Option<Dir<Arc<Self>>> {
        user.show(|sessions| {
            self.add(sessions)
                .inspect_err(|error| {
                    pr_warn_ratelimited!(
                        "{}: {} cannot be shown ({})\n",
                        self.session.name(),
                        *self.name,
                        convert::errno(*error).as_str()
                    );
                })
                .ok()
        })
    }

    /// Creates the directory. If the session reopens the device while it is still being closed, the
    /// second directory is `<session>.<id>`, which is unique because names of sessions have no dot.
    ///
    /// # Errors
    ///
    /// `ENAMETOOLONG`; `ENOMEM`.
    fn add(self: &Arc<Self>, sessions: &PlainDir) -> Result<Dir<Arc<Self>>> {
        let name = self.session.name();
        match Dir::new(sessions, fmt!("{name}"), self.clone(), &FILES) {
            Err(error) if error == EEXIST => {
                Dir::new(sessions, fmt!("{name}.{}", self.id), self.clone(), &FILES)
            }
            result => result,
        }
    }
}

/// The attributes of the directory.
static FILES: [Attr<Arc<View>>; 4] = [
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
