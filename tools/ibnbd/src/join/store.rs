// SPDX-License-Identifier: GPL-2.0

//! Keys that survive a reboot.
//!
//! Where systemd runs, they are a credential that only this machine can decrypt, and
//! `ibnbd-key@SESSION.service` loads it at each boot. Elsewhere they are a file that only root can read.
//!
//! A session may have several keys, a line each, the oldest first: a key that a client has joined with stays
//! beside the former ones until the client has said that it keeps it. Nobody is locked out by a connection that
//! is lost in between.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::time::Duration;

use ibtrs_proto::auth::{Key, KeyError, KeyId, KEY_TEXT_LEN};
use rustix::fs::{flock, FlockOperation};
use zeroize::{Zeroize, Zeroizing};

use crate::exchange::{exchange, Mode};
use crate::keyring::{self, KeyringError, LoadedKey};
use crate::program;
use crate::root::Root;

const FOLDER: &str = "/etc/ibtrs/keys";
/// Locked by the process that changes keys.
const LOCK: &str = "/etc/ibtrs/keys/.lock";
/// What systemd makes when it is the machine's first process.
const SYSTEMD: &str = "/run/systemd/system";
/// How long systemd may take to encrypt a key, with a TPM, or to start a unit.
const PATIENCE: Duration = Duration::from_secs(60);

/// Most keys of a session.
pub const MOST_KEYS: usize = 4;
/// Bytes of the longest text of the keys of a session, with blanks around it.
pub const MOST_TEXT: usize = MOST_KEYS * (KEY_TEXT_LEN + 1) + 64;

/// A key with its id.
pub type Named = (KeyId, Key);

/// Where keys are kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kept {
    /// An encrypted credential of this machine.
    Credential(String),
    /// A file, which nothing loads at boot.
    File(String),
}

impl Kept {
    /// The file in which it is.
    pub fn file(&self) -> &str {
        match self {
            Self::Credential(file) | Self::File(file) => file,
        }
    }
}

/// Keeps others from changing the keys that are kept. Programs that may take long run under it, so it is not
/// the lock of the tokens, for which strangers wait.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code)] File);

/// Waits until nobody else changes the keys that are kept.
///
/// # Errors
///
/// The system's.
pub fn lock(root: &Root) -> io::Result<Lock> {
    make_folder(root)?;
    let mut options = OpenOptions::new();
    // Not the folder, which users may be able to open, and so to lock for ever.
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(root.real(LOCK))?;
    rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
    Ok(Lock(file))
}

/// The file with the keys of a session, if any are kept.
pub fn file(root: &Root, session: &str) -> Option<String> {
    let names = ["cred", "key"].map(|kind| format!("{FOLDER}/{session}.{kind}"));
    names.into_iter().find(|name| root.exists(name))
}

/// Whether systemd loads keys at boot.
pub fn has_services(root: &Root) -> bool {
    root.exists(SYSTEMD)
}

