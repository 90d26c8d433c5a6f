// SPDX-License-Identifier: GPL-2.0

//! What other modules do with the channels of a session.

use core::mem::MaybeUninit;
use kernel::{
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
        Taken,
        Ticket, //
    },
    types::{
        now,
        Body,
        Header, //
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

/// A message that was not queued.
pub(crate) type Unqueued = (Error, Body);

impl End {
    /// Calls a function for the channel, and looks after it. None if the channel has gone.
    fn change<R>(&self, f: impl FnOnce(&mut Chan) -> R) -> Option<R> {
        let is_it = |chan: &Chan| Arc::ptr_eq(chan.waiters(), &self.wake) && chan.has_program;
        let result = self
            .side
            .change(self.id, |chan| is_it(chan).then(|| f(chan)));
        result.flatten()
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
    /// As [`Chan::reserve`], with the message. After [`EAGAIN`], [`Delivery::Room`] follows when there is room.
    pub(crate) fn post(&self, header: &Header, body: Body) -> Result<(), Unqueued> {
        let mut message = match KBox::new_uninit(GFP_ATOMIC | __GFP_NOWARN) {
            Ok(place) => Some((body, place)),
            Err(_) => return Err((ENOMEM, body)),
        };
        let result = loop {
            let result = self.change(|chan| post(chan, header, &mut message));
            match result.unwrap_or(Err(EPIPE)) {
                // Lists grow when no lock is held. Others may use up what was allocated.
                Err(ENOMEM) if message.is_some() => {
                    if let Err(error) = self.side.grow_by(self.id, GFP_ATOMIC | __GFP_NOWARN) {
                        break Err(error);
                    }
                }
                result => break result,
            }
        };
        let unqueued = |error| (error, message.map(|(body, _)| body).unwrap_or_default());
        result.map_err(unqueued)
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
