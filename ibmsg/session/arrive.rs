// SPDX-License-Identifier: GPL-2.0

//! Looks at frames that have arrived.

use ibmsg_proto::{
    channel::{
        Channel,
        Conn, //
    },
    limits::{
        cost,
        FIRST, //
    },
    send::SendLimits,
    window::Window,
    wire::{
        Live,
        Open,
        Record,
        Records,
        ResumeEntry, //
    }, //
};
use ibtrs_core::convert;
use ibtrs_proto::Errno;
use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    Role,
    Side,
    State, //
};
use crate::{
    channel::{
        Chan,
        Fault, //
    },
    link::Arrived,
    types::{
        now,
        Name,
        Terms, //
    }, //
};

impl Side {
    /// Takes the records of a frame, but for the first `done`.
    pub(super) fn frame(&self, id: Conn, frame: &[u8], done: &mut usize) -> Arrived {
        let mut state = self.0.state.lock();
        let Some(conn) = state
            .conns
            .iter_mut()
            .find(|conn| conn.id == id && !conn.has_failed)
        else {
            return Arrived::Done;
        };
        let (limit, records) = match Records::parse(frame) {
            Ok(parsed) => parsed,
            Err(e) => {
                conn.fail(e.as_str());
                return Arrived::Done;
            }
        };
        // `done` counts the header, too.
        if *done == 0 {
            if let Err(e) = conn.flow.received(limit) {
                conn.fail(e.as_str());
                return Arrived::Done;
            }
            *done = 1;
        }
        let now = now();
        let mut arrived = Arrived::Done;
        for record in records.skip(*done - 1) {
            let result = match &record {
                Ok(record) => self.record(&mut state, id, record, now),
                Err(e) => Err(Fault::Protocol(e.as_str())),
            };
            match result {
                Ok(()) => *done += 1,
                Err(Fault::NoMemory) => {
                    arrived = Arrived::Later;
                    break;
                }
                Err(Fault::Protocol(why)) => {
                    if let Some(conn) = state.conns.iter_mut().find(|conn| conn.id == id) {
                        conn.fail(why);
                    }
                    return Arrived::Done;
                }
            }
        }
        if arrived == Arrived::Done {
            // LIVE may have ended it.
            if let Some(conn) = state.conns.iter_mut().find(|conn| conn.id == id) {
                conn.flow.reposted();
            }
        }
        self.transmit(&mut state, now);
        arrived
    }

    fn record(
        &self,
        state: &mut State,
        from: Conn,
        record: &Record<'_>,
        now: u64,
    ) -> Result<(), Fault> {
        let is_client = self.0.role == Role::Client;
        match record {
            // What only the other side sends.
            Record::Open(_) | Record::Resume(_) | Record::Live(_) if is_client => {
                return Err(Fault::Protocol("record of a client from a server"));
            }
            Record::Accept(_) | Record::Reject(_) | Record::Redirect(_) | Record::Resumed(_)
                if !is_client =>
            {
                return Err(Fault::Protocol("record of a server from a client"));
            }
            Record::Open(open) => return self.open_arrives(state, from, open, now),
            Record::Live(live) => {
                self.live_arrives(state, live, now);
                return Ok(());
            }
            Record::Resume(resume) => {
                for entry in resume.entries() {
                    self.resume_arrives(state, from, &entry, now)?;
                }
                return Ok(());
            }
            Record::Resumed(resumed) => {
                for entry in resumed.entries() {
                    if let Some(chan) = state.chans.get_mut(&entry.channel) {
                        chan.resumed(from, &entry)?;
                        self.attend(state, entry.channel, now);
                    }
                }
                return Ok(());
            }
            _ => {}
        }
        let id = match record {
            Record::Message(message) => message.hdr.channel,
            Record::Skip(skip) => skip.channel,
            Record::Ack(ack) => ack.channel,
            Record::Accept(accept) => accept.channel,
            Record::Reject(reject) => reject.channel,
            Record::Redirect(redirect) => redirect.channel,
            Record::Close(close) => close.channel,
            Record::Closed(closed) => closed.channel,
            _ => return Ok(()),
        };
        // A channel takes records from its connection only.
        let chan = state.chans.get_mut(&id);
        let Some(chan) = chan.filter(|chan| chan.proto.takes_from(from)) else {
            return Ok(());
        };
        match record {
            Record::Message(message) => chan.message(message)?,
            Record::Skip(skip) => chan.skip(skip)?,
            Record::Ack(ack) => chan.ack(ack)?,
            Record::Accept(accept) => chan.accepted(from, accept)?,
            Record::Reject(reject) => {
                chan.refused(from, reject.moves, reject.reason, reject.data)?
            }
            // Nothing asks for other addresses yet.
            Record::Redirect(redirect) => {
                chan.refused(from, redirect.moves, Errno::EREMCHG, &[])?
            }
            Record::Close(close) => {
                let was_over = chan.proto.is_over();
                chan.peer_closes(from, close)?;
                if chan.proto.is_over() && !was_over && !is_client {
                    let portal = chan.portal;
                    self.withdraw(id, &portal);
                }
            }
            Record::Closed(_) => chan.closed(from)?,
            _ => {}
        }
        self.attend(state, id, now);
        Ok(())
    }

