// SPDX-License-Identifier: GPL-2.0

//! Authentication: what both ends agree on, and that nothing else passes.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use hmac::{Hmac, Mac};
use ibtrs_proto::auth::*;
use ibtrs_proto::consts::{CONN_REQ_LEN, CONN_RSP_LEN};
use ibtrs_proto::name::SessionName;
use proptest::prelude::*;
use sha2::Sha256;
use x25519_dalek::{PublicKey, StaticSecret};

struct Library;

impl Crypto for Library {
    fn hmac(&self, key: &Key, parts: &[&[u8]]) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).unwrap();
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().into()
    }

    fn share(&self, secret: &Key) -> [u8; 32] {
        PublicKey::from(&StaticSecret::from(*secret.as_bytes())).to_bytes()
    }

    fn agree(&self, secret: &Key, share: &[u8; 32]) -> Option<Key> {
        let agreed =
            StaticSecret::from(*secret.as_bytes()).diffie_hellman(&PublicKey::from(*share));
        agreed
            .was_contributory()
            .then(|| Key::new(agreed.to_bytes()))
    }
}

const REQUEST: [u8; CONN_REQ_LEN] = [0x11; CONN_REQ_LEN];
const ACCEPTANCE: [u8; CONN_RSP_LEN] = [0x22; CONN_RSP_LEN];
const KEY: [u8; 32] = [0x33; 32];
const CLIENT_NONCE: [u8; 32] = [0x44; 32];
const CLIENT_SECRET: [u8; 32] = [0x55; 32];
const SERVER_NONCE: [u8; 32] = [0x66; 32];
const SERVER_SECRET: [u8; 32] = [0x77; 32];

fn id() -> KeyId {
    KeyId::new(b"web1-2026").unwrap()
}

fn name() -> SessionName<'static> {
    SessionName::new(b"web1").unwrap()
}

fn greeting() -> Greeting {
    Greeting::new(REQUEST, ACCEPTANCE)
}

fn client(greeting: Greeting, suite: Suite) -> Client {
    let fresh = (CLIENT_NONCE, Key::new(CLIENT_SECRET));
    Client::new(
        &Library,
        (greeting, suite),
        name(),
        (id(), Key::new(KEY)),
        fresh,
    )
}

type Served = Result<([u8; AUTH2_LEN], PathKey), AuthError>;

fn server(greeting: Greeting, suite: Suite, auth1: &[u8], key: Option<Key>) -> Served {
    let waiting = Server::new(greeting, suite).hear(auth1)?;
    waiting.finish(
        &Library,
        key.as_ref(),
        (SERVER_NONCE, Key::new(SERVER_SECRET)),
    )
}

/// Whether both ends have ended well, and with the same key.
fn agree(client: &PathKey, server: &PathKey) -> bool {
    let mut request = REQUEST;
    client.tag_request(&Library, &mut request);
    server.owns(&Library, &request)
}

