// SPDX-License-Identifier: GPL-2.0

//! The tokens that a server has issued, and that nobody has used.
//!
//! Each host has one at most, in a file of its name that only root reads, below `/run`: a reboot ends
//! them all. Times are those since the boot, so that nobody extends them by setting the clock.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use rustix::fs::{flock, FlockOperation};
use zeroize::Zeroizing;

use super::token::Token;
use crate::exchange::{exchange, Mode};
use crate::root::Root;

const FOLDER: &str = "/run/ibtrs/tokens";
/// No host has such a name: they have no dots.
const LOCK: &str = "/run/ibtrs/tokens/.lock";
const LISTENER: &str = "/run/ibtrs/tokens/.listener";
/// Where it listens: another user of this machine could be the one that answers there.
const PLACES: &str = "/run/ibtrs/tokens/.places";

/// How long a token may be used, in seconds.
pub const LIFETIME_S: u64 = 3600;

/// A token that may be used for some time.
#[derive(Debug)]
pub struct Pending {
    /// The token.
    pub token: Token,
    /// Seconds for which it may be used from now on.
    pub left_s: u64,
}

/// Keeps others from issuing and using tokens.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code)] File);

fn file(root: &Root, path: &str) -> io::Result<File> {
    let mut folder = DirBuilder::new();
    folder.recursive(true).mode(0o700);
    folder.create(root.real(FOLDER))?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    options.open(root.real(path))
}

/// Waits until nobody else issues or uses tokens.
///
/// # Errors
///
/// The system's.
pub fn lock(root: &Root) -> io::Result<Lock> {
    let file = file(root, LOCK)?;
    rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
    Ok(Lock(file))
}

/// Becomes the one that waits for clients, as long as the result lives; none if another one does.
///
/// # Errors
///
/// The system's.
pub fn listener(root: &Root) -> io::Result<Option<Lock>> {
    let file = file(root, LISTENER)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(Lock(file))),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Says where the listener listens, nowhere at first.
///
/// # Errors
///
/// The system's.
pub fn set_places<'a>(root: &Root, places: impl Iterator<Item = &'a SocketAddr>) -> io::Result<()> {
    let lines: String = places.map(|place| format!("{place}\n")).collect();
    fs::write(root.real(PLACES), lines)
}

/// Whether the listener listens there.
pub fn is_open(root: &Root, place: &SocketAddr) -> bool {
    let text = root.read(PLACES).unwrap_or_default();
    let place = place.to_string();
    text.lines().any(|line| line == place)
}

