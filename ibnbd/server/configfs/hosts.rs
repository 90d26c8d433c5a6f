// SPDX-License-Identifier: GPL-2.0

//! The directories of hosts.

use super::{
    prefixes,
    refuse,
    show_prefixes,
    Context, //
};
use crate::config::{
    Host,
    HostId, //
};
use ibnbd_proto::{
    grant,
    throttle, //
};
use ibtrs_proto::{
    name::SessionName,
    text::{
        self,
        TextError, //
    },
    Errno, //
};
use kernel::{
    c_str,
    prelude::*,
    str::CString,
    sync::Arc, //
};
use kx::configfs::{
    Attr,
    Buf,
    Directory,
    Folder,
    Tree, //
};

const MIB_SHIFT: u32 = 20;
/// Highest limit of a host's memory: 1 TiB.
const MAX_MEMORY_MIB: u32 = 1 << 20;
/// The directory `hosts`.
pub(super) struct HostDirs(pub(super) Arc<Context>);

impl Directory for HostDirs {
    type Module = crate::LocalModule;

    fn make(&self, name: &CStr, tree: &Tree) -> Result<Folder> {
        SessionName::new(name.to_bytes())
            .map_err(|error| refuse(name, "no name of a host", error.as_str(), error.errno()))?;
        let id = self.0.config.add_host(name)?;
        let context = self.0.clone();
        let folder = Folder::new(tree, HostDir { context, id });
        let folder = folder.inspect_err(|_| {
            let _ = self.0.config.remove_host(id);
        })?;
        self.0.clients.reclaim_name(name);
        Ok(folder)
    }
}

/// The directory of a host.
pub(super) struct HostDir {
    context: Arc<Context>,
    pub(super) id: HostId,
}

impl HostDir {
    fn with<R>(&self, func: impl FnOnce(&mut Host) -> Result<R>) -> Result<R> {
        self.context.config.with_host(self.id, func)
    }

    /// Logs why a write to `file` is refused, and returns the error.
    fn refuse(&self, file: &str, why: &str, errno: Errno) -> Error {
        let refused = self.with(|host| Ok(refuse(host.name(), file, why, errno)));
        refused.unwrap_or_else(|error| error)
    }

    fn store_addresses(&self, input: &[u8]) -> Result {
        let list = prefixes(input);
        let list =
            list.map_err(|fault| fault.refused(|why, errno| self.refuse("addresses", why, errno)))?;
        let list = Arc::new(list, GFP_KERNEL)?;
        let _one = self.context.addresses.lock();
        let (name, former) = self.with(|host| {
            let name = CString::try_from(host.name())?;
            Ok((name, core::mem::replace(&mut host.addresses, list.clone())))
        })?;
        drop(former);
        let clients = &self.context.clients;
        clients.recheck(&name, |addr| grant::may_come_from(&list, addr));
        Ok(())
    }

    fn store_number(&self, file: &str, input: &[u8], max: u32) -> Result<u32> {
        let number = text::decimal(input, 0, max.into())
            .and_then(|number| u32::try_from(number).map_err(|_| TextError::Range));
        let number = number.map_err(|error| self.refuse(file, error.as_str(), error.errno()))?;
        if file == "max_iops" && (1..throttle::MIN_IOPS).contains(&number) {
            return Err(self.refuse(file, "below 100, and not 0 for no limit", Errno::ERANGE));
        }
        Ok(number)
    }
}

/// An attribute for a limit of a host, from 0 (none) to `$max`.
macro_rules! limit {
    ($file:literal, $max:expr, $get:expr, $set:expr) => {
        Attr::rw(
            c_str!($file),
            |this: &Self, buf: &mut Buf<'_>| this.with(|host| buf.line(fmt!("{}", ($get)(host)))),
            |this: &Self, input: &[u8]| {
                let number = this.store_number($file, input, $max)?;
                this.with(|host| {
                    ($set)(host, number);
                    Ok(())
                })
            },
        )
    };
}

impl Directory for HostDir {
    type Module = crate::LocalModule;

    const FILES: &'static [Attr<Self>] = &[
        Attr::rw(
            c"addresses",
            |this: &Self, buf: &mut Buf<'_>| this.with(|host| show_prefixes(buf, &host.addresses)),
            Self::store_addresses,
        ),
        limit!(
            "max_paths",
            u16::MAX.into(),
            |host: &Host| host.limits.paths,
            |host: &mut Host, number| host.limits.paths = number
        ),
        limit!(
            "max_connections",
            u16::MAX.into(),
            |host: &Host| host.limits.connections,
            |host: &mut Host, number| host.limits.connections = number
        ),
        limit!(
            "max_memory_mib",
            MAX_MEMORY_MIB,
            |host: &Host| host.limits.memory >> MIB_SHIFT,
            |host: &mut Host, number| host.limits.memory = u64::from(number) << MIB_SHIFT
        ),
        limit!(
            "max_devices",
            u16::MAX.into(),
            |host: &Host| host.max_devices,
            |host: &mut Host, number| host.max_devices = number
        ),
        limit!(
            "max_iops",
            throttle::MAX_IOPS,
            |host: &Host| host.throttle.rates().iops,
            |host: &mut Host, iops| host.throttle.change(|rates| rates.iops = iops)
        ),
        limit!(
            "max_bandwidth_mib_s",
            throttle::MAX_MIB_S,
            |host: &Host| host.throttle.rates().mib_s,
            |host: &mut Host, mib_s| host.throttle.change(|rates| rates.mib_s = mib_s)
        ),
    ];

    fn removed(&self) {
        if let Some(name) = self.context.config.remove_host(self.id) {
            self.context.clients.recheck(&name, |_| false);
        }
    }
}
