// SPDX-License-Identifier: GPL-2.0

//! The sides that authenticate, and the bytes of those that do not.

use super::*;
use ibtrs_proto::errno::Errno;
use ibtrs_proto::handshake::{reject_decode, reject_encode};
use Policy::{None as No, Optional, Required};
use Session::{Authenticated, New, Plain};

const POLICIES: [Policy; 3] = [No, Optional, Required];
const SESSIONS: [Session; 3] = [New, Plain, Authenticated];

#[test]
fn settings_have_names() {
    let parsed = |text: &str| Setting::parse(text.as_bytes());
    assert_eq!(parsed("auto"), Some(Setting::Auto));
    assert_eq!(Setting::default(), Setting::Auto);
    for (text, policy) in [("none", No), ("optional", Optional), ("required", Required)] {
        assert_eq!(parsed(text), Some(Setting::Fixed(policy)));
        assert_eq!(Setting::Fixed(policy).as_str(), text);
    }
    assert_eq!(Setting::Auto.as_str(), "auto");
    for bad in ["", "Auto", "auto\n", "on", "1"] {
        assert_eq!(parsed(bad), None);
    }
}

/// Without a key nothing changes; with one, nobody gets in without it, and a session that began
/// before that goes on.
#[test]
fn automatic_is_required_where_there_is_a_key() {
    for (session, has_key, policy) in [
        (New, false, No),
        (New, true, Required),
        (Plain, false, No),
        (Plain, true, No),
        (Authenticated, false, Required),
        (Authenticated, true, Required),
    ] {
        assert_eq!(Setting::Auto.policy(session, has_key), policy);
    }
    for (policy, session, has_key) in SESSIONS
        .into_iter()
        .flat_map(|session| [(Optional, session, false), (Required, session, true)])
    {
        assert_eq!(Setting::Fixed(policy).policy(session, has_key), policy);
    }
}

/// The client's whole table: policy, session, has a key, what it offers.
#[test]
fn clients_offer() {
    let (none, all) = (Ok(Suites::NONE), Ok(Suites::ALL));
    let (no_key, mixed) = (Err(AuthError::NoKey), Err(AuthError::Mixed));
    for (policy, session, without, with) in [
        (No, New, none, none),
        (No, Plain, none, none),
        (No, Authenticated, no_key, all),
        (Optional, New, none, all),
        (Optional, Plain, none, none),
        (Optional, Authenticated, no_key, all),
        (Required, New, no_key, all),
        (Required, Plain, mixed, mixed),
        (Required, Authenticated, no_key, all),
    ] {
        assert_eq!(policy.offer(session, Suites::ALL, false), without);
        assert_eq!(policy.offer(session, Suites::ALL, true), with);
        // Never more than the operator allows.
        for allowed in [HMAC, X] {
            assert_eq!(policy.offer(session, allowed, false), without);
            let with = with.map(|offered| offered.and(allowed));
            assert_eq!(policy.offer(session, allowed, true), with);
        }
    }
}