/// Seconds since the boot.
fn now(root: &Root) -> io::Result<u64> {
    let text = root.read("/proc/uptime")?;
    let seconds = text.split('.').next().and_then(|word| word.parse().ok());
    seconds.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn path(host: &str) -> String {
    format!("{FOLDER}/{host}")
}

/// Issues a token in place of the one that its host may have.
///
/// # Errors
///
/// The system's.
pub fn issue(root: &Root, token: &Token, _lock: &Lock) -> io::Result<()> {
    let until = now(root)?.saturating_add(LIFETIME_S);
    let text = Zeroizing::new(format!("{until}\n{}\n", *token.text()));
    exchange(
        &root.real(&path(&token.host)),
        text.as_bytes(),
        &Mode::Private,
    )
}

/// The tokens that may be used. Those whose time is over go.
///
/// # Errors
///
/// The system's.
pub fn all(root: &Root, lock: &Lock) -> io::Result<Vec<Pending>> {
    let now = now(root)?;
    let mut found = Vec::new();
    for name in root.list_if_any(FOLDER)? {
        // No host has a dot in its name: it is a file that is being written, or one of those above.
        if name.contains('.') {
            continue;
        }
        match read(root, &name, now) {
            Some(pending) => found.push(pending),
            None => withdraw(root, &name, lock)?,
        }
    }
    Ok(found)
}

/// A token of a file, unless its time is over.
fn read(root: &Root, name: &str, now: u64) -> Option<Pending> {
    let text = Zeroizing::new(root.read(&path(name)).ok()?);
    let (until, text) = text.split_once('\n')?;
    let token = Token::parse(text).ok()?;
    let left_s = until.parse::<u64>().ok()?.checked_sub(now)?;
    (token.host == name && (1..=LIFETIME_S).contains(&left_s)).then_some(Pending { token, left_s })
}

/// The token of a host.
///
/// # Errors
///
/// The system's.
pub fn of(root: &Root, host: &str, lock: &Lock) -> io::Result<Option<Pending>> {
    let all = all(root, lock)?;
    Ok(all.into_iter().find(|pending| pending.token.host == host))
}

/// Whether a token is still in use.
///
/// # Errors
///
/// The system's.
pub fn is_in_use(root: &Root, token: &Token) -> io::Result<bool> {
    is_it(root, token, &lock(root)?)
}

fn is_it(root: &Root, token: &Token, lock: &Lock) -> io::Result<bool> {
    let now = of(root, &token.host, lock)?;
    Ok(now.is_some_and(|now| now.token.secret.as_bytes() == token.secret.as_bytes()))
}

/// Takes a token out of use; whether it was in use until now.
///
/// # Errors
///
/// The system's.
pub fn take(root: &Root, token: &Token) -> io::Result<bool> {
    let lock = lock(root)?;
    let is_it = is_it(root, token, &lock)?;
    if is_it {
        withdraw(root, &token.host, &lock)?;
    }
    Ok(is_it)
}

/// Takes the token of a host out of use, if it has one.
///
/// # Errors
///
/// The system's.
pub fn withdraw(root: &Root, host: &str, _lock: &Lock) -> io::Result<()> {
    match root.unlink(&path(host)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use ibtrs_proto::auth::Key;

    use super::*;
    use crate::tree::Tree;

    fn token(host: &str, byte: u8) -> Token {
        Token {
            host: host.to_owned(),
            addresses: vec!["10.0.1.1".parse().unwrap()],
            port: 1,
            secret: Key::new([byte; 32]),
        }
    }

    fn machine(uptime: &str) -> (Tree, Root) {
        let tree = Tree::new();
        tree.file("/proc/uptime", uptime);
        let root = Root::new(tree.base());
        (tree, root)
    }

    #[test]
    fn a_token_is_used_once() {
        let (_tree, root) = machine("1000.25 5.0\n");
        issue(&root, &token("web1", 1), &lock(&root).unwrap()).unwrap();
        issue(&root, &token("web2", 2), &lock(&root).unwrap()).unwrap();
        assert!(
            !take(&root, &token("web1", 2)).unwrap(),
            "that of another host"
        );
        assert!(is_in_use(&root, &token("web1", 1)).unwrap());
        assert!(!is_in_use(&root, &token("web1", 2)).unwrap());
        assert!(take(&root, &token("web1", 1)).unwrap());
        assert!(!take(&root, &token("web1", 1)).unwrap());
        assert!(!is_in_use(&root, &token("web1", 1)).unwrap());
        assert_eq!(all(&root, &lock(&root).unwrap()).unwrap().len(), 1);
    }

    #[test]
    fn a_new_one_takes_the_place_of_the_old_one() {
        let (_tree, root) = machine("1000.25 5.0\n");
        issue(&root, &token("web1", 1), &lock(&root).unwrap()).unwrap();
        issue(&root, &token("web1", 2), &lock(&root).unwrap()).unwrap();
        assert!(!take(&root, &token("web1", 1)).unwrap());
        assert!(take(&root, &token("web1", 2)).unwrap());
    }

    #[test]
    fn it_dies_after_an_hour() {
        let (tree, root) = machine("1000.25 5.0\n");
        issue(&root, &token("web1", 1), &lock(&root).unwrap()).unwrap();
        let left = |root: &Root| of(root, "web1", &lock(root).unwrap()).unwrap();
        assert_eq!(left(&root).unwrap().left_s, LIFETIME_S);
        tree.file("/proc/uptime", "4599.99 5.0\n");
        assert_eq!(left(&root).unwrap().left_s, 1);
        tree.file("/proc/uptime", "4600.00 5.0\n");
        assert!(!take(&root, &token("web1", 1)).unwrap());
        assert!(!root.exists("/run/ibtrs/tokens/web1"));
    }

    #[test]
    fn a_withdrawn_one_is_worthless_and_files_are_private() {
        use std::os::unix::fs::PermissionsExt;
        let (_tree, root) = machine("1000.25 5.0\n");
        let lock = lock(&root).unwrap();
        issue(&root, &token("web1", 1), &lock).unwrap();
        for (file, mode) in [
            ("/run/ibtrs/tokens", 0o700),
            ("/run/ibtrs/tokens/web1", 0o600),
        ] {
            let metadata = fs::metadata(root.real(file)).unwrap();
            assert_eq!(metadata.permissions().mode() & 0o777, mode, "{file}");
        }
        withdraw(&root, "web1", &lock).unwrap();
        withdraw(&root, "web1", &lock).unwrap();
        drop(lock);
        assert!(!take(&root, &token("web1", 1)).unwrap());
    }

    #[test]
    fn only_one_waits_for_clients() {
        let (_tree, root) = machine("1000.25 5.0\n");
        let first = listener(&root).unwrap();
        assert!(first.is_some() && listener(&root).unwrap().is_none());
        drop(first);
        assert!(listener(&root).unwrap().is_some());
    }
}