/// Tries whether a session's key can be kept, before there is one that would be lost.
///
/// # Errors
///
/// Why not, in words.
pub fn check(root: &Root, session: &str) -> Result<(), String> {
    make_folder(root).map_err(|error| format!("{FOLDER}: {error}"))?;
    has_room(session, &former(root, session)?)?;
    if !has_services(root) {
        return Ok(());
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_@".contains(c);
    if !session.chars().all(plain) {
        return Err(format!(
            "{session:?} names no unit of systemd: take letters, digits and -_@"
        ));
    }
    let failed = |error| format!("systemd-creds cannot encrypt a key: {error}");
    encrypt(root, session, b"a trial").map(drop).map_err(failed)
}

/// Keeps the keys of a session, in place of those that were kept.
///
/// # Errors
///
/// The system's.
pub fn keep(root: &Root, session: &str, keys: &[Named]) -> io::Result<Kept> {
    make_folder(root)?;
    let plain = text(keys);
    if has_services(root) {
        let file = format!("{FOLDER}/{session}.cred");
        let sealed = encrypt(root, session, &plain)?;
        exchange(&root.real(&file), &sealed, &Mode::Private).map(|()| Kept::Credential(file))
    } else {
        let file = format!("{FOLDER}/{session}.key");
        exchange(&root.real(&file), &plain, &Mode::Private).map(|()| Kept::File(file))
    }
}

/// The text of keys, of which no other copy is left.
fn text(keys: &[Named]) -> Zeroizing<Vec<u8>> {
    // With room for all: a text that grows leaves copies behind.
    let mut text = Zeroizing::new(Vec::with_capacity(keys.len() * (KEY_TEXT_LEN + 1)));
    for (id, key) in keys {
        let mut line = [0; KEY_TEXT_LEN];
        let length = key.write(id, &mut line);
        text.extend_from_slice(line.get(..length).unwrap_or_default());
        text.push(b'\n');
        line.zeroize();
    }
    text
}

/// The keys of a text, a line each.
///
/// # Errors
///
/// See [`KeyError`]; a text without any is no key.
pub fn parse(text: &[u8]) -> Result<Vec<Named>, KeyError> {
    // With room for all: a list that grows leaves copies of keys behind.
    let mut keys = Vec::with_capacity(MOST_KEYS + 1);
    for line in text.trim_ascii().split(|&byte| byte == b'\n') {
        keys.push(Key::parse(line.trim_ascii())?);
    }
    Ok(keys)
}

/// The keys of a session that were kept.
///
/// # Errors
///
/// The system's; `NotFound` if there are none.
pub fn read(root: &Root, session: &str) -> io::Result<Vec<Named>> {
    let sealed = format!("{FOLDER}/{session}.cred");
    let text = if root.exists(&sealed) {
        let mut creds = program::command(root, "systemd-creds");
        creds.args(["decrypt", &format!("--name={session}.cred"), "-", "-"]);
        // Without the program there is a key nevertheless.
        program::filtered(creds, &fs::read(root.real(&sealed))?)
            .map_err(|error| io::Error::other(format!("cannot decrypt {sealed}: {error}")))
    } else {
        fs::read(root.real(&format!("{FOLDER}/{session}.key")))
    };
    let wrong = |error: KeyError| io::Error::new(io::ErrorKind::InvalidData, error.as_str());
    parse(&Zeroizing::new(text?)).map_err(wrong)
}

/// Returns the keys of a session that were kept, or none if there is no file. A file that cannot be read now may be
/// readable later, so it is an error, and its keys are not written over.
fn former(root: &Root, session: &str) -> Result<Vec<Named>, String> {
    match read(root, session) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(format!(
            "the keys of {session} that are in {FOLDER} cannot be read: {error}; if they are lost, remove the file"
        )),
        Ok(keys) => Ok(keys),
    }
}

/// Whether there is room for one more key: any of those that are there may be the one in use.
fn has_room(session: &str, keys: &[Named]) -> Result<(), String> {
    if keys.len() < MOST_KEYS {
        return Ok(());
    }
    let ids: Vec<&str> = keys.iter().map(|(id, _)| id.as_str()).collect();
    Err(format!(
        "{session} has {MOST_KEYS} keys, which is the limit: {}; remove those that the client does not use: ibnbd \
         key remove {session} --id ID",
        ids.join(", ")
    ))
}

/// Keeps one more key of a session, and loads it. The former ones stay.
///
/// # Errors
///
/// The system's, in words; that the former keys cannot be read, or that there is no room.
pub fn add(root: &Root, session: &str, id: KeyId, key: &Key) -> Result<Kept, String> {
    let mut keys = former(root, session)?;
    keys.retain(|(former, _)| *former != id);
    has_room(session, &keys)?;
    keys.push((id, key.clone()));
    let kept = keep(root, session, &keys).map_err(|error| error.to_string())?;
    keyring::load(root, &id, session, key).map_err(|error| error.to_string())?;
    Ok(kept)
}

/// Has the keys of a session go that are older than the one with that id, which is in use: from the files, and
/// from the kernel. Returns their ids.
///
/// # Errors
///
/// The system's, in words.
pub fn settle(root: &Root, session: &str, id: &KeyId) -> Result<Vec<KeyId>, String> {
    let mut keys = read(root, session).map_err(|error| error.to_string())?;
    let at = keys.iter().position(|(own, _)| own == id).unwrap_or(0);
    if at == 0 {
        return Ok(Vec::new());
    }
    let newer = keys.split_off(at);
    keep(root, session, &newer).map_err(|error| error.to_string())?;
    let former: Vec<KeyId> = keys.iter().map(|(id, _)| *id).collect();
    unload(root, session, &former).map_err(|error| error.to_string())?;
    Ok(former)
}

