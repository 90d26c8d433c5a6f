// SPDX-License-Identifier: GPL-2.0

//! Golden bytes, and messages of the wrong form.

use super::*;
use ibtrs_proto::errno::Errno;
use ibtrs_proto::name::NameError;
use proptest::prelude::*;

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The function that the proofs of these tests are made with is the one of the standard.
#[test]
fn macs_of_rfc_4231() {
    let count: Vec<u8> = (1..=25).collect();
    let long = b"This is a test using a larger than block-size key and a larger than block-size \
        data. The key needs to be hashed before being used by the HMAC algorithm.";
    let cases: [(&[u8], &[u8], &str); 6] = [
        (
            &[0x0b; 20],
            b"Hi There",
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
        ),
        (
            b"Jefe",
            b"what do ya want for nothing?",
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
        ),
        (
            &[0xaa; 20],
            &[0xdd; 50],
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe",
        ),
        (
            &count,
            &[0xcd; 50],
            "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b",
        ),
        (
            &[0xaa; 131],
            b"Test Using Larger Than Block-Size Key - Hash Key First",
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
        ),
        (
            &[0xaa; 131],
            long,
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2",
        ),
    ];
    for (key, text, mac) in cases {
        assert_eq!(hex(&hmac(key, &[text])), mac);
        let (head, tail) = text.split_at(text.len() / 3);
        assert_eq!(hex(&hmac(key, &[head, b"", tail])), mac);
    }
}

/// Computed from the text of the protocol by another program, in another language.
#[test]
fn messages_are_those_of_the_protocol() {
    let run = undisturbed(Sides {
        suites: (HMAC, HMAC),
        ..SIDES
    });
    assert_eq!(hex(&run.wire[0]), REQUEST);
    assert_eq!(hex(&run.wire[1]), ACCEPTANCE);
    let auth1 = &run.wire[2];
    assert_eq!(auth1.len(), AUTH1_LEN);
    assert_eq!(auth1[..8], [5, 0, 1, 0, 0, 0, 0, 0]);
    assert_eq!(auth1[8..18], *b"web1-2026\0");
    assert_eq!(auth1[18..40], [0; 22]);
    assert_eq!(auth1[40..45], *b"web1\0");
    assert_eq!(auth1[45..296], [0; 251]);
    assert_eq!(auth1[296..328], CLIENT_NONCE);
    assert_eq!(auth1[328..360], [0; 32]);
    assert_eq!(hex(&auth1[360..]), CLIENT_PROOF);
    let auth2 = &run.wire[3];
    assert_eq!(auth2.len(), AUTH2_LEN);
    assert_eq!(auth2[..8], [6, 0, 1, 0, 0, 0, 0, 0]);
    assert_eq!(auth2[8..40], SERVER_NONCE);
    assert_eq!(auth2[40..72], [0; 32]);
    assert_eq!(hex(&auth2[72..]), SERVER_PROOF);
    let request = further(run.client(), 1);
    let bare = plain_request(1, SIDES.epoch).encode();
    assert_eq!(hex(&request[12..28]), JOIN);
    assert_eq!(request[..12], bare[..12]);
    assert_eq!(request[28..], bare[28..]);
    let mut acceptance = plain_acceptance().encode();
    run.server()
        .further_accept(&Library, &request, &mut acceptance);
    assert_eq!(hex(&acceptance[44..]), ACCEPT);
    assert_eq!(acceptance[..44], plain_acceptance().encode()[..44]);
}

const REQUEST: &str = concat!(
    "0000bd1b0002000003000100",
    "a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2",
    "01011e010700000000000000"
);
const ACCEPTANCE: &str = concat!(
    "bd1b00020000000200000200001000000200000001010000",
    "05000000c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3",
    "222222222222222222222222"
);
const CLIENT_PROOF: &str = "cf04de20914f74701d91d32ca531e005856753ceb5c2cc8bf5ab18a6163a0430";
const SERVER_PROOF: &str = "1fcf441037242fe022e58787ab99078a730c62aac3779c1e887066151e84ddb5";
const JOIN: &str = "b611b3530355724fe1c8be70502a4fd6";
const ACCEPT: &str = "b2f386fb0a928dc499acf711";

