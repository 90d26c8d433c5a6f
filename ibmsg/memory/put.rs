// SPDX-License-Identifier: GPL-2.0

//! A PUT, which stands in the queue of messages.
//!
//! Its writes are posted when it is its turn, by the connection that carries the note behind them. It keeps its
//! buffer until the peer's kernel has the note, as it may have to be written again.

use ibmsg_proto::{
    channel::Conn,
    memory::{
        Handle,
        Put,
        PutStep,
        Range,
        Refusal, //
    },
    outcome::Cause,
    send::{
        Item,
        Progress,
        Sender, //
    },
    wire::{
        Ack,
        Ask,
        MemoryRecord,
        Note,
        NoteKind,
        Return, //
    },
    Seq, //
};
use ibtrs_core::messages::memory::{
    Device,
    Remote,
    Source, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::user::UserPages;

use super::{
    ops::told,
    patience::Lack,
    refusal_of,
    Cookie,
    Job,
    Memory,
    Outcome,
    MAX_WRITES, //
};

/// A PUT.
pub(crate) struct PutOp {
    number: u32,
    put: Put,
    /// Its buffer; none if it is not to be written any more.
    pages: Option<Arc<UserPages>>,
    /// Its buffer, mapped for the connection.
    source: Option<Source>,
    /// That is being done.
    is_mapping: bool,
    /// Why its buffer cannot be mapped.
    failed: Option<Refusal>,
    /// The peer may still be writing to its own memory what was posted by a former connection.
    is_unfenced: bool,
}

/// A buffer that is to be mapped.
pub(super) struct ToMap {
    number: u32,
    pages: Arc<UserPages>,
}

/// What to do next for a PUT.
pub(crate) enum Next {
    /// Send its note.
    Note,
    /// Nothing now.
    Wait,
    /// It has failed, with this outcome for its program.
    Failed(Outcome),
}

impl PutOp {
    /// A PUT of all of `pages` to `range`.
    pub(crate) fn new(number: u32, handle: Handle, range: Range, pages: Arc<UserPages>) -> Self {
        Self {
            number,
            put: Put::new(handle, range),
            pages: Some(pages),
            source: None,
            is_mapping: false,
            failed: None,
            is_unfenced: false,
        }
    }

    /// The number of the operation.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The channel has left its connection.
    pub(crate) fn lost(&mut self) {
        self.is_unfenced |= self.put.is_posted();
        self.put.lost();
        (self.source, self.is_mapping) = (None, false);
    }

    /// The peer's memory is fenced.
    pub(crate) fn is_fenced(&mut self) {
        self.is_unfenced = false;
    }

    /// Nobody waits for it any more, and its note was sent: should that have to be sent again, SKIP takes its place. The
    /// buffer is given back when no write uses it.
    pub(crate) fn give_up(&mut self) {
        (self.source, self.pages) = (None, None);
    }

    /// Its buffer is mapped, or cannot be.
    pub(crate) fn mapped(&mut self, source: Result<Source>) {
        self.is_mapping = false;
        match source {
            Ok(source) => self.source = self.pages.is_some().then_some(source),
            Err(e) => self.failed = Some(refusal_of(e)),
        }
    }

    /// The outcome for the program, when it ends for `cause`.
    pub(crate) fn outcome(&self, progress: Progress, cause: Cause) -> Outcome {
        let is_fenced = !self.is_unfenced && !self.put.is_posted();
        told(self.put.end(progress, is_fenced), None, cause)
    }

    /// The note behind it.
    pub(crate) fn note(&self, channel: u32, number: Seq, ack: Ack) -> MemoryRecord {
        MemoryRecord::Note(Note {
            channel,
            number,
            kind: NoteKind::Placed,
            ack,
            handle: self.put.handle(),
            len: self.put.range().len(),
        })
    }
}

impl Memory {
    /// Goes on with the PUT whose turn it is.
    pub(crate) fn step_put(
        &mut self,
        op: &mut PutOp,
        tx: &Sender,
        item: &mut Item,
        (on, device): (Conn, &dyn Device),
    ) -> Next {
        if !self.begins_on(on) {
            return Next::Wait;
        }
        let channel = self.channel;
        loop {
            if let Some(refusal) = op.failed {
                if op.put.is_posted() {
                    return Next::Wait;
                }
                let outcome = op.put.failed(tx, item);
                return Next::Failed(told(outcome, Some(refusal), Cause::Closed));
            }
            let Some(source) = &op.source else {
                if let Some(pages) = op.pages.as_ref().filter(|_| !op.is_mapping) {
                    op.is_mapping = true;
                    self.to_map = Some(ToMap {
                        number: op.number,
                        pages: pages.clone(),
                    });
                }
                return Next::Wait;
            };
            if self.writes >= MAX_WRITES || self.ask_again.is_some() {
                return Next::Wait;
            }
            let handle = op.put.handle();
            match op.put.step(&mut self.keys) {
                PutStep::Ask(piece) => {
                    let ask = Ask {
                        channel,
                        handle,
                        piece,
                    };
                    self.queue(MemoryRecord::Ask(ask));
                    self.put_waits = true;
                    return Next::Wait;
                }
                PutStep::Return(handle, piece) => {
                    let back = Return {
                        channel,
                        handle,
                        piece: Some(piece),
                    };
                    self.queue(MemoryRecord::Return(back));
                }
                PutStep::Write {
                    part,
                    from,
                    rkey,
                    addr,
                    place,
                } => {
                    self.writes += 1;
                    (self.has_used_keys, self.put_waits) = (true, false);
                    self.key_lack = Lack::none();
                    let cookie = Cookie::Put(op.number, place).to_bits(channel);
                    let to = Remote { addr, rkey };
                    // CAST: Within the buffer, whose length has that many bits.
                    let (from, len) = (from as usize, part.len() as usize);
                    device.write(source, from, len, to, cookie);
                }
                PutStep::Note => return Next::Note,
                PutStep::Wait => {
                    // Perhaps for one that a GET has asked for.
                    self.put_waits |= !op.put.is_posted();
                    return Next::Wait;
                }
                PutStep::Failed(refusal) => {
                    self.put_waits = false;
                    self.key_lack = Lack::none();
                    let outcome = op.put.failed(tx, item);
                    return Next::Failed(told(outcome, Some(refusal), Cause::Closed));
                }
            }
        }
    }

    /// A write has completed, with the key at `place`; `op` is the PUT that it was for, if that is still there.
    pub(crate) fn wrote(&mut self, op: Option<&mut PutOp>, place: usize) {
        match op {
            Some(op) => op.put.completed(&mut self.keys, place),
            None => self.keys.done(place),
        }
    }

    /// The next buffer that is to be mapped.
    pub(super) fn job_of_put(&mut self) -> Option<Job> {
        let ToMap { number, pages } = self.to_map.take()?;
        Some(Job::MapPut {
            era: self.era,
            number,
            pages,
        })
    }
}
