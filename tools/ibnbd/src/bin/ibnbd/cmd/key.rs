// SPDX-License-Identifier: GPL-2.0

//! `key new`, `load`, `list` and `remove`.

use std::env;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, Subcommand};
use ibnbd_host::document::{Keys, FORMAT};
use ibnbd_host::family::Side;
use ibnbd_host::host;
use ibnbd_host::join::store::{self, JoinLock, Lock, Named, Removed};
use ibnbd_host::keyring::{self, KeyringError, LoadedKey};
use ibnbd_host::model::{Machine, Path as ModelPath};
use ibtrs_proto::auth::{Key, KeyId, KEY_LEN, KEY_TEXT_LEN};
use ibtrs_proto::name::SessionName;
use rustix::rand::{getrandom, GetRandomFlags};
use zeroize::Zeroizing;

use super::args::key_id;
use super::{serve, Done};
use crate::act;
use crate::context::Context;
use crate::fail::{even_unread, Failure, CONFIGURATION, NOT_FOUND, NO_MODULE, NO_RIGHTS, REFUSED};
use crate::out::{self, cell, Table};

const NEW_HELP: &str = "\
Example, with a file that only root can read:
  (umask 077; ibnbd key new >/etc/ibtrs/web1.key)";

const LOAD_HELP: &str = "\
The key's text has its id. Connections that are made from then on use it; those that are there stay. A
text of several lines has a key in each.

Examples:
  ibnbd key load web1 <web1.key
  ibnbd key load web1 --kept                  that of `ibnbd join`, after the modules were unloaded
  ibnbd key load web1 --credential web1.cred  in a service with LoadCredentialEncrypted=web1.cred:...";

const LIST_EXAMPLES: &str = "\
Example:
  ibnbd key list";

const REMOVE_EXAMPLES: &str = "\
Examples:
  ibnbd key remove web1
  ibnbd key remove web1 --id web1-2026";

#[derive(Subcommand, Debug)]
pub(crate) enum KeyCommand {
    /// Prints a new key, for both ends of a session
    #[command(after_help = NEW_HELP)]
    New {
        /// Its name: 1 to 32 letters, digits and -_.@
        #[arg(long, default_value = "default", value_parser = key_id)]
        id: KeyId,
    },
    /// Loads a session's key into the kernel, and replaces the one with its id
    #[command(after_help = LOAD_HELP)]
    Load(LoadKey),
    /// Lists the keys that the kernel has, without their secret part
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Removes a session's key from the kernel and from /etc/ibtrs/keys, and disconnects the paths of
    /// clients that it has authenticated
    #[command(after_help = REMOVE_EXAMPLES)]
    Remove {
        /// A session
        session: String,
        /// The key's name
        #[arg(long, default_value = "default", value_parser = key_id)]
        id: KeyId,
    },
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("source"))]
pub(crate) struct LoadKey {
    /// A session, which need not be there yet
    pub(crate) session: String,
    /// A file with the key's text, instead of standard input
    #[arg(long, group = "source")]
    pub(crate) file: Option<PathBuf>,
    /// A credential of the service in which this runs
    #[arg(long, value_name = "NAME", group = "source")]
    pub(crate) credential: Option<PathBuf>,
    /// The key that `ibnbd join`, or `host add --token`, has kept on this machine
    #[arg(long, group = "source")]
    pub(crate) kept: bool,
}

/// The module whose keyring it is.
const MODULE: &str = "ibtrs_core";
/// How it is said that another command is waited for, behind `waiting to`.
const WAITING: &str = "change keys after another command";
/// The same of commands that join.
const WAITING_TO_JOIN: &str = "join after another command";

pub(super) fn run(context: &Context, command: &KeyCommand) -> Done {
    match command {
        KeyCommand::New { id } => new(context, id),
        KeyCommand::Load(words) => load(context, words),
        KeyCommand::List => list(context),
        KeyCommand::Remove { session, id } => remove(context, session, id),
    }
}