/// The server's: what it chooses without and with an offer, each without and with keys.
#[test]
fn servers_choose() {
    let (none, best) = (Ok(None), Ok(Some(Suite::X25519)));
    let (required, no_key) = (Err(AuthError::Required), Err(AuthError::NoKey));
    let mixed = Err(AuthError::Mixed);
    for (policy, session, silent, keyless, chosen) in [
        (No, New, none, none, none),
        (No, Plain, none, none, none),
        (No, Authenticated, required, no_key, best),
        (Optional, New, none, none, best),
        (Optional, Plain, none, none, none),
        (Optional, Authenticated, required, no_key, best),
        (Required, New, required, no_key, best),
        (Required, Plain, mixed, mixed, mixed),
        (Required, Authenticated, required, no_key, best),
    ] {
        let choose =
            |offered, allowed, has_keys| policy.choose(session, offered, allowed, has_keys);
        for (allowed, has_keys) in [HMAC, X, Suites::ALL]
            .into_iter()
            .flat_map(|allowed| [(allowed, false), (allowed, true)])
        {
            assert_eq!(choose(Suites::NONE, allowed, has_keys), silent);
        }
        assert_eq!(choose(Suites::ALL, Suites::ALL, false), keyless);
        assert_eq!(choose(Suites::ALL, Suites::ALL, true), chosen);
        for (offered, allowed, best) in [
            (Suites::ALL, X, Ok(Suite::X25519)),
            (X, Suites::ALL, Ok(Suite::X25519)),
            (X, X, Ok(Suite::X25519)),
            (Suites::ALL, HMAC, Ok(Suite::HmacSha256)),
            (HMAC, Suites::ALL, Ok(Suite::HmacSha256)),
            (HMAC, HMAC, Ok(Suite::HmacSha256)),
            (HMAC, X, Err(AuthError::NoSuite)),
            (X, HMAC, Err(AuthError::NoSuite)),
        ] {
            // A client that could authenticate is not accepted without only because no suite fits.
            let chosen = chosen.and_then(|chosen| chosen.map(|_| best).transpose());
            assert_eq!(choose(offered, allowed, true), chosen);
        }
    }
}

#[test]
fn clients_take_what_they_offered() {
    for policy in POLICIES {
        for session in SESSIONS {
            for number in 1..=255 {
                let refused = Err(AuthError::Suite(number));
                assert_eq!(policy.accepted(session, Suites::NONE, number), refused);
                for (offered, taken) in [(HMAC, 1..2), (X, 2..3), (Suites::ALL, 1..3)] {
                    let answer = match Suite::from_wire(number) {
                        Some(suite) if taken.contains(&number) => Ok(Some(suite)),
                        _ => refused,
                    };
                    assert_eq!(policy.accepted(session, offered, number), answer);
                }
            }
        }
        assert_eq!(
            policy.accepted(Authenticated, Suites::ALL, 0),
            Err(AuthError::Required)
        );
    }
    assert_eq!(No.accepted(New, Suites::NONE, 0), Ok(None));
    assert_eq!(Optional.accepted(New, Suites::ALL, 0), Ok(None));
    assert_eq!(
        Required.accepted(New, Suites::ALL, 0),
        Err(AuthError::Required)
    );
}

#[test]
fn suites_to_come_are_none() {
    assert_eq!(Suites::from_wire(0xff), Suites::ALL);
    assert_eq!(Suites::from_wire(0xfd), HMAC);
    assert_eq!(Suites::from_wire(0xfe), X);
    assert_eq!(Suites::from_wire(0xfc), Suites::NONE);
    assert_eq!(Suites::ALL.wire(), 3);
    assert_eq!(Suite::from_wire(3), None);
    for suite in [Suite::HmacSha256, Suite::X25519] {
        assert_eq!(Suite::from_wire(suite.wire()), Some(suite));
        assert_eq!(Suites::only(suite).strongest(), Some(suite));
    }
    assert_eq!(Suites::NONE.strongest(), None);
}

#[test]
fn suites_have_names() {
    for (text, suites) in [("any", Suites::ALL), ("hmac", HMAC), ("x25519", X)] {
        assert_eq!(Suites::parse(text.as_bytes()), Some(suites));
        assert_eq!(suites.as_str(), text);
    }
    for bad in ["", "none", "all", "X25519", "hmac,x25519", "any\n", "2"] {
        assert_eq!(Suites::parse(bad.as_bytes()), None);
    }
    assert_eq!(Suites::NONE.as_str(), "");
}

