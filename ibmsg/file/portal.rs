// SPDX-License-Identifier: GPL-2.0

//! The file of a message portal.

use ibmsg_proto::refused::reasons;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::file::{
    uring::UringOps,
    File,
    FileOps,
    Io,
    IovIterDest,
    IovIterSource,
    NewFile,
    Ready,
    SeqFile,
    WaitQueue, //
};

use super::{
    channel::ChannelFile,
    data,
    is_too_small,
    publish,
    InfoWriter,
    Reading,
    ACCEPT,
    ACCEPT_LEN,
    FILE_PORTAL,
    INFO,
    LOG,
    NONBLOCK,
    REJECT, //
};
use crate::{
    channel::Calls,
    limits::Limits,
    portal::{
        Portal,
        Portals,
        Reader,
        Seen, //
    },
    session::{
        End,
        Side, //
    },
    types::{
        Arg,
        Header,
        Kind,
        F_AUTHENTICATED,
        HEADER_LEN,
        NAME_LEN, //
    }, //
};

/// Bytes of an offer before its private data.
const OFFER_LEN: usize = 8 + NAME_LEN;

/// A portal that a program has.
pub(super) struct PortalFile {
    portals: Arc<Portals<Side>>,
    portal: Arc<Portal<Side>>,
    limits: Arc<Limits>,
}

impl PortalFile {
    /// The file of a portal that was bound. It is unbound when this is dropped.
    pub(super) fn new(
        portals: Arc<Portals<Side>>,
        portal: Arc<Portal<Side>>,
        limits: Arc<Limits>,
    ) -> Result<Arc<Self>> {
        let this = Self {
            portals,
            portal,
            limits,
        };
        Ok(Arc::new(this, GFP_KERNEL_ACCOUNT)?)
    }

    fn accept(&self, address: usize) -> Result<usize> {
        let arg = Arg::<ACCEPT_LEN>::read(address)?;
        let mut fields = arg.fields();
        let flags = fields.flags(NONBLOCK | REJECT)?;
        let offer = fields.u64()?;
        let (reason, data_len) = (fields.u32()?, fields.u32()?);
        let data = data(&mut fields, data_len)?;
        if flags & REJECT != 0 {
            if flags != REJECT || reason == 0 || reason > 4095 {
                return Err(EINVAL);
            }
            // CAST: An errno.
            let reason = Error::from_errno(-(reason as c_int));
            let offer = self.portal.remove(offer).ok_or(ENOENT)?;
            return match offer.end().reject(reason, data) {
                true => Ok(0),
                false => Err(ENOENT),
            };
        }
        if reason != 0 {
            return Err(EINVAL);
        }
        let (from, channel, wake) = self.portal.find(offer).ok_or(ENOENT)?;
        // What may fail comes first: the slots for requests, the place for bodies, and the file, for a channel that is not
        // its own yet.
        let slots = Calls::slots(self.portal.terms.window.calls())?;
        let end = End {
            side: from.clone(),
            id: channel,
            wake: wake.clone(),
        };
        end.prepare_bodies()?;
        let object = ChannelFile::offered(from, channel, wake)?;
        let file = NewFile::new(c"[ibmsg-channel]", object.clone(), flags & NONBLOCK != 0)?;
        // Of two tasks that accept, one gets it.
        let offer = self.portal.remove(offer).ok_or(ENOENT)?;
        let end = offer.end();
        end.serves(&self.portal.logs)?;
        if !end.accept(data, slots, None) {
            return Err(ENOENT);
        }
        object.has_channel();
        Ok(file.install())
    }
}

impl Drop for PortalFile {
    fn drop(&mut self) {
        self.portals.unbind(&self.portal);
        while let Some(offer) = self.portal.remove_any() {
            offer.end().unbound();
        }
    }
}

impl UringOps for PortalFile {}

impl FileOps for PortalFile {
    type Module = crate::LocalModule;

    fn waiters(&self) -> &WaitQueue {
        &self.portal.waiters
    }

