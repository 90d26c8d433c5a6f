// SPDX-License-Identifier: GPL-2.0

//! What other modules do with the channels of a session, and the answers of all owners of portals.

use core::mem::MaybeUninit;
use ibmsg_proto::refused::Reason;
use ibtrs_core::convert;
use kernel::{
    alloc::Flags,
    prelude::*,
    sync::Arc, //
};
use kx::file::WaitQueue;

use super::Side;
use crate::{
    channel::{
        Caller,
        Chan,
        Delivery,
        Sent,
        Slot,
        Stock,
        Taken,
        Ticket, //
    },
    memory::Memory,
    portal::Offer,
    types::{
        now,
        Body,
        Header,
        Kind, //
    },
};

/// One end of a channel. It may have ended, and another channel may have its number.
#[derive(Clone)]
pub(crate) struct End {
    pub(crate) side: Side,
    pub(crate) id: u32,
    /// No other channel has it.
    pub(crate) wake: Arc<WaitQueue>,
}

impl Offer<Side> {
    /// The channel that is offered. If it was withdrawn, answers do nothing.
    pub(crate) fn end(&self) -> End {
        End {
            side: self.from.clone(),
            id: self.channel,
            wake: self.wake.clone(),
        }
    }
}

/// A message that was not queued.
pub(crate) type Unqueued = (Error, Body);

impl End {
    fn is(&self, chan: &Chan) -> bool {
        Arc::ptr_eq(chan.waiters(), &self.wake)
    }

