// SPDX-License-Identifier: GPL-2.0

//! Exports, hosts and ports in configfs: `/sys/kernel/config/ibnbd/`.
//!
//! A directory keeps the id of its export or host, and each file changes that object under the lock
//! of [`Config`]; the directory of a port keeps its id in [`Ports`]. Devices that clients may no
//! longer have open are closed afterwards, without the lock.
//!
//! Contexts: *may sleep*, with the locks of configfs ([`kx::configfs`]).

use core::any::Any;

use crate::{
    config::{
        self,
        revoke,
        Config,
        Export,
        ExportId,
        Host,
        HostId,
        Size, //
    },
    param, //
};
use ibnbd_proto::{
    access::AccessMode,
    grant, path,
    prefix::{
        self,
        Prefix, //
    },
    throttle,
};
use ibtrs_core::convert::{
    self,
    Shown, //
};
use ibtrs_proto::{
    addr::Addr,
    listen,
    name::{
        DevicePath,
        SessionName, //
    },
    text::{
        self,
        TextError, //
    },
    Errno,
};
use ibtrs_server::{
    Clients,
    PortId,
    PortInfo,
    Ports, //
};
use kernel::{
    c_str,
    new_mutex,
    prelude::*,
    str::{
        CStr,
        CString, //
    },
    sync::{
        Arc,
        Mutex, //
    }, //
};
use kx::{
    blk::{
        BlockDevice,
        OpenSpec, //
    },
    configfs::{
        Attr,
        Buf,
        Directory,
        Folder,
        Registration,
        Subsystem,
        Tree, //
    },
    mm::NoIo,
    pr_err_ratelimited,
    pr_warn_ratelimited,
    sync::{
        atomic::Relaxed,
        Completion,
        SetOnce, //
    },
    work::Queue, //
};

const MIB_SHIFT: u32 = 20;
/// Highest limit of a host's memory: 1 TiB.
const MAX_MEMORY_MIB: u32 = 1 << 20;
/// How long the removal of an export, or of a link to a host, waits for devices that are being
/// closed: it holds the locks of directories.
const REMOVAL_MS: u32 = 2_000;

/// State that all directories share.
#[pin_data]
struct Context {
    config: Arc<Config>,
    clients: Clients,
    /// Opens devices for [`Check`], which may hang.
    queue: Arc<Queue>,
    /// Held while the addresses of a host are written and its paths are checked: after two
    /// concurrent writes, the remaining paths match the remaining list.
    #[pin]
    addresses: Mutex<()>,
    /// Held while an export is changed and the devices of clients that may not have it any more are
    /// revoked: no concurrent write makes the export look as if they might.
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
    let exports = Folder::new(top.tree(), Exports(context.clone()))?;
    top.add(c"exports", exports)?;
    let hosts = Folder::new(top.tree(), Hosts(context))?;
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

/// The directory `exports`.
struct Exports(Arc<Context>);

impl Directory for Exports {
    type Module = crate::LocalModule;

    fn make(&self, name: &CStr, tree: &Tree) -> Result<Folder> {
        DevicePath::new(name.to_bytes())
            .map_err(|error| refuse(name, "no name of an export", error.as_str(), error.errno()))?;
        let id = self.0.config.add_export(name)?;
        let made = || {
            let context = self.0.clone();
            let mut folder = Folder::new(tree, ExportDir { context, id })?;
            let context = self.0.clone();
            let hosts = Folder::new(tree, AllowedHosts { context, id })?;
            folder.add(c"allowed_hosts", hosts)?;
            Ok(folder)
        };
        made().inspect_err(|_: &Error| self.0.config.remove_export(id))
    }
}

/// The directory of an export.
struct ExportDir {
    context: Arc<Context>,
    id: ExportId,
}

impl ExportDir {
    fn with<R>(&self, func: impl FnOnce(&mut Export) -> Result<R>) -> Result<R> {
        self.context.config.with_export(self.id, func)
    }

    /// Changes the export, then closes the devices of clients that may no longer open it.
    fn change<R>(&self, change: impl FnOnce(&mut Export) -> R) -> Result<R> {
        let result = self.context.change(self.id, |export| Ok(change(export)))?;
        self.context.wait_closed(self.id, stop_timeout_ms());
        Ok(result)
    }

    /// Logs why a write to `file` is refused, and returns the error.
    fn refuse(&self, file: &str, why: &str, errno: Errno) -> Error {
        let refused = self.with(|export| Ok(refuse(export.name(), file, why, errno)));
        refused.unwrap_or_else(|error| error)
    }

