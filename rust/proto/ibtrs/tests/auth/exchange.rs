// SPDX-License-Identifier: GPL-2.0

//! The key exchange of suite 2.

use super::bytes::hex;
use super::*;
use proptest::prelude::*;

fn bytes(hex: &str) -> [u8; 32] {
    core::array::from_fn(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
}

/// Computed from the text of the protocol by another program, in another language.
#[test]
fn messages_are_those_of_the_protocol() {
    let run = honest();
    assert_eq!(run.wire[0][47], 3);
    assert_eq!(run.wire[1][21], 2);
    let auth1 = &run.wire[2];
    assert_eq!(auth1.len(), AUTH1_LEN);
    assert_eq!(auth1[..8], [5, 0, 2, 0, 0, 0, 0, 0]);
    assert_eq!(auth1[296..328], CLIENT_NONCE);
    assert_eq!(hex(&auth1[328..360]), CLIENT_SHARE);
    assert_eq!(hex(&auth1[360..]), CLIENT_PROOF);
    let auth2 = &run.wire[3];
    assert_eq!(auth2.len(), AUTH2_LEN);
    assert_eq!(auth2[..8], [6, 0, 2, 0, 0, 0, 0, 0]);
    assert_eq!(auth2[8..40], SERVER_NONCE);
    assert_eq!(hex(&auth2[40..72]), SERVER_SHARE);
    assert_eq!(hex(&auth2[72..]), SERVER_PROOF);
    let request = further(run.client(), 1);
    assert_eq!(hex(&request[12..28]), JOIN);
    let mut acceptance = plain_acceptance().encode();
    run.server()
        .further_accept(&Library, &request, &mut acceptance);
    assert_eq!(hex(&acceptance[44..]), ACCEPT);
}

const CLIENT_SHARE: &str = "1cf579aba45a10ba1d1ef06d91fca2aa9ed0a1150515653155405d0b18cb9a67";
const CLIENT_PROOF: &str = "c7a751a376425c60ff844b3f97429543698fb1542c6ef321d1edf0144e587497";
const SERVER_SHARE: &str = "30d3c865a48fceb3d6118577cf2e5f228d6ff69866264757785b253cb7a4806a";
const SERVER_PROOF: &str = "e905d31eef9467aa5ba84e06dbe258ee1f343543cf68f0a627b2b2f56778aa3a";
const JOIN: &str = "ea4459f18a27787a1c19d43c9ae1f446";
const ACCEPT: &str = "cce7a3279efb6ce487fc4de4";

#[test]
fn every_share_has_its_form() {
    let run = honest();
    for share in [[0; 32], [0xff; 32]] {
        let mut auth1 = run.wire[2].clone();
        auth1[328..360].copy_from_slice(&share);
        let claim = Auth1::decode(&auth1).unwrap();
        assert_eq!((claim.suite(), claim.share), (Suite::X25519, Some(share)));
        let mut auth2 = run.wire[3].clone();
        auth2[40..72].copy_from_slice(&share);
        let answer = Auth2::decode(&auth2).unwrap();
        assert_eq!((answer.suite(), answer.share), (Suite::X25519, Some(share)));
    }
    // A share under the name of suite 1.
    for (leg, reserved) in [(2, 3..8), (3, 3..4)] {
        let decoded = |at: usize, byte| {
            let mut message = run.wire[leg].clone();
            message[at] = byte;
            match leg {
                2 => Auth1::decode(&message).map(|_| ()),
                _ => Auth2::decode(&message).map(|_| ()),
            }
        };
        assert_eq!(decoded(2, 1), Err(AuthError::Reserved));
        for at in reserved {
            assert_eq!(decoded(at, 1), Err(AuthError::Reserved));
        }
    }
}

/// The points of order 1, 2, 4 and 8 of the curve and its twist, and their other encodings, which
/// have the highest bit set or are not below the prime.
fn of_low_order() -> Vec<KeyShare> {
    let mut points = vec![
        [0; 32],
        bytes("0100000000000000000000000000000000000000000000000000000000000000"),
        bytes("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
        bytes("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
        bytes("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
        bytes("edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
        bytes("eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    ];
    let high = |mut point: KeyShare| {
        point[31] |= 0x80;
        point
    };
    points.extend(points.clone().into_iter().map(high));
    points
}

/// AUTH1 of a run with another share; with the proof of `key`.
fn with_share(run: &Run, share: &KeyShare, key: &[u8; KEY_LEN]) -> Vec<u8> {
    let mut auth1 = run.wire[2].clone();
    auth1[328..360].copy_from_slice(share);
    let (body, proof) = auth1.split_at_mut(AUTH1_BODY);
    proof.copy_from_slice(&hmac(
        key,
        &[b"ibtrs-1 client  ", &run.wire[0][2..], &run.wire[1], body],
    ));
    auth1
}

/// A server that waits for AUTH1 of an honest client.
fn waiting(run: &Run) -> ServerAuth {
    let request: Message = run.wire[0].clone().try_into().unwrap();
    let mut acceptance = plain_acceptance().encode();
    let policy = (Policy::Required, Session::New, Suites::ALL);
    accept(policy, &request, &mut acceptance, ACCEPT_NONCE).unwrap()
}

fn find(_: &KeyId, _: SessionName<'_>) -> Option<Key> {
    Some(Key::new(KEY))
}

#[test]
fn shares_without_a_secret_are_refused() {
    for share in of_low_order() {
        let run = honest();
        let mut server = waiting(&run);
        let auth1 = with_share(&run, &share, &KEY);
        assert_eq!(answer(&mut server, &auth1, find), Err(AuthError::KeyShare));
        assert!(!server.is_authenticated() && !server.is_pending());
        assert_eq!(server.key_id(), None);
        // A server that has no key cannot make the client use one either.
        let run = super::run(SIDES, |leg, bytes| {
            if leg == Leg::Auth2 {
                bytes[40..72].copy_from_slice(&share);
            }
        });
        assert_eq!(run.client.unwrap_err(), AuthError::KeyShare);
    }
}

/// Fails the test if anything is exchanged.
struct OnlyMacs;

impl HmacSha256 for OnlyMacs {
    fn hmac(&self, key: &[u8; KEY_LEN], parts: &[&[u8]]) -> [u8; 32] {
        hmac(key, parts)
    }
}

impl X25519 for OnlyMacs {
    fn generate(&self, _: &mut [u8; KEY_LEN]) -> KeyShare {
        panic!("a secret was made");
    }

    fn agree(&self, _: &[u8; KEY_LEN], _: &KeyShare, _: &mut [u8; KEY_LEN]) -> bool {
        panic!("a share was used");
    }
}

/// An exchange takes long, so a server begins none with somebody who has not proved the key.
#[test]
fn a_stranger_makes_nobody_compute() {
    let run = honest();
    let strangers = [
        with_share(&run, &[9; 32], &OTHER_KEY),
        with_share(&run, &[0; 32], &OTHER_KEY),
        with_share(&run, &[0; 32], &SERVER_NONCE),
    ];
    for auth1 in strangers {
        let refused = waiting(&run).auth1(&OnlyMacs, &auth1, find, SERVER_NONCE);
        assert_eq!(refused, Err(AuthError::Proof));
        let unknown = waiting(&run).auth1(&OnlyMacs, &auth1, |_, _| None, SERVER_NONCE);
        assert_eq!(unknown, Err(AuthError::Proof));
    }
}

#[test]
fn suite_1_exchanges_nothing() {
    let sides = of_suite_1(SIDES);
    let run = undisturbed(sides);
    let mut request = plain_request(0, SIDES.epoch).encode();
    let mut client =
        ClientAuth::request(sides.client, sides.session, Suites::ALL, true, &mut request).unwrap();
    let acceptance: Message = run.wire[1].clone().try_into().unwrap();
    let sent = client.accepted(&OnlyMacs, &acceptance, Some(identity(KEY)), CLIENT_NONCE);
    let Ok(Next::Send(auth1)) = sent else {
        panic!("{sent:?}");
    };
    assert_eq!(auth1[..], run.wire[2]);
    let mut mine = plain_acceptance().encode();
    let policy = (Policy::Required, Session::New, HMAC);
    let mut server = accept(policy, &request, &mut mine, ACCEPT_NONCE).unwrap();
    server.auth1(&OnlyMacs, &auth1, find, SERVER_NONCE).unwrap();
    let auth2 = server.auth2(&OnlyMacs, None).unwrap();
    client.auth2(&OnlyMacs, &auth2).unwrap();
    assert_eq!(client.suite(), Some(Suite::HmacSha256));
    assert_eq!(server.suite(), client.suite());
}

/// The suite of AUTH2 is that of AUTH1, even from a server that has the key.
#[test]
fn a_server_cannot_change_the_suite() {
    for (sides, suite) in [(SIDES, 1), (of_suite_1(SIDES), 2)] {
        let run = run(sides, |leg, bytes| {
            if leg == Leg::Auth2 {
                bytes[2] = suite;
                bytes[40..72].fill(if suite == 1 { 0 } else { 9 });
            }
        });
        assert_eq!(run.client.unwrap_err(), AuthError::Suite(suite));
    }
    // The same for AUTH1.
    for (sides, suite) in [(SIDES, 1), (of_suite_1(SIDES), 2)] {
        let run = run(sides, |leg, bytes| {
            if leg == Leg::Auth1 {
                bytes[2] = suite;
                bytes[328..360].fill(if suite == 1 { 0 } else { 9 });
            }
        });
        assert_eq!(run.server.unwrap_err(), AuthError::Suite(suite));
    }
}

/// An exchange in which only the secrets of the sides differ from the usual ones.
fn with_secrets(client: [u8; 32], server: [u8; 32]) -> (Run, [Vec<u8>; 4]) {
    let (client, server) = (Side(client), Side(server));
    let mut request = plain_request(0, SIDES.epoch).encode();
    let mut asks = ClientAuth::request(SIDES.client, SIDES.session, X, true, &mut request).unwrap();
    let mut acceptance = plain_acceptance().encode();
    let policy = (SIDES.server, SIDES.session, X);
    let mut answers = accept(policy, &request, &mut acceptance, ACCEPT_NONCE).unwrap();
    let next = asks.accepted(&client, &acceptance, Some(identity(KEY)), CLIENT_NONCE);
    let Ok(Next::Send(auth1)) = next else {
        panic!("{next:?}");
    };
    answers.auth1(&server, &auth1, find, SERVER_NONCE).unwrap();
    let auth2 = answers.auth2(&server, None).unwrap();
    asks.auth2(&client, &auth2).unwrap();
    let wire = [
        request.to_vec(),
        acceptance.to_vec(),
        auth1.to_vec(),
        auth2.to_vec(),
    ];
    let run = Run {
        client: Ok(asks),
        server: Ok(answers),
        wire: wire.clone(),
    };
    (run, wire)
}

/// The key and a recording reveal the path key of suite 1, and of no other path.
#[test]
fn the_key_opens_no_path_of_the_past() {
    let path_key = |wire: &[Vec<u8>; 4]| {
        let [request, acceptance, auth1, auth2] = wire;
        let parts: [&[u8]; 5] = [
            b"ibtrs-1 path key",
            &request[2..],
            acceptance,
            auth1,
            &auth2[..AUTH2_BODY],
        ];
        hmac(&KEY, &parts)
    };
    let forged = |key: [u8; 32]| {
        let bare = ConnReq {
            path_uuid: [0; 16],
            ..plain_request(1, SIDES.epoch)
        };
        let mut request = bare.encode();
        let proof = hmac(&key, &[b"ibtrs-1 join    ", &request[2..]]);
        request[12..28].copy_from_slice(&proof[..16]);
        request
    };
    let old = undisturbed(of_suite_1(SIDES));
    assert!(old.server().owns(&Library, &forged(path_key(&old.wire))));
    let (new, wire) = with_secrets([0x77; 32], [0x88; 32]);
    assert!(!new.server().owns(&Library, &forged(path_key(&wire))));
    assert!(new.server().owns(&Library, &further(new.client(), 1)));
}

proptest! {
    /// All secrets agree, and no other secret has the path key.
    #[test]
    fn secrets_agree(client: [u8; 32], server: [u8; 32], other: [u8; 32]) {
        let (run, wire) = with_secrets(client, server);
        let request = further(run.client(), 1);
        prop_assert!(run.server().owns(&Library, &request));
        let clamped = |mut secret: [u8; 32]| {
            secret[0] &= 248;
            secret[31] = secret[31] & 127 | 64;
            secret
        };
        for (client, server) in [(other, server), (client, other)] {
            let (next, seen) = with_secrets(client, server);
            let same = seen == wire;
            prop_assert_eq!(next.server().owns(&Library, &request), same);
        }
        // X25519 ignores these bits of a secret.
        prop_assert!(with_secrets(clamped(client), server).1 == wire);
    }

    /// A share of somebody else, in either direction, is found.
    #[test]
    fn shares_cannot_be_exchanged(other: [u8; 32], leg in 2..4usize) {
        let share = x25519(other, X25519_BASEPOINT_BYTES);
        let at = [328, 40][leg - 2];
        let run = super::run(SIDES, |on, bytes| {
            if on == LEGS[leg] {
                bytes[at..at + 32].copy_from_slice(&share);
            }
        });
        let (client, server) = run.are_authenticated();
        prop_assert!(!client);
        prop_assert_eq!(server, leg == 3);
        prop_assert!(run.client.is_err());
    }
}
