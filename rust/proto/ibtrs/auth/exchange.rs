// SPDX-License-Identifier: GPL-2.0

//! The exchange of proofs, and the tags of further connections.

use super::messages::{AUTH1_BODY, AUTH2_BODY, PROOF_LEN};
use super::{Auth1, Auth2, AuthError, Key, KeyId, Suite, ACCEPT_NONCE_LEN, AUTH1_LEN, AUTH2_LEN};
use super::{NONCE_LEN, SHARE_LEN};
use crate::consts::{CONN_REQ_LEN, CONN_RSP_LEN};
use crate::name::SessionName;

/// Bytes of the tag in the request of a further connection: the field of the path's UUID.
pub const JOIN_TAG_LEN: usize = 16;
/// Bytes of the tag in its acceptance: the field of the nonce.
pub const ACCEPT_TAG_LEN: usize = ACCEPT_NONCE_LEN;

/// The first bytes of a request belong to the connection manager, and arrive as others.
const CM_LEN: usize = 2;
/// Where the path's UUID is in a request.
const JOIN_TAG_AT: usize = 12;
/// Where the nonce is in an acceptance.
const ACCEPT_TAG_AT: usize = CONN_RSP_LEN - ACCEPT_TAG_LEN;

/// What a MAC is for. All are of one length, so none is the beginning of another with its text.
const CLIENT_PROOF: &[u8; 16] = b"ibtrs-1 client  ";
const SERVER_PROOF: &[u8; 16] = b"ibtrs-1 server  ";
const PATH_KEY: &[u8; 16] = b"ibtrs-1 path key";
const JOIN: &[u8; 16] = b"ibtrs-1 join    ";
const ACCEPT: &[u8; 16] = b"ibtrs-1 accept  ";

/// The cryptographic functions that an exchange needs.
pub trait Crypto {
    /// HMAC-SHA256 with `key` over all `parts`, one after the other.
    fn hmac(&self, key: &Key, parts: &[&[u8]]) -> [u8; 32];

    /// X25519: the public value of `secret`.
    fn share(&self, secret: &Key) -> [u8; SHARE_LEN];

    /// X25519: what `secret` and the public value of the peer make; nothing if that is zero.
    fn agree(&self, secret: &Key, share: &[u8; SHARE_LEN]) -> Option<Key>;
}

/// Private data of a path's connection 0, as it was sent: what both ends have seen.
#[derive(Clone, Copy, Debug)]
pub struct Greeting {
    request: [u8; CONN_REQ_LEN],
    acceptance: [u8; CONN_RSP_LEN],
}

impl Greeting {
    /// Takes the request and the acceptance.
    pub const fn new(request: [u8; CONN_REQ_LEN], acceptance: [u8; CONN_RSP_LEN]) -> Self {
        Self {
            request,
            acceptance,
        }
    }

    fn parts(&self) -> [&[u8]; 2] {
        [
            self.request.get(CM_LEN..).unwrap_or_default(),
            &self.acceptance,
        ]
    }

    fn client_proof(&self, crypto: &impl Crypto, key: &Key, body: &[u8; AUTH1_BODY]) -> [u8; 32] {
        let [request, acceptance] = self.parts();
        crypto.hmac(key, &[CLIENT_PROOF, request, acceptance, body])
    }

    /// What proves the server, and the key of the path: both over all that was said.
    fn outcome(
        &self,
        crypto: &impl Crypto,
        key: &Key,
        auth1: &[u8; AUTH1_LEN],
        auth2: &[u8; AUTH2_BODY],
        agreed: &Key,
    ) -> ([u8; PROOF_LEN], PathKey) {
        let [request, acceptance] = self.parts();
        let mac = |label: &[u8]| {
            let agreed = agreed.as_bytes();
            crypto.hmac(key, &[label, request, acceptance, auth1, auth2, agreed])
        };
        (mac(SERVER_PROOF), PathKey(Key::new(mac(PATH_KEY))))
    }
}

/// The client's end, between AUTH1 and AUTH2.
#[derive(Debug)]
pub struct Client {
    greeting: Greeting,
    suite: Suite,
    key: Key,
    secret: Key,
    auth1: [u8; AUTH1_LEN],
}

