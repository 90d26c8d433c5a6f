// SPDX-License-Identifier: GPL-2.0

//! The client's side of a path, from its first request to its last connection.

use super::exchange::mix;
use super::messages::AUTH2_BODY;
use super::proof::{equal, split, Greeting, PathKey};
use super::{
    chosen, put_offer, Auth1, Auth2, AuthError, HmacSha256, Key, KeyId, Policy, Session, Suite,
    Suites, AUTH1_LEN, NONCE_LEN, X25519,
};
use crate::bytes::message;
use crate::consts::{CONN_REQ_LEN, CONN_RSP_LEN};
use crate::name::SessionName;

/// The client's identity.
#[derive(Clone, Debug)]
pub struct Identity<'a> {
    /// The name of the session.
    pub name: SessionName<'a>,
    /// The id of the key.
    pub key_id: KeyId,
    /// The key that the client shares with the server.
    pub key: Key,
}

/// The client's next step after connection 0 is accepted.
// The message is moved once, where a path is set up; nothing here allocates.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Goes on without authentication: further connections, then INFO_REQ.
    Plain,
    /// Sends this AUTH1 on connection 0 and waits for AUTH2. Further connections follow.
    Send([u8; AUTH1_LEN]),
}

/// The authentication state of one connection attempt of a path.
///
/// After an error every later call fails, and the caller must end the attempt.
#[derive(Debug)]
pub struct ClientAuth {
    policy: Policy,
    session: Session,
    offered: Suites,
    state: State,
    /// The secret of the client's share while the client waits for AUTH2, otherwise zeros. Written
    /// and erased in place, so that no copy is left in memory.
    own: Key,
}

// Lives in an attempt, which is allocated as a whole.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
enum State {
    Requested([u8; CONN_REQ_LEN]),
    Sent {
        greeting: Greeting,
        suite: Suite,
        key: Key,
        auth1: [u8; AUTH1_LEN],
    },
    Plain,
    Proved(Suite, PathKey),
    Failed,
}

impl ClientAuth {
    /// Puts the offer into the request of connection 0: the `allowed` suites, or some of them. The
    /// client has a key if `has_key`.
    ///
    /// # Errors
    ///
    /// As [`Policy::offer`]: the caller must not send the request.
    pub fn request(
        policy: Policy,
        session: Session,
        allowed: Suites,
        has_key: bool,
        request: &mut [u8; CONN_REQ_LEN],
    ) -> Result<Self, AuthError> {
        let offered = policy.offer(session, allowed, has_key)?;
        put_offer(request, offered);
        Ok(Self {
            policy,
            session,
            offered,
            state: State::Requested(*request),
            own: Key::EMPTY,
        })
    }

    /// Handles the acceptance of connection 0. `nonce` is fresh and random. `identity` is `None` if
    /// the key has been unloaded since the request.
    ///
    /// # Errors
    ///
    /// As [`Policy::accepted`], or [`AuthError::NoKey`].
    pub fn accepted(
        &mut self,
        crypto: &(impl HmacSha256 + X25519),
        acceptance: &[u8; CONN_RSP_LEN],
        identity: Option<Identity<'_>>,
        nonce: [u8; NONCE_LEN],
    ) -> Result<Next, AuthError> {
        let State::Requested(request) = core::mem::replace(&mut self.state, State::Failed) else {
            return Err(AuthError::Order);
        };
        let number = chosen(acceptance);
        let Some(suite) = self.policy.accepted(self.session, self.offered, number)? else {
            self.state = State::Plain;
            return Ok(Next::Plain);
        };
        let identity = identity.ok_or(AuthError::NoKey)?;
        let greeting = Greeting {
            request,
            acceptance: *acceptance,
        };
        let share = match suite {
            Suite::HmacSha256 => None,
            Suite::X25519 => Some(crypto.generate(self.own.bytes_mut())),
        };
        let body = Auth1 {
            key_id: identity.key_id,
            name: identity.name,
            nonce,
            share,
        }
        .body();
        let proof = greeting.client_proof(crypto, &identity.key, &body);
        let auth1 = message(|w| {
            w.put(&body);
            w.put(&proof);
        });
        self.state = State::Sent {
            greeting,
            suite,
            key: identity.key,
            auth1,
        };
        Ok(Next::Send(auth1))
    }

