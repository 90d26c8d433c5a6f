// SPDX-License-Identifier: GPL-2.0

//! Operations of requests and bios.
//!
//! Contexts: *any*.

use ibtrs_bindings as ours;
use kernel::bindings;

/// The operations that this crate knows, `enum req_op` in C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read data.
    Read,
    /// Write data.
    Write,
    /// Write back what the device has cached.
    Flush,
    /// The data is no longer needed.
    Discard,
    /// Erase so that it cannot be recovered.
    SecureErase,
    /// Make it read as zeroes.
    WriteZeroes,
}

impl Op {
    /// Returns whether the operation carries data.
    pub fn has_data(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    /// Returns whether the operation changes what is stored.
    pub fn is_modifying(self) -> bool {
        !matches!(self, Self::Read | Self::Flush)
    }

    /// Takes the operation out of a `cmd_flags` or `bi_opf`.
    pub(crate) fn from_opf(opf: bindings::blk_opf_t) -> Option<Self> {
        Some(match opf & ours::REQ_OP_MASK {
            bindings::req_op_REQ_OP_READ => Self::Read,
            bindings::req_op_REQ_OP_WRITE => Self::Write,
            bindings::req_op_REQ_OP_FLUSH => Self::Flush,
            bindings::req_op_REQ_OP_DISCARD => Self::Discard,
            bindings::req_op_REQ_OP_SECURE_ERASE => Self::SecureErase,
            bindings::req_op_REQ_OP_WRITE_ZEROES => Self::WriteZeroes,
            _ => return None,
        })
    }
}