/// Removes one key of a session from those that are kept, which the next boot would load again; the file goes
/// with its last key. Returns the file that had it.
///
/// # Errors
///
/// The system's, or that of systemctl.
pub fn remove(root: &Root, session: &str, id: &KeyId, _lock: &Lock) -> io::Result<Option<String>> {
    let Some(file) = file(root, session) else {
        return Ok(None);
    };
    let mut keys = read(root, session)?;
    let before = keys.len();
    keys.retain(|(own, _)| own != id);
    match keys.len() {
        length if length == before => return Ok(None),
        0 => drop(forget(root, session)?),
        _ => drop(keep(root, session, &keys)?),
    }
    Ok(Some(file))
}

/// Takes all keys of a session out of the kernel, also keys that were loaded by hand.
///
/// # Errors
///
/// See [`KeyringError`].
pub fn unload_all(root: &Root, session: &str) -> Result<(), KeyringError> {
    let loaded = keyring::keys(root)?;
    let mut own = loaded.iter().filter(|key| key.session == session);
    own.try_for_each(|key| keyring::remove(root, key))
}

/// Takes keys of a session out of the kernel, as far as it has them.
///
/// # Errors
///
/// See [`KeyringError`].
pub fn unload(root: &Root, session: &str, ids: &[KeyId]) -> Result<(), KeyringError> {
    let loaded = keyring::keys(root)?;
    let is_one = |key: &&LoadedKey| {
        key.session == session && ids.iter().any(|id| id.as_str() == key.id.as_str())
    };
    let mut gone = loaded.iter().filter(is_one);
    gone.try_for_each(|key| keyring::remove(root, key))
}

/// The id of one more key of a session: `default` for the first one, then one of its own.
///
/// # Errors
///
/// The system's, in words.
pub fn new_id(root: &Root, session: &str, random: &Key) -> Result<KeyId, String> {
    let kept = former(root, session)?;
    let loaded = keyring::keys(root).map_err(|error| error.to_string())?;
    let is_first = kept.is_empty() && !loaded.iter().any(|key| key.session == session);
    if is_first {
        return Ok(KeyId::default());
    }
    // Nothing of the key itself: the fingerprint of what it is made of is no secret.
    let print = keyring::fingerprint(random);
    let text = format!("join-{}", print.get(..9).unwrap_or_default());
    // Digits and dashes are an id.
    Ok(KeyId::new(text.as_bytes()).unwrap_or_default())
}

