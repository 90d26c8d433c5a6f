// SPDX-License-Identifier: GPL-2.0

//! Keys that survive a reboot.
//!
//! Where systemd runs, they are a credential that only this machine can decrypt (`SESSION.cred`), and
//! `ibnbd-key@SESSION.service` loads it at each boot. Elsewhere they are a file that only root can read
//! (`SESSION.key`). If a session has both, the credential counts, as it is what a boot loads, and `ibnbd check`
//! warns of the file.
//!
//! A session may have several keys, a line each, the oldest first: a key that a client has joined with stays
//! beside the former ones until the client has said that it keeps it. Nobody is locked out by a connection that
//! is lost in between.
//!
//! Before a host is removed, the files of its keys are set aside: they get names that no boot reads. If the command
//! is killed afterwards, the keys cannot come back, and a later command knows which ones to remove.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::thread;
use std::time::{Duration, Instant};

use ibtrs_proto::auth::{Key, KeyError, KeyId, KEY_TEXT_LEN};
use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;
use zeroize::{Zeroize, Zeroizing};

use crate::exchange::{exchange, Mode};
use crate::keyring::{self, KeyringError, LoadedKey};
use crate::program;
use crate::root::Root;

const FOLDER: &str = "/etc/ibtrs/keys";
/// Locked by the process that changes keys.
const LOCK: &str = "/etc/ibtrs/keys/.lock";
/// Locked by the process that joins a server.
const JOIN_LOCK: &str = "/etc/ibtrs/keys/.join";
/// The end of the name of a file that is set aside.
pub const ASIDE: &str = ".gone";
/// What systemd makes when it is the machine's first process.
const SYSTEMD: &str = "/run/systemd/system";
/// How long systemd may take to enable, disable or start a unit.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a command waits for another one that changes keys, or that joins: the server of that one may take as
/// long to answer.
pub const TURN: Duration = Duration::from_secs(120);
/// How often it looks.
const INTERVAL: Duration = Duration::from_millis(50);

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

