// SPDX-License-Identifier: GPL-2.0

//! Authentication: messages of strangers, and an attacker between two honest sides.

use crate::wire::head;
use hmac::{Hmac, Mac};
use ibtrs_proto::auth::{
    chosen, offered, Auth1, Auth2, ClientAuth, HmacSha256, Identity, Key, KeyId, KeyShare, Next,
    Policy, ServerAuth, Session, Suites, AUTH1_BODY, AUTH1_LEN, AUTH2_BODY, AUTH2_LEN, KEY_LEN,
    KEY_TEXT_LEN, X25519,
};
use ibtrs_proto::handshake::{ConnReq, ConnRsp, ReqExt, RspExt};
use ibtrs_proto::name::SessionName;
use sha2::Sha256;

/// A side with this secret for its key exchange.
struct Side(u8);

impl HmacSha256 for Side {
    fn hmac(&self, key: &[u8; KEY_LEN], parts: &[&[u8]]) -> [u8; 32] {
        // Keys of any length are taken.
        let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key");
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().into()
    }
}

/// The order of the field in which [`Side`] computes.
const PRIME: u128 = (1 << 61) - 1;

/// A number of the field in the first bytes of a share or secret.
fn number(bytes: &[u8; KEY_LEN]) -> u128 {
    let (first, _) = head::<8>(bytes);
    u128::from(u64::from_le_bytes(first)) % PRIME
}

/// The number to the power of that of `secret`.
fn power(number: u128, secret: &[u8; KEY_LEN]) -> [u8; KEY_LEN] {
    let mut result = 1;
    for bit in (0..8).rev() {
        result = result * result % PRIME;
        if secret[0] >> bit & 1 == 1 {
            result = result * number % PRIME;
        }
    }
    let mut bytes = [0; KEY_LEN];
    bytes[..16].copy_from_slice(&result.to_le_bytes());
    bytes
}

/// Powers stand in for X25519, which would take most of the time.
impl X25519 for Side {
    fn generate(&self, secret: &mut [u8; KEY_LEN]) -> KeyShare {
        secret[0] = self.0 | 1;
        power(3, secret)
    }

    fn agree(&self, secret: &[u8; KEY_LEN], share: &KeyShare, agreed: &mut [u8; KEY_LEN]) -> bool {
        let number = number(share);
        *agreed = power(number, secret);
        // The numbers of low order.
        !matches!(number, 0 | 1) && number != PRIME - 1
    }
}

/// Bytes that a stranger may send before it has proved anything, and what an administrator types.
pub(crate) fn messages(bytes: &[u8]) {
    if let Ok(claim) = Auth1::decode(bytes) {
        assert_eq!(claim.body(), bytes[..AUTH1_BODY]);
    }
    if let Ok(answer) = Auth2::decode(bytes) {
        assert_eq!(answer.body(), bytes[..AUTH2_BODY]);
    }
    let (message, _) = head(bytes);
    assert!(offered(&message) == Suites::NONE || ConnReq::decode(&message).is_ok());
    assert!(chosen(&message) == 0 || ConnRsp::decode(&message).is_ok());
    if let Ok((id, key)) = Key::parse(bytes) {
        let mut text = [0; KEY_TEXT_LEN];
        let len = key.write(&id, &mut text);
        assert_eq!(bytes.strip_suffix(b"\n").unwrap_or(bytes), &text[..len]);
    }
}

type Message = [u8; 56];

/// The messages that a side has seen: request without the bytes of the connection manager, acceptance, AUTH1,
/// AUTH2.
type Seen = (Vec<u8>, Message, Vec<u8>, Vec<u8>);

/// All that was sent, which the attacker delivers, changed or not, as often as it likes.
struct Wire<'a> {
    requests: Vec<Message>,
    acceptances: Vec<Message>,
    auth1: Vec<Vec<u8>>,
    auth2: Vec<Vec<u8>>,
    script: &'a [u8],
}

impl Wire<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.script.split_first().unwrap_or((&0, &[]));
        self.script = rest;
        *first
    }

    /// One of `sent`, with some bytes changed.
    fn deliver(&mut self, sent: &[u8]) -> Vec<u8> {
        let mut bytes = sent.to_vec();
        for _ in 0..self.byte() % 4 {
            let (at, with) = (self.byte(), self.byte());
            // The interesting fields are near the ends.
            let at = if at & 1 == 0 {
                usize::from(at >> 1)
            } else {
                bytes.len() - 1 - usize::from(at >> 1).min(bytes.len() - 1)
            };
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= with;
            }
        }
        bytes
    }
}

