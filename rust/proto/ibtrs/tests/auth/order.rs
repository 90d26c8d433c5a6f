// SPDX-License-Identifier: GPL-2.0

//! Messages at any time and in any order.

use super::*;
use ibtrs_proto::errno::Errno;
use proptest::prelude::*;

/// The calls that a driver may make of a server's side.
#[derive(Clone, Copy, Debug)]
enum Op {
    GoodAuth1,
    BadAuth1,
    Auth2,
    Info,
    Further,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        Just(Op::GoodAuth1),
        Just(Op::BadAuth1),
        Just(Op::Auth2),
        Just(Op::Info),
        Just(Op::Further),
    ]
}

/// A server that waits for AUTH1, the client's AUTH1, and its request for a further connection.
fn waiting() -> (ServerAuth, Run) {
    let run = honest();
    let request: Message = run.wire[0].clone().try_into().unwrap();
    let mut acceptance = plain_acceptance().encode();
    let policy = (Policy::Required, Session::New, Suites::ALL);
    let server = accept(policy, &request, &mut acceptance, ACCEPT_NONCE);
    (server.unwrap(), run)
}

fn find(_: &KeyId, _: SessionName<'_>) -> Option<Key> {
    Some(Key::new(KEY))
}

proptest! {
    #[test]
    fn a_server_lets_nobody_in_early(ops in prop::collection::vec(op(), 1..12)) {
        let (mut server, run) = waiting();
        let (mut proved, mut failed) = (false, false);
        for op in ops {
            match op {
                Op::GoodAuth1 | Op::BadAuth1 | Op::Auth2 => {
                    let mut bytes = run.wire[2].clone();
                    match op {
                        Op::BadAuth1 => bytes[300] ^= 1,
                        Op::Auth2 => bytes.clone_from(&run.wire[3]),
                        _ => {}
                    }
                    let good = matches!(op, Op::GoodAuth1) && !proved && !failed;
                    let took = answer(&mut server, &bytes, find);
                    prop_assert_eq!(took.is_ok(), good);
                    // A second AUTH1 ends an authenticated path as well.
                    (proved, failed) = (good, !good);
                }
                Op::Info => prop_assert_eq!(server.introduced(name()).is_ok(), proved),
                Op::Further => {
                    let request = further(run.client(), 1);
                    prop_assert_eq!(server.owns(&Library, &request), proved);
                    let by_uuid = plain_request(1, SIDES.epoch).encode();
                    prop_assert!(!server.owns(&Library, &by_uuid));
                }
            }
            prop_assert_eq!(server.is_authenticated(), proved);
            prop_assert_eq!(server.key_id().is_some(), proved);
        }
    }
}

#[test]
fn a_client_sends_nothing_early() {
    let order = Err(AuthError::Order);
    let mut request = plain_request(0, SIDES.epoch).encode();
    let policy = (Policy::Required, Session::New, Suites::ALL);
    let mut client = ClientAuth::request(policy.0, policy.1, policy.2, true, &mut request).unwrap();
    let mut acceptance = plain_acceptance().encode();
    let mut server = accept(policy, &request, &mut acceptance, ACCEPT_NONCE).unwrap();
    let idle = |client: &ClientAuth| {
        let mut further = plain_request(1, SIDES.epoch).encode();
        assert_eq!(client.further_request(&Library, &mut further), order);
        assert_eq!(further, plain_request(1, SIDES.epoch).encode());
        assert_eq!(
            client.further_accepted(&Library, &further, &acceptance),
            order
        );
        assert!(!client.is_authenticated());
    };
    idle(&client);
    let me = || Some(identity(KEY));
    let sent = client.accepted(&CLIENT, &acceptance, me(), CLIENT_NONCE);
    let Ok(Next::Send(auth1)) = sent else {
        panic!("{sent:?}");
    };
    idle(&client);
    let auth2 = answer(&mut server, &auth1, find).unwrap();
    client.auth2(&CLIENT, &auth2).unwrap();
    assert!(client.is_authenticated());
    // The same again ends it.
    assert_eq!(client.auth2(&CLIENT, &auth2), order);
    idle(&client);
    assert_eq!(
        client.accepted(&CLIENT, &acceptance, me(), CLIENT_NONCE),
        Err(AuthError::Order)
    );
    assert_eq!(client.auth2(&CLIENT, &auth2), order);
}

