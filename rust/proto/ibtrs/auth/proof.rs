// SPDX-License-Identifier: GPL-2.0

//! Proofs: MACs over all messages that both sides have seen.

use super::fields::{join_field, put, ACCEPT_PROOF_AT, JOIN_PROOF_AT};
use super::messages::{AUTH1_BODY, AUTH2_BODY, PROOF_LEN};
use super::{AuthError, Key, ACCEPT_PROOF_LEN, AUTH1_LEN, JOIN_PROOF_LEN, KEY_LEN};
use crate::consts::{CONN_REQ_LEN, CONN_RSP_LEN};

/// Bytes at the front of a request that belong to the connection manager, which may change them.
const CM_LEN: usize = 2;

/// Labels, which name the purpose of a MAC. All labels have the same length, and all messages have
/// a fixed one, so a MAC for one purpose never serves another.
const CLIENT_PROOF: &[u8; 16] = b"ibtrs-1 client  ";
const SERVER_PROOF: &[u8; 16] = b"ibtrs-1 server  ";
const PATH_KEY: &[u8; 16] = b"ibtrs-1 path key";
const JOIN: &[u8; 16] = b"ibtrs-1 join    ";
const ACCEPT: &[u8; 16] = b"ibtrs-1 accept  ";
const FINGERPRINT: &[u8; 16] = b"ibtrs-1 identify";

/// The message authentication code of all suites.
pub trait HmacSha256 {
    /// HMAC-SHA256 with `key` over all `parts`, one after the other.
    fn hmac(&self, key: &[u8; KEY_LEN], parts: &[&[u8]]) -> [u8; 32];
}

/// Identifies a key without revealing it. Never sent.
#[derive(Debug)]
pub(super) struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub(super) fn of(mac: &impl HmacSha256, key: &Key) -> Self {
        Self(mac.hmac(key.as_bytes(), &[FINGERPRINT]))
    }

    pub(super) fn is_of(&self, mac: &impl HmacSha256, key: &Key) -> bool {
        equal(&self.0, &Self::of(mac, key).0)
    }
}

/// Private data of connection 0 as it was sent, which both sides have seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Greeting {
    pub(super) request: [u8; CONN_REQ_LEN],
    pub(super) acceptance: [u8; CONN_RSP_LEN],
}

impl Greeting {
    fn request(&self) -> &[u8] {
        said(&self.request)
    }

    /// The proof of AUTH1.
    pub(super) fn client_proof(
        &self,
        mac: &impl HmacSha256,
        key: &Key,
        body: &[u8; AUTH1_BODY],
    ) -> [u8; PROOF_LEN] {
        let parts: [&[u8]; 4] = [CLIENT_PROOF, self.request(), &self.acceptance, body];
        mac.hmac(key.as_bytes(), &parts)
    }

    /// The proof of AUTH2, and the key of the path. In suite 1 `secret` is the key itself.
    pub(super) fn outcome(
        &self,
        mac: &impl HmacSha256,
        secret: &Key,
        auth1: &[u8; AUTH1_LEN],
        body: &[u8; AUTH2_BODY],
    ) -> ([u8; PROOF_LEN], PathKey) {
        let over = |label: &[u8]| {
            let parts = [label, self.request(), &self.acceptance, auth1, body];
            mac.hmac(secret.as_bytes(), &parts)
        };
        (over(SERVER_PROOF), PathKey(Key::new(over(PATH_KEY))))
    }
}

/// The secret of one connection attempt of a path.
///
/// Proofs made with this key show that further connections belong to the path, so a stranger cannot
/// use a path UUID seen on the wire.
#[derive(Clone, Debug)]
pub(super) struct PathKey(Key);

impl PathKey {
    /// Puts the proof into the request of a further connection, in place of the path's UUID.
    pub(super) fn prove_request(&self, mac: &impl HmacSha256, request: &mut [u8; CONN_REQ_LEN]) {
        let proof = self.join_proof(mac, request);
        put(request, JOIN_PROOF_AT, &proof);
    }

    /// Whether a request has the proof of this path for its connection number, number of
    /// connections, session, epoch and extensions.
    pub(super) fn owns(&self, mac: &impl HmacSha256, request: &[u8; CONN_REQ_LEN]) -> bool {
        equal(&self.join_proof(mac, request), &join_field(request))
    }

    /// Puts the proof into the acceptance of a further connection, as the answer to `request`.
    pub(super) fn prove_acceptance(
        &self,
        mac: &impl HmacSha256,
        request: &[u8; CONN_REQ_LEN],
        acceptance: &mut [u8; CONN_RSP_LEN],
    ) {
        let proof = self.accept_proof(mac, request, acceptance);
        put(acceptance, ACCEPT_PROOF_AT, &proof);
    }

    /// Whether an acceptance comes from the server of this path, for `request`.
    pub(super) fn accepted(
        &self,
        mac: &impl HmacSha256,
        request: &[u8; CONN_REQ_LEN],
        acceptance: &[u8; CONN_RSP_LEN],
    ) -> bool {
        let proof = acceptance.last_chunk::<ACCEPT_PROOF_LEN>();
        proof.is_some_and(|proof| equal(&self.accept_proof(mac, request, acceptance), proof))
    }

    fn join_proof(
        &self,
        mac: &impl HmacSha256,
        request: &[u8; CONN_REQ_LEN],
    ) -> [u8; JOIN_PROOF_LEN] {
        let mut bare = *request;
        put(&mut bare, JOIN_PROOF_AT, &[0; JOIN_PROOF_LEN]);
        shorten(mac.hmac(self.0.as_bytes(), &[JOIN, said(&bare)]))
    }

    fn accept_proof(
        &self,
        mac: &impl HmacSha256,
        request: &[u8; CONN_REQ_LEN],
        acceptance: &[u8; CONN_RSP_LEN],
    ) -> [u8; ACCEPT_PROOF_LEN] {
        let bare = acceptance.get(..ACCEPT_PROOF_AT).unwrap_or_default();
        shorten(mac.hmac(self.0.as_bytes(), &[ACCEPT, said(request), bare]))
    }
}

/// The bytes of a request that arrive as they were sent.
fn said(request: &[u8; CONN_REQ_LEN]) -> &[u8] {
    request.get(CM_LEN..).unwrap_or_default()
}

/// The body of a message, and its proof.
pub(super) fn split<const BODY: usize>(
    message: &[u8],
) -> Result<(&[u8; BODY], &[u8; PROOF_LEN]), AuthError> {
    let (body, rest) = message.split_first_chunk().ok_or(AuthError::Length)?;
    Ok((body, rest.first_chunk().ok_or(AuthError::Length)?))
}

/// The first bytes of a MAC.
fn shorten<const N: usize>(mac: [u8; 32]) -> [u8; N] {
    let mut proof = [0; N];
    proof.iter_mut().zip(mac).for_each(|(to, from)| *to = from);
    proof
}

/// Whether two MACs are equal, in a time that does not depend on where they differ.
pub(super) fn equal<const N: usize>(a: &[u8; N], b: &[u8; N]) -> bool {
    let differ = a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b));
    core::hint::black_box(differ) == 0
}