    fn store_bool(&self, file: &str, input: &[u8]) -> Result<bool> {
        let on = text::decimal(input, 0, 1);
        let on = on.map_err(|error| self.refuse(file, error.as_str(), error.errno()))?;
        Ok(on == 1)
    }

    fn store_path(&self, input: &[u8]) -> Result {
        let text = text::line(input).map_err(|error| (error.as_str(), error.errno()));
        let path = text.and_then(|text| {
            let path = path::search_path(text);
            path.map_err(|error| match error {
                path::PathError::Relative => ("path does not begin with '/'", error.errno()),
                error => (error.as_str(), error.errno()),
            })
        });
        let path = path.and_then(|path| {
            let mut parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
            match parts.next() {
                // A look-up there could take configfs' locks, which this task holds.
                Some("sys") => Err(("no device file is below /sys", Errno::EINVAL)),
                _ => Ok(path),
            }
        });
        let path = path.map_err(|(why, errno)| self.refuse("device_path", why, errno))?;
        let path = CString::try_from_fmt(fmt!("{path}"))?;
        let former = self.context.change(self.id, |export| match export.enabled {
            true => Err(EBUSY),
            false => Ok(export.path.replace(path)),
        });
        former.map(drop).map_err(|error| match error {
            EBUSY => self.refuse(
                "device_path",
                "the export is enabled: write 0 to enable before",
                Errno::EBUSY,
            ),
            error => error,
        })
    }

    fn store_mode(&self, input: &[u8]) -> Result {
        let text = text::line(input).map_err(|error| (error.as_str(), error.errno()));
        let mode = text.and_then(|text| {
            AccessMode::parse(text).map_err(|error| (error.as_str(), error.errno()))
        });
        let mode = mode.map_err(|(why, errno)| self.refuse("access_mode", why, errno))?;
        self.change(|export| export.mode = mode)
    }

    fn store_realtime(&self, input: &[u8]) -> Result {
        let on = self.store_bool("allow_realtime", input)?;
        self.with(|export| {
            // ORDERING: Nothing else depends on it.
            export.realtime.store(on, Relaxed);
            Ok(())
        })
    }

    fn store_any_host(&self, input: &[u8]) -> Result {
        let on = self.store_bool("allow_any_host", input)?;
        self.change(|export| export.any_host = on)
    }

    fn store_unauthenticated(&self, input: &[u8]) -> Result {
        let list = prefixes(input);
        let list = list.map_err(|fault| {
            fault.refused(|why, errno| self.refuse("allow_unauthenticated", why, errno))
        })?;
        let former = self.change(|export| core::mem::replace(&mut export.unauthenticated, list));
        former.map(drop)
    }

    fn store_enable(&self, input: &[u8]) -> Result {
        if self.store_bool("enable", input)? {
            return self.enable();
        }
        self.change(|export| export.enabled = false)
    }

    /// Enables the export, if its device can be opened.
    ///
    /// # Errors
    ///
    /// `EINVAL` without a path; `EBUSY` if another path is written meanwhile; errors of
    /// [`Check::run`].
    fn enable(&self) -> Result {
        let path = self.with(|export| match &export.path {
            Some(path) => Ok(Some(CString::try_from(&**path)?)),
            None => Ok(None),
        })?;
        let Some(path) = path else {
            return Err(self.refuse("enable", "device_path is not set", Errno::EINVAL));
        };
        let check = Check::new(path)?;
        let size = check.run(&self.context.queue).map_err(|error| {
            let why = match error {
                ETIMEDOUT => "device_path is not open after stop_timeout_s",
                EOPNOTSUPP => "device_path is a zoned device, which cannot be exported",
                _ => "device_path cannot be opened",
            };
            self.refuse("enable", why, convert::errno(error))
        })?;
        let enabled = self.context.change(self.id, |export| {
            let same = export.path.as_deref() == Some(&*check.path);
            export.enabled |= same;
            if same {
                export.size = size;
            }
            Ok(same)
        });
        match enabled? {
            true => Ok(()),
            false => Err(self.refuse(
                "enable",
                "another device_path was written meanwhile",
                Errno::EBUSY,
            )),
        }
    }
}

/// Checks whether a path is that of a block device that can be exported.
#[pin_data]
struct Check {
    path: CString,
    result: SetOnce<Result<Size>>,
    #[pin]
    over: Completion,
}

impl Check {
    fn new(path: CString) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                path,
                result: SetOnce::new(),
                over <- Completion::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// Opens the device on `queue`, and waits for its size. The limit of the wait is needed
    /// because the disk may hang, and `rmdir` of the export waits for this task with the lock of
    /// `exports`.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT` if the device is not open after `stop_timeout_s`; `EOPNOTSUPP` if it is zoned;
    /// `ENOMEM`; errors of opening it.
    fn run(self: &Arc<Self>, queue: &Queue) -> Result<Size> {
        let this = self.clone();
        queue.spawn(GFP_KERNEL, move || {
            let _no_io = NoIo::enter();
            this.result.populate(this.open());
            this.over.complete_all();
        })?;
        self.over.wait_timeout(stop_timeout_ms())?;
        self.result.copy().unwrap_or(Err(EIO))
    }