#[test]
fn auth1_of_the_wrong_form_is_refused() {
    let good = undisturbed(of_suite_1(SIDES)).wire[2].clone();
    assert!(Auth1::decode(&good).is_ok());
    for len in (0..AUTH1_LEN).chain([AUTH1_LEN + 1]) {
        let bytes: Vec<u8> = good.iter().copied().chain([0]).take(len).collect();
        assert_eq!(Auth1::decode(&bytes), Err(AuthError::Length));
    }
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = good.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        Auth1::decode(&changed).map(|_| ()).unwrap_err()
    };
    assert_eq!(with(0, &[6]), AuthError::Type(6));
    assert_eq!(with(1, &[1]), AuthError::Type(0x0105));
    assert_eq!(with(2, &[0]), AuthError::Suite(0));
    assert_eq!(with(2, &[3]), AuthError::Suite(3));
    for at in (3..8).chain(45..296).chain(328..360) {
        assert_eq!(with(at, &[1]), AuthError::Reserved, "{at}");
    }
    assert_eq!(with(8, &[0]), AuthError::KeyId);
    assert_eq!(with(8, b"a/b"), AuthError::KeyId);
    assert_eq!(with(8, b"ab\0c"), AuthError::KeyId);
    assert_eq!(with(40, &[0; 4]), AuthError::Name(NameError::Empty));
    assert_eq!(with(40, b"../x"), AuthError::Name(NameError::SlashOrDot));
    assert_eq!(with(40, b"-web"), AuthError::Name(NameError::Unsafe));
    let no_nul = AuthError::Name(NameError::NoNul);
    assert_eq!(with(40, &[b'a'; 256]), no_nul);
    let too_long = AuthError::Name(NameError::TooLong);
    assert_eq!(with(40, &[b'a'; 255]), too_long);
}

#[test]
fn auth2_of_the_wrong_form_is_refused() {
    let good = undisturbed(of_suite_1(SIDES)).wire[3].clone();
    assert!(Auth2::decode(&good).is_ok());
    for len in (0..AUTH2_LEN).chain([AUTH2_LEN + 1]) {
        let bytes: Vec<u8> = good.iter().copied().chain([0]).take(len).collect();
        assert_eq!(Auth2::decode(&bytes), Err(AuthError::Length));
    }
    let with = |at: usize, byte: u8| {
        let mut changed = good.clone();
        changed[at] = byte;
        Auth2::decode(&changed).unwrap_err()
    };
    assert_eq!(with(0, 5), AuthError::Type(5));
    assert_eq!(with(2, 3), AuthError::Suite(3));
    for at in [3, 6, 7].into_iter().chain(40..72) {
        assert_eq!(with(at, 1), AuthError::Reserved, "{at}");
    }
    // Errors from 512 on are the kernel's own, and user space has none from 134 on.
    assert_eq!(with(5, 2), AuthError::Reserved);
    for number in [134u16, 511] {
        let mut changed = good.clone();
        changed[4..6].copy_from_slice(&number.to_le_bytes());
        assert_eq!(Auth2::decode(&changed).unwrap().refusal, Some(Errno::EIO));
    }
}

proptest! {
    #[test]
    fn claims_round_trip(
        key_id in "[a-zA-Z0-9_.@-]{1,32}", name in "[a-zA-Z0-9_:@+][a-zA-Z0-9_:@+-]{0,253}",
        nonce: [u8; 32], share: Option<[u8; 32]>, proof: [u8; 32],
        refusal in prop::option::of(1..134),
    ) {
        let claim = Auth1 {
            key_id: KeyId::new(key_id.as_bytes()).unwrap(),
            name: SessionName::new(name.as_bytes()).unwrap(),
            nonce,
            share,
        };
        let bytes = [&claim.body()[..], &proof].concat();
        prop_assert_eq!(Auth1::decode(&bytes), Ok(claim));
        let refusal = refusal.and_then(|number: i32| Errno::from_kernel(-number));
        let answer = Auth2 { refusal, nonce, share };
        let bytes = [&answer.body()[..], &proof].concat();
        prop_assert_eq!(Auth2::decode(&bytes), Ok(answer));
    }

    #[test]
    fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..AUTH1_LEN + 8)) {
        let _ = Auth1::decode(&bytes);
        let _ = Auth2::decode(&bytes);
    }
}
