// SPDX-License-Identifier: GPL-2.0

//! The exports and hosts that the operator has configured, and the permissions of clients that
//! follow.
//!
//! One lock protects the rules of each export and the list of sessions that have it open. A session
//! is added to the list before the device is opened, and a change of the rules takes effect before
//! the sessions on the list are checked again ([`Config::next_refused`]). No client therefore keeps
//! a device that it could no longer open.
//!
//! Contexts: *may sleep*. The lock is held only while the lists are read or changed.

use crate::{
    param,
    peer::Peer,
    throttle::HostThrottle, //
};
use core::ops::{
    Deref,
    DerefMut, //
};
use ibnbd_proto::{
    access::{
        Access,
        AccessMode, //
    },
    grant::{
        self,
        Client,
        Grant,
        GrantRefusal,
        PathUse,
        Rules, //
    },
    msg::{
        DiscoverPage,
        Listed,
        Portal,
        MAX_PORTALS, //
    },
    prefix::{
        self,
        Prefix, //
    },
    throttle::Rates,
};
use ibtrs_proto::{
    addr::Addr,
    name::{
        DevicePath,
        SessionName, //
    },
};
use ibtrs_server::Ports;
use kernel::{
    alloc::AllocError,
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex,
        MutexGuard, //
    }, //
};
use kx::{
    mm::NoIo,
    sync::atomic::{
        AtomicFlag,
        Relaxed, //
    },
    work::Queue, //
};
use revoke::{
    CloseDevice,
    Closer, //
};

pub(crate) mod revoke;

/// The exports and hosts that the operator has configured.
#[pin_data]
pub(crate) struct Config {
    /// Runs the work items that close devices.
    closers: Arc<Queue>,
    #[pin]
    inner: Mutex<ConfigInner>,
    /// The ports for the portals that clients get; `None` before the server listens, and once it is
    /// about to stop. The ports hold a reference to this.
    #[pin]
    ports: Mutex<Option<Arc<Ports>>>,
}

struct ConfigInner {
    /// Sorted by name; the names are unique.
    exports: KVec<Export>,
    hosts: KVec<Host>,
    /// The last id given to an export or host; ids are not reused.
    last: u64,
}

/// The id of an export; unlike the name, it is never that of a later export.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExportId(u64);

/// The id of a host; unlike the name, it is never that of a later host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostId(u64);

/// An export, as its directory in configfs shows it.
pub(crate) struct Export {
    id: ExportId,
    name: CString,
    pub(crate) path: Option<CString>,
    pub(crate) mode: AccessMode,
    pub(crate) any_host: bool,
    pub(crate) unauthenticated: KVec<Prefix>,
    pub(crate) enabled: bool,
    pub(crate) size: Size,
    /// Whether the realtime I/O priority of clients is honoured; shared with open devices.
    pub(crate) realtime: Arc<AtomicFlag>,
    hosts: KVec<HostId>,
    opens: KVec<Open>,
}

/// The size of an export when its device was last checked; zeroes until then.
#[derive(Clone, Copy, Default)]
pub(crate) struct Size {
    pub(crate) nsectors: u64,
    pub(crate) logical_block_size: u32,
}

/// A session that has an export open, or is about to.
struct Open {
    closer: Arc<Closer>,
    access: Access,
    /// The device is being closed, because the session may no longer open the export.
    refused: bool,
}

/// A host, as its directory in configfs shows it.
pub(crate) struct Host {
    id: HostId,
    name: CString,
    pub(crate) addresses: Arc<KVec<Prefix>>,
    /// Limits for all paths of the host together; 0 for none.
    pub(crate) limits: PathUse,
    pub(crate) max_devices: u32,
    /// Limits the requests of the host; shared with open devices.
    pub(crate) throttle: Arc<HostThrottle>,
}

/// The lists, with the lock held.
///
/// Operators need the lock to revoke an export, so no allocation under it waits for I/O.
struct Locked<'a> {
    // Dropped in this order.
    inner: MutexGuard<'a, ConfigInner>,
    _no_io: NoIo,
}

impl Deref for Locked<'_> {
    type Target = ConfigInner;

    fn deref(&self) -> &ConfigInner {
        &self.inner
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut ConfigInner {
        &mut self.inner
    }
}

impl ConfigInner {
    fn next(&mut self) -> u64 {
        // Ids do not wrap: at one each nanosecond, they would after 584 years.
        self.last = self.last.wrapping_add(1);
        self.last
    }

