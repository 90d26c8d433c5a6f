// SPDX-License-Identifier: GPL-2.0

//! Mutual authentication of client and server by a shared key (Documentation/protocol.md,
//! "Authentication").
//!
//! The two sides of a path prove to each other that they have the same key, before the server
//! creates more than a queue pair for the path. [`ClientAuth`] and [`ServerAuth`] are the two
//! sides: the drivers give them each message that arrives, send what they return, and end the
//! path on an error.
//!
//! ```text
//! client                                        server
//!   request of connection 0: suites        ->
//!                                          <-   acceptance: suite, nonce of 12 bytes
//!   AUTH1: key id, session name, nonce,
//!          proof                           ->
//!                                          <-   AUTH2: whether the path is refused, nonce, proof
//!   request of connection 1..n, proof      ->
//!                                          <-   acceptance, proof
//!   INFO_REQ with the same session name    ->
//! ```
//!
//! Each proof is a MAC over a label of its own and over all earlier messages, beginning with the
//! request and the acceptance. If an attacker changes any bit of these messages (in a suite, the
//! epoch or the name), a proof fails. Both sides contribute a nonce, so no message fits another
//! exchange. The labels differ, so no proof can be sent back to its sender.
//!
//! In suite 2, AUTH1 and AUTH2 also have an X25519 share each. AUTH1 is proved with the key, and
//! everything after it with a secret of the key and of what the shares agree on. Both sides erase
//! their parts, so that nobody can compute this secret later from the key and the messages. The
//! server exchanges nothing before it has checked the proof of AUTH1: a stranger cannot make it
//! compute.
//!
//! The proofs do not protect later messages: an authenticated connection has neither integrity nor
//! secrecy of its own.
//!
//! | File | Contents |
//! |---|---|
//! | `key` | keys, their ids and their text form |
//! | `policy` | whether a path authenticates, and by which suite |
//! | `fields` | the fields in the connection messages |
//! | `messages` | AUTH1 and AUTH2 |
//! | `exchange` | the key exchange of suite 2 |
//! | `proof` | the MACs |
//! | `client`, `server` | the two sides |
//! | `failures` | the limit on failures of a source address |

mod client;
mod exchange;
mod failures;
mod fields;
mod key;
mod messages;
mod policy;
mod proof;
mod server;

pub use client::{ClientAuth, Identity, Next};
pub use exchange::X25519;
pub use failures::{Failures, Source, FAILURE_MS, FORGIVEN};
pub use fields::{
    chosen, offered, put_choice, put_offer, ACCEPT_NONCE_LEN, ACCEPT_PROOF_LEN, JOIN_PROOF_LEN,
};
pub use key::{
    Key, KeyError, KeyId, KeyShare, DESCRIPTION_LEN, KEY_LEN, KEY_SHARE_LEN, KEY_TEXT_LEN,
};
pub use messages::{Auth1, Auth2, AUTH1_BODY, AUTH1_LEN, AUTH2_BODY, AUTH2_LEN, NONCE_LEN};
pub use policy::{Policy, Session, Setting, Suite, Suites};
pub use proof::HmacSha256;
pub use server::ServerAuth;

use crate::errno::Errno;
use crate::name::NameError;

/// Why an authentication failed.
///
/// The peer does not learn the reason once a connection is established: the connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AuthError {
    /// The peer does not authenticate, but must.
    Required,
    /// This side has no key, but needs one.
    NoKey,
    /// The session has authenticated paths and this path is not, or the reverse.
    Mixed,
    /// A suite that is unknown, was not offered, or is not that of the acceptance.
    Suite(u8),
    /// The client offers only suites that the operator of the server does not allow.
    NoSuite,
    /// A message at the wrong time, or after an error.
    Order,
    /// A message of the wrong length.
    Length,
    /// A message of another type than the expected one.
    Type(u16),
    /// A reserved byte that is not zero.
    Reserved,
    /// AUTH1 without a valid session name.
    Name(NameError),
    /// AUTH1 without a valid key id.
    KeyId,
    /// INFO_REQ with another session name than AUTH1.
    OtherName,
    /// A share of low order, with which nothing secret can be agreed on.
    KeyShare,
    /// The server has authenticated the client, but refuses its path with this error.
    Refused(Errno),
    /// The proof was made with another key or over other messages, or the session has no key of
    /// that id. These cases cannot be told apart.
    Proof,
}

impl AuthError {
    /// Whether the server says, with a proof, that another client has a session under this one's
    /// UUID, so that this client has none under it.
    pub const fn is_lost_session(&self) -> bool {
        matches!(self, Self::Refused(Errno::EKEYREJECTED))
    }

    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Required => "the peer does not authenticate, but must: load the session's key there",
            Self::NoKey => "authentication is required, but no key is loaded: load one",
            Self::Mixed => {
                "the session has paths with and without authentication: unmap its disks and map them again"
            }
            Self::Suite(_) => "the peer uses an authentication suite that was not agreed on",
            Self::NoSuite => {
                "the peer offers no authentication suite that auth_suites allows here: compare the parameter on both sides"
            }
            Self::Order => "authentication message at the wrong time",
            Self::Length => "authentication message of the wrong length",
            Self::Type(_) => "message of an unexpected type during authentication",
            Self::Reserved => "authentication message with a reserved byte that is not zero",
            Self::Name(e) => e.as_str(),
            Self::KeyId => "malformed key id",
            Self::OtherName => "the peer authenticated for another session name",
            Self::KeyShare => {
                "the peer's X25519 share agrees on nothing secret: the peer is defective, or somebody changes its messages"
            }
            Self::Refused(_) => "the server has authenticated this client, but refuses the path",
            Self::Proof => {
                "unknown key id for this session, or the keys differ: compare the keys of both sides"
            }
        }
    }

    /// The errno to return, or to send in the rejection of a connection request.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::NoKey => Errno::ENOKEY,
            Self::Required | Self::Mixed | Self::OtherName | Self::Proof => Errno::EKEYREJECTED,
            Self::NoSuite => Errno::EPROTONOSUPPORT,
            Self::Name(e) => e.errno(),
            Self::Refused(errno) => *errno,
            Self::Suite(_)
            | Self::KeyShare
            | Self::Order
            | Self::Length
            | Self::Type(_)
            | Self::Reserved
            | Self::KeyId => Errno::EPROTO,
        }
    }
}