fn request(epoch: u8) -> Message {
    ConnReq {
        cid: 0,
        cid_num: 2,
        recon_cnt: 1,
        path_uuid: [1; 16],
        session_uuid: [2; 16],
        first_conn: true,
        ext: Some(ReqExt {
            notices: true,
            same_key: true,
            durable: true,
            more_answers: true,
            ..ReqExt::plain(u32::from(epoch) + 1)
        }),
    }
    .encode()
}

fn acceptance() -> Message {
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
            server_run: [3; 16],
            session_gen: 1,
        }),
    }
    .encode()
}

/// If a side is authenticated, the other has seen the same messages.
pub(crate) fn exchange(script: &[u8]) {
    let (Some(key_id), Ok(name)) = (KeyId::new(b"id"), SessionName::new(b"name")) else {
        return;
    };
    let required = (Policy::Required, Session::New);
    let all = [Suites::ALL, Suites::from_wire(1), Suites::from_wire(2)];
    let mut wire = Wire {
        requests: Vec::new(),
        acceptances: Vec::new(),
        auth1: Vec::new(),
        auth2: Vec::new(),
        script,
    };
    // Each with what it has seen so far.
    let mut client: Option<(ClientAuth, Seen)> = None;
    let mut server: Option<(ServerAuth, Seen)> = None;
    let (mut claims, mut answers): (Vec<Seen>, Vec<Seen>) = (Vec::new(), Vec::new());
    let mut fresh = 0u8;
    while !wire.script.is_empty() && fresh < 200 {
        fresh += 1;
        let (what, which) = (wire.byte() % 5, usize::from(wire.byte()));
        match what {
            0 => {
                let mut sent = request(fresh);
                let offered = all[which % all.len()];
                let side = ClientAuth::request(required.0, required.1, offered, true, &mut sent);
                wire.requests.push(sent);
                let seen = (sent[2..].to_vec(), [0; 56], Vec::new(), Vec::new());
                client = side.ok().map(|side| (side, seen));
            }
            1 if !wire.requests.is_empty() => {
                let sent = wire.requests[which % wire.requests.len()];
                let (heard, _) = head(&wire.deliver(&sent));
                let mut answer = acceptance();
                let allowed = all[usize::from(wire.byte()) % all.len()];
                let chosen = required
                    .0
                    .choose(required.1, offered(&heard), allowed, true);
                if let Ok(chosen) = chosen {
                    let side = ServerAuth::accept(chosen, &heard, &mut answer, [fresh; 12]);
                    wire.acceptances.push(answer);
                    let seen = (heard[2..].to_vec(), answer, Vec::new(), Vec::new());
                    server = Some((side, seen));
                }
            }
            2 if !wire.acceptances.is_empty() => {
                let Some((side, seen)) = &mut client else {
                    continue;
                };
                let sent = wire.acceptances[which % wire.acceptances.len()];
                let (heard, _) = head(&wire.deliver(&sent));
                let me = Identity {
                    name,
                    key_id,
                    key: Key::new([9; KEY_LEN]),
                };
                let next = side.accepted(&Side(fresh), &heard, Some(me), [fresh; 32]);
                if let Ok(Next::Send(auth1)) = next {
                    (seen.1, seen.2) = (heard, auth1.to_vec());
                    claims.push(seen.clone());
                    wire.auth1.push(auth1.to_vec());
                }
            }
            3 if !wire.auth1.is_empty() => {
                let Some((side, seen)) = &mut server else {
                    continue;
                };
                let sent = wire.auth1[which % wire.auth1.len()].clone();
                let heard = wire.deliver(&sent);
                let find = |_: &KeyId, _: SessionName<'_>| Some(Key::new([9; KEY_LEN]));
                let believed = side.auth1(&Side(fresh), &heard, find, [fresh; 32]);
                if let Ok(auth2) = believed.and_then(|()| side.auth2(&Side(fresh), None)) {
                    seen.2 = heard;
                    assert!(claims.contains(seen), "a claim that no client made");
                    seen.3 = auth2.to_vec();
                    answers.push(seen.clone());
                    wire.auth2.push(auth2.to_vec());
                }
            }
            4 if !wire.auth2.is_empty() => {
                let Some((side, seen)) = &mut client else {
                    continue;
                };
                // AUTH1 goes back as well.
                let all: Vec<_> = wire.auth2.iter().chain(&wire.auth1).cloned().collect();
                let mut heard = wire.deliver(&all[which % all.len()]);
                heard.truncate(if which & 128 == 0 {
                    AUTH1_LEN
                } else {
                    AUTH2_LEN
                });
                if side.auth2(&Side(fresh), &heard).is_ok() {
                    seen.3 = heard;
                    assert!(answers.contains(seen), "an answer that no server gave");
                }
            }
            _ => {}
        }
    }
}
