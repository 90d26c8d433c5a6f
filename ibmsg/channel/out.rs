// SPDX-License-Identifier: GPL-2.0

//! Messages that a program has written and that the peer's kernel does not have yet.

use ibmsg_proto::{
    gather::Batch,
    memory::{
        BodyRef,
        Handle, //
    },
    send::{
        Item,
        Sender, //
    },
    wire::PublishKind,
    Seq, //
};
use kernel::prelude::*;
use kx::deque::{
    Deque,
    Lack,
    Spare, //
};

use crate::{
    memory::PutOp,
    types::{
        Body,
        Kind,
        F_BODY, //
    }, //
};

/// What a program may be told about a message.
#[derive(Clone, Copy)]
pub(crate) struct About {
    pub(crate) kind: Kind,
    /// Of publishing.
    pub(crate) publish: Option<PublishKind>,
    pub(crate) flags: u8,
    pub(crate) tag: u64,
    /// The call, of a request and a reply.
    pub(crate) id: u64,
    /// A place for a notice is kept.
    pub(crate) may_tell: bool,
}

/// A place in the queue, for a message whose content is being copied.
pub(crate) struct Reserved {
    pub(crate) item: Item,
    pub(crate) about: About,
    pub(crate) status: u16,
    /// When there was room for it.
    pub(crate) since: u64,
    pub(crate) deadline: Option<u64>,
}

/// A message.
pub(crate) struct Sent {
    pub(crate) item: Item,
    pub(crate) about: About,
    /// With which it may wait.
    pub(crate) batch: Batch,
    pub(crate) status: u16,
    /// When its time is over.
    pub(crate) deadline: Option<u64>,
    pub(crate) body: Body,
    /// A PUT, of which this is the note.
    pub(crate) put: Option<KBox<PutOp>>,
    /// A body of the peer, of which this is the note that it was released.
    pub(crate) release: Option<Handle>,
    /// The next message that is not needed any more, and the first one of another channel.
    pub(crate) next: Option<KBox<Sent>>,
    pub(crate) others: Option<KBox<Sent>>,
}

impl Sent {
    /// The body of the message.
    pub(crate) fn lends(&self) -> Option<BodyRef> {
        match self.about.flags & F_BODY {
            0 => None,
            _ => self.body.body_ref(),
        }
    }
}

/// The queue: first the messages that have numbers, in the order of those.
pub(crate) struct Out {
    queue: Deque<KBox<Sent>>,
    /// Places for messages that are being copied.
    reserved: usize,
    /// The message of which a part was sent by the present connection, and how much.
    piece: Option<(Seq, u32)>,
    /// Messages that are not needed any more. Their memory is released when no lock is held.
    gone: Option<KBox<Sent>>,
}

impl Out {
    pub(crate) const fn new() -> Self {
        Self {
            queue: Deque::new(),
            reserved: 0,
            piece: None,
            gone: None,
        }
    }

    /// Reserves a place.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`] if there is none before [`Out::extend`].
    pub(crate) fn reserve(&mut self) -> Result {
        if self.lack().is_some() {
            return Err(ENOMEM);
        }
        self.reserved += 1;
        Ok(())
    }

    /// What is missing for another place.
    pub(crate) fn lack(&self) -> Option<Lack> {
        self.queue.lack(self.reserved + 1)
    }

    /// Takes memory for places.
    pub(crate) fn extend(&mut self, room: &mut Spare<KBox<Sent>>) {
        self.queue.extend(room);
    }

    /// Gives up a place.
    pub(crate) fn unreserve(&mut self) {
        self.reserved = self.reserved.saturating_sub(1);
    }

