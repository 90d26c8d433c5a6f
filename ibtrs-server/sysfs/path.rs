// SPDX-License-Identifier: GPL-2.0

//! The files of a path: `/sys/class/ibtrs-server/<session>/paths/<client@server>/`.
//!
//! Contexts: *sysfs*.

use super::show;
use crate::path::Path;
use ibtrs_core::convert;
use ibtrs_proto::text;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::sysfs::{
    Attr,
    StoreCtx, //
};

/// The files.
pub(super) static FILES: [Attr<Arc<Path>>; 5] = [
    Attr::rw(
        c"disconnect",
        |_path: &Path, buf| buf.line(fmt!("Usage: echo 1 > disconnect")),
        store_disconnect,
    ),
    Attr::ro(c"hca_name", |path: &Path, buf| {
        buf.line(fmt!("{}", path.hca_name()))
    }),
    Attr::ro(c"hca_port", |path: &Path, buf| {
        buf.line(fmt!("{}", path.hca_port()))
    }),
    Attr::ro(c"src_addr", |path: &Path, buf| {
        show(buf, path.ends().src)?;
        buf.line(fmt!(""))
    }),
    Attr::ro(c"dst_addr", |path: &Path, buf| {
        show(buf, path.ends().dst)?;
        buf.line(fmt!(""))
    }),
];

/// Begins to close the path, which takes the directory away.
fn store_disconnect(path: StoreCtx<'_, Arc<Path>>, input: &[u8]) -> Result {
    text::one(input).map_err(|error| convert::error(error.errno()))?;
    match path.data().disconnect() {
        // The path is being closed already.
        Err(error) if error == EALREADY => Ok(()),
        result => result,
    }
}
