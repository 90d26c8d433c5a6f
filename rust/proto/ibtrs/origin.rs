// SPDX-License-Identifier: GPL-2.0

//! The origin of a connection request, as far as the network shows it.
//!
//! The server has accounts of what clients take before they have proved themselves, and of how often
//! they fail to authenticate. An account goes by what the network shows, not by what a request
//! claims: otherwise a stranger could use up the account of another client.
//!
//! - Over RoCE and iWARP, answers go to the client's address, which the server compares with the one
//!   in the request.
//! - Over InfiniBand, the IP address and the GID in a request are claims of the client: the GID is a
//!   field of the CM's REQ message, which no device checks. But each packet has the local identifier
//!   (LID) of its sender, and answers go there. Requests with a global route header may come through
//!   a router, whose LID all hosts behind it share; answers to them go to the GID as well.

use crate::addr::Addr;

/// The origin of a connection request: the key of an account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// An address, which the network shows.
    Addr(Addr),
    /// A port of an InfiniBand or Omni-Path subnet, whatever IP addresses its host has.
    Port {
        /// The LID of the port, or of the router.
        lid: u32,
        /// The GID, if answers go to one.
        gid: Option<[u8; 16]>,
    },
}
