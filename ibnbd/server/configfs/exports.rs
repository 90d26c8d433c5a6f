// SPDX-License-Identifier: GPL-2.0

//! The directories of exports.

use super::{
    check::Check,
    hosts::HostDir,
    prefixes,
    refuse,
    show_bool,
    show_prefixes,
    stop_timeout_ms,
    Context, //
};
use crate::config::{
    self,
    revoke,
    Export,
    ExportId, //
};
use core::any::Any;
use ibnbd_proto::{
    access::AccessMode,
    path, //
};
use ibtrs_core::convert;
use ibtrs_proto::{
    name::DevicePath,
    text,
    Errno, //
};
use kernel::{
    prelude::*,
    str::CString,
    sync::Arc, //
};
use kx::{
    configfs::{
        Attr,
        Buf,
        Directory,
        Folder,
        Tree, //
    },
    pr_err_ratelimited,
    pr_warn_ratelimited,
    sync::atomic::Relaxed, //
};

/// How long the removal of an export, or of a link to a host, waits for devices that are being
/// closed, as it holds the locks of directories.
const REMOVAL_MS: u32 = 2_000;

/// The directory `exports`.
pub(super) struct ExportDirs(pub(super) Arc<Context>);

impl Directory for ExportDirs {
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
            // ORDERING: The flag orders no other access.
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
    /// `EINVAL` without a path; `EBUSY` if another path is written concurrently; errors of
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

/// Returns how long a removal may wait for a disk, in milliseconds.
fn removal_ms() -> u32 {
    stop_timeout_ms().min(REMOVAL_MS)
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
