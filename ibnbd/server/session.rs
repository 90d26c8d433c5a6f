// SPDX-License-Identifier: GPL-2.0

//! The session of a client, with the devices that it has open.

use crate::{
    admin,
    device::Opened,
    export::Exports,
    io::{
        self,
        IoOp, //
    },
    param,
    sysfs::View, //
};
use ibnbd_proto::{
    msg::UserMsg,
    path::{
        self,
        PathError, //
    },
};
use ibtrs_core::convert;
use ibtrs_server::{
    Notices,
    Op,
    ServiceSession,
    SessionInfo, //
};
use kernel::{
    new_mutex,
    prelude::*,
    str::{
        CStr,
        CString, //
    },
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
};
use kx::{
    blk::BioTable,
    mm::NoIo,
    pr_warn_ratelimited,
    sync::{
        PercpuArc,
        PercpuOwner,
        RcuPtr, //
    },
    sysfs::Dir,
    work::{
        DelayedWork,
        Options,
        Queue, //
    },
};

/// Returns the parameter `dev_search_path`.
pub(crate) fn search_path() -> Result<&'static str, PathError> {
    let text = core::str::from_utf8(param::dev_search_path.get());
    path::search_path(text.map_err(|_| PathError::NotPrintable)?)
}

/// The service that sessions come to.
pub(crate) struct Service {
    exports: Arc<Exports>,
    /// Where devices are opened and closed.
    queue: Arc<Queue>,
}

impl Service {
    pub(crate) fn new(exports: Arc<Exports>) -> Result<Self> {
        Ok(Self {
            exports,
            queue: Queue::new(Options::unbound(), fmt!("ibnbd-server"))?,
        })
    }
}

impl ibtrs_server::Service for Service {
    fn session_up(&self, info: SessionInfo<'_>) -> Result<Arc<dyn ServiceSession>> {
        let queue = self.queue.clone();
        let session = Arc::pin_init(
            try_pin_init!(Session {
                name: CString::try_from(info.name)?,
                extensions: info.extensions,
                version: Atomic::new(0),
                exports: self.exports.clone(),
                devices: RcuPtr::new(None),
                open <- new_mutex!(
                    OpenDevices { list: KVec::new(), next_id: kx::random::next_u32() },
                    "Session::open"
                ),
                bios: BioTable::new(usize::from(info.queue_depth))?,
                notices <- new_mutex!(info.notices, "Session::notices"),
                watch <- kx::new_delayed_work!(queue, "Session::watch"),
            }? Error),
            GFP_KERNEL,
        )?;
        Ok(Arc::new(
            Handle {
                session,
                queue: self.queue.clone(),
            },
            GFP_KERNEL,
        )?)
    }
}

/// A device as the session keeps it.
pub(crate) struct OpenDevice {
    pub(crate) id: u32,
    /// As the client named it.
    pub(crate) name: CString,
    /// What the operator sees of it.
    pub(crate) dir: Option<Dir<Arc<View>>>,
    pub(crate) device: PercpuOwner<Opened>,
}

impl OpenDevice {
    /// Closes the device, which the session has forgotten.
    ///
    /// # Context
    ///
    /// May sleep, until its I/O has ended. Not under the lock of the session's devices,
    /// which the files of the device take.
    pub(crate) fn close(self) {
        // Before what it is in.
        drop(self.dir);
        self.device.kill_and_wait();
    }
}

/// The devices that a session has open.
pub(crate) struct OpenDevices {
    pub(crate) list: KVec<OpenDevice>,
    /// The next id to be used. Ids are not used again before four billion others
    /// were, and another session begins elsewhere, so that a late request does not
    /// hit another device.
    next_id: u32,
}

impl OpenDevices {
    /// Returns an id that no device has.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is none.
    pub(crate) fn new_id(&mut self) -> Result<u32> {
        for _ in 0..=self.list.len() {
            let id = self.next_id;
            self.next_id = id.wrapping_add(1);
            if self.list.iter().all(|device| device.id != id) {
                return Ok(id);
            }
        }
        Err(ENOSPC)
    }
}

/// The devices by their ids, for I/O.
type Table = KVec<(u32, PercpuArc<Opened>)>;

