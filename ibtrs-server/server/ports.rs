// SPDX-License-Identifier: GPL-2.0

//! The local addresses that the server listens on.
//!
//! Without ports, the server listens on all addresses at the port number of its module, if that is
//! not 0. As soon as the operator has added a port, it listens on the ports that are enabled, and
//! nowhere else. Existing connections are not affected.
//!
//! A port that is bound to an address belongs to the RDMA device that had the address at that time,
//! even if the address moves. When the device is removed, a worker destroys the listening id, for
//! which the removal waits, and listens again when the device has returned.
//!
//! Contexts: *may sleep*. The lock of [`Ports`] is held while ids begin to listen or are destroyed,
//! and destroying an id waits for handlers that take `Env::backlog`.

use crate::server::{
    accept::Incoming,
    Server, //
};
use ibtrs_core::convert::{
    self,
    Shown, //
};
use ibtrs_proto::{
    addr::Addr,
    consts::DEFAULT_PORT,
    errno::Errno,
    listen::{
        self,
        ListenError, //
    },
};
use kernel::{
    fmt,
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        Mutex, //
    }, //
};
use kx::{
    mm::NoIo,
    net::{
        addr::SockAddr,
        Net, //
    },
    sync::atomic::{
        AtomicFlag,
        Relaxed, //
    },
    work::{
        DelayedWork,
        WorkItem, //
    }, //
};
use rdma::cm::{
    CmEvent,
    CmHandler,
    ConnRequest,
    Listener, //
};

/// Connection requests that the connection manager keeps for a listening id.
const BACKLOG: i32 = 64;
/// Interval at which the server retries to listen on ports where this has failed.
const RETRY_MS: u32 = 1000;

/// Identifies a port; ids are not reused.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PortId(u64);

/// The settings and the state of a port.
#[derive(Clone, Copy)]
pub struct PortInfo {
    /// The address to listen on, possibly the unspecified one; none until it is set.
    pub address: Option<Addr>,
    /// The port number; for a GID, the service id of that number.
    pub number: u16,
    /// The server listens, or would if the RDMA device of the address were present.
    pub enabled: bool,
    /// The server listens.
    pub listening: bool,
}

/// A port that the operator has added.
struct Port {
    id: PortId,
    address: Option<Addr>,
    number: u16,
    enabled: bool,
    listening: Option<Listening>,
    /// The last error of listening again, which was logged.
    failed: Option<Errno>,
}

/// A listening id that is bound to the address of a port.
struct Listening {
    _listener: Listener,
    handler: Arc<PortHandler>,
}

struct PortsInner {
    /// For IPv4, IPv6 and GIDs, while there are no ports.
    wildcards: [Option<Listener>; 3],
    ports: KVec<Port>,
    /// The last number of a port.
    last: u64,
    /// Never listens again.
    closed: bool,
}

/// The ports of a server.
#[pin_data]
pub struct Ports {
    /// Gets the requests of all ids.
    incoming: Arc<Incoming>,
    net: ARef<Net>,
    /// The module's port number, also the default for new ports; 0 to listen on ports only.
    port_nr: u16,
    #[pin]
    inner: Mutex<PortsInner>,
    /// Listens again on ports whose RDMA device was removed, or on all addresses if that failed.
    #[pin]
    relisten: DelayedWork<Self>,
}

kx::impl_has_work! {
    impl HasWork<DelayedWork<Self>> for Ports { self.relisten }
}

