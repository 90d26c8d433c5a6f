// SPDX-License-Identifier: GPL-2.0

//! Publish and subscribe, as programs have it.

use ibmsg_proto::{
    publish::{
        From,
        LogId,
        Request, //
    },
    wire::Publication, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::file::{
    FileOps,
    Io,
    IovIterSource, //
};

use super::{
    channel::ChannelFile,
    with_room,
    written, //
};
use crate::{
    channel::Ask,
    limits::Limits,
    portal::Portal,
    publish::{
        self,
        Unpublished, //
    },
    session::Side,
    types::{
        Arg,
        Body,
        Kind,
        F_NOWAIT,
        HEADER_LEN,
        SUBSCRIPTIONS, //
    }, //
};

const SUBSCRIBE_LEN: usize = 40;
const UNSUBSCRIBE_LEN: usize = 16;
const LOG_LEN: usize = 72;
/// Where `log.log` is.
const LOG_OUT: usize = 32;

/// A subscription that cannot begin with what it names is refused.
const EXACT: u32 = 1;
/// The call does not wait for room.
const NOWAIT: u32 = 2;
/// The terms of a log are set.
const SET: u32 = 1;
/// Those of logs that are made later.
const DEFAULT: u32 = 2;

impl ChannelFile {
    /// Takes `struct ibmsg_subscribe`.
    pub(super) fn subscribe(&self, address: usize, may_wait: bool) -> Result<usize> {
        let arg = Arg::<SUBSCRIBE_LEN>::read(address)?;
        let mut fields = arg.fields();
        let flags = fields.flags(EXACT | NOWAIT)?;
        let tag = fields.u64()?;
        let begin = fields.u32()?;
        fields.reserved()?;
        // As it was read in EV_SUBSCRIBED.
        let log = LogId::new(u64::from_le(fields.u64()?));
        let position = fields.u64()?;
        let from = match (begin, log) {
            (0, None) if position == 0 => From::First,
            (1, None) if position == 0 => From::Next,
            (2, Some(log)) => From::Position(log, position),
            _ => return Err(EINVAL),
        };
        let request = Request {
            from,
            exact: flags & EXACT != 0,
        };
        let may_wait = may_wait && flags & NOWAIT == 0;
        self.ask(tag, Publication::Subscribe(request), may_wait)
    }

    /// Takes `struct ibmsg_unsubscribe`.
    pub(super) fn unsubscribe(&self, address: usize, may_wait: bool) -> Result<usize> {
        let arg = Arg::<UNSUBSCRIBE_LEN>::read(address)?;
        let mut fields = arg.fields();
        let flags = fields.flags(NOWAIT)?;
        let tag = fields.u64()?;
        let may_wait = may_wait && flags & NOWAIT == 0;
        self.ask(tag, Publication::Unsubscribe, may_wait)
    }

    fn ask(&self, tag: u64, what: Publication, may_wait: bool) -> Result<usize> {
        let its = &self.its;
        let flags = GFP_KERNEL_ACCOUNT;
        let list = match what {
            Publication::Subscribe(_) => KVec::with_capacity(usize::from(SUBSCRIPTIONS), flags)?,
            _ => KVec::new(),
        };
        let mut ask = Ask {
            tag,
            what,
            place: Some(KBox::new_uninit(flags)?),
            body: Body::copied(what.fields().content(), flags)?,
            list,
        };
        loop {
            let result = with_room(self.waiters(), may_wait, || {
                its.side.ask(its.channel, &mut ask)
            });
            match result {
                Err(ENOMEM) => its.side.grow(its.channel)?,
                result => return result.map(|()| 0),
            }
        }
    }
}

/// Publishes what a program writes to a portal.
///
/// # Errors
///
/// - [`EAGAIN`] if a subscriber is slow, and the publisher is to wait,
/// - [`EMSGSIZE`] if it is longer than a message, or the log, may be,
/// - [`ENOSPC`] if there are too many logs, or [`EDQUOT`] and [`ENOBUFS`] for the limits of memory,
/// - [`ERESTARTSYS`] if a signal came first.
pub(super) fn publish(
    portal: &Portal<Side>,
    limits: &Arc<Limits>,
    io: Io,
    from: &mut IovIterSource<'_>,
) -> Result<usize> {
    let (header, len) = written(from)?;
    // It has no outcome, and no time.
    if header.kind != Kind::Msg || header.flags & !F_NOWAIT != 0 || header.timeout_ms != 0 {
        return Err(EINVAL);
    }
    let may_wait = io.may_wait() && header.flags & F_NOWAIT == 0;
    let body = Arc::new(Body::written(from, len)?, GFP_KERNEL_ACCOUNT)?;
    let logs = &portal.logs;
    // The terms of the log that is to be made first, if there is none.
    let publish = || match logs.publish(header.tag, &body) {
        Ok(()) => Ok(None),
        Err(Unpublished::NoLog(terms)) => Ok(Some(terms)),
        Err(Unpublished::Wait) => Err(EAGAIN),
        Err(Unpublished::TooLong) => Err(EMSGSIZE),
        Err(Unpublished::NoMemory) => Err(ENOMEM),
        Err(Unpublished::Over) => Err(EPIPE),
    };
    while let Some(terms) = with_room(&portal.waiters, may_wait, publish)? {
        let charge = limits.charge_portal(portal.uid, publish::memory(&terms))?;
        logs.set(header.tag, terms, charge)?;
    }
    logs.tell(header.tag);
    Ok(HEADER_LEN + len)
}

/// Takes `struct ibmsg_log`.
pub(super) fn log(portal: &Portal<Side>, limits: &Arc<Limits>, address: usize) -> Result<usize> {
    let arg = Arg::<LOG_LEN>::read(address)?;
    let mut fields = arg.fields();
    let flags = fields.flags(SET | DEFAULT)?;
    let tag = fields.u64()?;
    let (entries, policy, bytes) = (fields.u32()?, fields.u32()?, fields.u64()?);
    let logs = &portal.logs;
    if flags != 0 {
        let terms = publish::terms(entries, bytes, policy)?;
        if flags == DEFAULT && tag == 0 {
            logs.set_default(terms);
            return Ok(0);
        }
        if flags != SET {
            return Err(EINVAL);
        }
        let charge = limits.charge_portal(portal.uid, publish::memory(&terms))?;
        logs.set(tag, terms, charge)?;
    }
    let info = logs.info(tag).ok_or(ENOENT)?;
    let terms = info.log.terms();
    let mut said = [0; LOG_LEN - 16];
    let mut put = |at: usize, field: &[u8]| {
        if let Some(place) = said.get_mut(at - 16..at - 16 + field.len()) {
            place.copy_from_slice(field);
        }
    };
    put(16, &terms.entries().to_ne_bytes());
    put(20, &publish::policy(terms).to_ne_bytes());
    put(24, &terms.bytes().to_ne_bytes());
    put(LOG_OUT, &info.log.id().get().to_le_bytes());
    put(40, &info.log.first().to_ne_bytes());
    put(48, &info.log.next().to_ne_bytes());
    let slowest = info.slowest.unwrap_or(info.log.next());
    put(56, &slowest.to_ne_bytes());
    put(64, &info.subscribers.to_ne_bytes());
    arg.write(16, &said)?;
    Ok(0)
}
