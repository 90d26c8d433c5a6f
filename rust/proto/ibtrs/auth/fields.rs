// SPDX-License-Identifier: GPL-2.0

//! The authentication fields of the connection messages, in bytes that mainline reserves.
//!
//! This module puts the fields into messages that were encoded without them, so a side that does
//! not authenticate sends exactly the same bytes as without this module.

use super::{Suite, Suites};
use crate::consts::{CONN_REQ_LEN, CONN_RSP_LEN};
use crate::handshake::{ConnReq, ConnRsp};

/// Bytes of the nonce in an acceptance.
pub const ACCEPT_NONCE_LEN: usize = 12;
/// Bytes of the proof in the request of a further connection: the field of the path's UUID.
pub const JOIN_PROOF_LEN: usize = 16;
/// Bytes of the proof in its acceptance: the field of the nonce.
pub const ACCEPT_PROOF_LEN: usize = ACCEPT_NONCE_LEN;

/// Offset in a request of the suites that the client offers.
const OFFERED_AT: usize = 47;
/// Offset in an acceptance of the suite that the server chose.
const CHOSEN_AT: usize = 21;
/// Offset in a request of the path's UUID, or of the proof in its place.
pub(super) const JOIN_PROOF_AT: usize = 12;
/// Offset in an acceptance of the nonce, or of the proof in its place.
pub(super) const ACCEPT_PROOF_AT: usize = CONN_RSP_LEN - ACCEPT_PROOF_LEN;

/// Puts the suites into the request of connection 0, which has extensions.
pub fn put_offer(request: &mut [u8; CONN_REQ_LEN], suites: Suites) {
    put(request, OFFERED_AT, &[suites.wire()]);
}

/// The suites that a request offers: none for a further connection, or without extensions, where
/// the byte may be anything.
pub fn offered(request: &[u8; CONN_REQ_LEN]) -> Suites {
    let first = ConnReq::decode(request).is_ok_and(|req| req.cid == 0 && req.ext.is_some());
    match request.get(OFFERED_AT) {
        Some(&byte) if first => Suites::from_wire(byte),
        _ => Suites::NONE,
    }
}

/// Puts the suite and the nonce into an acceptance, which has extensions.
pub fn put_choice(
    acceptance: &mut [u8; CONN_RSP_LEN],
    suite: Suite,
    nonce: &[u8; ACCEPT_NONCE_LEN],
) {
    put(acceptance, CHOSEN_AT, &[suite.wire()]);
    put(acceptance, ACCEPT_PROOF_AT, nonce);
}

/// The number of the suite that a server chose: 0 for none, and without extensions, where the
/// byte may be anything.
pub fn chosen(acceptance: &[u8; CONN_RSP_LEN]) -> u8 {
    let extended = ConnRsp::decode(acceptance).is_ok_and(|rsp| rsp.ext.is_some());
    match acceptance.get(CHOSEN_AT) {
        Some(&number) if extended => number,
        _ => 0,
    }
}

/// The path's UUID in a request, or the proof in its place.
pub(super) fn join_field(request: &[u8; CONN_REQ_LEN]) -> [u8; JOIN_PROOF_LEN] {
    request
        .get(JOIN_PROOF_AT..)
        .and_then(|rest| rest.first_chunk())
        .copied()
        // Cannot fail: a request is longer.
        .unwrap_or_default()
}

/// Writes a field of a message. The constants above keep it within the message.
pub(super) fn put<const N: usize>(bytes: &mut [u8], at: usize, field: &[u8; N]) {
    if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *place = *field;
    }
}
