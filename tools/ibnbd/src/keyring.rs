// SPDX-License-Identifier: GPL-2.0

//! Shared keys in the keyring `.ibtrs` of `ibtrs_core`, through the program `keyctl`.
//!
//! Nothing here reads a key back: the kernel hands out only what `/proc/keys` shows. Root may
//! write to the keyring but does not possess it, so `keyctl` cannot search it, and cannot change
//! a key in place.

use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::process::Command;

use ibtrs_proto::auth::{Key, KeyId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::join::token::hex;
use crate::program;
use crate::root::Root;

/// The keyring, as `keyctl` takes it.
const RING: &str = "%:.ibtrs";

/// Adds a key to the keyring of a session of its own, and links it into ours. The link replaces
/// an older key of the same description in one step: with a removal first, the kernel might
/// accept connections without authentication in between.
const LOAD: &str = r#"id=$("$0" padd logon "$1" @s) && "$0" link "$id" "$2" && echo "$id""#;

/// What was loaded, by the number of the key: the kernel does not show a secret, nor a hash of it. A
/// reboot ends the numbers, and these files.
const PRINTS: &str = "/run/ibtrs/fingerprints";
const FINGERPRINT_OF: &[u8] = b"ibtrs key fingerprint 1";
const FINGERPRINT_BYTES: usize = 16;

/// A key in the keyring.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadedKey {
    /// The session that may use it.
    pub session: String,
    /// Its id.
    pub id: String,
    /// `never`, `expired`, `revoked`, or the time that is left: `90s`, `5m`, `3h`, `2d`, `1w`.
    pub expires: String,
    /// Its number in the kernel.
    pub serial: u32,
    /// The same at both ends if they have the same key; none of a key that another program has
    /// loaded.
    #[serde(default)]
    pub fingerprint: Option<String>,
}

/// Why the keyring could not be read or changed.
#[derive(Debug)]
pub enum KeyringError {
    /// `keyctl` is not installed.
    NoProgram,
    /// The kernel has no such keyring, or does not show it to this user.
    NoKeyring,
    /// `keyctl` failed, with these words.
    Refused(String),
    /// A file or a pipe failed.
    System(io::Error),
}

impl fmt::Display for KeyringError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProgram => f.write_str("the program keyctl is not there"),
            Self::NoKeyring => f.write_str("the kernel shows no keyring .ibtrs"),
            Self::Refused(why) => f.write_str(why),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for KeyringError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// The keys in the keyring, sorted by session.
///
/// `/proc/keys` may have further keys of that name, in other keyrings or removed a moment ago.
///
/// # Errors
///
/// See [`KeyringError`].
pub fn keys(root: &Root) -> Result<Vec<LoadedKey>, KeyringError> {
    let text = keyctl(root, &["rlist", RING])?;
    let serials: Vec<u32> = text
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let mut keys: Vec<LoadedKey> = root
        .lines("/proc/keys")?
        .iter()
        .filter_map(|line| parse(line))
        .filter(|key| serials.contains(&key.serial))
        .collect();
    for key in &mut keys {
        key.fingerprint = recorded(root, key);
    }
    keys.sort();
    Ok(keys)
}

/// What people compare to see whether two machines have the same key: it says nothing about the
/// key, which is random.
pub fn fingerprint(key: &Key) -> String {
    let sum = Sha256::new().chain_update(FINGERPRINT_OF);
    let sum = sum.chain_update(key.as_bytes()).finalize();
    let pairs = sum.get(..FINGERPRINT_BYTES).unwrap_or_default().chunks(2);
    let groups: Vec<String> = pairs.map(|pair| hex(pair).to_string()).collect();
    groups.join("-")
}

fn recorded(root: &Root, key: &LoadedKey) -> Option<String> {
    let text = root.read(&format!("{PRINTS}/{}", key.serial)).ok()?;
    let (description, fingerprint) = text.trim_end().split_once(' ')?;
    let is_it = description == format!("ibtrs:{}:{}", key.id, key.session);
    is_it.then(|| fingerprint.to_owned())
}

/// Keeps the fingerprint of a key that was loaded, and forgets those of keys that are gone.
fn record(root: &Root, description: &str, serial: u32, key: &Key) -> io::Result<()> {
    let mut folder = DirBuilder::new();
    folder.recursive(true).mode(0o700);
    folder.create(root.real(PRINTS))?;
    let text = format!("{description} {}\n", fingerprint(key));
    fs::write(root.real(&format!("{PRINTS}/{serial}")), text)?;
    let ring = keyctl(root, &["rlist", RING]).unwrap_or_default();
    let is_there = |name: &str| ring.split_whitespace().any(|word| word == name);
    let own = serial.to_string();
    for name in root.list_if_any(PRINTS)? {
        if !ring.is_empty() && name != own && !is_there(&name) {
            root.unlink(&format!("{PRINTS}/{name}"))?;
        }
    }
    Ok(())
}

