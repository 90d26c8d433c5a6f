// SPDX-License-Identifier: GPL-2.0

//! The server's side of a path, from its first request to INFO_REQ.

use super::fields::join_field;
use super::messages::AUTH1_BODY;
use super::proof::{equal, split, Greeting, PathKey};
use super::{
    offered, put_choice, Auth1, Auth2, AuthError, HmacSha256, Key, KeyId, Policy, Session, Suite,
    ACCEPT_NONCE_LEN, AUTH1_LEN, AUTH2_LEN, NONCE_LEN,
};
use crate::bytes::message;
use crate::consts::{CONN_REQ_LEN, CONN_RSP_LEN};
use crate::errno::Errno;
use crate::handshake::ConnReq;
use crate::name::SessionName;

/// One connection attempt of a path, as far as authentication goes.
///
/// After an error the path is to be closed, and every later call fails.
#[derive(Debug)]
pub struct ServerAuth {
    /// As in the request of connection 0.
    path_uuid: [u8; 16],
    state: State,
}

// Lives in a path, which is allocated as a whole.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
enum State {
    Plain,
    Waiting {
        suite: Suite,
        greeting: Greeting,
    },
    /// The client has proved itself, and AUTH2 is to be sent.
    Believed {
        suite: Suite,
        greeting: Greeting,
        auth1: [u8; AUTH1_LEN],
        key: Key,
        nonce: [u8; NONCE_LEN],
    },
    Proved {
        auth1: [u8; AUTH1_LEN],
        path_key: PathKey,
    },
    Failed,
}

impl ServerAuth {
    /// Decides on the request of connection 0, and puts the choice into its acceptance, which is
    /// otherwise complete. `nonce` is fresh and random. The server has keys if `has_keys`.
    ///
    /// # Errors
    ///
    /// As [`Policy::choose`]: the request is to be rejected with [`AuthError::errno`].
    pub fn accept(
        (policy, session): (Policy, Session),
        has_keys: bool,
        request: &[u8; CONN_REQ_LEN],
        acceptance: &mut [u8; CONN_RSP_LEN],
        nonce: [u8; ACCEPT_NONCE_LEN],
    ) -> Result<Self, AuthError> {
        let state = match policy.choose(session, offered(request), has_keys)? {
            None => State::Plain,
            Some(suite) => {
                put_choice(acceptance, suite, &nonce);
                State::Waiting {
                    suite,
                    greeting: Greeting {
                        request: *request,
                        acceptance: *acceptance,
                    },
                }
            }
        };
        Ok(Self {
            path_uuid: join_field(request),
            state,
        })
    }

