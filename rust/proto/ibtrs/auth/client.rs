// SPDX-License-Identifier: GPL-2.0

//! The client's side of a path, from its first request to its last connection.

use super::messages::AUTH2_BODY;
use super::proof::{equal, split, Greeting, PathKey};
use super::{
    chosen, put_offer, Auth1, Auth2, AuthError, HmacSha256, Key, KeyId, Policy, Session, Suites,
    AUTH1_LEN, NONCE_LEN,
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
}

// Lives in an attempt, which is allocated as a whole.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
enum State {
    Requested([u8; CONN_REQ_LEN]),
    Sent {
        greeting: Greeting,
        key: Key,
        auth1: [u8; AUTH1_LEN],
    },
    Plain,
    Proved(PathKey),
    Failed,
}

impl ClientAuth {
    /// Puts the offer into the request of connection 0. The client has a key if `has_key`.
    ///
    /// # Errors
    ///
    /// As [`Policy::offer`]: the caller must not send the request.
    pub fn request(
        policy: Policy,
        session: Session,
        has_key: bool,
        request: &mut [u8; CONN_REQ_LEN],
    ) -> Result<Self, AuthError> {
        let offered = policy.offer(session, has_key)?;
        put_offer(request, offered);
        Ok(Self {
            policy,
            session,
            offered,
            state: State::Requested(*request),
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
        mac: &impl HmacSha256,
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
        let body = Auth1 {
            suite,
            key_id: identity.key_id,
            name: identity.name,
            nonce,
        }
        .body();
        let proof = greeting.client_proof(mac, &identity.key, &body);
        let auth1 = message(|w| {
            w.put(&body);
            w.put(&proof);
        });
        self.state = State::Sent {
            greeting,
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
    pub fn auth2(&mut self, mac: &impl HmacSha256, bytes: &[u8]) -> Result<(), AuthError> {
        let state = core::mem::replace(&mut self.state, State::Failed);
        let State::Sent {
            greeting,
            key,
            auth1,
        } = state
        else {
            return Err(AuthError::Order);
        };
        let answer = Auth2::decode(bytes)?;
        let (body, proof) = split::<AUTH2_BODY>(bytes)?;
        let (expected, path_key) = greeting.outcome(mac, &key, &auth1, body);
        if !equal(&expected, proof) {
            return Err(AuthError::Proof);
        }
        if let Some(errno) = answer.refusal {
            return Err(AuthError::Refused(errno));
        }
        self.state = State::Proved(path_key);
        Ok(())
    }

    /// Whether the server has proved itself.
    pub const fn is_authenticated(&self) -> bool {
        matches!(self.state, State::Proved(_))
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
            State::Proved(path_key) => {
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
            State::Proved(path_key) if path_key.accepted(mac, request, acceptance) => Ok(()),
            State::Proved(_) => Err(AuthError::Proof),
            State::Requested(_) | State::Sent { .. } | State::Failed => Err(AuthError::Order),
        }
    }

    /// Whether the client may send INFO_REQ, as far as authentication goes.
    ///
    /// # Errors
    ///
    /// [`AuthError::Order`] as for [`ClientAuth::further_request`].
    pub const fn may_introduce(&self) -> Result<(), AuthError> {
        match self.state {
            State::Plain | State::Proved(_) => Ok(()),
            State::Requested(_) | State::Sent { .. } | State::Failed => Err(AuthError::Order),
        }
    }
}