    /// The client no longer wants a channel; perhaps it is still offered at the portal.
    fn withdraw(&self, id: u32, portal: &Name) {
        if let Some(portal) = self.0.portals.find(portal) {
            portal.withdraw(self, id);
        }
    }

    fn open_arrives(
        &self,
        state: &mut State,
        from: Conn,
        open: &Open<'_>,
        now: u64,
    ) -> Result<(), Fault> {
        if let Some(chan) = state.chans.get_mut(&open.channel) {
            chan.open_again(from, open)?;
            self.attend(state, open.channel, now);
            return Ok(());
        }
        let name = Name::new(open.portal.as_str().as_bytes())?;
        match Self::reserve(state) {
            Err(ENOBUFS) => return Err(Fault::Protocol("too many channels")),
            result => result?,
        }
        let flags = GFP_ATOMIC | __GFP_NOWARN;
        let wake = Arc::pin_init(kx::new_wait_queue!("Chan::wake"), flags)?;
        let portal = self.0.portals.find(&name);
        // What the portal promises to take must be there.
        let charge = match &portal {
            Some(portal) => self
                .0
                .limits
                .charge(portal.uid, portal.terms.memory())
                .map(Some),
            None => Err(ENOENT),
        };
        let (terms, charge, refusal) = match (&portal, charge) {
            (_, Err(ENOMEM)) => return Err(Fault::NoMemory),
            (Some(portal), Ok(charge)) => (portal.terms, charge, None),
            (_, Err(e)) => (nothing()?, None, Some(e)),
            (None, Ok(_)) => (nothing()?, None, Some(ENOENT)),
        };
        let proto = Channel::offered(
            open.channel,
            from,
            open.moves,
            &open.window,
            terms.window,
            terms.limits,
            FIRST,
        );
        let mut chan = Chan::new(proto, name, terms, wake, charge);
        chan.peer = Some(open.window);
        Self::insert(state, chan)?;
        let refusal = match (refusal, &portal) {
            (None, Some(portal)) => portal.offer(self, open).err(),
            (refusal, _) => refusal,
        };
        if let (Some(refusal), Some(chan)) = (refusal, state.chans.get_mut(&open.channel)) {
            let _ = chan.reject(convert::errno(refusal), KVec::new());
        }
        self.attend(state, open.channel, now);
        Ok(())
    }

    fn resume_arrives(
        &self,
        state: &mut State,
        from: Conn,
        entry: &ResumeEntry,
        now: u64,
    ) -> Result<(), Fault> {
        match state.chans.get_mut(&entry.channel) {
            Some(chan) => chan.resume(from, entry)?,
            None => {
                let answer = (from, Channel::unknown(entry));
                // A record is taken again as a whole if there is no memory for an entry.
                let is_known = state.unknown.contains(&answer);
                if !is_known {
                    let pushed = state.unknown.push(answer, GFP_ATOMIC | __GFP_NOWARN);
                    pushed.map_err(|_| Fault::NoMemory)?;
                }
            }
        }
        self.attend(state, entry.channel, now);
        Ok(())
    }

    fn live_arrives(&self, state: &mut State, live: &Live<'_>, now: u64) {
        while let Some(lost) = state
            .conns
            .iter_mut()
            .find(|conn| live.has_lost(conn.id.epoch))
        {
            let id = lost.id;
            lost.has_failed = true;
            lost.out.fail();
            drop(self.forget(state, id));
        }
        let mut next = state.chans.keys().next().copied();
        while let Some(id) = next {
            if let Some(chan) = state.chans.get_mut(&id) {
                chan.live(live);
                let portal = chan.portal;
                if chan.proto.is_over() && !chan.has_program {
                    self.withdraw(id, &portal);
                }
            }
            self.attend(state, id, now);
            next = id.checked_add(1).and_then(|from| {
                let cursor = state.chans.cursor_lower_bound(&from)?;
                Some(*cursor.current().0)
            });
        }
    }
}

/// The terms of a channel that is refused at once.
fn nothing() -> Result<Terms> {
    Ok(Terms {
        window: Window::new(1, cost(0), 0, 0).map_err(|_| EINVAL)?,
        limits: SendLimits {
            messages: 1,
            bytes: 0,
        },
        timeout_ms: 0,
        wants_paths: false,
    })
}