    /// Takes AUTH1. The client has then proved itself, and is to be answered: see
    /// [`ServerAuth::auth2`].
    ///
    /// `find` returns the key of an id if a client with that key may use that session name.
    /// `nonce`, which AUTH2 will have, is fresh and random.
    ///
    /// # Errors
    ///
    /// The message is malformed, or the client has not proved that it has the key and has seen
    /// the same messages. An unknown key id takes as long as a wrong key and gives the same
    /// error. No answer is to be sent.
    pub fn auth1(
        &mut self,
        mac: &impl HmacSha256,
        bytes: &[u8],
        find: impl FnOnce(&KeyId, SessionName<'_>) -> Option<Key>,
        nonce: [u8; NONCE_LEN],
    ) -> Result<(), AuthError> {
        let state = core::mem::replace(&mut self.state, State::Failed);
        let State::Waiting { suite, greeting } = state else {
            return Err(AuthError::Order);
        };
        let claim = Auth1::decode(bytes)?;
        if claim.suite != suite {
            return Err(AuthError::Suite(claim.suite.wire()));
        }
        let (body, proof) = split::<AUTH1_BODY>(bytes)?;
        let found = find(&claim.key_id, claim.name);
        let known = found.is_some();
        // Nobody has this key, so no proof is one of it; `known` refuses even that.
        let key = found.unwrap_or(Key::new(nonce));
        let expected = greeting.client_proof(mac, &key, body);
        if !equal(&expected, proof) || !known {
            return Err(AuthError::Proof);
        }
        self.state = State::Believed {
            suite,
            greeting,
            auth1: *bytes.first_chunk().ok_or(AuthError::Length)?,
            key,
            nonce,
        };
        Ok(())
    }

    /// Returns AUTH2, which is to be sent to a client that has proved itself. After that the path
    /// is authenticated, unless it is refused with an error.
    ///
    /// # Errors
    ///
    /// [`AuthError::Order`] before AUTH1, and after an error.
    pub fn auth2(
        &mut self,
        mac: &impl HmacSha256,
        refusal: Option<Errno>,
    ) -> Result<[u8; AUTH2_LEN], AuthError> {
        let state = core::mem::replace(&mut self.state, State::Failed);
        let State::Believed {
            suite,
            greeting,
            auth1,
            key,
            nonce,
        } = state
        else {
            return Err(AuthError::Order);
        };
        let body = Auth2 {
            suite,
            refusal,
            nonce,
        }
        .body();
        let (proof, path_key) = greeting.outcome(mac, &key, &auth1, &body);
        if refusal.is_none() {
            self.state = State::Proved { auth1, path_key };
        }
        Ok(message(|w| {
            w.put(&body);
            w.put(&proof);
        }))
    }

    /// Whether AUTH1 is due: the client has proved nothing yet, and nothing may change on its behalf.
    pub const fn is_pending(&self) -> bool {
        matches!(self.state, State::Waiting { .. })
    }

    /// Whether the client has proved itself, and was answered.
    pub const fn is_authenticated(&self) -> bool {
        matches!(self.state, State::Proved { .. })
    }

    /// The id of the key that the client has proved to have.
    pub fn key_id(&self) -> Option<KeyId> {
        match &self.state {
            State::Believed { auth1, .. } | State::Proved { auth1, .. } => {
                Auth1::decode(auth1).ok().map(|claim| claim.key_id)
            }
            _ => None,
        }
    }

    /// The session name that the client has proved to have the key of.
    pub fn name(&self) -> Option<SessionName<'_>> {
        match &self.state {
            State::Believed { auth1, .. } | State::Proved { auth1, .. } => {
                Auth1::decode(auth1).ok().map(|claim| claim.name)
            }
            _ => None,
        }
    }

    /// Whether a connection request belongs to this path: by the proof if it is a further
    /// connection of an authenticated path, else by the path's UUID. A path that waits for AUTH1
    /// has no further connections.
    pub fn owns(&self, mac: &impl HmacSha256, request: &[u8; CONN_REQ_LEN]) -> bool {
        let is_first = ConnReq::decode(request).is_ok_and(|req| req.cid == 0);
        match &self.state {
            State::Proved { path_key, .. } if !is_first => path_key.owns(mac, request),
            State::Waiting { .. } | State::Believed { .. } | State::Failed if !is_first => false,
            _ => join_field(request) == self.path_uuid,
        }
    }

    /// Puts the proof of an authenticated path into the acceptance of a further connection, as the
    /// answer to `request`. The acceptance is otherwise complete.
    pub fn further_accept(
        &self,
        mac: &impl HmacSha256,
        request: &[u8; CONN_REQ_LEN],
        acceptance: &mut [u8; CONN_RSP_LEN],
    ) {
        if let State::Proved { path_key, .. } = &self.state {
            path_key.prove_acceptance(mac, request, acceptance);
        }
    }

    /// Checks the name of INFO_REQ.
    ///
    /// # Errors
    ///
    /// [`AuthError::OtherName`] if it is not the authenticated one, [`AuthError::Order`] before
    /// AUTH1 and after an error.
    pub fn introduced(&self, name: SessionName<'_>) -> Result<(), AuthError> {
        match &self.state {
            State::Plain => Ok(()),
            State::Proved { auth1, .. } if Auth1::decode(auth1)?.name == name => Ok(()),
            State::Proved { .. } => Err(AuthError::OtherName),
            State::Waiting { .. } | State::Believed { .. } | State::Failed => Err(AuthError::Order),
        }
    }
}