    fn export(&mut self, id: ExportId) -> Result<&mut Export> {
        let mut exports = self.exports.iter_mut();
        exports.find(|export| export.id == id).ok_or(ENOENT)
    }

    fn host(&mut self, id: HostId) -> Result<&mut Host> {
        let mut hosts = self.hosts.iter_mut();
        hosts.find(|host| host.id == id).ok_or(ENOENT)
    }

    /// Returns the host that a session has authenticated as.
    fn host_of(&self, peer: &Peer) -> Option<&Host> {
        let mut hosts = self.hosts.iter();
        hosts.find(|host| peer.is_authenticated() && *host.name == *peer.name())
    }

    fn decide(&self, export: &Export, peer: &Peer, access: Access) -> Result<Grant, GrantRefusal> {
        Self::decide_for(self.host_of(peer), export, peer, access)
    }

    /// As [`Self::decide`], for a client whose host was looked up.
    fn decide_for(
        host: Option<&Host>,
        export: &Export,
        peer: &Peer,
        access: Access,
    ) -> Result<Grant, GrantRefusal> {
        let client = match peer.is_authenticated() {
            true => Client::Authenticated {
                known: host.is_some(),
                allowed: host.is_some_and(|host| export.hosts.contains(&host.id)),
            },
            false => Client::Unauthenticated,
        };
        let rules = Rules {
            mode: export.mode,
            any_host: export.any_host,
            unauthenticated: &export.unauthenticated,
            enabled: export.enabled,
        };
        let all_come_from = |list: &[Prefix]| peer.all_sources(|addr| prefix::contains(list, addr));
        grant::decide(&rules, client, all_come_from, access)
    }
}

/// A session's request to open an export.
pub(crate) struct Asked<'a> {
    pub(crate) peer: &'a Arc<Peer>,
    /// Closes the device if the operator withdraws the export.
    pub(crate) session: Arc<dyn CloseDevice>,
    /// The id that the device gets in the session.
    pub(crate) device: u32,
    /// Number of devices of the session, including devices that are being closed.
    pub(crate) devices: usize,
    pub(crate) name: &'a str,
    pub(crate) access: Access,
}

/// Properties of the whole list that [`Config::list`] writes.
pub(crate) struct List {
    /// There are more exports than fit in the page.
    pub(crate) more: bool,
    /// The session may open devices below `dev_search_path`, which are not listed.
    pub(crate) unlisted: bool,
}

/// Why an export is not opened.
pub(crate) enum Denied {
    Refused(GrantRefusal),
    Failed(Error),
}

impl From<GrantRefusal> for Denied {
    fn from(refusal: GrantRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Error> for Denied {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<AllocError> for Denied {
    fn from(error: AllocError) -> Self {
        Error::from(error).into()
    }
}

impl Config {
    /// Creates a configuration without exports and hosts; devices are closed on `closers`.
    pub(crate) fn new(closers: Arc<Queue>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                closers,
                inner <- new_mutex!(
                    ConfigInner {
                        exports: KVec::new(),
                        hosts: KVec::new(),
                        last: 0,
                    },
                    "Config::inner"
                ),
                ports <- new_mutex!(None, "Config::ports"),
            }),
            GFP_KERNEL,
        )
    }