    /// Calls a function for the channel. None if the channel has gone.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut Chan) -> R) -> Option<R> {
        let result = self
            .side
            .with(self.id, |chan| self.is(chan).then(|| f(chan)));
        result.flatten()
    }

    /// Calls a function for the channel, and looks after it. None if the channel has gone, or has no owner.
    pub(super) fn change<R>(&self, f: impl FnOnce(&mut Chan) -> R) -> Option<R> {
        let is_owned = |chan: &Chan| self.is(chan) && chan.has_program;
        let result = self
            .side
            .change(self.id, |chan| is_owned(chan).then(|| f(chan)));
        result.flatten()
    }

    /// What the channel needs before [`End::post`], in particular a table for all calls that may be unanswered.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]; [`ENOENT`] if the channel has gone.
    pub(crate) fn new_stock(&self) -> Result<Stock> {
        let most = self.with(|chan| chan.most_calls()).ok_or(ENOENT)?;
        Stock::new(most)
    }

    /// Makes the place for the memory of a channel that is to be accepted, if its program accepts messages with a body:
    /// the first one may arrive where the kernel cannot allocate.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn prepare_bodies(&self) -> Result {
        let missing = self.with(|chan| chan.lacks_place_of_bodies());
        if let Some(terms) = missing.flatten() {
            let mut place = Some(Memory::new(self.id, terms, GFP_KERNEL_ACCOUNT)?);
            // If it was withdrawn, a channel that has its number has terms of its own.
            let _ = self.with(|chan| chan.add_memory(&mut place));
        }
        Ok(())
    }

    /// The owner of the portal accepts the channel. Returns whether it still can. `slots` is for requests,
    /// `stock` for another module.
    ///
    /// # Context
    ///
    /// *may sleep*, for what is left in `stock`.
    pub(crate) fn accept(
        &self,
        data: KVec<u8>,
        slots: KVec<Slot>,
        mut stock: Option<Stock>,
    ) -> bool {
        let accepted = self.side.change(self.id, |chan| {
            let is_accepted = self.is(chan) && chan.accept(data, slots);
            if let Some(stock) = stock.as_mut().filter(|_| is_accepted) {
                chan.stock(stock);
            }
            is_accepted
        });
        accepted.unwrap_or(false)
    }

    /// It refuses. Returns whether it still can.
    pub(crate) fn reject(&self, reason: Error, data: KVec<u8>) -> bool {
        self.refuse(reason, data, (Reason::Program, Reason::Program.as_str()))
    }

    /// It is closed before it has answered.
    pub(crate) fn unbound(&self) {
        let why = (Reason::Unbound, "the portal was closed");
        let _ = self.refuse(ENOENT, KVec::new(), why);
    }

    fn refuse(&self, errno: Error, data: KVec<u8>, (reason, why): (Reason, &'static str)) -> bool {
        let errno = convert::errno(errno);
        let rejected = self.side.change(self.id, |chan| {
            let is_rejected = self.is(chan) && chan.reject(errno, data, why);
            if is_rejected {
                chan.count_refusal(reason);
            }
            is_rejected
        });
        rejected.unwrap_or(false)
    }

    /// The channel, which another module has opened, takes this.
    ///
    /// # Context
    ///
    /// *may sleep*, for what is left in `stock`.
    pub(crate) fn stock(&self, mut stock: Stock) {
        let _ = self.with(|chan| chan.stock(&mut stock));
    }

    /// Allocates what the lists need for the next message. The table of calls does not grow here.
    ///
    /// # Context
    ///
    /// As `flags` says.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`], [`EPIPE`]
    pub(crate) fn grow(&self, flags: Flags) -> Result {
        let needs = self.with(|chan| chan.needs()).ok_or(EPIPE)?;
        let mut spares = needs.allocate(flags)?;
        self.with(|chan| chan.extend(&mut spares)).ok_or(EPIPE)
    }

    /// Whether the listener has the ticket.
    #[cfg(IBTRS_KUNIT)]
    pub(crate) fn is_due(&self) -> bool {
        self.with(|chan| !chan.has_ticket()).unwrap_or(false)
    }

    /// Calls for which there is memory.
    #[cfg(IBTRS_KUNIT)]
    pub(crate) fn room_for_calls(&self) -> usize {
        self.with(|chan| chan.room_for_calls()).unwrap_or(0)
    }

    /// Delivers what there is, and all that comes. If the channel has gone, the ticket is dropped.
    pub(crate) fn listen(&self, ticket: KBox<Ticket>) {
        let mut ticket = Some(ticket);
        let _ = self.change(|chan| chan.rest(&mut ticket));
    }

    /// Takes what is to be delivered next. `done` is what was taken before: its handler has returned. If there is
    /// nothing, the ticket goes back to the channel. If the channel has gone, it stays in its place.
    pub(crate) fn next(
        &self,
        done: Option<Taken>,
        ticket: &mut Option<KBox<Ticket>>,
    ) -> Option<Delivery> {
        self.change(|chan| {
            if let Some(done) = done {
                chan.took(done);
            }
            let delivery = chan.delivery();
            if delivery.is_none() {
                chan.rest(ticket);
            }
            delivery
        })
        .flatten()
    }

    /// The handler of what was taken has returned.
    pub(crate) fn took(&self, done: Taken) {
        let _ = self.change(|chan| chan.took(done));
    }

    /// Queues a message.
    ///
    /// # Context
    ///
    /// *any*
    ///
    /// # Errors
    ///
    /// As [`Chan::reserve`], with the message. After [`EAGAIN`] and [`ENOMEM`], [`Delivery::Room`] follows when there
    /// is room.
    pub(crate) fn post(&self, header: &Header, body: Body) -> Result<(), Unqueued> {
        let place = KBox::new_uninit(GFP_ATOMIC | __GFP_NOWARN).ok();
        self.post_in(place, header, body)
    }

    /// The same, as if there were no memory.
    #[cfg(IBTRS_KUNIT)]
    pub(crate) fn post_starved(&self, header: &Header, body: Body) -> Result<(), Unqueued> {
        self.post_in(None, header, body)
    }

    fn post_in(
        &self,
        place: Option<KBox<MaybeUninit<Sent>>>,
        header: &Header,
        body: Body,
    ) -> Result<(), Unqueued> {
        let from_stock = || match header.kind {
            Kind::Reply => self.change(|chan| chan.take_reply_place(now())).flatten(),
            _ => None,
        };
        let Some(place) = place.or_else(from_stock) else {
            return Err((self.refused_for_memory(), body));
        };
        let mut message = Some((body, place));
        let result = loop {
            let result = self.change(|chan| post(chan, header, &mut message));
            match result.unwrap_or(Err(EPIPE)) {
                // Lists grow when no lock is held. Others may use up what was allocated.
                Err(ENOMEM) if message.is_some() => {
                    if self.grow(GFP_ATOMIC | __GFP_NOWARN).is_err() {
                        break Err(self.refused_for_memory());
                    }
                }
                result => break result,
            }
        };
        let unqueued = |error| (error, message.map(|(body, _)| body).unwrap_or_default());
        result.map_err(unqueued)
    }

    /// There was no memory for a message. Returns the error.
    fn refused_for_memory(&self) -> Error {
        match self.change(|chan| chan.refused_for_memory(now())) {
            Some(()) => ENOMEM,
            None => EPIPE,
        }
    }

    /// Sends the messages that wait for others.
    pub(crate) fn flush(&self) {
        let _ = self.change(Chan::flush);
    }

    /// The owner writes no more and takes no more.
    pub(crate) fn shut_down(&self) {
        // What was not taken is dropped here, without the lock.
        let _ = self.change(Chan::close);
    }

    /// The owner has gone. A ticket that the channel has is dropped.
    pub(crate) fn release(&self) {
        let _ = self.change(|chan| (chan.leave(), chan.release()));
    }
}

fn post(
    chan: &mut Chan,
    header: &Header,
    message: &mut Option<(Body, KBox<MaybeUninit<Sent>>)>,
) -> Result {
    let reserved = chan.reserve(header, Caller::Reader, now())?;
    match message.take() {
        Some((body, place)) => chan.commit(reserved, body, place),
        None => {
            chan.cancel(reserved);
            Err(EINVAL)
        }
    }
}