impl Client {
    /// Begins an exchange for the session `name`, with `key`; gives AUTH1 by [`Client::auth1`].
    ///
    /// `nonce` and `secret` are fresh random bytes, never used before.
    pub fn new(
        crypto: &impl Crypto,
        (greeting, suite): (Greeting, Suite),
        name: SessionName<'_>,
        (key_id, key): (KeyId, Key),
        (nonce, secret): ([u8; NONCE_LEN], Key),
    ) -> Self {
        let share = share_of(crypto, suite, &secret);
        let body = Auth1 {
            suite,
            key_id,
            name,
            nonce,
            share,
        }
        .body();
        let proof = greeting.client_proof(crypto, &key, &body);
        Self {
            greeting,
            suite,
            key,
            secret,
            auth1: crate::bytes::message(|w| {
                w.put(&body);
                w.put(&proof);
            }),
        }
    }

    /// The message to send.
    pub const fn auth1(&self) -> &[u8; AUTH1_LEN] {
        &self.auth1
    }

    /// Ends the exchange with what the server has answered.
    ///
    /// # Errors
    ///
    /// The server has not proved that it has the key, or not understood the same: the path is to
    /// be given up.
    pub fn finish(self, crypto: &impl Crypto, auth2: &[u8]) -> Result<PathKey, AuthError> {
        let answer = Auth2::decode(auth2)?;
        let agreed = agreed(
            crypto,
            (self.suite, answer.suite),
            &self.secret,
            &answer.share,
        )?;
        let (body, proof) = split::<AUTH2_BODY>(auth2)?;
        let (expected, path_key) =
            self.greeting
                .outcome(crypto, &self.key, &self.auth1, body, &agreed);
        equal(&expected, proof)
            .then_some(path_key)
            .ok_or(AuthError::Proof)
    }
}

/// The server's end, before AUTH1.
#[derive(Debug)]
pub struct Server {
    greeting: Greeting,
    suite: Suite,
}

/// The server's end, between AUTH1 and the key that it names.
#[derive(Debug)]
pub struct Waiting<'a> {
    greeting: Greeting,
    auth1: &'a [u8],
    said: Auth1<'a>,
}

impl Server {
    /// Begins an exchange after an acceptance with `suite`.
    pub const fn new(greeting: Greeting, suite: Suite) -> Self {
        Self { greeting, suite }
    }

    /// Takes AUTH1. Nothing of it is proved yet: it serves to find the key.
    ///
    /// # Errors
    ///
    /// It is malformed: the connection is to be closed.
    pub fn hear(self, auth1: &[u8]) -> Result<Waiting<'_>, AuthError> {
        let said = Auth1::decode(auth1)?;
        if said.suite != self.suite {
            return Err(AuthError::Suite(said.suite.wire()));
        }
        Ok(Waiting {
            greeting: self.greeting,
            auth1,
            said,
        })
    }
}

impl<'a> Waiting<'a> {
    /// The id of the key that the client says it has.
    pub const fn key_id(&self) -> &KeyId {
        &self.said.key_id
    }

    /// The session that it says it is: proved by [`Waiting::finish`], to be that of INFO_REQ.
    pub const fn name(&self) -> SessionName<'a> {
        self.said.name
    }

    /// Ends the exchange, with the key of that id if there is one: gives AUTH2, to be sent, and
    /// the path's key.
    ///
    /// `nonce` and `secret` are fresh random bytes, never used before.
    ///
    /// # Errors
    ///
    /// The client has not proved that it has the key: the connection is to be closed without an
    /// answer. An unknown id takes the same time and gives the same error.
    pub fn finish(
        self,
        crypto: &impl Crypto,
        key: Option<&Key>,
        (nonce, secret): ([u8; NONCE_LEN], Key),
    ) -> Result<([u8; AUTH2_LEN], PathKey), AuthError> {
        let nobody = Key::new(nonce);
        let known = key.is_some();
        let key = key.unwrap_or(&nobody);
        let (body, proof) = split::<AUTH1_BODY>(self.auth1)?;
        let expected = self.greeting.client_proof(crypto, key, body);
        if !equal(&expected, proof) || !known {
            return Err(AuthError::Proof);
        }
        let suite = self.said.suite;
        let agreed = agreed(crypto, (suite, suite), &secret, &self.said.share)?;
        let share = share_of(crypto, suite, &secret);
        let body = Auth2 {
            suite,
            nonce,
            share,
        }
        .body();
        let auth1 = self.auth1.first_chunk().ok_or(AuthError::Short)?;
        let (proof, path_key) = self.greeting.outcome(crypto, key, auth1, &body, &agreed);
        let auth2 = crate::bytes::message(|w| {
            w.put(&body);
            w.put(&proof);
        });
        Ok((auth2, path_key))
    }
}

/// The secret of one path and one attempt to connect it. Further connections show by tags that
/// they belong to it, so a UUID that was seen on the wire lets nobody join.
#[derive(Clone, Debug)]
pub struct PathKey(Key);

