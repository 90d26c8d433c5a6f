// SPDX-License-Identifier: GPL-2.0

//! DRAIN: a planned stop.

use ibtrs_proto::bytes::Writer;

use super::*;

/// Bytes of DRAIN.
pub const DRAIN_LEN: usize = RECORD_HDR_LEN;

/// DRAIN: the server is about to close all connections on purpose. Channels stay as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drain {
    /// Seconds for which the server expects to be away; 0: it does not know.
    pub seconds: u32,
}

impl Drain {
    /// Writes the record, and returns its length; `None` if it does not fit.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let mut w = Writer::new(out);
        Head::new(TYPE_DRAIN, 0, Seq::new(self.seconds)).write(&mut w, DRAIN_LEN);
        w.finish()
    }

    pub(crate) fn decode(head: &Head, body: &[u8]) -> Result<Self, WireError> {
        head.flags_within(0)?;
        exact(head, body)?;
        Ok(Self {
            seconds: head.number,
        })
    }
}