    fn open(&self) -> Result<Size> {
        let spec = OpenSpec {
            write: false,
            holder: None,
        };
        let device = BlockDevice::open(BlockDevice::find(c"/", &self.path)?, spec)?;
        match device.is_zoned() {
            true => Err(EOPNOTSUPP),
            false => Ok(Size {
                nsectors: device.capacity_sectors(),
                logical_block_size: device.limits().logical_block_bytes,
            }),
        }
    }
}

/// Returns how long a removal may wait for a disk, in milliseconds.
fn removal_ms() -> u32 {
    stop_timeout_ms().min(REMOVAL_MS)
}

/// Returns how long a write to an attribute may wait for a disk, in milliseconds.
fn stop_timeout_ms() -> u32 {
    param::stop_timeout_s.get().saturating_mul(1000)
}

impl Directory for ExportDir {
    type Module = crate::LocalModule;

    const FILES: &'static [Attr<Self>] = &[
        Attr::rw(
            c"device_path",
            |this: &Self, buf: &mut Buf<'_>| {
                this.with(|export| {
                    buf.bytes(export.path.as_ref().map_or(&[][..], |path| path.to_bytes()))?;
                    buf.bytes(b"\n")
                })
            },
            Self::store_path,
        ),
        Attr::rw(
            c"access_mode",
            |this: &Self, buf: &mut Buf<'_>| {
                this.with(|export| buf.line(fmt!("{}", export.mode.as_str())))
            },
            Self::store_mode,
        ),
        Attr::rw(
            c"allow_realtime",
            |this: &Self, buf: &mut Buf<'_>| {
                this.with(|export| show_bool(buf, config::is_set(&export.realtime)))
            },
            Self::store_realtime,
        ),
        Attr::rw(
            c"allow_any_host",
            |this: &Self, buf: &mut Buf<'_>| this.with(|export| show_bool(buf, export.any_host)),
            Self::store_any_host,
        ),
        Attr::rw(
            c"allow_unauthenticated",
            |this: &Self, buf: &mut Buf<'_>| {
                this.with(|export| show_prefixes(buf, &export.unauthenticated))
            },
            Self::store_unauthenticated,
        ),
        Attr::rw(
            c"enable",
            |this: &Self, buf: &mut Buf<'_>| this.with(|export| show_bool(buf, export.enabled)),
            Self::store_enable,
        ),
    ];

    fn removed(&self) {
        let _ = self.context.change(self.id, |export| {
            export.enabled = false;
            Ok(())
        });
        self.context.wait_closed(self.id, removal_ms());
        self.context.config.remove_export(self.id);
    }
}

impl Context {
    /// Changes an export, and revokes the devices of clients that may no longer open it.
    fn change<R>(&self, id: ExportId, change: impl FnOnce(&mut Export) -> Result<R>) -> Result<R> {
        let _one = self.exports.lock();
        let result = self.config.with_export(id, change)?;
        revoke::refuse(&self.config, id);
        Ok(result)
    }

    /// Waits at most `limit_ms` until all devices of an export that were revoked are closed.
    fn wait_closed(&self, id: ExportId, limit_ms: u32) {
        if revoke::wait_closed(&self.config, id, limit_ms).is_ok() {
            return;
        }
        let _ = self.config.with_export(id, |export| {
            pr_warn_ratelimited!(
                "{}: not closed for all clients yet: requests are in service, or an OPEN has not ended; no new request reaches the device\n",
                export.name()
            );
            Ok(())
        });
    }
}

/// The directory `allowed_hosts` of an export.
struct AllowedHosts {
    context: Arc<Context>,
    id: ExportId,
}

impl Directory for AllowedHosts {
    type Module = crate::LocalModule;

    fn link(&self, target: &dyn Any) -> Result {
        let Some(host) = target.downcast_ref::<HostDir>() else {
            pr_err_ratelimited!(
                "allowed_hosts: the link does not lead to a directory in hosts (EINVAL)\n"
            );
            return Err(EINVAL);
        };
        let allowed = self.context.config.allow(self.id, host.id);
        allowed.inspect_err(|error| {
            if *error == EEXIST {
                pr_err_ratelimited!(
                    "allowed_hosts: another link already leads to this host (EEXIST)\n"
                );
            }
        })
    }