/// Loads a key for a session; replaces the one with the same id.
///
/// # Errors
///
/// See [`KeyringError`].
pub fn load(root: &Root, id: &KeyId, session: &str, key: &Key) -> Result<(), KeyringError> {
    let description = format!("ibtrs:{}:{session}", id.as_str());
    let program = program(root);
    let mut command = Command::new(&program);
    command.args(["session", "-", "sh", "-c", LOAD]);
    command.arg(program).args([&description, RING]);
    let printed = run(&mut command, key.as_bytes())?;
    // The key counts, and nobody has to see what it is called by.
    if let Ok(serial) = printed.trim().parse() {
        let _ = record(root, &description, serial, key);
    }
    Ok(())
}

/// Takes a key out of the keyring.
///
/// # Errors
///
/// See [`KeyringError`].
pub fn remove(root: &Root, key: &LoadedKey) -> Result<(), KeyringError> {
    keyctl(root, &["unlink", &key.serial.to_string(), RING]).map(|_| ())
}

/// Where `keyctl` is: a folder that looks like a machine has its own.
fn program(root: &Root) -> std::ffi::OsString {
    if root.is_machine() {
        "keyctl".into()
    } else {
        root.real("/usr/bin/keyctl").into()
    }
}

fn keyctl(root: &Root, words: &[&str]) -> Result<String, KeyringError> {
    run(Command::new(program(root)).args(words), &[])
}

/// The output of a program for `input`.
fn run(command: &mut Command, input: &[u8]) -> Result<String, KeyringError> {
    let printed = program::fed(command, input).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => KeyringError::NoProgram,
        _ => KeyringError::System(error),
    })?;
    let printed = printed.map_err(|said| refused(&said))?;
    Ok(String::from_utf8_lossy(&printed).into_owned())
}

fn refused(said: &str) -> KeyringError {
    if said.contains("Can't find") {
        return KeyringError::NoKeyring;
    }
    // Before it comes that it has joined a session.
    let last = program::last_line(said);
    KeyringError::Refused(last.unwrap_or("keyctl failed without a word").to_owned())
}

/// A key of ours in a line of `/proc/keys`: number, flags, uses, time left, permissions, user,
/// group, type, and the description with the length behind it.
fn parse(line: &str) -> Option<LoadedKey> {
    let mut words = line.split_whitespace();
    let serial = u32::from_str_radix(words.next()?, 16).ok()?;
    let flags = words.next()?;
    let left = words.nth(1)?;
    let kind = words.nth(3)?;
    let description = words.next()?.strip_suffix(':')?;
    let mut parts = description.splitn(3, ':');
    if kind != "logon" || parts.next() != Some("ibtrs") {
        return None;
    }
    let (id, session) = (parts.next()?, parts.next()?);
    let expires = match left {
        _ if flags.contains('R') => "revoked",
        "perm" => "never",
        "expd" => "expired",
        left => left,
    };
    Some(LoadedKey {
        session: session.to_owned(),
        id: id.to_owned(),
        expires: expires.to_owned(),
        serial,
        fingerprint: None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_line_does_harm(text in "\\PC*|[0-9a-f]{8} I--Q--- +1 +(perm|expd|[0-9]{1,2}[smhdw]) 3d010000 +0 +0 (logon|user) +(ibtrs:)?[a-z@:.]{0,20}:? ?[0-9]{0,3}") {
            if let Some(key) = parse(&text) {
                let description = format!("ibtrs:{}:{}:", key.id, key.session);
                prop_assert!(text.contains(&description));
                prop_assert!(!key.expires.is_empty());
            }
        }
    }

    #[test]
    fn lines_of_the_kernel_are_read() {
        let key = |line| parse(line).map(|k| (k.serial, k.id, k.session, k.expires));
        let own = |serial, id: &str, session: &str, expires: &str| {
            Some((
                serial,
                id.to_owned(),
                session.to_owned(),
                expires.to_owned(),
            ))
        };
        for (line, expected) in [
            (
                "220a0174 I--Q---     1 perm 3d010000     0     0 logon     ibtrs:default:s: 32",
                own(0x220a_0174, "default", "s", "never"),
            ),
            (
                "00000001 I--Q---     1   5m 3d010000     0     0 logon     ibtrs:web@1.b-2_3:host1@a:b:: 32",
                own(1, "web@1.b-2_3", "host1@a:b:", "5m"),
            ),
            (
                "00000002 I--Q---     1 expd 3d010000     0     0 logon     ibtrs:a:s: 32",
                own(2, "a", "s", "expired"),
            ),
            (
                "00000003 IR-Q---     1 perm 3d010000     0     0 logon     ibtrs:a:s: 32",
                own(3, "a", "s", "revoked"),
            ),
            ("00000004 I--Q---     1 perm 3d010000     0     0 user      ibtrs:a:s: 32", None),
            ("00000005 I--Q---     1 perm 3d010000     0     0 logon     other:a:s: 32", None),
            ("00000006 I--Q---     1 perm 3d010000     0     0 logon     ibtrs:a: 32", None),
            ("057ddf6f I------     1 perm 1f0b0000     0     0 keyring   .ibtrs: empty", None),
            ("", None),
        ] {
            assert_eq!(key(line), expected, "{line}");
        }
    }
}