    /// Acquires the lock.
    fn lock(&self) -> Locked<'_> {
        let no_io = NoIo::enter();
        Locked {
            inner: self.inner.lock(),
            _no_io: no_io,
        }
    }

    /// Grants an export to a session, until the returned value is dropped. `None` if no exports are
    /// configured, so that devices are found below `dev_search_path`.
    ///
    /// # Errors
    ///
    /// The reason of a refusal; `ENODEV` if the export has no device; `ENOTCONN` if all paths of
    /// the session are being closed; `ENOMEM`.
    pub(crate) fn grant(self: &Arc<Self>, asked: &Asked<'_>) -> Result<Option<Granted>, Denied> {
        let mut inner = self.lock();
        if inner.exports.is_empty() {
            return Ok(None);
        }
        let mut exports = inner.exports.iter();
        let export = exports.find(|export| export.name.to_bytes() == asked.name.as_bytes());
        let is_host = inner.host_of(asked.peer).is_some();
        let export = export.ok_or(grant::unknown(is_host))?;
        let grant = inner.decide(export, asked.peer, asked.access)?;
        // All addresses of a session without an open path are allowed everywhere. A path that is
        // still open was so when its address was checked: a closing path does not open again, and
        // `Config::join` adds none under the lock.
        if !asked.peer.has_source() {
            return Err(ENOTCONN.into());
        }
        let host = inner.host_of(asked.peer);
        let most = host.map_or(0, |host| host.max_devices);
        if most > 0 && asked.devices >= most as usize {
            return Err(GrantRefusal::Devices.into());
        }
        let path = export.path.as_ref().ok_or(ENODEV)?;
        let closer = Closer::new(asked, &self.closers)?;
        let granted = Granted {
            config: self.clone(),
            export: export.id,
            closer: closer.clone(),
            path: CString::try_from(&**path)?,
            terms: Terms {
                realtime: export.realtime.clone(),
                revoked: closer.revoked(),
                throttle: host.map(|host| host.throttle.clone()),
            },
            grant,
        };
        let id = export.id;
        let open = Open {
            closer,
            access: asked.access,
            refused: false,
        };
        let added = inner.export(id).and_then(|export| {
            export.opens.push(open, GFP_KERNEL)?;
            Ok(())
        });
        // After a failure, dropping `granted` takes the lock.
        drop(inner);
        added?;
        Ok(Some(granted))
    }

    /// Sets the ports; `None` before they are dropped.
    pub(crate) fn set_ports(&self, ports: Option<Arc<Ports>>) {
        let former = core::mem::replace(&mut *self.ports.lock(), ports);
        drop(former);
    }

    /// Writes the exports that a session may open to `page`, sorted by name from the first one
    /// following `after` on, and the server's portals if this is the first page. A session that may
    /// not open any export does not get the portals.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` if all paths of the session are being closed; `ENOMEM`.
    pub(crate) fn list(
        &self,
        peer: &Peer,
        after: Option<DevicePath<'_>>,
        page: &mut DiscoverPage<'_>,
    ) -> Result<List> {
        let portals = match after {
            None => self.portals()?,
            Some(_) => KVec::new(),
        };
        let inner = self.inner.lock();
        if !peer.has_source() {
            return Err(ENOTCONN);
        }
        if inner.exports.is_empty() {
            let unlisted = !param::dev_search_path.get().is_empty();
            if unlisted {
                portals.iter().for_each(|portal| {
                    page.add_portal(portal);
                });
            }
            return Ok(List {
                more: false,
                unlisted,
            });
        }
        let host = inner.host_of(peer);
        let may_open = |export: &&Export| {
            let access = Access {
                mode: export.mode,
                exclusive: false,
            };
            ConfigInner::decide_for(host, export, peer, access).is_ok()
        };
        // The export `after` need not exist.
        let is_behind =
            |export: &&Export| after.is_none_or(|after| export.name.to_bytes() > after.as_bytes());
        let exports = inner.exports.iter().filter(is_behind);
        let mut exports = exports.filter(may_open).peekable();
        if exports.peek().is_some() {
            portals.iter().for_each(|portal| {
                page.add_portal(portal);
            });
        }
        let mut listed = exports.filter_map(|export| export.listed());
        let more = listed.any(|export| !page.add_export(&export));
        // All addresses of a session without an open path are allowed everywhere, and the last path
        // may have begun to close since the check above.
        if !peer.has_source() {
            return Err(ENOTCONN);
        }
        Ok(List {
            more,
            unlisted: false,
        })
    }

    fn portals(&self) -> Result<KVec<Portal>> {
        let ports = self.ports.lock().clone();
        let mut portals = KVec::with_capacity(MAX_PORTALS, GFP_KERNEL)?;
        if let Some(ports) = ports {
            ports.for_each_listening(|addr, port| {
                if let Some(portal) = Portal::new(addr, port) {
                    // Entries that do not fit are omitted, as in a page.
                    let _ = portals.push_within_capacity(portal);
                }
            });
        }
        Ok(portals)
    }

    /// Decides whether a path of the session `name` may connect from `source`. `used` is what all
    /// paths of the session use, including this one; `closing` is the number of bytes that closing
    /// paths still keep. A session that belongs to no host may connect.
    ///
    /// # Errors
    ///
    /// The reason for a refusal.
    pub(crate) fn authorize(
        &self,
        name: SessionName<'_>,
        source: Addr,
        used: &PathUse,
        closing: u64,
    ) -> Result<(), grant::PathRefusal> {
        let inner = self.lock();
        let mut hosts = inner.hosts.iter();
        match hosts.find(|host| host.name.to_bytes() == name.as_bytes()) {
            Some(host) => grant::authorize(&host.addresses, &host.limits, &source, used, closing),
            None => Ok(()),
        }
    }

    /// Returns whether exports are configured, so that sessions can open nothing else.
    pub(crate) fn has_exports(&self) -> bool {
        !self.lock().exports.is_empty()
    }

    /// Returns whether there is a host `name`. No unauthenticated session may have its name.
    pub(crate) fn has_host(&self, name: &[u8]) -> bool {
        let inner = self.lock();
        let mut hosts = inner.hosts.iter();
        hosts.any(|host| host.name.to_bytes() == name)
    }

    /// Calls `add`, which adds a path from `source` to an unauthenticated session, if all exports
    /// that the session has open allow that address. No export is granted until `add` has returned.
    ///
    /// # Context
    ///
    /// May sleep; so may `add`, for a short time, with locks that follow those of
    /// [`Service::authorize`].
    ///
    /// # Errors
    ///
    /// `None` if an export does not allow the address; the error of `add`.
    ///
    /// [`Service::authorize`]: ibtrs_server::Service::authorize
    pub(crate) fn join<E>(
        &self,
        peer: &Peer,
        source: Addr,
        add: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), Option<E>> {
        let inner = self.lock();
        let lets = inner.exports.iter().all(|export| {
            let mut opens = export.opens.iter();
            let is_open = opens.any(|open| open.is_of(peer));
            !is_open || prefix::contains(&export.unauthenticated, &source)
        });
        match lets {
            true => add().map_err(Some),
            false => Err(None),
        }
    }

    /// Calls `func` with an export, under the lock.
    ///
    /// # Errors
    ///
    /// `ENOENT` if the export was removed; the error of `func`.
    pub(crate) fn with_export<R>(
        &self,
        id: ExportId,
        func: impl FnOnce(&mut Export) -> Result<R>,
    ) -> Result<R> {
        func(self.lock().export(id)?)
    }

    /// Calls `func` with a host, under the lock.
    ///
    /// # Errors
    ///
    /// `ENOENT` if the host was removed; the error of `func`.
    pub(crate) fn with_host<R>(
        &self,
        id: HostId,
        func: impl FnOnce(&mut Host) -> Result<R>,
    ) -> Result<R> {
        func(self.lock().host(id)?)
    }

    /// Creates an export, which is not enabled.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn add_export(&self, name: &CStr) -> Result<ExportId> {
        let name = CString::try_from(name)?;
        let realtime = Arc::new(AtomicFlag::new(false), GFP_KERNEL)?;
        let mut inner = self.lock();
        let id = ExportId(inner.next());
        let export = Export {
            id,
            name,
            path: None,
            mode: AccessMode::Rw,
            any_host: false,
            unauthenticated: KVec::new(),
            enabled: false,
            size: Size::default(),
            realtime,
            hosts: KVec::new(),
            opens: KVec::new(),
        };
        inner.exports.reserve(1, GFP_KERNEL)?;
        let name = export.name.to_bytes();
        let mut others = inner.exports.iter();
        let at = others.position(|other| other.name.to_bytes() > name);
        let at = at.unwrap_or(inner.exports.len());
        let added = inner.exports.insert_within_capacity(at, export);
        added.map_err(|_| ENOMEM)?;
        Ok(id)
    }

    /// Removes an export. The caller must have disabled it: sessions that still have it open are
    /// closing its device.
    pub(crate) fn remove_export(&self, id: ExportId) {
        let mut inner = self.lock();
        let exports = &mut inner.exports;
        let at = exports.iter().position(|export| export.id == id);
        let export = at.and_then(|at| exports.remove(at).ok());
        drop(inner);
        // Without the lock, as this may drop the last references to sessions.
        drop(export);
    }

    /// Creates a host without limits.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn add_host(&self, name: &CStr) -> Result<HostId> {
        let name = CString::try_from(name)?;
        let addresses = Arc::new(KVec::new(), GFP_KERNEL)?;
        let throttle = HostThrottle::new()?;
        let mut inner = self.lock();
        let id = HostId(inner.next());
        let host = Host {
            id,
            name,
            addresses,
            limits: PathUse::default(),
            max_devices: 0,
            throttle,
        };
        inner.hosts.push(host, GFP_KERNEL)?;
        Ok(id)
    }

    /// Removes a host, and returns its name.
    pub(crate) fn remove_host(&self, id: HostId) -> Option<CString> {
        let mut inner = self.lock();
        let at = inner.hosts.iter().position(|host| host.id == id)?;
        let host = inner.hosts.remove(at).ok()?;
        // Open devices of its session share the throttle, and may stay open without limits.
        host.throttle.change(|rates| *rates = Rates::default());
        Some(host.name)
    }

    /// Allows a host to open an export.
    ///
    /// # Errors
    ///
    /// `EEXIST` if the host is already allowed; `ENOENT` if the export or the host was removed;
    /// `ENOMEM`.
    pub(crate) fn allow(&self, export: ExportId, host: HostId) -> Result {
        let mut inner = self.lock();
        inner.host(host)?;
        let hosts = &mut inner.export(export)?.hosts;
        if hosts.contains(&host) {
            return Err(EEXIST);
        }
        Ok(hosts.push(host, GFP_KERNEL)?)
    }

    /// Revokes the permission of [`Config::allow`].
    pub(crate) fn disallow(&self, export: ExportId, host: HostId) {
        let _ = self.with_export(export, |export| {
            export.hosts.retain(|other| *other != host);
            Ok(())
        });
    }

    /// Returns the closer of a session that has the export open and may no longer open it, with the
    /// reason. Each closer is returned once; `None` if there are no others.
    pub(crate) fn next_refused(&self, id: ExportId) -> Option<(Arc<Closer>, GrantRefusal)> {
        let mut inner = self.lock();
        let mut exports = inner.exports.iter();
        let export = exports.find(|export| export.id == id)?;
        let found = export.opens.iter().enumerate().find_map(|(at, open)| {
            let decision = inner.decide(export, open.closer.peer(), open.access);
            let refusal = decision.err().filter(|_| !open.refused)?;
            Some((at, refusal))
        });
        let (at, refusal) = found?;
        let open = inner.export(id).ok()?.opens.get_mut(at)?;
        open.refused = true;
        Some((open.closer.clone(), refusal))
    }

    /// Returns whether devices of the export are still being closed after [`Config::next_refused`].
    pub(crate) fn is_closing(&self, id: ExportId) -> bool {
        let mut inner = self.lock();
        let export = inner.export(id);
        export.is_ok_and(|export| export.opens.iter().any(|open| open.refused))
    }
}

