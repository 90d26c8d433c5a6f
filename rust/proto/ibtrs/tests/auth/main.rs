// SPDX-License-Identifier: GPL-2.0

//! Authentication: both sides agree, and nothing else passes.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod attacks;
mod bytes;
mod exchange;
mod failures;
mod keys;
mod order;
mod policy;

use hmac::{Hmac, Mac};
use ibtrs_proto::auth::*;
use ibtrs_proto::handshake::{ConnReq, ConnRsp, ReqExt, RspExt};
use ibtrs_proto::name::SessionName;
use sha2::Sha256;
use x25519_dalek::{x25519, X25519_BASEPOINT_BYTES};

/// HMAC-SHA256 of a library; `bytes.rs` checks it against RFC 4231.
struct Library;

impl HmacSha256 for Library {
    fn hmac(&self, key: &[u8; KEY_LEN], parts: &[&[u8]]) -> [u8; 32] {
        hmac(key, parts)
    }
}

/// The same, and the X25519 of a library with this secret; the known messages in `exchange.rs`
/// check both.
struct Side([u8; 32]);

impl HmacSha256 for Side {
    fn hmac(&self, key: &[u8; KEY_LEN], parts: &[&[u8]]) -> [u8; 32] {
        hmac(key, parts)
    }
}

impl X25519 for Side {
    fn generate(&self, secret: &mut [u8; KEY_LEN]) -> KeyShare {
        *secret = self.0;
        x25519(self.0, X25519_BASEPOINT_BYTES)
    }

    fn agree(&self, secret: &[u8; KEY_LEN], share: &KeyShare, agreed: &mut [u8; KEY_LEN]) -> bool {
        *agreed = x25519(*secret, *share);
        *agreed != [0; KEY_LEN]
    }
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

type Message = [u8; 56];

const KEY: [u8; KEY_LEN] = [0x33; KEY_LEN];
const OTHER_KEY: [u8; KEY_LEN] = [0x34; KEY_LEN];
const ACCEPT_NONCE: [u8; ACCEPT_NONCE_LEN] = [0x22; ACCEPT_NONCE_LEN];
const CLIENT_NONCE: [u8; NONCE_LEN] = [0x44; NONCE_LEN];
const SERVER_NONCE: [u8; NONCE_LEN] = [0x66; NONCE_LEN];
const CLIENT: Side = Side([0x77; 32]);
const SERVER: Side = Side([0x88; 32]);
const HMAC: Suites = Suites::only(Suite::HmacSha256);
const X: Suites = Suites::only(Suite::X25519);

fn id() -> KeyId {
    KeyId::new(b"web1-2026").unwrap()
}

fn name() -> SessionName<'static> {
    SessionName::new(b"web1").unwrap()
}

fn identity(key: [u8; KEY_LEN]) -> Identity<'static> {
    Identity {
        name: name(),
        key_id: id(),
        key: Key::new(key),
    }
}

/// A request without authentication.
fn plain_request(cid: u16, epoch: u32) -> ConnReq {
    ConnReq {
        cid,
        cid_num: 3,
        recon_cnt: 1,
        path_uuid: [0xa1; 16],
        session_uuid: [0xb2; 16],
        first_conn: true,
        ext: Some(ReqExt {
            notices: true,
            same_key: true,
            durable: true,
            more_answers: true,
            ..ReqExt::plain(epoch)
        }),
    }
}

/// An acceptance without authentication.
fn plain_acceptance() -> ConnRsp {
    ConnRsp {
        queue_depth: 512,
        max_io_size: 131_072,
        max_hdr_size: 4096,
        new_rkey: true,
        times: false,
        messages: false,
        slot_bytes: None,
        window: None,
        ext: Some(RspExt {
            server_run: [0xc3; 16],
            session_gen: 5,
        }),
    }
}

/// A message on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leg {
    Request,
    Acceptance,
    Auth1,
    Auth2,
}

const LEGS: [Leg; 4] = [Leg::Request, Leg::Acceptance, Leg::Auth1, Leg::Auth2];

/// The settings of the two sides; the secrets differ if told so.
#[derive(Clone, Copy)]
struct Sides {
    client: Policy,
    server: Policy,
    session: Session,
    /// The suites that the client may offer, and those that the server may choose.
    suites: (Suites, Suites),
    epoch: u32,
    client_key: [u8; KEY_LEN],
    server_key: Option<[u8; KEY_LEN]>,
    client_nonce: [u8; NONCE_LEN],
    accept_nonce: [u8; ACCEPT_NONCE_LEN],
}

const SIDES: Sides = Sides {
    client: Policy::Required,
    server: Policy::Required,
    session: Session::New,
    suites: (Suites::ALL, Suites::ALL),
    epoch: 7,
    client_key: KEY,
    server_key: Some(KEY),
    client_nonce: CLIENT_NONCE,
    accept_nonce: ACCEPT_NONCE,
};

/// Sides that agree on each of the suites.
const OF_EACH_SUITE: [Sides; 2] = [SIDES, of_suite_1(SIDES)];

/// The same sides, of which one has only suite 1.
const fn of_suite_1(sides: Sides) -> Sides {
    Sides {
        suites: (sides.suites.0, HMAC),
        ..sides
    }
}

/// How far two sides came, and all that was on the wire, as it was sent.
struct Run {
    client: Result<ClientAuth, AuthError>,
    server: Result<ServerAuth, AuthError>,
    wire: [Vec<u8>; 4],
}