impl Ports {
    /// Creates the ports of a server, in the caller's network namespace. Without ports, the port
    /// number is `port_nr`; with 0, the server listens on ports only.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(server: Arc<Server>, port_nr: u16) -> Result<Arc<Self>> {
        // The removal of an RDMA device waits for it, so it must not wait for a disk.
        let queue = server.env.queue.clone();
        let incoming = Arc::new(Incoming::new(server), GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                incoming,
                net: Net::current(),
                port_nr,
                inner <- new_mutex!(
                    PortsInner {
                        wildcards: [const { None }; 3],
                        ports: KVec::new(),
                        last: 0,
                        closed: false,
                    },
                    "Ports::inner"
                ),
                relisten <- kx::new_delayed_work!(queue, "Ports::relisten"),
            }),
            GFP_KERNEL,
        )
    }

    /// Begins to listen on all addresses, unless the server listens on ports only.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`; `ENOMEM`. Clients may have connected nevertheless.
    pub(crate) fn open(&self) -> Result {
        match self.port_nr {
            0 => {
                pr_info!("port_nr is 0: listening on the ports in configfs only\n");
                Ok(())
            }
            _ => self.listen_everywhere(&mut self.inner.lock()),
        }
    }

    /// Stops listening permanently: no more requests arrive.
    pub(crate) fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closed = true;
        inner.wildcards = [const { None }; 3];
        // Each handler has a reference to this.
        let ports = core::mem::take(&mut inner.ports);
        drop(inner);
        drop(ports);
        self.relisten.disable_sync();
    }

    /// Listens on all addresses. The connection manager assigns GIDs to the initial network
    /// namespace, so the server listens on GIDs only there, if that is possible.
    fn listen_everywhere(&self, inner: &mut PortsInner) -> Result {
        // For iWARP, the connection manager finds no device for an IPv4 address that arrives at an
        // IPv6 wildcard, so each family has its own listener.
        let v4 = Some(self.wildcard(&SockAddr::v4([0; 4], self.port_nr))?);
        let v6 = match self.wildcard(&SockAddr::v6([0; 16], self.port_nr, 0)) {
            Ok(id) => Some(id),
            Err(error) if error == EAFNOSUPPORT => None,
            Err(error) => return Err(error),
        };
        inner.wildcards = [v4, v6, self.wildcard_of_gids()];
        pr_info!("listening on port {}\n", self.port_nr);
        Ok(())
    }

    fn wildcard_of_gids(&self) -> Option<Listener> {
        if *self.net != *Net::init() {
            return None;
        }
        match self.wildcard(&SockAddr::gid([0; 16], self.port_nr)) {
            Ok(id) => Some(id),
            Err(error) => {
                // Without InfiniBand devices this is not an error.
                let error = convert::errno(error);
                pr_info!("not listening on GIDs: {}\n", error.as_str());
                None
            }
        }
    }

    fn wildcard(&self, addr: &SockAddr) -> Result<Listener> {
        Listener::new(&self.net, addr, BACKLOG, self.incoming.clone()).map_err(in_use)
    }

    /// Adds a port that is not enabled. With the first one, the server stops listening on all
    /// addresses.
    ///
    /// # Errors
    ///
    /// `ESHUTDOWN` if the server is being unloaded; `ENOMEM`.
    pub fn add(&self) -> Result<PortId> {
        let mut inner = self.inner.lock();
        if inner.closed {
            return Err(ESHUTDOWN);
        }
        inner.last = inner.last.wrapping_add(1);
        let id = PortId(inner.last);
        let port = Port {
            id,
            address: None,
            number: match self.port_nr {
                0 => DEFAULT_PORT,
                number => number,
            },
            enabled: false,
            listening: None,
            failed: None,
        };
        inner.ports.push(port, GFP_KERNEL)?;
        if inner.listens_everywhere() {
            inner.wildcards = [const { None }; 3];
            pr_info!("no longer listening on all addresses, only on the ports in configfs\n");
        }
        Ok(id)
    }

    /// Removes a port. With the last one, the server listens on all addresses again. If that fails,
    /// it logs the error and retries.
    pub fn remove(self: &Arc<Self>, id: PortId) {
        let mut inner = self.inner.lock();
        let Some(at) = inner.ports.iter().position(|port| port.id == id) else {
            return;
        };
        let removed = inner.ports.remove(at);
        // The address may be needed below.
        drop(removed);
        if !self.lacks_wildcards(&inner) {
            return;
        }
        if let Err(error) = self.listen_everywhere(&mut inner) {
            pr_err!(
                "cannot listen on port {} ({}): no client can connect; trying again\n",
                self.port_nr,
                convert::errno(error).as_str()
            );
            self.relisten.enqueue_in(self.clone(), RETRY_MS);
        }
    }

    /// Returns whether the server should listen on all addresses but does not.
    fn lacks_wildcards(&self, inner: &PortsInner) -> bool {
        let should = !inner.closed && inner.ports.is_empty() && self.port_nr > 0;
        should && !inner.listens_everywhere()
    }

    /// Returns the settings and the state of a port.
    ///
    /// # Errors
    ///
    /// `ENOENT` if it was removed.
    pub fn info(&self, id: PortId) -> Result<PortInfo> {
        let mut inner = self.inner.lock();
        let port = inner.find(id)?;
        Ok(PortInfo {
            address: port.address,
            number: port.number,
            enabled: port.enabled,
            listening: port.listening.as_ref().is_some_and(|on| !on.has_ended()),
        })
    }

    /// Calls `func` with the address and the number of each port on which the server listens.
    ///
    /// # Context
    ///
    /// May sleep; `func` must not wait for a client.
    pub fn for_each_listening(&self, mut func: impl FnMut(Addr, u16)) {
        for port in &self.inner.lock().ports {
            let listens = port.listening.as_ref().is_some_and(|on| !on.has_ended());
            if let (true, Some(address)) = (listens, port.address) {
                func(address, port.number);
            }
        }
    }

    /// Sets the address of a port, on which the server [can listen](listen::check).
    ///
    /// # Errors
    ///
    /// `EBUSY` while it is enabled; `EINVAL` for another address; `ENOENT`.
    pub fn set_address(&self, id: PortId, address: Addr) -> Result {
        let checked = listen::check(&address);
        checked.map_err(|error: ListenError| convert::error(error.errno()))?;
        let mut inner = self.inner.lock();
        inner.find_disabled(id)?.address = Some(address);
        Ok(())
    }

    /// Sets the number of a port, which is not 0.
    ///
    /// # Errors
    ///
    /// `EBUSY` while it is enabled; `ENOENT`.
    pub fn set_number(&self, id: PortId, number: u16) -> Result {
        let mut inner = self.inner.lock();
        inner.find_disabled(id)?.number = number;
        Ok(())
    }

    /// Listens on a port, if it is not enabled already.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE` if another port overlaps with it, or the number of an unspecified address is
    /// used; `EADDRNOTAVAIL` if the machine does not have the address, or another user of the
    /// connection manager listens on all addresses; `ENODEV` if no RDMA device has it; `EINVAL`
    /// without an address; `ENOENT`; `ENOMEM`; others of the connection manager.
    pub fn enable(self: &Arc<Self>, id: PortId) -> Result {
        let mut inner = self.inner.lock();
        let port = inner.find(id)?;
        if port.enabled {
            return Ok(());
        }
        let (address, number) = (port.address.ok_or(EINVAL)?, port.number);
        if inner.is_taken(&address, number) {
            return Err(EADDRINUSE);
        }
        let listening = self.listen_on(&address, number)?;
        let port = inner.find(id)?;
        port.listening = Some(listening);
        port.enabled = true;
        port.failed = None;
        pr_info!("listening on {}\n", *port);
        Ok(())
    }

    /// Stops listening on a port.
    ///
    /// # Errors
    ///
    /// `ENOENT`.
    pub fn disable(&self, id: PortId) -> Result {
        let mut inner = self.inner.lock();
        let port = inner.find(id)?;
        port.listening = None;
        if core::mem::take(&mut port.enabled) {
            pr_info!("not listening on {} any more\n", *port);
        }
        Ok(())
    }

    fn listen_on(self: &Arc<Self>, address: &Addr, number: u16) -> Result<Listening> {
        // The connection manager looks up listeners for GIDs in the initial namespace.
        if matches!(address, Addr::Gid(_)) && *self.net != *Net::init() {
            return Err(EADDRNOTAVAIL);
        }
        let handler = PortHandler {
            ports: self.clone(),
            ended: AtomicFlag::new(false),
        };
        let handler = Arc::new(handler, GFP_KERNEL)?;
        let at = convert::sock_addr(address, number)?;
        let listener = Listener::new(&self.net, &at, BACKLOG, handler.clone());
        let listener = match listen::is_unspecified(address) {
            true => listener.map_err(in_use),
            false => listener,
        };
        Ok(Listening {
            _listener: listener?,
            handler,
        })
    }

    /// Destroys ids whose RDMA device is being removed, and listens wherever the server should but
    /// does not; returns whether that failed somewhere.
    fn listen_again(self: &Arc<Self>) -> bool {
        let mut inner = self.inner.lock();
        let mut failed =
            self.lacks_wildcards(&inner) && self.listen_everywhere(&mut inner).is_err();
        for port in inner.ports.iter_mut().filter(|port| port.enabled) {
            if port.listening.as_ref().is_some_and(Listening::has_ended) {
                port.listening = None;
                pr_warn!(
                    "not listening on {} any more, as its RDMA device was removed: the server listens again when the device is back\n",
                    *port
                );
            }
            if let (None, Some(address)) = (&port.listening, port.address) {
                let listening = self.listen_on(&address, port.number);
                failed |= listening.is_err();
                port.listens_again(listening);
            }
        }
        failed
    }
}