impl Export {
    pub(crate) fn name(&self) -> &CStr {
        &self.name
    }

    /// Returns the export as a discovery lists it; its name was checked when it was created.
    fn listed(&self) -> Option<Listed<'_>> {
        let name = DevicePath::new(self.name.to_bytes()).ok()?;
        let Size {
            nsectors,
            logical_block_size,
        } = self.size;
        Some(Listed::new(name, self.mode, nsectors, logical_block_size))
    }
}

impl Host {
    pub(crate) fn name(&self) -> &CStr {
        &self.name
    }
}

impl Open {
    fn is_of(&self, peer: &Peer) -> bool {
        core::ptr::eq(self.closer.peer(), peer)
    }
}

/// The terms for requests to a device that is open as an export; changes of the configuration
/// apply to them at once.
#[derive(Clone)]
pub(crate) struct Terms {
    /// Whether the realtime I/O priority is honoured.
    pub(crate) realtime: Arc<AtomicFlag>,
    /// Whether the session may no longer have the export open, so that the device is being closed.
    pub(crate) revoked: Arc<AtomicFlag>,
    /// The limits of the host, if the session belonged to a host when it opened the device.
    pub(crate) throttle: Option<Arc<HostThrottle>>,
}

/// The right of a session to have an export open, until this is dropped.
pub(crate) struct Granted {
    config: Arc<Config>,
    export: ExportId,
    closer: Arc<Closer>,
    /// Path of the block device.
    pub(crate) path: CString,
    pub(crate) terms: Terms,
    /// Why the export was granted.
    pub(crate) grant: Grant,
}

impl Granted {
    /// Records the current size of the export, unless it has another device by now.
    pub(crate) fn note_size(&self, size: Size) {
        // Fails if the export was removed concurrently.
        let _ = self.config.with_export(self.export, |export| {
            if export.path.as_deref() == Some(&*self.path) {
                export.size = size;
            }
            Ok(())
        });
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        let mut inner = self.config.lock();
        let open = inner.export(self.export).ok().and_then(|export| {
            let opens = &mut export.opens;
            let is_this = |open: &Open| Arc::ptr_eq(&open.closer, &self.closer);
            let at = opens.iter().position(is_this)?;
            opens.remove(at).ok()
        });
        drop(inner);
        // Without the lock, as this may drop the last reference to the session.
        drop(open);
    }
}

/// Returns the value of a flag of [`Terms`].
#[inline]
pub(crate) fn is_set(flag: &AtomicFlag) -> bool {
    // ORDERING: The flag orders no other access.
    flag.load(Relaxed)
}