    fn flush(&self) {
        self.portal.give_back(Reader::current());
    }

    fn poll(&self) -> Ready {
        let has_offer = self.portal.next_data().is_some();
        Ready::IN.when(has_offer) | Ready::OUT.when(self.portal.logs.is_writable())
    }

    fn read(&self, io: Io, to: &mut IovIterDest<'_>) -> Result<usize> {
        if is_too_small(to) {
            return Err(EMSGSIZE);
        }
        let mut reading = Reading { done: 0 };
        loop {
            let room = reading.room(to).checked_sub(HEADER_LEN + OFFER_LEN);
            let next = match room {
                Some(room) => self.portal.read(room, Reader::current()),
                None => self.portal.next_data().map(|_| Err(EMSGSIZE)),
            };
            match next {
                Some(Ok(seen)) => {
                    if let Err(e) = copy(&mut reading, to, &seen) {
                        self.portal.put_back(seen.id);
                        return reading.or(e);
                    }
                }
                Some(Err(e)) => return reading.or(e),
                None if reading.done > 0 => return Ok(reading.done),
                None if !io.may_wait() => return Err(EAGAIN),
                None => {
                    let portal = &self.portal;
                    portal.waiters.wait(None, || portal.next_data())?;
                }
            }
        }
    }

    fn write(&self, io: Io, from: &mut IovIterSource<'_>) -> Result<usize> {
        publish::publish(&self.portal, &self.limits, io, from)
    }

    fn ioctl(&self, _file: &File, cmd: u32, arg: usize) -> Result<usize> {
        match cmd {
            LOG => publish::log(&self.portal, &self.limits, arg),
            ACCEPT => self.accept(arg),
            INFO => {
                let mut info = InfoWriter::new(FILE_PORTAL);
                info.len(self.portal.len());
                info.u32(0);
                info.terms(Some(&self.portal.terms));
                info.u32(0);
                info.u32(0);
                let next = self.portal.next_data();
                info.len(next.map_or(0, |len| HEADER_LEN + OFFER_LEN + len));
                info.names(None, Some(&self.portal.name));
                info.write(arg)
            }
            _ => Err(ENOTTY),
        }
    }

    fn show_fdinfo(&self, to: &SeqFile) {
        kernel::seq_print!(
            to,
            "portal:\t{}\noffers:\t{}\nbacklog:\t{}\nunauthenticated:\t{}\n",
            self.portal.name,
            self.portal.len(),
            self.portal.backlog,
            u8::from(self.portal.takes_unauthenticated)
        );
        let counts = self.portal.logs.counts();
        kernel::seq_print!(
            to,
            "logs:\t{}\nsubscriptions:\t{}\npublished:\t{}\n",
            counts.logs,
            counts.subscriptions,
            counts.published
        );
        let account = self.portal.account.get();
        for (reason, counter) in reasons::ALL.iter().enumerate() {
            let count = account.refused().get(reason);
            kernel::seq_print!(to, "{}:\t{}\n", counter.name(), count);
        }
    }
}

fn copy(reading: &mut Reading, to: &mut IovIterDest<'_>, seen: &Seen<Side>) -> Result {
    let mut head = [0; 8];
    let lens = [OFFER_LEN, seen.len];
    for (place, len) in head.chunks_exact_mut(2).zip(lens) {
        place.copy_from_slice(&u16::try_from(len).unwrap_or(0).to_ne_bytes());
    }
    if let Some(place) = head.get_mut(4..) {
        place.copy_from_slice(&seen.max_message.to_ne_bytes());
    }
    let header = Header {
        id: seen.id,
        len: u32::try_from(OFFER_LEN + seen.len).unwrap_or(0),
        flags: match seen.from.is_authenticated() {
            true => F_AUTHENTICATED,
            false => 0,
        },
        ..Header::new(Kind::Offer)
    };
    let data = seen.data.get(..seen.len).unwrap_or(&[]);
    reading.copy(
        to,
        &header,
        &[&head, seen.from.name().as_field(), data],
        None,
    )
}