impl Run {
    fn are_authenticated(&self) -> (bool, bool) {
        (
            self.client.as_ref().is_ok_and(|c| c.is_authenticated()),
            self.server.as_ref().is_ok_and(|s| s.is_authenticated()),
        )
    }

    fn client(&self) -> &ClientAuth {
        self.client.as_ref().unwrap()
    }

    fn server(&self) -> &ServerAuth {
        self.server.as_ref().unwrap()
    }
}

/// Two sides on a wire where `tamper` may change each message.
fn run(sides: Sides, tamper: impl Fn(Leg, &mut Vec<u8>)) -> Run {
    let mut wire = LEGS.map(|_| Vec::new());
    let mut send = |leg: Leg, bytes: &[u8]| {
        wire[leg as usize] = bytes.to_vec();
        let mut arrives = bytes.to_vec();
        tamper(leg, &mut arrives);
        arrives
    };
    let mut client = None;
    let mut server = None;
    let (for_client, for_server) = exchange(sides, (&mut client, &mut server), &mut send);
    Run {
        client: for_client.map(|()| client.unwrap()),
        server: for_server.map(|()| server.unwrap()),
        wire,
    }
}

type Ended = Result<(), AuthError>;

fn exchange(
    sides: Sides,
    (client, server): (&mut Option<ClientAuth>, &mut Option<ServerAuth>),
    send: &mut impl FnMut(Leg, &[u8]) -> Vec<u8>,
) -> (Ended, Ended) {
    let gone = Err(AuthError::Order);
    let mut request = plain_request(0, sides.epoch).encode();
    let (offered, allowed) = sides.suites;
    match ClientAuth::request(sides.client, sides.session, offered, true, &mut request) {
        Ok(side) => *client = Some(side),
        Err(e) => return (Err(e), gone),
    }
    let client = client.as_mut().unwrap();
    let heard: Message = send(Leg::Request, &request).try_into().unwrap();
    let mut acceptance = plain_acceptance().encode();
    let policy = (sides.server, sides.session, allowed);
    match accept(policy, &heard, &mut acceptance, sides.accept_nonce) {
        Ok(side) => *server = Some(side),
        Err(e) => return (gone, Err(e)),
    }
    let server = server.as_mut().unwrap();
    let heard: Message = send(Leg::Acceptance, &acceptance).try_into().unwrap();
    let me = Some(identity(sides.client_key));
    let auth1 = match client.accepted(&CLIENT, &heard, me, sides.client_nonce) {
        Ok(Next::Plain) => return (Ok(()), Ok(())),
        Ok(Next::Send(auth1)) => auth1,
        Err(e) => return (Err(e), gone),
    };
    let heard = send(Leg::Auth1, &auth1);
    let find = |_: &KeyId, _: SessionName<'_>| sides.server_key.map(Key::new);
    match answer(server, &heard, find) {
        Ok(auth2) => {
            let heard = send(Leg::Auth2, &auth2);
            (client.auth2(&CLIENT, &heard), Ok(()))
        }
        Err(e) => (gone, Err(e)),
    }
}

/// A server with keys decides on the request of connection 0.
fn accept(
    (policy, session, allowed): (Policy, Session, Suites),
    request: &Message,
    acceptance: &mut Message,
    nonce: [u8; ACCEPT_NONCE_LEN],
) -> Result<ServerAuth, AuthError> {
    let chosen = policy.choose(session, offered(request), allowed, true)?;
    Ok(ServerAuth::accept(chosen, request, acceptance, nonce))
}

/// The server takes AUTH1, and answers.
fn answer(
    server: &mut ServerAuth,
    auth1: &[u8],
    find: impl FnOnce(&KeyId, SessionName<'_>) -> Option<Key>,
) -> Result<[u8; AUTH2_LEN], AuthError> {
    server.auth1(&SERVER, auth1, find, SERVER_NONCE)?;
    server.auth2(&Library, None)
}

/// Runs an exchange that nobody disturbs.
fn undisturbed(sides: Sides) -> Run {
    run(sides, |_, _| {})
}

fn honest() -> Run {
    undisturbed(SIDES)
}

/// The request of a further connection, with its proof.
fn further(client: &ClientAuth, cid: u16) -> Message {
    let mut request = plain_request(cid, SIDES.epoch).encode();
    client.further_request(&Library, &mut request).unwrap();
    request
}

#[test]
fn both_sides_agree() {
    let policies = [Policy::Required, Policy::Optional];
    let pairs = policies.map(|client| policies.map(|server| (client, server)));
    let allowed = [
        (Suites::ALL, Suites::ALL),
        (HMAC, Suites::ALL),
        (Suites::ALL, HMAC),
        (X, X),
    ];
    let all = allowed
        .into_iter()
        .flat_map(|suites| pairs.as_flattened().iter().map(move |pair| (suites, *pair)));
    for (suites, (client, server)) in all {
        let run = undisturbed(Sides {
            client,
            server,
            suites,
            ..SIDES
        });
        assert_eq!(run.are_authenticated(), (true, true));
        let suite = suites.0.and(suites.1).strongest();
        assert_eq!((run.client().suite(), run.server().suite()), (suite, suite));
        assert_eq!(run.server().key_id(), Some(id()));
        assert_eq!(run.server().introduced(name()), Ok(()));
        for cid in 1..3 {
            let request = further(run.client(), cid);
            assert!(run.server().owns(&Library, &request));
            let mut acceptance = plain_acceptance().encode();
            run.server()
                .further_accept(&Library, &request, &mut acceptance);
            let answer = run
                .client()
                .further_accepted(&Library, &request, &acceptance);
            assert_eq!(answer, Ok(()));
        }
    }
}