/// If one side does not authenticate, no byte differs from today's.
#[test]
fn nothing_changes_for_those_who_do_not_authenticate() {
    for (client, server) in [(No, No), (No, Optional), (Optional, No)] {
        let run = undisturbed(Sides {
            client,
            server,
            ..SIDES
        });
        assert_eq!(run.are_authenticated(), (false, false));
        let mut request = plain_request(0, SIDES.epoch).encode();
        request[47] = if client == No { 0 } else { 3 };
        assert_eq!(run.wire[0], request);
        assert_eq!(run.wire[1], plain_acceptance().encode());
        assert_eq!(run.wire[2..], [vec![], vec![]]);
        // Nor in its further connections.
        let request = further(run.client(), 1);
        assert_eq!(request, plain_request(1, SIDES.epoch).encode());
        assert!(run.server().owns(&Library, &request));
        let mut acceptance = plain_acceptance().encode();
        run.server()
            .further_accept(&Library, &request, &mut acceptance);
        assert_eq!(acceptance, plain_acceptance().encode());
        let client = run.client();
        assert_eq!(
            client.further_accepted(&Library, &request, &acceptance),
            Ok(())
        );
        assert_eq!(run.server().introduced(name()), Ok(()));
        assert_eq!(run.server().key_id(), None);
    }
}

/// Mainline's messages have no extensions: whatever their reserved bytes hold is no offer.
#[test]
fn mainline_never_authenticates() {
    let mut request = ConnReq {
        ext: None,
        ..plain_request(0, 1)
    }
    .encode();
    let mut acceptance = ConnRsp {
        ext: None,
        ..plain_acceptance()
    }
    .encode();
    for filler in [0, 0xff] {
        request[46..].fill(filler);
        acceptance[21..].fill(filler);
        assert_eq!(offered(&request), Suites::NONE);
        assert_eq!(chosen(&acceptance), 0);
        let before = acceptance;
        let accept = |policy, acceptance: &mut Message| {
            super::accept(
                (policy, New, Suites::ALL),
                &request,
                acceptance,
                ACCEPT_NONCE,
            )
        };
        assert!(accept(Optional, &mut acceptance).is_ok());
        assert_eq!(
            accept(Required, &mut acceptance).unwrap_err(),
            AuthError::Required
        );
        assert_eq!(acceptance, before);
    }
    // A server of mainline ignores the offer.
    let mut request = plain_request(0, 1).encode();
    let mut client = ClientAuth::request(Required, New, Suites::ALL, true, &mut request).unwrap();
    let refused = client.accepted(&CLIENT, &before_extensions(), None, CLIENT_NONCE);
    assert_eq!(refused, Err(AuthError::Required));
}

fn before_extensions() -> Message {
    ConnRsp {
        ext: None,
        ..plain_acceptance()
    }
    .encode()
}

#[test]
fn only_connection_0_offers() {
    let mut request = plain_request(1, 7).encode();
    put_offer(&mut request, Suites::ALL);
    assert_eq!(offered(&request), Suites::NONE);
    let mut request = plain_request(0, 7).encode();
    assert_eq!(offered(&request), Suites::NONE);
    put_offer(&mut request, Suites::ALL);
    assert_eq!(offered(&request), Suites::ALL);
    // Not even with a suite to come alone.
    request[47] = 4;
    assert_eq!(offered(&request), Suites::NONE);
}

#[test]
fn a_key_that_was_unloaded_meanwhile() {
    let mut request = plain_request(0, 7).encode();
    let mut client = ClientAuth::request(Optional, New, Suites::ALL, true, &mut request).unwrap();
    let mut acceptance = plain_acceptance().encode();
    put_choice(&mut acceptance, Suite::HmacSha256, &ACCEPT_NONCE);
    let refused = client.accepted(&CLIENT, &acceptance, None, CLIENT_NONCE);
    assert_eq!(refused, Err(AuthError::NoKey));
}

#[test]
fn refusals_travel() {
    let refusals = [
        AuthError::Required,
        AuthError::NoKey,
        AuthError::Mixed,
        AuthError::NoSuite,
    ];
    for error in refusals {
        assert_eq!(reject_decode(&reject_encode(error.errno())), error.errno());
        assert!(!error.as_str().is_empty());
    }
    assert_eq!(AuthError::Required.errno(), Errno::EKEYREJECTED);
    assert_eq!(AuthError::NoKey.errno(), Errno::ENOKEY);
    assert_eq!(AuthError::Proof.errno(), Errno::EKEYREJECTED);
    assert_eq!(AuthError::Type(9).errno(), Errno::EPROTO);
}