impl PathKey {
    /// Puts the tag into the request of a further connection, in place of the path's UUID.
    pub fn tag_request(&self, crypto: &impl Crypto, request: &mut [u8; CONN_REQ_LEN]) {
        let tag = self.join_tag(crypto, request);
        put(request, JOIN_TAG_AT, &tag);
    }

    /// Whether a request has the tag of this path: of its connection number, their count, its
    /// session and its epoch.
    pub fn owns(&self, crypto: &impl Crypto, request: &[u8; CONN_REQ_LEN]) -> bool {
        let tag = request
            .get(JOIN_TAG_AT..)
            .and_then(|rest| rest.first_chunk::<JOIN_TAG_LEN>());
        tag.is_some_and(|tag| equal(&self.join_tag(crypto, request), tag))
    }

    /// Puts the tag into the acceptance of a further connection, as sent with `request`.
    pub fn tag_acceptance(
        &self,
        crypto: &impl Crypto,
        request: &[u8; CONN_REQ_LEN],
        acceptance: &mut [u8; CONN_RSP_LEN],
    ) {
        let tag = self.accept_tag(crypto, request, acceptance);
        put(acceptance, ACCEPT_TAG_AT, &tag);
    }

    /// Whether an acceptance comes from the server of this path, for `request`.
    pub fn accepted(
        &self,
        crypto: &impl Crypto,
        request: &[u8; CONN_REQ_LEN],
        acceptance: &[u8; CONN_RSP_LEN],
    ) -> bool {
        let tag = acceptance.last_chunk::<ACCEPT_TAG_LEN>();
        tag.is_some_and(|tag| equal(&self.accept_tag(crypto, request, acceptance), tag))
    }

    fn join_tag(&self, crypto: &impl Crypto, request: &[u8; CONN_REQ_LEN]) -> [u8; JOIN_TAG_LEN] {
        let mut said = *request;
        put(&mut said, JOIN_TAG_AT, &[0; JOIN_TAG_LEN]);
        let said = said.get(CM_LEN..).unwrap_or_default();
        shorten(crypto.hmac(&self.0, &[JOIN, said]))
    }

    fn accept_tag(
        &self,
        crypto: &impl Crypto,
        request: &[u8; CONN_REQ_LEN],
        acceptance: &[u8; CONN_RSP_LEN],
    ) -> [u8; ACCEPT_TAG_LEN] {
        let request = request.get(CM_LEN..).unwrap_or_default();
        let said = acceptance.get(..ACCEPT_TAG_AT).unwrap_or_default();
        shorten(crypto.hmac(&self.0, &[ACCEPT, request, said]))
    }
}

fn share_of(crypto: &impl Crypto, suite: Suite, secret: &Key) -> [u8; SHARE_LEN] {
    match suite {
        Suite::Hmac => [0; SHARE_LEN],
        Suite::X25519 => crypto.share(secret),
    }
}

/// The secret that both ends make; of zeros where the suite has none.
fn agreed(
    crypto: &impl Crypto,
    (ours, theirs): (Suite, Suite),
    secret: &Key,
    share: &[u8; SHARE_LEN],
) -> Result<Key, AuthError> {
    match ours {
        _ if theirs != ours => Err(AuthError::Suite(theirs.wire())),
        Suite::Hmac if share.iter().all(|&b| b == 0) => Ok(Key::new([0; SHARE_LEN])),
        Suite::Hmac => Err(AuthError::Share),
        Suite::X25519 => crypto.agree(secret, share).ok_or(AuthError::Share),
    }
}

/// The body of a message, and its proof.
fn split<const BODY: usize>(message: &[u8]) -> Result<(&[u8; BODY], &[u8; PROOF_LEN]), AuthError> {
    let (body, rest) = message.split_first_chunk().ok_or(AuthError::Short)?;
    Ok((body, rest.first_chunk().ok_or(AuthError::Short)?))
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, field: &[u8; N]) {
    if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *place = *field;
    }
}

/// The first bytes of a MAC.
fn shorten<const N: usize>(mac: [u8; 32]) -> [u8; N] {
    let mut tag = [0; N];
    tag.iter_mut().zip(mac).for_each(|(to, from)| *to = from);
    tag
}

/// Whether two MACs are equal, in a time that does not depend on where they differ.
fn equal<const N: usize>(a: &[u8; N], b: &[u8; N]) -> bool {
    let differ = a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b));
    core::hint::black_box(differ) == 0
}