fn new(context: &Context, id: &KeyId) -> Done {
    let key = random().map_err(|error| Failure::system("cannot make a key", &error))?;
    let mut text = [0; KEY_TEXT_LEN];
    let length = key.write(id, &mut text);
    let text = text.get(..length).unwrap_or_default();
    context.say(&String::from_utf8_lossy(text))?;
    if io::stdout().is_terminal() {
        note!("keep it secret, and load it on both ends: ibnbd key load SESSION");
    }
    Ok(0)
}

/// A key of random bytes.
pub(super) fn random() -> io::Result<Key> {
    Key::read_with(fill)
}

/// Fills a key with random bytes of the kernel.
fn fill(bytes: &mut [u8; KEY_LEN]) -> io::Result<()> {
    let got = getrandom(&mut bytes[..], GetRandomFlags::empty())?;
    // The kernel never gives less of so few bytes, and half a key would be no key.
    if got == KEY_LEN {
        Ok(())
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

fn load(context: &Context, words: &LoadKey) -> Done {
    let session = session(&words.session)?;
    // What is typed, or comes by a pipe, is waited for without keeping others waiting.
    let given = match words.kept || words.credential.is_some() {
        true => None,
        false => Some(read(words)?),
    };
    // A key that is removed at the same moment would come back: what is kept is read under the lock.
    let what = format!("cannot load keys of session {session}");
    let lock = act::with_progress(WAITING, || store::lock_to_load(&context.root));
    let _lock = lock.map_err(|error| busy(&what, &error))?;
    let keys = match given {
        Some(keys) => keys,
        None if words.kept => kept(context, session)?,
        None => read(words)?,
    };
    for (id, key) in &keys {
        load_one(context, session, id, key)?;
    }
    Ok(0)
}

fn load_one(context: &Context, session: &str, id: &KeyId, key: &Key) -> Result<(), Failure> {
    let name = name(id.as_str(), session);
    let failed = |error| failure(context, format!("cannot load {name}"), &error);
    // Only for the word below: a list that cannot be read keeps no key from being loaded.
    let older = keyring::keys(&context.root).is_ok_and(|keys| find(&keys, session, id).is_some());
    keyring::load(&context.root, id, session, key).map_err(failed)?;
    let done = if older { "replaced" } else { "loaded" };
    context.say(&format!("{done} {name}"))
}

fn list(context: &Context) -> Done {
    let keys = keyring::keys(&context.root)
        .map_err(|error| failure(context, "cannot list keys".to_owned(), &error))?;
    let mut table = Table::new(["id", "session", "expires", "fingerprint"]);
    for key in &keys {
        table.row([
            key.id.clone(),
            key.session.clone(),
            key.expires.clone(),
            cell(&key.fingerprint),
        ]);
    }
    let document = Keys {
        format: FORMAT,
        keys,
        notes: Vec::new(),
    };
    out::emit(context, &document, vec![table])?;
    Ok(0)
}

fn remove(context: &Context, session: &str, id: &KeyId) -> Done {
    let name = name(id.as_str(), session);
    let what = format!("cannot remove {name}");
    let failed = |error| failure(context, what.clone(), &error);
    // Before it looks: a command that loads or makes keys at this moment has done so by then, or comes after it.
    let lock = act::with_progress(WAITING, || store::lock(&context.root));
    let keys = keyring::keys(&context.root).map_err(failed)?;
    // Before the kernel's: it would load it again at the next boot.
    let kept = forget(context, session, id, &lock);
    let key = find(&keys, session, id);
    if let Some(key) = key {
        // Also if it cannot be removed for good.
        keyring::remove(&context.root, key).map_err(failed)?;
    }
    let from = match &kept {
        Ok(None) if key.is_none() => {
            let failure = Failure::new(NOT_FOUND, what, "the kernel has no such key");
            return Err(failure.todo("see `ibnbd key list`"));
        }
        Ok(Some(file)) => format!(", also from {file}"),
        _ => String::new(),
    };
    // Only now: a path that went before could come back with the key.
    let machine = context.machine();
    let then = match authenticated(&machine, Side::Client, session, id).len() {
        0 => "",
        _ => "; this client's paths stay until their next connection",
    };
    if key.is_some() || kept.is_ok() {
        even_unread(context.say(&format!("removed {name}{from}{then}")))?;
    }
    let mut result = kept.map(|_| 0);
    // The server does this as well, within a second.
    for path in authenticated(&machine, Side::Server, session, id) {
        let done = serve::disconnect_path(context, path);
        // One that the server has disconnected meanwhile is gone, and the others have to go all the
        // same.
        if let Err(failure) = done.or_else(|failure| still_there(context, path, failure)) {
            result = result.and(Err(failure));
        }
    }
    result
}

/// Removes a key from those that this machine keeps; returns the file that had it. Without the lock only the
/// kernel's key can go.
fn forget(
    context: &Context,
    session: &str,
    id: &KeyId,
    lock: &io::Result<Lock>,
) -> Result<Option<String>, Failure> {
    let root = &context.root;
    let Some(file) = store::file(root, session) else {
        return Ok(None);
    };
    let failed = |error: &io::Error| {
        let what = format!("cannot remove {} from {file}", name(id.as_str(), session));
        let failure = Failure::system(what, error);
        failure.todo("it would be loaded again at the next boot: remove the file, or try it again")
    };
    let lock = lock.as_ref().map_err(failed)?;
    let removed = store::remove(root, session, id, lock).map_err(|error| failed(&error))?;
    Ok(removed.map(|removed| {
        warn_of_unit(session, &removed);
        removed.file
    }))
}

/// Waits until no other command changes keys.
pub(super) fn turn(context: &Context, what: &str) -> Result<Lock, Failure> {
    let lock = act::with_progress(WAITING, || store::lock(&context.root));
    lock.map_err(|error| busy(what, &error))
}

/// Waits until no other command joins a server.
pub(super) fn turn_to_join(context: &Context, what: &str) -> Result<JoinLock, Failure> {
    let lock = act::with_progress(WAITING_TO_JOIN, || store::lock_to_join(&context.root));
    lock.map_err(|error| busy(what, &error))
}

fn busy(what: &str, error: &io::Error) -> Failure {
    let failure = Failure::system(what, error);
    match error.kind() {
        io::ErrorKind::TimedOut => {
            failure.todo("nothing was changed: try it again when that process has ended")
        }
        _ => failure,
    }
}

/// Keys were removed for good, but the unit that loaded them at boot stays.
pub(super) fn warn_of_unit(session: &str, removed: &Removed) {
    if let Some(error) = &removed.left_enabled {
        let unit = store::unit(session);
        note!(
            "warning: cannot disable {unit}, which has no key to load any more and fails at each boot: {error}; \
             systemctl disable {unit}"
        );
    }
}

fn still_there(context: &Context, path: &ModelPath, failure: Failure) -> Result<(), Failure> {
    if context.root.exists(&path.folder()) {
        Err(failure)
    } else {
        Ok(())
    }
}

/// Paths of this side that the key has authenticated.
fn authenticated<'a>(
    machine: &'a Machine,
    side: Side,
    session: &str,
    id: &KeyId,
) -> Vec<&'a ModelPath> {
    let own = machine.our(side, session);
    let paths = own.into_iter().flat_map(|session| &session.paths);
    paths
        .filter(|path| path.key_id.as_deref() == Some(id.as_str()))
        .collect()
}

