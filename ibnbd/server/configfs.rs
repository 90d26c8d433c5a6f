// SPDX-License-Identifier: GPL-2.0

//! ExportDirs, hosts and ports in configfs: `/sys/kernel/config/ibnbd/`.
//!
//! A directory keeps the id of its export or host, and each file changes that object under the lock
//! of [`Config`]; the directory of a port keeps its id in [`Ports`]. Devices that clients may no
//! longer have open are closed afterwards, without the lock.
//!
//! Contexts: *may sleep*, with the locks of configfs ([`kx::configfs`]).

use crate::{
    config::Config,
    param, //
};
use exports::ExportDirs;
use hosts::HostDirs;
use ibnbd_proto::prefix::{
    self,
    Prefix, //
};
use ibtrs_core::convert::{
    self,
    Shown, //
};
use ibtrs_proto::Errno;
use ibtrs_server::{
    Clients,
    Ports, //
};
use kernel::{
    new_mutex,
    prelude::*,
    str::CStr,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use kx::{
    configfs::{
        Buf,
        Folder,
        Registration,
        Subsystem, //
    },
    pr_err_ratelimited,
    work::Queue, //
};
use ports::PortDirs;

mod check;
mod exports;
mod hosts;
mod ports;

/// State that all directories share.
#[pin_data]
struct Context {
    config: Arc<Config>,
    clients: Clients,
    /// Opens devices for [`check::Check`], which may hang.
    queue: Arc<Queue>,
    /// Held while the addresses of a host are written and its paths are checked: after two
    /// concurrent writes, the remaining paths match the remaining list.
    #[pin]
    addresses: Mutex<()>,
    /// Held while an export is changed and the devices of clients that may no longer have it open
    /// are revoked, so that no concurrent write can allow them again in between.
    #[pin]
    exports: Mutex<()>,
}

/// Registers exports, hosts and ports with configfs. This must be the last step of loading the
/// module, see [`Subsystem::register`].
///
/// # Errors
///
/// `EEXIST` if configfs has another `ibnbd`; `ENOMEM`.
pub(crate) fn register(
    config: Arc<Config>,
    clients: Clients,
    ports: Arc<Ports>,
    queue: Arc<Queue>,
) -> Result<Registration> {
    let context = Arc::pin_init(
        pin_init!(Context {
            config,
            clients,
            queue,
            addresses <- new_mutex!((), "Context::addresses"),
            exports <- new_mutex!((), "Context::exports"),
        }),
        GFP_KERNEL,
    )?;
    let mut top = Subsystem::new::<crate::LocalModule>(c"ibnbd")?;
    let exports = Folder::new(top.tree(), ExportDirs(context.clone()))?;
    top.add(c"exports", exports)?;
    let hosts = Folder::new(top.tree(), HostDirs(context))?;
    top.add(c"hosts", hosts)?;
    let ports = Folder::new(top.tree(), PortDirs(ports))?;
    top.add(c"ports", ports)?;
    top.register()
}

/// Logs why an operator's write to `file` of `name` is refused, and returns the error.
fn refuse(name: &CStr, file: &str, why: &str, errno: Errno) -> Error {
    pr_err_ratelimited!("{}: {}: {} ({})\n", name, file, why, errno.as_str());
    convert::error(errno)
}

/// Returns how long a write to an attribute may wait for a disk, in milliseconds.
fn stop_timeout_ms() -> u32 {
    param::stop_timeout_s.get().saturating_mul(1000)
}

/// Why a list of prefixes is refused.
enum Fault {
    Prefix(prefix::PrefixError),
    Failed(Error),
}

impl Fault {
    fn refused(self, refuse: impl FnOnce(&str, Errno) -> Error) -> Error {
        match self {
            Self::Prefix(error) => refuse(error.as_str(), error.errno()),
            Self::Failed(error) => error,
        }
    }
}

/// Parses a list of prefixes.
fn prefixes(input: &[u8]) -> Result<KVec<Prefix>, Fault> {
    let mut prefixes = KVec::new();
    for prefix in prefix::list(input).map_err(Fault::Prefix)? {
        let prefix = prefix.map_err(Fault::Prefix)?;
        let pushed = prefixes.push(prefix, GFP_KERNEL);
        pushed.map_err(|error| Fault::Failed(error.into()))?;
    }
    Ok(prefixes)
}

fn show_prefixes(buf: &mut Buf<'_>, prefixes: &[Prefix]) -> Result {
    for (number, prefix) in prefixes.iter().enumerate() {
        let blank = if number == 0 { "" } else { " " };
        buf.write(fmt!("{}{}", blank, Shown(*prefix)))?;
    }
    buf.bytes(b"\n")
}

fn show_bool(buf: &mut Buf<'_>, on: bool) -> Result {
    buf.line(fmt!("{}", u8::from(on)))
}
