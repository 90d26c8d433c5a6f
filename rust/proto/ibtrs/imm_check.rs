// SPDX-License-Identifier: GPL-2.0

//! Which immediates a side accepts (Documentation/protocol.md, "Immediates").
//!
//! The connection messages of a path negotiate the extensions, so each side knows every immediate
//! that the other one may send. Any other immediate is a protocol error, and the receiver fails the
//! path. Ignoring one is not harmless: it may stand where an answer should be, and the request would
//! wait for ever while heartbeats keep the path alive.
//!
//! A new type of immediate needs a bit in the connection messages.

use crate::handshake::ReqExt;
use crate::imm::{Fence, Imm};

/// What the connection messages of a path have negotiated about immediates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImmTerms {
    /// The extensions of the client's request, if the server has extensions as well.
    ext: Option<ReqExt>,
    /// The path has slots.
    slots: bool,
}

/// Why an immediate is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImmError {
    /// There is no such type.
    Unknown,
    /// Only the other side sends this type.
    WrongSide,
    /// The type belongs to an extension that the path does not use.
    NotNegotiated,
    /// The type belongs on the service connection.
    NotService,
    /// A fence, or its answer, about the path that carries it.
    OwnFence,
    /// The message has content besides its immediate.
    Content,
}

impl ImmError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Unknown => "unknown type",
            Self::WrongSide => "only the other side sends this type",
            Self::NotNegotiated => "extension was not negotiated",
            Self::NotService => "not the service connection",
            Self::OwnFence => "fence covers its own path",
            Self::Content => "message has content",
        }
    }
}

impl ImmTerms {
    /// The terms of a path. `ext` are the extensions of the client's request if the server has
    /// extensions as well; `slots`: the server has accepted the path with slots.
    pub const fn new(ext: Option<ReqExt>, slots: bool) -> Self {
        Self { ext, slots }
    }

    /// Checks that the path uses the extension which `field` tells of.
    fn uses(&self, field: impl FnOnce(&ReqExt) -> bool) -> Result<(), ImmError> {
        negotiated(self.ext.as_ref().is_some_and(field))
    }

    /// Checks an immediate that a client has received on connection `cid`. `content`: the message
    /// has bytes of its own.
    ///
    /// An answer may still concern a chunk that does not exist, or that has no request.
    ///
    /// # Errors
    ///
    /// A server must not send this here: the caller fails the path.
    #[inline]
    pub fn check_from_server(&self, imm: Imm, cid: u16, content: bool) -> Result<(), ImmError> {
        match imm {
            // Answers have their bodies checked where they are decoded.
            Imm::IoRsp { .. } | Imm::IoRspInv { .. } => return Ok(()),
            Imm::IoRspSameKey { .. } => return self.uses(|ext| ext.same_key),
            Imm::IoRspMore { .. } => return self.uses(ReqExt::wants_more_answers),
            Imm::Nop => negotiated(self.slots)?,
            Imm::Heartbeat | Imm::HeartbeatAck => service(cid)?,
            Imm::FenceDone(fence) => self.fence(fence, cid)?,
            Imm::Notice(_) => {
                self.uses(|ext| ext.notices)?;
                service(cid)?;
            }
            Imm::Durable(_) => {
                self.uses(|ext| ext.durable)?;
                service(cid)?;
            }
            Imm::Downtime(_) => {
                self.uses(|ext| ext.downtime)?;
                service(cid)?;
            }
            Imm::IoReq { .. } | Imm::Fence(_) | Imm::DurableSeen(_) | Imm::DowntimeSeen(_) => {
                return Err(ImmError::WrongSide)
            }
            Imm::Unknown(_) => return Err(ImmError::Unknown),
        }
        no_content(content)
    }

    /// Checks an immediate that a server has received on connection `cid`. `content`: the message
    /// has bytes of its own.
    ///
    /// # Errors
    ///
    /// A client must not send this here: the caller fails the path.
    #[inline]
    pub fn check_from_client(&self, imm: Imm, cid: u16, content: bool) -> Result<(), ImmError> {
        match imm {
            // Requests have their payload and their headers checked where they are decoded.
            Imm::IoReq { .. } => return Ok(()),
            Imm::Heartbeat | Imm::HeartbeatAck => service(cid)?,
            Imm::Fence(fence) => self.fence(fence, cid)?,
            Imm::DurableSeen(_) => {
                self.uses(|ext| ext.durable)?;
                service(cid)?;
            }
            Imm::DowntimeSeen(_) => {
                self.uses(|ext| ext.downtime)?;
                service(cid)?;
            }
            Imm::IoRsp { .. }
            | Imm::IoRspInv { .. }
            | Imm::IoRspSameKey { .. }
            | Imm::IoRspMore { .. }
            | Imm::FenceDone(_)
            | Imm::Notice(_)
            | Imm::Durable(_)
            | Imm::Downtime(_)
            | Imm::Nop => return Err(ImmError::WrongSide),
            Imm::Unknown(_) => return Err(ImmError::Unknown),
        }
        no_content(content)
    }

    /// Checks that the path may carry this fence, or its answer, on connection `cid`.
    fn fence(&self, fence: Fence, cid: u16) -> Result<(), ImmError> {
        self.uses(|_| true)?;
        service(cid)?;
        let epoch = self.ext.map(|ext| ext.epoch);
        if fence.is_valid(cid, epoch) {
            Ok(())
        } else {
            Err(ImmError::OwnFence)
        }
    }
}

const fn negotiated(used: bool) -> Result<(), ImmError> {
    if used {
        Ok(())
    } else {
        Err(ImmError::NotNegotiated)
    }
}

const fn service(cid: u16) -> Result<(), ImmError> {
    if cid == 0 {
        Ok(())
    } else {
        Err(ImmError::NotService)
    }
}

const fn no_content(content: bool) -> Result<(), ImmError> {
    if content {
        Err(ImmError::Content)
    } else {
        Ok(())
    }
}
