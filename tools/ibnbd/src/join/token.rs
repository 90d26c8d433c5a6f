// SPDX-License-Identifier: GPL-2.0

//! The line that a server's operator hands to a client's.
//!
//! Its text is `ibtrs-token-1/HOST/ADDRESS,.../PORT/SECRET/CHECK`: the name of the session, the
//! addresses and the TCP port on which the server waits for the client, 32 random bytes as 64
//! hexadecimal digits, and the first four bytes of the SHA-256 of all that, without the slash
//! before them. The check finds a token that was copied in part before the server refuses it.

use std::fmt::Write as _;
use std::net::IpAddr;

use ibtrs_proto::auth::{Key, KEY_LEN};
use ibtrs_proto::name::SessionName;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

const PREFIX: &str = "ibtrs-token-1/";
const CHECK_BYTES: usize = 4;

/// Most bytes of a text.
pub const MOST: usize = 4096;
/// Most addresses of a server.
pub const MOST_ADDRESSES: usize = 64;

/// What a client needs to join a server, once.
#[derive(Clone, Debug)]
pub struct Token {
    /// The name of the host on the server, and of the session.
    pub host: String,
    /// Where the server waits.
    pub addresses: Vec<IpAddr>,
    /// The TCP port on which it does.
    pub port: u16,
    /// What the server knows the client by.
    pub secret: Key,
}

/// Why a text is no token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenError {
    /// It does not begin with `ibtrs-token-1/`.
    Prefix,
    /// A part is missing or was changed.
    Check,
    /// The check is right, and a part makes no sense.
    Part,
}

impl TokenError {
    /// One line for the operator.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prefix => "a token begins with ibtrs-token-1/",
            Self::Check => "the check of the token is wrong: a part is missing or was changed",
            Self::Part => "a part of the token makes no sense: it may be from a newer version",
        }
    }
}

impl Token {
    /// The token as text.
    pub fn text(&self) -> Zeroizing<String> {
        let addresses: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
        // With room for all: a text that grows leaves copies of the secret behind.
        let mut text = Zeroizing::new(String::with_capacity(MOST));
        let (host, addresses, port) = (&self.host, addresses.join(","), self.port);
        // Writing to a string does not fail.
        let _ = write!(text, "{PREFIX}{host}/{addresses}/{port}/");
        text.push_str(&hex(self.secret.as_bytes()));
        let check = check(&text);
        text.push('/');
        text.push_str(&check);
        text
    }

    /// Reads a text, with blanks around it.
    ///
    /// # Errors
    ///
    /// See [`TokenError`].
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        let parts = text.strip_prefix(PREFIX).ok_or(TokenError::Prefix)?;
        let (checked, said) = text.rsplit_once('/').ok_or(TokenError::Check)?;
        if text.len() > MOST || check(checked).as_str() != said {
            return Err(TokenError::Check);
        }
        let parts: Vec<&str> = parts.split('/').collect();
        let [host, addresses, port, secret, _] = parts.as_slice() else {
            return Err(TokenError::Part);
        };
        let addresses = addresses.split(',').map(str::parse);
        let addresses: Result<Vec<IpAddr>, _> = addresses.collect();
        let token = || {
            SessionName::new(host.as_bytes()).ok()?;
            Some(Self {
                host: (*host).to_owned(),
                addresses: addresses.ok()?,
                port: port.parse().ok().filter(|port| *port > 0)?,
                secret: key(secret)?,
            })
        };
        token()
            .filter(|token| token.addresses.len() <= MOST_ADDRESSES)
            .ok_or(TokenError::Part)
    }
}

fn check(text: &str) -> Zeroizing<String> {
    let sum = Sha256::digest(text.as_bytes());
    hex(sum.get(..CHECK_BYTES).unwrap_or_default())
}

/// Bytes as lower-case hexadecimal digits, which may be those of a secret.
pub(crate) fn hex(bytes: &[u8]) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(2 * bytes.len()));
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A secret from its digits.
pub(super) fn key(digits: &str) -> Option<Key> {
    let digits = digits.as_bytes();
    if digits.len() != 2 * KEY_LEN || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let read = |bytes: &mut [u8; KEY_LEN]| {
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| ())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| ())?;
        }
        Ok::<(), ()>(())
    };
    Key::read_with(read).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token() -> Token {
        Token {
            host: "web1".to_owned(),
            addresses: vec!["10.0.1.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            port: 11235,
            secret: Key::new(*b"0123456789abcdef0123456789ABCDE\n"),
        }
    }

    proptest! {
        #[test]
        fn no_text_does_harm(text in "\\PC*|(ibtrs-token-1/)?[a-z/,.:0-9]{0,99}") {
            prop_assert!(Token::parse(&text).is_err());
        }

        /// The check finds each change, so that nothing of it reaches a server.
        #[test]
        fn no_change_passes(at in 0..200_usize, to in "[ -~]") {
            let text = token().text().to_string();
            let at = at % text.len();
            let changed = format!("{}{to}{}", &text[..at], &text[at + 1..]);
            if changed != text && changed.trim() != text {
                prop_assert!(Token::parse(&changed).is_err(), "{changed}");
            }
        }
    }

    #[test]
    fn a_token_is_read_as_it_was_written() {
        let text = token().text().to_string();
        assert!(text.starts_with("ibtrs-token-1/web1/10.0.1.1,fd00::1/11235/3031"));
        let read = Token::parse(&format!("  {text}\r\n")).unwrap();
        assert_eq!(read.secret.as_bytes(), token().secret.as_bytes());
        assert_eq!((read.host.as_str(), read.port), ("web1", 11235));
        assert_eq!(read.addresses, token().addresses);
        // It goes through a shell as it is.
        let plain = |c: char| c.is_ascii_alphanumeric() || "-/,.:".contains(c);
        assert!(text.chars().all(plain), "{text}");
        assert!(!format!("{read:?}").contains("3031"));
    }

    #[test]
    fn what_is_no_token_says_why() {
        let text = token().text().to_string();
        let cases = [
            ("", TokenError::Prefix),
            ("ibtrs-key-1:default:00:00", TokenError::Prefix),
            (&text[..60], TokenError::Check),
            (&text[..text.len() - 1], TokenError::Check),
        ];
        for (text, error) in cases {
            assert_eq!(Token::parse(text).unwrap_err(), error, "{text}");
        }
        let secret = "00".repeat(32);
        for parts in [
            format!("a.b/10.0.1.1/1/{secret}"),
            format!("a/storage1/1/{secret}"),
            format!("a//1/{secret}"),
            format!("a/10.0.1.1/0/{secret}"),
            format!("a/10.0.1.1/1/{}", "0".repeat(63)),
            format!("a/10.0.1.1/1/{}", "+f".repeat(32)),
            format!("a/10.0.1.1/1/{secret}/more"),
        ] {
            let text = format!("{PREFIX}{parts}");
            let text = format!("{text}/{}", *check(&text));
            assert_eq!(Token::parse(&text).unwrap_err(), TokenError::Part, "{text}");
        }
    }
}