fn name(id: &str, session: &str) -> String {
    format!("key {id} of session {session}")
}

/// The key of a session with that id.
pub(super) fn find<'a>(keys: &'a [LoadedKey], session: &str, id: &KeyId) -> Option<&'a LoadedKey> {
    let wanted = |key: &&LoadedKey| key.session == session && key.id == id.as_str();
    keys.iter().find(wanted)
}

/// The name, if a session can have it.
fn session(name: &str) -> Result<&str, Failure> {
    match SessionName::new(name.as_bytes()) {
        Ok(_) => Ok(name),
        Err(error) => Err(Failure::usage(format!("session {name}"), error.as_str())),
    }
}

/// The keys of a session that this machine keeps.
fn kept(context: &Context, session: &str) -> Result<Vec<Named>, Failure> {
    let what = format!("the key of session {session}");
    store::read(&context.root, session).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            let failure = Failure::new(NOT_FOUND, &*what, "this machine has kept none");
            failure.todo("see /etc/ibtrs/keys; `ibnbd join` keeps one")
        }
        // To try again would not help.
        io::ErrorKind::InvalidData => Failure::new(CONFIGURATION, &*what, error.to_string()),
        _ => Failure::system(&*what, &error),
    })
}

/// Keys and their ids, from where the words say.
fn read(words: &LoadKey) -> Result<Vec<Named>, Failure> {
    let Some(file) = file(words)? else {
        let stdin = stdin()?;
        if is_open_to_others(&stdin) {
            note!("warning: others can read the file of the key: set its mode to 600 with chmod");
        }
        return from(stdin, "standard input", io::stdin().is_terminal());
    };
    let name = file.display().to_string();
    let open = File::open(&file).map_err(|error| Failure::system(&*name, &error))?;
    if is_open_to_others(&open) {
        note!("warning: others can read {name}: chmod 600 {name}");
    }
    from(open, &name, false)
}

