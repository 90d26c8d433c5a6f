// SPDX-License-Identifier: GPL-2.0

//! Mutual authentication of client and server by a shared key (Documentation/protocol.md, "Authentication").
//!
//! The two ends of a path prove to each other that they have the same key, before the server
//! makes anything but a queue pair for the path. [`Client`] and [`Server`] are the two ends of the
//! exchange on connection 0; each gives a [`PathKey`] on success, with which the further
//! connections of the path prove that they belong to it.
//!
//! ```text
//! client                                        server
//!   connection request: suites offered     ->
//!                                          <-   acceptance: suite chosen, nonce of 12 bytes
//!   AUTH1: key id, session name, nonce,
//!          share, proof                    ->
//!                                          <-   AUTH2: nonce, share, proof
//!   INFO_REQ with the same session name    ->
//!   connection request 1..n, with a tag    ->
//!                                          <-   acceptance, with a tag
//! ```
//!
//! Each proof is a MAC over a label of its own and over all that was said before, both
//! acceptances and requests included. Whoever changes a bit of it (another suite, another epoch,
//! another name) makes a proof fail, and a message of another exchange fits none, as both ends
//! contribute a nonce. The labels keep the proof of one end from being sent back to it.
//!
//! With [`Suite::X25519`] the path key depends on a secret that both ends forget: a key that gets
//! known later does not give away the path keys of before.
//!
//! What this does not do: a connection that was authenticated has no integrity and no secrecy of
//! its own. Those who can change packets on the wire need no key.
//!
//! Functions for cryptography come from the caller, by [`Crypto`].

mod exchange;
mod key;
mod messages;
mod policy;

pub use exchange::{
    Client, Crypto, Greeting, PathKey, Server, Waiting, ACCEPT_TAG_LEN, JOIN_TAG_LEN,
};
pub use key::{Key, KeyError, KeyId, KEY_LEN, KEY_TEXT_LEN};
pub use messages::{Auth1, Auth2, AUTH1_LEN, AUTH2_LEN, NONCE_LEN, SHARE_LEN};
pub use policy::{Policy, Suite, Suites, ACCEPT_NONCE_LEN};

use crate::errno::Errno;

/// Why an authentication has failed.
///
/// A peer is told none of it: the connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AuthError {
    /// The peer does not authenticate, and must.
    Required,
    /// The peer wants it, and there is no key here.
    NoKey,
    /// A suite was chosen that was not offered.
    Suite(u8),
    /// A message that is shorter than its format.
    Short,
    /// Another message than the one that is due.
    Type(u16),
    /// AUTH1 without a usable name of the session.
    Name(crate::name::NameError),
    /// AUTH1 without a usable id of a key.
    KeyId,
    /// No such key, or the proof is not one of it: the two cannot be told apart.
    Proof,
    /// The share of the peer makes no secret.
    Share,
}

impl AuthError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Required => "peer does not authenticate, but authentication is required",
            Self::NoKey => "peer requires authentication, but no key is loaded",
            Self::Suite(_) => "peer chose a suite that was not offered",
            Self::Short => "authentication message shorter than its format",
            Self::Type(_) => "message of an unexpected type during authentication",
            Self::Name(e) => e.as_str(),
            Self::KeyId => "malformed key id",
            Self::Proof => "authentication failed: unknown key id, or the keys differ",
            Self::Share => "key agreement failed: the share of the peer is not usable",
        }
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::NoKey => Errno::ENOKEY,
            Self::Required | Self::Proof | Self::Share => Errno::EKEYREJECTED,
            Self::Name(e) => e.errno(),
            Self::Suite(_) | Self::Short | Self::Type(_) | Self::KeyId => Errno::EPROTO,
        }
    }
}