/// Forgets the key of a session that was kept, and has systemd load none. Returns whether there was one.
///
/// # Errors
///
/// The system's, or that of systemctl.
pub fn forget(root: &Root, session: &str) -> io::Result<bool> {
    let mut was_there = false;
    for kind in ["cred", "key"] {
        match fs::remove_file(root.real(&format!("{FOLDER}/{session}.{kind}"))) {
            Ok(()) => was_there = true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    if was_there && has_services(root) {
        let mut systemctl = program::command(root, "systemctl");
        systemctl.args(["--quiet", "disable", &unit(session)]);
        program::output(systemctl, PATIENCE)?;
    }
    Ok(was_there)
}

/// Has systemd load the key of a session now and at each boot.
///
/// # Errors
///
/// The system's, or that of systemctl.
pub fn enable(root: &Root, session: &str) -> io::Result<()> {
    let mut systemctl = program::command(root, "systemctl");
    // A unit that has loaded an older key is active already.
    systemctl.args(["--quiet", "enable", &unit(session)]);
    program::output(systemctl, PATIENCE)?;
    let mut systemctl = program::command(root, "systemctl");
    systemctl.args(["--quiet", "restart", &unit(session)]);
    program::output(systemctl, PATIENCE).map(drop)
}

/// The unit that loads the key of a session.
pub fn unit(session: &str) -> String {
    format!("ibnbd-key@{session}.service")
}

fn make_folder(root: &Root) -> io::Result<()> {
    let mut folder = DirBuilder::new();
    folder.recursive(true).mode(0o700).create(root.real(FOLDER))
}

/// The key as a credential, which only this machine can decrypt.
fn encrypt(root: &Root, session: &str, text: &[u8]) -> io::Result<Vec<u8>> {
    let mut creds = program::command(root, "systemd-creds");
    creds.args(["encrypt", &format!("--name={session}.cred"), "-", "-"]);
    program::filtered(creds, text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::tree::Tree;

    const KEY: [u8; 32] = [5; 32];

    fn kept(root: &Root) -> Kept {
        check(root, "web1").unwrap();
        keep(root, "web1", &[(KeyId::default(), Key::new(KEY))]).unwrap()
    }

    fn is_private(root: &Root, file: &str) {
        let mode = fs::metadata(root.real(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{file}: {mode:o}");
    }

    #[test]
    fn without_systemd_it_is_a_private_file() {
        let tree = Tree::new();
        let root = Root::new(tree.base());
        let kept = kept(&root);
        assert_eq!(kept, Kept::File("/etc/ibtrs/keys/web1.key".to_owned()));
        is_private(&root, kept.file());
        is_private(&root, FOLDER);
        let (id, key) = Key::parse(tree.text(kept.file()).as_bytes()).unwrap();
        assert_eq!((id.as_str(), key.as_bytes()), ("default", &KEY));
        let read_back = read(&root, "web1").unwrap();
        let [(id, key)] = read_back.as_slice() else {
            panic!("{read_back:?}");
        };
        assert_eq!((id.as_str(), key.as_bytes()), ("default", &KEY));
        assert_eq!(
            read(&root, "web2").unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn it_is_forgotten() {
        let tree = Tree::new();
        let root = Root::new(tree.base());
        assert!(!forget(&root, "web1").unwrap());
        kept(&root);
        assert!(forget(&root, "web1").unwrap() && !forget(&root, "web1").unwrap());
        assert_eq!(
            read(&root, "web1").unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        // With systemd, the unit that loads it as well.
        let tree = Tree::new();
        tree.folder(SYSTEMD).program("/usr/sbin/systemd-creds");
        let root = Root::new(tree.base());
        kept(&root);
        // There is no systemctl, which would stop it.
        assert!(forget(&root, "web1").is_err());
        tree.program("/usr/sbin/systemctl");
        kept(&root);
        assert!(forget(&root, "web1").unwrap());
    }

    #[test]
    fn with_systemd_it_is_an_encrypted_credential() {
        let tree = Tree::new();
        tree.folder(SYSTEMD).program("/usr/sbin/systemd-creds");
        let root = Root::new(tree.base());
        let kept = kept(&root);
        assert_eq!(
            kept,
            Kept::Credential("/etc/ibtrs/keys/web1.cred".to_owned())
        );
        is_private(&root, kept.file());
        // The program stands in for it, and says what it was asked.
        let text = tree.text(kept.file());
        assert!(text.starts_with("encrypt --name=web1.cred - -\n"), "{text}");
        assert!(text.contains("ibtrs-key-1:default:0505"));
        // What the program says about decrypting it is no key.
        let error = read(&root, "web1").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    /// A machine whose kernel has a keyring, and a program in place of keyctl.
    fn with_keyring() -> (Tree, Root) {
        let tree = Tree::new();
        tree.file("/ring", "77 78\n").keyctl().file(
            "/proc/keys",
            "0000004d I--Q---     1 perm 3d010000     0     0 logon     ibtrs:default:web1: 32\n\
             0000004e I--Q---     1 perm 3d010000     0     0 logon     ibtrs:a:web2: 32\n",
        );
        let root = Root::new(tree.base());
        (tree, root)
    }

    fn id(text: &str) -> KeyId {
        KeyId::new(text.as_bytes()).unwrap()
    }

    fn ids(root: &Root) -> Vec<String> {
        let keys = read(root, "web1").unwrap();
        keys.iter().map(|(id, _)| id.as_str().to_owned()).collect()
    }

    #[test]
    fn former_keys_stay_until_the_new_one_is_in_use() {
        let (tree, root) = with_keyring();
        kept(&root);
        add(&root, "web1", id("b"), &Key::new([6; 32])).unwrap();
        assert_eq!(ids(&root), ["default", "b"]);
        assert!(tree
            .text("/keyctl.log")
            .contains("padd logon ibtrs:b:web1 @s"));
        assert!(!tree.text("/keyctl.log").contains("unlink"));
        // One that was given out later may be in use as well.
        add(&root, "web1", id("c"), &Key::new([7; 32])).unwrap();
        assert_eq!(settle(&root, "web1", &id("b")).unwrap(), [KeyId::default()]);
        assert_eq!(ids(&root), ["b", "c"]);
        assert!(tree.text("/keyctl.log").contains("unlink 77 %:.ibtrs"));
        assert!(!tree.text("/keyctl.log").contains("unlink 78"));
        assert_eq!(settle(&root, "web1", &id("b")).unwrap(), []);
        // One that is not kept settles nothing.
        assert_eq!(settle(&root, "web1", &id("d")).unwrap(), []);
        assert_eq!(ids(&root), ["b", "c"]);
    }

    #[test]
    fn a_key_that_is_removed_does_not_come_back() {
        let (_tree, root) = with_keyring();
        kept(&root);
        add(&root, "web1", id("b"), &Key::new([6; 32])).unwrap();
        let lock = lock(&root).unwrap();
        let remove = |id| super::remove(&root, "web1", &id, &lock).unwrap();
        let file = "/etc/ibtrs/keys/web1.key";
        assert_eq!(remove(id("c")), None);
        assert_eq!(remove(KeyId::default()).as_deref(), Some(file));
        assert_eq!(ids(&root), ["b"]);
        assert_eq!(remove(id("b")).as_deref(), Some(file));
        assert!(!root.exists(file));
        assert_eq!(remove(id("b")), None);
    }

    #[test]
    fn a_key_too_many_is_refused() {
        let (tree, root) = with_keyring();
        kept(&root);
        for number in 1..4_u8 {
            let id = id(&format!("k{number}"));
            add(&root, "web1", id, &Key::new([number; 32])).unwrap();
        }
        let loaded = tree.text("/keyctl.log");
        // Each of them may be the one that the client has.
        let why = add(&root, "web1", id("k4"), &Key::new(KEY)).unwrap_err();
        assert!(why.contains("the limit: default, k1, k2, k3; "), "{why}");
        assert_eq!(why, check(&root, "web1").unwrap_err());
        assert_eq!(ids(&root), ["default", "k1", "k2", "k3"]);
        assert_eq!(tree.text("/keyctl.log"), loaded);
        // The same id once more takes the place of the former one.
        add(&root, "web1", id("k2"), &Key::new(KEY)).unwrap();
        assert_eq!(ids(&root), ["default", "k1", "k3", "k2"]);
        let most = KeyId::new(&[b'x'; 32]).unwrap();
        let longest: Vec<Named> = (0..MOST_KEYS).map(|_| (most, Key::new(KEY))).collect();
        assert!(text(&longest).len() < MOST_TEXT);
    }

    #[test]
    fn keys_that_cannot_be_read_are_not_overwritten() {
        let (tree, root) = with_keyring();
        let file = "/etc/ibtrs/keys/web1.cred";
        tree.folder(SYSTEMD).file(file, "sealed");
        // Without systemd-creds, and with one that makes no key of it.
        for program in [false, true] {
            if program {
                tree.program("/usr/sbin/systemd-creds");
            }
            let errors = [
                add(&root, "web1", id("b"), &Key::new(KEY)).unwrap_err(),
                new_id(&root, "web1", &Key::new(KEY)).unwrap_err(),
                check(&root, "web1").unwrap_err(),
            ];
            for why in errors {
                assert!(
                    why.contains("web1 that are in /etc/ibtrs/keys cannot"),
                    "{why}"
                );
            }
            assert_ne!(
                read(&root, "web1").unwrap_err().kind(),
                io::ErrorKind::NotFound
            );
        }
        assert_eq!(tree.text(file), "sealed");
    }

    #[test]
    fn the_first_key_is_the_default() {
        let (_tree, root) = with_keyring();
        let random = Key::new(KEY);
        // The kernel has one of web1, which the operator has loaded.
        let name = new_id(&root, "web1", &random).unwrap();
        assert!(name.as_str().starts_with("join-"), "{name:?}");
        assert_eq!(new_id(&root, "new", &random).unwrap(), KeyId::default());
        keep(&root, "new", &[(KeyId::default(), Key::new(KEY))]).unwrap();
        assert_ne!(new_id(&root, "new", &random).unwrap(), KeyId::default());
        let other = new_id(&root, "new", &Key::new([1; 32])).unwrap();
        assert_ne!(other, new_id(&root, "new", &random).unwrap());
    }

    #[test]
    fn several_keys_are_read_line_by_line() {
        let both = text(&[(id("a"), Key::new(KEY)), (id("b"), Key::new([1; 32]))]);
        assert_eq!(parse(&both).unwrap().len(), 2);
        let (_, cut) = both.split_at(20);
        for wrong in [&b""[..], b"\n", cut] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_cannot_be_kept_is_found_before() {
        let tree = Tree::new();
        tree.folder(SYSTEMD);
        let root = Root::new(tree.base());
        let why = check(&root, "web1").unwrap_err();
        assert!(
            why.starts_with("systemd-creds cannot encrypt a key: "),
            "{why}"
        );
        let why = check(&root, "a:b").unwrap_err();
        assert!(why.contains("names no unit"), "{why}");
        let tree = Tree::new();
        tree.file("/etc/ibtrs", "");
        let why = check(&Root::new(tree.base()), "web1").unwrap_err();
        assert!(why.starts_with("/etc/ibtrs/keys: "), "{why}");
    }
}