/// Standard input without a buffer, in which a copy of the key would stay.
fn stdin() -> Result<File, Failure> {
    let owned = io::stdin().as_fd().try_clone_to_owned();
    owned
        .map(File::from)
        .map_err(|error| Failure::system("standard input", &error))
}

/// The file, if it is one.
fn file(words: &LoadKey) -> Result<Option<PathBuf>, Failure> {
    let Some(name) = &words.credential else {
        return Ok(words.file.clone());
    };
    let what = format!("credential {}", name.display());
    if name.components().count() != 1 || Path::new(name).file_name().is_none() {
        return Err(Failure::usage(what, "it is a name, and no way to a file"));
    }
    let Some(folder) = env::var_os("CREDENTIALS_DIRECTORY") else {
        let failure = Failure::new(NOT_FOUND, what, "this is not a service with credentials");
        return Err(failure.todo("set LoadCredentialEncrypted= in its unit, or take --file"));
    };
    Ok(Some(Path::new(&folder).join(name)))
}

fn is_open_to_others(file: &File) -> bool {
    const OTHERS: u32 = 0o044;
    let metadata = file.metadata();
    metadata.is_ok_and(|m| m.is_file() && m.permissions().mode() & OTHERS != 0)
}

/// Keys and their ids from their text, of which no copy is left.
fn from(mut from: impl Read, name: &str, is_terminal: bool) -> Result<Vec<Named>, Failure> {
    if is_terminal {
        note!("paste the key, then press Enter");
    }
    let mut text = Zeroizing::new([0; store::MOST_TEXT]);
    let length = read_text(&mut from, &mut text[..], is_terminal);
    let length = length.map_err(|error| Failure::system(name, &error))?;
    store::parse(text.get(..length).unwrap_or_default()).map_err(|error| {
        Failure::usage(name, error.as_str())
            .todo("take the whole line that `ibnbd key new` has printed")
    })
}

/// Reads to the end, of a terminal's first line if it is one; returns the length.
fn read_text(from: &mut impl Read, text: &mut [u8], is_terminal: bool) -> io::Result<usize> {
    let mut length = 0;
    while let Some(rest) = text.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match from.read(rest) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) => break,
            other => length += other?,
        }
        if is_terminal && length > 0 {
            break;
        }
    }
    Ok(length)
}

pub(super) fn failure(context: &Context, what: String, error: &KeyringError) -> Failure {
    let why = match error {
        KeyringError::NoProgram => {
            let failure = Failure::new(NOT_FOUND, what, "the program keyctl is not there");
            return failure.todo("install the package keyutils");
        }
        KeyringError::NoKeyring if !host::is_loaded(&context.root, MODULE) => {
            let failure = Failure::new(NO_MODULE, what, "the module ibtrs_core is not loaded");
            return failure.todo(format!("modprobe {MODULE}"));
        }
        KeyringError::System(error) => return Failure::system(what, error),
        _ if !rustix::process::geteuid().is_root() => {
            return Failure::new(NO_RIGHTS, what, "only root may do that").todo("try it as root");
        }
        KeyringError::NoKeyring => {
            let why = "the module ibtrs_core has no keyring: it is older than this command";
            return Failure::new(REFUSED, what, why).todo("load the module of this version");
        }
        KeyringError::Refused(why) => why,
    };
    Failure::new(REFUSED, what, why)
}