#[test]
fn auth2_before_the_acceptance() {
    let run = honest();
    let mut request = plain_request(0, SIDES.epoch).encode();
    let mut client = ClientAuth::request(
        Policy::Required,
        Session::New,
        Suites::ALL,
        true,
        &mut request,
    )
    .unwrap();
    let order = Err(AuthError::Order);
    assert_eq!(client.auth2(&CLIENT, &run.wire[3]), order);
    let acceptance: Message = run.wire[1].clone().try_into().unwrap();
    let late = client.accepted(&CLIENT, &acceptance, Some(identity(KEY)), CLIENT_NONCE);
    assert_eq!(late, Err(AuthError::Order));
}

/// Whatever has its id: the key that was proved is another one's if any bit of it differs.
#[test]
fn the_key_that_was_proved_is_known() {
    let proved = |server: &ServerAuth, key| server.has_proved(&Library, &Key::new(key));
    let (mut server, run) = waiting();
    assert!(!proved(&server, KEY));
    server
        .auth1(&SERVER, &run.wire[2], find, SERVER_NONCE)
        .unwrap();
    assert!(!proved(&server, KEY));
    server.auth2(&Library, None).unwrap();
    assert!(proved(&server, KEY));
    for bit in 0..8 * KEY_LEN {
        let mut other = KEY;
        other[bit / 8] ^= 1 << (bit % 8);
        assert!(!proved(&server, other));
    }
    let plain = undisturbed(Sides {
        server: Policy::None,
        client: Policy::None,
        ..SIDES
    });
    assert!(!proved(plain.server(), KEY));
}

#[test]
fn a_plain_path_takes_no_auth1() {
    let request = plain_request(0, 7).encode();
    let mut acceptance = plain_acceptance().encode();
    let policy = (Policy::Optional, Session::New, Suites::ALL);
    let mut server = accept(policy, &request, &mut acceptance, ACCEPT_NONCE).unwrap();
    let took = answer(&mut server, &honest().wire[2], find);
    assert_eq!(took, Err(AuthError::Order));
    assert_eq!(server.introduced(name()), Err(AuthError::Order));
}

/// A client that the server believes learns why its path is refused, and from nobody else.
#[test]
fn a_path_is_refused_with_a_reason() {
    let (mut server, run) = waiting();
    server
        .auth1(&SERVER, &run.wire[2], find, SERVER_NONCE)
        .unwrap();
    assert!(!server.is_authenticated());
    let auth2 = server.auth2(&Library, Some(Errno::ECONNRESET)).unwrap();
    assert!(!server.is_authenticated());
    assert_eq!(server.introduced(name()), Err(AuthError::Order));
    let again = server.auth2(&Library, None);
    assert_eq!(again, Err(AuthError::Order));
    let told = |auth2: &[u8]| {
        let mut client = asked(&run);
        let told = client.auth2(&CLIENT, auth2);
        assert!(!client.is_authenticated());
        told
    };
    assert_eq!(told(&auth2), Err(AuthError::Refused(Errno::ECONNRESET)));
    let mut other = auth2;
    other[4] = 0;
    assert_eq!(told(&other), Err(AuthError::Proof));
}

/// Only the server can tell a client that its session is lost.
#[test]
fn a_session_is_lost_by_proof_only() {
    let (mut server, run) = waiting();
    server
        .auth1(&SERVER, &run.wire[2], find, SERVER_NONCE)
        .unwrap();
    let auth2 = server.auth2(&Library, Some(Errno::EKEYREJECTED)).unwrap();
    let told = |auth2: &[u8]| asked(&run).auth2(&CLIENT, auth2).unwrap_err();
    assert!(told(&auth2).is_lost_session());
    // The proof covers the error.
    for bit in 0..8 * auth2.len() {
        let mut other = auth2;
        other[bit / 8] ^= 1 << (bit % 8);
        assert!(!told(&other).is_lost_session());
    }
    for error in [Errno::ECONNRESET, Errno::EPERM, Errno::ENOKEY] {
        assert!(!AuthError::Refused(error).is_lost_session());
    }
    assert!(!AuthError::Required.is_lost_session());
}

/// The client of a run that waits for AUTH2.
fn asked(run: &Run) -> ClientAuth {
    let mut request = plain_request(0, SIDES.epoch).encode();
    let mut client =
        ClientAuth::request(SIDES.client, SIDES.session, Suites::ALL, true, &mut request).unwrap();
    let acceptance: Message = run.wire[1].clone().try_into().unwrap();
    let sent = client.accepted(&CLIENT, &acceptance, Some(identity(KEY)), CLIENT_NONCE);
    assert_eq!(
        sent,
        Ok(Next::Send(run.wire[2].clone().try_into().unwrap()))
    );
    client
}