impl WorkItem for Ports {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _no_io = NoIo::enter();
        if this.listen_again() {
            this.relisten.enqueue_in(this.clone(), RETRY_MS);
        }
    }
}

impl PortsInner {
    fn find(&mut self, id: PortId) -> Result<&mut Port> {
        let mut ports = self.ports.iter_mut();
        ports.find(|port| port.id == id).ok_or(ENOENT)
    }

    /// Returns whether the server listens on all addresses.
    fn listens_everywhere(&self) -> bool {
        self.wildcards.iter().any(Option::is_some)
    }

    /// Returns whether an enabled port prevents others from listening on the address.
    fn is_taken(&self, address: &Addr, number: u16) -> bool {
        let mut enabled = self.ports.iter().filter(|port| port.enabled);
        enabled.any(|port| {
            let overlaps = port
                .address
                .is_some_and(|other| listen::overlap(&other, address));
            overlaps && port.number == number
        })
    }

    fn find_disabled(&mut self, id: PortId) -> Result<&mut Port> {
        let port = self.find(id)?;
        match port.enabled {
            true => Err(EBUSY),
            false => Ok(port),
        }
    }
}

impl Port {
    /// Stores the result of listening again.
    fn listens_again(&mut self, result: Result<Listening>) {
        match result {
            Ok(listening) => {
                self.listening = Some(listening);
                self.failed = None;
                pr_info!("listening on {} again\n", *self);
            }
            Err(error) => {
                let errno = convert::errno(error);
                // Once for each reason; the missing device was already logged.
                if error != ENODEV && self.failed.replace(errno) != Some(errno) {
                    pr_warn!(
                        "cannot listen on {} ({}): trying again\n",
                        *self,
                        errno.as_str()
                    );
                }
            }
        }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => f.write_fmt(fmt!("{}, port {}", Shown(address), self.number)),
            None => f.write_fmt(fmt!("port {}", self.number)),
        }
    }
}

impl Listening {
    /// Returns whether the id no longer gets requests.
    fn has_ended(&self) -> bool {
        self.handler.ended.load(Relaxed)
    }
}

/// Gets the events of the listening id of a port.
struct PortHandler {
    ports: Arc<Ports>,
    /// The RDMA device is being removed, or a bond has moved the address to another one.
    ended: AtomicFlag,
}

impl CmHandler for PortHandler {
    fn event(&self, event: &CmEvent<'_>) {
        if event.is_end() {
            // ORDERING: Queueing the work item, which reads the flag, is a barrier.
            self.ended.store(true, Relaxed);
            // Run the work now, even if it waits to retry another port: the removal waits for it.
            self.ports.relisten.modify(self.ports.clone(), 0);
        }
    }

    fn connect_request(
        &self,
        request: ConnRequest,
        private_data: &[u8],
    ) -> Result<(), ConnRequest> {
        self.ports.incoming.connect_request(request, private_data)
    }
}

/// Translates the error of listening on an unspecified address, which every machine has:
/// `EADDRNOTAVAIL` means that another user already listens on one of its addresses.
fn in_use(error: Error) -> Error {
    match error {
        EADDRNOTAVAIL => EADDRINUSE,
        error => error,
    }
}
