// SPDX-License-Identifier: GPL-2.0

//! The device: a program binds portals and opens channels.

use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use kx::{
    cred::{
        current_uid,
        is_net_admin, //
    },
    file::{
        uring::UringOps,
        DeviceOps,
        File,
        FileOps,
        Io,
        IovIterDest,
        NewFile,
        Ready,
        WaitQueue, //
    },
    sync::atomic::Relaxed, //
};

use super::{
    channel::ChannelFile,
    data,
    events::Events,
    portal::PortalFile,
    InfoWriter,
    BIND,
    BIND_LEN,
    CONNECT,
    CONNECT_DATA,
    CONNECT_LEN,
    CONNECT_STATUS,
    FILE_CONTEXT,
    INFO,
    NONBLOCK,
    UNAUTHENTICATED, //
};
use crate::{
    hub::Hub,
    portal::{
        self,
        Portal, //
    },
    session::{
        Shared,
        Side, //
    },
    types::{
        Arg,
        Name,
        Terms, //
    }, //
};

/// The file of a program that has opened the device.
#[pin_data]
pub(crate) struct Context {
    hub: Arc<Hub>,
    #[pin]
    events: Mutex<Events>,
    /// Nobody ever waits.
    #[pin]
    waiters: WaitQueue,
}

impl DeviceOps for Context {
    type Data = Arc<Hub>;

    fn open(hub: &Arc<Hub>) -> Result<Arc<Self>> {
        // ORDERING: Everything else was there before the device, whose registration has published it.
        if !hub.is_ready.load(Relaxed) {
            return Err(ENODEV);
        }
        let hub = hub.clone();
        Arc::pin_init(
            pin_init!(Self {
                hub,
                events <- new_mutex!(Events::Unread, "Context::events"),
                waiters <- kx::new_wait_queue!("Context::waiters"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }
}

impl UringOps for Context {}

impl FileOps for Context {
    type Module = crate::LocalModule;

    fn waiters(&self) -> &WaitQueue {
        &self.waiters
    }

    /// There is always something to read, if only the end: who polls before it reads does not wait.
    fn poll(&self) -> Ready {
        Ready::IN
    }

    /// The last events of portals and channels, for an operator.
    fn read(&self, io: Io, to: &mut IovIterDest<'_>) -> Result<usize> {
        // They concern the programs of all users.
        if !is_net_admin() {
            return Err(EPERM);
        }
        if io.is_nowait {
            return Err(EAGAIN);
        }
        self.events.lock().read(&self.hub, to)
    }

    fn ioctl(&self, _file: &File, cmd: u32, arg: usize) -> Result<usize> {
        match cmd {
            BIND => self.bind(arg),
            CONNECT => self.connect(arg),
            INFO => {
                let mut info = InfoWriter::new(FILE_CONTEXT);
                info.names(None, None);
                info.write(arg)
            }
            _ => Err(ENOTTY),
        }
    }
}

impl Context {
    fn bind(&self, address: usize) -> Result<usize> {
        let arg = Arg::<BIND_LEN>::read(address)?;
        let mut fields = arg.fields();
        let flags = fields.flags(NONBLOCK | UNAUTHENTICATED)?;
        let backlog = Portal::<Side>::backlog(fields.u32()?)?;
        fields.reserved()?;
        let terms = Terms::field(&mut fields)?;
        let name = Name::field(&mut fields)?;
        self.hub.shared.access.check_bind(&name)?;
        let uid = current_uid();
        let memory = portal::memory(backlog);
        let Shared {
            limits, portals, ..
        } = &self.hub.shared;
        let charge = limits.charge_portal(uid, memory)?;
        let owner = portal::Owner {
            uid,
            takes_unauthenticated: flags & UNAUTHENTICATED != 0,
            max_channels: 0,
        };
        let portal = portals.bind(name, terms, &owner, backlog, charge)?;
        let file = PortalFile::new(portals.clone(), portal, limits.clone())?;
        Ok(NewFile::new(c"[ibmsg-portal]", file, flags & NONBLOCK != 0)?.install())
    }

    fn connect(&self, address: usize) -> Result<usize> {
        let arg = Arg::<CONNECT_LEN>::read(address)?;
        let mut fields = arg.fields();
        let flags = fields.flags(NONBLOCK)?;
        let (timeout_ms, _status, data_len) = (fields.u32()?, fields.u32()?, fields.u32()?);
        fields.reserved()?;
        let terms = Terms::field(&mut fields)?;
        let (session, portal) = (Name::field(&mut fields)?, Name::field(&mut fields)?);
        let data = data(&mut fields, data_len)?;
        let accounts = self.hub.shared.access.check_connect(&session)?;
        let side = self.hub.client(&session)?;
        let is_nonblock = flags & NONBLOCK != 0;
        let uid = current_uid();
        let (channel, wake) = side.open(uid, &accounts, portal, terms, data, is_nonblock)?;
        let object = ChannelFile::new(side.clone(), channel, wake)?;
        // From now on, dropping the file closes the channel.
        let file = NewFile::new(c"[ibmsg-channel]", object.clone(), is_nonblock)?;
        if is_nonblock {
            return Ok(file.install());
        }
        let limit = (timeout_ms != 0).then_some(timeout_ms);
        let answer = object.waiters().wait(limit, || side.answer(channel));
        // Not restarted: the limit would begin again, and the portal would get another offer.
        let answer = answer.map_err(|error| if error == ERESTARTSYS { EINTR } else { error })?;
        let len = u32::try_from(answer.len).unwrap_or(0);
        let mut told = [0; 8];
        let (status, told_len) = told.split_at_mut(4);
        status.copy_from_slice(&u32::from(answer.refused.unwrap_or(0)).to_ne_bytes());
        told_len.copy_from_slice(&len.to_ne_bytes());
        arg.write(CONNECT_STATUS, &told)?;
        arg.write(CONNECT_DATA, answer.data.get(..answer.len).unwrap_or(&[]))?;
        if answer.refused.is_some() {
            return Err(ECONNREFUSED);
        }
        side.forget_answer(channel);
        Ok(file.install())
    }
}