    fn unlink(&self, target: &dyn Any) {
        if let Some(host) = target.downcast_ref::<HostDir>() {
            let one = self.context.exports.lock();
            self.context.config.disallow(self.id, host.id);
            revoke::refuse(&self.context.config, self.id);
            drop(one);
            // `rmdir` of the export waits for this, with the lock of all exports.
            self.context.wait_closed(self.id, removal_ms());
        }
    }
}

/// The directory `hosts`.
struct Hosts(Arc<Context>);

impl Directory for Hosts {
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
struct HostDir {
    context: Arc<Context>,
    id: HostId,
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

/// The directory `ports`.
struct PortDirs(Arc<Ports>);

impl Directory for PortDirs {
    type Module = crate::LocalModule;

    fn make(&self, name: &CStr, tree: &Tree) -> Result<Folder> {
        DevicePath::new(name.to_bytes())
            .map_err(|error| refuse(name, "no name of a port", error.as_str(), error.errno()))?;
        let name = CString::try_from(name)?;
        let ports = self.0.clone();
        let id = ports.add()?;
        Folder::new(tree, PortDir { ports, id, name }).inspect_err(|_| self.0.remove(id))
    }
}

/// The directory of a port.
struct PortDir {
    ports: Arc<Ports>,
    id: PortId,
    name: CString,
}

impl PortDir {
    fn show(&self, buf: &mut Buf<'_>, show: impl Fn(&mut Buf<'_>, &PortInfo) -> Result) -> Result {
        show(buf, &self.ports.info(self.id)?)
    }

    /// Logs why a write to `file` is refused, and returns the error.
    fn refuse(&self, file: &str, why: &str, errno: Errno) -> Error {
        refuse(&self.name, file, why, errno)
    }

    fn store_address(&self, input: &[u8]) -> Result {
        let text = text::line(input).map_err(|error| (error.as_str(), error.errno()));
        let address = text
            .and_then(|text| Addr::parse(text).map_err(|error| (error.as_str(), error.errno())))
            .and_then(|addr| match listen::check(&addr) {
                Ok(()) => Ok(addr),
                Err(error) => Err((error.as_str(), error.errno())),
            });
        let address = address.map_err(|(why, errno)| self.refuse("address", why, errno))?;
        self.ports.set_address(self.id, address)
    }

    fn store_number(&self, input: &[u8]) -> Result {
        let number = text::decimal(input, 1, u16::MAX.into())
            .and_then(|number| u16::try_from(number).map_err(|_| TextError::Range));
        let number = number.map_err(|error| self.refuse("port", error.as_str(), error.errno()))?;
        self.ports.set_number(self.id, number)
    }

    fn store_enable(&self, input: &[u8]) -> Result {
        let on = text::decimal(input, 0, 1);
        let on = on.map_err(|error| self.refuse("enable", error.as_str(), error.errno()))?;
        if on == 0 {
            return self.ports.disable(self.id);
        }
        if self.ports.info(self.id)?.address.is_none() {
            return Err(self.refuse("enable", "address is not set", Errno::EINVAL));
        }
        self.ports.enable(self.id).map_err(|error| {
            let why = match error {
                ENODEV => "no RDMA device has the address",
                EADDRNOTAVAIL => {
                    "this machine does not have the address, or another program listens on all addresses"
                }
                EADDRINUSE => "another port, or another program, listens there",
                _ => "cannot listen",
            };
            self.refuse("enable", why, convert::errno(error))
        })
    }
}

impl Directory for PortDir {
    type Module = crate::LocalModule;

    const FILES: &'static [Attr<Self>] = &[
        Attr::rw(
            c"address",
            |this: &Self, buf: &mut Buf<'_>| {
                this.show(buf, |buf, port| match port.address {
                    Some(address) => buf.line(fmt!("{}", Shown(address))),
                    None => buf.bytes(b"\n"),
                })
            },
            Self::store_address,
        ),
        Attr::rw(
            c"port",
            |this: &Self, buf: &mut Buf<'_>| {
                this.show(buf, |buf, port| buf.line(fmt!("{}", port.number)))
            },
            Self::store_number,
        ),
        Attr::rw(
            c"enable",
            |this: &Self, buf: &mut Buf<'_>| {
                this.show(buf, |buf, port| show_bool(buf, port.enabled))
            },
            Self::store_enable,
        ),
        Attr::ro(c"listening", |this: &Self, buf: &mut Buf<'_>| {
            this.show(buf, |buf, port| show_bool(buf, port.listening))
        }),
    ];

    fn removed(&self) {
        self.ports.remove(self.id);
    }
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
