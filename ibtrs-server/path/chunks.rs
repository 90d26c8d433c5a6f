// SPDX-License-Identifier: GPL-2.0

//! The memory of a path: its charge, and its chunks or slots.

use crate::{
    data::con::RECV_REQUESTS,
    env::config::Config,
    path::Path,
    refusal::Refusal,
    storage::{
        answer_buf::{
            AnswerBuf,
            AnswerBufs, //
        },
        chunk::Chunk,
        landing::{
            Group,
            InSlot, //
        },
        source::data_pieces, //
    },
    types::Shape, //
};
use ibtrs_core::tag::Tagged;
use kernel::{
    prelude::*,
    sync::Arc, //
};

impl Path {
    /// Charges the memory of connection `cid`.
    ///
    /// # Errors
    ///
    /// Errors of [`Charge::connect`].
    pub(crate) fn take_for_connection(&self, cid: u16) -> Result<(), Refusal> {
        let config = &self.io.session.env.config;
        let mut bytes = match cid == self.cid_num {
            true => Config::message_connection_bytes(),
            false => config.connection_bytes(self.io.terms, cid),
        };
        if self.charge.is_empty() {
            bytes = bytes.saturating_add(config.numbers_bytes(self.io.terms));
        }
        Ok(self.charge.connect(bytes, self.needs())?)
    }

    /// Returns the bytes that the path takes when it is complete.
    pub(crate) fn needs(&self) -> u64 {
        let config = &self.io.session.env.config;
        let needs = config.path_needs(self.io.terms, self.cid_num);
        needs.total()
    }

    /// Creates the chunks, when the client completes the path.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// Errors of [`Charge::complete`]; `ENOMEM`; errors of the device's driver.
    pub(crate) fn make_chunks(&self) -> Result<(), Refusal> {
        let env = &self.io.session.env;
        let bytes = env.config.chunks_bytes(self.io.terms, self.cid_num);
        self.charge.complete(bytes)?;
        let result = self.fill_slots().and_then(|()| self.add_capsules());
        env.leave_to_pool();
        result.map_err(|error| Refusal::new(error, "its chunks cannot be allocated"))
    }

    /// Posts the receives for capsules on the I/O connections, which have none yet.
    fn add_capsules(&self) -> Result {
        if self.io.terms.window.is_none() {
            return Ok(());
        }
        let class = self.io.session.env.config.capsules(self.io.terms);
        for cid in 1..self.cid_num {
            let qp = self.io.qp(cid).ok_or(ENOTCONN)?;
            qp.add_recvs(RECV_REQUESTS, class)?;
        }
        Ok(())
    }

    /// Gives each slot its chunk.
    fn fill_slots(&self) -> Result {
        let answers = AnswerBufs::new(&self.io.pd, self.io.layout.queue_depth().into())?;
        if self.io.terms.shape == Shape::Slots {
            return self.make_slots(&answers);
        }
        for slot in self.io.slots.iter() {
            drop(slot.put(self.make_chunk(AnswerBuf::new(&answers, slot.tag()))?));
        }
        Ok(())
    }

    /// Creates the slots, in groups.
    fn make_slots(&self, answers: &Arc<AnswerBufs>) -> Result {
        let env = &self.io.session.env;
        self.io.session.holding.make_reserve()?;
        let config = &env.config;
        let (count, slot_bytes) = (usize::from(config.group()), self.io.layout.chunk_size());
        let mut groups = KVVec::new();
        for slot in self.io.slots.iter() {
            let place = usize::from(slot.tag()).checked_rem(count).ok_or(EINVAL)?;
            if place == 0 {
                let node = self.io.pd.device().node();
                let memory = env
                    .slot_pool
                    .take(config.group_bytes(self.io.terms), node)?;
                let group = Group::new(&self.io.pd, memory.chunk)?;
                groups.push(Arc::new(group, GFP_KERNEL)?, GFP_KERNEL)?;
            }
            let group = groups.last().ok_or(EINVAL)?;
            let in_slot = InSlot::new(group.clone(), place as u32 * slot_bytes, config.invalidate);
            let chunk = Chunk::in_slot(in_slot, AnswerBuf::new(answers, slot.tag()));
            drop(slot.put(KBox::new(chunk, GFP_KERNEL)?));
        }
        *self.groups.lock() = groups;
        Ok(())
    }

    fn make_chunk(&self, answer: AnswerBuf) -> Result<KBox<Chunk>> {
        let env = &self.io.session.env;
        let config = &env.config;
        let chunk_bytes = config.chunk_bytes as usize;
        let node = self.io.pd.device().node();
        let memory = env.pool.take(chunk_bytes, node)?;
        let most_pieces = data_pieces(self.io.inv_answers);
        let chunk = Chunk::new(&self.io.pd, memory, config.invalidate, most_pieces, answer)?;
        Ok(KBox::new(chunk, GFP_KERNEL)?)
    }
}