#[test]
fn both_ends_agree() {
    for suite in [Suite::Hmac, Suite::X25519] {
        let client = client(greeting(), suite);
        let waiting = Server::new(greeting(), suite).hear(client.auth1()).unwrap();
        assert_eq!(waiting.key_id().as_bytes(), b"web1-2026");
        assert_eq!(waiting.name().as_str(), "web1");
        let (auth2, at_server) =
            server(greeting(), suite, client.auth1(), Some(Key::new(KEY))).unwrap();
        let at_client = client.finish(&Library, &auth2).unwrap();
        assert!(agree(&at_client, &at_server));
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Computed from the text of the protocol by another program, in another language.
#[test]
fn messages_are_those_of_the_protocol() {
    let client = client(greeting(), Suite::Hmac);
    let auth1 = *client.auth1();
    assert_eq!(auth1[..8], [5, 0, 1, 0, 0, 0, 0, 0]);
    assert_eq!(auth1[8..17], *b"web1-2026");
    assert_eq!(auth1[40..45], *b"web1\0");
    assert_eq!(auth1[296..328], CLIENT_NONCE);
    assert_eq!(auth1[328..360], [0; 32]);
    assert_eq!(hex(&auth1[360..]), GOLDEN_CLIENT);
    let (auth2, path_key) = server(greeting(), Suite::Hmac, &auth1, Some(Key::new(KEY))).unwrap();
    assert_eq!(auth2[..8], [6, 0, 1, 0, 0, 0, 0, 0]);
    assert_eq!(auth2[8..40], SERVER_NONCE);
    assert_eq!(auth2[40..72], [0; 32]);
    assert_eq!(hex(&auth2[72..]), GOLDEN_SERVER);
    let (mut request, mut acceptance) = (REQUEST, ACCEPTANCE);
    path_key.tag_request(&Library, &mut request);
    assert_eq!(hex(&request[12..28]), GOLDEN_JOIN);
    path_key.tag_acceptance(&Library, &request, &mut acceptance);
    assert_eq!(hex(&acceptance[44..]), GOLDEN_ACCEPT);
}

const GOLDEN_CLIENT: &str = "ea435010902a1d8f49f73638d3f24fcf733063959d4904b58d32528eb17f5642";
const GOLDEN_SERVER: &str = "691f8d45cddbb46325c0687d2fe63cced52ca0177e95d36b5ede4972810a444b";
const GOLDEN_JOIN: &str = "e92b6de47e148ab28667c3ea83f6f209";
const GOLDEN_ACCEPT: &str = "37ec605aa978cc575553310f";

#[test]
fn an_unknown_key_and_a_wrong_one_look_alike() {
    for suite in [Suite::Hmac, Suite::X25519] {
        let client = client(greeting(), suite);
        for key in [None, Some(Key::new([0x34; 32]))] {
            let refused = server(greeting(), suite, client.auth1(), key).unwrap_err();
            assert_eq!(refused, AuthError::Proof);
        }
        // Nor does one get in who names no key, and makes the proof with the server's substitute.
        let guess = Client::new(
            &Library,
            (greeting(), suite),
            name(),
            (id(), Key::new(SERVER_NONCE)),
            (CLIENT_NONCE, Key::new(CLIENT_SECRET)),
        );
        let refused = server(greeting(), suite, guess.auth1(), None).unwrap_err();
        assert_eq!(refused, AuthError::Proof);
    }
}

#[test]
fn a_server_without_the_key_is_found_out() {
    let honest = client(greeting(), Suite::X25519);
    // It answers with a key of its own choice.
    let liar = Key::new([0x34; 32]);
    let fresh = (CLIENT_NONCE, Key::new(CLIENT_SECRET));
    let forged = Client::new(
        &Library,
        (greeting(), Suite::X25519),
        name(),
        (id(), liar.clone()),
        fresh,
    );
    let (auth2, _) = server(greeting(), Suite::X25519, forged.auth1(), Some(liar)).unwrap();
    assert_eq!(
        honest.finish(&Library, &auth2).unwrap_err(),
        AuthError::Proof
    );
}

#[test]
fn what_was_said_before_serves_no_other_exchange() {
    let suite = Suite::X25519;
    let seen = client(greeting(), suite);
    let (auth2, _) = server(greeting(), suite, seen.auth1(), Some(Key::new(KEY))).unwrap();
    // Another nonce of the server, and another epoch of the client.
    let mut acceptance = ACCEPTANCE;
    acceptance[50] ^= 1;
    let mut request = REQUEST;
    request[50] ^= 1;
    for other in [
        Greeting::new(REQUEST, acceptance),
        Greeting::new(request, ACCEPTANCE),
    ] {
        let refused = server(other, suite, seen.auth1(), Some(Key::new(KEY))).unwrap_err();
        assert_eq!(refused, AuthError::Proof);
        let refused = client(other, suite).finish(&Library, &auth2).unwrap_err();
        assert_eq!(refused, AuthError::Proof);
    }
    // Its own proof, sent back to a client.
    let mut reflected = auth2;
    reflected[72..].copy_from_slice(&seen.auth1()[360..]);
    assert_eq!(
        seen.finish(&Library, &reflected).unwrap_err(),
        AuthError::Proof
    );
}

#[test]
fn a_share_that_makes_no_secret_is_refused() {
    let honest = client(greeting(), Suite::X25519);
    let (mut auth2, _) = server(
        greeting(),
        Suite::X25519,
        honest.auth1(),
        Some(Key::new(KEY)),
    )
    .unwrap();
    auth2[40..72].fill(0);
    assert_eq!(
        honest.finish(&Library, &auth2).unwrap_err(),
        AuthError::Share
    );
    let honest = client(greeting(), Suite::Hmac);
    let (mut auth2, _) =
        server(greeting(), Suite::Hmac, honest.auth1(), Some(Key::new(KEY))).unwrap();
    auth2[40] = 1;
    assert_eq!(
        honest.finish(&Library, &auth2).unwrap_err(),
        AuthError::Share
    );
}

#[test]
fn a_key_that_is_known_later_gives_no_path_key() {
    // All that is on the wire and the shared key are the same, the forgotten secrets are not.
    let first = server(
        greeting(),
        Suite::X25519,
        client(greeting(), Suite::X25519).auth1(),
        Some(Key::new(KEY)),
    );
    let again = Server::new(greeting(), Suite::X25519);
    let auth1 = *client(greeting(), Suite::X25519).auth1();
    let waiting = again.hear(&auth1).unwrap();
    let second = waiting.finish(
        &Library,
        Some(&Key::new(KEY)),
        (SERVER_NONCE, Key::new([0x78; 32])),
    );
    let (first, second) = (first.unwrap().1, second.unwrap().1);
    assert!(!agree(&first, &second));
}

#[test]
fn messages_of_the_wrong_form_are_refused() {
    let auth1 = *client(greeting(), Suite::Hmac).auth1();
    let hear = |auth1: &[u8]| {
        Server::new(greeting(), Suite::Hmac)
            .hear(auth1)
            .map(|_| ())
            .unwrap_err()
    };
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = auth1;
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        hear(&changed)
    };
    for len in 0..AUTH1_LEN {
        assert_eq!(hear(&auth1[..len]), AuthError::Short);
    }
    assert_eq!(with(0, &[6]), AuthError::Type(6));
    assert_eq!(with(2, &[9]), AuthError::Suite(9));
    assert_eq!(with(2, &[2]), AuthError::Suite(2));
    assert_eq!(with(8, &[0]), AuthError::KeyId);
    assert_eq!(with(8, b"a/b"), AuthError::KeyId);
    assert_eq!(with(8, b"ab\0c"), AuthError::KeyId);
    assert!(matches!(with(40, &[0]), AuthError::Name(_)));
    assert!(matches!(with(40, b"../x"), AuthError::Name(_)));
    assert!(matches!(with(40, &[b'a'; 256]), AuthError::Name(_)));
    let client = || client(greeting(), Suite::Hmac);
    let (auth2, _) = server(greeting(), Suite::Hmac, &auth1, Some(Key::new(KEY))).unwrap();
    for len in 0..AUTH2_LEN {
        assert_eq!(
            client().finish(&Library, &auth2[..len]).unwrap_err(),
            AuthError::Short
        );
    }
    let mut other = auth2;
    other[2] = 2;
    assert_eq!(
        client().finish(&Library, &other).unwrap_err(),
        AuthError::Suite(2)
    );
    other[0] = 5;
    assert_eq!(
        client().finish(&Library, &other).unwrap_err(),
        AuthError::Type(5)
    );
}

#[test]
fn policies_are_what_they_say() {
    use Policy::{None as No, Optional, Required};
    let both = Suites::ALL;
    let hmac = Suites::NONE.with(Suite::Hmac);
    // A client: what it offers, and what it takes.
    assert_eq!(No.offer(both, true), Ok(Suites::NONE));
    assert_eq!(Optional.offer(both, false), Ok(Suites::NONE));
    assert_eq!(Optional.offer(both, true), Ok(both));
    assert_eq!(Required.offer(both, true), Ok(both));
    assert_eq!(Required.offer(both, false), Err(AuthError::NoKey));
    assert_eq!(Optional.accepted(both, 0), Ok(None));
    assert_eq!(Required.accepted(both, 0), Err(AuthError::Required));
    assert_eq!(Required.accepted(both, 2), Ok(Some(Suite::X25519)));
    assert_eq!(Required.accepted(hmac, 2), Err(AuthError::Suite(2)));
    assert_eq!(No.accepted(Suites::NONE, 1), Err(AuthError::Suite(1)));
    assert_eq!(Optional.accepted(both, 3), Err(AuthError::Suite(3)));
    // A server: what it chooses.
    assert_eq!(No.choose(both, both, true), Ok(None));
    assert_eq!(Optional.choose(Suites::NONE, both, true), Ok(None));
    assert_eq!(Optional.choose(both, both, false), Ok(None));
    assert_eq!(Optional.choose(both, both, true), Ok(Some(Suite::X25519)));
    assert_eq!(Required.choose(hmac, both, true), Ok(Some(Suite::Hmac)));
    assert_eq!(
        Required.choose(Suites::NONE, both, true),
        Err(AuthError::Required)
    );
    assert_eq!(
        Required.choose(both, Suites::NONE, true),
        Err(AuthError::Required)
    );
    assert_eq!(Required.choose(both, both, false), Err(AuthError::NoKey));
    // Bits of suites that are to come.
    assert_eq!(Suites::from_wire(0xff), both);
    assert_eq!(Suites::from_wire(1).wire(), 1);
}

const TEXT: &[u8] = b"ibtrs-key-1:web1-2026:3333333333333333333333333333333333333333333333333333333333333333:ef471844";

#[test]
fn keys_are_read_and_written() {
    let (read, key) = Key::parse(TEXT).unwrap();
    assert_eq!((read, key.as_bytes()), (id(), &KEY));
    let mut buf = [0; KEY_TEXT_LEN];
    let len = key.write(&id(), &mut buf);
    assert_eq!(&buf[..len], TEXT);
    assert!(Key::parse(&[TEXT, b"\n"].concat()).is_ok());
    assert_eq!(format!("{key:?}"), "Key(..)");
    let longest = KeyId::new(&[b'k'; 32]).unwrap();
    let len = key.write(&longest, &mut buf);
    assert_eq!(len, KEY_TEXT_LEN);
    assert_eq!(Key::parse(&buf).unwrap().0, longest);
    assert!(KeyId::new(&[b'k'; 33]).is_none());
}

#[test]
fn a_damaged_key_is_refused() {
    let refused = |text: &[u8]| Key::parse(text).map(|_| ()).unwrap_err();
    assert_eq!(refused(b""), KeyError::Prefix);
    assert_eq!(refused(b"ibtrs-key-2:a:b:c"), KeyError::Prefix);
    assert_eq!(refused(b"ibtrs-key-1::00"), KeyError::Id);
    assert_eq!(refused(b"ibtrs-key-1:a b:00"), KeyError::Id);
    assert_eq!(refused(b"ibtrs-key-1:a:00"), KeyError::Digits);
    for len in 0..TEXT.len() {
        refused(&TEXT[..len]);
    }
    for at in 0..TEXT.len() {
        for with in *b"0aA:\n" {
            let mut text = TEXT.to_vec();
            if text[at] != with {
                text[at] = with;
                refused(&text);
            }
        }
    }
    refused(&[TEXT, b"0"].concat());
}

proptest! {
    /// Whatever bit is changed on the way, at least one end refuses, and neither has a key that
    /// the other has.
    #[test]
    fn no_bit_may_change(
        x25519: bool,
        part in 0..4usize,
        at in any::<prop::sample::Index>(),
        bit in 0..8u8,
    ) {
        let suite = if x25519 { Suite::X25519 } else { Suite::Hmac };
        let flip = |bytes: &mut [u8]| bytes[at.index(bytes.len())] ^= 1 << bit;
        // The server sees another request, the client another acceptance.
        let (mut request, mut acceptance) = (REQUEST, ACCEPTANCE);
        match part {
            0 => flip(&mut request[2..]),
            1 => flip(&mut acceptance),
            _ => {}
        }
        let client = client(Greeting::new(REQUEST, acceptance), suite);
        let mut auth1 = *client.auth1();
        if part == 2 {
            // But for the bytes that mean nothing yet, and are covered like all others.
            flip(&mut auth1);
        }
        let Ok((mut auth2, at_server)) = server(Greeting::new(request, ACCEPTANCE), suite, &auth1, Some(Key::new(KEY)))
        else {
            return Ok(());
        };
        prop_assert_eq!(part, 3, "a changed message was taken");
        flip(&mut auth2);
        let at_client = client.finish(&Library, &auth2);
        prop_assert!(at_client.is_err());
        drop(at_server);
    }

    /// A tag is of one request and one acceptance of one path.
    #[test]
    fn tags_fit_nothing_else(at in 2..CONN_REQ_LEN, bit in 0..8u8, byte in 0..CONN_RSP_LEN) {
        let (_, key) = server(greeting(), Suite::Hmac, client(greeting(), Suite::Hmac).auth1(), Some(Key::new(KEY))).unwrap();
        let (mut request, mut acceptance) = (REQUEST, ACCEPTANCE);
        key.tag_request(&Library, &mut request);
        key.tag_acceptance(&Library, &request, &mut acceptance);
        prop_assert!(key.owns(&Library, &request));
        prop_assert!(key.accepted(&Library, &request, &acceptance));
        let mut other = request;
        other[at] ^= 1 << bit;
        prop_assert!(!key.owns(&Library, &other));
        prop_assert!(!key.accepted(&Library, &other, &acceptance));
        let mut other = acceptance;
        other[byte] ^= 1 << bit;
        prop_assert!(!key.accepted(&Library, &request, &other));
        // The connection manager's own bytes may be others on arrival.
        request[0] ^= 1 << bit;
        prop_assert!(key.owns(&Library, &request));
    }

    #[test]
    fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..AUTH1_LEN + 8)) {
        let _ = Server::new(greeting(), Suite::Hmac).hear(&bytes);
        let _ = client(greeting(), Suite::X25519).finish(&Library, &bytes);
        let _ = Key::parse(&bytes);
    }
}
