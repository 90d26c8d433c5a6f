// SPDX-License-Identifier: GPL-2.0

//! The server's side of a path, from its first request to INFO_REQ.

use super::exchange::mix;
use super::fields::join_field;
use super::messages::AUTH1_BODY;
use super::proof::{equal, split, Fingerprint, Greeting, PathKey};
use super::{
    put_choice, Auth1, Auth2, AuthError, HmacSha256, Key, KeyId, KeyShare, Suite, ACCEPT_NONCE_LEN,
    AUTH1_LEN, AUTH2_LEN, NONCE_LEN, X25519,
};
use crate::bytes::message;
use crate::consts::{CONN_REQ_LEN, CONN_RSP_LEN};
use crate::errno::Errno;
use crate::handshake::ConnReq;
use crate::name::SessionName;

/// The authentication state of one connection attempt of a path.
///
/// After an error every later call fails, and the caller must close the path.
#[derive(Debug)]
pub struct ServerAuth {
    /// The path's UUID from the request of connection 0.
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
    /// The client has proved itself; the server must send AUTH2.
    Believed {
        greeting: Greeting,
        auth1: [u8; AUTH1_LEN],
        nonce: [u8; NONCE_LEN],
        /// The server's part of the key exchange, in suite 2.
        share: Option<KeyShare>,
        /// The key, in suite 2 mixed with what the shares agree on.
        secret: Key,
        fingerprint: Fingerprint,
    },
    Proved {
        auth1: [u8; AUTH1_LEN],
        path_key: PathKey,
        /// The fingerprint of the key that the client has proved.
        fingerprint: Fingerprint,
    },
    Failed,
}

impl ServerAuth {
    /// Begins a path with the choice of [`Policy::choose`] for the request of connection 0, and
    /// puts that choice into the acceptance, which is otherwise complete. `nonce` is fresh and
    /// random.
    ///
    /// [`Policy::choose`]: super::Policy::choose
    pub fn accept(
        chosen: Option<Suite>,
        request: &[u8; CONN_REQ_LEN],
        acceptance: &mut [u8; CONN_RSP_LEN],
        nonce: [u8; ACCEPT_NONCE_LEN],
    ) -> Self {
        let state = match chosen {
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
        Self {
            path_uuid: join_field(request),
            state,
        }
    }

    /// Handles AUTH1. On success the client has proved itself; the caller then sends the answer of
    /// [`ServerAuth::auth2`].
    ///
    /// `find` returns the key of an id if a client with that key may use that session name.
    /// `nonce` is fresh and random; AUTH2 will contain it.
    ///
    /// # Errors
    ///
    /// The message is malformed, or the client has not proved that it has the key and has seen
    /// the same messages. An unknown key id takes as long as a wrong key and gives the same
    /// error. The caller must not answer.
    pub fn auth1(
        &mut self,
        crypto: &(impl HmacSha256 + X25519),
        bytes: &[u8],
        find: impl FnOnce(&KeyId, SessionName<'_>) -> Option<Key>,
        nonce: [u8; NONCE_LEN],
    ) -> Result<(), AuthError> {
        let state = core::mem::replace(&mut self.state, State::Failed);
        let State::Waiting { suite, greeting } = state else {
            return Err(AuthError::Order);
        };
        let claim = Auth1::decode(bytes)?;
        if claim.suite() != suite {
            return Err(AuthError::Suite(claim.suite().wire()));
        }
        let (body, proof) = split::<AUTH1_BODY>(bytes)?;
        let found = find(&claim.key_id, claim.name);
        let known = found.is_some();
        // Nobody has this key, so no proof can match it; `known` refuses even a match.
        let key = found.unwrap_or(Key::new(nonce));
        let expected = greeting.client_proof(crypto, &key, body);
        if !equal(&expected, proof) || !known {
            return Err(AuthError::Proof);
        }
        let fingerprint = Fingerprint::of(crypto, &key);
        // Not before the client has proved itself: this takes much longer than a MAC.
        let (share, secret) = match &claim.share {
            None => (None, key),
            Some(clients) => {
                let mut own = Key::EMPTY;
                let share = crypto.generate(own.bytes_mut());
                (Some(share), mix(crypto, &key, &own, clients)?)
            }
        };
        self.state = State::Believed {
            greeting,
            auth1: *bytes.first_chunk().ok_or(AuthError::Length)?,
            nonce,
            share,
            secret,
            fingerprint,
        };
        Ok(())
    }

    /// Returns AUTH2 for a client that has proved itself. After that the path is authenticated,
    /// unless `refusal` refuses it.
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
            greeting,
            auth1,
            nonce,
            share,
            secret,
            fingerprint,
        } = state
        else {
            return Err(AuthError::Order);
        };
        let body = Auth2 {
            refusal,
            nonce,
            share,
        }
        .body();
        let (proof, path_key) = greeting.outcome(mac, &secret, &auth1, &body);
        if refusal.is_none() {
            self.state = State::Proved {
                auth1,
                path_key,
                fingerprint,
            };
        }
        Ok(message(|w| {
            w.put(&body);
            w.put(&proof);
        }))
    }

    /// Whether the server waits for AUTH1: until then it must change nothing on the client's
    /// behalf.
    pub const fn is_pending(&self) -> bool {
        matches!(self.state, State::Waiting { .. })
    }

    /// Whether the client has proved itself and AUTH2 was made.
    pub const fn is_authenticated(&self) -> bool {
        matches!(self.state, State::Proved { .. })
    }

    /// The id of the key that the client has proved.
    pub fn key_id(&self) -> Option<KeyId> {
        self.claim().map(|claim| claim.key_id)
    }

    /// The suite by which the client has proved its key.
    pub fn suite(&self) -> Option<Suite> {
        self.claim().map(|claim| claim.suite())
    }

    /// Whether `key` is the one that the client has proved; `false` before AUTH2 was made.
    ///
    /// A key may have the id of another one that was loaded before it.
    pub fn has_proved(&self, mac: &impl HmacSha256, key: &Key) -> bool {
        match &self.state {
            State::Proved { fingerprint, .. } => fingerprint.is_of(mac, key),
            _ => false,
        }
    }

    /// The session name for which the client has proved its key.
    pub fn name(&self) -> Option<SessionName<'_>> {
        self.claim().map(|claim| claim.name)
    }

    fn claim(&self) -> Option<Auth1<'_>> {
        match &self.state {
            State::Believed { auth1, .. } | State::Proved { auth1, .. } => {
                Auth1::decode(auth1).ok()
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
