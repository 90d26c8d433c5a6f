// SPDX-License-Identifier: GPL-2.0

//! Keys that survive a reboot.
//!
//! Where systemd runs, a key is a credential that only this machine can decrypt, and
//! `ibnbd-key@SESSION.service` loads it at each boot. Elsewhere it is a file that only root can read.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::time::Duration;

use ibtrs_proto::auth::{Key, KeyId, KEY_TEXT_LEN};

use crate::exchange::{exchange, Mode};
use crate::program;
use crate::root::Root;

const FOLDER: &str = "/etc/ibtrs/keys";
/// What systemd makes when it is the machine's first process.
const SYSTEMD: &str = "/run/systemd/system";
/// How long systemd may take to encrypt a key, with a TPM, or to start a unit.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a key is kept.
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

/// Keeps the key of a session.
///
/// # Errors
///
/// The system's.
pub fn keep(root: &Root, session: &str, id: &KeyId, key: &Key) -> io::Result<Kept> {
    make_folder(root)?;
    let mut text = [0; KEY_TEXT_LEN];
    let length = key.write(id, &mut text);
    let plain = text.get(..length).unwrap_or_default();
    let written = if has_services(root) {
        let file = format!("{FOLDER}/{session}.cred");
        let sealed = encrypt(root, session, plain);
        sealed
            .and_then(|sealed| exchange(&root.real(&file), &sealed, &Mode::Private))
            .map(|()| Kept::Credential(file))
    } else {
        let file = format!("{FOLDER}/{session}.key");
        exchange(&root.real(&file), &[plain, b"\n"].concat(), &Mode::Private)
            .map(|()| Kept::File(file))
    };
    text.fill(0);
    std::hint::black_box(&text);
    written
}

/// The text of the key of a session that was kept.
///
/// # Errors
///
/// The system's; `NotFound` if there is none.
pub fn read(root: &Root, session: &str) -> io::Result<Vec<u8>> {
    let sealed = format!("{FOLDER}/{session}.cred");
    if !root.exists(&sealed) {
        return fs::read(root.real(&format!("{FOLDER}/{session}.key")));
    }
    let mut creds = program::command(root, "systemd-creds");
    creds.args(["decrypt", &format!("--name={session}.cred"), "-", "-"]);
    program::filtered(creds, &fs::read(root.real(&sealed))?)
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
        keep(root, "web1", &KeyId::default(), &Key::new(KEY)).unwrap()
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
        assert_eq!(
            read(&root, "web1").unwrap(),
            tree.text(kept.file()).as_bytes()
        );
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
        let read = String::from_utf8(read(&root, "web1").unwrap()).unwrap();
        assert!(
            read.starts_with("decrypt --name=web1.cred - -\nencrypt"),
            "{read}"
        );
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