    /// Puts a message into a place that was reserved. Returns it if there is none.
    pub(crate) fn push(&mut self, sent: KBox<Sent>) -> Result<(), KBox<Sent>> {
        self.unreserve();
        self.queue.push_back(sent)
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn front(&self) -> Option<&Sent> {
        self.queue.front().map(|sent| &**sent)
    }

    pub(crate) fn get(&self, at: usize) -> Option<&Sent> {
        self.queue.get(at).map(|sent| &**sent)
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut Sent> {
        self.queue.get_mut(at).map(|sent| &mut **sent)
    }

    /// See [`Deque::retain`].
    pub(crate) fn retain(&mut self, keep: impl FnMut(KBox<Sent>) -> Option<KBox<Sent>>) {
        self.queue.retain(keep);
    }

    /// Sets the deadline of a call's request to the past, so that it expires.
    pub(crate) fn expire_request(&mut self, call: u64) {
        for at in 0..self.queue.len() {
            let sent = self.get_mut(at);
            let is_it =
                |sent: &&mut Sent| sent.about.kind == Kind::Request && sent.about.id == call;
            if let Some(sent) = sent.filter(is_it) {
                sent.deadline = Some(0);
                return;
            }
        }
    }

    /// Makes the last message, which was just queued, the note of a PUT.
    pub(crate) fn add_put(&mut self, put: KBox<PutOp>) {
        if let Some(sent) = self.last_mut() {
            sent.put = Some(put);
        }
    }

    /// Makes the last message, which was just queued, the note that a body was released.
    pub(crate) fn add_release(&mut self, handle: Handle) {
        if let Some(sent) = self.last_mut() {
            sent.release = Some(handle);
        }
    }

    fn last_mut(&mut self) -> Option<&mut Sent> {
        let last = self.queue.len().wrapping_sub(1);
        self.get_mut(last)
    }

    /// The PUT with a number.
    pub(crate) fn put_mut(&mut self, number: u32) -> Option<&mut PutOp> {
        let at = self.find_put(number)?;
        self.get_mut(at)?.put.as_deref_mut()
    }

    fn find_put(&self, number: u32) -> Option<usize> {
        let is_it = |sent: &KBox<Sent>| {
            let put = sent.put.as_ref();
            put.is_some_and(|put| put.number() == number)
        };
        self.queue.iter().position(is_it)
    }

    /// Calls a function for all PUTs.
    pub(crate) fn each_put(&mut self, mut f: impl FnMut(&mut PutOp)) {
        for at in 0..self.queue.len() {
            if let Some(put) = self.get_mut(at).and_then(|sent| sent.put.as_deref_mut()) {
                f(put);
            }
        }
    }

    /// Sets the deadline of a PUT to the past, so that it expires.
    pub(crate) fn expire_put(&mut self, number: u32) {
        let at = self.find_put(number);
        if let Some(sent) = at.and_then(|at| self.get_mut(at)) {
            sent.deadline = Some(0);
        }
    }

    /// Takes a message that has no number out, for [`Out::bury`].
    pub(crate) fn remove(&mut self, at: usize) -> Option<KBox<Sent>> {
        self.queue.remove(at)
    }

    /// Takes the first message out, for [`Out::bury`].
    pub(crate) fn pop(&mut self) -> Option<KBox<Sent>> {
        let sent = self.queue.pop_front();
        if self.reserved == 0 {
            self.queue.shrink();
        }
        sent
    }

    /// A message is not needed any more.
    pub(crate) fn bury(&mut self, mut sent: KBox<Sent>) {
        sent.next = self.gone.take();
        self.gone = Some(sent);
    }

    /// The messages that are not needed any more, to be dropped when no lock is held.
    pub(crate) fn take_gone(&mut self) -> Option<KBox<Sent>> {
        self.gone.take()
    }

    /// The connection is lost: what was sent in part begins again.
    pub(crate) fn lost(&mut self) {
        self.piece = None;
    }

    /// Where the message to be sent next is, and how much of it was sent.
    pub(crate) fn position(&self, tx: &Sender) -> Option<(usize, u32)> {
        let (cursor, offset) = self.piece.unwrap_or((tx.cursor(), 0));
        let first = self.front()?.item.number();
        // CAST: Lossless.
        let at = first.map_or(0, |first| cursor.ahead_of(first).unwrap_or(0) as usize);
        (at < self.queue.len()).then_some((at, offset))
    }

    /// How much of the message with a number was sent; none: all of it.
    pub(crate) fn sent(&mut self, number: Seq, offset: Option<u32>) {
        self.piece = offset.map(|offset| (number, offset));
    }

    /// The number of the message that was sent in part.
    pub(crate) fn partial(&self) -> Option<Seq> {
        self.piece.map(|(number, _)| number)
    }

    /// Whether all messages have numbers, and none was sent in part.
    pub(crate) fn is_numbered(&self) -> bool {
        let last = self.queue.back();
        self.piece.is_none() && last.is_none_or(|last| last.item.number().is_some())
    }
}

impl Drop for Out {
    /// One by one: a list that drops its rest would need a stack as long as itself.
    fn drop(&mut self) {
        while let Some(mut sent) = self.gone.take() {
            self.gone = sent.next.take();
        }
    }
}