    /// Handles AUTH2. The path is authenticated after that.
    ///
    /// # Errors
    ///
    /// The message is malformed, or the server has not proved that it has the key and has seen
    /// the same messages; [`AuthError::Refused`] if the server has proved that, but refuses the
    /// path.
    pub fn auth2(
        &mut self,
        crypto: &(impl HmacSha256 + X25519),
        bytes: &[u8],
    ) -> Result<(), AuthError> {
        let proved = self.prove(crypto, bytes);
        self.own.erase();
        self.state = proved?;
        Ok(())
    }

    /// The state after AUTH2.
    fn prove(
        &mut self,
        crypto: &(impl HmacSha256 + X25519),
        bytes: &[u8],
    ) -> Result<State, AuthError> {
        let State::Sent {
            greeting,
            suite,
            key,
            auth1,
        } = core::mem::replace(&mut self.state, State::Failed)
        else {
            return Err(AuthError::Order);
        };
        let answer = Auth2::decode(bytes)?;
        if answer.suite() != suite {
            return Err(AuthError::Suite(answer.suite().wire()));
        }
        let secret = match &answer.share {
            None => key,
            Some(share) => mix(crypto, &key, &self.own, share)?,
        };
        let (body, proof) = split::<AUTH2_BODY>(bytes)?;
        let (expected, path_key) = greeting.outcome(crypto, &secret, &auth1, body);
        if !equal(&expected, proof) {
            return Err(AuthError::Proof);
        }
        match answer.refusal {
            Some(errno) => Err(AuthError::Refused(errno)),
            None => Ok(State::Proved(suite, path_key)),
        }
    }

    /// Whether the server has proved itself.
    pub const fn is_authenticated(&self) -> bool {
        self.suite().is_some()
    }

    /// The suite by which both sides have proved themselves.
    pub const fn suite(&self) -> Option<Suite> {
        match self.state {
            State::Proved(suite, _) => Some(suite),
            _ => None,
        }
    }

    /// Prepares the request of a further connection: in an authenticated path, puts the proof in
    /// place of the path's UUID.
    ///
    /// # Errors
    ///
    /// [`AuthError::Order`] before [`Next::Plain`] or AUTH2, and after an error.
    pub fn further_request(
        &self,
        mac: &impl HmacSha256,
        request: &mut [u8; CONN_REQ_LEN],
    ) -> Result<(), AuthError> {
        match &self.state {
            State::Plain => Ok(()),
            State::Proved(_, path_key) => {
                path_key.prove_request(mac, request);
                Ok(())
            }
            State::Requested(_) | State::Sent { .. } | State::Failed => Err(AuthError::Order),
        }
    }

    /// Checks the acceptance of a further connection, the answer to `request`.
    ///
    /// # Errors
    ///
    /// [`AuthError::Proof`] if the acceptance does not come from the server of the path,
    /// [`AuthError::Order`] as for [`ClientAuth::further_request`].
    pub fn further_accepted(
        &self,
        mac: &impl HmacSha256,
        request: &[u8; CONN_REQ_LEN],
        acceptance: &[u8; CONN_RSP_LEN],
    ) -> Result<(), AuthError> {
        match &self.state {
            State::Plain => Ok(()),
            State::Proved(_, path_key) if path_key.accepted(mac, request, acceptance) => Ok(()),
            State::Proved(..) => Err(AuthError::Proof),
            State::Requested(_) | State::Sent { .. } | State::Failed => Err(AuthError::Order),
        }
    }
}