/// The session of a client.
#[pin_data]
pub(crate) struct Session {
    name: CString,
    /// The client takes what C drivers do not know.
    extensions: bool,
    /// The version that the client and we speak; zero before it said so.
    version: Atomic<u32>,
    pub(crate) exports: Arc<Exports>,
    devices: RcuPtr<Table>,
    #[pin]
    pub(crate) open: Mutex<OpenDevices>,
    /// A bio for each chunk.
    pub(crate) bios: BioTable<IoOp>,
    /// Until the session has gone, if the client takes notices.
    #[pin]
    pub(crate) notices: Mutex<Option<Notices>>,
    /// Looks for devices that have changed.
    #[pin]
    pub(crate) watch: DelayedWork<Self>,
}

kx::impl_has_work! {
    impl HasWork<DelayedWork<Self>> for Session { self.watch }
}

impl Session {
    pub(crate) fn name(&self) -> &CStr {
        &self.name
    }

    /// Returns whether the client knows the extensions of the messages.
    pub(crate) fn has_extensions(&self) -> bool {
        self.extensions
    }

    /// Says which version the client and we speak.
    pub(crate) fn set_version(&self, version: u8) {
        // ORDERING: Nothing else depends on it.
        self.version.store(version.into(), Relaxed);
    }

    /// Returns whether the priorities of the client's requests count.
    pub(crate) fn has_prio(&self) -> bool {
        self.version.load(Relaxed) >= 2
    }

    /// Finds an open device for an I/O.
    pub(crate) fn device(&self, id: u32) -> Option<PercpuArc<Opened>> {
        let table = self.devices.read();
        let found = table.get()?.iter().find(|(other, _)| *other == id)?;
        Some(found.1.clone())
    }

    /// Calls a function for each device that I/O finds.
    ///
    /// # Context
    ///
    /// Any; the function must not sleep.
    pub(crate) fn for_each_device(&self, mut func: impl FnMut(u32, &Opened)) {
        let table = self.devices.read();
        for (id, device) in table.get().into_iter().flatten() {
            func(*id, device);
        }
    }

    /// Lets I/O find the devices of `open`, and no others.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn publish(&self, open: &OpenDevices) -> Result {
        let mut table = KVec::with_capacity(open.list.len(), GFP_KERNEL)?;
        for device in &open.list {
            table.push((device.id, device.device.get()), GFP_KERNEL)?;
        }
        drop(self.devices.replace(Some(KBox::new(table, GFP_KERNEL)?)));
        Ok(())
    }

    /// Takes the device `id` out of the session, if it is in there. It is to be
    /// [closed](OpenDevice::close) then.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; the device stays.
    pub(crate) fn withdraw(&self, id: u32) -> Result<Option<OpenDevice>> {
        let mut open = self.open.lock();
        let at = open.list.iter().position(|device| device.id == id);
        let Some(at) = at else {
            return Ok(None);
        };
        let device = open.list.remove(at).map_err(|_| EINVAL)?;
        if let Err(error) = self.publish(&open) {
            // There is room for it. I/O has never ceased to find it.
            let _ = open.list.push(device, GFP_KERNEL);
            return Err(error);
        }
        Ok(Some(device))
    }

    /// Closes all devices.
    ///
    /// # Context
    ///
    /// May sleep, until their I/O has ended.
    fn close_all(&self) {
        drop(self.devices.replace(None));
        let list = core::mem::take(&mut self.open.lock().list);
        for device in list {
            pr_info!("{}: closed {}\n", *self.name, *device.name);
            device.close();
        }
    }
}

/// What the transport hands requests to.
struct Handle {
    session: Arc<Session>,
    queue: Arc<Queue>,
}

impl ServiceSession for Handle {
    fn request(&self, op: Op) {
        match UserMsg::parse(op.user_hdr()) {
            Ok(UserMsg::Io(hdr)) => io::serve(&self.session, &hdr, op),
            Ok(_) => {
                // Opening and closing devices takes time, which the other
                // requests of the connection must not wait for. If there is no
                // memory the request is dropped, which answers it.
                let session = self.session.clone();
                let _no_io = NoIo::enter();
                let _ = self
                    .queue
                    .spawn(GFP_KERNEL, move || admin::serve(&session, op));
            }
            Err(error) => {
                pr_warn_ratelimited!(
                    "{}: message refused: {}\n",
                    self.session.name(),
                    error.as_str()
                );
                op.respond(Err(convert::error(error.errno())));
            }
        }
    }

    fn down(&self) {
        self.session.watch.disable_sync();
        let notices = self.session.notices.lock().take();
        drop(notices);
        // No message of the session is on the queue any more: each is answered. Those of others
        // may wait there for their disks.
        self.session.close_all();
    }
}