/// Keeps others from changing the keys that are kept, and not from loading them: to decrypt a key may take a second, and
/// a server loads those of all its clients when it boots.
#[derive(Debug)]
pub struct LoadLock(#[allow(dead_code)] File);

/// Keeps other commands of this machine from joining a server. Who has it takes [`Lock`] as well, but never while
/// it waits for the server: two machines that join each other would wait for each other's keys.
#[derive(Debug)]
pub struct JoinLock(#[allow(dead_code)] File);

/// Waits until no other command of this machine joins a server.
///
/// # Errors
///
/// As of [`lock_within`].
pub fn lock_to_join(root: &Root) -> io::Result<JoinLock> {
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    locked(root, JOIN_LOCK, exclusive, "joining a server", TURN).map(JoinLock)
}

/// Waits until nobody else changes the keys that are kept.
///
/// # Errors
///
/// As of [`lock_within`].
pub fn lock(root: &Root) -> io::Result<Lock> {
    lock_within(root, TURN)
}

/// Waits for a time until nobody else changes the keys that are kept.
///
/// # Errors
///
/// The system's; `TimedOut`, with the reason, if somebody else is still at it.
pub fn lock_within(root: &Root, limit: Duration) -> io::Result<Lock> {
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    locked(root, LOCK, exclusive, "changing keys", limit).map(Lock)
}

/// A file that is locked. `does` is what its owner does.
fn locked(
    root: &Root,
    name: &str,
    how: FlockOperation,
    does: &str,
    limit: Duration,
) -> io::Result<File> {
    make_folder(root)
        .map_err(|error| io::Error::new(error.kind(), format!("{FOLDER}: {error}")))?;
    let mut options = OpenOptions::new();
    // Not the folder, which users may be able to open, and so to lock for ever.
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = match options.open(root.real(name)) {
        // A service may see it without being allowed to write.
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            File::open(root.real(name))?
        }
        file => file?,
    };
    let deadline = Instant::now() + limit;
    loop {
        match flock(&file, how) {
            Ok(()) => return Ok(file),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => thread::sleep(INTERVAL),
            Err(Errno::WOULDBLOCK) => return Err(busy(name, does, limit)),
            Err(error) => return Err(error.into()),
        }
    }
}

fn busy(name: &str, does: &str, limit: Duration) -> io::Error {
    let why = format!(
        "another process has been {does} for {} s: `fuser {name}` names it",
        limit.as_secs()
    );
    io::Error::new(io::ErrorKind::TimedOut, why)
}

/// Waits until nobody changes the keys that are kept, for a command that only loads them. None where this user, or
/// nobody, can keep any.
///
/// # Errors
///
/// `TimedOut` as of [`lock_within`].
pub fn lock_to_load(root: &Root) -> io::Result<Option<LoadLock>> {
    let shared = FlockOperation::NonBlockingLockShared;
    match locked(root, LOCK, shared, "changing keys", TURN) {
        Err(error) if error.kind() != io::ErrorKind::TimedOut => Ok(None),
        file => file.map(|file| Some(LoadLock(file))),
    }
}

fn sealed_file(session: &str) -> String {
    format!("{FOLDER}/{session}.cred")
}

fn plain_file(session: &str) -> String {
    format!("{FOLDER}/{session}.key")
}

/// The file with the keys of a session, if any are kept.
pub fn file(root: &Root, session: &str) -> Option<String> {
    let names = [sealed_file(session), plain_file(session)];
    names.into_iter().find(|name| root.exists(name))
}

/// The sessions whose keys are kept, sorted.
///
/// # Errors
///
/// The system's.
pub fn sessions(root: &Root) -> io::Result<Vec<String>> {
    sessions_of(root, "")
}

/// The sessions with keys that are set aside, sorted.
///
/// # Errors
///
/// The system's.
pub fn sessions_aside(root: &Root) -> io::Result<Vec<String>> {
    sessions_of(root, ASIDE)
}

/// The sessions with files whose names have that end.
fn sessions_of(root: &Root, end: &str) -> io::Result<Vec<String>> {
    let names = root.list_if_any(FOLDER)?;
    let session = |name: &String| {
        let name = name.strip_suffix(end)?;
        let session = (name.strip_suffix(".cred")).or_else(|| name.strip_suffix(".key"))?;
        (!session.is_empty()).then(|| session.to_owned())
    };
    let sessions: BTreeSet<String> = names.iter().filter_map(session).collect();
    Ok(sessions.into_iter().collect())
}

/// The files with keys of a session that are set aside.
pub fn files_aside(root: &Root, session: &str) -> Vec<String> {
    let names = [sealed_file(session), plain_file(session)].map(|name| name + ASIDE);
    names.into_iter().filter(|name| root.exists(name)).collect()
}

/// Sets the keys of a session aside, whose host is about to be removed: no boot loads them any more. The kernel still
/// has them. Returns the files that had them. One that cannot be renamed cannot be removed either, which says why.
pub fn set_aside(root: &Root, session: &str, _lock: &Lock) -> Vec<String> {
    let mut files = vec![sealed_file(session), plain_file(session)];
    files.retain(|file| fs::rename(root.real(file), root.real(&format!("{file}{ASIDE}"))).is_ok());
    files
}

/// Puts back what [`set_aside`] has set aside, as the host stays. A file that is there by now is newer, and stays.
///
/// # Errors
///
/// The system's.
pub fn put_back(root: &Root, files: &[String], _lock: &Lock) -> io::Result<()> {
    for file in files.iter().filter(|file| !root.exists(file)) {
        fs::rename(root.real(&format!("{file}{ASIDE}")), root.real(file))?;
    }
    Ok(())
}

/// Removes the keys of a session that are set aside.
///
/// # Errors
///
/// The system's.
pub fn forget_aside(root: &Root, session: &str, _lock: &Lock) -> io::Result<()> {
    let files = files_aside(root, session);
    let gone = files.iter().map(|name| unlink(root, name).map(drop));
    // The second one also if the first one stays.
    gone.fold(Ok(()), io::Result::and)
}

/// The sessions with a file that does not count, as they have a credential: none if the folder cannot be read.
pub fn doubles(root: &Root) -> Vec<String> {
    let names = root.list_if_any(FOLDER).unwrap_or_default();
    let sessions = names.iter().filter_map(|name| name.strip_suffix(".key"));
    sessions
        .filter(|session| root.exists(&sealed_file(session)))
        .map(String::from)
        .collect()
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
    let (sealed, file) = (sealed_file(session), plain_file(session));
    let was_sealed = root.exists(&sealed);
    // A credential goes on to count where systemd does not run, in a rescue system for example.
    if !has_services(root) && !was_sealed {
        return exchange(&root.real(&file), &plain, &Mode::Private).map(|()| Kept::File(file));
    }
    let bytes = encrypt(root, session, &plain)?;
    exchange(&root.real(&sealed), &bytes, &Mode::Private)?;
    if !was_sealed {
        // Its keys are in the credential by now.
        unlink(root, &file)?;
    }
    Ok(Kept::Credential(sealed))
}

/// Removes a file; returns whether it was there.
fn unlink(root: &Root, file: &str) -> io::Result<bool> {
    match root.unlink(file) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
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
    let sealed = sealed_file(session);
    let text = if root.exists(&sealed) {
        let mut creds = program::command(root, "systemd-creds");
        creds.args(["decrypt", &format!("--name={session}.cred"), "-", "-"]);
        // Without the program there is a key nevertheless.
        program::filtered(creds, &fs::read(root.real(&sealed))?)
            .map_err(|error| io::Error::other(format!("cannot decrypt {sealed}: {error}")))
    } else {
        fs::read(root.real(&plain_file(session)))
    };
    parse_kept(text?)
}

fn parse_kept(text: Vec<u8>) -> io::Result<Vec<Named>> {
    let wrong = |error: KeyError| io::Error::new(io::ErrorKind::InvalidData, error.as_str());
    parse(&Zeroizing::new(text)).map_err(wrong)
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

/// Keeps one more key of a session, and loads it. The former ones stay. If it fails, all is as it was.
///
/// # Errors
///
/// The system's, in words; that the former keys cannot be read, or that there is no room.
pub fn add(root: &Root, session: &str, id: KeyId, key: &Key) -> Result<Kept, String> {
    let before = former(root, session)?;
    let others = before.iter().filter(|(former, _)| *former != id);
    // With room for all: a list that grows leaves copies of keys behind.
    let mut keys = Vec::with_capacity(MOST_KEYS + 1);
    keys.extend(others.cloned());
    has_room(session, &keys)?;
    keys.push((id, key.clone()));
    let kept = keep(root, session, &keys).map_err(|error| error.to_string())?;
    let Err(error) = keyring::load(root, &id, session, key) else {
        return Ok(kept);
    };
    let undone = match before.is_empty() {
        true => unlink(root, kept.file()).map(drop),
        false => keep(root, session, &before).map(drop),
    };
    match undone {
        Ok(()) => Err(error.to_string()),
        Err(then) => Err(format!(
            "{error}; and {} has a key too many: {then}",
            kept.file()
        )),
    }
}

/// Takes a key back that [`add`] has kept and loaded, and that no client has got. As far as that fails, the key is
/// of no use to anybody, but takes the place of another one.
///
/// # Errors
///
/// The system's, in words.
pub fn take_back(root: &Root, session: &str, id: &KeyId, lock: &Lock) -> Result<(), String> {
    let removed = remove(root, session, id, lock).map_err(|error| error.to_string());
    let unloaded = unload(root, session, &[*id]).map_err(|error| error.to_string());
    removed.and(unloaded)
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

/// What was removed of the keys that were kept.
#[derive(Debug)]
pub struct Removed {
    /// The file that had them.
    pub file: String,
    /// Why the unit that loads them at boot could not be disabled, if so: it fails at each boot from now on.
    pub left_enabled: Option<io::Error>,
}

impl Removed {
    fn from(file: String) -> Self {
        Self {
            file,
            left_enabled: None,
        }
    }
}

/// Removes one key of a session from those that are kept, which the next boot would load again; the file goes
/// with its last key. Returns the file that had it.
///
/// # Errors
///
/// The system's.
pub fn remove(root: &Root, session: &str, id: &KeyId, _lock: &Lock) -> io::Result<Option<Removed>> {
    let Some(file) = file(root, session) else {
        return Ok(None);
    };
    // It would count as soon as there is no credential.
    let double = strike(root, session, id)?;
    let mut keys = read(root, session)?;
    let before = keys.len();
    keys.retain(|(own, _)| own != id);
    match keys.len() {
        length if length == before => return Ok(double.then(|| Removed::from(plain_file(session)))),
        0 => return forget(root, session),
        _ => drop(keep(root, session, &keys)?),
    }
    Ok(Some(Removed::from(file)))
}

/// Takes a key out of a file that does not count, as there is a credential; returns whether it was in it.
fn strike(root: &Root, session: &str, id: &KeyId) -> io::Result<bool> {
    let file = plain_file(session);
    if !root.exists(&sealed_file(session)) || !root.exists(&file) {
        return Ok(false);
    }
    let mut keys = parse_kept(fs::read(root.real(&file))?)
        .map_err(|error| io::Error::new(error.kind(), format!("{file}: {error}")))?;
    let before = keys.len();
    keys.retain(|(own, _)| own != id);
    match keys.len() {
        length if length == before => return Ok(false),
        0 => drop(unlink(root, &file)?),
        _ => exchange(&root.real(&file), &text(&keys), &Mode::Private)?,
    }
    Ok(true)
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

/// Forgets the keys of a session, also those that are set aside, and has systemd load none. Returns the file that had
/// them.
///
/// # Errors
///
/// The system's: a file is left.
pub fn forget_all(root: &Root, session: &str, lock: &Lock) -> io::Result<Option<Removed>> {
    let aside = files_aside(root, session).into_iter().next();
    let forgotten = forget(root, session);
    // Also if that has failed.
    forget_aside(root, session, lock)?;
    Ok(match forgotten? {
        None => aside.map(|file| without_unit(root, session, file)),
        removed => removed,
    })
}

/// Forgets the keys of a session that are not set aside.
fn forget(root: &Root, session: &str) -> io::Result<Option<Removed>> {
    let Some(file) = file(root, session) else {
        return Ok(None);
    };
    // The second one also if the first one stays.
    let gone = [sealed_file(session), plain_file(session)].map(|name| unlink(root, &name));
    for gone in gone {
        gone?;
    }
    Ok(Some(without_unit(root, session, file)))
}

/// Has systemd load the keys of a session no longer, whose file is gone. That the unit stays enabled keeps no key:
/// without its file it loads nothing.
fn without_unit(root: &Root, session: &str, file: String) -> Removed {
    let left_enabled = match has_services(root) {
        true => systemctl(root, &["disable", "--now", &unit(session)]).err(),
        false => None,
    };
    Removed { file, left_enabled }
}

/// Has systemd load the keys of a session at each boot.
///
/// # Errors
///
/// The system's, or that of systemctl.
pub fn enable(root: &Root, session: &str) -> io::Result<()> {
    systemctl(root, &["enable", &unit(session)])
}

/// Has systemd load the keys of a session once more, as a unit that has loaded older ones counts as started. It
/// waits for the lock, so its caller must not have it.
///
/// # Errors
///
/// The system's, or that of systemctl.
pub fn start(root: &Root, session: &str) -> io::Result<()> {
    systemctl(root, &["restart", &unit(session)])
}

fn systemctl(root: &Root, words: &[&str]) -> io::Result<()> {
    let mut systemctl = program::command(root, "systemctl");
    systemctl.arg("--quiet").args(words);
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
        assert!(forget(&root, "web1").unwrap().is_none());
        kept(&root);
        let forgotten = forget(&root, "web1").unwrap().unwrap();
        assert_eq!(forgotten.file, "/etc/ibtrs/keys/web1.key");
        assert!(forgotten.left_enabled.is_none());
        assert!(forget(&root, "web1").unwrap().is_none());
        assert_eq!(
            read(&root, "web1").unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        // With systemd, the unit that loads it as well.
        let tree = Tree::new();
        tree.folder(SYSTEMD).program("/usr/sbin/systemd-creds");
        let root = Root::new(tree.base());
        kept(&root);
        // There is no systemctl: the key is gone all the same, and who asked learns of the unit.
        let forgotten = forget(&root, "web1").unwrap().unwrap();
        assert!(forgotten.left_enabled.is_some() && file(&root, "web1").is_none());
        tree.program("/usr/sbin/systemctl");
        kept(&root);
        let forgotten = forget(&root, "web1").unwrap().unwrap();
        assert!(forgotten.left_enabled.is_none());
    }

    #[test]
    fn the_wait_for_others_has_an_end() {
        let tree = Tree::new();
        let root = Root::new(tree.base());
        let held = lock(&root).unwrap();
        let error = lock_within(&root, Duration::from_millis(120)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let why = "another process has been changing keys for 0 s: `fuser /etc/ibtrs/keys/.lock`";
        assert!(error.to_string().starts_with(why), "{error}");
        drop(held);
        // Keys are loaded at the same time, and not changed meanwhile.
        let loads = [lock_to_load(&root).unwrap(), lock_to_load(&root).unwrap()];
        assert!(loads.iter().all(Option::is_some));
        let error = lock_within(&root, Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(loads);
        lock_within(&root, Duration::ZERO).unwrap();
        // Where nothing can be kept, nothing keeps keys from being loaded.
        let tree = Tree::new();
        tree.file("/etc/ibtrs", "");
        assert!(lock_to_load(&Root::new(tree.base())).unwrap().is_none());
    }

    /// A program in place of systemd-creds that encrypts nothing.
    fn with_open_credentials() -> (Tree, Root) {
        let (tree, root) = with_keyring();
        tree.folder(SYSTEMD)
            .program("/usr/sbin/systemd-creds")
            .file("/open-creds", "");
        (tree, root)
    }

    #[test]
    fn a_file_becomes_a_credential_and_does_not_stay() {
        let (tree, root) = with_open_credentials();
        let line = String::from_utf8(text(&[(id("a"), Key::new(KEY))]).to_vec()).unwrap();
        tree.file("/etc/ibtrs/keys/web1.key", &line);
        add(&root, "web1", id("b"), &Key::new([1; 32])).unwrap();
        assert_eq!(ids(&root), ["a", "b"]);
        assert!(!root.exists("/etc/ibtrs/keys/web1.key"));
        assert_eq!(doubles(&root), Vec::<String>::new());
    }

    #[test]
    fn of_a_credential_and_a_file_the_credential_counts() {
        let (tree, root) = with_open_credentials();
        let line = |name, byte| {
            String::from_utf8(text(&[(id(name), Key::new([byte; 32]))]).to_vec()).unwrap()
        };
        let plain = "/etc/ibtrs/keys/web1.key";
        tree.file("/etc/ibtrs/keys/web1.cred", line("a", 1))
            .file(plain, format!("{}{}", line("a", 2), line("b", 3)));
        assert_eq!(doubles(&root), ["web1"]);
        assert_eq!(file(&root, "web1").unwrap(), "/etc/ibtrs/keys/web1.cred");
        assert_eq!(ids(&root), ["a"]);
        // Nothing of the file gets into the credential; it stays for its owner to look at.
        add(&root, "web1", id("c"), &Key::new([4; 32])).unwrap();
        assert_eq!(ids(&root), ["a", "c"]);
        assert!(root.exists(plain));
        // Also without systemd, which would make a file of it that does not count.
        fs::remove_dir(root.real(SYSTEMD)).unwrap();
        add(&root, "web1", id("d"), &Key::new([5; 32])).unwrap();
        assert_eq!(ids(&root), ["a", "c", "d"]);
        // A key that is removed does not stay in either.
        let lock = lock(&root).unwrap();
        remove(&root, "web1", &id("a"), &lock).unwrap().unwrap();
        assert_eq!(ids(&root), ["c", "d"]);
        assert_eq!(parse(tree.text(plain).as_bytes()).unwrap().len(), 1);
        let removed = remove(&root, "web1", &id("b"), &lock).unwrap().unwrap();
        assert_eq!(removed.file, plain);
        assert!(!root.exists(plain));
        // And the last one takes both with it.
        tree.file(plain, line("e", 6));
        forget(&root, "web1").unwrap().unwrap();
        assert!(file(&root, "web1").is_none());
    }

    #[test]
    fn a_key_that_cannot_be_loaded_is_not_kept() {
        let (tree, root) = with_keyring();
        tree.file("/denied", "");
        let why = add(&root, "web1", id("b"), &Key::new(KEY)).unwrap_err();
        assert!(why.contains("Permission denied"), "{why}");
        assert!(file(&root, "web1").is_none());
        kept(&root);
        add(&root, "web1", id("default"), &Key::new([1; 32])).unwrap_err();
        assert_eq!(read(&root, "web1").unwrap()[0].1.as_bytes(), &KEY);
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
        let remove = |id| {
            let removed = super::remove(&root, "web1", &id, &lock).unwrap();
            removed.map(|removed| removed.file)
        };
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
